"""The page of a plan and the table of plans: the next step, failed rules and the publication."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.console.test_pages import cells
from tests.support.consoles import app_of, console_of, record_check
from tests.support.file_lake import FileLake, home_lake
from tests.support.page_text import text_of
from tests.support.quality_reports import REPORT
from tidemark.quality.check_results import Severity

(RULE,) = REPORT.results
FAILED = replace(RULE, passed=False, observed=7, expectation="no gap")


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Pipeline `events` with three landed plans."""
    return home_lake(tmp_path)


def page_of(home: Path, sequence: int) -> str:
    """Return the page of a plan."""
    return console_of(home).get(f"/pipelines/events/plans/{sequence}").text


def test_an_open_plan_has_the_command_that_continues_it(lake: FileLake, tmp_path: Path) -> None:
    """No later run takes over the plan of a backfill."""
    lake.plan(2)
    lake.plan_replacing((0, 6, 9))
    working = "The process of this plan may still run, or it ended early."
    live, backfill = (text_of(page_of(tmp_path, number)) for number in (4, 5))
    assert f"{working} The next run continues the plan. tidemark ingest events --plan 4" in live
    assert f"{working} tidemark ingest events --plan 5 continues it now" in backfill


def test_replaced_rows_have_a_link_to_the_plan_that_replaced_them(
    lake: FileLake, tmp_path: Path
) -> None:
    lake.ingest.execute(lake.plan_replacing((0, 6, 9)).sequence)
    page = page_of(tmp_path, 3)
    assert "superseded - rows replaced by plan 4" in text_of(page)
    assert 'href="/pipelines/events/plans/4">plan 4</a>' in page


def test_a_blocked_plan_has_its_decisions_and_its_failed_rules_first(
    lake: FileLake, tmp_path: Path
) -> None:
    warned = replace(FAILED, severity=Severity.WARNING, expectation="few nulls")
    record_check(app_of(tmp_path)().pipeline("events"), 3, RULE, warned, FAILED)
    page = page_of(tmp_path, 3)
    heading = page.partition("<h1>")[2].partition("</h1>")[0]
    assert re.findall(r'class="pill ([^"]+)">([^<]+)<', heading) == [
        ("quiet-pill", "landed"),
        ("bad", "blocked"),
    ]
    for verb in ("release", "reject"):
        assert f'tidemark publication {verb} events --plan 3 --reason "..."' in text_of(page)
    results = page.partition("<h2>Checks</h2>")[2].partition("<h2>")[0]
    assert [row[1] for row in cells(results) if row] == [
        f"no gap {FAILED.name}",
        f"few nulls {warned.name}",
        f"{RULE.expectation} {RULE.name}",
    ]


def test_a_landed_plan_without_a_check_has_the_command_that_checks_it(
    lake: FileLake, tmp_path: Path
) -> None:
    assert "Run tidemark check events --plan 3" in text_of(page_of(tmp_path, 3))
    app_of(tmp_path)().pipeline("events").publication.release(3, "cli:ada:1", "fine")
    page = page_of(tmp_path, 3)
    assert 'class="step"' not in page
    assert '<span class="pill good">released' in page


def test_the_table_of_plans_has_the_publication_of_each_plan(
    lake: FileLake, tmp_path: Path
) -> None:
    pipeline = app_of(tmp_path)().pipeline("events")
    record_check(pipeline, 1, RULE)
    record_check(pipeline, 2, FAILED)
    lake.plan(2)
    page = console_of(tmp_path).get("/pipelines/events/plans").text
    assert [(row[0], row[2]) for row in cells(page) if row] == [
        ("4", "-"),
        ("3", "not checked"),
        ("2", "blocked"),
        ("1", "published"),
    ]
    assert re.findall(r'<span class="outcome (\w+)">', page) == [
        "quiet",
        "quiet",
        "failed",
        "passed",
    ]
    newest = console_of(tmp_path).get("/pipelines/events").text
    assert ["2", "landed", "blocked"] in [row[:3] for row in cells(newest)]
