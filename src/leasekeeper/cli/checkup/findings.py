"""What the facts mean: findings, each with what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from leasekeeper.cli.checkup.facts import EndpointFact, Facts
from leasekeeper.cli.checkup.versions import OLDEST, faults_of, parse
from leasekeeper.cli.settings import words_about
from leasekeeper.cli.text import clip, one_line, plural
from leasekeeper.protocol.limits import DEFAULT_QUOTA, QUOTA_SHARE
from leasekeeper.timing import Timing

__all__ = ["Finding", "Severity", "judge"]

MIB = 1024 * 1024
# So many revisions are soon written; before, nothing can be said about compaction.
YOUNG_REVISIONS = 10_000
CLOCK_S = 5.0
ODD_SHOWN_MAX = 10


class Severity(Enum):
    """How much a finding matters. From WARNING on somebody must act."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"

    @property
    def needs_action(self) -> bool:
        """Whether it makes the doctor's exit code 1."""
        return self in (Severity.WARNING, Severity.ERROR)


@dataclass(frozen=True, slots=True)
class Finding:
    """``where`` it was found, ``what``, and what to ``do`` ("" for nothing)."""

    severity: Severity
    where: str
    what: str
    do: str = ""


def judge(facts: Facts) -> list[Finding]:
    """All findings, in the order in which one looks for a fault: reach it, trust it, be allowed, then the rest."""
    return [finding for check in CHECKS for finding in check(facts)]


# ---------------------------------------------------------------- each endpoint


def _endpoints(facts: Facts) -> Iterator[Finding]:
    for fact in facts.endpoints:
        full = any(each.kind == "NOSPACE" and each.member_id == fact.member_id for each in facts.alarms or ())
        yield from _endpoint(fact, full)


def _endpoint(fact: EndpointFact, full: bool) -> Iterator[Finding]:
    where = fact.endpoint
    if fact.denied:
        yield Finding(Severity.NOTE, where, "answers, but this user is not allowed to see its status")
        return
    if not fact.told:
        do = "see that etcd runs and that the address, the firewall and the certificates are right"
        yield Finding(Severity.ERROR, where, f"cannot be reached: {one_line(fact.refusal)}", do)
        return
    delay = "" if fact.latency_s is None else f", answers in {fact.latency_s * 1000:.1f} ms"
    yield Finding(Severity.OK, where, f"etcd {clip(fact.version) or 'of unknown version'}{delay}")
    yield from _version(fact)
    yield from _role(fact)
    yield from _size(fact, full)
    yield from _pace(fact)


def _version(fact: EndpointFact) -> Iterator[Finding]:
    release = parse(fact.version)
    if release is None:
        yield Finding(Severity.NOTE, fact.endpoint, "its version cannot be read, so its known faults are not known")
        return
    if release[:2] < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        yield Finding(
            Severity.ERROR, fact.endpoint, f"etcd {clip(fact.version)} is too old", f"upgrade to {oldest} or later"
        )
        return
    for fault in faults_of(release):
        what = f"etcd {clip(fact.version)} {fault.what} ({fault.cover})"
        yield Finding(Severity.WARNING, fact.endpoint, what, f"upgrade: mended in {fault.first_good}")


def _role(fact: EndpointFact) -> Iterator[Finding]:
    if fact.learner:
        do = "take it off the endpoints until it is promoted; the other endpoints are used meanwhile"
        yield Finding(Severity.WARNING, fact.endpoint, "is a learner, which does not serve clients", do)
    elif fact.leader_id == 0:
        do = "bring a majority of the members back"
        yield Finding(Severity.ERROR, fact.endpoint, "knows no leader, so nothing can be acquired or proven", do)


def _size(fact: EndpointFact, full: bool) -> Iterator[Finding]:
    if full and not fact.db_quota:  # what is assumed of its quota is wrong, then
        what = f"its database has {fact.db_size / MIB:.0f} MiB, and reached its quota, which this version does not tell"
        yield Finding(
            Severity.WARNING, fact.endpoint, what, "give the quota that it was started with to runs as quota="
        )
        return
    if fact.db_quota < 0:  # --quota-backend-bytes below 0 turns it off
        yield Finding(Severity.OK, fact.endpoint, f"its database has {fact.db_size / MIB:.0f} MiB, and no quota")
        return
    quota = fact.db_quota or DEFAULT_QUOTA
    told = "quota" if fact.db_quota else "default quota; this version does not tell its own"
    what = f"its database has {fact.db_size / MIB:.0f} of {quota / MIB:.0f} MiB ({told})"
    if fact.db_size >= QUOTA_SHARE * quota:
        do = "compact and defragment it, or raise --quota-backend-bytes, before it takes no more writes"
        yield Finding(Severity.WARNING, fact.endpoint, what, do)
    else:
        yield Finding(Severity.OK, fact.endpoint, what)


def _pace(fact: EndpointFact) -> Iterator[Finding]:
    late_s = Timing().beat_late_s
    if fact.latency_s is not None and fact.latency_s > late_s / 2:
        do = "look for slow disks or networks, or use a larger TTL"
        what = (
            f"a read takes {fact.latency_s:.2f} s; a heartbeat of a {Timing().ttl:g} s lease is late after {late_s:g} s"
        )
        yield Finding(Severity.WARNING, fact.endpoint, what, do)
    ahead_s = fact.clock_ahead_s
    if ahead_s is not None and abs(ahead_s) >= CLOCK_S:
        way = "ahead of" if ahead_s > 0 else "behind"
        what = f"its clock is about {abs(ahead_s):.0f} s {way} this machine's: ages may look wrong, leases do not depend on it"
        yield Finding(Severity.NOTE, fact.endpoint, what, "let both follow NTP")


# ---------------------------------------------------------------- the cluster


def _cluster(facts: Facts) -> Iterator[Finding]:
    told = [fact for fact in facts.endpoints if fact.told]
    if len({fact.cluster_id for fact in told}) > 1:
        ids = ", ".join(f"{fact.endpoint} in {fact.cluster_id:x}" for fact in told)
        do = "list the members of one cluster only: two clusters would both grant the same name"
        yield Finding(Severity.ERROR, "endpoints", f"they belong to different clusters: {ids}", do)
    if facts.members is None:
        if told:
            yield Finding(Severity.NOTE, "members", _not_told(facts))
        return
    yield from _members(facts, len({fact.member_id for fact in told}))


def _not_told(facts: Facts) -> str:
    return f"not told: {one_line(facts.silence)}" if facts.silence else "this user is not allowed to see them"


def _members(facts: Facts, reached: int) -> Iterator[Finding]:
    voting = sum(not member.learner for member in facts.members or ())
    learners = len(facts.members or ()) - voting
    shown = plural(voting, "voting member") + (f" and {plural(learners, 'learner')}" if learners else "")
    if voting == 1:
        what = f"{shown}: when it is away, nothing can be acquired or proven"
        yield Finding(Severity.NOTE, "members", what, "run three members where that matters")
    elif voting % 2 == 0:
        do = "have an odd number: three or five"
        yield Finding(
            Severity.WARNING, "members", f"{shown}: no safer than {voting - 1}, and a majority is harder to get", do
        )
    else:
        yield Finding(Severity.OK, "members", f"{shown}: {(voting - 1) // 2} may be away")
    if voting > 1 and reached < voting:
        urls = ", ".join(
            clip(url) for member in facts.members or () for url in member.client_urls if not member.learner
        )
        what = f"the endpoints reach {reached} of {voting} voting members"
        yield Finding(Severity.NOTE, "endpoints", what, f"list all of them, unless a load balancer does: {urls}")


def _alarms(facts: Facts) -> Iterator[Finding]:
    if facts.alarms is None:
        if any(fact.told for fact in facts.endpoints):
            yield Finding(Severity.NOTE, "alarms", _not_told(facts))
        return
    cures = {
        "NOSPACE": "compact, defragment each member, then: etcdctl alarm disarm. If that makes no room, restart each with a"
        " larger --quota-backend-bytes, disarm, then prune runs. Break no lease: its owner may have something to record yet",
        "CORRUPT": "replace this member's data from the others; do not use it until then",
    }
    for alarm in facts.alarms:
        what = f"{alarm.kind} on member {alarm.member_id:x}"
        yield Finding(Severity.ERROR, "alarms", what, cures.get(alarm.kind, "see: etcdctl alarm list"))
    if not facts.alarms:
        yield Finding(Severity.OK, "alarms", "none")


def _compaction(facts: Facts) -> Iterator[Finding]:
    if facts.compacted is None:
        return
    if facts.compacted:
        yield Finding(Severity.OK, "compaction", "old revisions have been compacted")
    elif facts.revision < YOUNG_REVISIONS:
        what = f"not yet, at revision {facts.revision}; too early to tell whether it is on"
        yield Finding(Severity.NOTE, "compaction", what)
    else:
        do = "start etcd with --auto-compaction-retention=1h: without it queues get slower and the database only grows"
        what = (
            f"never in {facts.revision} revisions: automatic compaction seems to be off"
            " (etcd does not tell, but revision 1 can still be read)"
        )
        yield Finding(Severity.WARNING, "compaction", what, do)


# ---------------------------------------------------------------- this client


def _connection(facts: Facts) -> Iterator[Finding]:
    if facts.tls:
        yield Finding(Severity.OK, "connection", "TLS")
    elif facts.loopback:
        yield Finding(Severity.OK, "connection", "not encrypted, and on this machine only")
    else:
        do = "use https:// endpoints with --cacert"
        yield Finding(Severity.WARNING, "connection", "not encrypted: whoever is on the way can read and change it", do)
    if facts.rights is None:
        return
    if facts.user is None:
        yield Finding(Severity.NOTE, "login", "none: whoever reaches etcd can change every claim")
    elif facts.auth_off:
        do = "turn it on with: etcdctl auth enable"
        yield Finding(Severity.NOTE, "login", f"user {clip(facts.user)!r} is not asked for: authentication is off", do)
    else:
        yield Finding(Severity.OK, "login", f"as {clip(facts.user)!r}")


def _rights(facts: Facts) -> Iterator[Finding]:
    if facts.trouble:
        yield Finding(
            Severity.ERROR,
            "namespace",
            one_line(facts.trouble),
            "bring a majority of the members back, or find out why they do not answer",
        )
    if facts.rights is None:
        return
    do = f"grant its role readwrite on the prefix leasekeeper/{clip(facts.namespace)}/"
    for word, refusal in (("read", facts.rights.read), ("write", facts.rights.write)):
        if refusal is not None:
            yield Finding(
                Severity.ERROR, "rights", f"this user may not {word} the namespace's keys: {one_line(refusal)}", do
            )
    if facts.rights.read is None and facts.rights.write is None:
        yield Finding(Severity.OK, "rights", f"may read and write namespace {clip(facts.namespace)!r}")


def _identity(facts: Facts) -> Iterator[Finding]:
    if facts.identity:
        what = f"its identity is {facts.identity}, the `ns` of its runs' records; idempotency keys come from it"
        yield Finding(Severity.OK, "namespace", what)
    if facts.identity_why:
        what = f"its identity cannot be told: {one_line(facts.identity_why)}: its runs cannot go on"
        yield Finding(Severity.ERROR, "namespace", what, "put it back from a backup of etcd before any run is begun")


def _claims(facts: Facts) -> Iterator[Finding]:
    for claim in facts.odd[:ODD_SHOWN_MAX]:
        where = clip(claim.name)
        if not claim.lease_id:
            name = claim.name if claim.name.isprintable() else "NAME"
            words = words_about("break", name, token=str(claim.token))
            do = f"when it owns the name: leasekeeper {shlex.join(words)}"
            yield Finding(Severity.ERROR, where, f"claim {claim.token} has no lease: it never goes by itself", do)
        elif claim.flag == "newer":
            what = f"claim {claim.token} was written by a newer leasekeeper"
            yield Finding(Severity.NOTE, where, what, "upgrade this one to read it; it keeps its place all the same")
        else:
            what = f"the record of claim {claim.token} is corrupt; it keeps its place all the same"
            yield Finding(Severity.WARNING, where, what, "find out who writes below the namespace's keys")
    if len(facts.odd) > ODD_SHOWN_MAX:
        what = f"{plural(len(facts.odd) - ODD_SHOWN_MAX, 'more claim')} like these"
        yield Finding(Severity.NOTE, "claims", what, "see: leasekeeper ls")


CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _endpoints,
    _cluster,
    _alarms,
    _compaction,
    _connection,
    _rights,
    _identity,
    _claims,
)
