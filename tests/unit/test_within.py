"""Calls that may hang: their caller waits no longer than was said, and there is a bound on how many hang at once."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from leasekeeper.errors import ConfigError, Unavailable
from leasekeeper.runs.within import CALLS_MAX, Within
from tests.process.trees import SRC
from tests.support import until


class Stuck:
    """A call that hangs until the test lets it go."""

    def __init__(self) -> None:
        self.begun = 0
        self.go_on = threading.Event()

    def __call__(self) -> str:
        """Hang."""
        self.begun += 1
        self.go_on.wait(60)
        return "late"


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    """A call that hangs as long as the test lasts."""
    call = Stuck()
    yield call
    call.go_on.set()


def outside() -> list[threading.Thread]:
    """The threads that calls are made on."""
    return [thread for thread in threading.enumerate() if thread.name == "leasekeeper-outside"]


def test_results_and_errors_come_out() -> None:
    """What the call returns is returned, and what it raises is raised, whatever kind of error it is."""
    within = Within(30.0, "the disk")
    assert within("read", lambda: b"data") == b"data"
    for error in (OSError("broken"), KeyError("k"), SystemExit(3)):

        def fail(error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)) as raised:
            within("read", fail)
        assert raised.value is error
    until(lambda: not outside())


def test_a_call_that_hangs_is_unavailable_for_its_caller(stuck: Stuck) -> None:
    """The caller is told in time what hangs and where, and the next call is made as if nothing were."""
    within = Within(0.05, "the disk")
    with pytest.raises(Unavailable, match=r"the disk: flush: no end within 0\.05 s") as late:
        within("flush", stuck)
    assert late.value.operation == "flush"
    assert Within(30.0, "the disk")("read", lambda: 7) == 7


def test_no_more_than_a_few_hang_at_once(stuck: Stuck) -> None:
    """When the bound is reached no further call is begun; when they come back, calls are made again."""
    within = Within(0.05, "the disk")
    for _ in range(CALLS_MAX):
        with pytest.raises(Unavailable, match="no end within"):
            within("flush", stuck)
    until(lambda: stuck.begun == CALLS_MAX)
    begun: list[int] = []
    with pytest.raises(Unavailable, match=f"{CALLS_MAX} earlier calls hang"):
        within("flush", lambda: begun.append(1))
    assert (stuck.begun, begun) == (CALLS_MAX, [])
    stuck.go_on.set()
    until(lambda: not outside())
    within.timeout_s = 30.0
    assert [within("read", lambda: 7) for _ in range(3 * CALLS_MAX)] == [7] * (3 * CALLS_MAX)


FORK_WITH_CALLS_THAT_HANG = """
import os, threading
from leasekeeper.errors import Unavailable
from leasekeeper.runs.within import CALLS_MAX, Within

within, never = Within(0.05, "the disk"), threading.Event()
for _ in range(CALLS_MAX):
    try:
        within("flush", never.wait)
    except Unavailable:
        pass
within.timeout_s = 30.0
pid = os.fork()
if pid == 0:
    os._exit(7 if within("read", lambda: True) else 1)
os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_forked_child_has_permits_of_its_own() -> None:
    """What hung in the parent hangs nobody in the child, where the threads that would come back do not exist."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK_WITH_CALLS_THAT_HANG]
    done = subprocess.run(command, check=False, env={"PYTHONPATH": SRC}, capture_output=True, timeout=55, text=True)
    assert done.returncode == 7, done.stderr


@pytest.mark.parametrize("timeout_s", [0, -1.0, math.inf, math.nan, 1e9])
def test_a_bound_that_is_none(timeout_s: float) -> None:
    """A time limit that does not limit is refused and named."""
    with pytest.raises(ConfigError, match="timeout_s"):
        Within(timeout_s, "the disk")
