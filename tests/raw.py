"""etcd as it is, seen and touched by its JSON gateway: for tests that must not ask the library about itself."""

from __future__ import annotations

import base64
import http.client
import json
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Key:
    """One key with what etcd knows of it."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int


class RawEtcd:
    """A person with etcd's own tools. Each call is one HTTP request; an answer that is an error raises ``Refused``."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """One call of the gateway."""
        connection = http.client.HTTPConnection(self.endpoint, timeout=TIMEOUT_S)
        try:
            connection.request("POST", f"/v3/{path}", json.dumps(body), {"Content-Type": "application/json"})
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return accepted(answer)

    # ------------------------------------------------------------ looking

    def keys(self, prefix: str, *, revision: int = 0) -> list[Key]:
        """The keys that begin with ``prefix``, oldest first, now or as they were at ``revision``."""
        answer = self.post(
            "kv/range",
            key=_b64(prefix),
            range_end=_b64(_after(prefix)),
            sort_order="ASCEND",
            sort_target="CREATE",
            revision=str(revision),
        )
        return [_key(kv) for kv in answer.get("kvs", [])]

    def claims(self, namespace: str) -> list[Key]:
        """The claims of a namespace, on whatever name, oldest first."""
        return self.keys(f"leasekeeper/{namespace}/lease/")

    def leases(self) -> list[int]:
        """The leases that etcd keeps."""
        return sorted(int(lease["ID"]) for lease in self.post("lease/leases").get("leases", []))

    def revision(self) -> int:
        """The store's revision."""
        return int(self.post("kv/range", key=_b64("\0"))["header"]["revision"])

    def time_to_live(self, lease_id: int) -> int:
        """Seconds that a lease has left; negative when it does not exist."""
        return int(self.post("lease/timetolive", ID=str(lease_id)).get("TTL", 0))

    # ------------------------------------------------------------ touching

    def put(self, key: str, value: str | bytes = "", lease: int = 0) -> None:
        """Write a key."""
        self.post("kv/put", key=_b64(key), value=_b64(value), lease=str(lease))

    def delete(self, key: str) -> bool:
        """Delete a key; whether it was there."""
        return int(self.post("kv/deleterange", key=_b64(key)).get("deleted", 0)) > 0

    def fill(self) -> None:
        """Write until etcd takes no more."""
        try:
            for number in range(1000):
                self.put(f"fill/{number}", "x" * 4000)
        except Refused:
            return
        raise AssertionError("the quota was never reached")

    def grant(self, ttl_s: int) -> int:
        """A lease."""
        return int(self.post("lease/grant", TTL=str(ttl_s))["ID"])

    def revoke(self, lease_id: int) -> None:
        """End a lease with all its keys."""
        self.post("lease/revoke", ID=str(lease_id))

    def compact(self) -> None:
        """Forget all history before now."""
        self.put("churn", "to be sure that there is history")
        self.post("kv/compaction", revision=str(self.revision()), physical=True)


class Refused(Exception):
    """etcd answered with an error."""


def accepted(answer: dict[str, Any]) -> dict[str, Any]:
    """The gateway's answer, unless it is an error: "error" before etcd 3.6, "code" and "message" from then on."""
    if "error" in answer or "code" in answer:
        raise Refused(str(answer.get("error") or answer.get("message")))
    return answer


def _b64(text: str | bytes) -> str:
    return base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()


def _after(prefix: str) -> str:
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _key(kv: dict[str, Any]) -> Key:
    return Key(
        key=base64.b64decode(kv["key"]).decode(),
        value=base64.b64decode(kv.get("value", "")),
        create_revision=int(kv["create_revision"]),
        mod_revision=int(kv["mod_revision"]),
        lease=int(kv.get("lease", 0)),
    )
