"""Formats that were released: what the first release stored is still read, byte for byte as it was written."""

from __future__ import annotations

import hashlib
import json

from leasekeeper.protocol.schema import decode, encode, read_envelope
from tests.golden.formats import CHECKPOINT, Golden, stored

# Kept here as well, so that neither the file nor the code can change alone.
CHECKPOINT_SHA256 = "b6c3191b7888d5cd92284ddb3da10e1ec797635fda59952fbb3d13995868949f"


def test_a_checkpoint_of_the_first_release_is_read() -> None:
    """Envelope format 1: every kind of field comes back as the value that was stored."""
    loaded = decode(stored("0.1.0", "checkpoint"), Golden, "golden")
    assert loaded.value == CHECKPOINT
    assert (loaded.version, loaded.n, loaded.seq, loaded.migrated, loaded.newer) == (2, 1, 12, False, False)


def test_a_checkpoint_is_still_written_as_the_first_release_did() -> None:
    """Envelope format 1: the same state gives the same bytes, as long as the format has no new number."""
    bytes_then = stored("0.1.0", "checkpoint")
    assert encode(CHECKPOINT, Golden, over=None, seq=12) == bytes_then
    assert hashlib.sha256(bytes_then).hexdigest() == CHECKPOINT_SHA256


def test_a_checkpoint_can_be_understood_without_this_code() -> None:
    """Whoever has only a JSON reader and SHA-256 finds the data, and can tell that nothing was changed."""
    text = stored("0.1.0", "checkpoint").decode()
    fields = json.loads(text)
    digest = fields.pop("digest")
    rest = text.replace(f'"digest":"{digest}",', "")
    assert json.loads(rest) == fields
    assert hashlib.sha256(rest.encode()).hexdigest() == digest
    assert fields["data"]["large"] == "9223372036854775807"
    assert read_envelope(text.encode(), "golden").data == fields["data"]
