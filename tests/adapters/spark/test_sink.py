"""Landing with real Kafka, Spark and Delta, judged by a reader that knows nothing of Tidemark."""

from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from tests.conftest import TopicFactory
from tests.support.kafka_judge import read_all, read_ranges
from tests.support.lake import Lake
from tests.support.plans import NOW, make_plan
from tests.support.transactions import (
    Record,
    open_transaction,
    produce_aborted,
    produce_committed,
    produce_records,
    produce_values,
    wait_until_stable,
)
from tidemark.adapters.broker.embedded import BrokerStatus
from tidemark.adapters.kafka.producer import produce
from tidemark.core.marks import IsolationLevel
from tidemark.core.plan import Plan
from tidemark.core.spec import StartPolicy
from tidemark.errors import (
    EngineFailed,
    ForeignTable,
    LostRange,
    NotLanded,
    PlanAbandoned,
    TableBehindLedger,
    TableRestored,
    TopicRecreated,
)
from tidemark.services.abandon import Abandon
from tidemark.services.planner import BackfillRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture
def lake(spark: SparkSession, broker: BrokerStatus, tmp_path: Path) -> Lake:
    """A lake of this test's own; `lake.of(topic)` is a pipeline over a topic."""
    connection = {"bootstrap.servers": broker.bootstrap}
    return Lake(session=spark, root=tmp_path, connection=connection)


# -- what lands ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", ["streams-intro", "prices", "orders"])
def test_i1_samples_land_as_the_judge_reads_them(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, sample: str
) -> None:
    """S22, S23: every field of every record, each once, with where it came from."""
    name = topic(partitions=3)
    produce({"bootstrap.servers": broker.bootstrap}, sample, topic=name, records=200)
    done = lake.of(name).run("test")
    judge = read_all(broker.bootstrap, name)
    assert lake.judged() == judge
    assert done.landing.records == len(judge) == 200
    marks = lake.marks.topic_marks(name, IsolationLevel.READ_COMMITTED)
    assert {
        (row["topic"], row["topic_id"], row["plan_sequence"], row["ingested_at"])
        for row in lake.rows()
    } == {(name, marks.topic_id, 1, NOW)}


AWKWARD = [
    Record(key=None, value=None),
    Record(key=b"", value=b""),
    Record(key=b"tombstone", value=None),
    Record(key=None, value=b"no key"),
    Record(key=b"\x00\xff", value=bytes(range(256))),
    Record(headers=(("absent", None), ("empty", b""), ("binary", b"\x00\xff"))),
    Record(headers=(("twice", b"first"), ("other", b"x"), ("twice", b"second"), ("twice", None))),
    Record(headers=(("", b"no name"), ("näme", "wört".encode()))),
    Record(timestamp_ms=1),
    Record(timestamp_ms=1_767_225_600_999),
    Record(timestamp_ms=4_102_444_800_001),
    Record(value=b"x" * 200_000),
]


def test_s4_null_is_not_empty(lake: Lake, broker: BrokerStatus, topic: TopicFactory) -> None:
    """Absent and empty keys, values and headers, repeated names, any bytes, any millisecond."""
    anytime = {"message.timestamp.after.max.ms": str(2**62), "retention.ms": "-1"}
    name = topic(config=anytime)
    produce_records(broker.bootstrap, name, AWKWARD)
    lake.of(name).run("test")
    judge = read_all(broker.bootstrap, name)
    assert lake.judged() == judge
    assert [(r.key, r.value, r.headers) for r in judge] == [r[:3] for r in AWKWARD]


def test_s4_timestamps_of_the_broker_are_told_from_those_of_producers(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """The type is kept with the time."""
    name = topic(config={"message.timestamp.type": "LogAppendTime"})
    produce_values(broker.bootstrap, name, 3)
    lake.of(name).run("test")
    judge = read_all(broker.bootstrap, name)
    assert lake.judged() == judge
    assert {record.timestamp_type for record in judge} == {2}


def test_s3_a_second_run_takes_only_what_is_new(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """I1, I2: two runs add up to the log, and the committed offset is the next one to read."""
    pipeline = lake.of(topic(partitions=2))
    name = pipeline.spec.topic
    produce_values(broker.bootstrap, name, 4, partition=0)
    assert pipeline.run("first").landing.records == 4
    produce_values(broker.bootstrap, name, 3, partition=0)
    produce_values(broker.bootstrap, name, 2, partition=1)
    assert pipeline.run("second").landing.records == 5
    assert pipeline.planner.plan("third").plan is None
    assert lake.judged() == read_all(broker.bootstrap, name)
    assert pipeline.committed() == {0: 7, 1: 2}


# -- once ----------------------------------------------------------------------------------------


def test_i4_landing_twice_has_the_effect_of_once(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """S14: Delta skips the repeated transaction with success; not even an empty commit is made."""
    pipeline = lake.of(topic())
    produce_values(broker.bootstrap, pipeline.spec.topic, 5)
    plan = pipeline.plan("test")
    pipeline.sink.land(plan)
    version = pipeline.version()
    pipeline.sink.land(plan)
    assert pipeline.version() == version
    assert lake.judged() == read_all(broker.bootstrap, pipeline.spec.topic)


def test_i4_two_drivers_of_one_plan_both_end_well(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """S2: whichever is first, also to make the table, both confirm one landing, recorded once."""
    pipeline = lake.of(topic(partitions=2))
    name = pipeline.spec.topic
    together = Barrier(2, timeout=60)

    def drive(sequence: int) -> int:
        ingest = pipeline.ingest
        together.wait()
        return ingest.execute(sequence).landing.table_version

    with ThreadPoolExecutor(2) as drivers:
        for run in ("first", "second"):
            for partition in (0, 1):
                produce_values(broker.bootstrap, name, 50, partition=partition)
            sequence = pipeline.plan(run).sequence
            assert len(set(drivers.map(drive, [sequence, sequence]))) == 1
    assert lake.judged() == read_all(broker.bootstrap, name)
    assert pipeline.ledger.event_number == 4


def raise_transaction(lake: Lake, plan: Plan, version: int) -> None:
    """Commit nothing under the plan's application id, with another transaction version."""
    empty = lake.session.read.format("delta").load(lake.uri).limit(0)
    writer = empty.write.format("delta").mode("append")
    writer.option("txnAppId", plan.app_id).option("txnVersion", version).save(lake.uri)


def test_i7_a_stale_transaction_is_not_taken_for_a_landing(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """The table has the transaction: Spark reports success, writes nothing, and we notice."""
    pipeline = lake.of(topic())
    produce_values(broker.bootstrap, pipeline.spec.topic, 5)
    pipeline.run("first")
    produce_values(broker.bootstrap, pipeline.spec.topic, 5)
    plan = pipeline.plan("second")
    raise_transaction(pipeline, plan, plan.sequence)
    with pytest.raises(NotLanded):
        pipeline.ingest.execute(plan.sequence)
    assert len(lake.rows()) == 5
    assert pipeline.committed() == {0: 5}


def test_i5_the_commit_names_the_plan(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """Transaction, fingerprint and ranges are in the data table's log itself."""
    pipeline = lake.of(topic())
    produce_values(broker.bootstrap, pipeline.spec.topic, 5)
    done = pipeline.run("test")
    table = DeltaTable(pipeline.uri)
    assert table.transaction_version("tidemark:events:0") == 1
    (told,) = [
        json.loads(commit["userMetadata"])
        for commit in table.history()
        if commit["version"] == done.landing.table_version
    ]
    assert told["fingerprint"] == done.plan.fingerprint
    assert told["ranges"] == [[0, 0, 5]]


# -- holes and transactions ----------------------------------------------------------------------


def test_s6_a_range_without_records_lands_as_an_empty_commit(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """Aborted records and markers only: a commit with the plan's fingerprint, and on we go."""
    pipeline = lake.of(topic())
    produce_aborted(broker.bootstrap, pipeline.spec.topic, [Record(), Record()])
    done = pipeline.run("test")
    (count,) = done.landing.counts
    assert (count.records, count.holes) == (0, 3)
    assert pipeline.committed() == {0: 3}
    assert lake.rows() == []
    assert pipeline.table.find(done.plan) == done.landing
    assert pipeline.planner.plan("again").plan is None


def test_s6_holes_are_accounted_for(lake: Lake, broker: BrokerStatus, topic: TopicFactory) -> None:
    """Committed, aborted and plain records mixed: records and holes add up to the range."""
    pipeline = lake.of(topic())
    name = pipeline.spec.topic
    produce_committed(broker.bootstrap, name, [Record(value=b"a"), Record(value=b"b")])
    produce_aborted(broker.bootstrap, name, [Record(value=b"never")])
    produce_values(broker.bootstrap, name, 2)
    (count,) = pipeline.run("test").landing.counts
    assert (count.start, count.end, count.records, count.holes) == (0, 7, 4, 3)
    assert lake.judged() == read_all(broker.bootstrap, name)


def test_s8_an_open_transaction_is_read_when_it_has_ended(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """I1: planned to the last stable offset, so its records are neither read early nor lost."""
    pipeline = lake.of(topic())
    name = pipeline.spec.topic
    produce_values(broker.bootstrap, name, 2)
    with open_transaction(broker.bootstrap, name, [Record(value=b"late")]) as producer:
        produce_values(broker.bootstrap, name, 1)
        assert pipeline.run("first").landing.records == 2
        assert pipeline.committed() == {0: 2}
        assert pipeline.planner.plan("meanwhile").plan is None
        producer.commit_transaction(30)
    wait_until_stable(broker.bootstrap, name)
    assert pipeline.run("second").landing.records == 2
    assert lake.judged() == read_all(broker.bootstrap, name)
    assert b"late" in {row["value"] for row in lake.rows()}


def test_s8_read_uncommitted_lands_what_was_aborted(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """Who asks for everything gets everything but the markers."""
    pipeline = lake.of(topic(), isolation_level=IsolationLevel.READ_UNCOMMITTED)
    name = pipeline.spec.topic
    produce_aborted(broker.bootstrap, name, [Record(value=b"aborted")])
    pipeline.run("test")
    assert lake.judged() == read_all(broker.bootstrap, name, isolation="read_uncommitted")
    assert [row["value"] for row in lake.rows()] == [b"aborted"]


def test_s8_a_plan_is_read_as_it_was_planned(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """I4: the spec says another isolation level by the time the plan lands, and it is no matter."""
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
    assert lake.judged() == read_all(broker.bootstrap, name, isolation="read_committed")


# -- one history ---------------------------------------------------------------------------------


def test_i5_a_table_that_was_removed_is_not_made_again(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """The next run would land only what is new, and be green."""
    pipeline = lake.of(topic())
    produce_values(broker.bootstrap, pipeline.spec.topic, 3)
    pipeline.run("first")
    shutil.rmtree(pipeline.uri)
    produce_values(broker.bootstrap, pipeline.spec.topic, 2)
    with pytest.raises(TableBehindLedger):
        pipeline.plan("second")
    assert not Path(pipeline.uri).exists()


def test_i5_a_restored_table_is_noticed(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """RESTORE rolls rows back and transactions not; undoing it makes the pipeline go on."""
    pipeline = lake.of(topic())
    for run in ("first", "second"):
        produce_values(broker.bootstrap, pipeline.spec.topic, 3)
        landed = pipeline.run(run).landing
    DeltaTable(pipeline.uri).restore(landed.table_version - 1)
    with pytest.raises(TableRestored):
        pipeline.planner.plan("third")
    DeltaTable(pipeline.uri).restore(landed.table_version)
    produce_values(broker.bootstrap, pipeline.spec.topic, 3)
    pipeline.run("fourth")
    assert lake.judged() == read_all(broker.bootstrap, pipeline.spec.topic)


def test_i4_a_given_up_plan_cannot_land(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """The fence is an empty commit of delta-rs, and Spark respects it; the records land once."""
    pipeline = lake.of(topic())
    produce_values(broker.bootstrap, pipeline.spec.topic, 4)
    plan = pipeline.plan("first")
    abandon = Abandon(
        pipeline=plan.pipeline,
        marks=pipeline.marks,
        control=pipeline.control,
        table=pipeline.table,
        now=lambda: NOW,
    )
    abandon.give_up(plan.sequence, "test", "too large")
    pipeline.sink.land(plan)
    assert lake.rows() == []
    with pytest.raises(PlanAbandoned):
        pipeline.ingest.execute(plan.sequence)
    pipeline.run("second")
    assert lake.judged() == read_all(broker.bootstrap, pipeline.spec.topic)


def test_i5_a_landing_is_found_by_its_rows_when_the_log_has_forgotten_it(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """Commit metadata ends with log retention; the rows carry the plan's number themselves."""
    pipeline = lake.of(topic(partitions=2))
    produce_values(broker.bootstrap, pipeline.spec.topic, 5)
    plan = pipeline.plan("first")
    pipeline.table.prepare(plan.pipeline)
    pipeline.sink.land(plan)
    log = Path(pipeline.uri) / "_delta_log"
    DeltaTable(pipeline.uri).create_checkpoint()
    for commit in log.glob("*.json"):
        commit.unlink()
    done = pipeline.ingest.execute(plan.sequence)
    assert (done.wrote, done.landing.records) == (False, 5)
    assert lake.judged() == read_all(broker.bootstrap, pipeline.spec.topic)


# -- ranges --------------------------------------------------------------------------------------


def test_s12_a_long_range_is_split_over_tasks(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """One partition, several tasks and so several files, and every record once."""
    pipeline = lake.of(topic(), records_per_task=1_000)
    produce_values(broker.bootstrap, pipeline.spec.topic, 3_500)
    assert pipeline.run("test").landing.records == 3_500
    assert pipeline.files() == 4
    assert lake.judged() == read_all(broker.bootstrap, pipeline.spec.topic)


def test_i2_a_backfill_lands_around_what_is_there(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """Several ranges of one partition in one plan; nothing is doubled, nothing moves back."""
    pipeline = lake.of(topic(), start=StartPolicy.LATEST)
    name = pipeline.spec.topic
    produce_values(broker.bootstrap, name, 30)
    pipeline.planner.plan("begin here")

    def backfill(start: int, end: int) -> Plan:
        request = BackfillRequest(partition=0, start=start, end=end)
        plan = pipeline.planner.backfill(request, f"fill {start} to {end}").plan
        assert plan is not None
        pipeline.ingest.execute(plan.sequence)
        return plan

    backfill(5, 8)
    backfill(20, 22)
    wide = backfill(2, 25)
    assert [(r.start, r.end) for r in wide.ranges] == [(2, 5), (8, 20), (22, 25)]
    landing = pipeline.ledger.plans[wide.sequence].landing
    assert landing is not None
    assert [count.records for count in landing.counts] == [3, 12, 3]
    assert lake.judged() == read_ranges(broker.bootstrap, name, {0: (2, 25)})
    assert pipeline.committed() == {0: 30}


# -- refusals ------------------------------------------------------------------------------------


def contents(folder: Path) -> set[tuple[str, int]]:
    """Every file below a folder, with its size."""
    return {
        (str(file.relative_to(folder)), file.stat().st_size)
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize("kind", ["delta", "parquet", "text", "pipeline", "shape"])
def test_i7_a_table_of_somebody_else_is_left_alone(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, kind: str
) -> None:
    """Another owner's Delta table, plain files, another pipeline's table, a changed one."""
    pipeline = lake.of(topic())
    produce_values(broker.bootstrap, pipeline.spec.topic, 2)
    session, uri = lake.session, Path(lake.uri)
    if kind in ("delta", "parquet"):
        session.range(3).write.format(kind).save(lake.uri)
    elif kind == "text":
        uri.mkdir(parents=True)
        (uri / "notes.txt").write_text("do not lose me")
    elif kind == "pipeline":
        pipeline.of(pipeline.spec.topic, name="other").run("other")
    else:
        owned = "TBLPROPERTIES ('tidemark.pipeline' = 'events')"
        session.sql(f"CREATE TABLE delta.`{uri}` (offset STRING, `key` BINARY) USING delta {owned}")
    before = contents(uri)
    plan = pipeline.plan("test")
    with pytest.raises(ForeignTable) as caught:
        pipeline.ingest.execute(plan.sequence)
    assert caught.value.target == lake.uri
    assert contents(uri) == before
    assert pipeline.committed() == {0: 0}


def make_again(admin: AdminClient, name: str) -> None:
    """Delete a topic and make it again as soon as its name is free."""
    admin.delete_topics([name])[name].result(timeout=30)
    deadline = time.monotonic() + 30
    while True:
        try:
            admin.create_topics([NewTopic(name, num_partitions=1)])[name].result(timeout=30)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def test_s5_a_topic_made_again_between_plan_and_landing_is_refused(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, admin: AdminClient
) -> None:
    """I7: the new topic has the planned offsets; Spark would have landed its records."""
    pipeline = lake.of(topic())
    name = pipeline.spec.topic
    produce_values(broker.bootstrap, name, 5)
    plan = pipeline.plan("test")
    make_again(admin, name)
    produce_values(broker.bootstrap, name, 9)
    with pytest.raises(TopicRecreated) as caught:
        pipeline.ingest.execute(plan.sequence)
    assert caught.value.known_topic_id == plan.topic_id
    assert caught.value.current_topic_id != plan.topic_id
    assert pipeline.version() is None
    assert pipeline.committed() == {0: 0}


def test_s7_records_deleted_between_plan_and_landing_are_a_lost_range(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, admin: AdminClient
) -> None:
    """I7: the offsets are named, nothing is written, nothing is skipped."""
    pipeline = lake.of(topic())
    name = pipeline.spec.topic
    produce_values(broker.bootstrap, name, 5)
    plan = pipeline.plan("test")
    for answer in admin.delete_records([TopicPartition(name, 0, 3)]).values():
        answer.result(timeout=30)
    with pytest.raises(LostRange) as caught:
        pipeline.ingest.execute(plan.sequence)
    assert (caught.value.start, caught.value.end) == (0, 3)
    assert pipeline.version() is None
    assert pipeline.committed() == {0: 0}


def test_a_failure_of_the_engine_is_named(lake: Lake) -> None:
    """What Spark says in a hundred lines is told in one, with what was being done."""
    pipeline = lake.of("nowhere")
    pipeline.table.prepare("events")
    (Path(pipeline.uri) / "_delta_log" / f"{1:020}.json").write_text("not JSON")
    with pytest.raises(EngineFailed, match="landing plan 1 of pipeline 'events'") as caught:
        pipeline.sink.land(make_plan((0, 0, 5), topic="nowhere"))
    assert "\n" not in caught.value.reason
    assert 0 < len(caught.value.reason) <= 500
