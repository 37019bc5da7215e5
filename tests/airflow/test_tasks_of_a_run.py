"""The tasks of a run: each continues with the pipelines that can continue."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.conftest import Answer, Probe, submit_environ
from tests.airflow.test_job_operator import KAFKA, SECRET
from tests.conftest import TopicFactory
from tests.support.file_lake import FileSink
from tests.support.kafka_file_lake import KafkaFileLake
from tests.support.plans import append_events, make_plan
from tests.support.publication import record_check, record_decision
from tests.support.quality_reports import REPORT
from tests.support.transactions import produce_months
from tidemark.app.app import App
from tidemark.app.connections import kafka_connection
from tidemark.bronze.ingest.errors import RecordsMissed
from tidemark.core.accounting import Landing, RangeCount
from tidemark.core.datafile import DataFile
from tidemark.core.errors import ExitCode
from tidemark.core.events import Landed, Planned, Superseded, Undone
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan, PlanKind
from tidemark.core.publication import PublicationStatus
from tidemark.delta.control_table import DeltaControlTable
from tidemark.local.broker import BrokerStatus

pytestmark = pytest.mark.slow

RUN = "airflow:tidemark_group_tides:manual__1"
BEFORE = "airflow:tidemark_group_tides:manual__0"
CONNECTIONS = {"a": "kafka_default", "b": "kafka_other", "c": "kafka_third"}


class LakeWithoutPartition1(KafkaFileLake):
    """A lake whose reader misses the records of partition 1."""

    @property
    def sink(self) -> FileSink:
        """Writes the files of partition 0."""
        return SinkWithoutPartition1(self.uri, self.log_reader)

    def ingest_rest(self) -> None:
        """Land plan 2 completely."""
        sink = FileSink(self.uri, self.log_reader)
        replace(self.ingest, sink=sink).execute(2)


class SinkWithoutPartition1(FileSink):
    """Writes the files of partition 0."""

    def write(self, plan: Plan, records_per_task: int) -> Sequence[DataFile]:
        return [file for file in super().write(plan, records_per_task) if file.partition == 0]


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
            **submit_environ(program),
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(KAFKA),
            "AIRFLOW_CONN_KAFKA_OTHER": json.dumps(KAFKA),
            "AIRFLOW_CONN_KAFKA_THIRD": json.dumps(KAFKA),
            "SEEN": str(home),
            "CODE": "0",
            "OUTPUT": "",
        }

    @property
    def control(self) -> DeltaControlTable:
        """The control table."""
        return DeltaControlTable(str(self._home / "lakehouse" / "control" / "offset_ranges"))

    def record_plan(
        self,
        pipeline: str,
        *,
        landed: bool = False,
        run: str = RUN,
        sequence: int = 4,
        left: int = 0,
    ) -> None:
        """Record a plan of a pipeline, which left some offsets of the log out."""
        control, start = self.control, 5 * (sequence - 4)
        ranges = (0, start, start + 5)
        plan = make_plan(ranges, pipeline=pipeline, sequence=sequence, origin=RunOrigin(run))
        (planned,) = plan.ranges
        plan = replace(plan, ranges=(replace(planned, left_over=left),))
        append_events(control, pipeline, Planned(plan=plan))
        if landed:
            self._land(plan)

    def _land(self, plan: Plan) -> None:
        landing = Landing.of(plan, plan.sequence, {0: 5})
        event = Landed(plan=plan, landing=landing, committed={})
        append_events(self.control, plan.pipeline, event)

    def record_replacement(self, pipeline: str, start: int = 0) -> None:
        """Land plan 5, which replaces the rows of plan 4 from an offset on."""
        plan = make_plan(
            (0, start, start + 5), pipeline=pipeline, sequence=5, kind=PlanKind.BACKFILL,
            replaces=True,
        )  # fmt: skip
        counts = (RangeCount(partition=0, start=0, end=start, records=start),) if start else ()
        older = Superseded(sequence=4, by=5, topic_id=plan.topic_id, counts=counts)
        append_events(self.control, pipeline, Planned(plan=plan), older)
        self._land(plan)

    def record_check(self, pipeline: str, *, passed: bool, sequence: int = 4) -> None:
        """Record the decision of a check of a plan."""
        (result,) = REPORT.results
        report = replace(
            REPORT,
            pipeline=pipeline,
            plan_sequence=sequence,
            results=(replace(result, passed=passed),),
        )
        record_check(self.control, report)

    def record_release(self, pipeline: str, sequence: int = 4) -> None:
        """Record the release of a plan by an operator."""
        released = PublicationStatus.RELEASED
        record_decision(self.control, pipeline, sequence, released, decided_by="ada")

    def damage_table(self, pipeline: str, folder: str = "bronze") -> None:
        """Create a data table with an invalid schema; delta-rs raises a temporary error."""
        log = self._home / "lakehouse" / folder / pipeline / "_delta_log"
        log.mkdir(parents=True)
        actions = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {
                "metaData": {
                    "id": "x",
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": "{}",
                    "partitionColumns": [],
                    "configuration": {},
                }
            },
        ]
        (log / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))

    def lose_events(self, pipeline: str) -> None:
        """Remove the files with the control events of a pipeline."""
        shutil.rmtree(
            self._home / "lakehouse" / "control" / "offset_ranges" / f"pipeline={pipeline}"
        )

    def add_typed_table(self, pipeline: str) -> None:
        """Give a pipeline a typed table."""
        spec = self._home / "pipelines" / f"{pipeline}.yaml"
        spec.write_text(f"{spec.read_text()}decode: {{value: {{format: string}}}}\n")

    def break_spec(self, pipeline: str) -> None:
        """Make the spec of a pipeline invalid."""
        (self._home / "pipelines" / f"{pipeline}.yaml").write_text(f"name: {pipeline}\n")

    def set_topic(self, pipeline: str, topic: str, bootstrap: str) -> None:
        """Let a pipeline read an existing topic."""
        spec = self._home / "pipelines" / f"{pipeline}.yaml"
        spec.write_text(spec.read_text().replace("topic: t\n", f"topic: {topic}\n"))
        self.connect(CONNECTIONS[pipeline], kafka_connection(bootstrap))

    def lake_without_partition_1(self, pipeline: str, bootstrap: str) -> LakeWithoutPartition1:
        """The lake of a pipeline, whose reader misses the records of partition 1."""
        spec = App(environ=self._environ).spec(pipeline)
        return LakeWithoutPartition1(root=self._home / "lakehouse", spec=spec, bootstrap=bootstrap)

    def connect(self, conn_id: str, definition: str | None) -> None:
        """Replace the definition of a connection; None removes it."""
        variable = f"AIRFLOW_CONN_{conn_id.upper()}"
        if definition is None:
            del self._environ[variable]
        else:
            self._environ[variable] = definition

    def refuse_planning(self) -> None:
        """Let every planning fail at once: without a connection it waits for no broker."""
        for connection in CONNECTIONS.values():
            self.connect(connection, None)

    def run_job(
        self, job: str, earlier: Mapping[str, Sequence[int]] | None = None, **environ: str
    ) -> Answer:
        """Run the task of a job; `earlier` has the plans that the task `plan` selected."""
        return self._probe.ask(
            "run_job",
            environ={**self._environ, **environ},
            task=f"{job}_run",
            pipelines=list(CONNECTIONS),
            requested_by=RUN,
            **({"earlier": json.dumps(earlier)} if job == "check" else {}),
        )

    def submitted_plans(self) -> Sequence[str] | None:
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

    def publish(self, **xcom: object) -> tuple[list[tuple[str, int]], Answer]:
        """Pipeline and plan of each asset event that `publish` sends, and how it ends."""
        answer = self._probe.ask(
            "published", task="publish_run", environ=self._environ, alias="tides",
            pipelines=list(CONNECTIONS), requested_by=RUN, **xcom,
        )  # fmt: skip
        events = answer.value["events"]
        assert [each["asset"] for each in events] == [
            f"tidemark_{each['pipeline']}" for each in events
        ]
        return [(each["pipeline"], each["plan"]) for each in events], answer

    def complete(self, published: Answer) -> dict[str, Any]:
        """How `complete` ends after an attempt at `publish`."""
        sent = re.findall(r"^xcom unreported=(.*)$", published.printed, re.MULTILINE)
        unreported = json.loads(sent[0]) if sent else None
        ended: dict[str, Any] = self._probe.ask(
            "call_task", task="complete_run", environ=self._environ, unreported=unreported
        ).value
        return ended


@pytest.fixture
def group(task_probe: Probe, spark_submit: Path) -> Group:
    """A group of this test's own."""
    return Group(task_probe, spark_submit)


def test_ingest_submits_the_open_plans_of_its_run_in_one_application(group: Group) -> None:
    """It submits neither landed plans nor plans of another run."""
    group.record_plan("a")
    group.record_plan("b", run=BEFORE)
    group.record_plan("c", landed=True)
    assert group.run_job("ingest").value["error"] is None
    assert group.submitted_plans() == ["a=4"]


def test_members_that_succeeded_catch_up_although_another_one_failed(group: Group) -> None:
    """A member counts if a limit left offsets, and its plan is published."""
    group.record_plan("a", landed=True)
    group.record_check("a", passed=True)
    group.record_plan("b", landed=True, left=3)
    nothing, left = ({"error": None, "result": result} for result in (False, True))
    assert group.call("has_left").value == nothing
    group.record_check("b", passed=False)
    assert group.call("has_left").value == nothing
    group.record_check("b", passed=True)
    assert group.call("has_left").value == left
    group.record_plan("c", landed=True, left=3)
    group.lose_events("c")
    assert group.call("has_left").value == left
    group.record_check("b", passed=False)
    assert "ControlTableDamaged" in group.call("has_left").value["error"]


def test_ingest_after_all_plans_have_landed_starts_nothing(group: Group) -> None:
    """A cleared task succeeds."""
    group.record_plan("a", landed=True)
    assert group.run_job("ingest").value["kind"] == "NoneType"
    assert group.submitted_plans() is None


def test_check_takes_its_own_plans_first_then_selected_plans_without_a_result(
    group: Group,
) -> None:
    """A check that crashed would otherwise hide its plan from the typed table for ever."""
    group.record_plan("a", landed=True, run=BEFORE)
    group.record_plan("a", landed=True, run=BEFORE, sequence=5)
    group.record_plan("b", landed=True)
    group.record_plan("c", landed=True, run=BEFORE)
    group.record_check("c", passed=False)
    answer = group.run_job("check", earlier={"a": [4], "b": [4], "c": [4]})
    assert answer.value["error"] is None
    assert group.submitted_plans() == ["b=4", "a=4"]
    assert "earlier plans stay unchecked" in answer.printed
    assert "pipeline=a unchecked_plans=1" in answer.printed


@pytest.mark.parametrize("earlier", [{"a": [4, 5]}, {}, None])
def test_check_gets_the_earlier_plans_by_its_template(
    task_probe: Probe, earlier: Mapping[str, Sequence[int]] | None
) -> None:
    rendered = task_probe.ask("rendered_earlier_plans", earlier=earlier).value
    assert json.loads(rendered) == earlier


def test_a_run_selects_a_bounded_number_of_earlier_plans(group: Group) -> None:
    """The oldest plans of each pipeline come first; a refused planning selects them as well."""
    plans = [
        make_plan((0, 5 * n, 5 * n + 5), pipeline="a", sequence=n + 1, origin=RunOrigin(BEFORE))
        for n in range(103)
    ]
    landed = [
        Landed(plan=plan, landing=Landing.of(plan, plan.sequence, {0: 5}), committed={})
        for plan in plans
    ]
    append_events(group.control, "a", *(Planned(plan=plan) for plan in plans), *landed)
    group.record_plan("b", landed=True, run=BEFORE)
    group.refuse_planning()
    answer = group.call("plan_run")
    assert answer.value["error"] is not None
    (line,) = (each for each in answer.printed.splitlines() if each.startswith("xcom earlier="))
    assert json.loads(line.partition("=")[2]) == {"a": list(range(1, 100)), "b": [4]}


@pytest.mark.parametrize("job", ["ingest", "check"])
def test_an_unreadable_pipeline_does_not_stop_the_job_of_the_others(group: Group, job: str) -> None:
    """Its error fails the task after the job."""
    for pipeline in ("a", "b"):
        group.record_plan(pipeline, landed=job == "check")
    group.lose_events("a")
    answer = group.run_job(job)
    assert group.submitted_plans() == ["b=4"]
    assert answer.value["error"].startswith("a: ControlTableDamaged: ")


@pytest.mark.parametrize("job", ["ingest", "check"])
def test_a_task_without_a_plan_is_skipped(group: Group, job: str) -> None:
    """Planning was refused for all pipelines."""
    assert group.run_job(job).value["kind"] == "AirflowSkipException"
    assert group.submitted_plans() is None


def test_all_connections_reach_the_job_by_its_environment_alone(
    group: Group, tmp_path: Path
) -> None:
    """One variable for each connection of the group."""
    group.record_plan("a")
    group.record_plan("b")
    answer = group.run_job("ingest", CODE=str(int(ExitCode.REFUSED)))
    environ = (tmp_path / "environ").read_text()
    assert "AIRFLOW_CONN_KAFKA_DEFAULT=" in environ
    assert "AIRFLOW_CONN_KAFKA_OTHER=" in environ
    assert SECRET not in (tmp_path / "argv").read_text()
    assert SECRET not in answer.printed
    assert answer.value["fails_now"] is True
    assert answer.value["environment_restored"] is True


def test_a_job_gets_no_other_secret_of_its_environment(group: Group, tmp_path: Path) -> None:
    """A check reads no Kafka; no job needs a setting of Airflow."""
    secrets = {
        "AIRFLOW_CONN_OTHER": SECRET,
        "AIRFLOW_VAR_OTHER": SECRET,
        "AIRFLOW__CORE__FERNET_KEY": SECRET,
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": SECRET,
    }
    group.record_plan("a")
    group.record_plan("b", landed=True)
    for job, expected in (("ingest", {"AIRFLOW_CONN_KAFKA_DEFAULT"}), ("check", set())):
        assert group.run_job(job, None, **secrets).value["error"] is None
        lines = (tmp_path / "environ").read_text().splitlines()
        variables = {line.partition("=")[0] for line in lines if SECRET in line}
        assert variables == expected
        assert f"TIDEMARK_HOME={tmp_path}" in lines


def test_the_error_of_planning_names_every_refused_pipeline(group: Group) -> None:
    """Airflow retries, because a retry may help one of them."""
    group.damage_table("a")
    group.connect("kafka_third", '{"conn_type": "postgres", "host": "h"}')
    group.connect("kafka_other", None)
    answer = group.call("plan_run")
    assert answer.value["fails_now"] is False
    assert "a: EngineFailed: " in answer.value["error"]
    assert "b: InvalidConnection: " in answer.value["error"]
    assert "c: InvalidConnection: " in answer.value["error"]


def test_a_missing_connection_does_not_stop_the_other_pipelines(
    group: Group, tmp_path: Path
) -> None:
    """The job gets the other connections, and refuses that pipeline itself."""
    group.record_plan("a")
    group.record_plan("b")
    group.connect("kafka_other", None)
    assert group.run_job("ingest").value["error"] is None
    assert group.submitted_plans() == ["a=4", "b=4"]
    assert "AIRFLOW_CONN_KAFKA_OTHER=" not in (tmp_path / "environ").read_text()


def test_no_connection_at_all_is_refused_before_spark(group: Group) -> None:
    """The job could land no plan."""
    group.record_plan("b")
    group.connect("kafka_other", None)
    answer = group.run_job("ingest")
    assert answer.value["error"].startswith("InvalidConnection: Connection 'kafka_other'")
    assert group.submitted_plans() is None


def test_a_plan_that_was_not_checked_is_not_published(group: Group) -> None:
    """Neither is a plan that has not landed. The task is skipped; its log names the plan."""
    group.record_plan("a", landed=True)
    group.record_plan("b")
    events, answer = group.publish()
    assert events == []
    assert "AirflowSkipException" in answer.value["error"]
    assert "pipeline=a plan=4 status=not checked" in answer.printed


def test_a_failed_check_blocks_only_its_own_pipeline(group: Group) -> None:
    """A newer check that passes publishes the plan."""
    for pipeline, passed in (("a", False), ("b", True)):
        group.record_plan(pipeline, landed=True)
        group.record_check(pipeline, passed=passed)
    events, answer = group.publish()
    assert (events, answer.value["error"]) == ([("b", 4)], None)
    assert "pipeline=a plan=4 status=blocked" in answer.printed
    group.record_check("a", passed=True)
    assert group.publish()[0] == [("a", 4), ("b", 4)]


def test_a_released_plan_is_published(group: Group) -> None:
    """An operator's decision overrides the check, as in the published view."""
    for pipeline in ("a", "b"):
        group.record_plan(pipeline, landed=True)
        group.record_check(pipeline, passed=False)
    group.record_release("a")
    assert group.publish()[0] == [("a", 4)]


def test_an_earlier_plan_that_the_run_checked_is_published(group: Group) -> None:
    """The run that landed it skipped it: its check had no result."""
    group.record_plan("a", landed=True, run=BEFORE)
    group.record_check("a", passed=True)
    group.record_plan("a", landed=True, sequence=5)
    group.record_check("a", passed=True, sequence=5)
    group.record_plan("b", landed=True, run=BEFORE)
    assert group.publish(earlier={"a": [4], "b": [4]})[0] == [("a", 5), ("a", 4)]
    assert group.publish()[0] == [("a", 5)]


def test_publishing_reads_each_plan_once(group: Group) -> None:
    """`a` has an earlier plan and a plan of the run, `b` a plan without a check.

    One query by requester returns the plans of the run, so only the earlier plan is read by number.
    """
    group.record_plan("a", landed=True, run=BEFORE)
    group.record_check("a", passed=True)
    group.record_plan("a", landed=True, sequence=5)
    group.record_check("a", passed=True, sequence=5)
    group.record_plan("b", landed=True)
    events, answer = group.publish(earlier={"a": [4], "b": [4]})
    assert events == [("a", 5), ("a", 4)]
    assert answer.value["plans_read"] == [["a", 4]]


def test_a_replaced_plan_of_one_pipeline_does_not_keep_others_from_being_published(
    group: Group,
) -> None:
    """The replaced plan no longer has rows, so it has no event."""
    for pipeline in ("a", "b"):
        group.record_plan(pipeline, landed=True)
        group.record_check(pipeline, passed=True)
    group.record_replacement("a")
    events, answer = group.publish()
    assert (events, answer.value["error"]) == ([("b", 4)], None)


def test_the_event_of_a_partly_replaced_plan_has_the_ranges_that_are_left(group: Group) -> None:
    """The rows of the newer plan may be blocked."""
    group.record_plan("a", landed=True)
    group.record_check("a", passed=True)
    group.record_replacement("a", start=3)
    events, answer = group.publish()
    assert events == [("a", 4)]
    assert [(each["records"], each["ranges"]) for each in answer.value["events"]] == [
        (3, [[0, 0, 3]])
    ]


def test_an_error_of_one_pipeline_does_not_keep_others_from_being_published(group: Group) -> None:
    """Airflow drops the events of a failed task, so the task `complete` raises the error."""
    for pipeline in ("a", "b"):
        group.record_plan(pipeline, landed=True)
        group.record_check(pipeline, passed=True)
    group.break_spec("a")
    events, answer = group.publish()
    assert (events, answer.value["error"]) == ([("b", 4)], None)
    ended = group.complete(answer)
    assert "publish sent no asset event of some pipelines: a: SpecError: " in ended["error"]
    assert ended["fails_now"] is True


@pytest.mark.parametrize("others", [False, True])
def test_a_run_fails_if_its_plan_was_undone_during_the_run(group: Group, others: bool) -> None:
    """I7. The events of other pipelines are sent."""
    for pipeline in ("a", "b") if others else ("a",):
        group.record_plan(pipeline, landed=True)
        group.record_check(pipeline, passed=True)
    undone = Undone(sequence=4, requested_by="ops", reason="a wrong deploy", table_version=5)
    append_events(group.control, "a", undone)
    events, answer = group.publish(planned={"a": 4, "b": 4})
    assert events == ([("b", 4)] if others else [])
    error = group.complete(answer)["error"] if others else answer.value["error"]
    assert "a: PlanCancelled: " in error
    assert "was undone" in error
    assert "a wrong deploy" in error
    # A repetition of the run from its task `plan` plans nothing for `a`, and is green.
    again = group.publish(planned={"b": 4} if others else {})[1].value["error"]
    assert again is None if others else "AirflowSkipException" in again


def test_a_run_whose_pipelines_are_all_published_is_complete(group: Group) -> None:
    for pipeline in ("a", "b"):
        group.record_plan(pipeline, landed=True)
        group.record_check(pipeline, passed=True)
    _, answer = group.publish()
    assert group.complete(answer)["error"] is None


def test_an_error_that_may_pass_is_retried_before_others_are_published(group: Group) -> None:
    """The last attempt sends the events of the other pipelines."""
    group.add_typed_table("a")
    group.damage_table("a", "silver")
    group.record_plan("b", landed=True)
    group.record_check("b", passed=True)
    events, answer = group.publish()
    assert (events, answer.value["fails_now"]) == ([], False)
    assert "a@typed: EngineFailed: " in answer.value["error"]
    events, answer = group.publish(try_number=2)
    assert (events, answer.value["error"]) == ([("b", 4)], None)
    assert "a@typed: EngineFailed: " in group.complete(answer)["error"]


def test_a_table_that_could_not_be_read_at_planning_time_has_no_version(group: Group) -> None:
    """`publish` must not take it for a new table."""
    group.add_typed_table("a")
    group.damage_table("a", "silver")
    group.refuse_planning()
    assert "xcom versions={}" in group.call("plan_run").printed


@pytest.mark.broker
def test_a_run_by_dates_plans_the_interval_of_each_member(
    group: Group, broker: BrokerStatus, topic: TopicFactory
) -> None:
    """The plan has the offsets of the member's own topic at those times.

    A member without such records has no plan. Planning again returns the same plan.
    """
    for name, months in {"a": {5: 4, 6: 6, 7: 3}, "b": {6: 2, 7: 5}, "c": {5: 2, 7: 1}}.items():
        made = topic(partitions=2, config={"retention.ms": "-1"})
        produce_months(broker.bootstrap, made, months)
        group.set_topic(name, made, broker.bootstrap)
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

    # The reader of `a` misses all records of partition 1. Airflow then repeats `ingest` alone.
    lake = group.lake_without_partition_1("a", broker.bootstrap)
    lake.table.prepare("a")
    with pytest.raises(RecordsMissed):
        lake.ingest.execute(1)
    group.run_job("ingest")
    assert group.submitted_plans() == ["b=1", "a=2"]
    rest = group.control.ledger("a").plans[2].plan
    assert [(each.partition, each.start, each.end) for each in rest.ranges] == [(1, 4, 10)]
    # Both plans are checked and published.
    lake.ingest_rest()
    group.run_job("check")
    assert group.submitted_plans() == ["a=1", "a=2"]
