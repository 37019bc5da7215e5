"""What the services need from the world, as small as each need is.

Planning gets readers only; nothing that plans can write a data table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol, TypeAlias

from tidemark.core.datafile import DataFile
from tidemark.core.decoding import Part, RegisteredSchema
from tidemark.core.events import BackfillRequested, ControlEvent, EventKind
from tidemark.core.fields import FieldType
from tidemark.core.landing import Landing
from tidemark.core.ledger import Ledger, PlanRecord
from tidemark.core.marks import IsolationLevel, Position, TopicMarks
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.pace import Pace
from tidemark.core.plan import Plan
from tidemark.core.quality import QualityReport, SliceExpectation, SliceRef
from tidemark.core.records import LogRecord
from tidemark.core.reports import CheckedPlan
from tidemark.core.standing import Word
from tidemark.core.starts import Progress
from tidemark.core.table import Commit, Holding, Label, TableSize, TableState
from tidemark.core.upkeep import PlanIsOver, StoredFile, TableFiles
from tidemark.core.upserts import Changes, Merge, Shown

Clock: TypeAlias = Callable[[], datetime]
"""The present, in UTC."""


class MarkReader(Protocol):
    """Reads a log's identity and marks: a topic's, or those of what landed of it."""

    def topic_marks(self, topic: str, isolation_level: IsolationLevel) -> TopicMarks:
        """Marks of every partition, in calls whose number does not grow with the partitions.

        Raises:
            TopicMissing, KafkaUnavailable, KafkaRefused
        """
        ...


class TopicReader(MarkReader, Protocol):
    """Reads what Kafka says of a topic; needs Describe on the topic, and no group."""

    def offsets_at(
        self, topic: str, partitions: Sequence[int], moment: datetime
    ) -> Mapping[int, int]:
        """First offset whose record is stamped at or after `moment`; the end where none is.

        Raises:
            TopicMissing, KafkaUnavailable, KafkaRefused
        """
        ...

    def retention_time(self, topic: str) -> timedelta | None:
        """How long Kafka keeps a record of the topic at least.

        Needs DescribeConfigs on the topic.

        Returns:
            None if it deletes none because of its age, or if the broker does not tell us.

        Raises:
            TopicMissing, KafkaUnavailable
        """
        ...


class LogReader(Protocol):
    """Reads records, apart from the engine that lands them."""

    def read(
        self, topic: str, isolation_level: IsolationLevel, spans: Mapping[int, SpanSet]
    ) -> Iterator[LogRecord]:
        """Every visible record at these offsets; each partition in offset order.

        The end of the iterator says that there are no others.

        Args:
            topic: Topic name.
            isolation_level: What may be seen.
            spans: Offsets inside the readable log, by partition.

        Raises:
            OffsetsDeleted: Offsets were deleted from Kafka while they were read.
            TopicMissing, KafkaUnavailable, KafkaRefused
        """
        ...


class TopicLogReader(LogReader, Protocol):
    """Reads a topic's records as a free consumer."""

    def first_cut(self, topic: str, positions: Mapping[int, Position]) -> int | None:
        """Return a partition with a log that was truncated before a position and has grown again.

        Args:
            topic: Topic name.
            positions: Inside the log, by partition; each has something after it.

        Returns:
            None if the records before each position are those of its leader epoch.

        Raises:
            OffsetsDeleted: A position was deleted meanwhile.
            TopicMissing, KafkaUnavailable, KafkaRefused
        """
        ...

    def first_records(
        self, topic: str, isolation_level: IsolationLevel, spans: Mapping[int, SpanSet]
    ) -> Iterator[LogRecord]:
        """The first visible record at these offsets of each partition that has one.

        Raises:
            OffsetsDeleted, TopicMissing, KafkaUnavailable, KafkaRefused: As in `read`.
        """
        ...


class OffsetSource(Protocol):
    """Tells how far somebody else has come in a topic; changes nothing of theirs."""

    def read(self, topic: str, partitions: int) -> Progress:
        """The next offset to read, by partition, as far as the source names them.

        Args:
            topic: Topic name.
            partitions: How many partitions it has.

        Raises:
            UnusableSource: It is not what it was said to be, or tells nothing of this topic.
            KafkaUnavailable, KafkaRefused
        """
        ...


class GroupReader(Protocol):
    """Reads what consumer groups have committed, without joining them."""

    def committed(self, group: str, topic: str, partitions: Collection[int]) -> Mapping[int, int]:
        """A group's offsets of some partitions, as far as it has any; empty for an unknown group.

        Raises:
            TopicMissing, KafkaUnavailable, KafkaRefused
        """
        ...

    def has_members(self, group: str) -> bool:
        """Whether consumers have joined the group now.

        Raises:
            KafkaUnavailable, KafkaRefused
        """
        ...


class GroupOffsets(GroupReader, Protocol):
    """Sets what a consumer group has committed. Nothing that plans or lands gets one (I6)."""

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set a group's offsets; the group is made if there is none. Doing it again is harmless.

        Raises:
            GroupActive: The group has members.
            TopicMissing, KafkaUnavailable, KafkaRefused
        """
        ...


class ControlReader(Protocol):
    """Reads what was planned and what became of it."""

    def ledger(self, pipeline: str) -> Ledger:
        """The pipeline's state now, every plan in it; empty for a pipeline without events."""
        ...

    def summary(self, pipeline: str) -> Ledger:
        """The pipeline's state now, settled plans added up: as quick after years as on day one."""
        ...

    def pace(self, pipeline: str) -> Pace:
        """The newest scheduled plans that landed: at most ten."""
        ...

    def recorded_at(self, pipeline: str, event: EventKind) -> Mapping[int, datetime]:
        """Return the first time at which an event of each plan was recorded.

        Repairs record landings again; the first record has the time of the landing.
        """
        ...

    def plan_record(self, pipeline: str, sequence: int) -> PlanRecord | None:
        """One plan and what became of it; None if the table has no such plan."""
        ...

    def backfills(
        self, pipeline: str, requested_by: str | None = None
    ) -> Sequence[BackfillRequested]:
        """What was asked to be landed, oldest first; by one requester if they are named."""
        ...


class ControlTable(ControlReader, Protocol):
    """The external offset store: append-only, with a compare-and-set per pipeline."""

    def append(self, ledger: Ledger, events: Sequence[ControlEvent], recorded_at: datetime) -> None:
        """Record `events` as the one commit after `ledger`, all or nothing.

        Raises:
            ControlConflict: Another writer recorded that event number first; nothing was written.
        """
        ...


class DataLog(Protocol):
    """Reads the log of a pipeline's data table, which is the truth about landing (I5)."""

    def state(self, pipeline: str, app_ids: Collection[str], since: int) -> TableState:
        """The newest transaction of each application id, and RESTOREs after version `since`.

        Raises:
            ForeignTable: There is something in the table's place, and it is not this pipeline's.
            TableAltered: It is this pipeline's, and nothing can land in it as it is.
        """
        ...

    def find(self, plan: Plan) -> Landing | None:
        """The commit that landed `plan`; None if the table has none.

        Raises:
            ForeignCommit: The plan's transaction is there with another plan's fingerprint.
            OverfullRange: More rows of the plan than it has offsets.
        """
        ...

    def gaps(self, plan: Plan) -> Mapping[int, SpanSet]:
        """Offsets of a plan that landed, and have no row; partitions without any are left out."""
        ...

    def size(self) -> TableSize:
        """What rows of the newest version take, by what its log says of its files."""
        ...

    def row_count(self) -> int | None:
        """Number of rows of the newest version, by its log; None without counts in the log."""
        ...

    def files_with(self, topic_id: str, spans: Mapping[int, SpanSet]) -> int:
        """How many files of the newest version may hold rows at these offsets."""
        ...

    def holdings(self) -> tuple[Holding, ...]:
        """What the newest version holds, by plan, incarnation and partition."""
        ...

    def commits_of_plans(self, requested_by: str) -> Sequence[Commit]:
        """Plans' commits, newest first, as far back as the log tells of them."""
        ...

    def discards(self) -> Mapping[int, int]:
        """The newest version that took a plan's rows out, by plan, as far back as the log tells."""
        ...

    def held(self, plan: Plan) -> Landing:
        """What the newest version holds of a plan, whoever committed it.

        Raises:
            OverfullRange: More rows of the plan than it has offsets.
        """
        ...

    def rows_of(self, topic_id: str, partition: int, span: Span) -> Iterator[tuple[int, LogRecord]]:
        """Rows of one incarnation's partition at these offsets: the plan and the record."""
        ...


class LandedRows(Protocol):
    """Reads the last landed rows."""

    def last_rows(
        self, topic_id: str, spans: Mapping[int, SpanSet], most: int
    ) -> Mapping[int, Sequence[LogRecord]]:
        """The rows with the highest offsets of one incarnation, by partition, the highest first.

        Args:
            topic_id: Incarnation of the topic.
            spans: Only rows at these offsets, by partition.
            most: Largest number of rows of each partition.

        Returns:
            Partitions without a row are left out.
        """
        ...


class BronzeLog(DataLog, LandedRows, Protocol):
    """The log of a bronze table."""


class LabelledRows(Protocol):
    """Reads the origin of rows: plan, topic, incarnation, partition and landing time."""

    def labels(self, bounds: Span) -> Sequence[Label]:
        """Count the rows at these offsets of any partition by their origin."""
        ...


class FramedLog(DataLog, Protocol):
    """A data table whose keys or values begin with the id of a schema."""

    def schema_ids(
        self, topic_id: str, spans: Mapping[int, SpanSet], part: Part
    ) -> Mapping[tuple[int, int], int]:
        """Schema ids at the beginning of keys or values of one incarnation, at some offsets.

        Returns:
            By partition and id the first offset, without records that do not begin with an id or
            that have a header with a schema id.
        """
        ...


class DataTable(DataLog, Protocol):
    """Makes a pipeline's data table, lands plans in it, fences them off, takes their rows out."""

    def prepare(self, pipeline: str) -> TableSize:
        """Make the table if it is not there. Returns what its rows take.

        Raises:
            ForeignTable, TableAltered: As in `state`.
        """
        ...

    def append(self, plan: Plan, files: Sequence[DataFile]) -> bool:
        """Add a plan's files in one commit, under the plan's transaction.

        A plan that replaces removes the old rows at its offsets in the same commit.

        Returns:
            Whether this call committed them: False if the transaction existed already. Only
            `DataLog` can answer whether the plan has landed.

        Raises:
            RowsWouldBeLost: A row to be replaced has no successor; nothing was changed.
            TransactionConflict: Another commit of this transaction was first; look again.
            EngineFailed: The commit failed, or its answer was lost.
        """
        ...

    def fence(self, plan: Plan) -> None:
        """Raise the plan's transaction with an empty commit, so that it cannot land any more.

        Raises:
            ForeignTable: As in `prepare`.
            TransactionConflict: Another commit of this transaction was first; look again.
        """
        ...

    def check_removable(self, plan: Plan) -> None:
        """Check that a plan's rows can be removed. Changes nothing.

        Raises:
            UnreadableFile: A file that would have to be rewritten cannot be read.
        """
        ...

    def discard(self, plan: Plan) -> tuple[int, int]:
        """Remove a plan's rows. Returns their number, and a version that has none of them.

        Raises:
            EngineFailed: The rows may be there or not; do it again.
        """
        ...

    def fence_chains(self, pipeline: str, app_ids: Collection[str]) -> int:
        """Raise transactions so far that no plan under them can ever land.

        Returns:
            The version of the table after which that holds.

        Raises:
            ForeignTable: As in `prepare`.
            TransactionConflict: Another commit of such a transaction was first; look again.
        """
        ...


class BronzeTable(DataTable, LandedRows, LabelledRows, Protocol):
    """A bronze table."""


class GrowingTable(DataTable, Protocol):
    """A typed table: its keys and values have the columns that their schemas make."""

    def columns(self) -> Mapping[Part, FieldType]:
        """The types of keys and values, as far as the table has columns for them."""
        ...

    def check_whole(self, pipeline: str) -> None:
        """Refuse a quarantine that a RESTORE has taken something out of.

        Raises:
            QuarantineRestored
        """
        ...

    def grow(self, pipeline: str, columns: Mapping[Part, FieldType]) -> None:
        """Make the table if it is not there, and add what its columns do not have.

        Raises:
            ForeignTable, TableAltered: As in `prepare`.
            EngineFailed: It may be done or not; do it again.
        """
        ...


class TypedLog(DataLog, Protocol):
    """A typed table, for the table of latest rows that follows it."""

    def columns(self) -> Mapping[Part, FieldType]:
        """As `GrowingTable.columns`."""
        ...

    def newest(self) -> tuple[int, str]:
        """Its newest version, and the id of the table; -1 and nothing of one that is not there."""
        ...

    def changes(self, since: int) -> Changes | None:
        """What has happened to its rows after a version; None if nobody knows."""
        ...


class LatestRows(Protocol):
    """A table of latest rows: one for each key."""

    def progress(self, pipeline: str) -> Shown | None:
        """What it shows; None if nobody knows, or it is not there.

        Raises:
            ForeignTable: There is something in the table's place, and it is not this pipeline's.
        """
        ...

    def version(self) -> int:
        """Its own newest version; -1 of one that is not there."""
        ...

    def fits(self, columns: Mapping[Part, FieldType]) -> bool:
        """Whether its columns are those of a typed table, or become so by new fields inside them.

        One that does not fit is made anew.

        Raises:
            ColumnsDiffer: No latest rows can be made of such columns.
        """
        ...

    def prepare(self, pipeline: str, columns: Mapping[Part, FieldType]) -> None:
        """Make the table if it is not there; give the columns of one that fits their new fields.

        Raises:
            ForeignTable, TableAltered: As in `DataTable.prepare`.
            EngineFailed: It may be done or not; do it again.
        """
        ...


class Merger(Protocol):
    """Brings a table of latest rows up to date."""

    def merge(self, merge: Merge) -> None:
        """Do what is to be done, in one commit; nothing if that was done before.

        Raises:
            EngineFailed: It may be done or not; do it again.
        """
        ...


class SchemaRegistry(Protocol):
    """Says what is behind the id of a schema."""

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """A schema with all that it refers to; None if there is none of this id.

        Raises:
            RegistryUnavailable, RegistryRefused
        """
        ...


class SchemaStore(Protocol):
    """Keeps what a registry has said."""

    def kept(self, ids: Collection[int]) -> Mapping[int, RegisteredSchema]:
        """Those of some schemas that are here, by id."""
        ...

    def keep(self, schemas: Sequence[RegisteredSchema]) -> None:
        """Keep schemas that are not here.

        Raises:
            EngineFailed: They may be here or not; do it again.
        """
        ...


class Sink(Protocol):
    """Writes the rows of a plan beside those of its data table, which is there."""

    def write(self, plan: Plan, records_per_task: int) -> Sequence[DataFile]:
        """Read the plan's ranges from Kafka into new files, which no reader of the table sees.

        Args:
            plan: The plan.
            records_per_task: Most offsets of one file; longer ranges are split (S12).

        Raises:
            KafkaRefused: The brokers do not let the reader read.
            EngineFailed: The engine gave up. Files may lie about; nothing has happened.
        """
        ...


class QualityChecker(Protocol):
    """Runs quality suites over landed slices and keeps the results."""

    def check(
        self,
        ref: SliceRef,
        expected: Sequence[SliceExpectation],
        suite: str | None,
        run_at: datetime,
    ) -> QualityReport:
        """Validate a slice; a failed expectation is a result, not an exception.

        Raises:
            SpecError: The suite's file cannot be used.
        """
        ...

    def record(self, report: QualityReport) -> None:
        """Keep a report's results as one more attempt."""
        ...


class CheckResults(Protocol):
    """Check results of every attempt."""

    def append(self, report: QualityReport) -> None:
        """Add the results of one attempt."""
        ...

    def earlier_figures(self, ref: SliceRef, plans: int) -> Mapping[str, Sequence[float]]:
        """Figures of earlier plans of the same kind, by check, newest plan first."""
        ...


class VerdictTable(Protocol):
    """Keeps what checks and people say of landed plans; nothing that was said is changed."""

    def say(self, plan: Plan, landing: Landing, word: Word) -> None:
        """Add a word on a plan that landed.

        Raises:
            EngineFailed: Nothing was said, or the answer was lost: say it again.
        """
        ...

    def words(self, pipeline: str, plan: int | None = None) -> Sequence[Word]:
        """Return every decision about a pipeline's plans, or about one plan, in any order."""
        ...

    def decided(self, pipeline: str) -> Collection[int]:
        """Return the plans of a pipeline with a decision by a check or an operator."""
        ...

    def blocked(self, pipeline: str) -> Collection[int]:
        """Return the plans whose effective publication status is `blocked`."""
        ...


class Upkeep(Protocol):
    """Keeps one table small, beside whoever reads and writes it."""

    def look(self) -> TableFiles | None:
        """The newest version's files; None if there is no table.

        Raises:
            ForeignTable: It is not the one that it should be.
        """
        ...

    def compact(self) -> int:
        """Rewrite small files as fewer; changes no row. Returns the number of replaced files.

        Raises:
            CompactionConflict: Other commits removed these files; nothing was changed.
            EngineFailed: The compaction failed, or its answer was lost.
        """
        ...

    def reclaim(
        self, now: datetime, keep: timedelta, is_over: PlanIsOver, *, dry_run: bool = False
    ) -> Sequence[StoredFile]:
        """Remove files that are older than `keep` and that no version since then refers to.

        Args:
            now: The time by this machine's clock.
            keep: Versions that were the newest so long ago, or later, can be read.
            is_over: Plans whose files no driver can commit any more; read before this call.
            dry_run: Remove nothing, and use this machine's clock.

        Raises:
            ClockDiffers: The storage's clock differs; nothing was removed.
            EngineFailed: Some may be gone; do it again.
        """
        ...


class QualityHistory(Protocol):
    """What checks have found."""

    def checked(self, pipeline: str, plans: Collection[int]) -> Sequence[CheckedPlan]:
        """The newest check of each of some plans; of plans that nobody has checked, none."""
        ...


class QualityPages(Protocol):
    """The pages of quality checks; their results are in a table."""

    def prune(self, now: datetime, keep: timedelta, *, dry_run: bool = False) -> int:
        """Remove pages of checks that are older than `keep`, except each pipeline's newest.

        Args:
            now: The time by this machine's clock.
            keep: How long pages stay.
            dry_run: Only count them, and use this machine's clock.

        Returns:
            The number of pages.

        Raises:
            ClockDiffers: The file system's clock differs; nothing was removed.
        """
        ...
