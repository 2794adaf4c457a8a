"""The end of a run, and of one life of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.errors import StopWork, shown
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.append import Entry, append, settle
from leasekeeper.protocol.outcome import error_text
from leasekeeper.protocol.plan import Fault, Kind, Sleep
from leasekeeper.protocol.receipt import Draft, plain
from leasekeeper.protocol.witness import catch_up
from leasekeeper.run_errors import InDoubt, RunFinished, RunHalted, StepsOpen

if TYPE_CHECKING:
    from leasekeeper.protocol import etcd_pb2 as pb
    from leasekeeper.protocol.append import Appended, Log
    from leasekeeper.protocol.head import Head
    from leasekeeper.protocol.incarnation import Incarnation
    from leasekeeper.protocol.plan import Plan

__all__ = ["await_steps", "check_idle", "fail", "finish", "is_told", "left_open"]

# How long it is tried to leave word of a failure. Nobody decides on it, and whoever leaves a block must not hang there.
FAIL_S = 5.0
READ_S = 10.0
# How long it is tried to record the end. It is no evidence: what is not finished is gone on with.
FINISH_S = 30.0
# How often it is looked again while others write.
TRIES_MAX = 20
# How long steps under way are waited for when their block is left by an error, and by Ctrl-C or a cancellation.
STEPS_S = 30.0
INTERRUPTED_S = 2.0
# Between two looks at whether they have ended.
LOOK_S = 0.05
# So many steps are named.
NAMED_MAX = 5


def check_idle(life: Incarnation) -> None:
    """StepsOpen when the block is left while others still do steps of the run: it is not finished then.

    One that was finished before stays so: they only read.
    """
    if (busy := sorted(life.busy)) and life.log.head.status != "finished":
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

    Raises:
        InDoubt: a step of it waits for an operator.
        StepsOpen: one was begun and nobody knows how it ended: its error was swallowed. The next life has to ask.
        Fault: that it could not be recorded in time. It may be by now, or never; the next life sees.
    """
    if log.head.status == "finished":
        return None
    until = log.ctx.now() + FINISH_S
    yield from settle(log, log.ctx.now() + READ_S)
    for _ in range(TRIES_MAX):
        yield from _check_steps(log)
        draft = Draft("finished", "", b"{}", log.ctx.new_nonce())
        try:
            return (yield from append(log, Entry(draft, puts=lambda _: _last_puts(log), change=_finished, until=until)))
        except RunFinished:
            return None
        except _Moved:
            continue
    raise Fault(Kind.RETRY, text=f"others write to {log.run} again and again", operation="Txn")


class _Moved(Exception):
    """Between the look at the steps and the end something was recorded: look again."""


def _last_puts(log: Log) -> tuple[pb.RequestOp, ...]:
    """What goes with the end. It is asked for when all before it is known, so the look at the steps is repeated then."""
    if _unsure(log):
        raise _Moved
    return (m.delete(log.keys.unfinished),)


def _unsure(log: Log) -> bool:
    """Whether, as far as is remembered, something is not known of a step."""
    return bool(log.account.behind(log.head) or log.account.doubts() or left_open(log))


def _check_steps(log: Log) -> Plan[None]:
    """InDoubt or StepsOpen where it is not known of each step how it ended."""
    if _unsure(log):
        yield from catch_up(log, log.ctx.now() + READ_S)  # an operator may have said a word since
    if doubts := log.account.doubts():
        raise InDoubt(run=log.run, step=doubts[0], why="the run was to be finished with a step in doubt")
    if left := left_open(log):
        text = "is not finished: an error was swallowed, and how steps ended nobody knows"
        raise _open(log, left, text, "let the error of a step out of the block, or do the step again")


def left_open(log: Log) -> list[str]:
    """The steps of which nobody knows how they ended. A memo's may stay unknown: it has changed nothing."""
    return sorted(log.account.open())


def _open(log: Log, steps: list[str], how: str, way_on: str) -> StepsOpen:
    named = tuple(steps[:NAMED_MAX])
    more = f" and {len(steps) - NAMED_MAX} more" if len(steps) > NAMED_MAX else ""
    return StepsOpen(f"run {log.run} {how}: {', '.join(map(shown, named))}{more}; {way_on}", run=log.run, steps=named)


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
    # Who was interrupted wants to end.
    for_s = FAIL_S if isinstance(error, (Exception, StopWork)) else INTERRUPTED_S
    return (yield from append(log, Entry(draft, change=change, until=log.ctx.now() + for_s)))


def _finished(head: Head) -> Head:
    return head._replace(status="finished")


def _not_counted(head: Head) -> Head:
    return head._replace(restarts=max(0, head.restarts - 1))


def _as_it_is(head: Head) -> Head:
    return head
