"""A real etcd cluster on 127.0.0.1 whose members can be killed, frozen and cut off from each other.

How a partition is made. Each member advertises to its peers the address of a fault proxy, so all
that members say to each other goes through proxies. A connection between two members may have been
dialled by either, so cutting off member A takes both: what others have dialled to A, and what A
has dialled to others. The latter arrives at the others' proxies, which ask the kernel who dialled
(``dialers``) and keep a lane for each member. This covers everything between members: consensus,
snapshots, and lease renewals that a follower forwards to the leader.

What is covered and what is not. Clients still reach every member: a partition is one between
members, and a client that shall be on one side of it is given the endpoints of that side. Clocks
and disks are shared. Peers speak plain text also with ``tls``, which is for clients. Partitions
need Linux.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Collection
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from leasekeeper.errors import ConfigError, Misuse, Unavailable
from leasekeeper.testing import dialers, ports
from leasekeeper.testing.binary import EtcdBinary, find_etcd, from_path
from leasekeeper.testing.flags import Membership
from leasekeeper.testing.proxy import FaultProxy, Way
from leasekeeper.testing.server import IN_USE, EtcdServer, ServerOptions

if TYPE_CHECKING:
    import os

    from typing_extensions import Self, Unpack

START_TRIES = 5
LEADER_TIMEOUT_S = 60.0
STATUS_TIMEOUT_S = 2.0
POLL_S = 0.05
OUTSIDE = ""


class EtcdCluster:
    """``n`` real etcd members: a context manager that starts them and waits until all serve.

    Options are those of ``EtcdServer`` and go to each member. Members are named by their index. Not
    safe for use from several threads at once.
    """

    def __init__(
        self,
        n: int = 3,
        *,
        binary: EtcdBinary | str | os.PathLike[str] | None = None,
        **options: Unpack[ServerOptions],
    ) -> None:
        if not 1 <= n <= 9:
            raise ConfigError(field="n", value=n, expected="1 to 9 members")
        if isinstance(binary, EtcdBinary):
            self.binary = binary
        else:
            self.binary = from_path(binary) if binary is not None else find_etcd()
        self._n = n
        self._options = options
        self._members: tuple[EtcdServer, ...] = ()
        self._proxies: tuple[FaultProxy, ...] = ()
        self._ids: dict[int, int] = {}
        self._tells_apart = dialers.can_tell()

    # -- what it is

    @property
    def members(self) -> tuple[EtcdServer, ...]:
        """The members, in order; Misuse before the first start."""
        if not self._members:
            raise Misuse("this cluster was never started: use it in a with statement")
        return self._members

    @property
    def endpoints(self) -> str:
        """Where clients reach the members, with commas between, in order."""
        return ",".join(member.endpoint for member in self.members)

    @property
    def peer_proxies(self) -> tuple[FaultProxy, ...]:
        """The proxy before each member's peer port; its lanes are the members' indices as text."""
        return self._proxies

    def leader(self) -> int | None:
        """The index of the leader, as the members of the newest raft term see it; None for none.

        Members that do not answer are passed over, so a leader that has just been frozen is named
        until the others have elected another.
        """
        newest = (0, 0)
        for member in self.members:
            if not member.is_running:
                continue
            try:
                status = member.status(timeout_s=STATUS_TIMEOUT_S)
            except Unavailable:
                continue
            if status.leader_id:
                newest = max(newest, (status.raft_term, status.leader_id))
        return self._ids.get(newest[1])

    def wait_leader(self, timeout_s: float = LEADER_TIMEOUT_S, *, apart_from: Collection[int] = ()) -> int:
        """Wait until there is a leader, none of ``apart_from``; return its index."""
        deadline = time.monotonic() + timeout_s
        while (leader := self.leader()) is None or leader in apart_from:
            if time.monotonic() >= deadline:
                raise Unavailable(
                    f"no leader apart from {sorted(apart_from)} after {timeout_s:g} s",
                    endpoints=tuple(self.endpoints.split(",")),
                    operation="elect a leader",
                )
            time.sleep(POLL_S)
        return leader

    # -- its life

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start all members and wait until they serve; Misuse when they were started already."""
        if self._members:
            raise Misuse("this cluster was started already")
        for attempt in range(1, START_TRIES + 1):
            try:
                self._start_once()
            except Unavailable as error:
                self.close()
                if attempt == START_TRIES or IN_USE not in str(error):
                    raise
            else:
                return

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until every member that runs answers with a quorum behind it."""
        for member in self.members:
            if member.is_running:
                member.wait_ready(timeout_s)

    def close(self) -> None:
        """End all members and proxies and remove their data. Calling it again does nothing."""
        with ExitStack() as stack:
            for proxy in self._proxies:
                stack.callback(proxy.close)
            for member in self._members:
                stack.callback(member.close)
        self._members, self._proxies = (), ()
        self._ids.clear()

    def kill(self, i: int) -> None:
        """End member ``i`` as a power cut would; ``restart`` revives it."""
        self.members[i].kill()

    def stop(self, i: int) -> None:
        """End member ``i`` as an operator would."""
        self.members[i].stop()

    def restart(self, i: int, *, wait: bool = True) -> None:
        """Start member ``i`` again on its ports and data; ``wait`` needs a quorum to come back."""
        self.members[i].restart(wait=wait)

    def freeze(self, i: int) -> None:
        """Stop the execution of member ``i``: connections stay open and nobody answers."""
        self.members[i].freeze()

    def thaw(self, i: int) -> None:
        """Let member ``i`` go on."""
        self.members[i].thaw()

    def move_leader(self, i: int) -> None:
        """Hand the leadership to member ``i``, as ``etcdctl move-leader`` does."""
        target = next(member_id for member_id, index in self._ids.items() if index == i)
        leader = self.members[self.wait_leader()]
        leader.gateway.transfer_leadership(target, timeout_s=LEADER_TIMEOUT_S)
        self.wait_leader(apart_from=set(range(self._n)) - {i})

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Replace all members' data by one snapshot and start them again, as after a disaster."""
        for member in self.members:
            member.kill()
        # Ids stay the same, so a message of the old cluster that is still on its way would be taken for one of the
        # new, and the member that gets it would panic over a log that it does not have.
        self.heal()
        for member in self.members:
            member.restore(path, wait=False)
        self.wait_ready()

    # -- partitions

    def isolate(
        self, i: int, *, how: Literal["blackhole", "cut"] = "blackhole", way: Literal["both", "to", "from"] = "both"
    ) -> None:
        """Cut member ``i`` off from all others; see ``partition``.

        With one ``way`` only what is said ``to`` the member, or what comes ``from`` it, is lost; the other direction passes.
        ConfigError for one way of a ``cut``, which ends connections and so has none.
        """
        others = set(range(self._n)) - {i}
        if way == "both":
            self.partition({i}, others, how=how)
            return
        if how == "cut" or way not in ("to", "from"):
            raise ConfigError(field="way", value=way, expected="'both'; with how='blackhole' also 'to' or 'from'")
        self._check_lanes()
        # On a connection that the member has dialled it is the client, on one that it was dialled on the server.
        for other in others:
            self._proxies[other].blackhole(Way.TO_CLIENT if way == "to" else Way.TO_SERVER, lane=str(i))
            self._proxies[i].blackhole(Way.TO_SERVER if way == "to" else Way.TO_CLIENT, lane=str(other))

    def partition(self, *groups: Collection[int], how: Literal["blackhole", "cut"] = "blackhole") -> None:
        """Let nothing pass between members of different groups, until ``heal()``.

        ``blackhole`` is silence, as when a network drops packets; ``cut`` resets connections and
        refuses new ones. Clients reach all members all the while. Members in no group are
        untouched. ConfigError for a member in two groups, Misuse where the kernel cannot be asked
        who dials.
        """
        named = [i for group in groups for i in group]
        if len(set(named)) < len(named) or not set(named) <= set(range(self._n)):
            raise ConfigError(field="groups", value=groups, expected=f"each of 0 to {self._n - 1} once at most")
        self._check_lanes()
        for one, other in itertools.permutations(groups, 2):
            for dialled, dialling in itertools.product(one, other):
                proxy = self._proxies[dialled]
                if how == "cut":
                    proxy.cut(lane=str(dialling))
                else:
                    proxy.blackhole(lane=str(dialling))

    def _check_lanes(self) -> None:
        if not self._tells_apart:
            raise Misuse("partitions between members need Linux and its socket diagnosis, sock_diag(7)")

    def heal(self) -> None:
        """End every partition. Connections between members are reset, so they talk again at once."""
        for proxy in self._proxies:
            proxy.heal(reset=True)
            self._open_lanes(proxy)

    # -- within

    def _start_once(self) -> None:
        peer_ports = [ports.free_port() for _ in range(self._n)]
        proxies = []
        for index, port in enumerate(peer_ports):
            proxy = FaultProxy(f"{ports.HOST}:{port}", name=f"peer-{index}", classify=self._classify(index))
            proxy.start()
            proxies.append(proxy)
            self._proxies = tuple(proxies)
            self._open_lanes(proxy)
        urls = [f"http://{proxy.endpoint}" for proxy in proxies]
        cluster = ",".join(f"m{index}={url}" for index, url in enumerate(urls))
        token = f"cluster-{uuid.uuid4().hex}"
        self._members = tuple(
            EtcdServer(
                binary=self.binary,
                membership=Membership(f"m{index}", peer_ports[index], urls[index], cluster, token),
                **self._options,
            )
            for index in range(self._n)
        )
        for member in self._members:
            member.start(wait=False)
        # Not wait_ready: a member that has ended already is a failure here.
        for member in self._members:
            member.wait_ready()
        self._ids = {member.status().member_id: index for index, member in enumerate(self._members)}
        self.wait_leader()

    def _open_lanes(self, proxy: FaultProxy) -> None:
        """Make a lane for each member; who is none of them, or has just died, may not pass."""
        if self._tells_apart:
            for index in range(self._n):
                proxy.heal(lane=str(index))
            proxy.cut(lane=OUTSIDE)

    def _classify(self, dialled: int) -> Callable[[tuple[str, int]], str] | None:
        """Name the lane of a connection at the proxy of member ``dialled``: who has made it."""
        if not self._tells_apart:
            return None

        def lane(source: tuple[str, int]) -> str:
            host, _, port = self._proxies[dialled].endpoint.rpartition(":")
            # Runs in the proxy's thread, so a member may end at any moment; a pid that is gone has dialled nothing.
            pids = {member.last_pid: i for i, member in enumerate(self._members) if member.last_pid}
            pid = dialers.dialler(source, (host, int(port)), pids)
            return OUTSIDE if pid is None else str(pids[pid])

        return lane
