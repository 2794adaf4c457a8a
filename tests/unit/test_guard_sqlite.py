"""The SQLite fence: transactions, errors, and databases of every make."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasekeeper.errors import ConfigError, LeaseSuspended, Misuse, StaleToken
from leasekeeper.guards.sqlite import Fence


class Ticket:
    """A lease as a fence sees it: open, or paused."""

    def __init__(self, token: int, claim: str, holder: str = "", paused: bool = False) -> None:
        self.token = token
        self.claim = claim
        self.holder = holder
        self.paused = paused
        self.needs: list[float] = []

    def check(self, need: float = 0.0) -> int:
        """The token, or what a paused lease says."""
        self.needs.append(need)
        if self.paused:
            raise LeaseSuspended
        return self.token


OLD, NEW = Ticket(7, "old", "replica-1"), Ticket(8, "new", "replica-2")


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    """A database with the fence's table and one of the caller's."""
    one = sqlite3.connect(":memory:")
    Fence.create(one)
    one.execute("CREATE TABLE data (value TEXT)")
    yield one
    one.close()


def values(connection: sqlite3.Connection) -> list[str]:
    """What the caller's table holds."""
    return [value for (value,) in connection.execute("SELECT value FROM data ORDER BY rowid")]


def test_an_older_owner_is_refused_with_its_writes(connection: sqlite3.Connection) -> None:
    """G4: after a newer owner's commit an older one's transaction leaves nothing, and learns who was newer."""
    fence = Fence(connection)
    with connection:
        fence.admit("data", NEW)
        connection.execute("INSERT INTO data VALUES ('new')")
    connection.execute("INSERT INTO data VALUES ('old')")
    with pytest.raises(StaleToken, match=r"'data' refuses token 7: it has accepted token 8 of 'replica-2'"), connection:
        fence.admit("data", OLD)
    assert values(connection) == ["new"]
    with connection:
        fence.admit("data", NEW)
        fence.admit("other data", OLD)


def test_a_rollback_takes_the_memory_back(connection: sqlite3.Connection) -> None:
    """A transaction that failed has admitted nobody, also up to a savepoint."""
    fence = Fence(connection)
    with connection:
        fence.admit("data", OLD)
        connection.execute("SAVEPOINT inner")
        fence.admit("data", NEW)
        connection.execute("ROLLBACK TO inner")
    assert getattr(fence.highest("data"), "token", None) == 7
    fence.admit("data", NEW)
    connection.rollback()
    with connection:
        assert fence.admit("data", OLD) == 7


def test_without_a_transaction_it_refuses(connection: sqlite3.Connection) -> None:
    """On a connection that commits each statement by itself, admit() outside a transaction is Misuse and asks no gate."""
    connection.isolation_level = None
    fence = Fence(connection)
    ticket = Ticket(7, "old")
    with pytest.raises(Misuse, match="BEGIN IMMEDIATE"):
        fence.admit("data", ticket)
    assert not ticket.needs
    assert fence.highest("data") is None
    connection.execute("BEGIN")
    assert fence.admit("data", ticket, need=1.5) == 7
    connection.execute("COMMIT")
    assert ticket.needs == [1.5]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Connection.autocommit came with Python 3.12")
def test_autocommit_of_python_3_12() -> None:
    """autocommit=True commits each statement whatever isolation_level says, so admit() needs a BEGIN there as well."""
    connection = sqlite3.connect(":memory:", autocommit=True, isolation_level="DEFERRED")  # type: ignore[call-overload]
    try:
        Fence.create(connection)
        with pytest.raises(Misuse, match="BEGIN IMMEDIATE"):
            Fence(connection).admit("data", OLD)
        connection.execute("BEGIN")
        assert Fence(connection).admit("data", OLD) == 7
        connection.execute("COMMIT")
    finally:
        connection.close()


def test_a_missing_table_is_named(connection: sqlite3.Connection) -> None:
    """Without its table the fence says how to make it, and opens no transaction."""
    connection.execute("DROP TABLE leasekeeper_fence")
    for ask in (lambda: Fence(connection).admit("data", OLD), lambda: Fence(connection).highest("data")):
        with pytest.raises(Misuse, match=r"Fence\.create"):
            ask()
    assert not connection.in_transaction
    Fence.create(connection)
    Fence.create(connection)
    with connection:
        assert Fence(connection).admit("data", OLD) == 7


@pytest.mark.parametrize("resource", ["", "x" * 256, "a\x00b", None, 5, "\ud800"])
def test_a_resource_has_a_name(connection: sqlite3.Connection, resource: object) -> None:
    """A resource that cannot be a name is a ConfigError before anything is written."""
    with pytest.raises(ConfigError, match="resource"):
        Fence(connection).admit(resource, OLD)  # type: ignore[arg-type]
    assert not connection.in_transaction


def test_a_closed_gate_opens_no_transaction(connection: sqlite3.Connection) -> None:
    """Work that is paused does not even reach the database."""
    with pytest.raises(LeaseSuspended):
        Fence(connection).admit("data", Ticket(9, "c", paused=True))
    assert not connection.in_transaction


def test_the_callers_factories_do_not_matter(connection: sqlite3.Connection) -> None:
    """Connections with a row_factory and text_factory of their own are told the same."""
    connection.row_factory = lambda cursor, row: {"a row": row}
    connection.text_factory = bytes
    fence = Fence(connection)
    with connection:
        fence.admit("data", Ticket(8, "ñ", "Müller"))
    highest = fence.highest("data")
    assert highest is not None
    assert (highest.token, highest.claim, highest.holder) == (8, "ñ", "Müller")
    with pytest.raises(StaleToken) as caught:
        fence.admit("data", OLD)
    assert caught.value.holder == "Müller"
    connection.rollback()


def test_two_owners_at_once_are_put_in_order(tmp_path: Path) -> None:
    """G4: an older owner that asks while the newer one's transaction is open waits for it and is refused then."""
    path = tmp_path / "data.sqlite"
    first, second = (sqlite3.connect(path, timeout=30, check_same_thread=False) for _ in range(2))
    Fence.create(first)
    outcome: list[object] = []

    def older() -> None:
        try:
            outcome.append(Fence(second).admit("data", OLD))
        except StaleToken as error:
            outcome.append(error.highest)
        finally:
            second.rollback()

    thread = threading.Thread(target=older)
    try:
        Fence(first).admit("data", NEW)
        thread.start()
        thread.join(0.1)
        assert not outcome
        first.commit()
        thread.join(30)
        assert outcome == [8]
    finally:
        first.close()
        second.close()
