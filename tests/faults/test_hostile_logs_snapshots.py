"""Hostile logs: a broker whose disk, with its leader epochs, was restored from a snapshot."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from tests.faults.tally import TableJudge
from tests.support.lake import Lake
from tests.support.topics import make_topic
from tests.support.transactions import (
    Record,
    produce_aborted,
    produce_committed,
    produce_records,
    produce_values,
)
from tests.support.waiting import wait_until
from tidemark.bronze.ingest.errors import LogTruncated
from tidemark.core.errors import EndBehindCommitted
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.local.broker import Broker, BrokerConfig
from tidemark.local.broker_settings import data_folder
from tidemark.spec.layout import Layout
from tidemark.spec.ref import PipelineRef

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.faults]

NODE = 1


@dataclass(frozen=True)
class OwnBroker:
    """A separate broker for this test, with a disk that the test can restore."""

    broker: Broker
    data: Path
    copy: Path

    @property
    def bootstrap(self) -> str:
        return self.broker.status().bootstrap

    def snapshot(self) -> None:
        """Copy the data folder while no process writes to it."""
        self.broker.stop()
        shutil.copytree(self.data, self.copy)
        self.broker.start()

    def restore(self) -> None:
        """Replace the data folder by its copy: records, leader epochs, metadata."""
        self.broker.stop()
        shutil.rmtree(self.data)
        shutil.copytree(self.copy, self.data)
        self.broker.start()


@pytest.fixture
def own(layout: Layout, tmp_path: Path) -> Iterator[OwnBroker]:
    home = tmp_path / "broker"
    broker = Broker(BrokerConfig(home=home, jars=layout.kafka_jars, heap_mb=256))
    try:
        broker.start()
        yield OwnBroker(broker, data_folder(home, NODE), tmp_path / "copy")
    finally:
        broker.stop()


def values(text: bytes, count: int) -> list[Record]:
    return [Record(value=b"%s %d" % (text, number)) for number in range(count)]


def follow_fixes(lake: Lake, table_judge: TableJudge) -> int:
    """Follow the fixes in errors until no run is left; return the number of errors."""
    refusals = 0
    for attempt in range(10):
        try:
            for record in lake.ledger.open_plans():
                lake.ingest.execute(record.plan.sequence)
            if (plan := lake.planner.plan(f"after {attempt}").plan) is None:
                break
            lake.ingest.execute(plan.sequence)
        except (LogTruncated, EndBehindCommitted) as error:
            refusals += 1
            if not error.undo:
                raise
            for number in error.undo:
                lake.undo.undo(number, "ops", "the broker was restored", allow_loss=True)
    assert table_judge.check(lake).exact
    lake.verify.verify().check()
    status = lake.status()
    assert (status.problem, status.lag) == (None, 0)
    return refusals


def test_i3_no_record_is_skipped_after_a_broker_was_restored_from_a_snapshot(
    own: OwnBroker, spark: SparkSession, tmp_path: Path, table_judge: TableJudge
) -> None:
    """Covers landed offsets with new records, and logs without a change."""
    admin = AdminClient({"bootstrap.servers": own.bootstrap, "log_level": 0})
    base = Lake(
        session=spark,
        root=tmp_path / "lake",
        connection={"bootstrap.servers": own.bootstrap},
    )

    def lake(name: str) -> Lake:
        make_topic(admin, own.bootstrap, name)
        produce_values(own.bootstrap, name, 30)
        return base.of(name, ref=PipelineRef(name), target=f"bronze/{name}")

    skipped, equal, gap, between, quiet = map(lake, ("skipped", "equal", "gap", "between", "quiet"))
    produce_committed(own.bootstrap, "quiet", values(b"committed", 3))
    produce_aborted(own.bootstrap, "quiet", values(b"aborted", 3))
    for some in (gap, quiet):
        some.run("before the snapshot")
    own.snapshot()
    for some in (skipped, equal, gap, between):
        produce_records(own.bootstrap, some.spec.topic, values(b"lost", 30))
    for some in (skipped, equal, gap):
        some.run("after the snapshot")
    gap.undo.undo(1, "ops", "a gap below the cut")
    between.plan("planned before the disk is restored")

    own.restore()
    # A broker that has just started can be behind the leader epochs of its own metadata.
    wait_until(lambda: not isinstance(skipped.status().problem, KafkaUnavailable))
    assert isinstance(skipped.status().problem, EndBehindCommitted)
    for some, count in ((skipped, 40), (equal, 30), (gap, 40), (between, 40)):
        produce_records(own.bootstrap, some.spec.topic, values(b"new", count))
    for some in (skipped, equal, gap):
        problem = some.status().problem
        assert isinstance(problem, LogTruncated)
        assert problem.leader_epoch is None
    # The log ends where the plan ended, and other records are in these offsets.
    assert equal.status().lag is None
    assert quiet.status().problem is None
    before = skipped.rows()
    with pytest.raises(LogTruncated):
        skipped.run("refused")
    assert skipped.rows() == before

    equal.undo.undo(1, "ops", "what the status names", allow_loss=True)
    assert follow_fixes(skipped, table_judge) == 1
    assert follow_fixes(gap, table_judge) == 1
    assert follow_fixes(equal, table_judge) == 0
    assert follow_fixes(between, table_judge) == 0
    produce_values(own.bootstrap, "quiet", 3)
    assert follow_fixes(quiet, table_judge) == 0
