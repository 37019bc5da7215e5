"""Merges that mark replaced rows as deleted, with Spark on real tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.silver.upsert.test_service import run_random_changes
from tests.support.upsert_lake import UpsertLake
from tidemark.silver.upsert import table as upsert_table
from tidemark.spec.upsert import Deletes, MergeScope

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_KEYS = [f"k{number:02}" for number in range(40)]


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> UpsertLake:
    """Nothing has landed; deletes are hard."""
    session = spark.newSession()
    return UpsertLake(root=tmp_path, spark=session, deletes=Deletes.HARD, deletion_vectors=True)


def newest(lake: UpsertLake) -> DeltaTable:
    """Return the upsert table."""
    return DeltaTable(lake.upsert_uri)


def merge(lake: UpsertLake, *payloads: tuple[str, str | None]) -> None:
    """Land records above all earlier ones, and merge them alone."""
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


def test_a_merge_marks_replaced_rows_and_leaves_their_files(lake: UpsertLake) -> None:
    lake.land_records(*((key, "old") for key in _KEYS))
    lake.merge()
    files = set(newest(lake).file_uris())
    merge(lake, ("k00", "new"), ("k01", None), ("more", "new"))
    assert files < set(newest(lake).file_uris())
    assert marked(lake) == 2
    assert lake.visible()["k00"] == "new"
    assert newest(lake).protocol().reader_features == ["deletionVectors"]
    lake.deletion_vectors = False
    merge(lake, ("k02", "new"))
    assert not files <= set(newest(lake).file_uris())
    assert marked(lake) == 0


@pytest.mark.parametrize(
    ("constant", "value", "updates"),
    [("_DELETED_SHARE", 0.1, 5), ("_MERGES_BEFORE_COMPACTION", 2, 1)],
)
def test_merges_with_many_deleted_rows_or_files_are_followed_by_a_compaction(
    lake: UpsertLake, monkeypatch: pytest.MonkeyPatch, constant: str, value: float, updates: int
) -> None:
    """It changes no row, so that the next merge follows the last one."""
    monkeypatch.setattr(upsert_table, constant, value)
    lake.land_records(*((key, "old") for key in _KEYS))
    lake.merge()
    before = len(operations(lake))
    merge(lake, ("k00", "1"))
    assert operations(lake)[before:] == ["MERGE"]
    merge(lake, *((key, "2") for key in _KEYS[:updates]))
    assert operations(lake)[before:] == ["MERGE", "MERGE", "OPTIMIZE"]
    assert len(newest(lake).file_uris()) == 1
    merge(lake, ("k00", "3"))
    assert operations(lake)[before:] == ["MERGE", "MERGE", "OPTIMIZE", "MERGE"]


def test_a_compaction_that_fails_is_a_warning(
    lake: UpsertLake, caplog: pytest.LogCaptureFixture
) -> None:
    """The rows of the merge are in the table."""
    lake.land_records(("a", "1"))
    lake.merge()
    lake.land_records(("b", "1"))
    lake.merge()
    lost = next(path for path in lake.upsert_uri.glob("*.parquet"))
    content = lost.read_bytes()
    lost.unlink()
    lake.merger.compact()
    assert "table not compacted" in caplog.text
    lost.write_bytes(content)
    lake.check()


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
