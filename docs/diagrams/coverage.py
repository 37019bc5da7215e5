"""The coverage of a partition: Kafka's log, the plans over its offsets, and the next plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from docs.diagrams.canvas import WIDTH, Anchor, Canvas

TITLE = "The coverage of a partition"
DESCRIPTION = (
    "One partition, from offset 0 to 800. Kafka has deleted the offsets below the low watermark. "
    "The live plans 1, 3 and 4 and an accepted loss cover the offsets from the start to the "
    "committed offset. Plan 5 is open. Backfills, plans 2 and 6, cover offsets before the start "
    "and after the open plan. The next live plan has the offsets that are neither covered nor in "
    "an open plan, up to the last stable offset."
)


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets `[start, end)` of a plan or of a loss.

    Attributes:
        start: First offset.
        end: Next offset after the range.
        label: Text inside the range.
        gaps: Offsets without a visible record.
    """

    start: int
    end: int
    label: str = ""
    gaps: Sequence[int] = ()


LOW_WATERMARK, LAST_STABLE_OFFSET, HIGH_WATERMARK = 420, 770, 800
"""Kafka's watermarks."""
START, COMMITTED_OFFSET = 120, 500
"""First offset that runs read, and the end of the contiguous coverage from there."""
LIVE = (
    Range(120, 220, "plan 1"),
    Range(220, 310, "plan 3"),
    Range(380, 500, "plan 4", (470, 477, 488)),
)
"""Landed ranges of live plans."""
LOST = Range(310, 380, "lost")
"""Offsets that Kafka deleted unread, and whose loss an operator accepted."""
OPEN = Range(500, 580, "plan 5")
"""The range of the open plan."""
BACKFILLS = (Range(20, 100, "plan 2"), Range(630, 710, "plan 6"))
"""Landed ranges of backfills."""
NEXT = (Range(580, 630), Range(710, 770))
"""Ranges of the next live plan."""

LEFT = 20
BAR = 36
"""Height of a range."""
KAFKA, RUNS, BACKFILL, COVERAGE, NEXT_PLAN, AXIS = 74, 162, 270, 358, 466, 540
"""Upper edges of the bars, and of the axis."""


def draw() -> str:
    """Return the drawing."""
    canvas = Canvas(title=TITLE, description=DESCRIPTION, height=582)
    for offset in (COMMITTED_OFFSET, LAST_STABLE_OFFSET):
        canvas.line([(_x(offset), KAFKA + BAR), (_x(offset), COVERAGE)], "dashed")
    _kafka(canvas)

    _lane(canvas, RUNS, "Live plans")
    for landed in LIVE:
        _range(canvas, RUNS, landed, "live")
    _range(canvas, RUNS, LOST, "lost")
    _range(canvas, RUNS, OPEN, "open")
    _below(canvas, RUNS, _middle(LOST), "loss accepted")
    _below(canvas, RUNS, _x(464), "gaps")
    _below(canvas, RUNS, _middle(OPEN), "open")

    _lane(canvas, BACKFILL, "Backfills")
    for landed in BACKFILLS:
        _range(canvas, BACKFILL, landed, "backfill")

    _lane(canvas, COVERAGE, "Coverage")
    for landed in BACKFILLS:
        _range(canvas, COVERAGE, Range(landed.start, landed.end), "backfill")
    _range(canvas, COVERAGE, Range(START, COMMITTED_OFFSET, "contiguous from the start"), "live")
    _range(canvas, COVERAGE, Range(OPEN.start, OPEN.end), "open")
    for unread in NEXT:
        _range(canvas, COVERAGE, unread, "card dashed")
        _below(canvas, COVERAGE, _middle(unread), "unread")
    committed = f"committed offset {COMMITTED_OFFSET}"
    canvas.text(_x(START), COVERAGE + BAR + 20, f"start {START}", "small")
    canvas.text(_x(COMMITTED_OFFSET), COVERAGE + BAR + 20, committed, "strong small", "end")

    _lane(canvas, NEXT_PLAN, "Next live plan")
    for planned in NEXT:
        _range(canvas, NEXT_PLAN, planned, "open dashed")
        _below(canvas, NEXT_PLAN, _middle(planned), f"[{planned.start}, {planned.end})")

    canvas.line([(_x(0), AXIS), (_x(HIGH_WATERMARK), AXIS)])
    for offset in range(0, HIGH_WATERMARK + 1, 100):
        canvas.line([(_x(offset), AXIS), (_x(offset), AXIS + 6)])
        anchor: Anchor = "start" if offset == 0 else "end" if offset == HIGH_WATERMARK else "middle"
        canvas.text(_x(offset), AXIS + 24, str(offset), "note", anchor)
    return canvas.as_svg()


def _x(offset: int) -> float:
    return LEFT + offset * (WIDTH - 2 * LEFT) / HIGH_WATERMARK


def _middle(offsets: Range) -> float:
    return (_x(offsets.start) + _x(offsets.end)) / 2


def _kafka(canvas: Canvas) -> None:
    """Draw Kafka's log and its watermarks."""
    canvas.text(LEFT, KAFKA - 12, "Kafka's log", "strong")
    _range(canvas, KAFKA, Range(0, LOW_WATERMARK, "deleted by retention"), "card dashed")
    _range(canvas, KAFKA, Range(LOW_WATERMARK, LAST_STABLE_OFFSET, "readable"), "none")
    _range(canvas, KAFKA, Range(LAST_STABLE_OFFSET, HIGH_WATERMARK), "none dashed")
    for name, offset, above in (
        ("low watermark", LOW_WATERMARK, 12),
        ("last stable offset", LAST_STABLE_OFFSET, 12),
        ("high watermark", HIGH_WATERMARK, 34),
    ):
        canvas.line([(_x(offset), KAFKA - above - 12), (_x(offset), KAFKA + BAR)])
        canvas.text(_x(offset) - 7, KAFKA - above, f"{name} {offset}", "small", "end")


def _lane(canvas: Canvas, top: float, name: str) -> None:
    canvas.text(LEFT, top - 12, name, "strong")


def _range(canvas: Canvas, top: float, offsets: Range, style: str) -> None:
    x, end = _x(offsets.start), _x(offsets.end)
    canvas.box(x, top, end - x, BAR, style, radius=3)
    for gap in offsets.gaps:
        canvas.line([(_x(gap), top), (_x(gap), top + BAR)], "live")
    if not offsets.label:
        return
    space = _x(offsets.gaps[0]) if offsets.gaps else end
    canvas.text((x + space) / 2, top + BAR / 2 + 5, offsets.label, "small", "middle")


def _below(canvas: Canvas, top: float, x: float, text: str) -> None:
    canvas.text(x, top + BAR + 20, text, "note", "middle")
