"""Drawing on a line of time: the parts of an SVG, and the colours and measures that all pages of storms share."""

from __future__ import annotations

from html import escape

__all__ = ["HOLD", "HUES", "RED", "RIGHT", "STRUCK", "Drawing", "hue"]

LEFT, RIGHT = 14.0, 24.0
PX_PER_S = 16.0
WIDTH_MIN = 1300.0
# Browsers draw no wider ones.
WIDTH_MAX = 30_000.0
LABEL_PX, DIGIT_PX = 6.4, 7.1
# Of a label as many characters are worth showing.
SHORT = 5
# To be told apart by the colour-blind, and from what has a meaning of its own: amber, grey and red.
HUES = ("#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#8c564b", "#8c6bb1", "#44aa99", "#999933", "#332288")
HOLD, STRUCK, RED = "#f2b134", "#c9ced6", "#b3001b"


class Drawing:
    """Collects the parts of one SVG, ``seconds`` wide."""

    def __init__(self, seconds: float) -> None:
        self.seconds = max(seconds, 1.0)
        self.scale = max(min(PX_PER_S, WIDTH_MAX / self.seconds), (WIDTH_MIN - LEFT - RIGHT) / self.seconds)
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

    def label(self, begin_s: float, end_s: float, y: float, text: str, *, css: str = "", tail: bool = False) -> None:
        """A word from one moment to another, or as much of its beginning as fits, or of its end (``tail``)."""
        most = int((self.x(end_s) - self.x(begin_s) - 6) / (DIGIT_PX if tail else LABEL_PX))
        if most < min(SHORT, len(text)):
            return
        if len(text) > most:
            text = f"\u2026{text[len(text) - most + 1 :]}" if tail else f"{text[: most - 1]}\u2026"
        self.text(self.x(begin_s) + 3, y, text, css=css)

    def text(self, x: float, y: float, text: str, *, css: str = "") -> None:
        """A word anywhere."""
        style = f' class="{css}"' if css else ""
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


def hue(name: str) -> str:
    """The colour of a replica, "r1"."""
    return HUES[int(name[1:]) % len(HUES)]
