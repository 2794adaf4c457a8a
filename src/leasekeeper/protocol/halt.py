"""Halts: scopes in which no step may begin. Evidence of steps already begun still lands.

A scope is ``*`` (everything), a run (``order/order-42``), or the beginning of runs' names followed by ``*`` (``order/*``,
``order/2026-*``). Every intent compares, in its own transaction, that no halt exists; where there are some, that those which
it has just read, and which do not cover it, are all there are. So no intent commits after a halt that covers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasekeeper.errors import ConfigError
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol import run_keys
from leasekeeper.protocol.keys import check_name, check_note, escape, prefix_end, unescape
from leasekeeper.protocol.plan import RANGE, TXN, Plan, persist
from leasekeeper.protocol.receipt import seal, text_of, unsealed
from leasekeeper.run_errors import CorruptState
from leasekeeper.schema_errors import SchemaTooNew

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasekeeper.protocol.context import Context

__all__ = [
    "Halt",
    "Placed",
    "check_scope",
    "covering",
    "halt",
    "halts",
    "no_others",
    "none_at_all",
    "place",
    "read_all",
    "too_many",
    "unhalt",
]

FORMAT = 1
HALTS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Halt:
    """A scope in which no step may begin, who said so, why and when (``at_ms``, wall clock)."""

    scope: str
    reason: str
    by: str
    at_ms: int
    revision: int


def check_scope(scope: object) -> str:
    """``scope`` if it can be one, else ConfigError."""
    expected = "'*', a run as workflow/id, or the beginning of such followed by '*'"
    if not isinstance(scope, str):
        raise ConfigError(field="scope", value=scope, expected=expected)
    check_name(scope, "scope")
    if "*" in scope[:-1] or scope.count("/") > 1 or (scope[-1] != "*" and scope.count("/") != 1):
        raise ConfigError(field="scope", value=scope, expected=expected)
    return scope


def covers(scope: str, run: str) -> bool:
    """Whether a scope covers a run, given as its text."""
    return run.startswith(scope[:-1]) if scope.endswith("*") else run == scope


def covering(found: Iterable[Halt], run: str) -> Halt | None:
    """The first halt that covers a run."""
    return next((each for each in found if covers(each.scope, run)), None)


# ---------------------------------------------------------------- in the transaction of an intent


def all_of(prefix: bytes) -> pb.RequestOp:
    """Read every halt."""
    return pb.RequestOp(request_range=pb.RangeRequest(key=prefix, range_end=prefix_end(prefix), limit=HALTS_MAX))


def none_at_all(prefix: bytes) -> pb.Compare:
    """True when there is no halt."""
    return m.queue_empty(prefix)


def no_others(prefix: bytes, known: Iterable[Halt]) -> pb.Compare:
    """True while no halt was put since these were read. Over an empty range etcd compares as 0: also when all are gone."""
    latest = max((each.revision for each in known), default=0)
    kinds = pb.Compare
    return kinds(result=kinds.LESS, target=kinds.MOD, key=prefix, range_end=prefix_end(prefix), mod_revision=latest + 1)


def halts(kvs: Iterable[pb.KeyValue], prefix: bytes) -> list[Halt]:
    """The halts of a reply. One that cannot be read halts its scope all the same: when in doubt nothing begins."""
    return [_halt(kv, prefix) for kv in kvs]


def too_many(count: int) -> Halt:
    """What stands for halts that are more than are ever read: one of those may cover any run."""
    return Halt("*", f"{count} halts stand, more than the {HALTS_MAX} that are looked at: lift some", "", 0, 0)


def _halt(kv: pb.KeyValue, prefix: bytes) -> Halt:
    scope = unescape(kv.key[len(prefix) :].decode("utf-8", "replace"))
    try:
        body, _, _ = unsealed(kv.value, scope, "halt", FORMAT)
        reason, by, at_ms = str(body["reason"]), str(body["by"]), int(body["at"])
    except SchemaTooNew as error:
        reason, by, at_ms = error.why, "", 0
    except (CorruptState, KeyError, ValueError, TypeError):
        reason, by, at_ms = "its record cannot be read", "", 0
    return Halt(scope, reason, by, at_ms, kv.mod_revision)


# ---------------------------------------------------------------- plans


@dataclass(frozen=True, slots=True)
class Placed:
    """A halt that was asked for: the revision after which no step begins.

    ``covers``: how many unfinished runs its scope covers at that moment. ``kept``: the halt that stood there before, and stands.
    """

    revision: int
    covers: int
    kept: Halt | None = None


def place(ctx: Context, scope: str, reason: str, until: float, *, replace: bool = False) -> Plan[Placed]:
    """Halt a scope. Where that is halted already the earlier halt stands, with its reason, who said so and when.

    ``replace``: the newer word takes its place, without a gap in which a step could begin.
    """
    check_note(reason)
    prefix = run_keys.halts(ctx.keys)
    key = prefix + escape(check_scope(scope)).encode()
    body = f'{{"at":{int(ctx.wall() * 1000)},"by":{text_of(ctx.holder)},"reason":{text_of(reason)},"v":{FORMAT}}}'
    stored = seal(body.encode(), None)
    compare = () if replace else (m.unchanged(key, 0),)
    count = _covered(ctx, scope)
    request = pb.TxnRequest(compare=compare, success=(m.put(key, stored), count), failure=(m.get(key), count))
    reply = yield from persist(TXN, request, now=ctx.now, until=until)
    if reply.succeeded:
        return Placed(int(reply.header.revision), m.range_count(reply, 1))
    (standing,) = m.range_kvs(reply, 0)
    # The same bytes are those of this very request, whose first reply was lost.
    kept = None if standing.value == stored else _halt(standing, prefix)
    return Placed(standing.mod_revision, m.range_count(reply, 1), kept)


def halt(ctx: Context, scope: str, reason: str, until: float, *, replace: bool = False) -> Plan[int]:
    """Halt a scope: the revision after which no step in it begins; see `place`."""
    placed = yield from place(ctx, scope, reason, until, replace=replace)
    return placed.revision


def _covered(ctx: Context, scope: str) -> pb.RequestOp:
    """How many runs that are not finished a scope covers."""
    start = run_keys.unfinished_of_all(ctx.keys) + scope.removesuffix("*").encode()
    end = prefix_end(start) if scope.endswith("*") else b""
    return pb.RequestOp(request_range=pb.RangeRequest(key=start, range_end=end, count_only=True))


def unhalt(ctx: Context, scope: str, until: float) -> Plan[bool]:
    """End a halt: whether there was one of just this scope."""
    key = run_keys.halts(ctx.keys) + escape(check_scope(scope)).encode()
    unseen: list[None] = []
    reply = yield from persist(
        TXN,
        pb.TxnRequest(success=(m.delete(key),)),
        now=ctx.now,
        until=until,
        on_unknown=lambda: unseen.append(None),
    )
    return bool(reply.responses[0].response_delete_range.deleted) or bool(unseen)


def read_all(ctx: Context, until: float) -> Plan[list[Halt]]:
    """Every halt that stands, linearizably."""
    prefix = run_keys.halts(ctx.keys)
    request = pb.RangeRequest(key=prefix, range_end=prefix_end(prefix), limit=HALTS_MAX)
    reply = yield from persist(RANGE, request, now=ctx.now, until=until)
    return halts(reply.kvs, prefix)
