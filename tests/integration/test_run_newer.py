"""A newer leasekeeper has written to a run: this one says so by name, writes nothing, and goes on with all that it can read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from leasekeeper import Keeper, Quarantined, SchemaTooNew
from leasekeeper.protocol import run_keys
from leasekeeper.protocol.head import read_head
from leasekeeper.protocol.keys import Keys
from leasekeeper.protocol.receipt import digest, seal, signed_part
from leasekeeper.protocol.run_keys import RunKeys, RunName
from leasekeeper.runs.alert import Alert
from leasekeeper.runs.run import Run
from leasekeeper.testing import EtcdServer
from tests.commands import Ended, call
from tests.raw import RawEtcd
from tests.support import until

WHAT = ["meta", "head", "record", "step", "identity"]


@dataclass(frozen=True)
class Later:
    """A state as a newer program has it."""

    schema: ClassVar[str] = "State"
    version: ClassVar[int] = 2
    min_reader: ClassVar[int] = 2
    oldest: ClassVar[int] = 2
    paid: int = 0
    by: str = ""


@dataclass(frozen=True)
class State:
    """The same as this program has it."""

    version: ClassVar[int] = 1
    paid: int = 0


def newer(sealed: bytes) -> bytes:
    """The same in format 2, sealed as it should be."""
    body = json.loads(signed_part(sealed))
    changed = json.dumps({**body, "v": 2}, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return seal(changed.encode(), None)


def upgraded(run: Run) -> None:
    """A newer program that dies with the run in its hands."""
    run.checkpoint("state", Later).commit(paid=7, by="newer")
    raise KeyError


@dataclass
class Place:
    """A namespace in which a run has died in its second step, and what a newer program has made of it."""

    etcd: EtcdServer
    raw: RawEtcd
    keeper: Keeper
    namespace: str
    called: list[str]

    @property
    def keys(self) -> RunKeys:
        """The run's keys."""
        return RunKeys(Keys(self.namespace), RunName("order", "1"))

    def program(self, run: Run) -> None:
        """Two steps."""
        for step in ("one", "two"):
            run.do(step, self._call, step)

    def _call(self, step: str) -> str:
        self.called.append(step)
        if step == "two" and self.called == ["one", "two"]:
            raise KeyError(step)
        return step

    def begin(self) -> None:
        """The life that dies."""
        with pytest.raises(KeyError), self.keeper.run("order", id="1", signer=None) as run:
            self.program(run)
        self.called.clear()

    def make_newer(self, what: str) -> None:
        """One of the keys in format 2; the last record with all that belongs to it."""
        keys, stored = self.keys, self.stored()
        head = read_head(stored[keys.head.decode()], "head")
        at = {
            "meta": keys.meta,
            "head": keys.head,
            "record": keys.record(head.seq),
            "step": keys.step("two"),
            "identity": run_keys.identity(keys.keys),
        }[what].decode()
        changed = newer(stored[at])
        self.raw.put(at, changed)
        if what == "record":
            self.raw.put(keys.head.decode(), head._replace(hash=digest(changed)).stored())

    def stored(self) -> dict[str, bytes]:
        """All that stands in the namespace but claims."""
        found = self.raw.keys(f"leasekeeper/{self.namespace}/")
        return {key.key: key.value for key in found if "/lease/" not in key.key}

    def command(self, *args: str) -> Ended:
        """The command line."""
        return call(*args, endpoint=self.etcd.endpoint, namespace=self.namespace)


@pytest.fixture
def place(etcd: EtcdServer, raw: RawEtcd, namespace: str) -> Iterator[Place]:
    """Such a namespace."""
    with Keeper(etcd.endpoint, namespace=namespace) as keeper:
        made = Place(etcd, raw, keeper, namespace, [])
        made.begin()
        yield made


@pytest.mark.parametrize("what", WHAT)
def test_a_program_refuses_by_name_and_writes_nothing(place: Place, what: str) -> None:
    """B17: SchemaTooNew says which record, which format and what to do; no effect runs, nothing is written."""
    place.make_newer(what)
    before = place.stored()
    for _ in range(2):
        with pytest.raises(SchemaTooNew, match="newer leasekeeper") as told:
            place.keeper.run("order", id="1", signer=None).__enter__()
        assert (told.value.version, told.value.reads) == (2, 1)
        assert place.namespace in told.value.where
    assert place.stored() == before
    assert place.called == []


@pytest.mark.parametrize("what", WHAT)
def test_a_worker_passes_over_it(place: Place, what: str) -> None:
    """B20: a worker neither ends nor loops on such a run, writes nothing to it, and does the runs that it can read."""
    place.make_newer(what)
    before = place.stored()
    tries: list[str] = []

    def watched(run: Run) -> None:
        tries.append(run.id)

    other = f"{place.namespace}-other"  # where the identity is what is newer, nothing of the namespace can be read
    with Keeper(place.etcd.endpoint, namespace=other if what == "identity" else place.namespace) as keeper:
        with pytest.raises(KeyError), keeper.run("order", id="2", signer=None):
            raise KeyError
        with keeper.worker({"order": watched}, every=0.05, signer=None) as worker:
            until(lambda: worker.finished == 1)
            if what != "identity":
                until(lambda: worker.failed >= 2 or what == "head")
    with place.keeper.worker({"order": watched}, every=0.05, signer=None) as worker:
        until(lambda: worker.failed >= 2 or what == "head")
        assert worker.finished == 0
    assert tries == ["2"]
    mine = {key: value for key, value in place.stored().items() if "/order/2" not in key}
    assert mine == before


@pytest.mark.parametrize("what", WHAT)
def test_commands_tell_it(place: Place, what: str) -> None:
    """B17: looking never fails on it and says what it is; what would write is refused in one line, and nothing is written."""
    place.make_newer(what)
    before = place.stored()
    assert place.command("runs", "ls").code == 0
    shown = place.command("runs", "show", "order/1")
    assert shown.code == 0
    verified = place.command("runs", "verify", "order/1")
    if what != "identity":
        assert "newer leasekeeper" in shown.out + verified.out
        assert verified.code == 1
    assert "corrupt" not in shown.out + verified.out
    assert place.command("runs", "explain", "order/1").code in (0, 1)
    if what not in ("meta", "record"):  # an operator's word needs neither
        refused = place.command("runs", "resolve", "order/1", "two", "--applied", "--evidence", "seen")
        assert refused.code == 2, refused
        assert "newer leasekeeper" in refused.err
        assert refused.err.count("\n") == 1
    assert place.stored() == before


def test_a_state_of_an_unknown_version_is_put_aside(place: Place) -> None:
    """B20: a state of a version that a worker's code does not know ends in quarantine, told once; no loop, and no write."""
    with pytest.raises(KeyError), place.keeper.run("later", id="1", signer=None) as run:
        upgraded(run)
    key = RunKeys(Keys(place.namespace), RunName("later", "1")).checkpoint("state").decode()
    before = place.stored()[key]
    alerts: list[Alert] = []
    tries: list[str] = []

    def main(run: Run) -> None:
        tries.append(run.id)
        run.checkpoint("state", State)

    asked: dict[str, Any] = {"signer": None, "restarts": 2, "alert": alerts.append}
    with place.keeper.worker({"later": main}, every=0.05, **asked):
        until(lambda: alerts)
    assert [alert.kind for alert in alerts] == ["quarantined"]
    assert len(tries) == 2
    assert place.stored()[key] == before
    with pytest.raises(Quarantined), place.keeper.run("later", id="1", signer=None):
        pass
    assert len(alerts) == 1
