"""`runs verify`: whatever is done to a run in etcd, the first bad record is named, and nothing good is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import Conflict, Drift, Keeper, NotApplied, Observed, effect
from leasekeeper.protocol.key_text import public_text
from leasekeeper.runs.anchor import FileAnchor
from leasekeeper.testing import EtcdServer
from tests.chains import needs_cryptography
from tests.told_runs import RUN, Hands, fine, finished, heads_file, in_doubt, server_of, signer

pytestmark = needs_cryptography


LAST = 8

# ---------------------------------------------------------------- good ones


def test_a_good_run(cli: Any, keeper: Keeper, keys: str, anchor: FileAnchor, tmp_path: Path) -> None:
    """A5, A22: with keys, anchor and an earlier export all of it is attested: 0, and the last record's number."""
    finished(keeper, signer=signer(), anchors=[anchor])
    out = str(tmp_path / "o.jsonl")
    assert cli("runs", "export", RUN, "--out", out).code == 0
    words = ("--keys", keys, "--anchor", heads_file(anchor), "--export", out)
    done = cli("runs", "verify", RUN, *words, "-o", "json")
    assert done.code == 0
    expected = {
        "ok": True,
        "verified": LAST,
        "attested": LAST,
        "anchored": LAST,
        "bad": None,
        "complete": True,
        "keys": ["k1"],
        "beside": [],
    }
    assert {name: done.json[name] for name in expected} == expected
    shown = cli("runs", "verify", RUN, *words).out
    assert shown.startswith("order/o-1: good: records 1 to 8 verify")
    assert "attested    up to record 8, by k1" in shown


def test_without_a_key_nothing_is_attested(cli: Any, keeper: Keeper) -> None:
    """A22: hashes alone, which whoever can write can make, attest nothing, and it says so."""
    finished(keeper)
    found = cli("runs", "verify", RUN, "-o", "json").json
    assert (found["ok"], found["verified"], found["attested"], found["signed"]) == (True, LAST, None, False)
    assert "no key was given" in cli("runs", "verify", RUN).out


def test_runs_in_every_state_are_good(cli: Any, keeper: Keeper) -> None:
    """In doubt, resolved, taken over, quarantined, owned, not applied, in conflict, drifted: nothing good is called bad."""

    def assert_good(name: str = RUN) -> None:
        found = cli("runs", "verify", name, "-o", "json")
        assert found.json["ok"], found.out

    in_doubt(keeper, "o-1")
    assert_good()
    keeper.resolve(RUN, "charge", applied=False, evidence="looked")
    assert_good()
    for _ in range(3):
        with pytest.raises(BaseException, match=r"early|aside"), keeper.run("order", id="o-3", ttl=5, restarts=1):
            raise RuntimeError("early")
    assert_good("order/o-3")
    with keeper.run("order", id="o-1", ttl=5) as run:
        run.memo("ask", fine, 1)
        state = run.checkpoint("state", dict)
        for number in range(3):
            state.put({"n": number})
        run.do("paid", fine, 1, commit=lambda value: state.change(paid=value["value"]))
        with pytest.raises(NotApplied):
            run.do("refused", refuse)
        assert_good()
        run.do("refused", fine_without, verify="recorded")
        with pytest.raises(Conflict):
            run.do("there", there)
        assert_good()
    assert_good()
    with pytest.raises(Drift), keeper.run("order", id="o-1", ttl=5) as again:
        again.do("refused", drifting)
    assert_good()


def refuse() -> None:
    """An effect that says that nothing happened."""
    raise NotApplied("the bank said no")


def fine_without() -> str:
    """An effect without arguments that works."""
    return "done"


@effect
def there(step: Any) -> None:
    """An effect that somebody else has applied."""
    raise AssertionError(f"{step.key} must not be called")


@there.preflight
def seen(step: Any) -> Observed:
    """It is there."""
    return Observed(step.key, applied=True)


@effect
def drifting(step: Any) -> str:
    """An effect whose postcondition does not hold any more."""
    raise AssertionError(f"{step.key} must not be called")


@drifting.verify
def holds(step: Any, result: Any) -> bool:
    """It does not."""
    return (step.key, result) == ("", "")


# ---------------------------------------------------------------- tampering


Tamper = Callable[[Hands], None]


def overwrite(hands: Hands) -> None:
    """Other bytes in a record."""
    hands.raw.put(hands.key(4), hands.record(4).replace('"attempt":1', '"attempt":2'))


def delete(hands: Hands) -> None:
    """A record is gone."""
    hands.raw.delete(hands.key(4))


def swap(hands: Hands) -> None:
    """Two records change places."""
    four, five = hands.record(4), hands.record(5)
    hands.raw.put(hands.key(4), five)
    hands.raw.put(hands.key(5), four)


def truncate(hands: Hands) -> None:
    """The tail is gone; the head stands."""
    for seq in range(4, LAST + 1):
        hands.raw.delete(hands.key(seq))


def set_back(hands: Hands) -> None:
    """The head is an older one; the records stand."""
    first = hands.raw.keys(f"{hands.root}head")[0].create_revision
    old = hands.raw.keys(f"{hands.root}head", revision=first + 2)[0].value.decode()
    hands.raw.put(f"{hands.root}head", old)


def fork(hands: Hands) -> None:
    """A record with other words, its hash made right, by somebody who has no key."""
    hands.raw.put(hands.key(4), hands.forge(4, '"attempt":1', '"attempt":7'))


def garbage(hands: Hands) -> None:
    """No record at all."""
    hands.raw.put(hands.key(4), "\x1b[2J")


@pytest.mark.parametrize(
    ("tamper", "bad", "kinds"),
    [
        (overwrite, 4, {"corrupt"}),
        (delete, 4, {"removed"}),
        (swap, 4, {"swapped"}),
        (truncate, 4, {"truncated"}),
        (fork, 4, {"forged"}),
        (garbage, 4, {"corrupt"}),
    ],
)
@pytest.mark.parametrize("with_keys", [True, False], ids=["keys", "no keys"])
def test_the_first_bad_record_is_named(
    cli: Any, keeper: Keeper, hands: Hands, keys: str, tamper: Tamper, bad: int, kinds: set[str], with_keys: bool
) -> None:
    """A5, A22: overwritten, deleted, swapped, cut off, forked: 1, the first bad record, attested up to the one before it."""
    finished(keeper, signer=signer())
    tamper(hands)
    done = cli("runs", "verify", RUN, *(("--keys", keys) if with_keys else ()), "-o", "json")
    assert (done.code, done.json["ok"], done.json["bad"], done.json["verified"]) == (1, False, bad, bad - 1)
    assert done.json["attested"] == (bad - 1 if with_keys else None)
    assert done.json["kind"] in kinds | ({"changed"} if not with_keys else set())
    shown = cli("runs", "verify", RUN).out
    assert "BAD" in shown
    assert f"first bad   record {bad}" in shown
    assert shown.replace("\n", "").isprintable()


def test_a_head_that_was_set_back(cli: Any, keeper: Keeper, hands: Hands) -> None:
    """A5: records behind the head's are bad from the first of them on."""
    finished(keeper)
    set_back(hands)
    found = cli("runs", "verify", RUN, "-o", "json")
    assert (found.code, found.json["kind"], found.json["verified"]) == (1, "truncated", found.json["bad"] - 1)


def test_a_tail_cut_off_with_its_head(
    cli: Any, keeper: Keeper, hands: Hands, keys: str, anchor: FileAnchor, tmp_path: Path
) -> None:
    """A5: what is left verifies by itself; what remembers more, an anchor or an export, shows the first missing one."""
    finished(keeper, signer=signer(), anchors=[anchor])
    out = str(tmp_path / "o.jsonl")
    assert cli("runs", "export", RUN, "--out", out).code == 0
    history = hands.raw.keys(f"{hands.root}head")[0].create_revision
    olds = [hands.raw.keys(f"{hands.root}head", revision=history + 2)[0].value.decode()]
    seq = int(olds[0].split('"seq":')[1].split(",")[0])
    hands.set_back(seq, olds[0])
    alone = cli("runs", "verify", RUN, "--keys", keys, "-o", "json").json
    assert (alone["bad"], alone["verified"]) == (None, seq)
    for words, by in ((("--anchor", heads_file(anchor)), "an anchor"), (("--export", out), "the earlier export")):
        done = cli("runs", "verify", RUN, "--keys", keys, *words, "-o", "json")
        assert (done.code, done.json["kind"], done.json["bad"], done.json["attested"]) == (1, "truncated", seq + 1, seq)
        assert f": {by} knows record " in done.json["why"]


def test_another_history_of_good_hashes(cli: Any, keeper: Keeper, hands: Hands, tmp_path: Path) -> None:
    """A5: a run that was written anew from some record on, hashes, head and all, is found by an earlier export."""
    finished(keeper)
    out = str(tmp_path / "o.jsonl")
    assert cli("runs", "export", RUN, "--out", out).code == 0
    for key in hands.raw.keys(hands.root):
        hands.raw.delete(key.key)
    finished(keeper)
    assert cli("runs", "verify", RUN).code == 0
    done = cli("runs", "verify", RUN, "--export", out, "-o", "json")
    assert (done.code, done.json["bad"], done.json["verified"]) == (1, 1, 0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("head", "the head: it has no head"),
        ("meta", "what it was begun with is gone"),
        ("step/step-1", "where step 'step-1' stands is gone"),
        ("ck/state", "checkpoint 'state' is gone"),
    ],
)
def test_what_stands_beside_the_records_and_is_gone(
    cli: Any, keeper: Keeper, hands: Hands, name: str, said: str
) -> None:
    """What follows from the records and is not there is told, though every record is good: 1."""
    finished(keeper)
    assert hands.raw.delete(hands.root + name)
    done = cli("runs", "verify", RUN, "-o", "json")
    assert (done.code, done.json["ok"], done.json["bad"]) == (1, False, None)
    assert any(said in finding for finding in done.json["beside"])
    assert said in cli("runs", "verify", RUN).out


@pytest.mark.parametrize(
    ("name", "other", "said"),
    [
        (
            "step/step-1",
            "step/step-0",
            "step 'step-1' stands as done, by records 2 and 3; recorded is: done, by records 4 and 5",
        ),
        ("ck/state", "ck/goods", "checkpoint 'state' is not what was recorded of it"),
        ("ck/more", "ck/goods", "checkpoint 'more' is in no record"),
        ("step/more", "step/step-0", "step 'more' stands as done, by records 2 and 3; recorded is: not begun"),
    ],
)
def test_what_stands_beside_the_records_and_is_anothers(
    cli: Any, keeper: Keeper, hands: Hands, name: str, other: str, said: str
) -> None:
    """A good value of another key in its place, or one that nobody recorded, is told."""
    finished(keeper)
    hands.raw.put(hands.root + name, hands.value(other))
    done = cli("runs", "verify", RUN, "-o", "json")
    assert (done.code, done.json["bad"]) == (1, None)
    assert any(said in finding for finding in done.json["beside"])


def test_nothing_is_no_good_run(cli: Any) -> None:
    """A run of which nothing is recorded does not verify, and it is told why rather than that parts are missing."""
    done = cli("runs", "verify", RUN)
    assert done.code == 1
    assert "nothing is recorded of it" in done.out
    assert "beside" not in done.out


def test_a_pruned_run_is_verified_by_its_export(cli: Any, keeper: Keeper, tmp_path: Path) -> None:
    """Of a run that was pruned it is said that its export can be verified; what remembers its records still shows them gone."""
    finished(keeper)
    file = str(tmp_path / "o1.jsonl")
    assert cli("runs", "export", RUN, "--out", file).code == 0
    assert cli("runs", "prune", RUN, "--exported", file).code == 0
    done = cli("runs", "verify", RUN)
    assert done.code == 1
    assert "verify the export, by --file" in done.out
    assert "beside" not in done.out
    assert cli("runs", "verify", "--file", file).code == 0
    assert cli("runs", "verify", RUN, "--export", file, "-o", "json").json["kind"] == "truncated"


def test_a_run_from_another_namespace(cli: Any, keeper: Keeper, hands: Hands, keys: str, etcd: EtcdServer) -> None:
    """A22: a run that was copied from another namespace is not attested here, nor is any where nothing tells where."""
    finished(keeper, signer=signer())
    copied = hands.raw.keys(hands.root)
    with server_of(etcd, f"{hands.namespace}-other") as other:
        finished(other, "o-9")
        for key in copied:
            hands.raw.put(key.key.replace(hands.namespace, f"{hands.namespace}-other"), key.value.decode())
    done = cli("runs", "verify", RUN, "--keys", keys, "-o", "json", namespace=f"{hands.namespace}-other")
    assert (done.code, done.json["kind"], done.json["bad"], done.json["attested"]) == (1, "other environment", 1, 0)
    hands.raw.put(f"leasekeeper/{hands.namespace}/identity", "nothing")
    here = cli("runs", "verify", RUN, "--keys", keys, "-o", "json")
    assert (here.code, here.json["ok"], here.json["attested"], here.json["verified"]) == (1, False, 0, LAST)
    assert "identity" in here.json["beside"][0]


def test_a_strangers_key(cli: Any, keeper: Keeper, tmp_path: Path) -> None:
    """A20: records of a key that is not known here are not believed, from the first one on."""
    finished(keeper, signer=signer("k2"))
    file = tmp_path / "public.keys"
    file.write_text(public_text(signer("k1").public))
    done = cli("runs", "verify", RUN, "--keys", str(file), "-o", "json")
    assert (done.code, done.json["kind"], done.json["bad"], done.json["attested"]) == (1, "unknown key", 1, 0)
