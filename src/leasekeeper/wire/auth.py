"""Login with user and password: once, and once more when etcd has forgotten it.

Simple tokens expire after some five minutes, and a change of users or a restart makes them stale earlier. One failed call
means one new login and the same call again. A refused password is remembered for a while, so that a fleet with a wrong
one does not storm the server with bcrypt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.errors import ConfigError
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.plan import Cause, Fault

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Login"]

# For so long a refusal is answered from memory.
REFUSED_S = 5.0


class Login:
    """The credentials of one keeper and the token that etcd gave for them."""

    def __init__(self, user: str | None, password: str | None, now: Callable[[], float]) -> None:
        if (user is None) != (password is None):
            field = "password" if password is None else "user"
            raise ConfigError(field=field, value=None, expected="user and password together")
        for field, value in (("user", user), ("password", password)):
            if value is not None and not (str(value) == value and value):
                # The value is a secret: not shown.
                raise ConfigError(f"{field}: expected text that is not empty", field=field)
        self.user = user
        self._password = password
        self._now = now
        self._refused: tuple[float, Fault] | None = None
        self.token: str | None = None
        # etcd said that authentication is off; believed until a call fails for want of a login.
        self.off = False

    def __repr__(self) -> str:
        return f"Login(user={self.user!r})"

    @property
    def wanted(self) -> bool:
        """Whether a login is due before the next call."""
        return self.user is not None and self.token is None and not self.off

    def request(self) -> pb.AuthenticateRequest:
        """The login request; raises the remembered Fault while a refusal is fresh."""
        if self._refused is not None and self._now() - self._refused[0] < REFUSED_S:
            raise self._refused[1]
        return pb.AuthenticateRequest(name=self.user or "", password=self._password or "")

    def accepted(self, reply: pb.AuthenticateResponse) -> None:
        """The login went through."""
        self.token, self.off, self._refused = reply.token, False, None

    def failed(self, fault: Fault) -> bool:
        """The login did not go through; whether to go on without one, because etcd needs none."""
        if fault.cause is Cause.AUTH_OFF:
            self.off = True
            return True
        if fault.cause is Cause.LOGIN_REFUSED:
            self._refused = (self._now(), fault)
        return False

    def helps(self, fault: Fault, used: str | None) -> bool:
        """Whether a call that failed so, with the token ``used``, is worth repeating after a (new) login."""
        if self.user is None or fault.cause not in (Cause.LOGIN_STALE, Cause.LOGIN_NEEDED):
            return False
        if self.token == used:
            self.token, self.off = None, False
        return True
