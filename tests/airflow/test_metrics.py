"""Metrics of tasks, as an OpenTelemetry receiver gets them from Airflow."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.airflow.conftest import Probe, submit_environ
from tests.airflow.test_job_operator import KAFKA, RUN
from tests.conftest import PROJECT
from tests.support.otlp import Receiver, otlp_receiver
from tests.support.plans import append_events, make_plan
from tidemark.core.errors import ExitCode
from tidemark.core.events import Planned
from tidemark.core.origins import RunOrigin
from tidemark.delta.control_table import DeltaControlTable
from tidemark.kafka.errors import TopicMissing

LANDED = "tidemark.landed.records"
QUARANTINED = "tidemark.quarantined.records"
ERRORS = "tidemark.errors"
DURATION = "tidemark.job.duration"


def measure(
    probe: Probe, program: Path, receiver: Receiver, code: int, results: Sequence[Mapping[str, Any]]
) -> None:
    """Run the ingest task of plan 7 of two pipelines, whose job prints these results."""
    control = DeltaControlTable(str(program.parent / "lakehouse" / "control" / "offset_ranges"))
    for name in ("prices", "orders"):
        plan = make_plan((0, 0, 5), pipeline=name, sequence=7, origin=RunOrigin(RUN))
        append_events(control, name, Planned(plan=plan))
    environ = {
        **submit_environ(program),
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(KAFKA),
        "AIRFLOW__METRICS__OTEL_ON": "True",
        "AIRFLOW__METRICS__OTEL_HOST": "127.0.0.1",
        "AIRFLOW__METRICS__OTEL_PORT": str(receiver.port),
        "TIDEMARK_LAKEHOUSE": str(program.parent / "lakehouse"),
        "SEEN": str(program.parent),
        "CODE": str(code),
        "OUTPUT": f"TIDEMARK_RESULT {json.dumps(results)}",
    }
    probe.ask(
        "measured",
        environ=environ,
        task="ingest_run",
        pipelines=["prices", "orders"],
        requested_by=RUN,
    )


def test_a_task_counts_its_records_and_errors_by_pipeline_and_times_its_job(
    task_probe: Probe, spark_submit: Path
) -> None:
    """Records of a decode belong to the typed table."""
    landed = {"pipeline": "orders", "plan": 7, "wrote": True, "records": 5}
    decoded = {"pipeline": "orders", "plans": [2], "records": 4, "quarantined": 3, "removed": 1}
    refused = {"pipeline": "prices", "plan": 7, **TopicMissing(topic="prices").as_record()}
    with otlp_receiver() as receiver:
        results = [landed, refused, decoded]
        measure(task_probe, spark_submit, receiver, ExitCode.REFUSED, results)
        counts = {
            name: sorted(
                (*tags.values(), point.as_int) for tags, point in receiver.points(f"airflow.{name}")
            )
            for name in (LANDED, QUARANTINED, ERRORS)
        }
        ((tags, duration),) = receiver.points(f"airflow.{DURATION}")
    assert counts == {
        LANDED: [("orders", 5), ("orders@typed", 4)],
        QUARANTINED: [("orders@typed", 3)],
        ERRORS: [("prices", "TopicMissing", 1)],
    }
    assert (tags, duration.count) == ({"job": "ingest"}, 1)
    assert 1 <= duration.sum < 60_000


def test_a_plan_that_had_landed_before_is_not_counted_again(
    task_probe: Probe, spark_submit: Path
) -> None:
    """A retry executes it, and finds its rows."""
    before = {"plan": 7, "wrote": False, "records": 5}
    with otlp_receiver() as receiver:
        results = [{"pipeline": name, **before} for name in ("prices", "orders")]
        measure(task_probe, spark_submit, receiver, ExitCode.OK, results)
        assert receiver.points(f"airflow.{LANDED}") == []
        assert receiver.points(f"airflow.{DURATION}") != []


def test_an_error_of_the_whole_task_has_no_pipeline(task_probe: Probe) -> None:
    environ = {"AIRFLOW__METRICS__OTEL_ON": "True", "AIRFLOW__METRICS__OTEL_HOST": "127.0.0.1"}
    with otlp_receiver() as receiver:
        environ["AIRFLOW__METRICS__OTEL_PORT"] = str(receiver.port)
        task_probe.ask("measured", environ=environ, task="decode_run", pipelines=["prices"])
        errors = receiver.points(f"airflow.{ERRORS}")
    assert [(tags, point.as_int) for tags, point in errors] == [({"error": "InvalidConnection"}, 1)]


def test_the_page_lists_every_metric_of_tasks() -> None:
    page = (PROJECT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(tidemark\.[\w.]+)` \|", page, flags=re.MULTILINE)
    assert listed == [LANDED, QUARANTINED, ERRORS, DURATION]
