"""Tests of landing and decoding on a Spark standalone cluster, with killed executors.

Master, workers, executors and driver are processes. The proxy before Kafka holds the fetches of the
executors. Each executor is in the middle of a task when one of them is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pytest
import yaml
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from tests.conftest import TopicFactory
from tests.faults.tally import TableJudge
from tests.faults.test_crash_points import assert_settled, landings
from tests.support.crashes import Running, Site, reads_from
from tests.support.mid_read import LONG
from tests.support.protobuf import proto_bytes
from tests.support.proxy import Gate, ProxiedBroker
from tests.support.registry import Registry, framed
from tests.support.standalone import WORKERS, Standalone, event_log, standalone_cluster, tasks
from tests.support.topics import make_topic
from tests.support.transactions import Record, produce_records
from tests.support.waiting import wait_until
from tidemark.core.errors import ExitCode
from tidemark.local.broker import BrokerStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.e2e]

_PARTITIONS = 2
"""Each is read by one task: the `LONG` records, at most three fetches of 4 MiB."""
_NO_TASK_ENDS = 9 * 1024 * 1024
"""Bytes that pass before the proxy holds the rest.

They are more than two fetches, so at least one task has rows to write. They are less than one task
reads, so no task ends."""

EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


_TRADE = 'syntax = "proto3"; message Trade { int64 id = 1; }'
_MESSAGES = 500
_DECODE = {
    "publish": "always",
    "key": {"format": "binary"},
    "value": {"format": "protobuf"},
    "target": "silver/trades",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    home = tmp_path / "cluster"
    home.mkdir()
    with standalone_cluster(home) as cluster:
        yield cluster


@pytest.fixture
def site(spark: SparkSession, proxied: ProxiedBroker, tmp_path: Path) -> Site:
    """Return a pipeline over 24 MB, read by two tasks through the proxy."""
    name = f"standalone-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": proxied.direct, "log_level": 0})
    make_topic(admin, proxied.direct, name, partitions=_PARTITIONS)
    partitions = range(_PARTITIONS)
    records = [record._replace(partition=each) for each in partitions for record in LONG]
    produce_records(proxied.direct, name, records)
    site = Site(home=tmp_path, bootstrap=proxied.bootstrap, topic=name, session=spark)
    configure(site, spark=EXECUTORS)
    return site


def configure(site: Site, **sections: Mapping[str, Any]) -> None:
    file = site.specs / "events.yaml"
    spec = yaml.safe_load(file.read_text())
    for name, settings in sections.items():
        spec.setdefault(name, {}).update(settings)
    file.write_text(yaml.safe_dump(spec))


@contextmanager
def ingesting(site: Site, cluster: Standalone) -> Iterator[Running]:
    """Run `tidemark ingest` on the cluster during the block."""
    with site.started(site.tidemark("ingest", "events", f"--master={cluster.url}")) as running:
        yield running


def wait_for_success(running: Running) -> None:
    ended = running.wait()
    assert ended.code == ExitCode.OK, ended.printed


def wait_until_both_read(cluster: Standalone, proxied: ProxiedBroker) -> list[int]:
    """Wait until two executors have a connection to Kafka; return their process ids."""

    def reading() -> list[int]:
        return [pid for pid in cluster.executors() if reads_from(pid, proxied.proxy.port)]

    wait_until(lambda: len(reading()) == WORKERS)
    return reading()


def writers(site: Site, cluster: Standalone) -> list[int]:
    """Return the process ids of executors with an open data file of the table."""
    return [pid for pid in cluster.executors() if writes_to(site.lake.uri, pid)]


def writes_to(uri: Path, pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        files = (Path(file.path) for file in psutil.Process(pid).open_files())
        return any(file.suffix == ".parquet" and file.is_relative_to(uri) for file in files)
    return False


# -- executors -----------------------------------------------------------------------------------


def test_executors_read_their_ranges_and_the_table_is_exact(
    table_judge: TableJudge, site: Site, cluster: Standalone, proxied: ProxiedBroker
) -> None:
    """I1. The driver runs no task."""
    folder = site.home / "event-log"
    configure(site, spark=event_log(folder))
    gate = proxied.proxy.hold()
    with ingesting(site, cluster) as running:
        # No executor gets records before both have a connection.
        executors = wait_until_both_read(cluster, proxied)
        environments = [psutil.Process(pid).environ() for pid in executors]
        gate.release()
        wait_for_success(running)
    assert_settled(table_judge, site)
    # Only the driver's environment has connections.
    assert not [name for each in environments for name in each if name.startswith("AIRFLOW_CONN")]
    done = tasks(folder)
    assert {task.outcome for task in done} == {"Success"}
    assert {task.executor for task in done} == {"0", "1"}
    assert {task.executor for task in done if task.written} == {"0", "1"}
    assert sum(task.written for task in done) == _PARTITIONS * len(LONG)


@pytest.mark.faults
def test_executors_need_only_the_jars_that_the_driver_sends(
    table_judge: TableJudge, site: Site, cluster: Standalone
) -> None:
    """The executors have no folder of jars and no Python."""
    jars = sorted(site.app.layout.spark_jars.glob("*.jar"))
    configure(
        site,
        spark={
            "spark.executor.extraClassPath": "",
            "spark.jars": ",".join(map(str, jars)),
            "spark.pyspark.driver.python": sys.executable,
            "spark.pyspark.python": "/no/python",
        },
    )
    with ingesting(site, cluster) as running:
        wait_for_success(running)
    assert_settled(table_judge, site)
    site.run(site.tidemark("check", "events", "--plan=1", f"--master={cluster.url}"))


@pytest.mark.faults
def test_s27_executors_decode_protobuf_with_python(
    spark: SparkSession,
    broker: BrokerStatus,
    cluster: Standalone,
    registry: Registry,
    topic: TopicFactory,
    tmp_path: Path,
) -> None:
    """The schemas are sent with the tasks."""
    site = Site(
        home=tmp_path,
        bootstrap=broker.bootstrap,
        topic=topic(partitions=_PARTITIONS),
        session=spark,
        environ=registry.environ(),
    )
    configure(site, spark=EXECUTORS, decode=_DECODE)
    schema = f"// {site.home}\n{_TRADE}"
    number = registry.register(f"standalone-{site.topic}", schema, "PROTOBUF")
    payloads = [proto_bytes(_TRADE, "Trade", {"id": each}) for each in range(_MESSAGES)]
    broken = b"\x00\xff"
    records = [
        Record(value=framed(number, payload), partition=partition)
        for partition in range(_PARTITIONS)
        for payload in (*payloads, broken)
    ]
    produce_records(site.bootstrap, site.topic, records)
    site.run(site.tidemark("ingest", "events"))
    folder = site.home / "event-log"
    configure(site, spark=event_log(folder))
    site.run(site.tidemark("decode", "events", f"--master={cluster.url}"))

    decode = site.app.spec("events").decode
    assert decode is not None
    uri = site.app.layout.data_table(decode.target)
    rows = pa.table(DeltaTable(uri).scan()).to_pylist()
    read = sorted((row["partition"], row["offset"], row["value"]) for row in rows)
    assert read == [(p, n, {"id": n}) for p in range(_PARTITIONS) for n in range(_MESSAGES)]
    quarantined = site.app.pipeline("events").typed.quarantine.records()
    assert sorted((each.partition, each.offset) for each in quarantined) == [
        (0, _MESSAGES),
        (1, _MESSAGES),
    ]
    done = tasks(folder)
    assert {task.outcome for task in done} == {"Success"}
    assert sum(task.written for task in done) == len(records)


# -- lost executors ------------------------------------------------------------------------------


@contextmanager
def held_in_mid_task(
    site: Site, cluster: Standalone, proxied: ProxiedBroker
) -> Iterator[tuple[Running, Gate]]:
    """Hold a landing while both executors are in a task and at least one writes a file."""
    gate = proxied.proxy.hold(after=_NO_TASK_ENDS)
    with ingesting(site, cluster) as running:
        wait_until_both_read(cluster, proxied)
        gate.wait_held()
        wait_until(lambda: writers(site, cluster))
        assert site.lake.table.find_landing(site.lake.ledger.plans[1].plan) is None
        yield running, gate


@pytest.mark.parametrize(
    "is_worker_killed",
    [
        pytest.param(True, id="with-its-worker"),
        pytest.param(False, id="alone", marks=pytest.mark.faults),
    ],
)
@pytest.mark.faults
def test_i1_the_task_of_a_killed_executor_runs_again_and_lands_once(
    table_judge: TableJudge,
    site: Site,
    cluster: Standalone,
    proxied: ProxiedBroker,
    is_worker_killed: bool,
) -> None:
    folder = site.home / "event-log"
    configure(site, spark=event_log(folder))
    with held_in_mid_task(site, cluster, proxied) as (running, gate):
        executor = writers(site, cluster)[0]
        (worker,) = (each for each in cluster.workers if executor in each.members())
        if is_worker_killed:
            worker.kill()
            wait_until(lambda: cluster.living_workers() == WORKERS - 1)
        else:
            os.kill(executor, signal.SIGKILL)
            wait_until(lambda: executor not in worker.members())
        gate.release()
        wait_for_success(running)
    assert_settled(table_judge, site)
    assert landings(site, site.lake.ledger.plans[1].plan) == 1
    assert [task.outcome for task in tasks(folder)].count("ExecutorLostFailure") == 1
