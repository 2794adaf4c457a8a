"""What etcd holds and what changes in it, read through its JSON gateway: nothing here depends on what is being tested."""

from __future__ import annotations

import base64
import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

from leasekeeper.errors import LeasekeeperError, Unavailable
from leasekeeper.testing.chaos.operator import eventually
from leasekeeper.testing.chaos.runs.records import Era, Halted, Stored
from leasekeeper.testing.cluster import EtcdCluster

__all__ = ["Observer", "body_of", "compact", "count_below", "revision", "stored_below"]

TIMEOUT_S = 5.0
PATIENCE_S = 60.0
# A stream on which nothing comes for so long is tried on another member: this one may be cut off.
QUIET_S = 1.5
PAGE = 500


def _ask(cluster: EtcdCluster, path: str, body: Any) -> dict[str, Any]:
    last: LeasekeeperError = Unavailable(operation=path)
    for member in cluster.members:
        if member.is_running:
            try:
                return member.gateway.call(path, body, timeout_s=TIMEOUT_S)
            except LeasekeeperError as error:
                last = error
    raise last


def revision(cluster: EtcdCluster) -> int:
    """The revision that etcd is at."""
    found = eventually(lambda: _ask(cluster, "/v3/kv/range", {"key": _b64(b"\0")}), PATIENCE_S)
    return int(found["header"]["revision"])


def compact(cluster: EtcdCluster) -> None:
    """Have etcd forget all history up to now."""
    _ask(cluster, "/v3/kv/compaction", {"revision": str(revision(cluster))})


def count_below(cluster: EtcdCluster, prefix: str) -> int:
    """How many keys there are below a prefix."""
    body = {"key": _b64(prefix.encode()), "range_end": _b64(_end(prefix)), "count_only": True}
    return int(_ask(cluster, "/v3/kv/range", body).get("count", 0))


def stored_below(cluster: EtcdCluster, prefix: str) -> dict[str, Stored]:
    """Every key below a prefix, which is left out, at one moment."""
    found: dict[str, Stored] = {}
    start, end = prefix.encode(), _end(prefix)
    at = 0
    while True:
        body = {"key": _b64(start), "range_end": _b64(end), "limit": PAGE} | ({"revision": at} if at else {})
        answer = eventually(lambda body=body: _ask(cluster, "/v3/kv/range", body), PATIENCE_S)  # type: ignore[misc]
        at = at or int(answer["header"]["revision"])
        kvs = answer.get("kvs", [])
        for kv in kvs:
            key = base64.b64decode(kv["key"])
            start = key + b"\0"
            found[key.decode("utf-8", "replace").removeprefix(prefix)] = Stored(
                base64.b64decode(kv.get("value", "")),
                int(kv["create_revision"]),
                int(kv["mod_revision"]),
                int(kv["version"]),
            )
        if not kvs or not answer.get("more"):
            return found


def body_of(value: bytes) -> dict[str, Any]:
    """The body of something sealed; {} for what is none."""
    try:
        body = json.loads(value)["body"]
    except (ValueError, KeyError, TypeError):
        return {}
    return body if isinstance(body, dict) else {}


class Observer:
    """Watches a namespace: which claims went and when, which halts stood, which epochs were set. A thread of its own."""

    def __init__(self, cluster: EtcdCluster, prefix: str) -> None:
        self._cluster = cluster
        self._prefix = prefix
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._era = Era()
        self._next = 1
        self._seen = 0
        self._member = 0
        self._generation = 0
        self._thread = threading.Thread(target=self._run, name="leasekeeper-chaos-observer", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Watch no more."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def caught_up(self, to: int) -> bool:
        """Whether everything up to this revision has been seen."""
        with self._lock:
            return self._seen >= to

    def turn(self, from_revision: int) -> Era:
        """End the era, and begin the next one after ``from_revision``: the one that ended."""
        with self._lock:
            ended = self._era
            self._era = Era(
                from_revision + 1,
                gone={nonce: at for nonce, at in ended.gone.items() if at <= from_revision},
                halts=[_within(each, from_revision) for each in ended.halts if each.since <= from_revision],
                epochs=[each for each in ended.epochs if each[0] <= from_revision],
                blind=ended.blind,
            )
            self._next, self._seen = from_revision + 1, from_revision
            self._generation += 1
        return ended

    # ------------------------------------------------------------ its thread

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                for generation, message in self._stream():
                    with self._lock:
                        if generation != self._generation:
                            break
                        self._take(message)
            except (OSError, ValueError, KeyError, http.client.HTTPException, LeasekeeperError):
                self._stop.wait(0.1)
            self._member += 1

    def _stream(self) -> Iterator[tuple[int, dict[str, Any]]]:
        members = [member for member in self._cluster.members if member.is_running]
        if not members:
            self._stop.wait(0.2)
            return
        connection = http.client.HTTPConnection(members[self._member % len(members)].endpoint, timeout=QUIET_S)
        with self._lock:
            generation, start = self._generation, self._next
        wanted = {
            "key": _b64(self._prefix.encode()),
            "range_end": _b64(_end(self._prefix)),
            "start_revision": start,
            "prev_kv": True,
            "progress_notify": True,
        }
        try:
            connection.request("POST", "/v3/watch", json.dumps({"create_request": wanted}))
            answer = connection.getresponse()
            while not self._stop.is_set() and (line := answer.readline()):
                yield generation, json.loads(line)["result"]
        finally:
            connection.close()

    def _take(self, message: dict[str, Any]) -> None:
        if forgotten := int(message.get("compact_revision", 0)):
            self._era.blind = True
            self._next = max(self._next, forgotten)
            return
        for event in message.get("events", []):
            self._event(event)
        if message.get("events"):
            self._seen = int(message["header"]["revision"])
            self._next = max(self._next, *(int(each["kv"]["mod_revision"]) + 1 for each in message["events"]))

    def _event(self, event: dict[str, Any]) -> None:
        kv = event["kv"]
        at = int(kv["mod_revision"])
        key = base64.b64decode(kv["key"]).decode("utf-8", "replace").removeprefix(self._prefix)
        kind, _, rest = key.partition("/")
        deleted = event.get("type") == "DELETE"
        era = self._era
        if kind == "lease" and deleted:
            claim = base64.b64decode(event.get("prev_kv", {}).get("value", ""))
            era.gone[_nonce(claim)] = at
        elif kind == "halt" and deleted:
            era.halts = [_until(each, rest, at) for each in era.halts]
        elif kind == "halt":
            if all(each.until or each.scope != rest for each in era.halts):
                era.halts.append(Halted(rest, at))
        elif kind == "epoch" and not deleted:
            era.epochs.append((at, _number(base64.b64decode(kv.get("value", "")))))


def _until(halt: Halted, scope: str, at: int) -> Halted:
    return Halted(halt.scope, halt.since, at) if halt.scope == scope and not halt.until else halt


def _within(halt: Halted, end: int) -> Halted:
    """As it stood at a backup: one that ended later has not ended."""
    return halt if halt.until <= end else Halted(halt.scope, halt.since)


def _nonce(claim: bytes) -> str:
    try:
        return str(json.loads(claim)["nonce"])
    except (ValueError, KeyError, TypeError):
        return ""


def _number(epoch: bytes) -> int:
    try:
        return int(json.loads(epoch)["epoch"])
    except (ValueError, KeyError, TypeError):
        return 0


def _end(prefix: str) -> bytes:
    return (prefix[:-1] + chr(ord(prefix[-1]) + 1)).encode()


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
