"""Tests of values as they stand in sentences."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tidemark.core.texts import counted, listed, parse_time


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (1234, "1,234 rows")]
)
def test_a_number_has_its_noun_in_the_singular_or_the_plural(number: int, text: str) -> None:
    assert counted(number, "row") == text


def test_values_follow_their_noun() -> None:
    assert listed("plan", (3,)) == "plan 3"
    assert listed("plan", [3, 4]) == "plans 3, 4"


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-03-01", datetime(2026, 3, 1, tzinfo=UTC)),
        ("2026-03-01T12:30:00Z", datetime(2026, 3, 1, 12, 30, tzinfo=UTC)),
        (
            "2026-03-01T12:30:00.5+01:00",
            datetime(2026, 3, 1, 12, 30, 0, 500_000, tzinfo=timezone(timedelta(hours=1))),
        ),
    ],
)
def test_a_time_has_a_utc_offset_and_a_date_begins_in_utc(text: str, time: datetime) -> None:
    assert parse_time(text) == time


@pytest.mark.parametrize("text", ["", "x", "5", "1700000000", "2026-03-01T12:30:00", "2026-13-01"])
def test_a_text_without_a_utc_offset_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"isoformat|offset|month"):
        parse_time(text)
