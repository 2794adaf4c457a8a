"""Adding and removing observers, and what they are told."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from leasekeeper import Misuse, observe
from leasekeeper.observe.holds import EARLY_MAX, Holds
from leasekeeper.observe.log import log_event
from leasekeeper.runtime.core import observers


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The observers that were there stay."""
    before = list(observers)
    yield
    observers[:] = before


def test_the_log_is_an_observer_from_the_start() -> None:
    """Without anybody's doing events are logged, and whoever does not want that removes the observer."""
    import leasekeeper.keeper  # noqa: F401 - what every keeper's user imports

    assert observers == [log_event]
    observe.remove(log_event)
    assert not observers


def test_adding_twice_is_as_good_as_once() -> None:
    """An observer is told once however often it is added; removing it ends that, and removing it again does nothing."""
    heard: list[observe.Event] = []
    before = list(observers)
    observe.add(heard.append)
    observe.add(heard.append)
    assert len(observers) == len(before) + 1
    observe.remove(heard.append)
    observe.remove(heard.append)
    assert observers == before


def test_only_what_can_be_called_and_not_without_end() -> None:
    """What is no callable is Misuse, and so is the 65th observer."""
    with pytest.raises(Misuse, match="expected something to call"):
        observe.add(None)  # type: ignore[arg-type]
    for _ in range(64 - len(observers)):
        observe.add(lambda event: None)
    with pytest.raises(Misuse, match="more than 64"):
        observe.add(lambda event: None)
    assert len(observers) == 64


def test_threads_that_add_and_remove_lose_nobody() -> None:
    """Eight threads each add an observer and take another one away a thousand times; what should be there is there."""

    def work() -> None:
        kept, passing = (lambda event: None), (lambda event: None)
        for _ in range(500):
            observe.add(passing)
            observe.add(kept)
            observe.remove(passing)

    before = len(observers)
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(observers) == before + 8


def test_a_hold_that_ends_before_it_begins_comes_to_nothing() -> None:
    """An end told first takes the beginning along; memory of such ends has a bound."""
    holds: Holds[int] = Holds()
    assert holds.end("early") is None
    assert not holds.begin("early", 1)
    assert holds.get("early") is None
    assert holds.begin("early", 2)
    assert (holds.get("early"), holds.end("early"), holds.get("early")) == (2, 2, None)
    for number in range(EARLY_MAX + 5):
        holds.end(str(number))
    assert holds.begin("4", 1)
    assert not holds.begin("5", 1)
