"""What a life of a run says of the process that it runs in."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from leasekeeper._version import __version__
from leasekeeper.runs.options import opening, options


def facts_of(pid: int = 7) -> tuple[str, dict[str, object]]:
    """A life's own name, and its facts."""
    made = opening(options("order", id="1", signer=None), claim="c1", lease_id=0xAB, host="box", pid=pid)
    return made.life, dict(made.facts)


def test_a_life_says_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A2: boot, pod, image, start, lease, process and release of each life; pod and image as the deployment names them."""
    monkeypatch.setenv("LEASEKEEPER_POD_UID", "0f3c")
    monkeypatch.setenv("LEASEKEEPER_IMAGE", "shop@sha256:1")
    _, facts = facts_of()
    started_at = facts.pop("started_at")
    assert isinstance(started_at, int)
    assert 0 < started_at <= time.time() * 1000
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    assert facts == {
        "boot_id": boot_id.read_text(encoding="ascii").strip() if boot_id.exists() else facts["boot_id"],
        "claim": "c1",
        "host": "box",
        "image": "shop@sha256:1",
        "lease": "ab",
        "pid": 7,
        "pod_uid": "0f3c",
        "version": __version__,
    }


def test_what_is_not_told_is_empty_and_what_is_endless_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A2: without a pod or image these are empty; a value without end does not make a record without end."""
    for name in ("LEASEKEEPER_POD_UID", "LEASEKEEPER_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    _, facts = facts_of()
    assert (facts["pod_uid"], facts["image"]) == ("", "")
    monkeypatch.setenv("LEASEKEEPER_IMAGE", "x" * 100_000)
    assert len(str(facts_of()[1]["image"])) == 200


def test_no_two_lives_have_one_name() -> None:
    """A2: also two lives of one process are told apart."""
    assert len({facts_of(os.getpid())[0] for _ in range(1000)}) == 1000
