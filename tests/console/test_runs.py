"""The page of a DAG run over real tables, with what Airflow reports about the run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from tests.console.test_pages import cells
from tests.support.consoles import Admits, SomeRights, app_of, console_of, record_check
from tests.support.file_lake import FileLake, home_lake
from tests.support.memory_consoles import memory_console
from tests.support.page_text import text_of
from tests.support.plans import wanted
from tests.support.quality_reports import REPORT
from tidemark.bronze.backfill.selection import select
from tidemark.console.guard import AirflowRun
from tidemark.console.runs import run_of
from tidemark.console.server import build_app
from tidemark.core.origins import ChunkOrigin, DagRunRequester, RunOrigin
from tidemark.core.plan import Plan

NO_KAFKA = "127.0.0.1:1"
"""Pages of runs read tables only."""
DAG, RUN = "tidemark_events", "scheduled__2026-11-25T00:00:00+00:00"


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Pipeline `events` with three landed plans of other runs."""
    return home_lake(tmp_path)


def plan_of_run(lake: FileLake, run_id: str = RUN, suffix: str = "") -> Plan:
    """Produce four records, and plan them for a run of the DAG."""
    lake.produce(4, 0)
    plan = lake.planner.plan(f"airflow:{DAG}:{run_id}{suffix}").plan
    assert plan is not None
    return plan


def page_of(
    home: Path,
    run_id: str = RUN,
    dag_id: str = DAG,
    viewer: SomeRights | None = None,
    tasks: Mapping[str, str | None] | None = None,
    pipeline: str | None = None,
) -> str:
    """Return the page of a run.

    Args:
        home: The home.
        run_id: The run.
        dag_id: Its DAG.
        viewer: The user; by default one with all rights.
        tasks: States of its tasks; None without Airflow.
        pipeline: Table of a backfill in the address of the page.
    """
    viewer = viewer or SomeRights(run=AirflowRun(conf={}, tasks=tasks) if tasks else None)
    client = console_of(home, NO_KAFKA, viewer)
    query = {"pipeline": pipeline} if pipeline else {}
    response = client.get(f"/dags/{dag_id}/runs/{quote(run_id, safe='')}", params=query)
    assert response.status_code == 200
    return response.text


@pytest.mark.parametrize("suffix", ["", ":by-date"])
def test_a_run_shows_what_it_read_and_what_landed(
    lake: FileLake, tmp_path: Path, suffix: str
) -> None:
    """Also the plan of a run by date. Plans of other runs are absent."""
    plan = plan_of_run(lake, suffix=suffix)
    lake.ingest.execute(plan.sequence)
    page = page_of(tmp_path)
    text = text_of(page)
    assert "plan 4 offsets to read 4 records landed 4 gaps 0 rules failed not checked" in text
    assert ["0", "9", "13", "4", "0", "13"] in cells(page)
    links = re.findall(r'href="(/pipelines/[^"]+)"', page)
    assert "/pipelines/events/plans/4" in links
    assert "/pipelines/events?partition=0&amp;start=9&amp;end=13" in links
    assert "/pipelines/events/records?partition=0&amp;offset=9&amp;topic_id=id-1" in links
    assert not {link for link in links if re.search("plans/[123]$", link)}


@pytest.mark.parametrize("run_id", ["a/b", "a//b?x=1&y#z", "100%+ü", "manual__x/", "a/../b"])
def test_a_run_with_any_id_has_a_page(lake: FileLake, tmp_path: Path, run_id: str) -> None:
    plan_of_run(lake, run_id)
    assert "offsets to read 4" in text_of(page_of(tmp_path, run_id))
    (other,) = [link for link in re.findall(r'href="(/dags/[^"]+/runs/[^"]+)"', console_of(
        tmp_path).get("/pipelines/events/plans/4").text)]  # fmt: skip
    assert "offsets to read 4" in text_of(console_of(tmp_path).get(other).text)


def test_a_run_id_in_the_form_of_a_chunk_has_a_page_without_plans(
    lake: FileLake, tmp_path: Path
) -> None:
    """Planning refuses the requester. A backfill accepts it."""
    assert "The requester" in text_of(page_of(tmp_path, "x#1"))
    request(lake, "airflow:tidemark_backfill:x#1", replaces=True)
    page = page_of(tmp_path, "x#1", "tidemark_backfill", pipeline="events")
    assert "landed: 0 of 2 chunks" in text_of(page)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("failed", "ingest failed, and its log has the error. Clear it, or run tidemark ingest"),
        ("running", "Not landed yet: the task ingest is running ."),
        ("up_for_retry", "Not landed yet: the task ingest is up for retry ."),
        (None, "have not landed yet. If the task ingest ended, clear it, or run tidemark ingest"),
    ],
)
def test_an_open_plan_has_the_next_step(
    lake: FileLake, tmp_path: Path, state: str | None, words: str
) -> None:
    """The command continues the plan of the run."""
    plan_of_run(lake)
    text = text_of(page_of(tmp_path, tasks={"plan": "success", "ingest": state}))
    assert words.replace(" .", "") in text.replace(" .", "")
    assert ("tidemark ingest events --plan 4" in text) == (state not in ("running", "up_for_retry"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ({"plan": "success"}, "Planning found nothing new to read."),
        ({"plan": "failed"}, "Planning failed, and nothing was read. The log of the task plan has"),
        ({"plan": "up_for_retry"}, "An attempt to plan failed, and Airflow repeats it later."),
        ({"plan": "running"}, "Planning has not ended: the task plan is running"),
        ({}, "Nothing was new to read, or planning failed or has not ended: see the log of"),
    ],
)
def test_a_run_without_a_plan_has_the_reason(
    lake: FileLake, tmp_path: Path, tasks: dict[str, str], words: str
) -> None:
    text = text_of(page_of(tmp_path, tasks=tasks))
    assert f"No plan of events {words}" in text
    assert "offsets to read" not in text


def test_a_failed_planning_shows_the_current_error_of_the_pipeline(
    lake: FileLake, tmp_path: Path
) -> None:
    """The error of the run is in its log. Usually the pipeline still has it."""

    def page(planning: str) -> str:
        viewer = SomeRights(run=AirflowRun(conf={}, tasks={"plan": planning}))
        client = memory_console(tmp_path, lake, viewer)
        return text_of(client.get(f"/dags/{DAG}/runs/{RUN}").text)

    now = "State of the pipeline now"
    ok = rf"{now} events ok \d+ s ago No error would refuse a run now\."
    assert re.search(ok, page("failed"))
    lake.produce(9, 0)
    lake.kafka.delete_records("events", 0, 12)
    failed = page("failed")
    assert f"{now} events LostRange" in failed
    assert "tidemark accept-loss events" in failed.partition(now)[2]
    assert now not in page("success")


@pytest.mark.slow
def test_a_blocked_plan_has_the_failed_rules_and_both_decisions(
    lake: FileLake, tmp_path: Path
) -> None:
    """After a decision, there is nothing left to do."""
    plan = plan_of_run(lake)
    lake.ingest.execute(plan.sequence)
    text = text_of(page_of(tmp_path))
    assert "landed and were not checked, so the published view hides them" in text
    assert "tidemark check events --plan 4" in text

    pipeline = app_of(tmp_path)().pipeline("events")
    failed = replace(REPORT.results[0], passed=False, observed=7)
    empty = replace(failed, check="seconds_behind", passed=True, value=None)
    record_check(pipeline, 4, failed, empty)
    text = text_of(page_of(tmp_path))
    assert "rules failed 1 of 1 publication blocked" in text
    assert "all counts match observed 7, critical" in text
    for verb in ("release", "reject"):
        assert f'tidemark publication {verb} events --plan 4 --reason "..."' in text

    pipeline.publication.reject(4, "cli:ada:1", "wrong")
    assert '<span class="pill quiet-pill">landed' in page_of(tmp_path)
    pipeline.publication.release(4, "cli:ada:1", "fine")
    assert '<span class="pill good">landed' in page_of(tmp_path)
    text = text_of(page_of(tmp_path))
    assert "publication released" in text
    assert "tidemark publication" not in text


def test_abandoned_plans_stay_on_the_page_of_their_run(lake: FileLake, tmp_path: Path) -> None:
    """A repeated task `plan` makes a new plan for the same run."""
    plan_of_run(lake)
    lake.abandon.abandon(4, "cli:ada:1", "wrong topic")
    plan = lake.planner.plan(f"airflow:{DAG}:{RUN}").plan
    assert plan is not None
    text = text_of(page_of(tmp_path))
    assert "Abandoned by cli:ada:1: wrong topic" in text
    assert text.index("plan 5") < text.index("plan 4")


def test_failed_tasks_are_named_with_their_logs(lake: FileLake, tmp_path: Path) -> None:
    """The plan of a run with a failed decode may be landed and published."""
    tasks = {"plan": "success", "publish": "failed", "decode": "failed", "more": None}
    failed = "Failed: the task decode , the task publish . The log of a task has its error"
    assert failed in text_of(page_of(tmp_path, tasks=tasks))
    assert failed in text_of(page_of(tmp_path, "manual", "tidemark_backfill", tasks=tasks))
    assert "Failed:" not in text_of(page_of(tmp_path, tasks={"plan": "success"}))
    assert "Failed:" not in text_of(page_of(tmp_path))


def test_plans_with_a_next_step_come_first(lake: FileLake, tmp_path: Path) -> None:
    plan_of_run(lake)
    request = replace(wanted((0, 0, 3)), replaces=True)
    other = lake.planner.backfill(request, RunOrigin(f"airflow:{DAG}:{RUN}:by-date")).plan
    assert other is not None
    lake.ingest.execute(other.sequence)
    app_of(tmp_path)().pipeline("events").publication.release(5, "cli:ada:1", "checked by hand")
    text = text_of(page_of(tmp_path))
    assert text.index("events open plan 4") < text.index("events landed plan 5")


def test_a_run_that_takes_a_plan_over_names_the_earlier_run(lake: FileLake, tmp_path: Path) -> None:
    plan_of_run(lake, "first")
    assert lake.planner.plan(f"airflow:{DAG}:second").plan is not None
    taken = text_of(page_of(tmp_path, "second"))
    assert f"An earlier run made this plan and left it open: airflow:{DAG}:first" in taken
    assert "An earlier run" not in text_of(page_of(tmp_path, "first"))


@pytest.mark.slow
def test_a_run_of_another_dag_or_without_rights_has_no_page(lake: FileLake, tmp_path: Path) -> None:
    plan_of_run(lake)
    for viewer, dag_id in ((SomeRights(), "other"), (SomeRights(pipelines=["idle"]), DAG)):
        response = console_of(tmp_path, viewer=viewer).get(f"/dags/{dag_id}/runs/{RUN}")
        assert response.status_code == 404
        assert "This DAG has no pipeline that you may see." in response.text
        assert "offsets to read" not in response.text


def test_a_run_of_a_group_shows_work_first_and_errors_alone(lake: FileLake, tmp_path: Path) -> None:
    for name in ("events", "idle"):
        spec = tmp_path / "pipelines" / f"{name}.yaml"
        spec.write_text(spec.read_text() + "group: both\n")
    lake.produce(4, 0)
    assert lake.planner.plan("airflow:tidemark_group_both:x").plan is not None
    text = text_of(page_of(tmp_path, "x", "tidemark_group_both"))
    assert text.index("events open plan 4") < text.index("No plan")
    assert text.index("No plan") < text.index("idle")
    only = page_of(tmp_path, "x", "tidemark_group_both", SomeRights(pipelines=["idle"]))
    assert "events" not in only


def request(lake: FileLake, requested_by: str, *, replaces: bool) -> None:
    """Record a backfill of two chunks, of which the first is planned."""
    selection = select(offsets=["0:0-4"])
    preview = lake.backfills.preview(selection, 2, readable_only=False, replaces=replaces)
    lake.backfills.request(preview, requested_by, approved=False, reason="wrong values")
    lake.backfills.plan_chunk(requested_by, 1)


@pytest.mark.parametrize(("conf", "pipeline"), [(None, "events"), ({"pipeline": "events"}, None)])
def test_a_run_of_the_backfill_dag_shows_its_chunks(
    lake: FileLake, tmp_path: Path, conf: dict[str, str | None] | None, pipeline: str | None
) -> None:
    """The form of the run has the pipeline; without Airflow, the link on the plan's page has it."""
    request(lake, "airflow:tidemark_backfill:manual__1", replaces=True)
    request_of = SomeRights(run=AirflowRun(conf=conf, tasks={}) if conf else None)
    page = page_of(tmp_path, "manual__1", "tidemark_backfill", request_of, pipeline=pipeline)
    assert "Backfill of events wrong values landed: 0 of 2 chunks" in text_of(page)
    rows = [row for row in cells(page) if row]
    assert [(row[0], row[2], row[3]) for row in rows] == [
        ("1", "4", "not landed"),
        ("2", "-", "not landed"),
    ]
    hidden = replace(request_of, pipelines=["idle"])
    page = page_of(tmp_path, "manual__1", "tidemark_backfill", hidden, pipeline=pipeline)
    assert "wrong values" not in page
    assert "/pipelines/events" not in page
    run = run_of(ChunkOrigin("airflow:tidemark_backfill:manual__1", 1))
    assert run == DagRunRequester(dag_id="tidemark_backfill", run_id="manual__1")


def test_a_chunk_shows_its_failed_and_running_tasks(lake: FileLake, tmp_path: Path) -> None:
    request(lake, "airflow:tidemark_backfill:manual__1", replaces=True)
    mapped = {("chunk.ingest", 0): "failed", ("chunk.ingest", 1): "up_for_retry"}
    run = AirflowRun(conf={"pipeline": "events"}, tasks={"complete": "failed"}, mapped=mapped)
    app = build_app(app_of(tmp_path, NO_KAFKA), Admits(SomeRights(run=run)), airflow="/base")
    page = TestClient(app).get("/dags/tidemark_backfill/runs/manual__1").text
    text = text_of(page)
    assert "Failed: the task complete ." in text
    assert "1 2 4 not landed, the task chunk.ingest failed" in text
    assert "A task of a chunk failed. The page of the chunk's plan has" in text
    assert "2 2 - not landed, the task chunk.ingest is up for retry" in text
    address = "/base/dags/tidemark_backfill/runs/manual__1/tasks/chunk.ingest/mapped/1"
    assert f'href="{address}"' in page


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("success", "This run lands nothing: it was a dry run, or all offsets had landed."),
        ("failed", "The request failed, and nothing was recorded. The log of the task request"),
        ("queued", "The request is not recorded yet: the task request is queued"),
        (
            None,
            "the table of the backfill is unknown. Open the run from the page of one of its plans.",
        ),
    ],
)
def test_a_run_without_a_request_has_the_reason(
    lake: FileLake, tmp_path: Path, state: str | None, words: str
) -> None:
    tasks = {"request": state} if state else None
    assert words in text_of(page_of(tmp_path, "manual__2", "tidemark_backfill", tasks=tasks))


@pytest.mark.parametrize("tasks", [{"request": None}, {}])
def test_a_run_of_a_backfill_waits_for_its_first_task(
    lake: FileLake, tmp_path: Path, tasks: dict[str, str | None]
) -> None:
    """Airflow creates the tasks of a run without a state."""
    run = AirflowRun(conf={"pipeline": "events"}, tasks=tasks)
    page = page_of(tmp_path, "manual__2", "tidemark_backfill", SomeRights(run=run))
    assert (
        "Airflow has created this run. The request is not recorded yet: the task request has not "
        "started."
    ) in text_of(page)
    assert "hx-get" in page
    assert "paused" not in page
    paused = SomeRights(run=run, paused=["tidemark_backfill"])
    page = page_of(tmp_path, "manual__2", "tidemark_backfill", paused)
    assert "DAG tidemark_backfill is paused: no further task of this run starts." in text_of(page)
    hidden = SomeRights(pipelines=["idle"], run=run)
    page = page_of(tmp_path, "manual__2", "tidemark_backfill", hidden)
    assert "Airflow has created this run" not in page
    assert "of a pipeline that you may not see" in text_of(page)


def test_tasks_link_to_airflow_only_inside_airflow(lake: FileLake, tmp_path: Path) -> None:
    """The script of the console opens the link in the document around Airflow's frame."""
    viewer = SomeRights()
    inside = TestClient(build_app(app_of(tmp_path), Admits(viewer), airflow="/base"))
    page = inside.get(f"/dags/{DAG}/runs/{quote(RUN, safe='')}").text
    address = f"/base/dags/{DAG}/runs/{quote(RUN, safe='')}/tasks/plan"
    assert f'<a href="{address}" data-airflow>the task <code>plan</code></a>' in page
    assert "data-airflow" not in page_of(tmp_path)
