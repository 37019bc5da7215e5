"""`tidemark report`: one page for the owner of a pipeline's data."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from tidemark.app import App
from tidemark.cli.arguments import AsJson, PipelineName
from tidemark.cli.output import out, print_json
from tidemark.core.errors import ExitCode
from tidemark.pipeline import utc_now

_DEFAULT_PERIOD = timedelta(days=30)

_FORMATS = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="Write a page about landed records and their completeness.")(report)


def report(
    pipeline: PipelineName,
    since: Annotated[
        datetime | None,
        typer.Option(formats=_FORMATS, help="Start of the period of landings, in UTC."),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(formats=_FORMATS, help="End of the period of landings, exclusive, in UTC."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="File of the page; by default beside the Data Docs.")
    ] = None,
    exit_code: Annotated[
        bool,
        typer.Option("--exit-code", help="End with exit code 65 if the period is not complete."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a page for the owner of a pipeline's data: landed records and their completeness.

    The page accounts for every offset of the period. It also contains the published plans, the
    results of rules, the quarantine and trends. The default period is the last 30 days. The page is
    one file without other resources. With --json, print the same content and write no page.
    """
    app = App.from_environment()
    end = _utc(until) or utc_now()
    begin = _utc(since) or end - _DEFAULT_PERIOD
    if begin >= end:
        raise typer.BadParameter("--since must be before --until")
    found = app.pipeline(pipeline).report(begin, end)
    if as_json:
        print_json(found.as_record())
    else:
        from tidemark.report.page import write_page

        page = write_page(found, output, app.layout.quality_home)
        certificate = found.certificate
        result = "complete" if certificate.is_complete else "NOT complete"
        others = certificate.plans_of_other_incarnations
        if not certificate.partitions and not others:
            result = "nothing landed"
        records = certificate.total("records")
        out.print(f"{len(certificate.plans):,} plan(s), {records:,} record(s): {result}")
        if others:
            out.print(
                f"{others:,} plan(s) of the period read a topic that was recreated later, and are "
                "not counted here"
            )
        out.print(str(page))
    if exit_code and not found.certificate.is_complete:
        raise typer.Exit(ExitCode.REFUSED)


def _utc(moment: datetime | None) -> datetime | None:
    return moment and moment.replace(tzinfo=UTC)
