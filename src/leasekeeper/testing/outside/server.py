"""The outside world over HTTP: takes requests, writes them down, does what they ask or what is to go wrong instead."""

from __future__ import annotations

import json
import socket
import sys
import threading
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from leasekeeper.errors import ConfigError
from leasekeeper.testing.outside.chat import chat
from leasekeeper.testing.outside.documents import Documents
from leasekeeper.testing.outside.ledger import Entry, Lag, Ledger, counts, read_ledger
from leasekeeper.testing.outside.payments import Payments, mail
from leasekeeper.testing.outside.request import Answer, Request, Route, Service, refuse
from leasekeeper.testing.outside.troubles import Fate, Trouble, Troubles

__all__ = ["OutsideServer"]

BODY_MAX = 1024 * 1024
QUIET_S = 60.0
OWN = "__"


class OutsideServer(ThreadingHTTPServer):
    """Listens on a socket of the caller's, a thread for each connection. Effects happen one at a time."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, ledger_path: Path, *, key_ttl_ms: int = 0) -> None:
        super().__init__(listener.getsockname(), _Exchange, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.ledger_path = ledger_path
        self.ledger = Ledger(ledger_path)
        self.troubles = Troubles()
        self.turn = threading.Lock()
        self.services = (
            Payments("payments", ("charges",), honours_keys=True, key_ttl_ms=key_ttl_ms).service(),
            Payments("till", ("till", "charges"), honours_keys=False).service(),
            mail(),
            *(Documents(name).service() for name in ("configs", "certificates", "secrets")),
            chat(),
        )

    def server_close(self) -> None:
        """Close the socket, and the ledger with it."""
        super().server_close()
        self.ledger.close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve one connection in a thread with a name."""
        threading.Thread(
            target=self.process_request_thread,
            args=(request, client_address),
            name="leasekeeper-outside-connection",
            daemon=True,
        ).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """An asker who is gone is nothing to talk about: that is what this world is for. The rest is printed."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def route(self, request: Request) -> tuple[Service, Route] | None:
        """Who serves it."""
        for service in self.services:
            for route in service.routes:
                if route.takes(request):
                    return service, route
        return None

    def about_itself(self, request: Request) -> Answer:
        """What is asked of the world and not of its services; nothing of it is in the ledger."""
        match request.method, request.path:
            case "POST", ("__control",):
                return self._control(request)
            case "GET", ("__counts",):
                found = counts(read_ledger(self.ledger_path))
                return Answer(200, {name: asdict(count) for name, count in found.items()})
            case "GET", ("__ledger",):
                return Answer(200, {"lines": [asdict(entry) for entry in read_ledger(self.ledger_path)]})
            case _:
                return refuse(404, "POST /__control, GET /__counts, GET /__ledger")

    def _control(self, request: Request) -> Answer:
        """Add a trouble, or heal the world."""
        try:
            if request.body.get("heal"):
                self.troubles.heal()
            else:
                self.troubles.add(Trouble.from_json(request.body.get("trouble") or {}))
        except ConfigError as error:
            return refuse(422, str(error))
        return Answer(200, {})


class _Exchange(BaseHTTPRequestHandler):
    """One connection."""

    server: OutsideServer
    protocol_version = "HTTP/1.1"
    timeout = QUIET_S

    def serve(self) -> None:
        """One request."""
        body = self._read_body()
        if isinstance(body, Answer):
            self._send(body)
            return
        request = Request.of(self.command, self.path, dict(self.headers.items()), body)
        if request.path[:1] and request.path[0].startswith(OWN):
            self._send(self.server.about_itself(request))
        elif (found := self.server.route(request)) is None:
            self._send(refuse(404, f"nobody serves {self.command} {self.path}"))
        else:
            self._meet_its_fate(request, *found)

    do_GET = do_POST = do_PUT = do_DELETE = serve  # noqa: N815 -- their names in the standard library

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- its name in the standard library
        """Nothing: the ledger tells more."""

    # -- with what goes wrong

    def _meet_its_fate(self, request: Request, service: Service, route: Route) -> None:
        ledger = self.server.ledger
        cause = ledger.received(
            service.name, route.effect, subject=route.subject(request), key=request.key, token=request.token
        )
        fate = self.server.troubles.meet(service.name, route.effect)
        if fate.of("outage"):
            ledger.answered(cause, 0, lost=True)
            self._drop()
            return
        fate.wait("delay")
        answer = self._do(request, route, cause, fate)
        lost = fate.of("lose_reply") is not None
        ledger.answered(cause, answer.status, lost=lost, repeated=answer.repeated)
        fate.wait("delay_reply")
        if answer.pieces:
            self._stream(answer.pieces, fate)
        elif lost:
            self._drop()
        else:
            self._send(answer)

    def _do(self, request: Request, route: Route, cause: Entry, fate: Fate) -> Answer:
        """Nothing, if it is to fail before; else what the service does, whatever is then said of it."""
        if (trouble := fate.of("fail")) is not None:
            return refuse(trouble.status, "out of order; nothing was done")
        past = fate.of("lag") if request.method == "GET" else None
        with self.server.turn:
            answer = route.serve(request, self.server.ledger, cause, Lag(past.ms, past.writes) if past else None)
        if (trouble := fate.of("fail_after")) is not None:
            return refuse(trouble.status, "out of order")
        return answer

    # -- over the wire

    def _read_body(self) -> dict[str, Any] | Answer:
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > BODY_MAX:
            self.close_connection = True
            return refuse(413, f"a body of at most {BODY_MAX} bytes, and its Content-Length")
        content = self.rfile.read(int(length))
        try:
            body = json.loads(content or b"{}")
        except ValueError as error:
            return refuse(400, f"the body is not JSON: {error}")
        return body if isinstance(body, dict) else refuse(400, "the body is not a JSON object")

    def _send(self, answer: Answer) -> None:
        content = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if answer.repeated:
            self.send_header("Idempotent-Replayed", "true")
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, pieces: tuple[Any, ...], fate: Fate) -> None:
        """Server-sent events until the connection is closed; when the reply is to be lost, half of them."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        said = pieces[: len(pieces) // 2] if fate.of("lose_reply") else pieces
        for piece in said:
            text = piece if isinstance(piece, str) else json.dumps(piece)
            self.wfile.write(f"data: {text}\n\n".encode())
            fate.wait("trickle")
        self._drop()

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
