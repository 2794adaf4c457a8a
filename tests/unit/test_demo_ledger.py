"""The demo's ledger: what is cut short by the end of the story or of a replica says nothing."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

from leasekeeper.cli.demo.ledger import Ledger, Written


def ask(ledger: Ledger, text: str) -> bytes:
    """Send a line, and read the answer."""
    host, _, port = ledger.endpoint.partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as wire:
        wire.sendall(text.encode() + b"\n")
        with wire.makefile("rb") as answer:
            return answer.readline()


@pytest.mark.parametrize("closing", [True, False])
def test_what_fails_at_the_end_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], closing: bool) -> None:
    """A failure while the ledger is being closed is silent; any other is a bug and is printed."""

    def heard(_: Written) -> None:
        ledger._server.closing = closing
        raise OSError("the files are gone")

    ledger = Ledger(tmp_path, heard)
    try:
        assert ask(ledger, json.dumps({"token": 1, "claim": "c", "holder": "A"})) == b""
        until = time.monotonic() + 10
        printed = ""
        while not closing and "the files are gone" not in printed and time.monotonic() < until:
            printed += capsys.readouterr().err
            time.sleep(0.01)
    finally:
        ledger.close()
    printed += capsys.readouterr().err
    assert ("the files are gone" in printed) is not closing
