"""``leasekeeper doctor``: whether this etcd is fit for leases, can be reached, and lets this user."""

from __future__ import annotations

from typing import Any

import click

from leasekeeper.cli.checkup.facts import EndpointFact, Facts
from leasekeeper.cli.checkup.findings import Finding, Severity, judge
from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE, NEGATIVE, UNAVAILABLE
from leasekeeper.cli.output import print_json, print_table, styled
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.text import one_line, plural

PROBE_S = 3.0
STYLES = {Severity.OK: "green", Severity.NOTE: "", Severity.WARNING: "yellow", Severity.ERROR: "bold red"}


@lease_command("doctor", timeout_help="How long to wait for each answer; default 3s.")
def command(settings: Settings) -> int:
    """Examine etcd, the connection and the rights, and say what to do.

    Exits with 0 when nothing needs action, with 1 when something does (warnings and errors), with 69 when no endpoint
    answers. Changes nothing. A user whose role covers only the namespace is told what it may not see.
    """
    arguments = settings.keeper_arguments()
    from leasekeeper.cli.checkup.probe import examine

    with settings.errors_named():
        facts = examine(arguments, settings.timeout_s or PROBE_S)
    findings = judge(facts)
    code = _code(facts, findings)
    if settings.as_json:
        print_json(_shape(facts, findings, code))
    else:
        _show(findings)
    return code


def _code(facts: Facts, findings: list[Finding]) -> int:
    if not any(fact.told or fact.denied for fact in facts.endpoints):
        return UNAVAILABLE
    return NEGATIVE if any(finding.severity.needs_action for finding in findings) else DONE


def _show(findings: list[Finding]) -> None:
    rows = []
    for finding in findings:
        what = styled(finding.what)
        if finding.do:
            what.append(f"\n→ {finding.do}", "bold" if finding.severity.needs_action else "dim")
        rows.append((styled(finding.severity.value, STYLES[finding.severity]), styled(finding.where), what))
    print_table(("RESULT", "WHERE", "WHAT"), rows)
    count = sum(finding.severity.needs_action for finding in findings)
    click.echo(f"\n{plural(count, 'finding')} to act on." if count else "\nNothing to act on.")


def _shape(facts: Facts, findings: list[Finding], code: int) -> dict[str, Any]:
    return {
        "ok": code == DONE,
        "findings": [
            {"severity": one.severity.value, "where": one.where, "what": one_line(one.what), "do": one.do or None}
            for one in findings
        ],
        "endpoints": [_endpoint(fact) for fact in facts.endpoints],
        "revision": facts.revision or None,
        "epoch": facts.epoch,
        "identity": facts.identity or None,
    }


def _endpoint(fact: EndpointFact) -> dict[str, Any]:
    return {
        "endpoint": fact.endpoint,
        "reachable": fact.told or fact.denied,
        "version": fact.version or None,
        "member": f"{fact.member_id:x}" if fact.member_id else None,
        "leader": f"{fact.leader_id:x}" if fact.leader_id else None,
        "learner": fact.learner if fact.told else None,
        "db_size": fact.db_size if fact.told else None,
        "db_quota": fact.db_quota or None,
        "latency_ms": None if fact.latency_s is None else round(fact.latency_s * 1000, 3),
        "clock_ahead_s": None if fact.clock_ahead_s is None else round(fact.clock_ahead_s, 1),
    }
