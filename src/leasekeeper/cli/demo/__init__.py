"""``leasekeeper demo``: one owner among three replicas is cut off, and nothing is written twice.

Everything in it is real: an etcd process, three replica processes, a ledger behind a fence, and network faults between
them. `story` directs, `replica` is what each replica runs, `ledger` is the guarded resource, `screen` tells what happens.
"""

from __future__ import annotations

import sys

import click

__all__ = ["command"]


@click.command("demo")
def command() -> None:
    """Watch a lease survive a cut network: a real etcd, three replicas, and a fence that refuses a late write.

    Takes about 20 seconds and cleans up after itself. Exits with 1 if anything was written by two owners at once.
    """
    from leasekeeper.cli.interrupts import Interrupts

    # Before there is anything to clean up: TERM would end this process and leave its parts behind.
    with Interrupts():
        from leasekeeper.cli.demo.story import tell

        good = tell()
    sys.exit(0 if good else 1)
