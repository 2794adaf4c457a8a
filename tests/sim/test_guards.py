"""Each guard is taken out in turn, and the simulator notices; a guard that nobody misses would be dead weight."""

from __future__ import annotations

import threading

import pytest

from leasekeeper.protocol.authority import passes
from leasekeeper.protocol.queue import acquire
from leasekeeper.testing.sim import GUARDS, Setting, report, run_world, search, shrink
from leasekeeper.testing.sim.resource import Resource
from leasekeeper.testing.sim.without import taken_out

# In so many worlds of the guard's own kind its absence must show.
WORLDS = 300


@pytest.mark.parametrize("name", list(GUARDS))
def test_a_missing_guard_is_missed(name: str) -> None:
    """B30: Without this guard a promise is broken within the bound; with it the same world is clean."""
    tally, found = search(Setting(0), WORLDS, without=name)
    assert found is not None, f"{tally.worlds} worlds without {name!r}, and nobody missed it"
    with_it = run_world(found.setting)
    assert with_it.violation is None, report(with_it)


@pytest.mark.parametrize(
    ("name", "promises"),
    [
        ("fence-equal", {"G4"}),
        ("deadline-from-send", {"G5", "G3"}),
        ("margin", {"G3"}),
        ("own-key", {"G3"}),
        ("first-in-line", {"G1"}),
        ("epoch-compare", {"G2"}),
        ("fork", {"G3"}),
    ],
)
def test_what_a_guard_is_for_is_what_breaks(name: str, promises: set[str]) -> None:
    """The promise that is broken is the one that the guard serves."""
    _, found = search(Setting(0), WORLDS, without=name)
    assert found is not None
    assert found.violation is not None
    assert found.violation.promise in promises


def test_a_guard_is_out_for_one_thread_only() -> None:
    """A real keeper in another thread keeps its guards, and after the block everybody has them again."""
    refused: list[int] = []

    def write_twice() -> None:
        resource = Resource()
        resource.write(7, "mine", 1, "one")
        resource.write(7, "another's", 2, "two")
        refused.append(resource.refused)

    with taken_out(GUARDS["fence-equal"]):
        write_twice()
        other = threading.Thread(target=write_twice)
        other.start()
        other.join(10)
    write_twice()
    assert refused == [0, 1, 1]


def test_nothing_stays_behind() -> None:
    """Whatever stood in a guard's place is gone afterwards, also after an error."""
    before = [(owner, attribute, getattr(owner, attribute)) for g in GUARDS.values() for owner, attribute, _ in g.swaps]
    for guard in GUARDS.values():
        with pytest.raises(KeyError), taken_out(guard):
            raise KeyError
    for owner, attribute, function in before:
        assert getattr(owner, attribute) == function
    assert passes.__module__ == "leasekeeper.protocol.authority"
    assert acquire.__module__.startswith("leasekeeper.protocol")


def test_a_violation_is_shrunk_and_can_be_replayed() -> None:
    """The shrinker leaves fewer faults, the same promise is broken by them, and each of them is needed."""
    _, found = search(Setting(0), WORLDS, without="margin")
    assert found is not None
    assert found.violation is not None
    small = shrink(found, "margin")
    assert small.violation is not None
    assert small.violation.promise == found.violation.promise
    assert 0 < len(small.faults) <= 3 < len(found.faults)
    again = run_world(small.setting, "margin")
    assert str(again.violation) == str(small.violation)
    assert again.story.text() == small.story.text()
    for number in small.setting.only or ():
        fewer = tuple(other for other in small.setting.only or () if other != number)
        without_it = run_world(Setting(small.setting.seed, mix=small.setting.mix, only=fewer), "margin")
        assert without_it.violation is None or without_it.violation.promise != found.violation.promise


def test_shrinking_is_bounded() -> None:
    """With no tries there is nothing to shrink by, and a clean world has nothing to shrink."""
    _, found = search(Setting(0), WORLDS, without="gate-clock")
    assert found is not None
    assert shrink(found, "gate-clock", tries_max=0) is found
    clean = run_world(Setting(0))
    assert shrink(clean) is clean


def test_a_report_tells_all_that_is_needed() -> None:
    """The promise, the faults, who believed what, and the command that shows it again."""
    _, found = search(Setting(0), WORLDS, without="fork")
    assert found is not None
    assert found.violation is not None
    text = report(shrink(found, "fork"), "fork")
    assert str(found.violation.promise) in text
    assert "fork" in text
    assert "owns, token" in text
    assert "Once more: leasekeeper sim --replay " in text
    assert "--without fork" in text
    assert len(text.splitlines()) < 80
