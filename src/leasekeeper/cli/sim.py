"""``leasekeeper sim``: replicas on a model etcd in virtual time, by seeds, until a promise is broken."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE, NEGATIVE
from leasekeeper.cli.output import note, print_json
from leasekeeper.cli.settings import Settings
from leasekeeper.cli.text import plural

if TYPE_CHECKING:
    from leasekeeper.testing.sim import Outcome, Setting, Tally
    from leasekeeper.testing.sim.world import Workload

SEED_MAX = 2**63 - 1
# How often somebody who watches is told how far it is.
TELL_EVERY_S = 5.0


# click's types are generic only from some release on, which is newer than our oldest.
class OneOf(click.ParamType):  # type: ignore[type-arg]
    """A name out of a table of the simulator's for the workload, which is loaded when one is given."""

    def __init__(self, table: str) -> None:
        self.name = table
        self._table = table

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name itself; every name there is, if it is none of them."""
        from leasekeeper.testing import sim

        runs = ctx is not None and ctx.params.get("workload") == "runs"
        names = list(getattr(sim, f"RUN_{self._table}" if runs else self._table))
        if value not in names:
            self.fail(f"{value!r}: expected one of {', '.join(names)}", param, ctx)
        return str(value)


class Replay(click.ParamType):  # type: ignore[type-arg]
    """``SEED`` or ``SEED:1,4``: a world, and which of its faults."""

    name = "seed"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The seed, and the numbers of the faults or None."""
        seed, colon, numbers = str(value).partition(":")
        try:
            only = tuple(int(number) for number in numbers.split(",") if number) if colon else None
            return int(seed), only
        except ValueError:
            return self.fail(f"{value!r}: expected SEED or SEED:FAULT,FAULT", param, ctx)


@lease_command("sim", timeout_help="Not used here: nothing is asked that could be waited for.")
@click.option("--seed", type=click.IntRange(0, SEED_MAX), default=0, metavar="N", help="The first world; default 0.")
@click.option("--worlds", type=click.IntRange(1, 10**9), default=300, metavar="N", help="How many worlds; default 300.")
@click.option(
    "--seconds",
    type=click.FloatRange(10.0, 3600.0),
    default=60.0,
    metavar="S",
    help="How long a world lasts in virtual time; default 60. Faults happen in its first 60 percent.",
)
@click.option("--replicas", type=click.IntRange(1, 50), default=5, metavar="N", help="Replicas in a world; default 5.")
@click.option(
    "--workload",
    type=click.Choice(["leases", "runs"]),
    default="leases",
    is_eager=True,
    help="What replicas are at: owning names and writing to a fenced resource, or going on with runs; default leases.",
)
@click.option(
    "--mix",
    type=OneOf("MIXES"),
    default=None,
    metavar="NAME",
    help="Which kinds of faults; default: each world its own, or what shows a missing guard best.",
)
@click.option(
    "--without",
    type=OneOf("GUARDS"),
    default=None,
    metavar="NAME",
    help="Take one guard out, to see that it is missed; an unknown NAME is answered with all of them.",
)
@click.option(
    "--replay", type=Replay(), default=None, metavar="SEED[:FAULTS]", help="Only this world, and tell its story."
)
def command(
    settings: Settings,
    /,
    seed: int,
    worlds: int,
    seconds: float,
    replicas: int,
    workload: Workload,
    mix: str | None,
    without: str | None,
    replay: tuple[int, tuple[int, ...] | None] | None,
) -> int:
    """Try to break every promise in simulated worlds: bad networks, dying processes, an etcd with a hard life.

    Needs no etcd. Exits with 1 when a promise was broken, and tells the story with as few faults as it takes. Everything
    follows from the seed: the same seed is the same world on every machine.
    """
    from leasekeeper.testing.sim import Setting

    if replay is not None:
        seed, only = replay
        setting = Setting(seed, replicas=replicas, seconds=seconds, mix=mix, only=only, workload=workload)
        return _replay(settings, setting, without)
    setting = Setting(seed, replicas=replicas, seconds=seconds, mix=mix, workload=workload)
    return _search(settings, setting, worlds, without)


def _replay(settings: Settings, setting: Setting, without: str | None) -> int:
    from leasekeeper.testing.sim import report, run_world

    outcome = run_world(setting, without)
    if settings.as_json:
        print_json({**_shape(outcome, without), "story": [str(line) for line in outcome.story.lines]})
    else:
        click.echo(report(outcome, without))
    return DONE if outcome.violation is None else NEGATIVE


def _search(settings: Settings, setting: Setting, worlds: int, without: str | None) -> int:
    from leasekeeper.testing.sim import report, search, shrink

    progress = _Progress(worlds)
    try:
        tally, found = search(setting, worlds, without=without, progress=progress)
    except KeyboardInterrupt:
        note(f"stopped after {progress.done}, without a violation")
        raise
    small = shrink(found, without) if found is not None else None
    if settings.as_json:
        print_json({"tally": asdict(tally), "violation": None if small is None else _shape(small, without)})
    elif small is not None:
        click.echo(report(small, without))
    else:
        click.echo(_summary(tally))
    return DONE if small is None else NEGATIVE


class _Progress:
    """Says how far it is, now and then."""

    def __init__(self, worlds: int) -> None:
        self._worlds = worlds
        self._began_s = self._told_s = time.monotonic()
        self.done = plural(0, "world")

    def __call__(self, tally: Tally) -> None:
        now_s = time.monotonic()
        self.done = plural(tally.worlds, "world")
        if now_s - self._told_s >= TELL_EVERY_S:
            self._told_s = now_s
            note(f"{self.done} of {self._worlds}, {tally.worlds / (now_s - self._began_s) * 60:.0f} a minute")


def _summary(tally: Tally) -> str:
    if counts := tally.counts:
        return (
            f"{plural(tally.worlds, 'world')}, no promise broken: {plural(tally.faults, 'fault')},"
            f" {plural(tally.events, 'event')}, {counts['lives']} lives of runs, {plural(counts['finished'], 'run')}"
            f" finished; {plural(counts['done'], 'step')} done by {plural(counts['calls'], 'call')}, {counts['applied']}"
            f" applied, {counts['refused']} refused, {plural(counts['doubts'], 'doubt')}"
        )
    return (
        f"{plural(tally.worlds, 'world')}, no promise broken: {plural(tally.faults, 'fault')}, {plural(tally.events, 'event')},"
        f" {plural(tally.owned, 'owner')}; {plural(tally.accepted, 'write')} accepted by the fenced resource,"
        f" {tally.refused} refused; its twin without a fence went back {plural(tally.overlaps, 'time')}"
    )


def _shape(outcome: Outcome, without: str | None) -> dict[str, Any]:
    from leasekeeper.testing.sim import replay_command

    violation = outcome.violation
    return {
        "seed": outcome.setting.seed,
        "without": without,
        "promise": None if violation is None else violation.promise,
        "what": None if violation is None else violation.what,
        "at_s": round(outcome.ended_s, 3),
        "faults": [asdict(fault) for fault in outcome.faults],
        "replay": replay_command(outcome, without),
    }
