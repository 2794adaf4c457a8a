"""What has to be done first about the error that ended a run's last life, by its type: else the next life meets it again.

An error is recorded by the name of its type alone. One that passes by itself, as of the network, needs nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from leasekeeper.cli.text import clip

if TYPE_CHECKING:
    from leasekeeper.cli.runs.explaining import Told

__all__ = ["KNOWN", "OF_A_RECORD", "first_of_all", "passes"]

Command = tuple[str, ...]

# RUN stands for the run's name; what follows it is typed as it stands here.
VERIFY: Command = ("verify", "RUN")
ANCHORED: Command = ("verify", "RUN", "--anchor", "FILE")

_RESTORE = "what is stored of it was damaged or changed: find out what, and put just that back from a backup of etcd"
_NEWER = "a newer program has written to it: deploy that one wherever the run may go on"
_ROOM = "etcd has no room: let leasekeeper doctor tell how much, prune finished runs, compact and defragment etcd"
_GIVE_KEY = "its records are signed with a key that the last life did not have: give the program that key"
_OTHER_ARGUMENTS = (
    "the program gave a step other arguments than are recorded: give these another step key, or the recorded ones"
)
_CLOCKS = "a record's time cannot be right by an anchor's clock: set the clocks of both machines right"
_BLOB = (
    "the bytes of a result are gone from the blob store: put them back, under the digest that the error names; if they are lost,"
    " say what the step returns, by runs resolve RUN STEP --applied --result JSON --blobs DIR"
)
_LOST = "an anchor remembers later records than etcd has, as after a restore of a backup: put them back, or give them up for lost"
_STORE = "etcd was restored from a backup: raise the epoch, by leasekeeper epoch bump"
_TOO_LONG = "it has as many records as a run may have: let a new run go on from its last checkpoint"
_MIGRATION = "what is stored of its state cannot be brought to this program's version: mend the migration"
_LOGIN = "etcd did not let the last life in, or a grant was refused: give the program what the error names"
_CODE = "the program asks for what cannot be: mend its code, or what it is given, as the error says"

_FIRST: dict[str, tuple[str, tuple[Command, ...]]] = {
    "CorruptState": (_RESTORE, (VERIFY,)),
    "SchemaTooNew": (_NEWER, ()),
    "SchemaUnknown": (_MIGRATION, ()),
    "MigrationFailed": (_MIGRATION, ()),
    "SigningKeyMissing": (_GIVE_KEY, ()),
    "QuotaReserved": (_ROOM, ()),
    "OutOfSpace": (_ROOM, ()),
    "ArgumentsChanged": (_OTHER_ARGUMENTS, ()),
    "BlobMissing": (_BLOB, ()),
    "RunRewound": (_LOST, (ANCHORED, ("resolve", "RUN", "--accept-rewind", "FILE", "--evidence", "WHAT YOU SAW"))),
    "AnchorSkewed": (_CLOCKS, (ANCHORED,)),
    "StoreRewound": (_STORE, ()),
    "RunTooLong": (_TOO_LONG, ()),
    "AuthError": (_LOGIN, ()),
    "StepsOpen": ("the last life swallowed a step's error: let it out of the block, or do the step again", ()),
    **dict.fromkeys(
        (
            *("ConfigError", "Misuse", "NotSerialisable", "StepBusy", "InputChanged", "IllegalTransition"),
            *("RecordTooLarge", "TransactionTooLarge", "TooMuch", "ExportKept", "RunFinished", "RunPruned"),
        ),
        (_CODE, ()),
    ),
}
# What a life ends with that was ended from outside, or that passes; drifts, conflicts and halts have words of their own.
_PASSES = frozenset(
    {
        *(
            "RunHalted",
            "Drift",
            "Conflict",
            "InDoubt",
            "Quarantined",
            "KeyboardInterrupt",
            "SystemExit",
            "CancelledError",
        ),
        *(
            "Unavailable",
            "OutcomeUnknown",
            "LeaseSuspended",
            "NotAcquired",
            "StaleCheckpoint",
            "LeaseLost",
            "StaleToken",
        ),
        *("NotApplied", "TimeoutError", "ConnectionError", "ConnectionRefusedError", "ConnectionResetError"),
    }
)
# Of these, what the next life meets again, and what has a record of its own, by which it is told.
OF_A_RECORD = frozenset({"Drift", "Conflict", "InDoubt", "Quarantined"})
# Of a step that is done without its result, which has words of its own, too.
_OF_A_RESULT = frozenset({"NotSerialisable", "RecordTooLarge"})
# The errors of which it is known whether, and what, has to be done.
KNOWN = _PASSES | frozenset(_FIRST)


def passes(kind: str) -> bool:
    """Whether an error that ended a life, by its type, is one after which another life may just go on."""
    return kind in _PASSES - OF_A_RECORD


def first_of_all(told: Told) -> Iterator[str]:
    """What to do before the program is started again, and commands for it; nothing when the last life's end does not say."""
    lives = told.story.lives
    kind = lives[-1].error if lives else ""
    if not kind or kind in _PASSES or (kind in _OF_A_RESULT and told.story.bare_steps):
        return
    if kind not in _FIRST:
        yield f"its last life ended with {clip(kind)}: if the program or what it was given is at fault, mend that first; then"
        return
    what, commands = _FIRST[kind]
    yield f"first of all ({clip(kind)}): {what}"
    for words in commands:
        yield f"  {told.command('runs', *(told.facts.name.text if word == 'RUN' else word for word in words))}"
