"""The owner's report of a pipeline: one HTML file without external resources.

The console shows the same content in its own frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from math import floor, isfinite, log10
from pathlib import Path
from typing import Any

import jinja2

from tidemark.core.publication import PublicationStatus
from tidemark.core.texts import counted
from tidemark.delta.local_files import replace_text, translate_os_errors
from tidemark.ops.report.owner_report import PipelineReport, RuleOutcome
from tidemark.quality.check_results import Severity
from tidemark.quality.checks import figure_text, observed_text
from tidemark.quality.html_templates import TEMPLATES, html_environment

_WIDTH, _HEIGHT = 1000, 100
"""Size of the coordinates of a chart, which the page stretches to its own width."""
_MIN_POINTS = 2
_SHARE = "unexpected_percent"
"""Name of the figure of a rule on rows, which has a unit."""
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


def write_page(report: PipelineReport, page: Path) -> Path:
    """Write the page. Return its absolute path.

    Replaces a file, and writes into a device, a pipe or a link, such as `/dev/stdout`.
    """
    with translate_os_errors(page, "writing the page"):
        if page.is_symlink() or (page.exists() and not page.is_file()):
            page.write_text(render(report), encoding="utf-8")
        else:
            replace_text(page, render(report))
    return page.resolve()


def render(report: PipelineReport) -> str:
    """Return the page as HTML. All values from tables are escaped."""
    return _environment().get_template("report.html").render(report_values(report))


@cache
def _environment() -> jinja2.Environment:
    environment = html_environment(TEMPLATES)
    environment.filters |= {"number": lambda number: f"{number:,}", "minute": minute}
    environment.filters["counted"] = counted
    return environment


def report_values(
    report: PipelineReport, plan_address: Callable[[int], str] | None = None
) -> Mapping[str, Any]:
    """Return the values of the template `report_body.html`.

    Args:
        report: The report.
        plan_address: Returns the address of a plan's page; None for a page without links.
    """
    certificate = report.certificate
    trends, constants = _trends(report)
    return {
        "report": report,
        "certificate": certificate,
        "plan_address": plan_address,
        "summary": summary_class(report),
        "headline": headline(report),
        "open_points": open_points(report),
        "rules": {
            outcome: [rule for rule in report.rules if rule.outcome is outcome]
            for outcome in RuleOutcome
        },
        "observation": observed_text,
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


def headline(report: PipelineReport) -> str:
    """Return the state of the period in a few words."""
    certificate = report.certificate
    if certificate.is_complete:
        return "Complete"
    is_empty = not certificate.partitions and not certificate.plans_of_other_incarnations
    return "Nothing landed" if is_empty else "Not complete"


def summary_class(report: PipelineReport) -> str:
    """Return the CSS class of the summary: good only if nothing was left unchecked or undecided."""
    if not report.certificate.is_complete:
        return "bad"
    return "poor" if open_points(report) else "good"


def open_points(report: PipelineReport) -> list[tuple[str, str]]:
    """Return the open points, which completeness does not include, each with its CSS class."""
    certificate = report.certificate
    hidden = sum(
        len(report.plans_by_status.get(status, ()))
        for status in (PublicationStatus.BLOCKED, PublicationStatus.REJECTED)
    )
    failed = [rule.severity for rule in report.rules if rule.outcome is RuleOutcome.FAILED]
    infos = failed.count(Severity.INFO)
    counts = [
        (report.missing_rows or 0, "bad", "row", "removed from the table"),
        (report.unaccounted, "bad", "record", "not accounted for in the typed table"),
        (hidden, "bad", "plan", "not published"),
        (certificate.total("lost"), "poor", "offset", "accepted as lost"),
        (len(failed) - infos, "poor", "rule", "failed"),
        (infos, "quiet-pill", "rule", "of severity info failed"),
        (len(report.quarantined or ()), "poor", "record", "in quarantine"),
        (len(report.unchecked_plans), "quiet-pill", "plan", "not checked"),
        (len(certificate.open_plans), "quiet-pill", "plan", "open"),
        (certificate.total("unproven_gaps"), "quiet-pill", "gap", "unproven"),
    ]
    points = [
        (css, f"{count:,} {noun}{'s' if count > 1 else ''} {what}")
        for count, css, noun, what in counts
        if count
    ]
    if report.missing_rows is None:
        points.append(("quiet-pill", "rows of the table not counted"))
    return points


def _trends(report: PipelineReport) -> tuple[list[Trend], list[tuple[str, str]]]:
    """Return a chart of each figure, failed rules first, and the figures that never changed."""
    plans = report.certificate.plans
    landed_at = {each.plan: each.landed_at for each in plans}
    figures: list[tuple[str, str, Sequence[tuple[int, float]], Sequence[int]]] = [
        ("landed records", "records", [(each.plan, float(each.records)) for each in plans], ())
    ]
    figures += [
        (rule.name, _SHARE if rule.is_share else rule.check, rule.values, rule.failed_plans)
        for rule in report.rules
        if rule.check != "records"
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
            constants.append((name, figure_text(check, known[0][2])))
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
        figure_text(check, each) for each in (min(values), max(values), values[-1])
    )
    return Trend(
        name=name,
        points=" ".join(f"{x},{y}" for x, y in points),
        failed=[point for point, (_, plan, _) in zip(points, known, strict=True) if plan in failed],
        levels=[figure_text(check, each) for each in (high, (low + high) / 2, low)],
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
