"""What a slice holds of each planned range, in one pass over its files and without Spark.

delta-rs streams the few small columns that it takes, at tens of millions of rows a second: a
shuffle of Spark's, with its bitmaps, took more than a third of the landing's own time.
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

from tidemark.lake.delta_errors import translate_delta_errors
from tidemark.lake.storage import column_statistics, folder_of, footers_of
from tidemark.quality.check_results import BatchExpectation, BatchRef
from tidemark.quality.checks import RangeFigures

_Longs: TypeAlias = npt.NDArray[np.int64]

_ROWS = """
    SELECT partition, place, null_key, null_value, no_timestamp,
           CASE WHEN no_timestamp THEN NULL
                WHEN stamp IS NULL THEN far_ms * 1000.0 - CAST(ingested AS DOUBLE)
                ELSE CAST(stamp - ingested AS DOUBLE) END AS ahead
    FROM (
        SELECT coalesce(partition, -1) AS partition, coalesce("offset", -1) AS place,
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


def range_figures(ref: BatchRef, expected: Sequence[BatchExpectation]) -> list[RangeFigures]:
    """Figures by planned range, and of the rows outside all of them.

    Args:
        ref: The slice.
        expected: What was planned; ranges of one partition do not overlap.

    Raises:
        StorageRefused, StorageUnavailable, DeltaLogDamaged, EngineFailed: The table cannot be read.
    """
    with translate_delta_errors(ref.table, "reading the table"):
        return _range_figures(ref, expected)


def _range_figures(ref: BatchRef, expected: Sequence[BatchExpectation]) -> list[RangeFigures]:
    table = DeltaTable(ref.table, version=ref.table_version)
    footers = _footers(table, ref.plan_sequence)
    nulls = {f"null_{name}": _null(footers, name) for name in ("key", "value")}
    topics = _read(
        table, f"SELECT DISTINCT topic_id FROM t WHERE plan_sequence = {ref.plan_sequence}"
    )
    found = []
    for topic_id in sorted((topics.read_all()["topic_id"].to_pylist()), key=str):
        planned = [each for each in expected if each.topic_id == topic_id]
        quoted = str(topic_id).replace("'", "''")
        topic = "topic_id IS NULL" if topic_id is None else f"topic_id = '{quoted}'"
        rows = _read(table, _ROWS.format(plan=ref.plan_sequence, topic=topic, **nulls))
        for (partition, start), held in sorted(_held(rows, planned).items(), key=_by_place):
            found.append(held.figures(topic_id, partition, start))
    return found


def _null(footers: Sequence[FileMetaData] | None, column: str) -> str:
    """SQL for whether a row lacks it; it is read only where a file may lack it.

    Values are most of a table's bytes, and the footers tell whether all are there. That stays
    true whatever plans share a file and whatever was deleted from it since.
    """
    if footers is None or not all(_is_full(footer, column) for footer in footers):
        return f'"{column}" IS NULL'
    return "FALSE"


def _is_full(footer: FileMetaData, column: str) -> bool:
    statistics = column_statistics(footer, column)
    return bool(statistics) and all(
        each is not None and each.has_null_count and each.null_count == 0 for each in statistics
    )


def _footers(table: DeltaTable, plan_sequence: int) -> list[FileMetaData] | None:
    """Of the files that may hold rows of a plan; None if PyArrow cannot open one."""
    held = table.file_uris(file_pruning_predicate=f"plan_sequence = {plan_sequence}")
    try:
        files, folder = folder_of(table.table_uri)
        # All in the table's storage: to find it again for each file takes requests of its own.
        root = urlsplit(table.table_uri).path
        places = [urlsplit(uri).path.removeprefix(root) for uri in held]
        return footers_of(files, [f"{folder}/{place}" for place in places])
    except (OSError, ValueError):
        return None


def _read(table: DeltaTable, sql: str) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_stream(QueryBuilder().register("t", table).execute(sql))


def _by_place(item: tuple[tuple[int, int | None], _Held]) -> tuple[int, int]:
    (partition, start), _ = item
    return partition, -1 if start is None else start


@dataclass(slots=True)
class _Held:
    """What was seen so far of one range, or of what lies outside all ranges of a partition.

    Attributes:
        starts, ends: Runs of neighbouring offsets, half-open: 16 bytes each, and four times that
            in the end. One run a batch where none is missing, one a record in the worst case.
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
        self.records += len(rows.places)
        self.null_keys += int(rows.null_key.sum())
        self.null_values += int(rows.null_value.sum())
        self.no_timestamps += int(rows.no_timestamp.sum())
        stamped = rows.ahead[~np.isnan(rows.ahead)]
        if len(stamped):
            latest, earliest = float(stamped.max()), float(stamped.min())
            self.latest = latest if self.latest is None else max(self.latest, latest)
            self.earliest = earliest if self.earliest is None else min(self.earliest, earliest)
        places = np.sort(rows.places, kind="stable")
        places = places[_changes(places)]
        breaks = np.flatnonzero(np.diff(places) != 1)
        self.starts.append(places[np.concatenate(([0], breaks + 1))])
        self.ends.append(places[np.concatenate((breaks, [len(places) - 1]))] + 1)

    @property
    def distinct(self) -> int:
        """Different offsets: what the runs cover together."""
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
    """Columns of some rows: their offsets, what they lack, and microseconds ahead of ingestion."""

    places: _Longs
    null_key: npt.NDArray[np.bool_]
    null_value: npt.NDArray[np.bool_]
    no_timestamp: npt.NDArray[np.bool_]
    ahead: npt.NDArray[np.float64]

    def where(self, chosen: npt.NDArray[np.bool_]) -> _Rows:
        if chosen.all():
            return self
        return _Rows(
            places=self.places[chosen],
            null_key=self.null_key[chosen],
            null_value=self.null_value[chosen],
            no_timestamp=self.no_timestamp[chosen],
            ahead=self.ahead[chosen],
        )


def _held(
    batches: pa.RecordBatchReader, planned: Sequence[BatchExpectation]
) -> dict[tuple[int, int | None], _Held]:
    """What rows of one incarnation hold, by partition and start of the range, None for none."""
    found: dict[tuple[int, int | None], _Held] = {}
    for batch in batches:
        for partition, rows in _by_partition(batch):
            ranges = sorted((e.start, e.end) for e in planned if e.partition == partition)
            for start, some in _by_range(rows, ranges):
                found.setdefault((partition, start), _Held()).add(some)
    return found


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[int, _Rows]]:
    def column(name: str) -> npt.NDArray[np.generic]:
        return np.asarray(batch.column(name).to_numpy(zero_copy_only=False))

    rows = _Rows(
        places=column("place").astype(np.int64, copy=False),
        null_key=column("null_key").astype(np.bool_, copy=False),
        null_value=column("null_value").astype(np.bool_, copy=False),
        no_timestamp=column("no_timestamp").astype(np.bool_, copy=False),
        # Nulls are none; microseconds of centuries are exact.
        ahead=column("ahead").astype(np.float64, copy=False),
    )
    partitions = column("partition")
    for partition in np.unique(partitions[_changes(partitions)]):
        yield int(partition), rows.where(partitions == partition)


def _by_range(rows: _Rows, ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int | None, _Rows]]:
    starts = np.array([start for start, _ in ranges], dtype=np.int64)
    ends = np.array([end for _, end in ranges], dtype=np.int64)
    at = np.searchsorted(starts, rows.places, side="right") - 1
    if len(ranges):
        at[rows.places >= ends[at]] = -1
    for each in np.unique(at[_changes(at)]):
        yield (None if each < 0 else int(starts[each])), rows.where(at == each)


def _changes(values: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Where a value is not that before it: `unique` of all would hash each of them."""
    return np.concatenate(([True], values[1:] != values[:-1]))
