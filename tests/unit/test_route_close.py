"""How the connections of a route are closed."""

from __future__ import annotations

import threading
from typing import Any, cast

from leasekeeper.wire.channel import Channels
from leasekeeper.wire.route import Route


class Channel:
    """In a grpc channel's place: notes who closes it."""

    closed_by: threading.Thread | None = None

    def close(self) -> None:
        """Note it."""
        self.closed_by = threading.current_thread()


class OneChannel:
    """Channels to one endpoint."""

    lent = None
    endpoints = names = ("host:1",)

    def __init__(self) -> None:
        self.channel = Channel()

    def open(self, _: int) -> Any:
        """Always the same."""
        return self.channel


def test_connections_are_closed_where_ctrl_c_cannot_strike() -> None:
    """C10: a channel whose closing was cut short would hang whoever closes it next, so it is never closed in a user's thread."""
    channels = OneChannel()
    route = Route(cast("Channels", channels), lambda: 0.0)
    route.connection()
    route.close()
    assert channels.channel.closed_by not in (None, threading.current_thread())
