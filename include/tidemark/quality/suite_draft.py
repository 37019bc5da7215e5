"""A first draft of a quality suite from a profile: what held of a sample, as rules to be edited.

Every rule is a warning. What a sample shows may be chance; only a person knows what must hold.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tidemark.typed.profile import MAX_LISTED_VALUES, FieldProfile, Profile, SqlType

ENOUGH = 100
"""Values of which something may be said of all."""
_NEARLY_ALL = 0.99
"""A share of the values that is taken for the rule, and the rest for exceptions."""
_ROOM = 10
"""How many times the greatest number seen may become, before somebody should look."""
_LARGEST = 1e15
"""Beyond it numbers are names, or nonsense: nothing is said of their size."""
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_VALUE = 40
_SHAPES = {
    "a UUID": r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
    "digits": r"^[0-9]+$",
    "an e-mail address": r"^[^@\s]+@[^@\s]+$",
}
_CONTENT = "content"


def draft(name: str, profile: Profile, taken: set[str]) -> dict[str, Any]:
    """A suite's file for records like these.

    Args:
        name: The suite's name.
        profile: Of the records.
        taken: Columns that every slice has; the suite's own are called otherwise.

    Returns:
        What `quality.gx.suite.load_suite` reads, in the form of Great Expectations.
    """
    fields = list(_usable(profile)) if _is_json(profile) else []
    columns = _names(fields, taken)
    rules = [rule for each in fields for rule in _rules(each, columns[each.name])]
    expressions: dict[str, str] = {}
    if fields:
        expressions[_CONTENT] = _parsed(fields)
        used = {rule["kwargs"]["column"] for rule in rules}
        expressions |= {
            columns[each.name]: _path(each) for each in fields if columns[each.name] in used
        }
        expressions["value_problem"] = _value_problem(profile, fields)
        of_all = profile.objects == profile.values
        rules.insert(0, _null("value_problem", _value_sentence(profile, fields), of_all=of_all))
    keyed = next((each for each in fields if _is_key(each)), None)
    if keyed:
        # A comparison with a number would make a number of the key, and stop where it is none.
        value = f"CAST({_path(keyed)} AS STRING)"
        expressions["key_problem"] = (
            f"CASE WHEN key_text <> {value} "
            f"THEN concat('key ', key_text, ', {keyed.name} ', {value}) END"
        )
        sentence = f"every key is the {keyed.name} in its value"
        rules.append(_null("key_problem", sentence, of_all=keyed.as_key == keyed.keyed))
    elif shape := _shape(profile.keys) if profile.with_key >= ENOUGH else None:
        rules.append(_matches("key_text", f"every key is {shape}", _SHAPES[shape]))
    return {
        "name": name,
        "notes": _notes(profile, fields),
        "meta": {"tidemark": {"columns": expressions, "checks": dict(_checks(profile))}},
        "expectations": rules,
    }


def _is_json(profile: Profile) -> bool:
    return profile.objects > 0 and profile.objects >= _NEARLY_ALL * profile.values


def _usable(profile: Profile) -> Iterator[FieldProfile]:
    """Fields that a column can be called after; Spark does not tell `a` from `A`."""
    seen: set[str] = set()
    for each in profile.fields.values():
        told = each.seen and each.type is not SqlType.NESTED
        if told and _PLAIN.fullmatch(each.name) and each.name.lower() not in seen:
            seen.add(each.name.lower())
            yield each


def _names(fields: list[FieldProfile], taken: set[str]) -> Mapping[str, str]:
    """The column of each field; one that there is already is called otherwise."""
    avoided = {*taken, _CONTENT, "value_problem", "key_problem", *(f.name.lower() for f in fields)}
    names = {}
    for each in fields:
        name = each.name
        if name.lower() in {*taken, _CONTENT, "value_problem", "key_problem"}:
            name = f"{name}_field"
            while name.lower() in avoided:
                name += "_"
        avoided.add(name.lower())
        names[each.name] = name
    return names


def _parsed(fields: list[FieldProfile]) -> str:
    schema = ", ".join(f"`{each.name}` {each.type}" for each in fields)
    return f"from_json(value_text, '{schema}')"


def _path(each: FieldProfile) -> str:
    return f"{_CONTENT}.`{each.name}`"


def _always(profile: Profile, fields: list[FieldProfile]) -> list[FieldProfile]:
    """Fields that no object of the sample was without."""
    return [each for each in fields if each.seen == profile.objects]


def _value_problem(profile: Profile, fields: list[FieldProfile]) -> str:
    missing = " ".join(
        f"WHEN {_path(each)} IS NULL THEN 'no {each.name}'" for each in _always(profile, fields)
    )
    return (
        "CASE WHEN value_text IS NULL THEN NULL "
        "WHEN get_json_object(value_text, '$') IS NULL THEN 'not JSON' "
        f"{missing}{' ' if missing else ''}END"
    )


def _value_sentence(profile: Profile, fields: list[FieldProfile]) -> str:
    always = ", ".join(each.name for each in _always(profile, fields))
    return f"every value is JSON{f' with {always}' if always else ''}"


def _rules(each: FieldProfile, column: str) -> Iterator[dict[str, Any]]:
    """What held of one field, if enough records have it."""
    if each.seen < ENOUGH:
        return
    if each.is_number and max(abs(each.least or 0), abs(each.greatest or 0)) <= _LARGEST:
        yield _between(each, column)
    elif each.type is SqlType.STRING and set(each.types) == {SqlType.STRING}:
        # What has a shape is a name of somebody or something, and is not for a file in Git.
        if shape := _shape(each.values):
            yield _matches(column, f"{each.name} is {shape}", _SHAPES[shape])
        elif listed := _listed(each):
            yield _rule(
                "expect_column_values_to_be_in_set",
                {"column": column, "value_set": listed},
                f"{each.name} is one of the {len(listed)} value(s) seen",
            )
    if each.is_unique and each.type in (SqlType.STRING, SqlType.BIGINT):
        yield _rule(
            "expect_column_values_to_be_unique",
            {"column": column},
            f"no {each.name} comes twice in one slice",
        )


def _between(each: FieldProfile, column: str) -> dict[str, Any]:
    least, greatest = each.least or 0, each.greatest or 0
    most = _rounded_up(_ROOM * max(abs(least), abs(greatest)))
    limits: dict[str, Any] = {"column": column}
    if least >= 0:
        limits["min_value"] = 0
        if least > 0:
            limits["strict_min"] = True
        bottom = "above 0" if least > 0 else "0 or more"
    else:
        limits["min_value"] = -most
        bottom = f"{-most:,} or more"
    limits["max_value"] = most
    return _rule(
        "expect_column_values_to_be_between",
        limits,
        f"{each.name} is {bottom} and at most {most:,}; seen were {least:,} to {greatest:,}",
    )


def _rounded_up(number: float) -> int:
    """The next number with one digit and zeros: `1`, `40`, `7_000`."""
    whole = max(1, -int(-number // 1))
    unit = 10 ** (len(str(whole)) - 1)
    return int(-(-whole // unit) * unit)


def _listed(each: FieldProfile) -> list[str]:
    """The values, if they are few and each looks like a name for one of a few things."""
    few = len(each.values) <= MAX_LISTED_VALUES and len(each.values) * 10 <= each.seen
    # Great Expectations takes no empty text for a value.
    short = all(1 <= len(value) <= _LONGEST_VALUE for value in each.values)
    return sorted(each.values) if few and short else []


def _shape(values: Collection[str | None]) -> str | None:
    """What all of some texts look like; None if they look like nothing that has a name."""
    texts = [value for value in values if isinstance(value, str)]
    if not texts or len(texts) < len(values):
        return None
    for words, pattern in _SHAPES.items():
        if all(re.fullmatch(pattern, text) for text in texts):
            return words
    return None


def _is_key(each: FieldProfile) -> bool:
    """Whether the key of nearly every record that has one is this field of its value."""
    told = each.type in (SqlType.STRING, SqlType.BIGINT)
    return told and each.keyed >= ENOUGH and each.as_key >= _NEARLY_ALL * each.keyed


def _matches(column: str, sentence: str, pattern: str) -> dict[str, Any]:
    kwargs = {"column": column, "regex": pattern}
    return _rule("expect_column_values_to_match_regex", kwargs, sentence)


def _null(column: str, sentence: str, *, of_all: bool) -> dict[str, Any]:
    kwargs: dict[str, Any] = {"column": column}
    if not of_all:
        kwargs["mostly"] = _NEARLY_ALL
        sentence = f"{_NEARLY_ALL:.0%} of the records: {sentence}"
    return _rule("expect_column_values_to_be_null", kwargs, sentence)


def _rule(kind: str, kwargs: Mapping[str, Any], sentence: str) -> dict[str, Any]:
    return {
        "type": kind,
        "kwargs": dict(kwargs),
        "severity": "warning",
        "description": sentence,
    }


def _checks(profile: Profile) -> Iterator[tuple[str, dict[str, Any]]]:
    """Limits of built-in checks: none where none was seen, else twice the share."""
    shares = {
        "null_key_percent": profile.records - profile.with_key,
        "null_value_percent": profile.tombstones,
    }
    for name, without in shares.items():
        if profile.records >= ENOUGH and without < profile.records / 2:
            limit = -(-200 * without // profile.records)
            yield name, {"limit": limit, "severity": "warning"}


def _notes(profile: Profile, fields: list[FieldProfile]) -> str:
    told = f"Drafted from {profile.records:,} record(s), the newest of each partition. "
    if fields:
        left_out = [name for name in profile.fields if name not in {each.name for each in fields}]
        if left_out:
            told += f"{len(left_out)} field(s) left out: nested, null, or not plainly named. "
    elif profile.values:
        told += (
            f"{profile.objects:,} of {profile.values:,} values are JSON objects, so that nothing "
            "is said of what is in them. "
        )
    return (
        f"{told}Values that were seen are in it, also of plans that checks have blocked. "
        "Every rule is a guess: edit it, and make what must hold critical."
    )
