"""The outside world of simulated runs, with a ledger of its own: what arrived, what was applied, what it looked like to whom.

Requests take their time there and back, get lost on either way, and arrive although their sender has died. A callee may honour
an idempotency key for a while, refuse an old token, fail after it has applied, refuse before, or say that it has applied and has
not. Reads are as strong as they are declared to be. Nothing here knows what leasekeeper has recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leasekeeper.run_errors import NotApplied
from leasekeeper.run_records import Observed
from leasekeeper.testing.sim.runs.conducting import Pending, Trouble

if TYPE_CHECKING:
    from leasekeeper.testing.sim.invariants import Hold
    from leasekeeper.testing.sim.process import Process
    from leasekeeper.testing.sim.runs.policies import StepPlan
    from leasekeeper.testing.sim.timeline import Timeline

__all__ = ["Applied", "Outside", "Request", "Subject"]

Done = Callable[[Any, BaseException | None], None]

WAY_S = (0.001, 0.15)
ANSWER_S = 4.0
LAG_S = 4.0
SETTLES_S = (0.1, 3.0)
LOSS = 0.5
STRANGER = "somebody else"


@dataclass(frozen=True, slots=True)
class Request:
    """One call as it was sent."""

    run: str
    step: StepPlan
    argument: str
    key: str
    token: int
    attempt: int
    life: str
    hold: Hold

    @property
    def who(self) -> str:
        """Who sent it."""
        return self.hold.process.name


@dataclass(frozen=True, slots=True)
class Applied:
    """One application, for good."""

    at_s: float
    who: str
    argument: str
    result: dict[str, Any]


@dataclass(slots=True)
class Subject:
    """What one step of one run acts on. ``under_way`` counts requests and effects that may still be applied."""

    applied: list[Applied] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    under_way: int = 0
    token: int = 0
    # Keys that are remembered: since when, and what was answered.
    keys: dict[str, tuple[float, dict[str, Any]]] = field(default_factory=dict)

    def own(self) -> list[Applied]:
        """What the run itself has applied."""
        return [each for each in self.applied if each.who != STRANGER]


class Outside:
    """All that runs act on. ``told`` hears of each application; ``owns`` knows whether a sender's claim still stands."""

    def __init__(
        self, timeline: Timeline, owns: Callable[[Hold], bool], told: Callable[[str, str, Subject], None]
    ) -> None:
        self._timeline = timeline
        self._owns = owns
        self._told = told
        self._chance = timeline.chance("outside")
        self.subjects: dict[tuple[str, str], Subject] = {}
        self.lossy_until_s = self.slow_until_s = self.erring_until_s = self.refusing_until_s = self.lying_until_s = 0.0
        self.refused = self.requests = 0

    def of(self, run: str, step: str) -> Subject:
        """What a step acts on."""
        return self.subjects.setdefault((run, step), Subject())

    def heal(self) -> None:
        """Nothing is wrong with it any more."""
        self.lossy_until_s = self.slow_until_s = self.erring_until_s = self.refusing_until_s = self.lying_until_s = 0.0

    def stranger_applies(self, run: str, step: str) -> None:
        """Somebody else does what the step is about to do."""
        self._apply(run, step, STRANGER, STRANGER)

    # ------------------------------------------------------------ the three questions

    def call(self, request: Request) -> Pending:
        """Have the effect applied."""
        subject, policy = self.of(request.run, request.step.key), request.step.policy
        self.requests += 1

        def begin(done: Done) -> None:
            if self._loses():
                return
            subject.under_way += 1
            self._timeline.after(self._way_s(policy.way_s), lambda: arrive(done))

        def arrive(done: Done) -> None:
            subject.under_way -= 1
            if policy.probes and not self._owns(request.hold):
                return  # what a probe may rely on: a request does not outlive its sender's claim
            self._answer(done, *self._perform(request, subject))

        return self._asked(request.hold.process, begin)

    def observe(self, process: Process, run: str, step: StepPlan) -> Pending:
        """Look whether it was applied, as strongly as the policy says."""
        subject, strong = self.of(run, step.key), step.policy.preflight == "strong"

        def look(done: Done) -> None:
            if self._timeline.now_s < self.refusing_until_s and self._chance.random() < LOSS:
                self._answer(done, Observed(None, applied=None), None)
                return
            at_s = self._timeline.now_s - (0.0 if strong else self._chance.choice((0.0, 0.0, LAG_S)))
            seen = next((each for each in subject.applied if each.at_s <= at_s), None)
            value = None if seen is None else seen.result
            self._answer(
                done, Observed(value, applied=seen is not None, consistency=step.policy.preflight or "strong"), None
            )

        return self._asked(process, lambda done: self._ask(done, look))

    def verify(self, process: Process, run: str, step: StepPlan, result: Any) -> Pending:
        """Look whether this is a result of something that was applied."""
        subject = self.of(run, step.key)

        def look(done: Done) -> None:
            self._answer(done, any(each.result == result for each in subject.applied), None)

        return self._asked(process, lambda done: self._ask(done, look))

    # ------------------------------------------------------------ what happens there

    def _perform(self, request: Request, subject: Subject) -> tuple[Any, BaseException | None]:
        policy, now_s = request.step.policy, self._timeline.now_s
        if "fences" in policy.helps:
            if request.token < subject.token:
                self.refused += 1
                return None, NotApplied("the token is an old one")
            subject.token = request.token
        if now_s < self.refusing_until_s and self._chance.random() < LOSS:
            self.refused += 1
            return None, NotApplied("not now")
        if policy.dedupes:
            known = subject.keys.get(request.key)
            if known is not None and now_s - known[0] < policy.key_ttl_s:
                return known[1], None
        if now_s < self.lying_until_s and policy.verifies and self._chance.random() < LOSS:
            return {"id": f"{request.run}/{request.step.key}#none", "argument": request.argument}, None
        result = self._do(request, subject)
        if now_s < self.erring_until_s and self._chance.random() < LOSS:
            return None, Trouble("an error after it was applied")
        return result, None

    def _do(self, request: Request, subject: Subject) -> dict[str, Any]:
        policy = request.step.policy
        number = len(subject.answers) + 1
        result = {"id": f"{request.run}/{request.step.key}#{number}", "argument": request.argument}
        subject.answers.append(result)
        if policy.dedupes:
            subject.keys[request.key] = self._timeline.now_s, result
        if policy.settle_s and self._chance.random() < 0.5:
            subject.under_way += 1

            def settles() -> None:
                subject.under_way -= 1
                self._apply(request.run, request.step.key, request.who, request.argument, result)

            self._timeline.after(self._chance.uniform(*SETTLES_S), settles)
        else:
            self._apply(request.run, request.step.key, request.who, request.argument, result)
        return result

    def _apply(self, run: str, step: str, who: str, argument: str, result: dict[str, Any] | None = None) -> None:
        subject = self.of(run, step)
        result = result or {"id": f"{run}/{step}#{who}", "argument": argument}
        subject.applied.append(Applied(self._timeline.now_s, who, argument, result))
        self._told(run, step, subject)

    # ------------------------------------------------------------ ways

    def _asked(self, process: Process, begin: Callable[[Done], None]) -> Pending:
        """A request with a deadline: what comes back later nobody waits for."""

        def start(done: Done) -> None:
            open_ = [True]

            def tell(result: Any, error: BaseException | None) -> None:
                if open_[0]:
                    open_[0] = False
                    cancel()
                    done(result, error)

            cancel = process.after(ANSWER_S, lambda: tell(None, Trouble("no answer in time")))
            begin(lambda result, error: process.run(lambda: tell(result, error)))

        return Pending(start)

    def _ask(self, done: Done, look: Callable[[Done], None]) -> None:
        if not self._loses():
            self._timeline.after(self._way_s(ANSWER_S), lambda: look(done))

    def _answer(self, done: Done, result: Any, error: BaseException | None) -> None:
        if not self._loses():
            self._timeline.after(self._chance.uniform(*WAY_S), lambda: done(result, error))

    def _loses(self) -> bool:
        return self._timeline.now_s < self.lossy_until_s and self._chance.random() < LOSS

    def _way_s(self, most_s: float) -> float:
        slow = self._timeline.now_s < self.slow_until_s or self._chance.random() < 0.02
        return self._chance.uniform(0.0, most_s) if slow else self._chance.uniform(0.0, min(most_s, WAY_S[1]))
