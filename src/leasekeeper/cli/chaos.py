"""``leasekeeper chaos``: real replicas on a real cluster, real faults, and a verdict."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leasekeeper.cli.command import lease_command
from leasekeeper.cli.exits import DONE, NEGATIVE, UNAVAILABLE
from leasekeeper.cli.interrupts import Interrupts
from leasekeeper.cli.output import json_line, print_table, styled
from leasekeeper.cli.settings import Settings
from leasekeeper.errors import ConfigError

if TYPE_CHECKING:
    from leasekeeper.signing import Ed25519Key
    from leasekeeper.testing.chaos import Story, Verdict, Weather

DEFAULT_SECONDS = 60.0
# As leasekeeper.testing.chaos.KINDS, which takes long to import.
FAULTS = (
    *("kill", "freeze", "blackhole", "cut", "requests-lost", "replies-lost", "slow-network", "clock-jump"),
    *("member-killed", "member-apart", "leader-apart", "leader-mute", "leader-deaf", "leader-frozen", "leader-moved"),
    *("quorum-lost", "all-killed", "slow-server", "revoked", "broken", "compaction", "no-space", "restore"),
)
# Those that only one workload has; `restore-unraised` strikes only where it is asked for.
LEASE_FAULTS = ("restore-unraised",)
RUNS_FAULTS = (
    "epoch-raised",
    *("late-requests", "late-replies", "lost-replies", "fails-after", "fails", "outage", "old-reads"),
    *("halt-all", "halt-some"),
)


@lease_command("chaos", timeout_help="Not used here: a storm takes --seconds and about a minute more.")
@click.option("--seed", type=click.IntRange(min=0), default=1, metavar="N", help="Decides the faults; default 1.")
@click.option(
    "--seconds",
    type=float,
    default=DEFAULT_SECONDS,
    metavar="S",
    help=f"How long faults strike; default {DEFAULT_SECONDS:g}. Starting, calming down and looking takes about a minute more.",
)
@click.option("--replicas", type=int, default=3, metavar="N", help="Replica processes, 1 to 9; default 3.")
@click.option("--members", type=int, default=3, metavar="N", help="Members of etcd: 1, 3 or 5; default 3.")
@click.option("--ttl", type=float, default=3.0, metavar="S", help="TTL of the lease, whole seconds; default 3.")
@click.option(
    "--fault",
    "kinds",
    multiple=True,
    metavar="KIND",
    help=f"Only this kind of fault, may be repeated; default all: {', '.join(FAULTS)}; with runs also"
    f" {', '.join(RUNS_FAULTS)}. By name alone, with lease: {', '.join(LEASE_FAULTS)}.",
)
@click.option(
    "--workload",
    type=click.Choice(("lease", "runs")),
    default="lease",
    help="What is at stake: one lease that all compete for (default), or durable runs that act on an outside world.",
)
@click.option(
    "--target",
    default="",
    metavar="MODULE:NAME",
    help="Your own resource: write(resource, lease, value), or an object with it, as assert_fenced takes it.",
)
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    metavar="DIR",
    help="Write report.json and a timeline, index.html, into this directory.",
)
@click.option(
    "--sign",
    "key_file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    metavar="FILE",
    help="Sign the report with this Ed25519 private key (PEM), its id the file's name without ending; needs --report.",
)
def command(
    settings: Settings,
    /,
    kinds: tuple[str, ...],
    ttl: float,
    report: Path | None,
    key_file: Path | None,
    **wanted: object,
) -> int:
    """Break a real cluster on purpose, and check that every promise is kept.

    Starts its own etcd members, replica processes, network faults and a guarded resource on this machine; needs no other
    etcd and touches none. A checker that knows nothing of how leasekeeper works then reads the resource's ledger and etcd.
    With --workload runs the replicas are workers that go on with each other's runs, and the resource is an outside world.
    Exits with 1 if a promise was broken, with 69 if the resource ended and nothing can be said. The same seed makes the same
    faults at the same times.
    """
    from leasekeeper.testing.chaos import Weather, sign_report
    from leasekeeper.testing.chaos.report import as_json, write

    key = _key(key_file, report)
    weather = Weather(ttl_s=ttl, kinds=kinds, **wanted)  # type: ignore[arg-type]
    _try_folder(report)
    with Interrupts():
        story, verdict = _weathered(weather)
    if settings.as_json:
        json_line(as_json(weather, story, verdict))
    else:
        _tell(weather, story, verdict)
    # Told before it is written: a disk that is full takes nothing away from the verdict.
    if report is not None:
        written = write(report, weather, story, verdict)
        for path in (*written, sign_report(written[0], key)) if key else written:
            click.echo(f"written to {path}", err=True)
    return {"kept": DONE, "violated": NEGATIVE, "unknown": UNAVAILABLE}[verdict.word]


def _weathered(weather: Weather) -> tuple[Story, Verdict]:
    """Let the storm be, and judge it."""

    def tell(line: str) -> None:
        click.echo(line, err=True)

    if weather.workload == "runs":
        from leasekeeper.testing.chaos.runs import RunsStorm, judge_runs

        told = RunsStorm(weather, tell).run()
        return told, judge_runs(told)
    from leasekeeper.testing.chaos import Storm, judge

    story = Storm(weather, tell).run()
    return story, judge(story)


def _try_folder(report: Path | None) -> None:
    """That nothing can be written is said before a storm, not after it."""
    if report is None:
        return
    try:
        report.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=report):
            pass
    except OSError as error:
        raise ConfigError(
            field="--report", value=str(report), expected=f"a directory to write into ({error.strerror})"
        ) from None


def _key(path: Path | None, report: Path | None) -> Ed25519Key | None:
    """The key to sign with; everything that can be wrong with it is said before a storm begins."""
    if path is None:
        return None
    if report is None:
        raise ConfigError("--sign needs --report: there is nothing else to sign", field="--sign", value=str(path))
    from leasekeeper.signing import Ed25519Key

    try:
        pem = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            field="--sign", value=str(path), expected=f"a file that can be read ({error.strerror})"
        ) from None
    return Ed25519Key.from_pem(path.stem, pem)


def _tell(weather: Weather, story: Story, verdict: Verdict) -> None:
    figures = dataclasses.asdict(verdict.figures)
    rows = [
        (styled(name.removesuffix("_s").replace("_", " ")), styled(_shown(value))) for name, value in figures.items()
    ]
    print_table(("WHAT", "HOW MUCH"), rows)
    click.echo()
    for name, why in story.left_out.items():
        click.echo(f"left out: {name}: {why}")
    for what in verdict.violations:
        click.echo(f"VIOLATED: {what}")
    if verdict.unjudged:
        click.echo(f"NOT JUDGED: {verdict.unjudged}")
    words = {
        "kept": "every promise was kept",
        "violated": "a promise was broken",
        "unknown": "whether every promise was kept cannot be said",
    }
    click.echo(f"seed {weather.seed}: {words[verdict.word]}")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {count}" for name, count in value.items()) or "none"
    if isinstance(value, tuple):
        return ", ".join(f"{seconds:.1f} s" for seconds in value) or "none"
    return f"{value:.1f} s" if isinstance(value, float) else str(value)
