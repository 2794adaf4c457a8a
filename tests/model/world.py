"""Plans on a model etcd in virtual time, with a heart, a background, and interruptions at any yield.

A `World` is a store and a clock. A `Client` is one keeper in it: the real plans, sessions and heartbeat rules, driven by an
interpreter that does one thing after the other. A `Strike` interrupts one operation of a plan, before or after its effect,
or so that the effect comes late, when the plan has long ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, Literal, TypeVar

from google.protobuf.message import Message

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.context import Context
from leasekeeper.protocol.keys import Keys
from leasekeeper.protocol.lend import Want
from leasekeeper.protocol.plan import Call, Cause, Detach, Fault, Kind, Operation, Plan, Sleep, Wait, Watch, rewound
from leasekeeper.protocol.session import Session, Slot
from leasekeeper.runtime.aio import Asyncio
from leasekeeper.runtime.sessions import SessionTable
from leasekeeper.testing.sim.store import Store
from leasekeeper.timing import Timing
from tests.model.heart import Heart, ModelWatch

T = TypeVar("T")
Effect = Literal["none", "now", "late"]
WALL_S = 1_800_000_000.0
TRIP_S = 0.001
PATIENCE_S = 2000.0
KEYS = Keys("tests")


class World:
    """One etcd and one clock for all. ``script`` holds what happens next while somebody waits, one thing per wait."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.store = Store(self.now)
        self.clients: list[Client] = []
        self.script: list[Callable[[], object]] = []
        # Requests on their way somewhere; they arrive when a test says so.
        self.late: list[Message] = []
        self.watches: list[ModelWatch] = []
        # Whether etcd can be reached at all.
        self.down = False
        self._numbers = count(0x100)

    def now(self) -> float:
        """The clock."""
        return self.now_s

    def number(self) -> int:
        """A number that was not used before."""
        return next(self._numbers)

    def stranger(self, name: str, value: bytes = b"", *, ttl: int = 0) -> bytes:
        """Another program's claim on a name, as `etcdctl lock` puts it: its key. ``ttl`` 0 puts it without a lease."""
        lease = self.number() if ttl else 0
        if lease:
            self.store.answer(pb.LeaseGrantRequest(ID=lease, TTL=ttl))
        key = KEYS.queue(name) + f"{lease or self.number():x}".encode()
        self.store.put(key, value, lease)
        return key

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with every heart beating in it."""
        until = self.now_s + seconds
        while self.now_s < until:
            wake_s = min((client.heart.beats.wake_at(self.now_s) for client in self.clients), default=until)
            self.now_s = min(until, max(wake_s, self.now_s + 0.01))
            self.store.expire()
            for client in self.clients:
                client.heart.round()

    def arrive(self) -> None:
        """Deliver what was on its way."""
        arriving, self.late = self.late, []
        for request in arriving:
            _attempt(self.store, request)


def _attempt(store: Store, request: Message) -> None:
    try:
        store.answer(request)
    except Fault:
        pass


@dataclass(frozen=True)
class Strike:
    """One interruption: what is thrown, and what becomes of a call's effect."""

    error: Callable[[], BaseException]
    effect: Effect = "none"


@dataclass
class Run(Generic[T]):
    """How a plan went."""

    result: T | None = None
    error: BaseException | None = None
    trace: list[Operation] = field(default_factory=list)


class Client:
    """One keeper in the world."""

    def __init__(self, world: World, timing: Timing | None = None) -> None:
        self.world = world
        self.timing = timing or Timing(ttl=10.0)
        self.detached: list[Callable[[], Plan[object]]] = []
        self.heart = Heart(self)
        self.table = SessionTable(KEYS, world.now, self.heart, self._dropped)  # type: ignore[arg-type]
        self.seen = 0
        number = world.number()
        self.ctx = Context(
            keys=KEYS,
            holder=f"client-{number:x}",
            host="here",
            pid=number,
            now=world.now,
            wall=lambda: WALL_S + world.now_s,
            new_nonce=lambda: f"{world.number():x}",
            new_lease_id=world.number,
            sessions=self.table,
            accept_rewind=self._accept_rewind,
        )
        world.clients.append(self)

    def want(self, name: str = "name", timeout_s: float | None = None) -> Want:
        """What somebody asks for."""
        until = None if timeout_s is None else self.world.now_s + timeout_s
        return Want(name, self.timing, "", until, self.world.now_s)

    def _accept_rewind(self) -> None:
        self.seen = 0

    def _dropped(self, slot: Slot) -> None:
        slot.leaving = True

    # ------------------------------------------------------------ running plans

    def run(self, plan: Plan[T], strikes: dict[int, Strike] | None = None) -> Run[T]:
        """Run a plan to its end; ``strikes`` by the index of the yield."""
        run: Run[T] = Run()
        try:
            operation = next(plan)
            while True:
                strike = (strikes or {}).get(len(run.trace))
                run.trace.append(operation)
                assert len(run.trace) < 500, "the plan does not end"
                try:
                    if strike is not None:
                        self._strike(operation, strike)
                    result = self._perform(operation)
                except BaseException as error:  # noqa: BLE001 - whatever it is, the plan must see it
                    operation = plan.throw(error)
                else:
                    operation = plan.send(result)
        except StopIteration as done:
            run.result = done.value
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            run.error = error
        return run

    def abandon(self, plan: Plan[T], at: int, effect: Effect) -> None:
        """Run a plan up to a yield, and leave it there as asyncio's interpreter does when its loop is gone."""
        asyncio = Asyncio(None, None, lambda plan: self.detached.append(plan), self.world.now)  # type: ignore[arg-type]
        operation = next(plan)
        for _ in range(at):
            try:
                result = self._perform(operation)
            except Fault as fault:
                operation = plan.throw(fault)
            else:
                operation = plan.send(result)
        self._take_effect(operation, effect)
        asyncio._abandon(plan)

    def do(self, plan: Plan[T]) -> T:
        """Run a plan that must succeed."""
        run = self.run(plan)
        if run.error is not None:
            raise run.error
        return run.result  # type: ignore[return-value]

    def _strike(self, operation: Operation, strike: Strike) -> None:
        self._take_effect(operation, strike.effect)
        raise strike.error()

    def _take_effect(self, operation: Operation, effect: Effect) -> None:
        if isinstance(operation, Call) and effect == "now":
            _attempt(self.world.store, operation.request)
        elif isinstance(operation, Call) and effect == "late":
            self.world.late.append(_copy(operation.request))
        elif isinstance(operation, Detach) and effect == "now":
            self.detached.append(operation.plan)

    def _perform(self, operation: Operation) -> Any:
        match operation:
            case Call():
                return self._call(operation)
            case Sleep(seconds):
                return self.world.pass_time(seconds)
            case Watch(keys, start):
                watch = ModelWatch(self.world.store, keys, start)
                self.world.watches.append(watch)
                return watch
            case Wait():
                return self._wait(operation)
            case Detach(plan):
                return self.detached.append(plan)

    def _call(self, call: Call) -> Message:
        seen = self.seen
        if self.world.down:
            self.world.pass_time(call.timeout_s)
            raise Fault(Kind.NOT_SENT, text="down", operation=call.method.operation)
        self.world.now_s += TRIP_S
        reply: Any = self.world.store.answer(_copy(call.request))
        if call.method.linearizable:
            revision = reply.header.revision
            if call.strict and self.seen and rewound(reply, seen):
                raise Fault(Kind.FIX, Cause.REWOUND, f"{revision} after {seen}", seen=seen, now=revision)
            self.seen = max(self.seen, revision)
        return reply  # type: ignore[no-any-return]

    def _wait(self, wait: Wait) -> bool:
        began_s = self.world.now_s
        while not any(signal.is_set() for signal in wait.signals):
            left_s = PATIENCE_S if wait.until is None else wait.until - self.world.now_s
            if left_s <= 0:
                return False
            if self.world.script:
                self.world.script.pop(0)()
                continue
            assert self.world.now_s - began_s < PATIENCE_S, "it waits for ever"
            self.world.pass_time(min(0.5, left_s))
        return True

    # ------------------------------------------------------------ cleaning up

    def tidy(self) -> None:
        """What the background does: each detached plan once more; those that fail stay."""
        if self.world.down:
            return
        waiting, self.detached = self.detached, []
        for plan in waiting:
            if isinstance(self.run(plan()).error, Fault):
                self.detached.append(plan)

    def sessions(self) -> list[Session]:
        """Every session that is still known."""
        return self.table.all()

    def stored(self, name: str = "name") -> list[pb.KeyValue]:
        """This client's claims on a name as they stand in the store."""
        mine = f'"holder":"{self.ctx.holder}"'.encode()
        return [kv for kv in self.world.store.below(KEYS.queue(name)) if mine in kv.value]


def _copy(request: Message) -> Message:
    """What is on the wire: a prepared request may be changed later."""
    return type(request).FromString(request.SerializeToString())


def makes_a_difference(operation: Operation, strike: Strike) -> bool:
    """Whether an operation can be interrupted in this way: only a call fails by itself, or has an effect that can be late."""
    if isinstance(operation, Call):
        return True
    if isinstance(strike.error(), Fault):
        return False
    return strike.effect == "none" or (strike.effect == "now" and isinstance(operation, Detach))
