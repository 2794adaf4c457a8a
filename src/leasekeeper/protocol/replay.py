"""What a run's state was at any of its records: a fold over them, and nothing else.

All that etcd holds of a run beside its records (where each step stands, checkpoints, phases, the head's status) was changed only
together with a record. So it can be had again from the records alone, for any moment, and be held against what etcd says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from leasekeeper.protocol.head import Head
from leasekeeper.protocol.pointer import Pointer
from leasekeeper.protocol.schema import Envelope, seal_envelope
from leasekeeper.run_errors import CorruptState

if TYPE_CHECKING:
    from leasekeeper.run_records import Receipt

__all__ = ["PHASE_SCHEMA", "Replay"]

# A phase is kept as a checkpoint of this schema.
PHASE_SCHEMA = "leasekeeper.phase"


class Replay:
    """A run's state, made of its records: `add` each in their order. What is given must have been verified."""

    __slots__ = ("_head", "_kept", "_steps")

    def __init__(self) -> None:
        self._head = Head()
        self._kept: dict[str, Envelope] = {}
        self._steps: dict[str, Pointer] = {}

    def add(self, receipt: Receipt) -> None:
        """The next record; CorruptState for one that its kind does not allow."""
        try:
            self._checkpoint(receipt)
            self._step(receipt)
            self._status(receipt)
        except (KeyError, TypeError, AttributeError):
            where = f"record {receipt.seq} of {receipt.run}"
            why = f"it is no record of kind {receipt.kind!r}"
            raise CorruptState(f"{where} cannot be trusted: {why}", where=where, why=why) from None

    def state(self) -> dict[str, Any]:
        """``status``, ``steps`` by key (`leasekeeper.run_records.StepState`), and ``checkpoints`` and ``phases`` by name."""
        kept = sorted(self._kept.items())
        return {
            "status": self._head.status,
            "steps": {key: pointer.state for key, pointer in sorted(self._steps.items())},
            "checkpoints": {name: each.data for name, each in kept if each.schema != PHASE_SCHEMA},
            "phases": {name: each.data["phase"] for name, each in kept if each.schema == PHASE_SCHEMA},
        }

    def checkpoint_bytes(self) -> dict[str, bytes]:
        """The bytes that etcd holds of each checkpoint and phase, by name."""
        return {name: seal_envelope(each) for name, each in sorted(self._kept.items())}

    def _checkpoint(self, receipt: Receipt) -> None:
        data = receipt.data
        if receipt.kind == "phase":
            self._keep(receipt.seq, data["name"], Envelope(PHASE_SCHEMA, 1, 1, data["n"], 1, {"phase": data["to"]}))
            return
        told = data if receipt.kind == "checkpoint" else data.get("checkpoint") if receipt.kind == "outcome" else None
        if told is not None:
            envelope = Envelope(told["schema"], told["version"], told["min_reader"], told["n"], 1, told["data"])
            self._keep(receipt.seq, told["name"], envelope)

    def _keep(self, seq: int, name: Any, envelope: Envelope) -> None:
        if not isinstance(name, str) or type(envelope.data) is not dict:
            raise TypeError("no checkpoint")
        self._kept[name] = replace(envelope, seq=seq)

    def _step(self, receipt: Receipt) -> None:
        now = self._steps.get(receipt.step, Pointer())
        match receipt.kind:
            case "intent" | "before":
                now = now.begun(receipt.seq)
            case "outcome":
                now = now.turned("done", receipt.seq)
            case "conflict":
                now = now.turned("conflict", receipt.seq)
            case "in_doubt":
                now = now.turned("in_doubt", receipt.seq)
            case "raised" if receipt.data["applied"] is False:
                now = now.turned("cleared")
            case "resolved" if receipt.step:
                now = now.turned("done", receipt.seq) if receipt.data["applied"] else now.turned("cleared")
            case _:
                return
        self._steps[receipt.step] = now

    def _status(self, receipt: Receipt) -> None:
        match receipt.kind:
            case "in_doubt":
                self._head = self._head.in_doubt(receipt.step)
            case "intent" | "before" | "outcome":
                self._head = self._head.settled(receipt.step)
            case "resolved":
                # Of no step: a quarantine was lifted.
                settled = self._head.settled(receipt.step) if receipt.step else replace(self._head, status="running")
                self._head = settled
            case "quarantined":
                self._head = replace(self._head, status="quarantined")
            case "finished":
                self._head = replace(self._head, status="finished")
            case _:
                pass
