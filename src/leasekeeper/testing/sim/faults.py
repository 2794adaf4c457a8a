"""Faults as values: what befalls a world, when, to whom, for how long; and schedules of them, drawn from a seed.

A fault that is taken out of a schedule leaves the others as they are, so that the shrinker can find those that matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

__all__ = ["FAULTS", "MIXES", "SimFault", "schedule"]

# What each does; the world carries them out.
FAULTS: dict[str, str] = {
    "cut": "a replica reaches no member, both ways",
    "cut-out": "requests of a replica get lost, answers would come through",
    "cut-in": "requests of a replica arrive, answers get lost",
    "cut-link": "a replica does not reach one member",
    "refuse": "connections of a replica are refused",
    "lossy": "a third of a replica's messages get lost, each way",
    "slow": "messages of a replica take up to seconds and overtake each other",
    "freeze": "a process is stopped and continued",
    "sleep": "a machine sleeps and wakes; its boot-time clock has gone on, its timers have not",
    "crash": "a process is killed and started anew",
    "crash-all": "all processes are killed and started anew, as when a host or a deployment is restarted",
    "fork": "a process forks while it owns, and the child goes on with what it inherited",
    "member-stop": "a member stands still",
    "member-part": "a member is apart from the others",
    "leader-stop": "the leader stands still: for a while there is none, then another, and leases are armed anew",
    "leader-change": "another leader; leases are armed anew",
    "restart": "all of etcd is down for a while",
    "compact": "history is compacted",
    "full": "etcd has no space: grants and puts are refused",
    "delete-key": "an operator deletes the owner's key",
    "evict": "an operator breaks the owner's claim with the command for it",
    "revoke": "an operator revokes a lease",
    "bump": "an operator raises the epoch",
    "ambush": "an owner is cut off and its watch stuck, a new leader arms its lease anew, an operator deletes its key",
    "stranger": "another program stands in the queue for a while",
    "restore": "etcd is restored from a backup as it should be: down until leases have lapsed, then the epoch raised",
    "restore-careless": "etcd is restored at once, and nobody raises the epoch",
}

# Weights by kind of world. A world that has all kinds of faults at once hides some behind others.
MIXES: dict[str, dict[str, int]] = {
    "everything": dict.fromkeys(FAULTS, 2) | {"restore": 1, "restore-careless": 1, "full": 1, "cut": 4, "freeze": 4},
    "network": {
        "cut": 3, "cut-out": 2, "cut-in": 3, "cut-link": 2, "refuse": 1, "lossy": 2, "slow": 3,
        "member-part": 2, "leader-stop": 2, "leader-change": 2, "restart": 1, "compact": 1,
    },
    "members": {"member-stop": 6, "member-part": 2, "cut-link": 3},
    "late": {"slow": 4, "cut-in": 2, "lossy": 5},
    "processes": {"freeze": 4, "sleep": 2, "crash": 3, "fork": 3, "cut": 2, "slow": 1, "leader-change": 1},
    "operators": {
        "delete-key": 3, "evict": 1, "revoke": 2, "bump": 1, "compact": 2, "full": 1, "stranger": 2, "cut": 2, "slow": 1,
    },
    "blind": {
        "ambush": 4, "delete-key": 2, "revoke": 1, "compact": 2, "freeze": 3, "cut": 2, "member-part": 3, "member-stop": 2,
        "leader-change": 3,
    },
    "clocks": {"cut": 5, "cut-out": 2, "sleep": 2, "freeze": 2},
    "restores": {"restore": 3, "restore-careless": 1, "crash": 4, "bump": 2, "cut": 1, "slow": 1, "freeze": 1},
    "careless": {"restore-careless": 4, "crash-all": 4, "crash": 2},
    "epochs": {"bump": 4, "crash": 6, "restore": 1},
}  # fmt: skip

FIRST_S = 2.0
BETWEEN_S = (0.2, 4.0)
# In TTLs: a blink, a pause, nearly and more than a lease.
LASTS = (0.15, 0.3, 0.55, 0.8, 0.98, 1.05, 1.3, 2.0)


@dataclass(frozen=True, slots=True)
class SimFault:
    """One fault. ``target`` says whom it befalls (any number: who is there is counted round), ``lasts_s`` how long."""

    number: int
    name: str
    at_s: float
    lasts_s: float
    target: int
    amount: float

    def __str__(self) -> str:
        return f"#{self.number} {self.name} at {self.at_s:.2f} s for {self.lasts_s:.2f} s: {FAULTS[self.name]}"


def schedule(chance: Random, mix: dict[str, int], ttl_s: float, storm_s: float) -> tuple[SimFault, ...]:
    """The faults of a world."""
    names, weights = list(mix), list(mix.values())
    faults: list[SimFault] = []
    at_s = FIRST_S
    while True:
        at_s += chance.uniform(*BETWEEN_S)
        if at_s >= storm_s:
            return tuple(faults)
        (name,) = chance.choices(names, weights)
        lasts_s = chance.choice(LASTS) * ttl_s * chance.uniform(0.9, 1.1)
        faults.append(SimFault(len(faults), name, at_s, lasts_s, chance.randrange(1000), chance.random()))
