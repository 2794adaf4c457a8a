"""The control socket's messages and the guardian's gate: pure, without a process."""

from __future__ import annotations

import math

import pytest

from leasekeeper.cli.tree import messages as m
from leasekeeper.cli.tree import proc
from leasekeeper.cli.tree.gate import Gate

START = m.Start(
    argv=("sh", "-c", "echo \udcff\n\0"),
    env={"A": "b\udc80", "": "=", "LONG": "x" * 100_000},
    pause_at_s=1.5,
    end_at_s=math.inf,
    grace_s=0.1,
    ignored=(1, 2),
    blocked=(),
    home=77,
    lend=True,
)
EVERY_MESSAGE = [
    START,
    m.Good(0.1 + 0.2, 1e9),
    m.Hold(),
    m.End(),
    m.Stop(2.5, 15),
    m.Signal(1),
    m.Resume(),
    m.Guarding(1),
    m.Started(2),
    m.Failed(127, "sh: command not found"),
    m.Frozen(),
    m.Running(),
    m.Stopped(20),
    m.Resumed(),
    m.Exited(0, False),
    m.Ending(),
    m.Gone(137, True),
    m.Broken("MemoryError: "),
]


@pytest.mark.parametrize("message", EVERY_MESSAGE, ids=lambda message: type(message).__name__)
def test_every_message_survives(message: m.Message) -> None:
    """A message is one line, and what comes out is what went in, to the last bit of a deadline and byte of an argument."""
    line = m.encode(message)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert m.Decoder().feed(line) == [message]


def test_every_kind_is_tried() -> None:
    """The list above misses no message."""
    assert {type(message) for message in EVERY_MESSAGE} == set(m.Message.__args__)


@pytest.mark.parametrize("line", [b"", b"[]", b'["Nonsense"]', b'["Good", 1.0]', b'["Hold", 1]', b"{}", b"\xff", b"7"])
def test_nonsense_is_refused(line: bytes) -> None:
    """A line that is no message is a ValueError, never taken for an order."""
    with pytest.raises(ValueError, match="message"):
        m.Decoder().feed(line + b"\n")


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of an incomplete message has a bound."""
    monkeypatch.setattr(m, "LINE_BYTES_MAX", 10)
    decoder = m.Decoder()
    assert decoder.feed(b"x" * 10) == []
    with pytest.raises(ValueError, match="longer than 10 bytes"):
        decoder.feed(b"x")


def test_the_gate_is_a_matter_of_the_clock() -> None:
    """G3: open before pause_at, shut from then on, without anything having to happen."""
    gate = Gate(10.0, 20.0)
    assert not gate.shut(9.999)
    assert gate.shut(10.0)
    assert not gate.over(19.999)
    assert gate.over(20.0)


def test_a_hold_lasts_until_newer_authority() -> None:
    """G5: a hold shuts the gate whatever the clock says; only `good` opens it, and only if it is not past itself."""
    gate = Gate(10.0, 20.0)
    gate.hold()
    assert gate.shut(0.0)
    gate.good(11.0, 20.0)
    assert not gate.shut(10.5)
    assert gate.shut(11.0)


def test_deadlines_in_the_wrong_order_are_refused() -> None:
    """The pause comes before the end, and both are numbers."""
    for pause_at_s, end_at_s in [(2.0, 1.0), (math.nan, 1.0), (1.0, math.nan)]:
        with pytest.raises(ValueError, match="pause_at_s"):
            Gate(0.0, 0.0).good(pause_at_s, end_at_s)


def test_a_command_name_can_be_anything() -> None:
    """Blanks and parentheses in a process's name do not shift the fields after it."""
    numbers = "S 2 3 4 0 -1 4194560 100 0 0 0 1 1 0 0 20 0 5 0 987654 100 100"
    for name in ("sh", "a b", ") R 1 (", "((", ""):
        process = proc.parse(f"1 ({name}) {numbers}\n")
        assert process == proc.Process(pid=1, parent=2, group=3, session=4, state="S", threads=5, start=987654)


@pytest.mark.parametrize(("state", "alive", "stopped"), [("R", True, False), ("T", True, True), ("Z", False, False)])
def test_what_a_state_means(state: str, alive: bool, stopped: bool) -> None:
    """Stopped processes are alive, zombies are not."""
    process = proc.Process(1, 2, 3, 4, state, 1, 5)
    assert (process.alive, process.stopped) == (alive, stopped)
