"""The folders in which Great Expectations writes Data Docs, and the removal of old pages."""

from __future__ import annotations

import os
import tempfile
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tidemark.delta.local_files import locked
from tidemark.delta.unreferenced_files import checked_storage_time


class DataDocs:
    """The Data Docs of all pipelines. Each pipeline has a folder of its own.

    Args:
        home: The folder of all Data Docs.
    """

    def __init__(self, home: Path) -> None:
        self._home = home

    def site(self, pipeline: str) -> Path:
        """Return the folder of a pipeline's Data Docs."""
        return self._home / pipeline

    def locked(self, pipeline: str) -> AbstractContextManager[None]:
        """Lock the Data Docs of a pipeline against other processes on this machine."""
        return locked(self.site(pipeline) / ".lock")

    def page(self, pipeline: str, plan: int, run_at: datetime) -> Path | None:
        """Return the page of the check of a plan at a time; None without one.

        Only a check with rules on rows has a page, and maintenance removes old pages.
        """
        run = f"{run_name(plan)}/{run_at.astimezone(UTC):%Y%m%dT%H%M%S.%fZ}"
        return next(self.site(pipeline).glob(f"validations/*/{run}/*.html"), None)

    def prune(self, now: datetime, keep: timedelta, *, dry_run: bool = False) -> int:
        """Remove old pages of checks. Keep the pages of suites, and all results in the table.

        Args:
            now: The time by this machine's clock.
            keep: How long pages stay.
            dry_run: Only count the pages, and use this machine's clock.

        Returns:
            The number of removed pages; in a dry run the number of pages to remove.

        Raises:
            ClockDiffers: The file system's clock differs; nothing was removed.
        """
        pipelines = sorted(site.name for site in self._home.glob("*") if site.is_dir())
        if pipelines and not dry_run:
            now = checked_storage_time("the Data Docs", now, self._storage_time())
        return sum(self._prune_site(pipeline, now - keep, dry_run) for pipeline in pipelines)

    def _storage_time(self) -> datetime:
        """Return the time by the file system's clock."""
        with tempfile.TemporaryFile(dir=self._home) as probe:
            return datetime.fromtimestamp(os.fstat(probe.fileno()).st_mtime, UTC)

    def _prune_site(self, pipeline: str, before: datetime, dry_run: bool) -> int:
        site = self.site(pipeline)
        # Without the lock, the folder of a page that a check writes could be removed.
        with nullcontext() if dry_run else self.locked(pipeline):
            old = [
                page
                for page in site.glob("validations/**/*.html")
                if page.stat().st_mtime < before.timestamp()
            ]
            if not dry_run:
                for page in old:
                    page.unlink()
                    _remove_empty(page.parent, site)
        return len(old)


def run_name(plan: int) -> str:
    """Return the run name of the checks of a plan. It is also the name of their folder."""
    return f"plan-{plan:06d}"


def _remove_empty(folder: Path, top: Path) -> None:
    """Remove a folder and its parents below `top`, up to the first that is not empty."""
    while folder != top and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
