"""What Ctrl-C leaves taken in grpc's locks is given back."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from leasekeeper.wire.interruption import spared


def struck_inside(condition: threading.Condition) -> Callable[[], None]:
    """A call that takes the condition and is struck before it can know that it has."""

    def strike(frame: Any, event: str, _: object) -> Any:
        if frame.f_code is threading.Condition.__enter__.__code__:
            frame.f_trace_opcodes = True
            if event == "opcode" and frame.f_code.co_code[frame.f_lasti] == dis.opmap["RETURN_VALUE"]:
                raise KeyboardInterrupt
        return strike

    def call() -> None:
        before = sys.gettrace()
        sys.settrace(strike)
        try:
            with condition:
                raise AssertionError("never")
        finally:
            sys.settrace(before)

    return call


def free(condition: threading.Condition) -> bool:
    """Whether another thread can take it."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(condition.acquire(blocking=False)))
    thread.start()
    thread.join(10.0)
    return found == [True]


def test_a_call_that_ctrl_c_strikes_leaves_no_lock_taken() -> None:
    """C10: Ctrl-C in the midst of a call comes out of it, and the condition that it had just taken is free for others."""
    condition = threading.Condition()
    with pytest.raises(KeyboardInterrupt):
        spared(struck_inside(condition))
    assert free(condition)


def test_without_that_it_would_stay_taken() -> None:
    """The danger is real in this Python."""
    condition = threading.Condition()
    with pytest.raises(KeyboardInterrupt):
        struck_inside(condition)()
    assert not free(condition)


@pytest.mark.parametrize("answer", [5, None])
def test_a_call_that_goes_well_is_left_alone(answer: object) -> None:
    """Its result comes back."""
    assert spared(lambda: answer) is answer
