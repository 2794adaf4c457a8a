"""An etcd that is full can be read, of whatever release: what an operator looks at that night is all there."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from leasekeeper import Keeper
from leasekeeper.testing import EtcdServer
from tests.commands import call
from tests.raw import RawEtcd


class Unfinished(Exception):
    """Ends a block without ending its run."""


def test_all_that_is_looked_at(namespace: str, tmp_path: Path) -> None:
    """C42: leases and runs are shown, explained, verified and exported while nothing can be written."""
    with (
        EtcdServer(fsync=False, quota_bytes=2 * 1024 * 1024) as own,
        Keeper(own.endpoint, namespace=namespace) as keeper,
    ):
        lease = keeper.acquire("job", ttl=30)
        with suppress(Unfinished), keeper.run("order", id="o-1", signer=None, quota=2**40) as run:
            run.do("a", lambda: 1)
            raise Unfinished
        RawEtcd(own.endpoint).fill()
        export = str(tmp_path / "o-1.jsonl")
        for words in (
            ("ls",),
            ("show", "job"),
            ("runs", "ls"),
            ("runs", "show", "order/o-1"),
            ("runs", "explain", "order/o-1"),
            ("runs", "verify", "order/o-1"),
            ("runs", "state", "order/o-1"),
            ("runs", "export", "order/o-1", "--out", export),
            ("halt", "--list"),
        ):
            done = call(*words, endpoint=own.endpoint, namespace=namespace)
            assert done.code == 0, (words, done.err)
        assert call("halt", "order/*", "--reason", "full", endpoint=own.endpoint, namespace=namespace).code == 69
        lease.check()
