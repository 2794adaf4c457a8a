"""``leasekeeper runs resolve``: an operator's word on a step in doubt, or on a run that is quarantined, set back or gone."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE
from leasekeeper.cli.output import print_json
from leasekeeper.cli.runs.anchors import anchor_in
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.text import one_line
from leasekeeper.cli.values import run_argument
from leasekeeper.errors import ConfigError, LeasekeeperError
from leasekeeper.protocol.run_keys import RunKeys
from leasekeeper.protocol.run_look import facts
from leasekeeper.protocol.whereabouts import whereabouts
from leasekeeper.runs.blobs import DirectoryBlobs
from leasekeeper.runs.operator import PLACEHOLDERS, Resolved, carried_out, resolving, word
from leasekeeper.runs.signer import signer_from_env

if TYPE_CHECKING:
    from leasekeeper.protocol.run_keys import RunName
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
    help="An anchor's file that remembers more of the run than etcd has, or a run that is gone: that is given up for lost. May"
    " be repeated.",
)
@click.option(
    "--blobs",
    "directory",
    metavar="DIR",
    help="With --result: where STEP's large result was kept outside of etcd; given anew if it is lost there.",
)
@click.option("--evidence", required=True, metavar="TEXT", help="What you saw, and where; it is recorded.")
@click.option(
    "--result",
    metavar="JSON",
    help="With --applied: what the step returns from now on; default null, unless it is done already without a result.",
)
def command(
    settings: Settings,
    run: RunName,
    step: str | None,
    yes: bool,
    no: bool,
    lift_quarantine: bool,
    files: tuple[str, ...],
    directory: str | None,
    evidence: str,
    result: str | None,
) -> int:
    """Say that STEP of RUN was applied, or that it was not; it is recorded with your evidence, and the run can go on.

    Applied: the step is done and will not be called again. Not applied: it will be called again, with the same idempotency key.
    The record is signed with the key of LEASEKEEPER_SIGNING_KEY or LEASEKEEPER_SIGNING_KEY_FILE if the run's records are.
    Of a run that is gone from etcd as a whole, the anchor alone keeps your word, and the run can be begun again.
    """
    applied = _applied(yes=yes, no=no)
    _check(step, applied, result, of_run=lift_quarantine + bool(files))
    if evidence.strip() in ("", *PLACEHOLDERS):
        raise ConfigError(field="--evidence", value=evidence, expected="what you saw, and where")
    said = word(step, applied=applied, evidence=evidence, result=_result(result), signer=signer_from_env())
    said = replace(said, result_said=result is not None)
    anchors = [anchor_in(file, "--accept-rewind") for file in files]
    blobs = DirectoryBlobs(directory) if directory is not None else None
    with settings.keeper(person=True) as keeper:
        core, keys = keeper._core, RunKeys(keeper._core.ctx.keys, run)
        done = carried_out(core, resolving(core, keys, said, anchors, blobs=blobs, timeout_s=settings.ask_s))
        told = _begin_again if done.receipt is None else _next
        next_ = "" if settings.as_json else told(core, keys, settings.ask_s)
    if settings.as_json:
        record = (done.receipt.seq, done.receipt.hash) if done.receipt is not None else (0, None)
        print_json({"run": run.text, "step": step, "applied": applied, "seq": record[0], "hash": record[1]})
    else:
        click.echo(one_line(_sentence(run, step, applied, done, next_)))
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


def _sentence(run: RunName, step: str | None, applied: bool | None, done: Resolved, next_: str) -> str:
    if done.receipt is None:
        what = f"{run.text} is not in etcd, and what was remembered of it, up to record {done.given_up}, is given up for lost"
        return f"{what}: {next_}"
    return f"record {done.receipt.seq} of {run.text}: {_recorded(step, applied, done)}; {next_}"


def _next(core: Core, keys: RunKeys, ask_s: float) -> str:
    """What is to be done now that the word is recorded."""
    try:
        head = core.run(whereabouts(core.ctx, keys, core.until(ask_s))).head
    except LeasekeeperError:
        head = None  # the word is recorded all the same
    match head.status if head is not None else "running":
        case "quarantined":
            lift = f"leasekeeper runs resolve {shlex.quote(keys.name.text)} --lift-quarantine --evidence TEXT"
            return f"the run is put aside: lift that once what ended its lives is mended ({lift}), then start the program again"
        case "in_doubt" if head is not None:
            steps = ", ".join(map(repr, head.doubts))
            return f"say the same of what is in doubt still, {steps}, then start the program again"
        case "finished":
            return "the run is finished, and stays so"
        case _:
            return "start the program again"


def _begin_again(core: Core, keys: RunKeys, ask_s: float) -> str:
    """What is to be done with a run that is gone and given up for lost."""
    begin = (
        "begin it again with its input; its steps get the idempotency keys that they had, if the namespace's identity"
    )
    try:
        number = core.run(facts(core.ctx, keys, core.until(ask_s))).namespace_id
    except LeasekeeperError:
        return f"{begin} is that of then"
    if number:
        return f"{begin}, {number}, is that of then: the `ns` of its records in an export"
    return (
        "the namespace has no identity any more: put that back from a backup before the run is begun again, or its steps get"
        " other idempotency keys, and all that it had done is applied once more"
    )


def _recorded(step: str | None, applied: bool | None, done: Resolved) -> str:
    if done.given_up:
        return f"what was remembered, up to record {done.given_up}, is given up for lost"
    if step is None:
        return "the quarantine is lifted"
    return f"step {step!r} {'is done' if applied else 'will be called again, with the same idempotency key'}"
