"""Watches, at the side of etcd: streams that carry changes of keys to processes, in order and never twice.

A stream lives on one member. Where that stands still or the way back is cut, what it has to say waits in it and comes when it
can, unless the stream was broken meanwhile. A watch from a revision that was compacted away is refused; one from a revision
that a restore took back stays silent until the revision has come by again, as in a real etcd.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from leasekeeper.testing.sim.cluster import Cluster
    from leasekeeper.testing.sim.keyspace import Event
    from leasekeeper.testing.sim.network import Link
    from leasekeeper.testing.sim.timeline import Timeline

__all__ = ["Said", "Stream", "Streams"]

# What a stream says: a change of a key (or its deletion), that the history is gone, that it lives, or that it is broken.
Said = Literal["changed", "deleted", "compacted", "progress", "broken"]
Heard = Callable[["Stream", Said, int], None]


class Stream:
    """One watch stream between a process and a member. ``heard`` is told in the process, with the watch's number."""

    def __init__(self, streams: Streams, link: Link, heard: Heard) -> None:
        self._streams = streams
        self.link = link
        self._heard = heard
        self.open = True
        self._inbox: deque[Callable[[], None]] = deque()
        self._outbox: deque[tuple[Said, int]] = deque()
        self._in_s = self._out_s = 0.0

    # ------------------------------------------------------------ from the process

    def watch(self, number: int, key: bytes, start: int) -> None:
        """Ask for the changes of a key from a revision on."""
        self._ask(lambda: self._streams.add(self, number, key, start))

    def forget(self, number: int, key: bytes) -> None:
        """End one watch."""
        self._ask(lambda: self._streams.remove(self, number, key))

    def ask_progress(self) -> None:
        """Ask for a sign of life."""
        self._ask(lambda: self.say("progress", 0))

    def close(self) -> None:
        """The process has left it."""
        self.open = False
        self._streams.discard(self)

    def _ask(self, request: Callable[[], None]) -> None:
        self._inbox.append(request)
        self.flush()

    # ------------------------------------------------------------ from etcd

    def say(self, said: Said, number: int) -> None:
        """Tell the process something."""
        self._outbox.append((said, number))
        self.flush()

    def flush(self) -> None:
        """Move what can be moved."""
        timeline, link = self._streams.timeline, self.link
        while self._inbox and self.open and link.out_open:
            request = self._inbox.popleft()
            self._in_s = max(self._in_s, timeline.now_s + link.way_s())
            timeline.at(self._in_s, lambda request=request: self._arrive(request))  # type: ignore[misc]
        while self._outbox and self.open and link.in_open and self._streams.speaks(link.member):
            said, number = self._outbox.popleft()
            self._out_s = max(self._out_s, timeline.now_s + link.way_s())
            timeline.at(self._out_s, lambda said=said, number=number: self._deliver(said, number))  # type: ignore[misc]

    def _arrive(self, request: Callable[[], None]) -> None:
        if self.open:
            request()

    def _deliver(self, said: Said, number: int) -> None:
        self.link.process.run(lambda: self._heard(self, said, number) if self.open else None)


class Streams:
    """All watch streams of a cluster."""

    def __init__(self, timeline: Timeline, cluster: Cluster) -> None:
        self.timeline = timeline
        self._cluster = cluster
        self._streams: dict[Stream, None] = {}
        self._watches: dict[bytes, dict[tuple[Stream, int], int]] = {}

    def open(self, link: Link, heard: Heard) -> Stream:
        """A new stream."""
        stream = Stream(self, link, heard)
        self._streams[stream] = None
        return stream

    def discard(self, stream: Stream) -> None:
        """A stream is over."""
        self._streams.pop(stream, None)
        for watches in self._watches.values():
            for watch in [each for each in watches if each[0] is stream]:
                del watches[watch]

    def speaks(self, member: int) -> bool:
        """Whether a member says anything just now."""
        return self._cluster.speaks(member)

    def add(self, stream: Stream, number: int, key: bytes, start: int) -> None:
        """Begin a watch: first what has happened since its start."""
        store = self._cluster.store
        if start < store.compacted:
            stream.say("compacted", number)
            return
        self._watches.setdefault(key, {})[stream, number] = start
        for event in store.since(key, start):
            stream.say("deleted" if event.deleted else "changed", number)

    def remove(self, stream: Stream, number: int, key: bytes) -> None:
        """End a watch."""
        self._watches.get(key, {}).pop((stream, number), None)

    def changed(self, event: Event) -> None:
        """A key was changed."""
        for (stream, number), start in list(self._watches.get(event.key, {}).items()):
            if event.revision >= start:
                stream.say("deleted" if event.deleted else "changed", number)

    def flush(self) -> None:
        """Something was mended: move what waits."""
        for stream in list(self._streams):
            stream.flush()

    def break_all(self) -> None:
        """All members stop."""
        for stream in list(self._streams):
            self.discard(stream)
            if stream.link.in_open:
                self.timeline.after(stream.link.way_s(), lambda stream=stream: stream._deliver("broken", 0))  # type: ignore[misc]
