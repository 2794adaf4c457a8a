"""What an export holds, verified: the ground on which a run is pruned.

No key is needed: each record carries the hash of the one before it, so a file whose last record has just the hash that etcd's
head names has just the records of the run, byte by byte. With keys a wrong signature is found while the run is still there.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from leasekeeper.errors import ConfigError
from leasekeeper.protocol.keys import escape
from leasekeeper.protocol.lost_result import replaced_by
from leasekeeper.protocol.prune import Exported
from leasekeeper.protocol.receipt import read_receipt
from leasekeeper.run_errors import ILLEGIBLE
from leasekeeper.runs.export import Blob, Record, read_export, verify_export

if TYPE_CHECKING:
    import os

    from leasekeeper.protocol.chain import Ring

__all__ = ["aread_exported", "read_exported"]

# What a record must have somewhere to be of interest here.
MARKS = (b'"key_ttl_s":', b'"blob":{', b'"instead":')


def read_exported(path: str | os.PathLike[str], ring: Ring | None = None) -> Exported:
    """Verify an export, and tell what it holds.

    Args:
        path: of the file.
        ring: the keys to believe. None: signatures are not looked at, only whether the file has one.

    Raises:
        ConfigError: it cannot be read, is none, or is not good; says what is wrong with it.
    """
    try:
        with open(path, "rb") as stream:
            verdict = verify_export(stream, ring)
            if not verdict.ok or not verdict.verified:
                raise ConfigError(field="exported", value=str(path), expected=f"a good export, but {verdict.why}")
            stream.seek(0)
            export = read_export(stream)
            header, held = export.header, _Held()
            for line in export:
                held.take(line)
            footer = export.footer
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(field="exported", value=str(path), expected=f"a file that can be read: {why}") from None
    except ILLEGIBLE as error:
        raise ConfigError(field="exported", value=str(path), expected=f"a good export, but {error.why}") from None
    return Exported(
        run=f"{escape(header.workflow)}/{escape(header.id)}",
        gen=header.gen,
        seq=verdict.verified,
        hash=verdict.hash,
        key_ttl_s=held.key_ttl_s,
        left_out=frozenset(held.left_out()),
        key_id=footer.key_id if footer.signature else "",
    )


class _Held:
    """What the lines of an export hold: which large values are named, which are there, and how long keys are remembered."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.key_ttl_s = 0
        self._named: dict[int, str] = {}
        # Records in place of which an operator has given a result.
        self._replaced: set[int] = set()

    def left_out(self) -> set[str]:
        """The large values that are named and not there, but for those that were lost, and given anew."""
        return {digest for seq, digest in self._named.items() if seq not in self._replaced} - self.there

    def take(self, line: Record | Blob) -> None:
        """The next line."""
        if isinstance(line, Blob):
            self.there.add(line.digest)
        elif any(mark in line.stored for mark in MARKS):
            receipt = read_receipt(line.stored, "it")
            data = receipt.data
            blob, told = data.get("blob"), data.get("key_ttl_s")
            if isinstance(blob, dict) and isinstance(blob.get("digest"), str):
                self._named[receipt.seq] = blob["digest"]
            if instead := replaced_by(receipt):
                self._replaced.add(instead)
            if type(told) is int:
                self.key_ttl_s = max(self.key_ttl_s, told)


async def aread_exported(path: str | os.PathLike[str]) -> Exported:
    """`read_exported` on a thread of its own: a file of many megabytes does not hold up the event loop."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Exported] = loop.create_future()

    def settle(found: Exported | None, error: BaseException | None) -> None:
        if done.done():
            return
        if found is not None:
            done.set_result(found)
        else:
            done.set_exception(error or RuntimeError("nothing was read"))

    def read() -> None:
        found: Exported | None = None
        failed: BaseException | None = None
        try:
            found = read_exported(path)
        except BaseException as error:  # noqa: BLE001 - whoever waits is told
            failed = error
        try:
            loop.call_soon_threadsafe(settle, found, failed)
        except RuntimeError:
            pass  # the loop was closed: nobody waits any more

    threading.Thread(target=read, name="leasekeeper-export", daemon=True).start()
    return await done
