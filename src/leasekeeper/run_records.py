"""What users are shown of runs: what an effect observed of the world, and records as they stand in etcd."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from leasekeeper.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Answered", "Consistency", "Kind", "Observed", "Receipt", "RunStatus", "RunView", "StepState", "StepView"]

Consistency = Literal["strong", "eventual"]

Kind = Literal[
    "opened",
    "intent",
    "before",
    "outcome",
    "raised",
    "conflict",
    "drift",
    "in_doubt",
    "resolved",
    "checkpoint",
    "phase",
    "alerted",
    "rotated",
    "finished",
    "failed",
    "quarantined",
    "note",
]
RunStatus = Literal["running", "in_doubt", "quarantined", "finished"]
StepState = Literal["intent", "done", "in_doubt", "cleared", "conflict"]


@dataclass(frozen=True, slots=True)
class Observed:
    """What a preflight saw of the outside world.

    Args:
        value: what was found; when a step is adopted by it, this becomes the step's result, so it must be JSON.
        applied: whether the effect is there; None: it cannot be told.
        consistency: ``strong``: a "not applied" can be believed. ``eventual``: it may be the past that was read, and what is
            not there may be there already. "Applied" is believed in either case: nothing is seen before it happened.
        as_of: when it was true, as the outside world tells it; kept for people.
    """

    value: Any = None
    applied: bool | None = None
    consistency: Consistency = "strong"
    as_of: str | float | None = None

    def __post_init__(self) -> None:
        if self.applied is not None and not isinstance(self.applied, bool):
            raise ConfigError(field="Observed.applied", value=self.applied, expected="True, False, or None for unknown")
        if self.consistency not in ("strong", "eventual"):
            raise ConfigError(field="Observed.consistency", value=self.consistency, expected="'strong' or 'eventual'")
        if self.as_of is not None and (isinstance(self.as_of, bool) or not isinstance(self.as_of, (str, int, float))):
            raise ConfigError(field="Observed.as_of", value=self.as_of, expected="text or a number")


@dataclass(frozen=True, slots=True)
class Answered:
    """A result with what is worth knowing about how it came to be: return it from what `memo` or `do` calls.

    Args:
        value: the result; JSON.
        about: for people, and for those who pay: usage, finish reason, the provider's own reference. JSON.
    """

    value: Any
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Receipt:
    """One record of a run, as it is stored. ``stored`` are the bytes that every check is made on.

    ``seq`` counts from 1; ``hash`` is the SHA-256 of ``stored``, which the next record carries as its ``prev``; ``token`` is
    the fencing token under which it was written (0: by an operator). ``at_ms`` is the wall clock of who wrote it: for people.
    """

    run: str
    workflow: str
    id: str
    gen: int
    seq: int
    kind: str
    step: str
    data: dict[str, Any]
    token: int
    claim: str
    holder: str
    life: str
    nonce: str
    namespace_id: str
    prev: str
    at_ms: int
    hash: str
    key_id: str
    signature: str
    stored: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StepView:
    """Where a step stands.

    ``state``: ``intent`` (begun, outcome unknown), ``done``, ``in_doubt``, ``cleared`` (an operator, or the effect, said that it
    was not applied: it will be called again), ``conflict`` (somebody else had applied it).

    ``intent`` and ``outcome`` are the numbers of its records, 0 where there is none.
    """

    key: str
    kind: Literal["do", "memo"]
    state: StepState
    intent: int
    outcome: int
    attempts: int
    effect: str = ""
    idempotency_key: str = ""


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as its head tells it, and who owns it now (``owner`` empty: nobody)."""

    run: str
    workflow: str
    id: str
    gen: int
    status: RunStatus
    seq: int
    token: int
    holder: str
    at_ms: int
    steps_done: int
    in_doubt: tuple[str, ...] = ()
    restarts: int = 0
    owner: str = ""
