"""`tidemark report`: what a data owner wants to know of a pipeline, on one page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from tidemark.app import App
from tidemark.cli.arguments import AsJson, PipelineName
from tidemark.cli.console import out, print_json
from tidemark.core.errors import ExitCode
from tidemark.pipeline import utc_now

_USUAL_DAYS = 30

Moment = Annotated[
    datetime | None,
    typer.Option(formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"], help="UTC; by when plans landed."),
]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="A page on what landed, and whether it is complete.")(report)


def report(
    pipeline: PipelineName,
    since: Moment = None,
    until: Moment = None,
    output: Annotated[
        Path | None, typer.Option(help="The page; by default beside the pipeline's Data Docs.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="End with exit code 65 if the period is not complete.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a page for the owner of a pipeline's data: what landed, and whether it is complete.

    Of every offset of the period it says what became of it; then what is published, what rules
    found, what is in quarantine, and how figures went. The period is the last 30 days, unless said
    otherwise. The page is one file that needs nothing else. With --json, no page: the same as JSON.
    """
    app = App.from_environment()
    end = _utc(until) or utc_now()
    begin = _utc(since) or end - timedelta(days=_USUAL_DAYS)
    if begin >= end:
        raise typer.BadParameter("--since has to be before --until")
    found = app.pipeline(pipeline).report(begin, end)
    if as_json:
        print_json(found.as_record())
    else:
        from tidemark.report.page import write_page

        page = write_page(found, output, app.layout.quality_home)
        certificate = found.certificate
        word = "complete" if certificate.is_complete else "NOT complete"
        others = certificate.plans_of_other_incarnations
        if not certificate.partitions and not others:
            word = "nothing landed"
        records = certificate.total("records")
        out.print(f"{len(certificate.plans):,} plan(s), {records:,} record(s): {word}")
        if others:
            out.print(
                f"{others:,} plan(s) of the period are of a topic that was made again since, "
                "and are not counted here"
            )
        out.print(str(page), markup=False, soft_wrap=True)
    if check and not found.certificate.is_complete:
        raise typer.Exit(ExitCode.REFUSED)


def _utc(moment: datetime | None) -> datetime | None:
    return moment and moment.replace(tzinfo=UTC)
