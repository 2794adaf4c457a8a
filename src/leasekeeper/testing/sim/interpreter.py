"""Runs plans in virtual time: the third interpreter, beside that for threads and that for asyncio.

An operation that would block is begun, and the plan goes on when it ends. What a plan is sent, and what is thrown into it, is
the same as in the other two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leasekeeper.errors import LeasekeeperError
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.log import Fenced, Unexpected
from leasekeeper.protocol.plan import Call, Cause, Detach, Fault, Kind, Operation, Plan, Sleep, Wait, Watch, rewound
from leasekeeper.testing.sim.hub import WatchFlag

if TYPE_CHECKING:
    from leasekeeper.testing.sim.hub import Hub
    from leasekeeper.testing.sim.network import Network, Route
    from leasekeeper.testing.sim.process import Process

__all__ = ["Cancelled", "Done", "Interpreter", "Running"]

Done = Callable[[Any, BaseException | None], None]
Detached = Callable[[Callable[[], Plan[object]]], None]

# No plan asks for more while it cleans up.
YIELDS_MAX = 100


class Cancelled(BaseException):
    """Whoever wanted the plan does not any more: Ctrl-C, or a task that was cancelled."""


# What a plan may raise. Anything else is a mistake of ours, and ends the world with its traceback.
RAISED = (Fault, LeasekeeperError, Cancelled, Fenced, Unexpected)


class Interpreter:
    """One keeper's."""

    def __init__(
        self,
        process: Process,
        network: Network,
        hub: Hub,
        detach: Detached,
        confirmed: Callable[[int, float, int], None],
    ) -> None:
        self.process = process
        self.network = network
        self.hub = hub
        self.detach = detach
        self._confirmed = confirmed
        self._mark = _Mark()
        self._running: dict[Running, None] = {}

    def run(self, plan: Plan[Any], route: Route, done: Done) -> Running:
        """Begin a plan; ``done`` is told its result or what it raised."""
        running = Running(self, plan, route, done)
        self._running[running] = None
        running.go_on(None, None)
        return running

    def over(self, running: Running) -> None:
        """A plan has ended."""
        self._running.pop(running, None)

    def abandon(self) -> None:
        """The process is gone, and with it every plan, wherever it was."""
        while self._running:
            self._running.popitem()[0].abandon()

    def accept_rewind(self) -> None:
        """Believe lower revisions from now on: the epoch was raised."""
        self._mark = _Mark()

    def call(self, route: Route, call: Call, done: Callable[[Any], None]) -> None:
        """Send one call; ``done`` is told what it came to."""
        mark, sent_s = self._mark, self.process.now()
        seen = mark.revision

        def ended(result: Any) -> None:
            if isinstance(result, (pb.LeaseGrantResponse, pb.LeaseKeepAliveResponse)):
                self._confirmed(result.ID, sent_s, result.TTL)
            done(self._marked(call, result, mark, seen))

        self.network.call(route, call, ended)

    def _marked(self, call: Call, result: Any, mark: _Mark, seen: int) -> Any:
        """A reply, or the Fault that stands for one from a store that went back since it was asked for."""
        if isinstance(result, Fault) or not call.method.linearizable:
            return result
        revision = result.header.revision
        if revision > mark.revision:
            mark.revision = revision
        elif call.strict and mark is self._mark and rewound(result, seen):
            text = f"revision {revision} after {seen}"
            return Fault(Kind.FIX, Cause.REWOUND, text, operation=call.method.operation, seen=seen, now=revision)
        return result


class _Mark:
    """The highest revision that a keeper was told in one era of the store."""

    __slots__ = ("revision",)

    def __init__(self) -> None:
        self.revision = 0


class Running:
    """One plan on its way."""

    __slots__ = ("_by", "_done", "_plan", "_route", "_step", "_undo")

    def __init__(self, by: Interpreter, plan: Plan[Any], route: Route, done: Done) -> None:
        self._by = by
        self._plan = plan
        self._route = route
        self._done: Done | None = done
        # The number of the operation under way: what belongs to an earlier one comes too late.
        self._step = 0
        self._undo: Callable[[], None] | None = None

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._done is None

    def cancel(self) -> None:
        """Throw `Cancelled` into it, as Ctrl-C would, wherever it is."""
        if self._done is not None:
            self.go_on(None, Cancelled())

    def go_on(self, result: Any, error: BaseException | None) -> None:
        """The operation under way has ended so."""
        self._step += 1
        if self._undo is not None:
            self._undo()
            self._undo = None
        try:
            operation = self._plan.send(result) if error is None else self._plan.throw(error)
        except StopIteration as end:
            self._end(end.value, None)
        except RAISED as raised:
            raised.__traceback__ = None  # or what its frames refer to would live as long as it does
            self._end(None, raised)
        else:
            self._begin(operation, self._step)

    def abandon(self) -> None:
        """End it without doing anything that it still asks for."""
        self._done = None
        self._step += 1
        for _ in range(YIELDS_MAX):
            try:
                self._plan.throw(Cancelled())
            except (StopIteration, *RAISED):
                return

    def _end(self, result: Any, error: BaseException | None) -> None:
        done, self._done = self._done, None
        self._by.over(self)
        if done is not None:
            done(result, error)

    def _answered(self, step: int, result: Any) -> None:
        if step != self._step or self._done is None:
            return
        if isinstance(result, Fault):
            self.go_on(None, result)
        else:
            self.go_on(result, None)

    def _begin(self, operation: Operation, step: int) -> None:
        by = self._by
        match operation:
            case Call():
                by.call(self._route, operation, lambda result: self._answered(step, result))
            case Sleep(seconds):
                wait_s = seconds * by.process.chance.uniform(0.5, 1.0)
                self._undo = by.process.after(wait_s, lambda: self._answered(step, None))
            case Watch(keys, start):
                flag = WatchFlag(by.hub, keys, start)
                by.process.soon(lambda: self._answered(step, flag))
            case Detach(plan):
                by.detach(plan)
                by.process.soon(lambda: self._answered(step, None))
            case Wait():
                self._wait(operation, step)

    def _wait(self, wait: Wait, step: int) -> None:
        process = self._by.process

        def rung() -> None:
            process.soon(lambda: self._answered(step, True))

        def time_up() -> None:
            self._answered(step, any(signal.is_set() for signal in wait.signals))

        cancel = process.after(wait.until - process.now(), time_up) if wait.until is not None else None

        def undo() -> None:
            if cancel is not None:
                cancel()
            for signal in wait.signals:
                signal.unsubscribe(rung)

        self._undo = undo
        for signal in wait.signals:
            signal.subscribe(rung)
