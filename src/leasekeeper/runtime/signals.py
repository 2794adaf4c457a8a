"""Flags that plans wait for, from whichever thread they are set."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasekeeper.protocol.plan import News
    from leasekeeper.wire.watch import WatchedKey, WatchHub

__all__ = ["Flag", "WatchFlag"]


class Flag:
    """Becomes set once and stays set; calls back whoever subscribed, on the thread that sets it.

    Without a lock, each step being one step of the interpreter: Ctrl-C may strike anywhere in the main thread, and the garbage
    collector may end a coroutine, with what it subscribed to, anywhere at all.
    """

    __slots__ = ("__weakref__", "_callbacks", "_set")

    def __init__(self) -> None:
        self._set = False
        self._callbacks: dict[Callable[[], None], None] = {}

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._set

    def set(self) -> None:
        """Set it; only the first time has an effect."""
        self._set = True
        self._call_back()

    def _call_back(self) -> None:
        while self._callbacks:
            try:
                callback, _ = self._callbacks.popitem()
            except KeyError:
                return  # another thread took the last one
            callback()

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when it is set; at once when it is set already."""
        self._callbacks[callback] = None
        if self._set:
            self._call_back()

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """Forget ``callback``."""
        self._callbacks.pop(callback, None)


class WatchFlag(Flag):
    """Set by the first news of any of several keys, which includes that there will be no more news."""

    __slots__ = ("_watches",)

    def __init__(self, hub: WatchHub, keys: tuple[bytes, ...], start_revision: int) -> None:
        super().__init__()
        self._watches: list[WatchedKey] = []
        # Weakly: whom nobody waits for any more, Ctrl-C having struck in between, must not be kept by the watches.
        told = partial(_told, weakref.ref(self))
        for key in keys:
            self._watches.append(hub.watch(key, start_revision, told))

    def __del__(self) -> None:
        for watched in getattr(self, "_watches", ()):
            watched.close_soon()

    def close(self) -> None:
        """Stop watching."""
        for watched in self._watches:
            watched.close()


def _told(ref: weakref.ref[WatchFlag], _: News) -> None:
    flag = ref()
    if flag is not None:
        flag.set()
