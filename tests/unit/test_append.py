"""Adding to a run on a model of etcd: what lands, in which order, after which interruption, and who is told what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasekeeper.errors import StaleToken
from leasekeeper.protocol import halt as halts
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.append import Appended, Entry, Fenced, Unexpected, append
from leasekeeper.protocol.halt import halt
from leasekeeper.protocol.head import Head
from leasekeeper.protocol.keys import write_epoch
from leasekeeper.protocol.plan import Call, Cause, Fault, Kind, Plan
from leasekeeper.protocol.receipt import Draft, Writer, digest
from leasekeeper.run_errors import CorruptState, RunHalted, RunRewound
from tests.model.runs import Crew, Owner, entry, records, stored_head
from tests.model.world import KEYS, Strike


def lost() -> Fault:
    """A reply that never came."""
    return Fault(Kind.UNKNOWN, text="the reply was lost", operation="Txn")


def unsent() -> Fault:
    """A connection that could not be made."""
    return Fault(Kind.NOT_SENT, text="no connection", operation="Txn")


STRIKES = [
    pytest.param(Strike(KeyboardInterrupt, "none"), id="Ctrl-C before it is sent"),
    pytest.param(Strike(KeyboardInterrupt, "now"), id="Ctrl-C after it was done"),
    pytest.param(Strike(KeyboardInterrupt, "late"), id="Ctrl-C and it comes late"),
    pytest.param(Strike(asyncio.CancelledError, "now"), id="cancelled after it was done"),
    pytest.param(Strike(lost, "none"), id="the request was lost"),
    pytest.param(Strike(lost, "now"), id="the reply was lost"),
    pytest.param(Strike(lost, "late"), id="the request comes late"),
    pytest.param(Strike(unsent, "none"), id="no connection"),
]


def texts(owner: Owner) -> list[str]:
    """The notes that are recorded, in order."""
    return [receipt.step for receipt in owner.records() if receipt.kind == "note"]


def calls(run: Any) -> int:
    """How many calls a plan made."""
    return sum(isinstance(operation, Call) for operation in run.trace)


def result(run: Any) -> Appended:
    """What an append that succeeded came to."""
    assert isinstance(run.result, Appended)
    return run.result


def go_on(owner: Owner, plan: Plan[Any], operation: Any) -> Any:
    """Perform what a plan wants from here on, to its end: its result."""
    try:
        while True:
            operation = plan.send(owner.client._perform(operation))
    except StopIteration as done:
        return done.value


def writes(owner: Owner, key: bytes, value: bytes, **more: Any) -> Entry:
    """Something that also writes a key, which must not be there."""
    return entry(owner, value.decode(), puts=lambda _: (m.put(key, value),), expects=((key, 0),), **more)


# ---------------------------------------------------------------- together


def test_what_comes_meanwhile_shares_the_next_transaction() -> None:
    """The first goes alone, at once; all that came while it was under way go together, in the order in which they came."""
    owner = Owner()
    runs = Crew(owner.client).run([append(owner.log, entry(owner, f"n{index}")) for index in range(9)])
    assert texts(owner) == [f"n{index}" for index in range(9)]
    assert sum(map(calls, runs)) == 2
    appended = [result(run) for run in runs]
    assert [each.seq for each in appended] == list(range(2, 11))
    assert len({each.revision for each in appended[1:]}) == 1


def test_a_transaction_stays_within_what_etcd_takes() -> None:
    """Of a hundred entries with three keys each, none is sent that has more operations or compares than etcd allows."""
    owner = Owner()
    sent: list[Any] = []

    def one(index: int) -> Plan[Any]:
        keys = [b"%d/%d" % (index, part) for part in range(3)]
        made = entry(
            owner,
            f"n{index}",
            puts=lambda _: tuple(m.put(key, b"") for key in keys),
            expects=tuple((key, 0) for key in keys[:2]),
            intent=True,
        )
        return append(owner.log, made)

    runs = Crew(owner.client).run([one(index) for index in range(100)])
    sent = [operation.request for run in runs for operation in run.trace if isinstance(operation, Call)]
    assert all(max(len(each.compare), len(each.success), len(each.failure)) <= 128 for each in sent)
    assert len(texts(owner)) == 100
    assert len(sent) <= 5


def test_large_ones_do_not_go_together() -> None:
    """Entries that are more than 512 KiB together are sent in several transactions; a large one alone is sent."""
    owner = Owner()
    plans = [append(owner.log, entry(owner, f"n{index}", size=200 * 1024)) for index in range(5)]
    plans.append(append(owner.log, entry(owner, "n5", size=600 * 1024)))
    runs = Crew(owner.client).run(plans)
    assert sum(map(calls, runs)) == 4
    assert texts(owner) == [f"n{index}" for index in range(6)]


def test_two_that_write_one_key_do_not_go_together() -> None:
    """Etcd refuses a transaction that writes a key twice: the second waits for the next one, and is told what stands there."""
    owner = Owner()
    plans = [
        append(owner.log, made) for made in (entry(owner, "n"), writes(owner, b"k", b"a"), writes(owner, b"k", b"b"))
    ]
    plans.append(append(owner.log, entry(owner, "z")))
    first, one, other, last = Crew(owner.client).run(plans)
    assert first.error is one.error is last.error is None
    assert isinstance(other.error, Unexpected)
    assert other.error.found is not None
    assert other.error.found.value == b"a"
    assert texts(owner) == ["n", "a", "z"]


def test_one_that_does_not_fit_harms_no_other() -> None:
    """A key that is not as one entry expects is told to that one; those that were sent with it land."""
    owner = Owner()
    owner.world.store.put(b"k", b"somebody else's")
    plans = [
        append(owner.log, made)
        for made in (entry(owner, "n"), entry(owner, "a"), writes(owner, b"k", b"b"), entry(owner, "c"))
    ]
    runs = Crew(owner.client).run(plans)
    assert [type(run.error) for run in runs] == [type(None), type(None), Unexpected, type(None)]
    assert texts(owner) == ["n", "a", "c"]


def test_one_that_cannot_be_written_harms_no_other() -> None:
    """An entry whose own part fails is told so; whoever leads at that moment, and those beside it, are not."""

    def broken(head: Head) -> Head:
        raise ZeroDivisionError

    owner = Owner()
    plans = [
        append(owner.log, made) for made in (entry(owner, "n"), entry(owner, "a"), entry(owner, "b", change=broken))
    ]
    runs = Crew(owner.client).run(plans)
    assert [type(run.error) for run in runs] == [type(None), type(None), ZeroDivisionError]
    assert texts(owner) == ["n", "a"]


# ---------------------------------------------------------------- interrupted


@pytest.mark.parametrize("strike", STRIKES)
@pytest.mark.parametrize("at", range(4))
def test_whoever_leads_is_interrupted(strike: Strike, at: int) -> None:
    """B23: at whichever operation the leader is struck, the others end without waiting for the clock; nothing is added twice.

    What came late, too, is added once or not at all.
    """
    owner = Owner()
    crew = Crew(owner.client)
    plans = [append(owner.log, entry(owner, f"n{index}")) for index in range(4)]
    runs = crew.run(plans, strikes={(0, at): strike, (1, at): strike})
    owner.world.arrive()
    landed = texts(owner)
    assert landed == sorted(set(landed))
    for index, run in enumerate(runs):
        if run.error is None:
            assert f"n{index}" in landed
        else:
            assert index < 2, "one that was not struck"
            assert isinstance(run.error, (KeyboardInterrupt, asyncio.CancelledError))
    assert crew.waited_s == 0


@pytest.mark.parametrize("strike", STRIKES)
def test_after_an_interruption_the_next_one_goes_on(strike: Strike) -> None:
    """What an interrupted owner sent is settled before anything else is added, whether or not it was done."""
    owner = Owner()
    crew = Crew(owner.client)
    crew.run([append(owner.log, entry(owner, "n0"))], strikes={(0, 0): strike})
    (run,) = crew.run([append(owner.log, entry(owner, "n1"))])
    owner.world.arrive()
    assert run.error is None
    assert result(run).seq == len(owner.records())
    assert texts(owner)[-1] == "n1"


def test_an_intent_that_surely_was_not_sent_is_given_up() -> None:
    """While etcd is away nothing is begun: an intent comes back with what etcd's silence is, and nothing of it lands later."""
    owner = Owner()
    owner.world.down = True
    (run,) = Crew(owner.client).run([append(owner.log, entry(owner, "begin", intent=True))])
    assert isinstance(run.error, Fault)
    owner.world.down = False
    (run,) = Crew(owner.client).run([append(owner.log, entry(owner, "next"))])
    assert texts(owner) == ["next"]


def test_evidence_waits_for_etcd_and_intents_beside_it_do_not() -> None:
    """While etcd is away an outcome is kept and sent until it lands; an intent that came with it is refused meanwhile."""
    owner = Owner()
    world = owner.world
    world.down = True
    back_s = world.now_s + 60
    original = world.pass_time

    def pass_time(seconds: float) -> None:
        original(seconds)
        if world.now_s >= back_s:
            world.down = False

    world.pass_time = pass_time  # type: ignore[method-assign]
    plans = [append(owner.log, entry(owner, "outcome")), append(owner.log, entry(owner, "begin", intent=True))]
    outcome, intent = Crew(owner.client).run(plans)
    assert outcome.error is None
    assert isinstance(intent.error, Fault)
    assert texts(owner) == ["outcome"]


def test_without_authority_that_can_come_back_nothing_is_sent_for_ever() -> None:
    """Once the lease is over, evidence that does not reach etcd is given up as well."""
    owner = Owner()
    owner.world.down = True
    owner.alive = False
    (run,) = Crew(owner.client).run([append(owner.log, entry(owner, "outcome"))])
    assert isinstance(run.error, Fault)


def test_what_nobody_wants_any_more_is_given_up() -> None:
    """An entry with an end is sent until then, and not as long as authority can come back."""
    owner = Owner()
    owner.world.down = True
    began_s = owner.world.now_s
    (run,) = Crew(owner.client).run([append(owner.log, entry(owner, "failed", until=began_s + 5))])
    assert isinstance(run.error, Fault)
    assert owner.world.now_s - began_s < 20


def test_who_leads_and_wants_no_more_hands_over() -> None:
    """Whoever leaves while etcd is away is not kept by what others still want sent: one of those leads from then on."""
    owner = Owner()
    world = owner.world
    world.down = True
    until_s, back_s = world.now_s + 5, world.now_s + 90
    original = world.pass_time

    def pass_time(seconds: float) -> None:
        original(seconds)
        world.down = world.now_s < back_s
        if leaver.gi_frame is None:
            left_s.append(world.now_s)

    left_s: list[float] = []
    world.pass_time = pass_time  # type: ignore[method-assign]
    leaver: Any = append(owner.log, entry(owner, "failed", until=until_s))
    left, kept = Crew(owner.client).run([leaver, append(owner.log, entry(owner, "outcome"))])
    assert isinstance(left.error, Fault)
    assert left_s[0] < until_s + 20
    assert kept.error is None
    assert texts(owner) == ["outcome"]


def test_a_keeper_that_is_closed_ends_everything() -> None:
    """After a lost reply and a closed keeper, whoever adds something is told at once, however often: nobody spins."""
    owner = Owner()
    closed = Strike(lambda: Fault(Kind.NOT_SENT, Cause.CLOSED, "the keeper is closed"))
    crew = Crew(owner.client)
    crew.run([append(owner.log, entry(owner, "n0"))], strikes={(0, 0): Strike(KeyboardInterrupt, "late")})
    for _ in range(2):
        (run,) = crew.run([append(owner.log, entry(owner, "n1"))], strikes={(0, 0): closed})
        assert isinstance(run.error, Fault)
        assert calls(run) == 1


def test_a_full_etcd_takes_no_intent_and_gets_the_outcome_once_there_is_room() -> None:
    """NOSPACE: an intent is refused at once; evidence waits, since a full etcd keeps leases, and lands when it is disarmed."""
    owner = Owner()
    world = owner.world
    world.store.full = True
    (refused,) = Crew(owner.client).run([append(owner.log, entry(owner, "begin", intent=True))])
    assert isinstance(refused.error, Fault)
    assert refused.error.cause is Cause.NO_SPACE
    original, made_s = world.pass_time, world.now_s + 30

    def pass_time(seconds: float) -> None:
        original(seconds)
        world.store.full = world.store.full and world.now_s < made_s

    world.pass_time = pass_time  # type: ignore[method-assign]
    plans = [append(owner.log, entry(owner, "outcome")), append(owner.log, entry(owner, "begin", intent=True))]
    outcome, intent = Crew(owner.client).run(plans)
    assert outcome.error is None
    assert isinstance(intent.error, Fault)
    assert texts(owner) == ["outcome"]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_order_and_any_interruptions(data: st.DataObject) -> None:
    """B5, B23, B24: whoever goes on, whoever is struck where: what was told to have landed has, once; nobody waits for ever."""
    owner = Owner()
    count = data.draw(st.integers(2, 5))
    struck = data.draw(
        st.dictionaries(
            st.tuples(st.integers(0, count - 1), st.integers(0, 5)),
            st.sampled_from([each.values[0] for each in STRIKES]),
            max_size=4,
        )
    )
    kinds = data.draw(st.lists(st.sampled_from(["evidence", "intent", "key"]), min_size=count, max_size=count))

    def made(index: int, kind: str) -> Entry:
        if kind == "key":
            return writes(owner, b"shared", f"n{index}".encode())
        return entry(owner, f"n{index}", intent=kind == "intent")

    plans = [append(owner.log, made(index, kind)) for index, kind in enumerate(kinds)]
    crew = Crew(owner.client)
    runs = crew.run(plans, lambda able: data.draw(st.sampled_from(able)), struck)  # type: ignore[arg-type]
    owner.world.arrive()
    (end,) = crew.run([append(owner.log, entry(owner, "end"))])
    assert end.error is None
    landed = texts(owner)
    assert len(set(landed)) == len(landed)
    for index, run in enumerate(runs):
        if run.error is None:
            told = result(run)
            assert told.stored == owner.world.store.keys[owner.keys.record(told.seq)].value
            assert f"n{index}" in landed
        elif isinstance(run.error, (Unexpected, Fault)):
            assert kinds[index] != "evidence", "evidence was given up"
    assert crew.waited_s == 0


# ---------------------------------------------------------------- refused


def raise_epoch(owner: Owner) -> None:
    """What `leasekeeper epoch bump` does."""
    owner.world.store.put(KEYS.epoch, write_epoch(3, at=0.0, by="an operator"))


def lose_head(owner: Owner) -> None:
    """A head that is gone."""
    owner.world.store.delete(owner.keys.head)


def damage_head(owner: Owner) -> None:
    """A head of which one byte was changed."""
    value = bytearray(owner.world.store.keys[owner.keys.head].value)
    value[40] ^= 1
    owner.world.store.put(owner.keys.head, bytes(value))


def rewind_head(owner: Owner) -> None:
    """A head as it was before."""
    head = stored_head(owner.world, owner.keys)
    owner.world.store.put(owner.keys.head, head._replace(seq=head.seq - 1).stored())


@pytest.mark.parametrize(
    ("happens", "error"),
    [
        (Owner.leave, Fenced),
        (raise_epoch, StaleToken),
        (lose_head, RunRewound),
        (damage_head, CorruptState),
        (rewind_head, RunRewound),
    ],
)
def test_what_ends_everything(happens: Callable[[Owner], None], error: type[BaseException]) -> None:
    """Once the claim is gone, the epoch raised, or the head not to be trusted, nothing is added; each gets its own error."""
    owner = Owner()
    happens(owner)
    before = dict(owner.world.store.keys)
    plans = [append(owner.log, entry(owner, f"n{index}", intent=index == 1)) for index in range(3)]
    runs = Crew(owner.client).run(plans)
    (later,) = Crew(owner.client).run([append(owner.log, entry(owner, "later"))])
    told = [run.error for run in (*runs, later)]
    assert [type(each) for each in told] == [error] * 4
    assert len({id(each) for each in told}) == 4
    assert {key: kv.value for key, kv in owner.world.store.keys.items()} == {
        key: kv.value for key, kv in before.items()
    }


def operator_notes(owner: Owner) -> None:
    """An operator adds a record, as `resolve` does."""
    head = stored_head(owner.world, owner.keys)
    name = owner.keys.name
    writer = Writer(
        workflow=name.workflow,
        id=name.id,
        gen=head.gen,
        namespace_id="ns",
        token=0,
        claim="",
        holder="op",
        life="1" * 32,
    )
    draft = Draft("note", "operator", b"{}", owner.client.ctx.new_nonce())
    stored = writer.seal(draft, seq=head.seq + 1, prev=head.hash, at_ms=1)
    owner.world.store.put(owner.keys.record(head.seq + 1), stored)
    owner.world.store.put(owner.keys.head, head.after(head.seq + 1, digest(stored), 1, len(stored)).stored())


def test_a_head_that_an_operator_moved_is_followed() -> None:
    """An operator's record in between: the owner adds behind it, and nobody is told."""
    owner = Owner()
    operator_notes(owner)
    runs = Crew(owner.client).run([append(owner.log, entry(owner, f"n{index}")) for index in range(3)])
    assert [run.error for run in runs] == [None] * 3
    assert texts(owner) == ["operator", "n0", "n1", "n2"]


# ---------------------------------------------------------------- halts


@pytest.mark.parametrize("scope", ["*", "order/*", "order/o-*", "order/o-1"])
def test_a_halt_stops_intents_alone(scope: str) -> None:
    """B15: with a halt that covers the run, no intent lands; evidence that was sent together with it does."""
    owner = Owner()
    owner.client.do(halt(owner.client.ctx, scope, "stop", owner.world.now_s + 5))
    kinds = [False, True, False, True]
    plans = [append(owner.log, entry(owner, f"n{index}", intent=kind)) for index, kind in enumerate(kinds)]
    runs = Crew(owner.client).run(plans)
    assert [type(run.error) for run in runs] == [type(None), RunHalted, type(None), RunHalted]
    assert texts(owner) == ["n0", "n2"]
    assert runs[1].error.reason == "stop"  # type: ignore[union-attr]
    assert runs[1].error.scope == scope  # type: ignore[union-attr]


def test_a_halt_stops_intents_that_wait_behind_the_one_it_has_stopped() -> None:
    """B15: what comes while the first is being refused is refused as well; what is known of a halt lets nothing pass it."""
    owner = Owner()
    owner.client.do(halt(owner.client.ctx, "order/*", "stop", owner.world.now_s + 5))
    plans = [append(owner.log, entry(owner, f"n{index}", intent=True)) for index in range(3)]
    runs = Crew(owner.client).run(plans)
    assert [type(run.error) for run in runs] == [RunHalted] * 3
    assert texts(owner) == []


@pytest.mark.parametrize("scope", ["orders/*", "order/o-11", "order/o-1x*", "other/o-1"])
def test_a_halt_of_others_stops_nothing(scope: str) -> None:
    """B15: other runs go on under a halt that does not cover them, at the cost of one more transaction."""
    owner = Owner()
    owner.client.do(halt(owner.client.ctx, scope, "stop", owner.world.now_s + 5))
    (run,) = Crew(owner.client).run([append(owner.log, entry(owner, "n", intent=True))])
    assert run.error is None
    assert calls(run) == 2


def test_a_halt_that_comes_while_others_are_known_stops_the_intent() -> None:
    """B15: an intent that goes on under halts of others compares that none was put since."""
    owner = Owner()
    ctx = owner.client.ctx
    owner.client.do(halt(ctx, "other/*", "stop", owner.world.now_s + 5))
    plan = append(owner.log, entry(owner, "n", intent=True))
    operation: Any = next(plan)
    operation = plan.send(owner.client._perform(operation))  # refused: it reads the halts
    owner.client.do(halt(ctx, "order/*", "now", owner.world.now_s + 5))
    with pytest.raises(RunHalted):
        go_on(owner, plan, operation)
    assert texts(owner) == []


def test_a_halt_whose_record_cannot_be_read_halts() -> None:
    """B15: a damaged halt stops its scope all the same."""
    owner = Owner()
    owner.world.store.put(KEYS.root.encode() + b"halt/order%2F*", b"\xff not a halt")
    (run,) = Crew(owner.client).run([append(owner.log, entry(owner, "n", intent=True))])
    assert isinstance(run.error, RunHalted)


def test_more_halts_than_are_looked_at_halt_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """B15: where not every halt was read, one of the others may cover the run: nothing begins."""
    monkeypatch.setattr(halts, "HALTS_MAX", 3)
    owner = Owner()
    for index in range(4):
        owner.client.do(halt(owner.client.ctx, f"other/{index}", "stop", owner.world.now_s + 5))
    (run,) = Crew(owner.client).run([append(owner.log, entry(owner, "n", intent=True))])
    assert isinstance(run.error, RunHalted)
    assert "more than the 3" in run.error.reason


def test_a_copy_that_comes_after_a_halt_was_lifted_is_known_again() -> None:
    """B24: sent, not answered, refused for a halt, and then taken when it came late: what landed is told as landed, once."""
    owner = Owner()
    ctx, world = owner.client.ctx, owner.world
    plans = [
        append(owner.log, made)
        for made in (entry(owner, "n"), writes(owner, b"k", b"evidence"), entry(owner, "i", intent=True))
    ]
    n, evidence, intent = plans
    operation: Any = next(n)
    bells = [next(evidence), next(intent)]
    assert all(bells)
    go_on(owner, n, operation)
    operation = evidence.send(True)  # leads: sends both
    request = operation.request
    operation = evidence.throw(lost())
    owner.client.do(halt(ctx, "*", "stop", world.now_s + 5))
    while not isinstance(operation, Call):
        operation = evidence.send(None)
    operation = evidence.send(owner.client._perform(operation))  # refused: the intent is halted
    world.store.delete(*(kv.key for kv in world.store.below(KEYS.root.encode() + b"halt/")))
    world.store.answer(request)  # the first copy comes now
    assert go_on(owner, evidence, operation).seq == 3
    with pytest.raises(RunHalted):
        intent.send(True)
    assert [receipt.step for receipt in owner.records()][1:] == ["n", "evidence", "i"]


# ---------------------------------------------------------------- nothing remembered decides


def test_whatever_is_remembered_wrongly_writes_nothing_wrong() -> None:
    """A19, B10: each field of the log's head, changed in memory: what is added is right, or nothing is and an error says so."""
    wrong: dict[str, Any] = {
        "gen": 7,
        "seq": 40,
        "hash": "f" * 64,
        "status": "quarantined",
        "token": 3,
        "holder": "nobody",
        "life": "0" * 32,
        "at_ms": 1,
        "done": 99,
        "restarts": 99,
        "doubts": ("x",),
        "due": ("x",),
        "key_id": "k9",
        "size": 1,
    }
    assert wrong.keys() == set(Head._fields)
    for name, value in [*wrong.items(), ("seq", 0), ("seq", 1)]:
        owner = Owner()
        Crew(owner.client).run([append(owner.log, entry(owner, "n0"))])
        right = owner.log.head
        owner.log.head = right._replace(**{name: value})
        (run,) = Crew(owner.client).run([append(owner.log, entry(owner, "n1", intent=True))])
        now = stored_head(owner.world, owner.keys)
        if run.error is None:
            assert texts(owner) == ["n0", "n1"]
            kept = {field: getattr(now, field) for field in wrong if field not in ("seq", "hash", "at_ms", "size")}
            assert kept == {field: getattr(right, field) for field in kept}, name
        else:
            assert isinstance(run.error, RunRewound), name
            assert now == right


def test_another_claim_or_epoch_than_the_own_writes_nothing() -> None:
    """A19: with another claim or epoch in memory the transaction is refused."""
    for wrong in (replace(Owner().mine, create_revision=1), replace(Owner().mine, key=b"another")):
        owner = Owner()
        owner.log.mine = wrong
        (run,) = Crew(owner.client).run([append(owner.log, entry(owner, "n"))])
        assert isinstance(run.error, Fenced)
        assert texts(owner) == []
    owner = Owner()
    owner.log.epoch = replace(owner.log.epoch, stored=b"another")
    (run,) = Crew(owner.client).run([append(owner.log, entry(owner, "n"))])
    assert isinstance(run.error, StaleToken)


def test_two_owners_never_write_both() -> None:
    """A31: of two lives that each believe to own the run, the one whose claim is gone adds nothing."""
    old = Owner()
    old.leave()
    new = Owner(old.world)
    (stale,) = Crew(old.client).run([append(old.log, entry(old, "old"))])
    (fresh,) = Crew(new.client).run([append(new.log, entry(new, "new"))])
    assert isinstance(stale.error, Fenced)
    assert fresh.error is None
    assert [receipt.kind for receipt in records(new.world, new.keys)] == ["opened", "opened", "note"]
