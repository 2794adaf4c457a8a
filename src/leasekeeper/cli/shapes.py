"""The JSON that commands print; docs/reference/cli-json.md is its contract.

Tokens are text, because above 2**53 some languages round numbers; leases are hex, as etcdctl shows them; times are UTC text;
what is not known is null. Nothing is left out, so that a reader need not ask whether a field is there.
"""

from __future__ import annotations

import math
from typing import Any

from leasekeeper.cli.look import Queue
from leasekeeper.cli.standing import Seen
from leasekeeper.cli.text import lease_hex, moment
from leasekeeper.protocol.keys import Claim

__all__ = ["age_s", "claim_shape", "queue_shape", "seen_shape"]


def claim_shape(claim: Claim) -> dict[str, Any]:
    """A claim without its standing."""
    return {
        "token": str(claim.token),
        "holder": claim.holder or None,
        "host": claim.host or None,
        "pid": claim.pid or None,
        "note": claim.note,
        "key": claim.key,
        "lease": lease_hex(claim.lease_id) if claim.lease_id else None,
        "claim": claim.nonce or None,
        "epoch": claim.epoch,
        "create_revision": claim.create_revision,
        "claimed_at": moment(claim.claimed_at),
        "record": claim.flag,
    }


def seen_shape(seen: Seen, read_at: float) -> dict[str, Any]:
    """A claim with its standing."""
    return {
        **claim_shape(seen.claim),
        "age_s": age_s(seen.claim, read_at),
        "standing": seen.standing.value,
        "ttl_s": seen.granted_s,
        "ttl_left_s": seen.left_s,
    }


def queue_shape(queue: Queue) -> dict[str, Any]:
    """A name with its owner, as ``ls`` lists it."""
    return {
        "name": queue.name,
        "lock_key": queue.lock_key,
        "owner": seen_shape(queue.owner, queue.read_at) if queue.owner is not None else None,
        "waiting": queue.waiting,
    }


def age_s(claim: Claim, read_at: float) -> float | None:
    """Seconds since the claim was made, by its holder's clock and ours; None when that cannot be told."""
    if claim.claimed_at is None or moment(claim.claimed_at) is None:
        return None
    age = read_at - claim.claimed_at
    return round(max(0.0, age), 1) if math.isfinite(age) else None
