"""Texts of values on pages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tidemark.console.rendering import ago

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (timedelta(hours=3), "3 h ago"),
        (timedelta(), "0 s ago"),
        (-timedelta(hours=3), "3 h in the future"),
    ],
)
def test_a_time_of_a_fast_clock_is_in_the_future(age: timedelta, text: str) -> None:
    assert ago(NOW - age, NOW) == text
