"""`dev`: a real etcd in the foreground, from its first line to its end."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import pytest

from leasekeeper import Keeper
from tests.commands import Command, call


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_told_to_stop(number: int) -> None:
    """It prints the export line of an endpoint that really serves; on Ctrl-C or TERM it ends with 0 and etcd is gone."""
    with Command("dev") as command:
        found = command.until(lambda: re.search(r"export LEASEKEEPER_ENDPOINTS=(\S+)\n", command.out))
        with Keeper(found[1]) as keeper:
            assert keeper.acquire("job", timeout=20).token > 0
        command.signal(number)
        done = command.end()
    assert (done.code, done.err) == (0, "")
    host, port = found[1].split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=5)


def test_json_and_data_that_stay(tmp_path: Path) -> None:
    """With -o json the line is an object; what was written to --data-dir is there the next time."""
    data = tmp_path / "data"
    for round_ in range(2):
        with Command("dev", "-o", "json", "--data-dir", str(data)) as command:
            (line,) = command.until(command.json_lines)
            assert set(line) == {"endpoint", "version", "pid", "data_dir"}
            assert line["data_dir"] == str(data)
            shown = call("epoch", "show", "-o", "json", endpoint=line["endpoint"])
            assert (shown.json["epoch"] > 0) is (round_ == 1)
            call("epoch", "bump", endpoint=line["endpoint"])
            command.signal(signal.SIGTERM)
            assert command.end().code == 0
    assert data.exists()


def test_a_port_that_is_taken() -> None:
    """A port that somebody listens on is a matter of usage, said at once."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = call("dev", "--port", str(taken.getsockname()[1]))
    assert (done.code, done.err.count("\n")) == (2, 1)


@pytest.mark.parametrize("beyond", ["file/data", "file"])
def test_data_that_cannot_be_written(tmp_path: Path, beyond: str) -> None:
    """A --data-dir where no directory can be is a matter of usage: 2, and one line with its name."""
    (tmp_path / "file").touch()
    done = call("dev", "--data-dir", str(tmp_path / beyond))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "--data-dir" in done.err
    assert len(done.err) < 400


def test_an_etcd_that_dies() -> None:
    """When etcd itself ends, so does the command: 69 and one line."""
    with Command("dev", "-o", "json") as command:
        (line,) = command.until(command.json_lines)

        os.kill(line["pid"], signal.SIGKILL)
        done = command.end()
    assert done.code == 69
    assert done.err.count("\n") == 1


def test_no_etcd_to_be_found(tmp_path: Path) -> None:
    """A LEASEKEEPER_ETCD that is none is said in one line: 2."""
    done = call("dev", env={"LEASEKEEPER_ETCD": str(tmp_path / "none")})
    assert (done.code, done.err.count("\n")) == (2, 1)
