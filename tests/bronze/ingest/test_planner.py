"""Tests of the planner on in-memory adapters: start policies, requesters, recovery, races."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.memory import MemoryKafka
from tests.support.plans import (
    MemoryPipeline,
    land_and_delete_before_watermarks,
    make_spec,
    wanted,
)
from tests.support.services import NOW
from tidemark.bronze.backfill.selection import select
from tidemark.bronze.ingest.errors import LogTruncated, NoStartOffset, PlanStillOpen
from tidemark.bronze.ingest.planner import Planner, PlanOutcome, PlanResult
from tidemark.core.errors import LostRange, TopicRecreated
from tidemark.core.ledger import Ledger
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan
from tidemark.core.watermarks import IsolationLevel, Position
from tidemark.delta.errors import ControlConflict
from tidemark.kafka.errors import KafkaUnavailable, TopicMissing
from tidemark.spec.model import AlarmRules, StartPolicy
from tidemark.spec.ref import PipelineRef


def ranges(pipeline: MemoryPipeline, sequence: int) -> list[tuple[int, int, int]]:
    """Return (partition, start, end) for each range of a recorded plan."""
    plan = pipeline.ledger.plans[sequence].plan
    return [(r.partition, r.start, r.end) for r in plan.ranges]


def test_s9_earliest_starts_at_the_low_watermark() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 10)
    pipeline.kafka.delete_records("events", 0, before=4)
    assert pipeline.planner.plan("a").outcome is PlanOutcome.NEW
    assert ranges(pipeline, 1) == [(0, 4, 10)]


def test_s9_latest_plans_only_records_after_the_first_plan() -> None:
    """The first run records the offsets, so later records are not skipped."""
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST))
    pipeline.produce(0, 10)
    assert pipeline.planner.plan("a").outcome is PlanOutcome.NOTHING
    pipeline.produce(0, 5)
    pipeline.planner.plan("b")
    assert ranges(pipeline, 1) == [(0, 10, 15)]


def test_s9_a_timestamp_starts_at_the_first_record_at_or_after_it() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    ms = int(moment.timestamp() * 1000)
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.TIMESTAMP, start_at=moment))
    pipeline.produce(0, 3, timestamp_ms=ms - 1)
    pipeline.produce(0, 4, timestamp_ms=ms)
    pipeline.produce(1, 2, timestamp_ms=ms - 1)
    pipeline.planner.plan("a")
    assert ranges(pipeline, 1) == [(0, 3, 7)]
    assert pipeline.committed() == {0: 3, 1: 2}


def test_s9_none_raises_for_a_pipeline_without_start_offsets() -> None:
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.NONE))
    with pytest.raises(NoStartOffset):
        pipeline.planner.plan("a")
    assert pipeline.control.rows == []


def test_s8_a_plan_ends_at_the_last_stable_offset() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 10)
    pipeline.kafka.topics["events"][0].stable = 6
    pipeline.run("a")
    assert ranges(pipeline, 1) == [(0, 0, 6)]
    pipeline.kafka.topics["events"][0].stable = None
    pipeline.run("b")
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_s8_read_uncommitted_plans_to_the_high_watermark() -> None:
    spec = make_spec(isolation_level=IsolationLevel.READ_UNCOMMITTED)
    pipeline = MemoryPipeline(spec=spec)
    pipeline.produce(0, 10)
    pipeline.kafka.topics["events"][0].stable = 6
    pipeline.planner.plan("a")
    assert ranges(pipeline, 1) == [(0, 0, 10)]


def test_no_plan_is_made_without_new_records() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 3)
    pipeline.run("a")
    before = list(pipeline.control.rows)
    assert pipeline.planner.plan("b").outcome is PlanOutcome.NOTHING
    assert pipeline.control.rows == before


def test_a_repeated_request_returns_the_same_plan() -> None:
    """I4. The log has grown, or the plan has landed."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 3)
    first = pipeline.planner.plan("run-1")
    pipeline.produce(0, 3)
    again = pipeline.planner.plan("run-1")
    assert (again.outcome, again.plan) == (PlanOutcome.KEPT, first.plan)
    pipeline.ingest.execute(1)
    landed = pipeline.planner.plan("run-1")
    assert (landed.outcome, landed.plan) == (PlanOutcome.KEPT, first.plan)


def test_the_next_run_adopts_an_open_plan_unchanged() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 3)
    first = pipeline.planner.plan("run-1").plan
    pipeline.produce(0, 3)
    adopted = pipeline.planner.plan("run-2")
    assert (adopted.outcome, adopted.plan) == (PlanOutcome.ADOPTED, first)
    pipeline.ingest.execute(1)
    assert pipeline.planner.plan("run-2").outcome is PlanOutcome.KEPT


def test_i5_a_plan_that_landed_unrecorded_is_found_and_recorded_by_the_planner() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 3)
    plan = pipeline.plan("run-1")
    pipeline.table.land(plan)
    pipeline.produce(0, 2)
    assert pipeline.planner.plan("run-2").outcome is PlanOutcome.NEW
    assert pipeline.committed() == {0: 3, 1: 0}
    assert ranges(pipeline, 2) == [(0, 3, 5)]


def test_i2_two_planners_that_find_a_landing_do_not_make_two_plans() -> None:
    """The rival plans between this planner's `landed` event and its plan.

    With two open plans of one chain, the older one could not land: once the younger has landed,
    Delta refuses the older transaction.
    """
    pipeline = MemoryPipeline()
    pipeline.produce(0, 3)
    plan = pipeline.plan("run-1")
    pipeline.table.land(plan)
    pipeline.produce(0, 2)
    rival = MemoryPipeline(kafka=pipeline.kafka, control=pipeline.control, table=pipeline.table)
    appends = []

    def plan_after_the_record(ledger: Ledger) -> None:
        appends.append(ledger.event_number)
        if len(appends) == 2:  # after `landed`, before the plan
            pipeline.control.before_append = lambda _ledger: None
            rival.planner.plan("rival")

    pipeline.control.before_append = plan_after_the_record
    mine = pipeline.planner.plan("mine")
    assert mine.outcome is PlanOutcome.ADOPTED
    assert len(pipeline.ledger.open_plans()) == 1


def test_limited_runs_land_every_record_once() -> None:
    pipeline = MemoryPipeline(spec=make_spec(records_per_run=100))
    pipeline.produce(0, 250)
    pipeline.produce(1, 30)
    sizes: list[int] = []
    while plan := pipeline.run(f"run-{len(sizes)}"):
        sizes.append(plan.size)
    assert sizes == [100, 100, 80]
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_s10_a_new_partition_is_read_from_its_start() -> None:
    """The start policy `latest` does not apply to it."""
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST), partitions=1)
    pipeline.run("a")
    pipeline.kafka.topics["events"][1] = type(pipeline.kafka.topics["events"][0])()
    pipeline.produce(1, 4)
    pipeline.run("b")
    assert pipeline.landed_identities() == [("id-1", 1, offset) for offset in range(4)]


def test_i7_s7_a_lost_range_stops_the_pipeline_and_writes_nothing() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    pipeline.run("a")
    pipeline.produce(0, 5)
    pipeline.kafka.delete_records("events", 0, before=8)
    before = list(pipeline.control.rows)
    with pytest.raises(LostRange):
        pipeline.planner.plan("b")
    assert pipeline.control.rows == before


@pytest.mark.parametrize("plans", [Planner.preview, lambda planner: planner.plan("b")])
def test_offsets_that_another_run_lands_during_planning_are_not_lost(
    plans: Callable[[Planner], PlanResult],
) -> None:
    """The ledger was read before the watermarks. Its event number shows that it is older."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    pipeline.run("a")
    pipeline.produce(0, 3)
    land_and_delete_before_watermarks(pipeline)
    assert plans(pipeline.planner).outcome is PlanOutcome.NOTHING
    assert pipeline.committed() == {0: 8, 1: 0}


@pytest.mark.parametrize("plans", [Planner.preview, lambda planner: planner.plan("b")])
def test_watermarks_are_not_older_than_the_ledger(
    plans: Callable[[Planner], PlanResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log would seem to end before landed offsets, and no event number shows the reason."""
    pipeline = MemoryPipeline()
    pipeline.run("a")
    read = pipeline.control.summary

    def after_other_run(name: str) -> Ledger:
        monkeypatch.setattr(pipeline.control, "summary", read)
        pipeline.produce(0, 3)
        pipeline.run("other")
        return read(name)

    monkeypatch.setattr(pipeline.control, "summary", after_other_run)
    assert plans(pipeline.planner).outcome is PlanOutcome.NOTHING


def test_i7_a_truncated_log_that_has_grown_again_stops_the_pipeline() -> None:
    """Only the history of leader epochs shows it."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 10)
    pipeline.run("a")
    pipeline.kafka.elect("events", 0, end=6)
    pipeline.produce(0, 20)
    before = list(pipeline.control.rows)
    with pytest.raises(LogTruncated) as caught:
        pipeline.planner.plan("b")
    assert (caught.value.partition, caught.value.offset, caught.value.leader_epoch) == (0, 10, 0)
    with pytest.raises(LogTruncated):
        pipeline.planner.preview()
    assert pipeline.control.rows == before


def test_i7_a_backfill_at_higher_offsets_does_not_hide_a_truncation() -> None:
    """The live plan read before the truncation and committed after the backfill."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 10)
    live = pipeline.plan("a")

    def truncate_and_backfill(_: Plan) -> None:
        pipeline.table.before_commit = lambda _plan: None
        pipeline.kafka.elect("events", 0, end=6)
        pipeline.produce(0, 30)
        request = wanted((0, 20, 30))
        plan = pipeline.planner.backfill(request, RunOrigin("ops")).plan
        assert plan is not None
        pipeline.ingest.execute(plan.sequence)

    pipeline.table.before_commit = truncate_and_backfill
    pipeline.ingest.execute(live.sequence)
    with pytest.raises(LogTruncated) as caught:
        pipeline.planner.plan("b")
    assert (caught.value.offset, caught.value.leader_epoch) == (10, 0)


def test_i7_a_truncation_before_the_first_landing_is_detected() -> None:
    """The leader epoch of the start offset is recorded."""
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST))
    pipeline.produce(0, 10)
    pipeline.planner.plan("begin")
    pipeline.kafka.elect("events", 0, end=6)
    pipeline.produce(0, 20)
    with pytest.raises(LogTruncated) as caught:
        pipeline.planner.plan("a")
    assert (caught.value.offset, caught.value.leader_epoch) == (10, 0)


class KafkaRecreatingTopic(MemoryKafka):
    """Kafka that recreates the topic before each check for a truncation."""

    def truncated_partition(self, topic: str, positions: Mapping[int, Position]) -> int | None:
        self.create(topic, 2, "id-2")
        return super().truncated_partition(topic, positions)


def test_i1_a_recreated_topic_is_not_reported_as_a_truncated_log() -> None:
    """The fix differs."""
    pipeline = MemoryPipeline(kafka=KafkaRecreatingTopic())
    pipeline.produce(0, 10)
    pipeline.run("a")
    pipeline.kafka.elect("events", 0)
    pipeline.produce(0, 10)
    with pytest.raises(TopicRecreated):
        pipeline.planner.plan("b")


def test_a_leader_change_without_truncation_is_accepted() -> None:
    """S17. The next plan has the new leader epoch."""
    pipeline = MemoryPipeline()
    for epoch in range(3):
        pipeline.produce(0, 10)
        plan = pipeline.planner.plan(f"run-{epoch}").plan
        assert plan is not None
        assert [(r.partition, r.leader_epoch) for r in plan.ranges] == [(0, epoch)]
        pipeline.ingest.execute(plan.sequence)
        pipeline.kafka.elect("events", 0)
    assert pipeline.committed() == {0: 30, 1: 0}


def test_topic_missing_error_names_the_topic() -> None:
    pipeline = MemoryPipeline()
    del pipeline.kafka.topic_ids["events"]
    with pytest.raises(TopicMissing, match="events"):
        pipeline.planner.plan("a")


def test_s2_the_loser_of_two_concurrent_planners_adopts_the_other_plan() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 3)
    rival = MemoryPipeline(kafka=pipeline.kafka, control=pipeline.control, table=pipeline.table)

    def rival_first(_: Ledger) -> None:
        pipeline.control.before_append = lambda _ledger: None
        rival.planner.plan("rival")

    pipeline.control.before_append = rival_first
    mine = pipeline.planner.plan("mine")
    assert mine.outcome is PlanOutcome.ADOPTED
    assert len(pipeline.ledger.plans) == 1


def test_repeated_conflicts_raise_after_the_last_attempt() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 3)

    def refuse(ledger: Ledger) -> None:
        raise ControlConflict(pipeline="events", event_number=ledger.event_number + 1)

    pipeline.control.before_append = refuse
    with pytest.raises(ControlConflict):
        pipeline.planner.plan("a")
    assert pipeline.control.rows == []


def test_s13_two_pipelines_over_one_topic_have_their_own_progress() -> None:
    first = MemoryPipeline()
    first.produce(0, 4)
    first.run("a")
    second = MemoryPipeline(
        spec=make_spec(ref=PipelineRef.parse("strategy")), kafka=first.kafka, control=first.control
    )
    assert second.planner.plan("b").outcome is PlanOutcome.NEW
    assert first.committed() == {0: 4, 1: 0}
    assert second.committed() == {0: 0, 1: 0}
    first.produce(0, 3)
    first.run("c")
    second.run("b")
    assert first.committed() == {0: 7, 1: 0}
    assert second.committed() == {0: 4, 1: 0}
    second.run("d")
    assert second.committed() == first.committed()
    assert second.landed_identities() == first.landed_identities() == first.visible_identities()


def test_bytes_per_run_limits_a_plan_by_the_size_of_landed_records() -> None:
    """A table without records sets no limit; with two limits the lower one counts."""
    pipeline = MemoryPipeline(spec=make_spec(bytes_per_run=6))
    pipeline.produce(0, 10)
    pipeline.run("first")
    assert pipeline.committed() == {0: 10, 1: 0}
    pipeline.produce(0, 10)
    pipeline.run("second")
    assert pipeline.committed() == {0: 16, 1: 0}
    pipeline.spec = make_spec(bytes_per_run=6, records_per_run=3)
    pipeline.run("third")
    assert pipeline.committed() == {0: 19, 1: 0}


def test_time_per_run_limits_a_plan_by_the_rate_of_earlier_runs() -> None:
    """The first plan is limited to the records of one task."""
    pipeline = MemoryPipeline(
        spec=make_spec(records_per_task=3, time_per_run=timedelta(minutes=10))
    )
    pipeline.produce(0, 40)
    pipeline.run("first")
    assert pipeline.committed() == {0: 3, 1: 0}
    for row in pipeline.control.rows:
        row["recorded_at"] -= timedelta(minutes=5) * (row["event"] == "planned")
    pipeline.run("second")
    assert pipeline.committed() == {0: 9, 1: 0}


def test_expiring_offsets_are_planned_first() -> None:
    """The other partitions get their share of the rest."""
    rules = AlarmRules(runway=timedelta(hours=2))
    pipeline = MemoryPipeline(spec=make_spec(records_per_run=6, alarms=rules))
    pipeline.kafka.retention = timedelta(hours=24)

    def produce(partition: int, count: int, hours: int) -> None:
        stamp = (NOW - timedelta(hours=hours)).timestamp() * 1000
        pipeline.kafka.produce("events", partition, count, int(stamp))

    produce(0, 20, hours=1)
    produce(1, 4, hours=23)
    produce(1, 4, hours=1)
    pipeline.run("first")
    assert pipeline.committed() == {0: 1, 1: 5}
    pipeline.run("second")
    assert pipeline.committed() == {0: 4, 1: 8}
    # Old records after younger ones do not expire earlier.
    produce(1, 9, hours=23)
    pipeline.run("third")
    assert pipeline.committed() == {0: 7, 1: 11}
    while pipeline.run(f"run-{pipeline.ledger.next_sequence}"):
        pass
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_a_plan_of_expiring_offsets_counts_the_offsets_it_leaves() -> None:
    """Catching up starts another run for them."""
    rules = AlarmRules(runway=timedelta(hours=2))
    pipeline = MemoryPipeline(spec=make_spec(records_per_run=10, catch_up=True, alarms=rules))
    pipeline.kafka.retention = timedelta(hours=24)
    old, new = (int((NOW - timedelta(hours=hours)).timestamp() * 1000) for hours in (23, 1))
    pipeline.kafka.produce("events", 0, 10, old)
    pipeline.kafka.produce("events", 1, 1_000, new)
    plan = pipeline.run("first")
    assert plan is not None
    assert (plan.size, plan.left) == (11, 999)
    backfill = pipeline.planner.backfill(wanted((1, 500, 600)), RunOrigin("by date")).plan
    assert backfill is not None
    assert backfill.left == 0
    assert pipeline.status().lag == 999


@pytest.mark.parametrize(("limit", "left"), [(None, 0), (4, 6)])
def test_offsets_that_landed_after_an_undone_plan_are_not_left_over(
    limit: int | None, left: int
) -> None:
    """Otherwise a run would ask for another run, which has nothing to do."""
    pipeline = MemoryPipeline()
    for number in range(3):
        pipeline.produce(0, 10)
        pipeline.run(f"run {number}")
    pipeline.undo.undo(2, "ops", "wrong")
    pipeline.spec = make_spec(records_per_run=limit)
    plan = pipeline.plan("again")
    assert (plan.ranges[0].start, plan.size, plan.left) == (10, 10 - left, left)
    assert pipeline.ledger.plans[plan.sequence].plan == plan


def test_a_plan_is_made_if_the_retention_time_is_unknown() -> None:
    rules = AlarmRules(runway=timedelta(hours=2))
    pipeline = MemoryPipeline(
        spec=make_spec(records_per_run=6, alarms=rules),
        kafka=KafkaWithoutSettings(retention=timedelta(1)),
    )
    pipeline.produce(0, 20)
    pipeline.run("first")
    assert pipeline.committed() == {0: 6, 1: 0}


class KafkaWithoutSettings(MemoryKafka):
    """Kafka that does not answer requests for the retention time."""

    def retention_time(self, topic: str) -> timedelta | None:
        raise KafkaUnavailable(operation=f"describe_configs of {topic}", reason="no answer")


def test_i2_i3_a_backfill_lands_only_missing_offsets_and_moves_no_committed_offset() -> None:
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST))
    pipeline.produce(0, 10)
    pipeline.planner.plan("a")
    pipeline.produce(0, 5)
    pipeline.run("b")
    request = wanted((0, 4, 12))
    plan = pipeline.planner.backfill(request, RunOrigin("fill")).plan
    assert plan is not None
    assert ranges(pipeline, plan.sequence) == [(0, 4, 10)]
    pipeline.ingest.execute(plan.sequence)
    assert pipeline.committed() == {0: 15, 1: 0}
    assert pipeline.landed_identities() == [("id-1", 0, offset) for offset in range(4, 15)]
    assert pipeline.planner.backfill(request, RunOrigin("again")).outcome is PlanOutcome.NOTHING


def test_a_second_backfill_waits_for_the_first() -> None:
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST))
    pipeline.produce(0, 10)
    request = wanted((0, 0, 5))
    open_plan = pipeline.planner.backfill(request, RunOrigin("first")).plan
    assert pipeline.planner.backfill(request, RunOrigin("first")).plan == open_plan
    with pytest.raises(PlanStillOpen, match="is still open"):
        pipeline.planner.backfill(wanted((0, 5, 9)), RunOrigin("second"))


def test_i2_a_live_plan_excludes_the_range_of_an_open_backfill() -> None:
    pipeline = MemoryPipeline()
    pipeline.planner.plan("a")
    pipeline.produce(0, 10)
    pipeline.planner.backfill(wanted((0, 4, 6)), RunOrigin("fill"))
    pipeline.planner.plan("b")
    assert ranges(pipeline, 2) == [(0, 0, 4), (0, 6, 10)]


def test_a_preview_raises_the_error_of_the_plan() -> None:
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST))
    pipeline.produce(0, 10)
    pipeline.planner.backfill(wanted((0, 0, 5)), RunOrigin("first"))
    with pytest.raises(PlanStillOpen, match="is still open"):
        pipeline.backfills.preview(select(offsets=["0:5-9"]), None, readable_only=False)
    pipeline.produce(0, 1)
    pipeline.planner.plan("run")
    assert pipeline.planner.preview().outcome is PlanOutcome.ADOPTED


@pytest.mark.parametrize("more", [0, 4])
def test_a_preview_includes_a_landing_that_is_not_recorded(more: int) -> None:
    """The run records the landing first and then does not adopt the plan."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 3)
    plan = pipeline.plan("dead")
    pipeline.land(plan)
    pipeline.produce(0, more)
    before = pipeline.ledger.event_number
    preview = pipeline.planner.preview()
    assert pipeline.ledger.event_number == before
    planning = pipeline.planner.plan("next")
    drafted = PlanOutcome.DRAFT if more else PlanOutcome.NOTHING
    assert (preview.outcome, planning.outcome is PlanOutcome.NEW) == (drafted, bool(more))
    if preview.plan and planning.plan:
        assert preview.plan.ranges == planning.plan.ranges


def test_a_preview_shows_the_next_plan_and_writes_nothing() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 3)
    preview = pipeline.planner.preview()
    assert preview.outcome is PlanOutcome.DRAFT
    assert pipeline.control.rows == []
    recorded = pipeline.planner.plan("a").plan
    assert preview.plan is not None
    assert recorded is not None
    assert preview.plan.fingerprint == recorded.fingerprint


def test_s24_the_work_of_a_planner_grows_in_proportion_to_the_partitions() -> None:
    """Eight times the partitions take about 8 times the CPU; a quadratic step takes 64 times."""

    def cpu_seconds(partitions: int) -> float:
        pipeline = MemoryPipeline(partitions=partitions)
        for partition in range(partitions):
            pipeline.produce(partition, 1)
        before = time.process_time()
        assert pipeline.planner.plan("a").outcome is PlanOutcome.NEW
        return time.process_time() - before

    few, many = (min(cpu_seconds(number) for _ in range(3)) for number in (500, 4_000))
    assert many < 24 * few
