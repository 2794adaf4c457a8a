"""``leasekeeper runs keygen``: a key that signs records, into a file that is kept secret."""

from __future__ import annotations

import os
from typing import cast

import click

from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE
from leasekeeper.cli.output import note, print_json
from leasekeeper.cli.settings import Settings
from leasekeeper.errors import ConfigError
from leasekeeper.runs.durable import flush, write_all
from leasekeeper.runs.signer import FILE_VARIABLE, new_key


@lease_command("keygen", timeout_help="Not used here: nothing is asked that could be waited for.")
@click.option("--out", required=True, metavar="FILE", help="Where the private key goes: a new file, mode 0600.")
@click.option(
    "--kind",
    type=click.Choice(["ed25519", "hmac"]),
    default="ed25519",
    metavar="ed25519|hmac",
    help="Default ed25519, whose records can be verified by everybody; hmac needs no further package.",
)
@click.option("--id", "key_id", metavar="ID", help="Names the key; default: made from it.")
def command(settings: Settings, out: str, kind: str, key_id: str | None) -> int:
    """Make a new key: the private one goes into FILE, the public one is printed, for `runs verify --keys`.

    FILE must not be there yet. An HMAC key has no public part: who verifies needs FILE itself. Needs no etcd.
    """
    private, public = new_key("hmac" if kind == "hmac" else "ed25519", key_id)
    _write(out, private)
    name = private.split(":")[1]
    if settings.as_json:
        print_json({"file": out, "kind": kind, "key_id": name, "public": public or None})
    elif public:
        click.echo(public)
    note(f"key {name} is in {out}: set {FILE_VARIABLE}={os.path.abspath(out)} where runs are made")
    if not public:
        note("an HMAC key signs and verifies: keep the file as secret wherever it is needed")
    return DONE


def _write(path: str, private: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except (OSError, ValueError) as error:
        why = cast("str", error.strerror) if isinstance(error, OSError) else "it has a NUL in it"
        raise ConfigError(field="--out", value=path, expected=f"a new file that can be written: {why}") from None
    try:
        write_all(fd, f"{private}\n".encode())
        flush(fd)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(fd)
