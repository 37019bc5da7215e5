"""Tests of the files that the driver writes for timestamps that Spark alters."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.memory import MemoryKafka
from tests.support.plans import make_plan
from tests.support.services import NOW
from tidemark.bronze.ingest.spark_exact import ExactFileWriter, altered_spans, has_exact_timestamps
from tidemark.core.datafile import DataFile
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.record import Headers
from tidemark.delta.storage import folder_of
from tidemark.spark import parquet

YEAR_1, YEAR_9999, YEAR_1901 = -62_135_596_800_000, 253_402_300_799_999, -2_177_452_800_000
TIMES_MS = [YEAR_1 - 1, YEAR_1, -1, 0, YEAR_9999, YEAR_9999 + 1, 2**63 - 1, -(2**63)]


@pytest.fixture
def kafka() -> MemoryKafka:
    """Return Kafka with a record for each time in topic `events`."""
    kafka = MemoryKafka()
    kafka.create("events", 1, "id-1")
    for timestamp_ms in TIMES_MS:
        kafka.produce("events", 0, 1, timestamp_ms)
    return kafka


def no_headers(partition: int, offset: int) -> Headers:
    raise AssertionError(f"read {partition}, {offset}")


@pytest.fixture
def exact(kafka: MemoryKafka, tmp_path: Path) -> ExactFileWriter:
    (tmp_path / "written").mkdir()
    files, root = folder_of(str(tmp_path))
    return ExactFileWriter(
        log_reader=kafka,
        headers_of=no_headers,
        plan=make_plan((0, 0, len(TIMES_MS))),
        ingested_at=NOW,
        files=files,
        folder=f"{root}/written",
    )


def written_files(tmp_path: Path) -> list[DataFile]:
    files, root = folder_of(str(tmp_path))
    return parquet.single_partition_files(files, root, "written")


def test_every_timestamp_is_in_one_of_two_columns(exact: ExactFileWriter, tmp_path: Path) -> None:
    """The years 1 and 9999 are the bounds."""
    assert exact.write(0, Span(0, len(TIMES_MS)), 3) == len(TIMES_MS)
    assert [file.records for file in written_files(tmp_path)] == [3, 3, 2]
    rows = [
        row
        for file in written_files(tmp_path)
        for row in pq.read_table(tmp_path / file.path).to_pylist()
    ]
    micros = [row["timestamp"] for row in rows]
    assert [row["timestamp_out_of_range_ms"] for row in rows] == [
        None if YEAR_1 <= ms <= YEAR_9999 else ms for ms in TIMES_MS
    ]
    assert [each is None for each in micros] == [not YEAR_1 <= ms <= YEAR_9999 for ms in TIMES_MS]
    assert [row["value"] for row in rows] == [b"%d" % n for n in range(len(TIMES_MS))]


def test_no_file_is_written_for_a_span_without_records(
    exact: ExactFileWriter, kafka: MemoryKafka, tmp_path: Path
) -> None:
    """Aborted transactions leave such spans."""
    kafka.add_gaps("events", 0, 5)
    assert exact.write(0, Span(len(TIMES_MS), len(TIMES_MS) + 5), 3) == 0
    assert written_files(tmp_path) == []


def file_of(records: int, earliest_ms: int | None = 0, latest_ms: int | None = 0) -> DataFile:
    return DataFile(
        path="written/part-0.parquet",
        size=1,
        modified_ms=0,
        partition=0,
        records=records,
        first=1,
        last=4,
        earliest_ms=earliest_ms,
        latest_ms=latest_ms,
    )


def test_rewriting_a_file_fails_if_the_record_count_differs(exact: ExactFileWriter) -> None:
    """A compaction or deletion happened between the reads of Spark and librdkafka."""
    with pytest.raises(ValueError, match=r"Spark read 5 records.*librdkafka 4"):
        exact.write_again(file_of(5), 10)


@pytest.mark.parametrize(
    ("earliest_ms", "latest_ms", "expected"),
    [
        (YEAR_1901, YEAR_9999, True),
        (YEAR_1901 - 1, 0, False),
        (0, YEAR_9999 + 1, False),
        (None, None, False),
    ],
)
def test_a_file_with_statistics_from_1901_to_9999_is_exact(
    earliest_ms: int | None, latest_ms: int | None, expected: bool
) -> None:
    """Without statistics a file is not exact."""
    assert has_exact_timestamps(file_of(4, earliest_ms, latest_ms)) is expected


def test_altered_spans_reach_from_the_first_to_the_last_altered_timestamp(
    kafka: MemoryKafka,
) -> None:
    kafka.create("events", 2, "id-1")
    for partition in (0, 1):
        for timestamp_ms in (0, 2**63 - 1, 0, YEAR_1, 0)[: 5 if partition == 0 else 1]:
            kafka.produce("events", partition, 1, timestamp_ms)
    plan = make_plan((0, 0, 5), (1, 0, 1))
    assert altered_spans(kafka, plan) == {0: SpanSet((Span(1, 4),))}
