"""What is drawn of a storm over runs: who opened which run when, which calls were made, and what happened outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasekeeper.testing.chaos.drawing import HOLD, HUES, RED, STRUCK, hue
from leasekeeper.testing.chaos.records import replica_of
from leasekeeper.testing.chaos.runs.desk import RIVAL
from leasekeeper.testing.chaos.runs.world import DOES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasekeeper.testing.chaos.drawing import Drawing
    from leasekeeper.testing.chaos.runs.records import RunsStory

__all__ = ["LEGEND", "draw"]

LEGEND = [
    (HUES[0], "opens a run (tall), calls (short); what happened outside (a colour for each replica)"),
    (HOLD, "an alert; what somebody else did"),
    (STRUCK, "a fault"),
    (RED, "a lease LOST; a number: a broken promise"),
]
ALERT = "alert"


def draw(drawing: Drawing, story: RunsStory, tops: Mapping[str, float]) -> None:
    """Draw into the lanes whose tops are given."""
    _lives(drawing, story, tops)
    _calls(drawing, story, tops)
    _happened(drawing, story, tops["resource"])


def _lives(drawing: Drawing, story: RunsStory, tops: Mapping[str, float]) -> None:
    for line in story.told:
        top = tops[replica_of(line.who)]
        if line.what == "owner":
            about = f"{line.who} opens {line.detail} with token {line.token}, {line.at_s:.2f} s"
            drawing.line(line.at_s, top + 24, top + 52, hue(replica_of(line.who)), about, 2.0)
        elif line.what == "lost":
            drawing.line(line.at_s, top + 22, top + 54, RED, f"{line.who} learns that token {line.token} is LOST", 3.0)


def _calls(drawing: Drawing, story: RunsStory, tops: Mapping[str, float]) -> None:
    for sent in story.sent:
        top, alert = tops[replica_of(sent.who)], sent.what.startswith(ALERT)
        about = f"{sent.who}: {sent.what} {sent.step} of {sent.run}, token {sent.token}, {sent.at_s:.2f} s"
        drawing.line(
            sent.at_s, top + 38, top + 48, HOLD if alert else hue(replica_of(sent.who)), about, 3.0 if alert else 1.0
        )


def _happened(drawing: Drawing, story: RunsStory, top: float) -> None:
    whose = {(sent.step, sent.key): sent.who for sent in story.sent if sent.key}
    steps = {effect: step for step, effect in DOES.items()}
    for entry in story.ledger:
        step = steps.get(f"{entry.service}.{entry.effect}")
        if entry.kind != "applied" or step is None:
            continue
        who = whose.get((step, entry.key))
        stroke = HOLD if entry.key == RIVAL else hue(replica_of(who)) if who else "#1c2330"
        about = f"{step} of {entry.subject}, request {entry.request}"
        drawing.line(story.at_s(entry), top + 26, top + 50, stroke, about)
