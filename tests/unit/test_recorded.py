"""What a resumed run reads of its steps: in whatever order, and whatever is remembered wrongly, what etcd says counts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasekeeper.protocol import history
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.append import append
from leasekeeper.protocol.pointer import Pointer
from leasekeeper.protocol.receipt import Draft, digest, plain, seal, signed_part
from leasekeeper.protocol.recorded import Recorded
from leasekeeper.run_errors import CorruptState
from leasekeeper.run_records import Receipt
from leasekeeper.signing import HmacKey, Keyring
from tests.model.runs import Crew, Owner, entry
from tests.model.world import KEYS

KEY = HmacKey("k1", b"s" * 32)


def do(owner: Owner, step: str, result: object, *, done: bool = True) -> None:
    """What a step leaves behind."""
    log, key = owner.log, owner.keys.step(step)
    pointer = Pointer(args="a" * 64, idem="i" * 32, effect="f", at_ms=1)
    intent = entry(owner, step, puts=lambda seq: (m.put(key, pointer.begun(seq).stored()),))
    intent.draft = Draft("intent", step, b"{}", intent.draft.nonce)
    owner.client.do(append(log, intent))
    if done:
        outcome = entry(
            owner, step, puts=lambda seq: (m.put(key, pointer.begun(seq - 1).turned("done", seq).stored()),)
        )
        outcome.draft = Draft("outcome", step, plain({"result": result}), outcome.draft.nonce)
        outcome.change = lambda head: head.one_more()
        owner.client.do(append(log, outcome))


def resumed(steps: int, **opening: Any) -> tuple[Owner, Recorded]:
    """A run in which steps ``s0``, ``s1`` … were done, and one more was begun; the life after that, and what it reads."""
    first = Owner(**opening)
    for index in range(steps):
        do(first, f"s{index}", index)
    do(first, "begun", None, done=False)
    first.leave()
    owner = Owner(first.world, **opening)
    return owner, Recorded(owner.log.head.seq)


def found(owner: Owner, recorded: Recorded, step: str) -> Receipt | Pointer:
    """What is found of a step."""
    return owner.client.do(recorded.find(owner.log, step, owner.world.now_s + 5))


def result(of: Receipt | Pointer) -> Any:
    """The recorded result of a step that was done."""
    assert isinstance(of, Receipt)
    return of.data["result"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_order_of_asking(data: st.DataObject) -> None:
    """B1, A19: steps asked for in any order, some twice, some never, with pages of any length: each has what was recorded."""
    steps = data.draw(st.integers(1, 12))
    owner, recorded = resumed(steps)
    recorded._limit = data.draw(st.integers(1, 9))
    names = [*(f"s{index}" for index in range(steps)), "begun", "never"]
    for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=20)):
        of = found(owner, recorded, name)
        if name.startswith("s"):
            assert result(of) == int(name[1:])
        else:
            assert isinstance(of, Pointer)
            assert (of.state, bool(of.mod_revision)) == ("intent", name == "begun")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_many_tasks_at_once(data: st.DataObject) -> None:
    """B1: several tasks that ask at once, in any order, each find their own; no page is taken in twice."""
    steps = data.draw(st.integers(2, 12))
    owner, recorded = resumed(steps)
    recorded._limit = data.draw(st.integers(1, 9))
    order = data.draw(st.permutations(range(steps)))
    plans = [recorded.find(owner.log, f"s{index}", owner.world.now_s + 5) for index in order]
    runs = Crew(owner.client).run(plans, lambda able: data.draw(st.sampled_from(able)))
    assert [result(run.result) for run in runs] == list(order)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", Recorded.__slots__)
def test_whatever_is_remembered_wrongly_is_read_anew(name: str) -> None:
    """A19: each field of what was read ahead, set to anything of its kind in between: every step has what was recorded."""
    wrong: dict[str, list[Any]] = {
        "end": [0, 3, 1000],
        "_next": [0, 1, 7, 1000],
        "_limit": [1, 500],
        "_window": [{}, {b'"s3"': (3, b"junk")}, {b'"s3"': (99, b"")}, {b'"nobody"': (1, b"")}],
    }
    for value in wrong[name]:
        owner, recorded = resumed(6)
        assert result(found(owner, recorded, "s0")) == 0
        setattr(recorded, name, value)
        assert [result(found(owner, recorded, f"s{index}")) for index in (3, 1, 5, 2, 4)] == [3, 1, 5, 2, 4]


def test_a_record_of_another_step_in_the_window_is_not_taken() -> None:
    """A19: under a step's name, another step's record, itself intact: it is read anew."""
    owner, recorded = resumed(4)
    found(owner, recorded, "s0")
    recorded._window[b'"s1"'] = recorded._window[b'"s2"']
    assert result(found(owner, recorded, "s1")) == 1


def overwrite(owner: Owner, step: str, change: Any) -> None:
    """Somebody who may write to etcd changes the outcome of a step, hash and all, after the run was opened."""
    kvs = [kv for kv in owner.world.store.below(owner.keys.records) if b'"kind":"outcome"' in kv.value]
    (kv,) = (kv for kv in kvs if f'"step":"{step}"'.encode() in kv.value)
    owner.world.store.put(kv.key, change(kv.value))


def test_a_damaged_outcome_is_no_outcome() -> None:
    """A3: one byte of the record that holds the result: CorruptState, and never a step that seems not to have been done."""
    owner, recorded = resumed(3)
    overwrite(owner, "s1", lambda stored: stored.replace(b'{"result":1}', b'{"result":7}'))
    with pytest.raises(CorruptState):
        found(owner, recorded, "s1")
    assert result(found(owner, recorded, "s2")) == 2


@pytest.mark.parametrize("key", [None, HmacKey("k1", b"x" * 32)])
def test_a_forged_outcome_of_a_signed_run_is_not_believed(key: HmacKey | None) -> None:
    """A3: a result changed with a hash that is right, unsigned or signed by another key, after the run was opened."""
    owner, recorded = resumed(3, signer=KEY, ring=Keyring(KEY))

    def forged(stored: bytes) -> bytes:
        return seal(signed_part(stored).replace(b'{"result":1}', b'{"result":7}'), key)

    overwrite(owner, "s1", forged)
    with pytest.raises(CorruptState):
        found(owner, recorded, "s1")


def test_a_chain_whose_signatures_were_taken_off_is_not_opened() -> None:
    """A5: records made unsigned, hashes, links and head put right again: a run that was signed does not go on with them."""
    first = Owner(signer=KEY, ring=Keyring(KEY))
    for index in range(3):
        do(first, f"s{index}", index)
    first.leave()
    store, keys = first.world.store, first.keys
    prev = None
    for seq in range(4, first.log.head.seq + 1):
        body = json.loads(signed_part(store.keys[keys.record(seq)].value))
        if prev is not None:
            body["prev"] = prev
        stored = seal(plain(body), None)
        store.put(keys.record(seq), stored)
        prev = digest(stored)
    assert prev is not None
    store.put(keys.head, first.log.head._replace(hash=prev, key_id="").stored())
    with pytest.raises(CorruptState, match="not signed"):
        Owner(first.world, signer=KEY, ring=Keyring(KEY))


def test_a_key_may_come_later() -> None:
    """A run begun without a key goes on with one where that is asked for: what is older is believed by its place."""
    first = Owner()
    do(first, "s0", 0)
    first.leave()
    with pytest.raises(CorruptState, match="adopt_unsigned"):
        Owner(first.world, signer=KEY, ring=Keyring(KEY))
    first.world.store.delete(*(kv.key for kv in first.world.store.below(KEYS.queue(first.keys.name.lease))))
    second = Owner(first.world, signer=KEY, ring=Keyring(KEY), adopt_unsigned=True)
    do(second, "s1", 1)
    second.leave()
    owner = Owner(first.world, signer=KEY, ring=Keyring(KEY))
    recorded = Recorded(owner.log.head.seq)
    assert [result(found(owner, recorded, name)) for name in ("s0", "s1")] == [0, 1]


def test_pages_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of 100 steps that is resumed in order is read in few pages, not step by step."""
    owner, recorded = resumed(100)
    asked: list[int] = []
    original = history.page

    def counted(*args: Any, **more: Any) -> Any:
        asked.append(1)
        return original(*args, **more)

    monkeypatch.setattr("leasekeeper.protocol.recorded.page", counted)
    revisions = owner.client.run(recorded.find(owner.log, "s0", owner.world.now_s + 5)).trace
    for index in range(1, 100):
        run = owner.client.run(recorded.find(owner.log, f"s{index}", owner.world.now_s + 5))
        assert result(run.result) == index  # type: ignore[arg-type]
        assert len(run.trace) <= 1
    assert len(asked) <= 4
    assert len(revisions) == 1
