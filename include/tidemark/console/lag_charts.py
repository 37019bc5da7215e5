"""Charts of the lag over time as SVG without scripts: a small line, and a chart with axes.

Positions are percentages, so that a chart fills its column while texts and lines keep their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, count, pairwise
from typing import TypeVar

from markupsafe import Markup, escape

from tidemark.console.recorded_lags import Window
from tidemark.core.texts import counted, format_duration
from tidemark.delta.status_history import LagSample

_LONGEST_BREAK = timedelta(minutes=90)
"""Longest time between two samples of one line, unless two steps of the window are longer."""
_WIDTH, _HEIGHT = 1000, 100
"""Units of the lines, which stretch to the size of the chart."""

T = TypeVar("T")

_DAY_S = 86_400
_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)
"""Distances between labels that are less than a day apart, in seconds."""
_PREFIXES = ("", " k", " M", " G", " T", " P", " E")
_PREFIXED_FROM = 10_000


# -- axes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A vertical axis from 0.

    Attributes:
        step: Distance between two labels.
        labels: Texts of 0, `step`, 2 `step` and so on, at least two.
    """

    step: int
    labels: Sequence[str]

    @property
    def top(self) -> int:
        """The value at the upper end."""
        return self.step * (len(self.labels) - 1)


def offsets_axis(highest: float, most: int) -> Axis:
    """Return an axis of numbers of offsets with at most `most` labels above 0."""
    step = next(step for step in _round_numbers() if step * most >= highest)
    values = _values(step, highest)
    power = (len(str(values[-1])) - 1) // 3 if values[-1] >= _PREFIXED_FROM else 0
    return Axis(
        step=step,
        labels=[f"{value / 1000**power:g}{_PREFIXES[power]}" if value else "0" for value in values]
        if power
        else [f"{value:,}" for value in values],
    )


def times_axis(highest: float, most: int) -> Axis:
    """Return an axis of seconds with at most `most` labels above 0."""
    days = (number * _DAY_S for number in _round_numbers())
    step = next(step for step in chain(_TIME_STEPS, days) if step * most >= highest)
    labels = ["0", *map(_time_label, _values(step, highest)[1:])]
    return Axis(step=step, labels=labels)


def _time_label(seconds: int) -> str:
    if seconds % _DAY_S:
        return format_duration(timedelta(seconds=seconds))
    return f"{seconds // _DAY_S:,} d"


def _values(step: int, highest: float) -> range:
    """Return the multiples of a step from 0 to the first one that is not below the highest."""
    return range(0, step * max(1, -int(-highest // step)) + 1, step)


def _round_numbers() -> Iterator[int]:
    """Iterate over 1, 2, 5, 10, 20, 50 and so on."""
    return (digit * 10**power for power in count() for digit in (1, 2, 5))


# -- charts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LagHistory:
    """The lag of a pipeline over time.

    Attributes:
        samples: Samples of the window, oldest first.
        name: Name of the pipeline.
        window: The time from the left to the right end of a chart.
        now: Its end.
    """

    samples: Sequence[LagSample]
    name: str
    window: Window
    now: datetime

    def sparkline(self) -> Markup:
        """Return a small line of the lag over a baseline; a dash with fewer than two known lags."""
        values = [_lag(sample) for sample in self.samples]
        known = _known(values)
        if not known:
            return Markup('<span class="quiet" title="fewer than two lags are known">-</span>')
        text = escape(f"lag of {self.name}: {_extremes(known, '{:,}'.format)}")
        places = self._places(values, max(*known, 1))
        return Markup(
            f'<svg class="sparkline" viewBox="0 -5 {_WIDTH} {_HEIGHT + 10}" role="img" '
            f'preserveAspectRatio="none" aria-label="{text}"><title>{text}</title>'
            f'<line x1="0" y1="{_HEIGHT}" x2="{_WIDTH}" y2="{_HEIGHT}"/>'
            f"{_lines(places, self.window)}</svg>"
        )

    def lag_chart(self) -> Markup:
        """Return a chart of the lag in offsets; empty with fewer than two known lags."""
        values = [_lag(sample) for sample in self.samples]
        known = _known(values)
        if not known:
            return Markup()
        title = f"lag of {self.name} in offsets: {_extremes(known, '{:,}'.format)}"
        return self._chart(values, title, offsets_axis(max(known), 4), is_tall=True)

    def lag_time_chart(self) -> Markup:
        """Return a low chart of the oldest unread record's age; empty with fewer than two ages."""
        values = [_lag_seconds(sample) for sample in self.samples]
        known = _known(values)
        if not known:
            return Markup()
        ages = _extremes(known, lambda seconds: format_duration(timedelta(seconds=seconds)))
        title = f"age of the oldest unread record of {self.name}: {ages}"
        return self._chart(values, title, times_axis(max(known), 2), is_tall=False)

    def _places(self, values: Sequence[float | None], top: float) -> Sequence[_Place]:
        return [
            _Place(
                at=sample.checked_at,
                x=_x(sample.checked_at, self.window, self.now),
                y=None if value is None else 1 - value / top,
                text=_text(sample),
            )
            for sample, value in zip(self.samples, values, strict=True)
        ]

    def _chart(
        self, values: Sequence[float | None], title: str, axis: Axis, *, is_tall: bool
    ) -> Markup:
        places = self._places(values, axis.top)
        heights = [100 - 100 * n / (len(axis.labels) - 1) for n in range(len(axis.labels))]
        return Markup(
            f'<div class="lag-chart{" tall" if is_tall else ""}">'
            '<svg class="axis" aria-hidden="true">'
            + "".join(
                f'<text x="100%" y="{y:g}%">{label}</text>'
                for y, label in zip(heights, axis.labels, strict=True)
            )
            + f'</svg><svg class="plot" role="img" aria-label="{escape(title)}">'
            + "".join(f'<line x1="0" x2="100%" y1="{y:g}%" y2="{y:g}%"/>' for y in heights)
            + "".join(_time_labels(self.window, self.now))
            + f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none">'
            + f"{_lines(places, self.window)}</svg>"
            + "".join(_spots(places, self.window))
            + "</svg></div>"
        )


def _known(values: Sequence[T | None]) -> Sequence[T]:
    """Return the known values of a line; none if they are fewer than two."""
    known = [value for value in values if value is not None]
    return known if len(known) > 1 else ()


def _lag(sample: LagSample) -> int | None:
    return None if sample.lag is None else max(0, sample.lag)


def _lag_seconds(sample: LagSample) -> float | None:
    """Return the age of the oldest unread record; 0 without an unread record."""
    if sample.lag_time is None:
        return 0.0 if sample.lag == 0 else None
    return max(0.0, sample.lag_time.total_seconds())


def _extremes(known: Sequence[float], text: Callable[[float], str]) -> str:
    return f"highest {text(max(known))}, newest {text(known[-1])}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The place of a sample in a chart.

    Attributes:
        at: Time of the sample.
        x: From the left end, 0 to 1.
        y: From the upper end, 0 to 1; None for an unknown value.
        text: The sample in words.
    """

    at: datetime
    x: float
    y: float | None
    text: str


def _x(at: datetime, window: Window, now: datetime) -> float:
    return min(1.0, max(0.0, 1 - (now - at) / window.span))


def _text(sample: LagSample) -> str:
    lag = "unknown lag" if sample.lag is None else counted(sample.lag, "offset")
    age = "" if sample.lag_time is None else f", oldest {format_duration(sample.lag_time)}"
    return f"{sample.checked_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC: {lag}{age}"


def _lines(places: Sequence[_Place], window: Window) -> str:
    """Return a line, with the area below it, for each run of known values without a long break."""
    parts = []
    for run in _runs(places, window):
        points = [f"{x * _WIDTH:.1f},{y * _HEIGHT:.2f}" for x, y in run]
        if len(points) == 1:
            parts.append(f'<path class="dot" d="M{points[0]}h0"/>')
            continue
        left, right = run[0][0] * _WIDTH, run[-1][0] * _WIDTH
        base = f"{right:.1f},{_HEIGHT} {left:.1f},{_HEIGHT}"
        parts.append(f'<polygon points="{" ".join(points)} {base}"/>')
        parts.append(f'<polyline points="{" ".join(points)}"/>')
    return "".join(parts)


def _runs(places: Sequence[_Place], window: Window) -> Sequence[Sequence[tuple[float, float]]]:
    """Return positions of samples that a line connects, left to right."""
    longest = max(_LONGEST_BREAK, 2 * window.step)
    runs: list[list[tuple[float, float]]] = []
    before: _Place | None = None
    for place in places:
        if place.y is not None:
            if before is None or before.y is None or place.at - before.at > longest:
                runs.append([])
            runs[-1].append((place.x, place.y))
        before = place
    return runs


def _spots(places: Sequence[_Place], window: Window) -> Iterator[str]:
    """Yield an area for each sample that shows the sample while the pointer is in it."""
    widest = _LONGEST_BREAK / window.span / 2
    middles = [(one.x + other.x) / 2 for one, other in pairwise(places)]
    for place, left, right in zip(places, [0.0, *middles], [*middles, 1.0], strict=True):
        left, right = max(left, place.x - widest), min(right, place.x + widest)
        dot = (
            ""
            if place.y is None
            else f'<circle r="3.5" cx="{_percent(place.x)}" cy="{_percent(place.y)}"/>'
        )
        yield (
            f'<g><title>{place.text}</title><rect x="{_percent(left)}" y="0" '
            f'width="{_percent(right - left)}" height="100%"/>{dot}</g>'
        )


def _percent(part: float) -> str:
    return f"{round(100 * part, 2):g}%"


def _time_labels(window: Window, now: datetime) -> Iterator[str]:
    """Yield the labels of round times in UTC; a narrow page shows every second label."""
    tick = window.tick.total_seconds()
    first = int((now - window.span).timestamp() // tick) + 1
    for number in range(first, int(now.timestamp() // tick) + 1):
        at = datetime.fromtimestamp(number * tick, UTC)
        is_midnight = (at.hour, at.minute) == (0, 0)
        label = f"{at.day} {at:%b}" if is_midnight else f"{at:%H:%M}"
        x = _x(at, window, now)
        anchor = "end" if x > _LAST_MIDDLE else "middle"
        css = ' class="wide"' if number % 2 else ""
        yield (
            f'<line class="time" x1="{_percent(x)}" x2="{_percent(x)}" y1="0" y2="100%"/>'
            f'<text{css} x="{_percent(x)}" y="100%" text-anchor="{anchor}">{label}</text>'
        )


_LAST_MIDDLE = 0.97
"""Labels to the right of this place end at their time, so that they stay on the page."""
