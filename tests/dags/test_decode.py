"""The operator that decodes, with a real process in the place of spark-submit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.dags.conftest import Answer, Probe
from tests.dags.test_job_operator import SPARK
from tests.support.file_lake import home_lake
from tidemark.errors import ExitCode


@pytest.fixture
def home(spark_submit: Path) -> Path:
    """Where pipeline `events` has landed, and is to be decoded."""
    home = spark_submit.parent
    home_lake(home)
    with (home / "pipelines" / "events.yaml").open("a") as spec:
        spec.write("decode: {value: {format: string}}\n")
    return home


def run(task_probe: Probe, spark_submit: Path, code: int) -> Answer:
    """Run the operator; every job ends with this code, and lands nothing. There is no Kafka."""
    environ: dict[str, Any] = {
        "TIDEMARK_HOME": str(spark_submit.parent),
        "TIDEMARK_PIPELINES": str(spark_submit.parent / "pipelines"),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(SPARK),
        "SEEN": str(spark_submit.parent),
        "CODE": str(int(code)),
        "TOLD": "",
    }
    return task_probe.ask(
        "run_job",
        environ=environ,
        operator="DecodeOperator",
        pipelines=["events"],
        spark_binary=str(spark_submit),
    )


@pytest.mark.parametrize(
    ("code", "told", "fails_now"),
    [
        (ExitCode.OK, "executed, and open still: events@typed=1", False),
        (ExitCode.REFUSED, "65", True),
        (ExitCode.TRANSIENT, "75", False),
    ],
)
def test_what_has_landed_is_decoded_by_a_plan_of_its_own(
    task_probe: Probe, spark_submit: Path, home: Path, code: int, told: str, fails_now: bool
) -> None:
    """Without Kafka; a job that does not do it is not submitted for ever."""
    answer = run(task_probe, spark_submit, code)
    words = (home / "argv").read_text().splitlines()
    assert [word for word in words if "@typed=" in word] == ["events@typed=1"]
    assert told in answer.value["error"]
    assert answer.value["fails_now"] is fails_now


def test_the_registry_is_a_connection_of_airflows(
    task_probe: Probe, spark_submit: Path, home: Path
) -> None:
    """Looked up where Airflow keeps its connections; one that is not there is named."""
    spec = home / "pipelines" / "events.yaml"
    spec.write_text(spec.read_text().replace("format: string", "format: avro"))
    answer = run(task_probe, spark_submit, ExitCode.OK)
    assert "connection 'schema_registry_default' is not defined" in answer.value["error"]
    assert answer.value["fails_now"] is True
    assert not (home / "argv").exists()
