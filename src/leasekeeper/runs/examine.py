"""Whether a run in etcd is what was written: its records, and all that stands beside them and follows from them.

The chain tells of the records (see `leasekeeper.protocol.chain`). What else etcd keeps of a run (the head, where each step
stands, checkpoints) can be had again from the records, so it is held against them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.chain import ChainCheck
from leasekeeper.protocol.meta import read_meta
from leasekeeper.protocol.pointer import read_pointer
from leasekeeper.protocol.receipt import digest
from leasekeeper.protocol.replay import Replay
from leasekeeper.run_errors import ILLEGIBLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasekeeper.protocol.chain import Point, Ring
    from leasekeeper.protocol.run_keys import RunKeys
    from leasekeeper.protocol.run_look import Facts, Pair
    from leasekeeper.protocol.verdict import Verdict
    from leasekeeper.run_records import Receipt

__all__ = ["Examined", "examine"]

# So many findings are kept; one is enough to look.
BESIDE_MAX = 50


@dataclass(frozen=True, slots=True)
class Examined:
    """The verdict on the records, and what beside them does not follow from them, each in a sentence.

    ``placed``: it is known of which namespace the records have to be.
    """

    verdict: Verdict
    beside: tuple[str, ...] = ()
    placed: bool = True

    @property
    def ok(self) -> bool:
        """Whether nothing bad was found."""
        return self.verdict.ok and not self.beside

    @property
    def attested(self) -> int | None:
        """The last record for which chain, signatures, anchors and namespace speak; None: no key was given to tell by."""
        if not self.verdict.signed:
            return None
        return self.verdict.verified if self.placed else 0


def examine(
    keys: RunKeys,
    facts: Facts,
    records: Iterable[tuple[int | None, bytes]],
    *,
    steps: Iterable[Pair] = (),
    checkpoints: Iterable[Pair] = (),
    ring: Ring | None = None,
    anchors: Iterable[Point] = (),
) -> Examined:
    """Examine a run, all of it read at one revision. Never raises for what is stored.

    Args:
        keys: of the run.
        facts: what is kept of it beside its records.
        records: number of the place, and stored bytes, in order of their keys.
        steps: keys and stored bytes of where each step stands.
        checkpoints: keys and stored bytes of its checkpoints.
        ring: the keys to believe. None: signatures are not looked at.
        anchors: numbers and hashes of records that somebody remembers.
    """
    head = (facts.now.seq, facts.now.hash) if facts.now is not None else None
    check = ChainCheck(
        head=head,
        anchors=anchors,
        ring=ring,
        namespace_id=facts.namespace_id or None,
        run=(keys.name.workflow, keys.name.id),
    )
    replay, beside = Replay(), list(_of_facts(facts))
    for seq, stored in records:
        before = check.last
        check.feed(seq, stored)
        if check.last is not None and check.last is not before:
            beside += _added(replay, check.last)
            if check.last.seq == 1:
                beside += _of_beginning(facts, check.last)
    verdict = check.close()
    if verdict.ok and not beside:
        beside += _of_head(facts, replay, check.last)
        beside += _of_steps(keys, replay, steps)
        beside += _of_checkpoints(keys, replay, checkpoints)
    return Examined(verdict, tuple(beside[:BESIDE_MAX]), bool(facts.namespace_id))


def _added(replay: Replay, receipt: Receipt) -> Iterable[str]:
    try:
        replay.add(receipt)
    except ILLEGIBLE as error:
        yield str(error)


def _of_beginning(facts: Facts, first: Receipt) -> Iterable[str]:
    """What the run was begun with has to be what its first record says."""
    try:
        meta = read_meta(facts.meta, "it") if facts.meta is not None else None
    except ILLEGIBLE:
        return  # told already
    named = first.data.get("input")
    if meta is not None and named != digest(meta.input):
        yield "what it was begun with is not what its first record names"


def _of_facts(facts: Facts) -> Iterable[str]:
    """What is wrong with the run's first facts and its head by themselves."""
    if not facts.namespace_id:
        yield "the namespace's identity is gone or cannot be read: nothing tells which namespace this is"
    if facts.now is None:
        yield f"the head: {facts.head_why}"
    if facts.meta is None:
        yield "what it was begun with is gone"
        return
    try:
        gen = read_meta(facts.meta, "what it was begun with").gen
    except ILLEGIBLE as error:
        yield str(error)
        return
    if facts.now is not None and facts.now.gen != gen:
        yield f"the head is of generation {facts.now.gen}, and the run was begun as generation {gen}"


def _of_head(facts: Facts, replay: Replay, last: Receipt | None) -> Iterable[str]:
    head, state = facts.now, replay.state()
    if head is None or last is None:
        return
    if head.status != state["status"]:
        yield f"the head says that the run is {head.status}, and its records that it is {state['status']}"
    doubts = {key for key, how in state["steps"].items() if how == "in_doubt"}
    if set(head.doubts) - doubts:
        yield f"the head names steps in doubt that are not: {', '.join(sorted(set(head.doubts) - doubts))}"
    if head.gen != last.gen:
        yield f"the head is of generation {head.gen}, and the last record of generation {last.gen}"


def _of_steps(keys: RunKeys, replay: Replay, steps: Iterable[Pair]) -> Iterable[str]:
    recorded = replay.steps()
    for key, stored in steps:
        step = keys.step_of(key)
        known = recorded.pop(step, None)
        try:
            now = read_pointer(pb.KeyValue(key=key, value=stored))
        except ILLEGIBLE as error:
            yield f"step {step!r}: {error.why}"
            continue
        if (now.state, now.intent, now.outcome, now.attempts) != known:
            by = f"{known[0]}, by records {known[1]} and {known[2]}" if known is not None else "not begun"
            yield f"step {step!r} stands as {now.state}, by records {now.intent} and {now.outcome}; recorded is: {by}"
    yield from (f"where step {step!r} stands is gone; recorded is: {known[0]}" for step, known in recorded.items())


def _of_checkpoints(keys: RunKeys, replay: Replay, checkpoints: Iterable[Pair]) -> Iterable[str]:
    recorded = {keys.checkpoint(name): (name, stored) for name, stored in replay.checkpoint_bytes().items()}
    for key, stored in checkpoints:
        if b"/old/" in key[len(keys.checkpoints) :]:
            continue  # as it was before a migration; nothing reads it
        name, known = recorded.pop(key, ("", b""))
        if not known:
            yield f"checkpoint {key[len(keys.checkpoints) :].decode('utf-8', 'replace')!r} is in no record"
        elif stored != known:
            yield f"checkpoint {name!r} is not what was recorded of it"
    yield from (f"checkpoint {name!r} is gone, and was recorded" for name, _ in recorded.values())
