"""What can go wrong between code under test and its etcd, as one object: the network, the servers, the lease itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from leasekeeper.errors import Misuse
from leasekeeper.testing import interference, lease_clock
from leasekeeper.testing.proxy import Fault, FaultProxy, Way
from leasekeeper.testing.trips import Trip

if TYPE_CHECKING:
    from leasekeeper.keeper import Lease
    from leasekeeper.runtime.held import Held
    from leasekeeper.testing.server import EtcdServer
    from leasekeeper.testing.site import Etcd
    from leasekeeper.testing.trips import Match, Then

__all__ = ["Faults"]

# How long etcd may take to let a lease expire after its TTL, on a machine that is busy.
EXPIRY_SLACK_S = 60.0
# Between the owner's clock and etcd's there is a margin, in which what had passed the gate ends. By a clock that is put forward
# it would last no time at all.
MARGIN_S = 0.5


class Faults:
    """A link to etcd that can be broken, and what lies at its ends.

    Only code that connects by `endpoint` feels what happens to the link. A fault of the link or of a server lasts until
    `heal`, which the end of the test does as well. What is done to a lease (`revoke`, `steal`) goes past the link.
    """

    def __init__(self, site: Etcd, proxies: Sequence[FaultProxy]) -> None:
        self._site = site
        self.proxies = tuple(proxies)

    @property
    def endpoint(self) -> str:
        """Where code under test connects, as "127.0.0.1:port"; with commas for a cluster."""
        return ",".join(proxy.endpoint for proxy in self.proxies)

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which `Keeper.from_env()` and the command line, in a process of their own, use this link."""
        return {"LEASEKEEPER_ENDPOINTS": self.endpoint, "LEASEKEEPER_NAMESPACE": self._site.namespace}

    # -- the network

    def cut(self) -> None:
        """Reset all connections and refuse new ones, as when a host is down and says so."""
        self._inject(Fault("cut"))

    def blackhole(self, way: Way = Way.BOTH) -> None:
        """Carry nothing and say nothing: a silent partition. Held bytes come late, on `heal`."""
        self._inject(Fault("blackhole", way))

    def delay(self, seconds: float, way: Way = Way.BOTH) -> None:
        """Keep everything sent from now on for ``seconds``, in each direction of ``way``."""
        for proxy in self.proxies:
            proxy.delay(seconds, way)

    def lose_replies(self) -> None:
        """Let requests through to etcd and throw away all that it answers."""
        self._inject(Fault("lose_replies", Way.TO_CLIENT))

    def close_connections(self) -> None:
        """End existing connections politely; new ones are served at once, as when a server restarts."""
        self._inject(Fault("close_cleanly"))

    def lose_next_reply(self, match: Match = None, *, then: Then = "reset") -> Trip:
        """Let the next request that contains the bytes ``match`` take effect, and lose its reply. See FaultProxy."""
        return self._arm(Trip("reply", match, then))

    def lose_next_request(self, match: Match = None, *, then: Then = "reset") -> Trip:
        """Lose the next request that contains the bytes ``match`` before etcd has all of it. See FaultProxy."""
        return self._arm(Trip("request", match, then))

    def heal(self, *, reset: bool = False) -> None:
        """End every fault of the link and let servers go on. Held bytes are delivered, unless ``reset`` drops them."""
        for proxy in self.proxies:
            proxy.heal(reset=reset)
        self._site.revive()

    # -- the servers

    def freeze(self, member: int | None = None) -> None:
        """Stop the execution of etcd: connections stay open and nobody answers. Of a cluster: of one member, or of all.

        Misuse for an etcd that was started by somebody else.
        """
        for server in self._servers(member):
            server.freeze()

    def thaw(self, member: int | None = None) -> None:
        """Let it go on."""
        for server in self._servers(member):
            server.thaw()

    # -- the lease

    def revoke(self, target: Held | str) -> None:
        """Revoke the lease that owns a name, now, as `etcdctl lease revoke` does; its owner hears of it in a moment.

        What else its keeper owns with the same TTL goes with it, since that lives by the same etcd lease.

        Args:
            target: a lease, or the name that somebody owns; Misuse when nobody does.
        """
        operator = self._site.operator
        interference.revoke(operator, interference.claim_of(operator, target))

    def expire(self, target: Held | str) -> None:
        """Let the lease that owns a name run out at etcd, while its owner hears nothing: the link is a black hole then.

        Returns when somebody else may own the name; the owner has not been told and only its own clock can say so. With
        the fixture `lease_clock` this is done at once, but for half a second in which what has passed the gate may end: that
        clock is put forward by the TTL. Otherwise it takes a TTL.

        Args:
            target: a lease, or the name that somebody owns by this link; Misuse when nobody does.
        """
        operator = self._site.operator
        claim = interference.claim_of(operator, target)
        ttl_s = claim.ttl or 0.0
        self.blackhole()
        if (clock := lease_clock.installed()) is not None:
            clock.advance(ttl_s)
            time.sleep(MARGIN_S)
            interference.revoke(operator, claim)
        interference.wait_until_gone(operator, claim, ttl_s + EXPIRY_SLACK_S)

    def steal(self, target: Held | str) -> Lease:
        """Make another owner appear, now: it removes whoever owns the name or waits for it, in one transaction.

        Returns the other owner's lease, whose token is larger; it is released at the end of the test, or by you.
        """
        name = target if isinstance(target, str) else target.name
        return interference.steal(self._site.new_rival(), name)

    # -- within

    def _inject(self, fault: Fault) -> None:
        for proxy in self.proxies:
            proxy.inject(fault)

    def _arm(self, trip: Trip) -> Trip:
        for proxy in self.proxies:
            proxy.arm(trip)
        return trip

    def _servers(self, member: int | None) -> Sequence[EtcdServer]:
        servers = self._site.servers
        if not servers:
            raise Misuse(
                "this etcd was started by somebody else (--leasekeeper-etcd=URL): it cannot be frozen from here"
            )
        if member is None:
            return [server for server in servers if server.is_running] or servers
        if not 0 <= member < len(servers):
            raise Misuse(f"there is no member {member}: there are {len(servers)}, counted from 0")
        return (servers[member],)
