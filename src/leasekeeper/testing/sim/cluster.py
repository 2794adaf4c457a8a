"""A model of an etcd cluster: one state behind several members, a leader's clock, expiry, and watch streams.

A member that stands still takes requests and answers them when it goes on; one that is apart from the others, and all of them
while there is no leader, let requests wait, and refuse some of them in the end. Watches on such a member stay silent and make
up for it afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.plan import Cause, Fault, Kind
from leasekeeper.testing.sim.store import Store
from leasekeeper.testing.sim.watching import Streams

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from leasekeeper.testing.sim.timeline import Timeline

__all__ = ["Cluster", "Result"]

# What a request comes to: a reply or a Fault.
Result = Any
Reply = Callable[[Result], None]

# How often etcd looks for leases that are over. It does so twice a second; in half of the worlds it is as prompt as can be.
LOOKS_S = (0.5, 0.02)
# How long etcd lets a request wait before it gives up on it.
REQUEST_TIMEOUT_S = 7.0
# For so long releases before 3.4.38, 3.5.23 and 3.6.5 may confirm a lease that is gone.
CONFIRMED_DEAD_S = 5.0
RATE_ERROR = 0.01


class Cluster:
    """Members 0 to ``size - 1`` of one etcd. ``kind``: an old release that confirms leases that are gone, or not."""

    def __init__(self, timeline: Timeline, size: int, *, confirms_dead: bool, minimum_ttl: int) -> None:
        self._timeline = timeline
        self.chance = timeline.chance("etcd")
        self.size = size
        self.confirms_dead = confirms_dead
        self._rate, self._clock_s, self._since_s = self._any_rate(), 0.0, 0.0
        self.store = Store(self.now, minimum_ttl)
        self.store.lease_ended = self._note_end
        self.streams = Streams(timeline, self)
        self.look_s = self.chance.choice(LOOKS_S)
        # Until when a member stands still, or is apart from the others; until when there is no leader, or no etcd at all.
        self.stopped_until_s = [0.0] * size
        self.apart_until_s = [0.0] * size
        self.leaderless_until_s = self.down_until_s = 0.0
        # Requests that were on their way when etcd went down have died with their connections.
        self.era = 0
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._renewing: dict[int, list[Callable[[], None]]] = {}
        # When leases ended, and the TTL that they had.
        self._ended: dict[int, tuple[float, int]] = {}
        timeline.after(self.chance.uniform(0.0, self.look_s), self._look)

    def _any_rate(self) -> float:
        return 1.0 + self.chance.choice((-1, 0, 1, 1)) * RATE_ERROR

    def now(self) -> float:
        """What the leader's clock shows."""
        return self._clock_s + (self._timeline.now_s - self._since_s) * self._rate

    # ------------------------------------------------------------ requests

    def serves(self, member: int) -> bool:
        """Whether a member answers just now."""
        return self._timeline.now_s >= self.well_since_s(member)

    def well_since_s(self, member: int) -> float:
        """Since when a member answers; in the future while it does not."""
        return max(self.stopped_until_s[member], self.apart_until_s[member], self.leaderless_until_s, self.down_until_s)

    def speaks(self, member: int) -> bool:
        """Whether a member says anything to those who watch."""
        now_s = self._timeline.now_s
        return now_s >= max(self.stopped_until_s[member], self.apart_until_s[member], self.down_until_s)

    def refuses(self) -> bool:
        """Whether nobody listens."""
        return self._timeline.now_s < self.down_until_s

    def receive(self, era: int, member: int, request: Message, reply: Reply) -> None:
        """A request that was sent in an era arrives at a member."""
        if era != self.era or self.refuses():
            return
        if self.serves(member):
            self._perform(request, reply)
            return
        if self._timeline.now_s >= self.stopped_until_s[member] and self.chance.random() < 0.3:
            fault = Fault(Kind.RETRY, Cause.NOT_LEADER, "etcdserver: no leader")
            self._timeline.after(0.01, lambda: reply(fault))
            return
        open_ = [True]

        def serve() -> None:
            if open_[0]:
                open_[0] = False
                self._perform(request, reply)

        def give_up() -> None:
            if open_[0] and self._timeline.now_s >= self.stopped_until_s[member]:
                # It may have been proposed already: then it happens all the same.
                open_[0] = self.chance.random() < 0.5
                reply(Fault(Kind.UNKNOWN, text="etcdserver: request timed out"))

        self._waiting.append((member, serve))
        self._timeline.after(REQUEST_TIMEOUT_S, give_up)

    def _perform(self, request: Message, reply: Reply) -> None:
        if isinstance(request, pb.LeaseKeepAliveRequest) and self._renew_later(request, reply):
            return
        try:
            result: Result = self.store.perform(request)
        except Fault as fault:
            result = fault
        if isinstance(request, pb.LeaseRevokeRequest):
            self._gone()
        reply(result)

    def _renew_later(self, request: pb.LeaseKeepAliveRequest, reply: Reply) -> bool:
        """A beat for a lease that is over waits until etcd has looked; one for a lease that is gone may be confirmed."""
        number = request.ID
        if self.store.overdue(number):
            self._renewing.setdefault(number, []).append(lambda: self._perform(request, reply))
            return True
        if not self.confirms_dead or number not in self._ended or number in self.store.leases:
            return False
        ended_s, ttl = self._ended[number]
        if self._timeline.now_s - ended_s > CONFIRMED_DEAD_S:
            return False
        reply(pb.LeaseKeepAliveResponse(header=self.store.header(), ID=number, TTL=ttl))
        return True

    # ------------------------------------------------------------ leases

    def _look(self) -> None:
        if self._timeline.now_s >= max(self.leaderless_until_s, self.down_until_s):
            self.store.expire()
            self._gone()
        self._timeline.after(self.look_s, self._look)

    def _note_end(self, number: int, ttl: int) -> None:
        self._ended[number] = self._timeline.now_s, ttl

    def _gone(self) -> None:
        """Leases have ended: answer the beats that waited for it."""
        for number in [each for each in self._renewing if each not in self.store.leases]:
            for renew in self._renewing.pop(number):
                renew()

    def revoke(self, number: int) -> None:
        """An operator ends a lease."""
        self.store.end_lease(number)
        self._gone()

    # ------------------------------------------------------------ what befalls it

    def stop_member(self, member: int, seconds: float) -> None:
        """A member stands still; if it was the leader, another is elected."""
        self.stopped_until_s[member] = max(self.stopped_until_s[member], self._timeline.now_s + seconds)
        self._timeline.after(seconds, self.catch_up)

    def part(self, member: int, seconds: float) -> None:
        """A member is apart from the others."""
        self.apart_until_s[member] = max(self.apart_until_s[member], self._timeline.now_s + seconds)
        self._timeline.after(seconds, self.catch_up)

    def change_leader(self, seconds: float) -> None:
        """There is no leader for a while, and then one with a clock of its own who arms all leases anew."""
        self.leaderless_until_s = max(self.leaderless_until_s, self._timeline.now_s + seconds)
        self._timeline.after(seconds, self._elected)

    def _elected(self) -> None:
        if self._timeline.now_s < max(self.leaderless_until_s, self.down_until_s):
            return
        self._clock_s, self._since_s, self._rate = self.now(), self._timeline.now_s, self._any_rate()
        self.store.rearm()
        for number in list(self._renewing):
            for renew in self._renewing.pop(number):
                renew()
        self.catch_up()

    def go_down(self, seconds: float) -> None:
        """All of it stops, and starts again: what waits in it is lost, streams break, leases are armed anew."""
        self.down_until_s = max(self.down_until_s, self._timeline.now_s + seconds)
        self.era += 1
        self._waiting, self._renewing = [], {}
        self.streams.break_all()
        self._timeline.after(seconds, self._elected)

    def heal(self) -> None:
        """Everything is well again."""
        now_s = self._timeline.now_s
        self.stopped_until_s = [min(each, now_s) for each in self.stopped_until_s]
        self.apart_until_s = [min(each, now_s) for each in self.apart_until_s]
        leaderless = now_s < max(self.leaderless_until_s, self.down_until_s)
        self.leaderless_until_s = self.down_until_s = min(now_s, max(self.leaderless_until_s, self.down_until_s))
        self._elected() if leaderless else self.catch_up()

    def catch_up(self) -> None:
        """Members that can serve again do what waits there."""
        waiting, self._waiting = self._waiting, []
        for member, serve in waiting:
            if self.serves(member):
                serve()
            else:
                self._waiting.append((member, serve))
        self.streams.flush()
