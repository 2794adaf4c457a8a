"""Functions that have an effect, callable only with a grant for just that call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from leasekeeper.errors import ConfigError, Misuse
from leasekeeper.guards.grant.issuer import Issuer, Owned
from leasekeeper.guards.grant.live import Grant, is_seconds
from leasekeeper.protocol.keys import check_name

__all__ = ["Gated", "requires_grant"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Gated(Protocol[P, R_co]):
    """A function behind `requires_grant`."""

    effect: str

    def __call__(self, grant: Grant, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function, if the grant is live and for this call."""
        ...

    def grant(self, lease: Owned, issuer: Issuer, /, *args: P.args, **kwargs: P.kwargs) -> Grant:
        """A grant for one call with these arguments."""
        ...


def requires_grant(effect: str, *, need: float = 0.0) -> Callable[[Callable[Concatenate[Grant, P], R]], Gated[P, R]]:
    """Make a function, or a coroutine function, that has an effect callable only with a live grant for just that call.

    The function takes the grant as its first argument. The others, by name and with defaults filled in, are what the grant is
    for. Checked right before the body runs (of a coroutine: when it begins, not when it is made); nothing stops the body later.

    Args:
        effect: the name of the effect, which a resource must know too: it outlives a renamed function.
        need: seconds of proven authority that the effect needs.

    Raises:
        Misuse, from the call: there is no grant, or it is for another effect or other arguments.
        LeaseSuspended, LeaseLost, from the call: the grant is live no more; see `Grant.check`.
        Misuse, from here: it is no plain function with a first argument, or a generator, whose body runs at some other time.
        ConfigError, from here: ``effect`` or ``need`` cannot be.
    """
    check_name(effect, "effect")
    if not is_seconds(need):
        raise ConfigError(field="need", value=need, expected="seconds from 0 on")

    def gate(function: Callable[Concatenate[Grant, P], R]) -> Gated[P, R]:
        terms = _Calls(effect, need, _signature(function))
        gated: Any
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def gated(*args: Any, **kwargs: Any) -> Any:
                terms.admit(args, kwargs)
                return await cast("Any", function)(*args, **kwargs)

        else:

            @wraps(function)
            def gated(*args: Any, **kwargs: Any) -> Any:
                terms.admit(args, kwargs)
                return cast("Any", function)(*args, **kwargs)

        gated.effect = effect
        gated.grant = terms.grant
        return cast("Gated[P, R]", gated)

    return gate


@dataclass(frozen=True, slots=True)
class _Calls:
    """What calls of one function are let through."""

    effect: str
    need: float
    signature: inspect.Signature

    def admit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Return if the first argument is a live grant for the others."""
        given = args[0] if args else None
        if not isinstance(given, Grant):
            raise Misuse(f"{self.effect!r} needs a Grant as its first argument, not {type(given).__name__}")
        if given.effect != self.effect:
            raise Misuse(f"{self.effect!r} was called with a grant for {given.effect!r}")
        if not given.covers(self.effect, self._arguments(args, kwargs)):
            raise Misuse(f"{self.effect!r} was called with a grant for other arguments")
        given.check(self.need)

    def grant(self, lease: Owned, issuer: Issuer, /, *args: Any, **kwargs: Any) -> Grant:
        """A grant for one call with these arguments."""
        return issuer.grant(lease, self.effect, self._arguments((None, *args), kwargs), need=self.need)

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, object]:
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(list(bound.arguments.items())[1:])


def _signature(function: object) -> inspect.Signature:
    """The signature of a function whose body runs when it is called or awaited, and that can take a grant first."""
    if (
        not inspect.isfunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise Misuse(f"requires_grant: {function!r} is not a plain function or coroutine function")
    signature = inspect.signature(function)
    first = next(iter(signature.parameters.values()), None)
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise Misuse(f"requires_grant: {function!r} takes no grant as its first argument")
    return signature
