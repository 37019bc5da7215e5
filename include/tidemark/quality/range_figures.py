"""Figures of the rows of a batch in each planned range, in one pass over its files without Spark.

delta-rs streams a few small columns at tens of millions of rows a second. A shuffle in Spark took
more than a third of the time of the landing (docs/adr/0021-ranges-without-spark.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyarrow.parquet import FileMetaData

from tidemark.delta.copied_tables import queried
from tidemark.delta.delta_errors import translate_delta_errors
from tidemark.delta.storage import column_statistics, folder_of, footers_of
from tidemark.delta.table_io import table_at
from tidemark.quality.check_results import BatchRef, RecordedRange
from tidemark.quality.checks import RangeFigures

_Longs: TypeAlias = npt.NDArray[np.int64]

_ROWS = """
    SELECT partition, record_offset, null_key, null_value, no_timestamp,
           CASE WHEN no_timestamp THEN NULL
                WHEN stamp IS NULL THEN far_ms * 1000.0 - CAST(ingested AS DOUBLE)
                ELSE CAST(stamp - ingested AS DOUBLE) END AS ahead
    FROM (
        SELECT coalesce(partition, -1) AS partition, coalesce("offset", -1) AS record_offset,
               ingested, stamp, far_ms,
               {null_key} AS null_key, {null_value} AS null_value,
               coalesce(timestamp_type = -1 OR stamp = -1000, FALSE)
               OR (stamp IS NULL AND far_ms IS NULL) AS no_timestamp
        FROM (
            SELECT *, arrow_cast("timestamp", 'Int64') AS stamp,
                   arrow_cast(ingested_at, 'Int64') AS ingested,
                   CAST(timestamp_out_of_range_ms AS DOUBLE) AS far_ms
            FROM t WHERE plan_sequence = {plan} AND {topic}
        )
    )
"""
"""Kafka's timestamp -1 means "none"; other times before 1970 are valid."""


def range_figures(ref: BatchRef, expected: Sequence[RecordedRange]) -> list[RangeFigures]:
    """Return the figures of each planned range, and of the rows outside all planned ranges.

    Args:
        ref: The batch.
        expected: The planned ranges; ranges of one partition do not overlap.
    """
    with translate_delta_errors(ref.table, "reading the table"):
        return _range_figures(ref, expected)


def _range_figures(ref: BatchRef, expected: Sequence[RecordedRange]) -> list[RangeFigures]:
    table = table_at(ref.table, ref.table_version)
    with queried(table, f"plan_sequence = {ref.plan_sequence}") as rows:
        return _figures_of(rows, ref, expected)


def _figures_of(
    table: DeltaTable, ref: BatchRef, expected: Sequence[RecordedRange]
) -> list[RangeFigures]:
    footers = _footers(table, ref.plan_sequence)
    nulls = {f"null_{name}": _is_null(footers, name) for name in ("key", "value")}
    topics = _read(
        table, f"SELECT DISTINCT topic_id FROM t WHERE plan_sequence = {ref.plan_sequence}"
    )
    figures = []
    for topic_id in sorted((topics.read_all()["topic_id"].to_pylist()), key=str):
        planned = [each for each in expected if each.topic_id == topic_id]
        quoted = str(topic_id).replace("'", "''")
        topic = "topic_id IS NULL" if topic_id is None else f"topic_id = '{quoted}'"
        rows = _read(table, _ROWS.format(plan=ref.plan_sequence, topic=topic, **nulls))
        counts = _counts_by_range(rows, planned)
        for (partition, start), each in sorted(counts.items(), key=_by_partition_and_start):
            figures.append(each.figures(topic_id, partition, start))
    return figures


def _is_null(footers: Sequence[FileMetaData] | None, column: str) -> str:
    """Return SQL for whether a row lacks a value. The SQL reads the column only if it can be null.

    Values are most of a table's bytes, and the footers state whether a file has nulls. A file
    without nulls has none for any of its plans, also after deletions of rows.
    """
    if footers is None or not all(_has_no_nulls(footer, column) for footer in footers):
        return f'"{column}" IS NULL'
    return "FALSE"


def _has_no_nulls(footer: FileMetaData, column: str) -> bool:
    statistics = column_statistics(footer, column)
    return bool(statistics) and all(
        each is not None and each.has_null_count and each.null_count == 0 for each in statistics
    )


def _footers(table: DeltaTable, plan_sequence: int) -> list[FileMetaData] | None:
    """Return the footers of files that may contain rows of a plan; None if one cannot be read."""
    uris = table.file_uris(file_pruning_predicate=f"plan_sequence = {plan_sequence}")
    try:
        files, folder = folder_of(table.table_uri)
        # One file system for all files: to open it for each file takes additional requests.
        root = urlsplit(table.table_uri).path
        paths = [urlsplit(uri).path.removeprefix(root) for uri in uris]
        return footers_of(files, [f"{folder}/{path}" for path in paths])
    except (OSError, ValueError):
        return None


def _read(table: DeltaTable, sql: str) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_stream(QueryBuilder().register("t", table).execute(sql))


def _by_partition_and_start(item: tuple[tuple[int, int | None], _RangeCounts]) -> tuple[int, int]:
    (partition, start), _ = item
    return partition, -1 if start is None else start


@dataclass(slots=True)
class _RangeCounts:
    """Counts of the rows read so far in one range, or outside all ranges of a partition.

    Attributes:
        latest, earliest: Microseconds from ingestion to a timestamp; None without timestamps.
        starts, ends: Half-open runs of consecutive offsets, 16 bytes for each run. `distinct` needs
            four times that. A batch of rows is one run if no offset is missing, and in the worst
            case one run for each row.
    """

    records: int = 0
    null_keys: int = 0
    null_values: int = 0
    no_timestamps: int = 0
    latest: float | None = None
    earliest: float | None = None
    starts: list[_Longs] = field(default_factory=list)
    ends: list[_Longs] = field(default_factory=list)

    def add(self, rows: _Rows) -> None:
        self.records += len(rows.offsets)
        self.null_keys += int(rows.null_key.sum())
        self.null_values += int(rows.null_value.sum())
        self.no_timestamps += int(rows.no_timestamp.sum())
        ahead = rows.ahead[~np.isnan(rows.ahead)]
        if len(ahead):
            latest, earliest = float(ahead.max()), float(ahead.min())
            self.latest = latest if self.latest is None else max(self.latest, latest)
            self.earliest = earliest if self.earliest is None else min(self.earliest, earliest)
        offsets = np.sort(rows.offsets, kind="stable")
        offsets = offsets[_changes(offsets)]
        breaks = np.flatnonzero(np.diff(offsets) != 1)
        self.starts.append(offsets[np.concatenate(([0], breaks + 1))])
        self.ends.append(offsets[np.concatenate((breaks, [len(offsets) - 1]))] + 1)

    @property
    def distinct(self) -> int:
        """Number of distinct offsets: the size of the union of all runs."""
        starts, ends = np.concatenate(self.starts), np.concatenate(self.ends)
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
        covered = np.concatenate((starts[:1], np.maximum.accumulate(ends)[:-1]))
        return int(np.maximum(ends - np.maximum(starts, covered), 0).sum())

    def figures(self, topic_id: str, partition: int, start: int | None) -> RangeFigures:
        return RangeFigures(
            topic_id=topic_id,
            partition=partition,
            start=start,
            records=self.records,
            distinct=self.distinct,
            null_keys=self.null_keys,
            null_values=self.null_values,
            no_timestamps=self.no_timestamps,
            seconds_ahead=None if self.latest is None else self.latest / 1_000_000,
            oldest_seconds_behind=None if self.earliest is None else -self.earliest / 1_000_000,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Columns of some rows. `ahead` is in microseconds from ingestion; NaN without a timestamp."""

    offsets: _Longs
    null_key: npt.NDArray[np.bool_]
    null_value: npt.NDArray[np.bool_]
    no_timestamp: npt.NDArray[np.bool_]
    ahead: npt.NDArray[np.float64]

    def where(self, condition: npt.NDArray[np.bool_]) -> _Rows:
        if condition.all():
            return self
        return _Rows(
            offsets=self.offsets[condition],
            null_key=self.null_key[condition],
            null_value=self.null_value[condition],
            no_timestamp=self.no_timestamp[condition],
            ahead=self.ahead[condition],
        )


def _counts_by_range(
    batches: pa.RecordBatchReader, planned: Sequence[RecordedRange]
) -> dict[tuple[int, int | None], _RangeCounts]:
    """Count rows of one topic id by partition and start of the range; None outside all ranges."""
    counts: dict[tuple[int, int | None], _RangeCounts] = {}
    for batch in batches:
        for partition, rows in _by_partition(batch):
            ranges = sorted((e.start, e.end) for e in planned if e.partition == partition)
            for start, rows_of_range in _by_range(rows, ranges):
                counts.setdefault((partition, start), _RangeCounts()).add(rows_of_range)
    return counts


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[int, _Rows]]:
    def column(name: str) -> npt.NDArray[np.generic]:
        return np.asarray(batch.column(name).to_numpy(zero_copy_only=False))

    rows = _Rows(
        offsets=column("record_offset").astype(np.int64, copy=False),
        null_key=column("null_key").astype(np.bool_, copy=False),
        null_value=column("null_value").astype(np.bool_, copy=False),
        no_timestamp=column("no_timestamp").astype(np.bool_, copy=False),
        # Null becomes NaN. A float represents microseconds of centuries exactly.
        ahead=column("ahead").astype(np.float64, copy=False),
    )
    partitions = column("partition")
    for partition in np.unique(partitions[_changes(partitions)]):
        yield int(partition), rows.where(partitions == partition)


def _by_range(rows: _Rows, ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int | None, _Rows]]:
    starts = np.array([start for start, _ in ranges], dtype=np.int64)
    ends = np.array([end for _, end in ranges], dtype=np.int64)
    numbers = np.searchsorted(starts, rows.offsets, side="right") - 1
    if len(ranges):
        numbers[rows.offsets >= ends[numbers]] = -1
    for number in np.unique(numbers[_changes(numbers)]):
        yield (None if number < 0 else int(starts[number])), rows.where(numbers == number)


def _changes(values: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Return where a value differs from the previous one. `np.unique` would hash every value."""
    return np.concatenate(([True], values[1:] != values[:-1]))
