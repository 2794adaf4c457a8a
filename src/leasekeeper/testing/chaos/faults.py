"""How each kind of fault is done to the real thing, and undone.

A fault is a function of the stage and the blow: it strikes and returns the `Hit`, which says whom it struck and how it is
undone. One that cannot be done just now returns None: a replica that is struck already, no owner to be revoked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from leasekeeper.errors import LeasekeeperError
from leasekeeper.testing.chaos.operator import eventually
from leasekeeper.testing.chaos.schedule import KINDS
from leasekeeper.testing.proxy import Fault, Way

if TYPE_CHECKING:
    from leasekeeper.testing.chaos.operator import Claim
    from leasekeeper.testing.chaos.records import Blow
    from leasekeeper.testing.chaos.stage import Actor, Stage

__all__ = ["FAULTS", "Hit", "strike"]

HOUR_S = 3600.0
FILL_TRIES = 200
RESTORE_REST_S = 2.0
EPOCH_S = 60.0


def _nothing() -> None:
    return


@dataclass(frozen=True, slots=True)
class Hit:
    """A fault that was done."""

    who: str
    undo: Callable[[], object] = _nothing
    tokens: tuple[int, ...] = ()
    detail: str = ""


Strike = Callable[["Stage", "Blow"], "Hit | None"]


# ---------------------------------------------------------------- replicas


def _actor(stage: Stage, blow: Blow) -> Actor | None:
    """Whom a blow strikes; nobody who is struck already."""
    actor = stage.owner() if blow.target is None else stage.actors[blow.target]
    return actor if actor is not None and not actor.struck else None


def _to_replica(strike: Callable[[Actor, Blow], Callable[[], object]]) -> Strike:
    def struck(stage: Stage, blow: Blow) -> Hit | None:
        actor = _actor(stage, blow)
        if actor is None:
            return None
        mend = strike(actor, blow)
        actor.struck = True

        def undo() -> None:
            actor.struck = False
            mend()

        return Hit(actor.name, undo)

    return struck


def _kill(actor: Actor, _: Blow) -> Callable[[], object]:
    actor.kill()
    return actor.start


def _freeze(actor: Actor, _: Blow) -> Callable[[], object]:
    actor.freeze()
    return actor.thaw


def _on_links(fault: Fault, *, reset: bool) -> Callable[[Actor, Blow], Callable[[], object]]:
    def strike(actor: Actor, _: Blow) -> Callable[[], object]:
        for link in actor.links:
            link.inject(fault)
        return partial(actor.reconnect, reset=reset)

    return strike


def _slow_network(actor: Actor, _: Blow) -> Callable[[], object]:
    for link in actor.links:
        link.delay(actor.ttl_s / 10)
    return actor.reconnect


def _clock_jump(actor: Actor, blow: Blow) -> Callable[[], object]:
    sign = 1 if int(blow.at_s * 1000) % 2 else -1
    actor.set_wall(sign * HOUR_S)
    return _nothing


# ---------------------------------------------------------------- the cluster


def _member_killed(stage: Stage, blow: Blow) -> Hit:
    return _killed(stage, [blow.target or 0])


def _quorum_lost(stage: Stage, blow: Blow) -> Hit:
    members = len(stage.cluster.members)
    return _killed(stage, [((blow.target or 0) + number) % members for number in range(members // 2 + 1)])


def _all_killed(stage: Stage, _: Blow) -> Hit:
    return _killed(stage, list(range(len(stage.cluster.members))))


def _killed(stage: Stage, members: list[int]) -> Hit:
    for member in members:
        stage.cluster.kill(member)

    def undo() -> None:
        for member in members:
            # Tried again on a slow machine, this must not end those that are on their way.
            if not stage.cluster.members[member].is_running:
                stage.cluster.restart(member, wait=False)
        stage.cluster.wait_ready()

    return Hit(_members(members), undo)


def _member_apart(stage: Stage, blow: Blow) -> Hit:
    return _apart(stage, blow.target or 0)


def _leader_apart(stage: Stage, _: Blow, way: Literal["both", "to", "from"] = "both") -> Hit | None:
    leader = stage.cluster.leader()
    return None if leader is None else _apart(stage, leader, way)


def _apart(stage: Stage, member: int, way: Literal["both", "to", "from"] = "both") -> Hit:
    stage.cluster.isolate(member, way=way)

    def undo() -> None:
        stage.cluster.heal()
        stage.cluster.wait_ready()

    return Hit(_members([member]), undo)


def _leader_frozen(stage: Stage, _: Blow) -> Hit | None:
    leader = stage.cluster.leader()
    if leader is None:
        return None
    stage.cluster.freeze(leader)

    def undo() -> None:
        stage.cluster.thaw(leader)
        stage.cluster.wait_ready()

    return Hit(_members([leader]), undo)


def _leader_moved(stage: Stage, blow: Blow) -> Hit | None:
    target = blow.target or 0
    if len(stage.cluster.members) == 1 or stage.cluster.leader() in (None, target):
        return None
    stage.cluster.move_leader(target)
    return Hit(_members([target]))


def _slow_server(stage: Stage, blow: Blow) -> Hit | None:
    leader = stage.cluster.leader()
    if leader is None:
        return None
    over = stage.stutter(leader, blow.lasts_s)

    def undo() -> None:
        over()
        stage.cluster.wait_ready()

    return Hit(_members([leader]), undo)


def _members(numbers: list[int]) -> str:
    return "etcd " + ", ".join(str(number) for number in numbers)


# ---------------------------------------------------------------- an operator's hand


def _on_owner(act: Callable[[Stage, Claim], object]) -> Strike:
    def strike(stage: Stage, _: Blow) -> Hit | None:
        claims = stage.operator.claims()
        if not claims:
            return None
        tokens = (stage.operator.token_of(claims[0]),)
        try:
            act(stage, claims[0])
        except LeasekeeperError as error:
            # It may have been done all the same, and explains then what follows.
            return Hit(claims[0].holder, tokens=tokens, detail=f"perhaps: {error}"[:200])
        return Hit(claims[0].holder, tokens=tokens)

    return strike


def _compaction(stage: Stage, _: Blow) -> Hit:
    stage.operator.compact()
    return Hit("etcd")


def _no_space(stage: Stage, _: Blow) -> Hit:
    try:
        detail = "" if stage.operator.fill_up(FILL_TRIES) else "not full"
    except LeasekeeperError as error:
        detail = f"perhaps: {error}"[:200]
    # Room is made whatever happened: an alarm that nobody takes back stops all writes for ever.
    return Hit("etcd", stage.operator.make_room, detail=detail)


def _restore(stage: Stage, _: Blow, *, raised: bool = True) -> Hit:
    """As operators are told to do it: nobody reaches etcd for longer than any lease lasts, and the epoch is raised first."""
    for actor in stage.actors:
        actor.cut_off()
    stage.rest(stage.ttl_s + RESTORE_REST_S)
    stage.restore()
    tokens = stage.tokens()
    number = eventually(lambda: stage.operator.raise_epoch(max(tokens, default=1)), EPOCH_S) if raised else 0
    for actor in stage.actors:
        actor.reconnect()
    return Hit("etcd", tokens=tokens, detail=f"the epoch is {number}")


def _epoch_raised(stage: Stage, _: Blow) -> Hit:
    return Hit("etcd", detail=f"the epoch is {stage.operator.raise_epoch(1)}")


FAULTS: dict[str, Strike] = {
    "kill": _to_replica(_kill),
    "freeze": _to_replica(_freeze),
    "blackhole": _to_replica(_on_links(Fault("blackhole"), reset=False)),
    "cut": _to_replica(_on_links(Fault("cut"), reset=False)),
    "requests-lost": _to_replica(_on_links(Fault("blackhole", Way.TO_SERVER), reset=True)),
    "replies-lost": _to_replica(_on_links(Fault("lose_replies", Way.TO_CLIENT), reset=True)),
    "slow-network": _to_replica(_slow_network),
    "clock-jump": _to_replica(_clock_jump),
    "member-killed": _member_killed,
    "member-apart": _member_apart,
    "leader-apart": _leader_apart,
    "leader-mute": partial(_leader_apart, way="from"),
    "leader-deaf": partial(_leader_apart, way="to"),
    "leader-frozen": _leader_frozen,
    "leader-moved": _leader_moved,
    "quorum-lost": _quorum_lost,
    "all-killed": _all_killed,
    "slow-server": _slow_server,
    "revoked": _on_owner(lambda stage, claim: stage.operator.revoke(claim)),
    "broken": _on_owner(lambda stage, claim: stage.operator.delete(claim)),
    "compaction": _compaction,
    "no-space": _no_space,
    "restore": _restore,
    "restore-unraised": partial(_restore, raised=False),
    "epoch-raised": _epoch_raised,
    **{kind.name: lambda stage, blow: stage.strike_world(blow) for kind in KINDS.values() if kind.lane == "world"},
}


def strike(stage: Stage, blow: Blow) -> Hit | str:
    """Do a blow: the hit, or why it came to nothing.

    A restore that fails is not passed over: half of it done, no promise holds. Its error ends the storm.
    """
    try:
        hit = FAULTS[blow.kind](stage, blow)
    except LeasekeeperError as error:
        if blow.kind in ("restore", "restore-unraised"):
            raise
        return f"{type(error).__name__}: {error}"[:200]
    return hit if hit is not None else "nobody to strike who is not struck already"
