"""The tasks of a run: each continues with the pipelines that can continue."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from tests.airflow.conftest import Answer, Probe, calling
from tests.airflow.test_job_operator import KAFKA, SECRET
from tests.conftest import TopicFactory
from tests.support.plans import append_events, make_plan
from tests.support.quality_reports import REPORT
from tests.support.services import NOW
from tests.support.transactions import produce_months
from tidemark.app import App
from tidemark.connections import kafka_connection
from tidemark.core.accounting import Landing
from tidemark.core.errors import ExitCode
from tidemark.core.events import Landed, Planned
from tidemark.core.origins import RunOrigin
from tidemark.dev.broker import BrokerStatus
from tidemark.lake.control_table import DeltaControlTable
from tidemark.lake.data_table import DeltaDataTable
from tidemark.quality.publication import PublicationDecision
from tidemark.quality.publication_service import Publication
from tidemark.quality.publication_table import DeltaPublicationTable

RUN = "airflow:tidemark_group_tides:manual__1"
CONNECTIONS = {"a": "kafka_default", "b": "kafka_other", "c": "kafka_third"}


class Group:
    """A group of three pipelines, `a`, `b` and `c`, with a control table and no Kafka."""

    def __init__(self, probe: Probe, program: Path) -> None:
        self._probe = probe
        self._program = program
        self._home = home = program.parent
        specs = home / "pipelines"
        specs.mkdir()
        for name, connection in CONNECTIONS.items():
            (specs / f"{name}.yaml").write_text(
                f"name: {name}\ntopic: t\nschedule: '@daily'\nstart: earliest\n"
                f"group: tides\nconnection: {connection}\n"
            )
        self._environ = {
            "TIDEMARK_PIPELINES": str(specs),
            "TIDEMARK_HOME": str(home),
            **calling(program),
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(KAFKA),
            "AIRFLOW_CONN_KAFKA_OTHER": json.dumps(KAFKA),
            "AIRFLOW_CONN_KAFKA_THIRD": json.dumps(KAFKA),
            "SEEN": str(home),
            "CODE": "0",
            "TOLD": "",
        }

    @property
    def control(self) -> DeltaControlTable:
        """The control table."""
        return DeltaControlTable(str(self._home / "lakehouse" / "control" / "offset_ranges"))

    def planned(self, pipeline: str, *, landed: bool = False, run: str = RUN) -> None:
        """Record plan 4 of a pipeline."""
        control = self.control
        plan = make_plan((0, 0, 5), pipeline=pipeline, sequence=4, origin=RunOrigin(run))
        append_events(control, pipeline, Planned(plan=plan))
        if landed:
            event = Landed(plan=plan, landing=Landing.of(plan, 1, {0: 5}), committed={0: 5})
            append_events(control, pipeline, event)

    def checked(self, pipeline: str, *, passed: bool, minutes: int = 0) -> None:
        """Record a check of plan 4, some minutes from now."""
        (result,) = REPORT.results
        report = replace(
            REPORT,
            pipeline=pipeline,
            plan_sequence=4,
            run_at=NOW + timedelta(minutes=minutes),
            results=(replace(result, passed=passed),),
        )
        app = App(environ=self._environ)
        uri = app.layout.data_table(app.spec(pipeline).target)
        DeltaDataTable(uri).prepare(pipeline)
        record = self.control.plan_record(pipeline, 4)
        assert record is not None
        assert record.held_now is not None
        table = DeltaPublicationTable(app.layout.publication_table, uri)
        table.append(record.plan, record.held_now, PublicationDecision.from_report(report))

    def publication(self, pipeline: str) -> Publication:
        """Return the service behind `tidemark publication`."""
        return App(environ=self._environ).pipeline(pipeline).publication

    def damage_table(self, pipeline: str) -> None:
        """Leave a data table that nobody can open."""
        log = self._home / "lakehouse" / "bronze" / pipeline / "_delta_log"
        log.mkdir(parents=True)
        (log / f"{0:020}.json").write_text("{")

    def reads(self, pipeline: str, topic: str, bootstrap: str) -> None:
        """Let a pipeline read a topic that there is."""
        spec = self._home / "pipelines" / f"{pipeline}.yaml"
        spec.write_text(spec.read_text().replace("topic: t\n", f"topic: {topic}\n"))
        self.connect(CONNECTIONS[pipeline], kafka_connection(bootstrap))

    def connect(self, conn_id: str, definition: str | None) -> None:
        """Define a connection otherwise, or not at all."""
        variable = f"AIRFLOW_CONN_{conn_id.upper()}"
        if definition is None:
            del self._environ[variable]
        else:
            self._environ[variable] = definition

    def run_job(self, job: str, **environ: str) -> Answer:
        """Run the task of a job."""
        return self._probe.ask(
            "run_job",
            environ={**self._environ, **environ},
            task=f"{job}_run",
            pipelines=list(CONNECTIONS),
            requested_by=RUN,
        )

    def submitted(self) -> Sequence[str] | None:
        """The plans that a job was submitted for; None if none was."""
        file = self._home / "argv"
        if not file.exists():
            return None
        argv = file.read_text().splitlines()
        return [after for word, after in pairwise(argv) if word == "--plan"]

    def call(self, task: str, **arguments: object) -> Answer:
        """Call a task of the group."""
        return self._probe.ask(
            "call_task", task=task, environ=self._environ, pipelines=list(CONNECTIONS),
            requested_by=RUN, **arguments,
        )  # fmt: skip

    def published(self) -> tuple[list[tuple[str, int]], Answer]:
        """Pipeline and plan of each asset event that `publish` sends, and how it ends."""
        answer = self._probe.ask(
            "published", task="publish_run", environ=self._environ, alias="tides",
            pipelines=list(CONNECTIONS), requested_by=RUN,
        )  # fmt: skip
        events = answer.value["events"]
        assert [each["asset"] for each in events] == [
            f"tidemark_{each['pipeline']}" for each in events
        ]
        return [(each["pipeline"], each["plan"]) for each in events], answer


@pytest.fixture
def group(task_probe: Probe, spark_submit: Path) -> Group:
    """A group of this test's own."""
    return Group(task_probe, spark_submit)


def test_ingest_takes_the_plans_of_the_run_that_have_not_landed(group: Group) -> None:
    """In one application; a plan of another run is none of its business."""
    group.planned("a")
    group.planned("b", run="airflow:tidemark_group_tides:manual__0")
    group.planned("c")
    assert group.run_job("ingest").value["error"] is None
    assert group.submitted() == ["a=4", "c=4"]


def test_a_retry_of_ingest_leaves_out_what_has_landed(group: Group) -> None:
    """And with nothing left it ends well, without Spark."""
    group.planned("a", landed=True)
    group.planned("b")
    assert group.run_job("ingest").value["error"] is None
    assert group.submitted() == ["b=4"]


def test_ingest_after_everything_has_landed_starts_nothing(group: Group) -> None:
    """A cleared task succeeds."""
    group.planned("a", landed=True)
    assert group.run_job("ingest").value["kind"] == "NoneType"
    assert group.submitted() is None


def test_check_takes_the_plans_that_have_landed(group: Group) -> None:
    """Whatever became of the others."""
    group.planned("a", landed=True)
    group.planned("b")
    group.planned("c", landed=True)
    assert group.run_job("check").value["error"] is None
    assert group.submitted() == ["a=4", "c=4"]


def test_check_takes_earlier_plans_without_a_result(group: Group) -> None:
    """A check that crashed would otherwise hide its plan from the typed table for ever."""
    group.planned("a", landed=True, run="airflow:tidemark_group_tides:manual__0")
    group.planned("b", landed=True)
    group.planned("c", landed=True, run="airflow:tidemark_group_tides:manual__0")
    group.checked("c", passed=False)
    assert group.run_job("check").value["error"] is None
    assert group.submitted() == ["a=4", "b=4"]


@pytest.mark.parametrize("job", ["ingest", "check"])
def test_a_task_without_a_plan_is_skipped(group: Group, job: str) -> None:
    """After a planning that was refused for all pipelines."""
    assert group.run_job(job).value["kind"] == "AirflowSkipException"
    assert group.submitted() is None


def test_all_connections_reach_the_job_by_its_environment_alone(
    group: Group, tmp_path: Path
) -> None:
    """One variable for each connection of the group."""
    group.planned("a")
    group.planned("b")
    answer = group.run_job("ingest", CODE=str(int(ExitCode.REFUSED)))
    environ = (tmp_path / "environ").read_text()
    assert "AIRFLOW_CONN_KAFKA_DEFAULT=" in environ
    assert "AIRFLOW_CONN_KAFKA_OTHER=" in environ
    assert SECRET not in (tmp_path / "argv").read_text()
    assert SECRET not in answer.printed
    assert answer.value["fails_now"] is True
    assert answer.value["environment_restored"] is True


def test_planning_tells_every_pipeline_that_was_refused(group: Group) -> None:
    """Each by its name; Airflow retries, because a retry may help one of them."""
    group.damage_table("a")
    group.connect("kafka_third", '{"conn_type": "postgres", "host": "h"}')
    group.connect("kafka_other", None)
    answer = group.call("plan_run")
    assert answer.value["fails_now"] is False
    assert "a: EngineFailed: " in answer.value["error"]
    assert "b: UnknownConnection: " in answer.value["error"]
    assert "c: InvalidConnection: " in answer.value["error"]


def test_a_missing_connection_of_one_stops_no_other(group: Group, tmp_path: Path) -> None:
    """The job is told of the others' connections, and refuses that one itself."""
    group.planned("a")
    group.planned("b")
    group.connect("kafka_other", None)
    assert group.run_job("ingest").value["error"] is None
    assert group.submitted() == ["a=4", "b=4"]
    assert "AIRFLOW_CONN_KAFKA_OTHER=" not in (tmp_path / "environ").read_text()


def test_no_connection_at_all_is_refused_before_spark(group: Group) -> None:
    """There is nothing that the job could do."""
    group.planned("b")
    group.connect("kafka_other", None)
    answer = group.run_job("ingest")
    assert answer.value["error"].startswith("UnknownConnection: Connection 'kafka_other'")
    assert group.submitted() is None


def test_a_plan_that_was_not_checked_is_not_published(group: Group) -> None:
    """Landed and never checked, or not landed: the task is skipped, and says which."""
    group.planned("a", landed=True)
    group.planned("b")
    events, answer = group.published()
    assert events == []
    assert "AirflowSkipException" in answer.value["error"]
    assert "pipeline=a plan=4 status=not checked" in answer.printed


def test_a_check_that_failed_keeps_its_own_table_from_being_published(group: Group) -> None:
    """And no other; once a newer check passes, it is published as well."""
    for pipeline, passed in (("a", False), ("b", True)):
        group.planned(pipeline, landed=True)
        group.checked(pipeline, passed=passed, minutes=1)
    events, answer = group.published()
    assert (events, answer.value["error"]) == ([("b", 4)], None)
    assert "pipeline=a plan=4 status=blocked" in answer.printed
    # One that passed before is older, whenever it was written down.
    group.checked("a", passed=True)
    assert group.published()[0] == [("b", 4)]
    group.checked("a", passed=True, minutes=2)
    assert group.published()[0] == [("a", 4), ("b", 4)]


def test_a_blocked_plan_that_was_released_is_published(group: Group) -> None:
    """The decision of an operator counts, as in the published view."""
    for pipeline in ("a", "b"):
        group.planned(pipeline, landed=True)
        group.checked(pipeline, passed=False)
    group.publication("a").release(4, "ada", "known outage")
    assert group.published()[0] == [("a", 4)]


def test_a_plan_that_was_rejected_after_a_good_check_is_not_published(group: Group) -> None:
    """Also if a later check passes."""
    for pipeline in ("a", "b"):
        group.planned(pipeline, landed=True)
        group.checked(pipeline, passed=True)
    group.publication("a").reject(4, "ada", "wrong prices")
    group.checked("a", passed=True, minutes=5)
    events, answer = group.published()
    assert (events, answer.value["error"]) == ([("b", 4)], None)
    assert "pipeline=a plan=4 status=rejected" in answer.printed


def test_a_run_of_which_nothing_has_passed_publishes_nothing(group: Group) -> None:
    """It was checked, and failed: the task is skipped, so that nobody waits for it."""
    group.planned("a", landed=True)
    group.checked("a", passed=False)
    events, answer = group.published()
    assert events == []
    assert "AirflowSkipException" in answer.value["error"]


@pytest.mark.broker
def test_a_run_by_dates_plans_the_interval_of_each_member(
    group: Group, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """At the offsets that its own topic has at those times; one without such records has no plan.

    Planned again, it is the same.
    """
    for name, months in {"a": {5: 4, 6: 6, 7: 3}, "b": {6: 2, 7: 5}, "c": {5: 2, 7: 1}}.items():
        made = topic(partitions=2, config={"retention.ms": "-1"})
        produce_months(broker.bootstrap, made, months)
        group.reads(name, made, broker.bootstrap)
    june = {"start": "2025-06-01T00:00:00+00:00", "end": "2025-07-01T00:00:00+00:00"}
    for _ in range(2):
        answer = group.call("plan_run", dag_run={"run_type": "backfill", **june})
        assert answer.value == {"error": None, "result": True}
        ranges = {
            name: [
                [(each.partition, each.start, each.end) for each in record.plan.ranges]
                for record in group.control.ledger(name).plans.values()
            ]
            for name in CONNECTIONS
        }
        assert ranges == {"a": [[(0, 4, 10), (1, 4, 10)]], "b": [[(0, 0, 2), (1, 0, 2)]], "c": []}
