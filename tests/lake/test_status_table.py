"""The status table: the newest look at each pipeline; it may be older than the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from arro3.core import Schema
from deltalake import DeltaTable

from tests.conftest import PROJECT
from tests.support.plans import MemoryPipeline
from tests.support.services import NOW
from tidemark.kafka.errors import TopicMissing
from tidemark.lake.status_table import COLUMNS, write_status
from tidemark.lake.table_io import query_rows
from tidemark.report.status import status_row


def row(name: str, **changes: Any) -> dict[str, Any]:
    """A pipeline's status as the table has it."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    pipeline.run("first")
    return {**pipeline.status().as_row(), "pipeline": name, **changes}


def told(uri: Path) -> list[tuple[str, int]]:
    """Pipelines and their lag."""
    rows = query_rows(DeltaTable(str(uri)), "SELECT pipeline, lag FROM t ORDER BY pipeline")
    return [(each["pipeline"], each["lag"]) for each in rows]


def test_every_value_of_a_status_has_a_column_and_the_page_explains_it() -> None:
    """A key without a column would be dropped, a column without a key would be null."""
    assert set(row("a")) == set(COLUMNS.names)
    page = (PROJECT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = page.partition("## The status table")[2].partition("## ")[0]
    assert [name for name in COLUMNS.names if f"`{name}`" not in section] == []


def test_writing_status_replaces_only_the_rows_of_the_checked_pipelines(tmp_path: Path) -> None:
    """One row for each pipeline, whoever looked at which."""
    write_status(str(tmp_path), [row("a", lag=1), row("b", lag=2)])
    write_status(str(tmp_path), [row("b", lag=3), row("c", lag=4)])
    assert told(tmp_path) == [("a", 1), ("b", 3), ("c", 4)]


def test_a_look_at_all_leaves_no_row_of_a_pipeline_that_is_gone(tmp_path: Path) -> None:
    """And one that nobody could look at has a row that says so."""
    write_status(str(tmp_path), [row("gone", lag=1), row("b", lag=2)])
    failed = status_row("b", TopicMissing(topic="t"), NOW)
    write_status(str(tmp_path), [row("a", lag=1), failed], of_all=True)
    rows = query_rows(DeltaTable(str(tmp_path)), "SELECT pipeline, alarms FROM t ORDER BY pipeline")
    assert rows == [
        {"pipeline": "a", "alarms": None},
        {"pipeline": "b", "alarms": "TopicMissing"},
    ]


def test_a_table_from_before_a_column_was_added_gets_it(tmp_path: Path) -> None:
    """Upgrading needs no migration."""
    old = Schema([COLUMNS.field(name) for name in COLUMNS.names if name != "alarms"])
    DeltaTable.create(str(tmp_path), schema=old)
    write_status(str(tmp_path), [row("a", lag=1)])
    assert told(tmp_path) == [("a", 1)]
    assert "alarms" in {field.name for field in DeltaTable(str(tmp_path)).schema().fields}
