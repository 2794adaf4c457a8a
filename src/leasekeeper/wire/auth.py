"""Login with user and password: once, and once more when etcd has forgotten it.

Simple tokens expire after some five minutes, and a change of users or a restart makes them stale earlier. One failed call
means one new login and the same call again. Whoever finds a login due while another has begun one waits for that one, and
a refused password is remembered for a while: each login costs the server a round of bcrypt.
"""

from __future__ import annotations

import concurrent.futures
import threading
from typing import TYPE_CHECKING

from leasekeeper.errors import ConfigError
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.plan import Cause, Fault, Kind
from leasekeeper.wire.interruption import let_go

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

__all__ = ["Joining", "Login"]

# How a login under way ended: None for well, else what went wrong.
Ending = concurrent.futures.Future["BaseException | None"]

# For so long a refusal is answered from memory.
REFUSED_S = 5.0


class Login:
    """The credentials of one keeper and the token that etcd gave for them."""

    def __init__(self, user: str | None, password: str | None, now: Callable[[], float]) -> None:
        if (user is None) != (password is None):
            field = "password" if password is None else "user"
            raise ConfigError(field=field, value=None, expected="user and password together")
        for field, value in (("user", user), ("password", password)):
            if value is not None and not _is_text(value):
                # The value is a secret: not shown.
                raise ConfigError(f"{field}: expected text that is not empty", field=field)
        self.user = user
        self._password = password
        self._now = now
        self._refused: tuple[float, Fault] | None = None
        self.token: str | None = None
        # etcd said that authentication is off; believed until a call fails for want of a login.
        self.off = False
        self._lock = threading.RLock()
        self._under_way: Ending | None = None

    def __repr__(self) -> str:
        return f"Login(user={self.user!r})"

    @property
    def wanted(self) -> bool:
        """Whether a login is due before the next call."""
        return self.user is not None and self.token is None and not self.off

    def join(self) -> tuple[Ending | None, bool]:
        """The login under way, begun by this caller if True; None when none is due any more."""
        with self._lock:
            if not self.wanted:
                return None, False
            begun = self._under_way is None
            if self._under_way is None:
                self._under_way = Ending()
            return self._under_way, begun

    def end(self, result: object) -> None:
        """The login under way has ended."""
        with self._lock:
            ending, self._under_way = self._under_way, None
        if ending is not None:
            ending.set_result(result if isinstance(result, BaseException) else None)

    def request(self) -> pb.AuthenticateRequest:
        """The login request; raises the remembered Fault while a refusal is fresh."""
        if self._refused is not None and self._now() - self._refused[0] < REFUSED_S:
            raise self._refused[1].with_traceback(None)
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


def _is_text(value: object) -> bool:
    """Whether it can be sent: half of a surrogate pair, as from an environment in another encoding, cannot."""
    return isinstance(value, str) and value != "" and not any("\ud800" <= c <= "\udfff" for c in value)


class Joining:
    """Waiting for a login that is under way, performed like an attempt of a call."""

    __slots__ = ("_ending", "_timeout_s")

    def __init__(self, ending: Ending, timeout_s: float) -> None:
        self._ending = ending
        self._timeout_s = timeout_s

    def block(self) -> None:
        """Wait in this thread; raises what the login ended with."""
        try:
            error = self._ending.result(self._timeout_s)
        except concurrent.futures.TimeoutError:
            raise Fault(Kind.NOT_SENT, text="the login takes too long", operation="Authenticate") from None
        except BaseException as error:
            let_go(error)  # or whoever ends the login would wait for ever
            raise
        if error is not None:
            raise error

    def start(self, done: Callable[[Callable[[], Message | Fault | None]], None]) -> Callable[[], object]:
        """Have ``done`` called when it is over. It is bounded by the deadline of whoever began it."""
        self._ending.add_done_callback(lambda ending: done(lambda: _as_fault(ending.result())))
        return lambda: None


def _as_fault(error: BaseException | None) -> Fault | None:
    if error is None or isinstance(error, Fault):
        return error
    return Fault(Kind.NOT_SENT, text=str(error), operation="Authenticate")
