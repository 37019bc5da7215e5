"""What the Python tasks refuse, and whether Airflow tries again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.dags.conftest import Probe


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A Kafka connection that leads to nobody, and a home without tables."""
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}}
    return {"TIDEMARK_HOME": str(tmp_path), "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(kafka)}


@pytest.mark.parametrize(("start", "end"), [(5, 5), (5, 4)])
def test_a_backfill_of_no_offsets_is_refused_before_kafka_is_asked(
    task_probe: Probe, environ: dict[str, str], start: int, end: int
) -> None:
    """`end` is the next offset after the range, so it is greater than `start`."""
    params = {"pipeline": "prices", "partition": 0, "start": start, "end": end}
    answer = task_probe.ask("call_task", task="plan_backfill", environ=environ, params=params,
                       requested_by="test")  # fmt: skip
    assert "InvalidRange" in answer.value["error"]
    assert f"[{start}, {end})" in answer.value["error"]
    assert answer.value["fails_now"] is True


def test_an_unknown_pipeline_fails_now(task_probe: Probe, environ: dict[str, str]) -> None:
    """No retry makes a spec."""
    answer = task_probe.ask("call_task", task="plan_run", environ=environ, pipeline="nope",
                       requested_by="test")  # fmt: skip
    assert "UnknownPipeline" in answer.value["error"]
    assert answer.value["fails_now"] is True


def test_publishing_a_plan_that_is_not_there_fails_now(
    task_probe: Probe, environ: dict[str, str]
) -> None:
    """The control table, not XCom, says what has landed."""
    answer = task_probe.ask("call_task", task="publish_run", environ=environ, pipeline="prices",
                       plan="3", outlet_events={})  # fmt: skip
    assert "UnknownPlan" in answer.value["error"]
    assert answer.value["fails_now"] is True
