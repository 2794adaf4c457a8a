"""Saying `async with` to whoever wrote `with` at a lease, and the other way round: Python itself only says that it does not work.

Type checkers do not see these methods, so they find the mistake before it is run. Keepers and leases have none of them: programs
may look which of the two kinds an object is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from leasekeeper.errors import Misuse

__all__ = ["EnteredAsync", "EnteredPlain"]


class EnteredPlain:
    """What `with` enters."""

    __slots__ = ()

    if not TYPE_CHECKING:

        async def __aenter__(self) -> NoReturn:
            raise Misuse("what a Keeper gives belongs to threads: use 'with', or an AsyncKeeper")

        async def __aexit__(self, *_: object) -> None:
            """Never reached; Python looks for it before it enters."""


class EnteredAsync:
    """What `async with` enters."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise Misuse("what an AsyncKeeper gives belongs to asyncio: use 'async with', or a Keeper")

        def __exit__(self, *_: object) -> None:
            """Never reached; Python looks for it before it enters."""
