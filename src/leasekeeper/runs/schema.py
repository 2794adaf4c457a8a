"""Versioned states, as users declare them: a dataclass that says its version, and a function for each step to the next one.

::

    @dataclass(frozen=True)
    class OrderState:
        schema: ClassVar[str] = "order"
        version: ClassVar[int] = 2

        order: str
        paid: str | None
        attempts: int              # since version 2

    @migration(OrderState, from_version=1)
    def count_attempts(data):
        return {**data, "attempts": 0}

What may be declared is said in `leasekeeper.protocol.versions` and `leasekeeper.protocol.state_types`; what becomes of stored
states, in `leasekeeper.protocol.schema`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from leasekeeper.errors import ConfigError
from leasekeeper.protocol.versions import register

__all__ = ["migration"]

F = TypeVar("F", bound=Callable[[dict[str, Any]], dict[str, Any]])


def migration(kind: type, *, from_version: int, to_version: int | None = None) -> Callable[[F], F]:
    """Register the decorated function as the step of a state type from one version to the next.

    The function is given the state as JSON data, a dict of its own, and returns a dict of the other version. It is pure: it
    runs again whenever old data is read, perhaps in several replicas at once, and asks neither the world nor a clock. What
    it raises becomes MigrationFailed, and what is stored stays as it is.

    Args:
        kind: the state type, whose present ``version`` the step leads to or towards.
        from_version: the version that the function takes.
        to_version: the version that it returns: the next one (the default), or, for a step down, the one before. Steps down
            are for writers that are pinned to an older version while programs run that know no newer one.

    Raises:
        ConfigError: a version that the type does not have, a step of more than one version, a second function for a step, or a
            coroutine function.
    """

    def registered(function: F) -> F:
        if inspect.iscoroutinefunction(function):
            raise ConfigError(field="migration", value=function, expected="a plain function: it only computes")
        register(kind, function, from_version, from_version + 1 if to_version is None else to_version)
        return function

    if type(from_version) is not int:
        raise ConfigError(field="from_version", value=from_version, expected="a whole number")
    return registered
