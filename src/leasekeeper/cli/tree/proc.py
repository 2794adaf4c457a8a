"""What runs: the descendants of a process as /proc shows them, and a signal that reaches only the process that was meant.

A listing is a snapshot of something that moves: a process that forks or dies during the walk may be missed, so whoever must be
sure walks again until nothing changes. Walking the kernel's lists of children costs a few reads per process *of the tree*;
only where the kernel does not have them (CONFIG_PROC_CHILDREN) is all of /proc read.

A listing that fails for want of descriptors or memory raises OSError: an empty one would mean that nothing runs. Where there is
no /proc, every listing is empty; and also where /proc is that of another pid namespace (``unshare --pid`` without
``--mount-proc``, a container that was given the host's): its numbers mean other processes there.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

__all__ = ["Process", "children", "descendants", "listable", "read", "send"]

_PROC = "/proc"
_DEAD = ("Z", "X", "x")
_STOPPED = ("T", "t")
# Who cannot be read for another reason (no descriptor, no memory) is there all the same, and no listing may leave it out.
_NOT_THERE = (FileNotFoundError, ProcessLookupError, NotADirectoryError, PermissionError)


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc/PID/stat; ``start`` (in clock ticks since boot) tells two users of one pid apart."""

    pid: int
    parent: int
    group: int
    session: int
    state: str
    threads: int
    start: int

    @property
    def key(self) -> tuple[int, int]:
        """Names this process and no other, for as long as the machine is up."""
        return self.pid, self.start

    @property
    def alive(self) -> bool:
        """Whether it can still run."""
        return self.state not in _DEAD

    @property
    def stopped(self) -> bool:
        """Whether it was stopped by a signal or a debugger."""
        return self.state in _STOPPED

    @property
    def traced(self) -> bool:
        """Whether it stands still for a tracer, which may be for an instant only."""
        return self.state == "t"


def listable() -> bool:
    """Whether this platform shows its processes under /proc as Linux does, by the numbers that they have for us."""
    return _SHOWN


def parse(line: str) -> Process:
    """The process of one stat line. The command name may hold blanks and parentheses: fields count after its last one."""
    pid, _, rest = line.partition(" (")
    f = rest[rest.rindex(")") + 2 :].split()
    return Process(int(pid), int(f[1]), int(f[2]), int(f[3]), f[0], int(f[17]), int(f[19]))


def read(pid: int) -> Process | None:
    """The process with this pid, None when there is none."""
    text = _text(f"{_PROC}/{pid}/stat", whole=False) if _SHOWN else ""
    if not text:
        return None
    process = parse(text)
    if process.state == "Z" and process.threads > 1:
        return replace(process, state=_state_of_the_living(pid))
    return process


def _state_of_the_living(pid: int) -> str:
    """The state of a process whose main thread is dead while others live: stopped only if all of them are."""
    stats = [_text(f"{_PROC}/{pid}/task/{thread}/stat") for thread in _names(f"{_PROC}/{pid}/task")]
    states = {parse(stat).state for stat in stats if stat} - set(_DEAD)
    return min(states - set(_STOPPED), default=min(states, default="Z"))


def children(pid: int) -> list[int]:
    """The pids of its children, of all its threads."""
    if _HAS_CHILDREN:
        return [
            int(child)
            for thread in _names(f"{_PROC}/{pid}/task")
            for child in _text(f"{_PROC}/{pid}/task/{thread}/children").split()
        ]
    return [process.pid for process in _everything() if process.parent == pid]


def descendants(root: int, spare: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Process]:
    """Every process below ``root``, parents before children; those with a key in ``spare`` are left out with what is below.

    Each comes as soon as it is found: what is to be done to one need not wait for the rest of a large tree.
    """
    of = children if _HAS_CHILDREN else _index()
    seen = {root}
    front = [root]
    while front:
        below = [pid for parent in front for pid in of(parent) if pid not in seen]
        seen.update(below)
        front = []
        for pid in below:
            process = read(pid)
            if process and process.key not in spare:
                front.append(pid)
                yield process


def send(process: Process, number: int) -> bool:
    """Signal exactly this process; whether it was there and we may.

    The pid may have gone to a stranger since it was listed. A pid descriptor pins whoever has it now, and the start time
    read after that tells whether it is the one that was meant. Without descriptors the gap is a few microseconds.
    """
    try:
        return _send_pinned(process, number) if _HAS_PIDFD else _send_by_pid(process, number)
    except (ProcessLookupError, PermissionError):
        return False


def _send_pinned(process: Process, number: int) -> bool:
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:  # no descriptor to be had
        return _send_by_pid(process, number)
    try:
        if not _same(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    finally:
        os.close(descriptor)


def _send_by_pid(process: Process, number: int) -> bool:
    if not _same(process):
        return False
    os.kill(process.pid, number)
    return True


def _same(process: Process) -> bool:
    now = read(process.pid)
    return now is not None and now.start == process.start


def _index() -> _Index:
    return _Index(_everything())


class _Index:
    """Children by parent, from one reading of all of /proc."""

    __slots__ = ("_below",)

    def __init__(self, everything: list[Process]) -> None:
        self._below: dict[int, list[int]] = {}
        for process in everything:
            self._below.setdefault(process.parent, []).append(process.pid)

    def __call__(self, pid: int) -> list[int]:
        return self._below.get(pid, [])


def _everything() -> list[Process]:
    pids = [int(name) for name in _names(_PROC) if name.isdigit()]
    return [process for pid in pids if (process := read(pid))]


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except _NOT_THERE:
        return []


def _text(path: str, *, whole: bool = True) -> str:
    """What the file says, "" when it is not there; without ``whole`` one read, which is enough for a line."""
    # Unbuffered reads of the descriptor: half the cost of open() on files this small.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except _NOT_THERE:
        return ""
    try:
        if not whole:
            return os.read(descriptor, 4096).decode("ascii", "replace")
        parts = []
        while part := os.read(descriptor, 65536):
            parts.append(part)
        return b"".join(parts).decode("ascii", "replace")
    except _NOT_THERE:
        return ""
    finally:
        os.close(descriptor)


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return hasattr(signal, "pidfd_send_signal")


def _shown() -> bool:
    try:
        return sys.platform.startswith("linux") and os.readlink(f"{_PROC}/self") == str(os.getpid())
    except OSError:
        return False


_SHOWN = _shown()
_HAS_PIDFD = _has_pidfd()
_HAS_CHILDREN = _SHOWN and os.path.exists(f"{_PROC}/self/task/{os.getpid()}/children")
