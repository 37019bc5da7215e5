"""Verification finds what is lost, doubled, foreign or altered, and nothing else."""

from __future__ import annotations

import pytest

from tests.support.plans import MemoryPipeline
from tidemark.errors import (
    EndBehindCommitted,
    InvalidRange,
    NothingToVerify,
    TableDiffers,
    TopicRecreated,
)
from tidemark.services.verify import Difference


@pytest.fixture
def pipeline() -> MemoryPipeline:
    """Two partitions, six records and two holes landed of each."""
    made = MemoryPipeline()
    for partition in (0, 1):
        made.produce(partition, 3)
        made.kafka.add_holes("events", partition, 2)
        made.produce(partition, 3)
    made.run("first")
    return made


def test_an_exact_table_verifies(pipeline: MemoryPipeline) -> None:
    """Each offset is looked at."""
    verification = pipeline.verify.verify()
    verification.check()
    assert [(v.offsets, v.records, v.rows, v.gone) for v in verification.partitions] == [
        (8, 6, 6, 0),
        (8, 6, 6, 0),
    ]
    assert verification.as_record()["equal"] is True


def test_a_lost_row_is_told(pipeline: MemoryPipeline) -> None:
    """I1: with its place."""
    pipeline.table.rows.remove(("id-1", 1, 5, 1))
    verification = pipeline.verify.verify()
    assert verification.differences == {Difference.LOST: 1}
    with pytest.raises(TableDiffers, match="lost partition 1 offset 5"):
        verification.check()


def test_a_doubled_row_is_told_also_where_kafka_has_deleted_it(pipeline: MemoryPipeline) -> None:
    """I1: a row beside its like needs no Kafka to be told."""
    pipeline.table.rows += [("id-1", 0, 1, 1), ("id-1", 1, 6, 1)]
    pipeline.kafka.delete_records("events", 0, 4)
    verification = pipeline.verify.verify()
    assert verification.differences == {Difference.DOUBLED: 2}
    assert [(v.offsets, v.gone) for v in verification.partitions] == [(4, 4), (8, 0)]


def test_a_row_where_kafka_has_nothing_is_foreign(pipeline: MemoryPipeline) -> None:
    """A hole with a row."""
    pipeline.table.rows.append(("id-1", 0, 3, 1))
    assert pipeline.verify.verify().differences == {Difference.FOREIGN: 1}


def test_a_record_that_was_compacted_since_is_no_difference(pipeline: MemoryPipeline) -> None:
    """The plan has the rows that it landed; Kafka has fewer."""
    del pipeline.kafka.topics["events"][0].records[1]
    verification = pipeline.verify.verify()
    verification.check()
    assert [v.compacted for v in verification.partitions] == [1, 0]


def test_an_altered_record_is_told(pipeline: MemoryPipeline) -> None:
    """The timestamp counts like the content."""
    pipeline.kafka.topics["events"][0].records[2] = 77
    assert pipeline.verify.verify().differences == {Difference.ALTERED: 1}


def test_a_log_that_was_cut_before_what_landed_is_told(pipeline: MemoryPipeline) -> None:
    """I7: offsets that no log has any more are not taken for deleted by retention."""
    log = pipeline.kafka.topics["events"][1]
    log.end = 6
    log.records = {offset: at for offset, at in log.records.items() if offset < 6}
    with pytest.raises(EndBehindCommitted):
        pipeline.verify.verify()


def test_a_range_is_verified_alone(pipeline: MemoryPipeline) -> None:
    """Outside it nothing is read."""
    pipeline.table.rows.remove(("id-1", 1, 5, 1))
    pipeline.verify.verify(partition=1, start=0, end=5).check()
    pipeline.verify.verify(partition=0).check()
    with pytest.raises(TableDiffers):
        pipeline.verify.verify(start=5, end=6).check()


def test_what_has_not_landed_cannot_be_verified(pipeline: MemoryPipeline) -> None:
    """I7: a verification of nothing must not look like success."""
    with pytest.raises(NothingToVerify):
        pipeline.verify.verify(partition=9)
    with pytest.raises(NothingToVerify):
        pipeline.verify.verify(start=8)
    with pytest.raises(InvalidRange):
        pipeline.verify.verify(start=5, end=5)
    with pytest.raises(NothingToVerify):
        MemoryPipeline().verify.verify()
    pipeline.kafka.create("events", 2, "id-2")
    with pytest.raises(TopicRecreated):
        pipeline.verify.verify()


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(("id-1", 0, 10**15, 1), id="far_beyond_what_landed"),
        pytest.param(("id-1", 1, 8, 9), id="next_to_it_of_an_unknown_plan"),
        pytest.param(("id-0", 0, 3, 1), id="of_an_unknown_incarnation"),
        pytest.param(("id-1", 7, 0, 1), id="of_an_unknown_partition"),
    ],
)
def test_a_row_where_nothing_landed_is_foreign(
    pipeline: MemoryPipeline, row: tuple[str, int, int, int]
) -> None:
    """Whoever put it there: no landed range would look at it."""
    pipeline.table.rows.append(row)
    verification = pipeline.verify.verify()
    assert verification.differences == {Difference.FOREIGN: 1}
    assert [(f.partition, f.offset) for f in verification.first] == [row[1:3]]


def test_rows_of_a_plan_that_is_landing_are_no_difference(pipeline: MemoryPipeline) -> None:
    """Its commit is there and not yet recorded; nor are those of an older incarnation."""
    pipeline.produce(0, 4)
    plan = pipeline.planner.plan("second").plan
    assert plan is not None
    pipeline.table.land(plan)
    assert not pipeline.verify.verify().differences
    pipeline.ingest.execute(plan.sequence)
    pipeline.kafka.create("events", 2, "id-2")
    pipeline.produce(1, 4)
    pipeline.decisions.new_incarnation("ann", "why")
    pipeline.run("third")
    assert not pipeline.verify.verify().differences
