"""The timeline of a storm as one self-contained page: a lane for etcd, one for each replica, one for the resource."""

from __future__ import annotations

from html import escape
from typing import Any

from leasekeeper.testing.chaos.checker import Verdict, owner_spans, pause_spans
from leasekeeper.testing.chaos.records import Operation, Story
from leasekeeper.testing.chaos.schedule import KINDS

__all__ = ["page"]

LEFT, RIGHT, TOP = 96.0, 24.0, 34.0
PX_PER_S = 16.0
WIDTH_MIN = 1000.0
LANE, FAULT = 58.0, 14.0
BAR = 20.0
LABEL_PX = 6.2
# Colour-blind safe (Okabe and Ito).
HUES = ("#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8c6bb1", "#44aa99", "#999933", "#aa4499")
STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:24px;color:#1c2330;background:#fff;max-width:1400px}
h1{font-size:20px;margin:0 0 4px} .ok{color:#00704f} .bad{color:#b3001b}
code{background:#f1f3f6;padding:2px 5px;border-radius:3px}
.scroll{overflow-x:auto;border:1px solid #dde1e7;border-radius:6px;margin:14px 0} table{border-collapse:collapse}
td{padding:2px 18px 2px 0;vertical-align:top} td:last-child{font-variant-numeric:tabular-nums}
.columns{display:flex;gap:48px;flex-wrap:wrap} .legend span{margin-right:18px;white-space:nowrap}
.chip{display:inline-block;width:14px;height:11px;border-radius:2px;margin-right:5px;vertical-align:-1px}
svg text{font:11px system-ui,sans-serif;fill:#1c2330} svg .dim{fill:#6b7482} svg .lane{font-weight:600;font-size:12px}
"""


class _Drawing:
    """Collects the parts of one SVG."""

    def __init__(self, seconds: float) -> None:
        self.seconds = max(seconds, 1.0)
        self.scale = max(PX_PER_S, (WIDTH_MIN - LEFT - RIGHT) / self.seconds)
        self.parts: list[str] = []

    def x(self, at_s: float) -> float:
        """Where a moment is."""
        return LEFT + min(max(at_s, 0.0), self.seconds) * self.scale

    def span(self, begin_s: float, end_s: float, y: float, height: float, fill: str, about: str) -> None:
        """A bar from one moment to another; ``about`` is shown when it is pointed at."""
        x, width = self.x(begin_s), max(2.0, self.x(end_s) - self.x(begin_s))
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="2" fill="{fill}">'
            f"<title>{escape(about)}</title></rect>"
        )

    def label(self, begin_s: float, end_s: float, y: float, text: str, fill: str = "#fff") -> None:
        """A word inside a bar, if it fits."""
        if (self.x(end_s) - self.x(begin_s)) > len(text) * LABEL_PX + 6:
            self.text(self.x(begin_s) + 4, y, text, fill=fill)

    def text(self, x: float, y: float, text: str, *, fill: str = "", css: str = "") -> None:
        """A word anywhere."""
        style = (f' style="fill:{fill}"' if fill else "") + (f' class="{css}"' if css else "")
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}"{style}>{escape(text)}</text>')

    def line(self, at_s: float, top: float, bottom: float, stroke: str, about: str = "", width: float = 1.0) -> None:
        """A vertical line at a moment."""
        title = f"<title>{escape(about)}</title>" if about else ""
        x = self.x(at_s)
        self.parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" stroke="{stroke}" stroke-width="{width}">'
            f"{title}</line>"
        )

    def cross(self, at_s: float, y: float, stroke: str, about: str) -> None:
        """An x at a moment."""
        x = self.x(at_s)
        self.parts.append(
            f'<path d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8" stroke="{stroke}" stroke-width="2.2" fill="none">'
            f"<title>{escape(about)}</title></path>"
        )


def page(report: dict[str, Any], story: Story, verdict: Verdict) -> str:
    """The whole page."""
    word, css = ("Every promise was kept", "ok") if verdict.ok else ("A promise was broken", "bad")
    broken = "".join(f'<li class="bad">{escape(what)}</li>' for what in verdict.violations)
    versions = ", ".join(f"{name} {value}" for name, value in report["versions"].items())
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>leasekeeper chaos, seed {story.seed}</title><style>{STYLE}</style>"
        f'<h1 class="{css}">{word}</h1><div>{escape(versions)}</div>'
        f"<p><code>{escape(report['command'])}</code></p><ul>{broken}</ul>"
        f'<div class="legend">{_legend()}</div><div class="scroll">{_timeline(story)}</div>'
        f'<div class="columns">{_figures(report["figures"])}{_faults(report)}</div></html>\n'
    )


def _legend() -> str:
    chips = [
        (HUES[0], "owns, HELD (a colour for each replica)"),
        ("#f2b134", "SUSPENDED"),
        ("#c9ced6", "a fault"),
        ("#b3001b", "LOST; &times; a refused write"),
    ]
    return "".join(f'<span><i class="chip" style="background:{hue}"></i>{text}</span>' for hue, text in chips)


def _figures(figures: dict[str, Any]) -> str:
    rows = []
    for name, value in figures.items():
        if name == "faults":
            continue
        shown = ", ".join(f"{each:.1f}" for each in value) if isinstance(value, tuple | list) else value
        rows.append(f"<tr><td>{escape(name.replace('_s', ' (s)').replace('_', ' '))}</td><td>{shown or 0}</td></tr>")
    return f"<table>{''.join(rows)}</table>"


def _faults(report: dict[str, Any]) -> str:
    rows = [
        f"<tr><td>{escape(name)}</td><td>{count}</td><td>{escape(KINDS[name].about)}</td></tr>"
        for name, count in report["figures"]["faults"].items()
    ]
    rows += [
        f"<tr><td>{escape(name)}</td><td>left out</td><td>{escape(why)}</td></tr>"
        for name, why in report["left_out"].items()
    ]
    return f"<table>{''.join(rows)}</table>"


# ---------------------------------------------------------------- the drawing


def _timeline(story: Story) -> str:
    lanes = ["etcd", *(f"r{number}" for number in range(story.replicas)), "resource"]
    tops = {name: TOP + number * LANE for number, name in enumerate(lanes)}
    bottom = TOP + len(lanes) * LANE
    drawing = _Drawing(story.end_s)
    _axis(drawing, bottom, story)
    for name, top in tops.items():
        drawing.text(12, top + 32, name, css="lane")
        drawing.parts.append(
            f'<line x1="0" x2="{drawing.x(drawing.seconds) + RIGHT:.0f}" y1="{top:.0f}" y2="{top:.0f}" stroke="#e6e9ee"/>'
        )
    _blows(drawing, story, tops)
    _owners(drawing, story, tops)
    _writes(drawing, story, tops["resource"])
    width, height = drawing.x(drawing.seconds) + RIGHT, bottom + 6
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" role="img"'
        f' aria-label="timeline">{"".join(drawing.parts)}</svg>'
    )


def _axis(drawing: _Drawing, bottom: float, story: Story) -> None:
    step = next(step for step in (1, 2, 5, 10, 20, 60, 120, 600, 3600, 36_000) if step * drawing.scale >= 60)
    for at_s in range(0, int(drawing.seconds) + 1, step):
        drawing.line(at_s, TOP - 6, bottom, "#eef0f3")
        drawing.text(drawing.x(at_s) - 8, TOP - 14, f"{at_s} s", css="dim")
    if story.calm_s:
        drawing.line(story.calm_s, TOP - 6, bottom, "#6b7482", "the faults are over")
        drawing.text(drawing.x(story.calm_s) + 4, TOP - 2, "calm", css="dim")


def _lane_of(operation: Operation) -> str:
    return "etcd" if KINDS[operation.kind].lane == "cluster" else operation.who.partition(".")[0]


def _blows(drawing: _Drawing, story: Story, tops: dict[str, float]) -> None:
    for operation in story.operations:
        top = tops.get(_lane_of(operation))
        if top is None:
            continue
        about = (
            f"{operation.kind}: {operation.who} {operation.detail}, {operation.at_s:.1f} to {operation.until_s:.1f} s"
        )
        height = LANE - 34 if _lane_of(operation) == "etcd" else FAULT
        drawing.span(operation.at_s, operation.until_s, top + 6, height, "#c9ced6", about)
        after = [o.at_s for o in story.operations if _lane_of(o) == _lane_of(operation) and o.at_s > operation.at_s]
        if drawing.x(min(after, default=drawing.seconds)) - drawing.x(operation.at_s) > len(operation.kind) * LABEL_PX:
            drawing.text(drawing.x(operation.at_s) + 3, top + 17, operation.kind)


def _owners(drawing: _Drawing, story: Story, tops: dict[str, float]) -> None:
    for who, token, begin_s, end_s in owner_spans(story):
        name = who.partition(".")[0]
        y = tops[name] + 6 + FAULT + 6
        about = f"{who} owns with token {token}, {begin_s:.1f} to {end_s:.1f} s"
        drawing.span(begin_s, end_s, y, BAR, _hue(name), about)
        drawing.label(begin_s, end_s, y + 14, str(token))
    for who, begin_s, end_s in pause_spans(story.told):
        y = tops[who.partition(".")[0]] + 6 + FAULT + 6
        drawing.span(begin_s, end_s, y, BAR, "#f2b134", f"{who} SUSPENDED, {begin_s:.1f} to {end_s:.1f} s")
    for line in story.told:
        if line.what == "LOST":
            y = tops[line.who.partition(".")[0]] + 6 + FAULT + 3
            about = f"{line.who} learns at {line.at_s:.1f} s that token {line.token} is LOST: {line.detail}"
            drawing.line(line.at_s, y, y + BAR + 6, "#b3001b", about, 3.0)


def _writes(drawing: _Drawing, story: Story, top: float) -> None:
    for attempt in story.attempts:
        about = f"write {attempt.number} of {attempt.holder}, token {attempt.token}, {attempt.at_s:.2f} s"
        if attempt.accepted:
            drawing.line(attempt.at_s, top + 22, top + 46, _hue(attempt.holder.partition(".")[0]), about)
        else:
            drawing.cross(attempt.at_s, top + 13, "#b3001b", f"{about}: {attempt.error or 'refused'}")


def _hue(name: str) -> str:
    return HUES[int(name[1:]) % len(HUES)]
