"""The console's page of a backfill: the run that the form starts, and the command."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.support.chromium import chromium_tab
from tests.support.consoles import SomeRights, served
from tests.support.file_lake import FileLake, home_lake
from tests.support.memory_consoles import memory_app, memory_web
from tidemark.bronze.backfill.selection import select
from tidemark.console.backfills import BackfillForm
from tidemark.console.guard import AirflowRun

FROM, UNTIL = "2026-03-01T00:00:00Z", "2026-03-02"
NOTHING = dict.fromkeys(("offsets", "from", "until", "plan", "partitions", "chunk"))
"""Parameters of a run with the fields of the form that are empty."""


@pytest.mark.parametrize(
    ("fields", "selected"),
    [
        ({"offsets": "0:1-2, 1:3-4"}, {"select_by": "offset ranges", "offsets": "0:1-2, 1:3-4"}),
        (
            {"start": FROM, "end": UNTIL, "plan": " "},
            {"select_by": "time window", "from": FROM, "until": UNTIL},
        ),
        ({"retained": "true"}, {"select_by": "retained log"}),
        (
            {"offsets": " ", "plan": "7"},
            {"select_by": "ranges of a plan", "offsets": " ", "plan": 7},
        ),
    ],
)
def test_a_run_of_the_dag_has_the_parameters_of_the_form(
    fields: dict[str, str], selected: dict[str, object]
) -> None:
    form = BackfillForm.model_validate(fields)
    assert form.conf("prices") == {
        **NOTHING,
        "pipeline": "prices",
        "readable_only": False,
        "replace": False,
        "reason": None,
        **selected,
    }
    options = {"partitions": "0, 2", "chunk": "50", "reason": "it's wrong"}
    flags = dict.fromkeys(("readable_only", "replace"), "true")
    form = BackfillForm.model_validate({**fields, **options, **flags})
    assert form.conf("prices") == {
        **NOTHING,
        "pipeline": "prices",
        "partitions": "0,2",
        "chunk": 50,
        "readable_only": True,
        "replace": True,
        "reason": "it's wrong",
        **selected,
    }


def page_of(lake: FileLake, home: Path, address: str, airflow: str | None = "") -> str:
    """Return a page of a console, by default inside Airflow."""
    client = TestClient(memory_web(memory_app(home, lake), airflow=airflow))
    return client.get(f"/pipelines/{address}").text


def command_of(page: str) -> str:
    """Return the command of a preview."""
    return unescape(re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)[-1])


def test_a_backfill_above_the_limit_has_the_command_that_approves_it(tmp_path: Path) -> None:
    lake = home_lake(tmp_path)
    lake.produce(4, 1)
    spec = tmp_path / "pipelines" / "events.yaml"
    spec.write_text(spec.read_text() + "limits: {records_per_backfill: 3}\n")
    above = page_of(lake, tmp_path, "events/backfill?offsets=1:0-4&chunk=2")
    assert "data-trigger" not in above
    assert "it has 4 offsets, and more than 3 offsets need your approval" in above
    assert command_of(above) == "tidemark backfill events --offsets 1:0-4 --chunk 2 --yes"
    assert command_of(
        page_of(lake, tmp_path, "events/backfill?offsets=1:0-4", airflow=None)
    ).endswith(" --yes")
    below = page_of(lake, tmp_path, "events/backfill?offsets=1:0-3")
    assert "data-trigger" in below
    assert command_of(below) == "tidemark backfill events --offsets 1:0-3"


def test_the_preview_of_landed_offsets_has_the_option_that_reads_them_again(
    tmp_path: Path,
) -> None:
    lake = home_lake(tmp_path)
    lake.run(4)
    hint = "Select <em>Replace landed rows</em>"
    assert hint in page_of(lake, tmp_path, "events/backfill?offsets=0:1-3")
    assert hint not in page_of(lake, tmp_path, "events/backfill?offsets=0:1-3&replace=true")


def test_a_chunk_without_offsets_is_refused_by_the_preview(tmp_path: Path) -> None:
    lake = home_lake(tmp_path)
    page = page_of(lake, tmp_path, "events/backfill?retained=true&chunk=0")
    assert "InvalidSelection" in page
    assert "a chunk of at least one offset" in page


def test_partitions_are_sent_to_the_dag_without_empty_parts() -> None:
    conf = BackfillForm(retained=True, partitions="0,, 1 \n").conf("prices")
    assert conf
    assert conf["partitions"] == "0,1"


def test_a_replacement_without_a_reason_is_not_offered(tmp_path: Path) -> None:
    """The run would fail, and so would the command."""
    lake = home_lake(tmp_path)
    address = "events/backfill?offsets=0:0-4&replace=true"
    without = page_of(lake, tmp_path, f"{address}&reason=%20")
    assert "A replacement needs a reason" in without
    assert "data-trigger" not in without
    assert "tidemark backfill" not in without
    assert "data-trigger" in page_of(lake, tmp_path, f"{address}&reason=fixed")


@pytest.mark.e2e
def test_a_started_backfill_opens_the_page_of_its_run(tmp_path: Path) -> None:
    """The request is recorded later. An empty page would invite a second start."""
    run_id = "manual__2026-11-28T10:00:00+00:00_a/b?c#d"
    (tmp_path / "home").mkdir()
    lake = home_lake(tmp_path / "home")
    lake.produce(4, 1)
    run = AirflowRun(conf={"pipeline": "events"}, tasks={"request": None})
    viewer = SomeRights(run=run)
    web = memory_web(memory_app(tmp_path / "home", lake), viewer, airflow="")

    async def start(body: dict[str, Any]) -> dict[str, Any]:
        assert body["conf"]["offsets"] == "1:0-4"
        return {"dag_run_id": run_id}

    web.add_api_route("/api/v2/dags/tidemark_backfill/dagRuns", start, methods=["POST"])
    with served(web) as address, chromium_tab(tmp_path) as tab:
        tab.open(f"{address}/pipelines/events/backfill?offsets=1:0-4")
        tab.value("document.querySelector('button[data-trigger]').click()")
        tab.wait_for("document.querySelector('h1')?.textContent.startsWith('Run ')")
        assert tab.value("document.querySelector('h1').textContent") == f"Run {run_id}"
        assert "Airflow has created this run" in tab.value("document.body.textContent")
        preview = lake.backfills.preview(select(offsets=["1:0-4"]), None, readable_only=False)
        lake.backfills.request(preview, f"airflow:tidemark_backfill:{run_id}", approved=False)
        tab.wait_for("document.body.textContent.includes('landed: 0 of 1 chunk')")
