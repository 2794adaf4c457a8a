"""Faults as values: what befalls a world, when, to whom, for how long; and schedules of them, drawn from a seed.

A fault that is taken out of a schedule leaves the others as they are, so that the shrinker can find those that matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

__all__ = ["FAULTS", "MIXES", "RUN_FAULTS", "RUN_MIXES", "SimFault", "schedule"]

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

# What can befall runs, beside all of the above.
RUN_FAULTS: dict[str, str] = {
    "strike": "a process is killed at one exact point of what it does for a run: before or after a plan, or a call",
    "strike-freeze": "a process stands still at one exact point of what it does for a run",
    "interrupt": "what a process does for a step is cancelled wherever it is, as by Ctrl-C",
    "outside-lossy": "half of the requests to the outside world, or of its answers, get lost",
    "outside-slow": "requests to the outside world are on their way for seconds and arrive though their sender has died",
    "outside-errs": "the outside world answers with errors after it has applied",
    "outside-refuses": "the outside world refuses, and surely applies nothing; asked, it cannot tell",
    "outside-lies": "the outside world answers that it has applied, and has not",
    "stranger-applies": "somebody else applies what a step of a run is about to",
    "wall": "somebody sets the wall clock of a host",
    "halt": "an operator halts one run or all of them, and lifts that later",
    "impatient": "operators decide on steps without an outcome at once, when nobody owns the run",
    "deaf": "nobody can be told of anything for a while",
    "head-back": "somebody puts an older head of a run back",
}

RUN_MIXES: dict[str, dict[str, int]] = {
    "everything": dict.fromkeys(RUN_FAULTS, 2) | {"strike": 8, "cut": 3, "cut-in": 3, "freeze": 3, "crash": 3, "lossy": 3}
    | {"slow": 2, "leader-change": 1, "restart": 1, "full": 1, "compact": 1, "sleep": 1, "head-back": 0},
    "strikes": {"strike": 10, "strike-freeze": 3, "interrupt": 2, "outside-errs": 1, "outside-lossy": 1},
    "network": {
        "cut": 3, "cut-out": 2, "cut-in": 4, "cut-link": 1, "lossy": 4, "slow": 3, "refuse": 1, "member-part": 1,
        "leader-stop": 1, "restart": 2, "interrupt": 1,
    },
    "processes": {"freeze": 5, "sleep": 2, "crash": 3, "crash-all": 1, "strike-freeze": 4, "cut": 2, "strike": 2},
    "outside": {
        "outside-lossy": 3, "outside-slow": 3, "outside-errs": 2, "outside-refuses": 2, "outside-lies": 2,
        "stranger-applies": 4, "strike": 5, "crash": 1,
    },
    "operators": {
        "halt": 6, "impatient": 2, "bump": 2, "deaf": 2, "delete-key": 1, "evict": 1, "revoke": 1, "strike": 4, "crash-all": 1,
        "cut": 2, "full": 1, "outside-errs": 2,
    },
    "strangers": {"stranger-applies": 8, "strike": 2, "cut": 3, "restart": 2, "freeze": 2, "outside-slow": 2},
    "clocks": {"wall": 4, "cut": 4, "sleep": 2, "freeze": 2, "crash-all": 2, "strike": 3, "halt": 2},
    "outages": {"restart": 4, "crash-all": 3, "halt": 3, "strike": 5, "outside-errs": 2, "wall": 1},
    "restores": {"restore": 3, "restore-careless": 1, "crash": 2, "strike": 3, "bump": 1},
    "careless": {"restore-careless": 5, "crash": 1, "strike": 1},
    "tampered": {"head-back": 4, "strike": 3, "crash": 2, "cut": 1},
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
        what = FAULTS.get(self.name) or RUN_FAULTS[self.name]
        return f"#{self.number} {self.name} at {self.at_s:.2f} s for {self.lasts_s:.2f} s: {what}"


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
