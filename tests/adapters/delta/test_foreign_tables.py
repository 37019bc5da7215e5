"""What is in a table's place and is not the pipeline's: refused before anything is recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.file_lake import FileLake
from tidemark.adapters.delta.data_table import DeltaDataTable
from tidemark.core.backfill import select
from tidemark.errors import ForeignTable


def somebodys(uri: Path) -> None:
    """A Delta table that Tidemark has not made."""
    write_deltalake(uri, pa.table({"x": [1, 2, 3]}))


def another_pipelines(uri: Path) -> None:
    """A bronze table, of another pipeline."""
    DeltaDataTable(str(uri)).prepare("others")


def with_a_rule(uri: Path) -> None:
    """The pipeline's own, to which somebody has added a constraint that nobody would check."""
    lake = FileLake(root=uri.parents[1])
    lake.table.prepare("events")
    DeltaTable(uri).alter.add_constraint({"positive": '"offset" >= 0'})


def plain_files(uri: Path) -> None:
    """A folder with something in it."""
    uri.mkdir(parents=True)
    (uri / "notes.txt").write_text("do not lose me")


@pytest.mark.parametrize("put", [somebodys, another_pipelines, with_a_rule, plain_files])
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
