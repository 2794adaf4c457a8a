"""The errors of runs: leaves of the tree drawn in `leasekeeper.errors`, and the one that an effect raises itself.

``run`` is always text, ``workflow/id``; ``step`` is the step's key. In a default message the words RUN, STEP, SCOPE … stand for
attributes (`leasekeeper.error_words`). The errors of versioned states are in `schema_errors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.error_words import damaged, halted, in_doubt, key_missing, said
from leasekeeper.errors import ConfigError, FixIt, Misuse, OutOfSpace, StopWork, TryLater
from leasekeeper.schema_errors import SchemaTooNew

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasekeeper.run_records import Receipt


class NotApplied(Exception):
    """Raised by your effect to say that surely nothing happened in the world: the step may be tried again.

    Raise it only when the resource has said so. A timeout or a broken connection tells nothing: let those out as they are.
    """


# ---------------------------------------------------------------- stop


class RunHalted(StopWork):
    """An operator has halted RUN: stop, and begin no step until they lift it: `leasekeeper unhalt SCOPE`.

    ``scope`` is what was halted and covers this run, ``reason`` and ``by`` are the operator's words, ``at_ms`` is when, by the
    operator's wall clock (0: not known); ``step`` is the step that was not begun ("" when it was none). What was recorded stays.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        run: str = "",
        step: str = "",
        scope: str = "",
        reason: str = "",
        by: str = "",
        at_ms: int = 0,
    ) -> None:
        super().__init__(said(type(self), message or halted(run, step, scope, reason, by), run=run, scope=scope))
        self.run = run
        self.step = step
        self.scope = scope
        self.reason = reason
        self.by = by
        self.at_ms = at_ms


class InDoubt(StopWork):
    """Look whether it happened, then say so: `leasekeeper runs explain RUN` tells what is known, and the commands.

    The step was begun, and no record, question or idempotency key can tell whether its effect was applied. ``seq`` is the number
    of the intent's record, ``why`` says what could not be known. The run stops here until somebody resolves it.
    """

    def __init__(
        self, message: str | None = None, *, run: str = "", step: str = "", seq: int = 0, why: str = ""
    ) -> None:
        message = message or in_doubt(run, step)
        super().__init__(said(type(self), message, run=run, step=step))
        self.run = run
        self.step = step
        self.seq = seq
        self.why = why


class Quarantined(StopWork):
    """The run was begun again too often and is put aside; find out why: `leasekeeper runs explain RUN`.

    ``restarts`` is how often it was begun again without a step done, the last time included, which was not let begin one.
    """

    def __init__(self, message: str | None = None, *, run: str = "", restarts: int = 0) -> None:
        super().__init__(said(type(self), message, run=run))
        self.run = run
        self.restarts = restarts


# ---------------------------------------------------------------- wait


class StaleCheckpoint(TryLater):
    """Checkpoint NAME of RUN was changed by somebody else: read it again, then commit, or use update().

    ``expected`` and ``found`` are revisions: the one that this change was based on, and the present one.
    """

    def __init__(
        self, message: str | None = None, *, run: str = "", name: str = "", expected: int = 0, found: int = 0
    ) -> None:
        super().__init__(said(type(self), message, run=run, name=name))
        self.run = run
        self.name = name
        self.expected = expected
        self.found = found


class QuotaReserved(OutOfSpace):
    """etcd is nearly full, and what is left is kept for outcomes: prune finished runs, compact and defragment.

    ``used`` and ``quota`` are bytes. No step is begun meanwhile; outcomes of steps already begun are still recorded.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        used: int = 0,
        quota: int = 0,
        endpoints: tuple[str, ...] = (),
        operation: str = "",
        detail: str = "",
    ) -> None:
        super().__init__(message, endpoints=endpoints, operation=operation, detail=detail)
        self.used = used
        self.quota = quota


# ---------------------------------------------------------------- fix: the world is not as recorded


class Conflict(FixIt):
    """What step STEP of RUN would do was done by somebody else: find out by whom, then see `leasekeeper runs explain RUN`.

    Nothing was called. ``receipt`` is the record that says what was observed.
    """

    def __init__(
        self, message: str | None = None, *, run: str = "", step: str = "", receipt: Receipt | None = None
    ) -> None:
        super().__init__(said(type(self), message, run=run, step=step))
        self.run = run
        self.step = step
        self.receipt = receipt


class Drift(FixIt):
    """Step STEP of RUN holds no more: see `leasekeeper runs explain RUN`; make it hold again, or give its effect drift="accept".

    It was done, and its postcondition is not true any more: somebody has changed the resource. The next life goes on once the
    postcondition is true again, or where the effect is declared with ``drift="accept"`` or the step asks for
    ``verify="recorded"``. ``seq`` is the number of the outcome's
    record. Nothing was called again.
    """

    def __init__(self, message: str | None = None, *, run: str = "", step: str = "", seq: int = 0) -> None:
        super().__init__(said(type(self), message, run=run, step=step))
        self.run = run
        self.step = step
        self.seq = seq


class ArgumentsChanged(FixIt):
    """Step STEP of RUN is recorded with other arguments: give these another step key, or the recorded ones again.

    ``recorded`` and ``given`` are the digests of the arguments.
    """

    def __init__(
        self, message: str | None = None, *, run: str = "", step: str = "", recorded: str = "", given: str = ""
    ) -> None:
        super().__init__(said(type(self), message, run=run, step=step))
        self.run = run
        self.step = step
        self.recorded = recorded
        self.given = given


class InputChanged(FixIt):
    """RUN was begun with another input: give this one another id, or resume with the recorded input.

    ``recorded`` and ``given`` are the digests of the inputs.
    """

    def __init__(self, message: str | None = None, *, run: str = "", recorded: str = "", given: str = "") -> None:
        super().__init__(said(type(self), message, run=run))
        self.run = run
        self.recorded = recorded
        self.given = given


# ---------------------------------------------------------------- fix: what is stored cannot be used


class CorruptState(FixIt):
    """What is stored was damaged or changed by other hands: see `leasekeeper runs verify RUN`, then put back what was there.

    ``where`` names the record or checkpoint, ``why`` says what is wrong with it. No default value takes its place.
    """

    def __init__(self, message: str | None = None, *, where: str = "", why: str = "") -> None:
        super().__init__(damaged(message, where, why))
        self.where = where
        self.why = why


# What is raised for stored bytes that cannot be read: they were damaged, or a newer program wrote them. Both say `why`.
ILLEGIBLE = (CorruptState, SchemaTooNew)


class SigningKeyMissing(FixIt):
    """Records of RUN are signed with another key than this program has: give it that key, or its public part to trust.

    ``key_id`` is the id of the missing key.
    """

    def __init__(self, message: str | None = None, *, run: str = "", key_id: str = "") -> None:
        super().__init__(said(type(self), message or key_missing(run, key_id), run=run))
        self.run = run
        self.key_id = key_id


class BlobMissing(FixIt):
    """A result is recorded, but its bytes are missing from the blob store: put the blob back under its digest.

    Where they are lost, `Keeper.resolve` with ``blobs`` gives the step another result, once the loss is seen. ``digest`` is the
    SHA-256 of the bytes, in hex.
    """

    def __init__(self, message: str | None = None, *, digest: str = "") -> None:
        if not message and digest:
            message = (
                f"a result is recorded, but blob {digest} is missing from the blob store: put it back under that name"
            )
        super().__init__(message)
        self.digest = digest


class RunRewound(FixIt):
    """Records of RUN that are remembered are gone from etcd, as by a restore: see `leasekeeper runs verify RUN --anchor FILE`.

    ``have`` is the number of the last record in etcd, ``known`` that of a record known to have been there. No step is begun.
    """

    def __init__(self, message: str | None = None, *, run: str = "", have: int = 0, known: int = 0) -> None:
        super().__init__(said(type(self), message, run=run))
        self.run = run
        self.have = have
        self.known = known


class AnchorSkewed(FixIt):
    """A record's time cannot be right by the clock of an anchor: set the clocks of both machines right.

    ``anchor`` names the anchor; ``have`` is the hash of record ``seq``, whose time it is, and ``known`` that of the one before it
    which the anchor remembers, both in hex.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        anchor: str = "",
        run: str = "",
        seq: int = 0,
        have: str = "",
        known: str = "",
    ) -> None:
        super().__init__(message)
        self.anchor = anchor
        self.run = run
        self.seq = seq
        self.have = have
        self.known = known


# ---------------------------------------------------------------- fix: limits


class NotSerialisable(ConfigError):
    """A value cannot be written as JSON; hand over text, numbers, True, False, None, lists and dicts with text as keys.

    ``field`` is the path to the part that cannot. Nothing was recorded and nothing called.
    """


class ExportKept(ConfigError):
    """What is in the file is worth more than the new export of the run: it was left as it is; give another name."""


class RecordTooLarge(FixIt):
    """A record would be too large: record less, or keep the bulk elsewhere and record where.

    ``what`` names it, ``size`` and ``most`` are bytes. Nothing was recorded and nothing called.
    """

    def __init__(self, message: str | None = None, *, what: str = "", size: int = 0, most: int = 0) -> None:
        told = f"{what} has {size} bytes, {most} at most: record less, or keep the bulk elsewhere and record where"
        super().__init__(message or (told if what else None))
        self.what = what
        self.size = size
        self.most = most


class RunTooLong(FixIt):
    """RUN has as many records as a run may have: let a new run go on from its last checkpoint.

    ``records`` is how many there are, ``most`` how many there may be.
    """

    def __init__(self, message: str | None = None, *, run: str = "", records: int = 0, most: int = 0) -> None:
        super().__init__(said(type(self), message, run=run))
        self.run = run
        self.records = records
        self.most = most


class TransactionTooLarge(FixIt):
    """What shall be committed at once is too large: commit fewer or smaller checkpoints and results together.

    ``size`` and ``most`` are bytes. Nothing was written.
    """

    def __init__(self, message: str | None = None, *, size: int = 0, most: int = 0) -> None:
        super().__init__(message)
        self.size = size
        self.most = most


# ---------------------------------------------------------------- fix: misuse


class IllegalTransition(FixIt):
    """Phase NAME cannot go from HAVE to WANTED: declare the transition, or take a legal one.

    ``legal`` are the phases that may follow ``have``.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        name: str = "",
        have: str = "",
        wanted: str = "",
        legal: Sequence[str] = (),
    ) -> None:
        super().__init__(said(type(self), message, name=name, have=have, wanted=wanted))
        self.name = name
        self.have = have
        self.wanted = wanted
        self.legal = tuple(legal)


class RunFinished(FixIt):
    """RUN is finished and takes no more steps: begin a run with another id."""

    def __init__(self, message: str | None = None, *, run: str = "") -> None:
        super().__init__(said(type(self), message, run=run))
        self.run = run


class RunPruned(FixIt):
    """RUN is finished and its records were pruned: begin a run with another id, or of this one a new generation."""

    def __init__(self, message: str | None = None, *, run: str = "") -> None:
        super().__init__(said(type(self), message, run=run))
        self.run = run


class StepsOpen(Misuse):
    """Steps of RUN have no outcome, and its block was left as if all was done: let a step's error out of the block, or ask again.

    ``steps`` are their keys, the first of them if there are many. The run is not finished; the next life has to ask for them.
    """

    def __init__(self, message: str | None = None, *, run: str = "", steps: tuple[str, ...] = ()) -> None:
        super().__init__(said(type(self), message, run=run))
        self.run = run
        self.steps = steps


class StepBusy(Misuse):
    """Step STEP of RUN is being done already, in another thread or task: give each step a key of its own."""

    def __init__(self, message: str | None = None, *, run: str = "", step: str = "") -> None:
        super().__init__(said(type(self), message, run=run, step=step))
        self.run = run
        self.step = step
