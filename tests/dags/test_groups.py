"""The tasks of a group's DAG: each takes what is left, and tells what is not."""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from tests.dags.conftest import Answer, Probe
from tests.dags.test_job_operator import KAFKA, SECRET, SPARK, SPARK_SUBMIT
from tests.support.plans import make_plan
from tests.support.services import NOW
from tidemark.adapters.delta.control_table import DeltaControlTable
from tidemark.core.events import Landed, Planned
from tidemark.core.landing import Landing
from tidemark.errors import ExitCode

RUN = "airflow:tidemark_group_tides:manual__1"


class Group:
    """A group of three pipelines, `a`, `b` and `c`, with a control table and no Kafka."""

    def __init__(self, probe: Probe, home: Path) -> None:
        self._probe = probe
        self._home = home
        specs = home / "pipelines"
        specs.mkdir()
        for name in ("a", "b", "c"):
            connection = "kafka_other" if name == "b" else "kafka_default"
            (specs / f"{name}.yaml").write_text(
                f"name: {name}\ntopic: t\nschedule: '@daily'\nstart: earliest\n"
                f"group: tides\nconnection: {connection}\n"
            )
        program = home / "spark-submit"
        program.write_text(SPARK_SUBMIT)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self._environ = {
            "TIDEMARK_PIPELINES": str(specs),
            "TIDEMARK_HOME": str(home),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(SPARK),
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(KAFKA),
            "AIRFLOW_CONN_KAFKA_OTHER": json.dumps(KAFKA),
            "SEEN": str(home),
            "CODE": "0",
            "TOLD": "",
        }

    def planned(self, pipeline: str, *, landed: bool = False, run: str = RUN) -> None:
        """Record plan 4 of a pipeline."""
        control = DeltaControlTable(str(self._home / "lakehouse" / "control" / "offset_ranges"))
        plan = make_plan((0, 0, 5), pipeline=pipeline, sequence=4, requested_by=run)
        control.append(control.ledger(pipeline), [Planned(plan=plan)], NOW)
        if landed:
            event = Landed(plan=plan, landing=Landing.of(plan, 1, {0: 5}), committed={0: 5})
            control.append(control.ledger(pipeline), [event], NOW)

    def run_job(self, job: str, **environ: str) -> Answer:
        """Run the group's operator."""
        return self._probe.ask(
            "run_job",
            environ={**self._environ, **environ},
            operator="GroupJobOperator",
            job=job,
            group="tides",
            requested_by=RUN,
            spark_binary=str(self._home / "spark-submit"),
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
            "call_task", task=task, environ=self._environ, group="tides", requested_by=RUN,
            **arguments,
        )  # fmt: skip


@pytest.fixture
def group(probe: Probe, tmp_path: Path) -> Group:
    """A group of this test's own."""
    return Group(probe, tmp_path)


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


def test_quality_takes_the_plans_that_have_landed(group: Group) -> None:
    """Whatever became of the others."""
    group.planned("a", landed=True)
    group.planned("b")
    group.planned("c", landed=True)
    assert group.run_job("quality").value["error"] is None
    assert group.submitted() == ["a=4", "c=4"]


@pytest.mark.parametrize("job", ["ingest", "quality"])
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
    """No broker answers: each is named, and a retry may cure it."""
    answer = group.call("plan_group")
    assert answer.value["fails_now"] is False
    for name in ("a", "b", "c"):
        assert f"{name}: KafkaUnavailable" in answer.value["error"]


def test_nothing_that_has_not_passed_is_published(group: Group) -> None:
    """Landed and never checked, or not landed: the task is skipped, and says which."""
    group.planned("a", landed=True)
    group.planned("b")
    answer = group.call("publish_group", outlet_events={})
    assert "AirflowSkipException" in answer.value["error"]
    assert "not passed: a=4" in answer.printed
