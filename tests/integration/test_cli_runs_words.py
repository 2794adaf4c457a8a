"""`runs resolve`, `halt` and `unhalt` against a real etcd: an operator's word, and what it changes."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import Keeper, NotSerialisable
from leasekeeper.runs.anchor import FileAnchor
from tests.raw import RawEtcd
from tests.told_runs import Boom, fine, finished, in_doubt, signer

# ---------------------------------------------------------------- resolve


def test_resolve_applied_goes_on_with_the_result(cli: Any, keeper: Keeper) -> None:
    """C23: the operator's word is a record; the next life takes the step for done, with its result; nothing is resolved twice."""
    in_doubt(keeper)
    words = ("runs", "resolve", "order/o-2", "charge", "--applied", "--evidence", "the bank's list")
    done = cli(*words, "--result", '{"id": 7}', "-o", "json")
    assert (done.code, done.json["seq"], done.json["applied"]) == (0, 10, True)
    with keeper.run("order", id="o-2", ttl=5) as run:
        assert run.do("charge", pytest.fail) == {"id": 7}
    again = cli(*words)
    assert (again.code, again.err.count("\n")) == (2, 1)
    assert "there is nothing to resolve" in again.err


def test_resolve_lifts_a_quarantine(cli: Any, keeper: Keeper) -> None:
    """A run that is put aside goes on after the word; a run that is not is left as it is."""
    for _ in range(2):
        with pytest.raises(RuntimeError), keeper.run("order", id="o-3", ttl=5, restarts=1):
            raise RuntimeError("early")
    with pytest.raises(BaseException, match="aside"), keeper.run("order", id="o-3", ttl=5, restarts=1):
        pass
    assert cli("runs", "ls", "-o", "json").json[0]["status"] == "quarantined"
    words = ("runs", "resolve", "order/o-3", "--lift-quarantine", "--evidence", "mended")
    assert cli(*words).code == 0
    with keeper.run("order", id="o-3", ttl=5) as run:
        assert run.do("a", fine, 1) == {"value": 1}
    assert cli(*words).code == 2


def test_resolve_signs_with_the_environments_key(cli: Any, keeper: Keeper) -> None:
    """A signed run takes only a signed word: without the key it is refused, with it the record is signed."""
    in_doubt(keeper, signer=signer())
    words = ("runs", "resolve", "order/o-2", "charge", "--not-applied", "--evidence", "looked")
    refused = cli(*words)
    assert refused.code == 2
    assert "key" in refused.err
    text = f"ed25519:k1:{'azFrMWsxazFrMWsxazFrMWsxazFrMWsxazFrMWsxazE='}"
    assert cli(*words, env={"LEASEKEEPER_SIGNING_KEY": text}).code == 0
    assert cli("runs", "show", "order/o-2", "-o", "json").json["records"][-1]["key_id"] == "k1"


@pytest.mark.parametrize("evidence", ["WHAT YOU SAW", " TEXT ", "", "  "])
def test_a_placeholder_is_no_evidence(cli: Any, keeper: Keeper, raw: RawEtcd, evidence: str) -> None:
    """What shown commands have in the place of the evidence, pasted unchanged, says nothing; the same words in a sentence do."""
    in_doubt(keeper)
    words = ("runs", "resolve", "order/o-2", "charge", "--applied", "--evidence")
    revision = raw.revision()
    refused = cli(*words, evidence)
    assert (refused.code, refused.out, raw.revision()) == (2, "", revision)
    assert "--evidence" in refused.err
    assert cli(*words, f"{evidence}: the bank's list").code == 0


def test_a_step_that_is_done_takes_a_result_that_was_said(cli: Any, keeper: Keeper) -> None:
    """Where the result is for good, null is not taken for said: the command asks for it, and null may be it."""
    with pytest.raises(NotSerialisable), keeper.run("order", id="o-1", ttl=5) as run:
        run.do("charge", object)
    words = ("runs", "resolve", "order/o-1", "charge", "--applied", "--evidence", "looked")
    refused = cli(*words)
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert "say what it returns from now on (--result JSON" in refused.err
    assert cli(*words, "--result", "null").code == 0
    with keeper.run("order", id="o-1", ttl=5) as run:
        assert run.do("charge", pytest.fail) is None


def test_a_step_that_there_is_not(cli: Any, keeper: Keeper) -> None:
    """A mistyped step: the ones that there are, those that wait for a word first."""
    in_doubt(keeper)
    refused = cli("runs", "resolve", "order/o-2", "chrage", "--applied", "--evidence", "looked")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "a step that run order/o-2 has begun: 'charge' (in_doubt), 'fetch' (done)" in refused.err
    with pytest.raises(KeyError), keeper.run("order", id="o-9", ttl=5):
        raise KeyError
    assert "and there is none yet" in cli("runs", "resolve", "order/o-9", "s", "--applied", "--evidence", "looked").err


def test_a_step_under_way_waits_for_its_owner(cli: Any, keeper: Keeper) -> None:
    """Refused while somebody owns the run: who that is, and that the process has to end; a halt is not said to help."""
    called, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        called.set()
        go_on.wait(30)

    def owner() -> None:
        with keeper.run("order", id="o-1", ttl=5) as run:
            run.do("charge", slow)

    thread = threading.Thread(target=owner)
    thread.start()
    try:
        assert called.wait(30)
        refused = cli("runs", "resolve", "order/o-1", "charge", "--applied", "--evidence", "looked")
    finally:
        go_on.set()
        thread.join()
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "end the owner's process (who it is: leasekeeper show run/order/o-1)" in refused.err
    assert "a halt ends nothing that was begun" in refused.err


def test_what_is_next_once_a_word_is_recorded(cli: Any, keeper: Keeper, tmp_path: Path) -> None:
    """A run that is put aside is not said to go on by starting it; nor one that is finished."""
    said = ("--evidence", "looked")
    in_doubt(keeper, restarts=1)
    for _ in range(2):
        _opened(keeper)
    put_aside = cli("runs", "resolve", "order/o-2", "charge", "--applied", *said).out
    assert "the run is put aside: lift that" in put_aside
    assert "leasekeeper runs resolve order/o-2 --lift-quarantine --evidence TEXT" in put_aside
    assert cli("runs", "resolve", "order/o-2", "--lift-quarantine", *said).out.endswith("; start the program again\n")
    anchor = FileAnchor(tmp_path / "heads")
    finished(keeper, anchors=[anchor])
    known = anchor.last("order/o-1", 1)
    assert known is not None
    anchor.remember("order/o-1", 1, known.seq + 3, "ab" * 32, known.at_ms)
    over = cli("runs", "resolve", "order/o-1", "--accept-rewind", str(tmp_path / "heads"), *said).out
    assert over.endswith("is given up for lost; the run is finished, and stays so\n")


def _opened(keeper: Keeper) -> None:
    """One more life that gets nowhere."""
    with pytest.raises(BaseException, match=r"aside|vain"), keeper.run("order", id="o-2", ttl=5, restarts=1):
        raise RuntimeError("in vain")


def test_an_anchors_file_must_be_one(cli: Any, keeper: Keeper, raw: RawEtcd, tmp_path: Path) -> None:
    """No such file, an export, an empty one: each is named, by both commands, and none is made."""
    finished(keeper)
    export, empty, missing = (tmp_path / name for name in ("o.jsonl", "empty", "missing"))
    assert cli("runs", "export", "order/o-1", "--out", str(export)).code == 0
    empty.touch()
    revision = raw.revision()
    for file in (export, empty, missing):
        accept = ("runs", "resolve", "order/o-1", "--accept-rewind", str(file), "--evidence", "looked")
        for words, option in (
            (accept, "--accept-rewind"),
            (("runs", "verify", "order/o-1", "--anchor", str(file)), "--anchor"),
        ):
            refused = cli(*words)
            assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1), refused
            assert f"{option}='{file}'" in refused.err
    assert not missing.exists()
    assert raw.revision() == revision


# ---------------------------------------------------------------- halt


def unfinished(keeper: Keeper, workflow: str = "order", run_id: str = "o-9") -> None:
    """A run that was begun, and left."""
    with pytest.raises(Boom), keeper.run(workflow, id=run_id, ttl=5):
        raise Boom


def test_a_second_halt_of_a_scope_leaves_the_first_as_it_is(cli: Any, keeper: Keeper) -> None:
    """Who halted first, when and why is not lost; the second is told of it, and may say that theirs shall stand instead."""
    unfinished(keeper)
    ann, bob = {"LEASEKEEPER_HOLDER": "ann@ops"}, {"LEASEKEEPER_HOLDER": "bob@ops"}
    first = cli("halt", "order/*", "--reason", "wrong prices", env=ann)
    assert (first.code, "it covers 1 unfinished run now" in first.out) == (0, True)
    (stands,) = cli("halt", "--list", "-o", "json").json
    second = cli("halt", "order/*", "--reason", "deploy", env=bob)
    assert second.code == 0
    assert "is halted already since" in second.out
    assert "by ann@ops: wrong prices" in second.out
    assert "--replace" in second.err
    told = cli("halt", "order/*", "--reason", "deploy", "-o", "json", env=bob).json
    assert (told["kept"], told["reason"], told["by"], told["covers"]) == (True, "wrong prices", "ann@ops", 1)
    assert keeper.halt("order/*", "a library's") == told["revision"]
    assert cli("halt", "--list", "-o", "json").json == [stands]
    assert keeper.halt("order/*", "a library's", replace=True) > told["revision"]
    assert cli("halt", "order/*", "--reason", "deploy", "--replace", env=bob).code == 0
    (now,) = cli("halt", "--list", "-o", "json").json
    assert (now["reason"], now["by"]) == ("deploy", "bob@ops")


@pytest.mark.parametrize(
    ("scope", "covered"),
    [("*", 2), ("order/*", 1), ("order/o-9", 1), ("ordre/*", 0), ("mail/m%2F1", 1), ("mail/m%2F", 0), ("m*", 1)],
)
def test_a_halt_tells_how_many_runs_it_covers(cli: Any, keeper: Keeper, scope: str, covered: int) -> None:
    """A mistyped scope covers nothing, and that shows; finished runs do not count."""
    finished(keeper)
    unfinished(keeper)
    unfinished(keeper, "mail", "m/1")
    done = cli("halt", scope, "--reason", "x", "-o", "json")
    assert (done.code, done.json["covers"], done.json["kept"]) == (0, covered, False)
    assert cli("unhalt", scope).code == 0


def test_a_persons_word_names_the_person(cli: Any, keeper: Keeper) -> None:
    """Halts, words on doubts and tombstones tell user and host, unless a holder is given; the process is gone by then."""
    assert cli("halt", "order/*", "--reason", "x", env={"LOGNAME": "ann"}).code == 0
    (halt,) = keeper.halts()
    assert halt.by == f"ann@{socket.gethostname()}"
    keeper.unhalt("order/*")
    in_doubt(keeper)
    words = ("runs", "resolve", "order/o-2", "charge", "--not-applied", "--evidence", "seen")
    assert cli(*words, env={"LOGNAME": "bob\u202e"}).code == 0
    assert (
        cli("runs", "show", "order/o-2", "-o", "json").json["records"][-1]["holder"] == f"bob?@{socket.gethostname()}"
    )
    assert cli("epoch", "bump", env={"LOGNAME": "eve", "LEASEKEEPER_HOLDER": "night shift"}).code == 0
    assert cli("epoch", "show", "-o", "json").json["by"].startswith("night shift")


def test_halt_list_unhalt(cli: Any, keeper: Keeper) -> None:
    """B15: after halt no step begins in its scope, elsewhere it does; it is listed with its reason, and ends by unhalt."""
    done = cli("halt", "order/*", "--reason", "wrong prices", "-o", "json")
    assert done.code == 0
    assert done.json["revision"] > 0
    with pytest.raises(BaseException, match="halted"):
        finished(keeper)
    finished_elsewhere = keeper.run("mail", id="m", ttl=5)
    with finished_elsewhere as run:
        run.do("a", fine, 1)
    (one,) = cli("halt", "--list", "-o", "json").json
    assert (one["scope"], one["reason"]) == ("order/*", "wrong prices")
    assert "wrong prices" in cli("halt", "--list").out
    assert cli("unhalt", "order/*").code == 0
    assert cli("unhalt", "order/*").code == 1
    finished(keeper)
    assert cli("halt", "--list").out == ""
