"""Protocols of Kafka and of tables that several services use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol, TypeAlias

from tidemark.core.accounting import Landing, RangeCount
from tidemark.core.datafile import DataFile
from tidemark.core.events import BackfillRequested, ControlEvent, EventKind, LossAccepted
from tidemark.core.following import EventRows
from tidemark.core.ledger import CheckedLedger, Ledger, PlanRecord
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.origins import PlanOrigin
from tidemark.core.plan import CommittablePlan, Plan, PlanRef, ReadablePlan
from tidemark.core.plan_history import PlanEntry
from tidemark.core.publication import PublicationStatus
from tidemark.core.record import LogRecord
from tidemark.core.table_state import Fence, PlanCommit, RowOrigin, RowRange, TableSize, TableState
from tidemark.core.throughput import Throughput
from tidemark.core.watermarks import IsolationLevel, Position, TopicWatermarks

Clock: TypeAlias = Callable[[], datetime]
"""Returns the current time in UTC."""


class TopicReader(Protocol):
    """Reads the identity and metadata of a topic.

    Needs Describe on the topic and no consumer group. The methods of the readers of Kafka raise
    `KafkaFailure`.
    """

    def topic_watermarks(self, topic: str, isolation_level: IsolationLevel) -> TopicWatermarks:
        """Return the watermarks of every partition.

        The number of requests does not grow with the number of partitions.
        """

    def offsets_at(
        self, topic: str, partitions: Sequence[int], moment: datetime
    ) -> Mapping[int, int]:
        """Return the first offset with a timestamp at or after `moment`, by partition.

        For a partition without such a record, return the log end offset.
        """

    def retention_time(self, topic: str) -> timedelta | None:
        """Return the minimum time that Kafka keeps a record of the topic.

        Needs DescribeConfigs on the topic.

        Returns:
            None if retention does not depend on age, or without permission to read it.
        """


class LogReader(Protocol):
    """Reads records independently of the engine that lands them."""

    def read(
        self, topic: str, isolation_level: IsolationLevel, spans: Mapping[int, SpanSet]
    ) -> Iterator[LogRecord]:
        """Yield every visible record at these offsets, each partition in offset order.

        When the iterator ends, the offsets contain no other visible record.

        Args:
            topic: Topic name.
            isolation_level: Visibility of transactional records.
            spans: Offsets inside the readable log, by partition.
        """


class TopicLogReader(LogReader, Protocol):
    """Reads a topic's records without a consumer group."""

    def truncated_partition(self, topic: str, positions: Mapping[int, Position]) -> int | None:
        """Return a partition with a log that was truncated before a position and has grown again.

        Args:
            topic: Topic name.
            positions: Offsets inside the log, by partition; each is before the log end.

        Returns:
            None if the records before each position are those of its leader epoch.
        """

    def first_records(
        self, topic: str, isolation_level: IsolationLevel, spans: Mapping[int, SpanSet]
    ) -> Iterator[LogRecord]:
        """Yield the first visible record at these offsets of each partition that has one."""

    def read_briefly(
        self,
        topic: str,
        isolation_level: IsolationLevel,
        partition: int,
        span: Span,
        *,
        seconds: float,
        size: int,
    ) -> tuple[Sequence[LogRecord], int]:
        """Read the visible records at some offsets within a time and a size.

        Args:
            topic: Topic name.
            isolation_level: Visibility of transactional records.
            partition: Partition number.
            span: Offsets inside the readable log.
            seconds: Longest time.
            size: Size of keys, values and headers after which reading stops, in bytes. The last
                record may exceed it.

        Returns:
            The records, and the first offset that was not read.
        """


class ControlReader(EventRows, Protocol):
    """Reads plans and their outcomes from the control table."""

    def ledger(self, pipeline: str) -> Ledger:
        """Return the current state with every plan; empty for a pipeline without events."""

    def summary(self, pipeline: str) -> Ledger:
        """Return the current state, in which totals may replace settled plans.

        The time to read it does not grow with the number of settled plans.
        """

    def settled_counts(
        self, pipeline: str, topic_id: str, partition: int, window: Span
    ) -> Mapping[int, Sequence[RangeCount]]:
        """Return the counts of settled plans, also of those that a `summary` lists.

        Args:
            pipeline: Pipeline name.
            topic_id: Incarnation of the topic.
            partition: Partition number.
            window: Only ranges that overlap these offsets are returned.

        Returns:
            The ranges that each plan holds now, sorted by start, by plan number.
        """

    def throughput(self, pipeline: str) -> Throughput:
        """Return the newest landed live plans, at most ten."""

    def recorded_at(self, pipeline: str, event: EventKind) -> Mapping[int, datetime]:
        """Return the first time at which an event of each plan was recorded.

        Repairs record landings again; the first record has the time of the landing.
        """

    def publication_statuses(self, pipeline: str) -> Mapping[int, PublicationStatus]:
        """Return the effective publication status of each decided plan, ordered by plan number.

        Equals the decisions of the full ledger, without a Python object for each event.
        """

    def accepted_losses(self, pipeline: str) -> Sequence[tuple[datetime, LossAccepted]]:
        """Return the accepted losses with the times of their events, oldest first."""

    def plan_record(self, pipeline: str, sequence: int) -> PlanRecord | None:
        """Return one plan with its outcome; None if the table has no such plan."""

    def plan_records(self, plans: Collection[PlanRef]) -> Mapping[PlanRef, PlanRecord]:
        """Return plans of any pipelines with their outcomes; omit missing plans."""

    def plans_of(self, pipeline: str, origin: PlanOrigin) -> Sequence[PlanRecord]:
        """Return all plans that an origin requested or took over, with outcomes, oldest first.

        A repeated request has further plans, for example if a landing missed records.
        """

    def plan_history(self, pipeline: str, first: int, end: int) -> Sequence[PlanEntry]:
        """Return the plans with numbers `[first, end)` and their events, newest first."""

    def backfills(
        self, pipeline: str, requested_by: str | None = None
    ) -> Sequence[BackfillRequested]:
        """Return recorded backfill requests, oldest first; of one requester if given."""


class ControlTable(ControlReader, Protocol):
    """The offset store outside Kafka: append-only, with a compare-and-set per pipeline."""

    def check_appends(self) -> None:
        """Check that events can be recorded.

        Raises:
            TableAltered: Another program gave the table a feature or a rule for writers.
        """

    def append(
        self, ledger: CheckedLedger, events: Sequence[ControlEvent], recorded_at: datetime
    ) -> None:
        """Append events in one atomic commit, if `ledger` is still the current state.

        Raises:
            ControlConflict: A concurrent process appended first; nothing was written.
            TableAltered: See `check_appends`; nothing was written.
            UnsafeStorage: The storage can lose concurrent commits; nothing was written.
        """


class DataLog(Protocol):
    """Reads the log of a data table, which decides whether a plan has landed (I5).

    Methods that read files raise `StorageFailure`, `DeltaLogDamaged` or `EngineFailed`.
    """

    def state(
        self, pipeline: str, app_ids: Collection[str], *, restores_since: int | None = None
    ) -> TableState:
        """Return the newest transaction of each application id, and RESTOREs.

        Args:
            pipeline: Pipeline name.
            app_ids: Application ids of Delta transactions.
            restores_since: Return RESTOREs after this table version; None for no RESTOREs.

        Raises:
            ForeignTable: The location contains files, or a table of another pipeline.
            TableAltered: A change of the table's metadata prevents landing.
        """

    def find_landing(self, plan: Plan) -> Landing | None:
        """Return the commit that landed a plan; None if the table has none.

        Raises:
            LedgerBehindTable: The plan's transaction has the fingerprint of another plan.
            OverfullRange: The plan has more rows than offsets.
            TableBehindLedger: A RESTORE removed the rows of the commit.
        """

    def offsets_without_rows(self, plan: Plan) -> Mapping[int, SpanSet]:
        """Return the offsets of a landed plan without a row; omits partitions with none."""

    def size(self) -> TableSize:
        """Return the size of the newest version's rows, from the statistics of its files."""

    def row_count(self) -> int | None:
        """Return the row count of the newest version; None if the log lacks row counts."""

    def files_with(self, topic_id: str, spans: Mapping[int, SpanSet]) -> int:
        """Return the number of files of the newest version that may have rows at these offsets."""

    def row_ranges(self) -> tuple[RowRange, ...]:
        """Return the contents of the newest version by plan, incarnation and partition."""

    def plan_commits(self, origin: PlanOrigin) -> Sequence[PlanCommit]:
        """Return the commits of plans, newest first, as far back as the log reaches."""

    def removal_versions(self) -> Mapping[int, Sequence[int]]:
        """Return the versions that removed rows of each plan, as far back as the log reaches."""

    def fences(self) -> Mapping[str, Fence]:
        """Return the fence of each application id, as far back as the log reaches."""

    def log_start(self) -> int:
        """Return the oldest version whose commit the log has; 0 without a table."""

    def current_landing(self, plan: Plan) -> Landing:
        """Count the rows of a plan in the newest version, added by any commit.

        Raises:
            OverfullRange: The plan has more rows than offsets.
        """

    def check_removals(self) -> None:
        """Check that commits may remove rows. Changes nothing.

        Raises:
            TableAltered: Another program has forbidden it by a table property.
        """


class BronzeLog(DataLog, Protocol):
    """The log of a bronze table, whose rows have all fields of a record."""

    def rows_of(self, topic_id: str, partition: int, span: Span) -> Iterator[tuple[int, LogRecord]]:
        """Yield the plan number and the record of each row at these offsets of a partition."""

    def last_rows(
        self, topic_id: str, spans: Mapping[int, SpanSet], most: int
    ) -> Mapping[int, Sequence[LogRecord]]:
        """Return the rows with the highest offsets by partition, the highest offset first.

        Args:
            topic_id: Incarnation of the topic.
            spans: Offsets to read, by partition.
            most: Maximum number of rows of each partition.

        Returns:
            The rows, without partitions that have none.
        """

    def row_origins(self, bounds: Span) -> Sequence[RowOrigin]:
        """Count the rows at these offsets of any partition by their origin."""

    def stored_bytes(self, sequence: int | None = None) -> int | None:
        """Return the bytes of the newest version's files; of one plan, of its own files.

        None without a table, or if no file has rows of the plan alone, as after a compaction.
        """

    def spans_by_plan(
        self, topic_id: str, partition: int, window: Span, most: int
    ) -> Mapping[int, SpanSet] | None:
        """Return the offsets with a row of each plan; rows without a plan number under 0.

        None if the sets have more than `most` spans.
        """

    def count_offsets(self, topic_id: str, partition: int, span: Span, sequence: int) -> int:
        """Return the number of offsets of a span with a row of one plan."""

    def bytes_to_read(self, partition: int, window: Span, most: int) -> int:
        """Return the bytes of files that may have rows of a window.

        If they are more than `most`, return the bytes of their row groups.
        """

    def bytes_to_scan(self, partition: int, window: Span, most: int) -> int:
        """Return the most bytes that a query of offsets and plan numbers in a window decodes.

        Counts files, or their row groups, as `bytes_to_read`.
        """


class DataTable(BronzeLog, Protocol):
    """Creates a data table, lands plans in it, fences plans and removes their rows."""

    def prepare(self, pipeline: str) -> TableSize:
        """Create the table if it does not exist, and return the size of its rows.

        Raises:
            ForeignTable, TableAltered: See `state`.
        """

    def append(self, plan: CommittablePlan, files: Sequence[DataFile], seen: TableState) -> bool:
        """Add a plan's files in one commit with the plan's transaction.

        A replacing plan removes the old rows at its offsets in the same commit.

        Args:
            plan: The plan.
            files: Files with its rows.
            seen: The state of the table that was compared with the ledger.

        Returns:
            Whether this call committed the files; False if the transaction existed already. Only
            `find_landing` decides whether the plan has landed.

        Raises:
            PlanCannotLand: A row to replace has no new row; nothing was changed.
            ForeignTable, TableAltered: See `state`; nothing was changed.
            TableReplaced: The table is older than `seen`, or some of the files
                have disappeared; nothing was changed.
            TransactionConflict: A concurrent commit has this transaction; read the log again.
            TableConflict: A conflicting commit was first; nothing was changed.
            EngineFailed: The commit failed, or its answer was lost.
        """

    def fence(self, plan: Plan, seen: TableState) -> None:
        """Raise the plan's transaction with an empty commit, so that the plan cannot land.

        Args:
            plan: The plan.
            seen: As in `append`.

        Raises:
            ForeignTable, TableAltered, TableReplaced, TransactionConflict: See `prepare` and
                `append`.
        """

    def check_removable(self, plan: Plan) -> None:
        """Check that this process can remove a plan's rows. Changes nothing.

        Raises:
            TableAltered: See `check_removals`.
            StorageFailure: This process cannot commit to the table.
            UnreadableFile: A file that the removal rewrites cannot be read.
        """

    def remove_rows(self, plan: Plan, epoch: int, seen: TableState) -> tuple[int, int]:
        """Remove a plan's rows; return their number and the version that removed the last ones.

        Args:
            plan: The plan.
            epoch: The epoch of the ledger in which the removal was decided.
            seen: As in `append`.

        Raises:
            RemovalFenced: A repair has fenced the epoch; the ledger may rely on the rows.
            TableAltered: See `check_removals`.
            TableConflict: Other processes changed the table in every attempt.
            TableReplaced: See `append`.
            UnreadableFile: See `check_removable`.
            EngineFailed: The outcome is unknown; run it again.
        """

    def fence_chains(self, pipeline: str, app_ids: Collection[str], requested_by: str) -> int:
        """Set transactions to their highest version, so that no later commit can use them.

        Args:
            pipeline: Pipeline name.
            app_ids: Ids of the transactions.
            requested_by: The operator's command, as `cli:<user>:<id>`; `fences` returns it.

        Returns:
            The table version from which on this holds.

        Raises:
            ForeignTable, TableAltered: See `prepare`.
            TransactionConflict: Another process fenced the same ids, or committed one of them.
        """


class Sink(Protocol):
    """Writes the rows of a plan to files in the folder of its existing data table."""

    def write(self, plan: ReadablePlan, records_per_task: int) -> Sequence[DataFile]:
        """Read the plan's ranges from its source into new files outside the table's versions.

        Args:
            plan: The plan.
            records_per_task: Maximum offsets of one file; longer ranges are split (S12).

        Raises:
            KafkaFailure, EngineFailed: Unreferenced files may exist; the table is unchanged.
        """
