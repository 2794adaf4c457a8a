"""Each guard of runs is taken out in turn, and the simulator notices; a guard that nobody misses would be dead weight."""

from __future__ import annotations

import pytest

from leasekeeper.testing.sim import GUARDS, RUN_GUARDS, Setting, report, run_world, search, shrink
from leasekeeper.testing.sim.without import taken_out

# In so many worlds of the guard's own kind its absence must show.
WORLDS = 300
FIRST = Setting(0, workload="runs")
PROMISES = {
    "run-fence": {"fence", "records"},
    "run-head": {"records"},
    "run-epoch": {"fence"},
    "run-halt": {"halt"},
    "create-only": {"records"},
    "run-gate": {"gate"},
    "preflight": {"preflight"},
    "preflight-age": {"preflight"},
    "verify": {"results"},
    "one-key": {"one key"},
    "doubt": {"at most once", "doubt"},
    "key-age": {"at most once"},
    "arguments": {"arguments"},
    "read-back": {"records", "doubt"},
    "open-steps": {"results"},
}
# These show within a world or a few; the others in some tens.
SOON = ("run-halt", "create-only", "preflight", "verify", "arguments", "open-steps")


@pytest.mark.parametrize(
    "name", [name if name in SOON else pytest.param(name, marks=pytest.mark.slow) for name in RUN_GUARDS]
)
@pytest.mark.timeout(600)
def test_a_missing_guard_is_missed(name: str) -> None:
    """B30: Without this guard just the promise that it serves is broken within the bound; with it the same world is clean."""
    tally, found = search(FIRST, WORLDS, without=name)
    assert found is not None, f"{tally.worlds} worlds without {name!r}, and nobody missed it"
    assert found.violation is not None
    assert found.violation.promise in PROMISES[name], report(found, name)
    with_it = run_world(found.setting)
    assert with_it.violation is None, report(with_it)


def test_every_guard_has_a_name_of_its_own_and_something_to_stand_for() -> None:
    """No guard of runs is named as one of leases is, and each says what it is for."""
    assert set(PROMISES) == set(RUN_GUARDS)
    assert not set(GUARDS) & set(RUN_GUARDS)
    assert all(guard.what and guard.swaps for guard in RUN_GUARDS.values())


def test_nothing_stays_behind() -> None:
    """Whatever stood in a guard's place is gone afterwards, also after an error."""
    swaps = [swap for guard in RUN_GUARDS.values() for swap in guard.swaps]
    before = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in swaps]
    for guard in RUN_GUARDS.values():
        with pytest.raises(KeyError), taken_out(guard):
            raise KeyError
    assert all(getattr(owner, attribute) is function for owner, attribute, function in before)


def test_a_violation_is_shrunk_and_can_be_replayed() -> None:
    """B30: the shrinker leaves the halt alone, the same promise is broken by it, and the report tells the whole."""
    _, found = search(FIRST, WORLDS, without="run-halt")
    assert found is not None
    assert found.violation is not None
    small = shrink(found, "run-halt")
    assert small.violation is not None
    assert small.violation.promise == found.violation.promise
    assert [fault.name for fault in small.faults] == ["halt"]
    again = run_world(small.setting, "run-halt")
    assert str(again.violation) == str(small.violation)
    text = report(small, "run-halt")
    assert "is halted" in text
    assert "--workload runs --mix operators --without run-halt" in text
    assert len(text.splitlines()) < 80
