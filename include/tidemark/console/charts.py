"""Bars of coverage as SVG without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from markupsafe import Markup, escape

from tidemark.core.offsets import Span
from tidemark.report.coverage import OffsetState, PartitionCoverage

CELLS = 240
"""Cells of a bar; each has the most severe state of its offsets."""
ZOOMS = 12
"""Parts of a bar that link to a closer look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoomLink:
    """A part of a bar that links to a closer look.

    Attributes:
        window: The offsets of the part.
        href: Address of the closer look.
    """

    window: Span
    href: str


def state_class(state: OffsetState | None) -> str:
    """Return the CSS class of a state."""
    return "none" if state is None else f"state-{state.name.lower().replace('_', '-')}"


def zoom_windows(window: Span, parts: int = ZOOMS) -> Sequence[Span]:
    """Divide a window into parts of nearly equal size, none of them empty."""
    parts = min(parts, window.size)
    edges = [window.start + window.size * number // parts for number in range(parts + 1)]
    return [Span(start, end) for start, end in pairwise(edges)]


def coverage_bar(
    coverage: PartitionCoverage, window: Span, links: Sequence[ZoomLink] = ()
) -> Markup:
    """Return the bar of a partition: one rectangle for each run of equal cells.

    Args:
        coverage: The partition.
        window: Offsets to show.
        links: Parts that link to a closer look.
    """
    states = coverage.cell_states(window, CELLS)
    runs = [(state, len([*run])) for state, run in groupby(states)]
    parts, x = [], 0
    for state, width in runs:
        css = state_class(state)
        parts.append(f'<rect x="{x}" y="0" width="{width}" height="1" class="{css}"/>')
        x += width
    scale = len(states) / window.size
    for link in links:
        left = (link.window.start - window.start) * scale
        width_of_link = link.window.size * scale
        label = f"offsets {link.window.start:,} to {link.window.end:,}"
        parts.append(
            f'<a href="{escape(link.href)}" aria-label="{label}"><title>{label}</title>'
            f'<rect x="{left:.3f}" y="0" width="{width_of_link:.3f}" height="1" class="zoom"/></a>'
        )
    found = ", ".join(sorted({state.value for state, _ in runs if state is not None}))
    # The content of an image is invisible to screen readers, links included.
    role = "group" if links else "img"
    name = f"partition {coverage.partition}, {window.start:,} to {window.end:,}: {found}"
    return Markup(
        f'<svg class="coverage" viewBox="0 0 {len(states)} 1" preserveAspectRatio="none" '
        f'role="{role}" aria-label="{escape(name)}">{"".join(parts)}</svg>'
    )
