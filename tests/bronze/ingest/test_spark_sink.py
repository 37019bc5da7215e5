"""Tests of landing with real Kafka, Spark and Delta, compared with librdkafka's records."""

from __future__ import annotations

import json
import shutil
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException

from tests.conftest import TopicFactory
from tests.support.disks import read_only
from tests.support.kafka_judge import read_all, read_ranges
from tests.support.lake import Lake
from tests.support.plans import make_plan, wanted
from tests.support.services import NOW
from tests.support.transactions import produce_values
from tidemark.bronze.ingest.spark_sink import SparkSink
from tidemark.core.errors import PlanCannotLand, TableBehindLedger, TidemarkError
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan
from tidemark.core.watermarks import IsolationLevel
from tidemark.delta.errors import (
    DeltaLogDamaged,
    EngineFailed,
    ForeignTable,
    StorageRefused,
    TableAltered,
)
from tidemark.kafka.errors import KafkaRefused, KafkaUnavailable
from tidemark.local.broker import BrokerStatus
from tidemark.local.producer import produce
from tidemark.spec.model import StartPolicy
from tidemark.spec.ref import PipelineRef

pytestmark = [pytest.mark.broker, pytest.mark.spark]


# -- records -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", ["streams-intro", "prices", "orders"])
def test_s22_s23_i1_samples_land_as_librdkafka_reads_them(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, sample: str
) -> None:
    name = topic(partitions=3)
    produce({"bootstrap.servers": broker.bootstrap}, sample, topic=name, records=200)
    done = lake.of(name).run("test")
    judge = read_all(broker.bootstrap, name)
    assert lake.delivered_rows() == judge
    assert done.landing.records == len(judge) == 200
    watermarks = lake.watermarks.topic_watermarks(name, IsolationLevel.READ_COMMITTED)
    assert {
        (row["topic"], row["topic_id"], row["plan_sequence"], row["ingested_at"])
        for row in lake.rows()
    } == {(name, watermarks.topic_id, 1, NOW)}


def test_i1_i2_s3_a_second_run_lands_only_new_records(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    pipeline = lake.of(topic(partitions=2))
    name = pipeline.spec.topic
    produce_values(broker.bootstrap, name, 4, partition=0)
    assert pipeline.run("first").landing.records == 4
    produce_values(broker.bootstrap, name, 3, partition=0)
    produce_values(broker.bootstrap, name, 2, partition=1)
    assert pipeline.run("second").landing.records == 5
    assert pipeline.planner.plan("third").plan is None
    assert lake.delivered_rows() == read_all(broker.bootstrap, name)
    assert pipeline.committed() == {0: 7, 1: 2}


# -- repetition ----------------------------------------------------------------------------------


def test_s14_i4_landing_a_plan_twice_makes_no_second_commit(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    pipeline = lake.of(topic())
    produce_values(broker.bootstrap, pipeline.spec.topic, 5)
    plan = pipeline.plan("test")
    pipeline.table.prepare(plan.pipeline)
    pipeline.land(plan)
    version = pipeline.version()
    pipeline.land(plan)
    assert pipeline.version() == version
    assert lake.delivered_rows() == read_all(broker.bootstrap, pipeline.spec.topic)


def test_a_plan_that_exceeds_the_memory_is_read_one_record_at_a_time(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of the first attempt do not land."""
    pipeline = lake.of(topic())
    produce_values(broker.bootstrap, pipeline.spec.topic, 5)
    write, options = SparkSink._write_rounds, []

    def without_memory(sink: SparkSink, *arguments: Any) -> None:
        options.append(arguments[-1])
        write(sink, *arguments)
        if len(options) == 1:
            raise PySparkException("java.lang.OutOfMemoryError")

    monkeypatch.setattr(SparkSink, "_write_rounds", without_memory)
    monkeypatch.setattr("tidemark.bronze.ingest.spark_sink._is_out_of_memory", lambda _: True)
    monkeypatch.setattr("tidemark.bronze.ingest.spark_sink._CACHE_S", 0)
    assert pipeline.run("test").landing.records == 5
    assert options == [{}, {"kafka.max.poll.records": "1"}]
    assert lake.delivered_rows() == read_all(broker.bootstrap, pipeline.spec.topic)


def raise_transaction(lake: Lake, plan: Plan, version: int) -> None:
    """Commit no rows under the plan's application id, with another transaction version."""
    empty = lake.session.read.format("delta").load(str(lake.uri)).limit(0)
    writer = empty.write.format("delta").mode("append")
    writer.option("txnAppId", plan.app_id).option("txnVersion", version).save(str(lake.uri))


def test_i7_a_fenced_transaction_is_not_mistaken_for_a_landing(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    pipeline = lake.of(topic())
    produce_values(broker.bootstrap, pipeline.spec.topic, 5)
    pipeline.run("first")
    produce_values(broker.bootstrap, pipeline.spec.topic, 5)
    plan = pipeline.plan("second")
    raise_transaction(pipeline, plan, plan.sequence)
    pipeline.land(plan)
    assert pipeline.table.find_landing(plan) is None
    with pytest.raises(PlanCannotLand, match="fenced its transaction"):
        pipeline.ingest.execute(plan.sequence)
    assert len(lake.rows()) == 5
    assert pipeline.committed() == {0: 5}


def test_i5_the_commit_contains_transaction_fingerprint_and_ranges(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    pipeline = lake.of(topic())
    produce_values(broker.bootstrap, pipeline.spec.topic, 5)
    done = pipeline.run("test")
    table = DeltaTable(pipeline.uri)
    assert table.transaction_version("tidemark:events:0") == 1
    (metadata,) = [
        json.loads(commit["userMetadata"])
        for commit in table.history()
        if commit["version"] == done.landing.table_version
    ]
    assert metadata["fingerprint"] == done.plan.fingerprint
    assert metadata["ranges"] == [[0, 0, 5]]


# -- data table -----------------------------------------------------------------------------------


def test_i5_a_removed_table_is_not_recreated(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """The next run would land only new records and succeed."""
    pipeline = lake.of(topic())
    produce_values(broker.bootstrap, pipeline.spec.topic, 3)
    pipeline.run("first")
    shutil.rmtree(pipeline.uri)
    produce_values(broker.bootstrap, pipeline.spec.topic, 2)
    with pytest.raises(TableBehindLedger):
        pipeline.plan("second")
    assert not pipeline.uri.exists()


def test_i5_a_restore_is_detected_and_can_be_reverted(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """RESTORE removes rows and keeps transactions."""
    pipeline = lake.of(topic())
    for run in ("first", "second"):
        produce_values(broker.bootstrap, pipeline.spec.topic, 3)
        landed = pipeline.run(run).landing
    DeltaTable(pipeline.uri).restore(landed.table_version - 1)
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        pipeline.planner.plan("third")
    DeltaTable(pipeline.uri).restore(landed.table_version)
    produce_values(broker.bootstrap, pipeline.spec.topic, 3)
    pipeline.run("fourth")
    assert lake.delivered_rows() == read_all(broker.bootstrap, pipeline.spec.topic)


def test_i5_a_landing_is_found_by_its_rows_if_the_log_lost_its_commit(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """Delta removes commits after the log's retention."""
    pipeline = lake.of(topic(partitions=2))
    produce_values(broker.bootstrap, pipeline.spec.topic, 5)
    plan = pipeline.plan("first")
    pipeline.table.prepare(plan.pipeline)
    pipeline.land(plan)
    log = pipeline.uri / "_delta_log"
    DeltaTable(pipeline.uri).create_checkpoint()
    for commit in log.glob("*.json"):
        commit.unlink()
    done = pipeline.ingest.execute(plan.sequence)
    assert (done.wrote, done.landing.records) == (False, 5)
    assert lake.delivered_rows() == read_all(broker.bootstrap, pipeline.spec.topic)


# -- ranges --------------------------------------------------------------------------------------


def test_s12_s16_a_long_range_is_split_over_tasks(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    pipeline = lake.of(topic(), records_per_task=1_000)
    produce_values(broker.bootstrap, pipeline.spec.topic, 3_500)
    assert pipeline.run("test").landing.records == 3_500
    assert pipeline.files() == 4
    assert lake.delivered_rows() == read_all(broker.bootstrap, pipeline.spec.topic)


def test_s16_tasks_have_even_shares_if_one_partition_has_90_percent_of_the_records(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """Each task writes one file."""
    pipeline = lake.of(topic(partitions=3), records_per_task=100)
    for partition, count in enumerate((1_800, 100, 100)):
        produce_values(broker.bootstrap, pipeline.spec.topic, count, partition)
    pipeline.run("test")
    files = pa.table(DeltaTable(pipeline.uri).get_add_actions(flatten=True))
    assert files["num_records"].to_pylist() == [100] * 20
    assert lake.delivered_rows() == read_all(broker.bootstrap, pipeline.spec.topic)


def test_i2_a_backfill_lands_only_missing_offsets(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    pipeline = lake.of(topic(), start=StartPolicy.LATEST)
    name = pipeline.spec.topic
    produce_values(broker.bootstrap, name, 30)
    pipeline.planner.plan("begin here")

    def backfill(start: int, end: int) -> Plan:
        request = wanted((0, start, end))
        plan = pipeline.planner.backfill(request, RunOrigin(f"fill {start} to {end}")).plan
        assert plan is not None
        pipeline.ingest.execute(plan.sequence)
        return plan

    backfill(5, 8)
    backfill(20, 22)
    wide = backfill(2, 25)
    assert [(r.start, r.end) for r in wide.ranges] == [(2, 5), (8, 20), (22, 25)]
    landing = pipeline.ledger.plans[wide.sequence].held_now
    assert landing is not None
    assert [count.records for count in landing.counts] == [3, 12, 3]
    assert lake.delivered_rows() == read_ranges(broker.bootstrap, name, {0: (2, 25)})
    assert pipeline.committed() == {0: 30}


# -- refusals ------------------------------------------------------------------------------------


def contents(folder: Path) -> set[tuple[str, int]]:
    return {
        (str(file.relative_to(folder)), file.stat().st_size)
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize("kind", ["delta", "parquet", "text", "pipeline", "shape"])
def test_i7_a_foreign_table_is_not_changed(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory, kind: str
) -> None:
    """Covers Delta tables, plain files, a table of another pipeline, and an altered table."""
    pipeline = lake.of(topic())
    produce_values(broker.bootstrap, pipeline.spec.topic, 2)
    session, uri = lake.session, lake.uri
    if kind in ("delta", "parquet"):
        session.range(3).write.format(kind).save(str(uri))
    elif kind == "text":
        uri.mkdir(parents=True)
        (uri / "notes.txt").write_text("do not lose me")
    elif kind == "pipeline":
        pipeline.of(pipeline.spec.topic, ref=PipelineRef("other")).run("other")
    else:
        owned = "TBLPROPERTIES ('tidemark.pipeline' = 'events')"
        session.sql(f"CREATE TABLE delta.`{uri}` (offset STRING, `key` BINARY) USING delta {owned}")
    before = contents(uri)
    refusals: dict[str, type[TidemarkError]] = {
        "shape": TableAltered,
        "parquet": DeltaLogDamaged,
    }
    with pytest.raises(refusals.get(kind, ForeignTable)) as caught:
        pipeline.plan("test")
    assert str(lake.uri) in str(caught.value)
    assert contents(uri) == before
    assert pipeline.ledger.event_number == 0


def test_i7_a_foreign_table_created_after_planning_is_not_changed(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """The plan stays open and lands once the location is free again."""
    pipeline = lake.of(topic())
    produce_values(broker.bootstrap, pipeline.spec.topic, 2)
    plan = pipeline.plan("test")
    lake.session.range(3).write.format("delta").save(str(lake.uri))
    before = contents(lake.uri)
    with pytest.raises(ForeignTable):
        pipeline.ingest.execute(plan.sequence)
    assert contents(lake.uri) == before
    shutil.rmtree(lake.uri)
    assert pipeline.ingest.execute(plan.sequence).landing.records == 2


def test_a_spark_failure_is_an_engine_failed_error_with_a_one_line_reason(lake: Lake) -> None:
    pipeline = lake.of("nowhere")
    pipeline.table.prepare("events")
    (pipeline.uri / "_delta_log" / f"{1:020}.json").write_text("not JSON")
    with pytest.raises(EngineFailed, match="while landing plan 1 of pipeline 'events'") as caught:
        pipeline.land(make_plan((0, 0, 5), topic="nowhere"))
    assert "\n" not in caught.value.reason
    assert 0 < len(caught.value.reason) <= 500


def test_spark_failing_to_write_files_raises_storage_refused(
    lake: Lake, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """Spark reads and writes the plan in one job."""
    pipeline = lake.of(topic())
    produce_values(broker.bootstrap, pipeline.spec.topic, 2)
    plan = pipeline.plan("test")
    pipeline.table.prepare("events")
    with read_only(pipeline.uri), pytest.raises(StorageRefused) as caught:
        pipeline.sink.write(plan, 1000)
    assert caught.value.rendered("problem").startswith(
        f"The storage refused landing plan 1 of pipeline 'events' at {pipeline.uri}"
    )
    assert caught.value.reason == "Read-only file system"
    assert pipeline.ingest.execute(plan.sequence).landing.records == 2


# -- Kafka that does not answer ------------------------------------------------------------------

_ERRORS = "org.apache.kafka.common.errors"


@pytest.mark.parametrize(
    ("kind", "message", "error", "reason"),
    [
        (
            f"{_ERRORS}.TimeoutException",
            "Timeout of 60000ms expired before the position for partition t-1 could be determined",
            KafkaUnavailable,
            "Timeout of 60000ms expired before the position for partition t-1 could be determined",
        ),
        (
            f"{_ERRORS}.DisconnectException",
            None,
            KafkaUnavailable,
            "DisconnectException of topic t",
        ),
        (
            "java.util.concurrent.TimeoutException",
            "Cannot fetch record for offset 5 in 120000 milliseconds",
            KafkaUnavailable,
            "no answer for offset 5 of t-1 in 120000 ms",
        ),
        (
            "org.apache.kafka.common.config.ConfigException",
            "No resolvable bootstrap urls given in bootstrap.servers",
            KafkaUnavailable,
            "No resolvable bootstrap urls given in bootstrap.servers",
        ),
        (f"{_ERRORS}.SaslAuthenticationException", "no user", KafkaRefused, "no user"),
        ("java.util.concurrent.TimeoutException", "Futures timed out", EngineFailed, None),
    ],
)
def test_an_exception_of_kafkas_client_in_a_task_is_an_error_of_kafka(
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    message: str | None,
    error: type[TidemarkError],
    reason: str | None,
) -> None:
    """The error names the partition where the exception does, or where its offset is planned."""
    plan = make_plan((0, 0, 5), (1, 0, 9), topic="t")

    def failing(*_: object, **__: object) -> None:
        jvm: Any = lake.session._jvm
        thrown = reduce(getattr, kind.split("."), jvm)(*([] if message is None else [message]))
        failed = jvm.java.util.concurrent.CompletableFuture()
        failed.completeExceptionally(thrown)
        failed.get()

    monkeypatch.setattr(SparkSink, "_write_with_spark", failing)
    pipeline = lake.of("t")
    pipeline.table.prepare("events")
    with pytest.raises(error) as caught:
        pipeline.sink.write(plan, 1000)
    assert type(caught.value) is error
    assert "plan 1 of pipeline 'events'" in str(caught.value)
    if reason is not None:
        assert getattr(caught.value, "reason", None) == reason
