"""The control table on Delta. Only delta-rs writes it (docs/explanation/design.md)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import wraps
from threading import Lock
from typing import Concatenate, ParamSpec, TypeVar

from arro3.core import DataType, Field, Schema
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from tidemark.core.accounting import RangeCount
from tidemark.core.errors import TidemarkError
from tidemark.core.event_rows import Row, backfill_requests, decode, encode, losses
from tidemark.core.events import BackfillRequested, ControlEvent, EventKind, LossAccepted
from tidemark.core.ledger import CheckedLedger, Ledger, PlanRecord
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.origins import PlanOrigin, origin_columns
from tidemark.core.plan import PlanRef
from tidemark.core.plan_history import PlanEntry, plan_history, superseding_plans
from tidemark.core.publication import PublicationStatus
from tidemark.core.throughput import RUNS, Run, Throughput
from tidemark.delta.checked_commits import refused_commit
from tidemark.delta.compaction import Compaction
from tidemark.delta.conditional_writes import missing_storage_proofs, prove_conditional_writes
from tidemark.delta.control_repair import translate_control_damage
from tidemark.delta.copied_tables import append_rows, with_files
from tidemark.delta.deletion_vectors import may_have_deletion_vectors
from tidemark.delta.delta_errors import translates_delta_errors
from tidemark.delta.errors import ControlConflict
from tidemark.delta.ledger_summary import in_runs, read_pipeline_rows, read_settled_counts
from tidemark.delta.published_view import EFFECTIVE_DECISIONS
from tidemark.delta.table_checks import check_appends
from tidemark.delta.table_io import (
    TIMESTAMP,
    any_of_plans,
    arrow_table,
    open_if_exists,
    python_rows,
    query_rows,
)
from tidemark.delta.table_properties import LOG_PROPERTIES

log = logging.getLogger(__name__)

COLUMNS = Schema(
    [
        Field("pipeline", DataType.utf8(), nullable=False),
        Field("event_number", DataType.int64(), nullable=False),
        Field("event", DataType.utf8(), nullable=False),
        Field("recorded_at", TIMESTAMP, nullable=False),
        Field("plan_sequence", DataType.int64(), nullable=True),
        Field("plan_kind", DataType.utf8(), nullable=True),
        Field("topic", DataType.utf8(), nullable=True),
        Field("partition", DataType.int32(), nullable=True),
        Field("start_offset", DataType.int64(), nullable=True),
        Field("end_offset", DataType.int64(), nullable=True),
        Field("committed_offset", DataType.int64(), nullable=True),
        Field("records", DataType.int64(), nullable=True),
        Field("gaps", DataType.int64(), nullable=True),
        Field("unproven_gaps", DataType.int64(), nullable=True),
        Field("table_version", DataType.int64(), nullable=True),
        Field("chunk", DataType.int32(), nullable=True),
        Field("readable_only", DataType.bool(), nullable=True),
        Field("replaces", DataType.bool(), nullable=True),
        Field("superseded_by", DataType.int64(), nullable=True),
        Field("low_watermark", DataType.int64(), nullable=True),
        Field("log_end_offset", DataType.int64(), nullable=True),
        Field("left_over", DataType.int64(), nullable=True),
        Field("leader_epoch", DataType.int32(), nullable=True),
        Field("isolation_level", DataType.utf8(), nullable=True),
        Field("cluster_id", DataType.utf8(), nullable=True),
        Field("topic_id", DataType.utf8(), nullable=True),
        Field("epoch", DataType.int64(), nullable=True),
        Field("missing_events", DataType.int64(), nullable=True),
        Field("fingerprint", DataType.utf8(), nullable=True),
        Field("requested_by", DataType.utf8(), nullable=True),
        Field("reason", DataType.utf8(), nullable=True),
        Field("status", DataType.utf8(), nullable=True),
    ]
)
"""The control table's columns; docs/reference/control-table.md explains each and shows queries."""


COMPACT_EVERY = 50
"""Number of events of a pipeline between two compactions of its files."""


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _reading(
    read: Callable[Concatenate[DeltaControlTable, _P], _R],
) -> Callable[Concatenate[DeltaControlTable, _P], _R]:
    """Raise ControlTableDamaged if files of the table make a read fail."""

    @wraps(read)
    def named(self: DeltaControlTable, /, *arguments: _P.args, **options: _P.kwargs) -> _R:
        with translate_control_damage(self._uri):
            return read(self, *arguments, **options)

    return named


@translates_delta_errors
class DeltaControlTable:
    """Append-only events, partitioned by pipeline, one compare-and-set per pipeline.

    Every commit contains the pipeline's name and event number as a Delta application transaction.
    delta-rs refuses a commit if the table has a transaction of the same name that is newer than
    the commit's snapshot. So exactly one of several writers that read the same ledger succeeds.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._summaries: dict[str, tuple[object, Ledger]] = {}
        self._summing: dict[str, Lock] = {}

    @_reading
    def ledger(self, pipeline: str) -> Ledger:
        """Return the pipeline's current state, with every plan."""
        table = self._with_rows(pipeline)
        if table is None:
            return Ledger(pipeline=pipeline)
        rows = python_rows(table.scan(predicate=f"pipeline = '{pipeline}'").read_all())
        # A RESTORE removes rows, but not the transactions of the log.
        newest = table.transaction_version(pipeline) or 0
        return Ledger.fold(pipeline, decode(pipeline, rows), newest)

    @_reading
    def summary(self, pipeline: str) -> Ledger:
        """See `ControlReader.summary`."""
        table = open_if_exists(self._uri)
        if table is None:
            return Ledger(pipeline=pipeline)
        state = _state(table, pipeline)
        # Threads of the console need the same summary at the same time.
        with self._summing.setdefault(pipeline, Lock()):
            known = self._summaries.get(pipeline)
            # A run reads the summary a dozen times.
            if known is None or known[0] != state:
                known = self._summaries[pipeline] = (state, self._summed_up(table, pipeline))
            return known[1]

    def _summed_up(self, table: DeltaTable, pipeline: str) -> Ledger:
        if not _has_all_columns(table):
            return self.ledger(pipeline)
        table = with_files(table, _of_pipelines(pipeline))
        found = read_pipeline_rows(table, pipeline)
        newest = table.transaction_version(pipeline) or 0
        return Ledger.fold(
            pipeline,
            decode(pipeline, found.others),
            max(newest, found.newest),
            settled=found.settled,
            present=found.present,
        )

    @_reading
    def settled_counts(
        self, pipeline: str, topic_id: str, partition: int, window: Span
    ) -> Mapping[int, Sequence[RangeCount]]:
        """See `ControlReader.settled_counts`."""
        table = self._with_rows(pipeline)
        if table is None or not _has_all_columns(table):
            return {}
        return read_settled_counts(table, pipeline, topic_id, partition, window)

    @_reading
    def rows_since(self, pipeline: str, event: int) -> Sequence[Row]:
        """See `EventRows.rows_since`."""
        return self._scan(pipeline, f"event_number >= {event}")

    @_reading
    def rows_of_plans(
        self, pipeline: str, plans: SpanSet, *, with_replaced: bool = False
    ) -> Sequence[Row]:
        """See `EventRows.rows_of_plans`."""
        if not plans:
            return ()
        wanted = in_runs("plan_sequence", plans)
        if with_replaced:
            wanted += f" OR {in_runs('superseded_by', plans)}"
        return self._scan(pipeline, wanted)

    def _scan(self, pipeline: str, wanted: str) -> list[Row]:
        """Return the rows of a pipeline that meet an SQL condition."""
        table = self._with_rows(pipeline)
        if table is None:
            return []
        own = f"pipeline = '{pipeline}' AND ({wanted})"
        return python_rows(table.scan(predicate=own).read_all())

    @_reading
    def throughput(self, pipeline: str) -> Throughput:
        """Return the durations and sizes of the newest landed live plans."""
        table = self._with_rows(pipeline)
        return Throughput() if table is None else _read_throughput(table, pipeline)

    @_reading
    def recorded_at(self, pipeline: str, event: EventKind) -> Mapping[int, datetime]:
        """Return the first time at which an event of each plan was recorded."""
        table = self._with_rows(pipeline)
        if table is None:
            return {}
        rows = query_rows(
            table,
            f"""
            SELECT plan_sequence, min(recorded_at) AS at FROM t
            WHERE pipeline = '{pipeline}' AND event = '{event}' GROUP BY plan_sequence
            """,
        )
        return {row["plan_sequence"]: row["at"] for row in rows}

    @_reading
    def publication_statuses(self, pipeline: str) -> Mapping[int, PublicationStatus]:
        """See `ControlReader.publication_statuses`."""
        table = self._with_rows(pipeline)
        if table is None or not _has_all_columns(table):
            return {}
        effective = EFFECTIVE_DECISIONS.format(control="t", pipeline=pipeline)
        rows = query_rows(
            table,
            f"SELECT DISTINCT plan_sequence, status FROM ({effective}) ORDER BY plan_sequence",
        )
        return {row["plan_sequence"]: PublicationStatus(row["status"]) for row in rows}

    @_reading
    def accepted_losses(self, pipeline: str) -> Sequence[tuple[datetime, LossAccepted]]:
        """Return the accepted losses with the times of their events, oldest first."""
        return losses(pipeline, self._scan(pipeline, f"event = '{EventKind.LOSS_ACCEPTED}'"))

    @_reading
    def plan_record(self, pipeline: str, sequence: int) -> PlanRecord | None:
        """Return one plan with its outcome; None if the table has no such plan."""
        plan = PlanRef(pipeline=pipeline, sequence=sequence)
        return self._plan_records([plan]).get(plan)

    @_reading
    def plan_records(self, plans: Collection[PlanRef]) -> Mapping[PlanRef, PlanRecord]:
        """Return plans of any pipelines with their outcomes; omit missing plans."""
        return self._plan_records(plans)

    def _plan_records(self, plans: Collection[PlanRef]) -> Mapping[PlanRef, PlanRecord]:
        table = self._with_rows(*{plan.pipeline for plan in plans}) if plans else None
        if table is None:
            return {}
        rows = _rows_of_plans(table, plans)
        by_pipeline: dict[str, list[Row]] = {}
        for row in rows:
            by_pipeline.setdefault(row["pipeline"], []).append(row)
        # The rows of a plan depend on the plans that replaced some of them.
        others = {
            PlanRef(pipeline=pipeline, sequence=sequence)
            for pipeline, own in by_pipeline.items()
            for sequence in superseding_plans(own)
        }
        for row in _rows_of_plans(table, others.difference(plans)):
            by_pipeline[row["pipeline"]].append(row)
        ledgers = {
            pipeline: Ledger.fold(pipeline, decode(pipeline, own)).plans
            for pipeline, own in by_pipeline.items()
        }
        found = {plan: ledgers.get(plan.pipeline, {}).get(plan.sequence) for plan in plans}
        return {plan: record for plan, record in found.items() if record is not None}

    @_reading
    def plans_of(self, pipeline: str, origin: PlanOrigin) -> list[PlanRecord]:
        """See `ControlReader.plans_of`."""
        table = self._with_rows(pipeline)
        if table is None:
            return []
        requested_by, chunk = origin_columns(origin)
        wanted = f"requested_by = {_quoted(requested_by)}"
        if chunk is not None:
            wanted += f" AND chunk = {chunk}"
        elif "chunk" in {field.name for field in table.schema().fields}:
            wanted += " AND chunk IS NULL"
        found = query_rows(
            table,
            "SELECT DISTINCT plan_sequence FROM t "
            f"WHERE pipeline = '{pipeline}' AND {wanted} "
            f"AND event IN ('{EventKind.PLANNED}', '{EventKind.ADOPTED}')",
        )
        plans = [PlanRef(pipeline=pipeline, sequence=row["plan_sequence"]) for row in found]
        records = self._plan_records(plans)
        return [records[plan] for plan in sorted(records, key=lambda each: each.sequence)]

    @_reading
    def plan_history(self, pipeline: str, first: int, end: int) -> list[PlanEntry]:
        """Return the plans with numbers `[first, end)` and their events, newest first."""
        table = self._with_rows(pipeline)
        if table is None:
            return []

        def rows(plans: str) -> list[Row]:
            wanted = f"pipeline = '{pipeline}' AND {plans}"
            return python_rows(table.scan(predicate=wanted).read_all())

        found = rows(f"plan_sequence >= {first} AND plan_sequence < {end}")
        others = [by for by in superseding_plans(found) if not first <= by < end]
        if others:
            # The rows of a plan depend on the plans that replaced some of them.
            found += rows(f"plan_sequence IN ({', '.join(map(str, others))})")
        return plan_history(pipeline, found, first, end)

    @_reading
    def backfills(
        self, pipeline: str, requested_by: str | None = None
    ) -> Sequence[BackfillRequested]:
        """Return the backfill requests, oldest first, optionally of one requester."""
        table = self._with_rows(pipeline)
        if table is None or "chunk" not in {field.name for field in table.schema().fields}:
            return ()
        wanted = f"pipeline = '{pipeline}' AND event = '{EventKind.BACKFILL_REQUESTED}'"
        if requested_by is not None:
            wanted += f" AND requested_by = {_quoted(requested_by)}"
        history = decode(pipeline, python_rows(table.scan(predicate=wanted).read_all()))
        return backfill_requests(history)

    def _with_rows(self, *pipelines: str) -> DeltaTable | None:
        """Open the table with the rows of some pipelines; None if it does not exist."""
        table = open_if_exists(self._uri)
        return None if table is None else with_files(table, _of_pipelines(*pipelines))

    def check_appends(self) -> None:
        """See `ControlTable.check_appends`."""
        table = open_if_exists(self._uri)
        if table is not None:
            check_appends(table, self._uri, COLUMNS)

    def append(
        self, ledger: CheckedLedger, events: Sequence[ControlEvent], recorded_at: datetime
    ) -> None:
        """Record `events` as the one commit after `ledger`, all or nothing."""
        number = ledger.event_number + 1
        conflict = ControlConflict(pipeline=ledger.pipeline, event_number=number)
        table = open_if_exists(self._uri) or self._create()
        check_appends(table, self._uri, COLUMNS)
        # fence: control-storage-is-tried
        proofs = missing_storage_proofs(table, self._uri)
        # delta-rs compares with its snapshot only. A snapshot that is newer than the ledger would
        # allow a second writer of the same number.
        # fence: control-snapshot-is-the-ledger
        if (table.transaction_version(ledger.pipeline) or 0) != ledger.event_number:
            raise conflict
        rows = encode(ledger.pipeline, number, recorded_at, events)
        version = table.version()
        try:
            append_rows(
                table,
                arrow_table(rows, COLUMNS),
                # Adds columns that an older table lacks.
                schema_mode="merge",
                commit_properties=CommitProperties(
                    # fence: control-commit-is-a-transaction
                    app_transactions=[Transaction(ledger.pipeline, number), *proofs]
                ),
            )
        except CommitFailedError as refused:
            raise refused_commit(
                refused, self._uri, version, "recording events", lambda _: conflict
            ) from refused
        if number % COMPACT_EVERY == 0:
            self._compact_own(ledger.pipeline)

    def _compact_own(self, pipeline: str) -> None:
        """Compact one pipeline's files. A failure is only logged: the events are committed."""
        try:
            Compaction(self._uri).run({"pipeline": pipeline})
        except (TidemarkError, DeltaError, OSError, ValueError) as failed:
            log.warning(
                "control table not compacted pipeline=%s error=%s message=%s",
                pipeline,
                type(failed).__name__,
                failed,
            )

    def _create(self) -> DeltaTable:
        try:
            DeltaTable.create(
                self._uri,
                schema=COLUMNS,
                mode="ignore",
                partition_by=["pipeline"],
                description="Tidemark: planned offset ranges and their outcomes",
                configuration={**LOG_PROPERTIES, "delta.appendOnly": "true"},
                # A retry after a lost race would commit a later version with another table id, and
                # concurrent appends conflict with it.
                commit_properties=CommitProperties(
                    max_commit_retries=0, app_transactions=[prove_conditional_writes(self._uri)]
                ),
            )
        except CommitFailedError:
            # Another process created the table since `open_if_exists`.
            log.debug("another process created the control table uri=%s", self._uri)
        return DeltaTable(self._uri)


def _of_pipelines(*pipelines: str) -> str:
    """Return the SQL condition of the rows of some pipelines, by the partition column."""
    return f"pipeline IN ({', '.join(map(_quoted, sorted(pipelines)))})"


def _rows_of_plans(table: DeltaTable, plans: Collection[PlanRef]) -> list[Row]:
    """Return all rows of some plans."""
    if not plans:
        return []
    return python_rows(table.scan(predicate=any_of_plans(plans)).read_all())


def _state(table: DeltaTable, pipeline: str) -> object:
    """Return a value that changes with the rows of a pipeline, but not with those of others."""
    own = table.file_uris(file_pruning_predicate=f"pipeline = '{pipeline}'")
    return (
        table.metadata().id,
        table.transaction_version(pipeline),
        frozenset(own),
        # A deletion vector removes rows of a file, and the file keeps its name.
        table.version() if may_have_deletion_vectors(table) else None,
    )


def _has_all_columns(table: DeltaTable) -> bool:
    """Return False if the table is older than a column; its next event adds the column."""
    return {field.name for field in table.schema().fields} == set(COLUMNS.names)


# One aggregation and no join: a join would keep the rows of all plans in memory.
_RUNS = """
SELECT plan_sequence,
  min(CASE WHEN event = 'planned' THEN recorded_at END) AS planned_at,
  min(CASE WHEN event = 'landed' THEN recorded_at END) AS landed_at,
  min(CASE WHEN event = 'landed' THEN event_number END) AS landing
FROM t WHERE pipeline = '{pipeline}' AND event IN ('planned', 'landed', 'undo_started', 'undone')
GROUP BY plan_sequence
HAVING count(CASE WHEN event = 'planned' AND plan_kind = 'live' THEN 1 END) > 0
  AND count(CASE WHEN event = 'landed' AND plan_kind = 'live' THEN 1 END) > 0
  AND count(CASE WHEN event IN ('undo_started', 'undone') THEN 1 END) = 0
ORDER BY plan_sequence DESC LIMIT {most}
"""

_LANDINGS = """
SELECT event_number, plan_sequence, sum(end_offset - start_offset) AS offsets,
  sum(records) AS records
FROM t WHERE pipeline = '{pipeline}' AND event = 'landed' AND event_number IN ({numbers})
GROUP BY event_number, plan_sequence
"""
"""The sizes of some landings. Repairs record landings again, so a plan may have more than one, and
an event number may have landings of several plans."""

_LOWS = """
SELECT partition, min(low_watermark) AS low FROM t
WHERE pipeline = '{pipeline}' AND event = 'planned' AND plan_sequence = {sequence}
GROUP BY partition
"""


def _quoted(text: str) -> str:
    """Return a text as a string in SQL."""
    return "'{}'".format(text.replace("'", "''"))


def _read_throughput(table: DeltaTable, pipeline: str) -> Throughput:
    """Read the newest landed live plans of a pipeline, without undone plans."""
    found = query_rows(table, _RUNS.format(pipeline=pipeline, most=RUNS))
    if not found:
        return Throughput()
    numbers = ", ".join(str(row["landing"]) for row in found)
    landings = query_rows(table, _LANDINGS.format(pipeline=pipeline, numbers=numbers))
    sizes = {(row["event_number"], row["plan_sequence"]): row for row in landings}
    runs = [
        Run(
            sequence=row["plan_sequence"],
            planned_at=row["planned_at"],
            landed_at=row["landed_at"],
            offsets=sizes[row["landing"], row["plan_sequence"]]["offsets"] or 0,
            records=sizes[row["landing"], row["plan_sequence"]]["records"] or 0,
        )
        for row in reversed(found)
    ]
    lows = query_rows(table, _LOWS.format(pipeline=pipeline, sequence=runs[0].sequence))
    return Throughput(runs=runs, lows={row["partition"]: row["low"] for row in lows})
