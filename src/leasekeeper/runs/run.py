"""Run: durable steps for threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from leasekeeper.errors import Misuse, StopWork
from leasekeeper.protocol import closing, history, phase
from leasekeeper.protocol.conduct import talk
from leasekeeper.protocol.steps import step_page
from leasekeeper.run_errors import StaleCheckpoint, StepsOpen
from leasekeeper.runs.ask_first import asked_first
from leasekeeper.runs.owned import Owned, Verify, entering
from leasekeeper.runs.states import READ_S, TRIES, Stated
from leasekeeper.runtime.conduct import Footing, drive, nowhere
from leasekeeper.runtime.entering import EnteredPlain

if TYPE_CHECKING:
    from leasekeeper.keeper import Keeper, Lease
    from leasekeeper.protocol.checkpoint import Change
    from leasekeeper.protocol.conduct import Conduct
    from leasekeeper.run_records import Receipt, StepView
    from leasekeeper.runs.options import RunOptions
    from leasekeeper.runtime.conduct import Passing

__all__ = ["Checkpoint", "Phase", "Run", "Running"]

T = TypeVar("T")


class Run(Owned):
    """An owned run, as `Keeper.run` gives it. Usable from any thread, also by several steps at once.

    Ownership is the lease: when that is lost, nothing can be added to the run any more, and every call says so by LeaseLost.
    """

    __slots__ = ()

    lease: Lease

    def do(
        self,
        key: str,
        effect: Callable[..., Any],
        *args: Any,
        verify: Verify | None = None,
        need: float | None = None,
        commit: Callable[[Any], Change] | None = None,
    ) -> Any:
        """Do a step: at most one applied effect, whatever dies in between. Its recorded result, decoded from what is recorded.

        Done before: the result that was recorded then, if the postcondition still holds. Begun before and not known how it ended:
        what `leasekeeper.protocol.doubt` says. A bare callable is given ``args`` alone, an effect ``(step, *args)``.

        Args:
            key: names the step in its run, whatever its place in the code.
            effect: what `effect` made, or any callable: one of which nothing is declared, and so is called at most once.
            args: JSON; the same whenever the step is asked for.
            verify: whether a replay asks the postcondition again: ``always`` or ``recorded``; default: the run's.
            need: seconds of proven authority that the call needs; default: the effect's.
            commit: makes of the result a checkpoint's change, committed in the same transaction as the outcome.

        Raises:
            InDoubt: whether it was applied cannot be told; an operator decides (`Keeper.resolve`).
            Conflict: it was applied, and not by this run. Drift: it was, and does not hold any more.
            ArgumentsChanged: it was begun with other arguments.
            RunHalted: an operator has halted the run. LeaseLost: the lease is lost. Neither is an `Exception`.
            NotSerialisable, RecordTooLarge: the arguments, before anything is recorded; or the result, which cannot be
                recorded: the step is done nevertheless, and is not repeated.
            Whatever the effect raises. Unless that is `NotApplied`, it may have been applied.
        """
        return self._drive(self._doing(key, effect, args, kind="do", verify=verify, need=need, commit=commit))

    def memo(self, key: str, function: Callable[..., Any], *args: Any, about: Mapping[str, Any] | None = None) -> Any:
        """Ask something once and remember the answer: recorded before and after, asked again if it died in between.

        For what may be repeated but costs: a model, a search. Not for what changes the world. Return `Answered` to have it
        recorded how the answer came to be.

        Args:
            key: names the step.
            function: what to ask; a bare callable is given ``args`` alone, an effect ``(step, *args)``.
            args: JSON; an attempt that is repeated gets the same.
            about: what to record of the question, for people: model, parameters, budget.
        """
        return self._drive(self._doing(key, function, args, kind="memo", about=about))

    def checkpoint(self, name: str, kind: type[T], *, write_version: int | None = None) -> Checkpoint[T]:
        """A versioned state, read now.

        Args:
            name: names it in its run.
            kind: a dataclass, or dict; see `leasekeeper.migration`.
            write_version: write this older version, while replicas run that know no newer one.

        Raises CorruptState, SchemaTooNew, SchemaUnknown, MigrationFailed for a stored state that cannot be read as ``kind``.
        """
        found = Checkpoint(self, name, kind, write_version)
        found.read()
        return found

    def phase(self, name: str, legal_transitions: Mapping[str, Sequence[str]]) -> Phase:
        """One of a few words, moved only along these transitions: ``{"staged": ["distributed"], …}``, the first key first."""
        found = Phase(self, name, phase.transitions(legal_transitions))
        found.now()
        return found

    # ------------------------------------------------------------ looking

    def last(self) -> Receipt:
        """The last record, read linearizably together with the head."""
        life = self._life
        core = self.lease._core
        found = core.run(history.last(core.ctx, life.log.keys, core.until()))
        assert found is not None
        receipt: Receipt = found[1]
        return receipt

    def steps(self) -> Iterator[StepView]:
        """Where each step stands, in order of their keys; read page by page."""
        core, keys = self.lease._core, self._life.log.keys
        start: bytes | None = None
        while True:
            found, start = core.run(step_page(core.ctx, keys, start, core.until()))
            yield from found
            if start is None:
                return

    # ------------------------------------------------------------ inside

    def _drive(self, conduct: Conduct[T]) -> T:
        return drive(Footing(self.lease, self._tell, self._alarm, self._passing), conduct)

    def _leave(self, error: BaseException | None) -> None:
        """Record how the block ended; what cannot be recorded any more is left to the next life."""
        if error is not None:
            self._failed(error)
            return
        try:
            self._finish()
        except StepsOpen as refused:
            self._failed(refused)
            raise

    def _finish(self) -> None:
        self._life.leaving = True
        self.lease._check_not_over()
        closing.check_idle(self._life)
        self._drive(talk(closing.finish(self._life.log), "finish"))
        if self._options.anchors:
            self._remember()

    def _failed(self, error: BaseException) -> None:
        blocking = self.lease._core.blocking
        try:
            blocking.run(closing.await_steps(self._life, error))
            if closing.is_told(error) and not self.lease.state.final:
                blocking.run(closing.fail(self._life.log, error))
        except (StopWork, Exception) as failed:  # noqa: BLE001 - the block's own error is what is told
            del failed


class Checkpoint(Stated[T]):
    """A versioned state of a run, as `Run.checkpoint` gives it."""

    __slots__ = ()

    _owned: Run

    def read(self) -> T | None:
        """The state as it is now, read linearizably; None when it was never committed."""
        value: T | None = self._run(self._read())
        return value

    def commit(self, **changes: Any) -> T:
        """Change some fields of the state last read through this handle, or make the first one: the new state.

        Raises StaleCheckpoint when it was changed by others since; nothing was written.
        """
        value: T = self._run(self._commit(changes))
        return value

    def put(self, value: T) -> T:
        """Put a whole state in place of the one last read through this handle. Raises StaleCheckpoint, as `commit` does."""
        self._run(self._commit({}, (value,)))
        return value

    def update(self, function: Callable[[T | None], T], *, tries: int = TRIES) -> T:
        """Read, apply ``function``, commit; anew with what is there then if somebody was faster, ``tries`` times at most.

        ``function`` only computes: it may run several times. Raises StaleCheckpoint when it was never fast enough.
        """
        for left in range(tries - 1, -1, -1):
            loaded, mod_revision = self._run(self._reread())
            value = function(None if loaded is None else loaded.value)
            try:
                self._run(self._put(value, loaded, mod_revision))
            except StaleCheckpoint:
                if not left:
                    raise
            else:
                return value
        raise Misuse(f"tries={tries!r}: expected at least 1")

    def _run(self, plan: Any) -> Any:
        return self._owned._drive(talk(plan, "checkpoint"))


class Phase:
    """A phase of a run, as `Run.phase` gives it."""

    __slots__ = ("_legal", "_run", "name")

    def __init__(self, run: Run, name: str, legal: phase.Transitions) -> None:
        self.name = name
        self._run = run
        self._legal = legal

    def now(self) -> str:
        """The phase, read linearizably."""
        log = self._run._life.log
        found: tuple[str, int, int] = self._run._drive(
            talk(phase.now_in(log, self.name, self._legal, log.ctx.now() + READ_S), "phase")
        )
        return found[0]

    def move(self, to: str) -> None:
        """Move to a phase that may follow the present one, by compare-and-set.

        Raises IllegalTransition when it may not; StaleCheckpoint when somebody moved it at the same moment.
        """
        log = self._run._life.log
        self._run.lease._check_not_over()
        self._run._drive(talk(phase.move(log, self.name, self._legal, to, log.ctx.now() + READ_S), "phase"))

    def __repr__(self) -> str:
        return f"<Phase {self.name!r} of {self._run.run}>"


class Running(EnteredPlain):
    """What `Keeper.run` returns: owns and opens the run on entering; on leaving records how it ended, and gives it back."""

    def __init__(
        self,
        keeper: Keeper,
        options: RunOptions,
        ttl: float | None,
        timeout: float | None,
        passing: Passing | None = None,
        *,
        lease: Lease | None = None,
    ) -> None:
        self._lease = lease
        self._keeper = keeper
        self._options = options
        self._ttl = ttl
        self._timeout = timeout
        self._passing = passing or nowhere
        self._run: Run | None = None

    def __enter__(self) -> Run:
        if self._run is not None:
            raise Misuse("this run() was entered already: call keeper.run(...) anew")
        options = self._options
        if (lease := self._lease) is None:
            asked_first(self._keeper._core, options)
            lease = self._keeper.acquire(options.name.lease, ttl=self._ttl, timeout=self._timeout)
        self._run = self._opened(lease)
        return self._run

    def _opened(self, lease: Lease) -> Run:
        made: list[Run] = []

        def make(life: Any) -> Run:
            made.append(Run(lease, life, self._options, self._passing))
            return made[0]

        try:
            conduct = entering(lease, self._options, make)
            run: Run = drive(Footing(lease, lambda _: None, lambda told: made[0]._alarm(told), self._passing), conduct)
        except BaseException:
            lease.release()
            raise
        return run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._run is not None
        lease = self._run.lease
        try:
            self._run._leave(error)
        except BaseException as failed:
            self._run._tell_ended(failed)
            lease.__exit__(type(failed), failed, failed.__traceback__)
            raise
        self._run._tell_ended(error)
        lease.__exit__(kind, error, trace)
