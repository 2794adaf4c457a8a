"""The guardian's end of the control socket, and what else it waits for.

One place to wait: for orders, for a change of a child, for the alarm, for a program on its way, for the death of the command.
Nothing here blocks but `wait`. The socket ends when the command has died, whatever killed it; a descriptor of the command's
process tells the same where the kernel has them, should a copy of the command's end have got into another process.
"""

from __future__ import annotations

import os
import select
import signal
import socket

from leasekeeper.cli.tree.kernel import Alarm
from leasekeeper.cli.tree.messages import Decoder, Message, encode
from leasekeeper.clock import boottime

__all__ = ["Link"]

_READ_BYTES = 256 * 1024


class Link:
    """Orders in, reports out, and every reason to wake up. ``dead``: nobody is at the other end."""

    __slots__ = ("_alarm", "_command_fd", "_decoder", "_poll", "_socket", "_wake_fd", "dead")

    def __init__(self, fd: int, command: int) -> None:
        self.dead = False
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._decoder = Decoder()
        self._alarm = Alarm()
        self._wake_fd = _wake_on_children()
        self._command_fd = _process_fd(command)
        self._poll = select.poll()
        for watched in (fd, self._wake_fd, self._alarm.fd, self._command_fd):
            self.watch(watched)

    def watch(self, fd: int) -> None:
        """Wake up for this descriptor too."""
        if fd >= 0:
            self._poll.register(fd, select.POLLIN)

    def unwatch(self, fd: int) -> None:
        """No longer wake up for it."""
        self._poll.unregister(fd)

    def wait(self, until_s: float) -> None:
        """Until there is something to do, at the latest until ``until_s``."""
        self._alarm.set(until_s)
        _listen_to_children(True)
        ready = {fd for fd, _ in self._poll.poll(self._alarm.timeout_ms(boottime()))}
        _listen_to_children(False)
        self._alarm.clear()
        if self._wake_fd in ready:
            _drain(self._wake_fd)
        if self._command_fd in ready:
            self.dead = True

    def receive(self) -> list[Message]:
        """The orders that have come; ValueError when they make no sense."""
        orders: list[Message] = []
        while not self.dead:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.dead = True
            orders += self._decoder.feed(data)
        return orders

    def send(self, report: Message) -> None:
        """Tell the command, if it is there.

        The socket's buffer takes some hundred reports. A command that has not read so many is stopped; what it then misses
        it learns from the end of the socket.
        """
        try:
            self._socket.send(encode(report))
        except BlockingIOError:
            pass
        except OSError:
            self.dead = True


def _wake_on_children() -> int:
    """A descriptor that is readable when a child has changed; only `Link.wait` listens."""
    for_poll, for_signal = os.pipe()
    os.set_blocking(for_poll, False)
    os.set_blocking(for_signal, False)
    signal.set_wakeup_fd(for_signal, warn_on_full_buffer=False)
    # Without a Python function nothing is written; the function itself has nothing to do.
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    _listen_to_children(False)
    return for_poll


def _listen_to_children(listen: bool) -> None:
    """Where thousands of orphans die in a second, a signal for each would leave no time to look after those that live."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK if listen else signal.SIG_BLOCK, [signal.SIGCHLD])


def _process_fd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass
