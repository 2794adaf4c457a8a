"""The SQLite fence and the pure rule: the same answer for every history."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekeeper.errors import StaleToken
from leasekeeper.fencing import TOKEN_MAX, Admitted, admits
from leasekeeper.guards.sqlite import Fence


@dataclass(frozen=True)
class Ticket:
    """What a fence sees of a lease whose gate is open."""

    token: int
    claim: str
    holder: str = "somebody"

    def check(self, need: float = 0.0) -> int:
        """The token."""
        return self.token


def explicit(connection: sqlite3.Connection) -> None:
    """For connections that begin no transaction by themselves."""
    connection.execute("BEGIN IMMEDIATE")


def nothing(connection: sqlite3.Connection) -> None:
    """For connections that do."""


def end(connection: sqlite3.Connection, word: str) -> None:
    """COMMIT or ROLLBACK: spelled out where autocommit=True, because the methods of these names do nothing there."""
    if getattr(connection, "autocommit", False) is True and connection.in_transaction:
        connection.execute(word)
    else:
        getattr(connection, word.lower())()


Begin = Callable[[sqlite3.Connection], None]
MODES: list[tuple[dict[str, object], Begin]] = [
    ({}, nothing),
    ({"isolation_level": "EXCLUSIVE"}, nothing),
    ({"isolation_level": None}, explicit),
]
if sys.version_info >= (3, 12):
    MODES += [({"autocommit": False}, nothing), ({"autocommit": True}, explicit)]

tokens = st.one_of(st.integers(1, 4), st.sampled_from([2**44 - 1, 2**44, 2**53 + 1, TOKEN_MAX - 1, TOKEN_MAX]))
claims = st.sampled_from(["", "a", "b", "ä", "A"])
attempts = st.tuples(st.sampled_from(["r", "s"]), tokens, claims, st.booleans())


@pytest.mark.parametrize(("options", "begin"), MODES, ids=lambda value: repr(value) if isinstance(value, dict) else "")
@given(history=st.lists(attempts, max_size=12))
def test_the_statement_is_the_rule(
    options: dict[str, object], begin: Begin, history: list[tuple[str, int, str, bool]]
) -> None:
    """G4: after any history of commits and rollbacks, the fence admits exactly what `admits` does and remembers the same."""
    connection = sqlite3.connect(":memory:", **options)  # type: ignore[call-overload]
    try:
        Fence.create(connection)
        end(connection, "COMMIT")
        fence = Fence(connection)
        model: dict[str, Admitted] = {}
        for resource, token, claim, keep in history:
            begin(connection)
            ticket = Ticket(token, claim, f"holder of {claim}")
            accepted = admits(model.get(resource), token, claim)
            if accepted:
                assert fence.admit(resource, ticket) == token
            else:
                with pytest.raises(StaleToken) as caught:
                    fence.admit(resource, ticket)
                told = Admitted(caught.value.highest, model[resource].claim, caught.value.holder)
                assert (caught.value.token, told) == (token, model[resource])
            if keep:
                end(connection, "COMMIT")
                if accepted:
                    model[resource] = Admitted(token, claim, ticket.holder)
            else:
                end(connection, "ROLLBACK")
            assert fence.highest(resource) == model.get(resource)
    finally:
        connection.close()


@given(highest=st.none() | st.builds(Admitted, tokens, claims), token=tokens, claim=claims)
def test_the_rule_accepts_newer_owners_and_the_same_one(highest: Admitted | None, token: int, claim: str) -> None:
    """G4: a larger token passes, a smaller one never, and the same number only from the very claim that it was given to."""
    accepted = admits(highest, token, claim)
    if highest is None:
        assert accepted
    elif token != highest.token:
        assert accepted == (token > highest.token)
    else:
        assert accepted == (claim == highest.claim)
