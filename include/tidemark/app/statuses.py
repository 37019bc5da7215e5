"""The recorded statuses of all pipelines of a home."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemark.app.adapters import utc_now
from tidemark.app.app import App
from tidemark.core.errors import TidemarkError

if TYPE_CHECKING:
    from tidemark.ops.report.status import PipelineStatus


def record_status(app: App, seen: Mapping[str, PipelineStatus | TidemarkError]) -> None:
    """Write the status of some pipelines, or their errors, to the status table and its history.

    An error of one table does not prevent the write to the other.
    """
    from tidemark.delta.status_history import append_statuses
    from tidemark.delta.status_table import write_status
    from tidemark.ops.report.status import status_row

    rows = [status_row(name, each, utc_now()) for name, each in seen.items()]
    of_all = set(seen) == {*app.specs, *app.spec_folder.broken}
    try:
        write_status(app.layout.status_table, rows, of_all=of_all)
    finally:
        append_statuses(app.layout.status_history, rows)
