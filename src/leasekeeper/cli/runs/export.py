"""``leasekeeper runs export``: a run as a file that can be verified without etcd."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE, NEGATIVE
from leasekeeper.cli.output import note, print_json
from leasekeeper.cli.runs.source import read_exported
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.text import one_line, plural
from leasekeeper.cli.values import run_argument
from leasekeeper.errors import ConfigError
from leasekeeper.protocol.run_keys import RunKeys
from leasekeeper.runs.blobs import DirectoryBlobs
from leasekeeper.runs.export import verify_export
from leasekeeper.runs.exporting import export_run
from leasekeeper.runs.signer import signer_from_env

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasekeeper.protocol.run_keys import RunName


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
    damaged is exported as it is; the exit code is then 1.
    """
    if out is None and sys.stdout.isatty():
        raise click.UsageError("results may be anything, also secrets: say --out FILE, or send the output into one")
    key = signer_from_env()
    store = DirectoryBlobs(blobs) if blobs is not None else None
    with settings.keeper() as keeper:
        core = keeper._core
        keys = RunKeys(core.ctx.keys, run)
        if out is None:
            export_run(core, keys, sys.stdout.buffer, key, blobs=store)
            return DONE
        with _naming(out):
            footer = export_run(core, keys, out, key, blobs=store)
    with read_exported(out, "--out") as stream:
        verdict = verify_export(stream, run=(run.workflow, run.id))
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
                "why": verdict.why,
            }
        )
    else:
        signed = f"signed by {key.key_id}" if key is not None else "not signed"
        click.echo(one_line(f"{plural(footer.count, 'record')} of {run.text} are in {out}, {signed}: {verdict.why}"))
    if not verdict.ok:
        note("what is damaged was exported as it is; do not prune this run")
    return DONE if verdict.ok else NEGATIVE


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
