"""The driver of conducts in virtual time: the third, beside that for threads and that for asyncio.

What a conduct is sent, and what is thrown into it, is what the other two send and throw. Between two operations it passes a
point, named as for `leasekeeper.testing.failpoints`: there the process may be killed or stand still.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leasekeeper.errors import LeasekeeperError, LeaseSuspended
from leasekeeper.protocol.append import Fenced, Unexpected
from leasekeeper.protocol.authority import Authority
from leasekeeper.protocol.conduct import Alarm, Conduct, Gate, Invoke, Operation, Talk, Tell
from leasekeeper.protocol.gate import gone, lost, refusal, wait_held
from leasekeeper.protocol.plan import Fault
from leasekeeper.run_errors import NotApplied
from leasekeeper.testing.sim.interpreter import Cancelled

if TYPE_CHECKING:
    from leasekeeper.testing.sim.interpreter import Running
    from leasekeeper.testing.sim.keeper import Keeper

__all__ = ["RAISED", "Conducting", "Pending", "Trouble"]

Done = Callable[[Any, BaseException | None], None]


class Trouble(Exception):
    """What a call of the outside world raises that came to nothing known."""


# What a conduct may raise. Anything else is a mistake of ours, and ends the world with its traceback.
RAISED = (Fault, LeasekeeperError, Cancelled, Fenced, Unexpected, NotApplied, Trouble)


class Pending:
    """What a call gives that takes time: as a coroutine under asyncio."""

    __slots__ = ("begin",)

    def __init__(self, begin: Callable[[Done], None]) -> None:
        self.begin = begin


def passes(authority: Authority, need_s: float, now_s: float) -> bool:
    """Whether the gate lets through at this moment; LeaseLost or Misuse when it never will."""
    if authority.passes(need_s, now_s):
        return True
    error = refusal(authority, need_s, now_s)
    if isinstance(error, LeaseSuspended):
        return False
    raise error


class Conducting:
    """One conduct on its way. ``passing`` is told each point; ``done`` what came of it, with the errors that users see."""

    __slots__ = ("_alarm", "_authority", "_conduct", "_done", "_keeper", "_passing", "_running", "_step", "_tell")

    def __init__(
        self,
        keeper: Keeper,
        authority: Authority,
        conduct: Conduct[Any],
        done: Done,
        *,
        tell: Callable[[Tell], None],
        alarm: Callable[[Alarm], bool],
        passing: Callable[[str], None],
    ) -> None:
        self._keeper = keeper
        self._authority = authority
        self._conduct = conduct
        self._done: Done | None = done
        self._tell = tell
        self._alarm = alarm
        self._passing = passing
        self._running: Running | None = None
        # The number of the operation under way: what belongs to an earlier one comes too late.
        self._step = 0

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._done is None

    def begin(self) -> None:
        """Go on to its first operation."""
        self._go_on(None, None)

    def cancel(self) -> None:
        """Throw `Cancelled` into it, wherever it is, as Ctrl-C would."""
        if self._done is None:
            return
        running = self._running
        if running is not None:
            running.cancel()  # the plan hears of it first, and what it makes of that goes on as usual
        else:
            self._go_on(None, Cancelled())

    def abandon(self) -> None:
        """The process is gone: nothing more is done."""
        self._done = None
        self._step += 1
        self._conduct.close()

    # ------------------------------------------------------------ its course

    def _go_on(self, result: Any, error: BaseException | None) -> None:
        self._step += 1
        self._running = None
        try:
            operation = self._conduct.send(result) if error is None else self._conduct.throw(error)
        except StopIteration as end:
            self._end(end.value, None)
        except RAISED as raised:
            raised.__traceback__ = None
            self._end(None, self._public(raised))
        else:
            self._begin(operation)

    def _end(self, result: Any, error: BaseException | None) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(result, error)

    def _begin(self, operation: Operation) -> None:
        match operation:
            case Talk(plan, name):
                self._at(f"{name}:send", lambda: self._talk(plan, name))
            case Invoke(call, name):
                self._at(f"{name}:call", lambda: self._invoke(call, name))
            case Gate(need_s):
                self._gate(need_s)
            case Tell():
                self._tell(operation)
                self._go_on(None, None)
            case Alarm():
                self._go_on(self._alarm(operation), None)

    def _at(self, point: str, go_on: Callable[[], None]) -> None:
        """Pass a point, and go on, unless the process has ended there; later, if it stands still."""
        step = self._step
        self._passing(point)
        if self._done is not None:
            self._keeper.process.run(lambda: go_on() if step == self._step and self._done is not None else None)

    def _ended(self, point: str) -> Done:
        """What hears how the operation under way ended."""
        step = self._step

        def ended(result: Any, error: BaseException | None) -> None:
            if step == self._step and self._done is not None:
                self._running = None
                if error is None:
                    self._at(point, lambda: self._go_on(result, None))
                else:
                    self._go_on(None, error)

        return ended

    def _talk(self, plan: Any, name: str) -> None:
        ended = self._ended(f"{name}:reply")
        step = self._step
        running = self._keeper.run(plan, ended)
        if step == self._step and self._done is not None and not running.over:
            self._running = running

    def _invoke(self, call: Callable[[], Any], name: str) -> None:
        ended = self._ended(f"{name}:return")
        try:
            result = call()
        except RAISED as error:
            self._go_on(None, error)
            return
        if isinstance(result, Pending):
            result.begin(ended)
        else:
            ended(result, None)

    def _gate(self, need_s: float) -> None:
        authority, now = self._authority, self._keeper.process.now
        try:
            through = passes(authority, need_s, now())
        except LeasekeeperError as error:
            self._go_on(None, error)
            return
        if through:
            self._go_on(None, None)
            return
        step = self._step

        def waited(_: Any, error: BaseException | None) -> None:
            if step == self._step and self._done is not None:
                self._running = None
                if error is not None:
                    self._go_on(None, error)
                else:
                    self._gate(need_s)

        running = self._keeper.run(wait_held(authority, need_s, None, now), waited)
        if step == self._step and self._done is not None and not running.over:
            self._running = running

    def _public(self, error: BaseException) -> BaseException:
        """What users see of an error that never leaves the library."""
        if isinstance(error, Fenced):
            self._keeper.heart.key_gone(self._authority)
            return gone(self._authority, self._keeper.process.now())
        if isinstance(error, Fault) and self._authority.loss is not None:
            return lost(self._authority)
        return error
