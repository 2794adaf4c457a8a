"""Each guard of a run by itself: the moment at which it alone stands between a mistake and the record, or the world."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from http.client import RemoteDisconnected
from typing import Any

import pytest

from leasekeeper import (
    AsyncKeeper,
    Conflict,
    Drift,
    InDoubt,
    Keeper,
    LeaseLost,
    LeaseSuspended,
    Observed,
    RunHalted,
    Timing,
    effect,
)
from leasekeeper.errors import LeasekeeperError, StaleToken
from leasekeeper.protocol.chain import verify_chain
from leasekeeper.protocol.epoch import bump
from leasekeeper.run_errors import CorruptState, RunRewound
from leasekeeper.runs.alert import exit_code
from leasekeeper.runs.effect import Step
from leasekeeper.runs.run import Run, Running
from leasekeeper.signing import Keyring
from leasekeeper.testing import FaultProxy, failpoints
from leasekeeper.testing.outside import Trouble, call
from tests.crashes import KEY, POLICIES, TEST_S, WORKFLOW, Bench, bare, body, lates, normal, once
from tests.raw import Key
from tests.support import until

pytestmark = pytest.mark.timeout(TEST_S)


def life(bench: Bench, policy: str, moments: dict[str, Callable[[Run], object]]) -> Any:
    """A life of ``bench.it``, in which these things happen at these points: its result, or what stopped it."""
    found: list[Run] = []
    with bench.keeper() as keeper, ExitStack() as stack:
        running = _run(keeper, bench)
        for point, moment in moments.items():
            stack.enter_context(failpoints.Failpoint(point, partial(_now, moment, found), on=running))
        try:
            with running as run:
                found.append(run)
                return body(run, POLICIES[policy], bench.world.url)
        except LeasekeeperError as stopped:
            return stopped


def _run(keeper: Keeper, bench: Bench, **asked: Any) -> Running:
    return keeper.run(WORKFLOW, id=bench.it, signer=KEY, input={"order": bench.it}, **asked)


def _do(run: Run, bench: Bench, found: list[Run]) -> None:
    found.append(run)
    body(run, POLICIES["bare"], bench.world.url)


def _now(moment: Callable[[Run], object], found: list[Run]) -> None:
    moment(found[0])


def head_of(bench: Bench) -> Key:
    """The run's head as etcd has it."""
    (head,) = bench.raw.keys(f"leasekeeper/{bench.namespace}/run/{WORKFLOW}/{bench.it}/head")
    return head


def kinds(bench: Bench) -> list[str]:
    """What is recorded, whether or not a head tells of it."""
    root = f"leasekeeper/{bench.namespace}/run/{WORKFLOW}/{bench.it}/r/"
    texts = [kv.value.decode() for kv in sorted(bench.raw.keys(root), key=lambda kv: kv.key)]
    return [text.rpartition('"kind":"')[2].partition('"')[0] for text in texts]


# ---------------------------------------------------------------- compares of the transaction


@pytest.mark.parametrize(("at", "left"), [("intent:send", ["opened"]), ("outcome:send", ["opened", "intent"])])
def test_the_claim_is_compared(at: str, left: list[str], bench: Bench) -> None:
    """Fence compare, C02: The claim goes in the last moment and nobody succeeds: nothing is recorded any more."""
    assert isinstance(life(bench, "bare", {at: lambda _: bench.bury()}), LeaseLost)
    assert bench.story(bench.it).kinds == left


@pytest.mark.parametrize("how", ["removed", "set back"])
def test_the_head_is_compared(how: str, bench: Bench) -> None:
    """Head compare, A5 A30: The head goes, or goes back, during the call: no record is put on top of that, which is told."""
    before: list[Key] = []

    def tamper(_: Run) -> None:
        key = before[0].key
        if how == "removed":
            assert bench.raw.delete(key)
        else:
            bench.raw.put(key, before[0].value.decode())

    stopped = life(bench, "bare", {"intent:send": lambda _: before.append(head_of(bench)), "outcome:send": tamper})
    assert isinstance(stopped, RunRewound)
    assert kinds(bench) == ["opened", "intent"]
    assert [hint.kind for hint in lates(bench.raw, bench.namespace, bench.it)] == ["outcome"]
    assert bench.numbers("bare", bench.it) == (1, 1)


@pytest.mark.parametrize(("at", "left"), [("intent:send", ["opened"]), ("outcome:send", ["opened", "intent"])])
def test_the_epoch_is_compared(at: str, left: list[str], bench: Bench) -> None:
    """Epoch, G2: The epoch is raised by an operator in the last moment: an owner of the old one records nothing any more."""

    def raise_epoch(run: Run) -> None:
        core = run.lease._core
        core.run(bump(core.ctx, core.until()))

    stopped = life(bench, "bare", {at: raise_epoch})
    assert isinstance(stopped, (StaleToken, LeaseLost)), stopped
    assert kinds(bench) == left
    called = at == "outcome:send"
    assert bench.numbers("bare", bench.it)[1] == called
    assert [hint.kind for hint in lates(bench.raw, bench.namespace, bench.it)] == ["outcome"] * called


def test_halts_are_compared(bench: Bench) -> None:
    """Halt compare, B15: A halt that comes in the last moment before the intent: no intent after its revision, and no call."""
    revisions: list[int] = []

    def halt(_: Run) -> None:
        with bench.keeper() as keeper:
            revisions.append(keeper.halt(f"{WORKFLOW}/{bench.it}", "stop"))

    assert isinstance(life(bench, "bare", {"intent:send": halt}), RunHalted)
    assert revisions
    assert "intent" not in bench.story(bench.it).kinds
    assert bench.numbers("bare", bench.it) == (0, 0)


def test_evidence_lands_under_a_halt(bench: Bench) -> None:
    """B15: A halt that comes during the call stops no outcome: what happened is recorded, and the next step is not begun."""

    def halt(_: Run) -> None:
        with bench.keeper() as keeper:
            keeper.halt("*", "stop")

    result = life(bench, "bare", {"effect:return": halt})
    assert normal(result, bench.it)["status"] == "paid"
    assert "outcome" in bench.story(bench.it).kinds


def test_a_record_is_only_created(bench: Bench) -> None:
    """A5: Where the next record would stand somebody has put something: it is not overwritten."""

    def squat(_: Run) -> None:
        bench.raw.put(f"leasekeeper/{bench.namespace}/run/{WORKFLOW}/{bench.it}/r/{3:012d}", "mine")

    assert isinstance(life(bench, "bare", {"outcome:send": squat}), LeasekeeperError)
    assert [hint.kind for hint in lates(bench.raw, bench.namespace, bench.it)] == ["outcome"]
    root = f"leasekeeper/{bench.namespace}/run/{WORKFLOW}/{bench.it}/r/"
    assert [kv.value for kv in bench.raw.keys(root)][2:] == [b"mine"]


def test_where_a_step_stands_is_compared(bench: Bench) -> None:
    """Step compare, A3: Somebody scribbles over where the step stands during the call: that is told, and not written over."""
    key = f"leasekeeper/{bench.namespace}/run/{WORKFLOW}/{bench.it}/step/act"
    stopped = life(bench, "bare", {"outcome:send": lambda _: bench.raw.put(key, "scribble")})
    assert isinstance(stopped, CorruptState)
    assert [kv.value for kv in bench.raw.keys(key)] == [b"scribble"]
    assert kinds(bench)[:2] == ["opened", "intent"]
    assert "outcome" not in kinds(bench)


def test_an_operators_word_in_the_last_moment(bench: Bench) -> None:
    """A16: An operator says what it came to just before the owner records what it finds: the word stands alone."""
    holds = [False]
    charge = once(bench.world.url)

    @charge.verify
    def paid(step: Step, subject: str, result: Any) -> bool:
        return holds[0]

    def say() -> None:
        with bench.keeper() as desk:
            run = f"{WORKFLOW}/{bench.it}"
            desk.resolve(run, "act", applied=True, evidence="the ledger", result="said", signer=KEY)

    with bench.keeper() as keeper:
        with pytest.raises(InDoubt), _run(keeper, bench) as run:
            run.do("act", charge, bench.it)
        holds[0] = True
        running = _run(keeper, bench)
        with failpoints.Failpoint("outcome:send", say, on=running) as moment, running as run:
            assert run.do("act", charge, bench.it) == "said"
        assert moment.struck
    assert bench.numbers("probe", bench.it) == (1, 1)
    assert bench.story(bench.it).kinds.count("resolved") == 1
    assert "outcome" not in bench.story(bench.it).kinds


# ---------------------------------------------------------------- before the call


def test_the_gate_is_asked_after_the_intent(bench: Bench) -> None:
    """Gate, B26 G3: Heartbeats are lost right after the intent: no call while authority is not proven, none when it is lost."""
    with FaultProxy(bench.etcd.endpoint) as proxy:
        keeper = bench.keeper(endpoint=proxy.endpoint, timing=Timing(ttl=4))
        running = _run(keeper, bench)
        found: list[Run] = []

        def cut() -> None:
            proxy.blackhole()
            until(lambda: not _passes(found[0]))
            bench.bury()
            threading.Timer(0.5, proxy.heal, kwargs={"reset": True}).start()

        with keeper, failpoints.Failpoint("intent:reply", cut, on=running), pytest.raises(LeaseLost), running as run:
            _do(run, bench, found)
    assert bench.numbers("bare", bench.it) == (0, 0)
    assert bench.story(bench.it).kinds == ["opened", "intent"]


def _passes(run: Run) -> bool:
    try:
        run.lease.check()
    except LeaseSuspended:
        return False
    return True


def test_the_preflight_is_asked_again_when_it_is_old(bench: Bench) -> None:
    """Preflight age, A15: Somebody else applies it between a slow preflight and the call: that is seen, and nothing called."""
    asked: list[float] = []

    @effect(probe=True, preflight_max_age=0.05)
    def charge(step: Step, subject: str) -> Any:
        return bare(bench.world.url)(subject)

    @charge.preflight
    def charged(step: Step, subject: str) -> Observed:
        asked.append(time.monotonic())
        found = call(bench.world.url, "GET", "/till/charges", query={"order": subject})["charges"]
        return Observed(found[0] if found else None, applied=bool(found))

    def somebody_else() -> None:
        bare(bench.world.url)(bench.it)
        time.sleep(0.1)

    with bench.keeper() as keeper:
        running = _run(keeper, bench)
        moment = failpoints.Failpoint("intent:reply", somebody_else, on=running)
        with moment, pytest.raises(Conflict), running as run:
            run.do("act", charge, bench.it)
    assert len(asked) == 2
    assert bench.numbers("bare", bench.it) == (1, 1)


def test_asked_first_nobody_takes_the_lease(bench: Bench) -> None:
    """A14 B25: Somebody has done it already: no lease is taken, no run begun, nothing called, and the conflict is signed."""
    bare(bench.world.url)(bench.it)
    doing = POLICIES["probe"].make(bench.world.url)
    with bench.keeper() as keeper, pytest.raises(Conflict) as stopped:
        _run(keeper, bench, ask_first=(doing, bench.it)).__enter__()
    assert not bench.raw.claims(bench.namespace)
    assert not bench.raw.keys(f"leasekeeper/{bench.namespace}/run/")
    assert bench.numbers("probe", bench.it) == (1, 1)
    receipt = stopped.value.receipt
    assert receipt is not None
    assert verify_chain([(1, receipt.stored)], ring=Keyring(KEY), run=(WORKFLOW, bench.it)).verified == 1
    assert exit_code(stopped.value) != 0


# ---------------------------------------------------------------- after the call


def test_a_task_cancelled_during_the_call_leaves_a_doubt(bench: Bench) -> None:
    """A13: A cancelled task knows as little as a killed process: what it called is not called again."""

    async def main() -> None:
        async def charge(subject: str) -> Any:
            await asyncio.to_thread(bare(bench.world.url), subject)
            task.cancel()
            await asyncio.Event().wait()

        async def life_of_it() -> None:
            async with keeper.run(WORKFLOW, id=bench.it, signer=KEY, input={"order": bench.it}) as run:
                await run.do("act", charge, bench.it)

        async with AsyncKeeper(bench.etcd.endpoint, namespace=bench.namespace) as keeper:
            task = asyncio.create_task(life_of_it())
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert isinstance(life(bench, "bare", {}), InDoubt)
    assert bench.numbers("bare", bench.it) == (1, 1)
    assert not bench.raw.claims(bench.namespace)


def test_only_a_postcondition_that_holds_is_an_outcome(bench: Bench) -> None:
    """Verify, B12: The call returned and what it promised is not so: no outcome is recorded, and somebody is told, once."""
    alerts: list[Any] = []

    @effect
    def charge(step: Step, subject: str) -> Any:
        return bare(bench.world.url)(subject)

    @charge.verify
    def paid(step: Step, subject: str, result: Any) -> Any:
        return "no, but this is no empty text"

    for _ in range(2):
        with bench.keeper() as keeper, pytest.raises(InDoubt), _run(keeper, bench, alert=alerts.append) as run:
            run.do("act", charge, bench.it)
    assert bench.numbers("bare", bench.it) == (1, 1)
    seen = bench.story(bench.it).kinds
    assert "outcome" not in seen
    assert len(alerts) == seen.count("in_doubt") == 1


def test_a_replay_asks_whether_it_still_holds(bench: Bench) -> None:
    """Verify, A33: What was done was undone: the recorded result is not handed out as if it were true."""
    charged = life(bench, "dedupes", {})
    call(bench.world.url, "DELETE", f"/charges/{charged['id']}")
    assert isinstance(life(bench, "dedupes", {}), Drift)
    assert len(bench.counted("dedupes", bench.it)[0]) == 1


def test_a_lost_answer_of_the_callee_is_adopted(bench: Bench) -> None:
    """B12 A13: The callee has done it and its answer is lost: the caller hears of that, and the next life adopts it."""
    bench.world.trouble(Trouble("lose_reply", POLICIES["probe"].where))
    with pytest.raises(RemoteDisconnected):
        life(bench, "probe", {})
    bench.mend()
    assert normal(life(bench, "probe", {}), bench.it) == bench.undisturbed("probe")
    assert bench.numbers("probe", bench.it) == (1, 1)
    (outcome,) = bench.story(bench.it).of("outcome")
    assert outcome.data["adopted"] is True


def test_a_key_that_may_be_forgotten_is_not_sent_again(bench: Bench) -> None:
    """Dedupe key: A key so old that the callee may have forgotten it decides nothing: in doubt, and no second request."""

    @effect(dedupes=True, key_ttl=0.5)
    def charge(step: Step, subject: str) -> Any:
        return call(bench.world.url, "POST", "/charges", {"order": subject, "amount_cents": 1}, headers=step.headers())

    with bench.keeper() as keeper:
        running = _run(keeper, bench)
        interrupt = failpoints.raise_at("effect:return", KeyboardInterrupt(), on=running)
        with interrupt, pytest.raises(KeyboardInterrupt), running as run:
            run.do("act", charge, bench.it)
        time.sleep(0.5)
        with pytest.raises(InDoubt), _run(keeper, bench) as run:
            run.do("act", charge, bench.it)
    assert bench.numbers("dedupes", bench.it) == (1, 1)


def test_the_same_key_after_a_restore(bench: Bench) -> None:
    """Dedupe key, A18: Etcd was restored to before the run, and the callee was not: begun anew, it sends the key of then."""
    first = life(bench, "dedupes", {})
    for kv in bench.raw.keys(f"leasekeeper/{bench.namespace}/run/"):
        bench.raw.delete(kv.key)
    assert life(bench, "dedupes", {}) == first
    received, applied = bench.counted("dedupes", bench.it)
    assert (len(received), len(applied)) == (2, 1)
    assert received[0].key == received[1].key


def test_a_memo_is_asked_again_with_the_same_question(bench: Bench) -> None:
    """B21: Interrupted while the model answers: asked once more, with just the same request."""
    with pytest.raises(KeyboardInterrupt):
        life(bench, "memo", {"effect:return": _interrupt})
    life(bench, "memo", {})
    received, applied = bench.counted("memo", bench.it)
    assert len(received) == 2
    assert applied[0].data["digest"] == applied[1].data["digest"]
    asked = bench.story(bench.it).of("before")
    assert asked[0].data["args"] == asked[1].data["args"]
    assert [record.data["attempt"] for record in asked] == [1, 2]


def _interrupt(_: Run) -> None:
    raise KeyboardInterrupt
