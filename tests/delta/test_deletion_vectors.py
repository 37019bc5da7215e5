"""Tests of tables in which Spark marked rows as deleted by deletion vectors."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.delta.test_widened_maps import NEW, OLD, TOPIC_ID, append_rows, typed_table
from tests.support.file_lake import LATER, WEEK, FileLake, double, remove_old_commits
from tests.support.plans import wanted
from tidemark.bronze.ingest.errors import DuplicateRows, RecordsMissed, RowsChanged
from tidemark.core.errors import SetupError
from tidemark.core.following import Batch
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.origins import RunOrigin
from tidemark.delta.compaction import Compaction
from tidemark.delta.deletion_vectors import vector_path, vector_paths
from tidemark.delta.delta_dataset import DeltaDataset
from tidemark.delta.errors import TableConflict
from tidemark.delta.live_files import table_filesystem
from tidemark.delta.noted_commits import NotedTable, RowChange
from tidemark.spec.fields import MapOf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Return a pipeline without plans."""
    return FileLake(root=tmp_path)


def delete_two(lake: FileLake, spark: SparkSession, where: str = "") -> None:
    """Delete the first two rows by a deletion vector; the data file does not change."""
    files = list(lake.uri.rglob("*.parquet"))
    table = f"delta.`{lake.uri}`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM {table} WHERE {where} `offset` < 2")
    assert [*lake.uri.glob("deletion_vector_*.bin")]
    assert list(lake.uri.rglob("*.parquet")) == files
    assert (0, 2) in lake.rows()
    assert (0, 1) not in lake.rows()


def test_i3_rows_deleted_before_the_landing_was_recorded_are_read_again(
    lake: FileLake, spark: SparkSession
) -> None:
    lake.land(lake.plan(4))
    delete_two(lake, spark)
    with pytest.raises(RecordsMissed):
        lake.ingest.execute(1)
    assert lake.committed()[0] == 0
    plan = lake.planner.plan("next").plan
    assert plan is not None
    lake.ingest.execute(plan.sequence)
    assert lake.verified() == [(4, 4)]


def test_rows_deleted_after_a_landing_prevent_a_replacement_of_a_part(
    lake: FileLake, spark: SparkSession
) -> None:
    lake.run(4)
    delete_two(lake, spark)
    with pytest.raises(RowsChanged):
        lake.planner.backfill(replace(wanted((0, 0, 1)), replaces=True), RunOrigin("again"))
    landing = lake.table.current_landing(lake.ledger.plans[1].plan)
    assert (landing.records, landing.gaps) == (2, 2)


def test_i1_a_file_with_a_deletion_vector_is_left_out_of_a_compaction(
    lake: FileLake, spark: SparkSession
) -> None:
    """Covers a vector that is committed during the compaction."""
    lake.run(4)
    lake.run(1)
    compaction = Compaction(str(lake.uri))
    rewrites = compaction.rewrite()
    assert [len(each.replaced) for each in rewrites] == [2]
    delete_two(lake, spark)
    with pytest.raises(TableConflict):
        compaction.commit(rewrites)
    lake.run(1)
    assert Compaction(str(lake.uri)).run() == 2
    assert lake.rows() == [(0, 2), (0, 3), (0, 4), (0, 5)]


def test_i1_an_undo_removes_rows_beside_deletion_vectors(
    lake: FileLake, spark: SparkSession
) -> None:
    lake.kafka.produce("events", 1, 4, timestamp_ms=1_000)
    lake.run(4)
    delete_two(lake, spark, "partition = 0 AND")
    lake.undo.undo(1, "ops", "a test")
    assert lake.rows() == []
    plan = lake.planner.plan("next").plan
    assert plan is not None
    lake.ingest.execute(plan.sequence)
    assert lake.verified() == [(4, 4), (4, 4)]


def test_queries_of_duckdb_omit_rows_deleted_by_deletion_vectors(
    lake: FileLake, spark: SparkSession
) -> None:
    """Also with a filter on a column that the query does not select, and without any column."""
    lake.run(4)
    lake.run(1)
    delete_two(lake, spark)
    failures: list[Exception] = []
    with duckdb.connect() as connection:
        rows = DeltaDataset(DeltaTable(str(lake.uri)), failures.append)
        connection.register("events", rows)
        selected = connection.execute('SELECT "offset" FROM events ORDER BY ALL').fetchall()
        assert selected == [(2,), (3,), (4,)]
        filtered = 'SELECT "offset" FROM events WHERE plan_sequence = 1 ORDER BY ALL'
        assert connection.execute(filtered).fetchall() == [(2,), (3,)]
        assert connection.execute("SELECT count(*) FROM events").fetchall() == [(3,)]
    assert failures == []


def test_deleted_rows_with_widened_maps_are_not_read(tmp_path: Path, spark: SparkSession) -> None:
    """PyArrow reads the files of such a table. It does not apply deletion vectors.

    A removal is refused until Spark has rewritten the files.
    """
    uri = tmp_path / "typed"
    typed_table(uri, MapOf(OLD), flattens=False)
    append_rows(uri, {offset: [("k", {"qty": offset})] for offset in range(5)}, flattens=False)
    table = typed_table(uri, MapOf(NEW), flattens=False)
    name = f"delta.`{uri}`"
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM {name} WHERE `offset` IN (1, 3)")
    assert [*uri.glob("deletion_vector_*.bin")]
    rows = table.values_at(TOPIC_ID, 0, Span(0, 9))
    assert {row["offset"]: row["value"]["legs"] for row in rows} == {
        offset: [("k", {"qty": offset, "note": None})] for offset in (0, 2, 4)
    }
    version = NotedTable(str(uri), "note").open()
    assert version is not None
    removal = RowChange(removed={Batch(2, TOPIC_ID): {0: SpanSet((Span(0, 9),))}})
    with pytest.raises(SetupError) as refused:
        version.commit("a", removal)
    (statement,) = re.findall(r"OPTIMIZE delta.*?\(offset\)", str(refused.value))
    spark.sql(statement)
    version.commit("a", removal)
    rows = table.values_at(TOPIC_ID, 0, Span(0, 9))
    assert [row["offset"] for row in rows] == [0, 4]


def test_a_cached_summary_is_read_again_after_a_deletion_vector(
    lake: FileLake, spark: SparkSession
) -> None:
    """The names of the control table's files do not change."""
    lake.run(4)
    Compaction(str(lake.control_uri)).run({"pipeline": "events"})
    control = lake.control
    number = control.summary("events").event_number
    table = f"delta.`{lake.control_uri}`"
    spark.sql(
        f"ALTER TABLE {table} SET TBLPROPERTIES ("
        "'delta.enableDeletionVectors' = 'true', 'delta.appendOnly' = 'false')"
    )
    assert control.summary("events").missing_events == 0
    spark.sql(f"DELETE FROM {table} WHERE event_number = {number}")
    assert [*lake.control_uri.rglob("deletion_vector_*.bin")]
    assert control.summary("events").missing_events == 1


def test_doubled_rows_are_detected_with_deletion_vectors(
    lake: FileLake, spark: SparkSession
) -> None:
    lake.run(4)
    lake.run(3)
    delete_two(lake, spark)
    assert lake.table.row_count() == 5
    assert lake.status().problem is None
    lake.run(3)
    lake.run(4)
    double(lake.uri)
    problem = lake.status().problem
    assert isinstance(problem, DuplicateRows)
    assert (problem.rows, problem.landed) == (len(lake.rows()), 14)


# -- maintenance ---------------------------------------------------------------------------------


def test_the_path_of_a_vector_follows_delta_s_protocol() -> None:
    """The first example is from the protocol."""
    uuid = "d2c639aa-8816-431a-aaf6-d3fe2512ff61"
    relative = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^"}
    assert vector_path(relative) == f"ab/deletion_vector_{uuid}.bin"
    relative["pathOrInlineDv"] = "^-aqEH.-t@S}K{vb[*k^"
    assert vector_path(relative) == f"deletion_vector_{uuid}.bin"
    absolute = {"storageType": "p", "pathOrInlineDv": "s3://lake/deletion_vector_1.bin"}
    assert vector_path(absolute) == "s3://lake/deletion_vector_1.bin"
    assert vector_path({"storageType": "i", "pathOrInlineDv": "wi5b="}) is None
    assert vector_path(None) is None


def vectors(lake: FileLake) -> set[str]:
    """Return the names of the files with deletion vectors."""
    return {path.name for path in lake.uri.glob("*deletion_vector_*")}


def test_vectors_of_a_checkpoint_with_sidecar_files_are_unknown(tmp_path: Path) -> None:
    """A V2 checkpoint may have the name of a classic one, and refer to sidecar files."""
    name = "_delta_log/00000000000000000001.checkpoint.parquet"
    (tmp_path / name).parent.mkdir()
    rows = [{"add": None, "sidecar": {"path": "a.parquet"}}, {"add": {"path": "b.parquet"}}]
    for kept, expected in ((rows, None), (rows[1:], set[str]())):
        pq.write_table(pa.Table.from_pylist(kept), tmp_path / name)
        assert vector_paths(table_filesystem(str(tmp_path)), [name], 1) == expected
        assert vector_paths(table_filesystem(str(tmp_path)), [name], 2) is None


@pytest.mark.parametrize("checkpoint", [None, "delta-rs", "spark"])
def test_maintenance_keeps_used_vectors_and_removes_the_others(
    lake: FileLake, spark: SparkSession, checkpoint: str | None
) -> None:
    lake.run(4)
    lake.run(1)
    delete_two(lake, spark)
    table, rows = f"delta.`{lake.uri}`", lake.rows()
    if checkpoint == "delta-rs":
        DeltaTable(lake.uri).create_checkpoint()
    elif checkpoint == "spark":
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.checkpointInterval' = '9')")
    assert bool([*lake.uri.glob("_delta_log/*.checkpoint.parquet")]) == (checkpoint is not None)
    if checkpoint:
        remove_old_commits(lake.uri)
    used = vectors(lake)
    assert used
    lake.maintenance(LATER).maintain(WEEK)
    assert vectors(lake) == used
    assert lake.rows() == rows
    spark.sql(f"REORG TABLE {table} APPLY (PURGE)")
    lake.maintenance().maintain(WEEK)
    assert vectors(lake) == used
    DeltaTable(lake.uri).create_checkpoint()
    lake.maintenance(LATER).maintain(WEEK)
    assert not vectors(lake)
    assert lake.rows() == rows


def test_maintenance_keeps_all_vectors_if_it_cannot_read_the_checkpoint(
    lake: FileLake, spark: SparkSession
) -> None:
    """Spark writes a checkpoint in several files."""
    lake.run(4)
    delete_two(lake, spark)
    rows, session = lake.rows(), spark.newSession()
    session.conf.set("spark.databricks.delta.checkpoint.partSize", "1")
    for interval in (1, 9):
        session.sql(
            f"ALTER TABLE delta.`{lake.uri}` "
            f"SET TBLPROPERTIES ('delta.checkpointInterval' = '{interval}')"
        )
    assert not [*lake.uri.glob("_delta_log/*.checkpoint.parquet")]
    # Neither by delta-rs nor with two files: it and a compaction write single-file checkpoints.
    start = min(path.name[:20] for path in lake.uri.glob("_delta_log/0*.checkpoint.*"))
    for commit in lake.uri.glob("_delta_log/*.json"):
        if commit.stem < start:
            commit.unlink()
    used = vectors(lake)
    assert used
    lake.maintenance(LATER).maintain(WEEK)
    assert not [*lake.uri.glob("_delta_log/*.checkpoint.parquet")]
    assert vectors(lake) == used
    assert lake.rows() == rows
