"""The owner's page of a pipeline: one HTML file without external resources."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import jinja2

from tidemark.lake.local_files import replace_text, translate_os_errors
from tidemark.quality.docs import TEMPLATES, DocsFolders
from tidemark.report.owner_report import PipelineReport

_WIDTH, _HEIGHT = 240, 60
_MIN_POINTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A chart of one figure over plans.

    Attributes:
        name: Name of the chart.
        points: Points of the SVG polyline.
        failed: Points of plans that failed the rule.
        lowest, highest, newest: Formatted values of the figure.
    """

    name: str
    points: str
    failed: Sequence[tuple[float, float]]
    lowest: str
    highest: str
    newest: str


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
    with translate_os_errors(page, "writing the page"):
        replace_text(page, render(report))
    return page.resolve()


def render(report: PipelineReport) -> str:
    """Return the page as HTML. All values from tables are escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = lambda number: f"{number:,}"
    environment.filters["time"] = _time
    certificate = report.certificate
    return environment.get_template("report.html").render(
        report=report,
        certificate=certificate,
        rules=report.rules,
        records=certificate.total("records"),
        gaps=certificate.total("gaps"),
        undone=certificate.total("undone"),
        unproven=certificate.total("unproven_gaps"),
        lost=certificate.total("lost"),
        trends=list(_trends(report)),
    )


def _time(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M}"


def _trends(report: PipelineReport) -> Iterator[Trend]:
    landed = [(each.plan, float(each.records)) for each in report.certificate.plans]
    figures: list[tuple[str, Sequence[tuple[int, float]], Collection[int]]] = [
        ("landed records", landed, ())
    ]
    figures += [
        (rule.name, rule.values, rule.failed_plans)
        for rule in report.rules
        if rule.name != "records"
    ]
    for name, values, failed_plans in figures:
        if len(values) >= _MIN_POINTS:
            yield _trend(name, values, failed_plans)


def _trend(name: str, values: Sequence[tuple[int, float]], failed_plans: Collection[int]) -> Trend:
    figures = [value for _, value in values]
    lowest, highest = min(figures), max(figures)
    span = highest - lowest
    step = _WIDTH / (len(values) - 1)
    points = [
        (
            round(number * step, 1),
            round(_HEIGHT * (1 - (value - lowest) / span), 1) if span else 30.0,
        )
        for number, value in enumerate(figures)
    ]
    return Trend(
        name=name,
        points=" ".join(f"{x},{y}" for x, y in points),
        failed=[
            point for point, (plan, _) in zip(points, values, strict=True) if plan in failed_plans
        ],
        lowest=_figure(lowest),
        highest=_figure(highest),
        newest=_figure(figures[-1]),
    )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"
