"""AsyncKeeper and AsyncLease: leasekeeper for asyncio.

The same names as in `leasekeeper.keeper`, awaited where they can block. The heartbeat runs on a thread of its own, so an
event loop that is blocked, by whatever, does not lose the lease.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import leasekeeper.observe  # noqa: F401 - it adds the observer that logs
from leasekeeper.errors import LeaseLost, Misuse
from leasekeeper.fencing import parse_token
from leasekeeper.protocol import inspect as look
from leasekeeper.protocol import queue
from leasekeeper.protocol.authority import State
from leasekeeper.protocol.gate import lost
from leasekeeper.protocol.keys import Claim, check_name
from leasekeeper.runs.aio_keeping import AsyncKeepsRuns
from leasekeeper.runtime.aio import on_thread
from leasekeeper.runtime.core import ONCE_S, Core, check_timeout
from leasekeeper.runtime.entering import EnteredAsync
from leasekeeper.runtime.fork import HERE
from leasekeeper.runtime.held import Held, attach
from leasekeeper.runtime.supervise import Supervised
from leasekeeper.timing import Timing
from leasekeeper.wire.channel import TLS, Channel
from leasekeeper.wire.environment import settings

if TYPE_CHECKING:
    from typing_extensions import Unpack  # for type checkers alone, which all know it; Python has it from 3.11 on

    from leasekeeper.protocol.lend import Want
    from leasekeeper.runtime.conduct import Passing
    from leasekeeper.wire.environment import Settings

__all__ = ["AsyncKeeper", "AsyncLease"]

T = TypeVar("T")


class AsyncLease(Held):
    """An owned claim on a name, as `AsyncKeeper` gives it; see `leasekeeper.Lease` for what it guarantees."""

    __slots__ = ()

    async def wait(self, need: float = 0.0, timeout: float | None = None) -> int:
        """Wait until authority is proven with ``need`` seconds of it left: the token. See `Lease.wait`."""
        if timeout is not None:
            check_timeout(timeout)
        try:
            return self.check(need)
        except (LeaseLost, Exception):  # noqa: BLE001 - whatever it was, the plan below says it or waits it out
            pass
        token: int = await self._core.arun(self._waiting(need, timeout))
        return token

    @asynccontextmanager
    async def critical(self, need: float = 0.0) -> AsyncIterator[int]:
        """Run a block that must not outlive its authority; see `Lease.critical`."""
        token = await self.wait(need)
        lapses = self._session.lapses
        try:
            yield token
        except BaseException as error:
            if (loss := self._critical_end(lapses)) is not None:
                attach(error, loss)
            raise
        if (loss := self._critical_end(lapses)) is not None:
            raise loss

    async def supervise(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine under the lease, in a task of its own: its result.

        Held at its next await while the lease is SUSPENDED, cancelled when it is LOST or RELEASED. It cannot be stopped
        between two awaits: code that blocks there must ask `check` itself. Its clean-up after the cancellation may await;
        if it swallows the cancellation instead, it is closed some seconds later.

        Raises:
            LeaseLost: the lease is over and the coroutine has ended, also when it returned something in the end. If it
                ended with an error of its own, that is raised, with the loss as its context.
            Misuse: ``coro`` is no coroutine, or the lease has 64 subscribers and supervised coroutines already.
        """
        if not asyncio.iscoroutine(coro):
            raise Misuse(f"supervise({type(coro).__name__}): expected a coroutine, the result of calling an async def")
        run = Supervised(coro, passes=self._passes, wait=self.wait)
        unsubscribe = self._subscribe_to_end(coro, run.end)
        try:
            result: T = await run.finish()
        except BaseException as error:
            loss = self._loss_of(run.ended)
            if loss is None or isinstance(error, LeaseLost):
                raise
            if run.outside is None and isinstance(error, asyncio.CancelledError):
                raise loss from None  # it was cancelled for this
            attach(error, loss)
            raise
        finally:
            unsubscribe()
        if (loss := self._loss_of(run.ended)) is not None:
            raise loss
        return result

    def _passes(self) -> bool:
        return bool(HERE[0]) and self._authority.passes(0.0, self._now())

    def _subscribe_to_end(self, coro: Coroutine[Any, Any, T], end: Callable[[], None]) -> Callable[[], None]:
        try:
            self._check_not_over()
            return self.subscribe(lambda state: end() if state.final else None)
        except BaseException:
            coro.close()
            raise

    def _loss_of(self, ended: bool) -> LeaseLost | None:
        """What to raise for a supervised coroutine that has ended, whether or not it was cancelled for it."""
        return lost(self._authority) if ended or self._authority.loss is not None else None

    async def release(self) -> None:
        """Give the claim back; see `Lease.release`."""
        await self._release()

    async def _release(self) -> tuple[bool, bool | None, bool]:
        tending, lapsed = self._begin_release()
        removed: bool | None = None
        if tending is not None:
            try:
                removed = await self._core.arun(self._releasing(tending))
            finally:
                self._released(removed)
        return tending is not None, removed, lapsed

    def _listener(self, callback: Callable[[State], object]) -> Callable[[State], None]:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise Misuse("subscribe on the event loop that is to be told: no loop runs in this thread") from None

        def tell(state: State) -> None:
            try:
                loop.call_soon_threadsafe(callback, state)
            except RuntimeError:
                pass  # the loop was closed; nobody is left to be told

        return tell

    async def __aenter__(self) -> AsyncLease:
        self._check_not_over()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loss = self._parting(*await self._release())
        if loss is None:
            return
        if error is None:
            raise loss
        if error is not loss:
            attach(error, loss)


class _Acquiring(EnteredAsync):
    """What `AsyncKeeper.lease` returns: acquires on entering, releases on leaving."""

    def __init__(self, acquire: Callable[[], Coroutine[Any, Any, AsyncLease]]) -> None:
        self._acquire = acquire
        self._lease: AsyncLease | None = None

    async def __aenter__(self) -> AsyncLease:
        if self._lease is not None:
            raise Misuse("this lease() was entered already: call keeper.lease(...) anew")
        self._lease = await self._acquire()
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._lease is not None
        await self._lease.__aexit__(kind, error, trace)


class AsyncKeeper(AsyncKeepsRuns):
    """Acquires leases on names in etcd and keeps them alive, for asyncio; arguments and guarantees as `Keeper`.

    Belongs to no event loop: it can be made at import and used from several loops.
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
    def from_env(cls, **overrides: Unpack[Settings]) -> AsyncKeeper:
        """A keeper configured by LEASEKEEPER_* or, where those are silent, by the ETCDCTL_* variables.

        ``overrides`` are arguments of the constructor, which win.
        """
        return cls(**settings(os.environ, overrides))

    def __repr__(self) -> str:
        return f"<AsyncKeeper {','.join(self._core.engine.endpoints)} namespace={self._core.ctx.keys.namespace!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot pickle or copy {self!r}: make a keeper in each process")

    # ------------------------------------------------------------ leases

    def lease(self, name: str, *, ttl: float | None = None, timeout: float | None = None, note: str = "") -> _Acquiring:
        """An async context manager around `acquire`; see `Keeper.lease`."""
        self._core.want(name, ttl, timeout, note)  # bad arguments fail here, not in the with statement
        return _Acquiring(lambda: self.acquire(name, ttl=ttl, timeout=timeout, note=note))

    async def acquire(
        self, name: str, *, ttl: float | None = None, timeout: float | None = None, note: str = ""
    ) -> AsyncLease:
        """Wait for the turn on ``name`` and own it; see `Keeper.acquire`. Cancelling it leaves no claim behind."""
        want = self._core.want(name, ttl, timeout, note)
        if timeout is not None and timeout <= 0:
            return await self._at_once(want._replace(until=want.since + ONCE_S))
        if timeout is None and self._core.sessions.owned_by(name, asyncio.current_task()):
            raise Misuse(
                f"this task owns {name!r} already and would wait for itself: release it first, or give a timeout"
            )
        return self._own(want, await self._core.aacquire(want, queue.acquire(self._core.ctx, want)))

    async def try_acquire(self, name: str, *, ttl: float | None = None, note: str = "") -> AsyncLease | None:
        """Own ``name`` if nobody claims it; None at once, and no trace, if somebody does. See `Keeper.try_acquire`."""
        want = self._core.want(name, ttl, None, note)
        authority = await self._core.aacquire(want, queue.try_acquire(self._core.ctx, want))
        return None if authority is None else self._own(want, authority)

    async def _at_once(self, want: Want) -> AsyncLease:
        return self._own(want, await self._core.aacquire(want, queue.at_once(self._core.ctx, want)))

    def _own(self, want: Want, authority: Any) -> AsyncLease:
        lease = AsyncLease(self._core, authority)
        task = asyncio.current_task()
        lease._acquired(want.since, weakref.ref(task) if task is not None else lambda: None)
        return lease

    # ------------------------------------------------------------ looking

    async def verify(self, name: str, token: int | str) -> bool:
        """Whether ``token`` is the present owner's, by one linearizable read. It may be over a moment later."""
        check_name(name)
        found: bool = await self._core.arun(queue.verify(self._core.ctx, name, parse_token(token), self._core.until()))
        return found

    async def claims(self, name: str) -> list[Claim]:
        """The queue on ``name``, owner first."""
        check_name(name)
        found: list[Claim] = await self._core.arun(look.claims(self._core.ctx, name, self._core.until()))
        return found

    async def names(self, prefix: str = "") -> AsyncIterator[str]:
        """The names that somebody claims and that begin with ``prefix``, in order of their keys; read page by page."""
        self._core.check_usable()
        start: bytes | None = None
        last = ""
        while True:
            queues, start = await self._core.arun(look.page(self._core.ctx, prefix, start, self._core.until()))
            for queue_ in queues:
                if queue_[0].name != last:
                    last = queue_[0].name
                    yield last
            if start is None:
                return

    # ------------------------------------------------------------ end

    async def close(self) -> None:
        """End every lease of this keeper (LOST, reason ``closed``) and revoke them at etcd; at most about 3 s."""
        await on_thread(self._core.close, "leasekeeper-close")

    async def __aenter__(self) -> AsyncKeeper:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
