"""``leasekeeper watch``: changes of owners and queues, as they happen.

Once a second one small read tells whether anything below the prefix has changed (how many keys, the latest revision of any); only
then the queues are read again and compared. That needs no stream that could hang or fall silent, survives restarts and
compaction, and never shows anything stale. What it costs: a claim that came and went within a second is not seen.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from leasekeeper.cli import phrases
from leasekeeper.cli.changes import Queues, changes
from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE
from leasekeeper.cli.look import read_queues
from leasekeeper.cli.output import json_line, note, print_lines, styled
from leasekeeper.cli.settings import ASK_S, Settings
from leasekeeper.cli.shapes import claim_shape
from leasekeeper.cli.standing import Standing, see
from leasekeeper.cli.text import clip, moment, plural, time_of_day
from leasekeeper.cli.values import NAME
from leasekeeper.errors import TryLater
from leasekeeper.protocol import inspect
from leasekeeper.protocol.keys import Claim

if TYPE_CHECKING:
    from leasekeeper.runtime.core import Core

LOOK_EVERY_S = 1.0
# So long without an answer, and the user is told that etcd is away.
AWAY_AFTER_S = 3.0
# What a look may take although the time to watch is over, or nothing would ever be shown in a short one.
LOOK_AT_LEAST_S = 1.0
# Owners' leases are asked about less often: nothing is decided on them.
OVERDUE_EVERY_S = 5.0
STYLES = {"owner": "green", "ended": "", "left": "dim", "waiting": "", "free": "bold", "overdue": "bold red"}


@lease_command("watch", timeout_help="End after so long, with exit code 0; default: not before Ctrl-C.")
@click.argument("name", type=NAME, required=False)
def command(settings: Settings, name: str | None) -> int:
    """Show changes of owners and queues, of NAME or of all names, beginning with how they stand.

    Looks once a second: a claim that came and went in between is not seen. Goes on when etcd is away for a while. With -o json
    each change is one line of JSON. Ends on Ctrl-C, with 130.
    """
    with settings.keeper() as keeper:
        core = keeper._core
        until = None if settings.timeout_s is None else core.now() + settings.timeout_s
        for event, claim_name, claim, waiting in Watcher(core, name).events(until):
            _tell(settings, event, claim_name, claim, waiting)
    return DONE


Told = tuple[str, str, Claim | None, int]


class Watcher:
    """Looks again and again, and tells what has changed."""

    def __init__(self, core: Core, name: str | None) -> None:
        self._core = core
        self._name = name
        keys = core.ctx.keys
        self._prefix = keys.leases if name is None else keys.queue(name)
        self._mark: tuple[int, int] | None = None
        self._queues: Queues = {}
        self._overdue: set[str] = set()
        self._asked_s = 0.0
        self._away = False

    def events(self, until: float | None) -> Iterator[Told]:
        """Events until ``until``. Fails only if etcd cannot be read at the start, or for what a person must mend."""
        now = self._core.now

        def at_most(ask_s: float) -> float:
            return ask_s if until is None else max(LOOK_AT_LEAST_S, min(ask_s, until - now()))

        yield from self._look(at_most(ASK_S))
        while until is None or now() < until:
            time.sleep(LOOK_EVERY_S if until is None else max(0.0, min(LOOK_EVERY_S, until - now())))
            try:
                found = self._look(at_most(AWAY_AFTER_S))
            except TryLater as error:
                self._went_away(error)
            else:
                self._came_back()
                yield from found

    def _look(self, ask_s: float) -> list[Told]:
        until = self._core.until(ask_s)
        mark = self._core.run(inspect.last_change(self._core.ctx, self._prefix, until))
        found: list[Told] = []
        if mark != self._mark:
            queues = self._read(until)
            found = [(c.event, c.name, c.claim, c.waiting) for c in changes(self._queues, queues)]
            self._mark, self._queues = mark, queues
        if self._core.now() - self._asked_s >= OVERDUE_EVERY_S:
            self._asked_s = self._core.now()
            found += self._newly_overdue(until)
        return found

    def _read(self, until: float) -> Queues:
        if self._name is None:
            return dict(read_queues(self._core, "", until))
        claims: list[Claim] = self._core.run(inspect.claims(self._core.ctx, self._name, until))
        return {self._name: claims} if claims else {}

    def _newly_overdue(self, until: float) -> list[Told]:
        owners = [claims[0] for claims in self._queues.values()]
        late = [one.claim for one in see(self._core, owners, until) if one.standing is Standing.OVERDUE]
        fresh = [claim for claim in late if claim.key not in self._overdue]
        self._overdue = {claim.key for claim in late}
        return [("overdue", claim.name, claim, len(self._queues[claim.name]) - 1) for claim in fresh]

    def _went_away(self, error: Exception) -> None:
        if not self._away:
            note(f"still trying: {error}")
        self._away = True

    def _came_back(self) -> None:
        if self._away:
            note("etcd answers again")
        self._away = False


def _tell(settings: Settings, event: str, name: str, claim: Claim | None, waiting: int) -> None:
    if settings.as_json:
        json_line(_shape(event, name, claim, waiting))
        return
    line = styled(f"{time_of_day(time.time())}  ").append(f"{event:<7}", STYLES[event]).append(f"  {clip(name, 255)}")
    if claim is not None:
        line.append("  ").append_text(phrases.holder(claim)).append(f"  token {claim.token}")
    if event == "owner" and waiting:
        line.append(f"  ({plural(waiting, 'claim')} waiting)")
    print_lines([line])


def _shape(event: str, name: str, claim: Claim | None, waiting: int) -> dict[str, Any]:
    shape = None if claim is None else claim_shape(claim)
    return {"at": moment(time.time()), "event": event, "name": name, "claim": shape, "waiting": waiting}
