"""The life of a plan: its states, and the events of the control table between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from docs.diagrams.canvas import LINE, Canvas

TITLE = "The life of a plan"
DESCRIPTION = (
    "States of a plan, and the events that lead from one to the next. The event planned creates an "
    "open plan. The event landed makes it landed, the event abandoned makes it abandoned. From "
    "landed, undo_started leads to being undone, and undone leads from there to undone. After a "
    "RESTORE of the data table, a rewind compares plans and rows. It records undone for a landed "
    "plan without rows, and landed for an undone plan with rows."
)


@dataclass(frozen=True, slots=True)
class State:
    """A state of a plan.

    Attributes:
        title: Name, as the documentation has it.
        meaning: What it means for the plan's offsets, in lines.
        tone: Its colour.
        repeated: Events that leave the plan in this state, each with its cause.
    """

    title: str
    meaning: Sequence[str]
    tone: str
    repeated: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Transition:
    """A transition between two states; None is the time before the plan.

    Attributes:
        before: State before the event.
        event: Event of the control table.
        after: State after the event.
        cause: When a process records the event.
        repair: Whether only a repair records it, after a RESTORE of the data table.
    """

    before: str | None
    event: str
    after: str
    cause: Sequence[str]
    repair: bool = False


STATES: Mapping[str, State] = {
    "open": State("Open", ["Its offsets are reserved."], "open", [("adopted", "by another run")]),
    "landed": State(
        "Landed",
        ["Its offsets are covered."],
        "live",
        [("superseded", "by a replacement"), ("publication_decided", "by a check")],
    ),
    "undoing": State("Being undone", ["Its offsets stay reserved."], "lost"),
    "undone": State("Undone", ["Its offsets are unread again."], "none"),
    "abandoned": State("Abandoned", ["Its offsets", "are unread."], "none"),
}
TRANSITIONS = (
    Transition(None, "planned", "open", ["for a run, or for a chunk of a backfill"]),
    Transition("open", "abandoned", "abandoned", ["by an operator"]),
    Transition(
        "open",
        "landed",
        "landed",
        ["the data table's log has the commit,", "every offset is accounted for"],
    ),
    Transition("landed", "undo_started", "undoing", ["by an operator"]),
    Transition("undoing", "undone", "undone", ["its rows are removed"]),
    Transition("landed", "undone", "undone", ["a RESTORE", "removed the rows"], repair=True),
    Transition("undone", "landed", "landed", ["a RESTORE", "brought rows back"], repair=True),
)
OTHER_EVENTS = (
    ("started", "backfill_requested", "loss_accepted"),
    ("recreation_accepted", "new_epoch"),
)
"""Events that belong to the pipeline and change no plan, in lines."""

LEFT, WIDE, SPINE = 20, 302, 62
"""Left edge and width of the boxes on the left, and the place of the arrows between them."""
TOPS = {"open": 104, "landed": 292, "undoing": 479, "undone": 621}
"""Upper edges of these boxes."""
RIGHT, NARROW = 450, 150
"""Left edge and width of the box of abandoned plans."""
INNER, OUTER = 416, 600
"""Vertical parts of the arrows of repairs."""


def draw() -> str:
    """Return the drawing."""
    canvas = Canvas(title=TITLE, description=DESCRIPTION, height=839)
    planned, abandoned, landed, undo_started, undone, restored, returned = TRANSITIONS
    canvas.dot(SPINE, 30, 7)
    _down(canvas, 37, planned)
    _down(canvas, _bottom("open"), landed)
    _down(canvas, _bottom("landed"), undo_started)
    _down(canvas, _bottom("undoing"), undone)

    for name, top in TOPS.items():
        _state(canvas, LEFT, top, WIDE, STATES[name])
    _state(canvas, RIGHT, TOPS["open"], NARROW, STATES["abandoned"])
    edge, across = LEFT + WIDE, TOPS["open"] + 36
    canvas.arrow([(edge, across), (RIGHT, across)])
    canvas.text((edge + RIGHT) / 2 - 4, across - 9, f"`{abandoned.event}`", anchor="middle")
    canvas.lines((edge + RIGHT) / 2 - 4, across + 20, abandoned.cause, "note", "middle")

    top, bottom = TOPS["landed"], TOPS["undone"]
    canvas.arrow(
        [(edge, top + 24), (OUTER, top + 24), (OUTER, bottom + 50), (edge, bottom + 50)], "dashed"
    )
    canvas.text(OUTER - 10, top + 76, f"`{restored.event}`", anchor="end")
    canvas.lines(OUTER - 10, top + 76 + LINE, restored.cause, "note", "end")
    canvas.arrow(
        [(edge, bottom + 20), (INNER, bottom + 20), (INNER, top + 52), (edge, top + 52)], "dashed"
    )
    canvas.text(INNER + 10, bottom - 62, f"`{returned.event}`")
    canvas.lines(INNER + 10, bottom - 62 + LINE, returned.cause, "note")

    canvas.text(
        LEFT, 729, "Dashed: by `tidemark rewind`, after a RESTORE of the data table.", "note"
    )
    canvas.line([(LEFT, 749), (OUTER, 749)], "rule")
    events = [", ".join(f"`{event}`" for event in line) for line in OTHER_EVENTS]
    canvas.lines(LEFT, 777, ["Events of the pipeline, which change no plan:", *events], "note")
    return canvas.as_svg()


def _height(state: State) -> float:
    if state.repeated:
        return 96 + LINE * (len(state.repeated) - 1)
    return 49 + LINE * len(state.meaning)


def _bottom(name: str) -> float:
    return TOPS[name] + _height(STATES[name])


def _state(canvas: Canvas, x: float, y: float, width: float, state: State) -> None:
    canvas.box(x, y, width, _height(state), state.tone)
    canvas.text(x + 16, y + 28, state.title, "title")
    canvas.lines(x + 16, y + 52, state.meaning)
    for number, (event, cause) in enumerate(state.repeated):
        line = y + 81 + number * LINE
        canvas.arrow([(x + 18, line - 9), (x + 18, line), (x + 38, line)], state.tone)
        canvas.text(x + 46, line + 1, f"`{event}` {cause}", "note")


def _down(canvas: Canvas, y: float, transition: Transition) -> None:
    """Draw the arrow into a box on the left from `y`, with its event and cause."""
    end = TOPS[transition.after]
    canvas.arrow([(SPINE, y), (SPINE, end)])
    lines = [f"`{transition.event}`", *transition.cause]
    first = (y + end) / 2 - (len(lines) - 1) * LINE / 2 + 3
    canvas.text(SPINE + 14, first, lines[0])
    canvas.lines(SPINE + 14, first + LINE, lines[1:], "note")
