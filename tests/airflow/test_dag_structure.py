"""DAG files: the DAGs that Airflow reads from them, and the cost of parsing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.airflow.conftest import Answer, Probe
from tests.conftest import PROJECT
from tidemark.app.app import App
from tidemark.cli.local import SHARED_DAGS
from tidemark.console.backfills import BackfillForm
from tidemark.console.runs import origins_of, run_of
from tidemark.core.origins import RunOrigin

SPECS = App(environ={"TIDEMARK_PROJECT": str(PROJECT)}).specs
SPEC_DAG_FILES = ("pipelines.py", "backfill.py", "maintenance.py")
FILES = (*SPEC_DAG_FILES, "spec_errors.py", "status.py")
HEAVY = {
    *("pyspark", "deltalake", "confluent_kafka", "great_expectations", "pandas", "pyarrow"),
    "openlineage",
}
OPERATOR = "airflow.providers.apache.spark.operators.spark_submit"


@pytest.fixture(scope="module")
def parse_results(probe: Probe) -> dict[str, Any]:
    """The answer about each DAG file."""
    return {file: probe.ask("parse", file=file, environ={}).value for file in FILES}


@pytest.fixture(scope="module")
def dags(parse_results: dict[str, Any]) -> dict[str, Any]:
    """Every DAG by its id."""
    return {
        dag_id: dag for answer in parse_results.values() for dag_id, dag in answer["dags"].items()
    }


@pytest.mark.slow
def test_airflow_loads_these_dag_files_without_heavy_modules(
    probe: Probe, parse_results: dict[str, Any]
) -> None:
    """No file has an import error; the DAG processor loads only Airflow's own modules."""
    assert probe.ask("dag_files").value == sorted(FILES)
    assert {file: answer["import_errors"] for file, answer in parse_results.items()} == {
        file: {} for file in FILES
    }
    heavy = {file: HEAVY & set(answer["modules"]) for file, answer in parse_results.items()}
    assert heavy == {file: set() for file in FILES}


def test_every_spec_has_a_dag_and_tidemark_up_unpauses_all_others(dags: dict[str, Any]) -> None:
    assert set(SHARED_DAGS) == {"tidemark_backfill", "tidemark_maintenance", "tidemark_status"}
    assert set(dags) == {f"tidemark_{name}" for name in SPECS} | set(SHARED_DAGS)


CHAIN = {
    "plan": ["complete", "ingest"],
    "ingest": ["check", "complete"],
    "check": ["complete", "publish"],
    "publish": ["complete"],
    "complete": [],
}
"""The tasks of a pipeline without a typed table, and their downstream tasks."""
RULES = {
    **dict.fromkeys(CHAIN, "all_done"),
    "plan": "all_success",
    "complete": "none_failed",
}
"""Trigger rules: a task continues with what can continue, and `complete` fails the run."""


def test_every_pipeline_dag_has_the_same_chain_of_tasks(dags: dict[str, Any]) -> None:
    """Each task continues after a failure of the one before."""
    for dag in (dags[f"tidemark_{name}"] for name in SPECS):
        assert {name: task["downstream"] for name, task in dag["tasks"].items()} == CHAIN
        assert {name: task["trigger_rule"] for name, task in dag["tasks"].items()} == RULES


def test_a_backfill_dag_runs_its_chunks_one_at_a_time(dags: dict[str, Any]) -> None:
    """The data table takes the plans of a pipeline's backfills in their order."""
    tasks = dags["tidemark_backfill"]["tasks"]
    assert {name: task["downstream"] for name, task in tasks.items()} == {
        "request": ["chunk.check", "chunk.ingest", "chunk.publish", "complete"],
        "chunk.ingest": ["chunk.check", "complete"],
        "chunk.check": ["chunk.publish"],
        "chunk.publish": [],
        "complete": [],
    }
    at_once = {name: task["at_once"] for name, task in tasks.items()}
    assert (at_once["chunk.ingest"], at_once["chunk.check"]) == (1, 1)
    rules = {name: task["trigger_rule"] for name, task in tasks.items()}
    assert rules == {**dict.fromkeys(tasks, "all_success"), "complete": "all_done"}


def test_maintenance_is_a_task_for_each_table_and_none_waits_for_another(
    dags: dict[str, Any],
) -> None:
    """A failed task fails the run and stops no other task."""
    dag = dags["tidemark_maintenance"]
    assert {name: task["downstream"] for name, task in dag["tasks"].items()} == {
        "tables": [],
        "control": [],
        "data_docs": [],
    }
    mapped = {name: task["mapped_over"] for name, task in dag["tasks"].items()}
    assert mapped == {
        "tables": [{"pipeline": name} for name in SPECS],
        "control": None,
        "data_docs": None,
    }
    assert dag["tasks"]["tables"]["at_once"] == 1
    assert dag["schedule"] == "0 0 * * *"
    assert {name: param["value"] for name, param in dag["params"].items()} == {
        "keep_hours": 168,
        "keep_docs_days": 90,
        "dry_run": False,
    }


def test_alarms_are_raised_from_the_recorded_status(dags: dict[str, Any]) -> None:
    """Each pipeline has one task without a retry, because the next run is soon."""
    tasks = dags["tidemark_status"]["tasks"]
    assert {name: task["downstream"] for name, task in tasks.items()} == {
        "look": ["alarm"],
        "alarm": [],
    }
    assert (tasks["alarm"]["mapped_over"], tasks["alarm"]["retries"]) == ("look", 0)


def test_tasks_that_take_part_in_a_run_link_to_its_page(task_probe: Probe, tmp_path: Path) -> None:
    """As Airflow's server reads them from its database. The page finds plans by the requester."""
    (tmp_path / "seen.yaml").write_text("name: seen\ntopic: t\nschedule: '@daily'\n")
    environ = {"TIDEMARK_PIPELINES": str(tmp_path)}
    run_id = "manual__2026-03-01T00:00:00+00:00"
    tab = "runs/manual__2026-03-01T00%3A00%3A00%2B00%3A00/plugin/tidemark_run"
    found: dict[str, dict[str, str]] = {}
    for file in SPEC_DAG_FILES:
        found |= task_probe.ask("links", file=file, environ=environ, run_id=run_id).value
    steps = ("plan", "ingest", "check", "publish", "complete")
    seen = dict.fromkeys(steps, f"/dags/tidemark_seen/{tab}")
    chunks = ("request", "chunk.ingest", "chunk.check", "chunk.publish", "complete")
    assert {dag_id: links for dag_id, links in found.items() if links} == {
        "tidemark_seen": seen,
        "tidemark_backfill": dict.fromkeys(chunks, f"/dags/tidemark_backfill/{tab}"),
    }


@pytest.mark.parametrize("run_type", ["scheduled", "backfill"])
def test_the_console_finds_plans_by_the_requester_of_their_run(
    task_probe: Probe, run_type: str
) -> None:
    dag_id, run_id = "tidemark_seen", "scheduled__2026-11-25T00:00:00+00:00"
    asked = task_probe.ask("requester", dag_id=dag_id, run_id=run_id, run_type=run_type).value
    origin = origins_of(dag_id, run_id)[run_type == "backfill"]
    assert origin == RunOrigin(asked)
    run = run_of(origin)
    assert run is not None
    assert (run.dag_id, run.run_id) == (dag_id, run_id)


@pytest.mark.parametrize("name", sorted(SPECS))
def test_a_dag_has_the_settings_of_its_spec(dags: dict[str, Any], name: str) -> None:
    """Schedule, tags, retries and the asset come from the spec."""
    spec, dag = SPECS[name], dags[f"tidemark_{name}"]
    assert dag["schedule"] == spec.schedule
    assert dag["tags"] == sorted(["tidemark", *spec.tags])
    assert {task["retries"] for task in dag["tasks"].values()} == {spec.retries}
    assert dag["tasks"]["publish"]["outlets"] == [f"tidemark_{name}_tables"]
    assert dag["tasks"]["publish"]["inlets"] == [f"x-tidemark://bronze/{name}"]


def test_all_dags_have_the_common_settings(dags: dict[str, Any]) -> None:
    """No run for the past, one run at a time, growing retry delays, an alarm after a failure."""
    for dag in dags.values():
        assert dag["start_date"] == "2025-01-01T00:00:00+00:00"
        assert dag["catchup"] is False
        assert dag["max_active_runs"] == 1
        for task in dag["tasks"].values():
            assert task["owner"] == "tidemark"
            assert task["backoff"] == 2
            assert 0 < task["timeout_s"] <= 6 * 3600
            assert task["on_failure"] == "alarm_on_failure"
    assert dags["tidemark_backfill"]["schedule"] == "None"


def test_the_dags_of_status_and_maintenance_start_paused(dags: dict[str, Any]) -> None:
    """Airflow's setting decides about the others; `tidemark up` switches them on."""
    paused = {"tidemark_maintenance": True, "tidemark_status": True}
    assert {dag_id: dag["starts_paused"] for dag_id, dag in dags.items()} == {
        **dict.fromkeys(dags),
        **paused,
    }


@pytest.mark.parametrize("name", sorted(SPECS))
def test_the_page_of_a_dag_names_topic_and_tables(dags: dict[str, Any], name: str) -> None:
    """It also describes repairs and backfills."""
    page = dags[f"tidemark_{name}"]["doc_md"]
    layout = App(environ={"TIDEMARK_PROJECT": str(PROJECT)}).layout
    expected = (
        SPECS[name].description,
        f"`{SPECS[name].topic}`",
        layout.data_table(SPECS[name].target),
        layout.control_table,
        "`tidemark_backfill`",
        "Clearing a task is safe",
        "`tidemark airflow backfill create`",
    )
    assert [text for text in expected if text not in page] == []


def test_the_fields_of_the_backfill_form_have_descriptions_and_limits(dags: dict[str, Any]) -> None:
    """The default of each field selects nothing."""
    params = dags["tidemark_backfill"]["params"]
    assert params["pipeline"]["schema"]["enum"] == list(SPECS)
    minima = {name: params[name]["schema"].get("minimum") for name in params}
    assert {name for name, least in minima.items() if least == 1} == {"plan", "chunk"}
    chosen = {name: param["value"] for name, param in params.items() if param["value"]}
    assert chosen == {"select_by": "offset ranges"}
    assert params["select_by"]["schema"]["enum"] == [
        "offset ranges",
        "time window",
        "retained log",
        "ranges of a plan",
    ]
    required = [name for name in params if "null" not in params[name]["schema"]["type"]]
    assert required == ["pipeline", "select_by"]
    sections: dict[str | None, list[str]] = {}
    for name, param in params.items():
        sections.setdefault(param["schema"].get("section"), []).append(name)
    assert sections == {
        None: [
            *("pipeline", "dry_run", "select_by"),
            *("offsets", "from", "until", "plan", "partitions"),
        ],
        "How to land them": ["replace", "reason", "chunk", "readable_only", "approved"],
    }


def test_the_backfill_form_of_the_console_starts_a_run_with_valid_parameters(
    dags: dict[str, Any],
) -> None:
    """Airflow ignores a parameter that the DAG does not have."""
    params = dags["tidemark_backfill"]["params"]
    form = BackfillForm(
        offsets="0:1-2",
        start="2026-03-01T00:00:00Z",
        end="2026-03-02T00:00:00Z",
        plan="7",
        partitions="0, 2",
        chunk="50",
        readable_only=True,
        replace=True,
        reason="wrong values",
    )
    conf = form.conf("prices")
    assert set(params) - set(conf) == {"dry_run", "approved"}
    for name, value in conf.items():
        assert value is not None
        jsonschema.validate(value, params[name]["schema"])


@pytest.mark.parametrize("dag_id", ["tidemark_backfill", "tidemark_maintenance"])
def test_fields_of_forms_have_titles_and_descriptions_in_markdown(
    dags: dict[str, Any], dag_id: str
) -> None:
    for param in dags[dag_id]["params"].values():
        assert param["schema"]["title"]
        assert len(param["schema"]["description_md"]) > 20


@pytest.mark.e2e
def test_parsing_is_fast(probe: Probe) -> None:
    """It takes at most three times the processor time of importing Airflow's Spark operator."""
    parsing: dict[str, list[float]] = {file: [] for file in FILES}
    importing: list[float] = []
    for _ in range(2):
        importing.append(probe.ask("import_seconds", module=OPERATOR).value)
        for file, seconds in parsing.items():
            seconds.append(probe.ask("parse", file=file, environ={}).value["cpu_s"])
    print(f"importing {min(importing):.3f} s, parsing {parsing}")
    slow = {file: seconds for file, seconds in parsing.items() if min(seconds) > 3 * min(importing)}
    assert slow == {}


@pytest.mark.slow
def test_an_invalid_spec_is_an_import_error_and_affects_no_other_dag(
    task_probe: Probe, tmp_path: Path
) -> None:
    """The error belongs to a separate file, and contains every problem."""
    (tmp_path / "good.yaml").write_text("name: good\ntopic: t\nschedule: '@daily'\n")
    (tmp_path / "broken.yaml").write_text("name: broken\ntopic: t\nschedule: often\nstrat: x\n")
    environ = {"TIDEMARK_PIPELINES": str(tmp_path)}
    dags: set[str] = set()
    for file in SPEC_DAG_FILES:
        answer: Answer = task_probe.ask("parse", file=file, environ=environ)
        assert answer.value["import_errors"] == {}
        dags |= set(answer.value["dags"])
    assert dags == {"tidemark_good", "tidemark_backfill", "tidemark_maintenance"}
    shown = task_probe.ask("parse", file="spec_errors.py", environ=environ).value
    (text,) = shown["import_errors"].values()
    assert "SpecError" in text
    assert "broken.yaml: strat: found unknown key (did you mean 'start'?), expected one of" in text
    assert "broken.yaml: schedule" in text


def test_a_pipeline_that_catches_up_starts_its_next_run(task_probe: Probe, tmp_path: Path) -> None:
    """The start follows `publish`, even after a failure. One such pipeline in a group is enough."""
    spec = "name: {0}\ntopic: t\nschedule: '@daily'\nlimits: {{catch_up: true}}\n"
    (tmp_path / "eager.yaml").write_text(spec.format("eager"))
    environ = {"TIDEMARK_PIPELINES": str(tmp_path)}
    tasks = task_probe.ask("parse", file="pipelines.py", environ=environ).value["dags"][
        "tidemark_eager"
    ]
    chain = {name: task["downstream"] for name, task in tasks["tasks"].items()}
    assert (chain["complete"], chain["more"], chain["again"]) == ([], ["again"], [])
    assert (chain["publish"], tasks["tasks"]["more"]["trigger_rule"]) == (
        ["complete", "more"],
        "all_done",
    )
    (tmp_path / "eager.yaml").write_text(spec.format("eager") + "group: tides\n")
    other = "name: other\ntopic: t\nschedule: '@daily'\ngroup: tides\n"
    (tmp_path / "other.yaml").write_text(other)
    found = task_probe.ask("parse", file="pipelines.py", environ=environ).value["dags"]
    assert set(found["tidemark_group_tides"]["tasks"]) == {*CHAIN, "more", "again"}


@pytest.mark.parametrize("group", ["", "group: tides\n"])
def test_a_typed_table_and_an_upsert_table_follow_the_check(
    task_probe: Probe, tmp_path: Path, group: str
) -> None:
    """`publish` is the last task before `complete`. Maintenance includes all tables."""
    decode = "{value: {format: string}, upsert: {}}"
    spec = f"name: typed\ntopic: t\nschedule: '@daily'\ndecode: {decode}\n{group}"
    (tmp_path / "typed.yaml").write_text(spec)
    environ = {"TIDEMARK_PIPELINES": str(tmp_path)}
    (dag,) = task_probe.ask("parse", file="pipelines.py", environ=environ).value["dags"].values()
    assert "silver/typed_quarantine" in dag["doc_md"]
    assert {name: task["downstream"] for name, task in dag["tasks"].items()} == {
        **CHAIN,
        "check": ["complete", "decode"],
        "decode": ["complete", "upsert"],
        "upsert": ["complete", "publish"],
    }
    rules = {name: task["trigger_rule"] for name, task in dag["tasks"].items()}
    assert rules == {**RULES, "decode": "all_done", "upsert": "all_done"}
    assert dag["tasks"]["publish"]["inlets"] == [
        f"x-tidemark://{kind}/typed" for kind in ("bronze", "typed", "upsert")
    ]
    kept = task_probe.ask("serialized", file="maintenance.py", environ=environ).value
    assert all(
        f'"{name}"' in kept for name in ("typed", "typed@typed", "typed@quarantine", "typed@upsert")
    )


RUN_STATES: list[tuple[dict[str, str], str]] = [
    ({}, "success"),
    ({"plan": "no work"}, "success"),
    # Only earlier plans or records are left.
    ({"ingest": "skipped"}, "success"),
    ({"ingest": "skipped", "check": "skipped", "publish": "skipped"}, "success"),
    ({"plan": "failed"}, "failed"),
    ({"ingest": "failed"}, "failed"),
    # A check has blocked the plan.
    ({"check": "failed"}, "failed"),
    ({"check": "failed", "publish": "skipped"}, "failed"),
    ({"decode": "failed"}, "failed"),
    ({"upsert": "failed"}, "failed"),
    ({"publish": "failed"}, "failed"),
    # `publish` could not report every pipeline.
    ({"complete": "failed"}, "failed"),
]
"""The states in which the tasks of a run end, and the state of the run."""


@pytest.mark.slow
@pytest.mark.parametrize("limits", ["", "limits: {records_per_run: 5, catch_up: true}\n"])
def test_a_run_succeeds_only_if_no_task_has_failed(
    task_probe: Probe, tmp_path: Path, limits: str
) -> None:
    """A failed task stops neither later tasks nor the search for offsets that a limit left."""
    name = "eager" if limits else "steady"
    spec = f"name: {name}\ntopic: t\nschedule: '@daily'\n{limits}"
    spec += "decode: {value: {format: string}, upsert: {}}"
    (tmp_path / f"{name}.yaml").write_text(spec)
    runs = task_probe.ask(
        "run_states",
        dag_id=f"tidemark_{name}",
        environ={"TIDEMARK_PIPELINES": str(tmp_path)},
        ends=[ends for ends, _ in RUN_STATES],
    ).value
    assert [run["run"] for run in runs] == [state for _, state in RUN_STATES]
    for run, (ends, state) in zip(runs, RUN_STATES, strict=True):
        if "plan" in ends and state == "success":
            assert set(run["tasks"].values()) == {"success", "skipped"}
            continue
        started = dict.fromkeys(
            ("plan", "ingest", "check", "decode", "upsert", "publish"), "success"
        )
        ended = started | ends
        assert {task: run["tasks"][task] for task in ended} == ended
        last = "success" if state == "success" else "upstream_failed"
        after = set(run["tasks"]) - set(ended) - {"more", "again"}
        assert {run["tasks"][task] for task in after} <= {last}
        assert {run["tasks"].get(task, "success") for task in ("more", "again")} == {"success"}


def test_a_deadline_in_the_spec_becomes_a_deadline_alert(task_probe: Probe, tmp_path: Path) -> None:
    """Airflow's database contains the callback and the interval."""
    spec = "name: {0}\ntopic: t\nschedule: '@daily'\n"
    (tmp_path / "slow.yaml").write_text(spec.format("slow"))
    environ = {"TIDEMARK_PIPELINES": str(tmp_path)}
    stored = task_probe.ask("serialized", file="pipelines.py", environ=environ).value
    assert "alarm_on_deadline" not in stored
    with (tmp_path / "slow.yaml").open("a") as file:
        file.write("alarms: {deadline_minutes: 90}\n")
    stored = task_probe.ask("serialized", file="pipelines.py", environ=environ).value
    assert "tidemark.airflow.alarms.alarm_on_deadline" in stored
    assert "5400" in stored


def test_a_spec_without_a_limit_and_a_suite_has_a_page_too(
    task_probe: Probe, tmp_path: Path
) -> None:
    """The optional keys of a spec are optional for its DAG."""
    spec = "name: small\ntopic: t\nschedule: '@daily'\nstart: {timestamp: 2025-01-01T00:00:00Z}\n"
    (tmp_path / "small.yaml").write_text(spec)
    answer = task_probe.ask(
        "parse", file="pipelines.py", environ={"TIDEMARK_PIPELINES": str(tmp_path)}
    )
    page = answer.value["dags"]["tidemark_small"]["doc_md"]
    assert "built-in checks only" in page
    assert "no limit" in page
    assert "2025-01-01T00:00:00+00:00" in page


@pytest.mark.parametrize("file", SPEC_DAG_FILES)
def test_a_serialised_dag_has_no_settings_and_no_credentials(task_probe: Probe, file: str) -> None:
    """Tasks read Spark settings and connections when they run."""
    stored = json.loads(task_probe.ask("serialized", file=file).value)
    text = json.dumps(stored)
    assert "Operator" in text
    assert "spark.driver.extraClassPath" not in text
    assert "env_vars" not in text
    assert "AIRFLOW_CONN_" not in text


# -- groups --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def group_dags(task_probe: Probe, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """DAGs of two pipelines in a group and one outside of it."""
    folder = tmp_path_factory.mktemp("group_dags")
    keys = {
        "alone": "",
        "one": "group: tides\nretries: 2\ntags: [sea]\ndescription: the first",
        "two": "group: tides\nretries: 5\ntags: [sea, land]\ndescription: the second",
    }
    for name, more in keys.items():
        text = f"name: {name}\ntopic: topic-{name}\nschedule: '@hourly'\n{more}\n"
        (folder / f"{name}.yaml").write_text(text)
    environ = {"TIDEMARK_PIPELINES": str(folder)}
    answer = task_probe.ask("parse", file="pipelines.py", environ=environ)
    assert answer.value["import_errors"] == {}
    found: dict[str, Any] = answer.value["dags"]
    return found


def test_a_group_has_one_dag_instead_of_one_for_each_pipeline(group_dags: dict[str, Any]) -> None:
    """It has the most retries of any member and all tags. Its page names each member."""
    assert set(group_dags) == {"tidemark_alone", "tidemark_group_tides"}
    dag = group_dags["tidemark_group_tides"]
    assert dag["schedule"] == "0 * * * *"
    assert (dag["catchup"], dag["max_active_runs"]) == (False, 1)
    assert dag["tags"] == ["land", "sea", "tidemark"]
    assert {task["retries"] for task in dag["tasks"].values()} == {5}
    for text in ("topic-one", "topic-two", "the first", "the second", "bronze/one", "bronze/two"):
        assert text in dag["doc_md"]
    assert "alone" not in dag["doc_md"]


def test_a_group_has_the_tasks_of_a_single_pipeline(group_dags: dict[str, Any]) -> None:
    """Each task handles all pipelines."""
    for dag in group_dags.values():
        assert {name: task["downstream"] for name, task in dag["tasks"].items()} == CHAIN
        assert {name: task["trigger_rule"] for name, task in dag["tasks"].items()} == RULES
    tasks = group_dags["tidemark_group_tides"]["tasks"]
    assert tasks["publish"]["outlets"] == ["tidemark_group_tides_tables"]


def test_the_dag_of_the_dbt_example_starts_after_the_event_of_an_upsert_table(
    task_probe: Probe, tmp_path: Path
) -> None:
    """`publish` of the pipeline has the same asset as an inlet."""
    spec = "name: payments\ntopic: t\nschedule: '@daily'\n"
    (tmp_path / "payments.yaml").write_text(
        f"{spec}decode: {{value: {{format: string}}, upsert: {{}}}}"
    )
    environ = {"TIDEMARK_PIPELINES": str(tmp_path)}
    dags = task_probe.ask("parse", file="pipelines.py", environ=environ).value["dags"]
    example = PROJECT / "docs" / "examples" / "dbt" / "payments_dbt.py"
    (stored,) = json.loads(task_probe.ask("serialized", file=str(example)).value)
    (asset,) = stored["dag"]["timetable"]["__var"]["asset_condition"]["objects"]
    assert [asset["name"], asset["uri"]] == task_probe.ask("asset", table="payments@upsert").value
    assert asset["uri"] in dags["tidemark_payments"]["tasks"]["publish"]["inlets"]
    assert stored["dag"]["max_active_runs"] == 1
    (task,) = (each["__var"] for each in stored["dag"]["tasks"])
    settings = task["env"]
    files = ("dbt_project.yml", "profiles.yml", "models/payments.yml")
    used = {
        name
        for file in files
        for name in re.findall(r"env_var\('(\w+)'\)", (example.parent / file).read_text())
    }
    assert used == {"DBT", "LAKEHOUSE"}
    assert used <= settings.keys()


def test_the_page_names_the_assets_and_aliases_of_the_events(
    task_probe: Probe, dags: dict[str, Any]
) -> None:
    """Airflow starts no DAG for an asset of the same URI and another name."""
    page = (
        (PROJECT / "docs" / "reference" / "airflow.md").read_text().replace("<pipeline>", "prices")
    )
    named = re.findall(r'Asset\("([^"]+)", "([^"]+)"\)', page)
    assert len(named) == page.count("Asset(")
    tables = ("prices", "prices@typed", "prices@upsert")
    assert set(named) == {tuple(task_probe.ask("asset", table=table).value) for table in tables}
    for dag_id, task in (("tidemark_prices", "publish"), ("tidemark_backfill", "chunk.publish")):
        (alias,) = dags[dag_id]["tasks"][task]["outlets"]
        assert f"`{alias}`" in page
