"""Carries out what befalls worlds of runs, beside what befalls all worlds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from leasekeeper.testing.sim.fortune import Fortune
from leasekeeper.testing.sim.runs.policies import SKEW_S
from leasekeeper.testing.sim.runs.replica import RunReplica, RunWorker

if TYPE_CHECKING:
    from leasekeeper.testing.sim.faults import SimFault
    from leasekeeper.testing.sim.replica import Replica
    from leasekeeper.testing.sim.runs.world import RunWorld

__all__ = ["RunFortune"]

# Every point that a conduct passes; the first ones are passed most, and matter most.
TALKS = (
    "intent", "outcome", "open", "raised", "in_doubt", "alerted", "finish", "checkpoint", "phase", "find", "before", "conflict",
    "space", "drift", "late", "settle", "look",
)  # fmt: skip
CALLS = ("effect", "preflight", "verify", "anchor")
NAMED = (
    *("intent:reply", "effect:return", "outcome:send") * 3,
    *(f"{name}:{side}" for name in TALKS for side in ("send", "reply")),
    *(f"{name}:{side}" for name in CALLS for side in ("call", "return")),
)
POINTS = 14
AWAY_S = 1.0


class RunFortune(Fortune):
    """Does to a world of runs what befalls it."""

    def __init__(self, world: RunWorld) -> None:
        super().__init__(world)
        self._runs = world
        self._strike |= {
            "strike": lambda fault: self._arm(fault, 0.0),
            "strike-freeze": lambda fault: self._arm(fault, fault.lasts_s),
            "interrupt": self._interrupt,
            "outside-lossy": self._outside("lossy_until_s"),
            "outside-slow": self._outside("slow_until_s"),
            "outside-errs": self._outside("erring_until_s"),
            "outside-refuses": self._outside("refusing_until_s"),
            "outside-lies": self._outside("lying_until_s"),
            "stranger-applies": self._stranger_applies,
            "wall": self._set_wall,
            "halt": self._halt,
            "impatient": self._hurry,
            "deaf": self._deafen,
            "head-back": self._put_head_back,
        }

    def kill(self, replica: Replica) -> None:
        """Kill it where it stands; it is started anew soon."""
        self._kill(replica, AWAY_S)

    def mend(self) -> None:
        """Everything is well again, as far as it does not lie with the product."""
        world = self._runs
        world.outside.heal()
        world.deaf_until_s = 0.0
        super().mend()
        world.person.lift_all()
        for replica in world.replicas:
            assert isinstance(replica, RunReplica)
            replica.disarm()

    def _restored(self, fault: SimFault, *, by_hand: bool) -> None:
        super()._restored(fault, by_hand=by_hand)
        self._runs.runs.restored()

    # ------------------------------------------------------------ processes

    def _arm(self, fault: SimFault, freezes_s: float) -> None:
        replica = self._owner_or(fault)
        assert isinstance(replica, RunReplica)
        at = NAMED[fault.target % len(NAMED)] if fault.target % 3 else ""
        replica.arm(at, int(fault.amount * (3 if at else POINTS)), freezes_s)

    def _interrupt(self, fault: SimFault) -> None:
        for worker in self._owner_or(fault).workers:
            assert isinstance(worker, RunWorker)
            worker.interrupt()

    def _set_wall(self, fault: SimFault) -> None:
        skews = self._runs.skews
        skews[fault.target % len(skews)] = (2.0 * fault.amount - 1.0) * SKEW_S

    # ------------------------------------------------------------ the outside world

    def _outside(self, what: str) -> Callable[[SimFault], None]:
        def befalls(fault: SimFault) -> None:
            setattr(self._runs.outside, what, self._runs.timeline.now_s + fault.lasts_s)

        return befalls

    def _stranger_applies(self, fault: SimFault) -> None:
        """Somebody does something that a run is about to do, and that it looks for strongly right before."""
        world = self._runs
        open_ = [
            (script.run, key)
            for script in world.present()
            for key, step in script.steps.items()
            if step.policy.preflight == "strong" and not world.outside.of(script.run, key).applied
        ]
        if open_:
            world.outside.stranger_applies(*open_[fault.target % len(open_)])

    # ------------------------------------------------------------ operators

    def _halt(self, fault: SimFault) -> None:
        scripts = self._runs.present()
        scope = scripts[fault.target % len(scripts)].run
        scope = ("*", scope, scope, scope.partition("/")[0] + "/*")[fault.target % 4]
        self._runs.person.halt(scope, fault.lasts_s)

    def _hurry(self, fault: SimFault) -> None:
        self._runs.person.impatient_until_s = self._runs.timeline.now_s + fault.lasts_s

    def _deafen(self, fault: SimFault) -> None:
        self._runs.deaf_until_s = self._runs.timeline.now_s + fault.lasts_s

    def _put_head_back(self, fault: SimFault) -> None:
        world = self._runs
        scripts = [each for each in world.present() if len(world.runs.books.of(each.run).heads) > 1]
        if scripts:
            script = scripts[fault.target % len(scripts)]
            book = world.runs.books.of(script.run)
            book.tampered = True
            world.cluster.store.put(script.keys.head, book.heads[int(fault.amount * (len(book.heads) - 1))])
