"""Charts of the lag: round labels, breaks, single, unknown and huge values, hostile names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import TypeAlias
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from tests.support.hostile import TEXTS
from tests.support.services import NOW
from tidemark.console.lag_charts import LagHistory, offsets_axis, times_axis
from tidemark.console.recorded_lags import OVERVIEW, Period, Window
from tidemark.delta.status_history import LagSample

DAY = Period.DAY.window
Draw: TypeAlias = Callable[[LagHistory], Markup]
CHARTS: Sequence[Draw] = (LagHistory.lag_chart, LagHistory.lag_time_chart, LagHistory.sparkline)


def history(samples: Sequence[LagSample], name: str = "prices", window: Window = DAY) -> LagHistory:
    return LagHistory(samples, name, window, NOW)


def samples(*places: tuple[float, int | None], seconds: float | None = None) -> list[LagSample]:
    """Return samples of an age in hours and a lag, oldest first."""
    age = None if seconds is None else timedelta(seconds=seconds)
    return [
        LagSample(checked_at=NOW - timedelta(hours=hours), lag=lag, lag_time=age)
        for hours, lag in places
    ]


def lines(svg: str) -> list[list[tuple[float, float]]]:
    """Return the points of each line."""
    found = re.findall(r'<polyline points="([^"]*)"', svg)
    return [
        [(float(x), float(y)) for x, y in (point.split(",") for point in line.split())]
        for line in found
    ]


def titles(svg: str) -> list[str]:
    return re.findall(r"<g><title>(.*?)</title>", svg)


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>(.*?)</text>", svg)


# -- axes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("highest", "labels"),
    [
        (0, ["0", "1"]),
        (1, ["0", "1"]),
        (3, ["0", "1", "2", "3"]),
        (7, ["0", "2", "4", "6", "8"]),
        (4_812, ["0", "2,000", "4,000", "6,000"]),
        (12_345, ["0", "5 k", "10 k", "15 k"]),
        (1_700_000, ["0", "0.5 M", "1 M", "1.5 M", "2 M"]),
        (2**63 - 1, ["0", "5 E", "10 E"]),
    ],
)
def test_labels_of_offsets_are_round(highest: int, labels: Sequence[str]) -> None:
    axis = offsets_axis(highest, 4)
    assert axis.labels == labels
    assert axis.top >= highest


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (0.0, ["0", "1 s"]),
        (1.2, ["0", "1 s", "2 s"]),
        (95.0, ["0", "1 min", "2 min"]),
        (5_000.0, ["0", "1 h", "2 h"]),
        (3 * 86_400.0, ["0", "2 d", "4 d"]),
        (46_000 * 86_400.0, ["0", "50,000 d"]),
        (timedelta.max.total_seconds(), ["0", "500,000,000 d", "1,000,000,000 d"]),
    ],
)
def test_labels_of_times_are_round(seconds: float, labels: Sequence[str]) -> None:
    axis = times_axis(seconds, 2)
    assert axis.labels == labels
    assert axis.top >= seconds


@pytest.mark.parametrize(
    ("period", "labels"),
    [
        (Period.HOUR, ["11:10", "11:20", "11:30", "11:40", "11:50", "12:00"]),
        (Period.DAY, ["16:00", "20:00", "1 Mar", "04:00", "08:00", "12:00"]),
        (Period.WEEK, ["23 Feb", "24 Feb", "25 Feb", "26 Feb", "27 Feb", "28 Feb", "1 Mar"]),
    ],
)
def test_the_time_axis_has_round_times_in_utc(period: Period, labels: Sequence[str]) -> None:
    """The test runs in another time zone, too."""
    svg = history(samples((0.5, 0), (0.4, 0)), window=period.window).lag_chart()
    assert texts(svg)[-len(labels) :] == labels


# -- lines ---------------------------------------------------------------------------------------


def test_the_line_is_drawn_to_scale_with_a_value_for_each_sample() -> None:
    svg = history(samples((1, 0), (0.5, 4), (0, 2), seconds=61)).lag_chart()
    assert lines(svg) == [[(958.3, 100.0), (979.2, 0.0), (1000.0, 50.0)]]
    assert titles(svg) == [
        "2026-03-01 11:00:00 UTC: 0 offsets, oldest 1 min 1 s",
        "2026-03-01 11:30:00 UTC: 4 offsets, oldest 1 min 1 s",
        "2026-03-01 12:00:00 UTC: 2 offsets, oldest 1 min 1 s",
    ]
    assert 'aria-label="lag of prices in offsets: highest 4, newest 2"' in svg


@pytest.mark.parametrize("draw", CHARTS)
def test_a_line_ends_at_a_long_break_and_at_an_unknown_lag(draw: Draw) -> None:
    known = [(10, 3), (9, 4), (5, 3), (4, 1), (3, None), (2, 1), (1, 1)]
    svg = draw(history(samples(*known, seconds=5)))
    expected = [2, 2, 2] if draw is not LagHistory.lag_time_chart else [2, 5]
    assert [len(line) for line in lines(svg)] == expected


def test_steps_of_a_long_period_do_not_end_a_line() -> None:
    hours = [(hours, 1) for hours in range(700, 0, -7)]
    assert len(lines(history(samples(*hours), window=Period.MONTH.window).lag_chart())) == 1


def test_one_sample_between_breaks_is_a_dot() -> None:
    for draw in (LagHistory.lag_chart, LagHistory.sparkline):
        svg = draw(history(samples((12, 5), (1, 5), (0.5, 5))))
        assert re.findall(r'<path class="dot" d="M(\S+?),\S+h0"/>', svg) == ["500.0"]
        assert len(lines(svg)) == 1


def test_one_sample_alone_is_no_chart() -> None:
    for draw in CHARTS[:2]:
        assert draw(history(samples((12, 5), seconds=5))) == ""


def test_without_a_known_lag_there_is_no_chart() -> None:
    for draw in CHARTS[:2]:
        assert draw(history([])) == ""
        assert draw(history(samples((2, None), (1, None)))) == ""


def test_a_sparkline_without_a_history_is_a_dash_with_the_reason() -> None:
    for known in ([], samples((12, 5)), samples((2, None), (1, None))):
        shown = ElementTree.fromstring(str(history(known).sparkline()))
        assert (shown.text, shown.get("title")) == ("-", "fewer than two lags are known")


def test_a_sparkline_has_a_baseline_over_the_whole_window() -> None:
    shown = ElementTree.fromstring(str(history(samples((1, 5), (0.5, 5))).sparkline()))
    assert [(each.get("x1"), each.get("x2")) for each in shown.iter("line")] == [("0", "1000")]


def test_the_age_of_a_pipeline_without_lag_is_zero_and_otherwise_may_be_unknown() -> None:
    svg = history(samples((2, 0), (1.5, 0), (1, 5))).lag_time_chart()
    assert lines(svg) == [[(916.7, 100.0), (937.5, 100.0)]]
    assert history(samples((2, 5))).lag_time_chart() == ""


@pytest.mark.parametrize("lag", [0, 1, 2**63 - 1, -5])
@pytest.mark.parametrize("seconds", [0.0, 1e-6, timedelta.max.total_seconds() - 1, -5.0])
def test_extreme_values_stay_in_the_chart(lag: int, seconds: float) -> None:
    shown = samples((25, lag), (2, lag), (1, 0), (-1, lag), seconds=seconds)
    for draw in CHARTS:
        for line in lines(draw(history(shown))):
            assert all(0 <= x <= 1000 and 0 <= y <= 100 for x, y in line)


def test_hostile_names_are_text_and_the_markup_is_well_formed() -> None:
    name = "".join(text for text in TEXTS if text.isprintable())
    for draw in CHARTS:
        markup = draw(history(samples((2, 1), (1, 0), seconds=5), name, OVERVIEW))
        root = ElementTree.fromstring(str(markup))
        (label,) = [each.get("aria-label") for each in root.iter() if each.get("aria-label")]
        assert name in str(label)
        assert {each.tag for each in root.iter()} <= TAGS
        assert "style" not in {name for each in root.iter() for name in each.attrib}


TAGS = {"div", "svg", "text", "line", "polyline", "polygon", "path", "g", "title", "rect", "circle"}
"""The elements of charts."""


def test_spots_cover_the_chart_without_overlap() -> None:
    svg = history(samples(*[(hours, 1) for hours in (3, 2, 1, 0)])).lag_chart()
    spots = re.findall(r'<rect x="([\d.]+)%" y="0" width="([\d.]+)%"', svg)
    edges = [(float(x), float(x) + float(width)) for x, width in spots]
    assert len(edges) == 4
    assert all(one[1] == pytest.approx(other[0], abs=0.02) for one, other in pairwise(edges))
