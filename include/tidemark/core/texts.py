"""Text of numbers, lists, names and durations in sentences; times that people write."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from difflib import get_close_matches

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


_MOST_NAMES = 20
"""Maximum number of names that a list contains."""
_MOST_SIMILAR = 3


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return ` (did you mean 'topic'?)` for the known name that is most similar to `name`.

    Returns:
        An empty text if no known name is similar, or if `name` is not a text.
    """
    by_lower_case = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), by_lower_case, 1) if isinstance(name, str) else []
    return f" (did you mean {by_lower_case[found[0]]!r}?)" if found else ""


def similar_names(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the known names that resemble a name, the closest first.

    Upper and lower case do not count. A name that contains the other one is similar, too.
    """
    by_lower_case = {each.lower(): each for each in sorted(known)}
    wanted = name.lower()
    close = get_close_matches(wanted, by_lower_case, _MOST_SIMILAR)
    longer = [each for each in by_lower_case if wanted and (wanted in each or each in wanted)]
    return tuple(by_lower_case[each] for each in dict.fromkeys([*close, *longer]))[:_MOST_SIMILAR]


def some_of(names: Collection[str]) -> str:
    """Return names, separated by commas; a long list is cut, with the number of further names."""
    first, others = list(names)[:_MOST_NAMES], len(names) - _MOST_NAMES
    return ", ".join(first) + (f" and {others:,} more" if others > 0 else "")


# Characters without a glyph that Unicode counts as letters, marks or symbols.
_WITHOUT_GLYPH = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def visible(text: str) -> str:
    r"""Return a text in which every invisible character except `\n` and `\t` is an escape.

    Control, bidirectional, zero-width and unassigned characters become escapes such as `\u{202E}`.
    So a value that other people chose cannot change a terminal, reverse a line or hide a part of
    itself.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(each if _is_visible(each) else f"\\u{{{ord(each):04X}}}" for each in text)


def _is_visible(character: str) -> bool:
    if character in "\n\t" or unicodedata.category(character) == "Zs":
        return True
    return character.isprintable() and not _WITHOUT_GLYPH.match(character)
