"""`tidemark report`: a report for the owner of a pipeline's data, or the state of each pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemark.app import option_texts
from tidemark.app.app import App
from tidemark.app.pipeline import Pipeline
from tidemark.app.pipelines import Outcomes, for_each
from tidemark.bronze.ingest.errors import NothingLanded
from tidemark.cli.arguments import AsJson, complete_pipeline, time_option
from tidemark.cli.engine import exit_with
from tidemark.cli.output import out, print_json, print_records, print_table
from tidemark.cli.payloads import unnamed_text
from tidemark.cli.progress import SHORT_S, phase
from tidemark.core.errors import ExitCode, TidemarkError
from tidemark.core.texts import comma_list, counted, listed, visible
from tidemark.ops.report.certificate import Certificate
from tidemark.ops.report.owner_report import PipelineReport, RuleSummary
from tidemark.quality.checks import observed_text

_PLANS = 10
"""Maximum number of plan numbers in a cell."""
_RANGES = 20
"""Maximum number of printed ranges of missing offsets."""


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="Report landed records and their completeness.")(report)


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
        Path | None, typer.Option(help="Also write the report of one pipeline to this HTML file.")
    ] = None,
    exit_code: Annotated[
        bool,
        typer.Option("--exit-code", help="End with exit code 65 if a period is not complete."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print a report for the owner of a pipeline's data: landed records and their completeness.

    The report accounts for every offset of the period. It also contains the published plans, the
    results of rules, undone plans, the quarantine and unnamed fields. For a typed table, it
    compares the landed records with the typed rows and the quarantine. The default period is the
    last 30 days. The file of --output also contains the offsets of each partition and trends, and
    loads no other file.

    Without a pipeline, print the state of each pipeline in one line.
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
        found = app.pipeline(pipeline).report.of_period(since, until)
    if output:
        from tidemark.ops.report.page import write_page

        output = write_page(found, output)
    if as_json:
        print_json(found.as_record())
    else:
        _print(found)
        if output:
            out.print(str(output))
    if exit_code and not found.certificate.is_complete:
        raise typer.Exit(ExitCode.REFUSED)


def _report_all(app: App, *, exit_code: bool, as_json: bool) -> None:
    """Report on all pipelines; end with the worst exit code of those that landed records."""
    done = count(1)

    def one(each: Pipeline) -> PipelineReport | None:
        try:
            return each.report.of_period()
        except NothingLanded:
            return None
        finally:
            show_done(next(done), len(app.specs))

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
    exit_with(outcomes)
    if exit_code and not complete:
        raise typer.Exit(ExitCode.REFUSED)


def _state(found: PipelineReport) -> str:
    """Return the counts, the state and the open points of a pipeline in one line."""
    from tidemark.ops.report.page import headline, open_points

    points = [text for _, text in open_points(found)]
    return f"{_counts(found.certificate)}: {', '.join([headline(found).lower(), *points])}"


def _print(found: PipelineReport) -> None:
    from tidemark.ops.report.page import open_points

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
    if found.typed:
        out.print(f"typed table: {found.typed.equation()}")
        if found.typed_problem:
            out.print(f"typed table: {found.typed_problem}: {found.typed.remedy}")
    if unnamed := found.unnamed_fields:
        text = unnamed_text(found.as_record())
        newest = f"newest {counted(unnamed.decoded, 'decoded record')}"
        out.print(f"{newest}: {text or 'no unnamed fields'}")
    missing = [
        (each.partition, span.start, span.end)
        for each in certificate.partitions
        for span in each.missing.spans
    ]
    _print_some(
        f"Not in the table{f', the first {_RANGES} ranges' if len(missing) > _RANGES else ''}",
        ("partition", "start", "end (exclusive)"),
        missing[:_RANGES],
    )
    _print_some(
        "Published",
        ("status", "plans", "plan numbers"),
        [(status, len(plans), _newest(plans)) for status, plans in found.plans_by_status.items()],
    )
    _print_rules(found.rules)
    _print_some(
        "Undone and replaced",
        ("plan", "what happened", "at", "reason or replacement"),
        [
            (
                each.plan,
                each.removal.value,
                each.removed_at,
                f"by {listed('plan', each.replaced_by)}" if each.replaced_by else each.reason,
            )
            for each in found.removed
        ],
    )
    _print_some(
        "Typed rows and quarantine differ from landed records",
        ("plan", "records", "typed rows", "in quarantine"),
        [
            (each.plan, each.records, each.typed_rows, each.quarantined)
            for each in found.differing_plans
        ],
    )
    _print_some(
        "In quarantine",
        ("reason", "part", "field or rule", "records"),
        [(*map(visible, why), records) for why, records in found.reasons.items()],
    )


def _print_rules(rules: Sequence[RuleSummary]) -> None:
    """Print the number of rules by outcome, and each failed rule with rows that violate it."""
    if not rules:
        out.print("no plan of the period was checked")
        return
    outcomes = Counter(rule.outcome.value for rule in rules)
    by_outcome = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items())
    out.print(f"{counted(len(rules), 'rule')}: {by_outcome}")
    failed = [rule for rule in rules if rule.failed_plans]
    _print_some(
        "Failed rules",
        ("severity", "rule", "expectation", "newest figure", "failed in plan"),
        [
            (
                rule.severity,
                rule.name,
                rule.expectation,
                rule.observed and visible(observed_text(rule.check, rule.observed)),
                _newest(rule.failed_plans),
            )
            for rule in failed
        ],
    )
    _print_some(
        "Records that violate rules",
        ("rule", "plan", "partition", "offset", "value"),
        [
            (
                rule.name,
                rule.failed_plans[-1],
                each.partition,
                each.offset,
                "null" if each.value is None else visible(each.value),
            )
            for rule in failed
            for each in rule.examples
        ],
    )


def _print_some(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table; nothing if it has no rows."""
    if rows:
        print_table(title, columns, rows)


def _newest(plans: Sequence[int]) -> str:
    """Return the newest ten plan numbers as text, with the number of earlier plans."""
    more = f" and {len(plans) - _PLANS} earlier" if len(plans) > _PLANS else ""
    return f"{comma_list(plans[-_PLANS:])}{more}"


def _counts(certificate: Certificate) -> str:
    plans, records = len(certificate.plans), certificate.total("records")
    return f"{counted(plans, 'plan')}, {counted(records, 'record')}"
