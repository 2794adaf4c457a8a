"""In which order a tree is frozen, continued and killed: with a listing that is made up, and signals that are only noted."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from leasekeeper.cli.tree import grip as grip_module
from leasekeeper.cli.tree import proc
from leasekeeper.cli.tree.grip import Grip
from leasekeeper.cli.tree.proc import Process

STOP, CONT, KILL = signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL


class Forest:
    """Processes as a listing shows them, and what signals do to them."""

    def __init__(self, *processes: tuple[int, int, int]) -> None:
        """Each as pid, parent, group; parents first."""
        self.processes = [Process(pid, parent, group, 1, "S", 1, pid) for pid, parent, group in processes]
        self.log: list[tuple[str, int, int]] = []
        self.born: Callable[[], None] = lambda: None

    def descendants(self, root: int, spare: object) -> list[Process]:
        """The listing."""
        return list(self.processes)

    def read(self, pid: int) -> Process | None:
        """One of them."""
        return next((process for process in self.processes if process.pid == pid), None)

    def send(self, process: Process, number: int) -> bool:
        """To one process."""
        self.log.append(("pid", process.pid, number))
        self._apply(number, lambda other: other.pid == process.pid)
        return True

    def signal_group(self, group: int, number: int) -> bool:
        """To a group."""
        self.log.append(("group", group, number))
        self._apply(number, lambda other: other.group == group)
        return True

    def _apply(self, number: int, chosen: Callable[[Process], bool]) -> None:
        state = {STOP: "T", CONT: "S", KILL: "Z"}[signal.Signals(number)]
        # What sleeps in the kernel (D) keeps its signals until it comes out.
        self.processes = [replace(p, state=state) if chosen(p) and p.state not in "ZD" else p for p in self.processes]
        self.born()

    def order(self, number: int) -> list[int]:
        """The pids in the order in which they got this signal, each once."""
        return list(dict.fromkeys(pid for kind, pid, sent in self.log if kind == "pid" and sent == number))


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Forest]:
    """Puts a forest in the place of /proc and kill()."""

    def planted(*processes: tuple[int, int, int]) -> Forest:
        forest = Forest(*processes)
        monkeypatch.setattr(proc, "descendants", forest.descendants)
        monkeypatch.setattr(proc, "read", forest.read)
        monkeypatch.setattr(proc, "send", forest.send)
        monkeypatch.setattr(proc, "listable", lambda: True)
        monkeypatch.setattr(grip_module, "_signal_group", forest.signal_group)
        return forest

    return planted


# A shell 10 with two jobs, each a group of its own, 20 and 30; 21 is a child in the first one.
JOBS = ((10, 1, 10), (20, 10, 20), (30, 10, 30), (21, 20, 20))


def test_groups_stop_parents_first_and_wait(plant: Callable[..., Forest]) -> None:
    """A group is signalled only when all of its parents' groups stand still, and every process is reached by itself too."""
    forest = plant(*JOBS)
    assert Grip(1).freeze()
    groups = [group for kind, group, _ in forest.log if kind == "group"]
    assert groups[0] == 10
    assert sorted(groups[1:]) == [20, 30]
    assert forest.order(STOP) == [10, 20, 21, 30]
    assert forest.log.index(("pid", 10, STOP)) < forest.log.index(("group", 20, STOP))


def test_children_go_on_first(plant: Callable[..., Forest]) -> None:
    """Continuing goes from the leaves to the root, process by process, so that what the user had stopped is left out."""
    forest = plant(*JOBS)
    forest.processes[2] = replace(forest.processes[2], state="T")
    grip = Grip(1)
    assert grip.freeze()
    forest.log.clear()
    grip.thaw()
    assert forest.order(CONT) == [21, 20, 10]
    assert not [entry for entry in forest.log if entry[0] == "group"]
    assert forest.processes[2].state == "T"


def test_a_stop_that_is_still_pending_is_taken_back(plant: Callable[..., Forest]) -> None:
    """A process that sleeps in the kernel counts as still, and is continued too: its stop would come when it wakes up."""
    forest = plant(*JOBS)
    forest.processes[1] = replace(forest.processes[1], state="D")
    grip = Grip(1)
    assert grip.freeze()
    grip.thaw()
    assert forest.order(CONT) == [21, 30, 20, 10]


def test_a_stop_that_the_user_took_back_is_ours_to_continue(plant: Callable[..., Forest]) -> None:
    """After `resume` of a group its processes go on with the others."""
    forest = plant(*JOBS)
    forest.processes[2] = replace(forest.processes[2], state="T")
    grip = Grip(1)
    assert grip.freeze()
    grip.resume(30)
    grip.thaw()
    assert {process.state for process in forest.processes} == {"S"}


def test_a_frozen_tree_is_killed_from_its_leaves(plant: Callable[..., Forest]) -> None:
    """The death of a parent could continue its stopped children, so they die first."""
    forest = plant(*JOBS)
    grip = Grip(1)
    assert grip.freeze()
    forest.log.clear()
    grip.kill()
    assert forest.log[:4] == [("pid", pid, KILL) for pid in (21, 30, 20, 10)]
    assert grip.empty()


def test_the_groups_of_a_frozen_tree_are_killed_in_the_order_of_the_listing(plant: Callable[..., Forest]) -> None:
    """Parents' groups before their children's, whatever their numbers are."""
    forest = plant((15, 1, 15), (9, 15, 9), (3, 9, 3))
    grip = Grip(1)
    assert grip.freeze()
    forest.log.clear()
    grip.kill()
    assert [group for kind, group, _ in forest.log if kind == "group"] == [15, 9, 3]


def test_a_running_tree_is_killed_by_groups_first(plant: Callable[..., Forest]) -> None:
    """No fork escapes the signal to its whole group, so that comes before those to its members."""
    forest = plant(*JOBS)
    Grip(1).kill()
    for pid, _, group in JOBS:
        assert forest.log.index(("group", group, KILL)) < forest.log.index(("pid", pid, KILL))


@pytest.mark.parametrize(("deed", "number"), [("freeze", STOP), ("kill", KILL)])
def test_a_tree_that_cannot_be_listed_in_time_is_hit_at_once(
    plant: Callable[..., Forest], monkeypatch: pytest.MonkeyPatch, deed: str, number: int
) -> None:
    """The program's group is signalled while the first listing is still under way, however many processes there are."""
    forest = plant(*JOBS)
    groups_before: list[int] = []

    def slowly(root: int, spare: object) -> Iterator[Process]:
        for process in forest.processes:
            time.sleep(2 * grip_module._LIST_S)
            groups_before.extend(group for kind, group, sent in forest.log if (kind, sent) == ("group", number))
            yield process

    monkeypatch.setattr(proc, "descendants", slowly)
    grip = Grip(1)
    grip.leader = 10
    getattr(grip, deed)()
    assert groups_before[0] == 10


def test_those_who_were_stopped_before_a_hasty_freeze_stay_stopped(
    plant: Callable[..., Forest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that the user had stopped is not continued after a freeze that began before the tree was listed."""
    forest = plant(*JOBS)
    forest.processes[2] = replace(forest.processes[2], state="T")
    monkeypatch.setattr(grip_module, "_LIST_S", 0.0)
    grip = Grip(1)
    grip.leader = 10
    assert grip.freeze()
    grip.thaw()
    assert {process.pid: process.state for process in forest.processes} == {10: "S", 20: "S", 30: "T", 21: "S"}


def test_a_newborn_is_stopped_too(plant: Callable[..., Forest]) -> None:
    """A process that appears while the others are stopped is found by the next listing, and only then all stand still."""
    forest = plant(*JOBS)

    def bear() -> None:
        forest.born = lambda: None
        forest.processes.append(Process(22, 20, 22, 22, "R", 1, 22))

    forest.born = bear
    assert Grip(1).freeze()
    assert 22 in forest.order(STOP)
    assert {process.state for process in forest.processes} == {"T"}


def test_what_does_not_stop_is_not_called_frozen(plant: Callable[..., Forest], monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that goes on despite the signal makes the freeze fail, in bounded time."""
    plant(*JOBS)
    monkeypatch.setattr(proc, "send", lambda process, number: False)
    monkeypatch.setattr(grip_module, "_signal_group", lambda group, number: False)
    assert not Grip(1).freeze()


def test_strangers_groups_are_left_alone(plant: Callable[..., Forest], monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of the tree that joined somebody else's group is signalled by itself; the group is not."""
    # 5 is led by a stranger, 6 has lost its leader but is known to be the command's own.
    forest = plant((10, 1, 5), (11, 10, 6), (20, 10, 20))
    stranger = Process(5, 0, 5, 1, "S", 1, 5)
    monkeypatch.setattr(proc, "read", lambda pid: stranger if pid == 5 else forest.read(pid))
    grip = Grip(1, outside=(6,))
    assert grip.freeze()
    grip.kill()
    assert {group for kind, group, _ in forest.log if kind == "group"} == {20}
    assert forest.order(KILL) == [20, 11, 10]


def test_a_crowd_is_stopped_before_it_is_listed(plant: Callable[..., Forest], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the guardian has more dead to bury than time, the program's group is signalled before anything is read."""
    forest = plant(*JOBS)
    before_listing: list[tuple[str, int, int]] = []

    def listing(root: int, spare: object) -> list[Process]:
        before_listing.extend(forest.log)
        return list(forest.processes)

    monkeypatch.setattr(proc, "descendants", listing)
    grip = Grip(1)
    grip.leader = 10
    assert grip.freeze(crowded=True)
    assert before_listing[0] == ("group", 10, STOP)
