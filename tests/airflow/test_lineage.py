"""Lineage of tasks, as Airflow's OpenLineage provider emits it in a fork of the task."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable

from tests.airflow.conftest import Answer, Probe
from tests.airflow.test_decode import DECODING, environ_of
from tests.airflow.test_job_operator import KAFKA, RUN, SECRET
from tests.support.file_lake import FileLake
from tests.support.openlineage import (
    PAGE,
    check_event,
    check_own,
    datasets,
    events,
    transport,
)
from tests.support.services import NOW
from tests.support.typed_job import NoRows
from tests.support.typed_lake import DECODE, TypedLake, home_typed_lake
from tidemark.airflow.lineage.places import table_place
from tidemark.app.app import App
from tidemark.app.pipelines import Outcomes
from tidemark.bronze.ingest.errors import RecordsMissed
from tidemark.bronze.ingest.protocols import Sink
from tidemark.core.datafile import DataFile
from tidemark.core.decode_work import Decoded
from tidemark.core.errors import ExitCode
from tidemark.core.plan import Plan, ReadablePlan
from tidemark.delta.errors import EngineFailed
from tidemark.quality.check_results import CheckResult, Example, QualityReport, Severity
from tidemark.quality.check_results_table import DeltaCheckResults
from tidemark.quality.errors import QualityFailed
from tidemark.silver.upsert.table import DeltaUpsertTable
from tidemark.spark.submit import RESULT_MARKER
from tidemark.spec.upsert import UpsertSpec

pytestmark = pytest.mark.slow

TOPIC = ("kafka://127.0.0.1:1", "events")


@pytest.fixture
def lake(spark_submit: Path) -> TypedLake:
    """Pipeline `events` with an upsert table; nothing has landed."""
    spark_submit.write_text(DECODING)
    return home_typed_lake(spark_submit.parent, "value: {format: string}, upsert: {}")


def emit(task_probe: Probe, program: Path, task: str, **given: Any) -> tuple[Answer, list[Any]]:
    """Run a task; return its answer, and the valid events that the provider wrote."""
    folder = Path(tempfile.mkdtemp(dir=program.parent))
    environ = {
        **environ_of(program, given.pop("code", ExitCode.OK)),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": transport(folder),
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(KAFKA),
        **given.pop("environ", {}),
    }
    arguments = {"pipelines": ["events"], **given}
    answer = task_probe.ask("emitted", task=task, environ=environ, **arguments)
    return answer, events(folder)


def land(lake: FileLake, run: str = RUN) -> Plan:
    """Land three records of partition 0 and two of partition 1 in the plan of a run."""
    lake.produce(3, 0)
    lake.produce(2, 1)
    plan = lake.planner.plan(run).plan
    assert plan is not None
    lake.ingest.execute(plan.sequence)
    return plan


SIDES = ("inputs", "outputs")


def place(uri: Path) -> tuple[str, str]:
    return ("file", str(uri))


def ranges(dataset: Mapping[str, Any], side: str) -> list[tuple[str, int, list[list[int]]]]:
    """Return pipeline, number and ranges of each plan of a dataset."""
    return [
        (
            each["pipeline"],
            each["plan"],
            [[r["partition"], r["start"], r["end"]] for r in each["ranges"]],
        )
        for each in dataset[side]["tidemark_offsets"]["plans"]
    ]


def recorded(lake: FileLake, pipeline: str) -> list[tuple[str, int, list[list[int]]]]:
    """Return pipeline, number and landed ranges of each plan of the control table."""
    return [
        (pipeline, number, [[r.partition, r.start, r.end] for r in each.landed_originally.counts])
        for number, each in lake.control.ledger(pipeline).plans.items()
        if each.landed_originally
    ]


def sources(dataset: Mapping[str, Any], column: str) -> list[tuple[str, str, str, str]]:
    """Return the place of each column that a column comes from, its name and the subtype."""
    return [
        (each["namespace"], each["name"], each["field"], each["transformations"][0]["subtype"])
        for each in dataset["facets"]["columnLineage"]["fields"][column]["inputFields"]
    ]


def test_an_ingest_has_the_topic_with_its_offsets_and_the_table_with_its_version(
    task_probe: Probe, spark_submit: Path, lake: TypedLake
) -> None:
    """A retry that finds the landed plan has the same lineage. No event has a secret."""
    plan = land(lake.bronze)
    answer, (event,) = emit(task_probe, spark_submit, "ingest_run", requested_by=RUN)
    assert answer.value["error"] is None
    bronze = place(lake.bronze.uri)
    read, written = datasets(event, "inputs"), datasets(event, "outputs")
    assert (list(read), list(written)) == ([TOPIC], [bronze])
    expected = recorded(lake.bronze, "events")
    assert ranges(read[TOPIC], "inputFacets") == expected == ranges(written[bronze], "outputFacets")
    assert read[TOPIC]["inputFacets"]["inputStatistics"]["rowCount"] == 5
    (described,) = written[bronze]["outputFacets"]["tidemark_offsets"]["plans"]
    assert described["topicId"] == plan.topic_id
    assert described["isolationLevel"] == "read_committed"
    assert described["target"] == {"namespace": "file", "name": str(lake.bronze.uri)}
    version = DeltaTable(lake.bronze.uri).version()
    assert written[bronze]["facets"]["version"]["datasetVersion"] == str(version)
    assert described["tableVersion"] == version
    statistics = written[bronze]["outputFacets"]["outputStatistics"]
    assert statistics["rowCount"] == 5
    assert statistics["size"] == lake.bronze.table.stored_bytes()
    columns = {each["name"] for each in written[bronze]["facets"]["schema"]["fields"]}
    assert columns == {field.name for field in DeltaTable(lake.bronze.uri).schema().fields}
    assert sources(written[bronze], "offset") == [(*TOPIC, "offset", "IDENTITY")]
    text = json.dumps(event) + answer.printed
    assert SECRET not in text
    assert "reader" not in text


def test_pipelines_of_one_topic_share_its_dataset_and_each_plan_names_its_table(
    task_probe: Probe, spark_submit: Path, lake: TypedLake
) -> None:
    home = spark_submit.parent
    text = (home / "pipelines" / "events.yaml").read_text().partition("decode:")[0]
    (home / "pipelines" / "twin.yaml").write_text(text.replace("name: events", "name: twin"))
    first = lake.bronze
    land(first)
    spec = replace(first.spec, ref=replace(first.spec.ref, name="twin"), target="bronze/twin")
    twin = FileLake(first.root, spec=spec)
    twin.kafka = first.kafka
    plan = twin.planner.plan(RUN).plan
    assert plan is not None
    twin.ingest.execute(plan.sequence)
    _, (event,) = emit(
        task_probe, spark_submit, "ingest_run", requested_by=RUN, pipelines=["events", "twin"]
    )
    (topic,) = event["inputs"]
    targets = {
        each["pipeline"]: each["target"]["name"]
        for each in topic["inputFacets"]["tidemark_offsets"]["plans"]
    }
    assert targets == {"events": str(first.uri), "twin": str(twin.uri)}
    written = datasets(event, "outputs")
    assert set(written) == {place(first.uri), place(twin.uri)}
    assert ranges(written[place(twin.uri)], "outputFacets") == recorded(twin, "twin")


def test_a_decode_has_bronze_typed_and_quarantine_with_exact_ranges_and_versions(
    task_probe: Probe, spark_submit: Path, lake: TypedLake
) -> None:
    """Each bronze plan is listed. A quarantined record counts in the quarantine alone."""
    spec = spark_submit.parent / "pipelines" / "events.yaml"
    spec.write_text(f"{spec.read_text()}limits: {{records_per_chunk: 2}}\n")
    lake.land_values([b"a", b"b"])
    lake.land_values([b"c"])
    version = DeltaTable(lake.bronze.uri).version()
    answer, (event,) = emit(task_probe, spark_submit, "decode_run", environ={"BROKEN": "1"})
    assert answer.value["error"] is None
    bronze, typed = place(lake.bronze.uri), place(lake.typed_uri)
    quarantine = place(lake.root / lake.decode.quarantine_target)
    read, written = datasets(event, "inputs"), datasets(event, "outputs")
    assert (list(read), list(written)) == ([bronze], [typed, quarantine])
    expected = recorded(lake.bronze, "events")
    assert len(expected) == 2
    assert ranges(read[bronze], "inputFacets") == expected == ranges(written[typed], "outputFacets")
    assert read[bronze]["facets"]["version"]["datasetVersion"] == str(version)
    assert read[bronze]["inputFacets"]["inputStatistics"]["rowCount"] == 3
    for each, rows in ((typed, 2), (quarantine, 1)):
        newest = str(DeltaTable(each[1]).version())
        assert written[each]["facets"]["version"]["datasetVersion"] == newest
        assert written[each]["outputFacets"]["outputStatistics"]["rowCount"] == rows
    assert sources(written[typed], "key") == [(*bronze, "key", "IDENTITY")]
    assert sources(written[typed], "value") == [(*bronze, "value", "TRANSFORMATION")]
    assert sources(written[typed], "offset") == [(*bronze, "offset", "IDENTITY")]
    assert sources(written[quarantine], "reason") == [
        (*bronze, part, "CONDITIONAL") for part in ("key", "value")
    ]
    for each in (typed, quarantine):
        lineage = written[each]["facets"]["columnLineage"]
        known = {field["name"] for field in written[each]["facets"]["schema"]["fields"]}
        assert known - lineage["fields"].keys() == {"plan_sequence"}
        assert lineage["fields"].keys() <= known
        assert {field["field"] for field in lineage["dataset"]} == {"key", "value"}


def test_a_merge_has_typed_table_and_upsert_table_with_their_versions(
    task_probe: Probe, spark_submit: Path, lake: TypedLake
) -> None:
    """The first merge reads all records; the second one reads the plan that landed since.

    A repeated task finds the merge of its run done, and repeats its lineage. A run without a merge
    has no lineage.
    """
    typed = place(lake.typed_uri)
    upsert = place(lake.root / "silver" / "events_latest")
    # Two landings before the first merge, so that the versions of both tables differ.
    lake.land_values([b"a"])
    lake.run()
    for scope, plans in (("all records", []), ("new records", [3])):
        lake.land_values([b"a"])
        lake.run()
        planned = DeltaUpsertTable(upsert[1], UpsertSpec(target="")).version()
        versions = json.dumps({"events@upsert": planned})
        answer, (event,) = emit(task_probe, spark_submit, "upsert_run", versions=versions)
        assert answer.value["error"] is None
        DeltaTable(upsert[1]).optimize.compact()
        _, (repeated,) = emit(task_probe, spark_submit, "upsert_run", versions=versions)
        assert [repeated[each] for each in SIDES] == [event[each] for each in SIDES]
        read, written = datasets(event, "inputs"), datasets(event, "outputs")
        assert (list(read), list(written)) == ([typed], [upsert])
        typed_version = DeltaTable(lake.typed_uri).version()
        assert read[typed]["facets"]["version"]["datasetVersion"] == str(typed_version)
        merges = DeltaTable(upsert[1]).history()
        merged = next(each["version"] for each in merges if "userMetadata" in each)
        assert written[upsert]["facets"]["version"]["datasetVersion"] == str(merged)
        merge = written[upsert]["outputFacets"]["tidemark_merge"]
        assert (merge["scope"], merge["plans"]) == (scope, plans)
        assert merge["typedVersion"] == typed_version
        assert merge["source"] == {"namespace": typed[0], "name": typed[1]}
        if plans:
            assert ranges(read[typed], "inputFacets") == recorded(lake.bronze, "events")[-1:]
        assert sources(written[upsert], "value") == [(*typed, "value", "IDENTITY")]
    newest = json.dumps({"events@upsert": DeltaTable(upsert[1]).version()})
    for versions in (newest, "null"):
        answer, (event,) = emit(task_probe, spark_submit, "upsert_run", versions=versions)
        assert answer.value["error"] is None
        assert (event["inputs"], event["outputs"]) == ([], [])


def test_a_failed_search_for_an_earlier_merge_fails_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upsert table is up to date; only lineage needs the merge."""
    from tidemark.airflow.tasks import upsert_run

    home_typed_lake(tmp_path, "value: {format: string}, upsert: {}")
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))
    monkeypatch.setenv("TIDEMARK_PIPELINES", str(tmp_path / "pipelines"))
    spark = Mock(app=App.from_environment())
    spark.on().upsert.return_value = Outcomes(
        records=[{"pipeline": "events", "plan": None, "outcome": "nothing to do"}], codes=[0]
    )
    failed = EngineFailed(operation="reading the log", reason="timed out")
    search = Mock(side_effect=failed)
    monkeypatch.setattr(DeltaUpsertTable, "merge_after", search)
    outcomes = upsert_run(spark, ["events"], json.dumps({"events@upsert": 3}))
    assert (outcomes.exit_code, len(outcomes.records)) == (ExitCode.OK, 1)
    search.assert_called_once_with(3)


def test_the_tables_of_many_pipelines_are_read_once(task_probe: Probe, spark_submit: Path) -> None:
    """A task has ten seconds for its lineage. Pipelines share one read of the control table.

    The provider searches no names of columns for secrets, which takes longer than all reads.
    Lineage omits a pipeline whose tables cannot be read.
    """
    home, names = spark_submit.parent, ("one", "two")
    root = home / "lakehouse"
    app = App.from_environment(
        {"TIDEMARK_HOME": str(home), "TIDEMARK_PIPELINES": str(home / "pipelines")}
    )
    (home / "pipelines").mkdir()
    for name in names:
        (home / "pipelines" / f"{name}.yaml").write_text(
            f"name: {name}\ntopic: events\nschedule: '@daily'\nstart: earliest\n"
            "decode: {publish: always, value: {format: string}, upsert: {}}\n"
        )
    merges = {}
    for name in names:
        pipeline = app.pipeline(name)
        lake = TypedLake(root, decode=replace(DECODE, target=f"silver/{name}"))
        lake.bronze.spec = pipeline.spec
        for _ in range(2):
            lake.land_values([b"a"])
            lake.run()
        merger = NoRows(root / "silver" / f"{name}_latest")
        assert pipeline.upsert.planner.execute(merger)
        for _ in range(2):
            lake.land_values([b"a"])
            lake.run()
        merges[name] = pipeline.upsert.planner.execute(merger)
        for plan in lake.control.ledger(name).plans:
            pipeline.check_results.append(QualityReport(pipeline=name, plan_sequence=plan, **CHECK))
    environ = environ_of(spark_submit, ExitCode.OK)
    environ["AIRFLOW_CONN_KAFKA_DEFAULT"] = json.dumps(KAFKA)

    def read(results: Sequence[tuple[str, dict[str, Any]]]) -> Answer:
        records = [{"pipeline": pipeline, **result} for pipeline, result in results]
        return task_probe.ask("lineage_reads", environ=environ, records=records)

    control = str(root / "control" / "offset_ranges")
    plans = range(1, 5)
    for results, tables, inputs in (
        ([(n, {"plan": p, "wrote": True}) for n in names for p in plans], ["bronze/{}"], 8),
        ([(n, {"plan": p, "checks": 1}) for n in names for p in plans], ["bronze/{}"], 8),
        (
            [(n, {**Decoded().as_record(), "plans": [*plans]}) for n in names],
            ["bronze/{}", "silver/{}", "silver/{}_quarantine"],
            8,
        ),
        (
            [(n, each.as_record()) for n, each in merges.items() if each],
            ["silver/{}", "silver/{}_latest"],
            4,
        ),
    ):
        answer = read(results)
        own = [str(root / table.format(name)) for table in tables for name in names]
        shared = [control] + [str(root / "quality" / "results")] * ("checks" in results[0][1])
        assert answer.value["opened"] == dict.fromkeys([*shared, *own], 1)
        assert set(answer.value["histories"]) <= {1}
        assert answer.value["searched"] < 100 * answer.value["datasets"]
        assert sum(answer.value["plans_of_inputs"].values()) == inputs
    shutil.rmtree(root / "bronze" / "two")
    answer = read([(name, {"plan": 4, "wrote": True}) for name in names])
    assert answer.value["plans_of_inputs"] == {"events": 1}
    assert "lineage not collected pipeline=two" in answer.printed


@dataclass
class FirstRangeOnly:
    """A sink that misses all ranges of a plan but the first."""

    sink: Sink

    def write(self, plan: ReadablePlan, records_per_task: int) -> Sequence[DataFile]:
        first = ReadablePlan(replace(plan, ranges=plan.ranges[:1]))
        return self.sink.write(first, records_per_task)


def test_lineage_has_no_offsets_that_a_landing_missed(
    task_probe: Probe, spark_submit: Path, lake: TypedLake
) -> None:
    """The plan of an ingest, of a check, of a decode and of a merge lands partition 0 only."""
    home, bronze = spark_submit.parent, lake.bronze
    pipeline = App.from_environment(
        {"TIDEMARK_HOME": str(home), "TIDEMARK_PIPELINES": str(home / "pipelines")}
    ).pipeline("events")
    merger = NoRows(lake.root / "silver" / "events_latest")
    lake.land_values([b"a"])
    lake.run()
    assert pipeline.upsert.planner.execute(merger)
    bronze.produce(3, 0)
    bronze.plan(2, 1)
    with pytest.raises(RecordsMissed):
        replace(bronze.ingest, sink=FirstRangeOnly(bronze.sink)).execute(2)
    pipeline.check_results.append(QualityReport(pipeline="events", plan_sequence=2, **CHECK))
    decoded = sum(lake.decodes.run(), Decoded())
    assert decoded.plans.numbers() == [2]
    merge = pipeline.upsert.planner.execute(merger)
    assert merge
    answer = task_probe.ask(
        "lineage_reads",
        environ={
            **environ_of(spark_submit, ExitCode.OK),
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(KAFKA),
        },
        records=[
            {"pipeline": "events", "plan": 2, "wrote": True},
            {"pipeline": "events", "plan": 2, "checks": 1},
            {"pipeline": "events", **decoded.as_record()},
            {"pipeline": "events", **merge.as_record()},
        ],
    )
    bronze_uri, typed_uri = str(bronze.uri), str(lake.typed_uri)
    landed = [[0, 1, 4]]
    assert answer.value["ranges_of_inputs"] == {
        "events": landed,
        # The check and the decode have one entry each.
        bronze_uri: landed + landed,
        typed_uri: landed,
    }


CHECK: dict[str, Any] = {
    "table_version": 1,
    "run_at": NOW,
    "data_docs": "page",
    "results": (
        CheckResult(
            check="expect_column_values_to_not_be_null",
            column="key",
            severity=Severity.WARNING,
            passed=True,
            observed=0,
            expectation="no null",
        ),
    ),
}


def test_a_check_has_the_results_of_its_rules_without_values(
    task_probe: Probe, spark_submit: Path, lake: TypedLake
) -> None:
    """A failed check has its lineage too. Examples and figures of a result may be secrets."""
    plan = land(lake.bronze)
    hidden = "4111111111111111"
    results = [
        CheckResult(
            check="expect_column_values_to_not_be_null",
            column="key",
            severity=severity,
            passed=passed,
            observed=hidden,
            expectation=f"no {hidden}",
            examples=(Example(0, 0, hidden),),
        )
        for severity, passed in ((Severity.CRITICAL, False), (Severity.WARNING, True))
    ]
    report = QualityReport(
        pipeline="events",
        plan_sequence=plan.sequence,
        table_version=1,
        run_at=NOW,
        results=tuple(results),
        data_docs="page",
    )
    DeltaCheckResults(str(lake.root / "quality" / "results")).append(report)
    failed = QualityFailed(pipeline="events", sequence=1, failed=("a",), data_docs="page")
    printed = {"pipeline": "events", "plan": plan.sequence, **failed.as_record()}
    result = spark_submit.parent / "result"
    result.write_text(f"{RESULT_MARKER}{json.dumps([printed])}\n")
    spark_submit.write_text(f"#!/bin/sh\ncat {result}\nexit $CODE\n")
    answer, (event,) = emit(
        task_probe,
        spark_submit,
        "check_run",
        requested_by=RUN,
        earlier="{}",
        code=ExitCode.QUALITY_FAILED,
    )
    assert "QualityFailed" in answer.value["error"]
    (read,) = event["inputs"]
    assert (read["namespace"], read["name"]) == place(lake.bronze.uri)
    assert read["inputFacets"]["dataQualityAssertions"]["assertions"] == [
        {
            "assertion": "expect_column_values_to_not_be_null",
            "column": "key",
            "success": success,
            "severity": severity,
            "params": {"plan": 1},
        }
        for success, severity in ((False, "error"), (True, "warn"))
    ]
    assert ranges(read, "inputFacets") == recorded(lake.bronze, "events")
    assert event["outputs"] == []
    assert hidden not in json.dumps(event)


def test_a_plan_that_did_not_land_has_no_lineage(
    task_probe: Probe, spark_submit: Path, lake: TypedLake
) -> None:
    """A result of a job does not replace the control table."""
    lake.bronze.produce(3, 0)
    assert lake.bronze.planner.plan(RUN).plan
    result = [{"pipeline": "events", "plan": 1, "wrote": True}]
    spark_submit.write_text(f"#!/bin/sh\necho '{RESULT_MARKER}{json.dumps(result)}'\n")
    answer, (event,) = emit(task_probe, spark_submit, "ingest_run", requested_by=RUN)
    assert (event["inputs"], event["outputs"]) == ([], [])
    assert "lineage not collected" not in answer.printed


@pytest.mark.parametrize(
    ("environ", "error"),
    [
        ({"AIRFLOW_CONN_KAFKA_DEFAULT": '{"conn_type": "kafka"}'}, "InvalidConnection"),
        ({"AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT": "0"}, "TimeoutError"),
        ({"AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT": "soon"}, "AirflowConfigException"),
        ({"AIRFLOW__OPENLINEAGE__TRANSPORT": "{"}, "AirflowConfigException"),
    ],
    ids=["connection", "late", "invalid-timeout", "invalid-transport"],
)
def test_lineage_that_fails_does_not_fail_the_task(
    task_probe: Probe,
    spark_submit: Path,
    lake: TypedLake,
    environ: Mapping[str, str],
    error: str,
) -> None:
    land(lake.bronze)
    answer = task_probe.ask(
        "emitted",
        task="ingest_run",
        pipelines=["events"],
        requested_by=RUN,
        emits=False,
        environ={
            **environ_of(spark_submit, ExitCode.OK),
            "AIRFLOW__OPENLINEAGE__TRANSPORT": transport(spark_submit.parent),
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(KAFKA),
            **environ,
        },
    )
    assert answer.value["error"] is None
    assert re.search(f"lineage not collected (pipeline=events )?error={error}", answer.printed)


@pytest.mark.parametrize("missing", [False, True])
def test_without_the_provider_no_lineage_is_collected(
    task_probe: Probe, spark_submit: Path, lake: TypedLake, missing: bool
) -> None:
    """The provider is disabled without a transport. Neither case loads OpenLineage's client."""
    land(lake.bronze)
    transports = {"AIRFLOW__OPENLINEAGE__TRANSPORT": "{}"} if missing else {}
    answer = task_probe.ask(
        "emitted",
        task="ingest_run",
        pipelines=["events"],
        requested_by=RUN,
        emits=False,
        without_provider=missing,
        environ={**environ_of(spark_submit, ExitCode.OK), **transports},
    )
    assert (answer.value["error"], answer.value["loaded"]) == (None, False)
    assert "lineage" not in answer.printed


def test_the_example_of_the_page_has_the_form_of_the_facet() -> None:
    (example,) = re.findall(
        r"^```json\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    check_own("Plans", json.loads(example)["plans"])


@pytest.mark.parametrize(
    ("uri", "namespace", "name"),
    [
        ("/data/lake/bronze/a", "file", "/data/lake/bronze/a"),
        ("file:///data/lake/a/", "file", "/data/lake/a"),
        ("s3://bucket/lake/a", "s3://bucket", "lake/a"),
        ("s3a://bucket/lake/a", "s3://bucket", "lake/a"),
        ("gs://bucket/a", "gs://bucket", "a"),
        ("gs://bucket/", "gs://bucket", "/"),
        ("hdfs://node:8020/lake/a", "hdfs://node:8020", "/lake/a"),
        (
            "abfss://container@account.dfs.core.windows.net/lake/a",
            "abfss://container@account.dfs.core.windows.net",
            "lake/a",
        ),
    ],
)
def test_a_table_has_the_name_of_the_specification(uri: str, namespace: str, name: str) -> None:
    """Different spellings of a location have one name."""
    assert table_place(uri) == (namespace, name)


def test_an_invalid_event_is_refused(
    task_probe: Probe, spark_submit: Path, lake: TypedLake
) -> None:
    """The other tests rely on this check of the specification."""
    land(lake.bronze)
    _, (event,) = emit(task_probe, spark_submit, "ingest_run", requested_by=RUN)
    for change in INVALID:
        changed = deepcopy(event)
        change(changed)
        with pytest.raises(ValueError, match=r"event|digits"):
            check_event(changed)


def _first_plan(event: dict[str, Any]) -> dict[str, Any]:
    plan: dict[str, Any] = event["outputs"][0]["outputFacets"]["tidemark_offsets"]["plans"][0]
    return plan


INVALID: Sequence[Callable[[dict[str, Any]], object]] = (
    lambda event: event.pop("run"),
    lambda event: event.update(eventTime="today"),
    lambda event: event["outputs"][0].update(path="x"),
    lambda event: event["outputs"][0]["facets"]["version"].update(datasetVersion=1),
    lambda event: event["outputs"][0]["facets"]["version"].pop("_producer"),
    lambda event: event["outputs"][0]["facets"]["schema"]["fields"][0].pop("name"),
    lambda event: event["outputs"][0]["facets"]["columnLineage"]["fields"].update(key=[]),
    lambda event: event["inputs"][0]["inputFacets"].update(event["outputs"][0]["outputFacets"]),
    lambda event: _first_plan(event).update(plan="1"),
    lambda event: _first_plan(event).pop("ranges"),
    lambda event: _first_plan(event).update(value="x"),
)
"""Changes that each make a valid event of an ingest invalid."""
