"""One line on stderr and nothing else: also where grpc's C library would have something to say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasekeeper.testing import EtcdServer
from tests.commands import Command
from tests.support import tls_files

COMMANDS = [("ls",), ("run", "job", "--", "true"), ("doctor",)]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EtcdServer, dict[str, dict[str, str]]]]:
    """An etcd that asks for certificates, and settings of clients that have others, or none."""
    files, others = tls_files(tmp_path_factory.mktemp("tls")), tls_files(tmp_path_factory.mktemp("others"))
    ca = {"LEASEKEEPER_CACERT": str(files.ca), "LEASEKEEPER_TIMEOUT": "5"}
    wrong = {
        "stranger's CA": {**ca, "LEASEKEEPER_CACERT": str(others.ca)},
        "no certificate": ca,
        "stranger's certificate": {
            **ca,
            "LEASEKEEPER_CERT": str(others.client_cert),
            "LEASEKEEPER_KEY": str(others.client_key),
        },
    }
    with EtcdServer(fsync=False, tls=files) as server:
        yield server, wrong


@pytest.mark.parametrize("case", ["stranger's CA", "no certificate", "stranger's certificate"])
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_failed_handshake_is_one_line(
    secured: tuple[EtcdServer, dict[str, dict[str, str]]], namespace: str, words: tuple[str, ...], case: str
) -> None:
    """Certificates that do not match end in one line of ours, or in a finding of the doctor's, without a line of grpc's own."""
    server, settings = secured
    with Command(*words, endpoint=server.endpoint, namespace=namespace, env=settings[case]) as command:
        done = command.end()
    assert done.code in (2, 69)
    assert all(line.startswith("leasekeeper: ") for line in done.err.splitlines())
    assert len(done.err.splitlines()) == (0 if words == ("doctor",) else 1)


@pytest.mark.parametrize(("given", "seen"), [({}, "None"), ({"GRPC_VERBOSITY": "ERROR"}, "ERROR")])
def test_the_program_has_its_own_wishes(etcd: EtcdServer, namespace: str, given: dict[str, str], seen: str) -> None:
    """How loud grpc is in a program under `run` is what the caller said, or nothing."""
    show = "import os; print(os.environ.get('GRPC_VERBOSITY'))"
    words = ("run", "job", "--", "python3", "-c", show)
    with Command(*words, endpoint=etcd.endpoint, namespace=namespace, env=given) as command:
        assert command.end().out == f"{seen}\n"
