"""A guard for keys in the same etcd: the claim's own key is the fence.

Nothing has to be remembered beside the data, because etcd decides at the very revision of the write whether the claim still
owns its name. Put `compares` into a transaction of your own, with whichever client::

    request = TxnRequest(compare=compares(lease, Compare), success=[...])

or let `put_if_owner` write one key. Both refuse an older owner also when its process was frozen after the gate, however late
its request arrives (G4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar, overload

from leasekeeper.errors import ConfigError, StaleToken
from leasekeeper.fencing import split_token
from leasekeeper.protocol import guarded
from leasekeeper.protocol.keys import ROOT
from leasekeeper.runtime.core import check_timeout

if TYPE_CHECKING:
    from leasekeeper.aio import AsyncLease
    from leasekeeper.keeper import Lease
    from leasekeeper.protocol import etcd_pb2 as pb
    from leasekeeper.protocol.plan import Plan

__all__ = ["aput_if_owner", "compares", "create_revision", "put_if_owner"]


class _Parsed(Protocol):
    """A protobuf message class, of whichever client."""

    @staticmethod
    def FromString(data: bytes, /) -> object:  # noqa: N802 - protobuf's own name
        """The message of these bytes."""
        ...


M = TypeVar("M", bound=_Parsed)


@overload
def compares(lease: Lease | AsyncLease, *, need: float = 0.0) -> tuple[pb.Compare, ...]: ...


@overload
def compares(lease: Lease | AsyncLease, kind: type[M], *, need: float = 0.0) -> tuple[M, ...]: ...


def compares(lease: Lease | AsyncLease, kind: type[M] | None = None, *, need: float = 0.0) -> tuple[object, ...]:
    """Etcd compares for a transaction of your own; they hold exactly as long as this claim owns its name.

    Passes the gate first, so LeaseSuspended and LeaseLost come out of it. The transaction is refused by etcd after that as
    well, at whatever moment it arrives: put it in one transaction with the writes, and read its ``succeeded``. A transaction
    whose reply is lost may have happened; how to tell is yours to design (`put_if_owner` shows one way).

    Args:
        lease: the claim.
        kind: the ``Compare`` message of another etcd client; None: that of `leasekeeper.protocol.etcd_pb2`.
        need: seconds of proven authority that the work about to begin needs.
    """
    lease.check(need)
    own = lease.compares()
    return own if kind is None else tuple(kind.FromString(compare.SerializeToString()) for compare in own)


def create_revision(lease: Lease | AsyncLease) -> int:
    """The create revision of ``lease.key``, for clients that spell compares: ``create("KEY") = "REVISION"`` in etcdctl."""
    return split_token(lease.token)[1]


def put_if_owner(
    lease: Lease, key: str | bytes, value: str | bytes, *, need: float = 0.0, timeout: float | None = None
) -> int:
    """Put a key of yours in one transaction that compares the claim: the revision of the put.

    Guarantees that nothing is written once anybody else can own the name, and that a lost reply is read back, never guessed.
    Not meant for a key that somebody else writes too: each such write costs a round trip more, and one that happens just
    while a reply is lost can hide what became of this put.

    Args:
        lease: asked at its gate first.
        key: the key, outside of what leasekeeper itself stores: below ``leasekeeper/`` nothing of yours belongs.
        value: what to store.
        need: seconds of proven authority to ask for at the gate.
        timeout: seconds to try while etcd does not answer; None: 10.

    Raises:
        StaleToken: the claim owns the name no longer, and the lease is about to be LOST; ``highest`` and ``holder`` tell
            who does (0 and empty: nobody).
        OutcomeUnknown: a reply was lost and whether the put happened could not be told: in time, or at all, as for a key
            that did not exist before and does not now. Nothing is ever written twice.
        Unavailable: etcd could not be asked; nothing was written.
        ConfigError: the key is not one of yours.
        LeaseSuspended, LeaseLost: the gate does not let work through.
    """
    lease.check(need)
    try:
        revision: int = lease._core.run(_plan(lease, key, value, timeout))
    except StaleToken:
        lease._core.heart.key_gone(lease._authority)
        raise
    return revision


async def aput_if_owner(
    lease: AsyncLease, key: str | bytes, value: str | bytes, *, need: float = 0.0, timeout: float | None = None
) -> int:
    """`put_if_owner` for an AsyncLease. Cancelling it leaves open whether the put happened."""
    lease.check(need)
    try:
        revision: int = await lease._core.arun(_plan(lease, key, value, timeout))
    except StaleToken:
        lease._core.heart.key_gone(lease._authority)
        raise
    return revision


def _plan(lease: Lease | AsyncLease, key: str | bytes, value: str | bytes, timeout: float | None) -> Plan[int]:
    core = lease._core
    mine = guarded.Ownership(lease.name, lease.token, lease.key.encode(), create_revision(lease))
    where = _bytes("key", key)
    if not where or where.startswith(ROOT.encode()):
        raise ConfigError(field="key", value=key, expected=f"a key of your own, not below {ROOT}")
    until = core.until(None if timeout is None else check_timeout(timeout))
    return guarded.put_if_owner(core.ctx, mine, where, _bytes("value", value), until)


def _bytes(field: str, given: object) -> bytes:
    if isinstance(given, bytes):
        return given
    try:
        return given.encode()  # type: ignore[attr-defined,no-any-return]
    except (AttributeError, UnicodeEncodeError):
        raise ConfigError(field=field, value=given, expected="bytes, or text that UTF-8 can carry") from None
