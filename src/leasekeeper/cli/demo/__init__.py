"""``leasekeeper demo``: one owner among three replicas is cut off, and nothing is written twice.

Everything in it is real: an etcd process, three replica processes, a ledger behind a fence, and network faults between
them. `story` directs, `replica` is what each replica runs, `ledger` is the guarded resource, `screen` tells what happens.
"""

from __future__ import annotations

from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE, NEGATIVE
from leasekeeper.cli.settings import Settings
from leasekeeper.errors import ConfigError

__all__ = ["command"]


@lease_command("demo", timeout_help="Of no use here.")
def command(settings: Settings) -> int:
    """Watch a lease survive a cut network: a real etcd, three replicas, and a fence that refuses a late write.

    Takes about 20 seconds and cleans up after itself. Exits with 1 if anything was written by two owners at once. It starts
    all that it needs, so the options that say where etcd is are of no use.
    """
    if settings.given.get("output") == "json":
        raise ConfigError(field="--output", value="json", expected="table: the demo tells its story to people")
    from leasekeeper.cli.interrupts import Interrupts

    # Before there is anything to clean up: TERM would end this process and leave its parts behind.
    with Interrupts():
        from leasekeeper.cli.demo.story import tell

        good = tell()
    return DONE if good else NEGATIVE
