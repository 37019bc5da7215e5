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
    """The root: subclasses are keyword-only dataclasses with derived messages."""

    exit_code: ClassVar[ExitCode] = ExitCode.CRASH

    def what(self) -> str:
        """One clause: what went wrong, where."""
        raise NotImplementedError

    def expected(self) -> str:
        """What should have been there."""
        raise NotImplementedError

    def found(self) -> str:
        """What was there."""
        raise NotImplementedError

    def remedy(self) -> str:
        """What the reader does next."""
        raise NotImplementedError

    def __str__(self) -> str:
        return text_of(self.as_record())

    def as_record(self) -> dict[str, Any]:
        """The error as plain values, for `--json`."""
        return {
            "error": type(self).__name__,
            "retryable": self.exit_code.retryable,
            "what": self.what(),
            "expected": self.expected(),
            "found": self.found(),
            "next": self.remedy(),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), {f.name: getattr(self, f.name) for f in fields(self)})


def text_of(record: Mapping[str, Any]) -> str:
    """A named error in one line, from its plain values."""
    return (
        f"{record['what']}. Expected: {record['expected']}. "
        f"Found: {record['found']}. Next: {record['next']}."
    )


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


PERHAPS_DONE = (
    "if an earlier try lost its answer, its decision stands: "
    "docs/control-table.md, What did people decide?"
)
"""Where a command that records a decision finds nothing to decide."""


def listed(values: Iterable[object]) -> str:
    """Numbers, or names, for a message."""
    return ", ".join(map(str, values))


@dataclass(kw_only=True, eq=False)
class SetupError(TerminalError):
    """Something this machine must have is missing or in the way."""

    subject: str
    needed: str
    seen: str
    advice: str

    def what(self) -> str:
        return self.subject

    def expected(self) -> str:
        return self.needed

    def found(self) -> str:
        return self.seen

    def remedy(self) -> str:
        return self.advice


@dataclass(kw_only=True, eq=False)
class Unforeseen(TidemarkError):
    """An error without a name of ours, while other pipelines went on."""

    kind: str
    text: str

    def what(self) -> str:
        return "an error that nobody foresaw"

    def expected(self) -> str:
        return "a result or a named error"

    def found(self) -> str:
        return f"{self.kind}: {self.text}" if self.text else self.kind

    def remedy(self) -> str:
        return "try again, which is safe; the log has the traceback"


@dataclass(kw_only=True, eq=False)
class InvalidRange(TerminalError):
    """An offset range that cannot be meant."""

    topic: str
    partition: int
    start: int
    end: int
    rule: str

    def what(self) -> str:
        return f"the range {self.topic}[{self.partition}] [{self.start}, {self.end}) is not usable"

    def expected(self) -> str:
        return self.rule

    def found(self) -> str:
        return f"start {self.start}, end {self.end}"

    def remedy(self) -> str:
        return "ask for a range inside the log; `tidemark status PIPELINE` shows the marks"


@dataclass(kw_only=True, eq=False)
class OverfullRange(TerminalError):
    """More rows of a plan than it has offsets: something doubled them."""

    pipeline: str
    sequence: int
    partition: int
    offsets: int
    records: int

    def what(self) -> str:
        return (
            f"the data table of {self.pipeline!r} holds too many rows of plan {self.sequence}, "
            f"partition {self.partition}"
        )

    def expected(self) -> str:
        return f"at most {self.offsets}, one for each offset"

    def found(self) -> str:
        return str(self.records)

    def remedy(self) -> str:
        return "something else wrote to the table: see docs/runbook.md, OverfullRange"


@dataclass(kw_only=True, eq=False)
class TableBehindLedger(TerminalError):
    """The data table has not seen what is recorded as landed in it."""

    pipeline: str
    sequence: int
    newest: int

    def what(self) -> str:
        return f"the data table of {self.pipeline!r} is not the one that its plans landed in"

    def expected(self) -> str:
        return f"a table whose log has plan {self.sequence}"

    def found(self) -> str:
        return f"plan {self.newest} as the newest" if self.newest else "no table, or an empty one"

    def remedy(self) -> str:
        return (
            "if the spec's target was changed, change it back or rename the pipeline; if the table "
            f"was removed for good, `tidemark rewind {self.pipeline} --dry-run --reason TEXT` "
            "shows what is read again (docs/runbook.md, TableBehindLedger)"
        )


@dataclass(kw_only=True, eq=False)
class LedgerBehindTable(TerminalError):
    """The data table has seen a plan that the control table does not know."""

    pipeline: str
    sequence: int
    newest: int

    def what(self) -> str:
        return f"the control table is behind the data table of {self.pipeline!r}"

    def expected(self) -> str:
        return f"a control table that knows plan {self.sequence}"

    def found(self) -> str:
        return f"plan {self.newest} as the newest" if self.newest else "no plan of this chain"

    def remedy(self) -> str:
        return (
            "the control table was removed, restored or is another one: bring the right one back, "
            f"or `tidemark control rebuild {self.pipeline} --dry-run` "
            "(docs/runbook.md, LedgerBehindTable)"
        )


@dataclass(kw_only=True, eq=False)
class TableRestored(TerminalError):
    """A RESTORE took landed plans out of the data table."""

    pipeline: str
    sequence: int
    version: int

    def what(self) -> str:
        return f"the data table of {self.pipeline!r} was restored to version {self.version}"

    def expected(self) -> str:
        return f"a table that holds plan {self.sequence}, which is recorded as landed"

    def found(self) -> str:
        return "a RESTORE to a version before it"

    def remedy(self) -> str:
        return (
            "restore the table to its newest version; if the RESTORE was meant, "
            f"`tidemark rewind {self.pipeline} --dry-run --reason TEXT` shows what is read again "
            "(docs/runbook.md, TableRestored)"
        )


@dataclass(kw_only=True, eq=False)
class LostRange(TerminalError):
    """Retention removed offsets before they were read (S7)."""

    pipeline: str
    topic: str
    lost: tuple[tuple[int, int, int], ...]
    plan: int | None = None

    def what(self) -> str:
        ranges = ", ".join(f"{partition}: [{start}, {end})" for partition, start, end in self.lost)
        reader = f"pipeline {self.pipeline!r}" if self.plan is None else f"plan {self.plan}"
        return f"{self.topic} lost offsets before {reader} read them ({ranges})"

    def expected(self) -> str:
        marks = ", ".join(f"{partition}: {start}" for partition, start, _ in self.lost)
        return f"low-water marks no higher than these, by partition: {marks}"

    def found(self) -> str:
        return f"{sum(end - start for _, start, end in self.lost)} offset(s) deleted from Kafka"

    def remedy(self) -> str:
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

    def what(self) -> str:
        return f"topic {self.topic!r} is not the topic that pipeline {self.pipeline!r} knows"

    def expected(self) -> str:
        return f"topic id {self.known_topic_id}"

    def found(self) -> str:
        return f"topic id {self.current_topic_id}"

    def remedy(self) -> str:
        return (
            "offsets of the old topic mean nothing in the new one; if it was made again on "
            f"purpose, `tidemark new-incarnation {self.pipeline} --reason TEXT` reads it from its "
            "start (docs/runbook.md, TopicRecreated)"
        )


@dataclass(kw_only=True, eq=False)
class TopicChanged(TerminalError):
    """The spec names another topic than the one the pipeline has read."""

    pipeline: str
    known_topic: str
    topic: str

    def what(self) -> str:
        return f"the spec of pipeline {self.pipeline!r} names another topic than before"

    def expected(self) -> str:
        return f"topic {self.known_topic!r}, which its committed offsets belong to"

    def found(self) -> str:
        return f"topic {self.topic!r}"

    def remedy(self) -> str:
        return "change the spec back, and give the other topic a pipeline of its own"


@dataclass(kw_only=True, eq=False)
class ClusterChanged(TerminalError):
    """The connection leads to another Kafka cluster than before."""

    pipeline: str
    known_cluster_id: str
    current_cluster_id: str

    def what(self) -> str:
        return f"the connection of pipeline {self.pipeline!r} leads to another cluster"

    def expected(self) -> str:
        return f"cluster id {self.known_cluster_id}"

    def found(self) -> str:
        return f"cluster id {self.current_cluster_id}"

    def remedy(self) -> str:
        return (
            "point the connection at the old cluster; if the pipeline moved on purpose, "
            f"`tidemark new-incarnation {self.pipeline} --reason TEXT`"
        )


@dataclass(kw_only=True, eq=False)
class PartitionsShrunk(TerminalError):
    """A topic with fewer partitions than before, which Kafka cannot do (S10)."""

    pipeline: str
    topic: str
    missing: tuple[int, ...]

    def what(self) -> str:
        return f"topic {self.topic!r} has lost partitions of pipeline {self.pipeline!r}"

    def expected(self) -> str:
        return f"partition(s) {listed(self.missing)}"

    def found(self) -> str:
        return "no such partition(s)"

    def remedy(self) -> str:
        return "Kafka cannot remove partitions: check that the connection leads to the right topic"


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

    def what(self) -> str:
        reader = f"pipeline {self.pipeline!r}" if self.plan is None else f"plan {self.plan}"
        return f"{self.topic}[{self.partition}] ends before an offset that {reader} needs"

    def expected(self) -> str:
        return f"an end of at least {self.offset}"

    def found(self) -> str:
        return f"an end of {self.end}"

    def remedy(self) -> str:
        advice = "nothing was written: if a transaction is open, wait for its end"
        if self.undo:
            advice += f"; if the log was truncated, {_undone(self.pipeline, self.undo)}"
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

    def what(self) -> str:
        return f"topic {self.topic!r} has no partition {self.partition}"

    def expected(self) -> str:
        return f"a partition from 0 to {self.partitions - 1}"

    def found(self) -> str:
        return str(self.partition)

    def remedy(self) -> str:
        return "name a partition that `tidemark status PIPELINE` shows"


@dataclass(kw_only=True, eq=False)
class ControlTruncated(TerminalError):
    """The control table's log has seen events that its rows do not have."""

    pipeline: str
    event_number: int
    missing: int

    def what(self) -> str:
        return f"the control table has lost events of pipeline {self.pipeline!r}"

    def expected(self) -> str:
        return f"every event up to {self.event_number}, which its log has seen"

    def found(self) -> str:
        return f"{self.missing} of them missing"

    def remedy(self) -> str:
        return (
            "restore the control table to its newest version, or rebuild the pipeline's events "
            f"from its data table: `tidemark control rebuild {self.pipeline} --dry-run`"
        )


@dataclass(kw_only=True, eq=False)
class ControlDoubled(TerminalError):
    """The control table contains rows of an event more than once, after a wrong compaction."""

    pipeline: str
    events: tuple[int, ...]

    def what(self) -> str:
        return f"the control table contains events of pipeline {self.pipeline!r} more than once"

    def expected(self) -> str:
        return "each row of an event once"

    def found(self) -> str:
        first, last = self.events[0], self.events[-1]
        return f"{len(self.events)} doubled event(s), from number {first} to {last}"

    def remedy(self) -> str:
        return "`tidemark control repair --apply` writes each event once; no row is lost"


@dataclass(kw_only=True, eq=False)
class RepairUnfinished(TransientError):
    """The data table is fenced for a new epoch that is not recorded: a repair is under way."""

    pipeline: str
    epoch: int

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} is being repaired"

    def expected(self) -> str:
        return "a data table in which plans of the newest recorded epoch can land"

    def found(self) -> str:
        return f"epoch {self.epoch} fenced off, and no later one recorded"

    def remedy(self) -> str:
        return (
            "try again in a moment; if it stays, the repair was interrupted: run the same "
            f"`tidemark rewind {self.pipeline} --reason TEXT` or "
            f"`tidemark control rebuild {self.pipeline} --apply` again"
        )


@dataclass(kw_only=True, eq=False)
class InvalidSelection(TerminalError):
    """A backfill whose offsets are said in no way, in two, or not so that anybody understands.

    Or whose table would be nowhere.
    """

    rule: str
    seen: str

    def what(self) -> str:
        return "what was asked of the backfill cannot be meant"

    def expected(self) -> str:
        return self.rule

    def found(self) -> str:
        return self.seen

    def remedy(self) -> str:
        return "see `tidemark backfill --help` for the ways to say it"


@dataclass(kw_only=True, eq=False)
class OtherIncarnation(TerminalError):
    """Wanted offsets that belong to a topic that was made again since."""

    pipeline: str
    topic: str
    topic_id: str
    current: str

    def what(self) -> str:
        return f"offsets wanted for pipeline {self.pipeline!r} are those of another topic"

    def expected(self) -> str:
        return f"topic {self.topic!r} with id {self.topic_id}"

    def found(self) -> str:
        return f"id {self.current}"

    def remedy(self) -> str:
        return "nothing can read them any more; ask anew for offsets of the topic that there is"


def in_words(time: timedelta) -> str:
    """A length of time for people, in its two largest units: `2 d 4 h`."""
    minutes, seconds = divmod(max(0, round(time.total_seconds())), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    first = next((i for i, (number, _) in enumerate(parts) if number), len(parts) - 1)
    some = parts[first : first + 2]
    return " ".join(f"{number} {unit}" for number, unit in some if number) or "0 s"


def _undone(pipeline: str, plans: tuple[int, ...]) -> str:
    others = f", the same for plan(s) {listed(plans[1:])}" if plans[1:] else ""
    return (
        f"`tidemark undo {pipeline} --plan {plans[0]} --reason TEXT`{others}, then run again: the "
        "next plans land Kafka's current records; copy rows that exist nowhere else first"
    )
