"""A violation as a person wants to read it: which promise, by which faults, the end of the story, and how to see it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.testing.sim.world import Setting

if TYPE_CHECKING:
    from leasekeeper.testing.sim.world import Outcome

__all__ = ["replay_command", "report"]

USUAL = Setting(seed=0)


def replay_command(outcome: Outcome, without: str | None = None) -> str:
    """The one command that shows the same world again."""
    setting = outcome.setting
    which = "" if setting.only is None else ":" + ",".join(str(number) for number in setting.only)
    words = [f"leasekeeper sim --replay {setting.seed}{which}"]
    if setting.workload != USUAL.workload:
        words.append(f"--workload {setting.workload}")
    if setting.replicas != USUAL.replicas:
        words.append(f"--replicas {setting.replicas}")
    if setting.seconds != USUAL.seconds:
        words.append(f"--seconds {setting.seconds:g}")
    if setting.mix is not None:
        words.append(f"--mix {setting.mix}")
    if without is not None:
        words.append(f"--without {without}")
    return " ".join(words)


def report(outcome: Outcome, without: str | None = None) -> str:
    """All that is to be said of a world."""
    violation, setting = outcome.violation, outcome.setting
    if violation is None:
        head = [f"no violation in the world of seed {setting.seed}"]
        lines = list(outcome.story.lines)
    else:
        left_out = f" without the guard {without!r}" if without is not None else ""
        head = [str(violation), f"in the world of seed {setting.seed}{left_out}, after {outcome.ended_s:.3f} s"]
        lines = outcome.story.of(violation.who)
    faults = [f"  {fault}" for fault in outcome.faults if fault.at_s <= outcome.ended_s]
    return "\n".join(
        [
            *head,
            "",
            "What befell it:" if faults else "Nothing befell it.",
            *faults,
            "",
            "What happened:",
            *(f"  {line}" for line in lines),
            "",
            f"Once more: {replay_command(outcome, without)}",
        ]
    )
