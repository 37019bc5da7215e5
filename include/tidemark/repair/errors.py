"""Errors of repairs: abandon, undo, accepted loss, rewind and rebuild."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import PERHAPS_DONE, TerminalError


@dataclass(kw_only=True, eq=False)
class PlanLanded(TerminalError):
    """A plan that is to be given up, and is in the data table already."""

    pipeline: str
    sequence: int

    problem = "Plan {sequence} of pipeline {pipeline!r} cannot be given up."
    expected = "an open plan"
    actual = "it has landed, and is recorded so"
    fix = "Nothing is left to do for this plan."


@dataclass(kw_only=True, eq=False)
class PlanNotLanded(TerminalError):
    """A step that needs landed data, asked for on an open plan."""

    pipeline: str
    sequence: int

    problem = "Plan {sequence} of pipeline {pipeline!r} has not landed."
    expected = "a plan whose data is in the table"
    actual = "an open plan"
    fix = "Land it first: `tidemark ingest {pipeline} --plan {sequence}`."


@dataclass(kw_only=True, eq=False)
class PlanStillOpen(TerminalError):
    """A decision about a pipeline that must not be made while a plan may still land."""

    pipeline: str
    sequence: int
    decision: str

    problem = "Pipeline {pipeline!r} has an open plan, so {decision} is not safe."
    expected = "no plan that may still land"
    actual = "plan {sequence}"
    fix = (
        "Give it up with `tidemark abandon {pipeline} --plan {sequence} --reason TEXT`, or, if "
        "Kafka still has what it reads, land it with `tidemark ingest {pipeline} --plan "
        "{sequence}`; then decide again."
    )


@dataclass(kw_only=True, eq=False)
class RowsInDoubt(TerminalError):
    """A plan landed while its topic was made again: its rows may be of either topic."""

    pipeline: str
    sequence: int
    rows: int

    problem = "Nobody can tell whose records plan {sequence} of {pipeline!r} landed."
    expected = "a topic that was the same while it was read"
    actual = "{rows} row(s) in the data table, and another topic of that name"
    fix = (
        "Look at the rows (plan_sequence has the plan's number) and keep a copy of what you need; "
        "`tidemark abandon {pipeline} --plan {sequence} --discard --reason TEXT` removes them, "
        "then `tidemark new-incarnation {pipeline} --reason TEXT`."
    )


@dataclass(kw_only=True, eq=False)
class NothingLost(TerminalError):
    """A loss is to be accepted, and every unread offset can still be read."""

    pipeline: str
    topic: str
    partitions: tuple[int, ...]

    problem = "Pipeline {pipeline!r} has lost nothing of {topic}."
    expected = "unread offsets below the low watermark of partition(s) {partitions}"
    actual = "none"
    fix = "{_fix}"

    @property
    def _fix(self) -> str:
        return f"`tidemark status {self.pipeline}` shows the watermarks; {PERHAPS_DONE}"


@dataclass(kw_only=True, eq=False)
class SameIncarnation(TerminalError):
    """A new incarnation is to be accepted, and the topic is the one that is known."""

    pipeline: str
    topic: str
    topic_id: str

    problem = "Topic {topic!r} of pipeline {pipeline!r} is the one it was."
    expected = "another topic id, or another cluster, than the committed offsets belong to"
    actual = "topic id {topic_id}"
    fix = "{_fix}"

    @property
    def _fix(self) -> str:
        return f"to read records again, run a backfill; {PERHAPS_DONE}"


@dataclass(kw_only=True, eq=False)
class NotStarted(TerminalError):
    """Committed offsets are asked for, and the pipeline has none."""

    pipeline: str

    problem = "Pipeline {pipeline!r} has no committed offsets."
    expected = "a pipeline that has begun"
    actual = "no event that says where"
    fix = "Run `tidemark plan {pipeline}`, or `tidemark start --help`."


@dataclass(kw_only=True, eq=False)
class UnexplainedRows(TerminalError):
    """Rows of a plan that are neither all there nor all gone, or that another plan landed too."""

    pipeline: str
    sequence: int
    needed: str
    seen: str

    problem = "The data table of {pipeline!r} holds rows of plan {sequence} that no plan explains."
    expected = "{needed}"
    actual = "{seen}"
    fix = (
        "Nothing was changed: find out with DESCRIBE HISTORY who changed the table, and RESTORE it "
        "to a version before that."
    )


@dataclass(kw_only=True, eq=False)
class NothingToRepair(TerminalError):
    """The control table and the data table tell one story already."""

    pipeline: str

    problem = "The control table and the data table of {pipeline!r} agree."
    expected = "a plan that one of them has and the other has not"
    actual = "none"
    fix = "{_fix}"

    @property
    def _fix(self) -> str:
        return PERHAPS_DONE


@dataclass(kw_only=True, eq=False)
class RebuildRequired(TerminalError):
    """The data table has plans that the control table does not know: more than a RESTORE."""

    pipeline: str
    unknown: tuple[int, ...]

    problem = "Pipeline {pipeline!r} cannot be rewound: its control table is behind as well."
    expected = "a control table that knows every plan of the data table"
    actual = "{_actual}"
    fix = "`tidemark control rebuild {pipeline} --dry-run`."

    @property
    def _actual(self) -> str:
        return f"rows of unknown plan(s) {', '.join(map(str, self.unknown))}"
