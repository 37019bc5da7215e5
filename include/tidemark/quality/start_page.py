"""The start page of all quality pages: each pipeline with its state, and links to its pages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidemark.core.plain import record_of
from tidemark.lake.local_files import locked, read_json, replace_text
from tidemark.quality.docs import DocsFolders, listed_runs, rendered


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The state of one pipeline, as the start page shows it.

    Attributes:
        created_at: Time of the state.
        css: CSS class of the headline.
        headline: The state in a few words.
        points: Open points, each with its CSS class.
        fix: What to do after an error; None without one.
    """

    created_at: datetime
    css: str
    headline: str
    points: Sequence[tuple[str, str]] = ()
    fix: str | None = None


def save_summary(folders: DocsFolders, summary: Summary) -> None:
    """Store the state of a pipeline for the start page."""
    replace_text(folders.summary, json.dumps(record_of(summary)))


def start_page(home: Path) -> Path:
    """Return the start page of a folder of quality state."""
    return home / "index.html"


def write_start_page(home: Path, pipelines: Mapping[str, str]) -> Path:
    """Write the start page from the stored states and checks. Links only to existing pages.

    Args:
        home: Folder of all quality state.
        pipelines: Descriptions of the pipelines with a spec, by name. Pipelines without a spec that
            have pages, such as copies, are listed too.

    Returns:
        The page.
    """
    page = start_page(home)
    with locked(home / ".lock"):
        sites = {site.name for site in home.glob("data_docs/*") if site.is_dir()}
        entries = [_entry(home, name, pipelines.get(name)) for name in sorted({*pipelines, *sites})]
        replace_text(page, rendered("pipelines.html", entries=entries))
    return page


def _entry(home: Path, name: str, description: str | None) -> Mapping[str, Any]:
    folders = DocsFolders(home=home, pipeline=name)
    runs = [run for run in listed_runs(folders.site) if not run.get("note")]
    pages = (folders.report, folders.index)
    report, checks = (
        page.relative_to(home).as_posix() if page.exists() else None for page in pages
    )
    return {
        "name": name,
        "description": description or "",
        "has_spec": description is not None,
        "summary": read_json(folders.summary),
        "check": runs[0] if runs else None,
        "report": report,
        "reported_at": _written_at(folders.report) if report else None,
        "checks": checks,
    }


def _written_at(page: Path) -> str:
    return f"{datetime.fromtimestamp(page.stat().st_mtime, UTC):%Y-%m-%d %H:%M}"
