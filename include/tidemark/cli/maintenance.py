"""`tidemark maintain`: what keeps tables small and quick to read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

import typer

from tidemark.app import App
from tidemark.cli.arguments import AsJson
from tidemark.cli.console import note, out, print_error_record, print_json, print_table
from tidemark.core.errors import ExitCode, TidemarkError
from tidemark.ingest.parallel import map_in_threads
from tidemark.maintenance.rules import DEFAULT_PAGES_RETENTION, DEFAULT_RETENTION, MaintenanceResult
from tidemark.pipeline import utc_now


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="Keep tables small; remove what nobody needs.")(maintain)


def maintain(
    pipelines: Annotated[
        list[str] | None, typer.Argument(help="Pipelines to maintain; all if none is named.")
    ] = None,
    keep_hours: Annotated[
        int, typer.Option(min=0, help="Files of versions younger than this stay.")
    ] = DEFAULT_RETENTION // timedelta(hours=1),
    keep_docs_days: Annotated[
        int, typer.Option(min=1, help="Pages of quality checks younger than this stay.")
    ] = DEFAULT_PAGES_RETENTION.days,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed; write nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compact small files, and remove files and pages that nobody needs any more.

    Of each pipeline's tables, then of those that pipelines share (control table, kept schemas,
    quality results, publication decisions, status), then of the quality pages. Runs and
    readers need not stop. Files that an open plan may have written, and files of versions younger
    than the retention, stay. A table that is refused stops no other.
    """
    app = App.from_environment()
    keep = timedelta(hours=keep_hours)
    names = app.data_tables(*(pipelines or ()))
    shared = {each.name: each for each in app.shared_maintenance()}

    def table(name: str) -> MaintenanceResult:
        maintenance = shared.get(name) or app.maintenance(name)
        done = maintenance.maintain(keep, dry_run=dry_run)
        note(f"{name}: {done.outcome.value}")
        return done

    def pages(days: int) -> int:
        return app.quality_pages().prune(utc_now(), timedelta(days=days), dry_run=dry_run)

    names += shared
    tables = dict(zip(names, map_in_threads(names, table, 1), strict=True))
    (pruned,) = map_in_threads([keep_docs_days], pages, 1)
    if as_json:
        print_json(_report(tables, pruned))
    else:
        _print(tables, pruned, dry_run=dry_run)
    came = (*tables.values(), pruned)
    codes = [each.exit_code for each in came if isinstance(each, TidemarkError)]
    if codes:
        raise typer.Exit(ExitCode.worst(codes))
    if not pipelines:
        app.spec_folder.check()


def _report(
    tables: Mapping[str, MaintenanceResult | TidemarkError], pages: int | TidemarkError
) -> Any:
    return {
        "tables": [
            {"table": name, **came.as_record()}
            if isinstance(came, TidemarkError)
            else came.as_record()
            for name, came in tables.items()
        ],
        "quality_pages": (
            pages.as_record() if isinstance(pages, TidemarkError) else {"pages_removed": pages}
        ),
    }


def _print(
    tables: Mapping[str, MaintenanceResult | TidemarkError],
    pages: int | TidemarkError,
    *,
    dry_run: bool,
) -> None:
    columns = ("table", "files", "files after", "files removed", "bytes freed", "outcome")
    print_table("Tables", columns, [_row(name, came) for name, came in tables.items()])
    for name, came in (*tables.items(), ("quality pages", pages)):
        if isinstance(came, TidemarkError):
            print_error_record({"pipeline": name, **came.as_record()})
    if not isinstance(pages, TidemarkError):
        out.print(f"{pages:,} quality page(s) {'would be ' if dry_run else ''}removed")
    if dry_run:
        out.print("dry run: nothing was written")


def _row(name: str, came: MaintenanceResult | TidemarkError) -> tuple[Any, ...]:
    if isinstance(came, TidemarkError):
        return (name, None, None, None, None, type(came).__name__)
    before = came.before.files if came.before else None
    after = came.after.files if came.after else None
    return (name, before, after, len(came.removed), came.bytes_freed, came.outcome.value)
