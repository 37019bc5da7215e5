"""Hostile logs: deleted, recreated, extended and empty topics at each moment of a run."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.conftest import TopicFactory
from tests.faults.tally import TableJudge
from tests.support.kafka_judge import log_ranges
from tests.support.lake import Lake, row_as_delivered
from tests.support.topics import add_partitions, delete_records, delete_topic, recreate_topic
from tests.support.transactions import produce_values
from tests.support.verdict import judge
from tidemark.core.errors import TopicRecreated
from tidemark.kafka.errors import TopicMissing
from tidemark.local.broker import BrokerStatus
from tidemark.spec.model import StartPolicy
from tidemark.spec.ref import PipelineRef

pytestmark = [pytest.mark.broker, pytest.mark.spark]

# -- recreated -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(2, id="with_fewer_records_than_before", marks=pytest.mark.faults),
        pytest.param(9, id="with_more_records_than_before"),
    ],
)
def test_s5_a_topic_recreated_before_the_plan_is_refused_until_accepted(
    lake: Lake,
    broker: BrokerStatus,
    topic: TopicFactory,
    admin: AdminClient,
    table_judge: TableJudge,
    records: int,
) -> None:
    """I7. The table then has rows of both incarnations under their topic ids."""
    pipeline = lake.of(topic())
    name = pipeline.spec.topic
    produce_values(broker.bootstrap, name, 5)
    topic_id = pipeline.run("first").plan.topic_id
    table_judge.check(pipeline)
    version = pipeline.version()
    recreate_topic(admin, broker.bootstrap, name)
    produce_values(broker.bootstrap, name, records)
    with pytest.raises(TopicRecreated) as caught:
        pipeline.planner.plan("second")
    current = caught.value.seen.removeprefix("topic id ")
    assert caught.value.needed == f"topic id {topic_id}"
    assert current != topic_id
    assert (pipeline.version(), pipeline.committed()) == (version, {0: 5})

    old = pipeline.delivered_rows()
    pipeline.decisions.accept_recreation("operator", "recreated on purpose")
    done = pipeline.run("third")
    assert (done.landing.records, done.plan.topic_id) == (records, current)
    rows: dict[str, list[dict[str, Any]]] = {topic_id: [], done.plan.topic_id: []}
    for row in pipeline.rows():
        rows[row["topic_id"]].append(row)
    table_judge.count(judge(rows[done.plan.topic_id], broker.bootstrap, name, done.plan.topic_id))
    assert sorted(row_as_delivered(row) for row in rows[topic_id]) == old


@pytest.mark.parametrize(
    "records", [5, 9], ids=["with_as_many_records", "with_more_records_than_before"]
)
@pytest.mark.faults
def test_s5_a_topic_recreated_between_plan_and_landing_is_refused(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, admin: AdminClient, records: int
) -> None:
    """I7. The new topic has the planned offsets."""
    pipeline = lake.of(topic())
    name = pipeline.spec.topic
    produce_values(broker.bootstrap, name, 5)
    plan = pipeline.plan("test")
    recreate_topic(admin, broker.bootstrap, name)
    produce_values(broker.bootstrap, name, records)
    with pytest.raises(TopicRecreated) as caught:
        pipeline.ingest.execute(plan.sequence)
    assert caught.value.needed == f"topic id {plan.topic_id}"
    assert caught.value.seen != caught.value.needed
    assert pipeline.version() is None
    assert pipeline.committed() == {0: 0}


@pytest.mark.faults
def test_i7_a_deleted_topic_is_missing_when_planning_and_when_landing(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, admin: AdminClient
) -> None:
    pipeline = lake.of(topic())
    produce_values(broker.bootstrap, pipeline.spec.topic, 5)
    plan = pipeline.plan("test")
    delete_topic(admin, pipeline.spec.topic)
    with pytest.raises(TopicMissing):
        pipeline.ingest.execute(plan.sequence)
    assert pipeline.version() is None
    with pytest.raises(TopicMissing):
        lake.of(pipeline.spec.topic, ref=PipelineRef("other")).planner.plan("test")


# -- partitions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start", [pytest.param(StartPolicy.EARLIEST, marks=pytest.mark.faults), StartPolicy.LATEST]
)
def test_s10_partitions_added_between_runs_are_read_from_their_start(
    lake: Lake,
    broker: BrokerStatus,
    topic: TopicFactory,
    admin: AdminClient,
    table_judge: TableJudge,
    start: StartPolicy,
) -> None:
    """I1. The start policy `latest` applies to the first plan only."""
    pipeline = lake.of(topic(), start=start)
    name = pipeline.spec.topic
    pipeline.planner.plan("begin here")
    produce_values(broker.bootstrap, name, 2)
    pipeline.run("first")
    add_partitions(admin, broker.bootstrap, name, 3)
    produce_values(broker.bootstrap, name, 1)
    produce_values(broker.bootstrap, name, 4, partition=2)
    assert pipeline.run("second").landing.records == 5
    assert pipeline.committed() == {0: 3, 1: 0, 2: 4}
    assert table_judge.check(pipeline).records == 7


@pytest.mark.faults
def test_i4_s10_partitions_added_between_plan_and_landing_wait_for_the_next_plan(
    lake: Lake,
    broker: BrokerStatus,
    topic: TopicFactory,
    admin: AdminClient,
    table_judge: TableJudge,
) -> None:
    pipeline = lake.of(topic())
    name = pipeline.spec.topic
    produce_values(broker.bootstrap, name, 2)
    plan = pipeline.plan("first")
    add_partitions(admin, broker.bootstrap, name, 2)
    produce_values(broker.bootstrap, name, 3, partition=1)
    assert pipeline.ingest.execute(plan.sequence).landing.records == 2
    table_judge.check(pipeline, ranges={0: (0, 2)})
    assert pipeline.run("second").landing.records == 3
    assert pipeline.committed() == {0: 2, 1: 3}
    assert table_judge.check(pipeline).records == 5


@pytest.mark.faults
def test_s6_empty_partitions_are_read_once_they_have_records(
    lake: Lake,
    broker: BrokerStatus,
    topic: TopicFactory,
    admin: AdminClient,
    table_judge: TableJudge,
) -> None:
    """A topic of empty partitions has no plan and no table."""
    pipeline = lake.of(topic(partitions=3))
    name = pipeline.spec.topic
    produce_values(broker.bootstrap, name, 4, partition=1)
    delete_records(admin, name, 4, partition=1)
    assert log_ranges(broker.bootstrap, name) == {0: (0, 0), 1: (4, 4), 2: (0, 0)}
    assert pipeline.planner.plan("all empty").plan is None
    assert pipeline.version() is None
    assert pipeline.committed() == {0: 0, 1: 4, 2: 0}
    produce_values(broker.bootstrap, name, 2, partition=2)
    done = pipeline.run("one of three")
    assert [(r.partition, r.start, r.end) for r in done.plan.ranges] == [(2, 0, 2)]
    produce_values(broker.bootstrap, name, 1, partition=0)
    produce_values(broker.bootstrap, name, 3, partition=1)
    assert pipeline.run("the others").landing.records == 4
    assert table_judge.check(pipeline).records == 6
