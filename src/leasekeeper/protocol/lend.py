"""How a claim comes by a session whose proof is fresh."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from leasekeeper.protocol.plan import BACKOFF_FIRST_S, BACKOFF_MAX_S, Detach, Fault, Kind, Plan, Wait, rest
from leasekeeper.protocol.session import Session, Tending, grant, renew, revoke

if TYPE_CHECKING:
    from leasekeeper.protocol.context import Context
    from leasekeeper.timing import Timing

__all__ = ["Want", "lend"]

# How long etcd may be out of reach before somebody who asked without a timeout is told so. Only until the claim stands in
# the queue: a waiter rides out any outage.
PATIENCE_S = 10.0
# How often those who wait for another plan to open a session look whether it is still at it.
LOOK_AGAIN_S = 1.0


class Want(NamedTuple):
    """What somebody asks for: a name, on which terms, and until when (None: as long as it takes).

    ``round_s`` is when the way to the queue was begun anew, after a claim that had stood in it was displaced.
    """

    name: str
    timing: Timing
    note: str
    until: float | None
    since: float
    round_s: float = -math.inf

    @property
    def limit(self) -> float:
        """Until when the queue must be reached."""
        return max(self.since, self.round_s) + PATIENCE_S if self.until is None else self.until


def lend(ctx: Context, want: Want) -> Plan[Session]:
    """A session whose proof is fresh: one at hand, one that another plan is opening, or a new one."""
    pause_s = BACKOFF_FIRST_S
    tending = Tending()
    while True:
        found = ctx.sessions.lend(want.timing, tending)
        if found is None:
            return (yield from _open(ctx, want))
        if not isinstance(found, Session):
            if ctx.now() >= want.limit:
                raise Fault(Kind.RETRY, text="no session could be opened in time", operation="LeaseGrant")
            yield Wait((found,), min(want.limit, ctx.now() + LOOK_AGAIN_S))
            continue
        if found.fresh(ctx.now()):
            return found
        sent_s, ttl = yield from renew(found.lease_id, now=ctx.now, until=want.limit)
        ctx.sessions.confirmed(found, sent_s, ttl)
        if found.fresh(ctx.now()):
            return found
        if ctx.now() >= want.limit:
            raise Fault(Kind.RETRY, text="beats are answered too slowly", operation="LeaseKeepAlive")
        yield rest(pause_s, want.limit - ctx.now())
        pause_s = min(BACKOFF_MAX_S, 2 * pause_s)


def _open(ctx: Context, want: Want) -> Plan[Session]:
    lease_id = 0
    try:
        lease_id, timing, proof_s = yield from grant(
            want.timing, now=ctx.now, until=want.limit, new_id=ctx.new_lease_id
        )
        session = ctx.sessions.make(lease_id, timing, proof_s)
    except BaseException:
        ctx.sessions.opened(want.timing, None)
        if lease_id:
            yield Detach(partial(revoke, lease_id))
        raise
    try:
        ctx.sessions.opened(want.timing, session)
    except BaseException:
        # Ctrl-C in the midst of it: once more, or a lease would be nobody's that closing the keeper has to revoke.
        ctx.sessions.opened(want.timing, session)
        raise
    return session
