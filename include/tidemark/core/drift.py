"""Whether a slice is unlike those before it: each measure against its own history.

A measure's usual value is the median of earlier slices, its usual spread the median distance from
that (MAD, scaled to the standard deviation of a normal distribution), but never less than a floor:
of a measure that has always been the same, the least change would be without measure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType

from tidemark.core.quality_checks import DRIFT, Figure

HISTORY = 30
"""Slices that are looked back at."""
ENOUGH = 8
"""Slices before which nothing is said."""
_MAD_TO_DEVIATION = 1.4826

_Floor = Callable[[float], float]
"""The least spread that counts, by the usual value."""


def _tenth_or(least: float) -> _Floor:
    return lambda usual: max(least, usual / 10)


_PERCENT: _Floor = lambda _: 1.0  # noqa: E731  one percentage point

FLOORS: Mapping[str, _Floor] = MappingProxyType(
    {
        "records": _tenth_or(1),
        "null_key_percent": _PERCENT,
        "null_value_percent": _PERCENT,
        "top_key_percent": _PERCENT,
        "largest_partition_percent": _PERCENT,
        "seconds_behind": _tenth_or(60),
        "oldest_seconds_behind": _tenth_or(60),
    }
)
"""The least spread of each measure that is compared: a tenth of what is usual, one percentage
point, a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What earlier slices had.

    Attributes:
        value: The median.
        spread: How far from it they usually were, and at least the floor.
        slices: How many there were.
    """

    value: float
    spread: float
    slices: int

    @classmethod
    def of(cls, values: Sequence[float], floor: _Floor) -> Usual | None:
        """What is usual; None if there are too few values to say."""
        if len(values) < ENOUGH:
            return None
        usual = median(values)
        spread = _MAD_TO_DEVIATION * median(abs(value - usual) for value in values)
        return cls(value=usual, spread=max(spread, floor(usual)), slices=len(values))


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


def _drift(now: Figure, values: Sequence[float], measure: str) -> Figure:
    usual = Usual.of(values[:HISTORY], FLOORS[measure])
    if now.value is None or usual is None:
        return Figure(value=None)
    return Figure(
        value=round(abs(now.value - usual.value) / usual.spread, 2),
        detail=f"{now.value:,.6g} against {usual.value:,.6g} in {usual.slices} earlier slices",
    )
