"""A guard for data in SQLite: a table beside the data remembers the highest token of each resource.

::

    fence = Fence(connection)
    with connection:                        # one transaction
        fence.admit("accounts", lease)      # raises StaleToken and leaves nothing behind, or remembers this owner
        connection.execute("UPDATE accounts SET ...")

One statement both decides and remembers, and it takes SQLite's write lock, so no other transaction can come between the
decision and the caller's commit. A rollback takes the memory back with the data.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from leasekeeper.errors import Misuse
from leasekeeper.fencing import Admitted
from leasekeeper.guards import refused
from leasekeeper.protocol.keys import check_name

if TYPE_CHECKING:
    from leasekeeper.guards import Bearer

__all__ = ["Fence"]

# A token is a positive 64-bit integer, which is just what SQLite's INTEGER holds.
SCHEMA = """
CREATE TABLE IF NOT EXISTS leasekeeper_fence (
    resource TEXT PRIMARY KEY NOT NULL,
    token INTEGER NOT NULL CHECK (token > 0),
    claim TEXT NOT NULL,
    holder TEXT NOT NULL
)
"""

# The fence rule of leasekeeper.fencing.admits. No row is changed when it refuses.
ADMIT = """INSERT INTO leasekeeper_fence (resource, token, claim, holder) VALUES (?, ?, ?, ?)
ON CONFLICT (resource) DO UPDATE SET token = excluded.token, claim = excluded.claim, holder = excluded.holder
WHERE excluded.token > leasekeeper_fence.token
   OR (excluded.token = leasekeeper_fence.token AND excluded.claim = leasekeeper_fence.claim)"""

HIGHEST = "SELECT token, claim, holder FROM leasekeeper_fence WHERE resource = ?"


class Fence:
    """The fence rule in one SQLite database. Needs SQLite 3.24 (2018) or later and the table that `create` makes.

    Works with every ``isolation_level`` and ``autocommit`` of `sqlite3`, as long as the caller's writes are in one
    transaction with `admit`. Where statements are committed by themselves (``isolation_level=None``, ``autocommit=True``) BEGIN
    and COMMIT must be executed; ``with connection:`` does neither there. Usable wherever its connection is.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @staticmethod
    def create(connection: sqlite3.Connection) -> None:
        """Make the table ``leasekeeper_fence`` where it is missing, in the caller's transaction if there is one."""
        connection.execute(SCHEMA)

    def admit(self, resource: str, lease: Bearer, *, need: float = 0.0) -> int:
        """Let this transaction write to ``resource`` as the lease's owner: the token.

        Guarantees that no older owner's transaction can be admitted after this one was committed. What is not guarded is
        whatever the transaction does to anything but this database.

        Args:
            resource: what is guarded; 1 to 255 characters. Give one name to all writes that must follow one owner.
            lease: asked at its gate.
            need: seconds of proven authority that the transaction needs.

        Raises:
            StaleToken: the resource has accepted a newer owner; says which. Roll back.
            LeaseSuspended, LeaseLost: the gate does not let work through.
            Misuse: there is no transaction, and SQLite would commit this statement alone; or there is no table.
            sqlite3.OperationalError: as for any write, when the database is locked.
        """
        check_name(resource, "resource")
        self._check_transaction()
        token = lease.check(need)
        try:
            cursor = self._connection.execute(ADMIT, (resource, token, lease.claim, lease.holder))
        except sqlite3.OperationalError as error:
            _check_table(error)
            raise
        if cursor.rowcount == 1:
            return token
        highest = self.highest(resource)
        assert highest is not None  # a refusal needs something to compare with
        raise refused(resource, token, highest.token, highest.holder)

    def highest(self, resource: str) -> Admitted | None:
        """What the resource remembers, as this connection sees it; None before the first owner."""
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the caller's own factory may make anything of a row
        try:
            row = cursor.execute(HIGHEST, (resource,)).fetchone()
        except sqlite3.OperationalError as error:
            _check_table(error)
            raise
        if row is None:
            return None
        token, claim, holder = row
        return Admitted(token, _text(claim), _text(holder))

    def _check_transaction(self) -> None:
        """Misuse where the statement would be a transaction of its own: another owner could then come before the write."""
        connection = self._connection
        legacy = getattr(connection, "autocommit", LEGACY) == LEGACY
        begins_by_itself = legacy and connection.isolation_level is not None
        if not (connection.in_transaction or begins_by_itself):
            raise Misuse(
                "admit() outside a transaction guards nothing: this connection commits every statement by itself;"
                " execute BEGIN IMMEDIATE first"
            )


# Connection.autocommit came with Python 3.12; -1 there means "as it always was", by isolation_level.
LEGACY = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", -1)


def _text(value: str | bytes) -> str:
    """Text also where the caller's connection gives bytes for it."""
    return value.decode() if isinstance(value, bytes) else value


def _check_table(error: sqlite3.OperationalError) -> None:
    """Misuse that says what to do when the table is missing."""
    if "no such table: leasekeeper_fence" in str(error):
        raise Misuse("this database has no table leasekeeper_fence: call Fence.create(connection) once") from error
