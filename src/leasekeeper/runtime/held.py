"""A lease as its owner holds it: what is the same under threads and asyncio, the gate above all."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from leasekeeper.errors import LeaseLost, Misuse
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.authority import Authority, Loss, State
from leasekeeper.protocol.gate import lost, not_provable, parting, refusal, wait_held
from leasekeeper.protocol.leave import release
from leasekeeper.runtime.core import Core, check_timeout, observers
from leasekeeper.runtime.events import Acquired, Released
from leasekeeper.runtime.fork import HERE, check_process

if TYPE_CHECKING:
    from leasekeeper.protocol.plan import Plan
    from leasekeeper.protocol.session import Tending

__all__ = ["Held"]

LISTENERS_MAX = 64
H = TypeVar("H", bound="Held")


class Held:
    """An owned claim. Usable from any thread; every attribute and `check` answer at once, without asking etcd."""

    __slots__ = (
        "__weakref__",
        "_authority",
        "_core",
        "_gate_s",
        "_life",
        "_name",
        "_now",
        "_pause_s",
        "_session",
        "_token",
        "_until_s",
    )

    def __init__(self, core: Core, authority: Authority) -> None:
        self._core = core
        self._life = core.life()
        self._authority = authority
        self._session = authority.session
        self._now = core.now
        self._pause_s = authority.timing.pause_s
        self._gate_s = authority.timing.gate_s
        self._until_s = authority.until_s
        self._name = authority.name
        self._token = authority.token

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} token={self.token} {self.state.value}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"cannot pickle or copy {self!r}: its authority is this process's own; hand over name and token"
        )

    # ------------------------------------------------------------ facts

    @property
    def name(self) -> str:
        """What is leased."""
        return self._name

    @property
    def token(self) -> int:
        """The fencing token. Known whether or not authority is proven: `check` gives it at the gate."""
        return self._token

    @property
    def state(self) -> State:
        """HELD, SUSPENDED, LOST or RELEASED, at this moment, by this process's own clock."""
        check_process()
        return self._authority.state(self._now())

    @property
    def loss(self) -> Loss | None:
        """Why and when the lease was lost; None while it was not."""
        check_process()
        return self._authority.loss

    @property
    def key(self) -> str:
        """The claim's key in etcd."""
        return self._authority.slot.key.decode()

    @property
    def lease_id(self) -> int:
        """The etcd lease under which the key lives; `etcdctl` shows it in hex."""
        return self._session.lease_id

    @property
    def holder(self) -> str:
        """Who the keeper says it is, for people to read."""
        return self._core.ctx.holder

    @property
    def claim(self) -> str:
        """The claim's nonce: unlike the holder's name it is unique, and a resource remembers it beside the token."""
        return self._authority.slot.nonce

    def remaining(self) -> float:
        """Seconds of proven authority left; 0.0 when there is none. Fits as a timeout for the next call."""
        check_process()
        return self._authority.remaining(self._now())

    def deadlines(self) -> tuple[float, float]:
        """When work must pause and when authority ends if no further beat is confirmed, on `leasekeeper.clock`.

        For supervisors that keep the gate on a clock of their own; both lie in the past when there is no authority.
        """
        check_process()
        if not self._authority.open:
            return float("-inf"), float("-inf")
        proof_s = self._session.proof_s
        return min(proof_s + self._pause_s, self._until_s), min(proof_s + self._gate_s, self._until_s)

    # ------------------------------------------------------------ the gate

    def check(self, need: float = 0.0) -> int:
        """The token, if authority is proven right now with ``need`` seconds of it left; never blocks, never asks etcd.

        Guarantees that the last confirmed beat was sent less than ``pause_after`` ago by a clock that runs while the
        machine sleeps, and that etcd has said nothing to the contrary. It cannot know what etcd has not told yet: send
        the token along and let the resource check it.

        Args:
            need: seconds of proven authority that the work about to begin needs.

        Raises:
            LeaseSuspended: heartbeats are missing; wait or try again.
            LeaseLost: the lease is over for good.
            Misuse: ``need`` is more than this lease's TTL can ever prove.
        """
        now = self._now()
        age = now - self._session.proof_s
        try:
            if (
                self._authority.open
                and HERE[0]
                and age < self._pause_s
                and age + need <= self._gate_s
                and now + need <= self._until_s
                and need >= 0
            ):
                return self._token
        except (TypeError, OverflowError):
            pass  # the refusal names it
        check_process()
        raise refusal(self._authority, need, self._now())

    def compares(self) -> tuple[pb.Compare, ...]:
        """Etcd compares that hold exactly as long as this claim's key exists: put them into a transaction of your own.

        They are messages of `leasekeeper.protocol.etcd_pb2`; for another client's classes use
        ``Theirs.FromString(compare.SerializeToString())``.
        """
        authority = self._authority
        return (m.created_at(authority.slot.key, authority.create_revision),)

    def subscribe(self, callback: Callable[[State], object]) -> Callable[[], None]:
        """Call ``callback(state)`` after each change of state; returns what ends that.

        Called in order on a thread that is not the heart's (asyncio: on the event loop). News may come late: the gate is
        what decides. Raises Misuse for more than 64 subscribers, and for one that cannot be called.
        """
        check_subscriber(callback)
        listeners = self._authority.listeners
        if len(listeners) >= LISTENERS_MAX:
            raise Misuse(f"more than {LISTENERS_MAX} subscribers on one lease")
        listener = self._listener(callback)
        listeners[listener] = None

        def unsubscribe() -> None:
            listeners.pop(listener, None)

        return unsubscribe

    def _listener(self, callback: Callable[[State], object]) -> Callable[[State], None]:
        return lambda state: (callback(state), None)[1]

    # ------------------------------------------------------------ plans

    def _waiting(self, need: float, timeout: float | None) -> Plan[int]:
        check_process()
        until = None if timeout is None else self._now() + check_timeout(timeout)
        return wait_held(self._authority, need, until, self._now)

    def _begin_release(self) -> tuple[Tending | None, bool]:
        """Shut the gate before anything is sent: (None if it was not owned any more, whether authority had lapsed)."""
        check_process()
        lapsed = self._authority.remaining(self._now()) <= 0
        return self._core.release(self._authority), lapsed

    def _releasing(self, tending: Tending) -> Plan[bool | None]:
        return release(self._core.ctx, self._authority.slot, tending)

    def _released(self, removed: bool | None) -> None:
        if observers:
            held_s = self._now() - self._authority.held_since_s
            self._core.observe(Released(self.name, self.token, self.claim, held_s, removed is not None))

    def _acquired(self, since_s: float, owner: Callable[[], object]) -> None:
        self._authority.owner = owner
        if observers:
            self._core.observe(Acquired(self.name, self.token, self.claim, self._now() - since_s))

    def _check_not_over(self) -> None:
        """No block is entered, and no coroutine begun, under a lease that is over: at its end there would be nothing to tell."""
        if self.state.final:
            raise lost(self._authority)

    def _parting(self, owned: bool, removed: bool | None, lapsed: bool) -> LeaseLost | None:
        """What leaving the ``with`` block must raise."""
        if not owned:
            return lost(self._authority) if self._authority.loss is not None else None
        return parting(self._authority, removed, lapsed, self._now())

    def _critical_end(self, lapses: int) -> LeaseLost | None:
        check_process()
        return not_provable(self._authority, lapses, self._now())


def check_subscriber(callback: object) -> None:
    """Misuse for what cannot be called, and for a coroutine function, whose coroutine nobody would await."""
    if not callable(callback) or inspect.iscoroutinefunction(callback):
        raise Misuse(f"subscribe({callback!r}): expected a function that can be called, and not a coroutine function")


def attach(error: BaseException, loss: LeaseLost) -> None:
    """Keep a loss as the context of the error that wins over it, unless it tells of that loss already."""
    seen: set[int] = set()
    while not _tells(error, loss):
        if error.__context__ is None or id(error) in seen:
            error.__context__ = loss
            return
        seen.add(id(error))
        error = error.__context__


def _tells(error: BaseException, loss: LeaseLost) -> bool:
    if not isinstance(error, LeaseLost):
        return False
    return (error.name, error.token) == (loss.name, loss.token) and error.in_doubt >= loss.in_doubt


def current_thread_ref() -> Callable[[], Any]:
    """A weak reference to the running thread: thread numbers are used again, threads are not."""
    return weakref.ref(threading.current_thread())
