"""Where a step stands: one key a step, changed only together with a record. It names the records that say the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from leasekeeper.protocol.receipt import seal, text_of, unsealed
from leasekeeper.run_errors import CorruptState
from leasekeeper.run_records import StepView

if TYPE_CHECKING:
    from leasekeeper.protocol import etcd_pb2 as pb
    from leasekeeper.run_records import StepState

__all__ = ["ABSENT", "Pointer", "read_pointer"]

FORMAT = 1
STATES = ("intent", "done", "in_doubt", "cleared", "conflict")


class Pointer(NamedTuple):
    """Where a step stands. A named tuple, as `Head` is.

    ``args`` is the digest of what the step was called with; ``idem`` its idempotency key, fixed once; ``at_ms`` when that
    was sent first, by the wall clock of who did. ``intent`` and ``outcome`` are records' numbers. ``mod_revision`` is that of
    the last change, 0 for a step that does not stand anywhere.
    """

    kind: Literal["do", "memo"] = "do"
    state: StepState = "intent"
    args: str = ""
    idem: str = ""
    effect: str = ""
    at_ms: int = 0
    intent: int = 0
    outcome: int = 0
    attempts: int = 0
    mod_revision: int = 0

    def stored(self) -> bytes:
        """Its bytes in etcd."""
        body = (
            f'{{"args":"{self.args}","at":{self.at_ms},"attempts":{self.attempts},"effect":{text_of(self.effect)},'
            f'"idem":"{self.idem}","intent":{self.intent},"kind":"{self.kind}","outcome":{self.outcome},'
            f'"state":"{self.state}","v":{FORMAT}}}'
        )
        return seal(body.encode(), None)

    def begun(self, seq: int) -> Pointer:
        """With one more intent, in this record."""
        return self._replace(state="intent", intent=seq, outcome=0, attempts=self.attempts + 1)

    def turned(self, state: StepState, outcome: int = 0) -> Pointer:
        """In another state."""
        return self._replace(state=state, outcome=outcome)

    def view(self, key: str) -> StepView:
        """What users see of it."""
        return StepView(
            key,
            self.kind,
            self.state,
            self.intent,
            self.outcome,
            self.attempts,
            self.effect,
            self.idem,
        )


ABSENT = Pointer()

_TEXTS = ("args", "effect", "idem", "kind", "state")
_NUMBERS = ("at", "attempts", "intent", "outcome", "v")


def read_pointer(kv: pb.KeyValue | None) -> Pointer:
    """Where a step stands, from its key; CorruptState for what was not written as that."""
    if kv is None:
        return ABSENT
    where = kv.key.decode("utf-8", "replace")
    body, _, _ = unsealed(kv.value, where, "step", FORMAT)
    good = (
        body.keys() == {*_TEXTS, *_NUMBERS}
        and all(isinstance(body[name], str) for name in _TEXTS)
        and all(type(body[name]) is int for name in _NUMBERS)
        and body["v"] == FORMAT
        and body["state"] in STATES
        and body["kind"] in ("do", "memo")
    )
    if not good:
        raise CorruptState(f"{where} cannot be trusted: it is no step", where=where, why="it is no step")
    return Pointer(
        kind=body["kind"],
        state=body["state"],
        args=body["args"],
        idem=body["idem"],
        effect=body["effect"],
        at_ms=body["at"],
        intent=body["intent"],
        outcome=body["outcome"],
        attempts=body["attempts"],
        mod_revision=kv.mod_revision,
    )
