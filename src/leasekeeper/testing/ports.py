"""Choose TCP ports on 127.0.0.1 that stay ours while a server is down.

A port from the kernel's ephemeral range would not: while the server that owns it is restarting, any
outgoing connection may be given it as its source, even the one that dials the server. So ports are
drawn below that range. Between choice and use somebody else can still take one; whoever starts a
server looks at its failure and draws again.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

from leasekeeper.errors import Unavailable

HOST = "127.0.0.1"
LOWEST = 10240
USUAL_EPHEMERAL_START = 32768
TRIES = 200
BACKLOG = 128

# Not the module-level generator: test runners seed that one alike in every worker.
_draw = random.SystemRandom()


def free_port() -> int:
    """Return a port below the ephemeral range that nobody has just now."""
    for _ in range(TRIES):
        port = _draw.randrange(LOWEST, _ephemeral_start())
        if is_untouched(port):
            return port
    raise Unavailable(f"no free TCP port on {HOST} in {TRIES} tries", operation="choose a port")


def is_free(port: int) -> bool:
    """True when a server could listen on ``port`` now."""
    return _binds(port, shared=True)


def is_untouched(port: int) -> bool:
    """True when nobody has ``port`` in any way, also not a proxy that does not listen just now, and will again."""
    return _binds(port, shared=False)


def _binds(port: int, *, shared: bool) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(shared))
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def listener(port: int = 0) -> socket.socket:
    """Return a socket that listens on ``port``, or for 0 on a free one.

    The port is always bound by number: a port that the kernel chose would be given back when the
    socket stops listening for a while. Unavailable when it is taken.
    """
    for _ in range(1 if port else TRIES):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((HOST, port or free_port()))
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
        else:
            return sock
    raise Unavailable(
        f"cannot listen on {HOST}:{port}: the port is taken" if port else "no free TCP port",
        operation="listen",
    )


def _ephemeral_start() -> int:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
        start = int(text.split()[0])
    except (OSError, ValueError, IndexError):
        return USUAL_EPHEMERAL_START
    # A range that leaves too little below it is of no use to us.
    return start if start >= 2 * LOWEST else USUAL_EPHEMERAL_START
