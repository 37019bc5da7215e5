"""Executing plans over in-memory adapters: once, whatever happens."""

from __future__ import annotations

import pytest

from tests.support.memory import MemoryRow
from tests.support.plans import MemoryPipeline, make_plan, make_spec, wanted
from tidemark.core.errors import (
    EndBehindCommitted,
    LedgerBehindTable,
    LostRange,
    TableBehindLedger,
    TableRestored,
    TopicRecreated,
)
from tidemark.core.ledger import Ledger
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan
from tidemark.core.table_state import TableSize
from tidemark.ingest.errors import CommitNotFound, PlanFenced, UnknownPlan
from tidemark.lake.errors import EngineFailed, ForeignCommit
from tidemark.spec.ref import PipelineRef


def planned(records: int = 5) -> MemoryPipeline:
    """A pipeline with records in partition 0 and an open plan over them."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, records)
    pipeline.planner.plan("run-1")
    return pipeline


def test_tasks_are_sized_by_what_the_tables_records_take() -> None:
    """S12: large records make no larger files; the first plan of a table knows nothing of them."""
    pipeline = MemoryPipeline(spec=make_spec(records_per_task=100, bytes_per_task=10))
    pipeline.produce(0, 4)
    pipeline.run("first")
    assert pipeline.table.records_per_task == 100
    pipeline.produce(0, 4)
    pipeline.run("second")
    assert pipeline.table.records_per_task == 10
    assert TableSize(records=4, bytes=10**9).records_within(100, 10) == 1
    assert TableSize(records=4, bytes=4).records_within(3, 10) == 3


def test_i1_every_visible_record_lands_once() -> None:
    """Executing a plan any number of times has the effect of once (I4)."""
    pipeline = planned()
    pipeline.kafka.add_gaps("events", 1, 2)
    first = pipeline.ingest.execute(1)
    again = pipeline.ingest.execute(1)
    assert (first.wrote, again.wrote) == (True, False)
    assert first.landing == again.landing
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_s6_gaps_are_accounted_for() -> None:
    """A range of markers only lands no record and still moves the committed offset."""
    pipeline = MemoryPipeline()
    pipeline.kafka.add_gaps("events", 0, 3)
    pipeline.run("a")
    (count,) = pipeline.ledger.plans[1].held_now.counts  # type: ignore[union-attr]
    assert (count.records, count.gaps) == (0, 3)
    assert pipeline.committed()[0] == 3


def test_i5_executing_a_landed_plan_fails_after_a_restore_removed_its_rows() -> None:
    """The control table has it as landed; the data table decides."""
    pipeline = planned()
    pipeline.ingest.execute(1)
    pipeline.table.restore(0)
    with pytest.raises(TableRestored):
        pipeline.ingest.execute(1)


def test_unknown_plan_error_names_the_newest_plan() -> None:
    """The error says which plans there are."""
    with pytest.raises(UnknownPlan, match="newest plan: 1"):
        planned().ingest.execute(7)


def test_a_commit_with_a_lost_answer_is_found_and_not_repeated() -> None:
    """Commit done, answer lost: the run ends well and nothing is doubled."""
    pipeline = planned()

    def lose(_: Plan) -> None:
        raise EngineFailed(operation="committing", reason="connection reset")

    pipeline.table.after_commit = lose
    done = pipeline.ingest.execute(1)
    assert (done.wrote, done.landing.records) == (True, 5)
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_a_failure_before_the_commit_leaves_the_plan_open() -> None:
    """The error passes through, and a retry lands the same plan."""
    pipeline = planned()

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
    """The other driver commits first: this one finds the commit, and wrote nothing."""
    pipeline = planned()

    def other_first(plan: Plan) -> None:
        pipeline.table.before_commit = lambda _plan: None
        pipeline.table.land(plan)

    pipeline.table.before_commit = other_first
    assert not pipeline.ingest.execute(1).wrote
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_a_plan_whose_transaction_was_fenced_is_not_recorded_as_landed() -> None:
    """Step 3, confirm: without it this run would have succeeded having written nothing."""
    pipeline = planned()

    def fence(plan: Plan) -> None:
        pipeline.table.before_commit = lambda _plan: None
        pipeline.table.fence(plan)

    pipeline.table.before_commit = fence
    with pytest.raises(PlanFenced):
        pipeline.ingest.execute(1)
    assert pipeline.committed() == {0: 0, 1: 0}


def test_a_reported_commit_that_the_log_lacks_is_not_recorded() -> None:
    """Step 3, confirm: whatever the table answered."""
    pipeline = planned()
    pipeline.table.append = lambda plan, files: False  # type: ignore[method-assign]  # noqa: ARG005
    with pytest.raises(CommitNotFound):
        pipeline.ingest.execute(1)
    assert pipeline.committed() == {0: 0, 1: 0}


def test_i5_a_table_that_has_seen_later_plans_is_refused() -> None:
    """The control table is from a backup: nothing is planned and nothing lands."""
    pipeline = planned()
    pipeline.table.commits.append(("tidemark:events:0", 2, "of a later plan"))
    with pytest.raises(LedgerBehindTable):
        pipeline.ingest.execute(1)
    with pytest.raises(LedgerBehindTable):
        pipeline.planner.plan("run-2")


def test_i5_a_table_that_was_removed_or_replaced_is_refused() -> None:
    """Without this it would get only what is new, and the run would be green."""
    pipeline = planned()
    pipeline.ingest.execute(1)
    pipeline.produce(0, 5)
    other = MemoryPipeline(kafka=pipeline.kafka, control=pipeline.control)
    with pytest.raises(TableBehindLedger):
        other.planner.plan("run-2")
    assert other.table.rows == []


def test_i1_a_control_table_that_was_lost_lands_nothing_again() -> None:
    """A backfill has a transaction id of its own, so the live one cannot protect it."""
    pipeline = planned()
    pipeline.ingest.execute(1)
    amnesiac = MemoryPipeline(kafka=pipeline.kafka, table=pipeline.table)
    with pytest.raises(LedgerBehindTable):
        amnesiac.planner.plan("run-1")
    with pytest.raises(LedgerBehindTable):
        amnesiac.planner.backfill(wanted((0, 0, 5)), RunOrigin("fill"))
    with pytest.raises(LedgerBehindTable):
        amnesiac.planner.preview()


def test_a_topic_recreated_while_it_was_read_does_not_land() -> None:
    """S5: the rows may be the new topic's under the old id: none of them is committed."""
    pipeline = planned()
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
    """It may have been before the last record was read: no run may call that landed."""
    pipeline = planned()

    def recreate(_: Plan) -> None:
        pipeline.kafka.create("events", 2, "id-2")

    pipeline.table.before_commit = recreate
    with pytest.raises(TopicRecreated):
        pipeline.ingest.execute(1)
    with pytest.raises(TopicRecreated):
        pipeline.planner.plan("run-2")
    assert not any(row["event"] == "landed" for row in pipeline.control.rows)


def test_a_commit_of_another_plan_with_the_same_number_is_refused() -> None:
    """The control table and the data table are of different histories."""
    pipeline = planned()
    pipeline.table.commits.append(("tidemark:events:0", 1, "another fingerprint"))
    with pytest.raises(ForeignCommit):
        pipeline.ingest.execute(1)


def test_a_topic_recreated_between_plan_and_land_is_refused() -> None:
    """Although the new topic has the offsets that were planned."""
    pipeline = planned()
    pipeline.kafka.create("events", 2, "id-2")
    pipeline.produce(0, 50)
    with pytest.raises(TopicRecreated):
        pipeline.ingest.execute(1)
    assert pipeline.table.files == []


def test_records_deleted_between_plan_and_land_are_a_lost_range() -> None:
    """The reader would have returned fewer rows."""
    pipeline = planned()
    pipeline.kafka.delete_records("events", 0, before=2)
    with pytest.raises(LostRange):
        pipeline.ingest.execute(1)
    assert pipeline.table.rows == []


def test_a_log_truncated_between_plan_and_land_is_refused() -> None:
    """The reader would have stalled, then returned fewer rows."""
    pipeline = planned()
    pipeline.kafka.topics["events"][0].end = 3
    with pytest.raises(EndBehindCommitted):
        pipeline.ingest.execute(1)


def test_a_conflict_while_recording_is_retried() -> None:
    """Another writer's event between reading the ledger and recording does not lose the landing."""
    pipeline = planned()
    rival = MemoryPipeline(kafka=pipeline.kafka, control=pipeline.control)

    def rival_first(_: Ledger) -> None:
        pipeline.control.before_append = lambda _ledger: None
        rival.planner.plan("rival")

    pipeline.control.before_append = rival_first
    pipeline.ingest.execute(1)
    assert pipeline.committed() == {0: 5, 1: 0}


def test_two_open_drivers_record_one_landing() -> None:
    """Recording twice would be a second `landed` event for one plan."""
    pipeline = planned()
    pipeline.ingest.execute(1)
    pipeline.ingest.execute(1)
    landed = [row for row in pipeline.control.rows if row["event"] == "landed"]
    assert len(landed) == 1


def test_plans_of_another_pipeline_do_not_exist_here() -> None:
    """A plan is found in its own pipeline only."""
    pipeline = planned()
    assert make_plan((0, 0, 5)).pipeline == "events"
    other = MemoryPipeline(
        spec=type(pipeline.spec)(
            ref=PipelineRef("other"), topic="events", connection="c", target="t", schedule="@daily"
        ),
        kafka=pipeline.kafka,
        control=pipeline.control,
    )
    with pytest.raises(UnknownPlan, match="newest plan: none"):
        other.ingest.execute(1)


def test_an_engine_failure_after_retention_deleted_records_is_a_lost_range() -> None:
    """S7: the named error at once, not after retries that cannot help."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 10)
    plan = pipeline.plan("test")

    def deleted(_plan: Plan) -> None:
        pipeline.kafka.delete_records("events", 0, 5)
        raise EngineFailed(operation="landing", reason="OffsetOutOfRange")

    pipeline.table.before_commit = deleted
    with pytest.raises(LostRange):
        pipeline.ingest.execute(plan.sequence)
