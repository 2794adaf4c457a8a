"""Choosing ports for servers under test."""

from __future__ import annotations

import pytest

from leasekeeper.errors import Unavailable
from leasekeeper.testing import ports


def test_ports_are_below_the_ephemeral_range() -> None:
    """No outgoing connection can be given the port of a server that is restarting."""
    drawn = {ports.free_port() for _ in range(50)}
    assert min(drawn) >= ports.LOWEST
    assert max(drawn) < ports._ephemeral_start()
    assert len(drawn) > 40


def test_a_port_in_use_is_seen() -> None:
    """A listener's port is not free, and listening on it again is refused with its number."""
    with ports.listener() as sock:
        port = sock.getsockname()[1]
        assert not ports.is_free(port)
        with pytest.raises(Unavailable, match=str(port)):
            ports.listener(port)
    assert ports.is_free(port)
