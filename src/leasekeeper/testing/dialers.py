"""Tell which process has dialled a TCP connection on this machine.

Members of a test cluster all dial from 127.0.0.1, so an address does not tell them apart, and etcd sends its name
with some of its peer requests only (with none that forwards a lease renewal). The kernel knows: asked for a
connection over its socket-diagnosis interface (``sock_diag(7)``, what ``ss`` uses) it answers with the inode of the
dialler's socket, and the process that has this inode among its open files is the dialler. One exact question takes
well under a millisecond, whereas ``/proc/net/tcp`` takes several and may miss a line. Linux only; needs the right
to see the open files of the processes, which one has for those of one's own user.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterable

Address = tuple[str, int]

SOCK_DIAG_BY_FAMILY = 20
NETLINK_SOCK_DIAG = 4
NLM_F_REQUEST = 1
NO_COOKIE = 0xFFFFFFFF
ALL_STATES = 0xFFFFFFFF
REPLY_BYTES = 4096
REPLY_TIMEOUT_S = 5.0
NETLINK_HEADER = struct.Struct("=IHHII")
# struct inet_diag_msg: four bytes, the socket's id of 48 bytes, then five numbers, of which the last is the inode.
INODE_OFFSET = NETLINK_HEADER.size + 4 + 48 + 4 * 4


def can_tell() -> bool:
    """True where this works: asked about a connection of our own."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as dialling:
        dialling.connect(listener.getsockname())
        return dialler(dialling.getsockname(), listener.getsockname(), [os.getpid()]) is not None


def dialler(source: Address, dialled: Address, pids: Iterable[int]) -> int | None:
    """Return which of ``pids`` has dialled the connection from ``source`` to ``dialled``.

    None when none of them has, when the connection has ended meanwhile, and where the kernel cannot be asked.
    """
    inode = _inode(source, dialled)
    if not inode:
        return None
    return next((pid for pid in pids if _holds(pid, f"socket:[{inode}]")), None)


def _inode(local: Address, remote: Address) -> int:
    if sys.platform != "linux":
        return 0
    body = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, ALL_STATES)
    body += struct.pack("!HH", local[1], remote[1]) + _as_16_bytes(local) + _as_16_bytes(remote)
    body += struct.pack("=III", 0, NO_COOKIE, NO_COOKIE)
    size = NETLINK_HEADER.size + len(body)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(REPLY_TIMEOUT_S)
            kernel.send(NETLINK_HEADER.pack(size, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0) + body)
            reply = kernel.recv(REPLY_BYTES)
    except OSError:
        return 0
    kind: int = NETLINK_HEADER.unpack_from(reply)[1]
    if kind != SOCK_DIAG_BY_FAMILY:
        return 0  # an error message: there is no such connection
    inode: int = struct.unpack_from("=I", reply, INODE_OFFSET)[0]
    return inode


def _as_16_bytes(address: Address) -> bytes:
    return socket.inet_aton(address[0]).ljust(16, b"\0")


def _holds(pid: int, link: str) -> bool:
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            return any(_target(entry.path) == link for entry in entries)
    except OSError:
        return False  # it has ended


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""  # closed while we looked
