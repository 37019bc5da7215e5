"""Descriptions of Spark's files from their footers, and the commits of these files."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError
from pyarrow.fs import FileSystem

from tests.support.memory import MemoryKafka
from tests.support.plans import UNCOMPARED, make_plan
from tests.support.services import NOW
from tidemark.bronze.ingest.spark_sink import SparkSink
from tidemark.core.datafile import DataFile
from tidemark.core.errors import SetupError
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.errors import EngineFailed, TableAltered, TableConflict, TransactionConflict
from tidemark.delta.storage import folder_of
from tidemark.spark import parquet

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.field("element", HEADER))),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("plan_sequence", pa.int64()),
    ]
)


def record(offset: int, **changes: Any) -> dict[str, Any]:
    """Return a record of partition 0; its timestamp is `offset` seconds after 1970."""
    usual = {
        "key": None,
        "value": b"value %d" % offset,
        "headers": [{"key": "a", "value": None}, {"key": "a", "value": b"1"}],
        "partition": 0,
        "offset": offset,
        "timestamp": offset * 1_000_000,
    }
    return {**usual, **changes}


def write(table: Path, plan: Plan, *tasks: list[dict[str, Any]]) -> list[DataFile]:
    """Write a file for each task as Spark does; return the descriptions of the files."""
    folder = table / f"plan-{plan.sequence}-{uuid4()}"
    folder.mkdir()
    (folder / "_notes").touch()
    for number, records in enumerate(tasks):
        rows = [{**each, "plan_sequence": plan.sequence} for each in records]
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), folder / f"part-{number}.parquet")
    files, path = folder_of(str(table))
    return parquet.single_partition_files(files, path, folder.name)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A bronze table."""
    DeltaDataTable(str(tmp_path / "bronze")).prepare("events")
    return tmp_path / "bronze"


def append(table: Path, plan: Plan, files: list[DataFile]) -> int:
    """Commit files and return the new version."""
    DeltaDataTable(str(table)).append(plan, files, UNCOMPARED)
    return DeltaTable(table).version()


def rows(table: Path) -> list[dict[str, Any]]:
    """Return the rows of the table, read by the engine of delta-rs."""
    found = (
        QueryBuilder().register("t", DeltaTable(table)).execute("SELECT * FROM t ORDER BY offset")
    )
    return list(pa.table(found.read_all()).to_pylist())


# -- the file ------------------------------------------------------------------------------------


def test_files_are_ordered_by_partition_and_offset(table: Path) -> None:
    """A compaction then joins files with adjacent offsets."""
    tasks = [[record(offset)] for offset in (4, 0, 5, 1, 3, 2)]
    tasks.append([record(0, partition=1)])
    plan = make_plan((0, 0, 6), (1, 0, 1))
    files = write(table, plan, *reversed(tasks))
    assert [(file.partition, file.first) for file in files] == [*((0, n) for n in range(6)), (1, 0)]


def test_a_file_has_its_offsets_timestamps_and_size(table: Path) -> None:
    """The commit records them without opening the file again."""
    (file,) = write(
        table, make_plan((0, 0, 9)), [record(2), record(4), record(7, timestamp=-1_000)]
    )
    assert (file.partition, file.records, file.first, file.last) == (0, 3, 2, 7)
    assert (file.earliest_ms, file.latest_ms) == (-1, 4_000)
    assert (table / file.path).stat().st_size == file.size


def test_a_file_without_rows_is_omitted(table: Path) -> None:
    """Spark writes one if no task finds a record."""
    assert write(table, make_plan((0, 0, 9)), []) == []


def test_files_with_overlapping_offsets_are_refused(table: Path) -> None:
    """The output of a task that Spark counted twice must not reach the table."""
    with pytest.raises(ValueError, match="have overlapping offsets"):
        write(table, make_plan((0, 0, 9)), [record(0), record(4)], [record(4), record(5)])
    assert len(write(table, make_plan((0, 0, 9)), [record(0)], [record(0, partition=1)])) == 2


def test_a_file_with_two_partitions_is_refused(table: Path) -> None:
    """Readers would skip the rows of the second partition."""
    with pytest.raises(ValueError, match="has rows of several partitions"):
        write(table, make_plan((0, 0, 9)), [record(0), record(1, partition=1)])


def test_timestamps_that_some_rows_lack_are_not_recorded(table: Path) -> None:
    """A reader that prunes by them would skip those rows."""
    (file,) = write(table, make_plan((0, 0, 9)), [record(0), record(1, timestamp=None)])
    assert (file.earliest_ms, file.latest_ms) == (None, None)


def test_minimum_and_maximum_do_not_depend_on_the_order_of_rows(table: Path) -> None:
    """Readers prune files by them."""
    (file,) = write(table, make_plan((0, 0, 9)), [record(7), record(2), record(4)])
    assert (file.first, file.last, file.latest_ms) == (2, 7, 7_000)


def test_footers_are_read_concurrently(table: Path) -> None:
    """On an object store, hundreds of sequential reads would take long."""
    together = threading.Barrier(2, timeout=60)

    class Remote:
        """File system that opens both files at the same time."""

        def __init__(self, files: FileSystem) -> None:
            self.get_file_info = files.get_file_info
            self._open = files.open_input_file

        def open_input_file(self, path: str) -> pa.NativeFile:
            together.wait()
            return self._open(path)

    made = write(table, make_plan((0, 0, 9)), [record(0)], [record(4)])
    files, path = folder_of(str(table))
    remote = cast("FileSystem", Remote(files))
    assert parquet.single_partition_files(remote, path, Path(made[0].path).parent.name) == made


@pytest.mark.parametrize("uri", ["nothing://bucket/table", "s3://bucket/a table"])
def test_a_uri_that_pyarrow_does_not_support_is_refused(uri: str) -> None:
    """The driver raises the error before it reads anything."""
    sink = SparkSink(
        open_session=lambda: pytest.fail("the sink opened Spark before it refused the URI"),
        uri=uri,
        kafka_options={},
        log_reader=MemoryKafka(),
        now=lambda: NOW,
    )
    with pytest.raises(SetupError, match="PyArrow does not support the storage"):
        sink.write(make_plan((0, 0, 5)), 1)


# -- the commit ----------------------------------------------------------------------------------


def test_i4_a_repeated_commit_adds_nothing(table: Path) -> None:
    """S14: the transaction exists, so there is not even an empty commit."""
    plan = make_plan((0, 0, 5))
    files = write(table, plan, [record(0), record(1)])
    version = append(table, plan, files)
    assert append(table, plan, files) == version
    assert append(table, plan, write(table, plan, [record(0), record(1)])) == version
    assert len(rows(table)) == 2


def test_i4_one_of_two_concurrent_commits_of_a_plan_is_refused(table: Path) -> None:
    """Both processes have read the table before either commits."""
    plan = make_plan((0, 0, 5))
    together = threading.Barrier(2, timeout=60)

    class ConcurrentTable(DeltaDataTable):
        def _add_files(self, *arguments: Any, **named: Any) -> None:
            together.wait()
            super()._add_files(*arguments, **named)

    def land(number: int) -> Exception | None:
        files = write(table, replace(plan, origin=RunOrigin(f"{number}")), [record(0)])
        try:
            ConcurrentTable(str(table)).append(plan, files, UNCOMPARED)
        except TransactionConflict as refused:
            return refused
        return None

    with ThreadPoolExecutor(2) as threads:
        refused = list(threads.map(land, range(2)))
    assert refused.count(None) == 1
    assert len(rows(table)) == 1


def test_i4_an_abandoned_plan_cannot_commit(table: Path) -> None:
    """The fence has raised its transaction."""
    plan = make_plan((0, 0, 5))
    files = write(table, plan, [record(0)])
    DeltaDataTable(str(table)).fence(plan, UNCOMPARED)
    version = DeltaTable(table).version()
    assert append(table, plan, files) == version
    assert DeltaDataTable(str(table)).find_landing(plan) is None


def test_i5_landed_rows_are_counted_from_the_statistics_of_commits(table: Path) -> None:
    """Covers files of several ranges."""
    plan = make_plan((0, 0, 4), (0, 10, 14), (1, 0, 4))
    files = write(table, plan, [record(0), record(3)], [], [record(11)], [record(2, partition=1)])
    version = append(table, plan, files)
    landing = DeltaDataTable(str(table)).find_landing(plan)
    assert landing is not None
    assert landing.table_version == version
    assert [count.records for count in landing.counts] == [2, 1, 1]


def test_a_commit_without_files_lands_a_range_of_gaps(table: Path) -> None:
    """The commit has the transaction and the plan's metadata."""
    plan = make_plan((0, 0, 4))
    append(table, plan, [])
    landing = DeltaDataTable(str(table)).find_landing(plan)
    assert landing is not None
    assert (landing.records, landing.gaps) == (0, 4)


@pytest.mark.parametrize("timestamp", [-(2**62), 2**62], ids=["before", "after"])
def test_records_with_impossible_timestamps_land(table: Path, timestamp: int) -> None:
    """Kafka accepts every number from a producer; the commit omits such statistics."""
    plan = make_plan((0, 0, 4))
    append(table, plan, write(table, plan, [record(0, timestamp=timestamp), record(1)]))
    (stats,) = (
        json.loads(action["add"]["stats"])
        for line in (table / "_delta_log" / f"{1:020}.json").read_text().splitlines()
        if "add" in (action := json.loads(line))
    )
    assert "timestamp" not in stats["minValues"]
    assert stats["numRecords"] == 2


def test_a_failed_commit_raises_a_named_error(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It contains the operation, for any error of delta-rs."""
    failed = Mock(side_effect=DeltaError("out of order"))
    monkeypatch.setattr(DeltaTable, "create_write_transaction", failed)
    with pytest.raises(EngineFailed, match="committing plan 1 of pipeline 'events'"):
        DeltaDataTable(str(table)).append(make_plan((0, 0, 4)), [], UNCOMPARED)


def commit_actions(uri: Path, *actions: dict[str, Any], version: int) -> None:
    """Commit changes of a table's metadata or protocol, as another engine does."""
    text = "\n".join(json.dumps(action) for action in actions)
    (uri / "_delta_log" / f"{version:020}.json").write_text(text)


def test_a_table_with_constraints_is_refused(table: Path) -> None:
    """A commit of files bypasses constraints."""
    DeltaTable(table).alter.add_constraint({"keyed": "key IS NOT NULL"})
    with pytest.raises(TableAltered, match="the constraint 'keyed'"):
        DeltaDataTable(str(table)).prepare("events")


def test_a_table_with_a_feature_that_delta_rs_lacks_is_refused(table: Path) -> None:
    """Otherwise each commit would fail after the whole read."""
    features = ["appendOnly", "invariants", "rowTracking", "domainMetadata"]
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}
    commit_actions(table, {"protocol": protocol}, version=1)
    with pytest.raises(TableAltered, match="the feature domainMetadata, rowTracking"):
        DeltaDataTable(str(table)).prepare("events")


def test_a_landing_overtaken_by_a_changed_table_property_lands_when_repeated(table: Path) -> None:
    """The first commit lands nothing, and the retry lands the plan."""
    plan = make_plan((0, 0, 5))
    files = write(table, plan, [record(0)])

    class ChangedTable(DeltaDataTable):
        def _add_files(self, *arguments: Any, **named: Any) -> None:
            DeltaTable(table).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
            super()._add_files(*arguments, **named)

    with pytest.raises(TableConflict, match="Protocol changed"):
        ChangedTable(str(table)).append(plan, files, UNCOMPARED)
    assert rows(table) == []
    append(table, plan, files)
    assert len(rows(table)) == 1
