"""Names in error messages: suggestions for misspelled ones, and lists of limited length."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

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
    listed = list(names)
    if len(listed) <= _MOST_NAMES:
        return ", ".join(listed)
    return f"{', '.join(listed[:_MOST_NAMES])} and {len(listed) - _MOST_NAMES:,} more"
