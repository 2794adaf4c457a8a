"""All clients side by side on one etcd, in turn, a few rounds each time."""

from __future__ import annotations

import json
import shutil
import socket
import statistics
import subprocess
import sys
import time
import venv
from pathlib import Path

from bench.measure import Row, micros

__all__ = ["race"]

WORKER = Path(__file__).with_name("worker.py")
HOME = Path("build/bench/peers")
# The peer's name in worker.py, and what to install for it.
PEERS = {
    "etcd3": ("python3-etcd3",),
    "aetcd": ("aetcd",),
    "tooz": ("tooz", "etcd3gw"),
    "redis": ("redis",),
}
BATCH = 10


def _python(name: str) -> Path | None:
    """The peer's interpreter, installed once; None when it cannot be installed."""
    home = HOME / name
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        venv.create(home, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *PEERS[name]]
        if subprocess.run(command, check=False).returncode:
            return None
        (home / "ready").touch()
    return python


class _Peer:
    def __init__(self, name: str, python: str | Path, endpoint: str) -> None:
        host, _, port = endpoint.partition(":")
        self.name = name
        self.times: list[float] = []
        self._process = subprocess.Popen(
            [str(python), str(WORKER), name, host, port],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def go(self, rounds: int, keep: bool = True) -> bool:
        """One batch; False when the peer failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{rounds}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            return False
        if not answer:
            return False
        if keep:
            self.times += json.loads(answer)
        return True

    def close(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def race(endpoint: str, rounds: int) -> list[Row]:
    """acquire + release of each peer beside ours; a ratio above 1 means that the peer is slower."""
    redis_server = _Redis()
    peers = [_Peer("leasekeeper", sys.executable, endpoint)]
    missing: list[str] = []
    for name in PEERS:
        python = _python(name)
        address = redis_server.endpoint if name == "redis" else endpoint
        if python is None or address is None:
            missing.append(name)
        else:
            peers.append(_Peer(name, python, address))
    try:
        running = [peer for peer in peers if peer.go(BATCH, keep=False)]
        for _ in range(max(1, rounds // BATCH)):
            running = [peer for peer in running if peer.go(BATCH)]
    finally:
        for peer in peers:
            peer.close()
        redis_server.close()
    missing += [peer.name for peer in peers if peer not in running]
    return [*_rows(running), *(_absent(name) for name in missing)]


def _rows(running: list[_Peer]) -> list[Row]:
    medians = {peer.name: statistics.median(peer.times) for peer in running}
    ours = medians.pop("leasekeeper")
    rows = []
    for name, median in medians.items():
        other_store = name == "redis"
        rows.append(
            Row(
                f"acquire + release beside {' + '.join(PEERS[name])}" + (" (another store)" if other_store else ""),
                ours / median,
                None if other_store else 1.0,
                f"{micros(ours)} beside {micros(median)}",
                figures={"ours": ours, name: median},
            )
        )
    return rows


def _absent(name: str) -> Row:
    return Row(f"beside {name}", None, None, "not to be had here")


class _Redis:
    """A Redis server of this run's own, where there is one on PATH."""

    def __init__(self) -> None:
        self.endpoint: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        binary = shutil.which("redis-server")
        if binary is None:
            return
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.endpoint = f"127.0.0.1:{port}"
        time.sleep(0.5)

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)
