"""``leasekeeper dev``: a real local etcd in the foreground, to try things on."""

from __future__ import annotations

from pathlib import Path
from signal import Signals
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import click

from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE
from leasekeeper.cli.interrupts import Interrupts
from leasekeeper.cli.output import json_line
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.text import last_said
from leasekeeper.errors import ConfigError, Unavailable

if TYPE_CHECKING:
    from leasekeeper.testing import EtcdServer

USUAL_PORT = 2379
LOOK_S = 0.5
START_S = 60.0


@lease_command("dev", timeout_help="How long etcd may take to start; default 60s.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=None,
    metavar="PORT",
    help=f"Client port on 127.0.0.1; default {USUAL_PORT}, or any free one if that is taken.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    metavar="DIR",
    help="Keep the data here; default: a temporary directory that is removed at the end.",
)
def command(settings: Settings, port: int | None, data_dir: Path | None) -> int:
    """Run a real etcd on this machine until Ctrl-C.

    For trying things out, not for production: one member, no TLS, no authentication, only on 127.0.0.1. The etcd program is
    LEASEKEEPER_ETCD, or etcd on PATH, or the one that the extra leasekeeper[embedded] installs, or a container.
    """
    from leasekeeper.testing import EtcdServer

    etcd = EtcdServer(client_port=_port(port), data_dir=data_dir, ready_timeout_s=settings.timeout_s or START_S)
    if data_dir is not None:
        _check_writable(data_dir)
    with Interrupts() as interrupts, etcd:
        interrupts.queue()
        _tell(settings, etcd)
        while not isinstance(interrupts.take(LOOK_S), Signals):
            if not etcd.is_running:
                said = last_said(etcd.log_tail(1))
                raise Unavailable(f"etcd ended by itself; the end of its log: {said}", operation="start")
    return DONE


def _port(asked: int | None) -> int | None:
    from leasekeeper.testing.ports import is_free

    if asked is not None and not is_free(asked):
        raise ConfigError(field="--port", value=asked, expected="a port that no other program listens on")
    return asked if asked is not None else USUAL_PORT if is_free(USUAL_PORT) else None


def _check_writable(data_dir: Path) -> None:
    """Whether etcd can write there is found by doing it: rights alone do not tell."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with TemporaryFile(dir=data_dir):
            pass
    except OSError as error:
        expected = f"a directory that can be written ({error.strerror})"
        raise ConfigError(field="--data-dir", value=str(data_dir), expected=expected) from None


def _tell(settings: Settings, etcd: EtcdServer) -> None:
    if settings.as_json:
        json_line({"endpoint": etcd.endpoint, "version": etcd.version, "pid": etcd.pid, "data_dir": str(etcd.data_dir)})
        return
    click.echo(f"etcd {etcd.version} serves at {etcd.endpoint}; in another terminal:\n")
    click.echo(f"    export LEASEKEEPER_ENDPOINTS={etcd.endpoint}\n")
    click.echo("Ctrl-C ends it.")
