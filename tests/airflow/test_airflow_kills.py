"""Tests of tasks that Airflow ends while their jobs run on a Spark Connect server."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest
from confluent_kafka.admin import AdminClient

from tests.airflow.test_airflow_run import (
    DAG,
    SPEC,
    running_airflow,
    scheduled_run,
    wait_for_end,
    whole_rows,
)
from tests.conftest import PROJECT
from tests.support.airflow_requests import clear_tasks
from tests.support.connect_page import ConnectPage
from tests.support.proxy import proxied_broker
from tests.support.topics import make_topic
from tests.support.transactions import produce_values
from tests.support.verdict import judge
from tests.support.waiting import wait_until
from tidemark.app.app import App
from tidemark.app.connections import SPARK_CONNECTION, connection_variable, spark_connection
from tidemark.spark.server import SparkServer
from tidemark.spark.settings import server_settings
from tidemark.spec.layout import Layout

pytestmark = [
    *(pytest.mark.airflow, pytest.mark.spark, pytest.mark.broker, pytest.mark.e2e),
    pytest.mark.faults,
]


def test_a_task_killed_while_a_server_reads_ends_its_session_and_commits_nothing(
    tmp_path: Path, layout: Layout
) -> None:
    """The task is set to failed, or cleared while it runs. The next try lands each record once."""
    own, page = Layout(project=PROJECT, home=tmp_path / "home"), ConnectPage.anywhere()
    settings = {"spark.master": "local[2]", "spark.driver.memory": "1g", **page.settings}
    server = SparkServer(own.spark, {}, server_settings(own, settings))
    with ExitStack() as stack:
        kafka = stack.enter_context(proxied_broker(tmp_path / "broker", layout.kafka_jars))
        admin = AdminClient({"bootstrap.servers": kafka.direct, "log_level": 0})
        name = make_topic(admin, kafka.direct, "killed", partitions=2)
        for partition in (0, 1):
            produce_values(kafka.direct, name, 3_000, partition)
        stack.callback(server.stop)
        server.start(lambda _: None)
        found = server.running()
        assert found is not None
        spark = {connection_variable(SPARK_CONNECTION): spark_connection(found)}
        specs = {"clicks": SPEC.format(topic=name)}
        airflow = stack.enter_context(running_airflow(tmp_path, kafka, specs, spark))
        api = airflow.api()
        app = App(environ={"TIDEMARK_HOME": str(own.home)})
        control, uri = app.control, app.layout.data_table("bronze/clicks")

        def hold(run: str) -> None:
            """Return when the server waits for the records of a run."""
            wait_until(lambda: api.run(DAG, run).tasks.get("ingest") == "running", 200, 0.5)
            wait_until(lambda: page.requests() > 0, 200, 0.5)
            gate.wait_held()

        gate = kafka.proxy.hold()
        api.wait_for_dags([DAG])
        api.set_paused(DAG, False)
        first = scheduled_run(api)
        hold(first)
        path = f"/dags/{DAG}/dagRuns/{quote(first)}/taskInstances/ingest"
        api.call("PATCH", path, {"new_state": "failed"})
        assert wait_for_end(api, first).tasks["ingest"] == "failed"
        # The proxy still holds the fetch, so no operation ends by itself.
        wait_until(lambda: (page.sessions(), page.requests()) == (0, 0), 60, 0.5)
        kafka.proxy.clear()
        assert [plan.is_open for plan in control.ledger("clicks").plans.values()] == [True]
        assert whole_rows(uri) == []

        gate = kafka.proxy.hold()
        second = api.trigger(DAG)
        hold(second)
        clear_tasks(api, DAG, second, ["ingest"], downstream=True)
        kafka.proxy.clear()
        assert set(wait_for_end(api, second).tasks.values()) == {"success"}
        wait_until(lambda: page.sessions() == 0, 60, 0.5)
        ledger = control.ledger("clicks")
        assert ledger.topic_id is not None
        verdict = judge(whole_rows(uri), kafka.direct, name, ledger.topic_id)
        assert (verdict.exact, verdict.records) == (True, 6_000), verdict
        assert [plan.is_open for plan in ledger.plans.values()] == [False]
