"""Replicas of two versions of a program on one run, each a process of its own that dies with it in its hands."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

import pytest

from leasekeeper.protocol.chain import verify_chain
from leasekeeper.protocol.keys import Keys
from leasekeeper.protocol.run_keys import RunKeys, RunName
from leasekeeper.protocol.schema import read_envelope
from leasekeeper.testing import EtcdServer
from tests.program import Program
from tests.programs.upgraded import STEPS
from tests.raw import RawEtcd

TTL_S = 2.0


@dataclass
class Rollout:
    """One run, and the replicas that go on with it in turn."""

    etcd: EtcdServer
    namespace: str
    raw: RawEtcd

    def replica(self, version: int, **told: Any) -> Program:
        """One life of the run: reports and how it ended, once it has."""
        options = {
            "endpoint": self.etcd.endpoint,
            "namespace": self.namespace,
            "ttl": TTL_S,
            "version": version,
            **told,
        }
        with Program("upgraded", **options) as program:
            program.end(60)
            return program

    def stored(self) -> dict[str, bytes]:
        """Where the state is, and what it was before a migration; by their place below the run's checkpoints."""
        prefix = RunKeys(Keys(self.namespace), RunName("order", "1")).checkpoints.decode()
        return {key.key.removeprefix(prefix): key.value for key in self.raw.keys(prefix)}

    def state(self) -> tuple[int, dict[str, Any]]:
        """Version and data of the state as it stands."""
        found = read_envelope(self.stored()["state"], "state")
        return found.version, found.data

    def is_whole(self) -> bool:
        """Whether the run's records are a good chain, whoever wrote them."""
        keys = RunKeys(Keys(self.namespace), RunName("order", "1"))
        stored = sorted((key.key, key.value) for key in self.raw.keys(keys.records.decode()))
        return verify_chain([(seq, each) for seq, (_, each) in enumerate(stored, 1)]).ok


@pytest.fixture
def rollout(etcd: EtcdServer, namespace: str, raw: RawEtcd) -> Rollout:
    """A run of a namespace of its own."""
    return Rollout(etcd, namespace, raw)


def killed(program: Program) -> bool:
    """Whether it has not ended by itself."""
    assert program.end() == -signal.SIGKILL, (program.reports, program.errors)
    return True


@pytest.mark.timeout(120)
def test_a_rolling_upgrade(rollout: Rollout) -> None:
    """B17, B19: replicas of two versions take a run over from each other while the newer one is pinned; then the pin goes.

    From then on the older one refuses, calls nothing and writes no state; what was there before the migration is kept.
    """
    lives: list[Program] = []
    for version, pin in ((1, None), (2, 1), (1, None), (2, 1)):
        lives.append(rollout.replica(version, steps=1, **({} if pin is None else {"pin": pin})))
        assert killed(lives[-1]), lives[-1].reports
        assert rollout.state() == (1, {"attempts": len(lives)})
    assert lives[2].all("read")[0]["state"] == {"attempts": 2}  # of what a pinned writer of version 2 has left
    assert lives[3].all("read")[0]["state"] == {"tries": 3, "by": "card"}
    assert set(rollout.stored()) == {"state"}

    before = rollout.stored()["state"]
    assert killed(rollout.replica(2, steps=0))  # without a pin: what it reads it writes back in its own version
    assert rollout.state() == (2, {"tries": 4, "by": "card"})
    assert rollout.stored()["state/old/1"] == before

    now = rollout.stored()
    older = rollout.replica(1)
    assert older.all("ended")[0]["error"] == "SchemaTooNew"
    assert "deploy the newer program" in older.all("ended")[0]["text"]
    assert older.all("did") == []
    assert rollout.stored() == now

    last = rollout.replica(2)
    assert last.all("ended") == [{**last.all("ended")[0], "error": None}]
    assert rollout.state() == (2, {"tries": len(STEPS), "by": "card"})
    done = [report["step"] for program in (*lives, last) for report in program.all("did")]
    assert done == list(STEPS)  # each once, whoever did it
    assert rollout.is_whole()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("crash", "migrated"),
    [
        ({"kill_at": "checkpoint:send"}, False),
        ({"dies_migrating": True}, False),
        ({"kill_at": "checkpoint:reply"}, True),
    ],
    ids=["before", "in the migration", "after"],
)
def test_a_crash_around_a_migration(rollout: Rollout, crash: dict[str, Any], migrated: bool) -> None:
    """B18: killed before or in a migration, the old state is intact and its program goes on; after it, all of it is there."""
    assert killed(rollout.replica(1, steps=2))
    before = rollout.stored()
    assert killed(rollout.replica(2, **crash))
    if migrated:
        assert rollout.state() == (2, {"tries": 2, "by": "card"})
        assert rollout.stored()["state/old/1"] == before["state"]
    else:
        assert rollout.stored() == before
        assert killed(rollout.replica(1, steps=1))
        assert rollout.state() == (1, {"attempts": 3})
    last = rollout.replica(2)
    assert last.all("ended")[0]["error"] is None
    assert rollout.state() == (2, {"tries": len(STEPS), "by": "card"})
    assert rollout.is_whole()
