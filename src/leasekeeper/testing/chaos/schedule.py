"""Which faults there are, and when which of them strikes: made from one seed, before anything runs.

Each replica, the owner of the moment, the cluster and the outside world have a lane of their own, in which one fault follows
another, so faults of different lanes overlap and those of one do not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from leasekeeper.errors import ConfigError
from leasekeeper.testing.chaos.records import Blow

__all__ = ["KINDS", "WORKLOADS", "Kind", "Lane", "Workload", "choose_kinds", "make_schedule"]

Lane = Literal["replica", "cluster", "world"]
Workload = Literal["lease", "runs"]
WORKLOADS: tuple[Workload, ...] = ("lease", "runs")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault. ``lasts`` are the durations to choose from, as shares of a TTL; () for what happens in a moment."""

    name: str
    lane: Lane
    lasts: tuple[float, ...]
    about: str
    # How many of them there may be in one storm; None: any number.
    most: int | None = None
    # Whether it happens between members, so that one alone knows no such thing.
    among_members: bool = False
    workloads: tuple[Workload, ...] = WORKLOADS
    # Whether it strikes only where it is asked for by name.
    by_name: bool = False


BLINK = (0.4, 0.7, 1.3, 2.5)
LONG = (1.3, 2.0, 2.5)

_ALL = (
    Kind("kill", "replica", (0.1, 0.5, 1.0), "kill -9 of a replica, which is started anew later"),
    Kind("freeze", "replica", LONG, "SIGSTOP of a replica for longer than its lease lasts"),
    Kind("blackhole", "replica", BLINK, "nothing passes between a replica and etcd, and nobody is told"),
    Kind("cut", "replica", BLINK, "the connections of a replica to etcd are reset and refused"),
    Kind("requests-lost", "replica", BLINK, "what a replica sends does not arrive; answers would"),
    Kind("replies-lost", "replica", BLINK, "what a replica sends arrives; no answer comes back"),
    Kind("slow-network", "replica", BLINK, "each packet of a replica takes a tenth of its TTL, each way"),
    Kind("clock-jump", "replica", (), "a replica's wall clock jumps by an hour"),
    Kind("member-killed", "cluster", BLINK, "kill -9 of a member of etcd"),
    Kind("member-apart", "cluster", BLINK, "a member is cut off from the others; clients reach it", among_members=True),
    Kind(
        "leader-apart", "cluster", LONG, "the leader is cut off from the others; clients reach it", among_members=True
    ),
    Kind("leader-mute", "cluster", LONG, "the leader hears the others, and they do not hear it", among_members=True),
    Kind("leader-deaf", "cluster", LONG, "the others hear the leader, and it does not hear them", among_members=True),
    Kind("leader-frozen", "cluster", BLINK, "SIGSTOP of the leader"),
    Kind("leader-moved", "cluster", (), "the leadership is handed to another member", among_members=True),
    Kind("quorum-lost", "cluster", BLINK, "kill -9 of most members"),
    Kind("all-killed", "cluster", (0.4, 1.3), "kill -9 of all members, as when the power fails"),
    Kind("slow-server", "cluster", BLINK, "the leader runs only half of the time, as with a slow disk"),
    Kind("revoked", "cluster", (), "an operator revokes the owner's lease"),
    Kind("broken", "cluster", (), "an operator deletes the owner's claim"),
    Kind("compaction", "cluster", (), "etcd forgets all history"),
    Kind("no-space", "cluster", (0.7, 1.3), "etcd's quota is used up: it takes no writes", most=1),
    Kind("restore", "cluster", (), "etcd is restored from an old backup, and the epoch is raised", most=1),
    Kind(
        "restore-unraised",
        "cluster",
        (),
        "etcd is restored from an old backup, and nobody raises the epoch: tokens are given again",
        most=1,
        workloads=("lease",),
        by_name=True,
    ),
    Kind(
        "epoch-raised",
        "cluster",
        (),
        "an operator raises the epoch while everybody works",
        most=2,
        workloads=("runs",),
    ),
    *(
        Kind(name, "world", lasts, about, workloads=("runs",))
        for name, lasts, about in (
            ("late-requests", BLINK, "what the outside world is asked to do is done late"),
            ("late-replies", LONG, "the outside world does at once what it is asked, and answers late"),
            ("lost-replies", BLINK, "the outside world does what it is asked, and drops the connection"),
            ("fails-after", BLINK, "the outside world does what it is asked, and says 500"),
            ("fails", BLINK, "the outside world does nothing, and says 500"),
            ("outage", BLINK, "the outside world drops every connection, and does nothing"),
            ("old-reads", LONG, "a list of the outside world lags behind"),
            ("halt-all", BLINK, "an operator halts everything, and lifts it again"),
            ("halt-some", LONG, "an operator halts runs by the beginning of their names, and lifts it again"),
        )
    ),
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in _ALL}
"""All kinds of faults, by name."""


def choose_kinds(names: Collection[str], workload: Workload = "lease") -> tuple[Kind, ...]:
    """The kinds of these names; for none all that may strike unasked. ConfigError for a name that the workload has not."""
    known = {kind.name: kind for kind in _ALL if workload in kind.workloads}
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ConfigError(field="faults", value=unknown[0], expected=f"some of {', '.join(known)}")
    return tuple(kind for name, kind in known.items() if (name in names if names else not kind.by_name))


def make_schedule(
    seed: int,
    *,
    seconds: float,
    ttl_s: float,
    replicas: int,
    members: int,
    kinds: Collection[str] = (),
    workload: Workload = "lease",
) -> list[Blow]:
    """The faults of a seed, in order of time; each is over after ``seconds``."""
    chosen = choose_kinds(kinds, workload)
    blows: list[Blow] = []
    for number in range(replicas + 1):
        # The last of these lanes is the owner's, whoever that is then.
        target = number if number < replicas else None
        lane = [kind for kind in chosen if kind.lane == "replica"]
        blows += _lane(Random(f"{seed}/replica/{number}"), lane, seconds, ttl_s, [target])
    lane = [kind for kind in chosen if kind.lane == "cluster"]
    blows += _lane(Random(f"{seed}/cluster"), lane, seconds, ttl_s, list(range(members)))
    lane = [kind for kind in chosen if kind.lane == "world"]
    blows += _lane(Random(f"{seed}/world"), lane, seconds, ttl_s, [None])
    return sorted(blows, key=lambda blow: (blow.at_s, blow.kind, -1 if blow.target is None else blow.target))


def _lane(chance: Random, kinds: list[Kind], seconds: float, ttl_s: float, targets: Sequence[int | None]) -> list[Blow]:
    blows: list[Blow] = []
    at_s = chance.uniform(1.0, 3.0) * ttl_s
    left = {kind.name: kind.most for kind in kinds}
    while possible := [kind for kind in kinds if left[kind.name] != 0]:
        kind = chance.choice(possible)
        lasts_s = chance.choice(kind.lasts) * ttl_s if kind.lasts else 0.0
        if at_s + lasts_s > seconds:
            break
        most = left[kind.name]
        left[kind.name] = None if most is None else most - 1
        blows.append(Blow(round(at_s, 3), kind.name, chance.choice(targets), round(lasts_s, 3)))
        at_s += lasts_s + chance.uniform(0.5, 2.5) * ttl_s
    return blows
