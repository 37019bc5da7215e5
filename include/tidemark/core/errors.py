"""Base classes of all errors, exit codes, and the errors of the protocol's rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import IntEnum
from typing import Any, ClassVar


class ExitCode(IntEnum):
    """What a job or a command returns to the shell; DAGs decide on retries by it."""

    OK = 0
    """Done, or found to be done already."""
    CRASH = 1
    """An error nobody foresaw. Retrying is safe: a plan executed twice has the effect of once."""
    USAGE = 2
    """The command line was wrong."""
    REFUSED = 65
    """A `TerminalError`: retrying will not help. Not 3, with which a JVM out of memory ends."""
    QUALITY_FAILED = 66
    """The data landed and a critical expectation failed on it."""
    TRANSIENT = 75
    """A `TransientError` (EX_TEMPFAIL of sysexits.h)."""
    UNKNOWN_OUTCOME = 76
    """An `UnknownOutcomeError`. Retrying is safe: it looks before it acts."""

    @property
    def retryable(self) -> bool:
        """Whether running the same thing again can end differently."""
        return self in _RETRYABLE

    @classmethod
    def worst(cls, codes: Iterable[int]) -> int:
        """The code of a whole whose parts ended with these; codes that are not ours are crashes.

        What a retry may cure comes before what it will not: once a retry has cured it, the
        refusals of other parts are what is left to tell.
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
    """The root of all errors. A subclass is a keyword-only dataclass with four templates.

    A template is text with the names of fields and properties in braces, as in `str.format`.
    A tuple becomes a list with commas.

    Attributes:
        problem: What is wrong, with the values: one sentence or more.
        expected: What should have been found, if it adds information.
        actual: What was found, if it adds information.
        fix: What to do, one sentence or more.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.CRASH
    problem: ClassVar[str]
    expected: ClassVar[str] = ""
    actual: ClassVar[str] = ""
    fix: ClassVar[str]

    def rendered(self, name: str) -> str:
        """Return the text of a template: `problem`, `expected`, `actual` or `fix`."""
        template: str = getattr(self, name)
        return template.format_map(_Values(self))

    def __str__(self) -> str:
        return one_line(self.as_record())

    def as_record(self) -> dict[str, Any]:
        """Return the error as plain values, for `--json`."""
        return {
            "error": type(self).__name__,
            "retryable": self.exit_code.retryable,
            **{name: self.rendered(name) for name in ("problem", "expected", "actual", "fix")},
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), {f.name: getattr(self, f.name) for f in fields(self)})


class _Values(dict[str, object]):
    """The fields and properties of an error, for its templates."""

    def __init__(self, error: TidemarkError) -> None:
        super().__init__()
        self._error = error

    def __missing__(self, name: str) -> object:
        value = getattr(self._error, name)
        return comma_list(value) if isinstance(value, tuple) else value


def one_line(record: Mapping[str, Any]) -> str:
    """Return an error, given as plain values, in one line."""
    informing = [
        f"{label}: {record[key]}."
        for label, key in (("Expected", "expected"), ("Actual", "actual"))
        if record[key]
    ]
    return " ".join([record["problem"], *informing, record["fix"]])


def _rebuild(cls: type[TidemarkError], state: dict[str, Any]) -> TidemarkError:
    return cls(**state)


class TransientError(TidemarkError):
    """Nothing happened; the same call may succeed later."""

    exit_code = ExitCode.TRANSIENT


class UnknownOutcomeError(TidemarkError):
    """A commit was sent and its answer was lost; look before acting."""

    exit_code = ExitCode.UNKNOWN_OUTCOME


class TerminalError(TidemarkError):
    """The same call fails again until somebody changes something."""

    exit_code = ExitCode.REFUSED


EARLIER_DECISION_HINT = (
    "if an earlier try lost its answer, its decision stands: "
    "docs/control-table.md, What did people decide?"
)
"""Where a command that records a decision finds nothing to decide."""


def comma_list(values: Iterable[object]) -> str:
    """Numbers, or names, for a message."""
    return ", ".join(map(str, values))


@dataclass(kw_only=True, eq=False)
class SetupError(TerminalError):
    """Something this machine must have is missing or in the way."""

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
    """An error without a name of ours, while other pipelines went on."""

    kind: str
    text: str

    problem = "An error that nobody foresaw."
    expected = "a result or a named error"
    actual = "{_actual}"
    fix = "Try again, which is safe; the log has the traceback."

    @property
    def _actual(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind


@dataclass(kw_only=True, eq=False)
class InvalidRange(TerminalError):
    """An offset range that cannot be meant."""

    topic: str
    partition: int
    start: int
    end: int
    rule: str

    problem = "The range {topic}[{partition}] [{start}, {end}) is not usable."
    expected = "{rule}"
    actual = "start {start}, end {end}"
    fix = "Ask for a range inside the log; `tidemark status PIPELINE` shows the watermarks."


@dataclass(kw_only=True, eq=False)
class OverfullRange(TerminalError):
    """More rows of a plan than it has offsets: something doubled them."""

    pipeline: str
    sequence: int
    partition: int
    offsets: int
    records: int

    problem = (
        "The data table of {pipeline!r} holds too many rows of plan {sequence}, partition "
        "{partition}."
    )
    expected = "at most {offsets}, one for each offset"
    actual = "{_actual}"
    fix = "Something else wrote to the table: see docs/runbook.md, OverfullRange."

    @property
    def _actual(self) -> str:
        return str(self.records)


@dataclass(kw_only=True, eq=False)
class TableBehindLedger(TerminalError):
    """The data table has not seen what is recorded as landed in it."""

    pipeline: str
    sequence: int
    newest: int

    problem = "The data table of {pipeline!r} is not the one that its plans landed in."
    expected = "a table whose log has plan {sequence}"
    actual = "{_actual}"
    fix = (
        "If the spec's target was changed, change it back or rename the pipeline; if the table was "
        "removed for good, `tidemark rewind {pipeline} --dry-run --reason TEXT` shows what is read "
        "again (docs/runbook.md, TableBehindLedger)."
    )

    @property
    def _actual(self) -> str:
        return f"plan {self.newest} as the newest" if self.newest else "no table, or an empty one"


@dataclass(kw_only=True, eq=False)
class LedgerBehindTable(TerminalError):
    """The data table has seen a plan that the control table does not know."""

    pipeline: str
    sequence: int
    newest: int

    problem = "The control table is behind the data table of {pipeline!r}."
    expected = "a control table that knows plan {sequence}"
    actual = "{_actual}"
    fix = (
        "The control table was removed, restored or is another one: bring the right one back, or "
        "`tidemark control rebuild {pipeline} --dry-run` (docs/runbook.md, LedgerBehindTable)."
    )

    @property
    def _actual(self) -> str:
        return f"plan {self.newest} as the newest" if self.newest else "no plan of this chain"


@dataclass(kw_only=True, eq=False)
class TableRestored(TerminalError):
    """A RESTORE took landed plans out of the data table."""

    pipeline: str
    sequence: int
    version: int

    problem = "The data table of {pipeline!r} was restored to version {version}."
    expected = "a table that holds plan {sequence}, which is recorded as landed"
    actual = "a RESTORE to a version before it"
    fix = (
        "Restore the table to its newest version; if the RESTORE was meant, `tidemark rewind "
        "{pipeline} --dry-run --reason TEXT` shows what is read again (docs/runbook.md, "
        "TableRestored)."
    )


@dataclass(kw_only=True, eq=False)
class LostRange(TerminalError):
    """Retention removed offsets before they were read (S7)."""

    pipeline: str
    topic: str
    lost: tuple[tuple[int, int, int], ...]
    plan: int | None = None

    problem = "{_problem}"
    expected = "{_expected}"
    actual = "{_actual}"
    fix = "{_fix}"

    @property
    def _problem(self) -> str:
        ranges = ", ".join(f"{partition}: [{start}, {end})" for partition, start, end in self.lost)
        reader = f"pipeline {self.pipeline!r}" if self.plan is None else f"plan {self.plan}"
        return f"{self.topic} lost offsets before {reader} read them ({ranges})"

    @property
    def _expected(self) -> str:
        watermarks = ", ".join(f"{partition}: {start}" for partition, start, _ in self.lost)
        return f"low watermarks no higher than these, by partition: {watermarks}"

    @property
    def _actual(self) -> str:
        return f"{sum(end - start for _, start, end in self.lost)} offset(s) deleted from Kafka"

    @property
    def _fix(self) -> str:
        accept = f"`tidemark accept-loss {self.pipeline} --reason TEXT`"
        if self.plan is not None:
            given_up = f"`tidemark abandon {self.pipeline} --plan {self.plan} --reason TEXT`"
            accept = f"{given_up}, then {accept}"
        return (
            "nothing was written and nothing is skipped silently: lengthen the topic's retention; "
            f"if the records are gone for good, {accept}"
        )


@dataclass(kw_only=True, eq=False)
class TopicRecreated(TerminalError):
    """The topic was deleted and made again: the same offsets name other records."""

    pipeline: str
    topic: str
    known_topic_id: str
    current_topic_id: str

    problem = "Topic {topic!r} is not the topic that pipeline {pipeline!r} knows."
    expected = "topic id {known_topic_id}"
    actual = "topic id {current_topic_id}"
    fix = (
        "Offsets of the old topic mean nothing in the new one; if it was made again on purpose, "
        "`tidemark new-incarnation {pipeline} --reason TEXT` reads it from its start "
        "(docs/runbook.md, TopicRecreated)."
    )


@dataclass(kw_only=True, eq=False)
class TopicChanged(TerminalError):
    """The spec names another topic than the one the pipeline has read."""

    pipeline: str
    known_topic: str
    topic: str

    problem = "The spec of pipeline {pipeline!r} names another topic than before."
    expected = "topic {known_topic!r}, which its committed offsets belong to"
    actual = "topic {topic!r}"
    fix = "Change the spec back, and give the other topic a pipeline of its own."


@dataclass(kw_only=True, eq=False)
class ClusterChanged(TerminalError):
    """The connection leads to another Kafka cluster than before."""

    pipeline: str
    known_cluster_id: str
    current_cluster_id: str

    problem = "The connection of pipeline {pipeline!r} leads to another cluster."
    expected = "cluster id {known_cluster_id}"
    actual = "cluster id {current_cluster_id}"
    fix = (
        "Point the connection at the old cluster; if the pipeline moved on purpose, `tidemark "
        "new-incarnation {pipeline} --reason TEXT`."
    )


@dataclass(kw_only=True, eq=False)
class PartitionsShrunk(TerminalError):
    """A topic with fewer partitions than before, which Kafka cannot do (S10)."""

    pipeline: str
    topic: str
    missing: tuple[int, ...]

    problem = "Topic {topic!r} has lost partitions of pipeline {pipeline!r}."
    expected = "partition(s) {missing}"
    actual = "no such partition(s)"
    fix = "Kafka cannot remove partitions: check that the connection leads to the right topic."


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
        undo: Known landed plans with records that Kafka no longer has.
    """

    pipeline: str
    topic: str
    partition: int
    offset: int
    end: int
    plan: int | None = None
    undo: tuple[int, ...] = ()

    problem = "{_problem}"
    expected = "an end of at least {offset}"
    actual = "an end of {end}"
    fix = "{_fix}"

    @property
    def _problem(self) -> str:
        reader = f"pipeline {self.pipeline!r}" if self.plan is None else f"plan {self.plan}"
        return f"{self.topic}[{self.partition}] ends before an offset that {reader} needs"

    @property
    def _fix(self) -> str:
        advice = "nothing was written: if a transaction is open, wait for its end"
        if self.undo:
            advice += f"; if the log was truncated, {undo_instruction(self.pipeline, self.undo)}"
        if self.plan is not None:
            advice += (
                f"; plan {self.plan} can land once the log is long enough, or "
                f"`tidemark abandon {self.pipeline} --plan {self.plan} --reason TEXT`"
            )
        return f"{advice} (docs/runbook.md, EndBehindCommitted)"


@dataclass(kw_only=True, eq=False)
class UnknownPartition(TerminalError):
    """A partition that the topic does not have."""

    topic: str
    partition: int
    partitions: int

    problem = "Topic {topic!r} has no partition {partition}."
    expected = "{_expected}"
    actual = "{_actual}"
    fix = "Name a partition that `tidemark status PIPELINE` shows."

    @property
    def _expected(self) -> str:
        return f"a partition from 0 to {self.partitions - 1}"

    @property
    def _actual(self) -> str:
        return str(self.partition)


@dataclass(kw_only=True, eq=False)
class ControlTruncated(TerminalError):
    """The control table's log has seen events that its rows do not have."""

    pipeline: str
    event_number: int
    missing: int

    problem = "The control table has lost events of pipeline {pipeline!r}."
    expected = "every event up to {event_number}, which its log has seen"
    actual = "{missing} of them missing"
    fix = (
        "Restore the control table to its newest version, or rebuild the pipeline's events from "
        "its data table: `tidemark control rebuild {pipeline} --dry-run`."
    )


@dataclass(kw_only=True, eq=False)
class ControlDoubled(TerminalError):
    """The control table contains rows of an event more than once, after a wrong compaction."""

    pipeline: str
    events: tuple[int, ...]

    problem = "The control table contains events of pipeline {pipeline!r} more than once."
    expected = "each row of an event once"
    actual = "{_actual}"
    fix = "`tidemark control repair --apply` writes each event once; no row is lost."

    @property
    def _actual(self) -> str:
        first, last = self.events[0], self.events[-1]
        return f"{len(self.events)} doubled event(s), from number {first} to {last}"


@dataclass(kw_only=True, eq=False)
class RepairUnfinished(TransientError):
    """The data table is fenced for a new epoch that is not recorded: a repair is under way."""

    pipeline: str
    epoch: int

    problem = "Pipeline {pipeline!r} is being repaired."
    expected = "a data table in which plans of the newest recorded epoch can land"
    actual = "epoch {epoch} fenced off, and no later one recorded"
    fix = (
        "Try again in a moment; if it stays, the repair was interrupted: run the same `tidemark "
        "rewind {pipeline} --reason TEXT` or `tidemark control rebuild {pipeline} --apply` again."
    )


@dataclass(kw_only=True, eq=False)
class InvalidSelection(TerminalError):
    """A backfill whose offsets are said in no way, in two, or not so that anybody understands.

    Or whose table would be nowhere.
    """

    rule: str
    seen: str

    problem = "What was asked of the backfill cannot be meant."
    expected = "{rule}"
    actual = "{seen}"
    fix = "See `tidemark backfill --help` for the ways to say it."


@dataclass(kw_only=True, eq=False)
class OtherIncarnation(TerminalError):
    """Wanted offsets that belong to a topic that was made again since."""

    pipeline: str
    topic: str
    topic_id: str
    current: str

    problem = "Offsets wanted for pipeline {pipeline!r} are those of another topic."
    expected = "topic {topic!r} with id {topic_id}"
    actual = "id {current}"
    fix = "Nothing can read them any more; ask anew for offsets of the topic that there is."


def format_duration(time: timedelta) -> str:
    """A length of time for people, in its two largest units: `2 d 4 h`."""
    minutes, seconds = divmod(max(0, round(time.total_seconds())), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    first = next((i for i, (number, _) in enumerate(parts) if number), len(parts) - 1)
    some = parts[first : first + 2]
    return " ".join(f"{number} {unit}" for number, unit in some if number) or "0 s"


def undo_instruction(pipeline: str, plans: tuple[int, ...]) -> str:
    """Return the command that undoes the first plan, and the other plans to undo."""
    others = f", the same for plan(s) {comma_list(plans[1:])}" if plans[1:] else ""
    return (
        f"`tidemark undo {pipeline} --plan {plans[0]} --reason TEXT`{others}, then run again: the "
        "next plans land Kafka's current records; copy rows that exist nowhere else first"
    )
