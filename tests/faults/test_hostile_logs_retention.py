"""Hostile logs: compaction, tombstones, and records deleted by retention."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.conftest import TopicFactory
from tests.faults.tally import TableJudge
from tests.support.kafka_judge import log_ranges, read_all, read_ranges
from tests.support.lake import Lake
from tests.support.topics import (
    COMPACTED,
    delete_records,
    produce_rolled,
    wait_for_compaction,
)
from tests.support.transactions import Record, produce_values
from tests.support.verdict import judge
from tidemark.core.errors import LostRange
from tidemark.local.broker import BrokerStatus

pytestmark = [pytest.mark.broker, pytest.mark.spark]

# -- compaction ----------------------------------------------------------------------------------


@pytest.fixture
def eager_cleaner(admin: AdminClient) -> Iterator[None]:
    """Run the log cleaner every 100 ms instead of every 15 s."""
    (node,) = admin.describe_cluster().result(timeout=30).nodes

    def alter(operation: AlterConfigOpType, value: str | None) -> None:
        entry = ConfigEntry("log.cleaner.backoff.ms", value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.BROKER, str(node.id), incremental_configs=[entry])
        for answer in admin.incremental_alter_configs([resource]).values():
            answer.result(timeout=30)

    alter(AlterConfigOpType.SET, "100")
    yield
    alter(AlterConfigOpType.DELETE, None)


def of_keys(*keys: str, value: bytes | None = b"value") -> list[Record]:
    return [Record(key=key.encode(), value=value) for key in keys]


def test_s6_compacted_offsets_are_gaps_and_tombstones_are_records(
    lake: Lake,
    broker: BrokerStatus,
    topic: TopicFactory,
    table_judge: TableJudge,
    eager_cleaner: None,
) -> None:
    """I1. Ranges of four offsets begin and end in gaps, and one has only gaps."""
    pipeline = lake.of(topic(config=COMPACTED), records_per_run=4)
    name = pipeline.spec.topic
    # 0-5 and 7 are superseded; 6, 8 and the tombstone at 9 are the last of their keys.
    old = [*of_keys("a", "b", "c", "a", "b", "c", "a", "b", "b"), *of_keys("c", value=None)]
    produce_rolled(broker.bootstrap, name, old, of_keys("d"))
    remaining = wait_for_compaction(broker.bootstrap, name, {6, 8, 9, 10})
    assert [(r.key, r.value is None) for r in remaining] == [
        (b"a", False),
        (b"b", False),
        (b"c", True),
        (b"d", False),
    ]
    assert log_ranges(broker.bootstrap, name) == {0: (0, 11)}
    counts = [pipeline.run(f"run {n}").landing.counts[0] for n in range(3)]
    assert [c.unproven_gaps for c in counts] == [0, 0, 0]
    assert [(c.start, c.end, c.records, c.gaps) for c in counts] == [
        (0, 4, 0, 4),
        (4, 8, 1, 3),
        (8, 11, 3, 0),
    ]
    assert pipeline.planner.plan("more").plan is None
    assert table_judge.check(pipeline).records == 4
    assert pipeline.committed() == {0: 11}


@pytest.mark.faults
def test_s6_tombstones_removed_by_compaction_are_gaps(
    lake: Lake,
    broker: BrokerStatus,
    topic: TopicFactory,
    table_judge: TableJudge,
    eager_cleaner: None,
) -> None:
    config = {**COMPACTED, "delete.retention.ms": "0"}
    pipeline = lake.of(topic(config=config))
    name = pipeline.spec.topic
    produce_rolled(
        broker.bootstrap, name, of_keys("a", "b") + of_keys("a", value=None), of_keys("c"), []
    )
    wait_for_compaction(broker.bootstrap, name, {1, 2, 3})
    produce_rolled(broker.bootstrap, name, of_keys("d"))
    wait_for_compaction(broker.bootstrap, name, {1, 3, 4})
    (count,) = pipeline.run("test").landing.counts
    assert (count.start, count.end, count.records, count.gaps) == (0, 5, 3, 2)
    assert table_judge.check(pipeline).records == 3


@pytest.mark.faults
def test_s6_records_left_by_compaction_between_plan_and_landing_land(
    lake: Lake,
    broker: BrokerStatus,
    topic: TopicFactory,
    table_judge: TableJudge,
    eager_cleaner: None,
) -> None:
    """I4. A landed record stays in the table when compaction removes it from Kafka."""
    pipeline = lake.of(topic(config=COMPACTED))
    name = pipeline.spec.topic
    produce_rolled(broker.bootstrap, name, of_keys("a", "b"), [], [])
    assert pipeline.run("before").landing.records == 2
    table_judge.check(pipeline)
    landed = pipeline.delivered_rows()
    produce_rolled(broker.bootstrap, name, of_keys("a", "a", "b", "c"), [])
    plan = pipeline.plan("planned")
    assert len(read_ranges(broker.bootstrap, name, {0: (2, 6)})) == 4
    produce_rolled(broker.bootstrap, name, of_keys("d"))
    wait_for_compaction(broker.bootstrap, name, {3, 4, 5, 6})
    (count,) = pipeline.ingest.execute(plan.sequence).landing.counts
    assert (count.records, count.gaps, count.unproven_gaps) == (3, 1, 0)
    assert pipeline.delivered_rows()[:2] == landed
    rows = [row for row in pipeline.rows() if row["plan_sequence"] == plan.sequence]
    table_judge.count(judge(rows, broker.bootstrap, name, plan.topic_id, ranges={0: (2, 6)}))


# -- retention -----------------------------------------------------------------------------------


@pytest.mark.faults
def test_i7_s7_records_deleted_between_plan_and_landing_are_a_lost_range(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, admin: AdminClient
) -> None:
    pipeline = lake.of(topic())
    name = pipeline.spec.topic
    produce_values(broker.bootstrap, name, 5)
    plan = pipeline.plan("test")
    delete_records(admin, name, 3)
    with pytest.raises(LostRange) as caught:
        pipeline.ingest.execute(plan.sequence)
    assert (caught.value.lost, caught.value.plan) == (((0, 0, 3),), plan.sequence)
    assert pipeline.version() is None
    assert pipeline.committed() == {0: 0}


def test_s7_records_deleted_before_the_plan_are_a_lost_range(
    lake: Lake,
    broker: BrokerStatus,
    topic: TopicFactory,
    admin: AdminClient,
    table_judge: TableJudge,
) -> None:
    """I3. All unread records of one partition are deleted; the other one waits."""
    pipeline = lake.of(topic(partitions=2))
    name = pipeline.spec.topic
    produce_values(broker.bootstrap, name, 2)
    pipeline.run("first")
    table_judge.check(pipeline)
    produce_values(broker.bootstrap, name, 3)
    produce_values(broker.bootstrap, name, 3, partition=1)
    delete_records(admin, name, 5)
    with pytest.raises(LostRange) as caught:
        pipeline.planner.plan("second")
    assert caught.value.lost == ((0, 2, 5),)
    assert pipeline.committed() == {0: 2, 1: 0}
    pipeline.decisions.accept_loss((), "operator", "test")
    assert pipeline.run("third").landing.records == 3
    assert pipeline.committed() == {0: 5, 1: 3}
    rows = [row for row in pipeline.rows() if row["partition"] == 1]
    topic_id = rows[0]["topic_id"]
    table_judge.count(judge(rows, broker.bootstrap, name, topic_id, ranges={1: (0, 3)}))


@pytest.mark.faults
def test_s7_records_deleted_after_their_landing_are_not_a_lost_range(
    lake: Lake,
    broker: BrokerStatus,
    topic: TopicFactory,
    admin: AdminClient,
    table_judge: TableJudge,
) -> None:
    """The low watermark equals the committed offset."""
    pipeline = lake.of(topic())
    name = pipeline.spec.topic
    produce_values(broker.bootstrap, name, 5)
    pipeline.run("first")
    table_judge.check(pipeline)
    landed = pipeline.delivered_rows()
    delete_records(admin, name, 5)
    assert pipeline.planner.plan("nothing new").plan is None
    produce_values(broker.bootstrap, name, 2)
    assert pipeline.run("second").landing.records == 2
    assert pipeline.delivered_rows()[:5] == landed
    assert pipeline.delivered_rows()[5:] == read_all(broker.bootstrap, name)
