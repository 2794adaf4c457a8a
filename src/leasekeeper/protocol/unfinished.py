"""Which runs are not finished and have no owner: what workers look through. A hint: who opens one sees how it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol import run_keys
from leasekeeper.protocol.head import read_head
from leasekeeper.protocol.keys import escape, prefix_end, unescape
from leasekeeper.protocol.plan import TXN, Plan, persist
from leasekeeper.protocol.run_keys import RunKeys, RunName
from leasekeeper.run_errors import CorruptState

if TYPE_CHECKING:
    from leasekeeper.protocol.context import Context

__all__ = ["page", "waits"]

PAGE = 500
OWNED_MAX = 10_000


def page(ctx: Context, workflow: str, start: bytes | None, until: float) -> Plan[tuple[list[RunName], bytes | None]]:
    """One page of a workflow's unfinished runs that nobody owned at that moment, and where to go on."""
    prefix = run_keys.unfinished(ctx.keys, workflow)
    leases = ctx.keys.leases + escape(f"run/{escape(workflow)}/").encode()
    kinds = pb.RangeRequest
    request = m.read_only(
        (
            pb.RequestOp(
                request_range=kinds(key=start or prefix, range_end=prefix_end(prefix), limit=PAGE, keys_only=True)
            ),
            pb.RequestOp(
                request_range=kinds(key=leases, range_end=prefix_end(leases), limit=OWNED_MAX, keys_only=True)
            ),
        )
    )
    reply = yield from persist(TXN, request, now=ctx.now, until=until)
    found, owned = m.range_kvs(reply, 0), m.range_kvs(reply, 1)
    taken = {ctx.keys.name_of(kv.key) for kv in owned}
    names = [RunName(workflow, unescape(kv.key[len(prefix) :].decode("utf-8", "replace"))) for kv in found]
    more = found[-1].key + b"\0" if found and reply.responses[0].response_range.more else None
    return [name for name in names if name.lease not in taken], more


def waits(ctx: Context, name: RunName, until: float) -> Plan[bool]:
    """Whether a run waits for somebody to go on with it: neither finished nor stopped for a person, nor unreadable."""
    keys = RunKeys(ctx.keys, name)
    reply = yield from persist(TXN, m.read_only((m.get(keys.head),)), now=ctx.now, until=until)
    kvs = m.range_kvs(reply, 0)
    try:
        return bool(kvs) and read_head(kvs[0].value, keys.head.decode()).status == "running"
    except CorruptState:
        return False
