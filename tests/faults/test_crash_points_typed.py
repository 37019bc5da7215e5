"""Processes that decode and merge are killed at their steps and run again.

tests/faults/test_nested_operations.py kills decodes at each step in one process.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.conftest import TopicFactory
from tests.faults.tally import TableJudge
from tests.faults.test_crash_points import points
from tests.support.crashes import Running, Site
from tests.support.registry import Registry, avro_bytes, framed
from tests.support.transactions import Record, produce_records
from tests.support.waiting import wait_until
from tidemark.local.broker import BrokerStatus
from tidemark.spec.ref import DecodeRef, MergeRef

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.e2e]

_DECODE = """
decode:
  publish: always
  key: {format: string}
  value: {format: json, schema: {n: long}}
  quarantine: {records: 100}
  upsert: {deletes: hard, deletion_vectors: true}
"""
_AVRO = """
decode:
  publish: always
  value: {format: avro}
"""
_COUNT = {"type": "record", "name": "Count", "fields": [{"name": "n", "type": "long"}]}


@pytest.fixture
def site(spark: SparkSession, broker: BrokerStatus, topic: TopicFactory, tmp_path: Path) -> Site:
    """Return a pipeline with landed records, some of which cannot be decoded."""
    site = Site(
        home=tmp_path,
        bootstrap=broker.bootstrap,
        topic=topic(partitions=2),
        session=spark,
        more=_DECODE,
    )
    land(site, 0)
    return site


def land(site: Site, first: int) -> None:
    """Produce and land twenty records, numbered from `first`."""
    records = [
        Record(value=value(first + n), key=b"k%d" % (n % 7), partition=n % 2) for n in range(20)
    ]
    produce_records(site.bootstrap, site.topic, records)
    site.lake.run(f"a run of {first}")


def value(number: int) -> bytes | None:
    """Return the value of a record: every fifth is invalid, some are null."""
    if number % 5 == 4:
        return b"no"
    return None if number % 6 == 3 else b'{"n": %d}' % number


def rows(site: Site, target: str) -> list[dict[str, Any]]:
    """Return the rows of a table by partition and offset."""
    found: list[dict[str, Any]] = pa.table(
        DeltaTable(site.app.layout.data_table(target)).scan()
    ).to_pylist()
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def decode(site: Site) -> None:
    """Decode all remaining rows in this process."""
    site.app.pipeline("events").typed.decode()


def assert_settled(table_judge: TableJudge, site: Site) -> None:
    """Check that each bronze row equals the log and is decoded or quarantined once."""
    table_judge.check(site.lake)
    remaining = {(row["partition"], row["offset"]): row["value"] for row in site.lake.rows()}
    for row in rows(site, "silver/events"):
        payload = remaining.pop((row["partition"], row["offset"]))
        assert row["value"] == (None if payload is None else json.loads(payload))
    for row in rows(site, "silver/events_quarantine"):
        assert remaining.pop((row["partition"], row["offset"])) == b"no"
    assert remaining == {}
    typed = site.app.pipeline("events").typed
    assert set(asdict(typed.backlog()).values()) == {0}
    typed.verifier.verify().check()


# -- decoding ------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", points("control.rows_since:1", "tables.prepare:1"))
def test_a_decode_killed_while_it_looks_for_work_leaves_the_records_to_the_next_one(
    table_judge: TableJudge, site: Site, at: str
) -> None:
    command = site.tidemark("decode", "events", "--master=local[2]")
    site.crash(command, at)
    site.run(command)
    assert_settled(table_judge, site)


BETWEEN = ("typed.commit:after:1", "quarantine.commit:before:1")
"""Fail points after the commit to the typed table and before the commit to the quarantine."""


@pytest.mark.parametrize(
    "at",
    points(
        *("tables.prepare:1", "control.rows_since:3", "decoder.decode:1"),
        *("typed.commit:1", "quarantine.commit:1"),
    ),
)
def test_i1_a_killed_decoder_decodes_once(table_judge: TableJudge, site: Site, at: str) -> None:
    """Between both commits, the status reports that the quarantine is behind."""
    driver = site.driver("decode", DecodeRef(pipeline="events"))
    site.crash(driver, at)
    assert site.app.pipeline("events").typed.state().backlog.quarantine_behind == (at in BETWEEN)
    site.run(driver)
    assert_settled(table_judge, site)


@pytest.mark.faults
def test_i4_two_concurrent_decoders_decode_once(table_judge: TableJudge, site: Site) -> None:
    """The first is stopped after it has written its files, and commits nothing later."""
    driver = site.driver("decode", DecodeRef(pipeline="events"))
    typed = Path(site.app.layout.data_table("silver/events"))
    with site.started(driver) as first:
        wait_until(lambda: list(typed.glob("*/*.parquet")))
        send_signal(first, signal.SIGSTOP)
        assert rows(site, "silver/events") == []
        site.run(driver)
        version = DeltaTable(typed).version()
        send_signal(first, signal.SIGCONT)
        ended = first.wait()
    assert ended.code == 0, ended.printed
    assert_settled(table_judge, site)
    assert DeltaTable(typed).version() == version


def send_signal(running: Running, number: signal.Signals) -> None:
    """Send a signal to all processes of a session."""
    for pid in running.members():
        os.kill(pid, number)


@pytest.mark.registry
@pytest.mark.parametrize("at", points("schemas.store:1"))
def test_i1_a_decoder_killed_while_storing_a_schema_stores_it_once(
    spark: SparkSession,
    broker: BrokerStatus,
    topic: TopicFactory,
    tmp_path: Path,
    registry: Registry,
    at: str,
) -> None:
    site = Site(
        home=tmp_path,
        bootstrap=broker.bootstrap,
        topic=topic(partitions=1),
        session=spark,
        environ=registry.environ(),
        more=_AVRO,
    )
    schema = registry.register(f"{site.topic}-value", _COUNT)
    values = [framed(schema, avro_bytes(_COUNT, {"n": n})) for n in range(9)]
    records = [Record(value=each, partition=0) for each in (*values, b"no")]
    produce_records(site.bootstrap, site.topic, records)
    site.lake.run("a run")
    command = site.tidemark("decode", "events", "--master=local[2]")
    site.crash(command, at)
    site.run(command)
    assert [row["value"] for row in rows(site, "silver/events")] == [{"n": n} for n in range(9)]
    assert [row["offset"] for row in rows(site, "silver/events_quarantine")] == [9]
    schemas = pa.table(DeltaTable(site.app.layout.schema_table).scan()).to_pylist()
    assert [row["schema_id"] for row in schemas] == [schema]


# -- upsert table --------------------------------------------------------------------------------


@pytest.mark.parametrize("at", points("merger.merge:1", "merger.compact:1"))
def test_a_killed_merge_is_completed_once_when_repeated(
    table_judge: TableJudge, site: Site, at: str
) -> None:
    """The merge replaces more than a tenth of the rows, so that a compaction follows."""
    decode(site)
    assert site.app.pipeline("events").upsert.merge() is not None
    land(site, 20)
    decode(site)
    merge = site.app.pipeline("events").upsert.planner.next()
    assert merge is not None
    site.crash(site.driver("upsert", MergeRef(pipeline="events", version=merge.version)), at)
    again = site.run(site.tidemark("upsert", "events", "--master=local[2]"))
    assert ("nothing to do" in again.printed) == (at != "merger.merge:before:1")
    assert site.app.pipeline("events").upsert.planner.next() is None
    newest: dict[tuple[int, str], tuple[int, Any]] = {}
    for row in rows(site, "silver/events"):
        newest[row["partition"], row["key"]] = (row["offset"], row["value"])
    expected = {place: row for place, row in newest.items() if row[1] is not None}
    found = {
        (row["partition"], row["key"]): (row["offset"], row["value"])
        for row in rows(site, "silver/events_latest")
    }
    assert found == expected
    assert len(rows(site, "silver/events_latest")) == len(expected) < len(newest)
    assert_settled(table_judge, site)
