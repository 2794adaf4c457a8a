"""An etcd with users, roles and authentication, and the operator who may do everything there."""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any

from tests.raw import TIMEOUT_S, RawEtcd, Refused, accepted

ROOT_PASSWORD = "root's password"
USER = "alice"
PASSWORD = "s3cr3t of alice"


class Operator(RawEtcd):
    """A person with the root user's password, once authentication is on."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self._token = ""

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """One call of the gateway, as root where that is asked for; logs in anew when the login has expired."""
        try:
            return self._post(path, body)
        except Refused as refused:
            if not any(
                word in str(refused) for word in ("invalid auth token", "user name is empty", "revision of auth")
            ):
                raise
        self._token = ""
        self._token = self._post("auth/authenticate", {"name": "root", "password": ROOT_PASSWORD})["token"]
        return self._post(path, body)

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"} | ({"Authorization": self._token} if self._token else {})
        connection = http.client.HTTPConnection(self.endpoint, timeout=TIMEOUT_S)
        try:
            connection.request("POST", f"/v3/{path}", json.dumps(body), headers)
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return accepted(answer)

    # ------------------------------------------------------------ users

    def add_user(self, name: str = USER, password: str = PASSWORD, *roles: str) -> None:
        """A user with these roles."""
        self.post("auth/user/add", name=name, password=password)
        for role in roles:
            self.post("auth/user/grant", user=name, role=role)

    def set_password(self, name: str, password: str) -> None:
        """Change a user's password."""
        self.post("auth/user/changepw", name=name, password=password)

    def add_role(self, name: str, prefix: str, kind: str = "READWRITE") -> None:
        """A role that may read, write or both under a prefix, and nothing else."""
        self.post("auth/role/add", name=name)
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        self.post("auth/role/grant", name=name, perm={"permType": kind, "key": _b64(prefix), "range_end": _b64(end)})

    def take_role(self, user: str, role: str) -> None:
        """Withdraw a role from a user."""
        self.post("auth/user/revoke", name=user, role=role)

    def enable_auth(self) -> None:
        """From now on everybody has to log in."""
        self.post("auth/user/add", name="root", password=ROOT_PASSWORD)
        self.post("auth/role/add", name="root")
        self.post("auth/user/grant", user="root", role="root")
        self.post("auth/enable")

    def disable_auth(self) -> None:
        """Nobody has to log in any more."""
        self.post("auth/disable")


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
