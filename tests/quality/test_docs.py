"""Lists and pages of quality checks: pruning, and links."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.browser import open_page
from tests.support.quality_reports import REPORT
from tests.support.services import NOW
from tidemark.lake.errors import ClockDiffers
from tidemark.quality.check_results import QualityReport
from tidemark.quality.docs import RUNS_LISTED, DataDocs, DocsFolders, write_index

pytestmark = pytest.mark.slow

DAY = timedelta(days=1)


class Pages(DataDocs):
    """Pages on a file system whose clock has the time of these tests."""

    def _storage_time(self) -> datetime:
        return NOW


def write_check_pages(home: Path, pipeline: str, run_at: datetime, plan: int = 1) -> list[Path]:
    """Write the pages of one check, with the age of the check."""
    folders = DocsFolders(home=home, pipeline=pipeline)
    run = f"plan-{plan:06d}/{run_at:%Y%m%dT%H%M%S}Z"
    pages = {
        suite: folders.site / "validations" / suite / run / "batch.html"
        for suite in ("built-in", "own")
    }
    for page in pages.values():
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("<p>a page</p>")
        os.utime(page, (run_at.timestamp(), run_at.timestamp()))
    report = QualityReport(
        pipeline=pipeline,
        plan_sequence=plan,
        table_version=plan,
        run_at=run_at,
        results=(),
        data_docs=str(folders.index),
    )
    with folders.locked():
        write_index(folders, report, pages)
    return list(pages.values())


def dead_links(home: Path) -> list[str]:
    """Return links of start pages whose target does not exist."""
    return [
        link
        for page in home.rglob("index.html")
        for link in re.findall(r'href="([^"]+)"', page.read_text(encoding="utf-8"))
        if not (page.parent / link).exists()
    ]


def existing(pages: Sequence[Path]) -> list[bool]:
    """Return which pages exist."""
    return [page.exists() for page in pages]


def test_pruning_removes_old_pages_and_the_lines_that_link_to_them(tmp_path: Path) -> None:
    """A dry run counts the same pages and removes none."""
    old = write_check_pages(tmp_path, "prices", NOW - 91 * DAY, plan=1)
    young = write_check_pages(tmp_path, "prices", NOW - 89 * DAY, plan=2)
    everything = sorted(tmp_path.rglob("*"))
    assert Pages(tmp_path).prune(NOW, 90 * DAY, dry_run=True) == 2
    assert sorted(tmp_path.rglob("*")) == everything
    assert Pages(tmp_path).prune(NOW, 90 * DAY) == 2
    assert (existing(old), existing(young)) == ([False, False], [True, True])
    assert not [folder for page in old for folder in (page.parent,) if folder.exists()]
    runs = json.loads((tmp_path / "data_docs" / "prices" / "runs.json").read_text())
    assert [run["plan"] for run in runs] == [2]
    assert dead_links(tmp_path) == []
    assert Pages(tmp_path).prune(NOW, 90 * DAY) == 0


@pytest.mark.e2e
def test_a_browser_shows_lists_of_checks_completely_and_escaped(tmp_path: Path) -> None:
    """This also holds on a phone. No request, overflow or script occurs."""
    evil = "<script>alert(1)</script> " + "x" * 200
    (passed,) = REPORT.results
    failed = replace(passed, passed=False, observed=evil)
    for pipeline, results in (("orders", (passed,)), ("prices", (passed, failed))):
        folders = DocsFolders(home=tmp_path, pipeline=pipeline)
        report = replace(REPORT, pipeline=pipeline, results=results)
        with folders.locked():
            write_index(folders, report, {"built-in": folders.site / "page.html"})
    line = f"critical: all counts match; observed: {evil}"
    cells = ["failed", "1", "2026-03-01 12:00", line, "built-in"]
    shown = open_page(folders.index, tmp_path, width=500)
    assert (shown.fetched, shown.messages, shown.overflow) == ([], [], 0)
    assert [text for tag, text in shown.elements if tag == "TD" and text != "0"] == cells
    assert [tag for tag, _ in shown.elements].count("H1") == 1


def test_pruning_keeps_the_newest_check_of_each_pipeline(tmp_path: Path) -> None:
    pages = [
        page for name in ("a", "b") for page in write_check_pages(tmp_path, name, NOW - 400 * DAY)
    ]
    assert Pages(tmp_path).prune(NOW, 0 * DAY) == 0
    assert all(existing(pages))
    assert dead_links(tmp_path) == []


def test_pruning_removes_old_pages_that_no_list_has(tmp_path: Path) -> None:
    """A list has a limited number of checks."""
    first = write_check_pages(tmp_path, "prices", NOW - 100 * DAY, plan=0)
    for plan in range(1, RUNS_LISTED + 1):
        write_check_pages(tmp_path, "prices", NOW - plan * timedelta(minutes=1), plan=plan)
    assert all(existing(first))
    assert Pages(tmp_path).prune(NOW, 90 * DAY) == 2
    assert not any(existing(first))
    assert Pages(tmp_path).prune(NOW, 90 * DAY) == 0
    assert dead_links(tmp_path) == []


def test_pruning_keeps_pages_of_suites_and_other_files(tmp_path: Path) -> None:
    """Only pages of checks are pruned."""
    write_check_pages(tmp_path, "prices", NOW - 100 * DAY)
    suite = tmp_path / "data_docs" / "prices" / "expectations" / "own.html"
    suite.parent.mkdir()
    suite.write_text("<p>a suite</p>")
    os.utime(suite, (0, 0))
    Pages(tmp_path).prune(NOW, 0 * DAY)
    assert suite.exists()


@pytest.mark.parametrize("home", ["nowhere", "."])
def test_pruning_without_pages_creates_and_removes_nothing(tmp_path: Path, home: str) -> None:
    """The folder may be missing."""
    assert Pages(tmp_path / home).prune(NOW, 0 * DAY) == 0
    assert list(tmp_path.iterdir()) == []


def test_pruning_with_a_wrong_clock_removes_no_page(tmp_path: Path) -> None:
    """Every page looks old to a clock that is 91 days ahead."""
    pages = [
        page
        for plan in (1, 2)
        for page in write_check_pages(tmp_path, "a", datetime.now(UTC), plan)
    ]
    with pytest.raises(ClockDiffers):
        DataDocs(tmp_path).prune(datetime.now(UTC) + 91 * DAY, 90 * DAY)
    assert all(existing(pages))
