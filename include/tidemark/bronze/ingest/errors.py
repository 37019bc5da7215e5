"""Errors of planning, of start offsets and of executing plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from tidemark.core.errors import (
    PipelineError,
    TerminalError,
    TransientError,
    UnknownOutcomeError,
    undo_instruction,
)
from tidemark.core.events import Abandoned, Undone, UndoStarted
from tidemark.spec.ref import PipelineRef


@dataclass(kw_only=True, eq=False)
class PlanStillOpen(PipelineError, TerminalError):
    """The plan is open: it must land, or be abandoned, before the command can continue.

    Attributes:
        sequence: Plan number.
        state: The plan's state and what it prevents, as a predicate.
    """

    sequence: int
    state: str

    problem = "Plan {sequence} of pipeline {pipeline!r} {state}."
    fix = (
        "Land it with `tidemark ingest {pipeline} --plan {sequence}` if Kafka still has its "
        "offsets. Otherwise abandon it with `tidemark abandon {pipeline} --plan {sequence} "
        "--reason TEXT`. Then repeat the command."
    )

    @classmethod
    def of_backfill(cls, pipeline: str, sequence: int, requested_by: str) -> Self:
        """A backfill plan is open; one backfill plan of a pipeline lands at a time."""
        state = f"is still open (a backfill that {requested_by} requested)"
        return cls(pipeline=pipeline, sequence=sequence, state=state)

    @classmethod
    def before_landing(cls, pipeline: str, sequence: int) -> Self:
        """The command needs a landed plan."""
        return cls(pipeline=pipeline, sequence=sequence, state="has not landed")

    @classmethod
    def before_decision(cls, pipeline: str, sequence: int, decision: str) -> Self:
        """The decision is not safe while the plan may still land."""
        return cls(
            pipeline=pipeline, sequence=sequence, state=f"is open, so {decision} is not safe"
        )


@dataclass(kw_only=True, eq=False)
class CommitNotFound(PipelineError, UnknownOutcomeError):
    """A plan was committed, but the log of the data table does not contain it."""

    sequence: int
    seen: str

    problem = "Plan {sequence} of pipeline {pipeline!r} is not in its data table after its commit."
    expected = "a commit with transaction version {sequence} and the fingerprint of this plan"
    actual = "{seen}"
    fix = "Run the same plan again; it checks the table before it writes."


@dataclass(kw_only=True, eq=False)
class PlanCancelled(PipelineError, TerminalError):
    """The plan was abandoned or undone, and cannot land.

    Attributes:
        sequence: Plan number.
        event: `abandoned` or `undone`.
        reason: The operator's reason.
    """

    sequence: int
    event: str
    reason: str

    problem = "Plan {sequence} of pipeline {pipeline!r} was {event}: {reason}."
    fix = "Run `tidemark plan {pipeline}`; the new plan contains the unread offsets."

    @classmethod
    def by(cls, pipeline: str, sequence: int, end: Abandoned | UndoStarted | Undone) -> Self:
        """Return the error for the event that cancelled the plan."""
        event = "abandoned" if isinstance(end, Abandoned) else "undone"
        return cls(pipeline=pipeline, sequence=sequence, event=event, reason=end.reason)


@dataclass(kw_only=True, eq=False)
class RecordsMissed(PipelineError, TransientError):
    """A plan landed without some records that Kafka shows."""

    sequence: int
    records: int
    first: tuple[int, int]

    problem = (
        "Plan {sequence} of pipeline {pipeline!r} landed without {records:record} that Kafka "
        "shows, the first at {first_position}."
    )
    fix = (
        "The landed rows are recorded. The next run reads the missed offsets, except those before "
        "the start of the pipeline. If a backfill missed them, run the backfill again."
    )

    @property
    def first_position(self) -> str:
        """Partition and offset of the first missed record."""
        partition, offset = self.first
        return f"partition {partition}, offset {offset}"


@dataclass(kw_only=True, eq=False)
class NoStartOffset(PipelineError, TerminalError):
    """The spec has `start: none`, and the pipeline has no start offsets."""

    topic: str
    partitions: tuple[int, ...]

    problem = (
        "Pipeline {pipeline!r} has no start offset for {partitions:partition} of topic "
        "{topic!r}, and its spec has `start: none`."
    )
    fix = (
        "Set `start` in the spec to earliest, latest or a timestamp, or continue from the offsets "
        "of another consumer (`tidemark offsets import --help`)."
    )


@dataclass(kw_only=True, eq=False)
class LogTruncated(PipelineError, TerminalError):
    """Kafka's records at landed offsets differ from the rows of the table.

    The log was truncated or restored, or another program changed the last landed row.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        offset: Next offset after the compared ones.
        leader_epoch: The recorded leader epoch of the offset; None if the last landed row differs
            from Kafka's record. Then the row may have been changed instead.
        undo: Known landed plans with records that Kafka no longer has.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int | None = None
    undo: tuple[int, ...] = ()

    problem = "Partition {partition} of topic {topic!r} {difference}"
    fix = "{advice}"

    @property
    def difference(self) -> str:
        """How the log differs from the table, as the end of a sentence."""
        if self.leader_epoch is None:
            return (
                f"differs from the last row of pipeline {self.pipeline!r} before offset "
                f"{self.offset}. The log was truncated or restored, or the row was changed."
            )
        return (
            f"was truncated before offset {self.offset}: the records of leader epoch "
            f"{self.leader_epoch} that pipeline {self.pipeline!r} read are gone."
        )

    @property
    def advice(self) -> str:
        """The commands for each possible cause, as sentences."""
        sentences = ["Nothing was written."]
        if self.leader_epoch is None:
            sentences.append(
                f"`tidemark verify {self.pipeline}` lists the rows that differ. If rows were "
                f"changed in the table, `tidemark backfill {self.pipeline} --offsets "
                f"{self.partition}:START-END --replace --reason TEXT` replaces them."
            )
        if self.undo:
            sentences.append(
                f"If the log was truncated, {undo_instruction(self.pipeline, self.undo)}."
            )
        return " ".join(sentences)


@dataclass(kw_only=True, eq=False)
class AlreadyStarted(PipelineError, TerminalError):
    """The pipeline has start offsets already.

    Attributes:
        wanted: The requested start offsets as `partition:offset`.
        known: The recorded start offsets as `partition:offset`.
        reason: Their recorded reason.
    """

    wanted: tuple[str, ...]
    known: tuple[str, ...]
    reason: str

    problem = "Pipeline {pipeline!r} started at {known} ({reason}) and cannot start at {wanted}."
    fix = (
        "To ingest earlier records, see `tidemark backfill --help`. To start at other offsets, "
        "create a spec with another name and target."
    )


@dataclass(kw_only=True, eq=False)
class InvalidStart(TerminalError):
    """Start offsets that the source does not contain, or that do not fit the topic.

    Attributes:
        source: Where the offsets come from, as a noun phrase.
        rule: What is expected of the source, as a noun phrase.
        seen: What was found instead.
    """

    source: str
    rule: str
    seen: str

    problem = "Cannot start from {source}."
    expected = "{rule}"
    actual = "{seen}"
    fix = "Nothing was written. See `tidemark offsets import --help`."


@dataclass(kw_only=True, eq=False)
class DuplicateRows(PipelineError, TerminalError):
    """The data table has more rows than its plans landed."""

    rows: int
    landed: int

    problem = "The data table of pipeline {pipeline!r} has more rows than have landed."
    expected = "at most {landed:,} rows, according to the control table"
    actual = "{rows:,} rows in the files of the newest version"
    fix = (
        "Run `tidemark deduplicate {pipeline} --dry-run` to count the copies, and again with "
        "--apply to remove them."
    )


@dataclass(kw_only=True, eq=False)
class RowsChanged(PipelineError, TerminalError):
    """A replacement covers a part of a landed range whose row count has changed."""

    sequence: int
    partition: int
    start: int
    end: int
    recorded: int
    rows: int

    problem = (
        "The range [{start}, {end}) of partition {partition}, plan {sequence} of pipeline "
        "{pipeline!r}, cannot be replaced in part: its rows were changed after the plan landed."
    )
    expected = "{recorded:row}, as recorded"
    actual = "{rows:row}"
    fix = (
        "Replace the whole range in one chunk: `tidemark backfill {bronze_pipeline} --offsets "
        "{partition}:{start}-{end} --chunk {size} --replace --reason TEXT`. If Kafka has deleted "
        "the beginning of the range, see the runbook."
    )

    @property
    def bronze_pipeline(self) -> str:
        """Name of the pipeline that reads Kafka."""
        return PipelineRef.parse(self.pipeline).name

    @property
    def size(self) -> int:
        """Number of offsets of the range."""
        return self.end - self.start


@dataclass(kw_only=True, eq=False)
class NothingLanded(PipelineError, TerminalError):
    """The pipeline has not landed the records that a command needs.

    Attributes:
        topic: Topic name.
        subject: The needed records, in the form "any record".
    """

    topic: str
    subject: str = "any record"

    problem = "Pipeline {pipeline!r} has not landed {subject} of topic {topic!r}."
    fix = (
        "`tidemark status {pipeline}` shows the landed offsets. `tidemark ingest {pipeline}` lands "
        "new records."
    )
