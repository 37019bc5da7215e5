"""`tidemark report`: one page for the owner of a pipeline's data, and the start page of all."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemark import option_texts
from tidemark.app import App
from tidemark.cli.arguments import AsJson, complete_pipeline, time_option
from tidemark.cli.engine import exit_with
from tidemark.cli.output import out, print_json, print_records
from tidemark.cli.payloads import unnamed_text
from tidemark.cli.progress import SHORT_S, phase
from tidemark.core.errors import ExitCode, TidemarkError
from tidemark.core.texts import counted
from tidemark.ingest.errors import NothingLanded
from tidemark.pages import refresh_pages, write_start_page
from tidemark.pipeline import Pipeline
from tidemark.pipelines import Outcomes, for_each
from tidemark.report.certificate import Certificate
from tidemark.report.owner_report import PipelineReport


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="Write pages about landed records and their completeness.")(report)


def report(
    pipeline: Annotated[
        str | None,
        typer.Argument(
            help="Name of a spec in include/pipelines. By default all.",
            autocompletion=complete_pipeline,
        ),
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            parser=time_option,
            metavar="TIME",
            help=f"Start of the period of landings. {option_texts.TIME}",
        ),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(
            parser=time_option,
            metavar="TIME",
            help=f"End of the period of landings, exclusive. {option_texts.TIME}",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="File of the page; by default beside the Data Docs.")
    ] = None,
    exit_code: Annotated[
        bool,
        typer.Option("--exit-code", help="End with exit code 65 if a period is not complete."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a page for the owner of a pipeline's data: landed records and their completeness.

    The page accounts for every offset of the period. It also contains the published plans, the
    results of rules, the quarantine, unnamed fields and trends. The default period is the last 30
    days. The page is one file without other resources. With --json, print the same content and
    write no page.

    Without a pipeline, write the pages of all pipelines, and print the address of the start page.
    The start page shows the state of each pipeline and links to its pages.
    """
    app = App.from_environment()
    if pipeline is None:
        if since or until or output:
            raise typer.BadParameter("--since, --until and --output require a pipeline")
        _report_all(app, exit_code=exit_code, as_json=as_json)
        return
    if since and since >= (until or datetime.now(UTC)):
        raise typer.BadParameter("--since must be before --until")
    with phase(f"reporting on {pipeline}", quiet_s=SHORT_S):
        found = app.pipeline(pipeline).report(since, until)
    if as_json:
        print_json(found.as_record())
    else:
        from tidemark.report.page import page_of_period, write_page

        folders = app.pipeline(pipeline).quality_folders
        if output:
            page = write_page(found, output, None)
        elif since or until:
            page = write_page(found, page_of_period(found, folders), folders)
        else:
            page = app.pipeline(pipeline).write_report(found)
        if not output:
            write_start_page(app)
        _print(found)
        out.print(str(page))
    if exit_code and not found.certificate.is_complete:
        raise typer.Exit(ExitCode.REFUSED)


def _report_all(app: App, *, exit_code: bool, as_json: bool) -> None:
    """Report on all pipelines; end with the worst exit code of those that landed records."""
    done = count(1)

    def one(each: Pipeline) -> PipelineReport | None:
        try:
            found = each.report()
        except NothingLanded:
            return None
        finally:
            show_done(next(done), len(app.specs))
        if not as_json:
            each.write_report(found)
        return found

    outcomes = Outcomes()
    complete = True
    with phase("reporting on all pipelines", quiet_s=SHORT_S) as show_done:
        reports = for_each(app, list(app.specs), one)
    for name, result in reports.items():
        if isinstance(result, TidemarkError):
            outcomes.add(name, result)
        elif result is None:
            outcomes.add(name, {"outcome": "nothing landed"})
        else:
            complete = complete and result.certificate.is_complete
            outcomes.add(name, result.as_record() if as_json else {"outcome": _state(result)})
    print_records(
        outcomes.records, lambda each: f"{each['pipeline']}: {each['outcome']}", as_json=as_json
    )
    if not as_json:
        refresh_pages(app, *(each["pipeline"] for each in outcomes.records if _has_no_page(each)))
        out.print(str(write_start_page(app)))
    exit_with(outcomes)
    if exit_code and not complete:
        raise typer.Exit(ExitCode.REFUSED)


def _has_no_page(record: Mapping[str, Any]) -> bool:
    return "error" in record or record["outcome"] == "nothing landed"


def _state(found: PipelineReport) -> str:
    """Return the counts, the state and the open points of a pipeline in one line."""
    from tidemark.report.page import headline, open_points

    points = [text for _, text in open_points(found)]
    return f"{_counts(found.certificate)}: {', '.join([headline(found).lower(), *points])}"


def _print(found: PipelineReport) -> None:
    from tidemark.report.page import open_points

    certificate = found.certificate
    result = "complete" if certificate.is_complete else "NOT complete"
    others = certificate.plans_of_other_incarnations
    if not certificate.partitions and not others:
        result = "nothing landed"
    points = "".join(f", {text}" for _, text in open_points(found))
    out.print(f"{_counts(certificate)}: {result}{points}")
    if others:
        out.print(
            f"not counted here: {counted(others, 'plan')} of the period that read an earlier "
            "topic, before it was recreated"
        )
    if unnamed := found.unnamed_fields:
        text = unnamed_text(found.as_record())
        newest = f"newest {counted(unnamed.decoded, 'decoded record')}"
        out.print(f"{newest}: {text or 'no unnamed fields'}")


def _counts(certificate: Certificate) -> str:
    plans, records = len(certificate.plans), certificate.total("records")
    return f"{counted(plans, 'plan')}, {counted(records, 'record')}"
