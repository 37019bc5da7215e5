"""Text of numbers, lists and durations, for use in sentences; times that people write."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta

TIME_RULE = "a time with a UTC offset, such as 2026-03-01T12:00:00Z, or a date in UTC"
"""The texts that `parse_time` accepts."""


def comma_list(values: Iterable[object]) -> str:
    """Return numbers or names as text, separated by commas."""
    return ", ".join(map(str, values))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 row`, `2,000 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(noun: str, values: Collection[object]) -> str:
    """Return values after their noun: `plan 3`, `plans 3, 4`."""
    return f"{noun}{'' if len(values) == 1 else 's'} {comma_list(values)}"


def format_duration(time: timedelta) -> str:
    """Return a duration as text, in its two largest units: `2 d 4 h`."""
    return format_seconds(time.total_seconds())


def format_seconds(length: float) -> str:
    """Return a length in seconds as text, also one that exceeds the range of `timedelta`.

    The difference of two 64-bit timestamps of Kafka exceeds it.
    """
    minutes, seconds = divmod(max(0, round(length)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    first = next((i for i, (number, _) in enumerate(parts) if number), len(parts) - 1)
    some = parts[first : first + 2]
    return " ".join(f"{number:,} {unit}" for number, unit in some if number) or "0 s"


def parse_time(text: str) -> datetime:
    """Return the time that a text in ISO 8601 means; a date means its beginning in UTC.

    Raises:
        ValueError: The text is not a time, or it has no UTC offset.
    """
    with suppress(ValueError):
        return datetime.combine(date.fromisoformat(text), time(), UTC)
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text} has no UTC offset")
    return found
