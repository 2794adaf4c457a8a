"""What operators do with runs: halt and unhalt a scope, resolve a doubt; checked here, done by plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasekeeper.canonical import canonical
from leasekeeper.errors import ConfigError, Misuse
from leasekeeper.protocol.keys import check_name
from leasekeeper.protocol.limits import check_inline
from leasekeeper.protocol.outcome import RESULT_INLINE_MAX
from leasekeeper.protocol.resolve import Word
from leasekeeper.protocol.run_keys import RunKeys, parse_run
from leasekeeper.runs.signer import signer_from_env

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from leasekeeper.protocol.keys import Keys
    from leasekeeper.run_records import Receipt
    from leasekeeper.runs.anchor import Anchor
    from leasekeeper.signing import SigningKey

__all__ = ["accepted", "remembered", "run_keys", "word"]


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
    rewound: tuple[tuple[int, str], ...] = (),
) -> Word:
    """What an operator says, checked."""
    if step is not None:
        check_name(step, "step")
    if (step is None) != (applied is None):
        raise ConfigError(
            field="applied", value=applied, expected="True or False with a step; None to lift a quarantine"
        )
    if evidence in (None, "", {}, []):
        raise ConfigError(field="evidence", value=evidence, expected="what this rests on, as text or JSON")
    texts: dict[str, Any] = {
        "evidence": canonical(evidence, "evidence", big="text"),
        "result": canonical(result, "result", big="text"),
    }
    if sum(map(len, texts.values())) > RESULT_INLINE_MAX:
        check_inline("evidence and result", sum(map(len, texts.values())) + 8 * 1024)
    by = signer_from_env() if signer == "env" else signer
    return Word(step=step, applied=bool(applied), signer=by, rewound=rewound, **texts)


def remembered(anchors: Sequence[Anchor], step: str | None, run: str, gen: int) -> tuple[tuple[int, str], ...]:
    """What anchors remember of a run that was set back, to be given up for lost."""
    if step is not None:
        raise ConfigError(field="accept_rewind", value="anchors", expected="no step beside it: it is about the run")
    found = [anchor.last(run, gen) for anchor in anchors]
    known = tuple(sorted({(each.seq, each.hash) for each in found if each is not None}))
    if not known:
        raise Misuse(f"no anchor remembers anything of run {run}, generation {gen}: there is nothing to accept")
    return known


def accepted(anchors: Sequence[Anchor], receipt: Receipt) -> None:
    """Tell anchors that the run goes on from this record."""
    for anchor in anchors:
        anchor.accept(receipt.run, receipt.gen, receipt.seq, receipt.hash, receipt.at_ms)
