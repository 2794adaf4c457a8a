"""The timeline of a storm as one self-contained page: a lane for etcd, one for each replica, one for the resource."""

from __future__ import annotations

from html import escape
from typing import Any

from leasekeeper.testing.chaos.checker import Verdict, owner_spans, pause_spans
from leasekeeper.testing.chaos.drawing import HOLD, HUES, RED, RIGHT, STRUCK, Drawing, hue
from leasekeeper.testing.chaos.records import Operation, Story, replica_of
from leasekeeper.testing.chaos.runs import lanes as of_runs
from leasekeeper.testing.chaos.runs.records import RunsStory
from leasekeeper.testing.chaos.schedule import KINDS

__all__ = ["page"]

TOP = 50.0
NAMES = 84.0
LANE, FAULT, ETCD_FAULT = 58.0, 14.0, 28.0
BAR = 20.0
BADGE_PX = 18.0
LISTED_MAX = 100
STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:24px;color:#1c2330;background:#fff;max-width:1500px}
h1{font-size:20px;margin:0 0 4px} .ok{color:#00704f} .bad{color:#b3001b} .unknown{color:#8a5a00}
code{background:#f1f3f6;padding:2px 5px;border-radius:3px} ol a{color:inherit}
.scroll{overflow-x:auto;border:1px solid #dde1e7;border-radius:6px;margin:14px 0;display:flex}
.scroll svg{flex:none} .names{position:sticky;left:0;background:#fff;border-right:1px solid #dde1e7}
table{border-collapse:collapse} td,th{padding:2px 18px 2px 0;vertical-align:top;text-align:left}
td.n{font-variant-numeric:tabular-nums} .columns{display:flex;gap:48px;flex-wrap:wrap;align-items:flex-start}
.legend span{margin-right:18px;white-space:nowrap}
.chip{display:inline-block;width:14px;height:11px;border-radius:2px;margin-right:5px;vertical-align:-1px}
svg text{font:11px system-ui,sans-serif;fill:#1c2330} svg .dim{fill:#6b7482} svg .lane{font-weight:600;font-size:12px}
svg .in{fill:#fff;paint-order:stroke;stroke:rgba(0,0,0,.45);stroke-width:2px}
svg .badge{fill:#fff;font-weight:600;text-anchor:middle} svg g:target line{stroke-width:5}
@media print{body{margin:0;-webkit-print-color-adjust:exact;print-color-adjust:exact}
.scroll{overflow:visible;border:0} .scroll .time{flex:1 1 auto;min-width:0;height:auto} .names{position:static}}
"""


def page(report: dict[str, Any], story: Story, verdict: Verdict) -> str:
    """The whole page."""
    word, css = {
        "kept": ("Every promise was kept", "ok"),
        "violated": ("A promise was broken", "bad"),
        "unknown": ("Whether every promise was kept cannot be said", "unknown"),
    }[verdict.word]
    versions = ", ".join(f"{name} {value}" for name, value in report["versions"].items())
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>leasekeeper chaos, seed {story.seed}</title><style>{STYLE}</style>"
        f'<h1 class="{css}">{word}</h1><div>{escape(versions)}</div>'
        f"<p><code>{escape(report['command'])}</code></p>{_broken(verdict)}"
        f'<div class="legend">{_legend(story)}</div><div class="scroll">{_timeline(story, verdict)}</div>'
        f'<div class="columns">{_figures(report["figures"])}{_faults(report)}</div></html>\n'
    )


def _broken(verdict: Verdict) -> str:
    """What is to be said against the storm; each violation leads to its mark in the timeline."""
    items = "".join(
        f'<li class="bad"><a href="#v{number}">{escape(each.what)}</a></li>'
        for number, each in enumerate(verdict.broken[:LISTED_MAX], 1)
    )
    more = len(verdict.broken) - LISTED_MAX
    rest = f'<p class="bad">and {more} more, see report.json</p>' if more > 0 else ""
    unjudged = f'<p class="unknown">{escape(verdict.unjudged)}</p>' if verdict.unjudged else ""
    return f"{unjudged}<ol>{items}</ol>{rest}" if items else unjudged


def _legend(story: Story) -> str:
    chips = (
        of_runs.LEGEND
        if isinstance(story, RunsStory)
        else [
            (HUES[0], "owns, HELD (a colour for each replica)"),
            (HOLD, "SUSPENDED"),
            (STRUCK, "a fault"),
            (RED, "LOST; &times; a refused write; a number: a broken promise"),
        ]
    )
    return "".join(f'<span><i class="chip" style="background:{hue}"></i>{text}</span>' for hue, text in chips)


def _figures(figures: dict[str, Any]) -> str:
    rows = []
    for name, value in figures.items():
        if name == "faults":
            continue
        shown = ", ".join(f"{each:.1f}" for each in value) if isinstance(value, tuple | list) else value
        rows.append(
            f"<tr><td>{escape(name.replace('_s', ' (s)').replace('_', ' '))}</td><td class=n>{shown or 0}</td></tr>"
        )
    return f"<table>{''.join(rows)}</table>"


def _faults(report: dict[str, Any]) -> str:
    rows = [
        f"<tr><td>{escape(name)}</td><td class=n>{count}</td><td>{escape(KINDS[name].about)}</td></tr>"
        for name, count in report["figures"]["faults"].items()
    ]
    rows += [
        f"<tr><td>{escape(name)}</td><td>left out</td><td>{escape(why)}</td></tr>"
        for name, why in report["left_out"].items()
    ]
    return f"<table>{''.join(rows)}</table>"


# ---------------------------------------------------------------- the drawing


def _timeline(story: Story, verdict: Verdict) -> str:
    """Two drawings side by side: the names of the lanes, which stay where they are, and the lanes, which may be scrolled."""
    lanes = ["etcd", *(f"r{number}" for number in range(story.replicas)), "resource"]
    tops = {name: TOP + number * LANE for number, name in enumerate(lanes)}
    bottom = TOP + len(lanes) * LANE
    drawing, names = Drawing(story.end_s), Drawing(story.end_s)
    width, height = drawing.x(drawing.seconds) + RIGHT, bottom + 6
    _axis(drawing, bottom, story)
    for name, top in tops.items():
        names.text(12, top + 32, name, css="lane")
        for each, right in ((names, NAMES), (drawing, width)):
            each.parts.append(f'<line x1="0" x2="{right:.0f}" y1="{top:.0f}" y2="{top:.0f}" stroke="#e6e9ee"/>')
    _blows(drawing, story, tops)
    if isinstance(story, RunsStory):
        of_runs.draw(drawing, story, tops)
    else:
        _owners(drawing, story, tops)
        _writes(drawing, story, tops["resource"])
    _marks(drawing, verdict, tops, bottom)
    return _svg(names, "names", "names of the lanes", NAMES, height) + _svg(drawing, "time", "timeline", width, height)


def _svg(drawing: Drawing, css: str, about: str, width: float, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{css}" width="{width:.0f}" height="{height:.0f}"'
        f' viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{about}">{"".join(drawing.parts)}</svg>'
    )


def _marks(drawing: Drawing, verdict: Verdict, tops: dict[str, float], bottom: float) -> None:
    """Each violation: a line through all lanes, its number above, and a ring in the lane of whom it concerns."""
    free = 0.0
    marks = sorted(enumerate(verdict.broken[:LISTED_MAX], 1), key=lambda mark: mark[1].at_s)
    for number, each in marks:
        x = drawing.x(each.at_s)
        title = f"<title>{number}: {escape(each.what)}</title>"
        drawing.parts.append(f'<g id="v{number}">{title}')
        drawing.line(each.at_s, TOP - 8, bottom, RED, width=1.5)
        top = tops.get(replica_of(each.who))
        if top is not None:
            drawing.parts.append(
                f'<circle cx="{x:.1f}" cy="{top + 36:.1f}" r="8" fill="none" stroke="{RED}" stroke-width="2.5"/>'
            )
        if x >= free:
            drawing.parts.append(f'<circle cx="{x:.1f}" cy="{TOP - 16:.1f}" r="9" fill="{RED}"/>')
            drawing.text(x, TOP - 12, str(number), css="badge")
            free = x + BADGE_PX
        drawing.parts.append("</g>")


def _axis(drawing: Drawing, bottom: float, story: Story) -> None:
    step = next(step for step in (1, 2, 5, 10, 20, 60, 120, 600, 3600, 36_000) if step * drawing.scale >= 60)
    for at_s in range(0, int(drawing.seconds) + 1, step):
        drawing.line(at_s, 20, bottom, "#eef0f3")
        drawing.text(drawing.x(at_s) - 8, 14, f"{at_s} s", css="dim")
    if story.calm_s:
        drawing.line(story.calm_s, 20, bottom, "#6b7482", "the faults are over")
        drawing.text(drawing.x(story.calm_s) + 4, TOP - 2, "faults over", css="dim")


def _lane_of(operation: Operation) -> str:
    lane = KINDS[operation.kind].lane
    return replica_of(operation.who) if lane == "replica" else {"cluster": "etcd", "world": "resource"}[lane]


def _blows(drawing: Drawing, story: Story, tops: dict[str, float]) -> None:
    for lane, top in tops.items():
        here = sorted((o for o in story.operations if _lane_of(o) == lane), key=lambda operation: operation.at_s)
        # The lane of etcd has room for labels in two rows, so each may go on until the next but one begins.
        rows, height = (2, ETCD_FAULT) if lane == "etcd" else (1, FAULT)
        starts = [operation.at_s for operation in here] + [drawing.seconds] * rows
        for operation in here:
            about = f"{operation.kind}: {operation.who} {operation.detail}".rstrip()
            about += f", {operation.at_s:.1f} to {operation.until_s:.1f} s"
            drawing.span(operation.at_s, operation.until_s, top + 6, height, STRUCK, about)
        for number, operation in enumerate(here):
            y = top + 17 + (number % rows) * 13
            drawing.label(operation.at_s, starts[number + rows], y, operation.kind)


def _owners(drawing: Drawing, story: Story, tops: dict[str, float]) -> None:
    spans = owner_spans(story)
    for who, token, begin_s, end_s in spans:
        about = f"{who} owns with token {token}, {begin_s:.1f} to {end_s:.1f} s"
        drawing.span(begin_s, end_s, _bar_y(tops, who), BAR, _hue(who), about)
    for who, begin_s, end_s in pause_spans(story.told):
        drawing.span(begin_s, end_s, _bar_y(tops, who), BAR, HOLD, f"{who} SUSPENDED, {begin_s:.1f} to {end_s:.1f} s")
    for who, token, begin_s, end_s in spans:
        drawing.label(begin_s, end_s, _bar_y(tops, who) + 14, str(token), css="in", tail=True)
    for line in story.told:
        if line.what == "LOST":
            y = _bar_y(tops, line.who) - 3
            about = f"{line.who} learns at {line.at_s:.1f} s that token {line.token} is LOST: {line.detail}"
            drawing.line(line.at_s, y, y + BAR + 6, RED, about, 3.0)


def _writes(drawing: Drawing, story: Story, top: float) -> None:
    for attempt in story.attempts:
        about = f"write {attempt.number} of {attempt.holder}, token {attempt.token}, {attempt.at_s:.2f} s"
        if attempt.accepted:
            drawing.line(attempt.at_s, top + 22, top + 46, _hue(attempt.holder), about)
        else:
            hue = HOLD if attempt.error else RED
            drawing.cross(attempt.at_s, top + 13, hue, f"{about}: {attempt.error or 'refused'}")


def _bar_y(tops: dict[str, float], who: str) -> float:
    """Where the bars of a replica's ownerships are, below those of its faults."""
    return tops[replica_of(who)] + 6 + FAULT + 6


def _hue(who: str) -> str:
    return hue(replica_of(who))
