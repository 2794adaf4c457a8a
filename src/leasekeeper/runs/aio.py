"""AsyncRun: durable steps for asyncio. The same names as in `leasekeeper.runs.run`, awaited where they can block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from leasekeeper.errors import Misuse, StopWork
from leasekeeper.protocol import closing, history, phase
from leasekeeper.protocol.conduct import talk
from leasekeeper.protocol.steps import step_page
from leasekeeper.run_errors import StaleCheckpoint, StepsOpen
from leasekeeper.runs.ask_first import aasked_first
from leasekeeper.runs.owned import Owned, Verify, entering
from leasekeeper.runs.states import READ_S, TRIES, Stated
from leasekeeper.runtime.aio import aside
from leasekeeper.runtime.conduct import Footing, drive_async, nowhere
from leasekeeper.runtime.entering import EnteredAsync

if TYPE_CHECKING:
    from leasekeeper.aio import AsyncKeeper, AsyncLease
    from leasekeeper.protocol.checkpoint import Change
    from leasekeeper.protocol.conduct import Conduct
    from leasekeeper.run_records import Receipt, StepView
    from leasekeeper.runs.options import RunOptions
    from leasekeeper.runtime.conduct import Passing

__all__ = ["AsyncCheckpoint", "AsyncPhase", "AsyncRun", "AsyncRunning"]

T = TypeVar("T")


class AsyncRun(Owned):
    """An owned run, as `AsyncKeeper.run` gives it; see `leasekeeper.Run` for what it guarantees.

    Effects may be coroutine functions; a plain one is called on the loop, and blocks it. Several steps may be gathered.
    """

    __slots__ = ()

    lease: AsyncLease
    _awaits = True

    async def do(
        self,
        key: str,
        effect: Callable[..., Any],
        *args: Any,
        verify: Verify | None = None,
        need: float | None = None,
        commit: Callable[[Any], Change] | None = None,
    ) -> Any:
        """Do a step; see `Run.do`. Cancelled during the call, it leaves the step in doubt, as a crash would."""
        return await self._drive(self._doing(key, effect, args, kind="do", verify=verify, need=need, commit=commit))

    async def memo(
        self, key: str, function: Callable[..., Any], *args: Any, about: Mapping[str, Any] | None = None
    ) -> Any:
        """Ask something once and remember the answer; see `Run.memo`."""
        return await self._drive(self._doing(key, function, args, kind="memo", about=about))

    async def checkpoint(self, name: str, kind: type[T], *, write_version: int | None = None) -> AsyncCheckpoint[T]:
        """A versioned state, read now; see `Run.checkpoint`."""
        found = AsyncCheckpoint(self, name, kind, write_version)
        await found.read()
        return found

    async def phase(self, name: str, legal_transitions: Mapping[str, Sequence[str]]) -> AsyncPhase:
        """One of a few words, moved only along these transitions; see `Run.phase`."""
        found = AsyncPhase(self, name, phase.transitions(legal_transitions))
        await found.now()
        return found

    # ------------------------------------------------------------ looking

    async def last(self) -> Receipt:
        """The last record, read linearizably together with the head."""
        core = self.lease._core
        found = await core.arun(history.last(core.ctx, self._life.log.keys, core.until()))
        assert found is not None
        receipt: Receipt = found[1]
        return receipt

    async def steps(self) -> AsyncIterator[StepView]:
        """Where each step stands, in order of their keys; read page by page."""
        core, keys = self.lease._core, self._life.log.keys
        start: bytes | None = None
        while True:
            found, start = await core.arun(step_page(core.ctx, keys, start, core.until()))
            for step in found:
                yield step
            if start is None:
                return

    # ------------------------------------------------------------ inside

    async def _drive(self, conduct: Conduct[T]) -> T:
        return await drive_async(Footing(self.lease, self._tell, self._alarm, self._passing), conduct)

    async def _leave(self, error: BaseException | None) -> None:
        """Record how the block ended; what cannot be recorded any more is left to the next life."""
        if error is not None:
            await self._failed(error)
            return
        try:
            await self._finish()
        except StepsOpen as refused:
            await self._failed(refused)
            raise

    async def _finish(self) -> None:
        self._life.leaving = True
        self.lease._check_not_over()
        closing.check_idle(self._life)
        await self._drive(talk(closing.finish(self._life.log), "finish"))
        if self._options.anchors:
            await aside(self._remember, "leasekeeper-anchor")

    async def _failed(self, error: BaseException) -> None:
        loop = self.lease._core.asyncio
        try:
            await loop.run(closing.await_steps(self._life, error))
            if closing.is_told(error) and not self.lease.state.final:
                await loop.run(closing.fail(self._life.log, error))
        except (StopWork, Exception) as failed:  # noqa: BLE001 - the block's own error is what is told
            del failed


class AsyncCheckpoint(Stated[T]):
    """A versioned state of a run, as `AsyncRun.checkpoint` gives it; see `leasekeeper.runs.run.Checkpoint`."""

    __slots__ = ()

    _owned: AsyncRun

    async def read(self) -> T | None:
        """The state as it is now, read linearizably; None when it was never committed."""
        value: T | None = await self._run(self._read())
        return value

    async def commit(self, **changes: Any) -> T:
        """Change some fields of the state last read through this handle, or make the first one: the new state."""
        value: T = await self._run(self._commit(changes))
        return value

    async def put(self, value: T) -> T:
        """Put a whole state in place of the one last read through this handle."""
        await self._run(self._commit({}, (value,)))
        return value

    async def update(self, function: Callable[[T | None], T], *, tries: int = TRIES) -> T:
        """Read, apply ``function``, commit; anew if somebody was faster, ``tries`` times at most."""
        for left in range(tries - 1, -1, -1):
            loaded, mod_revision = await self._run(self._reread())
            value = function(None if loaded is None else loaded.value)
            try:
                await self._run(self._put(value, loaded, mod_revision))
            except StaleCheckpoint:
                if not left:
                    raise
            else:
                return value
        raise Misuse(f"tries={tries!r}: expected at least 1")

    async def _run(self, plan: Any) -> Any:
        return await self._owned._drive(talk(plan, "checkpoint"))


class AsyncPhase:
    """A phase of a run, as `AsyncRun.phase` gives it; see `leasekeeper.runs.run.Phase`."""

    __slots__ = ("_legal", "_run", "name")

    def __init__(self, run: AsyncRun, name: str, legal: phase.Transitions) -> None:
        self.name = name
        self._run = run
        self._legal = legal

    async def now(self) -> str:
        """The phase, read linearizably."""
        log = self._run._life.log
        found: tuple[str, int, int] = await self._run._drive(
            talk(phase.now_in(log, self.name, self._legal, log.ctx.now() + READ_S), "phase")
        )
        return found[0]

    async def move(self, to: str) -> None:
        """Move to a phase that may follow the present one, by compare-and-set; see `Phase.move`."""
        log = self._run._life.log
        self._run.lease._check_not_over()
        await self._run._drive(talk(phase.move(log, self.name, self._legal, to, log.ctx.now() + READ_S), "phase"))

    def __repr__(self) -> str:
        return f"<AsyncPhase {self.name!r} of {self._run.run}>"


class AsyncRunning(EnteredAsync):
    """What `AsyncKeeper.run` returns; see `leasekeeper.runs.run.Running`."""

    def __init__(
        self,
        keeper: AsyncKeeper,
        options: RunOptions,
        ttl: float | None,
        timeout: float | None,
        passing: Passing | None = None,
        *,
        lease: AsyncLease | None = None,
    ) -> None:
        self._lease = lease
        self._keeper = keeper
        self._options = options
        self._ttl = ttl
        self._timeout = timeout
        self._passing = passing or nowhere
        self._run: AsyncRun | None = None

    async def __aenter__(self) -> AsyncRun:
        if self._run is not None:
            raise Misuse("this run() was entered already: call keeper.run(...) anew")
        options = self._options
        if (lease := self._lease) is None:
            await aasked_first(self._keeper._core, options)
            lease = await self._keeper.acquire(options.name.lease, ttl=self._ttl, timeout=self._timeout)
        self._run = await self._opened(lease)
        return self._run

    async def _opened(self, lease: AsyncLease) -> AsyncRun:
        made: list[AsyncRun] = []

        def make(life: Any) -> AsyncRun:
            made.append(AsyncRun(lease, life, self._options, self._passing))
            return made[0]

        try:
            conduct = entering(lease, self._options, make)
            run: AsyncRun = await drive_async(
                Footing(lease, lambda _: None, lambda told: made[0]._alarm(told), self._passing), conduct
            )
        except BaseException:
            await lease.release()
            raise
        return run

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._run is not None
        lease = self._run.lease
        try:
            await self._run._leave(error)
        except BaseException as failed:
            self._run._tell_ended(failed)
            await lease.__aexit__(type(failed), failed, failed.__traceback__)
            raise
        self._run._tell_ended(error)
        await lease.__aexit__(kind, error, trace)
