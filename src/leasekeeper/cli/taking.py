"""Taking a lease for ``acquire`` and ``run``: what to tell while it is waited for, and when the time is up."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from leasekeeper.cli import phrases
from leasekeeper.cli.output import note
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.values import NOTE, TTL
from leasekeeper.errors import LeasekeeperError, NotAcquired
from leasekeeper.protocol import inspect

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasekeeper.keeper import Keeper, Lease
    from leasekeeper.protocol.keys import Claim

__all__ = ["WAIT_LEASE", "lease_options", "take"]

WAIT_LEASE = "Wait at most so long for the lease, then exit with 75; 0 tries once; default: as long as it takes."

# Whoever waits longer than this wants to know for whom.
PATIENCE_S = 1.0
ASK_OWNER_S = 2.0


def lease_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a claim."""
    ttl = click.option(
        "--ttl",
        type=TTL,
        metavar="DURATION",
        default=None,
        help="How long etcd keeps the claim after the last heartbeat; default 10s.",
    )
    remark = click.option("--note", "remark", type=NOTE, default="", metavar="TEXT", help="Shown to those who look.")
    return ttl(remark(function))


def take(settings: Settings, keeper: Keeper, name: str, *, ttl: float | None, remark: str) -> Lease:
    """Own ``name``; NotAcquired says who owns it and how to remove that claim."""
    try:
        with _told_while_waiting(keeper, name):
            return keeper.acquire(name, ttl=ttl, timeout=settings.timeout_s, note=remark)
    except NotAcquired as error:
        owner = error.owner or _owner(keeper, name)
        raise NotAcquired(
            _refused(settings, name, error.waited_s, owner), name=name, owner=owner, waited_s=error.waited_s
        ) from None


def _refused(settings: Settings, name: str, waited_s: float, owner: Claim | None) -> str:
    text = f"{name!r} was not acquired in {waited_s:.1f} s: "
    if owner is None:
        return f"{text}its owner could not be read; look with: {settings.command_line('show', name)}"
    remove = settings.command_line("break", name, token=str(owner.token))
    return f"{text}owned by {phrases.who(owner)}; to remove that claim: {remove}"


def _owner(keeper: Keeper, name: str) -> Claim | None:
    core = keeper._core
    try:
        owner: Claim | None = core.run(inspect.owner(core.ctx, name, core.until(ASK_OWNER_S)))
    except LeasekeeperError:
        return None
    return owner


@contextmanager
def _told_while_waiting(keeper: Keeper, name: str) -> Iterator[None]:
    """Say on a terminal who is waited for, when it takes long. Scripts and cron jobs are not told."""
    done = threading.Event()

    def tell() -> None:
        if not done.wait(PATIENCE_S) and (owner := _owner(keeper, name)) is not None and not done.is_set():
            note(f"waiting for {name!r}, owned by {phrases.who(owner)}")

    if sys.stderr.isatty():
        threading.Thread(target=tell, name="leasekeeper-waiting", daemon=True).start()
    try:
        yield
    finally:
        done.set()
