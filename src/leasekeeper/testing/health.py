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

from leasekeeper.errors import AuthError, Unavailable

# gRPC status codes that the gateway passes on: invalid argument ("user name is empty"), denied, unauthenticated.
AUTH_CODES = (3, 7, 16)


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


@dataclass(frozen=True, slots=True)
class Gateway:
    """The HTTP side of one member. ``user`` is "name:password" where authentication is on."""

    endpoint: str
    tls: TLSFiles | None = None
    user: str | None = None

    def is_healthy(self, *, timeout_s: float) -> bool:
        """True when the member answers with a quorum behind it; a full database is healthy too."""
        try:
            answer = self._request("GET", "/health?exclude=NOSPACE", timeout_s=timeout_s)
        except Unavailable:
            return False
        return answer.get("health") in ("true", True)

    def status(self, *, timeout_s: float) -> MemberStatus:
        """Return the member's status; Unavailable when it does not answer, AuthError when it refuses to."""
        answer = self.call("/v3/maintenance/status", {}, timeout_s=timeout_s)
        header = answer.get("header", {})
        return MemberStatus(
            version=str(answer.get("version", "")),
            member_id=int(header.get("member_id", 0)),
            leader_id=int(answer.get("leader", 0)),
            raft_term=int(answer.get("raftTerm", header.get("raft_term", 0))),
            revision=int(header.get("revision", 0)),
            db_size=int(answer.get("dbSize", 0)),
        )

    def version(self, *, timeout_s: float) -> str:
        """Return the release of the member, as "3.5.1"."""
        return str(self._request("GET", "/version", timeout_s=timeout_s).get("etcdserver", ""))

    def transfer_leadership(self, member_id: int, *, timeout_s: float) -> None:
        """Ask this member, which must be the leader, to hand over to another."""
        self.call("/v3/maintenance/transfer-leadership", {"targetID": str(member_id)}, timeout_s=timeout_s)

    def call(self, path: str, body: dict[str, str], *, timeout_s: float) -> dict[str, Any]:
        """Make one call of etcd's API, in its JSON form, after a login where there is a user.

        Unavailable when there is no answer or etcd's own error is one, AuthError when it refuses who asks.
        """
        token = self._login(timeout_s) if self.user is not None else ""
        return self._checked(path, self._request("POST", path, body, token, timeout_s=timeout_s))

    def _login(self, timeout_s: float) -> str:
        name, _, password = (self.user or "").partition(":")
        path, body = "/v3/auth/authenticate", {"name": name, "password": password}
        return str(self._checked(path, self._request("POST", path, body, timeout_s=timeout_s)).get("token", ""))

    def _checked(self, path: str, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the answer unless it is etcd's error. A missing field would read as zero: never guess."""
        if "code" not in answer:
            return answer
        said, name = str(answer.get("message", answer)), (self.user or "").partition(":")[0]
        if answer["code"] in AUTH_CODES:
            raise AuthError(f"{self.endpoint}{path}: {said}", user=name or None, denied=True, operation=path)
        raise Unavailable(f"{self.endpoint}{path}: {said}", endpoints=(self.endpoint,), operation=path, detail=said)

    def _request(
        self, method: str, path: str, body: dict[str, str] | None = None, token: str = "", *, timeout_s: float
    ) -> dict[str, Any]:
        connection = (
            http.client.HTTPSConnection(self.endpoint, timeout=timeout_s, context=self.tls.context())
            if self.tls
            else http.client.HTTPConnection(self.endpoint, timeout=timeout_s)
        )
        headers = {"Content-Type": "application/json"} | ({"Authorization": token} if token else {})
        try:
            connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
            answer = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unavailable(
                f"{self.endpoint}{path.partition('?')[0]}: {error}",
                endpoints=(self.endpoint,),
                operation=path,
                detail=str(error),
            ) from error
        finally:
            connection.close()
        return answer if isinstance(answer, dict) else {}
