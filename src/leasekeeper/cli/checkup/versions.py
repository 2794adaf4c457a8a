"""Releases of etcd whose leases have a known fault, and where it was mended."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["FAULTS", "OLDEST", "Fault", "faults_of", "parse"]

Release = tuple[int, int, int]

OLDEST = (3, 4)


@dataclass(frozen=True, slots=True)
class Fault:
    """What a release may do. ``mended``: the first good patch of each minor release that has one."""

    what: str
    cover: str
    mended: Mapping[tuple[int, int], int]

    @property
    def first_good(self) -> str:
        """The releases to upgrade to."""
        return ", ".join(f"{major}.{minor}.{patch}" for (major, minor), patch in self.mended.items())


FAULTS = (
    Fault(
        "may confirm heartbeats of a lease that was revoked already",
        "leasekeeper watches each held key as well, so it notices",
        {(3, 4): 38, (3, 5): 23, (3, 6): 5},
    ),
    Fault(
        "may revoke good leases when a leader that was stuck comes back",
        "the owner learns of it and its lease is LOST",
        {(3, 4): 31, (3, 5): 13},
    ),
)


def parse(version: str) -> Release | None:
    """A release such as 3.5.21 or 3.6.0-rc.1; None for what is none."""
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})", version)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def faults_of(release: Release) -> list[Fault]:
    """The known faults of a release that is not too old altogether."""
    minor = release[:2]
    return [fault for fault in FAULTS if minor in fault.mended and release[2] < fault.mended[minor]]
