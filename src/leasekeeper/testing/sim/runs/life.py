"""One life of a run in a simulated replica: it is opened, its steps are done, some at once, and how it ended is recorded.

It is what a program with ``with keeper.run(...)`` does, and in the same order; the steps, checkpoints and phases are the
library's own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from leasekeeper.errors import StopWork
from leasekeeper.fencing import split_token
from leasekeeper.protocol import closing, phase
from leasekeeper.protocol import step as steps
from leasekeeper.protocol.conduct import Conduct, Talk, talk
from leasekeeper.protocol.gate import lost
from leasekeeper.protocol.guarded import Ownership
from leasekeeper.protocol.history import last
from leasekeeper.protocol.incarnation import Calls, Incarnation, Spec
from leasekeeper.protocol.opening import Opening, open_run
from leasekeeper.protocol.receipt import digest
from leasekeeper.protocol.recorded import Recorded
from leasekeeper.protocol.stop import entered
from leasekeeper.run_errors import Conflict, NotApplied, RunHalted, StepsOpen
from leasekeeper.runs.states import Stated
from leasekeeper.runtime.appending import Queue
from leasekeeper.testing.sim.runs.conducting import Conducting, Pending, Trouble
from leasekeeper.testing.sim.runs.outside import Request

if TYPE_CHECKING:
    from leasekeeper.protocol.checkpoint import Change
    from leasekeeper.protocol.conduct import Alarm
    from leasekeeper.protocol.opening import Opened
    from leasekeeper.protocol.pointer import Pointer
    from leasekeeper.testing.sim.invariants import Hold
    from leasekeeper.testing.sim.runs.policies import Script, StepPlan
    from leasekeeper.testing.sim.runs.replica import RunReplica

__all__ = ["Life"]

OPEN_S = 30.0
READ_S = 10.0
ENDED = "ended"
PHASES = {"begun": ["half"], "half": [ENDED]}
# How often a step is cancelled wherever it is, and when.
CANCELLED = 0.02
CANCELLED_S = (0.0, 1.0)

Over = Callable[[BaseException | None], None]
Body = Generator[list[Conduct[Any]], list[Any], None]


class _Lease:
    """What a handle on a checkpoint asks of the lease."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    def _check_not_over(self) -> None:
        if self._hold.authority.state(self._hold.process.now()).final:
            raise lost(self._hold.authority)


class Life:
    """One life. ``over`` is told what ended it, once everything it has begun has ended: None, when it finished the run."""

    def __init__(self, replica: RunReplica, script: Script, hold: Hold, over: Over) -> None:
        self._replica = replica
        self._world = replica.world
        self._keeper = replica.keeper
        self.script = script
        self.hold = hold
        self.lease = _Lease(hold)
        self._over: Over | None = over
        self._life: Incarnation = cast("Incarnation", None)
        self._body: Body | None = None
        self._under_way: list[Conducting] = []
        self._results: list[Any] = []
        self._error: BaseException | None = None
        # When each step's preflight was asked, by this process's clock.
        self._asked_s: dict[str, float] = {}
        self.number = f"{self._world.number():032x}"

    def begin(self) -> None:
        """Open the run, and go on with it."""
        self._all([self._entering()], self._opened)

    def abandon(self) -> None:
        """The process is gone."""
        self._over = None
        for each in self._under_way:
            each.abandon()
        if self._body is not None:
            self._body.close()

    def interrupt(self) -> None:
        """Cancel something of what is under way."""
        living = [each for each in self._under_way if not each.over]
        if living:
            self._replica.process.chance.choice(living).cancel()

    # ------------------------------------------------------------ its course

    def _opened(self, results: list[Any], error: BaseException | None) -> None:
        if error is not None:
            self._end(error)
            return
        self._world.tell(self._replica.name, f"{self.script.run}: goes on with it")
        self._body = self._work()
        self._step(None, None)

    def _step(self, results: list[Any] | None, error: BaseException | None) -> None:
        body = self._body
        assert body is not None
        try:
            conducts = body.send(cast("Any", results)) if error is None else body.throw(error)
        except StopIteration:
            self._all([talk(closing.finish(self._life.log), "finish")], lambda _, error: self._left(error))
        except BaseException as raised:
            if raised is not error:
                raise
            self._fail(raised)
        else:
            self._all(conducts, self._step)

    def _left(self, error: BaseException | None) -> None:
        """The block was left without an error, and this is what came of it."""
        if isinstance(error, StepsOpen):
            self._fail(error)
        else:
            self._end(error)

    def _fail(self, error: BaseException) -> None:
        """As leaving the block with an error does."""
        final = self.hold.authority.state(self._replica.process.now()).final
        if isinstance(error, (Exception, RunHalted)) and not final:
            self._keeper.run(closing.fail(self._life.log, error), lambda *_: self._end(error))
        else:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        over, self._over = self._over, None
        if over is not None:
            if self._life is not None:
                self._world.runs.life_over(self._life, self._replica.name)
            over(error)

    def _all(self, conducts: list[Conduct[Any]], then: Callable[[list[Any], BaseException | None], None]) -> None:
        """Carry conducts out at once; go on when all have ended, with the first error there was, if any."""
        self._results, self._error = [None] * len(conducts), None
        left = [len(conducts)]

        def ended(index: int, result: Any, error: BaseException | None) -> None:
            self._results[index] = result
            if error is not None and (self._error is None or isinstance(error, StopWork)):
                self._error = error
            left[0] -= 1
            if not left[0]:
                self._under_way = []
                then(self._results, self._error)

        replica = self._replica
        under_way = self._under_way = [
            Conducting(
                self._keeper,
                self.hold.authority,
                conduct,
                partial(ended, index),
                tell=lambda _: None,
                alarm=self._alarm,
                passing=replica.passing,
            )
            for index, conduct in enumerate(conducts)
        ]
        for each in under_way:
            if self._over is not None:
                each.begin()

    # ------------------------------------------------------------ opening

    def _entering(self) -> Conduct[None]:
        ctx, keys, authority = self._keeper.ctx, self.script.keys, self.hold.authority
        slot, now = authority.slot, self._replica.process.now
        mine = Ownership(self.script.lease, authority.token, slot.key, split_token(authority.token)[1])
        marks: dict[int, str] = {}
        if self.script.anchored:
            yield Talk(last(ctx, keys, now() + OPEN_S), "look")
            marks = self._world.anchors.get(self.script.run, {})
        opening = Opening(
            life=self.number,
            facts={"claim": slot.nonce, "host": "sim"},
            input=b'"what it works on"',
            marks=marks,
            budget=self.script.budget,
        )
        plan = open_run(
            ctx, keys, mine, opening, line=Queue(), alive=lambda: not authority.state(now()).final, until=now() + OPEN_S
        )
        opened: Opened = yield Talk(plan, "open")
        recorded = Recorded(0 if opened.fresh else opened.log.head.seq)
        self._life = Incarnation(opened, recorded)
        if self.script.anchored:
            self._life.anchor, self._life.drained = self._remember, True
        yield from entered(self._life)

    def _remember(self) -> None:
        head = self._life.log.head
        self._world.anchors[self.script.run] = {head.seq: head.hash}

    # ------------------------------------------------------------ work

    def _work(self) -> Body:
        state: Stated[Any] = Stated(cast("Any", self), "state", dict, None)
        yield [talk(state._read(), "checkpoint")]
        for number, stage in enumerate(self.script.stages):
            yield [self._do(plan, state) for plan in stage]
            if (state.value or {}).get("stage", -1) < number:
                yield [talk(state._commit({"stage": number}), "checkpoint")]
        yield [talk(self._move(), "phase")]

    def _move(self) -> Any:
        legal, log = phase.transitions(PHASES), self._life.log
        have = legal.first
        while have != ENDED:
            until = self._replica.process.now() + READ_S
            have, _, _ = yield from phase.now_in(log, "phase", legal, until)
            if have != ENDED:
                yield from phase.move(log, "phase", legal, legal.follow[have][0], until)

    def _do(self, plan: StepPlan, state: Stated[Any]) -> Conduct[None]:
        policy = plan.policy
        argument = plan.argument + (self._replica.release(self.script.run, plan.key) if plan.varies else "")
        spec = Spec(
            key=plan.key,
            kind=policy.kind,
            effect=policy.name,
            helps=policy.helps,
            args=digest(argument.encode()),
            key_ttl_s=policy.key_ttl_s,
            preflight_max_age_s=policy.max_age_s,
            need_s=min(policy.need_s, self.hold.authority.timing.authority_s / 2),
            settle_s=policy.settle_s,
        )

        def change(_: Any) -> Change:
            return state.change(**{plan.key: True})

        calls = Calls(
            handle=lambda pointer: pointer,
            effect=partial(self._call, plan, argument),
            preflight=partial(self._preflight, plan) if policy.preflight else None,
            verify=partial(self._verify, plan) if policy.verifies else None,
            checkpoint=change if plan.commits else None,
        )
        try:
            value = yield from steps.do(self._life, spec, calls)
        except Conflict:
            return  # somebody else has done it: the run goes on without
        except (NotApplied, Trouble):
            if self.script.swallows:
                return
            raise
        self._world.runs.returned(self.script.run, plan, argument, value, self._replica.name)

    def _call(self, plan: StepPlan, argument: str, pointer: Pointer) -> Pending:
        request = Request(
            run=self.script.run,
            step=plan,
            argument=argument,
            key=pointer.idem,
            token=self.hold.authority.token,
            attempt=pointer.attempts,
            life=self.number,
            hold=self.hold,
        )
        asked_s = self._asked_s.get(plan.key)
        self._world.runs.called(request, None if asked_s is None else self._replica.process.now() - asked_s)
        return self._world.outside.call(request)

    def _preflight(self, plan: StepPlan, _: Pointer) -> Pending:
        self._asked_s[plan.key] = self._replica.process.now()
        return self._world.outside.observe(self._replica.process, self.script.run, plan)

    def _verify(self, plan: StepPlan, _: Pointer, result: Any) -> Pending:
        return self._world.outside.verify(self._replica.process, self.script.run, plan, result)

    def _alarm(self, alarm: Alarm) -> bool:
        heard = self._world.timeline.now_s >= self._world.deaf_until_s
        self._world.runs.alarm(self.script.run, alarm, self.hold, heard=heard)
        return heard
