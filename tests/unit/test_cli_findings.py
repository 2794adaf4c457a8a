"""What the doctor makes of the facts: each finding appears for its cause, and only then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leasekeeper.cli.checkup.facts import AlarmFact, EndpointFact, Facts, MemberFact, Rights
from leasekeeper.cli.checkup.findings import Finding, Severity, judge
from leasekeeper.cli.checkup.versions import faults_of, parse
from leasekeeper.protocol.keys import Claim

MIB = 1024 * 1024


def endpoint(number: int, **changed: object) -> EndpointFact:
    """A member in good health."""
    fact = EndpointFact(
        f"10.0.0.{number}:2379",
        version="3.6.16",
        cluster_id=0xC,
        member_id=number,
        leader_id=1,
        db_size=20 * MIB,
        db_quota=2048 * MIB,
        latency_s=0.001,
        clock_ahead_s=0.4,
    )
    return replace(fact, **changed)  # type: ignore[arg-type]


def member(number: int, *, learner: bool = False) -> MemberFact:
    """A member as the cluster lists it."""
    return MemberFact(number, f"m{number}", (f"https://10.0.0.{number}:2379",), learner)


HEALTHY = Facts(
    endpoints=(endpoint(1), endpoint(2), endpoint(3)),
    namespace="default",
    tls=True,
    user="agent",
    members=(member(1), member(2), member(3)),
    alarms=(),
    rights=Rights(),
    revision=500_000,
    compacted=True,
    epoch=0,
)


def odd(**changed: object) -> Claim:
    """A claim that needs a person."""
    return replace(Claim("job/a", "key", 17, 17, 17, 0), **changed)  # type: ignore[arg-type]


def acted_on(facts: Facts) -> list[Finding]:
    """The findings that somebody must act on."""
    return [finding for finding in judge(facts) if finding.severity.needs_action]


def only(facts: Facts) -> Finding:
    """The one finding to act on."""
    (finding,) = acted_on(facts)
    return finding


def test_a_healthy_cluster_needs_nothing() -> None:
    """Three good members behind TLS and login give nothing to act on, and nothing to note either."""
    assert {finding.severity for finding in judge(HEALTHY)} == {Severity.OK}


def test_whatever_needs_action_says_what_to_do() -> None:
    """A finding to act on is never without advice."""
    for facts, _, _ in CAUSES:
        assert all(finding.do for finding in acted_on(facts))


CAUSES = [
    (replace(HEALTHY, endpoints=(endpoint(1, version="3.3.27"),)), Severity.ERROR, "too old"),
    (replace(HEALTHY, endpoints=(endpoint(1, version="3.5.22"),)), Severity.WARNING, "revoked already"),
    (replace(HEALTHY, endpoints=(endpoint(1, version="3.6.4"),)), Severity.WARNING, "revoked already"),
    (
        replace(HEALTHY, endpoints=(endpoint(1, refusal="refused", version=""), endpoint(2))),
        Severity.ERROR,
        "cannot be",
    ),
    (replace(HEALTHY, endpoints=(endpoint(1), endpoint(2, learner=True))), Severity.WARNING, "is a learner"),
    (replace(HEALTHY, endpoints=(endpoint(1, leader_id=0), endpoint(2))), Severity.ERROR, "knows no leader"),
    (replace(HEALTHY, endpoints=(endpoint(1, db_size=1700 * MIB),)), Severity.WARNING, "1700 of 2048 MiB"),
    (replace(HEALTHY, endpoints=(endpoint(1, db_size=1700 * MIB, db_quota=0),)), Severity.WARNING, "default quota"),
    (replace(HEALTHY, endpoints=(endpoint(1, latency_s=0.8),)), Severity.WARNING, "a read takes 0.80 s"),
    (replace(HEALTHY, endpoints=(endpoint(1), endpoint(2, cluster_id=0xD))), Severity.ERROR, "different clusters"),
    (replace(HEALTHY, members=(member(1), member(2))), Severity.WARNING, "2 voting members"),
    (replace(HEALTHY, members=tuple(map(member, range(4)))), Severity.WARNING, "no safer than 3"),
    (replace(HEALTHY, alarms=(AlarmFact("NOSPACE", 1),)), Severity.ERROR, "NOSPACE on member 1"),
    (replace(HEALTHY, alarms=(AlarmFact("CORRUPT", 2),)), Severity.ERROR, "CORRUPT on member 2"),
    (replace(HEALTHY, compacted=False), Severity.WARNING, "never in 500000 revisions"),
    (replace(HEALTHY, tls=False), Severity.WARNING, "not encrypted"),
    (replace(HEALTHY, rights=Rights(read="permission denied")), Severity.ERROR, "may not read"),
    (replace(HEALTHY, rights=Rights(write="permission denied")), Severity.ERROR, "may not write"),
    (replace(HEALTHY, trouble="no quorum"), Severity.ERROR, "no quorum"),
    (replace(HEALTHY, odd=(odd(),)), Severity.ERROR, "has no lease"),
    (replace(HEALTHY, odd=(odd(lease_id=5, flag="corrupt"),)), Severity.WARNING, "corrupt"),
]


@pytest.mark.parametrize(("facts", "severity", "words"), CAUSES, ids=[words for _, _, words in CAUSES])
def test_each_cause_has_its_finding(facts: Facts, severity: Severity, words: str) -> None:
    """C46: One thing wrong in an otherwise healthy cluster gives that one finding to act on."""
    finding = only(facts)
    assert finding.severity is severity
    assert words in finding.what


NOTES = [
    (replace(HEALTHY, endpoints=(endpoint(1, version="custom"),)), "cannot be read"),
    (replace(HEALTHY, endpoints=(endpoint(1, clock_ahead_s=-90.0),)), "90 s behind"),
    (
        replace(HEALTHY, endpoints=(endpoint(1, refusal="permission denied", denied=True),)),
        "not allowed to see its status",
    ),
    (replace(HEALTHY, endpoints=(endpoint(1),)), "reach 1 of 3"),
    (replace(HEALTHY, members=(member(1),)), "1 voting member"),
    (replace(HEALTHY, members=None), "not allowed to see them"),
    (replace(HEALTHY, alarms=None), "not allowed to see them"),
    (replace(HEALTHY, members=None, silence="took too long"), "not told: took too long"),
    (replace(HEALTHY, compacted=False, revision=400), "too early to tell"),
    (replace(HEALTHY, user=None), "whoever reaches etcd"),
    (replace(HEALTHY, auth_off=True), "authentication is off"),
    (replace(HEALTHY, odd=(odd(lease_id=5, flag="newer"),)), "newer leasekeeper"),
]


@pytest.mark.parametrize(("facts", "words"), NOTES, ids=[words for _, words in NOTES])
def test_what_is_only_worth_knowing_is_a_note(facts: Facts, words: str) -> None:
    """C54: What a limited role may not see, and what is merely unusual, is said and does not fail the check."""
    assert not acted_on(facts)
    assert any(words in finding.what for finding in judge(facts) if finding.severity is Severity.NOTE)


def test_learners_do_not_count_as_voters() -> None:
    """Three voters and a learner are an odd number."""
    facts = replace(HEALTHY, members=(*HEALTHY.members, member(4, learner=True)))  # type: ignore[misc]
    assert any("3 voting members and 1 learner: 1 may be away" in finding.what for finding in judge(facts))


def test_a_local_connection_needs_no_encryption() -> None:
    """Plain text to this machine alone is no finding."""
    assert not acted_on(replace(HEALTHY, tls=False, loopback=True))


def test_hostile_text_is_made_safe() -> None:
    """A name, a version or an answer of a server cannot act on the terminal."""
    evil = "\x1b[2J\u202e"
    facts = replace(
        HEALTHY,
        endpoints=(endpoint(1, version=evil), endpoint(2, refusal=evil)),
        user=evil,
        trouble=evil,
        rights=Rights(read=evil),
        odd=(odd(name=evil), odd(name=evil, lease_id=1, flag="corrupt")),
        members=(MemberFact(1, evil, (evil,), False), member(2), member(3)),
    )
    for finding in judge(facts):
        assert "\x1b" not in f"{finding.where}{finding.what}{finding.do}"
        assert "\u202e" not in f"{finding.where}{finding.what}{finding.do}"


def test_many_odd_claims_are_bounded() -> None:
    """A thousand odd claims do not make a thousand findings."""
    findings = judge(replace(HEALTHY, odd=(odd(),) * 1000))
    assert len(findings) < 40
    assert any("990 more claims" in finding.what for finding in findings)


def test_advice_names_the_claim_to_remove() -> None:
    """The advice on a claim without a lease can be copied: name quoted, token given."""
    finding = only(replace(HEALTHY, odd=(odd(name="job a"),)))
    assert "leasekeeper break 'job a' --token 17" in finding.do


@pytest.mark.parametrize(
    ("version", "count"),
    [
        ("3.4.30", 2),
        ("3.4.31", 1),
        ("3.4.38", 0),
        ("3.5.12", 2),
        ("3.5.13", 1),
        ("3.5.23", 0),
        ("3.6.4", 1),
        ("3.6.5", 0),
        ("3.7.0", 0),
        ("v3.6.0-rc.1", 1),
    ],
)
def test_faults_end_with_the_release_that_mends_them(version: str, count: int) -> None:
    """C46: The known lease faults of a release, at each boundary."""
    release = parse(version)
    assert release is not None
    assert len(faults_of(release)) == count


def test_a_full_member_that_does_not_tell_its_quota_is_not_called_ok() -> None:
    """C42: beside NOSPACE the default quota is no fact: the member that is full is not said to have room, the others are."""
    small = [endpoint(number, db_size=5 * MIB, db_quota=0) for number in (1, 2, 3)]
    facts = replace(HEALTHY, endpoints=tuple(small), alarms=(AlarmFact("NOSPACE", small[0].member_id),))
    about = [(finding.severity, finding.what) for finding in judge(facts) if "MiB" in finding.what]
    assert about[0] == (
        Severity.WARNING,
        "its database has 5 MiB, and reached its quota, which this version does not tell",
    )
    assert [severity for severity, _ in about[1:]] == [Severity.OK, Severity.OK]


def test_an_etcd_without_a_quota_is_never_too_full() -> None:
    """A quota that was turned off, which etcd tells as less than none, is not one that is used up."""
    facts = replace(HEALTHY, endpoints=(endpoint(1, db_size=9000 * MIB, db_quota=-1), endpoint(2), endpoint(3)))
    assert not acted_on(facts)
    assert any("9000 MiB, and no quota" in finding.what for finding in judge(facts))
