"""Figures by planned range, compared with a loop over the rows; without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import ColumnProperties, DeltaTable, WriterProperties, write_deltalake

from tests.support.quality_reports import BRONZE
from tidemark.quality.check_results import BatchRef, RecordedRange
from tidemark.quality.checks import RangeFigures
from tidemark.quality.range_figures import range_figures

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
_ROWS = 30_000
"""More than one batch."""


def _row(random: Random) -> dict[str, Any]:
    near = NOW + timedelta(seconds=random.uniform(-1e6, 1e4))
    early = datetime(1, 1, 1, tzinfo=UTC)
    stamp = random.choice([NOW, None, near, near, near, EPOCH - timedelta(milliseconds=1), early])
    far_ms = random.choice([None, 2**63 - 1, -(2**63)]) if stamp is None else None
    return {
        "key": random.choice([None, b"", b"k"]),
        "value": random.choice([None, b"v"]),
        "topic": "t",
        "partition": random.randrange(3),
        "offset": random.choice([random.randrange(50), random.randrange(2**20), 2**40]),
        "timestamp": stamp,
        "timestamp_out_of_range_ms": far_ms,
        "timestamp_type": random.choice([0, 0, 1, -1]),
        "topic_id": random.choice(["T'1", "T'1", "T2"]),
        "plan_sequence": random.choice([1, 1, 2]),
        "ingested_at": NOW,
    }


def _ahead(row: dict[str, Any]) -> float | None:
    """Return the seconds from ingestion to a row's timestamp; None without a timestamp."""
    if row["timestamp_type"] == -1 or row["timestamp"] == EPOCH - timedelta(milliseconds=1):
        return None
    if row["timestamp"] is not None:
        return (row["timestamp"] - NOW) / timedelta(seconds=1)
    far_ms = row["timestamp_out_of_range_ms"]
    return None if far_ms is None else (far_ms * 1000.0 - (NOW - EPOCH) / MICROSECOND) / 1e6


def _counted(rows: Sequence[dict[str, Any]], planned: Sequence[RecordedRange]) -> Any:
    """Return the figures by range, from a loop over rows."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        start = next(
            (
                each.start
                for each in planned
                if (each.topic_id, each.partition) == (row["topic_id"], row["partition"])
                and each.start <= row["offset"] < each.end
            ),
            None,
        )
        groups.setdefault((row["topic_id"], row["partition"], start), []).append(row)
    figures = {}
    for group, some in groups.items():
        ahead = [seconds for row in some if (seconds := _ahead(row)) is not None]
        figures[group] = {
            "records": len(some),
            "distinct": len({row["offset"] for row in some}),
            "null_keys": sum(row["key"] is None for row in some),
            "null_values": sum(row["value"] is None for row in some),
            "no_timestamps": len(some) - len(ahead),
            "seconds_ahead": max(ahead, default=None),
            "oldest_seconds_behind": -min(ahead) if ahead else None,
        }
    return figures


def _by_range(figures: Sequence[RangeFigures]) -> Any:
    """Return all figures by range, so that `_counted` must contain every figure."""
    by_range = {}
    for each in figures:
        values = asdict(each)
        key = tuple(values.pop(name) for name in ("topic_id", "partition", "start"))
        by_range[key] = values
    return by_range


@pytest.mark.parametrize("seed", [1, 2])
def test_every_row_counts_in_its_planned_range_or_outside_all_ranges(
    tmp_path: Path, seed: int
) -> None:
    """Several files and batches have duplicates and other topic ids."""
    random = Random(seed)
    rows = [_row(random) for _ in range(_ROWS)]
    for part in (rows[:20_000], rows[20_000:]):
        write_deltalake(str(tmp_path), pa.Table.from_pylist(part, BRONZE), mode="append")
    planned = [
        RecordedRange(topic_id=topic_id, partition=partition, start=start, end=end, records=0)
        for topic_id, partition, start, end in [
            ("T'1", 0, 0, 10),
            ("T'1", 0, 10, 40),
            ("T'1", 0, 2**19, 2**20),
            ("T'1", 1, 5, 2**41),
            ("T2", 2, 0, 2**10),
        ]
    ]
    ref = BatchRef(pipeline="p", table=str(tmp_path), table_version=1, plan_sequence=1)
    expected = _counted([row for row in rows if row["plan_sequence"] == 1], planned)
    assert _by_range(range_figures(ref, planned)) == expected
    # Rows of versions after the referenced one do not count.
    first = BatchRef(pipeline="p", table=str(tmp_path), table_version=0, plan_sequence=1)
    earlier = [row for row in rows[:20_000] if row["plan_sequence"] == 1]
    assert _by_range(range_figures(first, planned)) == _counted(earlier, planned)


def test_a_row_without_partition_or_offset_is_outside_the_plan(tmp_path: Path) -> None:
    """It blocks the plan, and the check completes."""
    base = {**_row(Random(1)), "partition": 0, "topic_id": "T", "plan_sequence": 1}
    rows = [{**base, "offset": 5}, {**base, "offset": None}, {**base, "partition": None}]
    write_deltalake(str(tmp_path), pa.Table.from_pylist(rows, BRONZE))
    ref = BatchRef(pipeline="p", table=str(tmp_path), table_version=0, plan_sequence=1)
    planned = RecordedRange(topic_id="T", partition=0, start=0, end=9, records=1)
    found = {(each.partition, each.start): each.records for each in range_figures(ref, [planned])}
    assert found == {(0, 0): 1, (0, None): 1, (-1, None): 1}


def _full(offsets: Sequence[int], **other: Any) -> pa.Table:
    """Return rows of one partition with a key and a value, unless given otherwise."""
    row = {**_row(Random(1)), "partition": 0, "topic_id": "T", "plan_sequence": 1}
    rows = [{**row, "key": b"k", "value": b"v" * 99, "offset": n, **other} for n in offsets]
    return pa.Table.from_pylist(rows, BRONZE)


def _null_counts(table: Path) -> tuple[int, int]:
    """Return the numbers of null keys and values of plan 1 in the newest version."""
    version = DeltaTable(table).version()
    ref = BatchRef(pipeline="p", table=str(table), table_version=version, plan_sequence=1)
    planned = RecordedRange(topic_id="T", partition=0, start=0, end=99, records=9)
    (found,) = range_figures(ref, [planned])
    return found.null_keys, found.null_values


def test_values_are_not_read_if_no_file_has_null_values(tmp_path: Path) -> None:
    """The values are damaged in this test, and other plans have null values."""
    write_deltalake(str(tmp_path), _full(range(9)))
    (file,) = tmp_path.glob("*.parquet")
    value = pq.read_metadata(file).row_group(0).column(1)
    position = value.dictionary_page_offset or value.data_page_offset
    with file.open("r+b") as stream:
        stream.seek(position)
        stream.write(b"\xff" * value.total_compressed_size)
    write_deltalake(str(tmp_path), _full([50], plan_sequence=2, value=None), mode="append")
    assert _null_counts(tmp_path) == (0, 0)


def test_null_values_in_one_of_several_files_are_counted(tmp_path: Path) -> None:
    """The other files of the plan have none."""
    write_deltalake(str(tmp_path), _full(range(6)))
    write_deltalake(str(tmp_path), _full([6, 7], value=None), mode="append")
    write_deltalake(str(tmp_path), _full([8], key=None), mode="append")
    assert _null_counts(tmp_path) == (1, 2)


def test_values_of_a_file_without_statistics_are_read(tmp_path: Path) -> None:
    """A writer may omit statistics."""
    without_statistics = ColumnProperties(statistics_enabled="NONE")
    properties = WriterProperties(
        column_properties={"key": without_statistics, "value": without_statistics}
    )
    for rows in (_full(range(8)), _full([8], value=None)):
        write_deltalake(str(tmp_path), rows, mode="append", writer_properties=properties)
    assert _null_counts(tmp_path) == (0, 1)


def test_null_values_of_another_plan_in_the_same_file_are_not_counted(tmp_path: Path) -> None:
    """A compaction writes files with rows of several plans."""
    write_deltalake(str(tmp_path), _full(range(9)))
    write_deltalake(str(tmp_path), _full([50], plan_sequence=2, value=None), mode="append")
    DeltaTable(tmp_path).optimize.compact()
    assert _null_counts(tmp_path) == (0, 0)


def test_a_batch_without_rows_has_no_figures(tmp_path: Path) -> None:
    """A plan may contain gaps only."""
    write_deltalake(str(tmp_path), pa.Table.from_pylist([_row(Random(1))], BRONZE))
    ref = BatchRef(pipeline="p", table=str(tmp_path), table_version=0, plan_sequence=9)
    assert range_figures(ref, []) == []


def test_interleaved_offsets_in_several_files_are_no_duplicates(tmp_path: Path) -> None:
    """100,000 offsets in two files, and one of them a second time."""
    base = {**_row(Random(1)), "partition": 0, "topic_id": "T", "plan_sequence": 1}
    for some in (range(0, 100_000, 2), range(1, 100_000, 2), [77_777]):
        rows = [{**base, "offset": offset} for offset in some]
        write_deltalake(str(tmp_path), pa.Table.from_pylist(rows, BRONZE), mode="append")
    ref = BatchRef(pipeline="p", table=str(tmp_path), table_version=2, plan_sequence=1)
    planned = RecordedRange(topic_id="T", partition=0, start=0, end=100_000, records=100_000)
    (found,) = range_figures(ref, [planned])
    assert (found.records, found.distinct) == (100_001, 100_000)
