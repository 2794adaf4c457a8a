"""The bounds of a run: how large a record, how long a run, how much at once, and how full etcd may be before a step begins.

etcd keeps its whole database in every member's memory and refuses all writes at its quota, so each bound is checked before
anything is written, and has an error of its own that names what was counted. The last fifth of the quota is for outcomes: what
was begun can then still be recorded, also where somebody else has filled the database.

The size is not read before every step. A reading is believed for some seconds, and no longer than until the run itself has
written a part of the room that it showed: a fast writer asks in time, and near the bound every step does. Two things are not
seen: what others write before the next reading, and what etcd has taken in the last tenth of a second, which it counts later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasekeeper.errors import ConfigError
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.plan import STATUS, Cause, Fault, Plan, persist
from leasekeeper.run_errors import QuotaReserved, RecordTooLarge, RunTooLong, TransactionTooLarge

if TYPE_CHECKING:
    from leasekeeper.protocol.context import Context

__all__ = [
    "DEFAULT_QUOTA",
    "INLINE_MAX",
    "QUOTA_SHARE",
    "RECORDS_MAX",
    "TRANSACTION_MAX",
    "UNREAD",
    "VALUE_MAX",
    "Reading",
    "Space",
    "believe",
    "check_inline",
    "check_length",
    "check_space",
    "check_transaction",
    "check_value",
    "space",
]

KIB = 1024
MIB = 1024 * KIB

# A record with all that it holds. Larger values go into chunks or a blob store, and the record holds their digest.
INLINE_MAX = 64 * KIB
# One value, wherever it is kept.
VALUE_MAX = 8 * MIB
# The records of one run. Verifying reads them all.
RECORDS_MAX = 10_000
# One transaction with its compares. etcd's own bound is 1.5 MiB by default and can be set lower.
TRANSACTION_MAX = 512 * KIB
# What etcd takes where nothing else is set; releases before 3.6 do not tell their quota.
DEFAULT_QUOTA = 2048 * MIB
# From here on no step is begun.
QUOTA_SHARE = 0.8
# How long etcd's size is believed, and for how much of the room that it left, in bytes of records. What they take in the
# database, with all that is written beside them, is a few times as much.
SPACE_S = 5.0
ROOM_SHARE = 0.1


def check_inline(what: str, size: int) -> None:
    """RecordTooLarge when ``size`` bytes are too many for one record; ``what`` names it."""
    if size > INLINE_MAX:
        raise RecordTooLarge(what=what, size=size, most=INLINE_MAX)


def check_value(what: str, size: int) -> None:
    """RecordTooLarge when ``size`` bytes are too many even for chunks or a blob store; ``what`` names the value."""
    if size > VALUE_MAX:
        raise RecordTooLarge(what=what, size=size, most=VALUE_MAX)


def check_length(run: str, records: int, *, more: int = 1) -> None:
    """RunTooLong when ``more`` records do not fit behind the ``records`` that there are.

    ``more`` counts what must follow as well: an intent (1) needs room for its outcome (1) and for the record that ends the run.
    """
    if records + more > RECORDS_MAX:
        raise RunTooLong(run=run, records=records, most=RECORDS_MAX)


def check_transaction(request: pb.TxnRequest) -> None:
    """TransactionTooLarge when a transaction is larger, as it is sent, than may be committed at once."""
    size = request.ByteSize()
    if size > TRANSACTION_MAX:
        raise TransactionTooLarge(size=size, most=TRANSACTION_MAX)


@dataclass(frozen=True, slots=True)
class Space:
    """How full one member of etcd is: bytes ``used`` of ``quota``; ``quota`` None: it has none.

    ``used`` is the size of the file, free pages included, since that is what etcd measures by its quota: compaction alone
    does not make it smaller, defragmentation does.
    """

    used: int
    quota: int | None

    @property
    def reserved(self) -> bool:
        """Whether what is left is for outcomes only."""
        return self.quota is not None and self.used >= QUOTA_SHARE * self.quota


def check_space(found: Space | None, *, more: int = 0) -> None:
    """QuotaReserved when no step may be begun, counting ``more`` bytes that it would add. Passes where nothing is known."""
    if found is None or found.quota is None:
        return
    used = found.used + more
    if Space(used, found.quota).reserved:
        raise QuotaReserved(used=used, quota=found.quota)


@dataclass(frozen=True, slots=True)
class Reading:
    """That there was room, and how long that is believed: until ``until_s``, and up to ``most`` bytes of the run's records."""

    until_s: float
    most: float

    def holds(self, now_s: float, written: int) -> bool:
        """Whether it need not be read again, for a run whose records have ``written`` bytes by now."""
        return now_s <= self.until_s and written <= self.most


UNREAD = Reading(-math.inf, 0)


def believe(found: Space | None, now_s: float, written: int) -> Reading:
    """What was read just now, for a run whose records have ``written`` bytes; QuotaReserved when no step may be begun."""
    check_space(found)
    room = math.inf if found is None or found.quota is None else QUOTA_SHARE * found.quota - found.used
    return Reading(now_s + SPACE_S, written + ROOM_SHARE * room)


def space(ctx: Context, quota: int | None, until: float) -> Plan[Space | None]:
    """How full etcd is, as the member that answers tells it; None when it does not tell this user.

    Members differ a little: each has a file of its own, and the first that reaches its quota stops all of them. Newer releases
    of etcd tell their state only to the root role; then nothing is known here, and etcd's own refusal is the bound.

    Args:
        ctx: the keeper's context.
        quota: bytes of the database that runs may count on; None: what the member tells, or else etcd's default. The member's
            own quota holds as well where it is lower.
        until: when to give up, by the context's clock.

    Raises:
        ConfigError: a quota that is not positive.
        Fault: no member answered in time.
    """
    if quota is not None and quota <= 0:
        raise ConfigError(field="quota", value=quota, expected="bytes, 1 or more, or None for etcd's own")
    try:
        reply: pb.StatusResponse = yield from persist(STATUS, pb.StatusRequest(), now=ctx.now, until=until)
    except Fault as fault:
        if fault.cause is not Cause.DENIED:
            raise
        return None
    return Space(reply.dbSize, _effective(reply.dbSizeQuota, quota))


def _effective(told: int, given: int | None) -> int | None:
    """The lower of the member's quota and the given one. A member tells 0 when it cannot tell, less when it has none."""
    known = [quota for quota in (told, given) if quota is not None and quota > 0]
    if known:
        return min(known)
    return None if told < 0 else DEFAULT_QUOTA
