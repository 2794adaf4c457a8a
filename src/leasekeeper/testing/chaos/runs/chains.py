"""What is to be said against the records of runs, from what etcd held and by which revisions."""

from __future__ import annotations

from collections.abc import Iterator

from leasekeeper.protocol.chain import verify_chain
from leasekeeper.protocol.receipt import read_receipt
from leasekeeper.protocol.replay import Replay
from leasekeeper.run_errors import CorruptState
from leasekeeper.testing.chaos.checker import Violation
from leasekeeper.testing.chaos.runs.reading import BEGUN, EPOCH_BITS, Record, RunRead, Witness
from leasekeeper.testing.chaos.runs.records import WORKFLOW, Era, Halted
from leasekeeper.testing.chaos.runs.world import DOES

__all__ = ["broken_chains", "broken_ends", "broken_revisions"]

SETTLES = ("resolved", "outcome")


def broken_chains(seen: Witness) -> Iterator[Violation]:
    """Each run's chain, in each era: nothing is changed, missing or forked, and each record is in its place."""
    for era in seen.eras:
        for run in era.values():
            yield from _verified(seen, run)
            yield from _lives(seen, run)
            yield from _steps(seen, run)
            yield from _stops(seen, run, final=era is seen.last)


def _verified(seen: Witness, run: RunRead) -> Iterator[Violation]:
    stored = [(record.seq, record.value) for record in run.records]
    head = (int(run.head.get("seq", 0)), str(run.head.get("hash", "")))
    verdict = verify_chain(stored, head=head, ring=seen.story.ring, run=(WORKFLOW, run.id))
    if not verdict.complete:
        yield Violation(f"run {run.id} cannot be verified: {verdict.why}", seen.story.end_s, "etcd")
    for record in run.records:
        if record.version > 1:
            yield _against(seen, record, f"was written {record.version} times")


def _lives(seen: Witness, run: RunRead) -> Iterator[Violation]:
    """One life after the other, with larger and larger tokens; nothing by an owner after its successor has opened."""
    now: Record | None = None
    lives: set[str] = set()
    for record in run.records:
        if record.kind == "opened":
            if record.life in lives:
                yield _against(seen, record, "opens a life that was opened before")
            if now is not None and record.token <= now.token:
                yield _against(seen, record, f"has token {record.token}, and the life before had {now.token}")
            now = record
            lives.add(record.life)
        elif record.token == 0:
            if record.kind != "resolved":
                yield _against(seen, record, "has no token, and is no operator's word")
        elif now is None:
            yield _against(seen, record, "comes before anybody has opened the run")
        elif (record.life, record.claim, record.token) != (now.life, now.claim, now.token):
            what = f"was written with token {record.token} after {now.holder} has opened the run with token {now.token}"
            yield _against(seen, record, what)


def _steps(seen: Witness, run: RunRead) -> Iterator[Violation]:
    """An intent before every outcome, one outcome, one key, attempts that count up, and a memo repeated for a reason."""
    begun: dict[str, Record] = {}
    done: set[str] = set()
    excused: set[str] = set()
    for record in run.records:
        step = record.step
        if record.kind in ("opened", "raised"):
            excused = set(DOES) if record.kind == "opened" else excused | {step}
        if record.kind in BEGUN:
            if step in done:
                yield _against(seen, record, "begins what is done")
            if step in begun:
                yield from (_against(seen, record, what) for what in _again(record, begun[step], step in excused))
            begun[step] = record
            excused.discard(step)
        elif record.kind == "outcome":
            if step not in begun:
                yield _against(seen, record, "has no intent before it")
            if step in done:
                yield _against(seen, record, "is not the first")
            done.add(step)


def _again(record: Record, before: Record, excused: bool) -> Iterator[str]:
    """What is wrong with an attempt after another."""
    if record.kind == "before" and not excused:
        yield "asks again, and nothing has failed since it was asked"
    if record.attempt != before.attempt + 1:
        yield f"is attempt {record.attempt} after {before.attempt}"
    if record.data.get("idem") != before.data.get("idem"):
        yield "has another idempotency key than the attempt before"


def _stops(seen: Witness, run: RunRead, *, final: bool) -> Iterator[Violation]:
    """Whoever stops in doubt tells it once, and nothing is called until an operator has decided."""
    waits: dict[str, tuple[Record, int]] = {}

    def told(step: str) -> Iterator[Violation]:
        stopped, alerts = waits.pop(step)
        if alerts != 1 and final and run.id not in seen.lost and not seen.story.stopped:
            yield _against(seen, stopped, f"was told {alerts} times")

    for record in run.records:
        step = record.step
        if record.kind in ("in_doubt", "quarantined"):
            if step in waits:
                yield from told(step)
            waits[step] = (record, 0)
        elif record.kind == "alerted" and step in waits:
            waits[step] = (waits[step][0], waits[step][1] + 1)
        elif record.kind in BEGUN and step in waits:
            yield _against(seen, record, "begins what is in doubt, and no operator has decided")
        elif record.kind in SETTLES and step in waits:
            yield from told(step)
    for step in list(waits):
        yield from told(step)


# ---------------------------------------------------------------- by revisions


def broken_revisions(seen: Witness) -> Iterator[Violation]:
    """What was written after a halt, after the writer's claim was gone, or under an epoch that was over."""
    told: set[tuple[str, int, int]] = set()
    for era, runs in zip(seen.story.eras, seen.eras, strict=True):
        for run in runs.values():
            for record in run.records:
                for what in _too_late(era, record):
                    if (run.id, record.seq, record.revision) not in told:
                        told.add((run.id, record.seq, record.revision))
                        yield _against(seen, record, what)


def _too_late(era: Era, record: Record) -> Iterator[str]:
    at = record.revision
    if record.kind in BEGUN:
        for halt in era.halts:
            if _covers(halt, record.run) and halt.since < at and not 0 < halt.until < at:
                yield f"was written at revision {at}, and {halt.scope} was halted at {halt.since}"
    if record.token > 0:
        gone = era.gone.get(record.claim, at)
        if gone < at:
            yield f"was written at revision {at}, and its writer's claim was gone at {gone}"
        for since, number in era.epochs:
            if since < at and record.token >> EPOCH_BITS < number:
                yield f"was written at revision {at} with token {record.token}, and epoch {number} began at {since}"


def _covers(halt: Halted, run: str) -> bool:
    scope = halt.scope.replace("%2F", "/").replace("%25", "%")
    name = f"{WORKFLOW}/{run}"
    return name.startswith(scope[:-1]) if scope.endswith("*") else name == scope


# ---------------------------------------------------------------- how they ended


def broken_ends(seen: Witness) -> Iterator[Violation]:
    """Every run of which a restore took nothing away has ended as an undisturbed one does."""
    story = seen.story
    if story.stopped:
        return
    for name in sorted(story.pruned & seen.last.keys() - story.tombs):
        yield Violation(f"run {name} was pruned, and no tombstone tells of it", story.end_s, "etcd")
    for name, order in story.orders.items():
        run = seen.last.get(name)
        if name in seen.lost or run is None:
            continue  # what was begun and never heard of: its begin was not confirmed, or a restore took it
        status = run.head.get("status")
        if status != "finished":
            what = f"run {name} is {status}, {story.finished_at_s - story.calm_s:.0f} s after the faults were over"
            yield Violation(what, story.end_s, "etcd")
            continue
        fold, kept = _folded(run)
        wanted = {
            "status": "finished",
            "steps": {step: "conflict" if step == "mail" and order.rival else "done" for step in sorted(DOES)},
            "checkpoints": {
                "state": {
                    "plan": f"Done with 0 tool calls: plan {name}",
                    "paid_cents": order.amount_cents,
                    "done": True,
                }
            },
            "phases": {"order": "done"},
        }
        if fold != wanted:
            yield Violation(f"run {name} ended as {fold}, and an undisturbed one as {wanted}", story.end_s, "etcd")
        if kept != run.kept or run.steps != (fold or {}).get("steps"):
            yield Violation(f"run {name}: what etcd holds beside its records is not what they say", story.end_s, "etcd")


def _folded(run: RunRead) -> tuple[dict[str, object] | None, dict[str, bytes]]:
    replay = Replay()
    try:
        for record in run.records:
            replay.add(read_receipt(record.value, str(record)))
    except CorruptState:
        return None, {}
    return replay.state(), replay.checkpoint_bytes()


def _against(seen: Witness, record: Record, what: str) -> Violation:
    return Violation(f"{record} {what}", seen.at_s(record), record.holder if record.holder[:1] == "r" else "etcd")
