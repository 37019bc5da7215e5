"""Tables of other owners and altered tables are refused before anything is recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.quality.test_publication import check
from tests.support.file_lake import WEEK, FileLake, landed_lake
from tests.support.quality_reports import REPORT as UNNAMED_REPORT
from tests.support.typed_lake import TypedLake
from tidemark.bronze.backfill.selection import select
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.errors import ForeignTable, TableAltered
from tidemark.ops.maintenance.rules import MaintenanceOutcome
from tidemark.quality.check_results_table import DeltaCheckResults

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def foreign_table(uri: Path) -> None:
    write_deltalake(uri, pa.table({"x": [1, 2, 3]}))


def table_of_another_pipeline(uri: Path) -> None:
    DeltaDataTable(str(uri)).prepare("others")


def plain_files(uri: Path) -> None:
    uri.mkdir(parents=True)
    (uri / "notes.txt").write_text("do not lose me")


@pytest.mark.parametrize("create", [foreign_table, table_of_another_pipeline, plain_files])
def test_i7_nothing_is_recorded_over_a_foreign_table(
    tmp_path: Path, create: Callable[[Path], None]
) -> None:
    lake = FileLake(root=tmp_path)
    lake.kafka.produce("events", 0, 5)
    create(lake.uri)
    before = sorted((each, each.stat().st_mtime_ns) for each in lake.uri.rglob("*"))
    for use_case in (
        lambda: lake.planner.plan("run"),
        lake.planner.preview,
        lambda: lake.backfills.preview(select(offsets=["0:0-3"]), None, readable_only=False),
        lambda: lake.backfills.plan_whole(select(offsets=["0:0-3"]), "backfill"),
        lambda: lake.undo.undo(1, "ops", "wrong"),
    ):
        with pytest.raises(ForeignTable) as caught:
            use_case()
        assert caught.value.target == str(lake.uri)
    assert lake.ledger.event_number == 0
    assert sorted((each, each.stat().st_mtime_ns) for each in lake.uri.rglob("*")) == before


def test_an_altered_table_is_refused_with_a_working_fix(tmp_path: Path) -> None:
    lake = FileLake(root=tmp_path)
    lake.run(5)
    lake.kafka.produce("events", 0, 5)
    DeltaTable(lake.uri).alter.add_constraint({"positive": '"offset" >= 0'})
    with pytest.raises(TableAltered, match=r"the constraint 'positive'.*ALTER TABLE"):
        lake.planner.plan("run")
    assert isinstance(lake.status().problem, TableAltered)
    DeltaTable(lake.uri).alter.drop_constraint("positive")
    lake.run(1)
    assert lake.verified() == [(11, 11)]


def test_i1_a_partitioned_table_is_refused_until_a_restore(tmp_path: Path) -> None:
    """Delta reads the values of partition columns from the log, to which no landing writes them."""
    lake = landed_lake(tmp_path, plans=1)
    version = DeltaTable(lake.uri).version()
    write_deltalake(
        lake.uri,
        pa.table(DeltaTable(lake.uri).scan()),
        mode="overwrite",
        schema_mode="overwrite",
        partition_by=["partition"],
    )
    lake.kafka.produce("events", 0, 2)
    with pytest.raises(TableAltered, match="it is partitioned by partition"):
        lake.planner.plan("run")
    DeltaTable(lake.uri).restore(version)
    lake.run(1)
    assert lake.verified() == [(6, 6)]


def test_a_log_folder_without_a_commit_is_not_a_foreign_table(tmp_path: Path) -> None:
    """Another driver is creating the table, or crashed while it did."""
    lake = FileLake(root=tmp_path)
    log = lake.uri / "_delta_log"
    log.mkdir(parents=True)
    (log / "_commit_1234.json.tmp").touch()
    lake.run(5)
    assert lake.verified() == [(5, 5)]


REPORT = replace(UNNAMED_REPORT, pipeline="events")
MAPPING = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "100"}


def add_ids(kind: Any, ids: Iterator[int]) -> None:
    """Add an id and the name in files to each field of a type."""
    if isinstance(kind, dict):
        for field in kind.get("fields", ()):
            name = {"delta.columnMapping.physicalName": field["name"]}
            field["metadata"] |= {"delta.columnMapping.id": next(ids), **name}
            add_ids(field["type"], ids)
        add_ids(kind.get("elementType"), ids)


def alter(
    uri: Path,
    properties: Mapping[str, str],
    column: Mapping[str, Any] | None = None,
    *,
    versions: tuple[int, int] = (2, 5),
) -> None:
    """Commit properties and metadata of the column `topic`, as Spark does without features."""
    table = DeltaTable(uri)
    metadata, schema = table.metadata(), json.loads(table.schema().to_json())
    if "delta.columnMapping.maxColumnId" in properties:
        add_ids(schema, count(1))
    for field in schema["fields"]:
        if field["name"] == "topic":
            field |= column or {}
    changed = {
        "id": metadata.id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": metadata.partition_columns,
        "configuration": {**metadata.configuration, **properties},
    }
    protocol = dict(zip(("minReaderVersion", "minWriterVersion"), versions, strict=True))
    actions = [{"protocol": protocol}, {"metaData": changed}]
    log = uri / "_delta_log" / f"{table.version() + 1:020}.json"
    log.write_text("\n".join(json.dumps(action) for action in actions))


@pytest.mark.parametrize(
    ("properties", "column", "versions"),
    [
        (MAPPING, None, (2, 5)),
        ({**MAPPING, "delta.columnMapping.mode": "id"}, None, (2, 5)),
        ({"delta.constraints.some": "topic IS NOT NULL"}, None, (1, 3)),
        ({}, {"metadata": {"delta.invariants": "{}"}}, (1, 2)),
        ({}, {"metadata": {"delta.generationExpression": "topic_id"}}, (1, 4)),
        ({}, {"metadata": {"delta.identity.start": 1}}, (1, 6)),
        ({}, {"nullable": False}, (1, 2)),
    ],
    ids=["names", "ids", "constraint", "invariant", "generated", "identity", "not null"],
)
def test_a_rule_of_a_table_without_features_is_refused(
    tmp_path: Path,
    properties: Mapping[str, str],
    column: Mapping[str, Any] | None,
    versions: tuple[int, int],
) -> None:
    """Files of a landing bypass it."""
    lake = landed_lake(tmp_path, plans=1)
    alter(lake.uri, properties, column, versions=versions)
    difference = "it has column mapping|it has the constraint|its column topic has a rule"
    with pytest.raises(TableAltered, match=difference):
        lake.planner.plan("run")


@pytest.mark.parametrize(
    "property_",
    [("delta.columnMapping.mode", "none"), ("delta.enableChangeDataFeed", "true"),
     ("delta.appendOnly", "true")],
    ids=lambda each: each[0],
)  # fmt: skip
def test_plans_land_in_a_table_with_a_property_that_restricts_no_value(
    tmp_path: Path, property_: tuple[str, str]
) -> None:
    lake = landed_lake(tmp_path, plans=1)
    alter(lake.uri, dict([property_]), versions=(1, 4))
    lake.run(1)
    assert lake.verified() == [(4, 4)]


@pytest.mark.spark
@pytest.mark.parametrize("has_features", [False, True])
def test_plans_land_after_column_mapping_is_ended_as_in_the_runbook(
    tmp_path: Path, spark: SparkSession, has_features: bool
) -> None:
    """Spark rewrites all files with the column names. The feature stays in the protocol."""
    lake = landed_lake(tmp_path, plans=2)
    alter_table = f"ALTER TABLE delta.`{lake.uri}`"
    mode = f"{alter_table} SET TBLPROPERTIES ('delta.columnMapping.mode' = '%s')"
    if has_features:
        spark.sql(f"{alter_table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(mode % "name")
    for old, new in (("value", "body"), ("key", "value"), ("body", "key")):
        spark.sql(f"{alter_table} RENAME COLUMN {old} TO {new}")
    with pytest.raises(TableAltered) as caught:
        lake.planner.plan("run")
    assert "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'none')" in caught.value.rendered("fix")
    for old, new in (("value", "body"), ("key", "value"), ("body", "key")):
        spark.sql(f"{alter_table} RENAME COLUMN {old} TO {new}")
    spark.sql(mode % "none")
    assert "columnMapping" in (DeltaTable(lake.uri).protocol().writer_features or ())
    lake.run(2)
    lake.land_again((0, 0, 4))
    lake.undo.undo(2, "ops", "wrong")
    lake.run(1)
    assert lake.maintenance().maintain(WEEK).outcome is MaintenanceOutcome.MAINTAINED
    assert lake.verified()[0] == (9, 9)
    read = spark.sql(f"SELECT `offset`, value FROM delta.`{lake.uri}` ORDER BY 1").collect()
    assert [(row[0], bytes(row[1])) for row in read] == [(n, b"%d" % n) for n in range(9)]


@pytest.mark.parametrize(
    ("table_of", "write"),
    [
        (lambda lake: lake.bronze.uri, lambda lake: lake.bronze.planner.plan("run")),
        (lambda lake: lake.typed_uri, TypedLake.run),
        (lambda lake: lake.quarantine_uri, TypedLake.run),
        (lambda lake: lake.bronze.control_uri, lambda lake: lake.bronze.planner.plan("run")),
        (
            lambda lake: lake.bronze.control_uri,
            lambda lake: lake.bronze.publication.reject(1, "ann", "why"),
        ),
        (
            lambda lake: lake.root / "results",
            lambda lake: DeltaCheckResults(str(lake.root / "results")).append(REPORT),
        ),
    ],
    ids=["bronze", "typed", "quarantine", "control", "decision", "results"],
)
def test_no_table_with_column_mapping_is_written(
    tmp_path: Path, table_of: Callable[[TypedLake], Path], write: Callable[[TypedLake], object]
) -> None:
    """Readers would find no values in columns of new files."""
    lake = TypedLake(tmp_path, broken={1})
    lake.land_values([b"a", b"b"])
    lake.run()
    check(lake.bronze, 1, passed=True)
    DeltaCheckResults(str(tmp_path / "results")).append(REPORT)
    lake.bronze.produce(1, 0)
    lake.bronze.payloads.clear()
    uri = table_of(lake)
    alter(uri, MAPPING)
    before = sorted((each, each.stat().st_mtime_ns) for each in tmp_path.rglob("*"))
    with pytest.raises(TableAltered, match="it has column mapping"):
        write(lake)
    assert sorted((each, each.stat().st_mtime_ns) for each in tmp_path.rglob("*")) == before
