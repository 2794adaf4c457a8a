"""Trials of a fence in which several owners write at once."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from functools import partial

from leasekeeper.testing.interleave import Stop, run_between
from leasekeeper.testing.trial import Attempt, Trial, Writer

__all__ = ["held_writers", "many_writers"]

# A write that has more lines than this is only held before the first ones.
LINES_MAX = 60
GRACE_S = 0.05
GRACES_MAX_S = 5.0
THREADS = 4
WRITES_EACH = 5
ROUNDS = 8
JOIN_TIMEOUT_S = 60.0
# How often threads take turns meanwhile, where Python's own default is 5 ms.
TURN_S = 1e-5


def held_writers(trial: Trial) -> None:
    """Hold an older owner at each line of its write and let a newer one write; on a new resource and on a used one."""
    for used in (False, True):
        left_s = GRACES_MAX_S
        for number in range(1, LINES_MAX + 1):
            one = Trial(trial.target, trial.label)
            if used:
                one.accepted(Writer("first", 5, "first"), "nobody has written yet")
            began_s = time.monotonic()
            stop = _hold(one, number, grace_s=min(GRACE_S, left_s))
            left_s -= time.monotonic() - began_s
            if stop is None or left_s <= 0:
                break


def _hold(trial: Trial, number: int, *, grace_s: float) -> Stop | None:
    older, newer = Writer("older", 7, "a"), Writer("newer", 8, "b")
    stop = run_between(number, partial(trial.write, older), partial(trial.write, newer), grace_s=grace_s)
    if stop is None:
        return None
    late = next(attempt for attempt in trial.attempts if attempt.writer is older)
    between = next(attempt for attempt in trial.attempts if attempt.writer is newer)
    late.note = f"held in {stop.place} until the next one was done or had to wait"
    _judge(trial, late, between)
    return stop


def _judge(trial: Trial, late: Attempt, between: Attempt) -> None:
    """Whatever the order was, the newest owner's write is what stays."""
    if between.outcome == "refused":
        raise trial.broken(between, "must be accepted: nobody newer has written")
    if between.outcome == "accepted":
        if trial.target.read is not None and (found := trial.value()) != between.value:
            raise trial.broken(late, f"after the newest owner was accepted, what can be read is {found!r}")
        trial.refused(late.writer, "a newer owner has written")
    trial.accepted(between.writer, "it is the newest owner; its token is equal and of the same claim")


@dataclass(slots=True)
class Timed:
    """An attempt with the time that it took."""

    begin_s: float
    end_s: float
    attempt: Attempt


def many_writers(trial: Trial) -> None:
    """Let owners write from a thread each, round after round; the newest one must never be refused, nor be overwritten."""
    turn_s = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        for _ in range(ROUNDS):
            one = Trial(trial.target, trial.label)
            _judge_crowd(one, _crowd(one))
    finally:
        sys.setswitchinterval(turn_s)


def _crowd(trial: Trial) -> list[Timed]:
    """Let everybody write at once; all that they did, in the order in which it began."""
    done: list[Timed] = []
    start = threading.Barrier(THREADS)

    def run(writer: Writer) -> None:
        start.wait(JOIN_TIMEOUT_S)
        for _ in range(WRITES_EACH):
            begin_s = time.monotonic()
            attempt = trial.write(writer)
            done.append(Timed(begin_s, time.monotonic(), attempt))

    writers = [Writer(f"owner {number}", 10 + number, f"claim {number}") for number in range(1, THREADS + 1)]
    threads = [
        threading.Thread(target=run, args=(writer,), name=f"leasekeeper-testing-{writer.holder}", daemon=True)
        for writer in writers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_TIMEOUT_S)
    if any(thread.is_alive() for thread in threads):
        raise RuntimeError(f"{THREADS} owners that write at once were not done within {JOIN_TIMEOUT_S:g} s")
    return sorted(done, key=lambda timed: timed.begin_s)


def _judge_crowd(trial: Trial, done: list[Timed]) -> None:
    newest, oldest = 10 + THREADS, 11
    _check_somebody_wrote(trial, done)
    accepted = [timed for timed in done if timed.attempt.outcome == "accepted"]
    for timed in done:
        if timed.attempt.writer.token == newest and timed.attempt.outcome == "refused":
            raise trial.broken(timed.attempt, "must be accepted: nobody newer has written")
    for timed in accepted:
        before = [other for other in accepted if other.end_s < timed.begin_s]
        if any(other.attempt.writer.token > timed.attempt.writer.token for other in before):
            raise trial.broken(timed.attempt, "must be refused: a newer owner's write was done before this one began")
    last = [timed.attempt for timed in accepted if timed.attempt.writer.token == newest]
    if last:
        trial.check_value(last[-1])
        trial.refused(Writer("owner 1", oldest, "claim 1"), "a newer owner has written")
    trial.accepted(Writer(f"owner {THREADS}", newest, f"claim {THREADS}"), "it is the newest owner")


def _check_somebody_wrote(trial: Trial, done: list[Timed]) -> None:
    failed = [timed.attempt for timed in done if timed.attempt.outcome == "failed"]
    if len(failed) == len(done):
        raise trial.broken(failed[0], "every write from a thread of its own failed: nothing was tried at once")
