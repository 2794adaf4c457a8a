"""Two witnesses of one story: what a run has recorded of itself, and what the outside world has written down of it.

The ledger knows nothing of runs, and the records nothing of the ledger; what ties them together is the idempotency key that
a step sends. Whatever cannot be true in both is told by `disagreements`: a call that no intent precedes, an effect that
happened twice, an outcome of something that never happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from leasekeeper.fencing import parse_token
from leasekeeper.protocol.history import Walk, checked, last
from leasekeeper.protocol.run_keys import RunKeys, RunName

if TYPE_CHECKING:
    from leasekeeper.keeper import Keeper
    from leasekeeper.run_records import Receipt
    from leasekeeper.testing.outside.ledger import Entry

__all__ = ["disagreements", "records_of"]

SHOWN = 12


def records_of(keeper: Keeper, workflow: str, id: str) -> list[Receipt]:  # noqa: A002 - the run's own word
    """All records of a run, in order, each checked to follow the one before; [] when there is no such run."""
    core = keeper._core
    keys = RunKeys(core.ctx.keys, RunName(workflow, id))
    found = core.run(last(core.ctx, keys, core.until()))
    if found is None:
        return []
    walk, records = Walk(keys), []
    while page := core.run(walk.next_page(core.ctx, found[0].seq, core.until())):
        records += [checked(keys, seq, stored) for seq, stored in page]
    return records


def disagreements(
    ledger: Iterable[Entry], records: Iterable[Receipt], *, elsewhere: Collection[str] = (), apart_ms: int = 0
) -> list[str]:
    """What the ledger and the records say that cannot both be true, a sentence each; [] when they agree.

    Requests without an idempotency key are nobody's and are left out, as are memos, which change nothing.

    Args:
        ledger: of a world.
        records: of every run that acts on this world with keys, one run after the other.
        elsewhere: keys of steps that act on something else than this world.
        apart_ms: how much the clocks of the two may differ; 0 for one machine.
    """
    entries = [entry for entry in ledger if entry.key]
    runs = list(records)
    intents: dict[str, list[Receipt]] = {}
    for record in runs:
        if record.kind == "intent":
            intents.setdefault(record.data["idem"], []).append(record)
    return [
        *_calls(entries, intents, apart_ms),
        *_twice(entries),
        *_keys(intents),
        *_outcomes(entries, runs, elsewhere),
    ]


def _calls(entries: Sequence[Entry], intents: dict[str, list[Receipt]], apart_ms: int) -> Iterable[str]:
    """Every request follows an intent with its key and its token."""
    for entry in entries:
        if entry.kind != "received":
            continue
        named = intents.get(entry.key, [])
        under = [one for one in named if not entry.token or one.token == parse_token(entry.token)]
        if not named:
            yield f"{_told(entry)} came with a key that no intent has"
        elif not under:
            yield f"{_told(entry)} came with token {entry.token}, under which no intent of its step was recorded"
        elif min(one.at_ms for one in under) > entry.at_ms + apart_ms:
            yield f"{_told(entry)} came before the intent of its step, record {under[0].seq} of {under[0].run}"


def _twice(entries: Sequence[Entry]) -> Iterable[str]:
    """Nothing happened twice under one key."""
    happened = Counter((entry.service, entry.effect, entry.key) for entry in entries if entry.kind == "applied")
    for (service, effect, key), times in happened.items():
        if times > 1:
            yield f"{service}.{effect} happened {times} times with key {key[:SHOWN]}…"


def _keys(intents: dict[str, list[Receipt]]) -> Iterable[str]:
    """A key belongs to one step, and a step has one key."""
    steps: dict[tuple[str, int, str], set[str]] = {}
    for key, named in intents.items():
        owners = {(one.run, one.gen, one.step) for one in named}
        if len(owners) > 1:
            yield f"key {key[:SHOWN]}… belongs to {len(owners)} steps: {sorted(owners)}"
        for owner in owners:
            steps.setdefault(owner, set()).add(key)
    for (run, _, step), keys in steps.items():
        if len(keys) > 1:
            yield f"step {step!r} of {run} has {len(keys)} keys"


def _outcomes(entries: Sequence[Entry], records: Sequence[Receipt], elsewhere: Collection[str]) -> Iterable[str]:
    """Every outcome is of something that was begun before, ended once, and happened."""
    happened = {entry.key for entry in entries if entry.kind == "applied"}
    begun: dict[tuple[str, int, str], Receipt] = {}
    ended: set[tuple[str, int, str]] = set()
    for record in records:
        step = (record.run, record.gen, record.step)
        where = f"record {record.seq} of {record.run}, the outcome of step {record.step!r},"
        if record.kind in ("intent", "before"):
            begun[step] = record
        if record.kind != "outcome":
            continue
        if step not in begun:
            yield f"{where} has no intent before it"
        elif begun[step].kind == "intent" and record.step not in elsewhere and begun[step].data["idem"] not in happened:
            yield f"{where} is of something that did not happen"
        if step in ended:
            yield f"{where} is not the first one"
        ended.add(step)


def _told(entry: Entry) -> str:
    return f"request {entry.request} ({entry.service}.{entry.effect} of {entry.subject!r})"
