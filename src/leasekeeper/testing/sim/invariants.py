"""What must hold, examined after every event: G1 to G6, the order of the queue, and that nothing is left in the end.

The judge knows what no replica knows: the state of etcd itself, every clock, and which claims an operator has removed over
their owners' heads. For these, as docs/guarantees.md says, the gate may pass until the news has had time to arrive: a watch
or a reading of the key within two TTLs. And never again once it has been shut for lack of authority.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasekeeper.protocol.authority import Authority, State
from leasekeeper.protocol.keys import read_claim
from leasekeeper.testing.sim.keeper import KEYS

if TYPE_CHECKING:
    from leasekeeper.testing.sim.cluster import Cluster
    from leasekeeper.testing.sim.keeper import Keeper
    from leasekeeper.testing.sim.keyspace import Event
    from leasekeeper.testing.sim.process import Process
    from leasekeeper.testing.sim.timeline import Timeline

__all__ = ["Hold", "Judge", "Violation"]

# News of a claim that was removed over its owner's head may take two TTLs, and this.
NEWS_S = 1.5
ROUNDING_S = 1e-6


class Violation(Exception):
    """A promise was broken: which, by whom, and how."""

    def __init__(self, promise: str, what: str, who: tuple[str, ...]) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise
        self.what = what
        self.who = who


@dataclass(slots=True, eq=False)
class Hold:
    """One claim that somebody believes to own. ``acting_until_s`` is on the process's own clock.

    ``heartless``: in a child, where no heart keeps the gate open.
    """

    number: int
    process: Process
    keeper: Keeper
    authority: Authority
    heartless: bool = False
    acting_until_s: float = -1.0
    passed: bool = True
    # The gate was shut for lack of authority after the claim had been removed.
    lapsed: bool = False
    key: bytes = field(init=False)
    create_revision: int = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.authority.slot.key
        self.create_revision = self.authority.create_revision

    @property
    def name(self) -> str:
        """What is owned."""
        return self.authority.name


class Judge:
    """Sees everything and believes nothing."""

    def __init__(self, timeline: Timeline, cluster: Cluster, names: tuple[str, ...]) -> None:
        self._timeline = timeline
        self._cluster = cluster
        self._store = cluster.store
        self._queues = {name: KEYS.queue(name) for name in names}
        self.holds: list[Hold] = []
        # Who is first in line, and every claim that ever was, by key and create revision.
        self._first: dict[str, tuple[bytes, int] | None] = dict.fromkeys(names)
        # The token of who was first in line, and since when; 0 for nobody.
        self._tokens: dict[str, list[tuple[float, int]]] = {name: [(0.0, 0)] for name in names}
        self._holders: dict[str, str] = dict.fromkeys(names, "")
        self._firsts: dict[tuple[bytes, int], bytes] = {}
        # The claims that were removed by hand, and when.
        self._by_hand: dict[tuple[bytes, int], float] = {}
        self._deleted: set[tuple[bytes, int]] = set()
        self._living: dict[bytes, int] = {}
        self._newest: dict[str, int] = dict.fromkeys(names, 0)
        self._newest_created: dict[str, int] = dict.fromkeys(names, 0)
        self.highest = 0
        # The largest token that each keeper was given.
        self._told_to: dict[tuple[Keeper, str], int] = {}
        # Etcd was restored and the epoch not raised yet: tokens may repeat.
        self.unraised = False
        self._restored = False
        self.owned = 0
        self.told: Callable[[str, str], None] = lambda _who, _what: None

    # ------------------------------------------------------------ what happens at etcd

    def changed(self, event: Event) -> None:
        """A key was changed."""
        for name, queue in self._queues.items():
            if event.key.startswith(queue):
                if event.kv is None:
                    created = self._living.pop(event.key, 0)
                    self._deleted.add((event.key, created))
                else:
                    claim = event.key, event.kv.create_revision
                    self._living[event.key] = event.kv.create_revision
                    # After a restore revisions come by again: what is said of an earlier claim is not said of this one.
                    self._by_hand.pop(claim, None)
                    self._deleted.discard(claim)
                self._look(name)

    def restored(self, *, by_hand: bool) -> None:
        """Etcd went back; ``by_hand``: without waiting for leases to lapse, so that claims vanish under their owners."""
        self._restored = True
        before = set(self._living.items())
        self._living = {
            kv.key: kv.create_revision for queue in self._queues.values() for kv in self._store.below(queue)
        }
        gone = before - set(self._living.items())
        if by_hand:
            self.removed_by_hand(gone)
        for name in self._queues:
            self._newest_created[name] = 0
            self._look(name)

    def removed_by_hand(self, claims: set[tuple[bytes, int]]) -> None:
        """An operator has removed claims, just now, or is about to."""
        for claim in claims:
            self._by_hand[claim] = self._timeline.now_s

    def _look(self, name: str) -> None:
        first = next(iter(self._store.below(self._queues[name])), None)
        now = None if first is None else (first.key, first.create_revision)
        if now != self._first[name]:
            self._first[name] = now
            if first is not None:
                self._firsts[first.key, first.create_revision] = first.value
            claim = None if first is None else read_claim(KEYS, first, 0)
            self._tokens[name].append((self._timeline.now_s, 0 if claim is None else claim.token))
            self._holders[name] = "" if claim is None else claim.holder or "a stranger"
            self.told("etcd", f"{name}: first in line is {self._owner(name)}")

    # ------------------------------------------------------------ what replicas believe

    def own(self, hold: Hold) -> None:
        """A replica was told that it owns a name."""
        claim, who, authority = (hold.key, hold.create_revision), (hold.process.name,), hold.authority
        self.owned += 1
        if claim not in self._firsts:
            raise Violation("G1", f"{hold.process.name} was told that it owns {hold.name!r}, and never was first", who)
        if self._firsts[claim] != authority.slot.record:
            raise Violation("G6", f"{hold.process.name} takes another's claim on {hold.name!r} for its own", who)
        if authority.token <= self._told_to.get((hold.keeper, hold.name), 0):
            # Also when nobody has raised the epoch: a keeper remembers what it has seen.
            raise Violation(
                "G2", f"{hold.process.name} was given token {authority.token}, and had a larger one before", who
            )
        self._told_to[hold.keeper, hold.name] = authority.token
        if claim not in self._by_hand:
            if authority.token <= self._newest[hold.name] and not self.unraised:
                text = f"{hold.process.name} owns with token {authority.token} after {self._newest[hold.name]}"
                raise Violation("G2", text, who)
            if hold.create_revision <= self._newest_created[hold.name]:
                raise Violation("FIFO", f"{hold.process.name} owns before somebody who came earlier", who)
            self._newest_created[hold.name] = hold.create_revision
        self._newest[hold.name] = max(self._newest[hold.name], authority.token)
        self.highest = max(self.highest, authority.token)
        self.holds.append(hold)

    def released(self, hold: Hold, removed: bool | None) -> None:
        """A release came back so."""
        if removed and (hold.key, hold.create_revision) not in self._deleted:
            raise Violation("G6", f"{hold.process.name} was told that its claim is removed", (hold.process.name,))

    def verified(self, hold: Hold, began_s: float, *, answer: bool) -> None:
        """A replica was told whether its token is the owner's, having asked at ``began_s``: it was so at some moment since."""
        tokens = self._tokens[hold.name]
        since = max(i for i, (at_s, _) in enumerate(tokens) if at_s <= began_s)
        if answer not in {token == hold.authority.token for _, token in tokens[since:]}:
            who, what = hold.process.name, "is" if answer else "is not"
            text = f"{who} was told that token {hold.authority.token} {what} the owner's, and it never was so"
            raise Violation("G1", text, (who,))

    def owns(self, hold: Hold) -> bool:
        """Whether a claim is first in line, or only behind some that a restore brought back."""
        claim = hold.key, hold.create_revision
        return self._first[hold.name] == claim or (self._restored and self._living.get(claim[0]) == claim[1])

    def removed_lately(self, name: str, seconds: float) -> bool:
        """Whether an operator has removed a claim on a name within the last so many seconds."""
        since_s, queue = self._timeline.now_s - seconds, self._queues[name]
        return any(at_s >= since_s and key.startswith(queue) for (key, _), at_s in self._by_hand.items())

    def robbed(self, hold: Hold) -> bool:
        """Whether an operator has removed the claim over its owner's head."""
        return (hold.key, hold.create_revision) in self._by_hand

    def over(self, hold: Hold) -> None:
        """A replica does not believe any more that it owns."""
        if hold in self.holds:
            self.holds.remove(hold)

    # ------------------------------------------------------------ after every event

    def check(self) -> None:
        """Every gate that passes, and everybody who acts on one that passed, is the owner at etcd."""
        for hold in self.holds:
            now_s = hold.process.now()
            passes = hold.authority.passes(0.0, now_s)
            if passes or now_s < hold.acting_until_s:
                claim = (hold.key, hold.create_revision)
                if self._first[hold.name] != claim:
                    self._judge(hold, claim, now_s, passes=passes)
                if passes:
                    self._check_evidence(hold, now_s)
            elif hold.passed and not hold.heartless:
                self._check_shut(hold, now_s)
            hold.passed = passes
            if not passes and not hold.lapsed and (hold.key, hold.create_revision) in self._by_hand:
                hold.lapsed = hold.authority.remaining(now_s) <= 0

    def _judge(self, hold: Hold, claim: tuple[bytes, int], now_s: float, *, passes: bool) -> None:
        if self._restored and self._living.get(hold.key) == hold.create_revision:
            return  # behind claims that the restore brought back, which nobody has any more
        who = hold.process.name
        concerned = who, self._holders[hold.name]
        removed_s = self._by_hand.get(claim)
        if removed_s is None:
            does = "passes its gate" if passes else "acts on a gate that it passed"
            text = f"{who} {does} on {hold.name!r} and etcd's owner is {self._owner(hold.name)}"
            raise Violation("G3", text, concerned)
        if passes and claim in hold.keeper.informed:
            raise Violation(
                "G3", f"{who} passes its gate on {hold.name!r}, and has heard that its key is gone", concerned
            )
        if passes and hold.lapsed:
            raise Violation("G3", f"{who} passes its gate again on {hold.name!r}, and its claim is gone", concerned)
        if passes and self._timeline.now_s - removed_s > 2.02 * hold.authority.timing.ttl + NEWS_S:
            age_s = self._timeline.now_s - removed_s
            raise Violation(
                "G3", f"{who} passes its gate on {hold.name!r} {age_s:.1f} s after its claim was removed", (who,)
            )

    def _owner(self, name: str) -> str:
        first = self._first[name]
        return "nobody" if first is None else f"{self._holders[name]} @{first[1]}"

    def _check_evidence(self, hold: Hold, now_s: float) -> None:
        """G5, G3: what lets the gate pass is a beat that etcd has confirmed, and that was sent not too long ago."""
        sent_s = hold.keeper.evidence.get(hold.authority.session.lease_id)
        if sent_s is None or now_s - sent_s >= hold.authority.timing.pause_s + ROUNDING_S:
            age = "never" if sent_s is None else f"{now_s - sent_s:.3f} s ago"
            who = hold.process.name
            raise Violation("G5", f"{who} passes its gate, and its last confirmed beat was sent {age}", (who,))

    def _check_shut(self, hold: Hold, now_s: float) -> None:
        """A gate shuts by age only if for that long no way to etcd was good."""
        authority = hold.authority
        if now_s >= authority.until_s:
            return
        if not authority.open or authority.state(now_s) is not State.SUSPENDED or not hold.process.alive:
            return
        since_s = max(hold.process.well_since_s(), hold.keeper.well_since_s(self._cluster))
        timing, sent_s = authority.timing, hold.keeper.evidence.get(authority.session.lease_id)
        # Beats that are confirmed count only where the keys have been read; of that two in a row may have been lost.
        read_in_vain = sent_s is not None and now_s - sent_s < timing.pause_s
        bound_s = 1.3 * timing.ttl + 0.5 if read_in_vain else 1.02 * timing.pause_s + 0.3
        if self._timeline.now_s - since_s > bound_s:
            who = hold.process.name
            text = f"{who} is SUSPENDED although a way to etcd was good for {self._timeline.now_s - since_s:.1f} s"
            raise Violation("G5", text, (who,))
