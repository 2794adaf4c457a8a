"""Failpoints of runs: end, freeze or hold up a program at one exact point of a step, in tests of its own.

A step of a run passes the same points wherever it is done: before each request to etcd (``intent:send``) and after its reply
(``intent:reply``), before each call of the user's (``effect:call``) and after it (``effect:return``). A failpoint is armed on a
keeper, for the runs that are opened through it from then on, or on one `Keeper.run` alone::

    with failpoints.kill_at("effect:return", on=keeper), keeper.run("order", id="o-42") as run:
        run.do("charge", charge, order)  # the charge is made, nobody has recorded it, and this process is gone

Nothing of the program is replaced: the driver of a step tells each point to whoever listens. A request that etcd has carried
out and whose reply never comes lies between two points; that is a fault of the network, for a `FaultProxy`::

    proxy.lose_next_reply(failpoints.record("outcome"), then="kill")

=============  =======================================================================================================
``open``       the run is begun or taken over          ``checkpoint``  a state is read or committed
``look``       what anchors know of it is looked up    ``phase``       a phase is read or moved
``find``       what is recorded of a step is read      ``finish``      the run's end is recorded
``space``      how full etcd is, before an intent      ``raised``      what the effect raised is recorded
``intent``     the intent is recorded                  ``conflict``    that somebody else has applied it is recorded
``before``     the same of a memo                      ``drift``       that it holds no longer is recorded
``outcome``    the outcome is recorded                 ``in_doubt``    that nobody knows is recorded
``pieces``     a large result is put or read           ``alerted``     that somebody was told is recorded
``settle``     a pause before verify is asked again    ``late``        evidence is left without a lease
``note``       what a call had got before it raised    ``resolve``     an operator's word is recorded
=============  =======================================================================================================

These are requests; calls are ``preflight``, ``effect``, ``verify``, ``store`` and ``load`` (of large results), ``anchor``.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from leasekeeper.errors import ConfigError, Misuse
from leasekeeper.protocol.receipt import text_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from leasekeeper.aio import AsyncKeeper
    from leasekeeper.keeper import Keeper
    from leasekeeper.runs.aio import AsyncRunning
    from leasekeeper.runs.run import Running

    On = Keeper | AsyncKeeper | Running | AsyncRunning

__all__ = ["Failpoint", "Pause", "Track", "freeze_at", "kill_at", "names", "pause_at", "raise_at", "record", "track"]

Passing = Callable[[str], None]

REQUESTS = (
    "alerted",
    "before",
    "checkpoint",
    "conflict",
    "drift",
    "find",
    "finish",
    "in_doubt",
    "intent",
    "late",
    "look",
    "note",
    "open",
    "outcome",
    "phase",
    "pieces",
    "raised",
    "resolve",
    "settle",
    "space",
)
CALLS = ("anchor", "effect", "load", "preflight", "store", "verify")
_NAMES = tuple(
    sorted(
        [f"{name}:{side}" for name in REQUESTS for side in ("send", "reply")]
        + [f"{name}:{side}" for name in CALLS for side in ("call", "return")]
    )
)
# Of one `track`: a run may have ten thousand steps.
TRACK_MAX = 200_000


def names() -> tuple[str, ...]:
    """Every point that a run can pass, in order of their names. Which of them it passes depends on its steps."""
    return _NAMES


class _Ears:
    """What is told of the points of a keeper's runs, or of one run's alone: each armed failpoint in turn."""

    def __init__(self, of: object, before: Passing | None) -> None:
        self.of = of
        self.armed: tuple[Passing, ...] = () if before is None else (before,)

    def __call__(self, point: str) -> None:
        for listening in self.armed:
            listening(point)


class Failpoint:
    """What happens the ``nth`` time that a point is passed; once. A context manager, armed inside of it.

    ``struck`` tells whether it has happened. It is told in the thread, or on the loop, that does the step.
    """

    def __init__(self, point: str, act: Callable[[], object], *, on: object, nth: int = 1) -> None:
        if point not in _NAMES:
            raise ConfigError(field="point", value=point, expected=f"one of {', '.join(_NAMES)}")
        if type(nth) is not int or nth < 1:
            raise ConfigError(field="nth", value=nth, expected="a whole number from 1")
        self.point = point
        self.struck = False
        self._left = nth
        self._turn = threading.Lock()
        self._act = act
        self._ears = _ears(on)

    def __enter__(self) -> Self:
        if self._passed in self._ears.armed:
            raise Misuse("this failpoint is armed already")
        self._ears.armed += (self._passed,)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ears.armed = tuple(each for each in self._ears.armed if each != self._passed)

    def _passed(self, point: str) -> None:
        if point != self.point:
            return
        with self._turn:
            self._left -= 1
            due = self._left == 0
        if due:
            self.struck = True
            self._act()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.point} {'struck' if self.struck else 'waits'}>"


def kill_at(point: str, *, on: On, nth: int = 1) -> Failpoint:
    """End this process by SIGKILL, in the middle of its work: no clean-up, no release, no flush.

    Args:
        point: one of `names`.
        on: the keeper whose runs, opened inside of the block, are meant; or what its ``run()`` returned, for that one alone.
        nth: which time it is passed, counted from 1 over all of these runs.

    Raises ConfigError for a point that there is not.
    """
    return Failpoint(point, lambda: os.kill(os.getpid(), signal.SIGKILL), on=on, nth=nth)


def freeze_at(point: str, *, on: On, nth: int = 1) -> Failpoint:
    """Stop this process, heartbeats and all, as a paused machine would, until somebody sends it SIGCONT. See `kill_at`."""
    # To this thread: sent to the process, another thread would take it, and this one go on for some more instructions.
    return Failpoint(point, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGSTOP), on=on, nth=nth)


def raise_at(point: str, error: BaseException, *, on: On, nth: int = 1) -> Failpoint:
    """Raise ``error`` there, as Ctrl-C or a cancelled task may. What was sent before ``…:reply`` has happened. See `kill_at`."""

    def strike() -> None:
        raise error

    return Failpoint(point, strike, on=on, nth=nth)


class Pause(Failpoint):
    """A failpoint that holds up the one who passes, until `go_on` or the end of the block."""

    def __init__(self, point: str, *, on: object, nth: int = 1) -> None:
        self._reached = threading.Event()
        self._resumed = threading.Event()
        super().__init__(point, self._hold, on=on, nth=nth)

    def wait(self, timeout_s: float) -> bool:
        """Wait until somebody is held up there; False when ``timeout_s`` seconds went by first."""
        return self._reached.wait(timeout_s)

    def go_on(self) -> None:
        """Let him pass."""
        self._resumed.set()

    def _hold(self) -> None:
        self._reached.set()
        self._resumed.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self.go_on()


def pause_at(point: str, *, on: On, nth: int = 1) -> Pause:
    """Hold up whoever passes, while heartbeats go on; under asyncio the whole loop. See `Pause` and `kill_at`."""
    return Pause(point, on=on, nth=nth)


class Track:
    """The points that were passed, in order. A context manager, like a failpoint; the first 200,000 are kept."""

    def __init__(self, on: object) -> None:
        self._ears = _ears(on)
        self._passed: list[str] = []

    @property
    def points(self) -> tuple[str, ...]:
        """Those so far."""
        return tuple(self._passed)

    def __enter__(self) -> Self:
        self._ears.armed += (self._note,)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ears.armed = tuple(each for each in self._ears.armed if each != self._note)

    def _note(self, point: str) -> None:
        if len(self._passed) < TRACK_MAX:
            self._passed.append(point)


def track(*, on: On) -> Track:
    """Note which points are passed: to know what there is to kill a program at. ``on`` as for `kill_at`."""
    return Track(on)


def record(kind: str, *, run: str | None = None) -> Callable[[bytes], bool]:
    """Finds the request that records something of this kind (``intent``, ``outcome``, …; `Receipt.kind`), for a `FaultProxy`.

    Args:
        kind: of the record. ``before`` is the intent of a memo.
        run: the id of the run, as given to `Keeper.run`; None: of any.
    """
    parts = [b'"kind":' + text_of(kind).encode()]
    if run is not None:
        parts.append(b'"id":' + text_of(run).encode())
    return lambda message: all(part in message for part in parts)


def _ears(on: Any) -> _Ears:
    passing = getattr(on, "_passing", on)
    if passing is on:
        raise Misuse(f"on={on!r}: expected a keeper, or what its run() returned")
    if not isinstance(passing, _Ears) or passing.of is not on:  # one run's are told to its keeper's as well
        passing = on._passing = _Ears(on, passing)
    return passing
