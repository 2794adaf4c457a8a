"""The parts of simulated worlds of runs: the driver of conducts, and the outside world with its ledger."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from leasekeeper.errors import LeaseLost
from leasekeeper.protocol.authority import Authority
from leasekeeper.protocol.conduct import Alarm, Conduct, Gate, Invoke, Talk, Tell
from leasekeeper.protocol.log import Fenced
from leasekeeper.protocol.plan import Fault, Kind, Plan, Sleep
from leasekeeper.run_errors import NotApplied
from leasekeeper.run_records import Observed
from leasekeeper.testing.sim import RunWorld, Setting
from leasekeeper.testing.sim.interpreter import Cancelled
from leasekeeper.testing.sim.invariants import Hold
from leasekeeper.testing.sim.keeper import KEYS
from leasekeeper.testing.sim.process import Process
from leasekeeper.testing.sim.runs.conducting import Conducting, Pending, Trouble
from leasekeeper.testing.sim.runs.outside import ANSWER_S, Outside, Request
from leasekeeper.testing.sim.runs.policies import POLICIES, StepPlan
from leasekeeper.testing.sim.timeline import Timeline
from leasekeeper.timing import Timing

BY_NAME = {policy.name: policy for policy in POLICIES}


class Stage:
    """One process with a lease, and what its conducts come to."""

    def __init__(self) -> None:
        self.world = RunWorld(Setting(1, only=(), workload="runs"))
        self.keeper = self.world.replicas[0].keeper
        now_s = self.keeper.process.now()
        self.session = self.keeper.table.make(7, Timing(ttl=10.0), now_s)
        slot = self.session.occupy("run/w0/0", 0, KEYS.claim("run/w0/0", 7))
        self.authority = Authority(slot, token=5, create_revision=5, timing=self.session.timing, now_s=now_s)
        self.points: list[str] = []
        self.told: list[Any] = []
        self.ended: list[tuple[Any, BaseException | None]] = []
        self.at: dict[str, Callable[[], object]] = {}

    def conducting(self, conduct: Conduct[Any]) -> Conducting:
        """A conduct that has not begun."""
        return Conducting(
            self.keeper,
            self.authority,
            conduct,
            self._over,
            tell=self.told.append,
            alarm=self._alarm,
            passing=self._passing,
        )

    def begin(self, conduct: Conduct[Any]) -> Conducting:
        """Begin a conduct."""
        conducting = self.conducting(conduct)
        conducting.begin()
        return conducting

    def _over(self, result: Any, error: BaseException | None) -> None:
        self.ended.append((result, error))

    def _alarm(self, alarm: Alarm) -> bool:
        self.told.append(alarm)
        return True

    def _passing(self, point: str) -> None:
        self.points.append(point)
        self.at.get(point, lambda: None)()

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass."""
        timeline = self.world.timeline
        until_s = timeline.now_s + seconds
        while (next_s := timeline.next_s()) is not None and next_s <= until_s:
            timeline.step()
        timeline.now_s = until_s


def slept(seconds: float, result: object) -> Plan[object]:
    """A plan that takes some time."""
    yield Sleep(seconds)
    return result


def answered(result: Any, error: BaseException | None = None) -> Pending:
    """A call whose answer comes at once."""
    return Pending(lambda done: done(result, error))


def whole() -> Conduct[list[Any]]:
    """Every operation that there is."""
    told = Tell("called", "s", "do")
    alarm = Alarm("in_doubt", "s", "why", 1)
    yield Gate(0.0)
    yield told
    return [(yield Talk(slept(0.1, "plan"), "space")), (yield Invoke(lambda: answered(2), "effect")), (yield alarm)]


def test_every_operation_is_carried_out_and_its_points_are_passed() -> None:
    """What a conduct is sent, and the points before and after each plan and each call, in order."""
    stage = Stage()
    stage.begin(whole())
    stage.pass_time(1.0)
    assert stage.ended == [(["plan", 2, True], None)]
    assert stage.points == ["space:send", "space:reply", "effect:call", "effect:return"]
    assert [type(each) for each in stage.told] == [Tell, Alarm]


@pytest.mark.parametrize("point", ["space:send", "space:reply", "effect:call", "effect:return"])
def test_killed_at_a_point_nothing_follows(point: str) -> None:
    """A24: a process that ends at a point does nothing after it, and nobody is told of an end."""
    stage = Stage()
    conducting = stage.conducting(whole())

    def kill() -> None:
        conducting.abandon()
        stage.keeper.end()

    stage.at[point] = kill
    conducting.begin()
    stage.pass_time(1.0)
    assert stage.points[-1] == point
    assert stage.ended == []


def test_frozen_at_a_point_it_goes_on_afterwards() -> None:
    """A process that stands still at a point does what comes next when it goes on."""
    stage = Stage()
    stage.at["effect:call"] = lambda: stage.keeper.process.stop(3.0)
    stage.begin(whole())
    stage.pass_time(2.0)
    assert stage.points[-1] == "effect:call"
    stage.pass_time(2.0)
    assert stage.ended == [(["plan", 2, True], None)]


@pytest.mark.parametrize("after_s", [0.02, 0.5])
def test_cancelled_wherever_it_is(after_s: float) -> None:
    """Ctrl-C reaches a conduct in a plan and in a call; what it cleans up by is carried out."""
    stage = Stage()
    never = Pending(lambda done: None)
    seen: list[BaseException] = []

    def conduct() -> Conduct[None]:
        try:
            yield Talk(slept(0.2, None), "space")
            yield Invoke(lambda: never, "effect")
        except Cancelled as error:
            seen.append(error)
            yield Talk(slept(0.1, None), "raised")
            raise

    conducting = stage.begin(conduct())
    stage.world.timeline.after(after_s, conducting.cancel)
    stage.pass_time(2.0)
    assert len(seen) == 1
    assert stage.points[-1] == "raised:reply"
    assert [type(error) for _, error in stage.ended] == [Cancelled]
    conducting.cancel()  # it is over: nothing happens


def test_the_gate_waits_for_authority_and_tells_of_its_end() -> None:
    """SUSPENDED: it waits; proven again: it passes; LOST: LeaseLost is thrown in."""
    stage = Stage()
    stage.pass_time(6.0)
    stage.begin(whole())
    stage.pass_time(1.0)
    assert stage.points == []
    stage.session.proof_s = stage.keeper.process.now()
    stage.pass_time(8.0)
    assert len(stage.ended) == 1
    stage.authority.lose("deleted", stage.keeper.process.now())
    stage.begin(whole())
    assert [type(error) for _, error in stage.ended] == [type(None), LeaseLost]


def raising(error: BaseException) -> Conduct[None]:
    """One that fails in a plan."""

    def plan() -> Plan[None]:
        yield from ()
        raise error

    yield Talk(plan(), "intent")


def test_what_never_leaves_the_library_is_turned_into_what_users_see() -> None:
    """Fenced becomes LeaseLost, also a Fault once the lease is lost; any other is told as it is."""
    stage = Stage()
    stage.begin(raising(Fault(Kind.RETRY, text="etcd is away")))
    stage.begin(raising(Fenced("run")))
    stage.authority.lose("deleted", stage.keeper.process.now())
    stage.begin(raising(Fault(Kind.RETRY, text="etcd is away")))
    assert [type(error) for _, error in stage.ended] == [Fault, LeaseLost, LeaseLost]


# ---------------------------------------------------------------- the outside world


class Beyond:
    """An outside world and one caller."""

    def __init__(self, policy: str) -> None:
        self.timeline = Timeline(7)
        self.owns = True
        self.outside = Outside(self.timeline, lambda _: self.owns, lambda *_: None)
        self.process = Process(self.timeline, "caller", self.timeline.chance("caller"))
        self.plan = StepPlan("s", BY_NAME[policy], "it")
        self.subject = self.outside.of("run", "s")
        self.answers: list[Any] = []

    def call(self, key: str = "k", token: int = 1) -> Any:
        """Call it once, and wait: the answer, or the error."""
        hold: Hold = Hold.__new__(Hold)
        hold.process = self.process
        request = Request(
            run="run", step=self.plan, argument="it", key=key, token=token, attempt=1, life="a", hold=hold
        )
        return self.wait(self.outside.call(request))

    def wait(self, pending: Pending, seconds: float = 20.0) -> Any:
        """What comes of it."""
        self.answers.clear()
        pending.begin(lambda result, error: self.answers.append(result if error is None else error))
        self.pass_time(seconds)
        return self.answers[0] if self.answers else None

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass."""
        until_s = self.timeline.now_s + seconds
        while (next_s := self.timeline.next_s()) is not None and next_s <= until_s:
            self.timeline.step()
        self.timeline.now_s = until_s


def test_a_callee_that_knows_keys_applies_one_once_for_a_while() -> None:
    """A repeated key gives the same answer and applies nothing, until the callee has forgotten it."""
    beyond = Beyond("forgetful")
    first = beyond.call()
    beyond.timeline.now_s -= 15.0  # the wait of the first
    assert beyond.call() == first
    assert len(beyond.subject.own()) == 1
    beyond.pass_time(20.0)
    assert beyond.call() != first
    assert len(beyond.subject.own()) == 2


def test_a_callee_that_knows_nothing_applies_every_request() -> None:
    """Bare: two requests, two applications; the ledger shows it."""
    beyond = Beyond("bare")
    assert beyond.call() != beyond.call()
    assert len(beyond.subject.own()) == 2


def test_a_fence_refuses_older_tokens() -> None:
    """An older token after a newer one is surely not applied."""
    beyond = Beyond("fenced")
    beyond.call(token=7)
    assert isinstance(beyond.call(token=6), NotApplied)
    beyond.call(token=7)
    assert len(beyond.subject.own()) == 2
    assert beyond.outside.refused == 1


@pytest.mark.parametrize(
    ("trouble", "error", "applied"),
    [("erring_until_s", Trouble, 1), ("refusing_until_s", NotApplied, 0), ("lying_until_s", dict, 0)],
)
def test_troubles(trouble: str, error: type, applied: int) -> None:
    """An error after it was applied, a refusal before, and an answer that is a lie: each is told, and the ledger knows."""
    seen = False
    for number in range(20):
        beyond = Beyond("probed")
        beyond.pass_time(float(number))
        for _ in range(number):
            beyond.outside._chance.random()
        setattr(beyond.outside, trouble, 1e9)
        answer = beyond.call()
        seen = seen or (isinstance(answer, error) and len(beyond.subject.own()) == applied)
    assert seen


def test_what_gets_lost_is_told_in_time() -> None:
    """A lost request or answer is an error after the caller's own deadline."""
    beyond = Beyond("bare")
    beyond.outside.lossy_until_s = 1e9
    answers = [beyond.call() for _ in range(12)]
    lost = [each for each in answers if isinstance(each, Trouble)]
    assert 0 < len(lost) < 12
    assert ANSWER_S < 20.0


def test_a_request_outlives_its_sender_unless_a_probe_relies_on_the_contrary() -> None:
    """What a killed process has sent is applied; for a probe, only while its claim stands."""
    for policy, applied in (("bare", 1), ("probed", 0)):
        beyond = Beyond(policy)
        beyond.process.kill()
        beyond.owns = False
        assert beyond.call() is None
        assert len(beyond.subject.own()) == applied


def test_reads_are_as_strong_as_they_say() -> None:
    """A strong read sees what is there; an eventual one may see the past, and says so."""
    strong, eventual = Beyond("probed"), Beyond("once")
    for beyond in (strong, eventual):
        beyond.pass_time(10.0)
        beyond.outside.stranger_applies("run", "s")
    look = strong.wait(strong.outside.observe(strong.process, "run", strong.plan), 1.0)
    assert isinstance(look, Observed)
    assert (look.applied, look.consistency) == (True, "strong")
    look_again = partial(eventual.outside.observe, eventual.process, "run", eventual.plan)
    asked = [eventual.wait(look_again(), 0.3) for _ in range(12)]
    assert {each.consistency for each in asked} == {"eventual"}
    assert {each.applied for each in asked} == {True, False}
    assert strong.subject.own() == []


def test_a_postcondition_is_asked_of_what_was_applied() -> None:
    """Verify is true for a result of something that was applied, and for no other."""
    beyond = Beyond("probed")
    result = beyond.call()
    verify = beyond.outside.verify
    assert beyond.wait(verify(beyond.process, "run", beyond.plan, result)) is True
    assert beyond.wait(verify(beyond.process, "run", beyond.plan, {"id": "none"})) is False
