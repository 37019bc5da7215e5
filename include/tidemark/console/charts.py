"""Bars of coverage as SVG without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from markupsafe import Markup, escape

from tidemark.core.offsets import Span
from tidemark.core.texts import counted
from tidemark.ops.report.coverage import DENSITIES, MOST_DENSE, OffsetState, PartitionCoverage

CELLS = 240
"""Cells of a bar."""
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
    found = ", ".join(f"{state} {count:,}" for state, count in coverage.totals(window).items())
    # The content of an image is invisible to screen readers, links included.
    role = "group" if links else "img"
    name = f"partition {coverage.partition}, {window.start:,} to {window.end:,}: {found}"
    return Markup(
        f'<svg class="coverage" viewBox="0 0 {len(states)} 1" preserveAspectRatio="none" '
        f'role="{role}" aria-label="{escape(name)}">{"".join(parts)}</svg>'
    )


def quarantine_track(coverage: PartitionCoverage, window: Span) -> Markup:
    """Return the track of the quarantined offsets of a bar; empty without any.

    The height of each part is the share of its offsets, on the scale of `quarantine_levels`.
    """
    levels = coverage.quarantine_levels(window, CELLS)
    if not levels:
        return Markup()
    parts, x = [], 0
    for level, run in groupby(levels):
        width = len([*run])
        if level:
            parts.append(
                f'<rect x="{x}" y="{MOST_DENSE - level}" width="{width}" height="{level}" '
                f'class="{state_class(OffsetState.QUARANTINED)}"/>'
            )
        x += width
    count = coverage.totals(window)[OffsetState.QUARANTINED]
    name = (
        f"partition {coverage.partition}: {count:,} of {counted(window.size, 'offset')} "
        f"quarantined, in a part at most {_share_text(max(levels))}"
    )
    return Markup(
        f'<svg class="density" viewBox="0 0 {len(levels)} {MOST_DENSE}" '
        f'preserveAspectRatio="none" role="img" aria-label="{escape(name)}">'
        f"<title>{escape(name)}</title>{''.join(parts)}</svg>"
    )


def _share_text(level: int) -> str:
    """Return the highest share of a level of `quarantine_levels`."""
    return f"{([*DENSITIES, 1, 1][level - 1]) * 100:g} %"
