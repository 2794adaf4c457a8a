"""The judge of runs finds what is wrong: each promise is broken on purpose, by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.authority import Authority
from leasekeeper.protocol.conduct import Alarm
from leasekeeper.protocol.halt import halt
from leasekeeper.protocol.head import Head
from leasekeeper.protocol.receipt import Draft, Writer, digest, plain
from leasekeeper.testing.sim import RunWorld, Setting, Violation
from leasekeeper.testing.sim.invariants import Hold
from leasekeeper.testing.sim.keeper import KEYS
from leasekeeper.testing.sim.runs.outside import Request
from leasekeeper.testing.sim.runs.policies import POLICIES, Script, StepPlan
from leasekeeper.timing import Timing

BY_NAME = {policy.name: policy for policy in POLICIES}
STEP = "0.0/bare"


class Scene:
    """A world in which nothing happens by itself, with one run whose records are put by hand."""

    def __init__(self, policy: str = "bare", *, anchored: bool = False) -> None:
        self.world = RunWorld(Setting(1, only=(), workload="runs"))
        self.plan = StepPlan(STEP, BY_NAME[policy], "it")
        old = self.world.scripts[0]
        self.script = Script(old.keys, ((self.plan,),), attended=False, anchored=anchored, budget=10)
        self.run = self.script.run
        self.world.scripts = (self.script, *self.world.scripts[1:])
        self.judge = self.world.runs
        self.judge._scripts[self.run] = self.script
        self.judge._steps[self.run, STEP] = self.plan
        self.store = self.world.cluster.store
        self.head = Head()
        self.nonces = 0
        self.hold = self.owner()
        self.life = "a"

    def owner(self) -> Hold:
        """A claim on the run, and who holds it."""
        keeper = self.world.replicas[0].keeper
        lease_id, now_s = self.world.number(), keeper.process.now()
        self.store.perform(pb.LeaseGrantRequest(ID=lease_id, TTL=10))
        session = keeper.table.make(lease_id, Timing(ttl=10.0), now_s)
        slot = session.occupy(self.script.lease, 0, KEYS.claim(self.script.lease, lease_id))
        slot.nonce = f"{lease_id:x}"
        slot.record = json.dumps({"nonce": slot.nonce}).encode()
        slot.create_revision = self.store.put(slot.key, slot.record, lease_id)
        made = slot.create_revision
        authority = Authority(slot, token=made, create_revision=made, timing=session.timing, now_s=now_s)
        return Hold(self.world.number(), keeper.process, keeper, authority)

    def write(self, kind: str, data: dict[str, Any] | None = None, step: str = "", **odd: Any) -> None:
        """One more record of the owner's, with the head that names it."""
        self.nonces += 1
        writer = Writer(
            workflow=self.script.keys.name.workflow,
            id=self.script.keys.name.id,
            gen=1,
            namespace_id="0" * 32,
            token=odd.get("token", self.hold.authority.token),
            claim=odd.get("claim", self.hold.authority.slot.nonce),
            holder="r0",
            life=odd.get("life", self.life),
        )
        seq = odd.get("seq", self.head.seq + 1)
        draft = Draft(kind, step, plain(data or {}), odd.get("nonce", f"{self.nonces:032x}"))
        stored = writer.seal(draft, seq=seq, prev=odd.get("prev", self.head.hash), at_ms=0)
        self.head = self.head.after(seq, digest(stored), 0, len(stored))
        puts = (m.put(self.script.keys.record(seq), stored), m.put(self.script.keys.head, self.head.stored()))
        self.store.perform(pb.TxnRequest(success=puts))

    def begun(self, attempt: int = 1, key: str = "k") -> None:
        """An intent."""
        self.write("intent", {"attempt": attempt, "idem": key}, STEP)

    def request(self, **odd: Any) -> Request:
        """A call of the step."""
        given: dict[str, Any] = {
            "argument": "it",
            "key": "k",
            "attempt": 1,
            "life": self.life,
            "hold": self.hold,
            "token": 1,
        }
        given |= odd
        return Request(run=self.run, step=self.plan, **given)

    def violation(self, does: Callable[[], object]) -> str:
        """The promise that is broken by what is done."""
        with pytest.raises(Violation) as caught:
            does()
        return caught.value.promise


@pytest.fixture
def scene() -> Scene:
    """A run that was opened."""
    made = Scene()
    made.write("opened")
    return made


# ---------------------------------------------------------------- records


@pytest.mark.parametrize(
    ("odd", "promise"),
    [
        ({"seq": 3}, "records"),
        ({"prev": "1" * 64}, "records"),
        ({"seq": 1}, "records"),
        ({"nonce": f"{1:032x}"}, "records"),
        ({"claim": "another"}, "fence"),
        ({"life": "b"}, "fence"),
        ({"token": 2**44 + 5}, "fence"),
    ],
)
def test_a_record_that_may_not_be_is_found(scene: Scene, odd: dict[str, Any], promise: str) -> None:
    """A5, B24: a hole, another chain, one written over, one written twice; of no owner, of an older life, under another epoch."""
    assert scene.violation(lambda: scene.write("note", **odd)) == promise


def test_a_record_of_a_claim_that_is_gone_is_found(scene: Scene) -> None:
    """A19: whoever writes owns the run at that moment."""
    scene.store.delete(scene.hold.key)
    assert scene.violation(lambda: scene.write("note")) == "fence"


def test_an_operator_needs_no_claim(scene: Scene) -> None:
    """An operator's record is of nobody's life."""
    scene.begun()
    scene.judge.called(scene.request(), None)
    scene.write("in_doubt", {"intent": 2}, STEP)
    scene.write("resolved", {"applied": False, "result": None}, STEP, claim="", life="c", token=0)
    assert scene.judge.books.of(scene.run).step(STEP).state == "cleared"
    scene.begun(attempt=2)


def test_an_intent_under_a_halt_is_found(scene: Scene) -> None:
    """B15: and none is any more when it is lifted; evidence lands in either case."""
    operator = scene.world.person._keeper
    scene.world.fortune._now(halt(operator.ctx, "*", "stop", operator.process.now() + 5.0))
    scene.write("note")
    assert scene.violation(scene.begun) == "halt"
    scene.world.person.lift_all()
    assert not scene.judge.books.halts


@pytest.mark.parametrize(
    ("kind", "data"),
    [("outcome", {"intent": 2}), ("raised", {"intent": 9, "applied": None}), ("in_doubt", {"intent": 1})],
)
def test_what_was_never_begun_does_not_end(scene: Scene, kind: str, data: dict[str, Any]) -> None:
    """A4: no outcome, no error and no doubt without an intent before it."""
    assert scene.violation(lambda: scene.write(kind, data, STEP)) == "order"


def test_a_second_key_and_a_second_outcome_are_found(scene: Scene) -> None:
    """A18: a step has one idempotency key, and one outcome."""
    result = {"id": "x", "argument": "it"}
    scene.begun()
    scene.world.outside._apply(scene.run, STEP, "r0", "it", result)
    scene.write("outcome", {"intent": 2, "result": result}, STEP)
    assert scene.violation(lambda: scene.write("outcome", {"intent": 2, "result": result}, STEP)) == "order"
    other = Scene()
    other.write("opened")
    other.begun()
    assert other.violation(lambda: other.begun(2, key="another")) == "one key"


def test_nothing_is_begun_after_the_end(scene: Scene) -> None:
    """A run that is finished stays so."""
    scene.write("finished")
    assert scene.violation(scene.begun) == "order"


def test_states_count_on_by_one(scene: Scene) -> None:
    """B9: a checkpoint that was committed twice from one state is found."""
    scene.write("checkpoint", {"name": "state", "n": 1})
    assert scene.violation(lambda: scene.write("checkpoint", {"name": "state", "n": 1})) == "states"


# ---------------------------------------------------------------- calls


def test_a_call_without_an_intent_or_an_owner_is_found(scene: Scene) -> None:
    """A4: whoever calls has recorded that, in this life and for this attempt, and owns the run."""
    assert scene.violation(lambda: scene.judge.called(scene.request(), None)) == "order"
    scene.begun()
    scene.judge.called(scene.request(), None)
    assert scene.violation(lambda: scene.judge.called(scene.request(attempt=2), None)) == "order"
    assert scene.violation(lambda: scene.judge.called(scene.request(key="other"), None)) == "one key"
    assert scene.violation(lambda: scene.judge.called(scene.request(argument="else"), None)) == "arguments"
    scene.store.delete(scene.hold.key)
    assert scene.violation(lambda: scene.judge.called(scene.request(), None)) == "gate"


def test_a_call_of_what_is_in_doubt_is_found(scene: Scene) -> None:
    """A16: nothing is called before somebody has said what became of it."""
    scene.begun()
    scene.judge.called(scene.request(), None)
    scene.write("in_doubt", {"intent": 2}, STEP)
    assert scene.violation(lambda: scene.judge.called(scene.request(), None)) == "doubt"


def test_a_needless_doubt_is_found(scene: Scene) -> None:
    """A life that has begun a step for the first time, and never called it, knows that it was not applied."""
    scene.begun()
    assert scene.violation(lambda: scene.write("in_doubt", {"intent": 2}, STEP)) == "doubt"


@pytest.mark.parametrize("age_s", [None, 1.1])
def test_a_preflight_that_is_old_or_was_not_asked_is_found(age_s: float | None) -> None:
    """A14, A15: it is asked before every call, and counts for a second here."""
    scene = Scene("probed")
    scene.write("opened")
    scene.begun()
    scene.judge.called(scene.request(), 0.9)
    assert scene.violation(lambda: scene.judge.called(scene.request(), age_s)) == "preflight"


def test_a_second_application_is_found(scene: Scene) -> None:
    """B28: by the ledger of the outside world; what somebody else applies does not count, nor what a memo asks."""
    apply = scene.world.outside._apply
    scene.world.outside.stranger_applies(scene.run, STEP)
    apply(scene.run, STEP, "r0", "it")
    assert scene.violation(lambda: apply(scene.run, STEP, "r1", "it")) == "at most once"
    memo = Scene("asked")
    for who in ("r0", "r1"):
        memo.world.outside._apply(memo.run, STEP, who, "it")


@pytest.mark.parametrize("anchored", [False, True])
def test_a_restore_takes_the_memory_of_those_without_an_anchor(anchored: bool) -> None:
    """A21: where etcd has lost an intent, only what an anchor remembers keeps a bare step from being applied again."""
    scene = Scene(anchored=anchored)
    before = scene.store.snapshot()
    scene.write("opened")
    scene.begun()
    scene.store.restore(before)
    scene.judge.restored()
    apply = scene.world.outside._apply
    apply(scene.run, STEP, "r0", "it")
    if anchored:
        assert scene.violation(lambda: apply(scene.run, STEP, "r1", "it")) == "at most once"
    else:
        apply(scene.run, STEP, "r1", "it")


# ---------------------------------------------------------------- what is told


def test_a_result_that_nothing_came_to_is_found(scene: Scene) -> None:
    """B12: what is recorded, and what is returned, is what was applied, for these arguments."""
    nothing = {"id": "none", "argument": "it"}
    scene.begun()
    assert scene.violation(lambda: scene.write("outcome", {"intent": 2, "result": nothing}, STEP)) == "results"
    assert scene.violation(lambda: scene.judge.returned(scene.run, scene.plan, "it", nothing, "r0")) == "results"
    scene.world.outside._apply(scene.run, STEP, "r0", "it", nothing)
    scene.judge.returned(scene.run, scene.plan, "it", nothing, "r0")
    wrong = lambda: scene.judge.returned(scene.run, scene.plan, "else", nothing, "r0")  # noqa: E731
    assert scene.violation(wrong) == "arguments"


def test_a_doubt_that_is_told_twice_is_found(scene: Scene) -> None:
    """A16: once it is recorded that somebody was told, nobody is told again."""
    scene.begun()
    scene.judge.called(scene.request(), None)
    scene.write("in_doubt", {"intent": 2}, STEP)
    told = Alarm("in_doubt", STEP, "why", 2)
    scene.judge.alarm(scene.run, told, scene.hold, heard=True)
    scene.write("alerted", {"kind": "in_doubt"}, STEP)
    again = lambda: scene.judge.alarm(scene.run, told, scene.hold, heard=True)  # noqa: E731
    assert scene.violation(again) == "alerts"


def test_a_run_that_was_finished_without_a_step_is_found(scene: Scene) -> None:
    """What is finished was done, all of it."""
    scene.head = scene.head._replace(status="finished")
    scene.write("finished")
    assert scene.violation(scene.judge.check_finished) == "results"


def test_who_waits_for_a_person_has_told_somebody(scene: Scene) -> None:
    """Settled is what is finished, or in doubt and told, where nobody decides on it."""
    assert not scene.judge.settled(scene.script)
    scene.head = scene.head.in_doubt(STEP)
    scene.write("note")
    assert not scene.judge.settled(scene.script)
    scene.head = scene.head.told(STEP)
    scene.write("note")
    assert scene.judge.settled(scene.script)
    scene.head = scene.head._replace(status="finished")
    scene.write("note")
    assert scene.judge.settled(scene.script)


def test_runs_that_never_end_are_named() -> None:
    """Liveness: a run under a halt that nobody lifts comes to no end, and that is seen."""
    world = RunWorld(Setting(1, only=(), workload="runs", seconds=10.0))
    world.person.lift_all = lambda: None  # type: ignore[method-assign]
    world.timeline.after(0.1, lambda: world.person.halt("*", 1e6))
    outcome = world.run()
    assert outcome.violation is not None
    assert outcome.violation.promise == "liveness"
    assert "not at an end" in outcome.violation.what
