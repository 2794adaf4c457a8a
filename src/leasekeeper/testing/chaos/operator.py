"""What an operator does to a cluster by hand: looks at claims and leases, revokes, deletes, compacts, fills it up, mends it.

By etcd's JSON gateway and its own control programs, so that nothing here depends on what is being tested; only the epoch is
raised by leasekeeper itself, as operators do it.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from leasekeeper.errors import LeasekeeperError, Unavailable
from leasekeeper.fencing import make_token
from leasekeeper.keeper import Keeper
from leasekeeper.protocol import epoch
from leasekeeper.testing.cluster import EtcdCluster
from leasekeeper.testing.health import Gateway

__all__ = ["Claim", "Operator", "eventually"]

T = TypeVar("T")

TIMEOUT_S = 5.0
POLL_S = 0.2
FILL = "leasekeeper-chaos-fill/"
FILL_BYTES = 512 * 1024
NOSPACE = "NOSPACE"


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim as it stands in etcd, the owner's first."""

    key: str
    create_revision: int
    lease: str
    nonce: str
    holder: str


class Operator:
    """Somebody with all rights, who reaches every member directly."""

    def __init__(self, cluster: EtcdCluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._epoch = 0

    def claims(self) -> list[Claim]:
        """All claims of the namespace, the oldest first; Unavailable when no member answers."""
        prefix = f"leasekeeper/{self._namespace}/lease/"
        answer = self._ask("/v3/kv/range", _below(prefix) | {"sort_order": "ASCEND", "sort_target": "CREATE"})
        return [_claim(kv) for kv in answer.get("kvs", [])]

    def leases(self) -> tuple[str, ...]:
        """The leases that there are, as etcdctl shows them."""
        answer = self._ask("/v3/lease/leases", {})
        return tuple(f"{int(lease['ID']):x}" for lease in answer.get("leases", []))

    def revoke(self, claim: Claim) -> None:
        """As `etcdctl lease revoke` does."""
        self._ask("/v3/lease/revoke", {"ID": claim.lease})

    def delete(self, claim: Claim) -> None:
        """As `etcdctl del` does."""
        self._ask("/v3/kv/deleterange", {"key": _b64(claim.key)})

    def compact(self) -> None:
        """Forget all history up to now."""
        answer = self._ask("/v3/kv/range", {"key": _b64("\0")})
        self._ask("/v3/kv/compaction", {"revision": answer["header"]["revision"]})

    def fill_up(self, tries: int) -> bool:
        """Write until the quota is used up; whether it is."""
        value = _b64("x" * FILL_BYTES)
        for number in range(tries):
            try:
                self._ask("/v3/kv/put", {"key": _b64(f"{FILL}{number}"), "value": value}, tries=1)
            except Unavailable as error:
                if "space exceeded" in str(error):
                    return True
                raise
        return False

    def make_room(self) -> None:
        """What etcd's manual says: delete, compact, defragment each member, and disarm the alarm."""
        self._ask("/v3/kv/deleterange", _below(FILL))
        self.compact()
        for member in self._cluster.members:
            member.gateway.call("/v3/maintenance/defragment", {}, timeout_s=6 * TIMEOUT_S)
        for member in self._cluster.members:
            member_id = str(member.status().member_id)
            self._ask("/v3/maintenance/alarm", {"action": "DEACTIVATE", "memberID": member_id, "alarm": NOSPACE})

    def mark(self, key: str) -> int:
        """Write a key of the storm's own: the revision that did."""
        return int(self._ask("/v3/kv/put", {"key": _b64(key), "value": _b64("x")})["header"]["revision"])

    def size(self) -> int:
        """The bytes of the largest member's database."""
        return max(member.status().db_size for member in self._cluster.members if member.is_running)

    def back_up(self, path: Path) -> None:
        """Save a snapshot."""
        leader = self._cluster.leader()
        self._cluster.members[leader or 0].snapshot(path)

    def raise_epoch(self, above: int) -> int:
        """As `leasekeeper epoch bump --above TOKEN` does."""
        with Keeper(self._cluster.endpoints, namespace=self._namespace) as keeper:
            core = keeper._core
            number: int = core.run(epoch.bump(core.ctx, core.until(6 * TIMEOUT_S), above)).number
            self._epoch = number
            return number

    def token_of(self, claim: Claim) -> int:
        """The token under which a claim is owned, or would be."""
        return make_token(self._epoch, claim.create_revision)

    # ------------------------------------------------------------ asking

    def _ask(self, path: str, body: dict[str, Any], tries: int = 3) -> dict[str, Any]:
        """Ask one member after the other, until one answers."""
        last: LeasekeeperError = Unavailable(operation=path)
        for gateway in self._gateways(tries):
            try:
                return gateway.call(path, body, timeout_s=TIMEOUT_S)
            except Unavailable as error:
                last = error
        raise last

    def _gateways(self, tries: int) -> Iterator[Gateway]:
        running = [member.gateway for member in self._cluster.members if member.is_running]
        for number in range(tries):
            if number:
                time.sleep(POLL_S)
            if running:
                yield running[number % len(running)]


def eventually(what: Callable[[], T], timeout_s: float) -> T:
    """Ask until there is an answer; the last error after ``timeout_s`` seconds."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            return what()
        except LeasekeeperError:
            if time.monotonic() >= until:
                raise
            time.sleep(POLL_S)


def _claim(kv: dict[str, Any]) -> Claim:
    try:
        record = json.loads(base64.b64decode(kv.get("value", "")))
    except ValueError:
        record = {}
    return Claim(
        key=base64.b64decode(kv["key"]).decode("utf-8", "replace"),
        create_revision=int(kv["create_revision"]),
        lease=str(kv.get("lease", "0")),
        nonce=str(record.get("nonce", "")),
        holder=str(record.get("holder", "")),
    )


def _below(prefix: str) -> dict[str, Any]:
    return {"key": _b64(prefix), "range_end": _b64(prefix[:-1] + chr(ord(prefix[-1]) + 1))}


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
