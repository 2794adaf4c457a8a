"""Plans interrupted at every yield, in every way: whatever happens, no claim, no lease, no watch and no slot is left behind.

Each case is a situation with one plan. It is run to its end once, to learn its yields; then again for every yield and every
kind of interruption there, and, for the interruptions that start a clean-up, with a second one in that clean-up. What an
interrupted call did may have happened, not have happened, or happen later, when the plan has long ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pytest

from leasekeeper.errors import NotAcquired
from leasekeeper.fencing import make_token
from leasekeeper.protocol import queue
from leasekeeper.protocol.authority import Authority, State
from leasekeeper.protocol.keys import write_epoch
from leasekeeper.protocol.leave import release
from leasekeeper.protocol.lend import lend
from leasekeeper.protocol.plan import Call, Cause, Detach, Fault, Kind, Operation, Plan
from leasekeeper.protocol.session import Session
from tests.model.world import KEYS, Client, Run, Strike, World, makes_a_difference

QUEUE = KEYS.queue("name")
TTL_S = 10.0
STRANGER_TTL_S = 10_000

FAULTS = (
    Strike(lambda: Fault(Kind.NOT_SENT)),
    Strike(lambda: Fault(Kind.RETRY, Cause.BUSY)),
    Strike(lambda: Fault(Kind.FIX, Cause.DENIED)),
    Strike(lambda: Fault(Kind.UNKNOWN), "now"),
    Strike(lambda: Fault(Kind.UNKNOWN), "none"),
    Strike(lambda: Fault(Kind.UNKNOWN), "late"),
)
INTERRUPTS = tuple(
    Strike(error, effect)
    for error in (KeyboardInterrupt, asyncio.CancelledError, MemoryError)
    for effect in ("none", "now", "late")
)
FIRST = (
    Strike(KeyboardInterrupt),
    Strike(KeyboardInterrupt, "now"),
    Strike(asyncio.CancelledError, "late"),
    Strike(lambda: Fault(Kind.UNKNOWN), "late"),
)
SECOND = (
    Strike(KeyboardInterrupt),
    Strike(KeyboardInterrupt, "now"),
    Strike(asyncio.CancelledError, "late"),
    Strike(lambda: Fault(Kind.UNKNOWN), "late"),
    Strike(lambda: Fault(Kind.UNKNOWN), "now"),
    Strike(lambda: Fault(Kind.NOT_SENT)),
)


@dataclass
class Case:
    """A situation: a world, the client whose plan runs in it, and the plan."""

    world: World
    client: Client
    plan: Callable[[], Plan[Any]]
    # Keys of others that must stand at the end, if they stood at the beginning and no script took them.
    others: tuple[bytes, ...] = ()


# ---------------------------------------------------------------- situations


def _with_session(client: Client) -> Session:
    """Open the client's session, as an earlier claim did."""
    return client.do(lend(client.ctx, client.want("earlier")))


def free(*, at_hand: bool = False) -> Case:
    """Nobody claims the name."""
    world = World()
    client = Client(world)
    if at_hand:
        _with_session(client)
    return Case(world, client, lambda: queue.acquire(client.ctx, client.want()))


def its_turn_comes() -> Case:
    """Somebody owns the name and gives it back while the claim waits; somebody else waits behind."""
    world = World()
    client, owner = Client(world), world.stranger("name")
    behind: list[bytes] = []
    world.script = [lambda: behind.append(world.stranger("name")), lambda: world.store.delete(owner)]
    return Case(world, client, lambda: queue.acquire(client.ctx, client.want()))


def time_runs_out() -> Case:
    """Somebody owns the name for longer than the claim may wait."""
    world = World()
    client, owner = Client(world), world.stranger("name", ttl=STRANGER_TTL_S)
    return Case(world, client, lambda: queue.acquire(client.ctx, client.want(timeout_s=3.0)), (owner,))


def the_epoch_is_not_known() -> Case:
    """An operator raised the epoch long ago."""
    case = free()
    case.world.store.put(KEYS.epoch, write_epoch(7, at=0.0, by="an operator"))
    return case


def the_epoch_is_raised() -> Case:
    """An operator raises the epoch while the claim waits."""
    world = World()
    client, owner = Client(world), world.stranger("name")
    record = write_epoch(7, at=0.0, by="an operator")
    world.script = [lambda: world.store.put(KEYS.epoch, record), lambda: world.store.delete(owner)]
    return Case(world, client, lambda: queue.acquire(client.ctx, client.want()))


def its_key_is_deleted() -> Case:
    """An operator deletes the waiting claim."""
    world = World()
    client, owner = Client(world), world.stranger("name")
    world.script = [
        lambda: world.store.delete(*[kv.key for kv in client.stored()]),
        lambda: world.store.delete(owner),
    ]
    return Case(world, client, lambda: queue.acquire(client.ctx, client.want()))


def its_lease_is_revoked() -> Case:
    """An operator revokes the lease of the waiting claim."""
    world = World()
    client, owner = Client(world), world.stranger("name")
    world.script = [
        lambda: world.store.end_lease(client.stored()[0].lease),
        lambda: world.pass_time(1.0),
        lambda: world.store.delete(owner),
    ]
    return Case(world, client, lambda: queue.acquire(client.ctx, client.want()))


def its_lease_expires() -> Case:
    """Etcd is away for longer than the TTL while the claim waits."""
    world = World()
    client, owner = Client(world), world.stranger("name")

    def outage() -> None:
        world.down = True
        world.pass_time(TTL_S + 1.0)
        world.down = False

    world.script = [outage, lambda: world.pass_time(1.0), lambda: world.store.delete(owner)]
    return Case(world, client, lambda: queue.acquire(client.ctx, client.want()))


def its_watch_is_blind() -> Case:
    """The history that the waiter's watch needs is compacted away."""
    world = World()
    client, owner = Client(world), world.stranger("name")

    def compact() -> None:
        world.store.compacted = world.store.put(b"elsewhere")

    world.script = [compact, lambda: world.store.delete(owner)]
    return Case(world, client, lambda: queue.acquire(client.ctx, client.want()))


def its_slot_is_taken() -> Case:
    """A key of the session's own stands where the claim should go, as after a restore."""
    world = World()
    client = Client(world)
    session = _with_session(client)
    world.store.put(KEYS.claim("name", session.lease_id), b"a ghost", session.lease_id)
    return Case(world, client, lambda: queue.acquire(client.ctx, client.want()))


def the_store_went_back(*, bumped: bool) -> Case:
    """Etcd was restored from a backup after this client had seen more; with and without a raised epoch since."""
    case = free(at_hand=True)
    world, client = case.world, case.client

    def plan() -> Plan[Any]:
        snapshot = world.store.snapshot()
        for _ in range(3):
            churn = client.do(queue.acquire(client.ctx, client.want("churn")))
            churn.release()
            client.do(release(client.ctx, churn.slot))
        world.store.restore(snapshot)
        if bumped:
            world.store.put(KEYS.epoch, write_epoch(7, at=0.0, by="an operator"))
        return queue.acquire(client.ctx, client.want())

    return Case(world, client, plan)


def a_try(*, taken: bool, at_hand: bool) -> Case:
    """try_acquire on a free or a taken name, with and without a session."""
    world = World()
    client = Client(world)
    if at_hand:
        _with_session(client)
    others = (world.stranger("name", ttl=STRANGER_TTL_S),) if taken else ()
    return Case(world, client, lambda: queue.try_acquire(client.ctx, client.want()), others)


def a_release() -> Case:
    """An owned claim is given back."""
    world = World()
    client = Client(world)
    authority = client.do(queue.acquire(client.ctx, client.want()))

    def plan() -> Plan[Any]:
        authority.release()
        return release(client.ctx, authority.slot)

    return Case(world, client, plan)


def a_lease_id_that_is_taken() -> Case:
    """The lease id that the client draws belongs to somebody else."""
    case = free()
    store = case.world.store

    def plan() -> Plan[Any]:
        from leasekeeper.protocol import etcd_pb2 as pb

        taken = case.world.number()
        store.answer(pb.LeaseGrantRequest(ID=taken, TTL=STRANGER_TTL_S))
        case.client.ctx.new_lease_id = partial(next, iter([taken, *(case.world.number() for _ in range(9))]))
        return queue.acquire(case.client.ctx, case.client.want())

    return Case(case.world, case.client, plan)


CASES: dict[str, Callable[[], Case]] = {
    "free": free,
    "free, session at hand": partial(free, at_hand=True),
    "its turn comes": its_turn_comes,
    "time runs out": time_runs_out,
    "the epoch is not known": the_epoch_is_not_known,
    "the epoch is raised": the_epoch_is_raised,
    "its key is deleted": its_key_is_deleted,
    "its lease is revoked": its_lease_is_revoked,
    "its lease expires": its_lease_expires,
    "its watch is blind": its_watch_is_blind,
    "its slot is taken": its_slot_is_taken,
    "the store went back": partial(the_store_went_back, bumped=False),
    "the store went back, epoch raised": partial(the_store_went_back, bumped=True),
    "a try, free": partial(a_try, taken=False, at_hand=False),
    "a try, free, session at hand": partial(a_try, taken=False, at_hand=True),
    "a try, taken": partial(a_try, taken=True, at_hand=False),
    "a try, taken, session at hand": partial(a_try, taken=True, at_hand=True),
    "a release": a_release,
    "a lease id that is taken": a_lease_id_that_is_taken,
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


# ---------------------------------------------------------------- what must hold afterwards

Arrival = Literal["at once", "in a later claim"]


class Trial:
    """One run of a case, and everything that must hold after it.

    ``busy``: the session serves another claim all the time, so that nothing is cleaned up by its end. ``arrival``: when what
    was late arrives.
    """

    def __init__(self, make: Callable[[], Case], *, busy: bool, arrival: Arrival = "at once") -> None:
        self.case = case = make()
        self.world, self.client, self.arrival = case.world, case.client, arrival
        self.other: Authority | None = None
        if busy:
            self.other = self.client.do(queue.acquire(self.client.ctx, self.client.want("other")))

    def run(self, strikes: dict[int, Strike] | None = None) -> Run[Any]:
        """Run the plan with these strikes, and check."""
        run = self.client.run(self.case.plan(), strikes)
        try:
            assert not isinstance(run.error, (AssertionError, AttributeError, TypeError))
            # A clean-up that could not even be handed over is left to the heart, which reads keys back.
            left_to_heart = any(isinstance(run.trace[at], Detach) for at in strikes or {} if at < len(run.trace))
            self.check(run, left_to_heart=left_to_heart)
        except AssertionError as error:
            how = {at: (type(strike.error()).__name__, strike.effect) for at, strike in (strikes or {}).items()}
            raise AssertionError(f"struck by {how}, late requests {self.arrival}; {told(run)}") from error
        return run

    def check(self, run: Run[Any], *, left_to_heart: bool = False) -> None:
        """Everything that must hold, in the order of time."""
        if isinstance(run.result, Authority):
            self._check_owned(run.result)
        self._tidy()
        if not left_to_heart:
            self._check_left("at once")
        if self.arrival == "in a later claim":
            self._check_a_later_claim(left_to_heart)
        self.world.arrive()
        self.world.pass_time(1.5 * TTL_S)
        self._check_left("within a TTL")
        assert all(watch.closed for watch in self.world.watches)
        assert self.client.table._opening == {}
        self._check_the_end()

    def _tidy(self) -> None:
        for _ in range(3):
            self.client.tidy()

    def _check_owned(self, authority: Authority) -> None:
        """What came back as owned is the owner's, with this claim's own record; then it is given back."""
        self.world.pass_time(1.0)
        assert authority.loss is None
        first = self.world.store.below(QUEUE)[0]
        assert (first.key, first.create_revision) == (authority.slot.key, authority.create_revision)
        assert first.value == authority.slot.record
        assert first.lease in self.world.store.leases
        assert authority.token == make_token(self.client.ctx.epoch.number, authority.create_revision)
        assert authority.state(self.world.now_s) is State.HELD
        self._give_back(authority)

    def _give_back(self, authority: Authority) -> None:
        authority.release()
        self.client.do(release(self.client.ctx, authority.slot))

    def _check_left(self, when: str) -> None:
        """No key, and no slot but haunted ones, in sessions that go on."""
        assert self.client.stored() == [], when
        for session in self.client.sessions():
            assert [slot.name for slot in session.claims()] == (["other"] if self._serves_other(session) else [])
            if not session.gone:
                left = [slot for slot in session.slots.values() if slot.leaving and not slot.haunted]
                assert [slot for slot in left if slot.name == "name"] == [], when

    def _serves_other(self, session: Session) -> bool:
        return self.other is not None and self.other.session is session and self.other.loss is None

    def _check_a_later_claim(self, left_to_heart: bool) -> None:
        """The same client claims the name again, which may give it the same key, and late requests do it no harm."""
        attempt = self.client.run(queue.try_acquire(self.client.ctx, self.client.want()))
        if isinstance(attempt.error, Fault) and attempt.error.cause is Cause.REWOUND:
            self.world.store.put(KEYS.epoch, write_epoch(9, at=0.0, by="an operator"))
            attempt = self.client.run(queue.try_acquire(self.client.ctx, self.client.want()))
        assert attempt.error is None, attempt.error
        again = attempt.result
        if again is None:
            assert left_to_heart or self.client.stored() == []
            return
        self.world.arrive()
        self.world.pass_time(2 * TTL_S)
        assert again.loss is None
        assert self.world.store.keys[again.slot.key].create_revision == again.create_revision
        self._give_back(again)

    def _check_the_end(self) -> None:
        """With nothing claimed any more, no lease stays either, and everybody else's key is where it was."""
        if self.other is not None and self.other.loss is None:
            assert self.other.state(self.world.now_s) is State.HELD
            self._give_back(self.other)
        self.world.pass_time(3 * TTL_S)
        self._tidy()
        leases = self.world.store.leases
        assert [number for number, lease in leases.items() if lease.ttl < STRANGER_TTL_S] == []
        assert self.client.detached == []
        assert all(key in self.world.store.keys for key in self.case.others)


def trace_of(make: Callable[[], Case], *, busy: bool = False) -> list[Operation]:
    """The operations of an undisturbed run."""
    run = Trial(make, busy=busy).run()
    refused = isinstance(run.error, Fault) and run.error.cause is Cause.REWOUND
    assert run.error is None or isinstance(run.error, NotAcquired) or refused, told(run)
    return run.trace


def told(run: Run[Any]) -> str:
    """A run in one line."""
    names = [op.method.operation if isinstance(op, Call) else type(op).__name__ for op in run.trace]
    return f"yields {' '.join(names)}; result {run.result!r}, error {run.error!r}"


def singles(make: Callable[[], Case], strikes: tuple[Strike, ...]) -> Iterator[tuple[Trial, int, Strike]]:
    """A trial for each strike at each yield, alone and beside another claim, with each time for late requests."""
    for busy in (False, True):
        for index, operation in enumerate(trace_of(make, busy=busy)):
            for strike in strikes:
                if makes_a_difference(operation, strike):
                    yield Trial(make, busy=busy), index, strike
                    if strike.effect == "late":
                        yield Trial(make, busy=busy, arrival="in a later claim"), index, strike


# ---------------------------------------------------------------- the tests


@each_case
def test_a_failing_call_leaves_nothing_behind(case: Callable[[], Case]) -> None:
    """G6, C14, C33, C40: each call of each plan fails once in each way; the plan ends owned, refused or in error, and clean."""
    for trial, index, strike in singles(case, FAULTS):
        run = trial.run({index: strike})
        assert run.error is None or isinstance(run.error, (NotAcquired, Fault))


@each_case
def test_an_interruption_leaves_nothing_behind(case: Callable[[], Case]) -> None:
    """C10, C44: Ctrl-C, a cancelled task, no memory, at every yield: it gets through, and nothing is left."""
    for trial, index, strike in singles(case, INTERRUPTS):
        run = trial.run({index: strike})
        assert type(run.error) is type(strike.error())


@pytest.mark.parametrize("busy", [False, True], ids=["alone", "busy"])
@each_case
def test_a_second_interruption_in_the_clean_up_leaves_nothing_behind(case: Callable[[], Case], busy: bool) -> None:
    """C10: an impatient second Ctrl-C, or a network that fails in the clean-up, changes nothing of it."""
    for index, operation in enumerate(trace_of(case, busy=busy)):
        for first in FIRST:
            if makes_a_difference(operation, first):
                length = len(Trial(case, busy=busy).run({index: first}).trace)
                for at in range(index + 1, length):
                    for second in SECOND:
                        Trial(case, busy=busy, arrival="in a later claim").run({index: first, at: second})


@each_case
def test_a_plan_that_is_abandoned_with_its_loop_leaves_nothing_behind(case: Callable[[], Case]) -> None:
    """C43: when a plan's event loop is gone no call can be made any more, and the clean-up goes to the background as it is."""
    for trial, index, strike in singles(case, INTERRUPTS[:3]):
        trial.client.abandon(trial.case.plan(), index, strike.effect)
        trial.check(Run())


def test_the_cases_reach_every_operation() -> None:
    """The situations above make plans yield each kind of operation, so that none is left out."""
    kinds = {type(operation) for case in CASES.values() for operation in trace_of(case)}
    kinds |= {type(operation) for operation in Trial(free, busy=False).run({0: Strike(KeyboardInterrupt)}).trace}
    assert Detach in kinds
    assert len(kinds) == 5
