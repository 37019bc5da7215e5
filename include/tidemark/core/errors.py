"""Base classes of all errors, exit codes, and the errors that core rules raise."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import IntEnum
from string import Formatter
from typing import Any, ClassVar

from tidemark.core.texts import comma_list, counted, format_duration, listed


class ExitCode(IntEnum):
    """Exit code of a job or a command. DAGs decide by it whether to retry."""

    OK = 0
    """The work is done, or was done already."""
    CRASH = 1
    """An unexpected error. Retrying is safe: executing a plan twice has the effect of once."""
    USAGE = 2
    """The command line is invalid."""
    REFUSED = 65
    """A `TerminalError`: a retry does not help. Not 3, the exit code of a JVM out of memory."""
    QUALITY_FAILED = 66
    """The data landed, and a critical expectation failed."""
    TRANSIENT = 75
    """A `TransientError` (EX_TEMPFAIL of sysexits.h)."""
    UNKNOWN_OUTCOME = 76
    """An `UnknownOutcomeError`. Retrying is safe: a retry reads the outcome before it writes."""

    @property
    def retryable(self) -> bool:
        """Whether a retry can succeed."""
        return self in _RETRYABLE

    @classmethod
    def worst(cls, codes: Iterable[int]) -> int:
        """Return the exit code of a command for several pipelines, from one code for each.

        A code that is not in this enum counts as a crash. Retryable codes precede the others: the
        retry repeats the refusals of the other pipelines.
        """
        return max(codes, key=_severity, default=cls.OK)


_RETRYABLE = {ExitCode.CRASH, ExitCode.TRANSIENT, ExitCode.UNKNOWN_OUTCOME}


_BY_SEVERITY = (
    ExitCode.OK,
    ExitCode.QUALITY_FAILED,
    ExitCode.REFUSED,
    ExitCode.USAGE,
    ExitCode.TRANSIENT,
    ExitCode.UNKNOWN_OUTCOME,
    ExitCode.CRASH,
)


def _severity(code: int) -> int:
    return _BY_SEVERITY.index(code) if code in _BY_SEVERITY else len(_BY_SEVERITY)


@dataclass(kw_only=True, eq=False)
class TidemarkError(Exception):
    """Base class of all errors. A subclass is a keyword-only dataclass with four templates.

    A template is a format string (`str.format`) over the fields and properties of the error. A
    tuple is formatted as a list with commas, a duration as `2 d 4 h`. A noun as format counts or
    lists: `{rows:row}` is `1 row` or `2,000 rows`, `{plans:plan}` is `plan 3` or `plans 3, 4`. The
    conversion `{requested_by!q}` quotes an argument of a command for the shell. A template may end
    a sentence after a value that ends with a full stop.

    A class without `problem` is a base class of errors and is not raised itself.

    Attributes:
        problem: What is wrong, with the values: one sentence or more.
        expected: Expected value, if it adds information.
        actual: Actual value, if it adds information.
        fix: Command or edit that solves the problem: one sentence or more.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.CRASH
    problem: ClassVar[str]
    expected: ClassVar[str] = ""
    actual: ClassVar[str] = ""
    fix: ClassVar[str]

    def rendered(self, name: str) -> str:
        """Return the text of a template: `problem`, `expected`, `actual` or `fix`."""
        template: str = getattr(self, name)
        return _DOUBLED_STOP.sub(".", _TemplateFormatter(self).format(template))

    @property
    def see(self) -> str:
        """The error's section in the runbook, as path and anchor."""
        return f"docs/runbook.md#{type(self).__name__.lower()}"

    def __str__(self) -> str:
        return one_line(self.as_record())

    def as_record(self) -> dict[str, Any]:
        """Return the error as plain values, for `--json`."""
        return {
            "error": type(self).__name__,
            "retryable": self.exit_code.retryable,
            **{name: self.rendered(name) for name in ("problem", "expected", "actual", "fix")},
            "see": self.see,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), {f.name: getattr(self, f.name) for f in fields(self)})


_DOUBLED_STOP = re.compile(r"(?<=[^\s./])\.\.(?=\s|$)")


class _TemplateFormatter(Formatter):
    """Formats templates over the fields and properties of an error."""

    def __init__(self, error: TidemarkError) -> None:
        self._error = error

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        del args, kwargs
        return getattr(self._error, str(key))

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        if conversion == "q":
            return shlex.quote(str(value))
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, timedelta):
            return format_duration(value)
        if isinstance(value, tuple):
            return listed(format_spec, value) if format_spec else comma_list(value)
        if _NOUN.fullmatch(format_spec):
            return counted(value, format_spec)
        text: str = super().format_field(value, format_spec)
        return text


_NOUN = re.compile(r"[a-z ]{2,}")


def one_line(record: Mapping[str, Any]) -> str:
    """Return the message of an error in one line.

    Args:
        record: The error, as `TidemarkError.as_record` returns it.
    """
    details = [
        f"{label}: {record[key].removesuffix('.')}."
        for label, key in (("Expected", "expected"), ("Actual", "actual"))
        if record[key]
    ]
    return " ".join([record["problem"], *details, record["fix"], f"See {record['see']}."])


def _rebuild(cls: type[TidemarkError], state: dict[str, Any]) -> TidemarkError:
    return cls(**state)


class TransientError(TidemarkError):
    """Nothing was written; the same call may succeed later."""

    exit_code = ExitCode.TRANSIENT


class UnknownOutcomeError(TidemarkError):
    """A commit was sent and its response was lost: read the outcome before writing again."""

    exit_code = ExitCode.UNKNOWN_OUTCOME


class TerminalError(TidemarkError):
    """The same call fails until an operator changes the spec, the table or Kafka."""

    exit_code = ExitCode.REFUSED


@dataclass(kw_only=True, eq=False)
class HistoriesDiverge(TidemarkError):
    """Base class: the data table and the control table have different histories.

    An operator decides which table is right, and repairs the other one.
    """

    pipeline: str


@dataclass(kw_only=True, eq=False)
class SetupError(TerminalError):
    """This machine lacks a requirement, or something on it conflicts with Tidemark."""

    subject: str
    needed: str
    seen: str
    advice: str

    problem = "{subject}"
    expected = "{needed}"
    actual = "{seen}"
    fix = "{advice}"


@dataclass(kw_only=True, eq=False)
class Unforeseen(TidemarkError):
    """An exception other than `TidemarkError`, in a command that continued with other pipelines.

    Only the log has the message: it may contain values of records or secrets, and errors also go to
    tables, webhooks and Airflow's database.

    Attributes:
        kind: The type of the exception.
    """

    kind: str

    problem = "An unexpected error occurred."
    actual = "{kind}"
    fix = "Run the command again, which is safe. The log has the message."


@dataclass(kw_only=True, eq=False)
class InvalidRange(TerminalError):
    """A requested offset range is outside the readable log."""

    pipeline: str
    topic: str
    partition: int
    start: int
    end: int
    rule: str

    problem = "Invalid range [{start}, {end}) of partition {partition} of topic {topic!r}: {rule}."
    fix = "Request offsets of the log. `tidemark status {pipeline} --wide` shows the watermarks."


@dataclass(kw_only=True, eq=False)
class InvalidRequester(TerminalError):
    """The name of a run could be mistaken for a plan of another origin."""

    requester: str

    problem = (
        "The requester {requester!r} has the form of the name of a backfill's chunk "
        "(`NAME#NUMBER`) or of a decoder (`decode:PIPELINE:NUMBERS`)."
    )
    fix = "Name the run in another way, such as `notebook:2026-01-31`."


@dataclass(kw_only=True, eq=False)
class OverfullRange(TerminalError):
    """A plan has more rows than offsets: another program duplicated rows."""

    pipeline: str
    sequence: int
    partition: int
    offsets: int
    records: int

    problem = (
        "The data table of {pipeline!r} contains too many rows of plan {sequence}, partition "
        "{partition}."
    )
    expected = "at most {offsets:,} rows, one for each offset"
    actual = "{records:,} rows"
    fix = "Another program wrote to the table. `DESCRIBE HISTORY` of the table shows it."


@dataclass(kw_only=True, eq=False)
class TableBehindLedger(HistoriesDiverge, TerminalError):
    """The data table's log lacks a plan that the control table records as landed."""

    sequence: int
    newest: int

    problem = "The data table of {pipeline!r} lacks plans that the control table records as landed."
    expected = "a table whose log contains plan {sequence}"
    actual = "{newest_plan}"
    fix = (
        "If the spec's target was changed, change it back. If the table is permanently gone, run "
        "`tidemark rewind {pipeline} --dry-run --reason TEXT`, which shows the offsets to read "
        "again."
    )

    @property
    def newest_plan(self) -> str:
        """The newest plan in the table's log."""
        return f"newest plan {self.newest}" if self.newest else "no table, or an empty one"


@dataclass(kw_only=True, eq=False)
class UndoLost(HistoriesDiverge, TerminalError):
    """A data table or its quarantine is a copy from before an undo that the control table records.

    Attributes:
        pipeline: Pipeline name.
        sequence: The undone plan.
        version: The version of the data table that the undo created.
        newest: The newest version of the data table.
    """

    sequence: int
    version: int
    newest: int

    problem = (
        "A table of {pipeline!r} lacks the undo of plan {sequence}, so the rows of the plan may be "
        "in it again."
    )
    expected = "the removal of these rows, which created version {version} of the data table"
    actual = "a table without the removal; the data table has version {newest}"
    fix = (
        "If a table was restored from a backup, run "
        "`tidemark rewind {pipeline} --dry-run --reason TEXT`, which shows the differences."
    )


@dataclass(kw_only=True, eq=False)
class LedgerBehindTable(HistoriesDiverge, TerminalError):
    """The log of a data table or of its quarantine has a plan that the control table lacks."""

    sequence: int
    newest: int

    problem = "The control table lacks a plan that is in a table of {pipeline!r}."
    expected = "a control table with plan {sequence}"
    actual = "{newest_plan}"
    fix = (
        "The control table was removed, restored or replaced by another one. Restore the right "
        "control table, or run `tidemark control rebuild {pipeline} --dry-run`."
    )

    @property
    def newest_plan(self) -> str:
        """The newest plan of the chain in the control table."""
        return f"newest plan {self.newest}" if self.newest else "no plan of this chain"


@dataclass(kw_only=True, eq=False)
class TableRestored(HistoriesDiverge, TerminalError):
    """A RESTORE removed landed plans from the data table."""

    sequence: int
    version: int

    problem = (
        "A RESTORE of the data table of {pipeline!r} to version {version} removed plan {sequence}, "
        "which the control table records as landed."
    )
    fix = (
        "If the RESTORE was a mistake, restore the table to the version before the RESTORE. "
        "Otherwise run `tidemark rewind {pipeline} --dry-run --reason TEXT`, which shows the "
        "offsets to read again."
    )


@dataclass(kw_only=True, eq=False)
class LostRange(TerminalError):
    """Kafka deleted offsets before the pipeline read them (S7).

    Attributes:
        pipeline: Pipeline name.
        topic: Topic name.
        lost: Partition, first offset and next offset after each lost range.
        plan: The open plan that contains the ranges; None if they are not planned.
    """

    pipeline: str
    topic: str
    lost: tuple[tuple[int, int, int], ...]
    plan: int | None = None

    problem = "Kafka deleted {size:offset} of topic {topic!r} before {reader} read them: {ranges}."
    fix = (
        "Nothing was written, and nothing is skipped. Lengthen the topic's retention. If the "
        "records are permanently gone, run {commands}."
    )

    @property
    def size(self) -> int:
        """Number of lost offsets."""
        return sum(end - start for _, start, end in self.lost)

    @property
    def reader(self) -> str:
        """The plan, or the pipeline, that needs the offsets."""
        return _reader(self.pipeline, self.plan)

    @property
    def ranges(self) -> str:
        """The lost ranges."""
        return comma_list(f"{partition}: [{start}, {end})" for partition, start, end in self.lost)

    @property
    def commands(self) -> str:
        """Commands that accept the loss; an open plan must be abandoned first."""
        accept = f"`tidemark accept-loss {self.pipeline} --reason TEXT`"
        if self.plan is None:
            return accept
        return f"{_abandon_command(self.pipeline, self.plan)}, then {accept}"


@dataclass(kw_only=True, eq=False)
class TopicDiffers(TerminalError):
    """Base class: Kafka's topic is not the topic that the pipeline has read."""

    pipeline: str


@dataclass(kw_only=True, eq=False)
class TopicRecreated(TopicDiffers):
    """The topic was deleted and created again: the same offsets name other records."""

    topic: str
    known_topic_id: str
    current_topic_id: str

    problem = "Topic {topic!r} was recreated since pipeline {pipeline!r} last read it."
    expected = "topic id {known_topic_id}"
    actual = "topic id {current_topic_id}"
    fix = (
        "If the topic was recreated on purpose, run `tidemark accept-recreation {pipeline} "
        "--reason TEXT`, which reads the new topic from its first offset."
    )


@dataclass(kw_only=True, eq=False)
class TopicChanged(TopicDiffers):
    """The spec names a different topic from the one that the pipeline has read."""

    known_topic: str
    topic: str

    problem = (
        "The spec of pipeline {pipeline!r} names topic {topic!r}, but its committed offsets belong "
        "to topic {known_topic!r}."
    )
    fix = "Change the spec back, and create another pipeline for topic {topic!r}."


@dataclass(kw_only=True, eq=False)
class ClusterChanged(TopicDiffers):
    """The connection now leads to a different Kafka cluster."""

    known_cluster_id: str
    current_cluster_id: str

    problem = "The connection of pipeline {pipeline!r} now leads to a different Kafka cluster."
    expected = "cluster id {known_cluster_id}"
    actual = "cluster id {current_cluster_id}"
    fix = (
        "Point the connection at the old cluster. If the pipeline moved on purpose, run `tidemark "
        "accept-recreation {pipeline} --reason TEXT`."
    )


@dataclass(kw_only=True, eq=False)
class PartitionsShrunk(TopicDiffers):
    """The topic has fewer partitions than before, although Kafka cannot remove any (S10)."""

    topic: str
    missing: tuple[int, ...]

    problem = "Topic {topic!r} lacks {missing:partition}, which pipeline {pipeline!r} has read."
    fix = "Kafka cannot remove partitions. Check that the connection leads to the right cluster."


@dataclass(kw_only=True, eq=False)
class EndBehindCommitted(TerminalError):
    """The log ends before an offset that landed, or that a plan needs.

    Attributes:
        pipeline: Pipeline name.
        topic: Topic name.
        partition: Partition number.
        offset: Offset that the log should reach.
        end: Log end offset.
        plan: The open plan that needs the offset.
        undo: Landed plans with records that Kafka no longer has.
    """

    pipeline: str
    topic: str
    partition: int
    offset: int
    end: int
    plan: int | None = None
    undo: tuple[int, ...] = ()

    problem = "Partition {partition} of topic {topic!r} ends before an offset that {reader} needs."
    expected = "log end offset >= {offset:,}"
    actual = "log end offset {end:,}"
    fix = "{remedies}"

    @property
    def reader(self) -> str:
        """The plan, or the pipeline, that needs the offset."""
        return _reader(self.pipeline, self.plan)

    @property
    def remedies(self) -> str:
        """The steps after an open transaction, a truncated log, and with an open plan."""
        remedies = ["Nothing was written. If a transaction is open, wait until it ends."]
        if self.undo:
            remedies.append(
                f"If the log was truncated, {undo_instruction(self.pipeline, self.undo)}."
            )
        if self.plan is not None:
            remedies.append(
                f"Plan {self.plan} can land when the log has grown to the end of the plan; to "
                f"abandon the plan, run {_abandon_command(self.pipeline, self.plan)}."
            )
        return " ".join(remedies)


@dataclass(kw_only=True, eq=False)
class UnknownPartition(TerminalError):
    """The topic does not have the requested partition."""

    topic: str
    partition: int
    partitions: int

    problem = "Topic {topic!r} has no partition {partition}; it has {partitions:partition}."
    fix = "Name a partition from 0 to {last}."

    @property
    def last(self) -> int:
        """The highest partition number."""
        return self.partitions - 1


@dataclass(kw_only=True, eq=False)
class ControlTruncated(HistoriesDiverge, TerminalError):
    """The control table's log has commits of events that its rows lack."""

    event_number: int
    missing: int

    problem = (
        "The control table has no rows for {missing:event} of pipeline {pipeline!r}: its log "
        "records {event_number}."
    )
    fix = (
        "Restore the control table to its newest version, or rebuild the pipeline's events from "
        "its data table: `tidemark control rebuild {pipeline} --dry-run`."
    )


@dataclass(kw_only=True, eq=False)
class DuplicateEvents(TerminalError):
    """The control table contains rows of an event more than once, after a wrong compaction."""

    pipeline: str
    events: tuple[int, ...]

    problem = (
        "The control table contains {count:event} of pipeline {pipeline!r} more than once, from "
        "event {first} to {last}."
    )
    fix = "`tidemark control repair --apply` writes each event once; no row is lost."

    @property
    def count(self) -> int:
        """Number of duplicate events."""
        return len(self.events)

    @property
    def first(self) -> int:
        """Number of the oldest duplicate event."""
        return self.events[0]

    @property
    def last(self) -> int:
        """Number of the newest duplicate event."""
        return self.events[-1]


@dataclass(kw_only=True, eq=False)
class RepairUnfinished(HistoriesDiverge, TransientError):
    """The data table is fenced for a new epoch that the control table lacks."""

    epoch: int

    problem = (
        "A repair of pipeline {pipeline!r} is running or was interrupted. The data table is fenced "
        "against epoch {epoch}, and the control table has no later one."
    )
    fix = (
        "Run the command again in a minute. If the error persists, run the interrupted `tidemark "
        "rewind {pipeline} --reason TEXT` or `tidemark control rebuild {pipeline} --apply` again."
    )


@dataclass(kw_only=True, eq=False)
class InvalidSelection(TerminalError):
    """The selection of a backfill, or its target table, is missing, ambiguous or invalid."""

    rule: str
    seen: str

    problem = "Invalid backfill selection: expected {rule}; got {seen}."
    fix = "`tidemark backfill --help` shows every way to select offsets."


@dataclass(kw_only=True, eq=False)
class InvalidReference(TerminalError):
    """A reference to a pipeline, to one of its tables or to a topic is invalid for a command."""

    rule: str
    seen: str

    problem = "Invalid reference: expected {rule}; got {seen}."
    fix = (
        "Correct the name. `tidemark status` lists the pipelines, `tidemark topics list` the "
        "topics. The tables of a pipeline are NAME, NAME@typed and NAME@upsert."
    )


@dataclass(kw_only=True, eq=False)
class OtherIncarnation(TerminalError):
    """Requested offsets belong to an earlier topic of the same name."""

    pipeline: str
    topic: str
    topic_id: str
    current: str

    problem = (
        "The offsets requested for pipeline {pipeline!r} belong to an earlier topic {topic!r}, "
        "which was recreated since."
    )
    expected = "topic id {topic_id}"
    actual = "topic id {current}"
    fix = "Records of the earlier topic cannot be read. Request offsets of the current topic."


def undo_instruction(pipeline: str, plans: tuple[int, ...]) -> str:
    """Return the instruction to undo plans and to land the current records, as a clause.

    Args:
        pipeline: Pipeline name.
        plans: Numbers of the plans to undo, at least one.
    """
    others = f", and the same for {listed('plan', plans[1:])}" if plans[1:] else ""
    return (
        "first copy rows that exist nowhere else; run "
        f"`tidemark undo {pipeline} --plan {plans[0]} --reason TEXT`{others}; the next run lands "
        "Kafka's current records"
    )


def _reader(pipeline: str, plan: int | None) -> str:
    return f"pipeline {pipeline!r}" if plan is None else f"plan {plan} of {pipeline!r}"


def _abandon_command(pipeline: str, plan: int) -> str:
    return f"`tidemark abandon {pipeline} --plan {plan} --reason TEXT`"
