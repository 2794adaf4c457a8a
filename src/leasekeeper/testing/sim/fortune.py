"""Carries out what the schedule says: finds out whom a fault befalls, and does it to them; mends everything in the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leasekeeper.protocol import epoch
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.evict import evict
from leasekeeper.protocol.inspect import owner
from leasekeeper.protocol.plan import Call, Fault, Plan
from leasekeeper.testing.sim.keeper import KEYS, Keeper
from leasekeeper.testing.sim.process import Process

if TYPE_CHECKING:
    from leasekeeper.testing.sim.faults import SimFault
    from leasekeeper.testing.sim.network import Link
    from leasekeeper.testing.sim.replica import Replica
    from leasekeeper.testing.sim.store import Store
    from leasekeeper.testing.sim.world import World

__all__ = ["Fortune"]

BACKUP_EVERY_S = 4.0
BACKUPS_MAX = 3
ELECTION_S = (0.3, 2.0)
STRANGERS_TTL_S = 600


class Fortune:
    """Does to a world what befalls it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._cluster = world.cluster
        self._store = world.cluster.store
        self._chance = world.timeline.chance("fortune")
        self._backups: list[Store] = [self._store.snapshot()]
        operator = Process(world.timeline, "operator", world.timeline.chance("operator"))
        self._operator = Keeper(operator, world.network, world.cluster, world.numbers, world.wall, lambda *_: None)
        self._strangers: list[int] = []
        self._strike: dict[str, Callable[[SimFault], None]] = {
            "cut": lambda fault: self._links(fault, self._cut, out=True, back=True),
            "cut-out": lambda fault: self._links(fault, self._cut, out=True),
            "cut-in": lambda fault: self._links(fault, self._cut, back=True),
            "cut-link": self._cut_one,
            "refuse": lambda fault: self._links(fault, self._refuse),
            "lossy": lambda fault: self._links(fault, self._lossy),
            "slow": lambda fault: self._links(fault, self._slow),
            "freeze": lambda fault: self._stop(fault, asleep=False),
            "sleep": lambda fault: self._stop(fault, asleep=True),
            "crash": self._crash,
            "crash-all": self._crash_all,
            "fork": lambda fault: self._owner_or(fault).fork(fault.lasts_s),
            "member-stop": lambda fault: self._cluster.stop_member(self._member(fault), fault.lasts_s),
            "member-part": lambda fault: self._cluster.part(self._member(fault), fault.lasts_s),
            "leader-stop": self._leader_stop,
            "leader-change": lambda _: self._cluster.change_leader(self._chance.uniform(*ELECTION_S)),
            "restart": lambda fault: self._cluster.go_down(min(3.0, fault.lasts_s)),
            "compact": lambda _: self._compact(),
            "full": self._fill,
            "delete-key": self._delete_key,
            "evict": self._evict,
            "revoke": self._revoke,
            "bump": lambda _: self.raise_epoch(),
            "ambush": self._ambush,
            "stranger": self._stranger,
            "restore": self._restore,
            "restore-careless": self._restore_carelessly,
        }

    def begin(self) -> None:
        """Backups are made now and then."""
        self._world.timeline.after(BACKUP_EVERY_S, self._back_up)

    def strike(self, fault: SimFault) -> None:
        """A fault befalls the world."""
        if not self._world.is_calm:
            self._world.tell("fault", str(fault))
            self._strike[fault.name](fault)

    def mend(self) -> None:
        """Everything is well again, as far as it lies with the network, the machines and the operators."""
        world = self._world
        self._store.full = False
        for number in self._strangers:
            if number in self._store.leases:
                self._cluster.revoke(number)
        for replica in world.replicas:
            if not replica.process.alive:
                self._start_anew(replica)
        for replica in world.replicas:
            for link in replica.keeper.links:
                link.heal()
            for child in replica.children:
                child.end()
            replica.process.go_on_now()
        self._cluster.heal()
        if world.restored:
            self.raise_epoch()

    # ------------------------------------------------------------ whom it befalls

    def _replica(self, fault: SimFault) -> Replica:
        return self._world.replicas[fault.target % len(self._world.replicas)]

    def _owner_or(self, fault: SimFault) -> Replica:
        """A replica that owns something; any if none does."""
        owners = [each for each in self._world.replicas if any(worker.hold for worker in each.workers)]
        return owners[fault.target % len(owners)] if owners else self._replica(fault)

    def _hit(self, fault: SimFault) -> Replica:
        """Often an owner: what befalls others matters less."""
        return self._owner_or(fault) if fault.amount < 0.6 else self._replica(fault)

    def _member(self, fault: SimFault) -> int:
        """A member; the others can form a majority, so only one is away at a time."""
        away = [m for m in range(self._cluster.size) if self._cluster.well_since_s(m) > self._world.timeline.now_s]
        return away[0] if away else fault.target % self._cluster.size

    # ------------------------------------------------------------ networks

    def _links(self, fault: SimFault, change: Callable[..., None], **which: bool) -> None:
        replica = self._hit(fault)
        self._world.tell("fault", f"   it befalls {replica.name}")
        until_s = self._world.timeline.now_s + fault.lasts_s
        for link in replica.keeper.links:
            change(link, until_s, fault, **which)
        self._world.timeline.at(until_s, self._cluster.streams.flush)

    def _cut(self, link: Link, until_s: float, _: SimFault, *, out: bool = False, back: bool = False) -> None:
        if out:
            link.cut_out_until_s = max(link.cut_out_until_s, until_s)
        if back:
            link.cut_in_until_s = max(link.cut_in_until_s, until_s)

    def _cut_one(self, fault: SimFault) -> None:
        link = self._hit(fault).keeper.links[fault.target % self._cluster.size]
        until_s = self._world.timeline.now_s + fault.lasts_s
        self._cut(link, until_s, fault, out=True, back=True)
        self._world.timeline.at(until_s, self._cluster.streams.flush)

    def _refuse(self, link: Link, until_s: float, _: SimFault) -> None:
        link.refused_until_s = max(link.refused_until_s, until_s)

    def _lossy(self, link: Link, until_s: float, fault: SimFault) -> None:
        link.lossy_until_s, link.loss = until_s, 0.1 + 0.4 * fault.amount

    def _slow(self, link: Link, until_s: float, fault: SimFault) -> None:
        link.slow_until_s, link.slow_s = until_s, 0.2 + 9.0 * fault.amount

    # ------------------------------------------------------------ processes

    def _stop(self, fault: SimFault, *, asleep: bool) -> None:
        replica = self._hit(fault)
        self._world.tell("fault", f"   it befalls {replica.name}")
        replica.process.stop(fault.lasts_s, asleep=asleep)

    def _crash(self, fault: SimFault) -> None:
        replica = self._hit(fault)
        self._world.tell("fault", f"   it befalls {replica.name}")
        self._kill(replica, min(2.0, fault.lasts_s))

    def _crash_all(self, fault: SimFault) -> None:
        for replica in self._world.replicas:
            self._kill(replica, min(2.0, fault.lasts_s))

    def _kill(self, replica: Replica, away_s: float) -> None:
        replica.die()
        self._world.timeline.after(away_s, lambda: self._start_anew(replica))

    def _start_anew(self, dead: Replica) -> None:
        world = self._world
        if world.replicas[dead.number] is not dead:
            return
        replica = type(dead)(world, dead.number, dead.timing, dead.incarnation + 1)
        for old, link in zip(dead.keeper.links, replica.keeper.links, strict=True):
            link.inherit(old)  # it is the same host
        replica.children = dead.children
        world.replicas[dead.number] = replica
        replica.begin()

    # ------------------------------------------------------------ etcd

    def _leader_stop(self, fault: SimFault) -> None:
        self._cluster.stop_member(self._member(fault), fault.lasts_s)
        self._cluster.change_leader(self._chance.uniform(*ELECTION_S))

    def _compact(self) -> None:
        self._store.compacted = self._store.revision

    def _fill(self, fault: SimFault) -> None:
        self._store.full = True

        def empty() -> None:
            self._store.full = False

        self._world.timeline.after(fault.lasts_s, empty)

    def _back_up(self) -> None:
        self._backups = [*self._backups, self._store.snapshot()][-BACKUPS_MAX:]
        self._world.timeline.after(BACKUP_EVERY_S, self._back_up)

    def _restore(self, fault: SimFault) -> None:
        """As it should be: nobody is let in before leases have lapsed and the epoch was raised."""
        longest_s = max(self._world.ttl_s, self._store.minimum_ttl) * 1.05 + 1.0
        self._cluster.go_down(longest_s)
        self._world.timeline.after(longest_s - 0.1, lambda: self._restored(fault, by_hand=False))

    def _restored(self, fault: SimFault, *, by_hand: bool) -> None:
        backup = self._backups[int(fault.amount * len(self._backups)) % len(self._backups)]
        self._store.restore(backup)
        self._store.full = False
        self._world.tell("etcd", f"is restored at revision {self._store.revision}")
        self._world.judge.restored(by_hand=by_hand)
        self._world.restored += 1
        if by_hand:
            self._world.judge.unraised = True
        else:
            self.raise_epoch()

    def _restore_carelessly(self, fault: SimFault) -> None:
        self._cluster.go_down(0.3)
        self._world.timeline.after(0.2, lambda: self._restored(fault, by_hand=True))

    # ------------------------------------------------------------ operators

    def raise_epoch(self) -> None:
        """An operator raises the epoch, above what was handed out if this etcd has been restored before."""
        judge = self._world.judge
        self._store.full = False  # whoever wants to write makes room first
        above = judge.highest if self._world.restored > 1 or judge.unraised else 0
        raised = self._now(epoch.bump(self._operator.ctx, self._operator.process.now() + 5.0, above))
        judge.unraised = False
        self._world.tell("etcd", f"the epoch is raised to {raised.number}")

    def _now(self, plan: Plan[Any]) -> Any:
        """Run an operator's plan at once, on the spot: what comes of it, or the Fault that it was refused with."""
        try:
            operation = next(plan)
            while True:
                try:
                    reply = self._store.perform(operation.request) if isinstance(operation, Call) else None
                except Fault as fault:
                    operation = plan.throw(fault)
                else:
                    operation = plan.send(reply)
        except StopIteration as end:
            return end.value

    def _owners_claim(self, fault: SimFault) -> pb.KeyValue | None:
        name = self._world.names[0] if fault.amount < 0.8 else self._world.names[-1]
        return next(iter(self._store.below(KEYS.queue(name))), None)

    def _delete_key(self, fault: SimFault) -> None:
        kv = self._owners_claim(fault)
        if kv is not None:
            self._world.judge.removed_by_hand({(kv.key, kv.create_revision)})
            self._store.delete(kv.key)

    def _ambush(self, fault: SimFault) -> None:
        """Everything that lets a beat be confirmed for a claim that is gone, before its owner can have heard of that."""
        replica, timeline = self._owner_or(fault), self._world.timeline
        hold = next((worker.hold for worker in replica.workers if worker.hold is not None), None)
        if hold is None:
            return
        self._world.tell("fault", f"   it befalls {replica.name}")
        lasts_s = hold.authority.timing.authority_s * (1.02 + 0.2 * fault.amount)
        for link in replica.keeper.links:
            self._cut(link, timeline.now_s + lasts_s, fault, out=True, back=True)
        timeline.at(timeline.now_s + lasts_s, self._cluster.streams.flush)
        self._cluster.stop_member(replica.keeper.watches.link.member, lasts_s + 3.0)
        self._cluster.change_leader(0.3)
        claim = hold.key, hold.create_revision

        def delete() -> None:
            kv = self._store.keys.get(hold.key)
            if kv is not None and kv.create_revision == hold.create_revision:
                self._world.judge.removed_by_hand({claim})
                self._store.delete(hold.key)

        timeline.after(0.5, delete)

    def _evict(self, fault: SimFault) -> None:
        kv = self._owners_claim(fault)
        if kv is not None:
            name, operator = KEYS.name_of(kv.key), self._operator
            try:
                token = self._now(_owner(operator, name))
                self._now(evict(operator.ctx, name, token, operator.process.now() + 5.0))
            except Fault as refused:
                self._world.tell("operator", f"is refused: {refused.text}")
            else:
                self._world.judge.removed_by_hand({(kv.key, kv.create_revision)})

    def _revoke(self, fault: SimFault) -> None:
        leases = sorted(self._store.leases)
        if leases:
            number = leases[fault.target % len(leases)]
            gone = {(kv.key, kv.create_revision) for kv in self._store.keys.values() if kv.lease == number}
            self._world.judge.removed_by_hand(gone)
            self._cluster.revoke(number)

    def _stranger(self, fault: SimFault) -> None:
        number = self._world.number()
        if self._store.full:
            return
        self._store.perform(pb.LeaseGrantRequest(ID=number, TTL=STRANGERS_TTL_S))
        self._store.put(KEYS.queue(self._world.names[0]) + f"{number:x}".encode(), b"", number)
        self._strangers.append(number)

        def leaves() -> None:
            if number in self._store.leases:
                self._cluster.revoke(number)

        self._world.timeline.after(fault.lasts_s, leaves)


def _owner(operator: Keeper, name: str) -> Plan[int]:
    claim = yield from owner(operator.ctx, name, operator.process.now() + 5.0)
    return 0 if claim is None else claim.token
