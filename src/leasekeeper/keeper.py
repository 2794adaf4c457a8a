"""Keeper and Lease: leasekeeper for threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import leasekeeper.observe  # noqa: F401 - it adds the observer that logs
from leasekeeper.errors import LeaseLost, Misuse
from leasekeeper.fencing import parse_token
from leasekeeper.protocol import inspect as look
from leasekeeper.protocol import queue
from leasekeeper.protocol.keys import Claim, check_name
from leasekeeper.runs.keeping import KeepsRuns
from leasekeeper.runtime.core import ONCE_S, Core, check_timeout
from leasekeeper.runtime.entering import EnteredPlain
from leasekeeper.runtime.held import Held, attach, current_thread_ref
from leasekeeper.timing import Timing
from leasekeeper.wire.channel import TLS, Channel
from leasekeeper.wire.environment import settings

if TYPE_CHECKING:
    from typing_extensions import Unpack  # for type checkers alone, which all know it; Python has it from 3.11 on

    from leasekeeper.protocol.lend import Want
    from leasekeeper.runtime.conduct import Passing
    from leasekeeper.wire.environment import Settings

__all__ = ["Keeper", "Lease"]


class Lease(Held):
    """An owned claim on a name, as `Keeper` gives it. Usable from any thread.

    What it guarantees and what not: docs/guarantees.md. In short: `check` and `wait` let work through only while this
    process can prove that etcd still keeps the claim; whoever neither asks them nor sends `token` to a resource that
    checks it is not stopped by anything.
    """

    __slots__ = ()

    def wait(self, need: float = 0.0, timeout: float | None = None) -> int:
        """Block until authority is proven with ``need`` seconds of it left: the token.

        Passes at once while heartbeats are confirmed, pauses while they are missing.

        Args:
            need: seconds of proven authority that the work about to begin needs.
            timeout: seconds to wait at most; None: until it is HELD or LOST.

        Raises:
            LeaseLost: the lease is over for good.
            LeaseSuspended: the timeout has come.
        """
        if timeout is not None:
            check_timeout(timeout)
        try:
            return self.check(need)
        except (LeaseLost, Exception):  # noqa: BLE001 - whatever it was, the plan below says it or waits it out
            pass
        token: int = self._core.run(self._waiting(need, timeout))
        return token

    @contextmanager
    def critical(self, need: float = 0.0) -> Iterator[int]:
        """Run a block that must not outlive its authority: waits at the gate, yields the token.

        Raises LeaseLost (``in_doubt``) at the end if authority lapsed meanwhile, or was given back by whomever: what the
        block did must then be checked at the resource. An exception from the block wins and keeps the loss as its context.
        """
        token = self.wait(need)
        lapses = self._session.lapses
        try:
            yield token
        except BaseException as error:
            if (loss := self._critical_end(lapses)) is not None:
                attach(error, loss)
            raise
        if (loss := self._critical_end(lapses)) is not None:
            raise loss

    def release(self) -> None:
        """Give the claim back. The handle says RELEASED before anything is sent.

        Does nothing when it is over already, and nothing to anybody else's claim. If etcd cannot confirm in time, the
        background goes on; the key never outlives its lease.
        """
        self._release()

    def _release(self) -> tuple[bool, bool | None, bool]:
        tending, lapsed = self._begin_release()
        removed: bool | None = None
        if tending is not None:
            try:
                removed = self._core.run(self._releasing(tending))
            finally:
                self._released(removed)
        return tending is not None, removed, lapsed

    def __enter__(self) -> Lease:
        self._check_not_over()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loss = self._parting(*self._release())
        if loss is None:
            return
        if error is None:
            raise loss
        if error is not loss:
            attach(error, loss)


class _Acquiring(EnteredPlain):
    """What `Keeper.lease` returns: acquires on entering, releases on leaving."""

    def __init__(self, acquire: Callable[[], Lease]) -> None:
        self._acquire = acquire
        self._lease: Lease | None = None

    def __enter__(self) -> Lease:
        if self._lease is not None:
            raise Misuse("this lease() was entered already: call keeper.lease(...) anew")
        self._lease = self._acquire()
        return self._lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._lease is not None
        self._lease.__exit__(kind, error, trace)


class Keeper(KeepsRuns):
    """Acquires leases on names in etcd and keeps them alive.

    Makes no I/O and starts no thread before first use. Safe to share between threads. After a fork the parent's goes on; the
    child's copy is dead (Misuse) and its leases are LOST, unless the keeper was not used before: then it works in both.

    Args:
        endpoints: ``host:port`` of etcd's members, with commas or as a sequence; ``http://`` and ``https://`` accepted.
        namespace: keeps the names of different applications apart.
        timing: TTL and what follows from it.
        tls: certificates.
        user: etcd user, together with ``password``; its role needs only ``leasekeeper/<namespace>/``.
        password: its password; never logged or shown.
        holder: who this is, for people to read; default ``host:pid:random``. Exclusion does not depend on it.
        channel: an existing ``grpc.Channel`` to use instead of own connections; it is not closed here.
        metadata: pairs sent along with every call.

    Raises:
        ConfigError: an argument cannot be right; names it and says what would be.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str] = "127.0.0.1:2379",
        *,
        namespace: str = "default",
        timing: Timing | None = None,
        tls: TLS | None = None,
        user: str | None = None,
        password: str | None = None,
        holder: str | None = None,
        channel: Channel | None = None,
        metadata: Sequence[tuple[str, str | bytes]] = (),
    ) -> None:
        self._core = Core(
            endpoints,
            namespace=namespace,
            timing=timing,
            tls=tls,
            user=user,
            password=password,
            holder=holder,
            channel=channel,
            metadata=metadata,
        )
        self._life = self._core.begin()
        # Told of each point that its runs pass: for leasekeeper.testing.failpoints.
        self._passing: Passing | None = None

    @classmethod
    def from_env(cls, **overrides: Unpack[Settings]) -> Keeper:
        """A keeper configured by LEASEKEEPER_* or, where those are silent, by the ETCDCTL_* variables.

        ``overrides`` are arguments of the constructor, which win.
        """
        return cls(**settings(os.environ, overrides))

    def __repr__(self) -> str:
        return f"<Keeper {','.join(self._core.engine.endpoints)} namespace={self._core.ctx.keys.namespace!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot pickle or copy {self!r}: make a keeper in each process")

    # ------------------------------------------------------------ leases

    def lease(self, name: str, *, ttl: float | None = None, timeout: float | None = None, note: str = "") -> _Acquiring:
        """A context manager around `acquire`: the body runs only while the name is owned, and gives it back at its end.

        Leaving it after a loss raises LeaseLost; an exception from the body wins and keeps the loss as its context.
        """
        want = self._core.want(name, ttl, timeout, note)
        del want  # bad arguments fail here, not in the with statement
        return _Acquiring(lambda: self.acquire(name, ttl=ttl, timeout=timeout, note=note))

    def acquire(self, name: str, *, ttl: float | None = None, timeout: float | None = None, note: str = "") -> Lease:
        """Wait for the turn on ``name`` and own it; first come, first served.

        Args:
            name: 1 to 255 characters, no control characters; "/" is welcome.
            ttl: seconds that etcd keeps the claim after the last heartbeat; default that of ``timing``.
            timeout: seconds to wait at most; 0 tries once, which may take etcd 3 s; None waits without end. Where etcd falls
                silent the call ends up to 2 s later: it still tries to leave no claim behind, and hands that to the background.
            note: shown to operators.

        Raises:
            NotAcquired: the timeout has come; no claim is left behind.
            Unavailable: etcd could not be reached in time to stand in the queue (10 s when there is no timeout).
            Misuse: this thread owns the name already and would wait for itself.
        """
        want = self._core.want(name, ttl, timeout, note)
        if timeout is not None and timeout <= 0:
            return self._at_once(want._replace(until=want.since + ONCE_S))
        if timeout is None and self._core.sessions.owned_by(name, threading.current_thread()):
            raise Misuse(
                f"this thread owns {name!r} already and would wait for itself: release it first, or give a timeout"
            )
        return self._own(want, self._core.acquire(want, queue.acquire(self._core.ctx, want)))

    def try_acquire(self, name: str, *, ttl: float | None = None, note: str = "") -> Lease | None:
        """Own ``name`` if nobody claims it; None at once, and no trace, if somebody does.

        Raises Unavailable when etcd cannot be asked for 10 s, up to 2 s later than that. ``acquire(timeout=0)`` has less
        patience.
        """
        want = self._core.want(name, ttl, None, note)
        authority = self._core.acquire(want, queue.try_acquire(self._core.ctx, want))
        return None if authority is None else self._own(want, authority)

    def _at_once(self, want: Want) -> Lease:
        return self._own(want, self._core.acquire(want, queue.at_once(self._core.ctx, want)))

    def _own(self, want: Want, authority: Any) -> Lease:
        lease = Lease(self._core, authority)
        lease._acquired(want.since, current_thread_ref())
        return lease

    # ------------------------------------------------------------ looking

    def verify(self, name: str, token: int | str) -> bool:
        """Whether ``token`` is the present owner's, by one linearizable read. It may be over a moment later."""
        check_name(name)
        found: bool = self._core.run(queue.verify(self._core.ctx, name, parse_token(token), self._core.until()))
        return found

    def claims(self, name: str) -> list[Claim]:
        """The queue on ``name``, owner first."""
        check_name(name)
        found: list[Claim] = self._core.run(look.claims(self._core.ctx, name, self._core.until()))
        return found

    def names(self, prefix: str = "") -> Iterator[str]:
        """The names that somebody claims and that begin with ``prefix``, in order of their keys; read page by page."""
        self._core.check_usable()
        start: bytes | None = None
        last = ""
        while True:
            queues, start = self._core.run(look.page(self._core.ctx, prefix, start, self._core.until()))
            for queue_ in queues:
                if queue_[0].name != last:
                    last = queue_[0].name
                    yield last
            if start is None:
                return

    # ------------------------------------------------------------ end

    def close(self) -> None:
        """End every lease of this keeper (LOST, reason ``closed``) and revoke them at etcd; at most about 3 s."""
        self._core.close()

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
