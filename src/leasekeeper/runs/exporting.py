"""Exporting a run out of etcd: by whoever can read it, whether or not it has an owner, who is not disturbed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.errors import ConfigError
from leasekeeper.protocol.bundle import Blob, Footer, Header, Record
from leasekeeper.protocol.head import read_head
from leasekeeper.protocol.identity import read_identity
from leasekeeper.protocol.limits import VALUE_MAX
from leasekeeper.protocol.lost_result import blob_of, replaced_by
from leasekeeper.protocol.receipt import digest as sha256
from leasekeeper.protocol.receipt import read_receipt
from leasekeeper.protocol.run_look import facts
from leasekeeper.protocol.snapshot import Pages, pieces, snapshot
from leasekeeper.run_errors import ILLEGIBLE, BlobMissing, CorruptState
from leasekeeper.runs.export import write_export

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from leasekeeper.protocol.run_keys import RunKeys
    from leasekeeper.protocol.snapshot import Snapshot
    from leasekeeper.run_records import Receipt
    from leasekeeper.runs.blobs import BlobStore
    from leasekeeper.runtime.core import Core
    from leasekeeper.signing import SigningKey

__all__ = ["export_run"]

NO_RUN = "a run that was begun; see: leasekeeper runs ls"


def export_run(
    core: Core,
    keys: RunKeys,
    target: BinaryIO | str | os.PathLike[str],
    key: SigningKey | None = None,
    *,
    blobs: BlobStore | None = None,
) -> Footer:
    """Write the export of a run as it stands now, and return its footer; nothing of it is judged here.

    What is damaged is exported as it is, so that `leasekeeper.runs.export.verify_export` says the same of the file as could be
    said of etcd. Memory does not grow with the run.

    Args:
        core: of the keeper that reads.
        keys: of the run.
        target: a path, or a binary stream that stays open; see `write_export`.
        key: signs the footer.
        blobs: where large results are kept outside of etcd; without it those are left out, and their records name their digests.

    Raises:
        ConfigError: there is no such run.
        Unavailable, AuthError: etcd or the blob store cannot be asked. OSError: the file cannot be written.
        ExportKept: what is there under that name has what the new one does not have; see `write_export`.
    """
    found = core.run(snapshot(core.ctx, keys, core.until()))
    if found is None:
        gone = core.run(facts(core.ctx, keys, core.until())).tomb is not None
        expected = "a run that was not pruned: an export of it was made before" if gone else NO_RUN
        raise ConfigError(field="run", value=keys.name.text, expected=expected)
    header = _header(keys, found, int(core.ctx.wall() * 1000))
    return write_export(target, header, _lines(core, keys, found, _store(core, keys, blobs)), key)


def _header(keys: RunKeys, found: Snapshot, now_ms: int) -> Header:
    namespace_id, gen = "", 0
    # What cannot be read is not made up: the verdict on the export will tell.
    try:
        namespace_id = read_identity(found.identity, "the identity").uuid
        gen = read_head(found.head, "the head").gen
    except ILLEGIBLE:
        pass
    return Header(
        workflow=keys.name.workflow,
        id=keys.name.id,
        namespace_id=namespace_id,
        gen=gen,
        exported_at_ms=now_ms,
        meta=found.meta,
        head=found.head,
    )


def _lines(core: Core, keys: RunKeys, found: Snapshot, value: Callable[[str, int], bytes]) -> Iterator[Record | Blob]:
    replaced: frozenset[int] | None = None
    for seq, stored in _records(core, keys, found):
        yield Record(seq, stored)
        named = _named(stored)
        data = value(*named) if named is not None else b""
        if named is None or not data:
            continue
        if sha256(data) != named[0]:
            # Told as it is, unless an operator has seen that already, and said what holds in its place.
            replaced = _replaced(core, keys, found) if replaced is None else replaced
            if seq in replaced:
                continue
        yield Blob(named[0], data)


def _records(core: Core, keys: RunKeys, found: Snapshot) -> Iterator[tuple[int, bytes]]:
    pages = Pages(keys, found)
    while page := core.run(pages.next_page(core.ctx, core.until())):
        yield from page


def _replaced(core: Core, keys: RunKeys, found: Snapshot) -> frozenset[int]:
    """The records in place of whose results an operator has given others."""
    read = (_read(stored) for _, stored in _records(core, keys, found) if b'"instead":' in stored)
    return frozenset(replaced_by(receipt) for receipt in read if receipt is not None)


def _named(stored: bytes) -> tuple[str, int] | None:
    """Digest and size of the large value that a record names."""
    receipt = _read(stored) if b'"blob":{' in stored else None
    return None if receipt is None else blob_of(receipt.data)


def _read(stored: bytes) -> Receipt | None:
    """A record; None for one that cannot be read, which the verdict on the export will tell."""
    try:
        return read_receipt(stored, "it")
    except ILLEGIBLE:
        return None


def _store(core: Core, keys: RunKeys, blobs: BlobStore | None) -> Callable[[str, int], bytes]:
    """Where a large value is read from: empty when it is not there."""

    def kept_elsewhere(digest: str, size: int) -> bytes:
        assert blobs is not None
        try:
            return blobs.get(digest)[: min(size, VALUE_MAX)]
        except (BlobMissing, CorruptState):
            return b""

    def kept_in_etcd(digest: str, size: int) -> bytes:
        data: bytes = core.run(pieces(core.ctx, keys, digest, size, core.until(30.0)))
        return data

    return kept_in_etcd if blobs is None else kept_elsewhere
