"""The owner's page of a pipeline: one HTML file without external resources.

The console shows the same content in its own frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import floor, isfinite, log10
from pathlib import Path
from typing import Any

import jinja2

from tidemark.core.errors import format_duration
from tidemark.core.visible_text import visible
from tidemark.lake.local_files import replace_text, translate_os_errors
from tidemark.quality.checks import BUILT_IN_CHECKS
from tidemark.quality.docs import TEMPLATES, DocsFolders
from tidemark.quality.publication import PublicationStatus
from tidemark.report.owner_report import PipelineReport, RuleOutcome

_WIDTH, _HEIGHT = 1000, 100
"""Size of the coordinates of a chart, which the page stretches to its own width."""
_MIN_POINTS = 2
_WHOLE = 1_000
"""Smallest figure that the page shows without decimals."""
_DATES_ONLY = timedelta(days=3)
"""Length of the shortest horizontal axis whose labels omit the time of day."""
_ROUND = (1.0, 2.0, 5.0, 10.0)
"""An axis ends at one of these numbers times a power of ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A chart of one figure over time.

    Attributes:
        name: Name of the chart.
        points: Points of the SVG polyline.
        failed: Points of plans that failed the rule.
        levels: Labels of the vertical axis: top, middle, bottom.
        times: Labels of the horizontal axis: start, middle, end.
        summary: Lowest, highest and newest figure.
    """

    name: str
    points: str
    failed: Sequence[tuple[float, float]]
    levels: Sequence[str]
    times: Sequence[str]
    summary: str


def write_page(report: PipelineReport, output: Path | None, quality_home: Path) -> Path:
    """Write the page, by default beside the Data Docs. Return its absolute path.

    Args:
        report: The report.
        output: The file; None for the default.
        quality_home: Folder of the Data Docs.
    """
    certificate = report.certificate
    folders = DocsFolders(home=quality_home, pipeline=certificate.pipeline)
    name = f"{certificate.since:%Y%m%d}-{certificate.until:%Y%m%d}.html"
    page = output or folders.site / "reports" / name
    # A page elsewhere is sent or moved without the Data Docs.
    docs = "../index.html" if output is None and folders.index.exists() else None
    with translate_os_errors(page, "writing the page"):
        replace_text(page, render(report, docs))
    return page.resolve()


def render(report: PipelineReport, docs: str | None = None) -> str:
    """Return the page as HTML. All values from tables are escaped.

    Args:
        report: The report.
        docs: Address of the Data Docs; None for a page without the link.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": lambda number: f"{number:,}", "minute": minute}
    return environment.get_template("report.html").render(report_values(report, docs))


def report_values(report: PipelineReport, docs: str | None) -> Mapping[str, Any]:
    """Return the values of the template `report_body.html`; see `render`."""
    certificate = report.certificate
    folded = [rule for rule in report.rules if rule.is_drift and not rule.failed_plans]
    rules = [rule for rule in report.rules if rule not in folded]
    trends, constants = _trends(report)
    return {
        "report": report,
        "certificate": certificate,
        "docs": docs,
        "summary": _summary_class(report),
        "open_points": _open_points(report),
        "rules": {
            outcome: [rule for rule in rules if rule.outcome is outcome] for outcome in RuleOutcome
        },
        "drift": folded,
        "observation": observation,
        "records": certificate.total("records"),
        "gaps": certificate.total("gaps"),
        "undone": certificate.total("undone"),
        "unproven": certificate.total("unproven_gaps"),
        "lost": certificate.total("lost"),
        "trends": trends,
        "constants": constants,
    }


def minute(time: datetime) -> str:
    """Return a time in UTC to the minute."""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M}"


def _summary_class(report: PipelineReport) -> str:
    """Return the CSS class of the summary: good only if nothing was left unchecked or undecided."""
    if not report.certificate.is_complete:
        return "bad"
    return "poor" if _open_points(report) else "good"


def _open_points(report: PipelineReport) -> list[tuple[str, str]]:
    """Return the open points, which completeness does not include, each with its CSS class."""
    certificate = report.certificate
    hidden = sum(
        len(report.plans_by_status.get(status, ()))
        for status in (PublicationStatus.BLOCKED, PublicationStatus.REJECTED)
    )
    failed = sum(rule.outcome is RuleOutcome.FAILED for rule in report.rules)
    counts = [
        (report.missing_rows or 0, "bad", "row(s) removed from the table"),
        (hidden, "bad", "plan(s) not published"),
        (failed, "poor", "rule(s) failed"),
        (len(report.quarantined or ()), "poor", "record(s) in quarantine"),
        (len(report.unchecked_plans), "quiet-pill", "plan(s) not checked"),
        (len(certificate.open_plans), "quiet-pill", "plan(s) open"),
        (certificate.total("unproven_gaps"), "quiet-pill", "gap(s) unproven"),
    ]
    points = [(css, f"{count:,} {what}") for count, css, what in counts if count]
    if report.missing_rows is None:
        points.append(("quiet-pill", "rows of the table not counted"))
    return points


def observation(check: str, observed: str | float) -> str:
    """Return what a check observed: a figure rounded and with its unit, a text unchanged."""
    try:
        return _figure(check, float(observed))
    except ValueError:
        return str(observed)


def _figure(check: str, value: float) -> str:
    """Return a figure of a check with its unit: a whole number, or three digits."""
    built_in = BUILT_IN_CHECKS.get(check)
    if built_in and built_in.in_seconds:
        sign = "-" if value < 0 else ""
        return f"{sign}{format_duration(timedelta(seconds=abs(value)))}"
    is_whole = value.is_integer() or abs(value) >= _WHOLE
    text = f"{value:,.0f}" if is_whole else f"{value:.3g}"
    return f"{text} %" if check.endswith("_percent") else text


def _trends(report: PipelineReport) -> tuple[list[Trend], list[tuple[str, str]]]:
    """Return a chart of each figure, failed rules first, and the figures that never changed."""
    plans = report.certificate.plans
    landed_at = {each.plan: each.landed_at for each in plans}
    figures: list[tuple[str, str, Sequence[tuple[int, float]], Sequence[int]]] = [
        ("landed records", "records", [(each.plan, float(each.records)) for each in plans], ())
    ]
    figures += [
        (rule.name, rule.check, rule.values, rule.failed_plans)
        for rule in report.rules
        if rule.check != "records" and not rule.is_drift
    ]
    trends, constants = [], []
    for name, check, values, failed in figures:
        known = sorted(
            (landed_at[plan], plan, value)
            for plan, value in values
            if plan in landed_at and isfinite(value)
        )
        if len(known) < _MIN_POINTS:
            continue
        if len({value for _, _, value in known}) == 1:
            constants.append((name, _figure(check, known[0][2])))
        else:
            trends.append(_trend(name, check, known, failed))
    return trends, constants


def _trend(
    name: str, check: str, known: Sequence[tuple[datetime, int, float]], failed: Sequence[int]
) -> Trend:
    values = [value for _, _, value in known]
    low, high = 0.0 - _rounded_up(-min(values)), _rounded_up(max(values))
    start, end = min(at for at, _, _ in known), max(at for at, _, _ in known)
    seconds = (end - start).total_seconds()
    points = [
        (
            # Plans that landed at the same time are side by side.
            round(
                _WIDTH * ((at - start).total_seconds() / seconds)
                if seconds
                else _WIDTH * number / (len(known) - 1),
                1,
            ),
            round(_HEIGHT * (1 - (value - low) / (high - low)), 1),
        )
        for number, (at, _, value) in enumerate(known)
    ]
    lowest, highest, newest = (
        _figure(check, each) for each in (min(values), max(values), values[-1])
    )
    return Trend(
        name=name,
        points=" ".join(f"{x},{y}" for x, y in points),
        failed=[point for point, (_, plan, _) in zip(points, known, strict=True) if plan in failed],
        levels=[_figure(check, each) for each in (high, (low + high) / 2, low)],
        times=[
            f"{at:%Y-%m-%d}" if end - start >= _DATES_ONLY else minute(at)
            for at in (start, start + (end - start) / 2, end)
        ],
        summary=f"{lowest} to {highest}, newest {newest}",
    )


def _rounded_up(value: float) -> float:
    """Return the next round number at or above a value; 0 for values up to 0."""
    if value <= 0:
        return 0.0
    power = 10.0 ** floor(log10(value))
    return next(each * power for each in _ROUND if each * power >= value)
