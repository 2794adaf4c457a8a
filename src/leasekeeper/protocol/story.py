"""What happened in a run, told from its records alone: whose lives it had, what became of each step, what went wrong.

A fold over records in their order, for people who were woken up. It tells what records say and decides nothing; what a record
lacks, or has in another form than it should, is passed over, since others can still be told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leasekeeper.run_records import Receipt

__all__ = ["Life", "Misfortune", "StepStory", "Story"]

# Of a kind of thing so many are remembered, the latest: more does not fit on a screen.
KEPT_MAX = 50
BEGUN = ("intent", "before")


@dataclass(slots=True)
class Life:
    """One incarnation: who it was, from which record to which. ``end`` is how it ended, as far as it could say so itself.

    ``after`` is the token of the one that it took over from, 0 for the first. ``error`` is the type of the error that it ended
    with, "" for none.
    """

    number: int
    life: str
    holder: str
    token: int
    host: str
    pid: int
    after: int
    first: int
    last: int
    began_ms: int
    last_ms: int
    end: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Misfortune:
    """An error that was raised, by a step or (``step`` empty) by the block around all steps. ``kind`` is its type."""

    seq: int
    at_ms: int
    step: str
    life: int
    what: str
    kind: str = ""
    applied: bool | None = None


@dataclass(slots=True)
class StepStory:
    """What became of one step. ``begun`` is the record of its last intent, ``settled`` the one that says how it stands.

    ``bare``: it is done, and this is why its result could not be recorded. ``seen`` is what its preflight saw last, None where
    there was none to ask.
    """

    key: str
    memo: bool = False
    state: str = "intent"
    effect: str = ""
    helps: str = ""
    idem: str = ""
    attempts: int = 0
    begun: int = 0
    begun_ms: int = 0
    life: int = 0
    settled: int = 0
    why: str = ""
    adopted: bool = False
    about: Any = None
    bare: str = ""
    seen: Any = None


@dataclass(slots=True)
class Story:
    """The whole of it: `add` each record in order. ``last`` is the last record's number, ``said`` are operators' words."""

    gen: int = 0
    last: int = 0
    began_ms: int = 0
    last_ms: int = 0
    lives: list[Life] = field(default_factory=list)
    steps: dict[str, StepStory] = field(default_factory=dict)
    errors: list[Misfortune] = field(default_factory=list)
    drifts: list[Receipt] = field(default_factory=list)
    notes: list[Receipt] = field(default_factory=list)
    said: list[Receipt] = field(default_factory=list)
    alerted: list[Receipt] = field(default_factory=list)
    restarts: int = 0
    finished: bool = False
    quarantined: bool = False

    def add(self, receipt: Receipt) -> None:
        """The next record."""
        self.gen, self.last, self.last_ms = receipt.gen, receipt.seq, receipt.at_ms
        self.began_ms = self.began_ms or receipt.at_ms
        if receipt.kind == "opened":
            self._opened(receipt)
        elif self.lives and self.lives[-1].life == receipt.life:
            self._goes_on(self.lives[-1], receipt)
        if receipt.step and receipt.kind != "alerted":
            self._step(receipt)
        self._run(receipt)

    @property
    def doubts(self) -> list[StepStory]:
        """The steps that wait for an operator."""
        return [step for step in self.steps.values() if step.state == "in_doubt"]

    @property
    def open_steps(self) -> list[StepStory]:
        """The steps that were begun, and of which no record says how they ended."""
        return [step for step in self.steps.values() if step.state == "intent"]

    @property
    def bare_steps(self) -> list[StepStory]:
        """The steps that are done, and whose result could not be recorded: whoever asks for it is told so, each time."""
        return [step for step in self.steps.values() if step.bare]

    @property
    def conflicts(self) -> list[StepStory]:
        """The steps that somebody else had applied."""
        return [step for step in self.steps.values() if step.state == "conflict"]

    def life_of(self, number: int) -> Life | None:
        """An incarnation by its number, from 1."""
        return self.lives[number - 1] if 0 < number <= len(self.lives) else None

    def _goes_on(self, life: Life, receipt: Receipt) -> None:
        life.last, life.last_ms = receipt.seq, receipt.at_ms
        if receipt.kind != "alerted":
            stops = {"in_doubt": "stopped, in doubt", "conflict": "stopped by a conflict"}
            life.end = stops.get(receipt.kind, "")

    def _opened(self, receipt: Receipt) -> None:
        data = receipt.data
        before = data.get("previous")
        token = before.get("token") if isinstance(before, dict) else None
        self.restarts = _whole(data.get("restarts"))
        self.lives.append(
            Life(
                number=len(self.lives) + 1,
                life=receipt.life,
                holder=receipt.holder,
                token=receipt.token,
                host=_text(data.get("host")),
                pid=_whole(data.get("pid")),
                after=int(token) if isinstance(token, str) and token.isascii() and token.isdigit() else 0,
                first=receipt.seq,
                last=receipt.seq,
                began_ms=receipt.at_ms,
                last_ms=receipt.at_ms,
            )
        )

    def _step(self, receipt: Receipt) -> None:
        data = receipt.data
        step = self.steps.setdefault(receipt.step, StepStory(receipt.step))
        match receipt.kind:
            case "intent" | "before":
                self._begun(step, receipt)
            case "outcome":
                step.state, step.settled, step.adopted = "done", receipt.seq, data.get("adopted") is True
                refused = data.get("refused")
                step.bare = (_text(refused.get("why")) or "it is not said why") if isinstance(refused, dict) else ""
            case "in_doubt" | "conflict":
                step.state, step.settled = receipt.kind, receipt.seq
                step.why = _text(data.get("why")) or "somebody else had applied it before this run did"
                step.seen = data.get("pre", step.seen)
            case "resolved":
                step.state = "done" if data.get("applied") is True else "cleared"
                step.settled, step.bare = receipt.seq, ""
            case "raised":
                applied = data.get("applied")
                if applied is False:
                    step.state, step.settled = "cleared", receipt.seq
                self._raised(receipt, applied if isinstance(applied, bool) else None)
            case "drift":
                _keep(self.drifts, receipt)
            case _:
                pass

    def _begun(self, step: StepStory, receipt: Receipt) -> None:
        data = receipt.data
        step.memo = receipt.kind == "before"
        step.state, step.begun, step.begun_ms, step.settled, step.why = "intent", receipt.seq, receipt.at_ms, 0, ""
        step.attempts += 1
        step.life = len(self.lives)
        step.effect, step.helps, step.idem = (_text(data.get(name)) for name in ("effect", "helps", "idem"))
        step.about, step.seen = data.get("about"), data.get("pre")

    def _raised(self, receipt: Receipt, applied: bool | None = None) -> None:
        kind, text = _text(receipt.data.get("type")), _text(receipt.data.get("text"))
        what = f"{kind}: {text}" if text else kind
        _keep(self.errors, Misfortune(receipt.seq, receipt.at_ms, receipt.step, len(self.lives), what, kind, applied))

    def _run(self, receipt: Receipt) -> None:
        match receipt.kind:
            case "failed":
                self._raised(receipt)
                self._ended(f"failed: {self.errors[-1].what}", self.errors[-1].kind)
            case "finished":
                self.finished = True
                self._ended("finished")
            case "quarantined":
                self.quarantined = True
                self._ended("quarantined")
            case "resolved":
                lifted = not receipt.step and not receipt.data.get("rewound")
                self.quarantined = self.quarantined and not lifted
                _keep(self.said, receipt)
            case "note":
                _keep(self.notes, receipt)
            case "alerted":
                _keep(self.alerted, receipt)
            case _:
                pass

    def _ended(self, how: str, error: str = "") -> None:
        if self.lives:
            self.lives[-1].end, self.lives[-1].error = how, error


def _keep(kept: list[Any], one: object) -> None:
    kept.append(one)
    del kept[:-KEPT_MAX]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: object) -> int:
    return value if type(value) is int else 0
