"""Errors of planning and of executing plans."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import TerminalError, TransientError, UnknownOutcomeError, _undone
from tidemark.spec.ref import PipelineRef


@dataclass(kw_only=True, eq=False)
class UnknownPlan(TerminalError):
    """A plan number that the control table does not have."""

    pipeline: str
    sequence: int
    latest: int | None

    problem = "Pipeline {pipeline!r} has no plan {sequence}."
    expected = "{_expected}"
    actual = "{_actual}"
    fix = "Make a plan with `tidemark plan {pipeline}`, or name one that there is."

    @property
    def _expected(self) -> str:
        return (
            f"a number from 1 to {self.latest or 0}" if self.latest else "a plan to be made first"
        )

    @property
    def _actual(self) -> str:
        return str(self.sequence)


@dataclass(kw_only=True, eq=False)
class BackfillOpen(TerminalError):
    """A backfill is open, so another one may not start."""

    pipeline: str
    sequence: int
    requested_by: str

    problem = "Pipeline {pipeline!r} has an open backfill."
    expected = "one backfill of a pipeline at a time"
    actual = "plan {sequence}, asked for by {requested_by}, not landed yet"
    fix = (
        "Finish it with `tidemark ingest {pipeline} --plan {sequence}`, or give it up with "
        "`tidemark abandon {pipeline} --plan {sequence} --reason TEXT`."
    )


@dataclass(kw_only=True, eq=False)
class CommitNotFound(UnknownOutcomeError):
    """A commit was made and the data table's log does not have the plan."""

    pipeline: str
    sequence: int
    seen: str

    problem = "Plan {sequence} of pipeline {pipeline!r} is not in its data table."
    expected = "a commit of transaction version {sequence} with this plan's fingerprint"
    actual = "{seen}"
    fix = "Run the same plan again: it looks first and lands only what is not there."


@dataclass(kw_only=True, eq=False)
class PlanAbandoned(TerminalError):
    """A plan that was given up, and may not land any more."""

    pipeline: str
    sequence: int
    reason: str

    problem = "Plan {sequence} of pipeline {pipeline!r} was given up."
    expected = "an open or landed plan"
    actual = "abandoned: {reason}"
    fix = "Make a new plan with `tidemark plan {pipeline}`; its offsets are unread."


@dataclass(kw_only=True, eq=False)
class RecordsMissed(TransientError):
    """A plan landed, and Kafka shows records of it that are not in the table."""

    pipeline: str
    sequence: int
    records: int
    first: tuple[int, int]

    problem = (
        "Plan {sequence} of pipeline {pipeline!r} landed without {records} record(s) that Kafka "
        "shows."
    )
    expected = "a row for each visible record of the plan"
    actual = "{_actual}"
    fix = "What landed is recorded and the rest is unread again: the next run reads it."

    @property
    def _actual(self) -> str:
        partition, offset = self.first
        return f"none for partition {partition}, offset {offset}"


@dataclass(kw_only=True, eq=False)
class PlanFenced(TerminalError):
    """A plan that somebody began to give up: it is fenced off, and not recorded as given up."""

    pipeline: str
    sequence: int

    problem = "Plan {sequence} of pipeline {pipeline!r} cannot land any more."
    expected = "a data table in which its transaction is free"
    actual = "the transaction taken by a commit without the plan: giving it up was interrupted"
    fix = (
        "Finish it: `tidemark abandon {pipeline} --plan {sequence} --reason TEXT`; its offsets are "
        "planned again."
    )


@dataclass(kw_only=True, eq=False)
class NoStartOffset(TerminalError):
    """Policy `start: none`, and a partition without a committed offset."""

    pipeline: str
    topic: str
    partitions: tuple[int, ...]

    problem = "Pipeline {pipeline!r} may not choose a start for {topic}."
    expected = "a committed offset for every partition, because the spec says start: none"
    actual = "none for partition(s) {partitions}"
    fix = (
        "Set `start` in the spec to earliest, latest or a timestamp for the first run, or go on "
        "from offsets that another reader has come to: `tidemark start --help`."
    )


@dataclass(kw_only=True, eq=False)
class LogTruncated(TerminalError):
    """Kafka's log has other records than the table at landed offsets.

    The log was truncated or restored, or another program changed the last landed row.

    Attributes:
        pipeline: Pipeline name.
        topic: Topic name.
        partition: Partition number.
        offset: Next offset after the compared ones.
        leader_epoch: The recorded leader epoch of the offset; None if the last landed row differs
            from Kafka's record, which a change of the row explains as well.
        undo: Known landed plans with records that Kafka no longer has.
    """

    pipeline: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int | None = None
    undo: tuple[int, ...] = ()

    problem = "{_problem}"
    expected = "{_expected}"
    actual = "{_actual}"
    fix = "{_fix}"

    @property
    def _problem(self) -> str:
        if self.leader_epoch is None:
            return (
                f"{self.topic}[{self.partition}] differs from the table of pipeline "
                f"{self.pipeline!r} before offset {self.offset}: the log was truncated or "
                "restored, or the row was changed in the table"
            )
        return (
            f"{self.topic}[{self.partition}] no longer has the records that pipeline "
            f"{self.pipeline!r} read before offset {self.offset}"
        )

    @property
    def _expected(self) -> str:
        if self.leader_epoch is None:
            return "the last landed row equals Kafka's record at its offset"
        return (
            f"the records before offset {self.offset} as leader epoch {self.leader_epoch} had them"
        )

    @property
    def _actual(self) -> str:
        if self.leader_epoch is None:
            return "another record, or none at the row's offset"
        return "a log that was truncated before that offset, and has grown again"

    @property
    def _fix(self) -> str:
        advice = ["nothing was written"]
        if self.leader_epoch is None:
            advice.append(
                f"`tidemark verify {self.pipeline}` lists the rows that differ; if rows were "
                f"changed in the table, `tidemark backfill {self.pipeline} --offsets "
                f"{self.partition}:START-END --replace --reason TEXT` lands them again as Kafka "
                "has them"
            )
        if self.undo:
            advice.append(f"if the log was truncated, {_undone(self.pipeline, self.undo)}")
        return f"{'; '.join(advice)} (docs/runbook.md, LogTruncated)"


@dataclass(kw_only=True, eq=False)
class AlreadyStarted(TerminalError):
    """A pipeline is to begin somewhere, and has a beginning."""

    pipeline: str
    wanted: tuple[tuple[int, int], ...]
    known: tuple[tuple[int, int], ...]
    reason: str

    problem = "{_problem}"
    expected = "a pipeline that has never planned anything"
    actual = "{_actual}"
    fix = (
        "What lies before its beginning can be landed with `tidemark backfill --help`; for another "
        "beginning make a spec with another name and target (docs/runbook.md, AlreadyStarted)."
    )

    @property
    def _problem(self) -> str:
        return f"pipeline {self.pipeline!r} has begun, so it cannot begin at {_places(self.wanted)}"

    @property
    def _actual(self) -> str:
        return f"one that began at {_places(self.known)} ({self.reason})"


@dataclass(kw_only=True, eq=False)
class InvalidStart(TerminalError):
    """Offsets to begin at that are said in no way, in two, or so that nobody can mean them."""

    rule: str
    seen: str

    problem = "What was said of the beginning cannot be meant."
    expected = "{rule}"
    actual = "{seen}"
    fix = "See `tidemark start --help` for the ways to say it; nothing was written."


@dataclass(kw_only=True, eq=False)
class UnusableSource(TerminalError):
    """A group, a checkpoint or a table that tells no offsets of the pipeline's topic."""

    source: str
    rule: str
    seen: str

    problem = "No beginning can be taken from the {source}."
    expected = "{rule}"
    actual = "{seen}"
    fix = (
        "Name another source, or the offsets themselves with --offsets; nothing was written "
        "(docs/runbook.md, UnusableSource)."
    )


@dataclass(kw_only=True, eq=False)
class PartitionsUnsaid(TerminalError):
    """Partitions of the topic of which the source says nothing."""

    pipeline: str
    topic: str
    source: str
    partitions: tuple[int, ...]

    problem = "Pipeline {pipeline!r} is not told where to begin in all of {topic}."
    expected = "an offset of every partition from the {source}"
    actual = "none for partition(s) {partitions}"
    fix = (
        "Say where those begin: --others earliest, or --others latest, which leaves out what they "
        "hold now (docs/runbook.md, PartitionsUnsaid)."
    )


@dataclass(kw_only=True, eq=False)
class StartBehindEnd(TerminalError):
    """An offset to begin at that the log has not come to."""

    topic: str
    source: str
    partition: int
    offset: int
    end: int

    problem = "The {source} does not fit {topic}[{partition}]."
    expected = "an offset of at most {end}, the end of the readable log"
    actual = "{_actual}"
    fix = (
        "Nothing was written: the offsets are those of another topic, or of this one before it was "
        "made again, or a transaction is still open (docs/runbook.md, StartBehindEnd)."
    )

    @property
    def _actual(self) -> str:
        return str(self.offset)


def _places(places: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(f"{partition}:{offset}" for partition, offset in places)


@dataclass(kw_only=True, eq=False)
class DuplicateRows(TerminalError):
    """A data table has more rows than its plans can have landed."""

    pipeline: str
    rows: int
    landed: int

    problem = "The data table of {pipeline!r} has more rows than have landed in it."
    expected = "at most {landed:,} rows, by the control table"
    actual = "{rows:,} rows, by the files of its newest version"
    fix = (
        "`tidemark deduplicate {pipeline} --dry-run` counts the copies of rows, --apply removes "
        "them; see docs/runbook.md, DuplicateRows."
    )


@dataclass(kw_only=True, eq=False)
class RowsChanged(TerminalError):
    """A part of a landed range was to be replaced, whose rows are not those that landed."""

    pipeline: str
    sequence: int
    partition: int
    start: int
    end: int
    recorded: int
    rows: int

    problem = (
        "A part of what plan {sequence} of pipeline {pipeline!r} landed cannot be replaced: what "
        "would be left of it cannot be told."
    )
    expected = "{recorded:,} row(s) at partition {partition}, offsets [{start}, {end}), as recorded"
    actual = "{rows:,}"
    fix = "{_fix}"

    @property
    def _fix(self) -> str:
        pipeline = PipelineRef.parse(self.pipeline).name
        return (
            f"replace the whole range in one chunk: `tidemark backfill {pipeline} --offsets "
            f"{self.partition}:{self.start}-{self.end} --chunk {self.end - self.start} --replace "
            "--reason TEXT`; if Kafka has deleted a part of it, that is not possible any more"
        )


@dataclass(kw_only=True, eq=False)
class NotLive(TerminalError):
    """A copy of a pipeline's table was to follow the log."""

    pipeline: str
    origin: str

    problem = "{pipeline!r} is a copy, which does not follow its topic."
    expected = "the pipeline {origin!r}, or a backfill"
    actual = "a run of its own"
    fix = "See `tidemark backfill --help`; or run {origin!r}."


@dataclass(kw_only=True, eq=False)
class NothingLanded(TerminalError):
    """A typed table, or a report, was to be made of a pipeline that has landed nothing."""

    pipeline: str
    topic: str

    problem = "Nothing of pipeline {pipeline!r} has landed."
    expected = "records of topic {topic!r} that have landed"
    actual = "none"
    fix = "Land some: tidemark ingest {pipeline}."
