"""Hostile logs: changes of the log while Spark is in the middle of a fetch."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from tests.faults.tally import TableJudge
from tests.support.kafka_judge import read_all
from tests.support.lake import Lake
from tests.support.mid_read import ShortTimeoutLake, in_mid_read, long_topic
from tests.support.proxy import ProxiedBroker
from tests.support.topics import add_partitions, delete_records, delete_topic, recreate_topic
from tests.support.transactions import Record, produce_records, produce_values
from tests.support.verdict import compare
from tidemark.core.errors import LostRange, TidemarkError, TopicRecreated
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import Plan
from tidemark.kafka.errors import TopicMissing

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture
def admin(proxied: ProxiedBroker) -> AdminClient:
    """Return an admin client that bypasses the proxy."""
    return AdminClient({"bootstrap.servers": proxied.direct, "log_level": 0})


@pytest.fixture
def pipeline(lake: Lake, proxied: ProxiedBroker, request: pytest.FixtureRequest) -> Lake:
    """Return a pipeline that reads 12 MB through the proxy."""
    impatient = ShortTimeoutLake(
        session=lake.session, root=lake.root, connection={"bootstrap.servers": proxied.bootstrap}
    )
    return impatient.of(long_topic(proxied, request.function.__name__))


@pytest.mark.faults
def test_i4_i1_records_and_partitions_added_during_the_read_wait_for_the_next_plan(
    pipeline: Lake, proxied: ProxiedBroker, admin: AdminClient, table_judge: TableJudge
) -> None:
    name = pipeline.spec.topic
    plan = pipeline.plan("test")
    with in_mid_read(pipeline, plan, proxied) as (running, _):
        produce_values(proxied.direct, name, 3)
        add_partitions(admin, proxied.direct, name, 2)
        produce_values(proxied.direct, name, 2, partition=1)
    assert running.result().landing.records == 24
    table_judge.check(pipeline, ranges={0: (0, 24)})
    assert pipeline.run("next").landing.records == 5
    assert table_judge.check(pipeline).records == 29


@pytest.mark.faults
def test_s7_retention_during_the_read_is_a_lost_range_and_writes_nothing(
    pipeline: Lake, proxied: ProxiedBroker, admin: AdminClient, table_judge: TableJudge
) -> None:
    """I7. The steps after the error are those of docs/runbook.md (LostRange)."""
    plan = pipeline.plan("test")
    with in_mid_read(pipeline, plan, proxied) as (running, _):
        delete_records(admin, pipeline.spec.topic, 20)
    with pytest.raises(LostRange) as caught:
        running.result()
    assert (pipeline.rows(), pipeline.committed()) == ([], {0: 0})
    assert caught.value.lost == ((0, 0, 20),)
    pipeline.abandon.abandon(plan.sequence, "operator", "its records are deleted")
    with pytest.raises(LostRange):
        pipeline.planner.plan("again")
    assert (pipeline.rows(), pipeline.committed()) == ([], {0: 0})
    accepted = pipeline.decisions.accept_loss((), "operator", "retention was too short")
    assert accepted.lost == {0: SpanSet.of([Span(0, 20)])}
    assert pipeline.run("the rest").landing.records == 4
    assert table_judge.check(pipeline).records == 4
    assert pipeline.committed() == {0: 24}


@pytest.mark.faults
def test_i1_s7_records_deleted_by_retention_after_their_fetch_land(
    pipeline: Lake, proxied: ProxiedBroker, admin: AdminClient, table_judge: TableJudge
) -> None:
    name = pipeline.spec.topic
    records = read_all(proxied.direct, name)
    plan = pipeline.plan("test")
    with in_mid_read(pipeline, plan, proxied) as (running, _):
        delete_records(admin, name, 2)
    assert running.result().landing.records == 24
    table_judge.count(compare(pipeline.rows(), records, plan.topic_id))
    assert pipeline.committed() == {0: 24}


@pytest.mark.faults
def test_i7_a_topic_deleted_during_the_read_raises_topic_missing(
    pipeline: Lake, proxied: ProxiedBroker, admin: AdminClient
) -> None:
    plan = pipeline.plan("test")
    with in_mid_read(pipeline, plan, proxied) as (running, _):
        delete_topic(admin, pipeline.spec.topic)
    with pytest.raises(TopicMissing):
        running.result()
    assert (pipeline.rows(), pipeline.committed()) == ([], {0: 0})


# -- recreated -----------------------------------------------------------------------------------


def error_of_recreation_during_the_read(
    pipeline: Lake, proxied: ProxiedBroker, admin: AdminClient, plan: Plan, records: int
) -> TidemarkError:
    """Return the error of a plan whose topic is recreated with other records during the read."""
    other = [Record(value=b"another" * 70_000)] * records
    with in_mid_read(pipeline, plan, proxied) as (running, _):
        recreate_topic(admin, proxied.direct, pipeline.spec.topic)
        produce_records(proxied.direct, pipeline.spec.topic, other)
    with pytest.raises(TidemarkError) as caught:
        running.result()
    return caught.value


@pytest.mark.faults
def test_i7_s5_a_topic_recreated_with_fewer_records_during_the_read_writes_nothing(
    pipeline: Lake, proxied: ProxiedBroker, admin: AdminClient
) -> None:
    plan = pipeline.plan("test")
    assert isinstance(
        error_of_recreation_during_the_read(pipeline, proxied, admin, plan, 12), TopicRecreated
    )
    assert (pipeline.rows(), pipeline.committed()) == ([], {0: 0})


def test_s5_a_topic_recreated_with_more_records_during_the_read_writes_nothing(
    pipeline: Lake, proxied: ProxiedBroker, admin: AdminClient, table_judge: TableJudge
) -> None:
    """I1. Kafka returns records of the new topic for the planned offsets."""
    plan = pipeline.plan("test")
    assert isinstance(
        error_of_recreation_during_the_read(pipeline, proxied, admin, plan, 48), TopicRecreated
    )
    assert (pipeline.rows(), pipeline.committed()) == ([], {0: 0})
    with pytest.raises(TopicRecreated):
        pipeline.ingest.execute(pipeline.plan("the next run").sequence)
    assert (pipeline.rows(), pipeline.committed()) == ([], {0: 0})
    pipeline.abandon.abandon(plan.sequence, "operator", "its topic is gone")
    pipeline.decisions.accept_recreation("operator", "recreated on purpose")
    assert pipeline.run("the new topic").landing.records == 48
    assert table_judge.check(pipeline).records == 48
