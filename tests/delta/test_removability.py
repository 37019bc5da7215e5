"""Tests of tables whose rows cannot be removed: nothing is recorded, and the fix works."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.disks import read_only
from tests.support.file_lake import WEEK, FileLake, landed_lake
from tests.support.file_merger import FileMerger
from tests.support.follow_lake import Follower
from tests.support.services import with_ports
from tests.support.typed_lake import FileDecoder, TypedLake
from tests.support.upsert_lake import UpsertLake
from tests.support.zombies import PortWithStep
from tidemark.bronze.backfill.selection import select
from tidemark.bronze.ingest.errors import PlanCancelled
from tidemark.bronze.repair.errors import UndoUnfinished
from tidemark.delta.errors import StorageRefused, TableAltered
from tidemark.ops.maintenance.rules import MaintenanceOutcome

OPS = ("ops", "a test")


def forbid(uri: str | Path) -> None:
    """Set the property, as ALTER TABLE ... SET TBLPROPERTIES does."""
    DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "true"})


def permit(uri: str | Path) -> None:
    DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "false"})


def nothing(_: FileLake) -> None:
    pass


def planned_replacement(lake: FileLake) -> None:
    lake.plan_replacing((0, 3, 6))


def in_doubt(lake: FileLake) -> None:
    """Land plan 4 without recording it, and recreate the topic."""
    lake.land(lake.plan(2))
    lake.kafka.create("events", 2, "id-2")


Step = Callable[[FileLake], object]
STEPS: dict[str, tuple[Callable[[FileLake], None], Step]] = {
    "undo": (nothing, lambda lake: lake.undo.undo(2, *OPS)),
    "dry run of an undo": (nothing, lambda lake: lake.undo.undo(2, *OPS, dry_run=True)),
    "preview of a replacement": (
        nothing,
        lambda lake: lake.backfills.preview(
            select(offsets=["0:3-6"]), None, readable_only=False, replaces=True
        ),
    ),
    "plan of a replacement": (nothing, lambda lake: lake.plan_replacing((0, 3, 6))),
    "replacement": (planned_replacement, lambda lake: lake.ingest.execute(4)),
    "discarded landing": (in_doubt, lambda lake: lake.abandon.abandon(4, *OPS, discard=True)),
    "dry run of a discarded landing": (
        in_doubt,
        lambda lake: lake.abandon.abandon(4, *OPS, discard=True, dry_run=True),
    ),
}
"""Every step that removes rows of a bronze table, with the state before it."""


@pytest.mark.parametrize(("prepare", "step"), STEPS.values(), ids=STEPS)
def test_i7_rows_of_an_append_only_table_are_not_half_removed(
    tmp_path: Path, prepare: Callable[[FileLake], None], step: Step
) -> None:
    """The error names the property. After its fix, the same step succeeds."""
    lake = landed_lake(tmp_path, plans=3)
    prepare(lake)
    forbid(lake.uri)
    before = lake.ledger.event_number, lake.rows()
    with pytest.raises(TableAltered, match=r"delta\.appendOnly.*UNSET TBLPROPERTIES"):
        step(lake)
    assert (lake.ledger.event_number, lake.rows()) == before
    permit(lake.uri)
    step(lake)


def test_an_append_only_table_is_landed_in_and_maintained(tmp_path: Path) -> None:
    lake = landed_lake(tmp_path, plans=3)
    forbid(lake.uri)
    lake.run(2)
    assert lake.maintenance().maintain(WEEK).outcome is MaintenanceOutcome.MAINTAINED
    assert len(lake.rows()) == 11


@pytest.mark.parametrize("is_compacted", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_undo_that_cannot_end_is_reverted_by_a_rewind(
    tmp_path: Path, is_compacted: bool
) -> None:
    """Another program sets the property after the undo has begun. Each fix of the error works."""
    lake = landed_lake(tmp_path, plans=3)
    if is_compacted:
        lake.maintenance().maintain(WEEK)
    late = PortWithStep(lake.table, "remove_rows", before=lambda: forbid(lake.uri))
    with pytest.raises(TableAltered, match="tidemark rewind events"):
        with_ports(lake.undo, table=late).undo(2, *OPS)
    assert isinstance(lake.status().problem, UndoUnfinished)
    found = lake.repair.rewind("ops", "the rows stay")
    assert [plan.sequence for plan in found.to_record] == [2]
    lake.run(1)
    assert lake.verified() == [(10, 10)]
    permit(lake.uri)
    assert lake.undo.undo(2, *OPS).rows == 3
    lake.run(1)
    assert lake.verified() == [(11, 11)]


@pytest.mark.slow
def test_i1_typed_rows_return_after_an_undo_that_a_rewind_reverts(tmp_path: Path) -> None:
    """A decode has removed them, because the undo had begun."""
    lake = TypedLake(tmp_path)
    for _ in range(2):
        lake.bronze.run(3)
        lake.run()
    bronze = lake.bronze
    late = PortWithStep(bronze.table, "remove_rows", before=lambda: forbid(bronze.uri))
    with pytest.raises(TableAltered, match="cannot be removed"):
        with_ports(bronze.undo, table=late).undo(2, *OPS)
    lake.run()
    assert len(lake.decoded()) == 3
    bronze.repair.rewind("ops", "the rows stay")
    lake.run()
    lake.check()
    assert len(lake.decoded()) == 6


@pytest.mark.slow
@pytest.mark.parametrize("table", ["typed_uri", "quarantine_uri"])
def test_a_decode_removes_no_row_of_an_append_only_table(tmp_path: Path, table: str) -> None:
    """Its status reports it, and no record is decoded for nothing."""
    lake = TypedLake(tmp_path, broken={1})
    for _ in range(2):
        lake.bronze.run(3)
        lake.run()
    uri = getattr(lake, table)
    forbid(uri)
    assert lake.state().error is None
    lake.bronze.land_again((0, 0, 2))
    follower = Follower(lake, FileDecoder(lake))
    with pytest.raises(TableAltered, match="cannot be removed") as refused:
        follower.decode()
    assert follower.requests == []
    assert "rewind" not in str(refused.value)
    state = lake.state()
    assert state.backlog.surplus == 2
    assert isinstance(state.error, TableAltered)
    lake.bronze.undo.undo(2, *OPS)
    permit(uri)
    lake.run()
    lake.check()


def test_an_append_only_upsert_table_is_refused_before_a_merge(tmp_path: Path) -> None:
    lake = UpsertLake(tmp_path)
    for number in range(2):
        lake.land_records(("k", f"v{number}"))
        lake.run()
        if number == 0:
            lake.upserts.execute(FileMerger(lake))
            forbid(lake.upsert_uri)
    with pytest.raises(TableAltered, match="cannot be removed") as refused:
        lake.upserts.next()
    assert "rewind" not in refused.value.rendered("fix")


@pytest.mark.parametrize(
    ("feature", "advice"),
    [
        ("clustering", "Delta cannot drop clustering"),
        ("identityColumns", "new name and target"),
        ("rowTracking", "DROP FEATURE rowTracking"),
    ],
)
def test_the_fix_of_a_table_feature_is_possible(tmp_path: Path, feature: str, advice: str) -> None:
    lake = landed_lake(tmp_path, plans=1)
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [feature]}
    commit = lake.uri / "_delta_log" / f"{DeltaTable(lake.uri).version() + 1:020}.json"
    commit.write_text(json.dumps({"protocol": protocol}))
    with pytest.raises(TableAltered, match="it has the feature") as refused:
        lake.undo.undo(1, *OPS)
    assert advice in refused.value.rendered("fix")
    assert ("DROP FEATURE" in refused.value.rendered("fix")) is (feature == "rowTracking")


@pytest.mark.parametrize("folder", ["", "_delta_log"])
def test_an_undo_begins_only_if_this_process_may_write_to_the_table(
    tmp_path: Path, folder: str
) -> None:
    lake = landed_lake(tmp_path, plans=2)
    before = lake.ledger.event_number
    with read_only(lake.uri / folder), pytest.raises(StorageRefused) as refused:
        lake.undo.undo(2, *OPS)
    assert refused.value.location == str(lake.uri / folder)
    assert lake.ledger.event_number == before
    assert lake.undo.undo(2, *OPS).rows == 3
    with pytest.raises(PlanCancelled):
        lake.ingest.execute(2)
