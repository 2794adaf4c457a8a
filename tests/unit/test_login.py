"""Logging in: once, once more when the login is stale, and no storm with a wrong password."""

from __future__ import annotations

import dis
import sys
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from leasekeeper.errors import ConfigError
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.plan import Cause, Fault, Kind
from leasekeeper.wire.auth import REFUSED_S, Joining, Login

SECRET = "s3cret-passphrase"


class Clock:
    """A clock that a test sets."""

    now_s = 100.0

    def now(self) -> float:
        """The time."""
        return self.now_s


def login(clock: Clock | None = None) -> Login:
    """The credentials of a user."""
    return Login("agent", SECRET, (clock or Clock()).now)


def accepted(token: str = "t1") -> pb.AuthenticateResponse:
    """Etcd's answer to a login."""
    return pb.AuthenticateResponse(token=token)


def test_without_a_user_there_is_nothing_to_log_in() -> None:
    """Nothing is wanted, nothing helps."""
    nobody = Login(None, None, Clock().now)
    assert not nobody.wanted
    assert not nobody.helps(Fault(Kind.FIX, Cause.LOGIN_NEEDED), None)


def test_a_login_is_wanted_until_there_is_a_token() -> None:
    """Before the first call, and not again afterwards."""
    found = login()
    wanted = [found.wanted]
    assert (found.request().name, found.request().password) == ("agent", SECRET)
    found.accepted(accepted())
    wanted.append(found.wanted)
    assert wanted == [True, False]
    assert found.token == "t1"


@pytest.mark.parametrize("cause", [Cause.LOGIN_STALE, Cause.LOGIN_NEEDED])
def test_a_stale_login_is_renewed_once_for_all(cause: Cause) -> None:
    """C21: the calls that failed with the same old token cause one new login, not one each."""
    found = login()
    found.accepted(accepted("old"))
    assert found.helps(Fault(Kind.RETRY, cause), "old")
    wanted = [found.wanted]
    found.accepted(accepted("new"))
    assert found.helps(Fault(Kind.RETRY, cause), "old")
    wanted.append(found.wanted)
    assert wanted == [True, False]
    assert found.token == "new"


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause not in (Cause.LOGIN_STALE, Cause.LOGIN_NEEDED)])
def test_no_other_failure_is_mended_by_a_login(cause: Cause) -> None:
    """A login repairs a login; missing rights stay missing."""
    found = login()
    found.accepted(accepted())
    assert not found.helps(Fault(Kind.FIX, cause), "t1")
    assert not found.wanted


def test_a_wrong_password_is_not_tried_again_at_once() -> None:
    """C21: for some seconds the refusal is answered from memory, so that a fleet does not storm etcd with bcrypt."""
    clock = Clock()
    found = login(clock)
    refusal = Fault(Kind.FIX, Cause.LOGIN_REFUSED)
    assert not found.failed(refusal)
    for _ in range(100):
        with pytest.raises(Fault) as caught:
            found.request()
        assert caught.value is refusal
    frames, trace = 0, refusal.__traceback__
    while trace is not None:
        frames, trace = frames + 1, trace.tb_next
    assert frames < 10  # however often it is told
    clock.now_s += REFUSED_S
    assert found.request().name == "agent"


def test_a_login_that_could_not_be_sent_is_no_refusal() -> None:
    """An outage is not taken for a wrong password."""
    found = login()
    assert not found.failed(Fault(Kind.NOT_SENT))
    assert found.request().name == "agent"


def test_etcd_without_authentication_needs_none() -> None:
    """C47: credentials for an etcd that does not ask for any are no obstacle, also not when it begins to ask."""
    found = login()
    assert found.failed(Fault(Kind.FIX, Cause.AUTH_OFF))
    assert not found.wanted
    assert found.helps(Fault(Kind.FIX, Cause.LOGIN_NEEDED), None)
    assert found.wanted


@pytest.mark.parametrize(
    ("user", "password", "field"),
    [
        ("agent", None, "password"),
        (None, SECRET, "user"),
        ("", SECRET, "user"),
        ("agent", "", "password"),
        (5, SECRET, "user"),
        ("agent", 5, "password"),
        ("agent", b"s3cret", "password"),
        ("agent", f"{SECRET}\udc80", "password"),
        ("agent\udcff", SECRET, "user"),
    ],
    ids=ascii,
)
def test_half_a_login_is_refused_without_showing_it(user: Any, password: Any, field: str) -> None:
    """User and password together, both text that can be sent; the error never shows either's value."""
    with pytest.raises(ConfigError) as caught:
        Login(user, password, Clock().now)
    assert caught.value.field == field
    assert caught.value.value is None
    assert "s3cret" not in f"{caught.value} {vars(caught.value)} {caught.value.__cause__} {caught.value.__context__}"


def test_a_password_is_never_printed() -> None:
    """Neither by repr nor by what grpc-free code can see of it."""
    assert SECRET not in repr(login())
    assert "agent" in repr(login())


def test_only_one_of_many_logs_in() -> None:
    """Who comes while a login is under way waits for it; who comes after needs none."""
    found = login()
    first, begun = found.join()
    second, also = found.join()
    assert first is second
    assert (begun, also) == (True, False)
    found.accepted(accepted())
    found.end(None)
    assert first is not None
    assert first.result(0) is None
    assert found.join() == (None, False)


def test_all_who_wait_for_a_login_hear_how_it_ended() -> None:
    """A login that failed is told to all, and the next who comes may try again."""
    found = login()
    ending, _ = found.join()
    fault = Fault(Kind.NOT_SENT)
    found.end(fault)
    assert ending is not None
    assert ending.result(0) is fault
    assert found.join()[1]


def test_ctrl_c_while_waiting_for_a_login_takes_it_from_nobody() -> None:
    """C10: Ctrl-C that strikes where a lock has just been taken gives it back, so that whoever ends the login does not hang."""
    ending: Future[BaseException | None] = Future()

    def strike(frame: Any, event: str, _: object) -> Any:
        if frame.f_code is threading.Condition.__enter__.__code__:
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_code.co_code[frame.f_lasti] == dis.opmap["RETURN_VALUE"]:
                raise KeyboardInterrupt
        return strike

    before = sys.gettrace()
    sys.settrace(strike)
    try:
        with pytest.raises(KeyboardInterrupt):
            Joining(ending, 5.0).block()
    finally:
        sys.settrace(before)
    ends = threading.Thread(target=ending.set_result, args=(None,), daemon=True)
    ends.start()
    ends.join(10.0)
    assert not ends.is_alive()
