"""Merges that mark replaced rows as deleted, with Spark on real tables."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from tests.silver.upsert.test_service import run_random_changes
from tests.support.upsert_lake import UpsertLake
from tidemark.core.errors import TidemarkError, TransientError
from tidemark.delta.compaction import Compaction
from tidemark.delta.errors import EngineFailed, TableConflict
from tidemark.silver.upsert import table as upsert_table
from tidemark.silver.upsert.spark import SparkMerger
from tidemark.spec.upsert import Deletes, MergeScope

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_KEYS = [f"k{number:02}" for number in range(40)]


def new_lake(root: Path, spark: SparkSession) -> UpsertLake:
    session = spark.newSession()
    return UpsertLake(root=root, spark=session, deletes=Deletes.HARD, deletion_vectors=True)


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> UpsertLake:
    """Nothing has landed; deletes are hard."""
    return new_lake(tmp_path, spark)


@pytest.fixture(scope="module")
def first_merge(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> UpsertLake:
    """A lake with one merged record of each key."""
    lake = new_lake(tmp_path_factory.mktemp("merged"), spark)
    lake.land_records(*((key, "old") for key in _KEYS))
    lake.merge()
    return lake


@pytest.fixture
def merged(first_merge: UpsertLake, tmp_path: Path) -> UpsertLake:
    """A copy of `first_merge`."""
    return first_merge.copied(tmp_path / "lake")


def newest(lake: UpsertLake) -> DeltaTable:
    """Return the upsert table."""
    return DeltaTable(lake.upsert_uri)


def merge(lake: UpsertLake, *payloads: tuple[str, str | None]) -> None:
    """Land new records, and merge only these."""
    lake.land_records(*payloads)
    done = lake.merge()
    assert done is not None
    assert done.scope is MergeScope.NEW
    lake.check()


def marked(lake: UpsertLake) -> int:
    """Return the number of rows that deletion vectors remove."""
    kept = pa.table(newest(lake).deletion_vectors())["selection_vector"].to_pylist()
    return sum(not each for vector in kept for each in vector)


def operations(lake: UpsertLake) -> list[str]:
    """Return the operations of the table's commits, oldest first."""
    return [commit["operation"] for commit in newest(lake).history()][::-1]


def test_a_merge_marks_replaced_rows_and_leaves_their_files(merged: UpsertLake) -> None:
    files = set(newest(merged).file_uris())
    merge(merged, ("k00", "new"), ("k01", None), ("more", "new"))
    assert files < set(newest(merged).file_uris())
    assert marked(merged) == 2
    assert merged.visible()["k00"] == "new"
    assert newest(merged).protocol().reader_features == ["deletionVectors"]
    merged.deletion_vectors = False
    merge(merged, ("k02", "new"))
    assert not files <= set(newest(merged).file_uris())
    assert marked(merged) == 0


@pytest.mark.parametrize(
    ("constant", "value", "updates"),
    [("_REMOVED_SHARE", 0.1, 5), ("_MERGES_BEFORE_COMPACTION", 2, 1)],
)
def test_merges_with_many_removed_rows_or_files_are_followed_by_a_compaction(
    merged: UpsertLake, monkeypatch: pytest.MonkeyPatch, constant: str, value: float, updates: int
) -> None:
    """The compaction changes no row, so the next merge needs no rebuild."""
    monkeypatch.setattr(upsert_table, constant, value)
    before = len(operations(merged))
    merge(merged, ("k00", "1"))
    assert operations(merged)[before:] == ["MERGE"]
    merge(merged, *((key, "2") for key in _KEYS[:updates]))
    assert operations(merged)[before:] == ["MERGE", "MERGE", "OPTIMIZE"]
    assert len(newest(merged).file_uris()) == 1
    merge(merged, ("k00", "3"))
    assert operations(merged)[before:] == ["MERGE", "MERGE", "OPTIMIZE", "MERGE"]


def test_a_failed_compaction_logs_a_warning_and_keeps_the_merged_rows(
    lake: UpsertLake,
    merged: UpsertLake,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next compaction follows only after further merges."""
    with pytest.raises(TidemarkError):
        lake.merger.compact()
    monkeypatch.setattr(upsert_table, "_MERGES_BEFORE_COMPACTION", 2)
    merge(merged, ("k00", "1"))
    failed = EngineFailed(operation="a test", reason="a test")
    with monkeypatch.context() as patched:
        patched.setattr(SparkMerger, "compact", Mock(side_effect=failed))
        merge(merged, ("k00", "2"))
    assert "table not compacted" in caplog.text
    before = len(operations(merged))
    merge(merged, ("k00", "3"))
    merge(merged, ("k00", "4"))
    assert operations(merged)[before:] == ["MERGE", "MERGE", "OPTIMIZE"]


def test_a_compaction_is_due_now_and_then_if_the_last_one_is_unknown(
    lake: UpsertLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another commit follows each merge."""
    monkeypatch.setattr(upsert_table, "newest_table", Mock())
    due = []
    for newest in range(61, 121, 2):
        commits = [
            {"version": version, "operation": "MERGE" if version % 2 else "SET TBLPROPERTIES"}
            for version in range(newest, newest - 50, -1)
        ]
        monkeypatch.setattr(upsert_table, "history", Mock(return_value=commits))
        if lake.upserts.table.needs_compaction():
            due.append(newest)
    assert due == [61, 81, 101]


def test_a_full_join_with_few_rows_hashes_them(spark: SparkSession) -> None:
    """A merge is such a join. By default, Spark sorts both sides."""
    joined = spark.range(2_000).join(spark.range(10), "id", "full_outer")
    assert len(joined.collect()) == 2_000
    plan = joined._jdf.queryExecution().executedPlan().toString()
    assert "isFinalPlan=true" in plan
    assert "ShuffledHashJoin" in plan
    assert "SortMergeJoin" not in plan.partition("Initial Plan")[0]


def test_a_purge_changes_no_row_and_counts_as_a_compaction(
    merged: UpsertLake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upsert_table, "_MERGES_BEFORE_COMPACTION", 2)
    merge(merged, ("k00", None))
    spark.sql(f"REORG TABLE delta.`{merged.upsert_uri}` APPLY (PURGE)")
    assert marked(merged) == 0
    before = len(operations(merged))
    merge(merged, ("k01", "1"))
    assert operations(merged)[before:] == ["MERGE"]


def test_a_table_with_change_data_feed_gets_deletion_vectors(lake: UpsertLake) -> None:
    """Spark then also lists the features of the older protocol, among them generated columns."""
    lake.deletion_vectors = False
    lake.land_records(*((key, "old") for key in _KEYS))
    lake.merge()
    newest(lake).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    lake.deletion_vectors = True
    merge(lake, ("k00", "1"))
    assert "generatedColumns" in (newest(lake).protocol().writer_features or ())
    merge(lake, ("k01", "1"))
    assert marked(lake) == 2


def test_a_count_by_statistics_includes_removed_rows(merged: UpsertLake) -> None:
    """docs/how-to/upsert.md names this reader."""
    merge(merged, ("k00", None))
    assert newest(merged).count() == len(_KEYS)
    assert len(merged.visible()) == len(_KEYS) - 1


@pytest.mark.faults
@pytest.mark.parametrize("by_spark", [True, False], ids=["spark", "maintenance"])
def test_a_merge_and_a_compaction_at_once_keep_every_row(
    merged: UpsertLake, spark: SparkSession, by_spark: bool
) -> None:
    """One of them may be refused. A refused merge is repeated."""
    table = f"delta.`{merged.upsert_uri}`"

    def compact() -> None:
        if by_spark:
            with suppress(Py4JError, PySparkException):
                spark.sql(f"OPTIMIZE {table}")
        else:
            with suppress(TableConflict):
                Compaction(str(merged.upsert_uri)).run()

    for number in range(6):
        merged.land_records(*((key, str(number)) for key in _KEYS[number::7]))
        with ThreadPoolExecutor(1) as thread:
            compacted = thread.submit(compact)
            retry(stop=stop_after_attempt(5), retry=retry_if_exception_type(TransientError))(
                merged.merge
            )()
            compacted.result()
        merged.check()


def test_random_changes_with_deletion_vectors_leave_the_rows_of_the_model(
    lake: UpsertLake,
) -> None:
    run_random_changes(lake, seed=5, count=4)


@pytest.mark.faults
@pytest.mark.parametrize("deletes", list(Deletes))
@pytest.mark.parametrize("seed", range(4))
def test_many_random_changes_with_deletion_vectors_leave_the_rows_of_the_model(
    lake: UpsertLake, deletes: Deletes, seed: int
) -> None:
    lake.deletes = deletes
    run_random_changes(lake, seed, count=12)
