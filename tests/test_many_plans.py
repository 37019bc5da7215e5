"""Tests of several plans in one Spark application."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bench.whole_runs import counted_java
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from tests.conftest import TopicFactory
from tests.support.kafka_judge import DeliveredRecord, read_all
from tests.support.lake import row_as_delivered
from tests.support.topics import delete_records
from tests.support.transactions import Record, produce_aborted, produce_records, produce_values
from tidemark.app.app import App
from tidemark.app.connections import connection_variable, kafka_connection
from tidemark.core.errors import ExitCode
from tidemark.local.broker import BrokerStatus

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.e2e]

SPARK = {"spark.driver.memory": "1g"}


class Pipelines:
    """Pipelines of one home, and the `tidemark` commands that run them."""

    def __init__(self, home: Path, bootstrap: str) -> None:
        self._home = home
        self._specs = home / "pipelines"
        self._specs.mkdir(parents=True)
        java_home, self._java_calls = counted_java(home)
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "TIDEMARK"))}
        self._environ = {
            **environ,
            "TIDEMARK_HOME": str(home),
            "TIDEMARK_PIPELINES": str(self._specs),
            connection_variable("kafka_default"): kafka_connection(bootstrap),
            "JAVA_HOME": str(java_home),
        }

    @property
    def app(self) -> App:
        return App(environ=self._environ)

    def add(self, name: str, topic: str, **keys: Any) -> None:
        usual = {"schedule": "@yearly", "start": "earliest", "spark": SPARK}
        spec = {"name": name, "topic": topic, **usual, **keys}
        (self._specs / f"{name}.yaml").write_text(json.dumps(spec))

    def ingest(self, *names: str, fail_at: str | None = None) -> subprocess.CompletedProcess[str]:
        return self._run("ingest", *names, fail_at=fail_at)

    def _run(
        self, step: str, *names: str, fail_at: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        self._java_calls.write_text("")
        fail_point = {} if fail_at is None else {"TIDEMARK_FAIL_AT": fail_at}
        command = [str(Path(sys.executable).with_name("tidemark")), step, *names, "--json"]
        return subprocess.run(
            [*command, "--master", "local[2]"],
            env={**self._environ, **fail_point},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )

    def results(
        self, *names: str, code: int = ExitCode.OK, step: str = "ingest"
    ) -> dict[str, Mapping[str, Any]]:
        """Return the results of a command by pipeline; the command must end with this code."""
        ran = self._run(step, *names)
        assert ran.returncode == code, ran.stderr
        records = json.loads(ran.stdout)
        assert [record["pipeline"] for record in records] == list(names)
        return {record["pipeline"]: record for record in records}

    def applications(self) -> int:
        """Return the number of Spark applications of the last command."""
        return len(self._java_calls.read_text().splitlines()) // 2

    def uri(self, name: str) -> str:
        return self.app.layout.data_table(self.app.spec(name).target)

    def delivered_rows(self, name: str) -> list[DeliveredRecord]:
        rows = pa.table(DeltaTable(self.uri(name)).scan()).to_pylist()
        return sorted(row_as_delivered(row) for row in rows)

    def decoded(self, name: str) -> tuple[list[int], list[int]]:
        """Return the offsets of the typed table and of the quarantine, of one partition."""
        typed = self.app.pipeline(name).typed
        rows = pa.table(DeltaTable(self.uri(typed.name)).scan()).to_pylist()
        return sorted(r["offset"] for r in rows), [r.offset for r in typed.quarantine.records()]


@pytest.fixture
def pipelines(tmp_path: Path, broker: BrokerStatus) -> Pipelines:
    return Pipelines(tmp_path, broker.bootstrap)


def test_i1_plans_of_one_application_land_once_each_despite_a_refusal(
    pipelines: Pipelines, broker: BrokerStatus, admin: AdminClient, topic: TopicFactory
) -> None:
    """Covers two isolation levels of one topic, a refusal, an idle pipeline and an unknown name."""
    shared, other, empty, lost = (topic(partitions=2) for _ in range(4))
    produce_values(broker.bootstrap, shared, 300)
    produce_aborted(broker.bootstrap, shared, [Record(value=b"not committed")] * 7)
    produce_values(broker.bootstrap, shared, 200, partition=1)
    produce_values(broker.bootstrap, other, 400, partition=1)
    produce_values(broker.bootstrap, lost, 50)
    pipelines.add("committed", shared)
    pipelines.add("uncommitted", shared, isolation_level="read_uncommitted")
    pipelines.add("other", other)
    pipelines.add("idle", empty)
    pipelines.add("lost", lost)
    assert pipelines.app.pipeline("lost").planner.plan("earlier").plan
    delete_records(admin, lost, before=20)

    names = ("lost", "committed", "typo", "uncommitted", "idle", "other")
    first = pipelines.results(*names, code=ExitCode.REFUSED)
    assert pipelines.applications() == 1
    assert {name: record.get("error") for name, record in first.items()} == {
        "lost": "LostRange",
        "committed": None,
        "typo": "UnknownPipeline",
        "uncommitted": None,
        "idle": None,
        "other": None,
    }
    assert first["idle"]["outcome"] == "nothing to do"
    landed = {"committed": 500, "uncommitted": 507, "other": 400}
    assert {name: first[name]["records"] for name in landed} == landed
    committed = read_all(broker.bootstrap, shared)
    assert pipelines.delivered_rows("committed") == committed
    assert pipelines.delivered_rows("uncommitted") == read_all(
        broker.bootstrap, shared, isolation="read_uncommitted"
    )
    assert pipelines.delivered_rows("other") == read_all(broker.bootstrap, other)
    assert not Path(pipelines.uri("lost")).exists()

    produce_values(broker.bootstrap, other, 5)
    again = pipelines.results("committed", "other")
    assert again["committed"]["outcome"] == "nothing to do"
    assert (again["other"]["records"], len(pipelines.delivered_rows("other"))) == (5, 405)
    assert pipelines.delivered_rows("committed") == committed


@pytest.mark.faults
def test_i1_one_application_decodes_each_plan_once_despite_a_refusal(
    pipelines: Pipelines, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """The second of three plans of `bad` has too many records that cannot be decoded."""
    value = {"format": "json", "schema": {"n": "long"}}
    decode = {"publish": "always", "value": value, "quarantine": {"records": 1}}
    keys = {"limits": {"records_per_run": 20, "records_per_chunk": 20}}
    topics = {name: topic() for name in ("bad", "good")}
    for name, its_topic in topics.items():
        values = [b"no" if name == "bad" and 20 <= n < 40 else b'{"n": 1}' for n in range(60)]
        produce_records(broker.bootstrap, its_topic, [Record(value=each) for each in values])
        pipelines.add(name, its_topic, decode=decode, **keys)
    for _ in range(3):
        pipelines.results("bad", "good")
    first = pipelines.results("bad", "good", code=ExitCode.REFUSED, step="decode")
    assert pipelines.applications() == 1
    assert (first["bad"]["plans"], first["bad"]["error"]) == ([1], "TooManyQuarantined")
    assert (first["good"]["plans"], first["good"]["records"]) == ([1, 2, 3], 60)
    assert pipelines.decoded("good") == (list(range(60)), [])
    assert pipelines.decoded("bad") == (list(range(20)), [])

    decode["quarantine"] = {"percent": 100}
    pipelines.add("bad", topics["bad"], decode=decode, **keys)
    again = pipelines.results("bad", "good", step="decode")
    assert (again["bad"]["records"], again["bad"]["quarantined"]) == (40, 20)
    assert again["good"]["outcome"] == "nothing to do"
    kept = [*range(20), *range(40, 60)]
    assert pipelines.decoded("bad") == (kept, list(range(20, 40)))


@pytest.mark.faults
def test_i4_repeating_a_killed_application_lands_each_plan_once(
    pipelines: Pipelines, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """It is killed after its second commit."""
    names = ("a", "b", "c", "d")
    topics = {name: topic() for name in names}
    for name, its_topic in topics.items():
        produce_values(broker.bootstrap, its_topic, 100)
        pipelines.add(name, its_topic)
    died = pipelines.ingest(*names, fail_at="table.append:after:2")
    assert died.returncode == ExitCode.TRANSIENT, died.stderr
    records = json.loads(died.stdout)
    assert {(record["plan"], record["error"]) for record in records} == {(1, "EngineStopped")}

    # The plans may end in another order than they started.
    again = pipelines.results(*names)
    assert sum(record.get("wrote") is True for record in again.values()) <= 3
    for name, its_topic in topics.items():
        assert pipelines.delivered_rows(name) == read_all(broker.bootstrap, its_topic)
        assert pipelines.app.control.ledger(name).committed_offset(0) == 100


@pytest.mark.faults
def test_pipelines_with_different_spark_settings_get_separate_applications(
    pipelines: Pipelines, broker: BrokerStatus, topic: TopicFactory
) -> None:
    for name, spark in {"a": SPARK, "b": {**SPARK, "spark.sql.shuffle.partitions": "3"}}.items():
        its_topic = topic()
        produce_values(broker.bootstrap, its_topic, 10)
        pipelines.add(name, its_topic, spark=spark)
    results = pipelines.results("a", "b")
    assert pipelines.applications() == 2
    assert [results[name]["records"] for name in ("a", "b")] == [10, 10]
