"""The end of a run, and of one life of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.errors import StopWork
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.append import Entry, append
from leasekeeper.protocol.head import read_head
from leasekeeper.protocol.outcome import error_text
from leasekeeper.protocol.plan import RANGE, persist
from leasekeeper.protocol.receipt import Draft, plain
from leasekeeper.run_errors import InDoubt, RunHalted

if TYPE_CHECKING:
    from leasekeeper.protocol.append import Appended, Log
    from leasekeeper.protocol.head import Head
    from leasekeeper.protocol.plan import Plan

__all__ = ["fail", "finish", "is_told"]

# How long it is tried to leave word of a failure. Nobody decides on it, and whoever leaves a block must not hang there.
FAIL_S = 5.0
READ_S = 10.0


def finish(log: Log) -> Plan[Appended | None]:
    """Record that all is done; nothing is begun in this run from then on. None when it was finished before.

    Raises InDoubt when a step of it waits for an operator.
    """
    if log.head.status == "finished":
        return None
    if log.head.doubts and (doubts := (yield from _doubts(log))):
        raise InDoubt(run=log.run, step=doubts[0], why="the run was to be finished with a step in doubt")
    draft = Draft("finished", "", b"{}", log.ctx.new_nonce())
    gone = m.delete(log.keys.unfinished)
    return (yield from append(log, Entry(draft, puts=lambda _: (gone,), change=_finished)))


def _doubts(log: Log) -> Plan[tuple[str, ...]]:
    """The steps that wait for an operator now: one may have said a word since the owner last wrote."""
    request = pb.RangeRequest(key=log.keys.head)
    reply = yield from persist(RANGE, request, now=log.ctx.now, until=log.ctx.now() + READ_S, strict=True)
    return read_head(reply.kvs[0].value, log.keys.head.decode()).doubts if reply.kvs else log.head.doubts


def is_told(error: BaseException) -> bool:
    """Whether a life that ends by this leaves word of it: not where a record tells it already.

    Also one that was interrupted or cancelled: what it was about to record then is sent first.
    """
    return isinstance(error, RunHalted) or not isinstance(error, (StopWork, GeneratorExit))


def fail(log: Log, error: BaseException) -> Plan[Appended | None]:
    """Record that this life ended with an error, for people: the next one never asks.

    A life that a halt has ended does not count as one of those that got no further: it was not let.
    """
    if log.head.status == "finished":
        return None
    data = plain(error_text(error))
    change = _not_counted if isinstance(error, RunHalted) else _as_it_is
    draft = Draft("failed", "", data, log.ctx.new_nonce())
    return (yield from append(log, Entry(draft, change=change, until=log.ctx.now() + FAIL_S)))


def _finished(head: Head) -> Head:
    return head._replace(status="finished")


def _not_counted(head: Head) -> Head:
    return head._replace(restarts=max(0, head.restarts - 1))


def _as_it_is(head: Head) -> Head:
    return head
