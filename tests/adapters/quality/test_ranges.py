"""Figures by planned range, against a count of the rows one by one; no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.support.quality_reports import BRONZE
from tidemark.adapters.quality.ranges import range_figures
from tidemark.core.quality import SliceExpectation, SliceRef
from tidemark.core.quality_checks import RangeFigures

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
_ROWS = 30_000
"""More than one batch."""


def _row(random: Random) -> dict[str, Any]:
    stamp = random.choice([NOW, None, NOW + timedelta(seconds=random.uniform(-1e6, 1e4))])
    return {
        "key": random.choice([None, b"", b"k"]),
        "value": random.choice([None, b"v"]),
        "topic": "t",
        "partition": random.randrange(3),
        "offset": random.choice([random.randrange(50), random.randrange(2**20), 2**40]),
        "timestamp": stamp,
        "timestamp_type": random.choice([0, 0, 1, -1]),
        "topic_id": random.choice(["T'1", "T'1", "T2"]),
        "plan_sequence": random.choice([1, 1, 2]),
        "ingested_at": NOW,
    }


def _counted(rows: Sequence[dict[str, Any]], planned: Sequence[SliceExpectation]) -> Any:
    """The same by a loop over rows."""
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
    found = {}
    for place, some in groups.items():
        ahead = [
            (row["timestamp"] - row["ingested_at"]) / timedelta(seconds=1)
            for row in some
            if row["timestamp"] is not None and row["timestamp_type"] != -1
        ]
        found[place] = (
            len(some),
            len({row["offset"] for row in some}),
            sum(row["key"] is None for row in some),
            sum(row["value"] is None for row in some),
            len(some) - len(ahead),
            max(ahead, default=None),
            -min(ahead) if ahead else None,
        )
    return found


def _told(figures: Sequence[RangeFigures]) -> Any:
    return {
        (each.topic_id, each.partition, each.start): (
            each.records,
            each.distinct,
            each.null_keys,
            each.null_values,
            each.no_timestamps,
            each.seconds_ahead,
            each.oldest_seconds_behind,
        )
        for each in figures
    }


@pytest.mark.parametrize("seed", [1, 2])
def test_every_row_counts_where_it_lies(tmp_path: Path, seed: int) -> None:
    """Doubles, rows of no range, of other incarnations, in several files and batches."""
    random = Random(seed)
    rows = [_row(random) for _ in range(_ROWS)]
    for part in (rows[:20_000], rows[20_000:]):
        write_deltalake(str(tmp_path), pa.Table.from_pylist(part, BRONZE), mode="append")
    planned = [
        SliceExpectation(topic_id=topic_id, partition=partition, start=start, end=end, records=0)
        for topic_id, partition, start, end in [
            ("T'1", 0, 0, 10),
            ("T'1", 0, 10, 40),
            ("T'1", 0, 2**19, 2**20),
            ("T'1", 1, 5, 2**41),
            ("T2", 2, 0, 2**10),
        ]
    ]
    ref = SliceRef(pipeline="p", table=str(tmp_path), table_version=1, plan_sequence=1)
    expected = _counted([row for row in rows if row["plan_sequence"] == 1], planned)
    assert _told(range_figures(ref, planned)) == expected
    # As of the version that the plan made, and of no later one.
    first = SliceRef(pipeline="p", table=str(tmp_path), table_version=0, plan_sequence=1)
    earlier = [row for row in rows[:20_000] if row["plan_sequence"] == 1]
    assert _told(range_figures(first, planned)) == _counted(earlier, planned)


def test_a_row_of_no_place_is_outside_the_plan(tmp_path: Path) -> None:
    """Nobody has landed it; it blocks, and stops no check."""
    base = {**_row(Random(1)), "partition": 0, "topic_id": "T", "plan_sequence": 1}
    rows = [{**base, "offset": 5}, {**base, "offset": None}, {**base, "partition": None}]
    write_deltalake(str(tmp_path), pa.Table.from_pylist(rows, BRONZE))
    ref = SliceRef(pipeline="p", table=str(tmp_path), table_version=0, plan_sequence=1)
    planned = SliceExpectation(topic_id="T", partition=0, start=0, end=9, records=1)
    found = {(each.partition, each.start): each.records for each in range_figures(ref, [planned])}
    assert found == {(0, 0): 1, (0, None): 1, (-1, None): 1}


def test_a_slice_without_rows_has_no_figures(tmp_path: Path) -> None:
    """A plan of holes alone."""
    write_deltalake(str(tmp_path), pa.Table.from_pylist([_row(Random(1))], BRONZE))
    ref = SliceRef(pipeline="p", table=str(tmp_path), table_version=0, plan_sequence=9)
    assert range_figures(ref, []) == []


def test_neighbours_in_several_batches_are_no_doubles(tmp_path: Path) -> None:
    """100,000 offsets that begin anew in each file, and one that is there twice."""
    base = {**_row(Random(1)), "partition": 0, "topic_id": "T", "plan_sequence": 1}
    for some in (range(0, 100_000, 2), range(1, 100_000, 2), [77_777]):
        rows = [{**base, "offset": offset} for offset in some]
        write_deltalake(str(tmp_path), pa.Table.from_pylist(rows, BRONZE), mode="append")
    ref = SliceRef(pipeline="p", table=str(tmp_path), table_version=2, plan_sequence=1)
    planned = SliceExpectation(topic_id="T", partition=0, start=0, end=100_000, records=100_000)
    (found,) = range_figures(ref, [planned])
    assert (found.records, found.distinct) == (100_001, 100_000)
