"""What others do to a lease, past its owner: an operator revokes it, another owner takes its name.

All of it is real: it goes to etcd by a keeper of its own, so that no fault on the owner's way holds it up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from leasekeeper.errors import LeasekeeperError, Misuse, Unavailable
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import inspect, session
from leasekeeper.protocol import messages as m
from leasekeeper.protocol.keys import prefix_end
from leasekeeper.protocol.plan import TXN, Plan, persist

if TYPE_CHECKING:
    from leasekeeper.keeper import Keeper, Lease
    from leasekeeper.protocol.keys import Claim
    from leasekeeper.runtime.held import Held

__all__ = ["claim_of", "revoke", "steal", "sweep", "wait_until_gone"]

POLL_S = 0.02
STEAL_TIMEOUT_S = 30.0


def claim_of(keeper: Keeper, target: Held | str) -> Claim:
    """The claim that owns a name; Misuse when nobody does, or not the lease that is given."""
    name = target if isinstance(target, str) else target.name
    core = keeper._core
    found: Claim | None = core.run(inspect.owner(core.ctx, name, core.until()))
    if found is None:
        raise Misuse(f"nobody owns {name!r} in the namespace {core.ctx.keys.namespace!r}")
    if not isinstance(target, str) and target.token != found.token:
        raise Misuse(f"this lease does not own {name!r} any more: {found.holder} does, with token {found.token}")
    return found


def revoke(keeper: Keeper, claim: Claim) -> None:
    """Revoke the etcd lease that a claim lives by, and with it every other claim of its session."""
    keeper._core.run(session.revoke(claim.lease_id))


def wait_until_gone(keeper: Keeper, claim: Claim, timeout_s: float) -> None:
    """Wait until etcd has let a claim expire; Unavailable when it is still there after ``timeout_s``."""
    core = keeper._core

    def gone() -> bool:
        return not core.run(inspect.still_there(core.ctx, [claim], core.until()))

    if not _poll(gone, timeout_s):
        raise Unavailable(
            f"{claim.holder} still owns {claim.name!r} after {timeout_s:g} s without a heartbeat on this link:"
            " its keeper does not connect by this link's endpoint",
            operation="expire",
        )


def steal(rival: Keeper, name: str) -> Lease:
    """Own a name, whoever owned it or waited for it: all of them are removed in one transaction, and nobody in between."""
    taken: list[Lease | LeasekeeperError] = []

    def take() -> None:
        try:
            taken.append(rival.acquire(name, timeout=STEAL_TIMEOUT_S))
        except LeasekeeperError as error:
            taken.append(error)

    taker = threading.Thread(target=take, name="leasekeeper-testing-rival", daemon=True)
    taker.start()
    core = rival._core
    while taker.is_alive():
        queue = rival.claims(name)
        mine = [number for number, claim in enumerate(queue) if claim.holder == core.ctx.holder]
        if mine and mine[0] > 0:
            core.run(_remove(core.ctx.now, queue[: mine[0]], core.until()))
        taker.join(POLL_S)
    [lease] = taken
    if isinstance(lease, LeasekeeperError):
        raise lease
    return lease


def sweep(keeper: Keeper) -> None:
    """Revoke every lease that claims of the keeper's namespace live by, and remove what else is stored there."""
    core = keeper._core
    for name in list(keeper.names()):
        for claim in keeper.claims(name):
            if claim.lease_id:
                revoke(keeper, claim)
    root = core.ctx.keys.root.encode()
    everything = pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=root, range_end=prefix_end(root)))
    core.run(persist(TXN, pb.TxnRequest(success=(everything,)), now=core.ctx.now, until=core.until()))


def _remove(now: Callable[[], float], claims: list[Claim], until: float) -> Plan[None]:
    """Delete these claims' keys, all or none."""
    keys = [(claim.key.encode(), claim.create_revision) for claim in claims]
    request = pb.TxnRequest(
        compare=tuple(m.created_at(key, revision) for key, revision in keys),
        success=tuple(m.delete(key) for key, _ in keys),
    )
    yield from persist(TXN, request, now=now, until=until)


def _poll(true: Callable[[], bool], timeout_s: float) -> bool:
    until_s = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() >= until_s:
            return False
        time.sleep(POLL_S)
    return True
