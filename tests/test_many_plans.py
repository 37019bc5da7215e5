"""Several plans in one Spark application: each lands as if it were alone."""

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
from tests.support.kafka_judge import Judged, read_all
from tests.support.lake import as_judged
from tests.support.topics import delete_records
from tests.support.transactions import Record, produce_aborted, produce_values
from tidemark.app import App
from tidemark.connections import connection_variable, kafka_connection
from tidemark.core.errors import ExitCode
from tidemark.dev.broker import BrokerStatus

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.e2e]

SPARK = {
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


class Several:
    """Pipelines of one home, and the `tidemark` commands that run them."""

    def __init__(self, home: Path, bootstrap: str) -> None:
        self._home = home
        self._specs = home / "pipelines"
        self._specs.mkdir(parents=True)
        java_home, self._java_calls = counted_java(home)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "TIDEMARK"))}
        self._environ = {
            **kept,
            "TIDEMARK_HOME": str(home),
            "TIDEMARK_PIPELINES": str(self._specs),
            connection_variable("kafka_default"): kafka_connection(bootstrap),
            "JAVA_HOME": str(java_home),
        }

    @property
    def app(self) -> App:
        """Tidemark as the commands see it."""
        return App(environ=self._environ)

    def add(self, name: str, topic: str, **keys: Any) -> None:
        """A pipeline over a topic from its beginning."""
        usual = {"schedule": "@yearly", "start": "earliest", "spark": SPARK}
        spec = {"name": name, "topic": topic, **usual, **keys}
        (self._specs / f"{name}.yaml").write_text(json.dumps(spec))

    def ingest(self, *names: str, fail_at: str | None = None) -> subprocess.CompletedProcess[str]:
        """`tidemark ingest` with these names."""
        self._java_calls.write_text("")
        armed = {} if fail_at is None else {"TIDEMARK_FAIL_AT": fail_at}
        command = [str(Path(sys.executable).with_name("tidemark")), "ingest", *names, "--json"]
        return subprocess.run(
            [*command, "--master", "local[2]"],
            env={**self._environ, **armed},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )

    def told(self, *names: str, code: int = ExitCode.OK) -> dict[str, Mapping[str, Any]]:
        """What `tidemark ingest` says of each pipeline; it must end with this code."""
        ran = self.ingest(*names)
        assert ran.returncode == code, ran.stderr
        records = json.loads(ran.stdout)
        assert [record["pipeline"] for record in records] == list(names)
        return {record["pipeline"]: record for record in records}

    def applications(self) -> int:
        """How many Spark applications the last command started; each is a launcher and a driver."""
        return len(self._java_calls.read_text().splitlines()) // 2

    def uri(self, name: str) -> str:
        """A pipeline's data table."""
        return self.app.layout.data_table(self.app.spec(name).target)

    def judged(self, name: str) -> list[Judged]:
        """All rows of a pipeline's table in the judge's form."""
        rows = pa.table(DeltaTable(self.uri(name)).scan()).to_pylist()
        return sorted(as_judged(row) for row in rows)


@pytest.fixture
def several(tmp_path: Path, broker: BrokerStatus) -> Several:
    """Pipelines on the tests' broker."""
    return Several(tmp_path, broker.bootstrap)


def test_i1_plans_that_share_an_application_land_each_exactly_once(
    several: Several, broker: BrokerStatus, admin: AdminClient, topic: TopicFactory
) -> None:
    """One topic at two isolation levels, another topic, a refusal, an idle one, an unknown name."""
    shared, other, empty, lost = (topic(partitions=2) for _ in range(4))
    produce_values(broker.bootstrap, shared, 300)
    produce_aborted(broker.bootstrap, shared, [Record(value=b"not committed")] * 7)
    produce_values(broker.bootstrap, shared, 200, partition=1)
    produce_values(broker.bootstrap, other, 400, partition=1)
    produce_values(broker.bootstrap, lost, 50)
    several.add("committed", shared)
    several.add("uncommitted", shared, isolation_level="read_uncommitted")
    several.add("other", other)
    several.add("idle", empty)
    several.add("lost", lost)
    assert several.app.pipeline("lost").planner.plan("somebody").plan
    delete_records(admin, lost, before=20)

    names = ("lost", "committed", "typo", "uncommitted", "idle", "other")
    first = several.told(*names, code=ExitCode.REFUSED)
    assert several.applications() == 1
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
    assert several.judged("committed") == committed
    assert several.judged("uncommitted") == read_all(
        broker.bootstrap, shared, isolation="read_uncommitted"
    )
    assert several.judged("other") == read_all(broker.bootstrap, other)
    assert not Path(several.uri("lost")).exists()

    produce_values(broker.bootstrap, other, 5)
    again = several.told("committed", "other")
    assert again["committed"]["outcome"] == "nothing to do"
    assert (again["other"]["records"], len(several.judged("other"))) == (5, 405)
    assert several.judged("committed") == committed


def test_i4_an_application_that_dies_is_repeated_whole_and_nothing_lands_twice(
    several: Several, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """Killed when its second commit is there: what has landed is found, what has not lands."""
    names = ("a", "b", "c", "d")
    topics = {name: topic() for name in names}
    for name, its_topic in topics.items():
        produce_values(broker.bootstrap, its_topic, 100)
        several.add(name, its_topic)
    died = several.ingest(*names, fail_at="table.append:after:2")
    assert died.returncode == ExitCode.TRANSIENT, died.stderr
    records = json.loads(died.stdout)
    assert {(record["plan"], record["error"]) for record in records} == {(1, "EngineStopped")}

    # The second to begin may be the first to end.
    again = several.told(*names)
    assert sum(record.get("wrote") is True for record in again.values()) <= 3
    for name, its_topic in topics.items():
        assert several.judged(name) == read_all(broker.bootstrap, its_topic)
        assert several.app.control.ledger(name).committed_offset(0) == 100


def test_pipelines_with_other_spark_settings_get_an_application_of_their_own(
    several: Several, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """Settings belong to an application; nobody's are dropped, and all names land."""
    for name, spark in {"a": SPARK, "b": {**SPARK, "spark.sql.shuffle.partitions": "3"}}.items():
        its_topic = topic()
        produce_values(broker.bootstrap, its_topic, 10)
        several.add(name, its_topic, spark=spark)
    told = several.told("a", "b")
    assert several.applications() == 2
    assert [told[name]["records"] for name in ("a", "b")] == [10, 10]
