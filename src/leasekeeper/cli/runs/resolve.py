"""``leasekeeper runs resolve``: an operator's word on a step in doubt, or on a run that is quarantined or was set back."""

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
from leasekeeper.protocol.history import head_of
from leasekeeper.protocol.resolve import resolve
from leasekeeper.protocol.run_keys import RunKeys
from leasekeeper.runs.anchor import FileAnchor
from leasekeeper.runs.operator import accepted, remembered, word
from leasekeeper.runs.signer import signer_from_env

if TYPE_CHECKING:
    from leasekeeper.protocol.chain import Point
    from leasekeeper.protocol.head import Head
    from leasekeeper.protocol.run_keys import RunName
    from leasekeeper.run_records import Receipt
    from leasekeeper.runtime.core import Core

OF_THE_RUN = (
    "--lift-quarantine and --accept-rewind are about the whole run: say them without STEP, --applied or --not-applied"
)


@lease_command("resolve")
@run_argument()
@click.argument("step", required=False)
@click.option(
    "--applied", "yes", is_flag=True, help="What the step does has happened: it is done, and not called again."
)
@click.option("--not-applied", "no", is_flag=True, help="It has not happened: the step will be called again.")
@click.option("--lift-quarantine", is_flag=True, help="Let a run be tried again that was put aside.")
@click.option(
    "--accept-rewind",
    "files",
    metavar="FILE",
    multiple=True,
    help="An anchor's file that remembers more of the run than etcd has: that is given up for lost. May be repeated.",
)
@click.option("--evidence", required=True, metavar="TEXT", help="What you saw, and where; it is recorded.")
@click.option("--result", metavar="JSON", help="With --applied: what the step returns from now on; default null.")
def command(
    settings: Settings,
    run: RunName,
    step: str | None,
    yes: bool,
    no: bool,
    lift_quarantine: bool,
    files: tuple[str, ...],
    evidence: str,
    result: str | None,
) -> int:
    """Say that STEP of RUN was applied, or that it was not; it is recorded with your evidence, and the run can go on.

    Applied: the step is done and will not be called again. Not applied: it will be called again, with the same idempotency key.
    The record is signed with the key of LEASEKEEPER_SIGNING_KEY or LEASEKEEPER_SIGNING_KEY_FILE if the run's records are.
    """
    applied = _applied(yes=yes, no=no)
    _check(step, applied, result, of_run=lift_quarantine + bool(files))
    if not evidence.strip():
        raise ConfigError(field="--evidence", value=evidence, expected="what you saw, and where")
    signer, value, anchors = signer_from_env(), _result(result), [FileAnchor(file) for file in files]
    with settings.keeper() as keeper:
        core = keeper._core
        keys = RunKeys(core.ctx.keys, run)
        known = _remembered(core, keys, anchors, settings.ask_s) if anchors else ()
        said = word(step, applied=applied, evidence=evidence, result=value, signer=signer, rewound=known)
        receipt: Receipt = core.run(resolve(core.ctx, keys, said, core.until(settings.ask_s)))
        accepted(anchors, receipt)
    if settings.as_json:
        print_json({"run": run.text, "step": step, "applied": applied, "seq": receipt.seq, "hash": receipt.hash})
    else:
        told = _sentence(step, applied, known)
        click.echo(one_line(f"record {receipt.seq} of {run.text}: {told}; start the program again"))
    return DONE


def _applied(*, yes: bool, no: bool) -> bool | None:
    """What was said of the step; None: nothing. The word is recorded for good, so of two the last one must not simply win."""
    if yes and no:
        raise click.UsageError("say --applied or --not-applied, not both")
    return True if yes else False if no else None


def _check(step: str | None, applied: bool | None, result: str | None, *, of_run: int) -> None:
    if of_run and (step is not None or applied is not None):
        raise click.UsageError(OF_THE_RUN)
    if of_run > 1:
        raise click.UsageError("say one of --lift-quarantine and --accept-rewind")
    if not of_run and step is None:
        raise click.UsageError("say which STEP, or --lift-quarantine")
    if not of_run and applied is None:
        raise click.UsageError("say --applied or --not-applied")
    if result is not None and applied is not True:
        raise click.UsageError("--result goes with --applied")


def _result(text: str | None) -> Any:
    try:
        return json.loads(text) if text is not None else None
    except (ValueError, RecursionError):
        raise ConfigError(field="--result", value=text, expected="JSON, such as '{\"id\": 7}' or null") from None


def _remembered(core: Core, keys: RunKeys, anchors: list[FileAnchor], ask_s: float) -> tuple[Point, ...]:
    head: Head = core.run(head_of(core.ctx, keys, core.until(ask_s)))
    return remembered(anchors, None, keys.name.text, head.gen)


def _sentence(step: str | None, applied: bool | None, rewound: tuple[Point, ...]) -> str:
    if rewound:
        return f"what was remembered, up to record {rewound[-1][0]}, is given up for lost"
    if step is None:
        return "the quarantine is lifted"
    return f"step {step!r} {'is done' if applied else 'will be called again, with the same idempotency key'}"
