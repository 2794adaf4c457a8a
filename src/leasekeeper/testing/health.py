"""Ask an etcd member over HTTP whether it serves, what it is, and whom it takes for the leader.

Plain HTTP on the client port, so that starting a server needs no gRPC channel: ``/health`` makes
the member do a linearizable read, which proves a quorum; ``/v3/maintenance/status`` is the Status
call in JSON. Every request has a deadline. Integers come as strings and zero fields are left out.
"""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leasekeeper.errors import Unavailable


@dataclass(frozen=True, slots=True)
class TLSFiles:
    """The PEM files of a server that speaks TLS and asks its clients for a certificate.

    ``cert`` must be valid for 127.0.0.1 and carry both server and client usage, because etcd's
    HTTP gateway dials its own gRPC port with it. ``client_cert`` and ``client_key`` are what a
    client shows.
    """

    ca: str | Path
    cert: str | Path
    key: str | Path
    client_cert: str | Path
    client_key: str | Path

    def context(self) -> ssl.SSLContext:
        """A client-side TLS context that trusts ``ca`` and shows the client certificate."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(str(self.client_cert), str(self.client_key))
        return context


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """What one member says of itself. ``leader_id`` is 0 while it knows none."""

    version: str
    member_id: int
    leader_id: int
    raft_term: int
    revision: int
    db_size: int


def is_healthy(endpoint: str, *, tls: TLSFiles | None, timeout_s: float) -> bool:
    """True when the member answers with a quorum behind it; a full database is healthy too."""
    try:
        answer = _request("GET", "/health?exclude=NOSPACE", endpoint, tls=tls, timeout_s=timeout_s)
    except Unavailable:
        return False
    return answer.get("health") in ("true", True)


def status(endpoint: str, *, tls: TLSFiles | None, timeout_s: float) -> MemberStatus:
    """Return the member's status; Unavailable when it does not answer in ``timeout_s`` seconds."""
    answer = _request("POST", "/v3/maintenance/status", endpoint, tls=tls, timeout_s=timeout_s)
    header = answer.get("header", {})
    return MemberStatus(
        version=str(answer.get("version", "")),
        member_id=int(header.get("member_id", 0)),
        leader_id=int(answer.get("leader", 0)),
        raft_term=int(answer.get("raftTerm", header.get("raft_term", 0))),
        revision=int(header.get("revision", 0)),
        db_size=int(answer.get("dbSize", 0)),
    )


def version(endpoint: str, *, tls: TLSFiles | None, timeout_s: float) -> str:
    """Return the release of the member, as "3.5.1"."""
    return str(_request("GET", "/version", endpoint, tls=tls, timeout_s=timeout_s).get("etcdserver", ""))


def transfer_leadership(endpoint: str, member_id: int, *, tls: TLSFiles | None, timeout_s: float = 10.0) -> None:
    """Ask the leader at ``endpoint`` to hand over to that member."""
    body = {"targetID": str(member_id)}
    path = "/v3/maintenance/transfer-leadership"
    answer = _request("POST", path, endpoint, tls=tls, timeout_s=timeout_s, body=body)
    if "error" in answer:
        raise Unavailable(f"{endpoint}{path}: {answer['error']}", endpoints=(endpoint,))


def _request(
    method: str,
    path: str,
    endpoint: str,
    *,
    tls: TLSFiles | None,
    timeout_s: float,
    body: dict[str, str] | None = None,
) -> dict[str, Any]:
    connection = (
        http.client.HTTPSConnection(endpoint, timeout=timeout_s, context=tls.context())
        if tls
        else http.client.HTTPConnection(endpoint, timeout=timeout_s)
    )
    try:
        content = json.dumps(body or {}) if method == "POST" else None
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, body=content, headers=headers)
        answer = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unavailable(
            f"{endpoint}{path.partition('?')[0]}: {error}",
            endpoints=(endpoint,),
            operation=path,
            detail=str(error),
        ) from error
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else {}
