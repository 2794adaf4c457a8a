"""Conducts: what goes on around a call to the outside world, as a generator, and the few operations it may yield.

A plan speaks with etcd alone. A step also calls what the user gave it, which may be a coroutine function, and passes the gate.
So a conduct yields plans to be run and calls to be made, and is sent what they came to or has it thrown in; the driver for
threads, that for asyncio and the simulator each do the same with it (`leasekeeper.runtime.conduct`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from leasekeeper.protocol.plan import Plan

__all__ = ["Alarm", "Conduct", "Gate", "Invoke", "Operation", "Talk", "Tell", "talk"]

T = TypeVar("T")


class Talk(NamedTuple):
    """Run a plan; ``name`` says in failpoints and traces what it is for."""

    plan: Plan[Any]
    name: str


class Invoke(NamedTuple):
    """Make a call of the user's, and wait for it if it gives a coroutine."""

    call: Callable[[], Any]
    name: Literal["preflight", "effect", "verify", "store", "load", "anchor"]


class Gate(NamedTuple):
    """Wait until authority is proven with ``need_s`` of it left; the last thing before a call is that it still is."""

    need_s: float


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell observers of a step.

    ``window_s`` is the time from the preflight, or else from when the step was asked for, to the call; ``took_s`` that of the
    call; ``halt_s`` is how old the halt is that was met, by two wall clocks, None where that is not known; ``accepted`` is a
    drift with which the step goes on; ``why``: who has halted it, and why.
    """

    what: Literal["called", "done", "replayed", "adopted", "conflict", "drift", "in_doubt", "halted"]
    step: str
    kind: str
    repeated: bool = False
    window_s: float = 0.0
    took_s: float = 0.0
    halt_s: float | None = None
    accepted: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Somebody has to look; the result is whether they could be told."""

    kind: Literal["in_doubt", "quarantined", "drift", "conflict", "rewound"]
    step: str
    why: str
    seq: int


Operation = Talk | Invoke | Gate | Tell | Alarm
Conduct = Generator[Operation, Any, T]


def talk(plan: Plan[T], name: str) -> Conduct[T]:
    """The conduct that runs one plan."""
    result: T = yield Talk(plan, name)
    return result
