"""Drift checks: the comparison of a figure with earlier plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import pytest

from tidemark.quality.checks import BUILT_IN_CHECKS, DRIFT, Figure
from tidemark.quality.drift import MAX_HISTORY, MIN_HISTORY, SCALES, drifts

LIMIT = BUILT_IN_CHECKS["records_drift"].limit or 0


def drift_of(
    measure: str, now: float | None, history: Sequence[float]
) -> tuple[float | None, Mapping[str, Figure]]:
    """Return the drift of one figure, and all drift figures."""
    measured = {name: Figure(value=None) for name in SCALES}
    found = drifts({**measured, measure: Figure(value=now)}, {measure: history})
    return found[f"{measure}_drift"].value, found


def test_every_drift_check_has_a_scale_and_a_built_in_check() -> None:
    """A drift check without one would be omitted silently."""
    assert set(DRIFT.values()) == set(SCALES)
    assert set(DRIFT) | set(SCALES) <= set(BUILT_IN_CHECKS)


def test_noise_is_within_the_limit_and_less_than_half_of_the_records_is_beyond() -> None:
    """The usual count varies by some percent."""
    source = Random(7)
    history = [source.gauss(10_000, 400) for _ in range(MAX_HISTORY)]
    for _ in range(200):
        value, _ = drift_of("records", source.gauss(10_000, 400), history)
        assert value is not None
        assert value < LIMIT
    value, found = drift_of("records", 4_000, history)
    assert value is not None
    assert value > LIMIT
    assert found["records_drift"].detail.startswith("4,000, usually ")
    assert found["records_drift"].detail.endswith("in 30 earlier plans")


def test_one_outlier_in_the_history_hides_no_drift() -> None:
    """It would change a mean and a standard deviation."""
    history = [100.0, 101.0, 99.0, 100.0, 100.0, 102.0, 98.0, 100_000.0]
    value, _ = drift_of("records", 200, history)
    assert value is not None
    assert value > LIMIT


@pytest.mark.parametrize("history", [[500.0, 900, 1_500, 2_000, 2_400, 3_000, 700, 1_200]])
def test_a_collapse_exceeds_the_limit_in_a_varying_history(history: list[float]) -> None:
    """Ratios are compared: a tenth is as far away as ten times as many."""
    for odd in (1, 0):
        value, _ = drift_of("records", odd, history)
        assert value is not None
        assert value > LIMIT
    few, _ = drift_of("records", 100, [1_000.0] * MIN_HISTORY)
    many, _ = drift_of("records", 10_000, [1_000.0] * MIN_HISTORY)
    assert few == pytest.approx(many, rel=0.02)


@pytest.mark.parametrize(
    ("measure", "usual", "now", "wanted"),
    [
        ("null_key_percent", 0.0, 4.0, 4.0),
        ("null_key_percent", 0.0, 6.0, 6.0),
        ("records", 1_000.0, 1_100.0, 1.0),
        ("seconds_behind", 30.0, 210.0, 3.0),
        ("seconds_behind", 86_400.0, 0.0, 1_440.0),
    ],
)
def test_a_constant_history_has_a_minimum_spread(
    measure: str, usual: float, now: float, wanted: float
) -> None:
    """It is one percentage point, a tenth of the records, or one minute."""
    assert drift_of(measure, now, [usual] * MIN_HISTORY)[0] == pytest.approx(wanted, rel=0.01)


def test_there_is_no_drift_without_a_history_or_without_a_figure() -> None:
    """The first batches have no history. Batches without records have no figure."""
    assert drift_of("records", 5, [1.0] * (MIN_HISTORY - 1))[0] is None
    assert drift_of("seconds_behind", None, [1.0] * MIN_HISTORY)[0] is None


def test_only_the_newest_plans_are_compared() -> None:
    """A topic that has grown for a year is not compared with its first plans."""
    value, found = drift_of("records", 100, [100.0] * MAX_HISTORY + [1.0] * 500)
    assert value == 0
    assert "in 30 earlier" in found["records_drift"].detail
