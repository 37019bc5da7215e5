"""The periods of a chart of recorded lags, the samples that it shows, and the start of a state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple

from tidemark.delta.status_history import LagSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The period of a chart, which ends now.

    Attributes:
        span: Its length.
        step: Length of the intervals of which a chart shows the highest value.
        tick: Time between two labels of the horizontal axis.
    """

    span: timedelta
    step: timedelta
    tick: timedelta


class Period(StrEnum):
    """The periods that a viewer can choose."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    @property
    def window(self) -> Window:
        """The window of the period."""
        return _WINDOWS[self]


_WINDOWS: Mapping[Period, Window] = {
    Period.HOUR: Window(
        span=timedelta(hours=1), step=timedelta(minutes=1), tick=timedelta(minutes=10)
    ),
    Period.DAY: Window(span=timedelta(days=1), step=timedelta(minutes=15), tick=timedelta(hours=4)),
    Period.WEEK: Window(span=timedelta(days=7), step=timedelta(hours=1), tick=timedelta(days=1)),
    Period.MONTH: Window(span=timedelta(days=30), step=timedelta(hours=4), tick=timedelta(days=5)),
}
OVERVIEW = replace(Period.DAY.window, step=timedelta(minutes=30))
"""The window of the overview, whose lines are small."""


def highest_lags(
    samples: Iterable[LagSample], window: Window, now: datetime
) -> Sequence[LagSample]:
    """Return the samples to show, oldest first.

    Each step has the samples with the highest lag and with the highest age, so a short peak stays
    visible in a long window. A known value is higher than an unknown one. The oldest known lag of
    the first step and the newest sample are shown, too. Samples with a future time, which a wrong
    clock causes, are omitted.
    """
    step = window.step.total_seconds()
    by_step: dict[float, list[LagSample]] = {}
    for sample in samples:
        if now - window.span <= sample.checked_at <= now:
            by_step.setdefault(sample.checked_at.timestamp() // step, []).append(sample)
    shown: dict[datetime, LagSample] = {}
    for each in by_step.values():
        peaks = (max(each, key=_lag), max(each, key=_age))
        shown |= {sample.checked_at: sample for sample in peaks}
    if by_step:
        newest = max(by_step[max(by_step)], key=lambda sample: sample.checked_at)
        known = [sample for sample in by_step[min(by_step)] if sample.lag is not None]
        oldest = min(known, key=lambda sample: sample.checked_at, default=newest)
        shown |= {sample.checked_at: sample for sample in (oldest, newest)}
    return [shown[at] for at in sorted(shown)]


class StateStart(NamedTuple):
    """The first recorded status of a state.

    Attributes:
        state: The state, or its first alarm.
        at: Time of the status.
        may_be_earlier: Whether no earlier status is known, so that the state may be older.
    """

    state: str
    at: datetime
    may_be_earlier: bool


def state_start(recorded: Sequence[LagSample], state: str) -> StateStart | None:
    """Return since when a pipeline has been in a state; None if its newest status has another.

    Args:
        recorded: Recorded samples, oldest first, with at least the first of each state.
        state: The state. If it has several alarms, only the first is compared.
    """
    name = _names(state)[0]
    in_state = list(takewhile(lambda each: name in _names(each.state or ""), reversed(recorded)))
    if not in_state:
        return None
    return StateStart(name, in_state[-1].checked_at, len(in_state) == len(recorded))


def _names(state: str) -> Sequence[str]:
    return state.split(", ")


def _lag(sample: LagSample) -> int:
    return -1 if sample.lag is None else sample.lag


def _age(sample: LagSample) -> tuple[timedelta, int]:
    return timedelta(-1) if sample.lag_time is None else sample.lag_time, _lag(sample)
