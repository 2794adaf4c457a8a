"""Resources on which assert_fenced is tried: right ones, and each of the usual wrong ones."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path

from leasekeeper.errors import StaleToken
from leasekeeper.fencing import Admitted, admits
from leasekeeper.guards.sqlite import Fence
from leasekeeper.testing.trial import Writer


class Guarded:
    """A dict with the fence rule, under a lock."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.highest: dict[str, Admitted] = {}
        self.lock = threading.Lock()

    def write(self, resource: str, lease: Writer, value: str) -> bool:
        """Write as the rule says."""
        with self.lock:
            return self.decide(resource, lease, value)

    def decide(self, resource: str, lease: Writer, value: str) -> bool:
        """Decide, remember and write."""
        if not self.passes(self.highest.get(resource), lease):
            return False
        self.highest[resource] = Admitted(lease.token, lease.claim)
        self.values[resource] = value
        return True

    def passes(self, highest: Admitted | None, lease: Writer) -> bool:
        """The rule."""
        return admits(highest, lease.token, lease.claim)

    def read(self, resource: str) -> str | None:
        """What was written last."""
        return self.values.get(resource)


class Unfenced(Guarded):
    """Takes everything."""

    def passes(self, highest: Admitted | None, lease: Writer) -> bool:
        """No rule."""
        return True


class AtLeast(Guarded):
    """Compares with >=."""

    def passes(self, highest: Admitted | None, lease: Writer) -> bool:
        """Wrong for equal tokens."""
        return highest is None or lease.token >= highest.token


class Larger(Guarded):
    """Compares with >."""

    def passes(self, highest: Admitted | None, lease: Writer) -> bool:
        """Wrong for an owner's second write."""
        return highest is None or lease.token > highest.token


class Floating(Guarded):
    """Keeps tokens as floats."""

    def passes(self, highest: Admitted | None, lease: Writer) -> bool:
        """Wrong above 2**53."""
        return highest is None or admits(
            Admitted(int(float(highest.token)), highest.claim), int(float(lease.token)), lease.claim
        )


class AsText(Guarded):
    """Compares tokens as texts that are not padded."""

    def passes(self, highest: Admitted | None, lease: Writer) -> bool:
        """Wrong where a digit is added."""
        return highest is None or str(lease.token) > str(highest.token) or lease.claim == highest.claim


class RevisionOnly(Guarded):
    """Forgets the epoch."""

    def passes(self, highest: Admitted | None, lease: Writer) -> bool:
        """Wrong after a restore."""
        low = (1 << 44) - 1
        return highest is None or lease.token & low > highest.token & low or lease.claim == highest.claim


class Forgetful(Guarded):
    """Remembers the token of whoever came last, also of one that it refused."""

    def decide(self, resource: str, lease: Writer, value: str) -> bool:
        """Wrong after a refusal."""
        passes = self.passes(self.highest.get(resource), lease)
        self.highest[resource] = Admitted(lease.token, lease.claim)
        if passes:
            self.values[resource] = value
        return passes


class WritesFirst(Guarded):
    """Refuses, but has written by then."""

    def decide(self, resource: str, lease: Writer, value: str) -> bool:
        """Wrong: the value is there."""
        self.values[resource] = value
        return super().decide(resource, lease, value)


class Racy(Guarded):
    """The right rule, without a lock."""

    def write(self, resource: str, lease: Writer, value: str) -> bool:
        """Wrong when two write at once."""
        return self.decide(resource, lease, value)

    def decide(self, resource: str, lease: Writer, value: str) -> bool:
        """Reads, and remembers later."""
        highest = self.highest.get(resource)
        if not self.passes(highest, lease):
            raise StaleToken("an older owner", token=lease.token, highest=highest.token if highest else 0)
        self.highest[resource] = Admitted(lease.token, lease.claim)
        self.values[resource] = value
        return True


class LockedTooLate(Guarded):
    """Decides under the lock and writes after it."""

    def write(self, resource: str, lease: Writer, value: str) -> bool:
        """Wrong: a newer owner comes between the decision and the write."""
        with self.lock:
            if not self.passes(self.highest.get(resource), lease):
                return False
            self.highest[resource] = Admitted(lease.token, lease.claim)
        self.values[resource] = value
        return True


class InMemory(Guarded):
    """Keeps the data, and forgets the highest token when it is opened anew."""

    def reopen(self) -> None:
        """Wrong: the fence is as good as its memory."""
        self.highest.clear()


class Sqlite:
    """A table guarded by leasekeeper's own fence."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.connect() as connection:
            Fence.create(connection)
            connection.execute("CREATE TABLE data (resource PRIMARY KEY, value)")
        connection.close()

    def connect(self) -> sqlite3.Connection:
        """A connection for one thread."""
        return sqlite3.connect(self.path, timeout=60)

    def write(self, resource: str, lease: Writer, value: str) -> None:
        """One transaction that admits and writes."""
        connection = self.connect()
        try:
            with connection:
                Fence(connection).admit(resource, lease)
                connection.execute("INSERT OR REPLACE INTO data VALUES (?, ?)", (resource, value))
        finally:
            connection.close()

    def read(self, resource: str) -> object:
        """What was committed last."""
        connection = self.connect()
        try:
            row = connection.execute("SELECT value FROM data WHERE resource = ?", (resource,)).fetchone()
        finally:
            connection.close()
        return row[0] if row else None

    def reopen(self) -> None:
        """Nothing is kept open."""


class JsonFile(Guarded):
    """Another language's number: goes through JSON as a double, as JavaScript would read it."""

    def passes(self, highest: Admitted | None, lease: Writer) -> bool:
        """Wrong above 2**53."""
        token = json.loads(json.dumps(lease.token), parse_int=float)
        known = None if highest is None else float(highest.token)
        return highest is None or known is None or token > known or (token == known and lease.claim == highest.claim)
