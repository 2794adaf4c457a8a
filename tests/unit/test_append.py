"""Adding to a run on a model of etcd: what lands together, in which order, and that none harms another."""

from __future__ import annotations

from typing import Any

from leasekeeper.protocol import messages as m
from leasekeeper.protocol.append import Unexpected, append
from leasekeeper.protocol.head import Head
from leasekeeper.protocol.plan import Call, Plan
from leasekeeper.run_errors import TransactionTooLarge
from tests.model.appends import calls, result, texts, writes
from tests.model.runs import Crew, Owner, entry


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


def test_one_that_etcd_would_not_take_harms_no_other() -> None:
    """What is more, with all that it puts, than may be committed at once is told so before it is sent; the others land."""
    owner = Owner()
    large = entry(owner, "b" * 20_000, puts=lambda _: (m.put(b"k", b"x" * 600 * 1024),))
    plans = [append(owner.log, made) for made in (entry(owner, "n"), entry(owner, "a"), large)]
    runs = Crew(owner.client).run(plans)
    assert [type(run.error) for run in runs] == [type(None), type(None), TransactionTooLarge]
    assert texts(owner) == ["n", "a"]
