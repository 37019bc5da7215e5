"""Protocols of Kafka and of tables that several services need."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol, TypeAlias

from tidemark.core.accounting import Landing
from tidemark.core.datafile import DataFile
from tidemark.core.events import BackfillRequested, ControlEvent, EventKind
from tidemark.core.ledger import Ledger, PlanRecord
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import Plan
from tidemark.core.record import LogRecord
from tidemark.core.table_state import Commit, RowOrigin, RowRange, TableSize, TableState
from tidemark.core.throughput import Pace
from tidemark.core.watermarks import IsolationLevel, Position, TopicWatermarks

Clock: TypeAlias = Callable[[], datetime]
"""The present, in UTC."""


class WatermarkReader(Protocol):
    """Reads a log's identity and watermarks: a topic's, or those of what landed of it."""

    def topic_watermarks(self, topic: str, isolation_level: IsolationLevel) -> TopicWatermarks:
        """Watermarks of every partition, in calls whose number does not grow with the partitions.

        Raises:
            TopicMissing, KafkaUnavailable, KafkaRefused
        """
        ...


class TopicReader(WatermarkReader, Protocol):
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

    def truncated_partition(self, topic: str, positions: Mapping[int, Position]) -> int | None:
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

    def state(
        self, pipeline: str, app_ids: Collection[str], *, restores_since: int | None = None
    ) -> TableState:
        """The newest transaction of each application id, and RESTOREs after version `since`.

        Raises:
            ForeignTable: There is something in the table's place, and it is not this pipeline's.
            TableAltered: It is this pipeline's, and nothing can land in it as it is.
        """
        ...

    def find_landing(self, plan: Plan) -> Landing | None:
        """The commit that landed `plan`; None if the table has none.

        Raises:
            ForeignCommit: The plan's transaction is there with another plan's fingerprint.
            OverfullRange: More rows of the plan than it has offsets.
        """
        ...

    def offsets_without_rows(self, plan: Plan) -> Mapping[int, SpanSet]:
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

    def row_ranges(self) -> tuple[RowRange, ...]:
        """What the newest version holds, by plan, incarnation and partition."""
        ...

    def plan_commits(self, requested_by: str) -> Sequence[Commit]:
        """Plans' commits, newest first, as far back as the log tells of them."""
        ...

    def removal_versions(self) -> Mapping[int, int]:
        """The newest version that took a plan's rows out, by plan, as far back as the log tells."""
        ...

    def current_landing(self, plan: Plan) -> Landing:
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


class RowOriginReader(Protocol):
    """Reads the origin of rows: plan, topic, incarnation, partition and landing time."""

    def row_origins(self, bounds: Span) -> Sequence[RowOrigin]:
        """Count the rows at these offsets of any partition by their origin."""
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

    def remove_rows(self, plan: Plan) -> tuple[int, int]:
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


class BronzeTable(DataTable, LandedRows, RowOriginReader, Protocol):
    """A bronze table."""


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
