"""The owner's page of a pipeline: one HTML file without external resources."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import jinja2

from tidemark.quality.gx.docs import TEMPLATES
from tidemark.report.owner_report import PipelineReport

_WIDTH, _HEIGHT = 240, 60
_FEWEST_POINTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A chart of one figure over plans.

    Attributes:
        name: RowOrigin of the chart.
        points: Points of the SVG polyline.
        broken: Points of plans that broke the rule.
        lowest, highest, newest: Formatted values of the figure.
    """

    name: str
    points: str
    broken: Sequence[tuple[float, float]]
    lowest: str
    highest: str
    newest: str


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
    environment.filters["moment"] = _moment
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


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}"


def _trends(report: PipelineReport) -> Iterator[Trend]:
    landed = [(plan.sequence, float(plan.records)) for plan in report.certificate.plans]
    figures: list[tuple[str, Sequence[tuple[int, float]], Collection[int]]] = [
        ("landed records", landed, ())
    ]
    figures += [
        (rule.name, rule.values, rule.broken) for rule in report.rules if rule.name != "records"
    ]
    for name, values, broken in figures:
        if len(values) >= _FEWEST_POINTS:
            yield _trend(name, values, broken)


def _trend(name: str, values: Sequence[tuple[int, float]], broken: Collection[int]) -> Trend:
    figures = [value for _, value in values]
    lowest, highest = min(figures), max(figures)
    span = highest - lowest
    step = _WIDTH / (len(values) - 1)
    places = [
        (
            round(number * step, 1),
            round(_HEIGHT * (1 - (value - lowest) / span), 1) if span else 30.0,
        )
        for number, value in enumerate(figures)
    ]
    return Trend(
        name=name,
        points=" ".join(f"{x},{y}" for x, y in places),
        broken=[place for place, (plan, _) in zip(places, values, strict=True) if plan in broken],
        lowest=_figure(lowest),
        highest=_figure(highest),
        newest=_figure(figures[-1]),
    )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"
