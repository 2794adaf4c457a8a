"""What tells a process from its children, where the kernel helps and where it does not."""

from __future__ import annotations

import mmap
import os
import sys

import pytest

from leasekeeper.runtime import fork


@pytest.mark.skipif(sys.platform != "linux", reason="the wiped page is Linux's")
def test_linux_gives_a_page_that_children_find_empty() -> None:
    """The byte at the gate is one of memory, and true here."""
    assert isinstance(fork.HERE, mmap.mmap)
    assert fork.HERE[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="without fork there is nothing to tell")
def test_where_no_page_can_be_wiped_the_process_id_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that does not know how to wipe pages costs speed, not safety: another process id shuts the gate."""
    monkeypatch.setattr(fork, "MADV_WIPEONFORK", 9999)
    here = fork._make_here()
    assert not isinstance(here, mmap.mmap)
    assert here[0]
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert not here[0]
    here[0] = 1
    assert here[0]


def test_a_system_without_forks_has_nothing_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no fork the gate reads a byte that never changes."""
    monkeypatch.delattr(os, "fork", raising=False)
    here = fork._make_here()
    here[0] = 1
    assert isinstance(here, bytearray)
    assert here[0]
