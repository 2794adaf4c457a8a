"""Forks: the parent is untouched, and in a child every inherited lease is LOST, whoever forked and however it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.testing import EtcdServer, FaultProxy
from tests.raw import RawEtcd

ROOT = Path(__file__).parents[2]
TTL_S = 3.0

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.usefixtures("mark"),
    pytest.mark.timeout(120),
]

LOST = {
    "state": "LOST",
    "reason": "forked",
    "remaining": 0.0,
    "check": "LeaseLost forked",
    "wait": "LeaseLost forked",
    "deadline_over": True,
    "release": "returned None",
    "acquire": "Misuse",
    "claims": "Misuse",
    "close": "returned None",
}


class Reports:
    """What a program of `tests.programs.forks` said, and what it wrote to stderr."""

    def __init__(self, lines: str, errors: str) -> None:
        self._all = [json.loads(line) for line in lines.splitlines()]
        self.errors = errors

    def all(self, event: str) -> list[dict[str, Any]]:
        """Every report of one kind, without its kind and time."""
        return [{k: v for k, v in r.items() if k not in ("event", "at")} for r in self._all if r["event"] == event]

    def the(self, event: str) -> dict[str, Any]:
        """The one report of a kind."""
        (found,) = self.all(event)
        return found


@pytest.fixture
def fork(etcd: EtcdServer, namespace: str) -> Callable[..., Reports]:
    """Runs a scenario to its end."""

    def run(
        scenario: str, *, program: str = "forks", environment: dict[str, str] | None = None, **given: Any
    ) -> Reports:
        given = {"endpoint": etcd.endpoint, "namespace": namespace, "ttl": TTL_S, **given, "scenario": scenario}
        done = subprocess.run(
            [sys.executable, "-m", f"tests.programs.{program}", json.dumps(given)],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return Reports(done.stdout, done.stderr)

    return run


def test_inherited_leases_are_lost_and_the_parents_goes_on(
    fork: Callable[..., Reports], proxy: FaultProxy, namespace: str, etcd: EtcdServer
) -> None:
    """Children that look, leave the with block and end by os._exit, sys.exit or a crash change nothing for the parent."""
    doors = ["_exit", "exit", "crash"]
    told = fork("inherited", endpoint=proxy.endpoint, doors=doors)
    children = told.all("child")
    assert children == [{"door": door, **LOST} for door in doors]
    assert told.all("left") == [{"door": door, "left": "LeaseLost forked"} for door in doors]
    parent = told.the("parent")
    assert parent["statuses"] == [0, 0, 1]
    assert parent["states"] == ["HELD"]
    assert parent["changes"] == []
    assert parent["verified"]
    assert told.the("checked")["token"] == told.the("acquired")["token"]
    assert told.the("released")["state"] == "RELEASED"
    assert told.errors.count("Traceback") == 1  # that of the crash
    # Calls, beats, watches and clean-ups have a connection each, and a missed beat another. A busy machine may cost a quiet
    # watch its connection; a child that closes its parent's would have cost three: of calls, beats and watches.
    assert proxy.counts.connections < 4 + 3 + parent["missed"]
    assert not RawEtcd(etcd.endpoint).claims(namespace)


def test_a_fork_that_python_is_not_told_of(fork: Callable[..., Reports]) -> None:
    """After a fork by C code the first check in the child, and in its child, says LOST; a dropped handle removes no claim."""
    told = fork("unnoticed")
    assert told.the("first") == {"check": "LeaseLost forked"}
    assert told.the("child") == LOST
    assert told.the("grandchild") == LOST
    assert told.the("grandchild_ended") == {"status": 0}
    assert told.the("parent") == {"statuses": [0, 0], "states": ["HELD"], "dropped": "HELD"}
    assert told.the("verified") == {"both": True}
    assert "Traceback" not in told.errors


def test_held_locks_do_not_hang_a_child(fork: Callable[..., Reports]) -> None:
    """A child forked while every lock of its keeper is held looks, releases, closes and leaves all the same."""
    told = fork("", program="forks_locked")
    assert told.the("locks")["count"] >= 5
    assert told.the("child") == LOST
    assert "this is a child process" in told.the("left")["error"]
    assert told.the("parent") == {"status": 0, "check": True}


def test_a_child_of_a_process_at_work(fork: Callable[..., Reports]) -> None:
    """Children forked in the middle of other threads' work look at leases, release, close and end, each within its time."""
    # What gRPC itself does at a fork in the middle of calls is not ours to test.
    told = fork("busy", environment={"GRPC_ENABLE_FORK_SUPPORT": "0"}, threads=4, forks=60, ttl=10.0)
    parent = told.the("parent")
    assert parent["statuses"] == [0] * 60
    assert all(rounds > 0 for rounds in parent["rounds"])
    assert parent["kept"]
    assert "Traceback" not in told.errors


def test_a_child_makes_a_keeper_of_its_own(fork: Callable[..., Reports]) -> None:
    """A new Keeper in a child acquires, and cannot have what the parent holds; ten children in a row."""
    told = fork("anew", forks=10)
    assert told.the("parent") == {"statuses": [0] * 10, "check": True}
    assert told.all("child") == [{"check": True, "taken": False, "old": "LOST"}] * 10
    assert "Traceback" not in told.errors
    # gRPC says this when a thread is inside of it at a fork, which then leaves the child a broken gRPC now and then. Here
    # only a beat can be, by chance.
    assert told.errors.count("skipping fork() handlers") < 5


def test_a_keeper_made_before_the_fork_and_not_used(fork: Callable[..., Reports]) -> None:
    """C43: A keeper made at import works in every worker that is forked later, under the worker's own name and number."""
    told = fork("unused")
    workers = told.all("worker")
    assert all(worker["check"] and worker["pid"] == worker["claimed_by"] for worker in workers)
    parent = told.the("parent")
    assert parent["statuses"] == [0, 0]
    assert parent["check"]
    assert len({parent["holder"], *(worker["holder"] for worker in workers)}) == 3
    # A connection that was lent is the parent's.
    assert told.all("lent") == [{"outcome": "Misuse"}] * 2
    assert "Traceback" not in told.errors


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_processes_of_multiprocessing(fork: Callable[..., Reports], method: str) -> None:
    """By every start method the child has a keeper of its own, and the parent's lease goes on; it cannot be sent along."""
    told = fork("processes", method=method)
    assert told.the("child") == {"check": True, "taken": False}
    assert told.all("inherited") == ([{"state": "LOST"}] if method == "fork" else [])
    assert told.the("parent") == {"status": 0, "states": ["HELD"], "check": True}
    assert ("cannot pickle" in told.the("pickled")["refused"]) == (method != "fork")
