"""Text of numbers, lists and durations, for use in sentences."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta


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
    minutes, seconds = divmod(max(0, round(time.total_seconds())), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    first = next((i for i, (number, _) in enumerate(parts) if number), len(parts) - 1)
    some = parts[first : first + 2]
    return " ".join(f"{number} {unit}" for number, unit in some if number) or "0 s"
