"""Where there is no /proc the tree is the program's process group: the same deeds by the group alone."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from leasekeeper.cli.tree import proc
from leasekeeper.cli.tree.grip import Grip
from leasekeeper.cli.tree.kernel import Alarm
from leasekeeper.clock import boottime
from tests.process.trees import all_in_state, members, none_left, settle
from tests.support import until


@pytest.fixture
def group(mark: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Grip]:
    """A grip that cannot list processes, on a shell with two children in a group of its own."""
    monkeypatch.setattr(proc, "listable", lambda: False)
    monkeypatch.setattr(proc, "descendants", lambda root, spare: [])
    script = "trap : HUP; sleep 3600 & sleep 3600 & while :; do wait; done"
    program = subprocess.Popen(["sh", "-c", script], start_new_session=True)
    grip = Grip(os.getpid(), outside=(os.getpgrp(),))
    grip.program = program.pid
    settle(mark, 3)
    yield grip
    os.killpg(program.pid, signal.SIGKILL)
    program.wait()
    until(lambda: none_left(mark))


def test_the_group_is_frozen_continued_and_killed(group: Grip, mark: str) -> None:
    """Freeze, continue, tell and kill reach every process of the group; it is empty only after the kill."""
    for _ in range(2):
        assert group.freeze()
        until(lambda: all_in_state(mark, "T"))
        group.thaw()
        until(lambda: all_in_state(mark, "SR"))
    group.tell(signal.SIGHUP)
    settle(mark, 1)  # the shell does not mind
    assert not group.empty()
    group.kill()
    until(lambda: not members(mark))


def test_an_alarm_without_a_timer_descriptor_is_a_short_wait() -> None:
    """Without a timer on CLOCK_BOOTTIME the wait is cut in pieces, so that a sleep of the system is noticed soon."""
    alarm = Alarm()
    alarm.close()
    now_s = boottime()
    alarm.set(now_s + 3600.0)
    assert alarm.timeout_ms(now_s) == pytest.approx(100.0)
    alarm.set(now_s + 0.05)
    assert alarm.timeout_ms(now_s) == pytest.approx(50.0)
    alarm.set(now_s - 1.0)
    assert alarm.timeout_ms(now_s) == 0.0
    alarm.clear()


def test_an_alarm_fires_at_its_time_also_a_past_one() -> None:
    """The timer descriptor becomes readable at its time; a time that is past, or zero, fires at once and never disarms."""
    import select

    alarm = Alarm()
    if alarm.fd < 0:
        pytest.skip("no timer descriptor on this platform")
    try:
        for at_s in (0.0, -5.0, boottime(), boottime() + 0.05):
            alarm.set(at_s)
            assert alarm.timeout_ms(boottime()) is None
            assert select.select([alarm.fd], [], [], 30.0)[0]
            assert boottime() >= at_s
            alarm.clear()
            assert not select.select([alarm.fd], [], [], 0)[0]
    finally:
        alarm.close()
