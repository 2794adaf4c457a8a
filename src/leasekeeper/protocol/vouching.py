"""Whether a record can be believed: signed by a key that is trusted, where the run's records are signed.

The hashes of a chain show that a record was changed since the next one was written. Somebody who may write to etcd can change
both, and all the rest; what they cannot do is sign.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.errors import AuthError
from leasekeeper.protocol.receipt import DOMAIN, signature_bytes, signed_part
from leasekeeper.run_errors import CorruptState, SigningKeyMissing

if TYPE_CHECKING:
    from leasekeeper.run_records import Receipt
    from leasekeeper.signing import Keyring

__all__ = ["vouched"]


def vouched(receipt: Receipt, ring: Keyring | None, *, signed: bool) -> Receipt:
    """The record, if it is signed as it should be.

    Args:
        receipt: whose own hash was checked already.
        ring: the keys that are trusted; None: none is known here.
        signed: the run's records have to be signed by now.

    Raises:
        CorruptState: it is not signed and has to be, or the signature is not right.
        SigningKeyMissing: it is signed by a key that is not known here.
    """
    where = f"record {receipt.seq} of {receipt.run}"
    if not receipt.key_id:
        if signed:
            why = "it is not signed, and the run's records are"
            raise CorruptState(f"{where} cannot be trusted: {why}", where=where, why=why)
        return receipt
    if ring is None or receipt.key_id not in ring:
        raise SigningKeyMissing(run=receipt.run, key_id=receipt.key_id)
    try:
        ring.verify(receipt.key_id, DOMAIN + signed_part(receipt.stored), signature_bytes(receipt.signature))
    except (AuthError, ValueError) as error:
        raise CorruptState(f"{where} cannot be trusted: {error}", where=where, why=str(error)) from None
    return receipt
