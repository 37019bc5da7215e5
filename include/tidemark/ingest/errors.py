"""Errors of planning and of executing plans."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import TerminalError, TransientError, UnknownOutcomeError, _undone, listed


@dataclass(kw_only=True, eq=False)
class UnknownPlan(TerminalError):
    """A plan number that the control table does not have."""

    pipeline: str
    sequence: int
    latest: int | None

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} has no plan {self.sequence}"

    def expected(self) -> str:
        return (
            f"a number from 1 to {self.latest or 0}" if self.latest else "a plan to be made first"
        )

    def found(self) -> str:
        return str(self.sequence)

    def remedy(self) -> str:
        return f"make a plan with `tidemark plan {self.pipeline}`, or name one that there is"


@dataclass(kw_only=True, eq=False)
class PlanOpen(TerminalError):
    """A backfill is open, so another one may not start."""

    pipeline: str
    sequence: int
    requested_by: str

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} has an open backfill"

    def expected(self) -> str:
        return "one backfill of a pipeline at a time"

    def found(self) -> str:
        return f"plan {self.sequence}, asked for by {self.requested_by}, not landed yet"

    def remedy(self) -> str:
        return (
            f"finish it with `tidemark ingest {self.pipeline} --plan {self.sequence}`, or give it "
            f"up with `tidemark abandon {self.pipeline} --plan {self.sequence} --reason TEXT`"
        )


@dataclass(kw_only=True, eq=False)
class NotLanded(UnknownOutcomeError):
    """A commit was made and the data table's log does not have the plan."""

    pipeline: str
    sequence: int
    seen: str

    def what(self) -> str:
        return f"plan {self.sequence} of pipeline {self.pipeline!r} is not in its data table"

    def expected(self) -> str:
        return f"a commit of transaction version {self.sequence} with this plan's fingerprint"

    def found(self) -> str:
        return self.seen

    def remedy(self) -> str:
        return "run the same plan again: it looks first and lands only what is not there"


@dataclass(kw_only=True, eq=False)
class PlanAbandoned(TerminalError):
    """A plan that was given up, and may not land any more."""

    pipeline: str
    sequence: int
    reason: str

    def what(self) -> str:
        return f"plan {self.sequence} of pipeline {self.pipeline!r} was given up"

    def expected(self) -> str:
        return "an open or landed plan"

    def found(self) -> str:
        return f"abandoned: {self.reason}"

    def remedy(self) -> str:
        return f"make a new plan with `tidemark plan {self.pipeline}`; its offsets are unread"


@dataclass(kw_only=True, eq=False)
class RecordsMissed(TransientError):
    """A plan landed, and Kafka shows records of it that are not in the table."""

    pipeline: str
    sequence: int
    records: int
    first: tuple[int, int]

    def what(self) -> str:
        return (
            f"plan {self.sequence} of pipeline {self.pipeline!r} landed without {self.records} "
            "record(s) that Kafka shows"
        )

    def expected(self) -> str:
        return "a row for each visible record of the plan"

    def found(self) -> str:
        partition, offset = self.first
        return f"none for partition {partition}, offset {offset}"

    def remedy(self) -> str:
        return "what landed is recorded and the rest is unread again: the next run reads it"


@dataclass(kw_only=True, eq=False)
class PlanFenced(TerminalError):
    """A plan that somebody began to give up: it is fenced off, and not recorded as given up."""

    pipeline: str
    sequence: int

    def what(self) -> str:
        return f"plan {self.sequence} of pipeline {self.pipeline!r} cannot land any more"

    def expected(self) -> str:
        return "a data table in which its transaction is free"

    def found(self) -> str:
        return "the transaction taken by a commit without the plan: giving it up was interrupted"

    def remedy(self) -> str:
        return (
            f"finish it: `tidemark abandon {self.pipeline} --plan {self.sequence} --reason TEXT`; "
            "its offsets are planned again"
        )


@dataclass(kw_only=True, eq=False)
class NoStartOffset(TerminalError):
    """Policy `start: none`, and a partition without a committed offset."""

    pipeline: str
    topic: str
    partitions: tuple[int, ...]

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} may not choose a start for {self.topic}"

    def expected(self) -> str:
        return "a committed offset for every partition, because the spec says start: none"

    def found(self) -> str:
        return f"none for partition(s) {listed(self.partitions)}"

    def remedy(self) -> str:
        return (
            "set `start` in the spec to earliest, latest or a timestamp for the first run, or go "
            "on from offsets that another reader has come to: `tidemark start --help`"
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

    def what(self) -> str:
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

    def expected(self) -> str:
        if self.leader_epoch is None:
            return "the last landed row equals Kafka's record at its offset"
        return (
            f"the records before offset {self.offset} as leader epoch {self.leader_epoch} had them"
        )

    def found(self) -> str:
        if self.leader_epoch is None:
            return "another record, or none at the row's offset"
        return "a log that was truncated before that offset, and has grown again"

    def remedy(self) -> str:
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
class AlreadyBegun(TerminalError):
    """A pipeline is to begin somewhere, and has a beginning."""

    pipeline: str
    wanted: tuple[tuple[int, int], ...]
    known: tuple[tuple[int, int], ...]
    reason: str

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} has begun, so it cannot begin at {_places(self.wanted)}"

    def expected(self) -> str:
        return "a pipeline that has never planned anything"

    def found(self) -> str:
        return f"one that began at {_places(self.known)} ({self.reason})"

    def remedy(self) -> str:
        return (
            "what lies before its beginning can be landed with `tidemark backfill --help`; for "
            "another beginning make a spec with another name and target "
            "(docs/runbook.md, AlreadyBegun)"
        )


@dataclass(kw_only=True, eq=False)
class InvalidStart(TerminalError):
    """Offsets to begin at that are said in no way, in two, or so that nobody can mean them."""

    rule: str
    seen: str

    def what(self) -> str:
        return "what was said of the beginning cannot be meant"

    def expected(self) -> str:
        return self.rule

    def found(self) -> str:
        return self.seen

    def remedy(self) -> str:
        return "see `tidemark start --help` for the ways to say it; nothing was written"


@dataclass(kw_only=True, eq=False)
class UnusableSource(TerminalError):
    """A group, a checkpoint or a table that tells no offsets of the pipeline's topic."""

    source: str
    rule: str
    seen: str

    def what(self) -> str:
        return f"no beginning can be taken from the {self.source}"

    def expected(self) -> str:
        return self.rule

    def found(self) -> str:
        return self.seen

    def remedy(self) -> str:
        return (
            "name another source, or the offsets themselves with --offsets; nothing was written "
            "(docs/runbook.md, UnusableSource)"
        )


@dataclass(kw_only=True, eq=False)
class PartitionsUnsaid(TerminalError):
    """Partitions of the topic of which the source says nothing."""

    pipeline: str
    topic: str
    source: str
    partitions: tuple[int, ...]

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} is not told where to begin in all of {self.topic}"

    def expected(self) -> str:
        return f"an offset of every partition from the {self.source}"

    def found(self) -> str:
        return f"none for partition(s) {listed(self.partitions)}"

    def remedy(self) -> str:
        return (
            "say where those begin: --others earliest, or --others latest, which leaves out what "
            "they hold now (docs/runbook.md, PartitionsUnsaid)"
        )


@dataclass(kw_only=True, eq=False)
class StartBehindEnd(TerminalError):
    """An offset to begin at that the log has not come to."""

    topic: str
    source: str
    partition: int
    offset: int
    end: int

    def what(self) -> str:
        return f"the {self.source} does not fit {self.topic}[{self.partition}]"

    def expected(self) -> str:
        return f"an offset of at most {self.end}, the end of the readable log"

    def found(self) -> str:
        return str(self.offset)

    def remedy(self) -> str:
        return (
            "nothing was written: the offsets are those of another topic, or of this one before "
            "it was made again, or a transaction is still open (docs/runbook.md, StartBehindEnd)"
        )


def _places(places: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(f"{partition}:{offset}" for partition, offset in places)


@dataclass(kw_only=True, eq=False)
class RowsDoubled(TerminalError):
    """A data table has more rows than its plans can have landed."""

    pipeline: str
    rows: int
    landed: int

    def what(self) -> str:
        return f"the data table of {self.pipeline!r} has more rows than have landed in it"

    def expected(self) -> str:
        return f"at most {self.landed:,} rows, by the control table"

    def found(self) -> str:
        return f"{self.rows:,} rows, by the files of its newest version"

    def remedy(self) -> str:
        return (
            f"`tidemark deduplicate {self.pipeline} --dry-run` counts the copies of rows, "
            "--apply removes them; see docs/runbook.md, RowsDoubled"
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

    def what(self) -> str:
        return (
            f"a part of what plan {self.sequence} of pipeline {self.pipeline!r} landed cannot be "
            "replaced: what would be left of it cannot be told"
        )

    def expected(self) -> str:
        return (
            f"{self.recorded:,} row(s) at partition {self.partition}, offsets [{self.start}, "
            f"{self.end}), as recorded"
        )

    def found(self) -> str:
        return f"{self.rows:,}"

    def remedy(self) -> str:
        # A typed table follows what is replaced in the one that it is made of.
        pipeline = self.pipeline.removesuffix("@typed")
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

    def what(self) -> str:
        return f"{self.pipeline!r} is a copy, which does not follow its topic"

    def expected(self) -> str:
        return f"the pipeline {self.origin!r}, or a backfill"

    def found(self) -> str:
        return "a run of its own"

    def remedy(self) -> str:
        return f"see `tidemark backfill --help`; or run {self.origin!r}"


@dataclass(kw_only=True, eq=False)
class NothingLanded(TerminalError):
    """A typed table, or a report, was to be made of a pipeline that has landed nothing."""

    pipeline: str
    topic: str

    def what(self) -> str:
        return f"nothing of pipeline {self.pipeline!r} has landed"

    def expected(self) -> str:
        return f"records of topic {self.topic!r} that have landed"

    def found(self) -> str:
        return "none"

    def remedy(self) -> str:
        return f"land some: tidemark ingest {self.pipeline}"
