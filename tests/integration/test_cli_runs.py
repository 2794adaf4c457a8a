"""`runs ls|show|explain` against a real etcd: how each run stands, and its whole history."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leasekeeper import Conflict, CorruptState, Keeper, LeaseLost
from leasekeeper.protocol import run_look
from leasekeeper.testing import EtcdServer
from tests.commands import ROOT, call
from tests.effects import ends_with
from tests.raw import RawEtcd
from tests.support import until
from tests.told_runs import Hands, fine, finished, in_doubt, server_of

EVIL = "\x1b[31mred\x1b[0m [bold]x[/bold] \u202egnp \x07\x9b2J"

# ---------------------------------------------------------------- ls


def test_ls_shows_how_each_run_stands(cli: Any, keeper: Keeper) -> None:
    """Status, owner or free, records, steps done, in doubt, restarts and age; a prefix chooses; a halt is marked."""
    finished(keeper)
    in_doubt(keeper)
    keeper.halt("order/o-2*", "incident")
    with keeper.run("mail", id="m/1", ttl=5) as run:
        run.do("send", fine, 1)
        lines = cli("runs", "ls").out.splitlines()
        assert lines[0].split() == ["RUN", "STATUS", "OWNER", "RECORDS", "DONE", "IN", "DOUBT", "RESTARTS", "AGE"]
        assert lines[1].split()[:6] == ["mail/m%2F1", "running", "worker-1", "3", "1", "0"]
        assert lines[2].split()[:7] == ["order/o-1", "finished", "free", "8", "2", "0", "0"]
        assert lines[3].split()[:9] == ["order/o-2", "in", "doubt,", "halted", "free", "9", "1", "1", "1"]
        assert len(lines) == 4
        assert [line.split()[0] for line in cli("runs", "ls", "order/o-").out.splitlines()[1:]] == [
            "order/o-1",
            "order/o-2",
        ]
    assert cli("runs", "ls", "nothing").out == ""


def test_ls_as_json(cli: Any, keeper: Keeper) -> None:
    """The same for programs: numbers, the owner's token as text, null for nobody."""
    in_doubt(keeper)
    (one,) = cli("runs", "ls", "-o", "json").json
    expected = {
        "run": "order/o-2",
        "status": "in_doubt",
        "owner": None,
        "token": None,
        "halted": None,
        "in_doubt": ["charge"],
    }
    assert {name: one[name] for name in expected} == expected
    assert (one["seq"], one["steps_done"], one["restarts"], one["generation"]) == (9, 1, 1, 1)


def test_ls_shows_what_needs_a_person(
    cli: Any, keeper: Keeper, raw: RawEtcd, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ended the last life of a run that nobody owns is told, page by page; --stuck leaves what goes on by itself out."""
    monkeypatch.setattr(run_look, "RUNS", 3)

    def ended(name: str, error: BaseException) -> None:
        with ends_with(type(error)), keeper.run("order", id=name, ttl=5) as run:
            run.do("a", fine, 1)
            raise error

    in_doubt(keeper)
    finished(keeper, "o-3")
    finished(keeper, "o-1")
    raw.put(f"{hands.root}head", "damaged")
    ended("p-1", CorruptState(where="ck", why="wrong digest"))
    ended("p-2", ConnectionError("reset"))
    ended("p-3", KeyError("cents"))
    ended("p-4", Conflict(run="order/p-4", step="a"))
    ended("p-5", ValueError("x"))
    raw.put(f"{Hands(raw, hands.namespace, 'order/p-5').root}r/000000000004", "damaged")
    assert keeper.begin("order", id="p-6")
    with keeper.run("order", id="p-7", ttl=5):
        found = {one["run"]: one for one in cli("runs", "ls", "-o", "json").json}
        stuck = [one["run"] for one in cli("runs", "ls", "--stuck", "-o", "json").json]
        lines = {line.split()[0]: line for line in cli("runs", "ls").out.splitlines()}
    assert stuck == [f"order/{name}" for name in ("o-1", "o-2", "p-1", "p-3", "p-4", "p-5")]
    assert {name for name, one in found.items() if one["stuck"]} == set(stuck)
    ends = {name[6:]: (one["status"], one["last"], one["error"]) for name, one in found.items()}
    assert ends["p-1"] == ("running", "failed", "CorruptState")
    assert ends["p-5"] == ("running", "unreadable", "unreadable")
    assert ends["p-6"] == ("running", "opened", None)
    assert ends["p-7"] == ("running", None, None), "whoever owns it is at it"
    assert ends["o-3"] == ("finished", None, None)
    for name, status in (("p-1", "stopped: CorruptState"), ("p-2", "stopped: ConnectionError"), ("p-6", "running")):
        assert status in lines[f"order/{name}"]
    only = cli("runs", "ls", "--stuck", "order/o-3")
    assert (only.code, only.out) == (0, "")
    assert "there is no run that needs a person whose name begins with" in only.err


def test_ls_reads_page_by_page(cli: Any, keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs with more keys than a page has, and more runs than a page has, are each listed once, in order."""
    monkeypatch.setattr(run_look, "RUNS", 3)
    monkeypatch.setattr(run_look, "KEYS", 4)
    names = [f"o-{number}" for number in range(8)]
    for number, name in enumerate(names):
        finished(keeper, name, steps=number % 4)
    assert [one["run"] for one in cli("runs", "ls", "-o", "json").json] == [f"order/{name}" for name in names]


def test_what_cannot_be_read_does_not_hide_the_rest(cli: Any, keeper: Keeper, raw: RawEtcd, hands: Hands) -> None:
    """A damaged head, a run without one, and keys that are none of a run are listed as such; the others as ever."""
    for name in ("o-1", "o-3", "o-4"):
        finished(keeper, name)
    raw.put(f"{hands.root}head", '{"body":{}}')
    raw.delete(Hands(raw, hands.namespace, "order/o-3").root + "head")
    raw.put(f"leasekeeper/{hands.namespace}/run/stray", EVIL)
    raw.put(f"leasekeeper/{hands.namespace}/run/a%41/b/head", "x")
    raw.put(f"leasekeeper/{hands.namespace}/epoch", "no epoch")
    raw.put(f"leasekeeper/{hands.namespace}/identity", "no identity")
    assert cli("runs", "show", "order/o-4").code == 0
    done = cli("runs", "ls")
    assert done.code == 0
    found = {one["run"]: one for one in cli("runs", "ls", "-o", "json").json}
    assert found["order/o-1"]["status"] is None
    assert "cannot be trusted" in found["order/o-1"]["unreadable"]
    assert found["order/o-3"]["unreadable"] == "it has no head"
    assert found["order/o-4"]["status"] == "finished"
    assert {name for name in found if name not in ("order/o-1", "order/o-3", "order/o-4")} == {"stray", "a%41/b/head"}
    assert "unreadable: its head cannot be trusted" in done.out


def test_nothing_is_done(cli: Any) -> None:
    """No runs is an answer: 0, nothing on stdout, a note for people."""
    done = cli("runs", "ls")
    assert (done.code, done.out) == (0, "")
    assert "there is no run here" in done.err


# ---------------------------------------------------------------- show


def test_show_has_the_full_history(cli: Any, keeper: Keeper) -> None:
    """A1: records with time, kind, step, life; lives with token and who took over; steps; checkpoints."""
    finished(keeper, input={"id": 1})
    in_doubt(keeper)
    shown = cli("runs", "show", "order/o-1").out
    assert "status      finished" in shown
    assert 'input       {"id":1}' in shown
    assert cli("runs", "show", "order/o-1", "-o", "json").json["input"] == {"id": 1}
    assert "outcome     step-0" in shown
    assert '{"value": 0}' in shown
    assert "state       dict v1" in shown
    two = cli("runs", "show", "order/o-2", "-o", "json").json
    assert [record["kind"] for record in two["records"]] == [
        *("opened", "intent", "outcome", "intent", "raised", "failed"),
        *("opened", "in_doubt", "alerted"),
    ]
    first, second = two["lives"]
    assert second["took_over_from"] == first["token"]
    assert (first["first"], first["last"], first["end"]) == (1, 6, "failed: Boom: reset by peer")
    steps = {step["step"]: step for step in two["steps"]}
    assert (steps["charge"]["state"], steps["charge"]["intent"], steps["fetch"]["state"]) == ("in_doubt", 4, "done")
    assert two["records"][8]["hash"] == two["hash"]


def test_show_from_a_host_that_never_saw_it(etcd: EtcdServer, namespace: str, tmp_path: Path) -> None:
    """A1: kill -9 in a step; another process, which has nothing but etcd, shows all of it, and the bytes verify."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    words = [sys.executable, "-m", "tests.programs.killed_run", etcd.endpoint, namespace]
    lives = [
        subprocess.run([*words, holder], env=env, cwd=ROOT, capture_output=True, check=False, timeout=50)
        for holder in ("first", "second")
    ]
    assert [life.returncode for life in lives] == [-signal.SIGKILL, 78]
    elsewhere = {**env, "LEASEKEEPER_ENDPOINTS": etcd.endpoint, "LEASEKEEPER_NAMESPACE": namespace}
    ask = [sys.executable, "-m", "leasekeeper", "runs"]
    shown = subprocess.run(
        [*ask, "show", "order/order-42"], env=elsewhere, capture_output=True, text=True, check=True, timeout=50
    )
    assert "no word of it" in shown.stdout
    assert "attempt 1 of charge" in shown.stdout
    told = subprocess.run(
        [*ask, "explain", "order/order-42"], env=elsewhere, capture_output=True, text=True, check=True, timeout=50
    ).stdout
    assert "is in doubt: nobody can tell whether 'charge' happened" in told
    assert "life 1, which began it, left no word of its end: killed, frozen, or cut off from etcd" in told
    subprocess.run([*ask, "verify", "order/order-42"], env=elsewhere, check=True, capture_output=True, timeout=50)


def test_show_of_nothing(cli: Any) -> None:
    """What is not there is a negative answer, for people and programs."""
    for command in ("show", "explain"):
        assert cli("runs", command, "order/none").code == 1
    assert cli("runs", "show", "order/none", "-o", "json").json["records"] == []


def test_damage_is_shown_in_its_place(cli: Any, keeper: Keeper, raw: RawEtcd, hands: Hands) -> None:
    """A record, a step and a checkpoint that cannot be read are shown as such, and all the others as ever."""
    finished(keeper)
    raw.put(hands.key(3), "no receipt")
    raw.put(f"{hands.root}step/step-1", "no step")
    raw.put(f"{hands.root}ck/state", "no checkpoint")
    raw.put(f"{hands.root}late/000000000002/x", "no receipt")
    done = cli("runs", "show", "order/o-1")
    assert done.code == 0
    shown = cli("runs", "show", "order/o-1", "-o", "json").json
    assert [record["seq"] for record in shown["records"] if record["unreadable"]] == [3]
    assert len(shown["records"]) == 8
    assert {step["step"]: step["unreadable"] is not None for step in shown["steps"]} == {
        "step-0": False,
        "step-1": True,
    }
    assert {one["name"]: one["data"] for one in shown["checkpoints"]}["state"] is None
    assert [(one["about"], one["kind"]) for one in shown["late"]] == [(2, None)]


def test_nothing_stored_acts_on_the_terminal(cli: Any, keeper: Keeper, raw: RawEtcd, hands: Hands) -> None:
    """Results, checkpoints, steps, errors, reasons and odd keys with control characters are shown as escapes everywhere."""
    with keeper.run("order", id="o-1", ttl=5) as run:
        run.do(EVIL.replace("\x1b", "").replace("\x07", "").replace("\x9b", ""), fine, EVIL)
        run.checkpoint("state", dict).put({"x": EVIL})
    raw.put(f"{hands.root}step/{EVIL}", EVIL)
    raw.put(f"{hands.root}ck/{EVIL}", EVIL)
    raw.put(f"leasekeeper/{hands.namespace}/halt/{EVIL}", EVIL)
    raw.put(f"leasekeeper/{hands.namespace}/run/{EVIL}/x/head", EVIL)
    for words in (
        ("runs", "ls"),
        ("runs", "show", "order/o-1"),
        ("runs", "explain", "order/o-1"),
        ("runs", "verify", "order/o-1"),
        ("runs", "state", "order/o-1"),
        ("halt", "--list"),
    ):
        done = cli(*words)
        assert all(line.isprintable() for line in (done.out + done.err).splitlines()), words
        assert done.out


def test_the_namespaces_secret_is_in_no_output(
    cli: Any, keeper: Keeper, raw: RawEtcd, namespace: str, tmp_path: Path
) -> None:
    """What idempotency keys are made of never leaves etcd by any command, nor by an export."""
    finished(keeper)
    secret = json.loads(raw.keys(f"leasekeeper/{namespace}/identity")[0].value)["body"]["secret"]
    out = tmp_path / "o.jsonl"
    cli("runs", "export", "order/o-1", "--out", str(out))
    told = "".join(
        cli("runs", *words, "-o", form).out for words in (("ls",), ("show", "order/o-1")) for form in ("table", "json")
    )
    told += cli("runs", "explain", "order/o-1", "-o", "json").out + cli("runs", "verify", "order/o-1", "-o", "json").out
    assert secret not in told + out.read_text()


# ---------------------------------------------------------------- explain


def test_explain_as_json(cli: Any, keeper: Keeper) -> None:
    """B3: the step in doubt with its intent, attempts, key and cause, beside the very lines that people see."""
    in_doubt(keeper)
    told = cli("runs", "explain", "order/o-2", "-o", "json").json
    (doubt,) = told["in_doubt"]
    assert (doubt["step"], doubt["intent"], doubt["attempts"]) == ("charge", 4, 1)
    assert "no preflight" in doubt["why"]
    assert [error["what"] for error in told["errors"]] == ["Boom: reset by peer"] * 2
    assert told["lines"] == cli("runs", "explain", "order/o-2").out.splitlines()


def test_the_command_to_copy_goes_to_the_same_etcd(cli: Any, keeper: Keeper, etcd: EtcdServer, namespace: str) -> None:
    """The command that it offers has the options that it was given, and works when it is copied."""
    in_doubt(keeper)
    words = ("--endpoints", etcd.endpoint, "--namespace", namespace)
    told = call("runs", "explain", "order/o-2", *words).out
    (line,) = [line.strip() for line in told.splitlines() if "--not-applied" in line]
    done = subprocess.run(
        line.replace("leasekeeper", f"{sys.executable} -m leasekeeper", 1).replace("WHAT YOU SAW", "no mail went out"),
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert keeper.run("order", id="o-2", ttl=5) is not None
    with keeper.run("order", id="o-2", ttl=5) as run:
        assert run.do("charge", fine_again) == "done"


def fine_again() -> str:
    """The effect, mended."""
    return "done"


# ---------------------------------------------------------------- meanwhile, and too late


def test_a_run_being_worked_on_is_shown_whole(cli: Any, keeper: Keeper) -> None:
    """While its owner adds records, each look is of one moment: the head names the last record that is shown."""
    with keeper.run("order", id="o-1", ttl=5) as run:
        for number in range(20):
            run.do(f"s-{number}", fine, number)
            if number % 5 == 0:
                shown = cli("runs", "show", "order/o-1", "-o", "json").json
                assert shown["records"][-1]["seq"] == shown["seq"] == 1 + 2 * (number + 1)
                assert shown["owner"] == "worker-1"
                assert cli("runs", "verify", "order/o-1").code == 0


@pytest.mark.parametrize(
    "words", [("show",), ("show", "-o", "json"), ("explain",), ("verify",), ("state",)], ids="-".join
)
def test_compaction_while_it_is_read(
    cli: Any, keeper: Keeper, raw: RawEtcd, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Where etcd compacts away the revision at which a run is being read, it is read anew, and printed once."""
    finished(keeper)
    expected = cli("runs", words[0], "order/o-1", *words[1:])
    monkeypatch.setattr(run_look, "RECORDS", 3)
    page = run_look.record_page
    compacted: list[bool] = []

    def compacting(*args: Any) -> Any:
        found = yield from page(*args)
        if not compacted:
            raw.compact()
            compacted.append(True)
        return found

    monkeypatch.setattr("leasekeeper.cli.runs.source.record_page", compacting)
    assert cli("runs", words[0], "order/o-1", *words[1:]) == expected
    assert compacted


def test_late_evidence_is_shown(cli: Any, etcd: EtcdServer, namespace: str, raw: RawEtcd) -> None:
    """What an owner saw after its claim was deleted is shown as a hint, by show and explain; the step stays open."""
    with server_of(etcd, namespace) as keeper:

        def slow() -> dict[str, int]:
            for key in raw.claims(namespace):
                raw.delete(key.key)
            return {"id": 7}

        with pytest.raises(LeaseLost), keeper.run("order", id="o-1", ttl=5) as run:
            run.do("charge", slow)
    shown = until(lambda: cli("runs", "show", "order/o-1", "-o", "json").json["late"])
    assert [(one["kind"], one["step"], one["data"]["result"]) for one in shown] == [("outcome", "charge", {"id": 7})]
    told = cli("runs", "explain", "order/o-1").out
    assert "EVIDENCE THAT CAME TOO LATE" in told
    assert 'the result {"id": 7}' in told
    assert "begun, and not known how it ended: 1 step: charge" in told
