"""What is in a table's place and is not the pipeline's: refused before anything is recorded."""

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


def somebodys(uri: Path) -> None:
    """A Delta table that Tidemark has not made."""
    write_deltalake(uri, pa.table({"x": [1, 2, 3]}))


def another_pipelines(uri: Path) -> None:
    """A bronze table, of another pipeline."""
    DeltaDataTable(str(uri)).prepare("others")


def plain_files(uri: Path) -> None:
    """A folder with something in it."""
    uri.mkdir(parents=True)
    (uri / "notes.txt").write_text("do not lose me")


@pytest.mark.parametrize("put", [somebodys, another_pipelines, plain_files])
def test_i7_nothing_is_recorded_over_a_foreign_table(
    tmp_path: Path, put: Callable[[Path], None]
) -> None:
    """Neither a plan nor a backfill is begun that could only fail."""
    lake = FileLake(root=tmp_path)
    lake.kafka.produce("events", 0, 5)
    put(lake.uri)
    before = sorted((each, each.stat().st_mtime_ns) for each in lake.uri.rglob("*"))
    for ask in (
        lambda: lake.planner.plan("run"),
        lake.planner.preview,
        lambda: lake.backfills.preview(select(offsets=["0:0-3"]), None, readable_only=False),
        lambda: lake.backfills.plan_whole(select(offsets=["0:0-3"]), "backfill"),
        lambda: lake.undo.undo(1, "ops", "wrong"),
    ):
        with pytest.raises(ForeignTable) as caught:
            ask()
        assert caught.value.target == str(lake.uri)
    assert lake.ledger.event_number == 0
    assert sorted((each, each.stat().st_mtime_ns) for each in lake.uri.rglob("*")) == before


def test_a_table_that_was_altered_is_the_pipelines_own_and_can_be_put_right(
    tmp_path: Path,
) -> None:
    """Somebody has added a constraint that nobody would check; another target is no help."""
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


def test_a_table_that_another_driver_is_making_is_no_foreign_one(tmp_path: Path) -> None:
    """Its log has a file that is not a commit yet: for a moment, or after a crash for good."""
    lake = FileLake(root=tmp_path)
    log = lake.uri / "_delta_log"
    log.mkdir(parents=True)
    (log / "_commit_1234.json.tmp").touch()
    lake.run(5)
    assert lake.verified() == [(5, 5)]
