"""A note: what a step that is under way has seen so far, left among the records as evidence.

Nothing ever follows from a note. It does not change where its step stands, is no result, and the next attempt is not told of it:
it shows people how far an attempt came that never came to its end. So it may be left out wherever it would cost more than that:
where the run has no room, where etcd is nearly full, and where etcd does not answer soon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.protocol.append import Entry, append
from leasekeeper.protocol.incarnation import check_room
from leasekeeper.protocol.limits import believe, space
from leasekeeper.protocol.plan import Plan
from leasekeeper.protocol.receipt import Draft, plain

if TYPE_CHECKING:
    from leasekeeper.protocol.incarnation import Incarnation

__all__ = ["PARTIAL_MAX_BYTES", "note", "tail"]

PARTIAL_MAX_BYTES = 4096
# After that nobody waits for a note any more.
NOTE_S = 2.0


def tail(text: str) -> str:
    """The end of a text, as much of it as a note holds; what is no text (lone surrogates) is replaced."""
    whole = text[-PARTIAL_MAX_BYTES:].encode("utf-8", "replace")
    return whole[-PARTIAL_MAX_BYTES:].decode("utf-8", "ignore")


def note(life: Incarnation, step: str, *, intent: int, number: int, text: str) -> Plan[None]:
    """Record the end of ``text``, under the fence, beside the intent of this number.

    Raises what `append` does, and RunFinished, RunTooLong or QuotaReserved where there is no room for it.
    """
    log, now = life.log, life.log.ctx.now
    check_room(life)
    if not life.space.holds(now(), log.head.size):
        found = yield from space(log.ctx, life.quota, now() + NOTE_S)
        life.space = believe(found, now(), log.head.size)
    data = plain({"intent": intent, "n": number, "partial": tail(text), "size": len(text)})
    yield from append(log, Entry(Draft("note", step, data, log.ctx.new_nonce()), size=len(data), until=now() + NOTE_S))
