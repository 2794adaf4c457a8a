"""leasekeeper beside other Python clients of etcd, of which no two can be imported together: it can, with each of them.

Runs on the interpreter that LEASEKEEPER_PEERS names, where the dependency group ``peers`` is installed; else on this one, if
it has what is needed.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leasekeeper.testing import EtcdServer

ROOT = Path(__file__).parents[2]
PEERS = ["etcd3", "pyetcd", "aetcd", "etcd3aio"]

pytestmark = [pytest.mark.peers, pytest.mark.timeout(120)]


def python() -> str:
    """The interpreter that has the peers."""
    return os.environ.get("LEASEKEEPER_PEERS", sys.executable)


@functools.cache
def missing() -> set[str]:
    """The peers that cannot be found there."""
    probe = f"import importlib.util as u; print(*(p for p in {PEERS} if u.find_spec(p) is None))"
    found = subprocess.run([python(), "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    return set(found.stdout.split())


def beside(peer: str, etcd: EtcdServer, namespace: str, *, first: str, lend: bool = False) -> dict[str, Any]:
    """What the program in ``tests/programs/beside.py`` reports of one peer."""
    if peer in missing():
        pytest.skip(f"no {peer} here: pip install --group peers, or name an interpreter in LEASEKEEPER_PEERS")
    given = {
        "peer": peer,
        "first": first,
        "lend": lend,
        "endpoint": etcd.endpoint,
        "namespace": namespace,
        "ttl": 2,
    }
    done = subprocess.run(
        [python(), "-m", "tests.programs.beside", json.dumps(given)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return {key: value for key, value in report.items() if key not in ("event", "at")}


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("first", ["peer", "leasekeeper"])
def test_beside_another_client(etcd: EtcdServer, namespace: str, peer: str, first: str) -> None:
    """Whichever is imported first, both do their work in one process, and a lease is held for longer than its TTL."""
    report = beside(peer, etcd, namespace, first=first)
    assert report == {"works": [True, True, True], "held": True, "state": "RELEASED"}


@pytest.mark.parametrize("peer", ["etcd3", "pyetcd"])
@pytest.mark.parametrize("first", ["peer", "leasekeeper"])
def test_a_channel_that_is_lent(etcd: EtcdServer, namespace: str, peer: str, first: str) -> None:
    """On a peer's own channel leases are acquired, held, waited for and released; closing the keeper leaves it usable."""
    report = beside(peer, etcd, namespace, first=first, lend=True)
    assert report == dict.fromkeys(("held", "written", "same_compare", "handed_over", "refused", "usable"), True)
