"""The part of the page about restores that needs a snapshot and a second etcd: its commands do what it says."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from leasekeeper import Keeper
from leasekeeper.testing import EtcdServer, binary, ports
from tests.raw import RawEtcd

PAGE = Path(__file__).parents[2] / "docs/how-to/restore-etcd.md"
KEY = "leasekeeper/default/identity"
# The etcd that the commands leave in the background ends with whoever typed them.
TYPED = """
set -eu
{first}
{second}
trap "kill $!" EXIT
{third}
"""


def commands() -> list[str]:
    """The three commands of the block, as they are typed; a line that is continued is one."""
    page = PAGE.read_text(encoding="utf-8")
    (block,) = re.findall(r"```console\n(\$ etcdutl snapshot restore .*?)```", page, flags=re.DOTALL)
    return [line.removeprefix("$ ") for line in block.replace("\\\n> ", "").strip().splitlines()]


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A directory for PATH with the tools of the etcd under test; before 3.5 etcdctl does what etcdutl does."""
    found = binary.find_etcd()
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "etcd").symlink_to(found.etcd)
    assert found.etcdctl is not None
    (folder / "etcdctl").symlink_to(found.etcdctl)
    if found.etcdutl is not None:
        (folder / "etcdutl").symlink_to(found.etcdutl)
    else:
        (folder / "etcdutl").write_text('#!/bin/sh\nexec etcdctl "$@"\n')
        (folder / "etcdutl").chmod(0o755)
    return folder


@pytest.mark.checkout
@pytest.mark.timeout(180)
def test_the_identity_comes_out_of_a_snapshot(tmp_path: Path, tools: Path) -> None:
    """B32: followed to the letter, but for its ports, the commands give just the key that the backup has."""
    there = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "ETCDCTL_API": "3"}
    patient = {**there, "ETCDCTL_DIAL_TIMEOUT": "60s", "ETCDCTL_COMMAND_TIMEOUT": "60s"}
    with EtcdServer(fsync=False) as server:
        with Keeper(server.endpoint) as keeper:
            keeper.begin("order", id="order-42", signer=None)
        ((identity,),) = [RawEtcd(server.endpoint).keys(KEY)]
        save = ["etcdctl", "--endpoints", server.endpoint, "snapshot", "save", "backup.db"]
        subprocess.run(save, cwd=tmp_path, env=patient, check=True, capture_output=True, timeout=90)
    first, second, third = commands()
    client, peer = (str(ports.free_port()) for _ in range(2))
    script = TYPED.format(first=first, second=second, third=third).replace("12379", client).replace("12380", peer)
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=patient, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "identity").read_bytes() == identity.value
