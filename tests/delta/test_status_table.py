"""Tests of the status table, which has one row for each pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from arro3.core import Schema
from deltalake import DeltaTable

from tests.conftest import PROJECT
from tests.support.plans import MemoryPipeline
from tests.support.services import NOW
from tidemark.delta.errors import UnreadableFile
from tidemark.delta.status_table import COLUMNS, KAFKA_COLUMNS, read_status, write_status
from tidemark.delta.table_io import query_rows
from tidemark.kafka.errors import TopicMissing
from tidemark.ops.report.status import status_row


def row(name: str, **changes: Any) -> dict[str, Any]:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    pipeline.run("first")
    return {**pipeline.status().as_row(), "pipeline": name, **changes}


def lag_by_pipeline(uri: Path, where: str = "true") -> list[tuple[str, int]]:
    sql = f"SELECT pipeline, lag FROM t WHERE {where} ORDER BY pipeline"
    rows = query_rows(DeltaTable(str(uri)), sql)
    return [(each["pipeline"], each["lag"]) for each in rows]


def test_every_value_of_a_status_has_a_column_in_table_and_page() -> None:
    assert set(row("a")) == set(COLUMNS.names)
    page = (PROJECT / "docs" / "how-to" / "alarms.md").read_text(encoding="utf-8")
    section = page.partition("## The status table")[2].partition("## ")[0]
    assert [name for name in COLUMNS.names if f"`{name}`" not in section] == []


def test_writing_status_replaces_only_the_rows_of_the_checked_pipelines(tmp_path: Path) -> None:
    write_status(str(tmp_path), [row("a", lag=1), row("b", lag=2)])
    write_status(str(tmp_path), [row("b", lag=3), row("c", lag=4)])
    assert lag_by_pipeline(tmp_path) == [("a", 1), ("b", 3), ("c", 4)]


def test_writing_all_statuses_removes_rows_of_removed_pipelines(tmp_path: Path) -> None:
    """A pipeline whose status failed has a row with the error."""
    write_status(str(tmp_path), [row("gone", lag=1), row("b", lag=2)])
    failed = status_row("b", TopicMissing(topic="t"), NOW)
    write_status(str(tmp_path), [row("a", lag=1), failed], of_all=True)
    rows = query_rows(DeltaTable(str(tmp_path)), "SELECT pipeline, alarms FROM t ORDER BY pipeline")
    assert rows == [
        {"pipeline": "a", "alarms": None},
        {"pipeline": "b", "alarms": "TopicMissing"},
    ]


def test_a_row_keeps_the_last_known_lag_while_kafka_is_away(tmp_path: Path) -> None:
    """Its other values are those of the new check, and a later lag replaces the kept one."""
    uri = str(tmp_path)
    known = row("a", lag=5, lag_seconds=60.0)
    write_status(uri, [known])
    away = {**row("a", state="KafkaUnavailable"), **dict.fromkeys(KAFKA_COLUMNS)}
    for failed in (away, status_row("a", TopicMissing(topic="t"), NOW)):
        write_status(uri, [failed], of_all=True)
        (kept,) = read_status(uri)
        assert {key: kept[key] for key in KAFKA_COLUMNS} == {
            key: known[key] for key in KAFKA_COLUMNS
        }
        assert kept["state"] == failed["state"]
    write_status(uri, [row("a", lag=7)])
    assert [(each["lag"], each["lag_seconds"]) for each in read_status(uri)] == [(7, None)]


def test_only_the_rows_of_all_pipelines_replace_a_damaged_status_table(tmp_path: Path) -> None:
    """The row of one pipeline would remove the readable rows of the others."""
    uri = str(tmp_path)
    write_status(uri, [row("a", lag=1)])
    before = {*tmp_path.glob("*.parquet")}
    write_status(uri, [row("b", lag=2)])
    (newest,) = {*tmp_path.glob("*.parquet")} - before
    newest.unlink()
    with pytest.raises(UnreadableFile, match="status --record") as caught:
        write_status(uri, [row("b", lag=3)])
    assert caught.value.file == newest.name
    assert lag_by_pipeline(tmp_path, "pipeline = 'a'") == [("a", 1)]
    write_status(uri, [row("a", lag=4), row("b", lag=5)], of_all=True)
    assert lag_by_pipeline(tmp_path) == [("a", 4), ("b", 5)]


def test_a_table_of_an_older_release_gets_a_new_column(tmp_path: Path) -> None:
    old = Schema([COLUMNS.field(name) for name in COLUMNS.names if name != "alarms"])
    DeltaTable.create(str(tmp_path), schema=old)
    write_status(str(tmp_path), [row("a", lag=1)])
    assert lag_by_pipeline(tmp_path) == [("a", 1)]
    assert "alarms" in {field.name for field in DeltaTable(str(tmp_path)).schema().fields}


def test_reading_the_status_returns_one_row_of_each_pipeline(tmp_path: Path) -> None:
    """Also of a table of an older release, which lacks columns."""
    uri = str(tmp_path)
    assert read_status(uri) == ()
    old = Schema([COLUMNS.field(name) for name in COLUMNS.names if name != "alarms"])
    DeltaTable.create(uri, schema=old)
    assert read_status(uri) == []
    write_status(uri, [row("b", lag=1), row("a", lag=2)])
    write_status(uri, [row("b", lag=3)])
    assert [(each["pipeline"], each["lag"]) for each in read_status(uri)] == [("a", 2), ("b", 3)]
    (first, _) = read_status(uri)
    assert first == row("a", lag=2)
