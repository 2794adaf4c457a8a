"""Which runs are not finished and have no owner: what workers look through. A hint: who opens one sees how it stands.

A run that waits for a person is left alone, once a person was told: whoever stopped it may have died before, or nobody could
be told then. So it is opened as long as an alert is due, and opening it tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from leasekeeper.errors import ConfigError
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import halt as halts
from leasekeeper.protocol import messages as m
from leasekeeper.protocol import run_keys
from leasekeeper.protocol.head import Head, read_head
from leasekeeper.protocol.keys import escape, prefix_end, unescape
from leasekeeper.protocol.plan import TXN, Plan, persist
from leasekeeper.protocol.pointer import read_pointer
from leasekeeper.protocol.run_keys import RunKeys, RunName
from leasekeeper.run_errors import ILLEGIBLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.halt import Halt

__all__ = ["BEGINNING", "Place", "Snag", "Stand", "Standing", "look", "page", "stand", "standing", "waits"]

PAGE = 500
OWNED_MAX = 10_000
# One look takes in about so many; the next one goes on behind them.
LOOK_MAX = 5_000
PROGRESS_S = 10.0

# ``waits`` for somebody to go on; ``halted``: nothing may begin in it; ``stopped``: in doubt or put aside, and somebody knows
# it; or not to be read.
Standing = Literal["waits", "halted", "stopped", "finished"]
# In a list of workflows: which one, and from which key on.
Place = tuple[int, bytes | None]
BEGINNING: Place = (0, None)


class Snag(NamedTuple):
    """Why it is of no use to go on with a run: the conflict of ``step``, or else that its head is still ``head``.

    None: nothing that is known would show a change.
    """

    step: str = ""
    head: bytes | None = None


class Stand(NamedTuple):
    """How a run stands, with its head's bytes (empty: there is none), and whether the snag that was asked for is still there."""

    standing: Standing
    head: bytes = b""
    snagged: bool = False


def _nobody(halt: Halt) -> None:
    """Nobody wants to know of it."""


def page(
    ctx: Context, workflow: str, start: bytes | None, until: float, halted: Callable[[Halt], None] = _nobody
) -> Plan[tuple[list[RunName], bytes | None]]:
    """One page of a workflow's unfinished runs that nobody owned at that moment and no halt covered, and where to go on.

    ``halted`` is told each halt that covers one of them.
    """
    prefix = run_keys.unfinished(ctx.keys, workflow)
    leases = ctx.keys.leases + escape(f"run/{escape(workflow)}/").encode()
    kinds = pb.RangeRequest
    request = m.read_only(
        (
            pb.RequestOp(
                request_range=kinds(key=start or prefix, range_end=prefix_end(prefix), limit=PAGE, keys_only=True)
            ),
            pb.RequestOp(
                request_range=kinds(key=leases, range_end=prefix_end(leases), limit=OWNED_MAX, keys_only=True)
            ),
            halts.all_of(run_keys.halts(ctx.keys)),
        )
    )
    reply = yield from persist(TXN, request, now=ctx.now, until=until)
    found, owned = m.range_kvs(reply, 0), m.range_kvs(reply, 1)
    taken = {ctx.keys.name_of(kv.key) for kv in owned}
    names = [name for kv in found for name in _name(workflow, kv.key[len(prefix) :])]
    more = found[-1].key + b"\0" if found and reply.responses[0].response_range.more else None
    stopped = halts.halts(m.range_kvs(reply, 2), run_keys.halts(ctx.keys))
    free = [(name, halts.covering(stopped, name.text)) for name in names if name.lease not in taken]
    for halt in {halt for _, halt in free if halt is not None}:
        halted(halt)
    return [name for name, halt in free if halt is None], more


def look(
    ctx: Context,
    workflows: Sequence[str],
    place: Place,
    until: float,
    going: Callable[[], bool] = lambda: True,
    halted: Callable[[Halt], None] = _nobody,
) -> Plan[tuple[list[RunName], Place]]:
    """The unfinished runs of some workflows that nobody owned, from a place on, and the place to go on from the next time.

    It ends where the list does, or with about `LOOK_MAX` runs, or as soon as ``going`` is no longer true. ``halted`` is told the
    halts that cover others of them.
    """
    found: list[RunName] = []
    index, start = place if place[0] < len(workflows) else BEGINNING
    while index < len(workflows) and len(found) < LOOK_MAX and going():
        names, start = yield from page(ctx, workflows[index], start, until, halted)
        found += names
        index += start is None
        until = max(until, ctx.now() + PROGRESS_S)  # what makes progress may go on
    return found, (BEGINNING if index >= len(workflows) else (index, start))


def stand(ctx: Context, name: RunName, until: float, snag: Snag | None = None) -> Plan[Stand]:
    """How a run stands, as far as it matters to who might go on with it."""
    keys, prefix = RunKeys(ctx.keys, name), run_keys.halts(ctx.keys)
    gets = [m.get(keys.head), halts.all_of(prefix)]
    if snag is not None and snag.step:
        gets.append(m.get(keys.step(snag.step)))
    reply = yield from persist(TXN, m.read_only(gets), now=ctx.now, until=until)
    heads, stand = m.range_kvs(reply, 0), halts.halts(m.range_kvs(reply, 1), prefix)
    head = heads[0].value if heads else b""
    covered = halts.covering(stand, name.text) is not None or m.range_count(reply, 1) > len(stand)
    snagged = snag is not None and (_in_conflict(reply) if snag.step else snag.head in (None, head))
    return Stand(_standing(head, keys.head.decode(), halted=covered), head, snagged)


def standing(ctx: Context, name: RunName, until: float) -> Plan[Standing]:
    """How a run stands, in a word."""
    return (yield from stand(ctx, name, until)).standing


def _standing(stored: bytes, where: str, *, halted: bool) -> Standing:
    try:
        head = read_head(stored, where) if stored else Head(status="quarantined")
    except ILLEGIBLE:
        return "stopped"
    if head.status == "finished":
        return "finished"
    if head.status != "running" and not head.due:
        return "stopped"
    return "halted" if halted else "waits"


def _in_conflict(reply: pb.TxnResponse) -> bool:
    """Whether the step that was asked for is in conflict: whoever asks for it is told so, until an operator says a word."""
    found = m.range_kvs(reply, 2)
    try:
        return bool(found) and read_pointer(found[0]).state == "conflict"
    except ILLEGIBLE:
        return False  # who opens the run sees what is wrong with it


def waits(ctx: Context, name: RunName, until: float) -> Plan[bool]:
    """Whether a run waits for somebody to go on with it: not finished, nor stopped for a person who knows, nor unreadable."""
    found = yield from standing(ctx, name, until)
    return found in ("waits", "halted")


def _name(workflow: str, key: bytes) -> list[RunName]:
    """The run that a key stands for; none for a key that no run can have made."""
    try:
        return [RunName(workflow, unescape(key.decode()))]
    except (UnicodeDecodeError, ConfigError):
        return []
