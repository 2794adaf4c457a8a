"""``leasekeeper runs resolve``: an operator's word on a step in doubt, or on a run that is quarantined."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE
from leasekeeper.cli.output import print_json
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.text import one_line
from leasekeeper.cli.values import run_argument
from leasekeeper.errors import ConfigError
from leasekeeper.protocol.resolve import resolve
from leasekeeper.protocol.run_keys import RunKeys
from leasekeeper.runs.operator import word

if TYPE_CHECKING:
    from leasekeeper.protocol.run_keys import RunName
    from leasekeeper.run_records import Receipt


@lease_command("resolve")
@run_argument()
@click.argument("step", required=False)
@click.option("--applied/--not-applied", "applied", default=None, help="Whether what the step does happened.")
@click.option("--lift-quarantine", is_flag=True, help="Let a run be tried again that was put aside.")
@click.option("--evidence", required=True, metavar="TEXT", help="What you saw, and where; it is recorded.")
@click.option("--result", metavar="JSON", help="With --applied: what the step returns from now on; default null.")
def command(
    settings: Settings,
    run: RunName,
    step: str | None,
    applied: bool | None,
    lift_quarantine: bool,
    evidence: str,
    result: str | None,
) -> int:
    """Say that STEP of RUN was applied, or that it was not; it is recorded with your evidence, and the run can go on.

    Applied: the step is done and will not be called again. Not applied: it will be called again, with the same idempotency key.
    The record is signed with the key of LEASEKEEPER_SIGNING_KEY or LEASEKEEPER_SIGNING_KEY_FILE if the run's records are.
    """
    _check(step, applied, lift_quarantine, result)
    said = word(step, applied=applied, evidence=evidence, result=_result(result), signer="env")
    with settings.keeper() as keeper:
        core = keeper._core
        keys = RunKeys(core.ctx.keys, run)
        receipt: Receipt = core.run(resolve(core.ctx, keys, said, core.until(settings.ask_s)))
    if settings.as_json:
        print_json({"run": run.text, "step": step, "applied": applied, "seq": receipt.seq, "hash": receipt.hash})
    else:
        click.echo(one_line(f"record {receipt.seq} of {run.text}: {_sentence(step, applied)}"))
    return DONE


def _check(step: str | None, applied: bool | None, lift: bool, result: str | None) -> None:
    if lift and (step is not None or applied is not None):
        raise click.UsageError(
            "--lift-quarantine is about the whole run: say it without STEP, --applied or --not-applied"
        )
    if not lift and step is None:
        raise click.UsageError("say which STEP, or --lift-quarantine")
    if not lift and applied is None:
        raise click.UsageError("say --applied or --not-applied")
    if result is not None and applied is not True:
        raise click.UsageError("--result goes with --applied")


def _result(text: str | None) -> Any:
    try:
        return json.loads(text) if text is not None else None
    except (ValueError, RecursionError):
        raise ConfigError(field="--result", value=text, expected="JSON, such as '{\"id\": 7}' or null") from None


def _sentence(step: str | None, applied: bool | None) -> str:
    if step is None:
        return "the quarantine is lifted; start the program again"
    if applied:
        return f"step {step!r} is done; start the program again"
    return f"step {step!r} will be called again, with the same idempotency key; start the program again"
