"""Where the steps of a run stand, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol.keys import prefix_end
from leasekeeper.protocol.plan import RANGE, Plan, persist
from leasekeeper.protocol.pointer import read_pointer

if TYPE_CHECKING:
    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.run_keys import RunKeys
    from leasekeeper.run_records import StepView

__all__ = ["step_page"]

PAGE = 500


def step_page(
    ctx: Context, keys: RunKeys, start: bytes | None, until: float
) -> Plan[tuple[list[StepView], bytes | None]]:
    """One page of steps in order of their keys, and where to go on; linearizable, each page of one revision."""
    request = pb.RangeRequest(key=start or keys.steps, range_end=prefix_end(keys.steps), limit=PAGE)
    reply: pb.RangeResponse = yield from persist(RANGE, request, now=ctx.now, until=until)
    found = [read_pointer(kv).view(keys.step_of(kv.key)) for kv in reply.kvs]
    return found, reply.kvs[-1].key + b"\0" if reply.more and reply.kvs else None
