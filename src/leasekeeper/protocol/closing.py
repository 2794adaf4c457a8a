"""The end of a run, and of one life of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.errors import StopWork, shown
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.append import Entry, append
from leasekeeper.protocol.head import read_head
from leasekeeper.protocol.outcome import error_text
from leasekeeper.protocol.plan import RANGE, Sleep, persist
from leasekeeper.protocol.receipt import Draft, plain
from leasekeeper.protocol.witness import catch_up
from leasekeeper.run_errors import InDoubt, RunHalted, StepsOpen

if TYPE_CHECKING:
    from leasekeeper.protocol.append import Appended, Log
    from leasekeeper.protocol.head import Head
    from leasekeeper.protocol.incarnation import Incarnation
    from leasekeeper.protocol.plan import Plan

__all__ = ["await_steps", "check_idle", "fail", "finish", "is_told", "left_open"]

# How long it is tried to leave word of a failure. Nobody decides on it, and whoever leaves a block must not hang there.
FAIL_S = 5.0
READ_S = 10.0
# How long steps under way are waited for when their block is left by an error, and by Ctrl-C or a cancellation.
STEPS_S = 30.0
INTERRUPTED_S = 2.0
# Between two looks at whether they have ended.
LOOK_S = 0.05
# So many steps are named.
NAMED_MAX = 5


def check_idle(life: Incarnation) -> None:
    """StepsOpen when the block is left while others still do steps of the run: it is not finished then."""
    if busy := sorted(life.busy):
        raise _open(life.log, busy, "was left while steps are under way", "wait for them first")


def await_steps(life: Incarnation, error: BaseException) -> Plan[None]:
    """Wait for steps under way when a block is left by an error, so that what they come to is recorded; none begins any more.

    Bounded; and where authority is gone, nothing can be recorded.
    """
    life.leaving = True
    now = life.log.ctx.now
    until = now() + (STEPS_S if isinstance(error, (Exception, StopWork)) else INTERRUPTED_S)
    while life.busy and life.log.alive() and now() < until:
        yield Sleep(LOOK_S)


def finish(log: Log) -> Plan[Appended | None]:
    """Record that all is done; nothing is begun in this run from then on. None when it was finished before.

    Raises InDoubt when a step of it waits for an operator, and StepsOpen when one was begun and nobody knows how it ended: its
    error was swallowed. The next life has to ask.
    """
    if log.head.status == "finished":
        return None
    if log.head.doubts and (doubts := (yield from _doubts(log))):
        raise InDoubt(run=log.run, step=doubts[0], why="the run was to be finished with a step in doubt")
    if log.account.behind(log.head):
        yield from catch_up(log, log.ctx.now() + READ_S)
    if left := left_open(log):
        text = "is not finished: an error was swallowed, and how steps ended nobody knows"
        raise _open(log, left, text, "let the error of a step out of the block, or do the step again")
    draft = Draft("finished", "", b"{}", log.ctx.new_nonce())
    gone = m.delete(log.keys.unfinished)
    return (yield from append(log, Entry(draft, puts=lambda _: (gone,), change=_finished)))


def left_open(log: Log) -> list[str]:
    """The steps of which nobody knows how they ended. A memo's may stay unknown: it has changed nothing."""
    return sorted(log.account.open())


def _open(log: Log, steps: list[str], how: str, way_on: str) -> StepsOpen:
    named = tuple(steps[:NAMED_MAX])
    more = f" and {len(steps) - NAMED_MAX} more" if len(steps) > NAMED_MAX else ""
    return StepsOpen(f"run {log.run} {how}: {', '.join(map(shown, named))}{more}; {way_on}", run=log.run, steps=named)


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
