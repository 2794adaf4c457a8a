"""Effects: what a step does to the outside world, and what the outside world offers so that it is done once.

::

    @effect(dedupes=True, key_ttl="24h")
    def charge(step, order):
        return api.charge(order, headers=step.headers(), timeout=step.remaining())

    @charge.preflight
    def charged(step, order):
        found = api.find(order["id"])
        return Observed(found, applied=found is not None, consistency="eventual")

    @charge.verify
    def paid(step, order, result):
        return api.get(result["id"])["status"] == "paid"

What is declared is believed: declare what the callee promises, not what one hopes. Nothing declared is at most once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, overload
from urllib.parse import quote

from leasekeeper.durations import EXPECTED, duration_s
from leasekeeper.errors import ConfigError, Misuse, shown
from leasekeeper.fencing import format_token
from leasekeeper.run_errors import NotSerialisable

if TYPE_CHECKING:
    from leasekeeper.protocol.pointer import Pointer
    from leasekeeper.runs.spool import Spool
    from leasekeeper.runtime.held import Held

__all__ = ["Effect", "Step", "as_effect", "effect", "gives_to_await", "is_awaited", "is_generator"]

SPOOL_EVERY_S = 10.0

F = TypeVar("F", bound=Callable[..., Any])
# What cannot become JSON, however it is filled: an effect that says that it returns one is refused before it is called.
NEVER_JSON = frozenset(
    ("bytes", "bytearray", "memoryview", "set", "frozenset", "complex", "type", "datetime", "Decimal")
)
# What a function says that it returns, if it is to be awaited; other things are called tasks, too.
AWAITED = frozenset(("Awaitable", "Coroutine", "CoroutineType"))
AWAITED_IN_FULL = frozenset(("asyncio.Future", "asyncio.Task"))
NOT_RETURNING = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


class Step:
    """What an effect, a preflight and a verify are told of the step that they serve.

    ``key`` names the step, ``run`` is ``workflow/id``; ``idempotency_key`` is the same in every attempt, after any crash;
    ``token`` is the fencing token; ``attempt`` counts the calls from 1 (0 before the first).
    """

    __slots__ = ("_held", "_keep", "_spool", "attempt", "idempotency_key", "key", "run")

    def __init__(self, held: Held, run: str, key: str, pointer: Pointer, spool: Spool, *, awaits: bool) -> None:
        self._held = held
        self._spool = spool
        self._keep = spool.akeep if awaits else spool.keep
        self.run = run
        self.key = key
        self.idempotency_key = pointer.idem
        self.attempt = pointer.attempts

    @property
    def token(self) -> int:
        """The fencing token of the lease that owns the run."""
        return self._held.token

    def headers(self) -> dict[str, str]:
        """HTTP headers that let the callee see a repeated or outdated request for one.

        ``Idempotency-Key``, ``Fencing-Token`` (19 digits) with ``Fencing-Claim`` (what a resource remembers beside it), and, for
        people, ``Leasekeeper-Step``.
        """
        return {
            "Idempotency-Key": self.idempotency_key,
            "Fencing-Token": format_token(self._held.token),
            "Fencing-Claim": self._held.claim,
            "Leasekeeper-Step": f"{quote(self.run, safe='/%')}/{quote(self.key, safe='')}",
        }

    def remaining(self) -> float:
        """Seconds of proven authority left, 0.0 when there is none: the timeout of a call that must not outlive it."""
        return self._held.remaining()

    def spool(self, partial: object) -> Any:
        """Leave what the call has got so far, text or JSON, as evidence; under asyncio: ``await step.spool(...)``.

        Call it as often as something comes: every ``spool_every`` seconds at most, and 20 times an attempt, the last 4 KiB become
        a note in the run's records, and so does what there is when the call raises. Between that it only remembers the latest.
        It is shown by ``leasekeeper runs explain``, and never used as a result. What goes wrong with it is logged, once.
        """
        return self._keep(partial)

    def __repr__(self) -> str:
        return f"<Step {self.run}/{self.key} attempt={self.attempt}>"


@dataclass(frozen=True, slots=True)
class Help:
    """What the callee offers, and what a call needs; times in seconds."""

    helps: frozenset[str] = frozenset()
    key_ttl_s: float = 0.0
    need_s: float = 0.0
    preflight_max_age_s: float = 5.0
    settle_s: float = 0.0
    drift: Literal["raise", "accept"] = "raise"
    spool_every_s: float = SPOOL_EVERY_S


class Effect:
    """A function that changes the outside world, with what was declared of it. Given to ``run.do``, never called directly."""

    __slots__ = ("_bare", "_help", "_preflight", "_verify", "function", "name")

    def __init__(self, function: Callable[..., Any], help_: Help, *, bare: bool = False) -> None:
        self.function = _doing(function, "effect")
        self.name = _name(function)
        self._help = help_
        self._bare = bare
        self._preflight: Callable[..., Any] | None = None
        self._verify: Callable[..., Any] | None = None

    def preflight(self, function: F) -> F:
        """Register what asks the outside world right before the call: ``(step, *args) -> Observed``.

        It only asks. It is called for every attempt, and again when it has grown old (``preflight_max_age``).
        """
        if self._preflight is not None:
            raise ConfigError(field=f"{self.name}.preflight", value=_name(function), expected="one preflight")
        self._preflight = _doing(function, f"preflight of {self.name}")
        return function

    def verify(self, function: F) -> F:
        """Register the postcondition: ``(step, *args, result) -> bool``; asked after the call, and again on replay."""
        if self._verify is not None:
            raise ConfigError(field=f"{self.name}.verify", value=_name(function), expected="one verify")
        self._verify = _doing(function, f"verify of {self.name}")
        return function

    @property
    def help(self) -> Help:
        """What was declared."""
        return self._help

    def check(self) -> None:
        """ConfigError for a declaration that cannot hold, NotSerialisable for a result that can never be recorded."""
        if "probe" in self._help.helps and self._preflight is None:
            raise ConfigError(field=f"{self.name}.probe", value=True, expected=f"a preflight: @{self.name}.preflight")
        if returns := _never_json(self.function):
            raise NotSerialisable(
                field=f"{self.name}, what it returns", value=returns, expected="a result that is JSON"
            )

    def awaited(self) -> str:
        """Which part of it is a coroutine function, or gives what one does; "" when none is."""
        parts = {"effect": self.function, "preflight": self._preflight, "verify": self._verify}
        return next((name for name, part in parts.items() if part is not None and gives_to_await(part)), "")

    def call(self, args: tuple[Any, ...]) -> Callable[[Step], Any]:
        """The call, for one set of arguments; a bare callable is not told of the step. Misuse where it cannot take so many."""
        function = self.function
        _check_takes(function, len(args) + (not self._bare), self.name)
        if self._bare:
            return lambda step: function(*args)
        return lambda step: function(step, *args)

    def asking(self, args: tuple[Any, ...]) -> Callable[[Step], Any] | None:
        """The preflight, for one set of arguments."""
        preflight = self._preflight
        return None if preflight is None else lambda step: preflight(step, *args)

    def verifying(self, args: tuple[Any, ...]) -> Callable[[Step, Any], Any] | None:
        """The postcondition, for one set of arguments."""
        verify = self._verify
        return None if verify is None else lambda step, result: verify(step, *args, result)

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Refused: outside of a run nothing remembers that it was done."""
        raise Misuse(
            f"{self.name} is an effect: do it by run.do(key, {self.name}, ...); test it by {self.name}.function"
        )

    def __repr__(self) -> str:
        return f"<Effect {self.name} {' '.join(sorted(self._help.helps)) or 'at most once'}>"


@overload
def effect(function: F, /) -> Effect: ...


@overload
def effect(
    *,
    dedupes: bool = False,
    key_ttl: float | str | None = None,
    fences: bool = False,
    probe: bool = False,
    at_most_once: bool = False,
    need: float | str = 0.0,
    preflight_max_age: float | str = 5.0,
    settle: float | str = 0.0,
    drift: Literal["raise", "accept"] = "raise",
    spool_every: float | str = SPOOL_EVERY_S,
) -> Callable[[F], Effect]: ...


def effect(
    function: Callable[..., Any] | None = None,
    /,
    *,
    dedupes: bool = False,
    key_ttl: float | str | None = None,
    fences: bool = False,
    probe: bool = False,
    at_most_once: bool = False,
    need: float | str = 0.0,
    preflight_max_age: float | str = 5.0,
    settle: float | str = 0.0,
    drift: Literal["raise", "accept"] = "raise",
    spool_every: float | str = SPOOL_EVERY_S,
) -> Effect | Callable[[F], Effect]:
    """Declare an effect: a function ``(step, *args) -> JSON``, or a coroutine function for `AsyncKeeper`.

    Args:
        function: for ``@effect`` without arguments.
        dedupes: the callee applies requests with one idempotency key once; needs ``key_ttl``.
        key_ttl: for how long it remembers a key: seconds, or text such as ``"24h"``. An attempt whose outcome is unknown is
            repeated with its key only while that is younger than 0.8 of it.
        fences: the callee refuses a fencing token older than one it has seen. Recorded, for people; what it stops are writes of
            an owner that was frozen.
        probe: the preflight is strongly consistent, so that "not applied" can be believed, and no request of a dead owner is
            still under way.
        at_most_once: never repeat a call whose outcome is unknown, whatever else is known. The default where nothing is
            declared.
        need: seconds of proven authority that a call needs; asked at the gate.
        preflight_max_age: how old, in seconds, what the preflight saw may be when the call is made.
        settle: seconds that a postcondition may take to show after the call.
        drift: what a replay does whose postcondition no longer holds: ``raise`` Drift, or ``accept`` it; it is recorded in either
            case.
        spool_every: seconds between two notes of what a call has got so far; see `Step.spool`.

    Raises:
        ConfigError: declarations that contradict each other, or a time that is none.
    """
    flags = {"dedupes": dedupes, "fences": fences, "probe": probe, "at_most_once": at_most_once}
    helps = frozenset(name for name, is_set in flags.items() if is_set)
    if at_most_once and (dedupes or probe):
        raise ConfigError(field="at_most_once", value=True, expected="neither dedupes nor probe beside it: both repeat")
    key_ttl_s = _key_ttl_s(key_ttl, dedupes=dedupes)
    if drift not in ("raise", "accept"):
        raise ConfigError(field="drift", value=drift, expected="'raise' or 'accept'")
    declared = Help(
        helps,
        key_ttl_s=key_ttl_s,
        need_s=duration_s("need", need),
        preflight_max_age_s=duration_s("preflight_max_age", preflight_max_age),
        settle_s=duration_s("settle", settle),
        drift=drift,
        spool_every_s=duration_s("spool_every", spool_every),
    )
    if function is not None:
        return Effect(function, declared)
    return lambda decorated: Effect(decorated, declared)


def _key_ttl_s(key_ttl: float | str | None, *, dedupes: bool) -> float:
    if not dedupes:
        if key_ttl is None:
            return 0.0
        raise ConfigError(field="key_ttl", value=key_ttl, expected="dedupes=True beside it, or no key_ttl")
    asked = f"for how long the callee remembers an idempotency key, as dedupes needs it: {EXPECTED}"
    if key_ttl is None:
        raise ConfigError(field="key_ttl", value=None, expected=asked)
    if not (found_s := duration_s("key_ttl", key_ttl)):
        raise ConfigError(field="key_ttl", value=key_ttl, expected=f"more than nothing, {asked}")
    return found_s


def as_effect(given: object) -> Effect:
    """An effect as it is, any other callable as one of which nothing is declared; Misuse for what cannot be called."""
    return given if isinstance(given, Effect) else Effect(given, Help(), bare=True)  # type: ignore[arg-type]


def is_awaited(function: Callable[..., Any]) -> bool:
    """Whether it is a coroutine function, or an object that is called like one; also as a partial, or where it says so."""
    if _is_as_its_code_says(function):
        return False
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return True
    returns = _returns(function)
    return returns in AWAITED_IN_FULL or returns.rpartition(".")[2] in AWAITED


def gives_to_await(function: Callable[..., Any]) -> bool:
    """Whether a call of it surely gives something to await, as far as that can be known before it is called."""
    return is_awaited(function) or _only_passes_on(function)


def _only_passes_on(function: Callable[..., Any]) -> bool:
    """Whether a function, a lambda say, knows nothing but one coroutine function: it can pass on what that gives, and no more."""
    if not inspect.isfunction(function) or function.__defaults__ or function.__kwdefaults__:
        return False
    code = function.__code__
    if len(code.co_names) + len(code.co_freevars) != 1 or any(inspect.iscode(const) for const in code.co_consts):
        return False
    try:
        known = (
            function.__closure__[0].cell_contents if function.__closure__ else function.__globals__[code.co_names[0]]
        )
    except (KeyError, ValueError):
        return False  # not there yet, or a built-in
    return inspect.iscoroutinefunction(known)


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether a call of it does nothing, and gives what does it when it is iterated."""
    if _is_as_its_code_says(function):
        return False
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _is_as_its_code_says(function: object) -> bool:
    """Whether it is what most steps are given, a function that returns: told by its code object, since each step asks."""
    return type(function) is FunctionType and not (
        function.__code__.co_flags & NOT_RETURNING or function.__dict__ or function.__annotations__
    )


def _name(function: object) -> str:
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name)[:200]


def _doing(function: F, what: str) -> F:
    """The function, if a call of it does what it is for; else the step would be in doubt, or its answer never a yes."""
    if not callable(function):
        raise Misuse(f"{shown(function)} is no {what}: expected a function")
    if is_generator(function):
        raise Misuse(
            f"{shown(function)} is no {what}: it has yield, so a call does nothing yet; expected a function that returns"
        )
    return function


def _check_takes(function: Callable[..., Any], given: int, name: str) -> None:
    """Misuse for a plain function that cannot be called with so many arguments: found only then, the step would be in doubt.

    By its code object alone: a signature takes longer than the rest of a step. What has none is found out by the call.
    """
    bound = inspect.ismethod(function)
    plain = function.__func__ if inspect.ismethod(function) else function
    if not inspect.isfunction(plain) or plain.__code__.co_flags & inspect.CO_VARARGS:
        return
    most = plain.__code__.co_argcount - bound
    least = most - len(plain.__defaults__ or ())
    if not least <= given <= most:
        takes = f"{most}" if least == most else f"{least} to {most}"
        raise Misuse(f"{name} takes {takes} arguments, with the step if it is an @effect, and is given {given}")


def _never_json(function: Callable[..., Any]) -> str:
    """The kind of result that a function says it returns, if that can never be JSON; else nothing.

    Read as it is written, and not resolved: that takes longer than the rest of a step.
    """
    name = _returns(function)
    return name if name in NEVER_JSON else ""


def _returns(function: Callable[..., Any]) -> str:
    """The name of what a function says it returns, without parameters."""
    returns = getattr(function, "__annotations__", {}).get("return")
    if returns is None:
        return ""
    name = returns if isinstance(returns, str) else getattr(returns, "__name__", "")
    return name.partition("[")[0]
