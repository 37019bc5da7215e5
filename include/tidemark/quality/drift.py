"""Whether a slice is unlike those before it: each measure against its own history.

A measure's usual value is the median of earlier slices, its usual spread the median distance from
that (MAD, scaled to the standard deviation of a normal distribution), but never less than a least:
of a measure that has always been the same, the slightest change would be beyond all measure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, log1p
from statistics import median
from types import MappingProxyType

from tidemark.quality.checks import DRIFT, Figure

HISTORY = 30
"""Slices that are looked back at."""
ENOUGH = 8
"""Slices before which nothing is said."""
_MAD_TO_DEVIATION = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """How one figure is compared.

    Attributes:
        least: The least spread that counts.
        by_ratio: Compare how many times as much, and not how much more: half as many records are
            as far away as twice as many, and `least` is a ratio.
    """

    least: float
    by_ratio: bool = False

    def placed(self, value: float) -> float:
        """The value on the scale on which distances are compared."""
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
"""What is compared: records by a tenth at least, shares by a point, times by a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What earlier slices had.

    Attributes:
        value: The median.
        spread: How far from it they usually were, on the measure's scale.
        slices: How many there were.
    """

    value: float
    spread: float
    slices: int

    @classmethod
    def of(cls, values: Sequence[float], measure: Measure) -> Usual | None:
        """What is usual; None if there are too few values to say."""
        if len(values) < ENOUGH:
            return None
        usual = median(values)
        middle = measure.placed(usual)
        away = _MAD_TO_DEVIATION * median(abs(measure.placed(v) - middle) for v in values)
        return cls(value=usual, spread=max(away, measure.least), slices=len(values))


def drifts(
    measured: Mapping[str, Figure], history: Mapping[str, Sequence[float]]
) -> dict[str, Figure]:
    """How many usual spreads each measure is away from what is usual.

    Args:
        measured: The slice's figures, by built-in check.
        history: The same of earlier slices, newest first, by built-in check.

    Returns:
        One figure for each of `DRIFT`; without a value where the slice has none, or its history
        too few.
    """
    return {name: _drift(measured[of], history.get(of, ()), of) for name, of in DRIFT.items()}


def _drift(now: Figure, values: Sequence[float], of: str) -> Figure:
    measure = MEASURES[of]
    usual = Usual.of(values[:HISTORY], measure)
    if now.value is None or usual is None:
        return Figure(value=None)
    return Figure(
        value=round(abs(measure.placed(now.value) - measure.placed(usual.value)) / usual.spread, 2),
        detail=f"{now.value:,.6g} against {usual.value:,.6g} in {usual.slices} earlier slices",
    )
