"""The queue between threads: order, wake-ups, and a wait that ends in time after the process was stopped."""

from __future__ import annotations

import subprocess
import sys
import threading
from queue import Empty

import pytest

from leasekeeper.runtime.mailbox import Mailbox
from tests.process.trees import SRC

_STOPPED_WITH_A_SIGNAL = """
import os, signal, subprocess, threading, time
from queue import Empty
from leasekeeper.runtime.mailbox import Mailbox

signal.signal(signal.SIGUSR1, lambda number, frame: None)
box, waits = Mailbox(), []

def wait():
    while True:
        try:
            box.get(timeout=0.05)
        except Empty:
            waits.append(1)

threading.Thread(target=wait, name="waiter", daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])  # so that the waiter is the one to get it
for _ in range(5):
    me = os.getpid()
    subprocess.run(["sh", "-c", f"kill -STOP {me}; sleep 0.2; kill -USR1 {me}; kill -CONT {me}"])
    before, end_s = len(waits), time.monotonic() + 30
    while len(waits) == before:
        assert time.monotonic() < end_s, "the wait did not end"
        time.sleep(0.01)
"""


def test_a_signal_at_the_end_of_a_stop_does_not_make_a_wait_endless() -> None:
    """A thread whose time ran out while the process was stopped, and which gets a signal first, still returns."""
    env = {"PYTHONPATH": SRC, "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, "-c", _STOPPED_WITH_A_SIGNAL], env=env, check=True, timeout=55)


def test_items_come_in_order_and_an_empty_box_says_so() -> None:
    """First in, first out; nothing there is ``queue.Empty``, with and without waiting."""
    box: Mailbox[int] = Mailbox()
    for item in range(5):
        box.put(item)
    assert [box.get(timeout=1.0) for _ in range(3)] == [0, 1, 2]
    assert [box.get_nowait(), box.get_nowait()] == [3, 4]
    for get in (box.get_nowait, lambda: box.get(timeout=0.0), lambda: box.get(timeout=0.01)):
        with pytest.raises(Empty):
            get()


def test_every_item_reaches_one_of_the_threads_that_wait() -> None:
    """With several threads waiting no item is lost, none comes twice, and none waits while a thread is free."""
    box: Mailbox[int | None] = Mailbox()
    taken: list[int] = []

    def take() -> None:
        while (item := box.get()) is not None:
            taken.append(item)

    threads = [threading.Thread(target=take, name=f"taker-{n}", daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for item in range(10_000):
        box.put(item)
    for _ in threads:
        box.put(None)
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert sorted(taken) == list(range(10_000))
