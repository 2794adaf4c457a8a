"""Remove a container when the process that started it is gone, however it went.

Run as a script: ``python -I mourner.py NAME PATH…``, with a pipe on its stdin that the other process holds and with that
one's ``sys.path``. A container is a child of the Docker daemon, so the kernel cannot end it with us; the end of the pipe is
what tells. A byte through the pipe says that there is nothing left to do.
"""

from __future__ import annotations

import importlib
import sys
import time

# The daemon may be creating it just now.
TRY_FOR_S = 10.0
POLL_S = 0.2


def remove(name: str) -> None:
    """Remove the container, running or not; one that does not turn up is as good as removed."""
    docker = importlib.import_module("docker")
    client = docker.from_env()
    until_s = time.monotonic() + TRY_FOR_S
    while time.monotonic() < until_s:
        try:
            client.api.remove_container(name, force=True, v=True)
        except docker.errors.DockerException:
            time.sleep(POLL_S)
        else:
            return


def main(arguments: list[str]) -> None:
    """Wait for the end of the pipe; then act, unless told that there is no need."""
    name, sys.path[:] = arguments[0], arguments[1:]
    if not sys.stdin.buffer.read(1):
        remove(name)


if __name__ == "__main__":
    main(sys.argv[1:])
