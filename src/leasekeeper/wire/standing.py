"""A call that stays open on a connection, so that grpc keeps the thread that brings the answers of calls nobody blocks for.

grpc has one such thread for each channel. It ends with the last call that is under way, and the next call starts another one
and waits until it runs. Under asyncio, where one call follows the other, that is a thread for each call and a tenth of the
call's time (grpcio 1.60 to 1.85). One call that stays open keeps the thread.

The health check's Watch serves for it: it needs no rights and one empty request, etcd has it since 3.3, and nothing is read
from it. Where it is refused, by a proxy say, it ends at once, is not tried again on that connection, and nothing else changes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc

from leasekeeper.wire.interruption import let_go, spared

if TYPE_CHECKING:
    from leasekeeper.wire.route import Connection

__all__ = ["Standing", "stand_by"]

HEALTH_WATCH = "/grpc.health.v1.Health/Watch"
POLL_S = 0.001


class Standing:
    """The open call of one connection; it ends with the connection's channel, or by `end`."""

    __slots__ = ("_call",)

    def __init__(self, channel: grpc.Channel) -> None:
        self._call: Any = None
        try:
            watch: Any = channel.unary_stream(HEALTH_WATCH)
            self._call = watch(b"")
        except (ValueError, grpc.RpcError):
            pass  # the channel was closed: whoever calls next is told
        except BaseException as error:
            let_go(error)
            raise

    @property
    def active(self) -> bool:
        """Whether grpc still has it."""
        return self._call is not None and bool(self._call.is_active())

    def end(self) -> None:
        """End it from this side."""
        if self._call is not None:
            spared(self._call.cancel)

    def await_end(self, until: float) -> None:
        """Wait until grpc has let go of it, or ``time.monotonic()`` shows ``until``."""
        while self.active and time.monotonic() < until:
            time.sleep(POLL_S)


def stand_by(connection: Connection) -> None:
    """More calls will follow on ``connection``: keep grpc's thread for them. At once, and only where calls were answered."""
    if connection.standing is None and connection.worked:
        connection.standing = Standing(connection.channel)
