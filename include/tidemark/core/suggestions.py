"""Suggestions for misspelled names, as parts of error messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return ` (did you mean 'topic'?)` for the known name that is most similar to `name`.

    Returns:
        An empty text if no known name is similar, or if `name` is not a text.
    """
    by_lower_case = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), by_lower_case, 1) if isinstance(name, str) else []
    return f" (did you mean {by_lower_case[found[0]]!r}?)" if found else ""
