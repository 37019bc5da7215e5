"""Tests of the execution of plans, on in-memory adapters and on tables of delta-rs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.file_lake import FileLake, landed_lake, put_back
from tests.support.memory import MemoryRow
from tests.support.plans import UNCOMPARED, MemoryPipeline, make_plan, make_spec, wanted
from tests.support.services import with_ports
from tests.support.zombies import PortWithStep
from tidemark.bronze.ingest.errors import CommitNotFound
from tidemark.core.accounting import Landing
from tidemark.core.errors import (
    EndBehindCommitted,
    InvalidSelection,
    LedgerBehindTable,
    LostRange,
    PlanCannotLand,
    TableBehindLedger,
    TidemarkError,
    TopicRecreated,
)
from tidemark.core.ledger import Ledger
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan
from tidemark.core.table_state import TableSize
from tidemark.delta.errors import EngineFailed, TableAltered, TableReplaced
from tidemark.spec.model import StartPolicy
from tidemark.spec.ref import PipelineRef


def pipeline_with_open_plan(records: int = 5) -> MemoryPipeline:
    pipeline = MemoryPipeline()
    pipeline.produce(0, records)
    pipeline.planner.plan("run-1")
    return pipeline


def test_s12_tasks_are_sized_by_the_mean_bytes_of_landed_records() -> None:
    """The first plan of a table has no sizes to use."""
    pipeline = MemoryPipeline(spec=make_spec(records_per_task=100, bytes_per_task=10))
    pipeline.produce(0, 4)
    pipeline.run("first")
    assert pipeline.table.records_per_task == 100
    pipeline.produce(0, 4)
    pipeline.run("second")
    assert pipeline.table.records_per_task == 10
    assert TableSize(records=4, bytes=10**9).records_within(100, 10) == 1
    assert TableSize(records=4, bytes=4).records_within(3, 10) == 3


def test_i4_i1_executing_a_plan_twice_lands_every_visible_record_once() -> None:
    pipeline = pipeline_with_open_plan()
    pipeline.kafka.add_gaps("events", 1, 2)
    first = pipeline.ingest.execute(1)
    again = pipeline.ingest.execute(1)
    assert (first.wrote, again.wrote) == (True, False)
    assert first.landing == again.landing
    assert pipeline.landed_identities() == pipeline.visible_identities()
    assert [row["event"] for row in pipeline.control.rows].count("landed") == 1


def test_s6_a_range_of_gaps_lands_no_record_and_moves_the_committed_offset() -> None:
    pipeline = MemoryPipeline()
    pipeline.kafka.add_gaps("events", 0, 3)
    pipeline.run("a")
    (count,) = pipeline.ledger.plans[1].held_now.counts  # type: ignore[union-attr]
    assert (count.records, count.gaps) == (0, 3)
    assert pipeline.committed()[0] == 3


def test_i5_executing_a_landed_plan_fails_after_a_restore_removed_its_rows() -> None:
    pipeline = pipeline_with_open_plan()
    pipeline.ingest.execute(1)
    pipeline.table.restore(0)
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        pipeline.ingest.execute(1)


def test_unknown_plan_error_names_the_newest_plan() -> None:
    with pytest.raises(InvalidSelection, match="newest plan: 1"):
        pipeline_with_open_plan().ingest.execute(7)


def test_a_commit_whose_answer_was_lost_is_found_and_not_repeated() -> None:
    pipeline = pipeline_with_open_plan()

    def lose_answer(_: Plan) -> None:
        raise EngineFailed(operation="committing", reason="connection reset")

    pipeline.table.after_commit = lose_answer
    done = pipeline.ingest.execute(1)
    assert (done.wrote, done.landing.records) == (True, 5)
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_a_retry_after_a_failure_before_the_commit_lands_the_same_plan() -> None:
    pipeline = pipeline_with_open_plan()

    def fail(_: Plan) -> None:
        raise EngineFailed(operation="reading", reason="executor lost")

    pipeline.table.before_commit = fail
    with pytest.raises(EngineFailed):
        pipeline.ingest.execute(1)
    assert pipeline.committed() == {0: 0, 1: 0}
    pipeline.table.before_commit = lambda _plan: None
    pipeline.ingest.execute(1)
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_a_driver_succeeds_if_another_driver_committed_its_plan() -> None:
    pipeline = pipeline_with_open_plan()

    def other_first(plan: Plan) -> None:
        pipeline.table.before_commit = lambda _plan: None
        pipeline.table.land(plan)

    pipeline.table.before_commit = other_first
    assert not pipeline.ingest.execute(1).wrote
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_a_plan_whose_transaction_was_fenced_is_not_recorded_as_landed() -> None:
    """Step 3 of the commit protocol (confirm)."""
    pipeline = pipeline_with_open_plan()

    def fence(plan: Plan) -> None:
        pipeline.table.before_commit = lambda _plan: None
        pipeline.table.fence(plan, UNCOMPARED)

    pipeline.table.before_commit = fence
    with pytest.raises(PlanCannotLand, match="fenced its transaction"):
        pipeline.ingest.execute(1)
    assert pipeline.committed() == {0: 0, 1: 0}


def test_a_reported_commit_that_the_log_lacks_is_not_recorded() -> None:
    """Step 3 of the commit protocol (confirm)."""
    pipeline = pipeline_with_open_plan()
    pipeline.table.append = lambda plan, files, seen: False  # type: ignore[method-assign]  # noqa: ARG005
    with pytest.raises(CommitNotFound):
        pipeline.ingest.execute(1)
    assert pipeline.committed() == {0: 0, 1: 0}


def test_i5_a_table_with_plans_that_the_control_table_lacks_is_refused() -> None:
    """The control table is from a backup."""
    pipeline = pipeline_with_open_plan()
    pipeline.table.commits.append(("tidemark:events:0", 2, "of a later plan"))
    with pytest.raises(LedgerBehindTable):
        pipeline.ingest.execute(1)
    with pytest.raises(LedgerBehindTable):
        pipeline.planner.plan("run-2")


def test_i5_a_table_that_was_removed_or_replaced_is_refused() -> None:
    """The run would land only new records and succeed."""
    pipeline = pipeline_with_open_plan()
    pipeline.ingest.execute(1)
    pipeline.produce(0, 5)
    other = MemoryPipeline(kafka=pipeline.kafka, control=pipeline.control)
    with pytest.raises(TableBehindLedger):
        other.planner.plan("run-2")
    assert other.table.rows == []


def test_i1_no_plan_is_made_after_the_control_table_was_lost() -> None:
    """Backfills have their own transaction id, so the live one does not fence them."""
    pipeline = pipeline_with_open_plan()
    pipeline.ingest.execute(1)
    without_control = MemoryPipeline(kafka=pipeline.kafka, table=pipeline.table)
    with pytest.raises(LedgerBehindTable):
        without_control.planner.plan("run-1")
    with pytest.raises(LedgerBehindTable):
        without_control.planner.backfill(wanted((0, 0, 5)), RunOrigin("fill"))
    with pytest.raises(LedgerBehindTable):
        without_control.planner.preview()


def test_a_topic_recreated_while_it_was_read_does_not_land() -> None:
    """S5. The rows may be of the new topic."""
    pipeline = pipeline_with_open_plan()
    read = pipeline.table.read

    def read_and_recreate(plan: Plan) -> list[MemoryRow]:
        rows = read(plan)
        pipeline.kafka.create("events", 2, "id-2")
        return rows

    pipeline.table.read = read_and_recreate  # type: ignore[method-assign]
    with pytest.raises(TopicRecreated):
        pipeline.ingest.execute(1)
    assert pipeline.table.rows == []


def test_a_topic_recreated_while_it_was_committed_is_not_recorded() -> None:
    """The topic may have been recreated before the last record was read."""
    pipeline = pipeline_with_open_plan()

    def recreate(_: Plan) -> None:
        pipeline.kafka.create("events", 2, "id-2")

    pipeline.table.before_commit = recreate
    with pytest.raises(TopicRecreated):
        pipeline.ingest.execute(1)
    with pytest.raises(TopicRecreated):
        pipeline.planner.plan("run-2")
    assert not any(row["event"] == "landed" for row in pipeline.control.rows)


def test_a_commit_of_another_plan_with_the_same_number_is_refused() -> None:
    pipeline = pipeline_with_open_plan()
    pipeline.table.commits.append(("tidemark:events:0", 1, "another fingerprint"))
    with pytest.raises(LedgerBehindTable, match="another plan with number"):
        pipeline.ingest.execute(1)


def test_a_topic_recreated_between_plan_and_land_is_refused() -> None:
    """The new topic has the planned offsets too."""
    pipeline = pipeline_with_open_plan()
    pipeline.kafka.create("events", 2, "id-2")
    pipeline.produce(0, 50)
    with pytest.raises(TopicRecreated):
        pipeline.ingest.execute(1)
    assert pipeline.table.files == []


def test_records_deleted_between_plan_and_land_are_a_lost_range() -> None:
    pipeline = pipeline_with_open_plan()
    pipeline.kafka.delete_records("events", 0, before=2)
    with pytest.raises(LostRange):
        pipeline.ingest.execute(1)
    assert pipeline.table.rows == []


def test_a_log_truncated_between_plan_and_land_is_refused() -> None:
    pipeline = pipeline_with_open_plan()
    pipeline.kafka.topics["events"][0].end = 3
    with pytest.raises(EndBehindCommitted):
        pipeline.ingest.execute(1)


def test_a_landing_is_recorded_despite_a_concurrent_event() -> None:
    pipeline = pipeline_with_open_plan()
    rival = MemoryPipeline(kafka=pipeline.kafka, control=pipeline.control)

    def rival_first(_: Ledger) -> None:
        pipeline.control.before_append = lambda _ledger: None
        rival.planner.plan("rival")

    pipeline.control.before_append = rival_first
    pipeline.ingest.execute(1)
    assert pipeline.committed() == {0: 5, 1: 0}


def test_a_plan_of_another_pipeline_is_unknown() -> None:
    pipeline = pipeline_with_open_plan()
    assert make_plan((0, 0, 5)).pipeline == "events"
    other = MemoryPipeline(
        spec=type(pipeline.spec)(
            ref=PipelineRef("other"), topic="events", connection="c", target="t", schedule="@daily"
        ),
        kafka=pipeline.kafka,
        control=pipeline.control,
    )
    with pytest.raises(InvalidSelection, match="newest plan: none"):
        other.ingest.execute(1)


def test_an_engine_failure_after_retention_deleted_records_is_a_lost_range() -> None:
    """S7. Retries would fail as well."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 10)
    plan = pipeline.plan("test")

    def delete_and_fail(_plan: Plan) -> None:
        pipeline.kafka.delete_records("events", 0, 5)
        raise EngineFailed(operation="landing", reason="OffsetOutOfRange")

    pipeline.table.before_commit = delete_and_fail
    with pytest.raises(LostRange):
        pipeline.ingest.execute(plan.sequence)


def test_i7_a_restore_is_noticed_though_a_plan_of_the_other_chain_lands_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both happen after this driver has found its own commit, and before it records it."""
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST))
    pipeline.produce(0, 2)
    assert pipeline.planner.plan("run-0").plan is None
    pipeline.produce(0, 5)
    pipeline.planner.plan("run-1")
    pipeline.planner.backfill(wanted((0, 0, 2)), RunOrigin("fill-1"))
    find_landing = pipeline.table.find_landing

    def restored_once_found(plan: Plan) -> Landing | None:
        landing = find_landing(plan)
        if landing is not None:
            monkeypatch.undo()
            pipeline.table.restore(0)
            pipeline.ingest.execute(2)
        return landing

    monkeypatch.setattr(pipeline.table, "find_landing", restored_once_found)
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        pipeline.ingest.execute(1)


def land_while(lake: FileLake, step: Callable[[], object]) -> TidemarkError:
    """Plan three records, and run a step after their files are written; return the error."""
    plan = lake.plan(3)
    sink = PortWithStep(lake.ingest.sink, "write", after=step)
    with pytest.raises(TidemarkError) as refused:
        with_ports(lake.ingest, sink=sink).execute(plan.sequence)
    assert lake.ledger.open_plans()
    return refused.value


def assert_nothing_lands_in(copy: Path, lake: FileLake, found_next: type[TidemarkError]) -> None:
    """Replace the log by a copy of it during a read; the next run finds the copy.

    The new files of the plan stay, so only the check of the log can refuse the commit. Further
    commits make the copy longer than the log was.
    """

    def replace_table() -> None:
        put_back(copy / "_delta_log", f"{lake.uri}/_delta_log")
        for _ in range(3):
            DeltaTable(lake.uri).alter.set_table_properties({"delta.checkpointInterval": "9"})

    assert isinstance(land_while(lake, replace_table), TableReplaced)
    with pytest.raises(found_next):
        lake.run(1)
    lake.repair.rewind("ops", "a backup")
    lake.run(1)
    assert lake.verified() == [(14, 14)]


def test_i3_nothing_lands_in_an_older_copy_that_replaced_the_table_during_the_read(
    tmp_path: Path,
) -> None:
    """The commit would hide that the copy lacks plans."""
    lake = landed_lake(tmp_path / "lake", plans=2)
    copy = shutil.copytree(lake.uri, tmp_path / "copy")
    lake.run(3)

    assert_nothing_lands_in(copy, lake, TableBehindLedger)


def test_i1_nothing_lands_in_a_copy_from_before_an_undo(tmp_path: Path) -> None:
    """The commit would hide the rows of the undone plan."""
    lake = landed_lake(tmp_path / "lake", plans=3)
    copy = shutil.copytree(lake.uri, tmp_path / "copy")
    lake.undo.undo(3, "ops", "wrong")

    assert_nothing_lands_in(copy, lake, TableBehindLedger)


def test_i3_nothing_lands_if_the_files_of_the_plan_have_disappeared(tmp_path: Path) -> None:
    """A copy of the same version replaced the folder: a commit would name missing files."""
    lake = landed_lake(tmp_path / "lake", plans=2)
    copy = shutil.copytree(lake.uri, tmp_path / "copy")

    error = land_while(lake, lambda: put_back(copy, lake.uri))
    assert isinstance(error, TableReplaced)
    assert ".parquet is no longer in the folder" in error.finding
    (open_plan,) = lake.ledger.open_plans()
    lake.ingest.execute(open_plan.plan.sequence)
    produced = len(lake.rows())
    assert lake.verified() == [(produced, produced)]


def test_nothing_lands_in_a_table_whose_rules_changed_during_the_read(tmp_path: Path) -> None:
    """The rows could break a new constraint."""
    lake = landed_lake(tmp_path / "lake", plans=1)
    rows = lake.rows()
    error = land_while(
        lake, lambda: DeltaTable(lake.uri).alter.add_constraint({"low": '"offset" < 3'})
    )
    assert isinstance(error, TableAltered)
    assert lake.rows() == rows
