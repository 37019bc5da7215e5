"""Results for people, on standard error."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from bench.frame import Outcome, Ratio, Spread

_console = Console(stderr=True, highlight=False, width=132)


def print_outcome(outcome: Outcome) -> None:
    """Print each side's figures and the ratios, the median first, then the spread."""
    sides = Table(title=outcome.benchmark.title, title_justify="left", header_style="bold")
    metrics = list(
        dict.fromkeys(m for side in outcome.measured for m in outcome.metric_spreads(side))
    )
    sides.add_column("median of")
    for metric in metrics:
        sides.add_column(metric, justify="right")
    for side in outcome.measured:
        spreads = outcome.metric_spreads(side)
        sides.add_row(side, *(_figure(spreads[m]) if m in spreads else "" for m in metrics))
    ratios = Table(header_style="bold")
    for column in ("ratio", "median", "min", "max", "target", "reached"):
        ratios.add_column(column, justify="left" if column == "ratio" else "right")
    for ratio in outcome.benchmark.ratios:
        spread = outcome.ratio_spread(ratio)
        values = (f"{value:.2f}" for value in (spread.median, spread.min, spread.max))
        ratios.add_row(ratio.name, *values, *_target_cells(ratio, spread))
    _console.print(sides)
    _console.print(ratios)


def _figure(spread: Spread) -> str:
    value = float(spread.median)
    return f"{value:,.0f}" if value >= 1000 or value.is_integer() else f"{value:,.2f}"


def _target_cells(ratio: Ratio, spread: Spread) -> tuple[str, str]:
    reached = ratio.is_reached(spread.median)
    if reached is None:
        return "", ""
    target = f">= {ratio.at_least}" if ratio.at_least is not None else f"<= {ratio.at_most}"
    return target, "yes" if reached else "no"
