"""The log of events: each once, at its level, with its facts as attributes; free where nobody listens."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from leasekeeper import Loss, State
from leasekeeper.observe import (
    Acquired,
    AcquireFailed,
    AlertGiven,
    BeatMissed,
    CleanupFailed,
    Dropped,
    Event,
    RecordDelayed,
    Released,
    RunEnded,
    RunOpened,
    RunQuarantined,
    StateChanged,
    StepPassed,
)
from leasekeeper.observe.log import log_event


def delayed(how: str = "waits", in_a_row: int = 1, step: str = "s") -> RecordDelayed:
    """A record that waits."""
    return RecordDelayed("o/1", step, "outcome", how, in_a_row, 6.5, "etcd is out of space", "c1")  # type: ignore[arg-type]


def lost(reason: str) -> StateChanged:
    """A lease that was lost."""
    return StateChanged("a/b", 7, "c1", State.LOST, 10.5, Loss(reason, 100.0, 10.5))  # type: ignore[arg-type]


EVENTS: list[tuple[Event, int, str]] = [
    (Acquired("a/b", 7, "c1", 0.25), logging.INFO, "acquired 'a/b' (token 7) after 0.250 s"),
    (AcquireFailed("a/b", "NotAcquired", 3.0), logging.DEBUG, "did not acquire 'a/b' in 3.000 s: NotAcquired"),
    (Released("a/b", 7, "c1", 9.0, True), logging.INFO, "released 'a/b' (token 7) after 9.000 s"),
    (Released("a/b", 7, "c1", 9.0, False), logging.INFO, "its key is still to be removed"),
    (
        StateChanged("a/b", 7, "c1", State.SUSPENDED, 5.1, None),
        logging.WARNING,
        "suspended, 5.100 s after the last proof",
    ),
    (
        StateChanged("a/b", 7, "c1", State.SUSPENDED, 0.1, None, in_question=True),
        logging.INFO,
        "'a/b' (token 7): its key in etcd is gone",
    ),
    (StateChanged("a/b", 7, "c1", State.HELD, 0.1, None), logging.INFO, "'a/b' (token 7) is proven again"),
    (lost("revoked"), logging.ERROR, "lost 'a/b' (token 7): revoked, 10.500 s after the last proof"),
    (lost("closed"), logging.INFO, "closed"),
    (BeatMissed(0xABC, 1, "h:1", "reset", 2.0), logging.WARNING, "lease abc missed at h:1, 1 in a row, 2.000 s after"),
    (Dropped("a/b", "c1"), logging.WARNING, "'a/b' was dropped without a release"),
    (CleanupFailed("a claim", "etcd is away"), logging.WARNING, "could not remove a claim"),
    (RunOpened("o/1", 7, "c1", "begun", 0), logging.INFO, "run o/1: begun (token 7)"),
    (RunOpened("o/1", 7, "c1", "resumed", 3), logging.INFO, "resumed (token 7), 3 times now without a step done"),
    (RunEnded("o/1", 7, "c1", "in_doubt", 2.0), logging.INFO, "run o/1: in doubt after 2.000 s"),
    (RunQuarantined("o/1", 11), logging.INFO, "run o/1 was put aside: it was begun again 11 times without a step done"),
    (StepPassed("o/1", "s", "do", "called", True), logging.INFO, "run o/1, step 's': called, not for the first time"),
    (StepPassed("o/1", "s", "do", "replayed"), logging.DEBUG, "run o/1, step 's': replayed"),
    (StepPassed("o/1", "s", "do", "done"), logging.DEBUG, "run o/1, step 's': done"),
    (StepPassed("o/1", "s", "do", "halted"), logging.WARNING, "run o/1, step 's': halted"),
    (
        StepPassed("o/1", "s", "do", "halted", why="ann has halted 'o/*', because: stop"),
        logging.WARNING,
        "run o/1, step 's': halted: ann has halted 'o/*', because: stop",
    ),
    (StepPassed("o/1", "s", "do", "drift"), logging.INFO, "run o/1, step 's': drift"),
    (StepPassed("o/1", "s", "do", "drift", accepted=True), logging.WARNING, "run o/1, step 's': drift"),
    (StepPassed("o/1", "s", "do", "in_doubt"), logging.INFO, "run o/1, step 's': in doubt"),
    (AlertGiven("o/1", "s", "drift", True), logging.DEBUG, "run o/1: the alert (drift) was passed on"),
    (AlertGiven("o/1", "s", "drift", False), logging.WARNING, "run o/1: the alert (drift) could not be passed on"),
    (
        delayed(),
        logging.WARNING,
        "run o/1, step 's': its record (outcome) is not written yet, 1 in a row, 6.500 s so far; it is tried again",
    ),
    (
        delayed(in_a_row=3),
        logging.DEBUG,
        "3 in a row, 6.500 s so far; it is tried again while its claim stands: etcd is out",
    ),
    (delayed(step=""), logging.WARNING, "run o/1: its record (outcome) is not written yet"),
    (delayed("recorded", 3), logging.WARNING, "run o/1, step 's': its record (outcome) is written now, after 6.500 s"),
    (delayed("given_up", 3), logging.WARNING, "nobody waits any more for its record (outcome), after 6.500 s"),
]


@pytest.mark.parametrize(("event", "level", "text"), EVENTS, ids=lambda value: type(value).__name__)
def test_every_event_is_logged(caplog: pytest.LogCaptureFixture, event: Event, level: int, text: str) -> None:
    """One record of the logger `leasekeeper` with the level that the event deserves and its facts in the text."""
    with caplog.at_level(logging.DEBUG, "leasekeeper"):
        log_event(event)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("leasekeeper", level)
    assert text in record.getMessage()
    assert record.__dict__["lease_event"] == type(event).__name__


@pytest.mark.parametrize("event", [event for event, _, _ in EVENTS], ids=lambda event: type(event).__name__)
def test_facts_are_attributes_that_json_can_carry(caplog: pytest.LogCaptureFixture, event: Event) -> None:
    """Each field of an event is an attribute of the record, as plain text, number or truth."""
    with caplog.at_level(logging.DEBUG, "leasekeeper"):
        log_event(event)
    facts = {key: value for key, value in caplog.records[0].__dict__.items() if key.startswith("lease_")}
    assert json.loads(json.dumps(facts)) == facts
    for name in type(event).__dataclass_fields__:
        value = getattr(event, name)
        if name == "loss":
            assert facts.get("lease_reason") == (value.reason if value else None)
        else:
            key = name if name == "lease_id" else f"lease_{name}"
            texts = {"lease_id": f"{value:x}" if name == "lease_id" else "", "token": str(value)}
            assert facts.get(key) == texts.get(name, value.value if isinstance(value, State) else value)


def test_numbers_that_json_readers_may_round_are_text(caplog: pytest.LogCaptureFixture) -> None:
    """A token of a raised epoch and an etcd lease id are beyond what a float can tell apart: as attributes they are text."""
    token = (5 << 44) * 2**20 + 1
    with caplog.at_level(logging.DEBUG, "leasekeeper"):
        log_event(Acquired("a/b", token, "c1", 0.25))
        log_event(BeatMissed(2**63 - 1, 1, "h:1", "", 1.0))
    acquired, missed = caplog.records
    assert (acquired.__dict__["lease_token"], missed.__dict__["lease_id"]) == (str(token), "7fffffffffffffff")


def test_an_outage_is_told_again_and_again_but_not_with_every_beat(caplog: pytest.LogCaptureFixture) -> None:
    """C26: missing beats are warned of with their count at the 1st, 2nd, 4th, 8th … in a row."""
    with caplog.at_level(logging.WARNING, "leasekeeper"):
        for number in range(1, 101):
            log_event(BeatMissed(1, number, "h:1", "", 1.0))
    told = [record.__dict__["lease_in_a_row"] for record in caplog.records]
    assert told == [1, 2, 4, 8, 16, 32, 64]


def test_a_full_etcd_is_told_again_and_again_but_not_with_every_try(caplog: pytest.LogCaptureFixture) -> None:
    """A record that waits is warned of at the 1st, 2nd, 4th, 8th … try in a row, and its end is told as loudly."""
    with caplog.at_level(logging.WARNING, "leasekeeper"):
        for number in range(1, 101):
            log_event(delayed(in_a_row=number))
        log_event(delayed("recorded", 100))
    told = [(record.__dict__["lease_how"], record.__dict__["lease_in_a_row"]) for record in caplog.records]
    assert told == [*(("waits", number) for number in (1, 2, 4, 8, 16, 32, 64)), ("recorded", 100)]


def test_nothing_is_made_where_nobody_listens(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A logger that does not want an event's level costs one question: no text and no record is made."""
    monkeypatch.setattr("leasekeeper.observe.log._text", pytest.fail)
    with caplog.at_level(logging.CRITICAL, "leasekeeper"):
        for event, _, _ in EVENTS:
            log_event(event)


def test_the_library_configures_no_logging() -> None:
    """The logger `leasekeeper` has neither a handler nor a level of its own, in a process that only has the library."""
    code = (
        "import logging\n"
        "from leasekeeper import AsyncKeeper, Keeper\n"
        "import leasekeeper.observe\n"
        "logger = logging.getLogger('leasekeeper')\n"
        "assert not logger.handlers and logger.level == logging.NOTSET and logger.propagate\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
