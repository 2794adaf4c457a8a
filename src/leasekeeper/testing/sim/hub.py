"""A process's watches on one stream, at its own side: as the wire floor keeps them, in virtual time.

A watch tells its first news once. A stream that is silent although a sign of life was asked for is given up, and the next
member is asked; each watch goes on from where it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from leasekeeper.protocol.plan import News
from leasekeeper.runtime.signals import Flag

if TYPE_CHECKING:
    from leasekeeper.testing.sim.network import Route
    from leasekeeper.testing.sim.process import Process
    from leasekeeper.testing.sim.watching import Said, Stream, Streams

__all__ = ["Hub", "WatchFlag", "Watched"]

NEWS: dict[Said, News] = {"deleted": News.DELETED, "changed": News.CHANGED, "compacted": News.BLIND}
SILENCE_S = 3.0
RETRY_S = 0.05


class Watched:
    """One watch on one key."""

    __slots__ = ("_hub", "key", "number", "puts", "start", "told")

    def __init__(
        self, hub: Hub, number: int, key: bytes, start: int, *, puts: bool, told: Callable[[News], None]
    ) -> None:
        self._hub = hub
        self.number = number
        self.key = key
        self.start = start
        self.puts = puts
        self.told = told

    def close(self) -> None:
        """Stop watching; may be called twice."""
        self._hub.drop(self)


class Hub:
    """All watches of one keeper."""

    def __init__(self, process: Process, streams: Streams, route: Route) -> None:
        self._process = process
        self._streams = streams
        self._route = route
        self._watches: dict[int, Watched] = {}
        self._number = 0
        self._stream: Stream | None = None
        self._heard_s = 0.0
        self._asked_s: float | None = None
        self._opening = False

    def watch(self, key: bytes, start: int, told: Callable[[News], None], *, puts: bool = False) -> Watched:
        """Call ``told`` once with the first news of a key at ``start`` or later."""
        self._number += 1
        watched = self._watches[self._number] = Watched(self, self._number, key, start, puts=puts, told=told)
        if self._stream is not None:
            self._stream.watch(watched.number, key, start)
        elif not self._opening:
            self._open()
        return watched

    def drop(self, watched: Watched) -> None:
        """Forget a watch."""
        if self._watches.pop(watched.number, None) is not None and self._stream is not None:
            self._stream.forget(watched.number, watched.key)

    def tick(self, now_s: float) -> None:
        """Look whether the stream is alive."""
        if self._stream is None or not self._watches:
            return
        if self._asked_s is not None and now_s - self._asked_s > SILENCE_S:
            self._leave()
        elif self._asked_s is None and now_s - self._heard_s > SILENCE_S:
            self._asked_s = now_s
            self._stream.ask_progress()

    def close(self) -> None:
        """End the stream; nothing more is told."""
        self._watches.clear()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _leave(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
            self._route.advance(stream.link)
        self._opening = True
        self._process.after(RETRY_S, self._open)

    def _open(self) -> None:
        self._opening = False
        if self._stream is not None or not self._watches:
            return
        self._heard_s, self._asked_s = self._process.now(), None
        self._stream = self._streams.open(self._route.link, self._heard)
        for watched in self._watches.values():
            self._stream.watch(watched.number, watched.key, watched.start)

    def _heard(self, stream: Stream, said: Said, number: int) -> None:
        if stream is not self._stream:
            return
        if said == "broken":
            self._leave()
            return
        self._heard_s, self._asked_s = self._process.now(), None
        watched = self._watches.get(number)
        if watched is None or said == "progress" or (said == "changed" and not watched.puts):
            return
        self.drop(watched)
        watched.told(NEWS[said])


class WatchFlag(Flag):
    """Set by the first news of any of several keys, which includes that there will be no more news."""

    __slots__ = ("_watches",)

    def __init__(self, hub: Hub, keys: tuple[bytes, ...], start: int) -> None:
        super().__init__()
        self._watches = [hub.watch(key, start, lambda _: self.set()) for key in keys]

    def close(self) -> None:
        """Stop watching."""
        for watched in self._watches:
            watched.close()
