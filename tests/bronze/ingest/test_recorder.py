"""Tests that every offset of a landed range is accounted for."""

from __future__ import annotations

import pytest

from tests.support.plans import MemoryPipeline
from tidemark.bronze.ingest.errors import RecordsMissed
from tidemark.core.accounting import RangeCount
from tidemark.core.errors import TopicRecreated
from tidemark.core.plan import Plan


@pytest.fixture
def pipeline() -> MemoryPipeline:
    """Return a pipeline with one partition: four records, three gaps, two records."""
    pipeline = MemoryPipeline(partitions=1)
    pipeline.produce(0, 4)
    pipeline.kafka.add_gaps("events", 0, 3)
    pipeline.produce(0, 2)
    return pipeline


def skip_records(pipeline: MemoryPipeline, *offsets: int) -> None:
    """Let the engine skip these offsets, as a faulty reader would."""
    read = pipeline.table.read

    def read_others(plan: Plan) -> list[tuple[str, int, int, int]]:
        return [row for row in read(plan) if row[2] not in offsets]

    pipeline.table.read = read_others  # type: ignore[method-assign]


def test_s6_i3_records_and_gaps_add_up(pipeline: MemoryPipeline) -> None:
    pipeline.run("test")
    landing = pipeline.ledger.plans[1].held_now
    assert landing is not None
    assert landing.counts == (RangeCount(partition=0, start=0, end=9, records=6, leader_epoch=0),)
    assert landing.gaps == 3
    assert pipeline.committed() == {0: 9}


def test_i3_a_missed_record_is_landed_by_the_next_run(pipeline: MemoryPipeline) -> None:
    """I7. The committed offset does not pass it."""
    skip_records(pipeline, 2)
    with pytest.raises(RecordsMissed) as caught:
        pipeline.run("first")
    assert (caught.value.records, caught.value.first) == (1, (0, 2))
    landing = pipeline.ledger.plans[1].held_now
    assert landing is not None
    assert [(c.start, c.end, c.records, c.gaps) for c in landing.counts] == [
        (0, 2, 2, 0),
        (3, 9, 3, 3),
    ]
    assert pipeline.committed() == {0: 2}
    del pipeline.table.read
    plan = pipeline.run("second")
    assert plan is not None
    assert [(r.start, r.end) for r in plan.ranges] == [(2, 3)]
    assert pipeline.landed_identities() == pipeline.visible_identities()
    assert pipeline.committed() == {0: 9}


def test_i3_a_plan_that_missed_everything_is_read_again(pipeline: MemoryPipeline) -> None:
    pipeline.run("first")
    pipeline.produce(0, 1)
    skip_records(pipeline, 9)
    with pytest.raises(RecordsMissed):
        pipeline.run("second")
    assert pipeline.committed() == {0: 9}
    del pipeline.table.read
    again = pipeline.run("third")
    assert again is not None
    assert again.sequence == 3
    assert pipeline.committed() == {0: 10}


def test_gaps_that_kafka_deleted_before_the_check_are_unproven(pipeline: MemoryPipeline) -> None:
    """The driver died before the record, and retention deleted the offsets."""
    plan = pipeline.plan("first")
    pipeline.table.land(plan)
    pipeline.kafka.delete_records("events", 0, 6)
    pipeline.ingest.execute(plan.sequence)
    landing = pipeline.ledger.plans[1].held_now
    assert landing is not None
    (count,) = landing.counts
    assert (count.records, count.gaps, count.unproven_gaps) == (6, 3, 2)
    assert pipeline.committed() == {0: 9}


def test_gaps_are_not_proven_if_the_topic_is_recreated_during_the_check(
    pipeline: MemoryPipeline,
) -> None:
    plan = pipeline.plan("first")
    read = pipeline.kafka.read

    def read_and_recreate(*arguments):  # type: ignore[no-untyped-def]
        yield from read(*arguments)
        pipeline.kafka.create("events", 1, "id-2")
        pipeline.produce(0, 20)

    pipeline.kafka.read = read_and_recreate  # type: ignore[method-assign]
    with pytest.raises(TopicRecreated):
        pipeline.ingest.execute(plan.sequence)
    assert pipeline.ledger.plans[1].held_now is None
    assert not any(row["event"] == "landed" for row in pipeline.control.rows)
