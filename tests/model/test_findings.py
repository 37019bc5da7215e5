"""Tests of bugs that the searches found, each as a short history."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass

import pytest

from tests.model.actors import Actor, Call, Program
from tests.model.programs import abandon, run
from tests.model.world import make_world
from tests.support.memory import MemoryTable
from tests.support.plans import MemoryPipeline, make_pipeline_with_concurrent_run
from tidemark.bronze.repair.errors import NothingToDo
from tidemark.core.accounting import Landing
from tidemark.core.errors import LedgerBehindTable, TableBehindLedger, TidemarkError
from tidemark.core.plan import Plan


def test_i1_a_plan_committed_just_before_its_fence_is_not_abandoned() -> None:
    """The plan must not be recorded as abandoned."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 2)
    pipeline.planner.plan("run-1")

    def land_first(plan: Plan) -> None:
        pipeline.table.before_commit = lambda _plan: None
        pipeline.table.land(plan)

    pipeline.table.before_commit = land_first
    with contextlib.suppress(NothingToDo):
        pipeline.abandon.abandon(1, "ops", "it hangs")
    pipeline.run("run-2")
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_i7_an_overtaken_run_raises_no_ledger_behind_table() -> None:
    pipeline = make_pipeline_with_concurrent_run()
    pipeline.run("late")
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_i7_a_restore_during_an_execution_is_detected() -> None:
    """It removed the rows of the first plan while the second was read."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 2)
    pipeline.run("run-1")
    pipeline.produce(0, 2)
    pipeline.planner.plan("run-2")

    def restore_first(_: Plan) -> None:
        pipeline.table.before_commit = lambda _plan: None
        pipeline.table.restore(0)

    pipeline.table.before_commit = restore_first
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        pipeline.ingest.execute(2)
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        pipeline.planner.plan("run-3")


def test_a_truncated_control_table_can_be_rebuilt_after_the_topic_was_recreated() -> None:
    """Every command raised LedgerBehindTable, and the rebuild raised TopicRecreated."""
    pipeline = MemoryPipeline(partitions=1)
    pipeline.produce(0, 2)
    pipeline.run("run-1")
    pipeline.kafka.create("events", 1, "id-2")
    pipeline.control.restore("events", pipeline.ledger.event_number - 1)
    pipeline.repair.rebuild("ops", "the control table was restored")
    pipeline.decisions.accept_recreation("ops", "recreated")
    pipeline.produce(0, 1)
    pipeline.run("run-2")
    assert pipeline.landed_identities() == [("id-1", 0, 0), ("id-1", 0, 1), ("id-2", 0, 0)]


@pytest.mark.parametrize("writer", [run("run-2"), abandon(2)], ids=["run", "abandon"])
def test_i7_events_lost_before_an_append_are_detected(writer: Program) -> None:
    world = make_world((2,))
    world.pipeline.run("run-1")
    world.kafka.produce("events", 0, 1)
    world.pipeline.planner.plan("run-2")
    actor = Actor(name="writer", program=writer, spec=world.spec)
    while isinstance(actor.at, Call) and actor.at.method != "append":
        actor.step(world)
    world.control.restore("events", 0)
    actor.step(world)
    with pytest.raises(LedgerBehindTable, match="has no rows for"):
        world.pipeline.planner.plan("run-3")


@dataclass
class _TableWithConcurrentAction(MemoryTable):
    """Table that calls `action` once, just before the next lookup of a plan."""

    action: Callable[[], None] | None = None

    def find_landing(self, plan: Plan) -> Landing | None:
        action, self.action = self.action, None
        if action is not None:
            action()
        return super().find_landing(plan)


def test_i1_rows_of_a_recorded_landing_are_never_discarded() -> None:
    """The topic was recreated after a slow driver had recorded its landing."""
    pipeline = MemoryPipeline(partitions=1)
    table = _TableWithConcurrentAction(kafka=pipeline.kafka)
    pipeline.table = table
    pipeline.produce(0, 2)
    pipeline.planner.plan("run-1")

    def record_and_recreate() -> None:
        pipeline.ingest.execute(1)
        pipeline.kafka.create("events", 1, "id-2")

    table.land(pipeline.ledger.plans[1].plan)
    table.action = record_and_recreate
    with contextlib.suppress(TidemarkError):
        pipeline.abandon.abandon(1, "ops", "it hangs", discard=True)
    assert pipeline.landed_identities() == [("id-1", 0, 0), ("id-1", 0, 1)]


@dataclass
class _TableWithActionBeforeFence(MemoryTable):
    """Table that calls `action` just before it fences chains."""

    action: Callable[[], object] = lambda: None

    def fence_chains(self, pipeline: str, app_ids: Collection[str], requested_by: str) -> int:
        self.action()
        return super().fence_chains(pipeline, app_ids, requested_by)


def test_i7_events_lost_during_a_repair_are_detected() -> None:
    """The new epoch accounts only for the missing events that the repair has read."""
    pipeline = MemoryPipeline(partitions=1)
    table = _TableWithActionBeforeFence(kafka=pipeline.kafka)
    pipeline.table = table
    pipeline.produce(0, 2)
    pipeline.run("run-1")
    pipeline.produce(0, 2)
    pipeline.run("run-2")
    table.restore(1)
    table.action = lambda: pipeline.control.restore("events", 0)
    pipeline.repair.rebuild("ops", "restored")
    table.action = lambda: None
    with pytest.raises(LedgerBehindTable, match="has no rows for"):
        pipeline.run("run-3")
    pipeline.repair.rebuild("ops", "the control table was restored")
    pipeline.run("run-4")
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_i7_a_rebuild_replaces_recorded_gaps_by_restored_rows() -> None:
    """Compaction removed the record while its row was not in the table."""
    pipeline = MemoryPipeline(partitions=1)
    pipeline.produce(0, 1)
    pipeline.run("run-1")
    pipeline.table.restore(0)
    pipeline.repair.rewind("ops", "restored")
    del pipeline.kafka.topics["events"][0].records[0]
    pipeline.run("run-2")
    pipeline.table.restore(1)
    found = pipeline.repair.rebuild("ops", "restored back")
    assert [plan.sequence for plan in found.to_record] == [1]
    assert [plan.sequence for plan in found.gone] == [2]
    assert pipeline.landed_identities() == [("id-1", 0, 0)]
    assert pipeline.committed() == {0: 1}
