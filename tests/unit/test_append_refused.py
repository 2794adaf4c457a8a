"""Adding to a run that is somebody else's, or not to be trusted, or wrongly remembered: nothing is written, and each is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from leasekeeper.errors import StaleToken
from leasekeeper.protocol.append import Fenced, append
from leasekeeper.protocol.head import Head
from leasekeeper.protocol.keys import write_epoch
from leasekeeper.protocol.receipt import Draft, Writer, digest
from leasekeeper.run_errors import CorruptState, RunRewound
from tests.model.appends import texts
from tests.model.runs import Crew, Owner, entry, records, stored_head
from tests.model.world import KEYS

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
