"""Tests of abandoning plans, most of them on in-memory adapters."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.file_lake import check_older_copy_is_repaired, landed_lake, put_back
from tests.support.plans import (
    UNCOMPARED,
    MemoryPipeline,
    around_removal,
    make_spec,
    wanted,
)
from tests.support.services import with_ports
from tests.support.zombies import PortWithStep
from tidemark.bronze.ingest.errors import PlanCancelled, PlanStillOpen
from tidemark.bronze.ingest.planner import PlanOutcome
from tidemark.bronze.repair.errors import NothingToDo, RowsInDoubt, UndoUnfinished
from tidemark.core.errors import TidemarkError, TopicRecreated
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan
from tidemark.delta.errors import TableReplaced
from tidemark.spec.model import StartPolicy


def pipeline_with_open_plan(records: int = 10) -> MemoryPipeline:
    pipeline = MemoryPipeline()
    pipeline.produce(0, records)
    pipeline.planner.plan("run-1")
    return pipeline


def test_offsets_of_an_abandoned_plan_are_planned_again_with_current_limits() -> None:
    pipeline = pipeline_with_open_plan(records=1_000)
    pipeline.abandon.abandon(1, "ops", "too large")
    pipeline.spec = replace(pipeline.spec, records_per_run=300)
    sizes: list[int] = []
    while plan := pipeline.run(f"run-{len(sizes)}"):
        sizes.append(plan.size)
    assert sizes == [300, 300, 300, 100]
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_a_dry_run_abandons_nothing() -> None:
    pipeline = pipeline_with_open_plan()
    before = pipeline.ledger.event_number
    plan = pipeline.abandon.abandon(1, "ops", "too large", dry_run=True)
    assert plan == pipeline.ledger.plans[1].plan
    assert (pipeline.ledger.event_number, pipeline.table.commits) == (before, [])
    pipeline.land(plan)
    with pytest.raises(NothingToDo, match="has landed"):
        pipeline.abandon.abandon(1, "ops", "too large", dry_run=True)
    assert pipeline.ledger.event_number == before
    assert pipeline.ingest.execute(1).landing.records == 10


@pytest.mark.parametrize("recreated", [False, True])
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("discard", [False, True])
def test_a_dry_run_raises_the_errors_of_abandon(
    recreated: bool, recorded: bool, discard: bool
) -> None:
    pipeline = pipeline_with_open_plan()
    plan = pipeline.ledger.plans[1].plan
    pipeline.land(plan)
    if recorded:
        pipeline.ingest.execute(1)
    if recreated:
        pipeline.kafka.create("events", 2, "id-2")
    outcomes: list[type[TidemarkError] | None] = []
    for dry_run in (True, False):
        try:
            pipeline.abandon.abandon(1, "ops", "why", discard=discard, dry_run=dry_run)
        except TidemarkError as refused:
            outcomes.append(type(refused))
        else:
            outcomes.append(None)
    in_doubt = None if discard else RowsInDoubt
    assert outcomes == [in_doubt if recreated and not recorded else NothingToDo] * 2


def test_i4_a_zombie_driver_cannot_land_an_abandoned_plan() -> None:
    pipeline = pipeline_with_open_plan()

    def abandon_concurrently(plan: Plan) -> None:
        pipeline.table.before_commit = lambda _plan: None
        pipeline.abandon.abandon(plan.sequence, "ops", "driver hangs")

    pipeline.table.before_commit = abandon_concurrently
    for _ in range(2):
        with pytest.raises(PlanCancelled):
            pipeline.ingest.execute(1)
    pipeline.run("run-2")
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_a_landed_plan_cannot_be_abandoned() -> None:
    """The refusal records a landing that was not recorded yet."""
    pipeline = pipeline_with_open_plan()
    plan = pipeline.ledger.plans[1].plan
    pipeline.table.land(plan)
    for _ in range(2):
        with pytest.raises(NothingToDo, match="has landed"):
            pipeline.abandon.abandon(1, "ops", "looked stuck")
    assert pipeline.committed()[0] == 10


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("discard", [False, True])
def test_a_plan_that_is_being_undone_or_was_undone_cannot_be_abandoned(
    dry_run: bool, discard: bool
) -> None:
    pipeline = pipeline_with_open_plan()
    pipeline.ingest.execute(1)

    def abandon() -> None:
        pipeline.abandon.abandon(1, "ops", "why", discard=discard, dry_run=dry_run)

    def abandon_concurrently() -> None:
        with pytest.raises(UndoUnfinished):
            abandon()

    around_removal(pipeline, before=abandon_concurrently)
    assert pipeline.undo.undo(1, "ops", "a wrong deploy").rows == 10
    with pytest.raises(PlanCancelled, match="was undone: a wrong deploy"):
        abandon()


def test_abandoning_a_plan_twice_records_one_event() -> None:
    pipeline = pipeline_with_open_plan()
    for _ in range(2):
        pipeline.abandon.abandon(1, "ops", "again")
    events = [row["event"] for row in pipeline.control.rows]
    assert events.count("abandoned") == 1


def test_abandon_completes_an_interrupted_abandon() -> None:
    """The first process was killed after the fence and before the record."""
    pipeline = pipeline_with_open_plan()
    pipeline.table.fence(pipeline.ledger.plans[1].plan, UNCOMPARED)
    pipeline.abandon.abandon(1, "ops", "second try")
    assert pipeline.ledger.open_plans() == []


def test_i3_abandon_fences_nothing_in_an_older_copy(tmp_path: Path) -> None:
    """The fence would hide that the copy lacks plan 2."""
    lake = landed_lake(tmp_path, plans=1)
    copy = shutil.copytree(lake.uri, tmp_path / "copy")
    lake.run(3)
    hung = lake.plan(2)
    table = PortWithStep(lake.table, "fence", before=lambda: put_back(copy, lake.uri))
    with pytest.raises(TableReplaced):
        with_ports(lake.abandon, table=table).abandon(hung.sequence, "ops", "hung")
    check_older_copy_is_repaired(lake)


def test_the_requester_of_an_abandoned_plan_gets_a_new_plan() -> None:
    pipeline = pipeline_with_open_plan()
    pipeline.abandon.abandon(1, "ops", "too large")
    planning = pipeline.planner.plan("run-1")
    assert planning.outcome is PlanOutcome.NEW
    assert planning.plan is not None
    assert planning.plan.sequence == 2


def test_an_abandoned_backfill_allows_the_next_backfill() -> None:
    """Kafka deleted offsets of the open backfill, so it could never land."""
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST))
    pipeline.produce(0, 10)
    pipeline.planner.backfill(wanted((0, 0, 5)), RunOrigin("first"))
    pipeline.kafka.delete_records("events", 0, before=3)
    pipeline.abandon.abandon(1, "ops", "retention was faster")
    plan = pipeline.planner.backfill(wanted((0, 3, 8)), RunOrigin("second")).plan
    assert plan is not None
    pipeline.ingest.execute(plan.sequence)
    assert pipeline.landed_identities() == [("id-1", 0, offset) for offset in range(3, 8)]


def test_i1_discard_removes_rows_of_a_topic_that_was_recreated_during_the_read() -> None:
    pipeline = pipeline_with_open_plan()

    def recreate(_plan: Plan) -> None:
        pipeline.kafka.create("events", 2, "id-2")
        pipeline.produce(0, 20)

    pipeline.table.after_commit = recreate
    with pytest.raises(TopicRecreated):
        pipeline.ingest.execute(1)
    with pytest.raises(RowsInDoubt) as refused:
        pipeline.abandon.abandon(1, "ops", "topic was recreated")
    assert refused.value.rows == 10
    with pytest.raises(PlanStillOpen):
        pipeline.decisions.accept_recreation("ops", "recreated")
    pipeline.abandon.abandon(1, "ops", "topic was recreated", discard=True)
    assert pipeline.table.rows == []
    pipeline.table.after_commit = lambda _: None
    pipeline.decisions.accept_recreation("ops", "recreated")
    pipeline.run("run-2")
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_discard_never_removes_rows_of_the_planned_topic() -> None:
    """Their landing is recorded instead."""
    pipeline = pipeline_with_open_plan()
    plan = pipeline.ledger.plans[1].plan
    pipeline.table.land(plan)
    with pytest.raises(NothingToDo, match="has landed"):
        pipeline.abandon.abandon(1, "ops", "why", discard=True)
    assert len(pipeline.table.rows) == 10
    assert pipeline.ledger.plans[1].held_now is not None
