"""Anchors: what remembers the head of a run outside of etcd, so that a tail that was cut off, or an old backup, shows.

The records of a run are a chain, and a chain cannot show that its end is missing. Whoever may write to etcd can cut it
there, and so does a restore from a backup. An anchor is told each head and keeps it elsewhere; if etcd then ends before what the
anchor remembers, the run was rewound.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from leasekeeper.runs.anchor_file import FileAnchor
from leasekeeper.runs.anchor_syslog import SyslogAnchor
from leasekeeper.runs.anchored import Anchored, anchored_in, parse_line

__all__ = ["Anchor", "Anchored", "FileAnchor", "SyslogAnchor", "anchored_in", "parse_line"]


class Anchor(Protocol):
    """Remembers heads of runs. Safe to use from several threads; no call lasts longer than a bound of its own.

    Two attributes are looked for, for the sake of people alone. ``file``: the path of the file that holds what is remembered, for
    the commands that errors tell. ``answers`` False: `last` never knows anything, so that it does not is no news.
    """

    def remember(self, run: str, gen: int, seq: int, hash: str, at_ms: int) -> None:  # noqa: A002 - the record's own word
        """Remember that record ``seq`` of generation ``gen`` of ``run`` has this hash. Durable when it returns.

        Said again, it changes nothing. ``at_ms`` is the record's time in milliseconds since 1970.

        Raises:
            RunRewound: the anchor remembers a later record of this generation, or another one of this number.
            AnchorSkewed: the time cannot be right.
            Unavailable: not for now; whether it is remembered is not known, so say it again.
        """
        ...

    def accept(self, run: str, gen: int, seq: int, hash: str, at_ms: int, why: str = "") -> None:  # noqa: A002 - as above
        """Remember that the run goes on from this record, and nothing later of it: an operator has given that up for lost.

        ``seq`` 0, with a hash of 64 zeros: nothing of it is left, and nothing remembered before holds: from then on `last` has
        nothing. ``why`` is what the operator rests that on; it may be cut. Durable when it returns; said again, it changes
        nothing. Called by `Keeper.resolve` alone.
        """
        ...

    def last(self, run: str, gen: int) -> Anchored | None:
        """The last head of a generation of a run that is remembered; None when there is none, or the anchor cannot answer.

        Raises:
            CorruptState: what it remembers was changed by other hands.
            Unavailable: it does not answer for now.
        """
        ...

    def generations(self, run: str) -> Collection[int]:
        """The generations of a run of which `last` has something; empty when there is none, or the anchor cannot answer.

        Raises as `last`. Called by `Keeper.resolve` alone.
        """
        ...
