"""``leasekeeper runs verify --anchor FILE``: which of all the runs that anchors know etcd has as they remember them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasekeeper.cli.output import print_json, print_lines, styled
from leasekeeper.cli.runs.anchors import remembered_in
from leasekeeper.cli.text import clip, one_line, plural
from leasekeeper.errors import ConfigError
from leasekeeper.protocol.run_keys import RunKeys, parse_run
from leasekeeper.protocol.whereabouts import against
from leasekeeper.run_errors import ILLEGIBLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leasekeeper.cli.settings import Settings
    from leasekeeper.runs.anchored import Anchored
    from leasekeeper.runtime.core import Core

__all__ = ["all_held"]

FINE = ("good", "pruned")


@dataclass(frozen=True, slots=True)
class _Run:
    """A generation of a run, as the last line of one anchor has it, and how it stands in etcd, up to record ``have``."""

    anchored: Anchored
    file: str
    state: str
    have: int = 0
    why: str = ""

    @property
    def told(self) -> str:
        """A sentence for people."""
        run, known = self.anchored.run, self.anchored.seq
        it = f"{clip(self.file)} remembers record {known}"
        return {
            "behind": f"etcd ends with record {self.have}, and {it}",
            "another": f"etcd has another record {known} than {clip(self.file)} remembers",
            "gone": f"etcd has nothing of generation {self.anchored.gen}, and {it}",
            "damaged": one_line(self.why),
        }[self.state] + f"; see: leasekeeper runs verify {shlex.quote(run)} --anchor {shlex.quote(self.file)}"


def all_held(settings: Settings, files: Sequence[str]) -> bool:
    """Tell how each run that anchors remember stands in etcd; whether all of them stand as they are remembered."""
    last = [(file, each) for file in files for each in _last_of(file)]
    with settings.keeper() as keeper:
        runs = list(_held(keeper._core, last, settings.ask_s))
    bad = [run for run in runs if run.state not in FINE]
    if settings.as_json:
        print_json([_shape(run) for run in runs])
    else:
        print_lines([styled(f"{clip(run.anchored.run, 255)}: BAD: {run.told}", "bold red") for run in bad])
        pruned = sum(run.state == "pruned" for run in runs)
        good = len(runs) - len(bad) - pruned
        are = "is" if len(runs) == 1 else "are"
        print_lines(
            [styled(f"{plural(len(runs), 'run')} {are} remembered: good {good}, BAD {len(bad)}, pruned {pruned}")]
        )
    return not bad


def _last_of(file: str) -> Iterator[Anchored]:
    """The last line of each generation of each run that is remembered still."""
    last = {(each.run, each.gen): each for each in remembered_in(file, "--anchor")}
    return (each for each in last.values() if not each.is_nothing)


def _held(core: Core, last: Sequence[tuple[str, Anchored]], ask_s: float) -> Iterator[_Run]:
    for file, each in last:
        try:
            keys = RunKeys(core.ctx.keys, parse_run(each.run))
            plan = against(core.ctx, keys, each.gen, (each.seq, each.hash), core.until(ask_s))
            state, have = core.run(plan)
        except ILLEGIBLE as error:
            yield _Run(each, file, "damaged", why=str(error))
        except ConfigError as error:
            yield _Run(each, file, "damaged", why=f"it is no name of a run: {error.message}")
        else:
            yield _Run(each, file, state, have)


def _shape(run: _Run) -> dict[str, Any]:
    return {
        "run": run.anchored.run,
        "generation": run.anchored.gen,
        "state": run.state,
        "have": run.have,
        "known": run.anchored.seq,
        "anchor": run.file,
    }
