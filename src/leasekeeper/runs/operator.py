"""What operators do with runs: halt and unhalt a scope, resolve a doubt; checked here, done by plans."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from leasekeeper.canonical import canonical
from leasekeeper.errors import ConfigError, Misuse
from leasekeeper.protocol.conduct import Conduct, Invoke, Operation, Talk
from leasekeeper.protocol.keys import check_name
from leasekeeper.protocol.limits import check_inline
from leasekeeper.protocol.lost_result import named_blob
from leasekeeper.protocol.outcome import RESULT_INLINE_MAX
from leasekeeper.protocol.receipt import FIRST_PREV, digest
from leasekeeper.protocol.resolve import Word, resolve
from leasekeeper.protocol.run_keys import RunKeys, parse_run
from leasekeeper.protocol.whereabouts import Whereabouts, beyond, whereabouts
from leasekeeper.run_errors import BlobMissing, CorruptState
from leasekeeper.runs.signer import signer_from_env
from leasekeeper.runtime.aio import aside
from leasekeeper.runtime.conduct import carry, carry_async, nowhere

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from leasekeeper.protocol.incarnation import Blobs
    from leasekeeper.protocol.keys import Keys
    from leasekeeper.run_records import Receipt
    from leasekeeper.runs.anchor import Anchor
    from leasekeeper.runtime.conduct import Passing
    from leasekeeper.runtime.core import Core
    from leasekeeper.signing import SigningKey

__all__ = ["Resolved", "acarried_out", "carried_out", "resolving", "run_keys", "word"]

T = TypeVar("T")

# What commands that are shown have in the place of the evidence: whoever pastes one unchanged has said nothing.
PLACEHOLDERS = ("WHAT YOU SAW", "TEXT")


@dataclass(frozen=True, slots=True)
class Resolved:
    """What came of an operator's word: its record, None when there is no run in etcd to have one.

    ``given_up`` is the last record that an anchor remembered and that is given up for lost; 0: none.
    """

    receipt: Receipt | None
    given_up: int = 0


def run_keys(keys: Keys, run: object) -> RunKeys:
    """The keys of a run that is written ``workflow/id``, or of an owned one; ConfigError for anything else."""
    return RunKeys(keys, parse_run(getattr(run, "run", run)))


def word(
    step: str | None,
    *,
    applied: bool | None,
    evidence: object,
    result: object,
    signer: SigningKey | Literal["env"] | None,
) -> Word:
    """What an operator says, checked."""
    if step is not None:
        check_name(step, "step")
    if (step is None) != (applied is None):
        raise ConfigError(
            field="applied", value=applied, expected="True or False with a step; None to lift a quarantine"
        )
    said = evidence.strip() if isinstance(evidence, str) else evidence
    if said in (None, "", {}, [], *PLACEHOLDERS):
        raise ConfigError(field="evidence", value=evidence, expected="what this rests on, as text or JSON")
    texts: dict[str, Any] = {
        "evidence": canonical(evidence, "evidence", big="text"),
        "result": canonical(result, "result", big="text"),
    }
    if sum(map(len, texts.values())) > RESULT_INLINE_MAX:
        check_inline("evidence and result", sum(map(len, texts.values())) + 8 * 1024)
    by = signer_from_env() if signer == "env" else signer
    return Word(step=step, applied=bool(applied), signer=by, **texts)


# ---------------------------------------------------------------- saying it


def resolving(
    core: Core,
    keys: RunKeys,
    said: Word,
    anchors: Sequence[Anchor] = (),
    *,
    blobs: Blobs | None = None,
    timeout_s: float | None = None,
) -> Conduct[Resolved]:
    """Put an operator's word into a run's records, and what anchors remember beyond them at an end.

    Nothing is written where etcd has all that they remember: then there is nothing to accept, and the run stays as it is. A run
    of which etcd has nothing takes no word: where an anchor remembers it, the anchors alone are told, and only once it is
    certain that nothing of it is there. In ``blobs`` it is looked whether a step's large result is lost.
    """
    if blobs is not None and said.step is not None:
        step = said.step
        name = yield Talk(named_blob(core.ctx, keys, step, core.until(timeout_s)), "look")
        if name and (yield Invoke(lambda: _is_missing(blobs, name), "load")):
            said = replace(said, missing=name)
    if not anchors:
        return Resolved((yield Talk(resolve(core.ctx, keys, said, core.until(timeout_s)), "resolve")))
    if said.step is not None:
        raise ConfigError(field="accept_rewind", value="anchors", expected="no step beside it: it is about the run")
    there: Whereabouts = yield Talk(whereabouts(core.ctx, keys, core.until(timeout_s)), "look")
    if there.head is None:
        return (yield from _giving_up(core, keys, said, anchors, timeout_s))
    gen = there.head.gen
    known = yield Invoke(lambda: _remembered(anchors, keys.name.text, gen), "anchor")
    lost = yield Talk(beyond(core.ctx, keys, gen, known, core.until(timeout_s)), "look")
    if not lost:
        run = keys.name.text
        raise Misuse(f"nothing to accept: etcd has all that is remembered of run {run}, up to record {known[-1][0]}")
    said = replace(said, rewound=tuple(lost))
    receipt = yield Talk(resolve(core.ctx, keys, said, core.until(timeout_s)), "resolve")
    yield Invoke(lambda: _accepted(anchors, receipt, _why(said)), "anchor")
    return Resolved(receipt, lost[-1][0])


def _is_missing(blobs: Blobs, name: str) -> bool:
    """Whether a large value is not in its store any more, or not what it was."""
    try:
        return digest(blobs.get(name)) != name
    except (BlobMissing, CorruptState):
        return True


def _giving_up(
    core: Core, keys: RunKeys, said: Word, anchors: Sequence[Anchor], timeout_s: float | None
) -> Conduct[Resolved]:
    """Have anchors forget a run of which nothing is there."""
    run = keys.name.text
    known: dict[int, int] = yield Invoke(lambda: _known(anchors, run), "anchor")
    # Looked at only now, since anchors may take their time: it may have been begun meanwhile.
    there: Whereabouts = yield Talk(whereabouts(core.ctx, keys, core.until(timeout_s)), "look")
    if there.head is not None:
        raise Misuse(f"run {run} was begun meanwhile: nothing of it was given up; say it again if it is to be")
    gone = {gen: seq for gen, seq in known.items() if gen > there.pruned}
    if not gone:
        expected = "a run that was begun, or that one of the anchors remembers; see: leasekeeper runs ls"
        raise ConfigError(field="run", value=run, expected=expected)
    at_ms = int(core.ctx.wall() * 1000)
    yield Invoke(lambda: _forgotten(anchors, run, sorted(gone), at_ms, _why(said)), "anchor")
    return Resolved(None, max(gone.values()))


def carried_out(core: Core, conduct: Conduct[T], passing: Passing | None = None) -> T:
    """Carry out a conduct that asks etcd and anchors, and stands on no lease."""
    passes = passing or nowhere

    def perform(operation: Operation) -> Any:
        match operation:
            case Talk(plan, name):
                passes(f"{name}:send")
                result = core.run(plan)
                passes(f"{name}:reply")
                return result
            case Invoke(call, name):
                passes(f"{name}:call")
                result = call()
                passes(f"{name}:return")
                return result
        raise _no_footing(operation)

    return carry(conduct, perform)


async def acarried_out(core: Core, conduct: Conduct[T], passing: Passing | None = None) -> T:
    """`carried_out` under asyncio: what blocks does not block the loop."""
    passes = passing or nowhere

    async def perform(operation: Operation) -> Any:
        match operation:
            case Talk(plan, name):
                passes(f"{name}:send")
                result = await core.arun(plan)
                passes(f"{name}:reply")
                return result
            case Invoke(call, name):
                passes(f"{name}:call")
                result = await aside(call, f"leasekeeper-{name}")
                passes(f"{name}:return")
                return result
        raise _no_footing(operation)

    return await carry_async(conduct, perform)


def _no_footing(operation: Operation) -> TypeError:
    return TypeError(f"{type(operation).__name__} needs a lease to stand on")


# ---------------------------------------------------------------- anchors


def _remembered(anchors: Sequence[Anchor], run: str, gen: int) -> tuple[tuple[int, str], ...]:
    """The last record that each anchor remembers of a generation of a run, in order."""
    found = [anchor.last(run, gen) for anchor in anchors]
    known = tuple(sorted({(each.seq, each.hash) for each in found if each is not None}))
    if not known:
        raise Misuse(f"no anchor remembers anything of run {run}, generation {gen}: there is nothing to accept")
    return known


def _accepted(anchors: Sequence[Anchor], receipt: Receipt, why: str) -> None:
    """Tell anchors that the run goes on from this record."""
    for anchor in anchors:
        anchor.accept(receipt.run, receipt.gen, receipt.seq, receipt.hash, receipt.at_ms, why)


def _known(anchors: Sequence[Anchor], run: str) -> dict[int, int]:
    """The last record that an anchor remembers of each generation of a run."""
    found: dict[int, int] = {}
    for anchor in anchors:
        for gen in anchor.generations(run):
            known = anchor.last(run, gen)
            if known is not None:
                found[gen] = max(known.seq, found.get(gen, 0))
    return found


def _forgotten(anchors: Sequence[Anchor], run: str, gens: Sequence[int], at_ms: int, why: str) -> None:
    """Tell anchors that nothing of these generations of a run is left.

    Those that remember something are told last, so that what was interrupted, or failed, can be said again.
    """
    for gen in gens:
        known = [anchor for anchor in anchors if anchor.last(run, gen) is not None]
        for anchor in (*(each for each in anchors if each not in known), *known):
            anchor.accept(run, gen, 0, FIRST_PREV, at_ms, why)


def _why(said: Word) -> str:
    """The evidence as text."""
    evidence = json.loads(said.evidence)
    return evidence if isinstance(evidence, str) else said.evidence.decode()
