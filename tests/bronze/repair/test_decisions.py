"""Tests of accepted losses and recreated topics."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.memory import MemoryPartition
from tests.support.plans import MemoryPipeline, make_spec
from tidemark.bronze.ingest.errors import PlanStillOpen
from tidemark.bronze.repair.errors import NothingToDo
from tidemark.core.errors import InvalidSelection, LostRange, TopicChanged, TopicRecreated
from tidemark.core.offsets import Span, SpanSet


@pytest.fixture
def pipeline() -> MemoryPipeline:
    """Return a pipeline with two partitions, each with five landed and five unread records."""
    pipeline = MemoryPipeline()
    for _ in range(2):
        for partition in (0, 1):
            pipeline.produce(partition, 5)
        if not pipeline.ledger.plans:
            pipeline.run("first")
    return pipeline


def test_s7_a_pipeline_continues_after_an_accepted_loss(pipeline: MemoryPipeline) -> None:
    """I3. The control table has the user, the time and the reason."""
    pipeline.kafka.delete_records("events", 0, 7)
    with pytest.raises(LostRange) as refused:
        pipeline.planner.plan("second")
    assert refused.value.lost == ((0, 5, 7),)
    pipeline.decisions.accept_loss((), "ann", "retention was too short")
    (row,) = [row for row in pipeline.control.rows if row["event"] == "loss_accepted"]
    columns = ("partition", "start_offset", "end_offset", "requested_by", "reason")
    assert [row[name] for name in columns] == [0, 5, 7, "ann", "retention was too short"]
    assert row["recorded_at"] is not None
    assert pipeline.committed() == {0: 7, 1: 5}
    plan = pipeline.run("second")
    assert plan is not None
    assert [(r.partition, r.start, r.end) for r in plan.ranges] == [(0, 7, 10), (1, 5, 10)]
    assert pipeline.committed() == {0: 10, 1: 10}


def test_a_loss_is_accepted_for_the_named_partitions_only(pipeline: MemoryPipeline) -> None:
    for partition in (0, 1):
        pipeline.kafka.delete_records("events", partition, 8)
    accepted = pipeline.decisions.accept_loss([1], "ann", "known")
    assert accepted.lost == {1: SpanSet((Span(5, 8),))}
    with pytest.raises(LostRange) as refused:
        pipeline.planner.plan("second")
    assert refused.value.lost == ((0, 5, 8),)


def test_a_dry_run_of_a_decision_writes_nothing(pipeline: MemoryPipeline) -> None:
    pipeline.kafka.delete_records("events", 0, 7)
    before = list(pipeline.control.rows)
    assert pipeline.decisions.accept_loss((), "ann", "why", dry_run=True).committed == {0: 7}
    pipeline.kafka.create("events", 2, "id-2")
    pipeline.decisions.accept_recreation("ann", "why", dry_run=True)
    assert pipeline.control.rows == before


@pytest.mark.parametrize("partitions", [(), (0,), (1, 0)])
def test_i7_accepting_a_loss_of_readable_offsets_is_refused(
    pipeline: MemoryPipeline, partitions: tuple[int, ...]
) -> None:
    if len(partitions) > 1:
        pipeline.kafka.delete_records("events", 0, 7)
    with pytest.raises(NothingToDo):
        pipeline.decisions.accept_loss(partitions, "ann", "why")
    with pytest.raises(InvalidSelection, match="no partition 7"):
        pipeline.decisions.accept_loss([7], "ann", "why")
    assert not any(row["event"] == "loss_accepted" for row in pipeline.control.rows)


def test_a_loss_inside_an_open_plan_is_refused_until_it_is_abandoned(
    pipeline: MemoryPipeline,
) -> None:
    """The driver of the plan may already have read the deleted offsets."""
    plan = pipeline.plan("second")
    pipeline.kafka.delete_records("events", 0, 7)
    with pytest.raises(PlanStillOpen):
        pipeline.decisions.accept_loss((), "ann", "why")
    pipeline.abandon.abandon(plan.sequence, "ann", "cannot land")
    pipeline.decisions.accept_loss((), "ann", "why")
    assert pipeline.run("third") is not None
    assert pipeline.committed() == {0: 10, 1: 10}


def test_s10_a_loss_in_a_new_partition_can_be_accepted(pipeline: MemoryPipeline) -> None:
    pipeline.kafka.topics["events"][2] = type(pipeline.kafka.topics["events"][0])()
    pipeline.produce(2, 6)
    pipeline.kafka.delete_records("events", 2, 4)
    with pytest.raises(LostRange) as refused:
        pipeline.planner.plan("second")
    assert refused.value.lost == ((2, 0, 4),)
    pipeline.decisions.accept_loss([2], "ann", "why")
    pipeline.run("second")
    assert pipeline.committed() == {0: 10, 1: 10, 2: 6}


def test_s10_a_recreated_topic_is_read_from_its_start(pipeline: MemoryPipeline) -> None:
    old = pipeline.landed_identities()
    pipeline.kafka.create("events", 3, "id-2")
    pipeline.produce(0, 8)
    pipeline.produce(2, 1)
    with pytest.raises(TopicRecreated):
        pipeline.planner.plan("second")
    pipeline.decisions.accept_recreation("ann", "partitions were to be fewer")
    assert pipeline.committed() == {0: 0, 1: 0, 2: 0}
    pipeline.run("second")
    assert pipeline.landed_identities() == sorted(old + pipeline.visible_identities())
    assert pipeline.committed() == {0: 8, 1: 0, 2: 1}
    (row, *_) = [row for row in pipeline.control.rows if row["event"] == "recreation_accepted"]
    assert (row["topic_id"], row["requested_by"], row["reason"]) == (
        "id-2",
        "ann",
        "partitions were to be fewer",
    )


def test_i7_accepting_the_recreation_of_an_unchanged_topic_is_refused(
    pipeline: MemoryPipeline,
) -> None:
    with pytest.raises(NothingToDo):
        pipeline.decisions.accept_recreation("ann", "why")
    with pytest.raises(NothingToDo):
        MemoryPipeline().decisions.accept_recreation("ann", "why")
    pipeline.kafka.create("others", 2, "id-9")
    pipeline.spec = make_spec(topic="others")
    with pytest.raises(TopicChanged):
        pipeline.decisions.accept_recreation("ann", "why")


def test_accepting_a_recreation_is_refused_while_a_plan_of_the_old_topic_is_open(
    pipeline: MemoryPipeline,
) -> None:
    """The driver of the plan may be about to land it."""
    plan = pipeline.plan("second")
    pipeline.kafka.create("events", 2, "id-2")
    with pytest.raises(PlanStillOpen):
        pipeline.decisions.accept_recreation("ann", "why")
    pipeline.abandon.abandon(plan.sequence, "ann", "topic is gone")
    pipeline.decisions.accept_recreation("ann", "why")
    assert pipeline.committed() == {0: 0, 1: 0}


def test_another_cluster_is_accepted_as_a_recreated_topic(pipeline: MemoryPipeline) -> None:
    pipeline.kafka.cluster_id = "other"
    pipeline.kafka.create("events", 1, "id-2")
    pipeline.produce(0, 2)
    pipeline.decisions.accept_recreation("ann", "moved")
    pipeline.run("second")
    assert pipeline.committed() == {0: 2}


def test_an_earlier_incarnation_continues_at_its_committed_offsets(
    pipeline: MemoryPipeline,
) -> None:
    """Offsets that were deleted in the meantime are a loss."""
    first = pipeline.kafka.topics["events"]
    pipeline.kafka.create("events", 2, "id-2")
    pipeline.decisions.accept_recreation("ann", "moved")
    pipeline.kafka.topics["events"] = first
    pipeline.kafka.topic_ids["events"] = "id-1"
    pipeline.kafka.delete_records("events", 0, 8)
    pipeline.decisions.accept_recreation("ann", "moved back")
    with pytest.raises(LostRange) as refused:
        pipeline.planner.plan("next")
    assert refused.value.lost == ((0, 5, 8),)
    pipeline.decisions.accept_loss((), "ann", "why")
    pipeline.run("next")
    assert pipeline.committed() == {0: 10, 1: 10}
    assert len(pipeline.landed_identities()) == len(set(pipeline.landed_identities())) == 17


def test_each_commit_has_one_committed_offset_per_partition() -> None:
    """The loss is in a new partition that was never read."""
    pipeline = MemoryPipeline()
    pipeline.run("nothing there")
    pipeline.kafka.topics["events"][2] = MemoryPartition()
    pipeline.produce(2, 9)
    pipeline.kafka.delete_records("events", 2, 6)
    accepted = pipeline.decisions.accept_loss((), "ann", "retention was too short")
    assert accepted.committed == {2: 6}
    counts = Counter(
        (row["event_number"], row["partition"])
        for row in pipeline.control.rows
        if row.get("committed_offset") is not None
    )
    assert max(counts.values()) == 1
    assert pipeline.committed()[2] == 6
