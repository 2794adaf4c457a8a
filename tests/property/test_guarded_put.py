"""The guarded put against every mix of lost replies, late requests and other writers, on a store of a few lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import example, given
from hypothesis import strategies as st

from leasekeeper.errors import OutcomeUnknown, StaleToken
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.context import Context
from leasekeeper.protocol.guarded import Ownership, put_if_owner
from leasekeeper.protocol.keys import Epoch, Keys
from leasekeeper.protocol.plan import Call, Fault, Kind, Sleep

KEYS = Keys("default")
NAME = "n"
MINE = KEYS.claim(NAME, 0xA)
THEIRS = KEYS.claim(NAME, 0xB)
KEY = b"data"
OURS = b"ours"
PATIENCE_S = 3.0

# What becomes of a request: answered; its reply is lost after it was carried out, or with it; it arrives later; refused.
FATES = ["answered", "reply lost", "request lost", "late", "refused"]
# What others do before the next request arrives, or when the late ones do.
DEEDS = [
    "nothing",
    "others write",
    "others write twice",
    "others write ours",
    "others delete",
    "claim goes",
    "others own",
    "late arrive",
]


@dataclass
class Store:
    """As much of etcd as the plan needs: keys with their counters, transactions with compares on two of them."""

    revision: int = 10
    kvs: dict[bytes, pb.KeyValue] = field(default_factory=dict)
    late: list[pb.TxnRequest] = field(default_factory=list)
    # Revisions at which the plan's own put was carried out.
    ours: list[int] = field(default_factory=list)

    def put(self, key: bytes, value: bytes) -> None:
        """Write a key."""
        self.revision += 1
        old = self.kvs.get(key)
        self.kvs[key] = pb.KeyValue(
            key=key,
            value=value,
            create_revision=old.create_revision if old else self.revision,
            mod_revision=self.revision,
            version=(old.version if old else 0) + 1,
        )

    def delete(self, key: bytes) -> None:
        """Delete a key."""
        if self.kvs.pop(key, None) is not None:
            self.revision += 1

    def holds(self, compare: pb.Compare) -> bool:
        """Whether one compare holds."""
        kv = self.kvs.get(compare.key, pb.KeyValue())
        if compare.target == pb.Compare.CREATE:
            return kv.create_revision == compare.create_revision
        assert compare.target == pb.Compare.MOD
        return kv.mod_revision == compare.mod_revision

    def carry_out(self, request: pb.TxnRequest) -> pb.TxnResponse:
        """One transaction."""
        succeeded = all(self.holds(compare) for compare in request.compare)
        answers = []
        for op in request.success if succeeded else request.failure:
            if op.HasField("request_put"):
                self.put(op.request_put.key, op.request_put.value)
                self.ours.append(self.revision)
                assert MINE in self.kvs, "written by an owner that was none"
                answers.append(pb.ResponseOp(response_put=pb.PutResponse()))
            else:
                answers.append(pb.ResponseOp(response_range=self.read(op.request_range)))
        return pb.TxnResponse(succeeded=succeeded, responses=answers, header=pb.ResponseHeader(revision=self.revision))

    def read(self, request: pb.RangeRequest) -> pb.RangeResponse:
        """A key, or the first of a range by its creation."""
        if not request.range_end:
            return pb.RangeResponse(kvs=[kv for kv in [self.kvs.get(request.key)] if kv])
        found = [kv for key, kv in self.kvs.items() if request.key <= key < request.range_end]
        return pb.RangeResponse(kvs=sorted(found, key=lambda kv: kv.create_revision)[: request.limit])

    def happen(self, deed: str) -> None:
        """What others do."""
        match deed:
            case "others write":
                self.put(KEY, b"theirs")
            case "others write twice":
                self.put(KEY, b"theirs")
                self.put(KEY, b"theirs again")
            case "others write ours":
                self.put(KEY, OURS)
            case "others delete":
                self.delete(KEY)
            case "claim goes":
                self.delete(MINE)
            case "others own":
                self.delete(MINE)
                self.put(THEIRS, b"")
            case "late arrive":
                arriving, self.late = self.late, []
                for request in arriving:
                    self.carry_out(request)


@dataclass
class World:
    """A store, a clock and what fate has in store."""

    fates: list[str]
    deeds: list[str]
    store: Store = field(default_factory=Store)
    time_s: float = 0.0

    def perform(self, call: Call) -> pb.TxnResponse:
        """One call of the plan, or the Fault that it ends in."""
        self.time_s += 0.1
        self.store.happen(self.deeds.pop(0) if self.deeds else "nothing")
        request = cast("pb.TxnRequest", call.request)
        fate = self.fates.pop(0) if self.fates else "answered"
        if fate == "refused":
            raise Fault(Kind.RETRY, text="refused")
        if fate in ("answered", "reply lost"):
            reply = self.store.carry_out(request)
            if fate == "answered":
                return reply
        if fate == "late":
            self.store.late.append(request)
        raise Fault(Kind.UNKNOWN, text=fate)

    def run(self) -> int | BaseException:
        """The plan to its end: its result, or its error."""
        mine = Ownership(NAME, 5, MINE, self.store.kvs[MINE].create_revision)
        plan = put_if_owner(context(self), mine, KEY, OURS, PATIENCE_S)
        try:
            operation: Any = next(plan)
            while True:
                if isinstance(operation, Sleep):
                    self.time_s += operation.seconds
                    operation = plan.send(None)
                    continue
                try:
                    reply = self.perform(operation)
                except Fault as fault:
                    operation = plan.throw(fault)
                else:
                    operation = plan.send(reply)
        except StopIteration as done:
            return cast("int", done.value)
        except (StaleToken, OutcomeUnknown, Fault) as error:
            return error


def context(world: World) -> Context:
    """The parts of a context that the plan reads."""
    found = Context.__new__(Context)
    found.keys, found.now, found.epoch = KEYS, lambda: world.time_s, Epoch()
    return found


@example(fates=["answered", "reply lost"], deeds=["nothing", "nothing", "others delete"], exists=False)
@example(fates=["answered", "reply lost"], deeds=["nothing", "nothing", "others delete", "others write"], exists=False)
@example(fates=["answered", "late"], deeds=["nothing", "nothing", "late arrive", "others delete"], exists=False)
@example(
    fates=["answered", "reply lost", "reply lost"],
    deeds=["nothing", "nothing", "others delete", "others write ours"],
    exists=False,
)
@given(
    fates=st.lists(st.sampled_from(FATES), max_size=40),
    deeds=st.lists(st.sampled_from(DEEDS), max_size=40),
    exists=st.booleans(),
)
def test_what_it_says_is_what_happened(fates: list[str], deeds: list[str], exists: bool) -> None:
    """G6: a revision is that of the one put there was; StaleToken and a plain failure mean that there was none, ever."""
    world = World(fates, deeds)
    store = world.store
    store.put(MINE, b"")
    if exists:
        store.put(KEY, b"before")
    forged = "others write ours" in deeds and {"reply lost", "request lost", "late"} & set(fates)
    outcome = world.run()
    store.happen("late arrive")
    assert len(store.ours) <= 1
    match outcome:
        case int():
            # Somebody else who deletes the key and writes the very same bytes to it is taken for this put.
            assert store.ours == [outcome] or forged
        case StaleToken():
            assert not store.ours
            assert MINE not in store.kvs
            owner = store.kvs.get(THEIRS)
            assert outcome.highest == (owner.create_revision if owner else 0)
        case Fault():
            assert not store.ours


@given(fates=st.lists(st.sampled_from(FATES), max_size=40), exists=st.booleans())
def test_without_other_writers_it_always_knows(fates: list[str], exists: bool) -> None:
    """G6: as long as nobody else writes a key and etcd answers in the end, lost replies and late requests cost no certainty.

    Except for the first put of a key that is not found afterwards: that is not known, and not tried again.
    """
    world = World(fates[:4], [])
    world.store.put(MINE, b"")
    if exists:
        world.store.put(KEY, b"before")
    outcome = world.run()
    found = KEY in world.store.kvs
    world.store.happen("late arrive")
    if isinstance(outcome, OutcomeUnknown):
        assert not exists
        assert not found
        assert {"request lost", "late"} & set(fates[:4])
        return
    assert [outcome] == world.store.ours
    assert world.store.kvs[KEY].value == OURS
