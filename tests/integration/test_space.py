"""How full a real etcd is, by its own word."""

from __future__ import annotations

import pytest

from leasekeeper import Keeper
from leasekeeper.protocol.limits import DEFAULT_QUOTA, check_space, space
from leasekeeper.run_errors import QuotaReserved
from leasekeeper.testing import EtcdServer

MIB = 1024 * 1024
QUOTA = 16 * MIB


def test_a_real_member_tells_how_full_it_is(namespace: str) -> None:
    """A fresh member has room; where the operator allows no more than is used already, no step is begun."""
    with EtcdServer(fsync=False, quota_bytes=QUOTA) as own, Keeper(own.endpoint, namespace=namespace) as keeper:
        core = keeper._core
        before = core.run(space(core.ctx, None, core.until(10.0)))
        assert before is not None
        # Releases before 3.6 do not tell their quota.
        assert before.quota in (QUOTA, DEFAULT_QUOTA)
        check_space(before)
        with pytest.raises(QuotaReserved):
            check_space(core.run(space(core.ctx, before.used, core.until(10.0))))
