"""An etcd server in a container, where a machine has Docker and no etcd.

Started through testcontainers. When this process is gone, however it went, a process beside it (`mourner`) removes the
container, so the reaper of testcontainers is not needed, whose own image a machine may not have. The container shares the
host's network and the server's directory, so ports, data and everything else are as with a plain process. On Docker
Desktop host networking has to be switched on. Control programs are inside the image, so snapshots are not available.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leasekeeper.errors import Unavailable

VARIABLE = "LEASEKEEPER_ETCD_IMAGE"
USUAL_IMAGE = "quay.io/coreos/etcd:v3.6.5"
MOURNER = Path(__file__).with_name("mourner.py")
PING_TIMEOUT_S = 5
POLL_S = 0.05
GONE_TIMEOUT_S = 30.0


def image_of_a_daemon_that_answers() -> str | None:
    """Return the image to run, or None without testcontainers or without a Docker daemon that answers."""
    if importlib.util.find_spec("testcontainers") is None:
        return None
    docker = importlib.import_module("docker")
    try:
        client = docker.from_env(timeout=PING_TIMEOUT_S)
        try:
            client.ping()
        finally:
            client.close()
    except docker.errors.DockerException:
        return None
    return os.environ.get(VARIABLE, USUAL_IMAGE)


class ContainerProcess:
    """A running container, to be handled like a ``ChildProcess``."""

    def __init__(self, image: str, flags: Sequence[str], *, log: Path, shared: Sequence[Path]) -> None:
        self._log = log
        library = importlib.import_module("testcontainers.core.container")
        self._docker_error: type[Exception] = importlib.import_module("docker").errors.DockerException
        user = f"{os.getuid()}:{os.getgid()}"  # so that the data belong to whom they would belong to anyway
        container: Any = library.DockerContainer(image)
        container.with_command(["etcd", *flags]).with_kwargs(network_mode="host", user=user)
        for path in shared:
            container.with_volume_mapping(str(path), str(path), "rw")
        name = f"leasekeeper-etcd-{uuid.uuid4().hex}"
        container.with_name(name)
        self._owner = container
        self._mourner = _mourn(name)
        try:
            with _without_reaper():
                container.start()
        except (self._docker_error, OSError) as error:
            container.stop()
            self._console()
            raise Unavailable(f"cannot start the image {image}: {error}", operation="start") from error
        self._container: Any = container.get_wrapped_container()
        # As the host of the Docker daemon counts; 0 when it ended at once.
        self.pid = int(self._state().get("Pid", 0))

    @property
    def alive(self) -> bool:
        """True while it runs (a frozen one does)."""
        return bool(self._state().get("Running"))

    @property
    def exit_status(self) -> int | None:
        """None while it runs."""
        state = self._state()
        return None if state.get("Running") else int(state.get("ExitCode", 0))

    def freeze(self) -> None:
        """Stop its execution: connections stay open and nobody answers."""
        self._container.pause()

    def thaw(self) -> None:
        """Let it go on; one that is not frozen stays as it is."""
        if self._state().get("Paused"):
            self._container.unpause()

    def stop(self, timeout_s: float) -> None:
        """End it: TERM, after ``timeout_s`` KILL; a frozen one is thawed first."""
        self.thaw()
        if self.alive:
            self._container.stop(timeout=max(1, round(timeout_s)))
        self.kill()

    def kill(self) -> None:
        """End it at once and remove the container."""
        self.thaw()
        if self.alive:
            self._container.kill()
        deadline = time.monotonic() + GONE_TIMEOUT_S
        while self.alive and time.monotonic() < deadline:
            time.sleep(POLL_S)
        self.save_log()
        self._owner.stop()
        self._console()

    def save_log(self) -> None:
        """Write what it has printed to the server's log."""
        self._log.write_bytes(self._container.logs())

    def _console(self) -> None:
        """Tell the mourner that the container is gone, and reap it."""
        if self._mourner.poll() is None:
            self._mourner.communicate(b"gone", GONE_TIMEOUT_S)

    def _state(self) -> dict[str, Any]:
        try:
            self._container.reload()
        except self._docker_error:
            return {}  # removed
        state: dict[str, Any] = self._container.attrs.get("State", {})
        return state


def _mourn(name: str) -> subprocess.Popen[bytes]:
    """Start what removes the container of that name after our death; before the container, so that none is missed."""
    return subprocess.Popen(
        [sys.executable, "-I", str(MOURNER), name, *sys.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # what ends us from a terminal must not end it
    )


@contextmanager
def _without_reaper() -> Iterator[None]:
    """Start no reaper for this container; those of the user's own containers are not affected."""
    settings = importlib.import_module("testcontainers.core.config").testcontainers_config
    before = settings.ryuk_disabled
    settings.ryuk_disabled = True
    try:
        yield
    finally:
        settings.ryuk_disabled = before
