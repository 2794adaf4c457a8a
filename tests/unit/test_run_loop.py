"""The loop of ``run`` step by step, with a tree that only notes its orders and a lease that says what it is told to."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from leasekeeper.cli.inbox import Inbox
from leasekeeper.cli.supervise import EXIT_LOST, Outcome, Supervision
from leasekeeper.cli.tree import messages as m
from leasekeeper.cli.tree.control import Exit, TreeState
from leasekeeper.protocol.authority import State

GRACE_S = 7.0


class NotedTree:
    """Has no processes; what it was asked for is in ``orders``."""

    def __init__(self) -> None:
        self.exit: Exit | None = None
        self.state = TreeState.RUNNING
        self.orders: list[tuple[object, ...]] = []
        self.steps: list[Callable[[], list[m.Message]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *values: self.orders.append((name, *values))

    def pump(self, timeout_s: float, wake_fd: int) -> list[m.Message]:
        """The next step of the story; the program ends well after the last one."""
        if self.steps:
            return self.steps.pop(0)()
        self.exit = Exit(0, killed_by_us=False)
        return []


class ToldLease:
    """A lease whose state and deadlines are set from outside."""

    name, token, key = "n", 1, "k"

    def __init__(self) -> None:
        self.state = State.HELD
        self.times = (10.0, 20.0)
        self.loss: object = None
        self.subscribers = 0

    def deadlines(self) -> tuple[float, float]:
        """As set."""
        return self.times

    def subscribe(self, callback: Callable[[State], object]) -> Callable[[], None]:
        """Counts who listens."""
        self.subscribers += 1

        def end() -> None:
            self.subscribers -= 1

        return end


class Stage:
    """A loop with everything around it."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.tree = NotedTree()
        self.lease = ToldLease()
        self.said: list[str] = []

    def play(self, *steps: Callable[[], object]) -> Outcome:
        """Run the loop; one step is played each time it waits."""

        def step(act: Callable[[], object]) -> Callable[[], list[m.Message]]:
            def played() -> list[m.Message]:
                reports = act()
                return list(reports) if isinstance(reports, list) else []

            return played

        self.tree.steps = [step(act) for act in steps]
        loop = Supervision(self.lease, self.tree, self.inbox, grace_s=GRACE_S, notify=self.said.append)  # type: ignore[arg-type]
        return loop.run()

    def becomes(self, state: State, times: tuple[float, float] | None = None) -> Callable[[], None]:
        """A step: the lease changes."""

        def change() -> None:
            self.lease.state = state
            self.lease.times = times or self.lease.times

        return change

    def freezes(self) -> None:
        """A step: the guardian has said that all stands still."""
        self.tree.state = TreeState.FROZEN

    def ends(self, result: Exit) -> Callable[[], None]:
        """A step: the tree is gone."""

        def end() -> None:
            self.tree.exit = result

        return end

    @staticmethod
    def sends(number: int) -> Callable[[], None]:
        """A step: a signal comes to the command."""
        return lambda: signal.raise_signal(number)


@pytest.fixture
def stage() -> Stage:
    """A loop that nobody has started; its inbox is open only while it runs."""
    return Stage(Inbox())


def played(stage: Stage, *steps: Callable[[], object]) -> list[tuple[object, ...]]:
    """What the tree was asked for, the order that the loop begins with left out."""
    with stage.inbox:
        stage.play(*steps)
    first, *rest = stage.tree.orders
    assert first == ("good", 10.0, 20.0)
    return rest


def test_authority_is_told_when_it_is_news(stage: Stage) -> None:
    """Deadlines go to the guardian once each, as soon as they are newer."""
    wait = stage.becomes(State.HELD)
    later = stage.becomes(State.HELD, (12.0, 22.0))
    assert played(stage, wait, wait, later, wait) == [("good", 12.0, 22.0)]


def test_suspended_holds_once_and_held_is_news_again(stage: Stage) -> None:
    """One hold for a suspension; when the lease is HELD again the guardian is told, even with deadlines it knows."""
    suspended, held = stage.becomes(State.SUSPENDED), stage.becomes(State.HELD)
    assert played(stage, suspended, suspended, held, held) == [("hold",), ("good", 10.0, 20.0)]
    assert [text.partition(";")[0] for text in stage.said] == ["n: SUSPENDED", "n: HELD again"]


@pytest.mark.parametrize("final", [State.LOST, State.RELEASED])
def test_the_end_of_the_lease_is_told_once(stage: Stage, final: State) -> None:
    """LOST or given back: the tree is killed, and nothing continues it any more."""
    stage.lease.loss = SimpleNamespace(reason="revoked")
    assert played(stage, stage.becomes(final), stage.becomes(final)) == [("end",)]
    assert stage.said == ["n: LOST (revoked); the program is killed"]


def test_a_lease_without_authority_gives_none(stage: Stage) -> None:
    """A lease that has lost its authority between two looks gives deadlines in the distant past; they are passed on."""
    assert played(stage, stage.becomes(State.HELD, (-math.inf, -math.inf)), stage.becomes(State.HELD)) == [
        ("good", -math.inf, -math.inf)
    ]


def test_term_asks_once_with_a_grace(stage: Stage) -> None:
    """C03: the first TERM starts the grace time, later ones are only passed on and do not lengthen it."""
    term = stage.sends(signal.SIGTERM)
    assert played(stage, term, term, term) == [("stop", GRACE_S), ("signal", 15), ("signal", 15)]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGWINCH])
def test_other_signals_are_passed_on(stage: Stage, number: int) -> None:
    """They mean what the program makes of them; none starts a grace time."""
    assert played(stage, stage.sends(number), stage.sends(number)) == [("signal", number)] * 2


def test_the_second_interrupt_of_a_frozen_program_kills(stage: Stage) -> None:
    """The first one waits for the program, and a person is told so; the second one ends it at once."""
    interrupt = stage.sends(signal.SIGINT)
    orders = played(stage, stage.becomes(State.SUSPENDED), stage.freezes, interrupt, interrupt)
    assert orders == [("hold",), ("signal", 2), ("stop", 0.0, 2)]
    assert "interrupt again" in stage.said[1]


def test_interrupts_are_counted_for_one_suspension(stage: Stage) -> None:
    """An interrupt in an earlier suspension does not make the first of the next one deadly."""
    interrupt, suspended = stage.sends(signal.SIGINT), stage.becomes(State.SUSPENDED)
    steps = (suspended, stage.freezes, interrupt, stage.becomes(State.HELD), suspended, interrupt)
    assert ("stop", 0.0, 2) not in played(stage, *steps)


@pytest.mark.parametrize(
    ("state", "result", "status", "lost"),
    [
        (State.HELD, Exit(0, killed_by_us=False), 0, False),
        (State.HELD, Exit(3, killed_by_us=False), 3, False),
        (State.HELD, Exit(137, killed_by_us=True), 137, False),
        (State.SUSPENDED, Exit(0, killed_by_us=False), 0, False),
        (State.LOST, Exit(0, killed_by_us=False), EXIT_LOST, True),
        (State.LOST, Exit(137, killed_by_us=True), EXIT_LOST, True),
        (State.LOST, Exit(3, killed_by_us=False), 3, True),
    ],
)
def test_the_exit_code(stage: Stage, state: State, result: Exit, status: int, lost: bool) -> None:
    """C15: a loss hides behind no success, and no failure of the program's own behind a loss."""

    def both() -> None:
        stage.lease.state = state
        stage.tree.exit = result

    with stage.inbox:
        assert stage.play(both) == Outcome(status, result, lost)


def test_nothing_is_left_behind(stage: Stage) -> None:
    """After the loop nobody listens to the lease, and signals do what they did before."""
    before = signal.getsignal(signal.SIGTERM)
    played(stage, stage.becomes(State.HELD))
    assert stage.lease.subscribers == 0
    assert signal.getsignal(signal.SIGTERM) is before
    stage.inbox.wake()  # a late call does no harm


def test_what_is_ignored_stays_ignored(stage: Stage) -> None:
    """A signal that this process was started with ignored, as under nohup, is not caught and not passed on."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert played(stage, stage.sends(signal.SIGHUP)) == []
    finally:
        signal.signal(signal.SIGHUP, before)
