"""Flags that plans wait for, from whichever thread they are set."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasekeeper.wire.watch import News, WatchedKey, WatchHub

__all__ = ["Flag", "WatchFlag"]


class Flag:
    """Becomes set once and stays set; calls back whoever subscribed, on the thread that sets it."""

    __slots__ = ("_callbacks", "_lock", "_set")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set = False
        self._callbacks: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._set

    def set(self) -> None:
        """Set it; only the first time has an effect."""
        with self._lock:
            self._set = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when it is set; at once when it is set already."""
        with self._lock:
            if not self._set:
                self._callbacks.append(callback)
                return
        callback()

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """Forget ``callback``."""
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)


class WatchFlag(Flag):
    """Set by the first news of any of several keys, which includes that there will be no more news."""

    __slots__ = ("_watches",)

    def __init__(self, hub: WatchHub, keys: tuple[bytes, ...], start_revision: int) -> None:
        super().__init__()
        self._watches: list[WatchedKey] = [hub.watch(key, start_revision, self._news) for key in keys]

    def _news(self, _: News) -> None:
        self.set()

    def close(self) -> None:
        """Stop watching."""
        for watched in self._watches:
            watched.close()
