"""The commit protocol: its calls in their order, and what the next process does after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from docs.diagrams.canvas import LINE, WIDTH, Canvas

TITLE = "The commit protocol and its crash points"
DESCRIPTION = (
    "The calls of a planner and a driver, from top to bottom. Four of them write: control.append "
    "records the plan, sink.write writes files, table.append commits them to the data table, and "
    "control.append records the landing. After a crash before the first write, the next run plans "
    "from new watermarks. After the first write, the plan is open and a later process lands it "
    "unchanged. After the second, it lands with new files. After the third, the next process finds "
    "the commit and records it. After the fourth, a repetition writes nothing."
)


@dataclass(frozen=True, slots=True)
class Write:
    """A call that changes what the next process finds after a crash.

    Attributes:
        step: Name of its fail points.
        effect: What it writes.
    """

    step: str
    effect: str


@dataclass(frozen=True, slots=True)
class Situation:
    """The state that a crash leaves between two writes.

    Attributes:
        title: What is done.
        recovery: What the next process does, in lines.
        tone: Its colour.
        phases: Calls between the two writes, by step of the protocol.
    """

    title: str
    recovery: Sequence[str]
    tone: str
    phases: Sequence[tuple[str, Sequence[str]]] = ()

    @property
    def calls(self) -> Sequence[str]:
        """All calls, in order."""
        return [call for _, calls in self.phases for call in calls]


PROTOCOL: Sequence[Situation | Write] = (
    Situation(
        "Nothing is recorded",
        ["The next run plans, from", "new watermarks."],
        "none",
        [("Plan", ["control.summary", "table.state", "watermarks.topic_watermarks"])],
    ),
    Write("control.append", "control table: `planned`"),
    Situation(
        "`planned` is recorded",
        [
            "Its requester gets it",
            "again; a later run takes",
            "over a live plan. Each",
            "looks for the commit,",
            "then lands the plan",
            "unchanged.",
        ],
        "open",
        [
            (
                "Land",
                [
                    "control.plan_record",
                    "control.summary",
                    "table.state",
                    "control.check_appends",
                    "table.state",
                    "table.find_landing",
                    "watermarks.topic_watermarks",
                    "table.prepare",
                ],
            )
        ],
    ),
    Write("sink.write", "files, in no version yet"),
    Situation(
        "Files are written",
        ["The plan lands with new", "files. Maintenance", "removes these."],
        "open",
        [("", ["watermarks.topic_watermarks"])],
    ),
    Write("table.append", "data table: one commit"),
    Situation(
        "The rows have landed",
        ["The next process finds", "the commit and records", "it. Spark reads nothing", "again."],
        "live",
        [
            (
                "Confirm",
                ["control.summary", "control.plan_record", "table.state", "table.find_landing"],
            ),
            (
                "Record",
                [
                    "watermarks.topic_watermarks",
                    "table.offsets_without_rows",
                    "log_reader.read",
                    "watermarks.topic_watermarks",
                    "table.state",
                ],
            ),
        ],
    ),
    Write("control.append", "control table: `landed`"),
    Situation(
        "`landed` is recorded",
        ["A repetition finds the", "plan landed, and writes", "nothing."],
        "live",
    ),
)

LEFT, SPINE, TEXT, RIGHT = 20, 112, 128, 394
"""Left edge, line of time, left edge of calls and left edge of recoveries."""
ROW, CARD, PAD = 22, 52, 20
"""Heights of a call and of a write, and the space between them."""


def draw() -> str:
    """Return the drawing."""
    tops = [20.0]
    for part in PROTOCOL:
        tops.append(tops[-1] + _height(part))
    bottom = tops[-1]
    canvas = Canvas(title=TITLE, description=DESCRIPTION, height=bottom + 66)
    parts = list(zip(PROTOCOL, tops, strict=False))
    for part, top in parts:
        if isinstance(part, Situation):
            _area(canvas, part, top)
    canvas.arrow([(SPINE, tops[0] + 14), (SPINE, bottom - 14)])
    for part, top in parts:
        if isinstance(part, Situation):
            _calls(canvas, part, top + PAD)
        else:
            _write(canvas, part, top)
    canvas.cross(LEFT + 8, bottom + 23, "lost")
    canvas.lines(
        LEFT + 24,
        bottom + 28,
        ["Crash points of the writes. Tests kill the process before and", "after every call."],
        "note",
    )
    return canvas.as_svg()


def _height(part: Situation | Write) -> float:
    """Return the height of a write, or of the space between two writes."""
    if isinstance(part, Write):
        return CARD
    if not part.calls:
        return 76
    return ROW * len(part.calls) + 2 * PAD


def _area(canvas: Canvas, situation: Situation, top: float) -> None:
    """Draw what a crash leaves: from the middle of the write before to that of the write after."""
    first, last = situation is PROTOCOL[0], situation is PROTOCOL[-1]
    upper = top - (0 if first else CARD / 2 - 2)
    lower = top + _height(situation) + (0 if last else CARD / 2 - 2)
    canvas.area(LEFT, upper, WIDTH - 2 * LEFT, lower - upper, situation.tone)
    first_line = (upper + lower) / 2 - LINE * len(situation.recovery) / 2 + 5
    canvas.text(RIGHT, first_line, situation.title, "strong")
    canvas.lines(RIGHT, first_line + LINE, situation.recovery, "small")


def _calls(canvas: Canvas, situation: Situation, top: float) -> None:
    y = top + ROW / 2
    for phase, calls in situation.phases:
        if phase:
            canvas.text(SPINE - 14, y + 5, phase, "strong small", "end")
        for call in calls:
            canvas.dot(SPINE, y, 3.5)
            canvas.text(TEXT, y + 5, f"`{call}`", "small")
            y += ROW


def _write(canvas: Canvas, write: Write, top: float) -> None:
    for y, moment in ((top - 11, "before"), (top + CARD + 11, "after")):
        canvas.cross(SPINE, y, "lost")
        canvas.text(SPINE - 14, y + 5, moment, "lost small", "end")
    canvas.box(SPINE - 10, top, RIGHT - SPINE - 8, CARD, "card")
    canvas.text(TEXT, top + 22, f"`{write.step}`", "strong")
    canvas.text(TEXT, top + 42, write.effect, "note")
