"""What users are shown of claims and of losses: frozen records, which errors and events carry too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Claim", "Flag", "Loss", "Reason"]

Flag = Literal["ok", "foreign", "newer", "corrupt"]
Reason = Literal["expired", "revoked", "deleted", "gave_up", "forked", "closed"]


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim as it stands in etcd, the way an observer sees it.

    ``flag`` says how much of it could be read: ``ok``; ``foreign`` (not written by leasekeeper, such as ``etcdctl lock``);
    ``newer`` (a format that this version does not know); ``corrupt``. Whatever it is, it holds its place in the queue.
    ``lease_id`` 0 means a key without a lease: it will never go away by itself.
    """

    name: str
    key: str
    token: int
    create_revision: int
    mod_revision: int
    lease_id: int
    nonce: str = ""
    holder: str = ""
    host: str = ""
    pid: int = 0
    note: str = ""
    claimed_at: float | None = None
    ttl: float | None = None
    epoch: int = 0
    flag: Flag = "ok"


@dataclass(frozen=True, slots=True)
class Loss:
    """Why and when a lease was lost.

    ``reason``: ``expired`` (its time ran out at etcd), ``revoked`` (the etcd lease was revoked), ``deleted`` (the claim's
    key was deleted or replaced), ``gave_up`` (a patience of Timing ran out), ``forked`` (this is a child process),
    ``closed`` (the keeper was closed). ``at_s`` is on the clock of ``leasekeeper.clock``; ``proof_age_s`` is how old the
    last proof was then.
    """

    reason: Reason
    at_s: float
    proof_age_s: float
