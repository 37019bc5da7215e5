"""The DAGs under a real Airflow scheduler, with real Kafka and Spark.

Tests without settings of their own share one Airflow, whose jobs run on a Spark Connect server.
Other tests run their jobs by spark-submit.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from tests.conftest import PROJECT, TopicFactory
from tests.support import openlineage
from tests.support.airflow_requests import asset_events, clear_tasks
from tests.support.crashes import command_line
from tests.support.kafka_judge import read_all
from tests.support.openlineage import datasets, ended_tasks
from tests.support.parts import Parts
from tests.support.proxy import ProxiedBroker, proxied_broker
from tests.support.topics import make_topic
from tests.support.transactions import Record, produce_records, produce_values
from tests.support.verdict import judge
from tests.support.waiting import wait_until
from tests.support.webhook import running_webhook
from tidemark.app.app import App
from tidemark.app.connections import connection_variable, kafka_connection
from tidemark.core.errors import SetupError
from tidemark.delta.table_io import query_rows
from tidemark.local.airflow_api import AirflowApi, DagRun
from tidemark.local.airflow_standalone import AirflowStandalone
from tidemark.local.broker import BrokerStatus
from tidemark.local.errors import AirflowUnavailable
from tidemark.local.producer import produce
from tidemark.spark.sockets import free_ports
from tidemark.spec.layout import Layout

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.broker, pytest.mark.e2e]

DAG = "tidemark_clicks"
FORM = "tidemark_backfill"
GROUP_DAG = "tidemark_group_tides"
# A yearly DAG runs once when a test unpauses it, and not again during the test.
SPEC = "name: clicks\ntopic: {topic}\nschedule: '@yearly'\nstart: earliest\nretries: 0\n"
DATED = "tidemark_dated"
MEMBERS = {"ebb": "earliest", "flood": "earliest", "lost": "none"}
# Each pipeline belongs to one test, which creates the topic of the same name.
SHARED = {
    "clicks": SPEC.format(topic="clicks")
    + "decode: {key: {format: string}, value: {format: string}, upsert: {}}\n",
    "dated": "name: dated\ntopic: dated\nschedule: '@monthly'\nstart: latest\nretries: 0\n",
    **{
        name: f"name: {name}\ntopic: {name}\nschedule: '@yearly'\nretries: 0\n"
        f"group: tides\nstart: {start}\n"
        for name, start in MEMBERS.items()
    },
}


@pytest.fixture
def airflow(parts: Parts) -> AirflowStandalone:
    """The shared Airflow, with these pipelines."""
    return parts.airflow(SHARED)


@contextmanager
def running_airflow(
    home: Path,
    broker: BrokerStatus | ProxiedBroker,
    specs: Mapping[str, str],
    connections: Mapping[str, str] | None = None,
) -> Iterator[AirflowStandalone]:
    """Run an Airflow with these pipelines during the block; `specs` has their texts by name."""
    (home / "pipelines").mkdir()
    for name, text in specs.items():
        (home / "pipelines" / f"{name}.yaml").write_text(text)
    environ = {
        **os.environ,
        "TIDEMARK_PIPELINES": str(home / "pipelines"),
        connection_variable("kafka_default"): kafka_connection(broker.bootstrap),
        **(connections or {}),
    }
    airflow = AirflowStandalone(Layout(project=PROJECT, home=home / "home"), environ)
    try:
        airflow.start(progress=print)
        yield airflow
    finally:
        stopped = airflow.stop()
    assert stopped.processes == ()


def test_runs_land_new_records_once_and_can_be_cleared(
    airflow: AirflowStandalone, parts: Parts, broker: BrokerStatus, admin: AdminClient
) -> None:
    """The second run finds no new record. Clearing the first run changes nothing.

    The OpenLineage events of the first run lead from the topic to the upsert table.
    """
    topic = make_topic(admin, broker.bootstrap, "clicks", partitions=3)
    client = {"bootstrap.servers": broker.bootstrap}
    produce(client, "streams-intro", records=50, topic=topic)
    api = airflow.api()
    api.wait_for_dags([DAG, "tidemark_backfill"])

    api.set_paused(DAG, False)
    first = wait_for_end(api, scheduled_run(api))
    assert set(first.tasks.values()) == {"success"}
    app = App(environ={"TIDEMARK_HOME": str(airflow.status().home.parent)})
    uri = app.layout.data_table("bronze/clicks")
    landed = {(r.partition, r.offset) for r in read_all(broker.bootstrap, topic)}
    assert len(landed) == 50
    assert rows(uri) == sorted(landed)
    version = DeltaTable(uri).version()

    second = wait_for_end(api, api.trigger(DAG))
    assert second.tasks == {**dict.fromkeys(first.tasks, "skipped"), "plan": "success"}

    lineage = wait_for_lineage(parts, DAG, first.run_id, ["ingest", "check", "decode", "upsert"])
    check_lineage(lineage, app, broker.bootstrap)

    repeated = ("ingest", "upsert")
    clear_tasks(api, DAG, first.run_id, repeated, downstream=False)
    assert set(wait_for_end(api, first.run_id).tasks.values()) == {"success"}
    assert DeltaTable(uri).version() == version
    assert rows(uri) == sorted(landed)
    ended = wait_for_lineage(parts, DAG, first.run_id, repeated, times=2)
    for task in repeated:
        before, after = ended[task]
        assert (before["inputs"], before["outputs"]) == (after["inputs"], after["outputs"])
    token = parts.connect_server().token
    assert token not in json.dumps(openlineage.events(parts.lineage))

    events = {event.uri: event for event in asset_events(api, DAG)}
    assert set(events) == {f"x-tidemark://{each}/clicks" for each in ("bronze", "typed", "upsert")}
    typed = app.layout.data_table("silver/clicks")
    assert rows(typed) == sorted(landed)
    assert events["x-tidemark://typed/clicks"].extra == {
        "pipeline": "clicks@typed",
        "table": typed,
        "table_version": DeltaTable(typed).version(),
        "since_version": -1,
    }
    event = events["x-tidemark://bronze/clicks"]
    record = app.control.ledger("clicks").plans[1]
    assert record.held_now is not None
    assert event.run_id == first.run_id
    assert event.extra == {
        "pipeline": "clicks",
        "plan": 1,
        "kind": "live",
        "table": uri,
        "table_version": record.held_now.table_version,
        "records": 50,
        "replaces": False,
        "ranges": [[r.partition, r.start, r.end] for r in record.plan.ranges],
    }
    assert record.held_now.table_version == version

    with pytest.raises(SetupError, match="No value passed"):
        api.trigger("tidemark_backfill", conf={"select_by": "retained log"})


def test_backfills_by_form_and_by_date_land_the_selected_records(
    airflow: AirflowStandalone, parts: Parts, broker: BrokerStatus, admin: AdminClient
) -> None:
    """Chunks land one after another. `airflow backfill` selects records by their timestamps."""
    forever = {"retention.ms": "-1"}
    name = make_topic(admin, broker.bootstrap, "dated", partitions=2, config=forever)
    for year, count in ((2024, 7), (2025, 9)):
        stamped = int(datetime(year, 6, 1, tzinfo=UTC).timestamp() * 1000)
        records = [
            Record(value=b"%d" % n, partition=partition, timestamp_ms=stamped)
            for partition in (0, 1)
            for n in range(count)
        ]
        produce_records(broker.bootstrap, name, records)
    api = airflow.api()
    api.wait_for_dags([DATED, FORM])
    api.set_paused(FORM, False)
    form = {"pipeline": "dated", "select_by": "retained log", "partitions": "0", "chunk": 8}
    filled = wait_for_end(api, api.trigger(FORM, conf=form), FORM)
    tasks = {f"chunk.{task}[{n}]" for task in ("ingest", "check", "publish") for n in (0, 1)}
    assert filled.tasks == dict.fromkeys(["request", "complete", *tasks], "success")
    app = App(environ={"TIDEMARK_HOME": str(airflow.status().home.parent)})
    uri = app.layout.data_table("bronze/dated")
    assert rows(uri) == [(0, offset) for offset in range(16)]
    assert [event.extra["records"] for event in asset_events(api, FORM)] == [8, 8]
    lineage = wait_for_lineage(parts, FORM, filled.run_id, ["chunk.ingest", "chunk.check"], times=2)
    for events_of_task, side in (
        (lineage["chunk.ingest"], "outputs"),
        (lineage["chunk.check"], "inputs"),
    ):
        each = [plans_of(datasets(event, side)["file", uri]) for event in events_of_task]
        assert [plan for plans in each for plan in plans] == recorded_plans(app, "dated")
    again = {**form, "chunk": 16, "replace": True, "reason": "a test"}
    replaced = wait_for_end(api, api.trigger(FORM, conf=again), FORM)
    assert set(replaced.tasks.values()) == {"success"}
    assert rows(uri) == [(0, offset) for offset in range(16)]
    assert [event.extra["replaces"] for event in asset_events(api, FORM)][-1] is True
    assert sorted(app.control.ledger("dated").plans) == [1, 2, 3]

    api.set_paused(DATED, False)
    wait_for_end(api, scheduled_run(api, DATED), DATED)
    dates = {"from_date": "2025-06-01T00:00:00Z", "to_date": "2025-06-30T00:00:00Z"}
    ask = {"dag_id": DATED, **dates, "max_active_runs": 1}
    wait_until(lambda: request_backfill(api, ask), timeout_s=120, pause_s=1)
    by_date = next(run for run in api.run_ids(DATED) if run.startswith("backfill"))
    assert set(wait_for_end(api, by_date, DATED).tasks.values()) == {"success"}
    assert rows(uri) == [(0, offset) for offset in range(16)] + [(1, n) for n in range(7, 16)]


@pytest.mark.faults
def test_a_cancelled_backfill_keeps_landed_chunks_and_continues_when_cleared(
    tmp_path: Path, layout: Layout
) -> None:
    """The run is set to failed while Spark reads the second of three chunks.

    Clearing the whole run lands the other chunks, each record once.
    """
    name, run = "cancelled", "cancelled-backfill"
    spec = SPEC.format(topic=name).replace("earliest", "latest")
    with proxied_broker(tmp_path / "broker", layout.kafka_jars) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.direct, "log_level": 0})
        make_topic(admin, kafka.direct, name, partitions=2)
        for partition in (0, 1):
            produce_values(kafka.direct, name, 3_000, partition)
        # Chunks take files from the partitions in turn, so each chunk has offsets of both.
        specs = {"clicks": f"{spec}limits: {{records_per_task: 1000}}\n"}
        with running_airflow(tmp_path, kafka, specs) as airflow:
            api = airflow.api()
            api.wait_for_dags([FORM])
            api.set_paused(FORM, False)
            form = {"pipeline": "clicks", "select_by": "retained log", "chunk": 2_000}
            api.trigger(FORM, conf=form, run_id=run)
            app = App(environ={"TIDEMARK_HOME": str(airflow.status().home.parent)})
            control, uri = app.control, app.layout.data_table("bronze/clicks")
            # Spark takes seconds from here to its first fetch.
            wait_until(lambda: 2 in control.ledger("clicks").plans, timeout_s=400, pause_s=0.5)
            kafka.proxy.hold().wait_held()

            tasks = api.run(FORM, run).tasks
            assert tasks["chunk.ingest[0]"] == "success"
            assert tasks["chunk.ingest[1]"] == "running"

            path = f"/dags/{FORM}/dagRuns/{run}"
            api.call("PATCH", path, {"state": "failed"})
            cancelled = wait_for_end(api, run, FORM)
            assert cancelled.state == "failed"
            # Airflow then marks every chunk as failed, even a landed one.
            assert cancelled.tasks["chunk.ingest[0]"] == "failed"
            # A task that the scheduler queued at the same moment still runs.
            ended = {"success", "failed", "skipped"}
            wait_until(
                lambda: set(api.run(FORM, run).tasks.values()) == ended, timeout_s=120, pause_s=0.5
            )
            # The proxy still holds the fetch, so the job does not end by itself.
            wait_until(lambda: jobs_of(airflow) == [], timeout_s=60, pause_s=0.5)
            (request,) = control.backfills("clicks", f"airflow:{FORM}:{run}")
            chunks = [
                [
                    (p, offset)
                    for p, spans in chunk.items()
                    for s in spans
                    for offset in range(s.start, s.end)
                ]
                for chunk in request.chunks
            ]
            assert [len(chunk) for chunk in chunks] == [2_000, 2_000, 2_000]
            assert {partition for partition, _ in chunks[1]} == {0, 1}
            assert rows(uri) == sorted(chunks[0])

            kafka.proxy.clear()
            api.call("POST", f"{path}/clear", {"dry_run": False})
            cleared = wait_for_end(api, run, FORM, timeout_s=800)
            assert set(cleared.tasks.values()) == {"success"}
            verdict = judge(whole_rows(uri), kafka.direct, name, request.topic_id)
            assert (verdict.exact, verdict.records) == (True, 6_000), verdict
            landed = [plan.held_now for plan in control.ledger("clicks").plans.values()]
            assert [each.records for each in landed if each] == [2_000, 2_000, 2_000]


def test_a_refused_member_fails_a_group_run_and_the_others_are_published(
    airflow: AirflowStandalone, broker: BrokerStatus, admin: AdminClient
) -> None:
    """Planning refuses one member. The task `plan` fails; the other members have events."""
    for name in MEMBERS:
        make_topic(admin, broker.bootstrap, name, partitions=2)
        produce({"bootstrap.servers": broker.bootstrap}, "streams-intro", records=30, topic=name)
    api = airflow.api()
    api.wait_for_dags([GROUP_DAG])
    assert api.unpause_first([GROUP_DAG])
    first = wait_for_end(api, scheduled_run(api, GROUP_DAG), GROUP_DAG)
    assert first.tasks == {
        "plan": "failed",
        "ingest": "success",
        "check": "success",
        "publish": "success",
        "complete": "upstream_failed",
    }
    assert "lost: NoStartOffset" in api.log_tail(GROUP_DAG, first.run_id, "plan")
    app = App(environ={"TIDEMARK_HOME": str(airflow.status().home.parent)})
    for name in ("ebb", "flood"):
        landed = [(r.partition, r.offset) for r in read_all(broker.bootstrap, name)]
        assert rows(app.layout.data_table(f"bronze/{name}")) == sorted(landed)
    events = {event.uri: event.extra for event in asset_events(api, GROUP_DAG)}
    assert {uri: (extra["plan"], extra["records"]) for uri, extra in events.items()} == {
        "x-tidemark://bronze/ebb": (1, 30),
        "x-tidemark://bronze/flood": (1, 30),
    }
    # A later start of Airflow keeps a DAG with a run paused.
    api.set_paused(GROUP_DAG, True)
    assert not api.unpause_first([GROUP_DAG])
    assert api.dags()[GROUP_DAG] is True


@pytest.mark.faults
def test_limited_runs_follow_each_other_and_alarms_reach_the_webhook(
    tmp_path: Path, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """A chain of runs lands a backlog. Failures and late runs reach the webhook, too."""
    name = topic(partitions=3)
    client = {"bootstrap.servers": broker.bootstrap}
    produce(client, "streams-intro", records=30, topic=name)
    (port,) = free_ports("127.0.0.1", 1)
    specs = {
        "clicks": SPEC.format(topic=name)
        + "limits: {records_per_run: 20, catch_up: true}\nalarms: {lag_records: 10}\n",
        # Each try waits for half a minute, so that the run is late.
        "away": "name: away\ntopic: t\nschedule: '@yearly'\nconnection: kafka_away\nretries: 5\n"
        "alarms: {deadline_minutes: 1}\n",
        "lost": f"name: lost\ntopic: {name}\nschedule: '@yearly'\nstart: none\nretries: 0\n",
    }
    with (
        running_webhook() as webhook,
        running_airflow(
            tmp_path,
            broker,
            specs,
            {**webhook.environ(), "AIRFLOW_CONN_KAFKA_AWAY": kafka_connection(f"127.0.0.1:{port}")},
        ) as airflow,
    ):
        api = airflow.api()
        api.wait_for_dags([DAG, "tidemark_away", "tidemark_lost", "tidemark_status"])
        api.set_paused("tidemark_away", False)
        api.set_paused("tidemark_lost", False)
        api.set_paused(DAG, False)
        scheduled_run(api)
        wait_until(lambda: len(api.run_ids(DAG)) == 2, timeout_s=600, pause_s=0.5)
        for run in api.run_ids(DAG):
            assert wait_for_end(api, run).state == "success"
        app = App(environ={"TIDEMARK_HOME": str(airflow.status().home.parent)})
        landed = [(r.partition, r.offset) for r in read_all(broker.bootstrap, name)]
        assert rows(app.layout.data_table("bronze/clicks")) == sorted(landed)
        plans = app.control.ledger("clicks").plans.values()
        assert [record.plan.size for record in plans] == [20, 10]

        produce(client, "streams-intro", records=30, topic=name)
        api.set_paused("tidemark_status", False)
        looked = wait_for_end(api, scheduled_run(api, "tidemark_status"), "tidemark_status")
        alarms = {f"alarm[{number}]": "failed" for number in range(3)}
        assert looked.tasks == {"look": "success", **alarms}
        seen = query_rows(DeltaTable(app.layout.status_table), "SELECT * FROM t")
        assert {row["pipeline"]: row["alarms"] for row in seen} == {
            "clicks": "RunwayTooShort, LagTooLarge",
            "away": "KafkaUnavailable",
            "lost": "NoStartOffset",
        }

        def message_with(words: str) -> str:
            wait_until(lambda: any(words in body["text"] for _, body in webhook.requests))
            return next(body["text"] for _, body in webhook.requests if words in body["text"])

        assert message_with("A run of away has not ended in time")
        alarm = message_with("clicks: RunwayTooShort: ")
        assert alarm.startswith("tidemark_status.alarm of ")
        assert "`tidemark status clicks`" in alarm
        assert "`tidemark ingest clicks`" in alarm
        failure = message_with("tidemark_lost.plan of ")
        assert " failed: lost: NoStartOffset: " in failure
        assert "`tidemark offsets import" in failure


def scheduled_run(api: AirflowApi, dag: str = DAG) -> str:
    """Wait for the run that the scheduler creates for an unpaused DAG; return its id."""
    deadline = time.monotonic() + 180
    while not (runs := api.run_ids(dag)):
        assert time.monotonic() < deadline, "the scheduler has made no run"
        time.sleep(0.5)
    return runs[0]


def wait_for_end(api: AirflowApi, run_id: str, dag: str = DAG, timeout_s: float = 400) -> DagRun:
    """Wait for the end of a run and return it; print the logs of its failed tasks."""
    run = api.wait(dag, run_id, timeout_s=timeout_s, progress=print)
    for task in run.failed_tasks:
        print(api.log_tail(dag, run_id, task))
    return run


def wait_for_lineage(
    parts: Parts, dag: str, run_id: str, tasks: Sequence[str], times: int = 1
) -> dict[str, list[dict[str, Any]]]:
    """Wait for the last events of some tasks of a run, and return them by task."""

    def found() -> dict[str, list[dict[str, Any]]]:
        ended = ended_tasks(parts.lineage, run_id)
        return {task: ended.get(f"{dag}.{task}", []) for task in tasks}

    # Airflow stores the state of a task before it emits the event.
    wait_until(lambda: all(len(each) == times for each in found().values()))
    return found()


def check_lineage(lineage: Mapping[str, list[dict[str, Any]]], app: App, bootstrap: str) -> None:
    """Check the events of the first run of `clicks`: places, ranges and versions."""
    topic = (f"kafka://{bootstrap}", "clicks")
    bronze, typed, quarantine, upsert = (
        ("file", app.layout.data_table(target))
        for target in (
            *("bronze/clicks", "silver/clicks"),
            *("silver/clicks_quarantine", "silver/clicks_latest"),
        )
    )
    expected = {
        "ingest": ([topic], [bronze]),
        "check": ([bronze], []),
        "decode": ([bronze], [typed, quarantine]),
        "upsert": ([typed], [upsert]),
    }
    sides = {
        task: tuple(datasets(event, side) for side in ("inputs", "outputs"))
        for task, (event,) in lineage.items()
    }
    assert {task: tuple(map(list, each)) for task, each in sides.items()} == expected
    for inputs, outputs in sides.values():
        for place, found in outputs.items():
            newest = DeltaTable(place[1]).version()
            assert found["facets"]["version"]["datasetVersion"] == str(newest), place
            # Each output names its source.
            fields = found["facets"]["columnLineage"]["fields"].values()
            inner = [each for field in fields for each in field["inputFields"]]
            assert {(each["namespace"], each["name"]) for each in inner} == set(inputs)
    of_bronze = recorded_plans(app, "clicks")
    assert len(of_bronze) == 1
    assert plans_of(sides["ingest"][0][topic]) == of_bronze
    assert plans_of(sides["ingest"][1][bronze]) == of_bronze
    assert plans_of(sides["check"][0][bronze]) == of_bronze
    assert plans_of(sides["decode"][0][bronze]) == of_bronze
    assert plans_of(sides["decode"][1][typed]) == of_bronze
    assertions = sides["check"][0][bronze]["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert assertions
    assert all(each["success"] for each in assertions)


def plans_of(dataset: Mapping[str, Any]) -> list[tuple[str, int, int, list[list[int]]]]:
    """Return pipeline, number, table version and ranges of the plans of a dataset."""
    facets = dataset.get("inputFacets") or dataset.get("outputFacets") or {}
    return [
        (
            each["pipeline"],
            each["plan"],
            each["tableVersion"],
            [[r["partition"], r["start"], r["end"]] for r in each["ranges"]],
        )
        for each in facets["tidemark_offsets"]["plans"]
    ]


def recorded_plans(app: App, pipeline: str) -> list[tuple[str, int, int, list[list[int]]]]:
    """Return the same values of the plans in the control table."""
    return [
        (
            pipeline,
            number,
            each.held_now.table_version if each.held_now else -1,
            [[r.partition, r.start, r.end] for r in each.plan.ranges],
        )
        for number, each in app.control.ledger(pipeline).plans.items()
    ]


def request_backfill(api: AirflowApi, backfill: Mapping[str, Any]) -> bool:
    """Request a backfill by dates; return False if the scheduler has locked SQLite."""
    try:
        api.call("POST", "/backfills", backfill)
    except AirflowUnavailable as error:
        # Airflow has then removed the incomplete backfill.
        if "Database is locked" in str(error):
            return False
        raise
    return True


def jobs_of(airflow: AirflowStandalone) -> list[str]:
    """Return the command lines of this Airflow's living Spark jobs."""
    commands = map(command_line, airflow.status().processes)
    return [command for command in commands if str(PROJECT / "jobs") in command]


def whole_rows(uri: str) -> list[dict[str, Any]]:
    """Return every row of the table with all its columns."""
    found: list[dict[str, Any]] = pa.table(DeltaTable(uri).scan()).to_pylist()
    return found


def rows(uri: str) -> list[tuple[int, int]]:
    """Return partition and offset of every row of the table, with duplicates."""
    table = DeltaTable(uri).to_pyarrow_table(columns=["partition", "offset"])
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))
