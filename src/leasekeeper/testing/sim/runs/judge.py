"""The judge of runs: holds what the outside world's ledger says against what etcd's records say, and both against the promises.

No step of a run is applied twice by it; none is called that was not begun, by nobody who does not own the run, not while it is
in doubt, with one idempotency key and one set of arguments, and not on a preflight that has grown old. What is recorded, and
what is returned, is what was applied. Whoever has to look is told, and not twice. In the end every run is finished, or waits for
a person who has been told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leasekeeper.protocol.history import PAGE_MAX
from leasekeeper.testing.sim.invariants import Violation
from leasekeeper.testing.sim.runs.outside import STRANGER
from leasekeeper.testing.sim.runs.records import RUNS, Books

if TYPE_CHECKING:
    from leasekeeper.protocol.conduct import Alarm
    from leasekeeper.protocol.incarnation import Incarnation
    from leasekeeper.testing.sim.invariants import Hold, Judge
    from leasekeeper.testing.sim.keyspace import Event
    from leasekeeper.testing.sim.runs.outside import Outside, Request, Subject
    from leasekeeper.testing.sim.runs.policies import Script, StepPlan
    from leasekeeper.testing.sim.store import Store

__all__ = ["RunJudge"]

ROUNDING_S = 1e-6


class RunJudge:
    """Sees etcd and the outside world, and believes nobody."""

    def __init__(
        self,
        store: Store,
        leases: Judge,
        outside: Outside,
        scripts: tuple[Script, ...],
        told: Callable[[str, str], None],
    ) -> None:
        self.books = Books(store, scripts, told)
        self._leases = leases
        self._outside = outside
        self._scripts = {script.run: script for script in scripts}
        self._steps = {(script.run, key): step for script in scripts for key, step in script.steps.items()}
        self._arguments: dict[tuple[str, str], set[str]] = {}
        self._told = told
        self._called: set[tuple[str, str, str, int]] = set()
        self.calls = self.alarms = 0

    # ------------------------------------------------------------ etcd

    def changed(self, event: Event) -> None:
        """A key was changed."""
        self.books.changed(event)
        if event.key.startswith(RUNS) and b"/r/" in event.key and event.kv is not None:
            self._look_at(event.key)

    def _look_at(self, key: bytes) -> None:
        """An outcome that has just landed tells of something that was applied."""
        run = "/".join(key[len(RUNS) :].decode().split("/")[:2])
        for name, step in self.books.of(run).steps.items():
            if step.doubted:
                self._check_doubt(run, name, *step.doubted)
                step.doubted = None
            if step.state == "done" and not step.seen:
                step.seen = True
                if self._steps[run, name].policy.kind == "do" and not step.word:
                    self._check_value(run, name, step.value, "the record of it")

    def _check_doubt(self, run: str, step: str, life: str, attempt: int, who: str) -> None:
        """Who has begun a step for the first time, and has not called it, knows that it was not applied."""
        first = list(self.books.of(run).step(step).begun) == [(life, 1)]
        if first and attempt == 1 and (run, step, life, attempt) not in self._called:
            raise Violation("doubt", f"{who} says that {step!r} of {run} is in doubt, and has never called it", (who,))

    def restored(self) -> None:
        """Etcd went back."""
        self.books.restored()

    # ------------------------------------------------------------ the outside world

    def called(self, request: Request, age_s: float | None) -> None:
        """An effect is about to be called, so long after its preflight was asked."""
        run, key, who = request.run, request.step.key, (request.who,)
        self.calls += 1
        self._told(request.who, f"{run}: calls {key}, attempt {request.attempt}")
        step = self.books.of(run).step(key)
        if not (self._leases.owns(request.hold) or self._leases.robbed(request.hold)):
            raise Violation("gate", f"{request.who} calls {key!r} of {run} and does not own it any more", who)
        if (request.life, request.attempt) not in step.begun:
            raise Violation("order", f"{request.who} calls {key!r} of {run} and has not recorded that it would", who)
        if step.state in ("in_doubt", "conflict") and self._leases.owns(request.hold):
            raise Violation("doubt", f"{request.who} calls {key!r} of {run}, which is {step.state}", who)
        self._called.add((run, key, request.life, request.attempt))
        if request.step.policy.kind == "do":
            self._check_call(request, step.keys, age_s)

    def _check_call(self, request: Request, keys: set[str], age_s: float | None) -> None:
        run, key, who = request.run, request.step.key, (request.who,)
        if request.key not in keys:
            raise Violation("one key", f"{request.who} calls {key!r} of {run} with a key that is not recorded", who)
        arguments = self._arguments.setdefault((run, key), set())
        arguments.add(request.argument)
        if len(arguments) > 1 and not self.books.of(run).forgotten:
            raise Violation("arguments", f"{key!r} of {run} is called with {sorted(arguments)}", who)
        policy = request.step.policy
        if policy.preflight and (age_s is None or age_s > policy.max_age_s + ROUNDING_S):
            age = "never asked" if age_s is None else f"{age_s:.3f} s old"
            raise Violation("preflight", f"{request.who} calls {key!r} of {run}, and its preflight is {age}", who)

    def applied(self, run: str, step: str, subject: Subject) -> None:
        """Something was applied."""
        own = subject.own()
        plan, book = self._steps[run, step], self.books.of(run)
        self._told("outside", f"{run}: {step} is applied by {subject.applied[-1].who}")
        if plan.policy.kind == "memo" or len(own) < 2:
            return
        if book.forgotten and not self._scripts[run].anchored:
            return  # etcd has lost what was begun, and nobody else remembers it
        who = tuple(each.who for each in own)
        raise Violation("at most once", f"{step!r} of {run} is applied {len(own)} times, by {', '.join(who)}", who)

    # ------------------------------------------------------------ what replicas are told

    def returned(self, run: str, plan: StepPlan, argument: str, value: Any, who: str) -> None:
        """A step has returned a value."""
        if plan.policy.kind == "memo":
            if value not in self._outside.of(run, plan.key).answers:
                raise Violation(
                    "results", f"{who} was given {value!r} for {plan.key!r} of {run}: nobody said so", (who,)
                )
            return
        self._check_value(run, plan.key, value, who)
        if value["argument"] not in (argument, STRANGER) and not self.books.of(run).forgotten:
            text = f"{who} asked {plan.key!r} of {run} for {argument!r} and was given {value['argument']!r}"
            raise Violation("arguments", text, (who,))

    def _check_value(self, run: str, step: str, value: Any, who: str) -> None:
        applied = self._outside.of(run, step).applied
        if value not in [each.result for each in applied]:
            text = f"{who} says that {step!r} of {run} came to {value!r}, and nothing such was applied"
            raise Violation("results", text, (who,))

    def alarm(self, run: str, alarm: Alarm, hold: Hold, *, heard: bool) -> None:
        """Somebody is told."""
        self.alarms += 1
        who = hold.process.name
        self._told(who, f"{run}: {alarm.kind} {alarm.step}: {'told' if heard else 'nobody hears it'}")
        book = self.books.of(run)
        if alarm.kind in ("in_doubt", "quarantined") and alarm.step in book.told and self._leases.owns(hold):
            raise Violation("alerts", f"{who} tells of {alarm.kind} of {run} once more", (who,))

    def life_over(self, life: Incarnation, who: str) -> None:
        """A life has come to its end, and everything that it has begun with it."""
        log = life.log
        if log.line.waiting() or life.busy:
            raise Violation("bounds", f"{who} has ended {log.run}, and somebody still waits in its line", (who,))
        if len(log.prepared) > 2 or len(life.recorded._window) > PAGE_MAX:
            raise Violation("bounds", f"{who} remembers more of {log.run} than it may", (who,))

    # ------------------------------------------------------------ the end

    def settled(self, script: Script) -> bool:
        """Whether a run is finished, or waits for a person who was told."""
        book, head = self.books.of(script.run), self.books.head(script.run)
        if book.tampered or (book.forgotten and script.anchored):
            return True  # nothing more is done until somebody has looked
        if head is None:
            return False
        if head.status == "finished":
            return True
        return head.status in ("in_doubt", "quarantined") and not script.attended and not head.due

    def check_finished(self) -> None:
        """What is finished was done, each step of it; where errors are swallowed, what became of each is known at least."""
        for run, script in self._scripts.items():
            book = self.books.of(run)
            if book.status != "finished" or book.tampered:
                continue
            for key, plan in script.steps.items():
                state = book.step(key).state
                harmless = ("absent", "cleared", "intent") if plan.policy.kind == "memo" else ("absent", "cleared")
                if state not in ("done", "conflict", *(harmless if script.swallows else ())):
                    raise Violation("results", f"{run} is finished, and its step {key!r} is {state}", ())
