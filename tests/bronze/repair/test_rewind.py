"""Tests of rewind and rebuild: after a repair, the control table agrees with the data table."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.file_lake import FileLake, home_lake, put_back, remove_old_commits
from tests.support.memory import MemoryControlTable, MemoryTable
from tests.support.plans import MemoryPipeline, make_spec, wanted
from tests.support.services import NOW, with_ports
from tests.support.zombies import Killed, PortWithStep, kill
from tidemark.bronze.ingest.errors import PlanCancelled
from tidemark.bronze.ingest.ledgers import compare_ledger
from tidemark.bronze.repair.errors import NothingToDo, UnexplainedRows
from tidemark.core.errors import (
    LedgerBehindTable,
    LostRange,
    RepairUnfinished,
    TableBehindLedger,
)
from tidemark.core.events import Undone
from tidemark.core.origins import RunOrigin
from tidemark.delta.errors import ControlConflict
from tidemark.spec.model import StartPolicy


@pytest.fixture
def pipeline() -> MemoryPipeline:
    """Return a pipeline with three landed plans (versions 1 to 3), each with a gap."""
    pipeline = MemoryPipeline()
    for run in ("first", "second", "third"):
        for partition in (0, 1):
            pipeline.produce(partition, 4)
            pipeline.kafka.add_gaps("events", partition, 1)
        pipeline.run(run)
    return pipeline


def newest_committed_offsets(pipeline: MemoryPipeline) -> dict[int, int]:
    """Return the newest committed offset of each partition, as a query of the table finds it."""
    newest: dict[int, tuple[int, int]] = {}
    for row in pipeline.control.rows:
        if row.get("committed_offset") is not None:
            candidate = (row["event_number"], row["committed_offset"])
            newest[row["partition"]] = max(candidate, newest.get(row["partition"], candidate))
    return {partition: offset for partition, (_, offset) in newest.items()}


def drain(pipeline: MemoryPipeline) -> None:
    """Run until nothing is left to do; check that every record has landed once."""
    plans = [pipeline.run(f"drain {run}") for run in range(4)]
    assert plans[-1] is None, "the fourth run still found unread offsets"
    assert pipeline.landed_identities() == pipeline.visible_identities()
    ends = {p: log.end for p, log in pipeline.kafka.topics["events"].items()}
    assert pipeline.committed() == newest_committed_offsets(pipeline) == ends


def test_i5_a_rewind_follows_a_restored_table(pipeline: MemoryPipeline) -> None:
    pipeline.table.restore(1)
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        pipeline.planner.plan("fourth")
    found = pipeline.repair.rewind("ann", "bad deploy")
    assert [plan.sequence for plan in found.gone] == [2, 3]
    ledger = pipeline.ledger
    assert ledger.epoch > 0
    assert pipeline.committed() == newest_committed_offsets(pipeline) == {0: 5, 1: 5}
    assert ledger.plans[1].cancelled_by is None
    assert [ledger.plans[n].cancelled_by for n in (2, 3)] == [
        Undone(sequence=n, requested_by="ann", reason="bad deploy") for n in (2, 3)
    ]
    plan = pipeline.plan("fourth")
    assert plan.sequence == 4
    drain(pipeline)


def test_i7_a_rewind_after_the_ledger_was_read_is_a_conflict(pipeline: MemoryPipeline) -> None:
    """The restored table fits the newer ledger, but not the one that was read."""
    older = pipeline.control.summary("events")
    pipeline.table.restore(1)
    pipeline.repair.rewind("ann", "why")
    with pytest.raises(ControlConflict):
        compare_ledger(pipeline.control, older, pipeline.table)


def test_a_run_whose_plan_was_rewound_plans_again(pipeline: MemoryPipeline) -> None:
    """A cleared run whose rows survived the RESTORE keeps its plan."""
    pipeline.table.restore(1)
    pipeline.repair.rewind("ann", "why")
    unchanged = pipeline.plan("first")
    assert unchanged.sequence == 1
    again = pipeline.plan("third")
    assert again.sequence == 4
    drain(pipeline)


def test_i4_a_driver_of_an_older_epoch_lands_nothing(pipeline: MemoryPipeline) -> None:
    pipeline.produce(0, 3)
    zombie = pipeline.plan("fourth")
    pipeline.table.restore(2)
    pipeline.repair.rewind("ann", "why")
    rows = list(pipeline.table.rows)
    pipeline.table.land(zombie)
    assert pipeline.table.rows == rows
    with pytest.raises(PlanCancelled):
        pipeline.ingest.execute(zombie.sequence)
    drain(pipeline)


def test_i4_a_driver_that_landed_before_a_rewind_records_nothing_after_it(
    pipeline: MemoryPipeline,
) -> None:
    """The driver has found its commit; then the table is restored and rewound."""
    pipeline.produce(0, 3)
    plan = pipeline.plan("fourth")
    ingest = pipeline.ingest

    def rewind(_ledger: object) -> None:
        pipeline.control.before_append = lambda _: None
        pipeline.table.restore(2)
        pipeline.repair.rewind("ann", "why")

    pipeline.control.before_append = rewind
    with pytest.raises(PlanCancelled):
        ingest.execute(plan.sequence)
    drain(pipeline)


def test_i5_a_commit_that_a_restore_removed_before_its_recording_is_not_recorded(
    pipeline: MemoryPipeline,
) -> None:
    pipeline.produce(0, 3)
    plan = pipeline.plan("fourth")
    pipeline.table.land(plan)
    pipeline.table.restore(3)
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        pipeline.planner.plan("fifth")
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        pipeline.ingest.execute(plan.sequence)
    pipeline.repair.rewind("ann", "why")
    drain(pipeline)


def test_a_restore_to_a_version_before_a_rewind_is_detected(pipeline: MemoryPipeline) -> None:
    """It would restore rows whose offsets are unread."""
    pipeline.table.restore(1)
    pipeline.repair.rewind("ann", "why")
    pipeline.table.restore(3)
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        pipeline.planner.plan("fourth")
    found = pipeline.repair.rewind("ann", "back again")
    assert [plan.sequence for plan in found.unrecorded] == [2, 3]
    assert pipeline.committed() == {0: 15, 1: 15}
    drain(pipeline)


def test_i5_a_lost_control_table_is_rebuilt(pipeline: MemoryPipeline) -> None:
    before = pipeline.ledger
    pipeline.control.clear()
    with pytest.raises(LedgerBehindTable):
        pipeline.planner.plan("fourth")
    with pytest.raises(LedgerBehindTable):
        pipeline.repair.rewind("ann", "why")
    found = pipeline.repair.rebuild("ann", "disk was lost")
    assert [plan.sequence for plan in found.unknown] == [1, 2, 3]
    after = pipeline.ledger
    assert after.landed == before.landed
    assert after.starts == before.starts
    assert (after.cluster_id, after.topic_id) == (before.cluster_id, before.topic_id)
    for sequence, record in before.plans.items():
        again = after.plans[sequence]
        assert again.plan.fingerprint == record.plan.fingerprint
        assert again.held_now is not None
        assert record.held_now is not None
        assert again.held_now.counts == record.held_now.counts
    pipeline.produce(1, 2)
    drain(pipeline)


def test_i5_a_rebuild_uses_rows_if_the_log_has_lost_the_commits(pipeline: MemoryPipeline) -> None:
    """Delta removes commits older than the log's retention."""
    pipeline.control.clear()
    pipeline.table.plans.clear()
    pipeline.repair.rebuild("ann", "why")
    # A gap at the end of a plan has no row, so its offset is unread again.
    assert pipeline.committed() == {0: 4, 1: 4}
    pipeline.produce(0, 1)
    drain(pipeline)


def test_i5_a_control_table_from_a_backup_is_completed(pipeline: MemoryPipeline) -> None:
    old = MemoryControlTable(
        rows=[row for row in pipeline.control.rows if row["event_number"] <= 3],
        newest={"events": 3},
    )
    assert sorted(old.ledger("events").plans) == [1, 2]
    pipeline.control = old
    with pytest.raises(LedgerBehindTable):
        pipeline.planner.plan("fourth")
    found = pipeline.repair.rebuild("ann", "why")
    assert [plan.sequence for plan in found.unknown] == [3]
    assert [plan.sequence for plan in found.unrecorded] == [2]
    drain(pipeline)


@pytest.mark.parametrize("event_number", [0, 1, 2, 3, 4, 5])
def test_i5_a_truncated_control_table_is_refused_and_rebuilt(
    pipeline: MemoryPipeline, event_number: int
) -> None:
    """The log of the control table contains its RESTORE."""
    pipeline.control.restore("events", event_number)
    with pytest.raises(LedgerBehindTable, match="has no rows for"):
        pipeline.planner.plan("fourth")
    pipeline.repair.rebuild("ann", "why")
    drain(pipeline)


def test_i2_a_zombie_of_a_lost_ledger_lands_nothing(pipeline: MemoryPipeline) -> None:
    """Only the lost control table contained its plan."""
    pipeline.produce(0, 3)
    zombie = pipeline.plan("fourth")
    pipeline.control.clear()
    pipeline.repair.rebuild("ann", "why")
    pipeline.table.land(zombie)
    drain(pipeline)


def test_i2_a_zombie_of_an_epoch_without_landings_lands_nothing(pipeline: MemoryPipeline) -> None:
    """No table contains the newest epoch."""
    pipeline.table.restore(2)
    pipeline.repair.rewind("ann", "why")
    zombie = pipeline.plan("fourth")
    pipeline.control.clear()
    pipeline.repair.rebuild("ann", "why")
    pipeline.table.land(zombie)
    drain(pipeline)


def test_backfills_survive_a_rebuild(pipeline: MemoryPipeline) -> None:
    pipeline.produce(0, 10)
    plan = pipeline.planner.backfill(wanted((0, 20, 22)), RunOrigin("backfill")).plan
    assert plan is not None
    pipeline.ingest.execute(plan.sequence)
    pipeline.control.clear()
    pipeline.repair.rebuild("ann", "why")
    assert pipeline.ledger.plans[4].plan.kind is plan.kind
    drain(pipeline)


def test_old_incarnations_survive_a_rebuild(pipeline: MemoryPipeline) -> None:
    old = pipeline.landed_identities()
    pipeline.kafka.create("events", 2, "id-2")
    pipeline.produce(0, 4)
    pipeline.decisions.accept_recreation("ann", "why")
    pipeline.run("fourth")
    pipeline.control.clear()
    pipeline.repair.rebuild("ann", "why")
    assert pipeline.committed() == newest_committed_offsets(pipeline) == {0: 4, 1: 0}
    pipeline.produce(1, 3)
    pipeline.run("fifth")
    assert pipeline.landed_identities() == sorted(old + pipeline.visible_identities())


def test_a_dry_run_of_a_repair_changes_nothing(pipeline: MemoryPipeline) -> None:
    pipeline.table.restore(1)
    rows, commits = list(pipeline.control.rows), list(pipeline.table.commits)
    found = pipeline.repair.rewind("ann", "why", dry_run=True)
    assert [plan.sequence for plan in found.gone] == [2, 3]
    assert (pipeline.control.rows, pipeline.table.commits) == (rows, commits)


def test_a_repeated_repair_completes_one_killed_after_its_fence(pipeline: MemoryPipeline) -> None:
    pipeline.table.restore(1)

    def killed(_ledger: object) -> None:
        pipeline.control.before_append = lambda _: None
        raise KeyboardInterrupt

    pipeline.control.before_append = killed
    with pytest.raises(KeyboardInterrupt):
        pipeline.repair.rewind("ann", "why")
    with pytest.raises(RepairUnfinished):
        pipeline.planner.plan("fourth")
    pipeline.repair.rewind("ann", "why")
    drain(pipeline)


def test_i7_repairing_tables_that_agree_is_refused(pipeline: MemoryPipeline) -> None:
    commits = list(pipeline.table.commits)
    for repair in (pipeline.repair.rewind, pipeline.repair.rebuild):
        with pytest.raises(NothingToDo):
            repair("ann", "why")
    assert pipeline.table.commits == commits


def test_rows_that_no_plan_explains_stop_a_repair(pipeline: MemoryPipeline) -> None:
    """I7. More rows than a plan landed, or an offset that two plans landed."""
    pipeline.table.restore(1)
    row = pipeline.table.rows[-1]
    commits = list(pipeline.table.commits)
    for foreign in (row, (*row[:3], 9)):
        pipeline.table.rows.append(foreign)
        for dry_run in (True, False):
            with pytest.raises(UnexplainedRows):
                pipeline.repair.rebuild("ann", "why", dry_run=dry_run)
        pipeline.table.rows.pop()
    assert pipeline.table.commits == commits
    assert pipeline.ledger.epoch == 0


@pytest.mark.parametrize("remaining", [0, 3])
def test_deleted_rows_are_not_read_again_after_a_repair(
    pipeline: MemoryPipeline, remaining: int
) -> None:
    first = [row for row in pipeline.table.rows if row[3] == 1]
    pipeline.table.restore(2)
    pipeline.table.rows = [row for row in pipeline.table.rows if row not in first[remaining:]]
    pipeline.table.commit("", 0)
    found = pipeline.repair.rewind("ann", "why")
    assert [plan.sequence for plan in found.gone] == [3]
    pipeline.run("fourth")
    assert len([row for row in pipeline.table.rows if row in first]) == remaining
    assert pipeline.committed() == {0: 15, 1: 15}


def test_i4_a_repair_records_a_plan_that_lands_just_before_its_fence(
    pipeline: MemoryPipeline,
) -> None:
    pipeline.produce(0, 3)
    plan = pipeline.plan("fourth")
    pipeline.table.restore(2)
    table, fence_chains = pipeline.table, pipeline.table.fence_chains

    def landing_first(pipeline: str, app_ids: Collection[str], requested_by: str) -> int:
        table.land(plan)
        return fence_chains(pipeline, app_ids, requested_by)

    pipeline.table.fence_chains = landing_first  # type: ignore[method-assign]
    found = pipeline.repair.rewind("ann", "why")
    assert [each.sequence for each in found.unrecorded] == [4]
    drain(pipeline)


def test_i5_another_copy_of_the_table_is_refused_after_a_repair(pipeline: MemoryPipeline) -> None:
    """The table was missing, was rewound, and is mounted again."""
    old = pipeline.table
    pipeline.table = MemoryTable(kafka=pipeline.kafka)
    pipeline.repair.rewind("ann", "the table is gone")
    pipeline.table = old
    with pytest.raises(TableBehindLedger):
        pipeline.planner.plan("fourth")


def test_i3_a_rebuilt_partition_does_not_start_at_a_backfill() -> None:
    """The offsets before the backfill were never read."""
    pipeline = MemoryPipeline(partitions=1)
    pipeline.produce(0, 20)
    pipeline.planner.plan("live")
    pipeline.produce(0, 80)
    backfill = pipeline.planner.backfill(wanted((0, 50, 60)), RunOrigin("backfill")).plan
    assert backfill is not None
    pipeline.ingest.execute(backfill.sequence)
    pipeline.control.clear()
    pipeline.repair.rebuild("ann", "why")
    drain(pipeline)


def test_i3_a_rebuild_from_rows_leaves_out_gaps_that_kafka_deleted(
    pipeline: MemoryPipeline,
) -> None:
    """They are a loss, because no evidence is left that they were read."""
    pipeline.kafka.delete_records("events", 0, 15)
    pipeline.control.clear()
    pipeline.table.plans.clear()
    pipeline.repair.rebuild("ann", "why")
    with pytest.raises(LostRange) as refused:
        pipeline.planner.plan("next")
    assert refused.value.lost == ((0, 4, 5), (0, 9, 10), (0, 14, 15))


@pytest.mark.parametrize("limit", [2, None])
def test_i2_a_zombie_landing_under_a_reassigned_number_is_recorded(
    pipeline: MemoryPipeline, limit: int | None
) -> None:
    """The ledger of the backup has another plan with the number of the zombie's plan."""
    pipeline.produce(0, 3)
    backup = MemoryControlTable(
        rows=list(pipeline.control.rows), newest=dict(pipeline.control.newest)
    )
    zombie = pipeline.plan("fourth")
    pipeline.control = backup
    pipeline.produce(0, 5)
    pipeline.spec = replace(pipeline.spec, records_per_run=limit)
    again = pipeline.plan("fourth again")
    assert again.sequence == zombie.sequence
    pipeline.table.land(zombie)
    with pytest.raises(LedgerBehindTable, match="another plan with number"):
        pipeline.ingest.execute(again.sequence)
    pipeline.repair.rebuild("ann", "why")
    assert pipeline.ledger.plans[zombie.sequence].plan.fingerprint == zombie.fingerprint
    drain(pipeline)


@pytest.mark.parametrize("in_log", [True, False], ids=["by_its_commit", "by_rows_alone"])
def test_i2_a_zombie_landing_is_not_mistaken_for_a_plan_of_other_partitions(
    pipeline: MemoryPipeline, in_log: bool
) -> None:
    pipeline.produce(0, 3)
    backup = MemoryControlTable(
        rows=list(pipeline.control.rows), newest=dict(pipeline.control.newest)
    )
    zombie = pipeline.plan("fourth")
    pipeline.control = backup
    pipeline.produce(1, 3)
    pipeline.planner.backfill(wanted((1, 15, 18)), RunOrigin("other"))
    pipeline.table.land(zombie)
    if not in_log:
        pipeline.table.plans.clear()
    pipeline.repair.rebuild("ann", "why")
    drain(pipeline)


@pytest.mark.parametrize("deleted", [0, 41], ids=["kafka_has_them", "kafka_has_deleted_them"])
def test_i5_a_rebuild_from_rows_separates_nested_backfills(deleted: int) -> None:
    """A wide backfill surrounds narrow ones and a gap."""
    pipeline = MemoryPipeline(partitions=1)
    pipeline.produce(0, 10)
    pipeline.run("first")
    pipeline.produce(0, 6)
    pipeline.kafka.add_gaps("events", 0, 1)
    pipeline.produce(0, 24)
    for start, end in ((15, 18), (30, 32), (12, 35)):
        request = wanted((0, start, end))
        plan = pipeline.planner.backfill(request, RunOrigin(f"from {start}")).plan
        assert plan is not None
        pipeline.ingest.execute(plan.sequence)
    pipeline.run("the rest")
    before = pipeline.visible_identities()
    pipeline.kafka.delete_records("events", 0, deleted)
    pipeline.control.clear()
    pipeline.table.plans.clear()
    pipeline.repair.rebuild("ann", "why")
    if deleted:
        # No evidence is left that the gap was read.
        pipeline.decisions.accept_loss((), "ann", "a gap, most likely")
    assert pipeline.committed() == {0: 41}
    pipeline.produce(0, 2)
    pipeline.run("then")
    assert pipeline.landed_identities() == [*before, ("id-1", 0, 41), ("id-1", 0, 42)]


def test_i4_the_number_of_a_plan_that_a_restore_removed_is_not_reassigned(
    pipeline: MemoryPipeline,
) -> None:
    """The control table is lost too; only the data table's log contains the number."""
    pipeline.table.restore(2)
    pipeline.control.clear()
    pipeline.repair.rebuild("ann", "why")
    plan = pipeline.plan("again")
    assert plan.sequence == 4
    drain(pipeline)


@pytest.mark.parametrize("gaps", [0, 3], ids=["records", "plans_of_gaps_only"])
def test_i5_a_restore_of_a_recreated_table_is_detected(pipeline: MemoryPipeline, gaps: int) -> None:
    """The versions of the new table start at 0 again."""
    for run in range(gaps):
        pipeline.kafka.add_gaps("events", 0, 2)
        pipeline.run(f"gaps {run}")
    pipeline.table = MemoryTable(kafka=pipeline.kafka)
    with pytest.raises(TableBehindLedger):
        pipeline.planner.plan("fourth")
    pipeline.repair.rewind("ann", "the table was removed")
    drain(pipeline)
    pipeline.table.restore(1)
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        pipeline.planner.plan("fifth")
    pipeline.repair.rewind("ann", "restored")
    drain(pipeline)


@pytest.mark.parametrize("lost", range(1, 8))
def test_i7_an_event_lost_from_the_middle_is_detected_and_rebuilt(
    pipeline: MemoryPipeline, lost: int
) -> None:
    """A writer that appends after a RESTORE of the control table leaves such a gap."""
    pipeline.produce(0, 3)
    pipeline.planner.plan("fourth")
    assert pipeline.ledger.event_number == 7
    pipeline.control.rows = [r for r in pipeline.control.rows if r["event_number"] != lost]
    assert pipeline.ledger.missing_events == 1
    with pytest.raises(LedgerBehindTable, match="has no rows for"):
        pipeline.planner.plan("fifth")
    pipeline.repair.rebuild("ann", "why")
    assert pipeline.ledger.missing_events == 0
    drain(pipeline)


def test_a_rebuild_restores_start_offsets_of_a_lost_first_event() -> None:
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST), partitions=1)
    pipeline.produce(0, 3)
    assert pipeline.run("first") is None
    pipeline.produce(0, 2)
    pipeline.run("second")
    pipeline.control.rows = [row for row in pipeline.control.rows if row["event_number"] != 1]
    pipeline.repair.rebuild("ann", "why")
    assert pipeline.committed() == {0: 5}
    assert pipeline.run("third") is None


def test_a_rebuild_restores_a_lost_accepted_recreation(pipeline: MemoryPipeline) -> None:
    old = pipeline.landed_identities()
    pipeline.kafka.create("events", 2, "id-2")
    pipeline.produce(0, 4)
    pipeline.decisions.accept_recreation("ann", "why")
    lost = pipeline.ledger.event_number
    pipeline.run("fourth")
    pipeline.control.rows = [r for r in pipeline.control.rows if r["event_number"] != lost]
    pipeline.repair.rebuild("ann", "why")
    pipeline.produce(1, 3)
    pipeline.run("fifth")
    assert pipeline.landed_identities() == sorted(old + pipeline.visible_identities())


def test_a_rebuild_restores_an_undo_that_the_control_table_lost(tmp_path: Path) -> None:
    lake = FileLake(root=tmp_path)
    lake.run(3)
    lake.run(2)
    before = DeltaTable(lake.control_uri).version()
    lake.undo.undo(1, "ops", "wrong")
    DeltaTable(lake.control_uri).restore(before)
    lake.repair.rebuild("ops", "from a backup")
    assert lake.control.summary("events").committed_offset(0) == 0
    lake.run(1)
    assert lake.verified() == [(6, 6)]


def test_deleted_rows_of_a_removed_commit_are_not_read_again_after_a_repair(
    tmp_path: Path,
) -> None:
    """The rows were erased on purpose. The log no longer has the commit of their landing."""
    lake = FileLake(root=tmp_path)
    for _ in range(3):
        lake.run(2)
    DeltaTable(lake.uri).delete("plan_sequence = 1")
    remove_old_commits(lake.uri)
    with pytest.raises(NothingToDo):
        lake.repair.rewind("ops", "by mistake")
    before = DeltaTable(lake.uri).version()
    lake.run(2)
    DeltaTable(lake.uri).restore(before)
    found = lake.repair.rewind("ops", "a mistake")
    assert [plan.sequence for plan in found.gone] == [4]


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
def test_a_rebuild_reuses_no_number_of_a_plan_that_only_a_transaction_has(
    tmp_path: Path, killed: bool
) -> None:
    """A decision about an undone plan never applies to a new plan.

    The log's old commits were removed after their retention, and the plan has no rows. An earlier
    rebuild may have been killed after its fence.
    """
    lake = FileLake(root=tmp_path)
    lake.run(3)
    control = Path(lake.control_uri)
    backup = shutil.copytree(control, tmp_path / "backup")
    lake.run(2)
    lake.undo.undo(2, "ops", "wrong")
    remove_old_commits(lake.uri)
    shutil.rmtree(control)
    backup.rename(control)
    if killed:
        table = PortWithStep(lake.table, "fence_chains", after=kill)
        with pytest.raises(Killed):
            with_ports(lake.repair, table=table).rebuild("ops:1", "from a backup")
    lake.repair.rebuild("ops:2", "from a backup")
    lake.run(1)
    assert sorted(lake.control.ledger("events").plans) == [1, 3]
    assert lake.verified() == [(6, 6)]


def test_a_restore_by_timestamp_removes_only_what_came_after_its_version(tmp_path: Path) -> None:
    """Its commit does not contain the version. Deleted rows of earlier plans stay deleted."""
    lake = FileLake(root=tmp_path)
    for _ in range(3):
        lake.run(2)
    table = DeltaTable(lake.uri)
    table.delete("plan_sequence = 2")
    moment = datetime.fromtimestamp(table.history(1)[0]["timestamp"] / 1000, UTC)
    while datetime.now(UTC) <= moment + timedelta(milliseconds=2):
        pass
    lake.run(2)
    DeltaTable(lake.uri).restore(moment + timedelta(milliseconds=1))
    found = lake.repair.rewind("ops", "a mistake")
    assert [plan.sequence for plan in found.gone] == [4]


def test_deleted_rows_of_a_partly_replaced_plan_are_not_read_again_after_a_repair(
    tmp_path: Path,
) -> None:
    """Kafka still has their records. The rewind only reads the offsets of a later plan again."""
    lake = FileLake(root=tmp_path)
    lake.run(10)
    lake.land_again((0, 0, 5))
    table = DeltaTable(lake.uri)
    table.delete("offset in (2, 7, 8)")
    before = table.version()
    lake.run(2)
    DeltaTable(lake.uri).restore(before)
    found = lake.repair.rewind("ops", "a mistake")
    assert [plan.sequence for plan in found.gone] == [3]
    assert found.recounted == ()
    assert lake.control.summary("events").committed_offset(0) == 10
    lake.run(1)
    offsets = [offset for _, offset in lake.rows()]
    assert sorted(offsets) == [0, 1, 3, 4, 5, 6, 9, 10, 11, 12]


def test_a_dry_run_of_a_repair_lists_plans_that_hold_replaced_rows_again(tmp_path: Path) -> None:
    """A RESTORE to a version before a replacement gives the first plan its rows back."""
    lake = FileLake(root=tmp_path)
    lake.run(10)
    before = DeltaTable(lake.uri).version()
    lake.run(2)
    lake.land_again((0, 0, 5))
    DeltaTable(lake.uri).restore(before)
    found = lake.repair.rewind("ops", "a mistake", dry_run=True)
    assert [plan.sequence for plan in found.gone] == [2, 3]
    assert [plan.sequence for plan in found.recounted] == [1]
    recorded = lake.repair.rewind("ops", "a mistake")
    assert [plan.sequence for plan in recorded.recounted] == [1]
    lake.run(0)
    assert lake.verified() == [(12, 12)]


@pytest.mark.slow
def test_offsets_of_an_undone_replacement_are_read_again_after_a_repair(tmp_path: Path) -> None:
    """The log no longer has the replacement. The first plan had its rows before, and has no more.

    The RESTORE removes the plan that read them again.
    """
    lake = FileLake(root=tmp_path)
    lake.run(10)
    lake.land_again((0, 0, 5))
    lake.run(1, partition=1)
    remove_old_commits(lake.uri)
    lake.undo.undo(2, "ops", "wrong")
    before = DeltaTable(lake.uri).version()
    lake.run(2)
    DeltaTable(lake.uri).restore(before)
    lake.repair.rewind("ops", "a mistake")
    lake.run(1)
    assert lake.verified() == [(13, 13), (1, 1)]


@pytest.mark.slow
def test_a_plan_whose_rows_were_deleted_is_read_again_after_a_restore_to_before_it(
    tmp_path: Path,
) -> None:
    """An earlier repair recorded the plan again without rows."""
    lake = FileLake(root=tmp_path)
    lake.run(1, partition=1)
    before_all = DeltaTable(lake.uri).version()
    lake.run(10)
    lake.land_again((0, 0, 5))
    table = DeltaTable(lake.uri)
    table.delete("partition = 0 and offset >= 5")
    before = table.version()
    lake.run(2)
    DeltaTable(lake.uri).restore(before)
    lake.repair.rewind("ops", "a mistake")
    DeltaTable(lake.uri).restore(before_all)
    lake.repair.rewind("ops", "a second mistake")
    lake.run(1)
    assert lake.verified() == [(13, 13), (1, 1)]


def lake_with_a_shared_file(root: Path, records: int) -> FileLake:
    """Return a lake in which an undo of plan 1 makes two commits.

    The plan has a file of its own, with these records of partition 1. Its three records of
    partition 0 are in a file with the two of plan 2.
    """
    lake = FileLake(root=root)
    lake.produce(records, partition=1)
    lake.run(3)
    lake.run(2)
    DeltaTable(lake.uri).optimize.compact(target_size=30_000)
    return lake


@pytest.mark.slow
def test_rows_of_a_half_removed_plan_are_read_again_after_two_restores(tmp_path: Path) -> None:
    """I3. An undo of compacted rows makes two commits; the second RESTORE goes between them."""
    lake = lake_with_a_shared_file(tmp_path, 5_000)
    before = DeltaTable(lake.uri).version()
    lake.undo.undo(1, "ops", "wrong")
    assert DeltaTable(lake.uri).version() == before + 2
    DeltaTable(lake.uri).restore(before)
    lake.repair.rewind("ops", "it was right")
    DeltaTable(lake.uri).restore(before + 1)
    found = lake.repair.rewind("ops", "it was wrong")
    assert [plan.sequence for plan in found.recounted] == [1]
    lake.run(1)
    assert lake.verified() == [(6, 6), (5_000, 5_000)]


def test_deleted_rows_count_again_after_a_restore_to_before_the_delete(
    tmp_path: Path,
) -> None:
    """An earlier repair recorded the plan without them."""
    lake = FileLake(root=tmp_path)
    lake.run(10)
    table = DeltaTable(lake.uri)
    table.delete("offset >= 5")
    lake.undo.undo(1, "ops", "wrong")
    DeltaTable(lake.uri).restore(table.version())
    lake.repair.rewind("ops", "it was right")
    DeltaTable(lake.uri).restore(table.version() - 1)
    lake.repair.rewind("ops", "the DELETE was wrong")
    lake.run(1)
    assert lake.verified() == [(11, 11)]


@pytest.mark.parametrize("undone", [False, True])
@pytest.mark.parametrize("command", ["rewind", "rebuild"])
def test_a_copy_of_the_table_from_before_a_replacement_is_repaired(
    tmp_path: Path, command: str, undone: bool
) -> None:
    """The log of the copy has neither the replacement nor a RESTORE."""
    lake = FileLake(root=tmp_path)
    lake.run(10)
    copy = shutil.copytree(lake.uri, tmp_path / "copy")
    lake.land_again((0, 0, 5))
    if undone:
        lake.undo.undo(2, "ops", "wrong")
    put_back(copy, lake.uri)
    getattr(lake.repair, command)("ops", "from a backup")
    lake.run(1)
    assert lake.verified() == [(11, 11)]


def test_rows_that_only_another_copy_of_the_table_has_are_read_again(tmp_path: Path) -> None:
    """I3. A repair recorded the plan in the original; the copy is from after the plan's undo."""
    lake = FileLake(root=tmp_path)
    lake.run(2)
    lake.undo.undo(1, "ops", "wrong")
    copy = shutil.copytree(lake.uri, tmp_path / "copy")
    DeltaTable(lake.uri).restore(1)
    lake.repair.rewind("ops:1", "it was right")
    put_back(copy, lake.uri)
    lake.repair.rewind("ops:2", "from a backup")
    lake.run(1)
    assert lake.verified() == [(3, 3)]


def test_records_that_a_copy_with_a_cleaned_log_lacks_are_read_again(tmp_path: Path) -> None:
    """I3. The log no longer has the versions in which the plans landed in the other table."""
    lake = FileLake(root=tmp_path)
    lake.run(2)
    copy = shutil.copytree(lake.uri, tmp_path / "copy")
    newest = lake.run(3)
    put_back(copy, lake.uri)
    table = DeltaTable(lake.uri)
    for _ in range(3):
        table.create_write_transaction([], "append", table.schema())
    remove_old_commits(lake.uri)
    found = lake.repair.rewind("ops", "from a backup")
    assert found.gone == (newest,)
    lake.run(1)
    assert lake.verified() == [(6, 6)]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_records_of_a_recreated_table_are_read_again_when_the_old_table_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """I3. The old log lacks early commits, so a missing one does not prove another table."""
    lake = FileLake(root=tmp_path)
    for _ in range(8):
        lake.run(2)
    remove_old_commits(lake.uri)
    old = Path(shutil.move(lake.uri, tmp_path / "old"))
    lake.kafka.delete_records("events", 0, 16)
    lake.repair.rewind("ops:1", "the folder is gone")
    lake.decisions.accept_loss((), "ops", "retention")
    lake.run(3)
    put_back(old, lake.uri)
    if killed:

        def kill(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            # After the fence.
            patch.setattr(type(lake.control), "append", kill)
            with pytest.raises(KeyboardInterrupt):
                lake.repair.rewind("ops:2", "the folder is back")
    found = lake.repair.rewind("ops:3", "the folder is back")
    assert [plan.sequence for plan in found.gone] == [9]
    lake.run(1)
    assert sorted(offset for _, offset in lake.rows()) == list(range(20))


def test_two_concurrent_repairs_have_separate_fences(tmp_path: Path) -> None:
    """With a shared one, a later repair would take the epoch's landings for another table's."""
    lake = FileLake(root=tmp_path)
    lake.run(2)
    lake.run(2)
    DeltaTable(lake.uri).restore(1)
    table, fence_chains = lake.table, type(lake.table).fence_chains
    seen: list[Collection[str]] = []

    def after_another(self: object, pipeline: str, app_ids: Collection[str], name: str) -> int:
        if not seen:
            seen.append(app_ids)
            fence_chains(table, pipeline, app_ids, "another")
        return fence_chains(self, pipeline, app_ids, name)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(table), "fence_chains", after_another)
        lake.repair.rewind("ops:1", "a mistake")
    epoch = lake.control.ledger("events").plans[1]
    assert epoch.cancelled_by is None
    fences = {fence.requested_by for fence in lake.table.fences().values()}
    assert fences == {"another", "ops:1"}


@pytest.mark.slow
def test_deleted_rows_of_an_unchanged_landing_are_not_read_again_in_an_older_copy(
    tmp_path: Path,
) -> None:
    """The repair recorded the landing again, with its original version."""
    lake = FileLake(root=tmp_path)
    lake.run(10)
    lake.land_again((0, 0, 5))
    table = DeltaTable(lake.uri)
    table.delete("offset in (2, 7, 8)")
    copy = shutil.copytree(lake.uri, tmp_path / "copy")
    before = table.version()
    lake.run(2)
    DeltaTable(lake.uri).restore(before)
    lake.repair.rewind("ops:1", "a mistake")
    put_back(copy, lake.uri)
    lake.repair.rewind("ops:2", "from a backup")
    lake.run(1)
    offsets = sorted(offset for _, offset in lake.rows())
    assert offsets == [0, 1, 3, 4, 5, 6, 9, 10, 11, 12]


@pytest.mark.slow
def test_landed_records_that_kafka_deleted_are_lost_and_never_become_gaps(
    tmp_path: Path,
) -> None:
    """I3. The second RESTORE goes between the two commits of an undo."""
    lake = lake_with_a_shared_file(tmp_path, 2_000)
    before = DeltaTable(lake.uri).version()
    lake.undo.undo(1, "ops", "wrong")
    DeltaTable(lake.uri).restore(before)
    lake.repair.rewind("ops:1", "it was right")
    lake.kafka.delete_records("events", 1, 2_000)
    DeltaTable(lake.uri).restore(before + 1)
    lake.repair.rewind("ops:2", "it was wrong")
    with pytest.raises(LostRange) as refused:
        lake.planner.plan("next")
    assert refused.value.lost == ((1, 0, 2_000),)


@pytest.mark.slow
@pytest.mark.parametrize("restored", [False, True])
def test_a_rebuild_after_half_an_undo_reads_the_removed_rows_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restored: bool
) -> None:
    """I3. The control table is from before the undo, which was killed or half restored."""
    lake = lake_with_a_shared_file(tmp_path, 2_000)
    control = shutil.copytree(lake.control_uri, tmp_path / "backup")
    before = DeltaTable(lake.uri).version()

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    if restored:
        lake.undo.undo(1, "ops", "wrong")
        DeltaTable(lake.uri).restore(before + 1)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(type(lake.table), "_remove_other_rows", killed)
            with pytest.raises(KeyboardInterrupt):
                lake.undo.undo(1, "ops", "wrong")
    put_back(control, lake.control_uri)
    found = lake.repair.rebuild("ops:1", "from a backup")
    assert [plan.sequence for plan in found.recounted] == [1]
    lake.run(1)
    assert lake.verified() == [(6, 6), (2_000, 2_000)]


def test_a_rebuild_records_the_plan_of_the_table_if_the_ledger_has_another_of_its_number(
    tmp_path: Path,
) -> None:
    """I3. The ledger's plan 2 has other offsets than the one in the table."""
    lake = FileLake(root=tmp_path)
    lake.run(3)
    tables = [Path(lake.uri), Path(lake.control_uri)]
    older = [shutil.copytree(each, tmp_path / f"older {each.name}") for each in tables]
    lake.run(2)
    newer = shutil.copytree(lake.uri, tmp_path / "newer")
    for copy, place in zip(older, tables, strict=True):
        put_back(copy, place)
    lake.run(3)
    put_back(newer, lake.uri)
    with pytest.raises(LedgerBehindTable):
        lake.repair.rewind("ops:1", "another backup")
    lake.repair.rebuild("ops:2", "another backup")
    lake.run(1)
    assert lake.verified() == [(9, 9)]


def test_a_plan_of_the_table_replaces_one_of_gaps_only_with_its_number(tmp_path: Path) -> None:
    """The control table is from another backup than the data table."""
    lake = FileLake(root=tmp_path)
    lake.run(3)
    tables = [Path(lake.uri), Path(lake.control_uri)]
    older = [shutil.copytree(each, tmp_path / f"older {each.name}") for each in tables]
    lake.kafka.add_gaps("events", 0, 1)
    gaps = lake.planner.plan("gaps").plan
    assert gaps is not None
    lake.ingest.execute(gaps.sequence)
    control = shutil.copytree(lake.control_uri, tmp_path / "newer control")
    for copy, place in zip(older, tables, strict=True):
        put_back(copy, place)
    lake.run(2)
    put_back(control, lake.control_uri)
    found = lake.repair.rebuild("ops:1", "another backup")
    assert ([plan.sequence for plan in found.unknown], found.gone) == ([2], ())
    lake.run(1)
    assert lake.verified() == [(6, 6)]


def test_a_landing_that_a_repair_records_again_counts_once_in_the_throughput(
    tmp_path: Path,
) -> None:
    """Its time is that of the landing: the repair is two days later."""
    lake = home_lake(tmp_path)
    before = lake.control.throughput("events")
    version = DeltaTable(lake.uri).version()
    lake.land_again((0, 6, 8))
    DeltaTable(lake.uri).restore(version)
    repair = with_ports(lake.repair, now=lambda: NOW + timedelta(days=2))
    found = repair.rewind("ops", "a mistake")
    assert [plan.sequence for plan in found.recounted] == [3]
    assert lake.control.throughput("events") == before
