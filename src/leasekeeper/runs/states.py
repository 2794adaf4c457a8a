"""Checkpoints and phases as a run's owner works with them: what is the same under threads and asyncio.

What a handle remembers of the last read is for people, and is what the next commit compares. A commit takes the state from etcd
once more, sees that nobody changed it since, and changes that.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from leasekeeper.errors import Misuse
from leasekeeper.protocol.checkpoint import Change, change_of, commit, read
from leasekeeper.protocol.keys import check_name
from leasekeeper.protocol.schema import Loaded, decode
from leasekeeper.protocol.versions import declared
from leasekeeper.run_errors import StaleCheckpoint

if TYPE_CHECKING:
    from leasekeeper.protocol import etcd_pb2 as pb
    from leasekeeper.protocol.append import Appended, Log
    from leasekeeper.protocol.plan import Plan
    from leasekeeper.runs.owned import Owned

__all__ = ["READ_S", "TRIES", "Stated"]

T = TypeVar("T")

READ_S = 10.0
# How often an update is applied anew because somebody was faster.
TRIES = 10


class Stated(Generic[T]):
    """A checkpoint: a versioned state of a run, changed by compare-and-set."""

    __slots__ = ("_kind", "_owned", "_seen", "_write_version", "name")

    def __init__(self, owned: Owned, name: str, kind: type[T], write_version: int | None) -> None:
        self.name = check_name(name, "checkpoint")
        declared(kind)
        self._owned = owned
        self._kind = kind
        self._write_version = write_version
        # The state last read and the revision of its last change: one thing, as several threads may use the handle.
        self._seen: tuple[Loaded[T] | None, int] = None, 0

    @property
    def value(self) -> T | None:
        """The state as it was last read or committed through this handle; None when there was none."""
        loaded, _ = self._seen
        return None if loaded is None else loaded.value

    @property
    def n(self) -> int:
        """How often it had been committed then."""
        loaded, _ = self._seen
        return 0 if loaded is None else loaded.n

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._owned.run} n={self.n}>"

    def change(self, **changes: Any) -> Change:
        """The change that a commit of these fields would make, to be committed together with a step: ``run.do(…, commit=…)``.

        It is one of the state last read through this handle, as it stood in etcd: whatever became of ``value`` since.
        """
        loaded, mod_revision = self._seen
        if loaded is not None:
            where = self._owned._life.log.keys.checkpoint(self.name).decode()
            loaded = decode(loaded.stored, self._kind, where)
        current = None if loaded is None else loaded.value
        return self._change(_changed(self._kind, current, changes), loaded, mod_revision)

    # ------------------------------------------------------------ plans

    @property
    def _log(self) -> Log:
        self._owned.lease._check_not_over()
        return self._owned._life.log

    def _read(self) -> Plan[T | None]:
        """Read it, linearizably."""
        log = self._log
        found, mod_revision = self._decoded((yield from read(log, self.name, log.ctx.now() + READ_S)))
        self._take(found, mod_revision)
        if found is not None and found.migrated and self._migrates(found):
            yield from self._put(found.value, found, mod_revision)  # the one before is kept
        return self.value

    def _migrates(self, found: Loaded[T]) -> bool:
        """Whether an older state is written back in the new version: not by a pinned writer, nor in a run that is finished."""
        return self._write_version != found.version and self._owned._life.log.head.status != "finished"

    def _decoded(self, kv: pb.KeyValue | None) -> tuple[Loaded[T] | None, int]:
        if kv is None:
            return None, 0
        return decode(kv.value, self._kind, kv.key.decode("utf-8", "replace")), kv.mod_revision

    def _take(self, loaded: Loaded[T] | None, mod_revision: int) -> None:
        self._seen = loaded, mod_revision

    def _commit(self, changes: dict[str, Any], given: tuple[T, ...] = ()) -> Plan[T]:
        """Commit changed fields, or a whole state, over what was last read through this handle."""
        log = self._log
        loaded, mod_revision = self._decoded((yield from read(log, self.name, log.ctx.now() + READ_S)))
        if mod_revision != self._seen[1]:
            raise StaleCheckpoint(run=log.run, name=self.name, expected=self.n, found=0 if loaded is None else loaded.n)
        current = None if loaded is None else loaded.value
        value = given[0] if given else _changed(self._kind, current, changes)
        yield from self._put(value, loaded, mod_revision)
        return value

    def _put(self, value: T, over: Loaded[T] | None, mod_revision: int) -> Plan[Appended]:
        return (yield from commit(self._log, self._change(value, over, mod_revision)))

    def _change(self, value: T, over: Loaded[T] | None, mod_revision: int) -> Change:
        keys = self._owned._life.log.keys
        made = change_of(
            keys, self.name, self._kind, value, over=over, mod_revision=mod_revision, write_version=self._write_version
        )

        def landed(seq: int, revision: int) -> None:
            self._take(decode(made.stored(seq), self._kind, made.key.decode()), revision)

        return dataclasses.replace(made, landed=landed)

    def _reread(self) -> Plan[tuple[Loaded[T] | None, int]]:
        log = self._log
        return self._decoded((yield from read(log, self.name, log.ctx.now() + READ_S)))


def _changed(kind: type[T], current: T | None, changes: dict[str, Any]) -> T:
    """A state with some fields changed; Misuse for fields that it does not have, or lacks for its first state."""
    try:
        if current is None:
            return kind(**changes)
        if isinstance(current, dict):
            return {**current, **changes}  # type: ignore[return-value]
        return dataclasses.replace(current, **changes)  # type: ignore[type-var]
    except TypeError as error:
        raise Misuse(f"{kind.__name__}: {error}") from None
