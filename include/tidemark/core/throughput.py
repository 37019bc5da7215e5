"""Throughput of a pipeline, retention runway, and the forecast of when its lag is gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from statistics import median

RUNS = 10
"""Number of runs from which throughput is computed."""
_LONGEST = timedelta(days=3_650)
"""Upper bound of a runway and of a forecast, which avoids overflows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A landed live plan.

    Attributes:
        sequence: Plan number.
        planned_at: Time at which the plan was recorded.
        landed_at: Time at which its landing was recorded.
        offsets: Number of planned offsets.
        records: Number of landed records.
    """

    sequence: int
    planned_at: datetime
    landed_at: datetime
    offsets: int
    records: int

    @property
    def time(self) -> timedelta:
        """Time from the recording of the plan to the recording of its landing."""
        return self.landed_at - self.planned_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The newest runs of a pipeline that landed offsets.

    Attributes:
        runs: At most `RUNS` runs, oldest first.
        lows: Low watermarks at the planning time of the oldest run, by partition.
    """

    runs: Sequence[Run] = ()
    lows: Mapping[int, int] = field(default_factory=dict)

    @property
    def seconds_between_runs(self) -> float | None:
        """Median time between two landings, in seconds; None for fewer than two runs.

        The median ignores single outages.
        """
        moments = [run.landed_at for run in self.runs]
        if len(moments) < 2:
            return None
        return median((later - earlier).total_seconds() for earlier, later in pairwise(moments))

    def offsets_within(self, time: timedelta) -> int | None:
        """Return the number of offsets that a run lands in `time`, at the rate of the fastest run.

        In the other runs, start-up dominates, or the plan waited before it landed. None without
        runs.
        """
        rates = [
            run.offsets / seconds for run in self.runs if (seconds := run.time.total_seconds()) > 0
        ]
        return int(max(rates) * time.total_seconds()) if rates else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Unread offsets of one partition.

    Attributes:
        low: Low watermark.
        committed: Committed offset.
        size: Number of unread offsets.
        oldest: Timestamp of the oldest unread record; None without such a record or timestamp.
    """

    low: int
    committed: int
    size: int
    oldest: datetime | None

    def age(self, now: datetime) -> timedelta | None:
        """Return the time since the oldest unread record; None if unknown or in the future."""
        return None if self.oldest is None or self.oldest > now else now - self.oldest

    def arrival_rate(self, now: datetime) -> float:
        """Return the number of new offsets per second since the oldest unread record."""
        age = self.age(now)
        return self.size / age.total_seconds() if age else 0.0


def runway(
    unread: Backlog,
    now: datetime,
    retention: timedelta | None,
    low_before: tuple[datetime, int] | None,
) -> timedelta | None:
    """Return the shortest time until Kafka deletes unread records, by all available evidence.

    Kafka often deletes later, because it deletes whole segments, by their newest record.

    Args:
        unread: Unread offsets of the partition.
        now: Current time.
        retention: The topic's retention time; None if unlimited or unknown.
        low_before: An earlier time and the low watermark at that time. They give the rate of
            deletion, also for a topic with a size limit.

    Returns:
        The time, at most ten years; None without unread offsets, or without evidence of deletion.
    """
    if not unread.size:
        return None
    found = []
    if retention is not None and unread.oldest is not None:
        found.append(retention - (now - unread.oldest))
    if low_before is not None:
        moment, low = low_before
        if unread.low > low and now > moment:
            seconds = (now - moment).total_seconds() / (unread.low - low)
            distance = unread.committed - unread.low
            found.append(timedelta(seconds=min(distance * seconds, _LONGEST.total_seconds())))
    return max(timedelta(0), min(found)) if found else None


class Forecast(StrEnum):
    """When the lag of a pipeline will be gone."""

    CAUGHT_UP = "caught up"
    """There is no lag."""
    HELD_BACK = "held back"
    """All readable records have landed; an open transaction holds back others."""
    NEXT_RUN = "with the next run"
    """The next run can land all unread offsets."""
    NEXT_BUT_ONE = "with the run after the next"
    """The next run lands an open plan, and the run after it the other unread offsets."""
    LATER = "later"
    """At a time that follows from the current rates."""
    NEVER = "never at this rate"
    """Records arrive at least as fast as the pipeline lands them."""
    UNKNOWN = "unknown"
    """There are too few runs, or an error blocks them, even without lag."""


def forecast(
    lag: int | None,
    held_back: int,
    limit: int | None,
    arrival_rate: float,
    between_runs: float | None,
    now: datetime,
    left_open: int = 0,
) -> tuple[Forecast, datetime | None]:
    """Return when the lag will be gone, and the time for `Forecast.LATER`.

    Args:
        lag: Number of unread offsets; None if the pipeline has not started.
        held_back: Number of offsets that an open transaction holds back.
        limit: Maximum number of offsets of a run; None for no limit.
        arrival_rate: New offsets per second.
        between_runs: Seconds between two landings; None if unknown.
        now: Current time.
        left_open: Number of offsets of the open plan that the next run takes over; 0 without one.
    """
    if lag is None:
        return Forecast.UNKNOWN, None
    if not lag:
        return Forecast.HELD_BACK if held_back else Forecast.CAUGHT_UP, None
    if lag <= left_open:
        return Forecast.NEXT_RUN, None
    if limit is None or lag - left_open <= limit:
        return Forecast.NEXT_BUT_ONE if left_open else Forecast.NEXT_RUN, None
    if not between_runs:
        return Forecast.UNKNOWN, None
    # With this lag each run takes the limit, unlike earlier runs without lag.
    gained = limit / between_runs - arrival_rate
    if gained * _LONGEST.total_seconds() <= lag:
        return Forecast.NEVER, None
    return Forecast.LATER, now + timedelta(seconds=lag / gained)
