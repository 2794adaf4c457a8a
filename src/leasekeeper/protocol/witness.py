"""Where a step stands, told by two witnesses: its own key, and what the records of the run say of it.

Each alone can be wrong: the key by somebody's hand, the account by what was remembered of it. Where they disagree, the records
that came since are read, as others may have written them, and the key is read again; if they still disagree, nothing is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasekeeper.protocol.account import Account
from leasekeeper.protocol.audit import corrupt
from leasekeeper.protocol.history import checked, page, record
from leasekeeper.protocol.pointer import ABSENT
from leasekeeper.protocol.receipt import link, refuse_newer
from leasekeeper.protocol.recorded import believed, pointer_of

if TYPE_CHECKING:
    from leasekeeper.protocol.append import Log
    from leasekeeper.protocol.plan import Plan
    from leasekeeper.protocol.pointer import Pointer

__all__ = ["agreed", "catch_up", "check_intent", "is_agreed"]

# How often it is looked again while others write.
TRIES_MAX = 3


def is_agreed(log: Log, step: str, pointer: Pointer) -> bool:
    """Whether both say the same of a step, as far as is known without asking anybody."""
    stand = log.account.stand(step)
    return stand.agrees(pointer) if stand is not None else not pointer.mod_revision


def agreed(log: Log, step: str, until: float) -> Plan[Pointer]:
    """Where a step stands, once both say the same; CorruptState when they do not."""
    pointer: Pointer = yield from pointer_of(log, step, until)
    for _ in range(TRIES_MAX):
        yield from catch_up(log, until)
        if is_agreed(log, step, pointer):
            return pointer
        pointer = yield from pointer_of(log, step, until)
        if is_agreed(log, step, pointer):
            return pointer
        fresh = Account()  # what was remembered may be wrong as well
        yield from _read_on(log, fresh, until)
        log.account = fresh
        if is_agreed(log, step, pointer):
            return pointer
    stand = log.account.stand(step)
    by_record = "was never begun" if stand is None else f"is {stand.state} since record {stand.last}"
    raise corrupt(log.keys.step(step), f"it says that the step {_said(pointer)}, and by the records it {by_record}")


def _said(pointer: Pointer) -> str:
    if pointer == ABSENT:
        return "was never begun"
    return f"is {pointer.state} since record {pointer.outcome or pointer.intent}"


def catch_up(log: Log, until: float) -> Plan[None]:
    """Take the records into account that others have added; CorruptState where they do not follow those before them."""
    yield from _read_on(log, log.account, until)


def _read_on(log: Log, account: Account, until: float) -> Plan[None]:
    while True:
        found = yield from page(log.ctx, log.keys, account.end[0] + 1, until)
        for seq, stored in found:
            last, digest = account.end
            if seq <= last:
                continue  # another thread or task has taken it in meanwhile
            if link(stored) != (digest, last + 1):
                refuse_newer(stored, log.keys.record(seq).decode())
                raise corrupt(log.keys.record(last + 1), "it does not follow the record before it")
            account.add(log.keys, believed(log, checked(log.keys, seq, stored)))
        if not found:
            return


def check_intent(log: Log, step: str, pointer: Pointer, idem: str, until: float) -> Plan[dict[str, Any]]:
    """What the last intent of a step says, empty where it has none.

    CorruptState when the step's key says otherwise: arguments and idempotency key decide what is sent.
    """
    told: tuple[Any, ...] = (pointer.args, idem, pointer.effect, pointer.attempts)
    data: dict[str, Any] = {}
    if pointer.intent:  # else it was stopped before its first
        receipt = believed(log, (yield from record(log.ctx, log.keys, pointer.intent, until)))
        data = receipt.data
        told = (data.get("args"), data.get("idem"), data.get("effect"), data.get("attempt"))
        if receipt.step != step or receipt.kind not in ("intent", "before"):
            raise corrupt(log.keys.record(pointer.intent), f"it is not the intent of step {step!r}")
    if told != (pointer.args, pointer.idem, pointer.effect, pointer.attempts):
        raise corrupt(log.keys.step(step), f"it is not what record {pointer.intent}, its intent, says")
    return data
