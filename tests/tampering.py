"""A run that died in its third step, and what etcd's own tools do to it: for tests of what its next owner does about that.

Everything is changed below the library, digest and all where that matters; `seal` and the records' own words are known to
everybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from leasekeeper import CorruptState, Keeper, effect
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.head import Head, read_head
from leasekeeper.protocol.keys import Keys
from leasekeeper.protocol.pointer import Pointer, read_pointer
from leasekeeper.protocol.run_keys import RunKeys, RunName
from leasekeeper.runs.run import Run
from leasekeeper.signing import HmacKey
from leasekeeper.testing import EtcdServer
from tests.raw import RawEtcd

KEY = HmacKey("k1", b"a secret that nobody else knows.")
LARGE = "x" * 100_000
RUN = RunName("order", "1")
PHASES = {"staged": ["live"], "live": []}


@dataclass(frozen=True)
class State:
    """What a run keeps."""

    paid: int = 0


@dataclass(frozen=True)
class Other:
    """Something else that it keeps."""

    paid: int = 0


class World:
    """Who is called, with which keys; what etcd holds; and a program that does one run."""

    def __init__(self, etcd: EtcdServer, raw: RawEtcd, namespace: str) -> None:
        self.etcd, self.raw, self.namespace = etcd, raw, namespace
        self.calls: list[tuple[str, str]] = []
        self.keys = RunKeys(Keys(namespace), RUN)
        self.breaks = True

        @effect(dedupes=True, key_ttl="24h")
        def begun(step: Any) -> str:
            self.calls.append((step.key, step.idempotency_key))
            if self.breaks:
                raise ConnectionError("nobody knows")
            return "done"

        @effect(dedupes=True, key_ttl="24h")
        def plain(step: Any) -> str:
            self.calls.append((step.key, step.idempotency_key))
            return str(step.key)

        self.begun, self.plain = begun, plain

    def program(self, run: Run) -> None:
        """The same in every life; the first one ends in ``begun``."""
        state, phase = run.checkpoint("state", State), run.phase("ca", PHASES)
        run.do("charge", self.plain)
        if state.value is None:
            state.commit(paid=1)
            state.commit(paid=2)
        if phase.now() == "staged":
            phase.move("live")
        run.memo("large", lambda: LARGE)
        run.do("ship", self.plain)
        run.do("begun", self.begun)
        run.do("last", self.plain)

    def live(self, keeper: Keeper, id: str = "1", **asked: Any) -> None:  # noqa: A002 - the run's own word
        """One life of the program."""
        with keeper.run("order", id=id, **{"signer": None, **asked}) as run:
            self.program(run)

    def begin(self, keeper: Keeper, id: str = "1", **asked: Any) -> None:  # noqa: A002 - the run's own word
        """A life that ends where ``begun`` breaks."""
        self.breaks = True
        with pytest.raises(ConnectionError):
            self.live(keeper, id, **asked)
        self.breaks = False
        self.calls.clear()

    # ------------------------------------------------------------ touching

    def saved(self, prefix: str | None = None) -> dict[str, bytes]:
        """What stands below a prefix; default: the run."""
        return {key.key: key.value for key in self.raw.keys(prefix or self.keys.root)}

    def put_back(self, saved: dict[str, bytes], prefix: str | None = None) -> None:
        """Just that stands there, and nothing else."""
        for key in self.saved(prefix):
            if key not in saved:
                self.raw.delete(key)
        for key, value in saved.items():
            self.raw.put(key, value)

    def pointer(self, step: str) -> Pointer:
        """Where a step stands."""
        stored = self.saved()[self.keys.step(step).decode()]
        return read_pointer(pb.KeyValue(key=b"step", value=stored))

    def put_pointer(self, step: str, pointer: Pointer) -> None:
        """Write it, digest and all."""
        self.raw.put(self.keys.step(step).decode(), pointer.stored())

    @property
    def head(self) -> Head:
        """The head."""
        return read_head(self.saved()[self.keys.head.decode()], "the head")

    def put_head(self, head: Head) -> None:
        """Write it, digest and all."""
        self.raw.put(self.keys.head.decode(), head.stored())


def refused(world: World, keeper: Keeper, match: str | None = None, **asked: Any) -> None:
    """The next life ends in CorruptState, nobody was called, and nothing was written."""
    before = world.saved()
    with pytest.raises(CorruptState, match=match):
        world.live(keeper, **asked)
    assert world.calls == []
    after = world.saved()
    steps = world.keys.steps.decode()
    assert {key: value for key, value in after.items() if key.startswith(steps)} == {
        key: value for key, value in before.items() if key.startswith(steps)
    }


def tampered_live(world: World, keeper: Keeper, **asked: Any) -> BaseException | None:
    """A life on what was tampered with: what it ended in."""
    try:
        world.live(keeper, **asked)
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error
    return None
