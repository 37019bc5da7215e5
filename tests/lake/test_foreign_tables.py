"""Tests that tables and files of other owners are refused before anything is recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.file_lake import FileLake
from tidemark.backfill.selection import select
from tidemark.lake.data_table import DeltaDataTable
from tidemark.lake.errors import ForeignTable, TableAltered


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


def test_a_log_folder_without_a_commit_is_not_a_foreign_table(tmp_path: Path) -> None:
    """Another driver is creating the table, or crashed while it did."""
    lake = FileLake(root=tmp_path)
    log = lake.uri / "_delta_log"
    log.mkdir(parents=True)
    (log / "_commit_1234.json.tmp").touch()
    lake.run(5)
    assert lake.verified() == [(5, 5)]
