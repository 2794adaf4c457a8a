"""A step in a model world: the real conduct on a model etcd, an outside world that remembers, and a crash at any point.

Points are counted through all that a conduct does: each request to etcd and each call of the user's is one. A crash strikes
before it, after it, or so that a request arrives late, when the next life has begun.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

from leasekeeper.protocol.conduct import Alarm, Conduct, Gate, Invoke, Talk, Tell
from leasekeeper.protocol.incarnation import Calls, Incarnation, Spec
from leasekeeper.protocol.limits import Reading
from leasekeeper.protocol.plan import Call, Plan
from leasekeeper.protocol.pointer import Pointer
from leasekeeper.protocol.recorded import Recorded
from leasekeeper.protocol.step import do
from leasekeeper.run_records import Observed
from tests.model.runs import Owner
from tests.model.world import World

__all__ = ["Crash", "Crashed", "Life", "Outside", "Way", "Works"]

T = TypeVar("T")
Way = Literal["before", "after", "late"]


class Crashed(BaseException):
    """The process is gone; nothing of it runs any more."""


@dataclass(frozen=True)
class Crash:
    """Where and how a life ends."""

    at: int
    way: Way


@dataclass
class Outside:
    """The outside world: what was asked of it, and what it has applied.

    ``dedupes``: it applies requests with one idempotency key once. ``lags``: what it shows is always the past.
    """

    dedupes: bool = False
    lags: bool = False
    requests: list[str] = field(default_factory=list)
    applied: list[str] = field(default_factory=list)

    def apply(self, key: str) -> int:
        """An effect: the number of the one that was applied."""
        self.requests.append(key)
        if not (self.dedupes and key in self.applied):
            self.applied.append(key)
        return self.applied.index(key) + 1

    def look(self, key: str) -> bool:
        """Whether it shows the effect."""
        return key in self.applied and not self.lags


@dataclass(frozen=True)
class Works:
    """A kind of effect: what is declared of it, and what the outside world really is like."""

    name: str
    helps: frozenset[str] = frozenset()
    asks: bool = False
    verifies: bool = False
    consistency: Literal["strong", "eventual"] = "strong"
    kind: Literal["do", "memo"] = "do"
    dedupes: bool = False
    lags: bool = False

    def outside(self) -> Outside:
        """A new world for it."""
        return Outside(self.dedupes, self.lags)

    def spec(self, key: str, args: str = "a" * 64) -> Spec:
        """The step."""
        return Spec(key=key, kind=self.kind, effect=self.name, helps=self.helps, args=args, key_ttl_s=86400.0)

    def calls(self, outside: Outside, seen: Callable[[Pointer], None] = lambda _: None) -> Calls:
        """What the step calls; ``seen`` is shown each attempt."""

        def effect(pointer: Pointer) -> int:
            seen(pointer)
            return outside.apply(pointer.idem)

        def preflight(pointer: Pointer) -> Observed:
            found = outside.look(pointer.idem)
            value = outside.applied.index(pointer.idem) + 1 if found else None
            return Observed(value, applied=found, consistency=self.consistency)

        def verify(pointer: Pointer, result: Any) -> bool:
            return self.lags or pointer.idem in outside.applied

        return Calls(
            handle=lambda pointer: pointer,
            effect=effect,
            preflight=preflight if self.asks else None,
            verify=verify if self.verifies else None,
        )


class Life:
    """One life of a run, which may crash."""

    def __init__(self, world: World | None = None, crash: Crash | None = None, **opening: Any) -> None:
        self.owner = Owner(world, **opening)
        self.world = self.owner.world
        opened = self.owner.opened
        recorded = Recorded(0 if opened.fresh else opened.log.head.seq)
        self.incarnation = Incarnation(opened, recorded, quota=2**40, space=Reading(math.inf, math.inf))
        self.crash = crash
        self.points = 0
        self.alarms: list[Alarm] = []
        self.tells: list[Tell] = []

    def end(self) -> None:
        """It is gone, and its lease has run out."""
        self.owner.leave()

    def step(self, spec: Spec, calls: Calls) -> Any:
        """Do a step in this life."""
        return self.drive(do(self.incarnation, spec, calls))

    def drive(self, conduct: Conduct[T]) -> T:
        """Run a conduct to its end, or to the crash."""
        result: Any = None
        error: BaseException | None = None
        try:
            operation = next(conduct)
            while True:
                try:
                    result, error = self._perform(operation), None
                except Crashed:
                    raise
                except BaseException as struck:  # noqa: BLE001 - the conduct is told
                    error = struck
                operation = conduct.throw(error) if error is not None else conduct.send(result)
        except StopIteration as done:
            value: T = done.value
            return value

    def _perform(self, operation: Any) -> Any:
        match operation:
            case Talk(plan):
                return self._talk(plan)
            case Invoke(call):
                return self._point(call)
            case Gate():
                return None
            case Tell():
                self.tells.append(operation)
                return None
        self.alarms.append(operation)
        return True

    def _talk(self, plan: Plan[T]) -> T:
        client = self.owner.client
        result: Any = None
        error: BaseException | None = None
        try:
            operation = next(plan)
            while True:
                try:
                    if isinstance(operation, Call):
                        call, late = (
                            partial(client._perform, operation),
                            partial(self.world.late.append, operation.request),
                        )
                        result, error = self._point(call, late), None
                    else:
                        result, error = client._perform(operation), None
                except Crashed:
                    raise
                except BaseException as struck:  # noqa: BLE001 - the plan is told
                    error = struck
                operation = plan.throw(error) if error is not None else plan.send(result)
        except StopIteration as done:
            value: T = done.value
            return value

    def _point(self, call: Callable[[], Any], late: Callable[[], None] | None = None) -> Any:
        point, crash = self.points, self.crash
        self.points += 1
        if crash is None or crash.at != point:
            return call()
        if crash.way == "after":
            call()
        elif crash.way == "late" and late is not None:
            late()
        raise Crashed
