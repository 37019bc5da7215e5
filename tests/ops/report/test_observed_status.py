"""The newest known status of a pipeline, and the trend of its lag."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.consoles import a_status
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.ops.report.observed_status import SAMPLES, ObservedStatus
from tidemark.ops.report.status import PipelineStatus

BEGUN = datetime(2026, 3, 1, tzinfo=UTC)
DOWN = KafkaUnavailable(operation="describe", reason="no broker")


def status_at(seconds: int, lag: int | None) -> PipelineStatus:
    status = a_status(lag=lag or 0)
    if lag is None:
        status = replace(status, partitions=(replace(status.partitions[0], lag=None),))
    return replace(status, checked_at=BEGUN + timedelta(seconds=seconds))


def observed(*lags: tuple[int, int | None]) -> ObservedStatus:
    seen = ObservedStatus()
    for seconds, lag in lags:
        seen = seen.updated(status_at(seconds, lag), seconds)
    return seen


@pytest.mark.parametrize(
    ("lags", "expected"),
    [
        ([], None),
        ([(0, 5)], None),
        ([(0, None), (30, 5)], None),
        ([(0, 5), (0, 9)], None),
        ([(0, 5), (10, 100), (30, 25)], 40.0),
        ([(0, None), (60, 90), (180, 30)], -30.0),
        ([(0, 7), (60, 7), (90, None)], 0.0),
    ],
)
def test_the_trend_is_the_change_between_the_first_and_the_last_known_lag(
    lags: list[tuple[int, int | None]], expected: float | None
) -> None:
    assert observed(*lags).lag_per_minute == expected


def test_the_trend_is_over_the_newest_samples_only() -> None:
    seen = observed(*((number, 0 if number else 10**6) for number in range(SAMPLES + 1)))
    assert len(seen.samples) == SAMPLES
    assert seen.lag_per_minute == 0


def test_a_failed_attempt_keeps_the_values_and_the_trend() -> None:
    before = observed((0, 5), (60, 9))
    without_kafka = replace(status_at(90, 0), problem=DOWN, kafka_error=DOWN)
    for failure in (DOWN, without_kafka):
        seen = before.updated(failure, 90)
        assert (seen.status, seen.error, seen.lag_per_minute) == (before.status, DOWN, 4.0)
    again = seen.updated(status_at(120, 5), 120)
    assert (again.is_stale, again.lag_per_minute) == (False, 0.0)
