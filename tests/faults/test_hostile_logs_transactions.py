"""Hostile logs: aborted, interleaved and open transactions, and their markers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conftest import TopicFactory
from tests.faults.tally import TableJudge
from tests.support.lake import Lake
from tests.support.transactions import (
    Record,
    append,
    fence,
    leave_hanging,
    open_transaction,
    produce_aborted,
    produce_committed,
    produce_values,
    wait_until_stable,
)
from tidemark.bronze.ingest.executor import ExecutionResult
from tidemark.core.watermarks import IsolationLevel
from tidemark.local.broker import BrokerStatus

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def values(lake: Lake) -> list[bytes | None]:
    return [record.value for record in lake.delivered_rows()]


def counts(done: ExecutionResult) -> list[tuple[int, int, int, int]]:
    """Return start, end, records and gaps of each range; no gap is unproven."""
    assert not any(c.unproven_gaps for c in done.landing.counts)
    return [(c.start, c.end, c.records, c.gaps) for c in done.landing.counts]


# -- aborted and interleaved ---------------------------------------------------------------------


@pytest.mark.faults
def test_s6_aborted_records_and_markers_are_gaps(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, table_judge: TableJudge
) -> None:
    pipeline = lake.of(topic())
    name = pipeline.spec.topic
    produce_committed(broker.bootstrap, name, [Record(value=b"a"), Record(value=b"b")])
    produce_aborted(broker.bootstrap, name, [Record(value=b"never")])
    produce_values(broker.bootstrap, name, 2)
    assert counts(pipeline.run("test")) == [(0, 7, 4, 3)]
    assert table_judge.check(pipeline).records == 4
    assert values(lake) == [b"a", b"b", b"0", b"1"]


def test_i1_only_committed_records_of_interleaved_transactions_land(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, table_judge: TableJudge
) -> None:
    """The plans have three offsets each, so they begin and end inside transactions."""
    pipeline = lake.of(topic(), records_per_run=3)
    name = pipeline.spec.topic

    def record(text: str) -> list[Record]:
        return [Record(value=text.encode())]

    with (
        open_transaction(broker.bootstrap, name, record("a0 kept")) as a,
        open_transaction(broker.bootstrap, name, record("b0 gone")) as b,
    ):
        append(a, name, record("a1 kept"))
        append(b, name, record("b1 gone"))
        a.commit_transaction(30)
        a.begin_transaction()
        append(b, name, record("b2 gone"))
        append(a, name, record("a2 gone"))
        b.abort_transaction(30)
        b.begin_transaction()
        append(b, name, record("b3 kept"))
        append(a, name, record("a3 gone"))
        a.abort_transaction(30)
        append(b, name, record("b4 kept"))
        b.commit_transaction(30)
    wait_until_stable(broker.bootstrap, name)
    done = [pipeline.run(f"run {number}") for number in range(5)]
    assert pipeline.planner.plan("more").plan is None
    assert [(start, end) for d in done for start, end, _, _ in counts(d)] == [
        (0, 3),
        (3, 6),
        (6, 9),
        (9, 12),
        (12, 13),
    ]
    assert sum(d.landing.records for d in done) == table_judge.check(pipeline).records == 4
    assert values(lake) == [b"a0 kept", b"a1 kept", b"b3 kept", b"b4 kept"]


@pytest.mark.faults
def test_s8_read_uncommitted_lands_aborted_records(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, table_judge: TableJudge
) -> None:
    pipeline = lake.of(topic(), isolation_level=IsolationLevel.READ_UNCOMMITTED)
    name = pipeline.spec.topic
    produce_aborted(broker.bootstrap, name, [Record(value=b"aborted")])
    pipeline.run("test")
    table_judge.check(pipeline, isolation="read_uncommitted")
    assert values(lake) == [b"aborted"]


@pytest.mark.faults
def test_s8_a_plan_is_read_with_its_planned_isolation_level(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, table_judge: TableJudge
) -> None:
    """I4. The spec has another level when the plan lands."""
    pipeline = lake.of(topic())
    name = pipeline.spec.topic
    produce_values(broker.bootstrap, name, 2)
    produce_aborted(broker.bootstrap, name, [Record(value=b"aborted")])
    plan = pipeline.plan("test")
    changed = replace(
        pipeline,
        spec=replace(pipeline.spec, isolation_level=IsolationLevel.READ_UNCOMMITTED),
    )
    changed.ingest.execute(plan.sequence)
    assert table_judge.check(pipeline).records == 2


# -- markers only --------------------------------------------------------------------------------


@pytest.mark.faults
def test_s6_a_range_without_records_lands_as_an_empty_commit(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, table_judge: TableJudge
) -> None:
    pipeline = lake.of(topic())
    produce_aborted(broker.bootstrap, pipeline.spec.topic, [Record(), Record()])
    done = pipeline.run("test")
    assert counts(done) == [(0, 3, 0, 3)]
    assert pipeline.committed() == {0: 3}
    assert table_judge.check(pipeline).records == 0
    assert pipeline.table.find_landing(done.plan) == done.landing
    assert pipeline.planner.plan("again").plan is None


@pytest.mark.faults
def test_i3_a_range_of_one_marker_lands(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, table_judge: TableJudge
) -> None:
    """Spark does not wait for records, at the end of the log and before further records."""
    pipeline = lake.of(topic(), records_per_run=2)
    name = pipeline.spec.topic
    produce_committed(broker.bootstrap, name, [Record(value=b"a"), Record(value=b"b")])
    assert counts(pipeline.run("records")) == [(0, 2, 2, 0)]
    assert counts(pipeline.run("marker at the end")) == [(2, 3, 0, 1)]
    assert pipeline.committed() == {0: 3}
    produce_committed(broker.bootstrap, name, [Record(value=b"c")])
    assert counts(pipeline.run("ends in a marker")) == [(3, 5, 1, 1)]
    assert table_judge.check(pipeline).records == 3


# -- open ----------------------------------------------------------------------------------------


def test_i1_s8_records_of_an_open_transaction_land_after_its_end(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, table_judge: TableJudge
) -> None:
    pipeline = lake.of(topic(partitions=2))
    name = pipeline.spec.topic
    produce_values(broker.bootstrap, name, 2)
    with open_transaction(broker.bootstrap, name, [Record(value=b"late")]) as producer:
        produce_values(broker.bootstrap, name, 1)
        produce_values(broker.bootstrap, name, 3, partition=1)
        assert pipeline.run("first").landing.records == 5
        assert pipeline.committed() == {0: 2, 1: 3}
        assert pipeline.planner.plan("meanwhile").plan is None
        producer.commit_transaction(30)
    wait_until_stable(broker.bootstrap, name)
    assert pipeline.run("second").landing.records == 2
    assert table_judge.check(pipeline).records == 7
    assert b"late" in values(lake)


@pytest.mark.faults
def test_s8_records_after_a_hanging_transaction_land_after_its_abort(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, table_judge: TableJudge
) -> None:
    """Its producer died."""
    pipeline = lake.of(topic())
    name = pipeline.spec.topic
    produce_values(broker.bootstrap, name, 2)
    hanging = leave_hanging(broker.bootstrap, name, [Record(value=b"never")])
    produce_values(broker.bootstrap, name, 3)
    assert counts(pipeline.run("hanging")) == [(0, 2, 2, 0)]
    assert pipeline.planner.plan("still hanging").plan is None
    fence(broker.bootstrap, name, hanging)
    assert counts(pipeline.run("ended")) == [(2, 7, 3, 2)]
    assert table_judge.check(pipeline).records == 5
    assert b"never" not in values(lake)


@pytest.mark.faults
def test_i4_a_plan_keeps_its_end_after_an_open_transaction_was_committed(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, table_judge: TableJudge
) -> None:
    pipeline = lake.of(topic())
    name = pipeline.spec.topic
    produce_values(broker.bootstrap, name, 2)
    with open_transaction(broker.bootstrap, name, [Record(value=b"late")]) as producer:
        plan = pipeline.plan("while it was open")
        producer.commit_transaction(30)
    wait_until_stable(broker.bootstrap, name)
    assert counts(pipeline.ingest.execute(plan.sequence)) == [(0, 2, 2, 0)]
    table_judge.check(pipeline, ranges={0: (0, 2)})
    assert counts(pipeline.run("the rest")) == [(2, 4, 1, 1)]
    assert table_judge.check(pipeline).records == 3
