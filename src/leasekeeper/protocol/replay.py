"""What a run's state was at any of its records: a fold over them, and nothing else.

All that etcd holds of a run beside its records (where each step stands, checkpoints, phases, the head's status) was changed only
together with a record. So it can be had again from the records alone, for any moment, and be held against what etcd says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasekeeper.protocol.head import Head
from leasekeeper.protocol.pointer import Pointer
from leasekeeper.protocol.schema import Envelope, seal_envelope
from leasekeeper.run_errors import CorruptState

if TYPE_CHECKING:
    from leasekeeper.run_records import Receipt, StepState

__all__ = ["PHASE_SCHEMA", "Replay"]

# A phase is kept as a checkpoint of this schema.
PHASE_SCHEMA = "leasekeeper.phase"
CHECKPOINT = {"data": dict, "min_reader": int, "n": int, "name": str, "schema": str, "version": int}
PHASE = {"n": int, "name": str, "to": str}


class Replay:
    """A run's state, made of its records: `add` each in their order. What is given must have been verified."""

    __slots__ = ("_head", "_kept", "_steps")

    def __init__(self) -> None:
        self._head = Head()
        self._kept: dict[str, Envelope] = {}
        self._steps: dict[str, Pointer] = {}

    def add(self, receipt: Receipt) -> None:
        """The next record; CorruptState for one that its kind does not allow."""
        applied = _applied(receipt)
        self._keep(receipt)
        self._step(receipt, applied)
        self._status(receipt)

    def state(self) -> dict[str, Any]:
        """``status``, ``steps`` by key (`leasekeeper.run_records.StepState`), and ``checkpoints`` and ``phases`` by name."""
        kept = sorted(self._kept.items())
        return {
            "status": self._head.status,
            "steps": {key: pointer.state for key, pointer in sorted(self._steps.items())},
            "checkpoints": {name: each.data for name, each in kept if each.schema != PHASE_SCHEMA},
            "phases": {name: each.data["phase"] for name, each in kept if each.schema == PHASE_SCHEMA},
        }

    def steps(self) -> dict[str, tuple[StepState, int, int, int]]:
        """Where each step stands, by key: its state, the records of its last intent and of its outcome, and its attempts."""
        return {
            key: (each.state, each.intent, each.outcome, each.attempts) for key, each in sorted(self._steps.items())
        }

    def checkpoint_bytes(self) -> dict[str, bytes]:
        """The bytes that etcd holds of each checkpoint and phase, by name."""
        return {name: seal_envelope(each) for name, each in sorted(self._kept.items())}

    def _keep(self, receipt: Receipt) -> None:
        data, seq = receipt.data, receipt.seq
        told = data.get("checkpoint") if receipt.kind == "outcome" else data
        if receipt.kind == "phase":
            _check(receipt, data, PHASE)
            self._kept[data["name"]] = Envelope(PHASE_SCHEMA, 1, 1, data["n"], seq, {"phase": data["to"]})
        elif receipt.kind in ("checkpoint", "outcome") and told is not None:
            _check(receipt, told, CHECKPOINT)
            envelope = Envelope(told["schema"], told["version"], told["min_reader"], told["n"], seq, told["data"])
            self._kept[told["name"]] = envelope

    def _step(self, receipt: Receipt, applied: bool | None) -> None:
        now, seq = self._steps.get(receipt.step, Pointer()), receipt.seq
        match receipt.kind:
            case "intent" | "before":
                now = now.begun(seq)
            case "outcome":
                now = now.turned("done", seq)
            case "conflict":
                now = now.turned("conflict", seq)
            case "in_doubt":
                now = now.turned("in_doubt", seq)
            case "resolved" if receipt.step and applied:
                now = now.turned("done", seq)
            case "resolved" | "raised" if receipt.step and applied is False:
                now = now.turned("cleared")
            case _:
                return
        self._steps[receipt.step] = now

    def _status(self, receipt: Receipt) -> None:
        head = self._head
        match receipt.kind:
            case "in_doubt":
                head = head.in_doubt(receipt.step)
            case "intent" | "before" | "outcome":
                head = head.settled(receipt.step)
            case "resolved" if receipt.step:
                head = head.settled(receipt.step)
            case "resolved" if receipt.data.get("rewound"):
                pass  # the end of the records was given up for lost
            case "resolved":  # a quarantine was lifted
                head = head._replace(status="in_doubt" if head.doubts else "running")
            case "quarantined":
                head = head._replace(status="quarantined")
            case "finished":
                head = head._replace(status="finished")
            case _:
                pass
        self._head = head


def _applied(receipt: Receipt) -> bool | None:
    """Whether the effect is there, as far as the record tells: an error may leave that open, an operator may not."""
    if receipt.kind not in ("raised", "resolved"):
        return None
    applied = receipt.data.get("applied", "")
    if isinstance(applied, bool) or (applied is None and receipt.kind == "raised"):
        return applied
    raise _corrupt(receipt)


def _check(receipt: Receipt, told: object, fields: dict[str, type]) -> None:
    if not isinstance(told, dict) or any(type(told.get(name)) is not kind for name, kind in fields.items()):
        raise _corrupt(receipt)


def _corrupt(receipt: Receipt) -> CorruptState:
    where = f"record {receipt.seq} of {receipt.run}"
    why = f"it is no record of kind {receipt.kind!r}"
    return CorruptState(f"{where} cannot be trusted: {why}", where=where, why=why)
