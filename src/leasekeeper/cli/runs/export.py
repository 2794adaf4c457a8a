"""``leasekeeper runs export``: a run as a file that can be verified without etcd."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE, KEPT, NEGATIVE
from leasekeeper.cli.output import note, print_json
from leasekeeper.cli.runs.source import EtcdRun, read_exported
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.text import one_line, plural
from leasekeeper.cli.values import run_argument
from leasekeeper.errors import ConfigError
from leasekeeper.protocol.run_keys import RunKeys
from leasekeeper.protocol.run_look import Compacted
from leasekeeper.run_errors import ExportKept
from leasekeeper.runs.blobs import DirectoryBlobs
from leasekeeper.runs.export import verify_export
from leasekeeper.runs.exporting import export_run
from leasekeeper.runs.signer import FILE_VARIABLE, signer_from_env

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasekeeper.protocol.bundle import Footer
    from leasekeeper.protocol.run_keys import RunName
    from leasekeeper.protocol.verdict import Verdict
    from leasekeeper.runtime.core import Core
    from leasekeeper.signing import SigningKey


@lease_command("export")
@run_argument()
@click.option("--out", metavar="FILE", help="Write this file, readable by its owner alone; default: standard output.")
@click.option(
    "--blobs", metavar="DIR", help="The blob store in which its large results are kept, if they are not in etcd."
)
def command(settings: Settings, run: RunName, out: str | None, blobs: str | None) -> int:
    """Write RUN as it stands now into a file that can be verified without etcd.

    JSON lines: its records byte by byte, the large values that they name, and a footer that shows whether anything was cut
    off; it is signed with the key of LEASEKEEPER_SIGNING_KEY or LEASEKEEPER_SIGNING_KEY_FILE, where there is one. What is
    damaged is exported as it is; the exit code is then 1. An older export in FILE is replaced only by a good one that has all
    that it has; else it is kept, and the exit code is 73.
    """
    if out is None and sys.stdout.isatty():
        raise click.UsageError("results may be anything, also secrets: say --out FILE, or send the output into one")
    key = signer_from_env()
    store = DirectoryBlobs(blobs) if blobs is not None else None
    with settings.keeper() as keeper:
        core = keeper._core
        keys = RunKeys(core.ctx.keys, run)
        try:
            with _naming(out or ""):
                footer = export_run(core, keys, sys.stdout.buffer if out is None else out, key, blobs=store)
        except ExportKept as kept:
            return _kept(settings, run, kept, out or "")
        unsigned_of = _key_of(core, run, settings.ask_s) if key is None else ""
    verdict = None
    if out is not None:
        with read_exported(out, "--out") as stream:
            verdict = verify_export(stream, run=(run.workflow, run.id))
        _tell(settings, run, out, footer, key, verdict)
    if unsigned_of:
        note(
            f"its records are signed by key {unsigned_of!r}, and this export is not: it serves to look at, but `runs prune` does"
            f" not take it, and `runs verify --keys` calls it bad; set {FILE_VARIABLE} and export it again"
        )
    return DONE if verdict is None or verdict.ok else NEGATIVE


def _tell(settings: Settings, run: RunName, out: str, footer: Footer, key: SigningKey | None, verdict: Verdict) -> None:
    """What is in the file. No keys were asked for: that the signatures are right is for `runs verify` to say."""
    why = _sentence(verdict)
    if settings.as_json:
        print_json(
            {
                "run": run.text,
                "file": out,
                "records": footer.count,
                "seq": footer.seq,
                "hash": footer.hash,
                "sha256": footer.sha256,
                "key_id": key.key_id if key is not None else None,
                "ok": verdict.ok,
                "why": why,
            }
        )
    else:
        signed = f"signed by {key.key_id}" if key is not None else "not signed"
        click.echo(one_line(f"{plural(footer.count, 'record')} of {run.text} are in {out}, {signed}: {why}"))
    if not verdict.ok:
        note("what is damaged was exported as it is; do not prune this run")


def _sentence(verdict: Verdict) -> str:
    """What was found by hashes alone, which is all that is looked at here."""
    if not verdict.ok or not verdict.verified:
        return verdict.why
    return f"each is what its hash says, up to record {verdict.verified}, the last one"


def _kept(settings: Settings, run: RunName, kept: ExportKept, out: str) -> int:
    why = kept.expected.partition(": ")[2] or kept.message
    if settings.as_json:
        print_json({"run": run.text, "file": out, "kept": True, "ok": False, "why": why})
    note(f"{out} was left as it is: {why}; to have the new export beside it, say another --out")
    return KEPT


def _key_of(core: Core, run: RunName, ask_s: float) -> str:
    """The key that has signed the run's last record; "": none, or it cannot be told."""
    try:
        now = EtcdRun(core, run, ask_s).facts.now
    except Compacted:
        return ""
    return now.key_id if now is not None else ""


@contextmanager
def _naming(out: str) -> Iterator[None]:
    """Have what is wrong with the file named by its option."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        expected = f"a file that can be written: {error.strerror}"
        raise ConfigError(field="--out", value=os.path.basename(out), expected=expected) from None
