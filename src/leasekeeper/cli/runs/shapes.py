"""The JSON of the commands about runs; docs/reference/cli-json.md is its contract.

As in `leasekeeper.cli.shapes`: tokens are text, times UTC text, what is not known is null, and nothing is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from leasekeeper.cli.text import moment
from leasekeeper.protocol import halt as halting

if TYPE_CHECKING:
    from leasekeeper.cli.runs.source import Late
    from leasekeeper.protocol.halt import Halt
    from leasekeeper.protocol.pointer import Pointer
    from leasekeeper.protocol.run_look import Facts, Listed
    from leasekeeper.protocol.story import Life
    from leasekeeper.protocol.verdict import Verdict
    from leasekeeper.run_records import Receipt
    from leasekeeper.runs.examine import Examined

__all__ = [
    "checkpoint_shape",
    "examined_shape",
    "facts_shape",
    "halt_shape",
    "late_shape",
    "life_shape",
    "listed_shape",
    "receipt_shape",
    "step_shape",
    "unreadable_shape",
]


def _time(at_ms: int) -> str | None:
    return moment(at_ms / 1000) if at_ms else None


def halt_shape(halt: Halt) -> dict[str, Any]:
    """A halt."""
    return {"scope": halt.scope, "reason": halt.reason, "by": halt.by or None, "at": _time(halt.at_ms)}


def listed_shape(one: Listed, halts: Iterable[Halt], now_s: float) -> dict[str, Any]:
    """A run as ``runs ls`` lists it."""
    view, halt = one.view, halting.covering(halts, one.run)
    return {
        "run": one.run,
        "status": view.status if view is not None else None,
        "unreadable": one.why or None,
        "owner": one.owner.holder if one.owner is not None else None,
        "token": str(one.owner.token) if one.owner is not None else None,
        "halted": halt.scope if halt is not None else None,
        "last": one.last or None,
        "error": one.error or None,
        "generation": view.gen if view is not None else None,
        "seq": view.seq if view is not None else None,
        "steps_done": view.steps_done if view is not None else None,
        "in_doubt": list(view.in_doubt) if view is not None else None,
        "restarts": view.restarts if view is not None else None,
        "at": _time(view.at_ms) if view is not None else None,
        "age_s": round(max(0.0, now_s - view.at_ms / 1000), 1) if view is not None else None,
    }


def facts_shape(facts: Facts) -> dict[str, Any]:
    """What is kept of a run beside its records."""
    now = facts.now
    return {
        "run": facts.name.text,
        "status": now.status if now is not None else None,
        "unreadable": facts.head_why or None,
        "owner": facts.owner.holder if facts.owner is not None else None,
        "token": str(facts.owner.token) if facts.owner is not None else None,
        "halts": [halt_shape(halt) for halt in facts.halts],
        "generation": now.gen if now is not None else None,
        "seq": now.seq if now is not None else None,
        "hash": now.hash if now is not None else None,
        "steps_done": now.done if now is not None else None,
        "in_doubt": list(now.doubts) if now is not None else None,
        "restarts": now.restarts if now is not None else None,
        "namespace_id": facts.namespace_id or None,
        "input": _input(facts.meta),
        "pruned": facts.tomb is not None,
    }


def _input(meta: bytes | None) -> Any:
    from leasekeeper.protocol.meta import read_meta
    from leasekeeper.run_errors import ILLEGIBLE

    try:
        return json.loads(read_meta(meta, "it").input) if meta is not None else None
    except ILLEGIBLE:
        return None


def receipt_shape(receipt: Receipt) -> dict[str, Any]:
    """A record."""
    return {
        "seq": receipt.seq,
        "kind": receipt.kind,
        "step": receipt.step or None,
        "at": _time(receipt.at_ms),
        "holder": receipt.holder,
        "token": str(receipt.token),
        "claim": receipt.claim or None,
        "life": receipt.life,
        "hash": receipt.hash,
        "prev": receipt.prev,
        "key_id": receipt.key_id or None,
        "data": receipt.data,
        "unreadable": None,
    }


def unreadable_shape(seq: int | None, why: str) -> dict[str, Any]:
    """A record that cannot be read."""
    names = ("kind", "step", "at", "holder", "token", "claim", "life", "hash", "prev", "key_id", "data")
    return {"seq": seq, **dict.fromkeys(names), "unreadable": why}


def life_shape(life: Life) -> dict[str, Any]:
    """An incarnation."""
    return {
        "life": life.life,
        "holder": life.holder,
        "host": life.host or None,
        "pid": life.pid or None,
        "token": str(life.token),
        "took_over_from": str(life.after) if life.after else None,
        "first": life.first,
        "last": life.last,
        "began_at": _time(life.began_ms),
        "end": life.end or None,
    }


def step_shape(key: str, pointer: Pointer | None, why: str) -> dict[str, Any]:
    """Where a step stands, or why that cannot be told."""
    return {
        "step": key,
        "kind": pointer.kind if pointer is not None else None,
        "state": pointer.state if pointer is not None else None,
        "effect": (pointer.effect or None) if pointer is not None else None,
        "attempts": pointer.attempts if pointer is not None else None,
        "intent": (pointer.intent or None) if pointer is not None else None,
        "outcome": (pointer.outcome or None) if pointer is not None else None,
        "idempotency_key": (pointer.idem or None) if pointer is not None else None,
        "unreadable": why or None,
    }


def late_shape(late: Late) -> dict[str, Any]:
    """Evidence that came too late."""
    receipt = late.receipt
    return {
        "about": late.seq,
        "kind": receipt.kind if receipt is not None else None,
        "step": receipt.step if receipt is not None else None,
        "at": _time(receipt.at_ms) if receipt is not None else None,
        "holder": receipt.holder if receipt is not None else None,
        "token": str(receipt.token) if receipt is not None else None,
        "data": receipt.data if receipt is not None else None,
        "unreadable": late.why or None,
    }


def examined_shape(run: str, examined: Examined) -> dict[str, Any]:
    """What was found of a run's records."""
    verdict = examined.verdict
    return {
        "run": run,
        "ok": examined.ok,
        "why": verdict.why,
        "verified": verdict.verified,
        "attested": examined.attested,
        "bad": verdict.bad,
        "kind": verdict.kind,
        "hash": verdict.hash if verdict.verified else None,
        "signed": verdict.signed,
        "complete": verdict.complete,
        "anchored": verdict.anchored or None,
        "keys": list(verdict.keys),
        "rotations": _rotations(verdict),
        "beside": list(examined.beside),
    }


def _rotations(verdict: Verdict) -> Sequence[dict[str, Any]]:
    return [{"seq": each.seq, "old": each.old or None, "new": each.new or None} for each in verdict.rotations]


def checkpoint_shape(name: str, stored: bytes) -> dict[str, Any]:
    """A checkpoint as it is stored; ``data`` null when that cannot be read."""
    from leasekeeper.protocol.schema import read_envelope
    from leasekeeper.run_errors import ILLEGIBLE

    try:
        envelope = read_envelope(stored, name)
    except ILLEGIBLE as error:
        return {"name": name, "schema": None, "version": None, "n": None, "data": None, "unreadable": error.why}
    return {
        "name": name,
        "schema": envelope.schema,
        "version": envelope.version,
        "n": envelope.n,
        "data": envelope.data,
        "unreadable": None,
    }
