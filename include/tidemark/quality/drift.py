"""Drift checks: compare figures of a batch with those of earlier plans.

The usual value of a measure is the median of earlier plans. The usual spread is the median absolute
deviation (MAD), scaled to the standard deviation of a normal distribution. Each measure has a
minimum spread, because the spread of a constant measure is 0 and any change would be a drift.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, log1p
from statistics import median
from types import MappingProxyType

from tidemark.quality.checks import DRIFT, Figure

HISTORY = 30
"""Most earlier plans that are compared."""
ENOUGH = 8
"""Fewest earlier plans for a comparison."""
NO_HISTORY = "not enough history"
"""Detail of a drift check with fewer than `ENOUGH` earlier plans."""
_MAD_TO_DEVIATION = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Scale on which a figure is compared.

    Attributes:
        least: Minimum spread, on the scale.
        by_ratio: Whether the scale is logarithmic: half as many records are as far away as twice
            as many.
    """

    least: float
    by_ratio: bool = False

    def scaled(self, value: float) -> float:
        """Return the value on the scale."""
        return log1p(value) if self.by_ratio else value


_PERCENT = Measure(least=1)
_TIME = Measure(least=60)

MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        "records": Measure(least=log(1.1), by_ratio=True),
        "null_key_percent": _PERCENT,
        "null_value_percent": _PERCENT,
        "top_key_percent": _PERCENT,
        "largest_partition_percent": _PERCENT,
        "seconds_behind": _TIME,
        "oldest_seconds_behind": _TIME,
    }
)
"""Minimum spreads: a tenth of the records, one percentage point, one minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """Usual value and spread of a measure in earlier plans.

    Attributes:
        value: The median.
        spread: The usual distance from the median, on the measure's scale.
        plans: Number of earlier plans.
    """

    value: float
    spread: float
    plans: int

    @classmethod
    def of(cls, values: Sequence[float], measure: Measure) -> Usual | None:
        """Return the usual value and spread; None with fewer than `ENOUGH` values."""
        if len(values) < ENOUGH:
            return None
        usual = median(values)
        middle = measure.scaled(usual)
        away = _MAD_TO_DEVIATION * median(abs(measure.scaled(v) - middle) for v in values)
        return cls(value=usual, spread=max(away, measure.least), plans=len(values))


def drifts(
    measured: Mapping[str, Figure], history: Mapping[str, Sequence[float]]
) -> dict[str, Figure]:
    """Return the distance of each measure from its usual value, in usual spreads.

    Args:
        measured: Figures of the batch, by built-in check.
        history: Figures of earlier plans, newest first, by built-in check.

    Returns:
        One figure for each of `DRIFT`. It has no value if the batch has no figure, or if there are
        fewer than `ENOUGH` earlier figures.
    """
    return {name: _drift(measured[of], history.get(of, ()), of) for name, of in DRIFT.items()}


def _drift(now: Figure, values: Sequence[float], of: str) -> Figure:
    measure = MEASURES[of]
    usual = Usual.of(values[:HISTORY], measure)
    if now.value is None:
        return Figure(value=None)
    if usual is None:
        return Figure(value=None, detail=NO_HISTORY)
    return Figure(
        value=round(abs(measure.scaled(now.value) - measure.scaled(usual.value)) / usual.spread, 2),
        detail=f"{now.value:,.6g} against {usual.value:,.6g} in {usual.plans} earlier plans",
    )
