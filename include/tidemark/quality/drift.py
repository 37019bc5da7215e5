"""Drift checks: compare figures of a batch with those of earlier plans.

The usual value of a figure is the median of earlier plans. The usual spread is the median absolute
deviation (MAD), scaled to the standard deviation of a normal distribution. Each scale has a minimum
spread, because the spread of a constant figure is 0 and any change would be a drift.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, log1p
from statistics import median
from types import MappingProxyType

from tidemark.quality.checks import DRIFT, Figure, figure_text

MAX_HISTORY = 30
"""Maximum number of earlier plans in a comparison."""
MIN_HISTORY = 8
"""Minimum number of earlier plans for a comparison."""
NO_HISTORY = "not enough history"
"""Detail of a drift check with fewer than `MIN_HISTORY` earlier plans."""
_MAD_TO_DEVIATION = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Scale on which a figure is compared.

    Attributes:
        minimum_spread: Minimum spread, on the scale.
        by_ratio: Whether the scale is logarithmic: half as many records are as far away as twice
            as many.
    """

    minimum_spread: float
    by_ratio: bool = False

    def scaled(self, value: float) -> float:
        """Return the value on the scale."""
        return log1p(value) if self.by_ratio else value


_PERCENT = Scale(minimum_spread=1)
_TIME = Scale(minimum_spread=60)

SCALES: Mapping[str, Scale] = MappingProxyType(
    {
        "records": Scale(minimum_spread=log(1.1), by_ratio=True),
        "null_key_percent": _PERCENT,
        "null_value_percent": _PERCENT,
        "top_key_percent": _PERCENT,
        "largest_partition_percent": _PERCENT,
        "seconds_behind": _TIME,
        "oldest_seconds_behind": _TIME,
    }
)
"""Scales by built-in check. The minimum spreads are a tenth of the records, one percentage point,
and one minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Usual value and usual spread of a figure in earlier plans.

    Attributes:
        median: The usual value.
        spread: The usual distance from the median, on the scale.
        plans: Number of earlier plans.
    """

    median: float
    spread: float
    plans: int

    @classmethod
    def of(cls, values: Sequence[float], scale: Scale) -> Baseline | None:
        """Return the baseline of some values; None with fewer than `MIN_HISTORY` values."""
        if len(values) < MIN_HISTORY:
            return None
        center = median(values)
        distances = (abs(scale.scaled(value) - scale.scaled(center)) for value in values)
        spread = max(_MAD_TO_DEVIATION * median(distances), scale.minimum_spread)
        return cls(median=center, spread=spread, plans=len(values))


def drifts(
    measured: Mapping[str, Figure], history: Mapping[str, Sequence[float]]
) -> dict[str, Figure]:
    """Return the distance of each figure from its usual value, in usual spreads.

    Args:
        measured: Figures of the batch, by built-in check.
        history: Figures of earlier plans, newest first, by built-in check.

    Returns:
        One figure for each of `DRIFT`. It has no value if the batch has no figure, or if there are
        fewer than `MIN_HISTORY` earlier figures.
    """
    return {
        name: _drift(check, measured[check], history.get(check, ()))
        for name, check in DRIFT.items()
    }


def _drift(check: str, figure: Figure, earlier: Sequence[float]) -> Figure:
    scale = SCALES[check]
    baseline = Baseline.of(earlier[:MAX_HISTORY], scale)
    value = figure.value
    if value is None:
        return Figure(value=None)
    if baseline is None:
        return Figure(value=None, detail=NO_HISTORY)
    distance = abs(scale.scaled(value) - scale.scaled(baseline.median))
    return Figure(
        value=round(distance / baseline.spread, 2),
        detail=f"{figure_text(check, value)}, usually {figure_text(check, baseline.median)} "
        f"in {baseline.plans} earlier plans",
    )
