"""Shapes, palette and fonts that all diagrams share.

Each drawing has its own background, so it is readable on any page. Its colours follow the reader's
colour scheme. Text between backticks is set as code.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import Template
from typing import Literal, TypeAlias
from xml.sax.saxutils import escape

import drawsvg

WIDTH = 620
"""Width of every drawing, in its own units."""
DISPLAY_WIDTH = 690
"""Width on a wide page, in pixels. A narrower page scales the drawing down."""
LINE = 21
"""Height of a line of text."""

Point: TypeAlias = tuple[float, float]
Anchor: TypeAlias = Literal["start", "middle", "end"]

SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

LIGHT = {
    "panel": "#ffffff",
    "frame": "#d0d7de",
    "ink": "#1f2328",
    "muted": "#57606a",
    "none": "#818b98",
    "none_fill": "#f6f8fa",
    "open": "#9a6700",
    "open_fill": "#fff8c5",
    "live": "#0969da",
    "live_fill": "#ddf4ff",
    "backfill": "#8250df",
    "backfill_fill": "#f5ebff",
    "lost": "#cf222e",
    "lost_fill": "#ffebe9",
}
DARK = {
    "panel": "#0d1117",
    "frame": "#30363d",
    "ink": "#e6edf3",
    "muted": "#9da7b1",
    "none": "#7d8590",
    "none_fill": "#161b22",
    "open": "#d29922",
    "open_fill": "#332706",
    "live": "#4493f8",
    "live_fill": "#0c2744",
    "backfill": "#ab7df8",
    "backfill_fill": "#2a1c47",
    "lost": "#f85149",
    "lost_fill": "#3d1519",
}
TONES = ("none", "open", "live", "backfill", "lost")
"""The meanings of colours; a shape takes one as its class."""

_FONTS = f"""
text {{ font: 16px {SANS}; }}
.note, .small {{ font-size: 15px; }}
.strong {{ font-weight: 600; }}
.title {{ font-size: 18px; font-weight: 600; }}
.code {{ font-family: {MONO}; font-size: 0.94em; }}
.line, .box, .panel {{ stroke-width: 1.5; }}
.line {{ fill: none; stroke-linejoin: round; }}
.thick {{ stroke-width: 2.2; }}
.dashed {{ stroke-dasharray: 5 4; }}
"""
_COLOURS = (
    ".panel, .box { fill: $panel; stroke: $frame; }\n"
    ".card { stroke: $muted; }\n"
    "text { fill: $ink; }\n"
    ".note { fill: $muted; }\n"
    ".line { stroke: $muted; }\n"
    ".line.rule { stroke: $frame; }\n"
    ".mark { fill: $muted; stroke: none; }\n"
    + "".join(
        f".box.{tone} {{ fill: ${tone}_fill; stroke: ${tone}; }}\n"
        f".area.{tone} {{ fill: ${tone}_fill; }}\n"
        f".line.{tone} {{ stroke: ${tone}; }}\n"
        f".mark.{tone} {{ fill: ${tone}; }}\n"
        f"text.{tone} {{ fill: ${tone}; }}\n"
        for tone in TONES
    )
)


def stylesheet() -> str:
    """Return the CSS of every drawing."""
    light, dark = (Template(_COLOURS).substitute(palette) for palette in (LIGHT, DARK))
    return f"{_FONTS}{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"


class Canvas:
    """One drawing.

    Args:
        title: Name of the drawing, for screen readers.
        description: What it shows, for screen readers.
        height: Height, in the units of `WIDTH`.
    """

    def __init__(self, *, title: str, description: str, height: float) -> None:
        self._drawing = drawsvg.Drawing(WIDTH, height, role="img", lang="en")
        self._drawing.set_render_size(w=DISPLAY_WIDTH, h=round(height * DISPLAY_WIDTH / WIDTH))
        self._drawing.append_css(stylesheet())
        self._drawing.append_title(title)
        self._drawing.append(drawsvg.Raw(f"<desc>{escape(description)}</desc>\n"))
        self._drawing.append(drawsvg.Rectangle(1, 1, WIDTH - 2, height - 2, rx=10, class_="panel"))

    def as_svg(self) -> str:
        """Return the drawing as the text of a file."""
        return f"{self._drawing.as_svg()}\n"

    def text(
        self, x: float, y: float, text: str, style: str = "", anchor: Anchor = "start"
    ) -> None:
        """Write a line; `y` is its baseline."""
        element = drawsvg.Text("", None, x, y, class_=style or None, text_anchor=anchor)
        for number, part in enumerate(text.split("`")):
            if part:
                element.append(drawsvg.TSpan(part, class_="code" if number % 2 else None))
        self._drawing.append(element)

    def lines(
        self, x: float, y: float, lines: Sequence[str], style: str = "", anchor: Anchor = "start"
    ) -> None:
        """Write lines, one below the other."""
        for number, line in enumerate(lines):
            self.text(x, y + number * LINE, line, style, anchor)

    def box(
        self, x: float, y: float, width: float, height: float, style: str, radius: float = 6
    ) -> None:
        """Draw a rectangle."""
        shape = drawsvg.Rectangle(x, y, width, height, rx=radius, class_=f"box {style}")
        self._drawing.append(shape)

    def area(self, x: float, y: float, width: float, height: float, tone: str) -> None:
        """Draw a background with a bar at its left edge."""
        self._drawing.append(drawsvg.Rectangle(x, y, width, height, class_=f"area {tone}"))
        self._drawing.append(drawsvg.Rectangle(x, y, 4, height, class_=f"mark {tone}"))

    def line(self, points: Sequence[Point], style: str = "") -> None:
        """Draw a line from point to point."""
        flat = (number for point in points for number in point)
        self._drawing.append(drawsvg.Lines(*flat, class_=f"line {style}".strip()))

    def arrow(self, points: Sequence[Point], style: str = "") -> None:
        """Draw a line of horizontal and vertical parts that ends in an arrowhead."""
        (x0, y0), (x, y) = points[-2:]
        right, down = (x > x0) - (x < x0), (y > y0) - (y < y0)
        base = (x - 9 * right, y - 9 * down)
        self.line([*points[:-1], base], style)
        side = 5
        self._drawing.append(
            drawsvg.Lines(
                *(x, y),
                *(base[0] - side * down, base[1] - side * right),
                *(base[0] + side * down, base[1] + side * right),
                close=True,
                class_=f"mark {style.replace('dashed', '')}".strip(),
            )
        )

    def dot(self, x: float, y: float, radius: float, style: str = "") -> None:
        """Draw a filled circle."""
        self._drawing.append(drawsvg.Circle(x, y, radius, class_=f"mark {style}".strip()))

    def cross(self, x: float, y: float, style: str, size: float = 5) -> None:
        """Draw a cross."""
        self.line([(x - size, y - size), (x + size, y + size)], f"{style} thick")
        self.line([(x - size, y + size), (x + size, y - size)], f"{style} thick")
