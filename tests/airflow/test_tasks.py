"""Errors of the Python tasks, and whether Airflow retries them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.conftest import SPARK, Probe
from tests.support.plans import append_events, make_plan, make_watermarks
from tests.support.publication import record_decision
from tidemark.app.app import App
from tidemark.bronze.ingest.protocols import ControlTable
from tidemark.core.accounting import Landing
from tidemark.core.events import BackfillRequested, Landed, Planned, Started
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.origins import ChunkOrigin
from tidemark.core.plan import Plan, PlanKind
from tidemark.delta.data_table import DeltaDataTable

RUN = "airflow:tidemark_backfill:manual__1"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A Kafka connection to a closed port, and a home without tables."""
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}}
    return {
        "TIDEMARK_HOME": str(tmp_path),
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(kafka),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(SPARK),
    }


@pytest.mark.parametrize(
    ("filled", "seen"),
    [
        ({}, "got none"),
        ({"offsets": "0:0-3,\n1:5-5"}, "'1:5-5'"),
        ({"offsets": "0:0-3", "plan": 7}, "offset ranges and ranges of a plan"),
        (
            {"plan": 7},
            "only the fields of 'offset ranges', which is chosen in Which offsets (select_by); got",
        ),
        ({"select_by": "retained log", "offsets": "0:0-3"}, "offset ranges and retained log"),
        ({"select_by": "time window", "from": "2026-03-01T00:00:00Z"}, "both ends of a time"),
        ({"offsets": "0:0-3", "partitions": "1, 2"}, "partitions with offset ranges"),
    ],
)
def test_an_invalid_selection_is_refused_before_a_request_to_kafka(
    task_probe: Probe, environ: dict[str, str], filled: dict[str, Any], seen: str
) -> None:
    """Fields of the form are missing or contradict each other."""
    names = ("offsets", "from", "until", "plan", "partitions", "chunk")
    params = {"pipeline": "prices", "select_by": "offset ranges", **dict.fromkeys(names), **filled}
    answer = task_probe.ask("call_task", task="request_backfill", environ=environ, params=params,
                       pipeline="prices", requested_by="test")  # fmt: skip
    assert "InvalidSelection" in answer.value["error"]
    assert seen in answer.value["error"]
    assert answer.value["fails_now"] is True


def test_an_unknown_pipeline_fails_without_a_retry(
    task_probe: Probe, environ: dict[str, str]
) -> None:
    """A retry would not help."""
    answer = task_probe.ask("call_task", task="plan_run", environ=environ, pipelines=["nope"],
                       requested_by="test")  # fmt: skip
    assert "UnknownPipeline" in answer.value["error"]
    assert answer.value["fails_now"] is True


def test_a_chunk_that_an_operator_rejected_is_not_published(
    task_probe: Probe, environ: dict[str, str]
) -> None:
    """A released chunk is published."""
    app = App(environ=environ)
    control, uri = app.control, app.layout.data_table(app.spec("prices").target)
    table = DeltaDataTable(uri)
    table.prepare("prices")
    for number in (1, 2):
        plan = make_plan(
            (0, number, number + 1),
            pipeline="prices",
            sequence=number,
            kind=PlanKind.BACKFILL,
            origin=ChunkOrigin(RUN, number),
        )
        # The commit has the transaction of the plan, as its landing does.
        table.fence(plan, table.state("prices", ()))
        landing = Landing.of(plan, number, {0: 1})
        for event in (Planned(plan=plan), Landed(plan=plan, landing=landing, committed={})):
            append_events(control, "prices", event)
        record_decision(control, "prices", number)
    app.pipeline("prices").publication.reject(1, "ada", "wrong prices")

    def chunk(number: int) -> dict[str, Any]:
        answer: dict[str, Any] = task_probe.ask(
            "published", task="publish_chunk", environ=environ, pipeline="prices",
            requested_by=RUN, chunk=number,
        ).value  # fmt: skip
        return answer

    skipped = chunk(1)
    assert "AirflowSkipException" in skipped["error"]
    assert skipped["events"] == []
    assert [each["plan"] for each in chunk(2)["events"]] == [2]
    app.pipeline("prices").publication.release(1, "ada", "they were right")
    assert [each["plan"] for each in chunk(1)["events"]] == [1]


def record_request(control: ControlTable) -> None:
    """Record the backfill that `RUN` requested, of two chunks."""
    watermarks = make_watermarks({0: (0, 9)})
    requested = BackfillRequested(
        cluster_id=watermarks.cluster_id,
        topic=watermarks.topic,
        topic_id=watermarks.topic_id,
        requested_by=RUN,
        readable_only=False,
        chunks=({0: SpanSet.of([Span(0, 5)])}, {0: SpanSet.of([Span(5, 9)])}),
    )
    append_events(control, "prices", Started.at(watermarks, {0: 9}, RUN), requested)


@pytest.mark.parametrize("form", [{}, {"offsets": "0:0-1", "plan": 7}])
def test_a_cleared_run_continues_its_recorded_request_with_any_form(
    task_probe: Probe, environ: dict[str, str], form: dict[str, Any]
) -> None:
    record_request(App(environ=environ).control)
    answer = task_probe.ask("call_task", task="request_backfill", environ=environ, params=form,
                       pipeline="prices", requested_by=RUN)  # fmt: skip
    assert (answer.value["error"], answer.value["result"]) == (None, [1, 2])


def test_complete_fails_unless_all_chunks_have_landed(
    task_probe: Probe, environ: dict[str, str]
) -> None:
    """The error names the missing chunks and the command that continues; a retry does not help."""
    control = App(environ=environ).control
    record_request(control)

    def planned(number: int, start: int, end: int) -> Plan:
        plan = make_plan(
            (0, start, end),
            pipeline="prices",
            sequence=number,
            kind=PlanKind.BACKFILL,
            origin=ChunkOrigin(RUN, number),
        )
        append_events(control, "prices", Planned(plan=plan))
        return plan

    def land(plan: Plan) -> None:
        landing = Landing.of(plan, plan.sequence, {0: plan.size})
        event = Landed(plan=plan, landing=landing, committed={0: 9})
        append_events(control, "prices", event)

    def complete(chunks: list[int] | None) -> dict[str, Any]:
        answer: dict[str, Any] = task_probe.ask(
            "call_task", task="finish_backfill", environ=environ, pipeline="prices",
            requested_by=RUN, chunks=chunks,
        ).value  # fmt: skip
        return answer

    land(planned(1, 0, 5))
    second = planned(2, 5, 9)
    refused = complete([1, 2])
    assert "BackfillUnfinished" in refused["error"]
    assert "Not completely landed: chunk 2" in refused["error"]
    assert f"`tidemark backfill prices --resume {RUN}`" in refused["error"]
    assert refused["fails_now"] is True
    # `request` has failed.
    undecided = complete(None)
    assert "the task `request`" in undecided["error"]
    assert undecided["fails_now"] is True
    land(second)
    assert complete([1, 2]) == {"error": None, "result": None}
    # A dry run, or no offset was missing.
    assert complete([]) == {"error": None, "result": None}
