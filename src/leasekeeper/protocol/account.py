"""What a run's records say of its steps and checkpoints: the witness beside the keys that say where each of them stands.

``step/<key>``, ``ck/<name>`` and the head's status change only together with a record. But somebody who may write to etcd can
delete such a key, or put an older one back, digest and all; the records they cannot change so: each is named by the next one,
and the last by a signature or an anchor. So whoever takes over folds the records, all of which it reads anyway, into this
account, adds what it records itself, and never acts on a key that the account contradicts.

What is remembered here never decides alone, either: where it and etcd disagree, the records are read on, and if they still do,
nothing is done. So what is remembered wrongly refuses, and permits nothing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from leasekeeper.protocol.head import Head
from leasekeeper.protocol.receipt import FIRST_PREV

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasekeeper.protocol.log import Entry
    from leasekeeper.protocol.pointer import Pointer
    from leasekeeper.protocol.receipt import Glance
    from leasekeeper.protocol.run_keys import RunKeys
    from leasekeeper.run_records import Receipt, StepState

__all__ = ["Account", "Stand"]


class Stand(NamedTuple):
    """Where a step stands by the records.

    ``since_ms`` is when its first intent was recorded, ``last`` the number of the last record that counts; ``memo``: what was
    begun may be repeated.
    """

    state: StepState = "intent"
    intent: int = 0
    outcome: int = 0
    attempts: int = 0
    since_ms: int = 0
    last: int = 0
    memo: bool = False

    def agrees(self, pointer: Pointer) -> bool:
        """Whether the step's own key says the same."""
        if self.state == "done":  # by which intent and at which attempt, its outcome says
            return (self.state, self.outcome) == (pointer.state, pointer.outcome)
        mine = (self.state, self.intent, self.outcome, self.attempts)
        return mine == (pointer.state, pointer.intent, pointer.outcome, pointer.attempts)

    def after(self, kind: str, seq: int, at_ms: int, applied: object) -> Stand:
        """Once this record of the step is there; ``applied`` is what one of an error or an operator says."""
        if seq <= self.last:
            return self
        match kind:
            case "intent" | "before":
                return Stand("intent", seq, 0, self.attempts + 1, self.since_ms or at_ms, seq, kind == "before")
            case "outcome":
                return self._replace(state="done", outcome=seq, last=seq)
            case "conflict" | "in_doubt":
                return self._replace(state=kind, outcome=seq, last=seq)
            case "resolved" if applied is True:
                return self._replace(state="done", outcome=seq, last=seq)
            case "resolved" | "raised" if applied is False:
                return self._replace(state="cleared", outcome=0, last=seq)
        return self


UNKNOWN = Stand()


class Account:
    """The account of a run's records: as far as ``end``, the number and hash of the last one in it.

    Of a step that is done it keeps the number of its outcome alone. Several threads may add the same record: it counts once.
    """

    __slots__ = ("_checkpoints", "_done", "_head", "_steps", "end")

    def __init__(self, end: tuple[int, str] = (0, FIRST_PREV)) -> None:
        self.end = end
        self._steps: dict[str, Stand | int] = {}
        self._checkpoints: dict[bytes, int] = {}
        self._head = Head()
        # Outcomes that were only glanced at.
        self._done = 0

    def __len__(self) -> int:
        """How many steps stand somewhere."""
        return len(self._steps)

    def behind(self, head: Head) -> bool:
        """Whether others have added records that are not in it."""
        return self.end[0] < head.seq

    def stand(self, step: str) -> Stand | None:
        """Where a step stands; None: nowhere, it was never begun."""
        stand = self._steps.get(step)
        return Stand("done", outcome=stand, last=stand) if isinstance(stand, int) else stand

    def open(self) -> list[str]:
        """The steps that were begun, may not be repeated, and have no outcome."""
        return [step for step, at in self._not_done() if at.state == "intent" and not at.memo]

    def doubts(self) -> list[str]:
        """The steps that wait for an operator; all of them, where the head names the first."""
        return [step for step, at in self._not_done() if at.state == "in_doubt"]

    def _not_done(self) -> list[tuple[str, Stand]]:
        return [(step, at) for step, at in self._steps.copy().items() if not isinstance(at, int)]

    def checkpoint(self, key: bytes) -> int:
        """The number of the record that a checkpoint, by its key, was last written with; 0: never."""
        return self._checkpoints.get(key, 0)

    # ------------------------------------------------------------ adding

    def glanced(self, seq: int, plain: Glance) -> None:
        """The next record, one that a glance at was enough; whoever adds it sets `end` in the end."""
        kind, text, at_ms = plain
        # A step's name is seldom more than its letters between quotes.
        step = text[1:-1].decode() if b"\\" not in text else json.loads(text)
        if kind == "outcome":
            self._steps[step] = seq
            self._done += 1
        elif step not in self._steps:
            self._steps[step] = Stand("intent", seq, 0, 1, at_ms, seq, kind == "before")
        else:
            self._moved(step, kind, seq, at_ms, None)
        if self._head.doubts:
            self._head = self._head.settled(step)

    def add(self, keys: RunKeys, receipt: Receipt) -> None:
        """The next record, read and checked."""
        data = receipt.data
        told = data.get("checkpoint") if receipt.kind == "outcome" else data
        if receipt.kind in ("checkpoint", "phase", "outcome") and isinstance(told, dict) and "name" in told:
            self._wrote(keys.checkpoint(str(told["name"])), receipt.seq)
        self._moved(receipt.step, receipt.kind, receipt.seq, receipt.at_ms, data.get("applied"))
        self._head = _folded(self._head, receipt)
        self.end = receipt.seq, receipt.hash

    def landed(self, keys: RunKeys, entries: Sequence[Entry], head: Head) -> None:
        """What one has recorded oneself, up to this head; left out where others have added something before it."""
        first = head.seq + 1 - len(entries)
        if first != self.end[0] + 1:
            return
        prefix = keys.checkpoints
        for seq, entry in enumerate(entries, first):
            for key, _ in entry.expects:
                if key.startswith(prefix):
                    self._wrote(key, seq)
            draft = entry.draft
            applied = json.loads(draft.data).get("applied") if draft.kind == "raised" else None
            self._moved(draft.step, draft.kind, seq, head.at_ms, applied)
        self.end = head.seq, head.hash

    def _wrote(self, checkpoint: bytes, seq: int) -> None:
        self._checkpoints[checkpoint] = max(seq, self._checkpoints.get(checkpoint, 0))

    def _moved(self, step: str, kind: str, seq: int, at_ms: int, applied: object) -> None:
        now = self._steps.get(step, UNKNOWN)
        if isinstance(now, int) and kind == "resolved" and applied is True:
            self._steps[step] = max(now, seq)  # an operator has given a result in place of one that is nowhere
        if not step or isinstance(now, int):
            return  # a step that is done stays so
        after = now.after(kind, seq, at_ms, applied)
        if after is not now:
            self._steps[step] = after.outcome if after.state == "done" else after

    # ------------------------------------------------------------ right after all records were read

    def contradicts(self, head: Head) -> str:
        """What a head says that the records do not, or nothing."""
        mine = self._head
        pairs: tuple[tuple[str, Any, Any], ...] = (
            ("the run is", head.status, mine.status),
            ("the steps in doubt are", head.doubts, mine.doubts),
            ("so many steps are done:", head.done, mine.done + self._done),
            ("the generation is", head.gen, mine.gen),
        )
        told = next((each for each in pairs if each[1] != each[2]), None)
        return "" if told is None else f"it says that {told[0]} {told[1]!r}, and by the records it is {told[2]!r}"


def _folded(head: Head, receipt: Receipt) -> Head:
    """What becomes of a head with a record, as far as a record tells."""
    step, head = receipt.step, head._replace(gen=receipt.gen)
    match receipt.kind:
        case "in_doubt":
            return head.in_doubt(step)
        case "intent" | "before":
            return head.settled(step)
        case "outcome":
            return head.settled(step).one_more()
        case "resolved" if step:
            head = head.settled(step)
            return head.one_more() if receipt.data.get("applied") is True and "instead" not in receipt.data else head
        case "resolved" if receipt.data.get("rewound"):
            return head  # the end of the records was given up for lost
        case "resolved":
            return head._replace(status="in_doubt" if head.doubts else "running")
        case "quarantined" | "finished":
            return head._replace(status=receipt.kind)
    return head
