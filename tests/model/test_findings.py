"""What the searches found in the services, each as a short history that shows it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass

import pytest

from tests.model.actors import Actor, Call, Program
from tests.model.programs import abandon, run
from tests.model.world import make_world
from tests.support.memory import MemoryTable
from tests.support.plans import MemoryPipeline, make_overtaken
from tidemark.core.accounting import Landing
from tidemark.core.errors import ControlTruncated, TableRestored, TidemarkError
from tidemark.core.plan import Plan
from tidemark.repair.errors import PlanLanded


def test_i1_a_driver_that_commits_before_the_fence_has_landed_its_plan() -> None:
    """Between the look and the fence: the plan is landed and must not be recorded as given up."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 2)
    pipeline.planner.plan("run-1")

    def land_first(plan: Plan) -> None:
        pipeline.table.before_commit = lambda _plan: None
        pipeline.table.land(plan)

    pipeline.table.before_commit = land_first
    with contextlib.suppress(PlanLanded):
        pipeline.abandon.abandon(1, "ops", "it hangs")
    pipeline.run("run-2")
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_i7_a_run_that_was_overtaken_is_no_lost_control_table() -> None:
    """LedgerBehindTable is for a control table that lost events; nobody lost any here."""
    pipeline = make_overtaken()
    pipeline.run("late")
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_i7_a_restore_under_a_driver_is_noticed() -> None:
    """It took the first plan's rows out while the second was read: some step must say so."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 2)
    pipeline.run("run-1")
    pipeline.produce(0, 2)
    pipeline.planner.plan("run-2")

    def restore_first(_: Plan) -> None:
        pipeline.table.before_commit = lambda _plan: None
        pipeline.table.restore(0)

    pipeline.table.before_commit = restore_first
    with pytest.raises(TableRestored):
        pipeline.ingest.execute(2)
    with pytest.raises(TableRestored):
        pipeline.planner.plan("run-3")


def test_a_truncated_control_table_can_be_rebuilt_although_the_topic_was_made_again() -> None:
    """Every command answers ControlTruncated, and the only one that mends it TopicRecreated."""
    pipeline = MemoryPipeline(partitions=1)
    pipeline.produce(0, 2)
    pipeline.run("run-1")
    pipeline.kafka.create("events", 1, "id-2")
    pipeline.control.restore("events", pipeline.ledger.event_number - 1)
    pipeline.repair.rebuild("ops", "the control table was restored")
    pipeline.decisions.new_incarnation("ops", "made again")
    pipeline.produce(0, 1)
    pipeline.run("run-2")
    assert pipeline.landed_identities() == [("id-1", 0, 0), ("id-1", 0, 1), ("id-2", 0, 0)]


@pytest.mark.parametrize("writer", [run("run-2"), abandon(2)], ids=["run", "abandon"])
def test_i7_events_missing_in_the_middle_of_the_control_table_are_noticed(writer: Program) -> None:
    """What was recorded in them must not be forgotten, and no error be without a name."""
    world = make_world((2,))
    world.pipeline.run("run-1")
    world.kafka.produce("events", 0, 1)
    world.pipeline.planner.plan("run-2")
    actor = Actor(name="writer", program=writer, spec=world.spec)
    while isinstance(actor.at, Call) and actor.at.method != "append":
        actor.step(world)
    world.control.restore("events", 0)
    actor.step(world)
    with pytest.raises(ControlTruncated):
        world.pipeline.planner.plan("run-3")


@dataclass
class _Meanwhile(MemoryTable):
    """Something happens just before the next look for a plan."""

    meanwhile: Callable[[], None] | None = None

    def find_landing(self, plan: Plan) -> Landing | None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return super().find_landing(plan)


def test_i1_rows_of_a_recorded_landing_are_never_discarded() -> None:
    """The driver was slow, not dead; then the topic was made again, and these rows are all."""
    pipeline = MemoryPipeline(partitions=1)
    table = _Meanwhile(kafka=pipeline.kafka)
    pipeline.table = table
    pipeline.produce(0, 2)
    pipeline.planner.plan("run-1")

    def record_and_recreate() -> None:
        pipeline.ingest.execute(1)
        pipeline.kafka.create("events", 1, "id-2")

    table.land(pipeline.ledger.plans[1].plan)
    table.meanwhile = record_and_recreate
    with contextlib.suppress(TidemarkError):
        pipeline.abandon.abandon(1, "ops", "it hangs", discard=True)
    assert pipeline.landed_identities() == [("id-1", 0, 0), ("id-1", 0, 1)]


@dataclass
class _BeforeFence(MemoryTable):
    """Something happens just before old chains are fenced off."""

    meanwhile: Callable[[], object] = lambda: None

    def fence_chains(self, pipeline: str, app_ids: Collection[str]) -> int:
        self.meanwhile()
        return super().fence_chains(pipeline, app_ids)


def test_i7_events_that_are_lost_under_a_repair_are_noticed() -> None:
    """The new epoch made up for what it had read, and hid what was lost since."""
    pipeline = MemoryPipeline(partitions=1)
    table = _BeforeFence(kafka=pipeline.kafka)
    pipeline.table = table
    pipeline.produce(0, 2)
    pipeline.run("run-1")
    pipeline.produce(0, 2)
    pipeline.run("run-2")
    table.restore(1)
    table.meanwhile = lambda: pipeline.control.restore("events", 0)
    pipeline.repair.rebuild("ops", "restored")
    table.meanwhile = lambda: None
    with pytest.raises(ControlTruncated):
        pipeline.run("run-3")
    pipeline.repair.rebuild("ops", "the control table was restored")
    pipeline.run("run-4")
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_i7_rows_that_a_restore_brings_back_replace_the_gaps_recorded_since() -> None:
    """The record was compacted away while its row was out of the table; a row says more."""
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
