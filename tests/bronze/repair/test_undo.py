"""Tests of undo: it removes exactly the plan's rows, and their offsets are read again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.file_lake import (
    FileLake,
    check_older_copy_is_repaired,
    landed_lake,
    put_back,
)
from tests.support.memory import MemoryTable
from tests.support.plans import MemoryPipeline, around_removal, wanted
from tests.support.services import with_ports
from tests.support.zombies import Killed, PortWithStep, kill
from tidemark.bronze.ingest.errors import PlanCancelled, PlanStillOpen
from tidemark.bronze.ingest.ledgers import compare_ledger
from tidemark.bronze.repair.errors import UndoUnfinished
from tidemark.core.errors import InvalidSelection, LedgerBehindTable, OnlyCopy, TableBehindLedger
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan
from tidemark.core.table_state import TableState
from tidemark.delta import data_table, plan_removal
from tidemark.delta.compaction import Compaction
from tidemark.delta.errors import (
    ControlConflict,
    EngineFailed,
    RemovalFenced,
    TableConflict,
    TableReplaced,
)

LATER_MS = 1_000


def pipeline_after_runs(*runs: int) -> MemoryPipeline:
    """Return a pipeline after one run for each number of records."""
    pipeline = MemoryPipeline()
    for number, records in enumerate(runs):
        pipeline.produce(0, records)
        pipeline.run(f"run-{number}")
    return pipeline


def landed_offsets(pipeline: MemoryPipeline) -> list[int]:
    return [offset for _, _, offset in pipeline.landed_identities()]


def test_undo_removes_exactly_the_plans_rows_and_the_next_run_reads_them_again() -> None:
    """I1, I3. The committed offset returns to the start of the removed range."""
    pipeline = pipeline_after_runs(4, 3, 2)
    done = pipeline.undo.undo(2, "ops", "a wrong deploy")
    assert (done.rows, landed_offsets(pipeline)) == (3, [0, 1, 2, 3, 7, 8])
    assert pipeline.committed()[0] == 4
    newest = [row for row in pipeline.control.rows if row.get("committed_offset") is not None][-1]
    assert (newest["event"], newest["committed_offset"]) == ("undo_started", 4)
    pipeline.run("next")
    assert pipeline.landed_identities() == pipeline.visible_identities()
    record = pipeline.ledger.plans[4]
    assert [(r.start, r.end) for r in record.plan.ranges] == [(4, 7)]
    assert pipeline.committed()[0] == 9


def test_rows_that_another_program_deleted_return_after_an_undo_of_their_plan(
    tmp_path: Path,
) -> None:
    """A limit: the offsets are unread again, and Kafka still has the record."""
    lake = landed_lake(tmp_path, plans=2)
    DeltaTable(lake.uri).delete('"offset" = 4')
    lake.run(1)
    assert (0, 4) not in lake.rows()
    lake.undo.undo(2, "ops", "wrong")
    lake.run(1)
    assert (0, 4) in lake.rows()
    assert lake.verified() == [(8, 8)]


def test_a_dry_run_of_undo_counts_rows_and_writes_nothing() -> None:
    pipeline = pipeline_after_runs(4, 3)
    events, version = pipeline.ledger.event_number, len(pipeline.table.commits)
    assert pipeline.undo.undo(2, "ops", "a look", dry_run=True).rows == 3
    assert (pipeline.ledger.event_number, len(pipeline.table.commits)) == (events, version)


class TableWithFailingRemoval(MemoryTable):
    """Table whose removal of rows fails."""

    def remove_rows(self, plan: Plan, epoch: int, _: TableState) -> tuple[int, int]:
        raise EngineFailed(operation="removing", reason=f"plan {plan.sequence} in epoch {epoch}")


def test_status_shows_an_interrupted_undo_and_a_repetition_completes_it() -> None:
    """I2. Until then the offsets are not planned."""
    pipeline = pipeline_after_runs(4, 3)
    failing = TableWithFailingRemoval(kafka=pipeline.kafka, commits=pipeline.table.commits)
    with pytest.raises(EngineFailed):
        replace(pipeline, table=failing).undo.undo(2, "ops", "a wrong deploy")
    assert pipeline.committed()[0] == 4
    assert pipeline.planner.plan("run").plan is None
    status = pipeline.status()
    assert isinstance(status.problem, UndoUnfinished)
    assert pipeline.undo.undo(2, "ops", "again", dry_run=True).rows == 3
    assert pipeline.undo.undo(2, "ops", "again").rows == 3
    assert pipeline.undo.undo(2, "ops", "again", dry_run=True).rows == 0
    assert pipeline.undo.undo(2, "ops", "again").rows == 0
    pipeline.run("next")
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_an_open_abandoned_or_unknown_plan_cannot_be_undone() -> None:
    pipeline = pipeline_after_runs(4)
    pipeline.produce(0, 3)
    pipeline.planner.plan("open")
    with pytest.raises(PlanStillOpen, match="has not landed"):
        pipeline.undo.undo(2, "ops", "x")
    pipeline.abandon.abandon(2, "ops", "x")
    with pytest.raises(PlanCancelled):
        pipeline.undo.undo(2, "ops", "x")
    with pytest.raises(InvalidSelection, match="no plan 9"):
        pipeline.undo.undo(9, "ops", "x")


def test_executing_an_undone_plan_is_refused() -> None:
    """I4. The next run of its requester gets a new plan."""
    pipeline = pipeline_after_runs(4)
    pipeline.undo.undo(1, "ops", "a wrong deploy")
    with pytest.raises(PlanCancelled):
        pipeline.ingest.execute(1)
    again = pipeline.plan("run-0")
    assert again.sequence == 2


def test_a_restore_of_undone_rows_is_detected() -> None:
    """I1. Reading their offsets again would land them twice."""
    pipeline = pipeline_after_runs(4)
    before = len(pipeline.table.commits)
    pipeline.undo.undo(1, "ops", "a wrong deploy")
    pipeline.table.restore(before)
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        pipeline.planner.plan("next")
    pipeline.repair.rewind("ops", "it was right after all")
    assert pipeline.committed()[0] == 4
    assert pipeline.run("next") is None
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_undone_offsets_of_a_backfill_are_read_by_the_next_run() -> None:
    pipeline = pipeline_after_runs(4)
    pipeline.produce(0, 4)
    plan = pipeline.planner.backfill(wanted((0, 5, 7)), RunOrigin("fill")).plan
    assert plan is not None
    pipeline.ingest.execute(plan.sequence)
    pipeline.run("live")
    pipeline.undo.undo(plan.sequence, "ops", "x")
    assert not set(landed_offsets(pipeline)) & {5, 6}
    pipeline.run("next")
    assert pipeline.landed_identities() == pipeline.visible_identities()


def check_undo_is_fenced_once(pipeline: MemoryPipeline) -> None:
    """Check that an undo of plan 2 fails and keeps all rows, and that a repetition removes them."""
    with pytest.raises(RemovalFenced):
        pipeline.undo.undo(2, "ops", "a wrong deploy")
    assert pipeline.landed_identities() == pipeline.visible_identities()
    assert pipeline.committed()[0] == 7
    assert pipeline.undo.undo(2, "ops", "a wrong deploy").rows == 3
    assert pipeline.committed()[0] == 4


@pytest.mark.parametrize("repair", ["rewind", "rebuild"])
def test_i1_an_undo_removes_no_rows_that_a_concurrent_repair_has_recorded(repair: str) -> None:
    """The repair finds the rows and records the plan as landed. A repetition undoes it again."""
    pipeline = pipeline_after_runs(4, 3)
    around_removal(
        pipeline, before=lambda: getattr(pipeline.repair, repair)("other", "unaware of the undo")
    )
    check_undo_is_fenced_once(pipeline)


def test_an_undo_fails_if_a_repair_has_recorded_its_restored_rows_as_landed() -> None:
    """The operator restores and rewinds during the undo. A repetition undoes the plan again."""
    pipeline = pipeline_after_runs(4, 3)
    version = len(pipeline.table.commits)

    def restore_and_rewind() -> None:
        pipeline.table.restore(version)
        pipeline.repair.rewind("other", "follows the RESTORE")

    around_removal(pipeline, after=restore_and_rewind)
    check_undo_is_fenced_once(pipeline)


def test_i1_a_restore_after_the_removal_is_noticed_though_a_later_plan_lands() -> None:
    """The later plan's version follows the RESTORE, so a comparison from there on misses it."""
    pipeline = pipeline_after_runs(4)
    pipeline.produce(0, 3)
    pipeline.planner.plan("run-1")
    version = len(pipeline.table.commits)

    def restore_and_land() -> None:
        pipeline.table.restore(version)
        pipeline.ingest.execute(2)

    around_removal(pipeline, after=restore_and_land)
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        pipeline.undo.undo(1, "ops", "a wrong deploy")
    assert pipeline.undo.undo(1, "ops", "a wrong deploy").rows == 4
    pipeline.run("next")
    assert pipeline.landed_identities() == pipeline.visible_identities()


@pytest.mark.slow
@pytest.mark.parametrize("lands", [True, False])
def test_i1_an_undo_removes_rows_that_a_restore_brings_back_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lands: bool
) -> None:
    """Also if a later plan lands after the RESTORE; on a real table, which removes in two steps."""
    lake = FileLake(root=tmp_path)
    lake.run(4)
    lake.run(3)
    version = DeltaTable(lake.uri).version()
    later = lake.plan(2)
    remove_whole_files = plan_removal.remove_whole_files

    def restore_after(*arguments: Any) -> tuple[int, int | None]:
        removed = remove_whole_files(*arguments)
        monkeypatch.undo()
        DeltaTable(lake.uri).restore(version)
        if lands:
            lake.ingest.execute(later.sequence)
        return removed

    monkeypatch.setattr(data_table, "remove_whole_files", restore_after)
    lake.undo.undo(2, "ops", "a wrong deploy")
    lake.ingest.execute(later.sequence)
    lake.run(1)
    assert lake.rows() == [(0, offset) for offset in range(10)]


@pytest.fixture
def compacted(tmp_path: Path) -> FileLake:
    """A lake with two plans in one file."""
    lake = FileLake(root=tmp_path)
    lake.run(3)
    lake.run(2)
    DeltaTable(lake.uri).optimize.compact()
    return lake


@pytest.mark.slow
@pytest.mark.parametrize("other", ["undo", "run"])
def test_i1_an_undo_in_a_shared_file_succeeds_beside_another_undo_or_a_run(
    compacted: FileLake, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """delta-rs refuses the commit if another process has removed the same file meanwhile."""
    delete = DeltaTable.delete

    def overtaken(table: DeltaTable, *arguments: Any, **named: Any) -> Any:
        monkeypatch.undo()
        if other == "undo":
            compacted.undo.undo(2, "ops", "wrong, too")
        else:
            compacted.run(4)
        return delete(table, *arguments, **named)

    monkeypatch.setattr(DeltaTable, "delete", overtaken)
    assert compacted.undo.undo(1, "ops", "wrong").rows == 3
    compacted.run(1)
    assert compacted.verified() == [(6, 6) if other == "undo" else (10, 10)]


def test_an_undo_that_is_overtaken_in_every_attempt_can_be_run_again(
    compacted: FileLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = DeltaTable.delete

    def overtaken(table: DeltaTable, *arguments: Any, **named: Any) -> Any:
        DeltaTable(compacted.uri).optimize.z_order(["offset"])
        return delete(table, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "delete", overtaken)
        with pytest.raises(TableConflict):
            compacted.undo.undo(1, "ops", "wrong")
    assert compacted.undo.undo(1, "ops", "wrong").rows == 3


@pytest.mark.slow
def test_a_data_table_from_before_an_undo_is_noticed_and_repaired(tmp_path: Path) -> None:
    """I1. Otherwise the run lands the records of the undone plan a second time."""
    lake = FileLake(root=tmp_path)
    for _ in range(3):
        lake.run(2)
    backup = shutil.copytree(lake.uri, tmp_path / "backup")
    lake.undo.undo(2, "ops", "wrong")
    shutil.rmtree(lake.uri)
    backup.rename(lake.uri)
    with pytest.raises(TableBehindLedger, match="lacks the undo"):
        lake.planner.plan("next")
    lake.repair.rewind("ops", "a backup")
    lake.run(1)
    assert lake.verified() == [(7, 7)]


def replace_by(copy: Path, lake: FileLake) -> None:
    """Put a copy in the data table's place; another program commits until it is as long."""
    version = DeltaTable(lake.uri).version()
    put_back(copy, lake.uri)
    while DeltaTable(lake.uri).version() < version:
        DeltaTable(lake.uri).alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "9"})


@pytest.mark.slow
@pytest.mark.parametrize("undone", [2, 3])
def test_a_copy_from_before_an_undo_is_noticed_after_later_commits(
    tmp_path: Path, undone: int
) -> None:
    """I1. Other programs commit, so the version of the copy is not lower than before."""
    lake = FileLake(root=tmp_path)
    for _ in range(3):
        lake.run(2)
    copy = shutil.copytree(lake.uri, tmp_path / "copy")
    lake.undo.undo(undone, "ops", "wrong")
    replace_by(copy, lake)
    with pytest.raises(TableBehindLedger, match="lacks the undo"):
        lake.planner.plan("next")
    lake.repair.rewind("ops", "a backup")
    lake.run(1)
    assert lake.verified() == [(7, 7)]


def test_a_copy_from_between_a_discarded_plan_and_an_undo_is_noticed(tmp_path: Path) -> None:
    """I1. The newest removal of the copy is that of a plan which the ledger has as abandoned."""
    lake = landed_lake(tmp_path, plans=3)
    hung = lake.plan(2)
    lake.abandon.abandon(hung.sequence, "ops", "hung", discard=True)
    copy = shutil.copytree(lake.uri, tmp_path / "copy")
    lake.undo.undo(3, "ops", "wrong")
    replace_by(copy, lake)
    with pytest.raises(TableBehindLedger, match="lacks the undo"):
        lake.planner.plan("next")


def test_a_copy_from_within_an_undo_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1. The undo commits twice: plan 2 has a large file, and rows in a file with plan 1."""
    lake = FileLake(root=tmp_path)
    lake.run(3, 1)
    lake.produce(3, 1)
    lake.run(20_000, 0)
    DeltaTable(lake.uri).alter.set_table_properties({"delta.targetFileSize": "60kb"})
    assert Compaction(str(lake.uri)).run() == 2
    remove_whole_files, copies = plan_removal.remove_whole_files, list[Path]()

    def copy_after(*arguments: Any) -> Any:
        done = remove_whole_files(*arguments)
        copies.append(shutil.copytree(lake.uri, tmp_path / "copy"))
        return done

    monkeypatch.setattr(data_table, "remove_whole_files", copy_after)
    lake.undo.undo(2, "ops", "wrong")
    replace_by(copies[0], lake)
    with pytest.raises(TableBehindLedger, match="lacks the undo"):
        lake.planner.plan("next")


def test_concurrent_undos_may_be_recorded_in_another_order(tmp_path: Path) -> None:
    """Plan 3 is removed first, and its undo is recorded last."""
    lake = FileLake(root=tmp_path)
    for _ in range(3):
        lake.run(2)
    table = PortWithStep(
        lake.table, "remove_rows", after=lambda: lake.undo.undo(2, "ops", "wrong too")
    )
    with_ports(lake.undo, table=table).undo(3, "ops", "wrong")
    lake.run(1)
    assert lake.verified() == [(7, 7)]


def test_an_undo_that_ends_after_later_undos_leaves_the_histories_equal(tmp_path: Path) -> None:
    """Two processes undo plan 2; one of them removes its rows only after plan 3 was undone."""
    lake = FileLake(root=tmp_path)
    for _ in range(3):
        lake.run(2)

    def overtake() -> None:
        lake.undo.undo(2, "ops", "wrong")
        lake.undo.undo(3, "ops", "wrong too")

    table = PortWithStep(lake.table, "remove_rows", before=overtake)
    with_ports(lake.undo, table=table).undo(2, "ops", "wrong")
    lake.run(1)
    assert lake.verified() == [(7, 7)]


def test_an_undo_after_the_ledger_was_read_is_a_conflict(tmp_path: Path) -> None:
    """The reader repeats its comparison, although the table has a removal that its ledger lacks."""
    lake = FileLake(root=tmp_path)
    for _ in range(3):
        lake.run(2)
    lake.undo.undo(2, "ops", "wrong")
    older = lake.control.summary("events")
    lake.undo.undo(3, "ops", "wrong too")
    with pytest.raises(ControlConflict):
        compare_ledger(lake.control, older, lake.table)


def test_i3_an_undo_removes_nothing_from_an_older_copy(tmp_path: Path) -> None:
    """The removal would hide that the copy lacks plan 3."""
    lake = landed_lake(tmp_path, plans=2)
    copy = shutil.copytree(lake.uri, tmp_path / "copy")
    lake.run(3)
    table = PortWithStep(lake.table, "remove_rows", before=lambda: put_back(copy, lake.uri))
    with pytest.raises(TableReplaced):
        with_ports(lake.undo, table=table).undo(2, "ops", "wrong")
    check_older_copy_is_repaired(lake)


@pytest.mark.slow
def test_i1_an_undo_that_ends_in_a_later_epoch_does_not_end_a_newer_undo(tmp_path: Path) -> None:
    """A copy has brought its rows back, and the newer undo was killed before it removed them."""
    lake = FileLake(root=tmp_path)
    for _ in range(3):
        lake.run(2)
    copy = shutil.copytree(lake.uri, tmp_path / "copy")

    def repair_and_undo_again() -> None:
        put_back(copy, lake.uri)
        lake.repair.rewind("ops", "a backup")
        killed = PortWithStep(lake.table, "remove_rows", before=kill)
        with pytest.raises(Killed):
            with_ports(lake.undo, table=killed).undo(2, "ops", "wrong still")

    table = PortWithStep(lake.table, "remove_rows", after=repair_and_undo_again)
    with pytest.raises(RemovalFenced):
        with_ports(lake.undo, table=table).undo(2, "ops", "wrong")
    assert lake.undo.undo(2, "ops", "wrong").rows == 2
    lake.run(1)
    assert lake.verified() == [(7, 7)]


def test_a_control_table_from_before_an_undo_is_noticed_and_repaired(tmp_path: Path) -> None:
    """I3. Otherwise the offsets of the undone plan count as landed."""
    lake = FileLake(root=tmp_path)
    for _ in range(3):
        lake.run(2)
    control = Path(lake.control_uri)
    backup = shutil.copytree(control, tmp_path / "backup")
    lake.undo.undo(2, "ops", "wrong")
    shutil.rmtree(control)
    backup.rename(control)
    with pytest.raises(LedgerBehindTable):
        lake.planner.plan("next")
    lake.repair.rebuild("ops", "a backup")
    lake.run(1)
    assert lake.verified() == [(7, 7)]


def deleted(pipeline: MemoryPipeline) -> None:
    """Let Kafka delete two offsets of plan 1."""
    pipeline.kafka.delete_records("events", 0, 2)


def recreated(pipeline: MemoryPipeline) -> None:
    """Recreate the topic and accept it."""
    pipeline.kafka.create("events", 2, "id-2")
    pipeline.decisions.accept_recreation("ops", "a new cluster")


def truncated(pipeline: MemoryPipeline) -> None:
    """Let an unclean election truncate the log before the last record of plan 1."""
    pipeline.kafka.elect("events", 0, end=3)


def truncated_and_grown(pipeline: MemoryPipeline) -> None:
    """Truncate the log, and write other records at the offsets of both plans."""
    truncated(pipeline)
    pipeline.produce(0, 10, LATER_MS)


def restored_and_grown(pipeline: MemoryPipeline) -> None:
    """Restore a snapshot of the broker, which keeps its leader epochs, and write other records."""
    pipeline.kafka.restore_log("events", 0, 3)
    pipeline.produce(0, 10, LATER_MS)


@pytest.mark.parametrize(
    ("lose", "lost"),
    [
        (deleted, 2),
        (recreated, 4),
        (truncated, 1),
        # How many of the four were replaced is unknown.
        (truncated_and_grown, 4),
        (restored_and_grown, 4),
    ],
)
def test_an_undo_of_the_only_copy_of_records_is_refused(
    lose: Callable[[MemoryPipeline], None], lost: int
) -> None:
    """Plan 2 can be read again. An explicit permission removes the rows nevertheless."""
    pipeline = pipeline_after_runs(4, 3)
    lose(pipeline)
    rows = pipeline.landed_identities()
    with pytest.raises(OnlyCopy) as refused:
        pipeline.undo.undo(1, "ops", "wrong")
    assert f"no longer has the records at {lost} offset" in refused.value.finding
    assert pipeline.landed_identities() == rows
    assert pipeline.undo.undo(1, "ops", "wrong", dry_run=True).lost == lost
    assert pipeline.undo.undo(1, "ops", "wrong", allow_loss=True).rows == 4
