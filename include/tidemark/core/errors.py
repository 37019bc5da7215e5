"""Base classes of all errors, exit codes, and the errors that core rules raise."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import IntEnum
from string import Formatter
from typing import Any, ClassVar, Self

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
class PipelineError(TidemarkError):
    """Base class of errors about one pipeline.

    Attributes:
        pipeline: Pipeline name.
    """

    pipeline: str


class HistoriesDiverge(TidemarkError):
    """Base class: the data table and the control table have different histories.

    An operator decides which table is right, and repairs the other one.
    """


@dataclass(kw_only=True, eq=False)
class CaseTexts:
    """Texts of an error with several cases that need the same action of the operator.

    Attributes:
        finding: What is wrong, in one or more sentences.
        advice: The command or edit for this case, in one or more sentences.
        needed: Expected value, if it adds information.
        seen: Actual value, if it adds information.
    """

    finding: str
    advice: str
    needed: str = ""
    seen: str = ""

    problem: ClassVar[str] = "{finding}"
    expected: ClassVar[str] = "{needed}"
    actual: ClassVar[str] = "{seen}"
    fix: ClassVar[str] = "{advice}"


class SetupError(CaseTexts, TerminalError):
    """This machine or a server lacks a requirement, or a setting or a file is unsuitable."""

    @classmethod
    def of_engine(cls, *, engine: str, mismatch: str, needed: str, advice: str) -> Self:
        """A Spark Connect server would land different data than spark-submit, or none."""
        return cls(finding=f"{engine} cannot be used: {mismatch}.", needed=needed, advice=advice)


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
class OverfullRange(PipelineError, TerminalError):
    """A plan has more rows than offsets: another program duplicated rows."""

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
    fix = (
        "Another program wrote to the table: `DESCRIBE HISTORY` shows its commit. Remove its rows, "
        "or RESTORE the version before them."
    )


@dataclass(kw_only=True, eq=False)
class TableBehindLedger(PipelineError, HistoriesDiverge, TerminalError):
    """A table of a pipeline lacks what the control table records: a landed plan or an undo.

    Attributes:
        finding: What the table lacks, in one sentence.
        repair: Another fix to try first, if there is one, and the condition of a rewind. The fix
            continues with "run".
        preview: What the dry run of a rewind shows.
        needed: Expected state of the table, if it adds information.
        seen: Its actual state.
    """

    finding: str
    repair: str
    preview: str = "the offsets to read again"
    needed: str = ""
    seen: str = ""

    problem = "{finding}"
    expected = "{needed}"
    actual = "{seen}"
    fix = (
        "{repair} run `tidemark rewind {pipeline} --dry-run --reason TEXT`, which shows {preview}."
    )

    @classmethod
    def without_plan(cls, *, pipeline: str, sequence: int, newest: int) -> Self:
        """The log of the table lacks a landed plan."""
        return cls(
            pipeline=pipeline,
            finding=(
                f"The data table of {pipeline!r} lacks plans that the control table records as "
                "landed."
            ),
            needed=f"a table whose log contains plan {sequence}",
            seen=f"newest plan {newest}" if newest else "no table, or an empty one",
            repair=(
                "If the spec's target was changed, change it back. If the table is permanently "
                "gone,"
            ),
        )

    @classmethod
    def after_restore(cls, *, pipeline: str, sequence: int, version: int) -> Self:
        """A RESTORE removed a landed plan."""
        return cls(
            pipeline=pipeline,
            finding=(
                f"A RESTORE of the data table of {pipeline!r} to version {version} removed plan "
                f"{sequence}, which the control table records as landed."
            ),
            repair=(
                "If the RESTORE was a mistake, restore the table to the version before the "
                "RESTORE. Otherwise"
            ),
        )

    @classmethod
    def without_undo(cls, *, pipeline: str, sequence: int, version: int, newest: int) -> Self:
        """The data table is a copy from before an undo.

        Args:
            pipeline: Pipeline name.
            sequence: The undone plan.
            version: The version of the data table that the undo created.
            newest: The newest version of the data table.
        """
        return cls(
            pipeline=pipeline,
            finding=(
                f"The data table of {pipeline!r} lacks the undo of plan {sequence}, so the rows of "
                "the plan may be in it again."
            ),
            needed=(
                f"the removal of these rows, which created version {version} of the data table"
            ),
            seen=f"a table without the removal; the data table has version {newest}",
            repair="If a table was restored from a backup,",
            preview="the differences",
        )


class LedgerBehindTable(CaseTexts, HistoriesDiverge, TerminalError):
    """The control table lacks events of its own log or the data table, or has another plan."""

    @classmethod
    def without_plan(cls, *, pipeline: str, sequence: int, newest: int) -> Self:
        """The log of the data table has a plan that the control table lacks."""
        return cls(
            finding=f"The control table lacks a plan that is in the data table of {pipeline!r}.",
            needed=f"a control table with plan {sequence}",
            seen=f"newest plan {newest}" if newest else "no plan of this kind",
            advice=(
                "The control table was removed, restored or replaced by another one. Restore the "
                f"right control table, or run `tidemark control rebuild {pipeline} --dry-run`."
            ),
        )

    @classmethod
    def without_rows(cls, *, pipeline: str, event_number: int, missing: int) -> Self:
        """The log of the control table has commits of events that its rows lack."""
        return cls(
            finding=(
                f"The control table has no rows for {counted(missing, 'event')} of pipeline "
                f"{pipeline!r}. The newest event in its log has number {event_number}."
            ),
            advice=(
                "Restore the control table to its newest version, or rebuild the pipeline's "
                f"events from its data table: `tidemark control rebuild {pipeline} --dry-run`."
            ),
        )

    @classmethod
    def with_other_plan(
        cls, *, pipeline: str, sequence: int, fingerprint: str, other_fingerprint: str
    ) -> Self:
        """The data table has a commit with a plan's number and another plan's fingerprint."""
        return cls(
            finding=f"The data table of {pipeline!r} contains another plan with number {sequence}.",
            needed=f"fingerprint {fingerprint}",
            seen=f"fingerprint {other_fingerprint}",
            advice=(
                "Restore both tables together, or give the pipeline a new name and target. If the "
                f"control table is the wrong one, `tidemark control rebuild {pipeline} --dry-run` "
                "shows the events that the data table implies."
            ),
        )


class ControlTableDamaged(CaseTexts, TerminalError):
    """The control table has an event twice, or a file of it is missing or damaged."""

    @classmethod
    def by_duplicates(cls, *, pipeline: str, events: tuple[int, ...]) -> Self:
        """Rows of an event occur more than once, after a wrong compaction."""
        return cls(
            finding=(
                f"The control table contains {counted(len(events), 'event')} of pipeline "
                f"{pipeline!r} more than once, from event {events[0]} to {events[-1]}."
            ),
            advice="`tidemark control repair --apply` writes each event once; no event is lost.",
        )

    @classmethod
    def by_missing_files(cls, *, table: str, files: tuple[str, ...]) -> Self:
        """Files that the log of the control table refers to are not in the storage."""
        more = f" and {len(files) - 3:,} more" if len(files) > 3 else ""
        return cls(
            finding=(
                f"The control table {table} lacks {counted(len(files), 'file')}: "
                f"{comma_list(files[:3])}{more}."
            ),
            advice=(
                "Restore the files from a backup or the storage's object versions. Otherwise "
                "remove them from the log with `tidemark control repair --apply`, and rebuild "
                "each pipeline that `tidemark status` then names."
            ),
        )

    @classmethod
    def by_unreadable_file(cls, *, table: str, file: str, reason: str) -> Self:
        """A file of the control table exists and cannot be read."""
        return cls(
            finding=f"File {file!r} of the control table {table} is damaged: {reason}.",
            advice=(
                "Restore the file from a backup or the storage's object versions. Otherwise move "
                "it away, run `tidemark control repair --apply`, and rebuild each pipeline that "
                "`tidemark status` then names."
            ),
        )


@dataclass(kw_only=True, eq=False)
class PlanCannotLand(PipelineError, TerminalError):
    """The plan is open and can never land: an operator has to abandon it.

    Attributes:
        sequence: Plan number.
        cause: Why the plan cannot land, as a main clause.
        preparation: What to do before the plan is abandoned, as sentences; may be empty.
        continuation: What happens to its offsets afterwards, or what to do, as a main clause.
    """

    sequence: int
    cause: str
    preparation: str = ""
    continuation: str

    problem = "Plan {sequence} of pipeline {pipeline!r} cannot land: {cause}."
    fix = (
        "{first_steps}Run `tidemark abandon {pipeline} --plan {sequence} --reason TEXT`; "
        "{continuation}."
    )

    @property
    def first_steps(self) -> str:
        """The preparation, as the beginning of a text."""
        return f"{self.preparation} " if self.preparation else ""

    @classmethod
    def by_fence(cls, pipeline: str, sequence: int) -> Self:
        """An interrupted command fenced the plan, which is not recorded as abandoned."""
        return cls(
            pipeline=pipeline,
            sequence=sequence,
            cause=(
                "an interrupted command fenced its transaction without recording that the plan is "
                "abandoned"
            ),
            continuation="a later plan contains its offsets",
        )

    @classmethod
    def by_lost_rows(
        cls, pipeline: str, sequence: int, lost: tuple[tuple[int, int, int], ...]
    ) -> Self:
        """The plan would replace rows whose records Kafka no longer shows.

        Args:
            pipeline: Pipeline name.
            sequence: Plan number.
            lost: Partition, start and end of each range of rows without a record.
        """
        rows = counted(sum(end - start for _, start, end in lost), "row")
        ranges = comma_list(f"{partition}:{start}-{end}" for partition, start, end in lost)
        return cls(
            pipeline=pipeline,
            sequence=sequence,
            cause=(
                f"it would delete {rows} whose records Kafka no longer shows, at {ranges}. "
                "Nothing was changed"
            ),
            continuation=(
                "then request a backfill of the other offsets (--resume would fail again)"
            ),
        )


class OnlyCopy(CaseTexts, TerminalError):
    """The rows to remove may be the only copy of their records."""

    @classmethod
    def of_records(cls, pipeline: str, sequence: int, offsets: int) -> Self:
        """Kafka no longer has records of the plan to undo.

        Args:
            pipeline: Pipeline name.
            sequence: The plan.
            offsets: Maximum number of the plan's offsets whose records Kafka no longer has.
        """
        return cls(
            finding=(
                f"Kafka no longer has the records at {counted(offsets, 'offset')} of plan "
                f"{sequence} of pipeline {pipeline!r}, or has other records there. An undo would "
                "remove the only copy. Nothing was changed."
            ),
            advice=(
                f"Keep the rows: `tidemark publication reject {pipeline} --plan {sequence} "
                "--reason TEXT` hides them. To remove them permanently, run the undo with "
                "`--allow-loss`."
            ),
        )

    @classmethod
    def of_bronze_file(cls, pipeline: str, table: str, file: str, reason: str) -> Self:
        """A file of the bronze table cannot be read, so its rows cannot be decoded again.

        Args:
            pipeline: Name of the bronze pipeline.
            table: The bronze table.
            file: Path in the table.
            reason: The cause, in one line.
        """
        return cls(
            finding=(
                f"File {file!r} of the bronze table {table!r} of pipeline {pipeline!r} cannot be "
                f"read: {reason}. The typed table may have the only copy of its records, so its "
                "rows stay."
            ),
            advice=(
                "Restore the file from a copy, or land its records again if Kafka has them: see "
                "docs/runbook.md#unreadablefile. Then repeat the command."
            ),
        )

    @classmethod
    def of_bronze_rows(cls, pipeline: str, rows: int | None) -> Self:
        """The bronze table may no longer have the rows that the typed rows were decoded from.

        Args:
            pipeline: Name of the bronze pipeline.
            rows: Number of landed rows that the bronze table lacks; None if it is unknown.
        """
        count = "an unknown number of rows" if rows is None else counted(rows, "row")
        return cls(
            finding=(
                f"The bronze table of pipeline {pipeline!r} lacks {count} that landed. The typed "
                "table may have their only copy, so its rows stay."
            ),
            advice=(
                "Keep this typed table, and set another `decode.target` in the spec: see "
                "docs/how-to/typed.md#correct-a-wrong-schema."
            ),
        )


@dataclass(kw_only=True, eq=False)
class LostRange(PipelineError, TerminalError):
    """Kafka deleted offsets before the pipeline read them (S7).

    Attributes:
        topic: Topic name.
        lost: Partition, first offset and next offset after each lost range.
        plan: The open plan that contains the ranges; None if they are not planned.
    """

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


class TopicDiffers(TerminalError):
    """Base class: Kafka's topic is not the topic that the pipeline has read."""


class TopicRecreated(CaseTexts, TopicDiffers):
    """The same offsets name other records: the topic was recreated, or the cluster is another one.

    Only an operator can decide to continue with the new topic.
    """

    @classmethod
    def of_topic(
        cls, *, pipeline: str, topic: str, known_topic_id: str, current_topic_id: str
    ) -> Self:
        """The topic was deleted and created again."""
        return cls(
            finding=f"Topic {topic!r} was recreated since pipeline {pipeline!r} last read it.",
            needed=f"topic id {known_topic_id}",
            seen=f"topic id {current_topic_id}",
            advice=(
                "If the topic was recreated on purpose, run `tidemark accept-recreation "
                f"{pipeline} --reason TEXT`, which reads the new topic from its first offset."
            ),
        )

    @classmethod
    def of_cluster(cls, *, pipeline: str, known_cluster_id: str, current_cluster_id: str) -> Self:
        """The connection now leads to a different Kafka cluster."""
        return cls(
            finding=(
                f"The connection of pipeline {pipeline!r} now leads to a different Kafka cluster."
            ),
            needed=f"cluster id {known_cluster_id}",
            seen=f"cluster id {current_cluster_id}",
            advice=(
                "Point the connection at the old cluster. If the pipeline moved on purpose, run "
                f"`tidemark accept-recreation {pipeline} --reason TEXT`."
            ),
        )


class TopicChanged(CaseTexts, TopicDiffers):
    """The spec or the connection leads to a topic that the pipeline has never read (S10)."""

    @classmethod
    def of_name(cls, *, pipeline: str, known_topic: str, topic: str) -> Self:
        """The spec names a different topic."""
        return cls(
            finding=(
                f"The spec of pipeline {pipeline!r} names topic {topic!r}, but its committed "
                f"offsets belong to topic {known_topic!r}."
            ),
            advice=f"Change the spec back, and create another pipeline for topic {topic!r}.",
        )

    @classmethod
    def of_partitions(cls, *, pipeline: str, topic: str, missing: tuple[int, ...]) -> Self:
        """The topic has fewer partitions than before, although Kafka cannot remove any."""
        return cls(
            finding=(
                f"Topic {topic!r} lacks {listed('partition', missing)}, which pipeline "
                f"{pipeline!r} has read."
            ),
            advice=(
                "Kafka cannot remove partitions. Check that the connection leads to the right "
                "cluster."
            ),
        )


@dataclass(kw_only=True, eq=False)
class EndBehindCommitted(PipelineError, TerminalError):
    """The log ends before an offset that landed, or that a plan needs.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        offset: Offset that the log should reach.
        end: Log end offset.
        plan: The open plan that needs the offset.
        undo: Landed plans with records that Kafka no longer has.
    """

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
        """The fixes for an open transaction, a truncated log and an open plan."""
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
class RepairUnfinished(PipelineError, HistoriesDiverge, TransientError):
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


class InvalidSelection(CaseTexts, TerminalError):
    """The selected offsets, plan or chunk do not exist, or the selection is ambiguous."""

    @classmethod
    def of_backfill(cls, rule: str, seen: str) -> Self:
        """Options of a backfill are missing, ambiguous or invalid."""
        return cls(
            finding=f"Invalid backfill selection: expected {rule}; got {seen}.",
            advice="`tidemark backfill --help` shows every way to select offsets.",
        )

    @classmethod
    def of_range(
        cls, *, pipeline: str, topic: str, partition: int, start: int, end: int, rule: str
    ) -> Self:
        """A range is outside the readable log, or has no offsets."""
        return cls(
            finding=(
                f"Invalid range [{start}, {end}) of partition {partition} of topic {topic!r}: "
                f"{rule}."
            ),
            advice=(
                f"Request offsets of the log. `tidemark status {pipeline} --wide` shows the "
                "watermarks."
            ),
        )

    @classmethod
    def of_partition(cls, *, topic: str, partition: int, partitions: int) -> Self:
        """The topic does not have the partition."""
        has = counted(partitions, "partition")
        return cls(
            finding=f"Topic {topic!r} has no partition {partition}; it has {has}.",
            advice=f"Name a partition from 0 to {partitions - 1}.",
        )

    @classmethod
    def of_earlier_topic(cls, *, pipeline: str, topic: str, topic_id: str, current: str) -> Self:
        """The offsets belong to an earlier topic of the same name."""
        return cls(
            finding=(
                f"The offsets requested for pipeline {pipeline!r} belong to an earlier topic "
                f"{topic!r}, which was recreated since."
            ),
            needed=f"topic id {topic_id}",
            seen=f"topic id {current}",
            advice=(
                "Records of the earlier topic cannot be read. Request offsets of the current topic."
            ),
        )

    @classmethod
    def of_plan(cls, *, pipeline: str, sequence: int, latest: int | None) -> Self:
        """The control table contains no plan with this number."""
        newest = latest or "none"
        return cls(
            finding=f"Pipeline {pipeline!r} has no plan {sequence}. Its newest plan: {newest}.",
            advice=(
                "Use the number of an existing plan, or create a plan with "
                f"`tidemark plan {pipeline}`."
            ),
        )

    @classmethod
    def of_replaced_plan(cls, pipeline: str, sequence: int) -> Self:
        """The data table has no rows of the plan, because later plans have replaced them."""
        return cls(
            finding=(
                f"Later plans have replaced all rows of plan {sequence} of pipeline {pipeline!r}."
            ),
            advice=(
                "Name a plan that replaced them; the column plan_sequence of the data table "
                "contains its number."
            ),
        )

    @classmethod
    def of_chunk(cls, *, pipeline: str, requested_by: str, chunk: int, chunks: int) -> Self:
        """The control table contains no such backfill, or no such chunk of it."""
        return cls(
            finding=(
                f"Pipeline {pipeline!r} has no chunk {chunk} of a backfill requested by "
                f"{requested_by} (recorded chunks: {chunks})."
            ),
            advice=(
                "Request the offsets again, with --replace if the lost request had it. Without "
                "--replace, landed offsets are skipped."
            ),
        )


class InvalidReference(CaseTexts, TerminalError):
    """A command names a pipeline, a table, a topic or a requester that it cannot use."""

    @classmethod
    def of_name(cls, rule: str, seen: str) -> Self:
        """The name has the wrong form, or names another kind of table."""
        return cls(
            finding=f"Invalid reference: expected {rule}; got {seen}.",
            advice=(
                "Correct the name. `tidemark status` lists the pipelines, `tidemark topics list` "
                "the topics. The tables of a pipeline are NAME, NAME@typed and NAME@upsert."
            ),
        )

    @classmethod
    def of_typed(cls, pipeline: str, origin: str) -> Self:
        """The command needs the pipeline, which reads Kafka and has plans."""
        return cls(
            finding=f"{pipeline!r} is a derived table of pipeline {origin!r}, without plans.",
            advice=(
                f"Run the command for {origin!r}. Derived tables follow its bronze table: "
                f"`tidemark run {origin}` brings them up to date."
            ),
        )

    @classmethod
    def without_table(cls, pipeline: str, *, kind: str, section: str) -> Self:
        """The spec of the pipeline has no table of this kind: `typed` or `upsert`."""
        return cls(
            finding=f"Pipeline {pipeline!r} has no {kind} table.",
            advice=f"Add a section `{section}` to its spec; docs/how-to/{kind}.md describes it.",
        )

    @classmethod
    def of_requester(cls, requester: str) -> Self:
        """The name of a run could be mistaken for the chunk of a backfill."""
        return cls(
            finding=(
                f"The requester {requester!r} has the form of the name of a backfill's chunk "
                "(`NAME#NUMBER`)."
            ),
            advice="Name the run in another way, such as `notebook:2026-01-31`.",
        )


def undo_instruction(pipeline: str, plans: tuple[int, ...]) -> str:
    """Return the instruction to undo plans and to land the current records, as a clause.

    Args:
        pipeline: Pipeline name.
        plans: Numbers of the plans to undo, at least one.
    """
    others = f", and the same for {listed('plan', plans[1:])}" if plans[1:] else ""
    return (
        "first copy rows that exist nowhere else; run "
        f"`tidemark undo {pipeline} --plan {plans[0]} --allow-loss --reason TEXT`{others}; "
        "the next run lands Kafka's current records"
    )


def _reader(pipeline: str, plan: int | None) -> str:
    return f"pipeline {pipeline!r}" if plan is None else f"plan {plan} of {pipeline!r}"


def _abandon_command(pipeline: str, plan: int) -> str:
    return f"`tidemark abandon {pipeline} --plan {plan} --reason TEXT`"
