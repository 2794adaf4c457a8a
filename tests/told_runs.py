"""Runs in a real etcd for tests of what is told of them, and hands that change them as a person with etcdctl would."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from leasekeeper import InDoubt, Keeper
from leasekeeper.protocol.receipt import digest
from leasekeeper.runs.anchor import FileAnchor
from leasekeeper.signing import Ed25519Key
from leasekeeper.testing import EtcdServer
from tests.raw import Key, RawEtcd

RUN = "order/o-1"
TTL_S = 5.0


class Boom(Exception):
    """What an effect raises."""


def fine(value: Any) -> Any:
    """An effect that works."""
    return {"value": value}


def breaks() -> None:
    """An effect that nobody knows the outcome of."""
    raise Boom("reset by peer")


def finished(keeper: Keeper, run_id: str = "o-1", steps: int = 2, **asked: Any) -> None:
    """A finished run of workflow ``order``: some steps, a checkpoint and a phase."""
    with keeper.run("order", id=run_id, ttl=TTL_S, **asked) as run:
        for number in range(steps):
            run.do(f"step-{number}", fine, number)
        run.checkpoint("state", dict).put({"paid": True})
        run.phase("goods", {"packed": ["sent"], "sent": []}).move("sent")


def in_doubt(keeper: Keeper, run_id: str = "o-2", step: str = "charge", **asked: Any) -> None:
    """A run of two lives whose step is in doubt."""
    for expected in (Boom, InDoubt):
        with pytest.raises(expected):
            _charging(keeper, run_id, step, **asked)


def _charging(keeper: Keeper, run_id: str, step: str, **asked: Any) -> None:
    with keeper.run("order", id=run_id, ttl=TTL_S, **asked) as run:
        run.do("fetch", fine, "order")
        run.do(step, breaks)


@dataclass
class Hands:
    """Somebody who may write to etcd, and does; below the keys of one run."""

    raw: RawEtcd
    namespace: str
    run: str = RUN

    @property
    def root(self) -> str:
        """The prefix of the run's keys."""
        return f"leasekeeper/{self.namespace}/run/{self.run}/"

    def key(self, seq: int) -> str:
        """A record's key."""
        return f"{self.root}r/{seq:012d}"

    def records(self) -> list[Key]:
        """The run's records, in order of their keys."""
        return sorted(self.raw.keys(f"{self.root}r/"), key=lambda key: key.key)

    def record(self, seq: int) -> str:
        """A record as it is stored."""
        return self.records()[seq - 1].value.decode()

    def value(self, name: str) -> str:
        """What stands at one key below the run."""
        return next(key.value.decode() for key in self.raw.keys(f"{self.root}{name}"))

    def set_back(self, seq: int, earlier_head: str) -> None:
        """Cut the tail off, head and all, as somebody does who knows how."""
        for number in range(seq + 1, len(self.records()) + 1):
            self.raw.delete(self.key(number))
        self.raw.put(f"{self.root}head", earlier_head)

    def forge(self, seq: int, old: str, new: str) -> str:
        """A record with other words in its body and a hash that is right: what a writer without the key can make."""
        stored = self.record(seq).replace(old, new)
        body = stored[len('{"body":') : stored.rindex(',"hash":"')]
        outer = json.loads(stored)
        tail = json.dumps(
            {"hash": digest(body.encode()), "key": outer["key"], "sig": outer["sig"]}, separators=(",", ":")
        )
        return '{"body":' + body + "," + tail[1:]


def signer(key_id: str = "k1") -> Ed25519Key:
    """A key that signs."""
    return Ed25519Key(key_id, key_id.encode() * 16)


def server_of(etcd: EtcdServer, namespace: str, **more: Any) -> Keeper:
    """A keeper on the test's namespace."""
    return Keeper(etcd.endpoint, namespace=namespace, holder="worker-1", **more)


def heads_file(anchor: FileAnchor) -> str:
    """The anchor's file."""
    return repr(anchor)[len("FileAnchor('") : -2]
