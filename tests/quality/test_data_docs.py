"""Folders of Data Docs: the page of a check, and pruning."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.services import NOW
from tidemark.delta.errors import ClockDiffers
from tidemark.quality.data_docs import DataDocs

DAY = timedelta(days=1)


class Docs(DataDocs):
    """Data Docs on a file system whose clock has the time of these tests."""

    def _storage_time(self) -> datetime:
        return NOW


def write_page(home: Path, pipeline: str, run_at: datetime, plan: int = 1) -> Path:
    """Write the page of one check, with the age of the check."""
    run = home / pipeline / "validations" / "own" / f"plan-{plan:06d}"
    page = run / f"{run_at:%Y%m%dT%H%M%S.%fZ}" / "batch.html"
    page.parent.mkdir(parents=True)
    page.write_text("<p>a page</p>")
    os.utime(page, (run_at.timestamp(), run_at.timestamp()))
    return page


def test_pruning_removes_old_pages_with_their_folders(tmp_path: Path) -> None:
    """A dry run counts the same pages and removes none."""
    old = write_page(tmp_path, "prices", NOW - 91 * DAY)
    young = write_page(tmp_path, "prices", NOW - 89 * DAY, plan=2)
    other = write_page(tmp_path, "orders", NOW - 400 * DAY)
    everything = sorted(tmp_path.rglob("*"))
    assert Docs(tmp_path).prune(NOW, 90 * DAY, dry_run=True) == 2
    assert sorted(tmp_path.rglob("*")) == everything
    assert Docs(tmp_path).prune(NOW, 90 * DAY) == 2
    assert [each.exists() for each in (old.parent.parent, young, other.parent)] == [
        False,
        True,
        False,
    ]
    assert Docs(tmp_path).prune(NOW, 90 * DAY) == 0


def test_a_page_is_found_by_its_plan_and_time(tmp_path: Path) -> None:
    first = write_page(tmp_path, "prices", NOW)
    second = write_page(tmp_path, "prices", NOW + timedelta(microseconds=1))
    docs = DataDocs(tmp_path)
    found = [docs.page("prices", 1, NOW + timedelta(microseconds=n)) for n in range(3)]
    assert found == [first, second, None]
    assert docs.page("prices", 2, NOW) is None


def test_pruning_keeps_pages_of_suites_and_other_files(tmp_path: Path) -> None:
    write_page(tmp_path, "prices", NOW - 100 * DAY)
    suite = tmp_path / "prices" / "expectations" / "own.html"
    suite.parent.mkdir()
    suite.write_text("<p>a suite</p>")
    os.utime(suite, (0, 0))
    assert Docs(tmp_path).prune(NOW, 0 * DAY) == 1
    assert suite.exists()


@pytest.mark.parametrize("home", ["nowhere", "."])
def test_pruning_without_pages_creates_and_removes_nothing(tmp_path: Path, home: str) -> None:
    """The folder may be missing."""
    assert Docs(tmp_path / home).prune(NOW, 0 * DAY) == 0
    assert list(tmp_path.iterdir()) == []


def test_pruning_with_a_wrong_clock_removes_no_page(tmp_path: Path) -> None:
    """Every page looks old to a clock that is 91 days ahead."""
    page = write_page(tmp_path, "prices", datetime.now(UTC))
    with pytest.raises(ClockDiffers):
        DataDocs(tmp_path).prune(datetime.now(UTC) + 91 * DAY, 90 * DAY)
    assert page.exists()
