"""What tests share: waiting for a condition instead of guessing a time, and certificates for a test's server."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import trustme

from leasekeeper.testing import TLSFiles

T = TypeVar("T")
POLL_S = 0.02


def until(predicate: Callable[[], T], timeout_s: float = 30.0) -> T:
    """Poll ``predicate`` until it is true and return its value; fail after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            what = getattr(predicate, "__name__", repr(predicate))
            raise AssertionError(f"not true within {timeout_s:g} s: {what}, last value {value!r}")
        time.sleep(POLL_S)


def tls_files(directory: Path) -> TLSFiles:
    """A CA, a server certificate for 127.0.0.1 and a client certificate."""
    ca = trustme.CA()
    server, client = ca.issue_cert("127.0.0.1"), ca.issue_cert("client@example.org")
    ca.cert_pem.write_to_path(str(directory / "ca.pem"))
    server.private_key_pem.write_to_path(str(directory / "server.key"))
    server.cert_chain_pems[0].write_to_path(str(directory / "server.pem"))
    client.private_key_pem.write_to_path(str(directory / "client.key"))
    client.cert_chain_pems[0].write_to_path(str(directory / "client.pem"))
    return TLSFiles(
        ca=directory / "ca.pem",
        cert=directory / "server.pem",
        key=directory / "server.key",
        client_cert=directory / "client.pem",
        client_key=directory / "client.key",
    )
