"""Alerts: each hook is told once, none of them can hide what it tells of, and no secret of an address is shown."""

from __future__ import annotations

import json
import logging
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from typing import Any, get_args

import pytest

from leasekeeper.errors import ConfigError, LeaseLost, StopWork, Unavailable
from leasekeeper.run_errors import AnchorSkewed, Conflict, Drift, InDoubt, Quarantined, RunHalted, RunRewound
from leasekeeper.runs import alert as module
from leasekeeper.runs.alert import (
    NEEDS_A_PERSON,
    NOT_LET,
    Alert,
    AlertHook,
    AlertKind,
    alert_of,
    exit_code,
    sound,
    to_stderr,
    webhook,
)
from leasekeeper.runs.within import Within

ALERT = Alert(
    kind="in_doubt",
    run="order/42",
    step="charge",
    why="the reply was lost",
    seq=7,
    holder="host:12:ab",
    command="leasekeeper runs explain order/42",
)
SECRETS = ("sesame", "T0P", "hunter2")

Answer = Callable[[BaseHTTPRequestHandler], None]


def answer(status: int, **headers: str) -> Answer:
    """A server's answer with a status and headers."""

    def send(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return send


class Server:
    """An HTTP server that keeps what it is sent, and answers each path as the test says."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self.requests: list[tuple[str, str, Message, bytes]] = []
        outer = self

        class Request(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                """Nothing is printed."""

            def answer(self) -> None:
                """Keep the request and answer it."""
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.requests.append((self.command, self.path, self.headers, body))
                answers[self.path](self)

            do_POST = do_GET = answer  # noqa: N815

        self._server = HTTPServer(("127.0.0.1", 0), Request)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="http", daemon=True)
        self._thread.start()

    def url(self, path: str = "/", login: str = "") -> str:
        """The address of a path."""
        return f"http://{login}127.0.0.1:{self.port}{path}"

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)


@contextmanager
def serving(**answers: Answer) -> Iterator[Server]:
    """A server for the block; keywords are paths."""
    server = Server({f"/{path}": each for path, each in answers.items()})
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy between the test and its server."""
    monkeypatch.setenv("no_proxy", "*")


def said(caplog: pytest.LogCaptureFixture) -> str:
    """All that was logged, as a program's handler would format it."""
    return "\n".join(f"{record.getMessage()} {record.exc_text or ''}" for record in caplog.records)


# ---------------------------------------------------------------- hooks


def test_every_hook_is_told_once() -> None:
    """A16: Each hook gets the alert once, in order; all of them passed it on unless one says False."""
    told: list[tuple[str, Alert]] = []

    def hook(name: str, said: object) -> AlertHook:
        def tell(alert: Alert) -> object:
            told.append((name, alert))
            return said

        return tell

    assert sound(ALERT, [hook("a", None), hook("b", True)]) is True
    assert told == [("a", ALERT), ("b", ALERT)]
    assert sound(ALERT, [hook("c", False), hook("d", True)]) is False
    assert told[2:] == [("c", ALERT), ("d", ALERT)]
    assert sound(ALERT, []) is True


@pytest.mark.parametrize("error", [ValueError("broken"), StopWork("stop"), LeaseLost("lost")], ids=repr)
def test_a_hook_that_fails_hides_nothing(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """A16: What a hook raises is logged, the next hook is told all the same, and the error that is told of goes on."""
    told: list[Alert] = []

    def fail(alert: Alert) -> None:
        raise error

    assert sound(ALERT, [fail, told.append]) is False
    assert told == [ALERT]
    assert "order/42" in said(caplog)
    assert caplog.records[0].exc_info is not None


def test_a_hook_that_only_promises_has_told_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """A16: what a hook gives to be awaited is awaited by nobody: that is no telling, and it is logged."""

    async def later(alert: Alert) -> None:
        raise AssertionError("never awaited")

    assert sound(ALERT, [later]) is False
    assert "expected a plain function" in said(caplog)


def test_ctrl_c_comes_through() -> None:
    """A person who interrupts a hook interrupts the program."""

    def interrupted(alert: Alert) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sound(ALERT, [interrupted])


def test_stderr_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A16: What happened, where, and what to type are one line, whatever is in a name."""
    assert to_stderr(replace(ALERT, why="two\nlines\x1b[31m")) is True
    shown = capsys.readouterr().err
    assert shown.endswith("\n")
    assert shown.count("\n") == 1
    for part in ("in doubt", "order/42", "charge", "record 7", "two lines", ALERT.command):
        assert part in shown
    assert "\x1b" not in shown


def test_a_closed_stderr_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a standard error, or with a closed one, is not stopped by an alert."""
    closed = StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        assert to_stderr(ALERT) is False


def test_a_stderr_that_nobody_reads_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that is full holds up an alert no longer than its bound."""
    go_on = threading.Event()

    class Full(StringIO):
        def write(self, text: str, /) -> int:
            go_on.wait(30)
            return len(text)

    monkeypatch.setattr(module, "_stderr", Within(0.05, "standard error"))
    monkeypatch.setattr(sys, "stderr", Full())
    assert to_stderr(ALERT) is False
    go_on.set()


# ---------------------------------------------------------------- of errors


ERRORS: list[tuple[BaseException, AlertKind]] = [
    (InDoubt(run="order/42", step="charge", seq=7, why="the reply was lost"), "in_doubt"),
    (Quarantined(run="order/42", restarts=9), "quarantined"),
    (Drift(run="order/42", step="charge", seq=7), "drift"),
    (RunRewound(run="order/42", have=3, known=7), "rewound"),
    (AnchorSkewed(run="order/42", seq=7), "rewound"),
    (Conflict(run="order/42", step="charge"), "conflict"),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS, ids=lambda value: getattr(type(value), "__name__", str(value)))
def test_an_error_that_needs_a_person_is_an_alert(error: BaseException, kind: AlertKind) -> None:
    """A16: Its alert says what the error says, who stopped and what to type, and the exit code is one of its own."""
    alert = alert_of(error, holder="host:12:ab")
    assert alert is not None
    assert (alert.kind, alert.run, alert.holder) == (kind, "order/42", "host:12:ab")
    assert alert.step == getattr(error, "step", "")
    assert alert.why
    assert alert.command.startswith("leasekeeper runs ")
    assert "order/42" in alert.command
    if not isinstance(error, AnchorSkewed):
        assert f"`{alert.command}`" in str(error), "the error and its alert spell it alike"
    assert exit_code(error) == NEEDS_A_PERSON == 78


def test_every_kind_has_an_error() -> None:
    """No kind of alert is one that nothing raises."""
    assert {kind for _, kind in ERRORS} == set(get_args(AlertKind))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RunHalted(run="order/42"), NOT_LET),
        (LeaseLost("lost"), NOT_LET),
        (Unavailable("away"), 1),
        (ValueError("x"), 1),
        (KeyboardInterrupt(), 1),
    ],
    ids=repr,
)
def test_what_passes_by_itself_is_none(error: BaseException, code: int) -> None:
    """What another attempt or another owner can mend alerts nobody, and may be started again; a halt has a code of its own."""
    assert alert_of(error) is None
    assert exit_code(error) == code


class Group(Exception):
    """As Python 3.11 makes it of what tasks raise."""

    def __init__(self, *each: BaseException) -> None:
        super().__init__()
        self.exceptions = each


def test_a_group_needs_a_person_when_one_of_it_does() -> None:
    """A16: what tasks raise together has the alert of the first that has one, and its exit code; else that of all of them."""
    doubt, halted = ERRORS[0][0], RunHalted(run="order/42")
    assert alert_of(Group(ValueError("x"), Group(halted, doubt))) == alert_of(doubt)
    assert exit_code(Group(ValueError("x"), Group(halted, doubt))) == NEEDS_A_PERSON
    assert alert_of(Group(halted, LeaseLost("lost"))) is None
    assert exit_code(Group(halted, LeaseLost("lost"))) == NOT_LET
    assert exit_code(Group(halted, ValueError("x"))) == 1


def test_a_command_can_be_pasted() -> None:
    """Names with blanks or quotation marks are quoted for a shell."""
    alert = alert_of(InDoubt(run="order/a b", step="it's", seq=1))
    assert alert is not None
    assert alert.command == "leasekeeper runs explain 'order/a b'"
    resolve = """leasekeeper runs resolve 'order/a b' 'it'"'"'s'"""
    assert f"; if it was applied: {resolve} --applied --evidence TEXT; if it was not: {resolve} --not-ap" in alert.line


@pytest.mark.parametrize(("error", "kind"), ERRORS)
def test_no_command_needs_an_edit_of_its_options(error: BaseException, kind: str) -> None:
    """Whatever is told as a command is one whole command: no alternatives in it that a shell takes for a pipe."""
    alert = alert_of(error)
    assert alert is not None
    for command in re.findall(r"leasekeeper runs [^;`]+", f"{alert.line}; {error}; {alert.command}"):
        assert not set(command) & set("|<>"), command


@pytest.mark.parametrize(
    "error", [Conflict(run="order/42", step="charge"), Drift(run="order/42", step="charge", seq=7)], ids=repr
)
def test_a_command_is_told_once(error: BaseException) -> None:
    """An error whose own words have the command is not followed by it once more."""
    alert = alert_of(error)
    assert alert is not None
    assert alert.command == "leasekeeper runs explain order/42"
    assert alert.line.count(alert.command) == 1
    assert ".;" not in alert.line


def test_what_is_told_has_a_bound() -> None:
    """The text of an error may be of any length; an alert is not."""
    long = replace(ALERT, why="x" * 100_000, step="s" * 100_000)
    assert len(json.dumps(long.fields)) < 5000
    assert len(long.line) < 5000
    assert long.fields["why"].endswith("…")


# ---------------------------------------------------------------- webhook


def test_an_alert_is_posted_as_json() -> None:
    """A16: The server gets one POST with every field and a line for people, and the headers that were asked for."""
    with serving(hook=answer(204)) as server:
        assert webhook(server.url("/hook"), headers={"X-Team": "payments"})(ALERT) is True
    ((method, path, headers, body),) = server.requests
    assert (method, path, headers["Content-Type"], headers["X-Team"]) == (
        "POST",
        "/hook",
        "application/json",
        "payments",
    )
    assert json.loads(body) == {**ALERT.fields, "text": ALERT.line}


def test_a_login_in_the_address_is_sent_as_a_header() -> None:
    """User and password of the address reach the server as Basic authorization, decoded."""
    with serving(hook=answer(200)) as server:
        assert webhook(server.url("/hook", "me:a%40b@"))(ALERT) is True
    ((_, _, headers, _),) = server.requests
    assert headers["Authorization"] == "Basic bWU6YUBi"
    assert headers["Host"] == f"127.0.0.1:{server.port}"


@pytest.mark.parametrize("status", [400, 401, 404, 500, 503])
def test_a_refusal_is_false_and_logged(status: int, caplog: pytest.LogCaptureFixture) -> None:
    """A server that does not take it is logged with its status; nothing is raised."""
    with serving(hook=answer(status)) as server:
        assert webhook(server.url("/hook"))(ALERT) is False
    assert f"it answered {status}" in said(caplog)


def test_redirects_stay_where_they_are(caplog: pytest.LogCaptureFixture) -> None:
    """The same request goes to another path of the same server; to another server, scheme or port it does not."""
    with serving(hook=answer(204), other=answer(204)) as other:
        with serving(
            hook=answer(204),
            near=answer(307, Location="/hook"),
            near_too=answer(308, Location="/near"),
            far=answer(307, Location=other.url("/other")),
            far_too=answer(308, Location=other.url("/other").replace("127.0.0.1", "localhost")),
            file=answer(307, Location="file:///etc/passwd"),
            weaker=answer(302, Location="/hook"),
            nowhere=answer(307),
            broken=answer(307, Location="http://[::1"),
        ) as server:
            assert webhook(server.url("/near"), headers={"X-Key": "k"})(ALERT) is True
            assert webhook(server.url("/near_too"))(ALERT) is True
            reached = [(method, path, bool(body)) for method, path, _, body in server.requests]
            assert reached == [("POST", path, True) for path in ("/near", "/hook", "/near_too", "/near", "/hook")]
            assert server.requests[1][2]["X-Key"] == "k"
            for path in ("/far", "/far_too", "/file", "/weaker", "/nowhere", "/broken"):
                server.requests.clear()
                assert webhook(server.url(path))(ALERT) is False
                assert len(server.requests) == 1
        assert other.requests == []
    assert "it redirects elsewhere (307)" in said(caplog)


def test_redirects_have_an_end(caplog: pytest.LogCaptureFixture) -> None:
    """A server that redirects to itself for ever is left alone after a few times."""
    with serving(loop=answer(307, Location="/loop")) as server:
        assert webhook(server.url("/loop"))(ALERT) is False
    assert len(server.requests) == 4
    assert "more redirects" in said(caplog)


def test_a_server_that_drips_has_an_end(caplog: pytest.LogCaptureFixture) -> None:
    """An answer that comes byte by byte, which no limit on single reads notices, ends at the bound."""
    over = threading.Event()

    def drip(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        try:
            while not over.wait(0.01):
                request.wfile.write(b"x")
                request.wfile.flush()
        except OSError:
            pass

    with serving(hook=drip) as server:
        assert webhook(server.url("/hook"), timeout_s=0.3)(ALERT) is False
        over.set()
    assert "no end within 0.3 s" in said(caplog)


def test_nobody_there_is_false_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A server that refuses the connection, or speaks something else, is logged; nothing is raised."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        thread = threading.Thread(target=lambda: _gibberish(server), name="gibberish", daemon=True)
        thread.start()
        assert webhook(f"http://127.0.0.1:{port}/")(ALERT) is False
        thread.join(30)
    assert webhook(f"http://127.0.0.1:{port}/")(ALERT) is False
    assert "does not speak HTTP" in said(caplog)
    assert "Connection refused" in said(caplog)


def _gibberish(server: socket.socket) -> None:
    with server.accept()[0] as connection:
        connection.recv(65_536)
        connection.sendall(b"220 mail.example.org ESMTP\r\n")


def test_no_secret_is_ever_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Of an address no more than the host is logged, whatever goes wrong: path, query, login and headers may be secrets."""
    caplog.set_level(logging.DEBUG)
    headers = {"Authorization": "Bearer hunter2"}
    with serving(**{"T0P?key=sesame": answer(404), "T0P/far": answer(302, Location="http://sesame/T0P")}) as server:
        for path in ("/T0P?key=sesame", "/T0P/far", "/T0P/none"):
            hook = webhook(server.url(path, "me:sesame@"), headers=headers)
            assert hook(ALERT) is False
            assert not any(secret in repr(hook) for secret in SECRETS)
    assert webhook(f"http://me:sesame@127.0.0.1:{server.port}/T0P?key=sesame", headers=headers)(ALERT) is False
    shown = said(caplog)
    assert f"http://127.0.0.1:{server.port}/…" in shown
    assert not any(secret in shown for secret in SECRETS)


@pytest.mark.parametrize(
    "url",
    [
        *("", "sesame", "/T0P", "ftp://host/T0P", "file:///T0P/sesame", "http://", "http://:80/T0P", "https:///T0P"),
        *(
            "http://host:port/T0P",
            "http://[::1/T0P",
            "http://host/T0P sesame",
            "http://host/T0P\nsesame",
            "http://hößt/T0P",
        ),
        *("sesame:T0P", "javascript:sesame"),
    ],
)
def test_an_address_that_is_none_is_refused_without_being_shown(url: str) -> None:
    """What is no http or https address is refused when the hook is made, and its secrets stay out of the error."""
    with pytest.raises(ConfigError, match="url=") as refused:
        webhook(url)
    text = f"{refused.value} {refused.value.value}"
    assert "T0P" not in text
    assert not text.startswith("url='sesame'")


@pytest.mark.parametrize(
    "headers",
    [{"X-Key": "hunter2\r\nHost: evil"}, {"X-Key": "hunter2 ☃"}, {"X Key": "hunter2"}, {"": "hunter2"}],
    ids=str,
)
def test_headers_that_are_none_are_refused_without_being_shown(headers: dict[str, str]) -> None:
    """A header that HTTP cannot carry is refused when the hook is made, without its value."""
    with pytest.raises(ConfigError, match="headers") as refused:
        webhook("http://localhost/", headers=headers)
    assert "hunter2" not in f"{refused.value} {refused.value.value}"
