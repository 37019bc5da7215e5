"""Errors of repairs: abandon, undo, accepted loss, rewind and rebuild."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import PERHAPS_DONE, TerminalError, listed


@dataclass(kw_only=True, eq=False)
class PlanLanded(TerminalError):
    """A plan that is to be given up, and is in the data table already."""

    pipeline: str
    sequence: int

    def what(self) -> str:
        return f"plan {self.sequence} of pipeline {self.pipeline!r} cannot be given up"

    def expected(self) -> str:
        return "an open plan"

    def found(self) -> str:
        return "it has landed, and is recorded so"

    def remedy(self) -> str:
        return "nothing is left to do for this plan"


@dataclass(kw_only=True, eq=False)
class PlanNotLanded(TerminalError):
    """A step that needs landed data, asked for on an open plan."""

    pipeline: str
    sequence: int

    def what(self) -> str:
        return f"plan {self.sequence} of pipeline {self.pipeline!r} has not landed"

    def expected(self) -> str:
        return "a plan whose data is in the table"

    def found(self) -> str:
        return "an open plan"

    def remedy(self) -> str:
        return f"land it first: `tidemark ingest {self.pipeline} --plan {self.sequence}`"


@dataclass(kw_only=True, eq=False)
class OpenPlanInTheWay(TerminalError):
    """A decision about a pipeline that must not be made while a plan may still land."""

    pipeline: str
    sequence: int
    decision: str

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} has an open plan, so {self.decision} is not safe"

    def expected(self) -> str:
        return "no plan that may still land"

    def found(self) -> str:
        return f"plan {self.sequence}"

    def remedy(self) -> str:
        return (
            f"give it up with `tidemark abandon {self.pipeline} --plan {self.sequence} --reason "
            f"TEXT`, or, if Kafka still has what it reads, land it with `tidemark ingest "
            f"{self.pipeline} --plan {self.sequence}`; then decide again"
        )


@dataclass(kw_only=True, eq=False)
class RowsInDoubt(TerminalError):
    """A plan landed while its topic was made again: its rows may be of either topic."""

    pipeline: str
    sequence: int
    rows: int

    def what(self) -> str:
        return f"nobody can tell whose records plan {self.sequence} of {self.pipeline!r} landed"

    def expected(self) -> str:
        return "a topic that was the same while it was read"

    def found(self) -> str:
        return f"{self.rows} row(s) in the data table, and another topic of that name"

    def remedy(self) -> str:
        return (
            "look at the rows (plan_sequence has the plan's number) and keep a copy of what you "
            f"need; `tidemark abandon {self.pipeline} --plan {self.sequence} --discard --reason "
            f"TEXT` removes them, then `tidemark new-incarnation {self.pipeline} --reason TEXT`"
        )


@dataclass(kw_only=True, eq=False)
class NothingLost(TerminalError):
    """A loss is to be accepted, and every unread offset can still be read."""

    pipeline: str
    topic: str
    partitions: tuple[int, ...]

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} has lost nothing of {self.topic}"

    def expected(self) -> str:
        return f"unread offsets below the low-water mark of partition(s) {listed(self.partitions)}"

    def found(self) -> str:
        return "none"

    def remedy(self) -> str:
        return f"`tidemark status {self.pipeline}` shows the marks; {PERHAPS_DONE}"


@dataclass(kw_only=True, eq=False)
class SameIncarnation(TerminalError):
    """A new incarnation is to be accepted, and the topic is the one that is known."""

    pipeline: str
    topic: str
    topic_id: str

    def what(self) -> str:
        return f"topic {self.topic!r} of pipeline {self.pipeline!r} is the one it was"

    def expected(self) -> str:
        return "another topic id, or another cluster, than the committed offsets belong to"

    def found(self) -> str:
        return f"topic id {self.topic_id}"

    def remedy(self) -> str:
        return f"to read records again, run a backfill; {PERHAPS_DONE}"


@dataclass(kw_only=True, eq=False)
class NotBegun(TerminalError):
    """Committed offsets are asked for, and the pipeline has none."""

    pipeline: str

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} has no committed offsets"

    def expected(self) -> str:
        return "a pipeline that has begun"

    def found(self) -> str:
        return "no event that says where"

    def remedy(self) -> str:
        return f"run `tidemark plan {self.pipeline}`, or `tidemark start --help`"


@dataclass(kw_only=True, eq=False)
class TableTampered(TerminalError):
    """Rows of a plan that are neither all there nor all gone, or that another plan landed too."""

    pipeline: str
    sequence: int
    needed: str
    seen: str

    def what(self) -> str:
        return (
            f"the data table of {self.pipeline!r} holds rows of plan {self.sequence} that no "
            "plan explains"
        )

    def expected(self) -> str:
        return self.needed

    def found(self) -> str:
        return self.seen

    def remedy(self) -> str:
        return (
            "nothing was changed: find out with DESCRIBE HISTORY who changed the table, and "
            "RESTORE it to a version before that"
        )


@dataclass(kw_only=True, eq=False)
class NothingToRepair(TerminalError):
    """The control table and the data table tell one story already."""

    pipeline: str

    def what(self) -> str:
        return f"the control table and the data table of {self.pipeline!r} agree"

    def expected(self) -> str:
        return "a plan that one of them has and the other has not"

    def found(self) -> str:
        return "none"

    def remedy(self) -> str:
        return PERHAPS_DONE


@dataclass(kw_only=True, eq=False)
class NotARewind(TerminalError):
    """The data table has plans that the control table does not know: more than a RESTORE."""

    pipeline: str
    unknown: tuple[int, ...]

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} cannot be rewound: its control table is behind as well"

    def expected(self) -> str:
        return "a control table that knows every plan of the data table"

    def found(self) -> str:
        return f"rows of unknown plan(s) {', '.join(map(str, self.unknown))}"

    def remedy(self) -> str:
        return f"`tidemark control rebuild {self.pipeline} --dry-run`"
