"""How fast a pipeline follows its topic: rates, retention runway, when it will have caught up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from statistics import median

RUNS = 10
"""So many runs tell how fast a pipeline is."""
_LONG = timedelta(days=3_650)
"""Nobody wants to know more of what is further away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A live plan that landed.

    Attributes:
        sequence: Plan number.
        planned_at: When it was recorded.
        landed_at: When its landing was recorded.
        offsets: How many offsets it took.
    """

    sequence: int
    planned_at: datetime
    landed_at: datetime
    offsets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The newest runs of a pipeline that landed something.

    Attributes:
        runs: At most `RUNS`, oldest first.
        lows: Low watermarks when the oldest of them was planned, by partition.
    """

    runs: Sequence[Run] = ()
    lows: Mapping[int, int] = field(default_factory=dict)

    @property
    def last_landed_at(self) -> datetime | None:
        """When the newest of them landed."""
        return self.runs[-1].landed_at if self.runs else None

    @property
    def seconds_between_runs(self) -> float | None:
        """From one landing to the next, usually; None before two runs.

        The median: one outage does not make a pipeline slow.
        """
        moments = [run.landed_at for run in self.runs]
        if len(moments) < 2:
            return None
        return median((later - earlier).total_seconds() for earlier, later in pairwise(moments))

    def offsets_within(self, time: timedelta) -> int | None:
        """How many offsets a run takes in so much time, as the fastest of these; None before any.

        The others are mostly their start, or were planned long before they were landed.
        """
        rates = [
            run.offsets / seconds
            for run in self.runs
            if (seconds := (run.landed_at - run.planned_at).total_seconds()) > 0
        ]
        return int(max(rates) * time.total_seconds()) if rates else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What one partition holds that has not landed.

    Attributes:
        low: Low watermark.
        committed: Committed offset.
        size: Number of unread offsets.
        oldest: When the oldest unread record was stamped; None if no record is unread or it has
            no timestamp.
    """

    low: int
    committed: int
    size: int
    oldest: datetime | None

    def age(self, now: datetime) -> timedelta | None:
        """Lag in time: how long the oldest unread record has waited; None if nobody can tell.

        Nobody can of a record that says that it is from the future.
        """
        return None if self.oldest is None or self.oldest > now else now - self.oldest

    def arrival_rate(self, now: datetime) -> float:
        """Unread offsets per second since the oldest of them."""
        age = self.age(now)
        return self.size / age.total_seconds() if age else 0.0


def runway(
    unread: Backlog,
    now: datetime,
    retention: timedelta | None,
    low_before: tuple[datetime, int] | None,
) -> timedelta | None:
    """How long until Kafka deletes what is unread, at the earliest that anything says.

    Kafka deletes whole segments, when the newest record in them is too old: often later than this.

    Args:
        unread: The partition.
        now: The present.
        retention: The topic's retention time; None if it keeps records for ever or nobody tells.
        low_before: An earlier moment and the low watermark then. What was deleted since tells how
            fast the mark moves, also where a topic is limited by its size.

    Returns:
        None if nothing is unread, or nothing says that anything is ever deleted.
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
            found.append(timedelta(seconds=min(distance * seconds, _LONG.total_seconds())))
    return max(timedelta(0), min(found)) if found else None


class Forecast(StrEnum):
    """When a pipeline will have read all that there is."""

    CAUGHT_UP = "caught up"
    """Now."""
    HELD_BACK = "held back"
    """All that can be read has landed; records wait behind a transaction that is open."""
    NEXT_RUN = "with the next run"
    """No limit keeps the next run from taking all of it."""
    NEXT_BUT_ONE = "with the run after the next"
    """The next run lands a plan that was left open, as it was made; the one after it the rest."""
    LATER = "later"
    """At a moment that follows from the rates of now."""
    NEVER = "never at this rate"
    """Records arrive as fast as the pipeline takes them, or faster."""
    UNKNOWN = "unknown"
    """There have not been enough runs to tell, or something is in their way."""


def forecast(
    lag: int | None,
    held_back: int,
    limit: int | None,
    arriving: float,
    between_runs: float | None,
    now: datetime,
    left_open: int = 0,
) -> tuple[Forecast, datetime | None]:
    """When a pipeline will have caught up, and the moment if it is `LATER`.

    Args:
        lag: Unread offsets; None if the pipeline has not begun.
        held_back: Offsets that nobody can read before a transaction has ended.
        limit: Most offsets that a run takes; None for no limit.
        arriving: New offsets per second.
        between_runs: Seconds from one landing to the next; None if nobody knows.
        now: The present.
        left_open: Offsets of the plan that the next run takes over; 0 if there is none.
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
    # A pipeline that keeps up takes less than it could; what a limit lets it take, it takes now.
    gained = limit / between_runs - arriving
    if gained * _LONG.total_seconds() <= lag:
        return Forecast.NEVER, None
    return Forecast.LATER, now + timedelta(seconds=lag / gained)
