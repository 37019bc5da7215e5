"""A console over a home, with a viewer of chosen rights; statuses to show."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.testclient import TestClient

from tests.support.publication import record_check as record_decision_of
from tests.support.quality_reports import REPORT
from tests.support.waiting import wait_until
from tidemark.app.app import App
from tidemark.app.connections import connection_variable, kafka_connection
from tidemark.app.pipeline import Pipeline
from tidemark.console.guard import AirflowRun, LastDagRun, LinkGuard, Viewer
from tidemark.console.server import build_app
from tidemark.core.throughput import Forecast
from tidemark.local.broker_settings import HOST
from tidemark.ops.report.status import PartitionStatus, PipelineStatus
from tidemark.ops.report.unfinished_work import UnfinishedWork
from tidemark.quality.check_results import CheckResult
from tidemark.spark.sockets import free_ports
from tidemark.spec.model import AlarmRules, PipelineSpec

BEARER = "token-of-the-test"


@dataclass(frozen=True)
class SomeRights:
    """A viewer with rights on some pipelines.

    Attributes:
        pipelines: Visible pipelines; None for all.
        payloads: Whether the viewer may read payloads and clusters.
        run: The DAG run that Airflow has; None without Airflow.
        paused: Paused DAGs in Airflow.
        last_run: The newest run of each DAG; None without Airflow.
    """

    pipelines: Collection[str] | None = None
    payloads: bool = True
    run: AirflowRun | None = None
    paused: Collection[str] = ()
    last_run: LastDagRun | None = None

    def may_see(self, spec: PipelineSpec) -> bool:
        return self.pipelines is None or spec.name in self.pipelines

    def visible(self, specs: Collection[PipelineSpec]) -> Collection[PipelineSpec]:
        return [spec for spec in specs if self.may_see(spec)]

    def may_see_invalid_specs(self) -> bool:
        return self.pipelines is None

    def may_read_payloads(self, spec: PipelineSpec) -> bool:  # noqa: ARG002
        return self.payloads

    def may_see_cluster(self, connection: str) -> bool:  # noqa: ARG002
        return self.payloads

    def airflow_run(self, dag_id: str, run_id: str) -> AirflowRun | None:  # noqa: ARG002
        return self.run

    def paused_dags(self, dag_ids: Collection[str]) -> Collection[str]:
        return [dag_id for dag_id in dag_ids if dag_id in self.paused]

    def last_dag_run(self, dag_id: str) -> LastDagRun | None:  # noqa: ARG002
        return self.last_run


@dataclass(frozen=True)
class Admits:
    """A guard that admits every request as one viewer."""

    viewer: Viewer

    async def admit(self, request: Request) -> Viewer | Response:  # noqa: ARG002
        return self.viewer


def app_of(
    home: Path, bootstrap: str | None = None, project: Path | None = None
) -> Callable[[], App]:
    """Return a loader of the app of a home whose specs are in `home/pipelines`.

    Args:
        home: The home.
        bootstrap: Address of the broker; None for a home without a Kafka connection.
        project: Folder with `include/expectations`; None for the folder of this repository.
    """
    environ = {
        "TIDEMARK_HOME": str(home),
        "TIDEMARK_LAKEHOUSE": str(home / "lakehouse"),
        "TIDEMARK_PIPELINES": str(home / "pipelines"),
    }
    if project:
        environ["TIDEMARK_PROJECT"] = str(project)
    if bootstrap:
        environ[connection_variable("kafka_default")] = kafka_connection(bootstrap)
    return lambda: App(environ=environ, kafka_timeout_s=5.0)


def console_of(
    home: Path,
    bootstrap: str | None = None,
    viewer: Viewer | None = None,
    project: Path | None = None,
) -> TestClient:
    """Return a client of a console whose requests have one viewer, by default with all rights."""
    load = app_of(home, bootstrap, project)
    return TestClient(build_app(load, Admits(viewer or SomeRights())))


@contextmanager
def served(web: FastAPI) -> Iterator[str]:
    """Serve a console on a free port of this machine during the block, and return its address."""
    (port,) = free_ports(HOST, 1)
    server = uvicorn.Server(uvicorn.Config(web, host=HOST, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, timeout_s=60, what="the server of the console")
        yield f"http://{HOST}:{port}"
    finally:
        server.should_exit = True
        thread.join()


def guarded_console(home: Path) -> tuple[TestClient, LinkGuard]:
    """Return a client of a console with the guard of `tidemark console`."""
    guard = LinkGuard(bearer=BEARER)
    web = build_app(app_of(home), guard, allowed_hosts=["testserver"])
    return TestClient(web, follow_redirects=False), guard


def record_check(pipeline: Pipeline, sequence: int, *results: CheckResult) -> None:
    """Record a check of a landed plan, and its decision, as the check itself does."""
    report = replace(REPORT, pipeline=pipeline.name, plan_sequence=sequence, results=results)
    pipeline.check_results.append(report)
    record_decision_of(pipeline.control, report)


def a_status(lag: int) -> PipelineStatus:
    """Return a status of a pipeline with one partition."""
    partition = PartitionStatus(
        partition=0,
        low_watermark=0,
        end=lag,
        committed_offset=0,
        lag=lag,
        held_back=0,
        lag_time=None,
        runway=None,
        arrival_rate=0.0,
    )
    return PipelineStatus(
        pipeline="prices",
        checked_at=datetime(2026, 3, 1, tzinfo=UTC),
        topic="prices",
        partitions=(partition,),
        last_run=None,
        last_run_bytes=None,
        stored_bytes=None,
        missing_rows=None,
        open_plans=(),
        unfinished=UnfinishedWork(),
        records=0,
        forecast=Forecast.UNKNOWN,
        caught_up_at=None,
        problem=None,
        rules=AlarmRules(),
    )
