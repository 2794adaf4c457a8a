"""A fork inside of a run: the child, in which the lease is LOST, writes nothing in the name of its parent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leasekeeper import InDoubt, Keeper
from leasekeeper.testing import EtcdServer
from leasekeeper.testing.outside import records_of
from tests.effects import ends_with

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.timeout(120),
]

PROGRAM = """
import os, signal, sys
from leasekeeper import Keeper, LeaseLost, NotApplied
endpoint, namespace, what, calls = sys.argv[1:]

def call():
    with open(calls, "a") as file:
        file.write("called\\n")

def forks():
    call()
    here.append(os.fork())
    if not here[0]:
        raise NotApplied("says the child")
    os.waitpid(here[0], 0)
    os.kill(os.getpid(), signal.SIGKILL)

here = []
keeper = Keeper(endpoint, namespace=namespace)
try:
    with keeper.run("order", id="1", signer=None, ttl=2) as run:
        run.do("a", call)
        if what == "call":
            run.do("b", forks)
        here.append(os.fork())
        if not here[0] and what == "error":
            raise KeyError("in the child")
        if here[0]:
            print("child", os.waitstatus_to_exitcode(os.waitpid(here[0], 0)[1]), flush=True)
            run.do("b", call)
except LeaseLost as lost:
    os._exit(7 if lost.reason == "forked" else 8)
except KeyError as error:
    os._exit(6 if isinstance(error.__context__, LeaseLost) else 9)
except NotApplied:
    os._exit(5)
print("parent ends", flush=True)
keeper.close()
"""


def lives(etcd: EtcdServer, namespace: str, what: str, calls: Path) -> subprocess.CompletedProcess[str]:
    """A life of the run in a program that forks."""
    words = [sys.executable, "-c", PROGRAM, etcd.endpoint, namespace, what, str(calls)]
    return subprocess.run(words, capture_output=True, text=True, timeout=90, check=False)


@pytest.mark.parametrize(("what", "code"), [("end", 7), ("error", 6)])
def test_a_child_leaves_the_block(etcd: EtcdServer, namespace: str, tmp_path: Path, what: str, code: int) -> None:
    """Well or by an error: it is told that its lease is lost, and the run is its parent's, who goes on and finishes it."""
    done = lives(etcd, namespace, what, tmp_path / "calls")
    assert done.stdout.split("\n")[:2] == [f"child {code}", "parent ends"], done.stderr
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        kinds = [receipt.kind for receipt in records_of(keeper, "order", "1")]
    assert kinds == ["opened", "intent", "outcome", "intent", "outcome", "finished"]


def test_a_child_says_that_its_parents_call_was_not_applied(etcd: EtcdServer, namespace: str, tmp_path: Path) -> None:
    """The parent makes the call and is killed: what the child raised is no word on it, so the next life is in doubt."""
    calls = tmp_path / "calls"
    lives(etcd, namespace, "call", calls)
    assert calls.read_text() == "called\ncalled\n"  # "a" and "b"
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        assert [receipt.kind for receipt in records_of(keeper, "order", "1")][-1] == "intent"
        with ends_with(InDoubt), keeper.run("order", id="1", signer=None, ttl=2, timeout=30) as run:
            run.do("b", lambda: None)
