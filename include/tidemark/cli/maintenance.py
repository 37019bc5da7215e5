"""`tidemark maintain`: compaction of tables, and removal of unreferenced files."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

import typer

from tidemark.app import option_texts
from tidemark.app.adapters import utc_now
from tidemark.app.app import App
from tidemark.app.pipelines import maintain_each, result_of
from tidemark.cli.arguments import AsJson, DryRun, PipelineNamesOrAll
from tidemark.cli.engine import exit_with
from tidemark.cli.output import note, out, print_error_record, print_json, print_table
from tidemark.cli.progress import SHORT_S, phase
from tidemark.core.errors import TidemarkError
from tidemark.core.parallel import result_or_error
from tidemark.core.texts import counted
from tidemark.ops.maintenance.rules import (
    DEFAULT_DOCS_RETENTION,
    DEFAULT_KEEP_HOURS,
    MOST_KEEP_DAYS,
    MOST_KEEP_HOURS,
)


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help=option_texts.MAINTAIN)(maintain)


def maintain(
    pipelines: PipelineNamesOrAll = None,
    keep_hours: Annotated[
        int, typer.Option(min=0, max=MOST_KEEP_HOURS, help=option_texts.KEEP_HOURS)
    ] = DEFAULT_KEEP_HOURS,
    keep_docs_days: Annotated[
        int, typer.Option(min=1, max=MOST_KEEP_DAYS, help=option_texts.KEEP_DOCS_DAYS)
    ] = DEFAULT_DOCS_RETENTION.days,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Compact small files, and remove unreferenced files, old Data Docs and old statuses.

    The command maintains the tables of each pipeline, then the shared tables, then the
    Data Docs. The shared tables are the control table, the stored schemas, the quality results, the
    status table and its history. Statuses older than 30 days are removed from the history.
    Runs and readers need not stop. Files that an open plan may have written, and files of versions
    younger than the retention, stay. A table that is refused does not stop the others.
    """
    app = App.from_environment()
    keep = timedelta(hours=keep_hours)
    tables = [*map(app.maintenance, app.data_tables(*(pipelines or ()))), *app.shared_maintenance()]
    with phase("maintaining tables", quiet_s=SHORT_S) as show_done:
        outcomes = maintain_each(
            tables, keep, dry_run=dry_run, print_line=note, show_done=show_done
        )
    records = [{"table": each["pipeline"], **result_of(each)} for each in outcomes.records]

    def prune(_: str) -> int:
        from tidemark.quality.data_docs import DataDocs

        keep_docs = timedelta(days=keep_docs_days)
        return DataDocs(app.layout.data_docs).prune(utc_now(), keep_docs, dry_run=dry_run)

    pages = result_or_error("Data Docs", prune)
    if isinstance(pages, TidemarkError):
        outcomes.add("Data Docs", pages)
    if as_json:
        removed = {"pages_removed": pages} if isinstance(pages, int) else pages.as_record()
        print_json({"tables": records, "data_docs": removed})
    else:
        columns = ("table", "files", "files after", "files removed", "bytes freed", "outcome")
        print_table("Tables", columns, [_row(record) for record in records])
        for failed in (each for each in outcomes.records if "error" in each):
            print_error_record(failed)
        if isinstance(pages, int):
            verb = "would be removed" if dry_run else "removed"
            out.print(f"{counted(pages, 'page')} of Data Docs {verb}")
        if dry_run:
            out.print("dry run: nothing was written")
    exit_with(outcomes)
    if not pipelines:
        app.spec_folder.check()


def _row(record: Mapping[str, Any]) -> tuple[Any, ...]:
    figures = ("files_before", "files_after", "files_removed", "bytes_freed")
    outcome = record.get("error") or record["outcome"]
    return (record["table"], *map(record.get, figures), outcome)
