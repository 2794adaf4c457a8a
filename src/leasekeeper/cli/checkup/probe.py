"""Asks everything that the doctor wants to know; whatever is refused becomes part of the facts."""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from email.utils import parsedate_to_datetime
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, Any

from leasekeeper.cli.checkup.facts import AlarmFact, EndpointFact, Facts, MemberFact, Rights
from leasekeeper.cli.look import read_queues
from leasekeeper.errors import AuthError, LeasekeeperError
from leasekeeper.keeper import Keeper
from leasekeeper.protocol import epoch as epochs
from leasekeeper.protocol import etcd_pb2 as pb
from leasekeeper.protocol import messages as m
from leasekeeper.protocol import run_keys
from leasekeeper.protocol.identity import read_identity
from leasekeeper.protocol.keys import prefix_end
from leasekeeper.protocol.plan import ALARM, MEMBER_LIST, RANGE, STATUS, TXN, Cause, Fault, Plan, ask, persist
from leasekeeper.run_errors import ILLEGIBLE
from leasekeeper.wire.channel import TLS, Endpoint, parse_endpoints

if TYPE_CHECKING:
    from leasekeeper.protocol.context import Context
    from leasekeeper.protocol.keys import Claim
    from leasekeeper.runtime.core import Core

__all__ = ["examine"]

DEFAULT_ENDPOINTS = "127.0.0.1:2379"
READS = 5
NAMES_MAX = 5_000
HTTP_TIMEOUT_S = 2.0
ALARMS: dict[int, str] = {pb.ALARM_NOSPACE: "NOSPACE", pb.ALARM_CORRUPT: "CORRUPT"}


def examine(arguments: Mapping[str, Any], timeout_s: float) -> Facts:
    """Everything about the etcd that a keeper with these arguments would use. ConfigError when none could be made."""
    endpoints = parse_endpoints(arguments.get("endpoints", DEFAULT_ENDPOINTS))
    tls: TLS | None = arguments.get("tls")
    Keeper(**arguments).close()  # says what is wrong with them together
    with ExitStack() as stack:
        keepers = [stack.enter_context(Keeper(**{**arguments, "endpoints": _url(endpoint)})) for endpoint in endpoints]
        cores = [keeper._core for keeper in keepers]
        facts = asyncio.run(_statuses(endpoints, cores, timeout_s))
        facts = [_timed(fact, core, timeout_s) for fact, core in zip(facts, cores, strict=True)]
        facts = [replace(f, clock_ahead_s=_clock_ahead_s(f, e, tls)) for f, e in zip(facts, endpoints, strict=True)]
        found = Facts(
            endpoints=tuple(facts),
            namespace=cores[0].ctx.keys.namespace,
            tls=tls is not None or any(endpoint.secure for endpoint in endpoints),
            loopback=all(_is_loopback(endpoint.host) for endpoint in endpoints),
            user=arguments.get("user"),
        )
        if (core := _spokesman(facts, cores)) is not None:
            found = _namespace(core, _cluster(core, found, timeout_s), timeout_s)
        return replace(found, auth_off=any(core.engine.login.off for core in cores))


def _spokesman(facts: Sequence[EndpointFact], cores: Sequence[Core]) -> Core | None:
    """Whom to ask about the cluster: one that answers, and a learner, who serves nobody, only where there is no other."""
    answering = [(fact.learner, index) for index, fact in enumerate(facts) if fact.told or fact.denied]
    return cores[min(answering)[1]] if answering else None


def _url(endpoint: Endpoint) -> str:
    scheme = "" if endpoint.secure is None else "https://" if endpoint.secure else "http://"
    return scheme + endpoint.target


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# ---------------------------------------------------------------- each endpoint


async def _statuses(endpoints: Sequence[Endpoint], cores: Sequence[Core], timeout_s: float) -> list[EndpointFact]:
    return list(await asyncio.gather(*(_status(e, c, timeout_s) for e, c in zip(endpoints, cores, strict=True))))


async def _status(endpoint: Endpoint, core: Core, timeout_s: float) -> EndpointFact:
    try:
        reply: pb.StatusResponse = await core.arun(ask(STATUS, pb.StatusRequest(), timeout_s))
    except LeasekeeperError as error:
        denied = isinstance(error, AuthError)
        return EndpointFact(endpoint.target, getattr(error, "detail", "") or str(error), denied=denied)
    return EndpointFact(
        endpoint.target,
        version=reply.version,
        cluster_id=reply.header.cluster_id,
        member_id=reply.header.member_id,
        leader_id=reply.leader,
        learner=reply.isLearner,
        db_size=reply.dbSize,
        db_quota=reply.dbSizeQuota,
    )


def _timed(fact: EndpointFact, core: Core, timeout_s: float) -> EndpointFact:
    """How long a linearizable read takes there: the median of a few."""
    if not fact.told or fact.learner:
        return fact
    taken = []
    for _ in range(READS):
        begun = core.now()
        try:
            core.run(ask(RANGE, pb.RangeRequest(key=core.ctx.keys.epoch, count_only=True), timeout_s))
        except LeasekeeperError:
            return fact
        taken.append(core.now() - begun)
    return replace(fact, latency_s=median(taken))


def _clock_ahead_s(fact: EndpointFact, endpoint: Endpoint, tls: TLS | None) -> float | None:
    """How far the server's wall clock is ahead of ours, to about a second, by the date in an HTTP answer."""
    if not fact.told:
        return None
    secure = tls is not None or endpoint.secure
    try:
        connection = (
            http.client.HTTPSConnection(endpoint.host, endpoint.port, timeout=HTTP_TIMEOUT_S, context=_ssl(tls))
            if secure
            else http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=HTTP_TIMEOUT_S)
        )
        try:
            begun = time.time()
            connection.request("GET", "/version")
            date = connection.getresponse().headers.get("Date", "")
            return parsedate_to_datetime(date).timestamp() - (begun + time.time()) / 2
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError, TypeError):
        return None  # not every etcd speaks HTTP on this port; it is for information only


def _ssl(tls: TLS | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(tls.ca) if tls is not None and tls.ca else None)
    if tls is not None and tls.cert is not None and tls.key is not None:
        context.load_cert_chain(str(tls.cert), str(tls.key))
    return context


# ---------------------------------------------------------------- the cluster, the namespace


def _cluster(core: Core, facts: Facts, timeout_s: float) -> Facts:
    members: tuple[MemberFact, ...] | None = None
    alarms: tuple[AlarmFact, ...] | None = None
    silence = ""
    try:
        listed = core.run(ask(MEMBER_LIST, pb.MemberListRequest(), timeout_s)).members
        members = tuple(MemberFact(one.ID, one.name, tuple(one.clientURLs), one.isLearner) for one in listed)
    except LeasekeeperError as error:
        silence = "" if isinstance(error, AuthError) else str(error)
    try:
        raised = core.run(ask(ALARM, pb.AlarmRequest(action=pb.AlarmRequest.GET), timeout_s)).alarms
        alarms = tuple(AlarmFact(ALARMS.get(one.alarm, f"alarm {one.alarm}"), one.memberID) for one in raised)
    except LeasekeeperError as error:
        silence = silence or ("" if isinstance(error, AuthError) else str(error))
    return replace(facts, members=members, alarms=alarms, silence=silence)


def _namespace(core: Core, facts: Facts, timeout_s: float) -> Facts:
    ctx, until = core.ctx, core.until(timeout_s)
    try:
        rights: Rights = core.run(_rights(ctx, timeout_s))
        if rights.read is not None:
            return replace(facts, rights=rights)
        revision, compacted = core.run(_history(ctx, timeout_s))
        epoch: int = core.run(epochs.read(ctx, until)).number
        odd = tuple(
            claim for _, claims in islice(read_queues(core, "", until), NAMES_MAX) for claim in claims if _is_odd(claim)
        )
        identity, why = core.run(_identity(ctx, until))
    except LeasekeeperError as error:
        return replace(facts, trouble=str(error))
    found = replace(facts, rights=rights, revision=revision, compacted=compacted, epoch=epoch, odd=odd)
    return replace(found, identity=identity, identity_why=why)


def _is_odd(claim: Claim) -> bool:
    return claim.lease_id == 0 or claim.flag in ("newer", "corrupt")


def _rights(ctx: Context, timeout_s: float) -> Plan[Rights]:
    """Whether the keys may be read and written. Nothing is written: etcd checks both branches, and one is never taken."""
    probe = ctx.keys.queue("doctor") + b"probe"
    read = m.read_only((m.first_of(ctx.keys.leases), m.get(ctx.keys.epoch)))
    write = pb.TxnRequest(compare=(m.created_at(probe, -1),), success=(m.put(probe, b""),))
    may_read = yield from _refusal(read, timeout_s)
    may_write = yield from _refusal(write, timeout_s)
    return Rights(may_read, may_write)


def _identity(ctx: Context, until: float) -> Plan[tuple[str | None, str]]:
    """The number of the namespace, "" while there is none, and why it cannot be told. Its secret is not kept."""
    key, runs = run_keys.identity(ctx.keys), run_keys.runs(ctx.keys)
    of_runs = pb.RequestOp(request_range=pb.RangeRequest(key=runs, range_end=prefix_end(runs), limit=1, keys_only=True))
    reply = yield from persist(TXN, m.read_only((m.get(key), of_runs)), now=ctx.now, until=until)
    kvs = m.range_kvs(reply, 0)
    if not kvs:
        return ("", "") if not m.range_kvs(reply, 1) else (None, "it is not there, and runs are")
    try:
        return read_identity(kvs[0].value, "it").uuid, ""
    except ILLEGIBLE as error:
        return None, error.why


def _refusal(request: pb.TxnRequest, timeout_s: float) -> Plan[str | None]:
    try:
        yield from ask(TXN, request, timeout_s)
    except Fault as fault:
        if fault.cause is Cause.NO_SPACE:
            return None  # the alarm says it
        if fault.cause not in (Cause.DENIED, Cause.LOGIN_NEEDED, Cause.LOGIN_REFUSED):
            raise
        return fault.text
    return None


def _history(ctx: Context, timeout_s: float) -> Plan[tuple[int, bool]]:
    """The present revision, and whether the first one has been compacted away."""
    now: pb.RangeResponse = yield from ask(RANGE, pb.RangeRequest(key=ctx.keys.epoch, count_only=True), timeout_s)
    try:
        yield from ask(RANGE, pb.RangeRequest(key=ctx.keys.epoch, count_only=True, revision=1), timeout_s)
    except Fault as fault:
        if fault.cause is not Cause.COMPACTED:
            raise
        return now.header.revision, True
    return now.header.revision, False
