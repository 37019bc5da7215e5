"""The quality pages of all pipelines of a home."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.app import App
from tidemark.core.errors import TidemarkError
from tidemark.core.parallel import result_or_error

if TYPE_CHECKING:
    from tidemark.quality.docs import DataDocs

log = logging.getLogger(__name__)


def quality_pages(app: App) -> DataDocs:
    """Return the pages of quality checks."""
    from tidemark.quality.docs import DataDocs

    return app.wrap_part("quality_pages", DataDocs(app.layout.quality_home))


def refresh_pages(app: App, *pipelines: str) -> None:
    """Update the quality pages of some pipelines, and the start page.

    A failure to write a page is only logged, because pages are copies of the tables.
    """
    for name in pipelines:
        _try_pages(name, app.pipeline(name).refresh_pages)
    _try_pages("all", lambda: write_start_page(app))


def _try_pages(name: str, write: Callable[[], object]) -> None:
    error = result_or_error(name, lambda _: write())
    if isinstance(error, TidemarkError):
        kind = type(error).__name__
        log.warning("quality pages not written pipeline=%s error=%s", name, kind)


def write_start_page(app: App) -> Path:
    """Write the start page of the quality pages of all pipelines, and return its path."""
    from tidemark.lake.local_files import translate_os_errors
    from tidemark.quality import start_page

    home = app.layout.quality_home
    descriptions = {name: spec.description for name, spec in app.specs.items()}
    with translate_os_errors(home, "writing the quality pages"):
        return start_page.write_start_page(home, descriptions)
