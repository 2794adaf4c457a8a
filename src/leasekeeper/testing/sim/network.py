"""The network between processes and the members of etcd, and how a request and its answer travel.

Each process has a link to each member. Requests take their time on the way out and on the way back, each its own, so that those
of different connections overtake each other; they get lost on either; and where an answer was lost, the request may arrive a
second time. What came to nothing is told as the wire floor tells it: never sent, refused, or unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leasekeeper.protocol.plan import Cause, Fault, Kind

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from leasekeeper.protocol.plan import Call
    from leasekeeper.testing.sim.cluster import Cluster
    from leasekeeper.testing.sim.process import Process
    from leasekeeper.testing.sim.timeline import Timeline

__all__ = ["Link", "Network", "Route"]

WAY_S = (0.0005, 0.006)
# Now and then something is held up although nothing is wrong.
HELD_UP = 0.01
HELD_UP_S = (0.01, 0.2)
REFUSED_S = 0.001
# How often a request whose answer was lost arrives once more, and when.
AGAIN = 0.5
AGAIN_S = (0.01, 15.0)
Done = Callable[[Any], None]


class Link:
    """What lies between one process and one member."""

    __slots__ = (
        "_timeline", "chance", "cut_in_until_s", "cut_out_until_s", "loss", "lossy_until_s", "member", "process",
        "refused_until_s", "slow_s", "slow_until_s",
    )  # fmt: skip

    def __init__(self, timeline: Timeline, process: Process, member: int) -> None:
        self._timeline = timeline
        self.process = process
        self.member = member
        self.chance = process.chance
        self.cut_out_until_s = self.cut_in_until_s = self.refused_until_s = 0.0
        self.lossy_until_s = self.loss = 0.0
        self.slow_until_s = self.slow_s = 0.0

    @property
    def out_open(self) -> bool:
        """Whether requests get through."""
        return self._timeline.now_s >= self.cut_out_until_s

    @property
    def in_open(self) -> bool:
        """Whether answers get through."""
        return self._timeline.now_s >= self.cut_in_until_s

    def well_since_s(self) -> float:
        """Since when nothing is wrong with it; in the future while something is."""
        return max(
            self.cut_out_until_s, self.cut_in_until_s, self.refused_until_s, self.lossy_until_s, self.slow_until_s
        )

    def loses(self) -> bool:
        """Whether this message gets lost."""
        return self._timeline.now_s < self.lossy_until_s and self.chance.random() < self.loss

    def way_s(self) -> float:
        """How long this message is on its way."""
        if self._timeline.now_s < self.slow_until_s:
            return self.chance.uniform(0.0, self.slow_s)
        if self.chance.random() < HELD_UP:
            return self.chance.uniform(*HELD_UP_S)
        return self.chance.uniform(*WAY_S)

    def inherit(self, before: Link) -> None:
        """Another process of the same host has the same troubles."""
        self.cut_out_until_s, self.cut_in_until_s = before.cut_out_until_s, before.cut_in_until_s
        self.refused_until_s = before.refused_until_s
        self.lossy_until_s, self.loss = before.lossy_until_s, before.loss
        self.slow_until_s, self.slow_s = before.slow_until_s, before.slow_s

    def heal(self) -> None:
        """Nothing is wrong with it any more."""
        now_s = self._timeline.now_s
        self.cut_out_until_s, self.cut_in_until_s = min(now_s, self.cut_out_until_s), min(now_s, self.cut_in_until_s)
        self.refused_until_s = min(now_s, self.refused_until_s)
        self.lossy_until_s, self.slow_until_s = min(now_s, self.lossy_until_s), min(now_s, self.slow_until_s)


class Route:
    """A process's walk over the members for one purpose."""

    __slots__ = ("links", "number")

    def __init__(self, links: list[Link], number: int) -> None:
        self.links = links
        self.number = number

    @property
    def link(self) -> Link:
        """The way in use."""
        return self.links[self.number]

    def advance(self, failed: Link) -> None:
        """Move on from a way that failed, unless somebody has already."""
        if self.link is failed:
            self.number = (self.number + 1) % len(self.links)


class Network:
    """Carries requests to a cluster."""

    def __init__(self, timeline: Timeline, cluster: Cluster) -> None:
        self._timeline = timeline
        self._cluster = cluster

    def links(self, process: Process) -> list[Link]:
        """A process's ways to all members."""
        return [Link(self._timeline, process, member) for member in range(self._cluster.size)]

    def call(self, route: Route, call: Call, done: Done) -> None:
        """Attempts until one is answered, within the call's deadline: ``done`` is told the reply, or a Fault, once.

        As the wire floor does, only what surely had no effect is repeated, on each member once at the most.
        """
        process = route.link.process
        wire = type(call.request).FromString(call.request.SerializeToString())
        until_s = process.now() + call.timeout_s
        tries = [0]

        def attempt() -> None:
            tries[0] += 1
            link = route.link
            self._attempt(link, wire, max(0.05, until_s - process.now()), lambda result: ended(link, result))

        def ended(link: Link, result: Any) -> None:
            if isinstance(result, Fault):
                result = Fault(result.kind, result.cause, result.text, operation=call.method.operation)
                if not result.lasting and result.cause not in (Cause.LEASE_NOT_FOUND, Cause.LEASE_EXISTS):
                    route.advance(link)
                safe = result.kind is Kind.NOT_SENT or result.cause is Cause.NOT_LEADER
                if safe and tries[0] < len(route.links) and process.now() < until_s:
                    attempt()
                    return
            done(result)

        attempt()

    def _attempt(self, link: Link, wire: Message, timeout_s: float, done: Done) -> None:
        timeline, process, cluster, era = self._timeline, link.process, self._cluster, self._cluster.era
        open_ = [True]

        def tell(result: Any) -> None:
            if open_[0]:
                open_[0] = False
                cancel()
                process.soon(lambda: done(result))

        def come_back(result: Any) -> None:
            if link.in_open and not link.loses():
                timeline.after(link.way_s(), lambda: process.run(lambda: tell(result)))
            elif link.chance.random() < AGAIN:
                timeline.after(link.chance.uniform(*AGAIN_S), lambda: cluster.receive(era, link.member, wire, _lost))

        cancel = process.after(timeout_s, lambda: tell(Fault(Kind.UNKNOWN, text="no answer in time")))
        if timeline.now_s < link.refused_until_s or cluster.refuses():
            timeline.after(REFUSED_S, lambda: process.run(lambda: tell(Fault(Kind.NOT_SENT, text="refused"))))
        elif link.out_open and not link.loses():
            timeline.after(link.way_s(), lambda: cluster.receive(era, link.member, wire, come_back))


def _lost(_: Any) -> None:
    """The answer to a request that arrived a second time: nobody waits for it."""
