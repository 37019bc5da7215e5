"""Data Docs: the pages of quality checks, and the page of each pipeline that lists them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from tidemark.lake.local_files import locked, read_json, replace_text
from tidemark.lake.unreferenced_files import checked_storage_time
from tidemark.quality.check_results import BatchRef, CheckResult, QualityReport
from tidemark.quality.checks import DRIFT, NO_LIMIT, observed_text
from tidemark.quality.html_templates import html_environment

TEMPLATES = Path(__file__).parent / "templates"
RUNS_LISTED = 200
"""Runs that the page of a pipeline lists. Pages of older runs stay in their folders."""

_RUNS = "runs.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DocsFolders:
    """Folders of one pipeline's pages. No other pipeline writes there.

    Attributes:
        home: Folder of all quality state.
        pipeline: Pipeline name.
    """

    home: Path
    pipeline: str

    @property
    def site(self) -> Path:
        """The pipeline's Data Docs."""
        return self.home / "data_docs" / self.pipeline

    @property
    def index(self) -> Path:
        """Start page of the pipeline's Data Docs."""
        return self.site / "index.html"

    def locked(self) -> AbstractContextManager[None]:
        """Lock the pages of the pipeline against other processes on this machine."""
        return locked(self.site / ".lock")


class DataDocs:
    """The pages of all pipelines.

    Args:
        home: Folder of all quality state.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    def prune(self, now: datetime, keep: timedelta, *, dry_run: bool = False) -> int:
        """Remove old pages of checks, except each pipeline's newest check.

        Removes runs without pages from the lists of runs. The results table keeps all results.

        Args:
            now: The time by this machine's clock.
            keep: How long pages stay.
            dry_run: Only count the pages, and use this machine's clock.

        Returns:
            The number of removed pages; in a dry run the number of pages to remove.

        Raises:
            ClockDiffers: The file system's clock differs; nothing was removed.
        """
        sites = sorted(site for site in self._home.glob("data_docs/*") if site.is_dir())
        if sites and not dry_run:
            now = checked_storage_time("the quality pages", now, self._storage_time())
        return sum(self._prune_site(site.name, now - keep, dry_run) for site in sites)

    def _storage_time(self) -> datetime:
        """Return the time by the file system's clock."""
        with tempfile.TemporaryFile(dir=self._home) as probe:
            return datetime.fromtimestamp(os.fstat(probe.fileno()).st_mtime, UTC)

    def _prune_site(self, pipeline: str, before: datetime, dry_run: bool) -> int:
        folders = DocsFolders(home=self._home, pipeline=pipeline)
        with nullcontext() if dry_run else folders.locked():
            runs = listed_runs(folders.site)
            recent = [
                run
                for number, run in enumerate(runs)
                if number == 0 or datetime.fromisoformat(run["run_at"]) >= before
            ]
            linked = {folders.site / page for run in recent for page in run["pages"].values()}
            old = [
                page
                for page in folders.site.glob("validations/**/*.html")
                if page not in linked and page.stat().st_mtime < before.timestamp()
            ]
            if not dry_run:
                # Before the removal, so that no list links to a removed page.
                if recent != runs:
                    _write_runs(folders, recent)
                for page in old:
                    page.unlink()
                    _remove_empty(page.parent, folders.site)
        return len(old)


def _remove_empty(folder: Path, top: Path) -> None:
    """Remove a folder and the folders above it below `top`, up to one that is not empty."""
    while folder != top and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def write_checks(
    folders: DocsFolders, ref: BatchRef, run_at: datetime, results: Sequence[CheckResult]
) -> Path:
    """Write the page of the built-in checks. Replaces a page of the same plan and time.

    Args:
        folders: The pipeline's folders.
        ref: The checked batch.
        run_at: Time of the run.
        results: Results of the checks.

    Returns:
        The page.
    """
    name = f"plan-{ref.plan_sequence:06d}-{run_at:%Y%m%dT%H%M%S.%fZ}.html"
    page = folders.site / "validations" / "built_in" / name
    page.parent.mkdir(parents=True, exist_ok=True)
    replace_text(page, _checks_page(ref, run_at, results))
    return page


def _checks_page(ref: BatchRef, run_at: datetime, results: Sequence[CheckResult]) -> str:
    drift = [each for each in results if each.check in DRIFT and each.passed]
    return rendered(
        "checks.html",
        ref=ref,
        run_at=run_at,
        judged=[each for each in results if each not in drift],
        drift=drift,
        drift_line=drift_line(sum(each.value is not None for each in drift), len(drift)),
        no_limit=NO_LIMIT,
    )


def drift_line(usual: int, measures: int) -> str:
    """Return a line about drift checks that did not fail.

    Args:
        usual: Number of measures that were compared.
        measures: Number of all measures; the others had no figure or too few earlier plans.
    """
    if not usual:
        return "Drift: not enough history"
    others = f", {measures - usual} not compared" if measures > usual else ""
    spread = "measures within their" if usual > 1 else "measure within its"
    return f"Drift: {usual} {spread} usual spread{others}"


def write_index(folders: DocsFolders, report: QualityReport, pages: Mapping[str, Path]) -> None:
    """Add a run to the page of its pipeline.

    The caller holds the lock of the pipeline's folders.

    Args:
        folders: The pipeline's folders.
        report: The results of the run.
        pages: The run's pages, by suite.
    """
    run = {
        "outcome": str(report.outcome),
        "plan": report.plan_sequence,
        "table_version": report.table_version,
        "run_at": report.run_at.isoformat(),
        "failed": [_failure(result) for result in report.results if not result.passed],
        "pages": {
            suite: page.relative_to(folders.site).as_posix() for suite, page in pages.items()
        },
    }
    runs = [run, *(old for old in listed_runs(folders.site) if old["pages"] != run["pages"])]
    runs = sorted(runs, key=lambda one: str(one["run_at"]), reverse=True)[:RUNS_LISTED]
    _write_runs(folders, runs)


def _failure(result: CheckResult) -> str:
    none = result.observed is None
    observed = "no value" if none else observed_text(result.check, result.observed or 0)
    return f"{result.severity}: {result.expectation}; observed: {observed}"


def _write_runs(folders: DocsFolders, runs: Sequence[Mapping[str, Any]]) -> None:
    replace_text(folders.site / _RUNS, json.dumps(runs, indent=1))
    replace_text(folders.index, rendered("runs.html", pipeline=folders.pipeline, runs=runs))


def listed_runs(site: Path) -> list[dict[str, Any]]:
    """Return the runs that the page of a pipeline lists, newest first."""
    return list(read_json(site / _RUNS) or ())


def rendered(template: str, **values: Any) -> str:
    """Return a page from a template of this package. All values are escaped."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> jinja2.Environment:
    environment = html_environment(TEMPLATES)
    environment.filters["observed"] = observed_text
    environment.filters["minute"] = lambda text: text[:16].replace("T", " ")
    return environment
