"""Tests of rates, runway and forecast."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tidemark.core.throughput import Backlog, Forecast, Run, Throughput, forecast, runway

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def make_run(sequence: int, planned: int, landed: int, offsets: int) -> Run:
    """Return a run; `planned` and `landed` are minutes after noon."""
    return Run(
        sequence=sequence,
        planned_at=NOW + timedelta(minutes=planned),
        landed_at=NOW + timedelta(minutes=landed),
        offsets=offsets,
        records=offsets,
    )


def make_unread(committed: int = 50, low: int = 0, size: int = 100, hours: int = 10) -> Backlog:
    """Return a partition whose oldest unread record is `hours` old."""
    return Backlog(low=low, committed=committed, size=size, oldest=NOW - hours * HOUR)


def test_time_between_runs_ignores_one_outage() -> None:
    runs = [make_run(n, 60 * n, 60 * n + 10, 5) for n in range(4)]
    throughput = Throughput(runs=[*runs, make_run(5, 9_000, 9_010, 5)])
    assert throughput.seconds_between_runs == 3600
    assert Throughput(runs=runs[:1]).seconds_between_runs is None
    assert Throughput().seconds_between_runs is None


def test_offsets_within_a_time_follow_the_fastest_run() -> None:
    """A plan that was open for days does not lower the rate."""
    throughput = Throughput(runs=[make_run(1, 0, 10, 1000), make_run(2, 60, 70, 3000)])
    assert throughput.offsets_within(timedelta(minutes=5)) == 1500
    slow = make_run(3, 100, 5_000, 3000)
    assert Throughput(runs=[*throughput.runs, slow]).offsets_within(timedelta(minutes=5)) == 1500
    assert Throughput().offsets_within(HOUR) is None


def test_runway_is_the_rest_of_the_retention_time() -> None:
    """The oldest unread record counts; the runway is never negative."""
    assert runway(make_unread(hours=10), NOW, 24 * HOUR, None) == 14 * HOUR
    assert runway(make_unread(hours=30), NOW, 24 * HOUR, None) == timedelta(0)


def test_runway_of_a_size_limited_log_follows_its_low_watermark() -> None:
    """Kafka deleted 20 offsets in two hours, so 30 more are deleted in three."""
    before = (NOW - 2 * HOUR, 0)
    assert runway(make_unread(committed=50, low=20), NOW, None, before) == 3 * HOUR
    assert runway(make_unread(committed=50, low=20), NOW, 168 * HOUR, before) == 3 * HOUR
    assert runway(make_unread(committed=50, low=20, hours=23), NOW, 24 * HOUR, before) == HOUR


@pytest.mark.parametrize(
    ("unread", "retention", "before"),
    [
        (make_unread(), None, None),
        (make_unread(low=20), None, (NOW - HOUR, 20)),
        (make_unread(size=0), 24 * HOUR, None),
        (Backlog(low=0, committed=0, size=5, oldest=None), 24 * HOUR, None),
    ],
    ids=["unlimited retention", "low watermark unchanged", "nothing unread", "no timestamp"],
)
def test_runway_is_none_without_evidence_of_deletion(
    unread: Backlog, retention: timedelta | None, before: tuple[datetime, int] | None
) -> None:
    assert runway(unread, NOW, retention, before) is None


def test_record_with_a_future_timestamp_has_no_age() -> None:
    """Producers set timestamps."""
    ahead = make_unread(hours=-5)
    assert (ahead.age(NOW), ahead.arrival_rate(NOW)) == (None, 0.0)
    last = Backlog(low=0, committed=0, size=1, oldest=datetime.max.replace(tzinfo=UTC))
    assert (runway(last, NOW, 24 * HOUR, None) or HOUR) > 1000 * HOUR


def test_long_runways_and_forecasts_do_not_overflow() -> None:
    """The low watermark rose by one in ten days, and the lag hardly falls."""
    still = Backlog(low=1, committed=200_000_000, size=5, oldest=None)
    far = runway(still, NOW, None, (NOW - 240 * HOUR, 0))
    assert far == timedelta(days=3_650)
    assert forecast(10**15, 0, 3_600, 1 - 1e-12, 3_600, NOW) == (Forecast.NEVER, None)
    assert make_unread(size=36_000, hours=10).arrival_rate(NOW) == 1.0


@pytest.mark.parametrize(
    ("lag", "held_back", "limit", "arriving", "between_runs", "expected"),
    [
        (None, 0, None, 0.0, None, Forecast.UNKNOWN),
        (0, 0, 10, 5.0, None, Forecast.CAUGHT_UP),
        (0, 3, 10, 5.0, None, Forecast.HELD_BACK),
        (50, 0, None, 5.0, None, Forecast.NEXT_RUN),
        (50, 3, 50, 5.0, None, Forecast.NEXT_RUN),
        (51, 0, 50, 5.0, None, Forecast.UNKNOWN),
        (51, 0, 50, 5.0, 10.0, Forecast.NEVER),
        (51, 0, 50, 5.0, 12.0, Forecast.NEVER),
    ],
)
def test_forecast_has_no_time_unless_it_is_later_than_the_next_runs(
    lag: int | None,
    held_back: int,
    limit: int | None,
    arriving: float,
    between_runs: float | None,
    expected: Forecast,
) -> None:
    assert forecast(lag, held_back, limit, arriving, between_runs, NOW) == (expected, None)


@pytest.mark.parametrize(
    ("lag", "limit", "expected"),
    [
        (10, None, Forecast.NEXT_RUN),
        (1_010, None, Forecast.NEXT_BUT_ONE),
        (1_010, 1_000, Forecast.NEXT_BUT_ONE),
        (1_010, 999, Forecast.LATER),
    ],
)
def test_forecast_counts_the_open_plan_first(
    lag: int, limit: int | None, expected: Forecast
) -> None:
    assert forecast(lag, 0, limit, 1.0, 10.0, NOW, 10)[0] is expected


def test_forecast_time_is_the_lag_divided_by_the_rate_difference() -> None:
    """7,200 offsets at two per second more than arrive take an hour."""
    assert forecast(7200, 0, 30, 1.0, 10.0, NOW) == (Forecast.LATER, NOW + HOUR)
