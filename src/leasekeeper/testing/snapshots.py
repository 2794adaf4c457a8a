"""Save and restore a server's data with etcd's own control programs.

Saving is etcdctl's in every release. Restoring is etcdutl's from 3.6 on and etcdctl's before 3.5;
3.5 has both. Which one to use is asked of the programs that lie beside the server, not of a
version.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from leasekeeper.errors import ConfigError, Unavailable
from leasekeeper.testing.binary import EtcdBinary
from leasekeeper.testing.health import TLSFiles
from leasekeeper.testing.process import clean_environment

COMMAND_TIMEOUT_S = 120.0


def save(binary: EtcdBinary, endpoint: str, path: Path, *, tls: TLSFiles | None, user: str | None) -> Path:
    """Write a snapshot of the server at ``endpoint`` to ``path`` and return it."""
    if binary.etcdctl is None:
        raise _missing(binary, "etcdctl", "save a snapshot")
    scheme = "https" if tls else "http"
    command = [binary.etcdctl, f"--endpoints={scheme}://{endpoint}", *_tls_as_flags(tls)]
    # The password goes in by the environment: a command line is for everybody to read.
    secret = {"ETCDCTL_USER": user} if user else {}
    _run([*command, "snapshot", "save", str(path)], secret)
    return path


def restoring_program(binary: EtcdBinary) -> str:
    """Return the program beside the server that can restore; ConfigError when there is none."""
    if binary.etcdutl is not None:
        return binary.etcdutl
    if binary.etcdctl is not None and _can_restore(binary.etcdctl):
        return binary.etcdctl
    raise _missing(binary, "etcdutl", "restore a snapshot")


def restore(program: str, path: Path, data_dir: Path, place: Sequence[str], extra_args: Sequence[str]) -> None:
    """Make ``data_dir`` anew from the snapshot at ``path``; ``place`` names the member."""
    if not path.is_file():
        raise ConfigError(field="path", value=str(path), expected="a snapshot file")
    _run([program, "snapshot", "restore", str(path), f"--data-dir={data_dir}", *place, *extra_args])


def _can_restore(etcdctl: str) -> bool:
    return "--data-dir" in _attempt([etcdctl, "snapshot", "restore", "--help"], {}).stdout


def _tls_as_flags(tls: TLSFiles | None) -> list[str]:
    if tls is None:
        return []
    return [f"--cacert={tls.ca}", f"--cert={tls.client_cert}", f"--key={tls.client_key}"]


def _missing(binary: EtcdBinary, program: str, purpose: str) -> ConfigError:
    return ConfigError(
        f"cannot {purpose}: there is no fitting {program} beside {binary.etcd}",
        field=program,
        value=None,
        expected=f"{program} of the same release in the same directory",
    )


def _run(command: list[str], secret: dict[str, str] | None = None) -> None:
    done = _attempt(command, secret or {})
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        what = f"{Path(command[0]).name} snapshot failed with status {done.returncode}"
        raise Unavailable(f"{what}: {said}", operation="snapshot", detail=said)


def _attempt(command: list[str], secret: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [os.fspath(part) for part in command],
        env={**clean_environment(), "ETCDCTL_API": "3", **secret},
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
