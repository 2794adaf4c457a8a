"""`break` and `epoch` against a real etcd: the owner that was meant goes, and never another."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import grpc
import pytest

from leasekeeper import Keeper, State
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.epoch import next_epoch
from leasekeeper.testing import EtcdServer
from tests.intermediary import Intermediary, Passing, refuse
from tests.raw import RawEtcd
from tests.support import until


@pytest.fixture
def between(etcd: EtcdServer) -> Iterator[Intermediary]:
    """A network between the command and etcd."""
    with Intermediary(etcd.endpoint) as made:
        yield made


def test_the_owner_is_removed_and_learns_of_it(cli: Any, keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """C34: The owner's claim goes by compared delete, its lease is LOST with reason deleted, and its etcd lease lives on."""
    lease = keeper.acquire("job")
    done = cli("break", "job", "--token", str(lease.token), "--yes")
    assert done.code == 0
    assert f"removed the claim with token {lease.token}" in done.out
    assert "nobody owns it" in done.out
    assert raw.claims(namespace) == []
    until(lambda: lease.state is State.LOST)
    assert lease.loss is not None
    assert lease.loss.reason == "deleted"
    assert raw.time_to_live(lease.lease_id) > 0


def test_the_next_owner_is_told(cli: Any, keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """After the removal the answer says who owns the name now."""
    lease = keeper.acquire("job")
    raw.put(f"leasekeeper/{namespace}/lease/job/ff", "", raw.grant(60))
    (_, next_key) = raw.claims(namespace)
    done = cli("break", "job", "--token", str(lease.token), "--yes")
    assert f"token {next_key.create_revision}" in done.out
    assert [key.key for key in raw.claims(namespace)] == [next_key.key]


@pytest.mark.parametrize("offset", [-1, 1])
def test_another_token_removes_nothing(cli: Any, keeper: Keeper, raw: RawEtcd, namespace: str, offset: int) -> None:
    """C44: With a token that is not the owner's nothing goes; exit code 1, and the answer says who owns the name."""
    lease = keeper.acquire("job")
    done = cli("break", "job", "--token", str(lease.token + offset), "--yes")
    assert done.code == 1
    assert f"token {lease.token}" in done.out
    assert "nothing was removed" in done.out
    assert lease.check() == lease.token
    assert len(raw.claims(namespace)) == 1


def test_a_free_name_has_nothing_to_break(cli: Any) -> None:
    """Nobody owns the name: exit code 1."""
    done = cli("break", "job", "--token", "7", "--yes")
    assert done.code == 1
    assert "nobody owns it" in done.out


def test_a_waiter_is_not_broken(cli: Any, keeper: Keeper, raw: RawEtcd, namespace: str) -> None:
    """The token of a claim that waits is not the owner's: it keeps its place."""
    lease = keeper.acquire("job")
    raw.put(f"leasekeeper/{namespace}/lease/job/ff", "", raw.grant(60))
    waiting = raw.claims(namespace)[1]
    assert cli("break", "job", "--token", str(waiting.create_revision), "--yes").code == 1
    assert len(raw.claims(namespace)) == 2
    lease.release()


@pytest.mark.parametrize("leased", [True, False])
@pytest.mark.parametrize("value", ["", "{broken", '{"v": 99}'])
def test_every_kind_of_claim_can_be_broken(cli: Any, raw: RawEtcd, namespace: str, leased: bool, value: str) -> None:
    """C33 C34: Claims without a lease, of other programs, of unknown or corrupt format go by the token that `show` tells."""
    raw.put(f"leasekeeper/{namespace}/lease/job/ff", value, raw.grant(60) if leased else 0)
    token = cli("show", "job", "-o", "json").json["owner"]["token"]
    assert cli("break", "job", "--token", token, "--yes").code == 0
    assert raw.claims(namespace) == []


def test_foreign_tokens_carry_the_epoch(cli: Any, raw: RawEtcd, namespace: str) -> None:
    """A foreign claim's token is epoch * 2**44 + create revision, and that breaks it."""
    epoch = cli("epoch", "bump", "-o", "json").json["epoch"]
    raw.put(f"leasekeeper/{namespace}/lease/job/ff", "")
    token = epoch * 2**44 + raw.claims(namespace)[0].create_revision
    assert cli("show", "job", "-o", "json").json["owner"]["token"] == str(token)
    assert cli("break", "job", "--token", str(token), "--yes").code == 0


# ---------------------------------------------------------------- asking


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("YES\n", 0), ("n\n", 1), ("\n", 1), ("maybe\n", 1)])
def test_it_asks_first(cli: Any, keeper: Keeper, answer: str, code: int) -> None:
    """Without --yes it says whom it would remove and asks; anything but yes removes nothing and is a negative answer."""
    lease = keeper.acquire("job")
    done = cli("break", "job", "--token", str(lease.token), answer=answer)
    assert done.code == code
    assert f"owned by worker-1, token {lease.token}, lease {lease.lease_id:x}" in done.err
    assert (cli("verify", "job", str(lease.token)).code == 1) is (code == 0)


def test_without_anybody_to_ask_it_removes_nothing(cli: Any, keeper: Keeper) -> None:
    """With stdin at its end the question has no answer: exit code 2, and the line says --yes."""
    lease = keeper.acquire("job")
    done = cli("break", "job", "--token", str(lease.token), answer="")
    assert done.code == 2
    assert "--yes" in done.err
    assert lease.check() == lease.token


def test_break_json_has_its_documented_shape(cli: Any, keeper: Keeper) -> None:
    """The JSON of `break`: whether it was removed, and who owns the name now; the question is not in it."""
    lease = keeper.acquire("job")
    got = cli("break", "job", "--token", str(lease.token + 1), "-o", "json").json
    assert got.pop("owner")["token"] == str(lease.token)
    assert got == {"name": "job", "token": str(lease.token + 1), "removed": False}
    assert cli("break", "job", "--token", str(lease.token), "-o", "json", answer="y\n").json == {
        "name": "job",
        "token": str(lease.token),
        "removed": True,
        "owner": None,
    }


# ---------------------------------------------------------------- races


def is_delete(request: bytes) -> bool:
    """Whether a transaction is the one that removes."""
    return any(op.HasField("request_delete_range") for op in pb.TxnRequest.FromString(request).success)


def test_an_owner_that_came_in_between_is_not_hit(
    cli: Any, keeper: Keeper, raw: RawEtcd, between: Intermediary
) -> None:
    """C44: The owner releases and another acquires, on the same key, while the removal is under way: the new one stays."""
    old = keeper.acquire("job")
    fresh: list[Any] = []

    def overtake(passing: Passing) -> bytes:
        old.release()
        fresh.append(keeper.acquire("job"))
        return passing.forward()

    between.on("Txn", overtake, when=is_delete, times=1)
    done = cli("break", "job", "--token", str(old.token), "--yes", endpoint=between.endpoint)
    assert fresh[0].key == old.key
    assert fresh[0].check() == fresh[0].token
    assert cli("verify", "job", str(fresh[0].token)).code == 0
    assert done.code == 0
    assert "went by itself" in done.out


@pytest.mark.parametrize("after", [False, True])
def test_a_lost_answer_is_read_back(cli: Any, keeper: Keeper, between: Intermediary, after: bool) -> None:
    """G6: When the removal's reply never comes, it is repeated by compare and the queue read again, never guessed."""
    lease = keeper.acquire("job")
    between.on("Txn", refuse(grpc.StatusCode.UNKNOWN, "lost", after=after), when=is_delete, times=1)
    done = cli("break", "job", "--token", str(lease.token), "--yes", endpoint=between.endpoint)
    assert done.code == 0
    assert "removed" in done.out
    assert cli("show", "job").code == 1


# ---------------------------------------------------------------- epoch


def test_the_epoch_is_shown_and_raised(cli: Any, keeper: Keeper) -> None:
    """G2: A bump raises the epoch, and every token handed out from then on is larger than all before."""
    before = keeper.acquire("job")
    assert "epoch 0" in cli("epoch", "show").out
    assert cli("epoch", "show", "-o", "json").json == {"epoch": 0, "at": None, "by": None}
    bumped = cli("epoch", "bump", "-o", "json").json
    assert set(bumped) == {"epoch", "before", "may_repeat_until"}
    assert bumped["epoch"] > bumped["before"] == 0
    shown = cli("epoch", "show", "-o", "json").json
    assert shown["epoch"] == bumped["epoch"]
    assert shown["at"].endswith("Z")
    holder, mark = shown["by"].rsplit(" ", 1)
    assert cli("epoch", "show").out.endswith(f"by {holder}\n")
    assert len(mark) == 24
    before.release()
    assert keeper.acquire("job").token > bumped["epoch"] * 2**44 > before.token
    assert f"epoch {bumped['epoch']}" in cli("epoch", "show").out


def test_an_epoch_above_a_token_that_was_seen(cli: Any) -> None:
    """A token from the time between two restores lifts the new epoch above its own."""
    high = 400_000 * 2**44 + 17
    assert cli("epoch", "bump", "--above", str(high), "-o", "json").json["epoch"] == 400_001


def test_the_time_until_which_an_epoch_may_repeat(cli: Any) -> None:
    """G2: The answer of a bump says from when on the time alone gives a higher epoch, and that is so from then on."""
    bumped = cli("epoch", "bump", "-o", "json").json
    until_s = datetime.fromisoformat(bumped["may_repeat_until"].replace("Z", "+00:00")).timestamp()
    assert next_epoch(0, until_s) == bumped["epoch"] + 1
    assert next_epoch(0, until_s - 1) <= bumped["epoch"]


def test_two_bumps_in_a_row_differ(cli: Any) -> None:
    """Within one unit of time a second bump is still higher."""
    first, second = (cli("epoch", "bump", "-o", "json").json["epoch"] for _ in range(2))
    assert second == first + 1


def test_a_corrupt_epoch_record_is_a_matter_of_configuration(cli: Any, raw: RawEtcd, namespace: str) -> None:
    """No token is safe without the epoch: every command says so in one line and ends with 2."""
    raw.put(f"leasekeeper/{namespace}/epoch", "{broken")
    for args in (["epoch", "show"], ["epoch", "bump"], ["ls"], ["show", "job"], ["acquire", "job", "--timeout", "1"]):
        done = cli(*args)
        assert done.code == 2
        assert "epoch record" in done.err
        assert done.err.count("\n") == 1
