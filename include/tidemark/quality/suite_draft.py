"""Drafts a quality suite from a profile of sampled records.

The rules describe the sample, so every rule is a warning. A person edits them: a property of the
sample may be chance.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tidemark.typed.profile import MAX_LISTED_VALUES, FieldProfile, Profile

MIN_VALUES = 100
"""Minimum number of values for a rule."""
_NEARLY_ALL = 0.99
"""Share of the values for a rule with exceptions."""
_MARGIN = 10
"""Limits of numbers are the largest sampled number times this factor."""
_MAX_LIMITED = 1e15
"""Larger numbers are identifiers or errors, and get no limits."""
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_VALUE_LENGTH = 40
_SHAPES = {
    "a UUID": r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
    "digits": r"^[0-9]+$",
    "an e-mail address": r"^[^@\s]+@[^@\s]+$",
}
_CONTENT = "content"
_KEY_TYPES = ("STRING", "BIGINT")
"""Types of fields that may be unique or equal to the key."""


def draft_suite(name: str, profile: Profile, batch_columns: set[str]) -> dict[str, Any]:
    """Return the content of a suite's file.

    Args:
        name: Name of the suite.
        profile: The profile of sampled records.
        batch_columns: Columns of every batch. Columns of the suite get other names.

    Returns:
        The content, which `quality.suite.load_suite` reads.
    """
    fields = list(_usable(profile)) if _is_json(profile) else []
    columns = _column_names(fields, batch_columns)
    rules = [rule for each in fields for rule in _rules(each, columns[each.name])]
    expressions: dict[str, str] = {}
    if fields:
        expressions[_CONTENT] = _parse_expression(fields)
        used = {rule["kwargs"]["column"] for rule in rules}
        expressions |= {
            columns[each.name]: _path(each) for each in fields if columns[each.name] in used
        }
        expressions["value_problem"] = _value_problem(profile, fields)
        always = profile.objects == profile.values
        rules.insert(0, _null_rule("value_problem", _value_sentence(profile, fields), always))
    key_field = next((each for each in fields if _is_key(each)), None)
    if key_field:
        # In a comparison with a number, Spark casts the key, and fails if it is not a number.
        value = f"CAST({_path(key_field)} AS STRING)"
        expressions["key_problem"] = (
            f"CASE WHEN key_text <> {value} "
            f"THEN concat('key ', key_text, ', {key_field.name} ', {value}) END"
        )
        sentence = f"every key is the {key_field.name} in its value"
        always = key_field.equal_to_key == key_field.with_key
        rules.append(_null_rule("key_problem", sentence, always))
    elif shape := _shape(profile.keys) if profile.with_key >= MIN_VALUES else None:
        rules.append(_regex_rule("key_text", f"every key is {shape}", _SHAPES[shape]))
    return {
        "name": name,
        "notes": _notes(profile, fields),
        "meta": {"tidemark": {"columns": expressions, "checks": dict(_checks(profile))}},
        "expectations": rules,
    }


def _is_json(profile: Profile) -> bool:
    return profile.objects > 0 and profile.objects >= _NEARLY_ALL * profile.values


def _usable(profile: Profile) -> Iterator[FieldProfile]:
    """Yield fields that can become columns. Spark's column names ignore case."""
    names: set[str] = set()
    for each in profile.fields.values():
        is_scalar = each.present and each.sql_type
        if is_scalar and _PLAIN.fullmatch(each.name) and each.name.lower() not in names:
            names.add(each.name.lower())
            yield each


def _column_names(fields: list[FieldProfile], batch_columns: set[str]) -> Mapping[str, str]:
    """Return the column name of each field: the field's name, or a similar one if it is taken."""
    reserved = {*batch_columns, _CONTENT, "value_problem", "key_problem"}
    taken = {*reserved, *(field.name.lower() for field in fields)}
    names = {}
    for field in fields:
        name = field.name
        if name.lower() in reserved:
            name = f"{name}_field"
            while name.lower() in taken:
                name += "_"
        taken.add(name.lower())
        names[field.name] = name
    return names


def _parse_expression(fields: list[FieldProfile]) -> str:
    schema = ", ".join(f"`{each.name}` {each.sql_type}" for each in fields)
    return f"from_json(value_text, '{schema}')"


def _path(field: FieldProfile) -> str:
    return f"{_CONTENT}.`{field.name}`"


def _always_present(profile: Profile, fields: list[FieldProfile]) -> list[FieldProfile]:
    """Return the fields that every sampled object has."""
    return [each for each in fields if each.present == profile.objects]


def _value_problem(profile: Profile, fields: list[FieldProfile]) -> str:
    missing = " ".join(
        f"WHEN {_path(each)} IS NULL THEN 'no {each.name}'"
        for each in _always_present(profile, fields)
    )
    return (
        "CASE WHEN value_text IS NULL THEN NULL "
        "WHEN get_json_object(value_text, '$') IS NULL THEN 'not JSON' "
        f"{missing}{' ' if missing else ''}END"
    )


def _value_sentence(profile: Profile, fields: list[FieldProfile]) -> str:
    names = ", ".join(each.name for each in _always_present(profile, fields))
    return f"every value is JSON{f' with {names}' if names else ''}"


def _rules(field: FieldProfile, column: str) -> Iterator[dict[str, Any]]:
    """Yield the rules of one field, if enough records have it."""
    if field.present < MIN_VALUES:
        return
    largest = max(abs(field.minimum or 0), abs(field.maximum or 0))
    if field.is_number and largest <= _MAX_LIMITED:
        yield _range_rule(field, column)
    elif field.texts == field.present:
        # Values of a shape are identifiers, which do not belong in a file in Git.
        if shape := _shape(field.distinct):
            yield _regex_rule(column, f"{field.name} is {shape}", _SHAPES[shape])
        elif values := _listed_values(field):
            yield _rule(
                "expect_column_values_to_be_in_set",
                {"column": column, "value_set": values},
                f"{field.name} is one of the {len(values)} sampled value(s)",
            )
    if field.is_unique and field.sql_type in _KEY_TYPES:
        yield _rule(
            "expect_column_values_to_be_unique",
            {"column": column},
            f"{field.name} is unique in a batch",
        )


def _range_rule(field: FieldProfile, column: str) -> dict[str, Any]:
    minimum, maximum = field.minimum or 0, field.maximum or 0
    limit = _rounded_up(_MARGIN * max(abs(minimum), abs(maximum)))
    kwargs: dict[str, Any] = {"column": column}
    if minimum >= 0:
        kwargs["min_value"] = 0
        if minimum > 0:
            kwargs["strict_min"] = True
        lower = "above 0" if minimum > 0 else "at least 0"
    else:
        kwargs["min_value"] = -limit
        lower = f"at least {-limit:,}"
    kwargs["max_value"] = limit
    return _rule(
        "expect_column_values_to_be_between",
        kwargs,
        f"{field.name} is {lower} and at most {limit:,}; sampled values are {minimum:,} to "
        f"{maximum:,}",
    )


def _rounded_up(number: float) -> int:
    """Return the next number with one digit and zeros: `1`, `40`, `7_000`."""
    integer = max(1, -int(-number // 1))
    unit = 10 ** (len(str(integer)) - 1)
    return int(-(-integer // unit) * unit)


def _listed_values(field: FieldProfile) -> list[str]:
    """Return the distinct values if they are few, short and frequent; otherwise none."""
    few = len(field.distinct) <= MAX_LISTED_VALUES and len(field.distinct) * 10 <= field.present
    # Great Expectations does not accept an empty text in a set.
    short = all(1 <= len(value) <= _MAX_VALUE_LENGTH for value in field.distinct)
    return sorted(field.distinct) if few and short else []


def _shape(values: Collection[str | None]) -> str | None:
    """Return the name of the shape that all values have; None without a common shape."""
    texts = [value for value in values if isinstance(value, str)]
    if not texts or len(texts) < len(values):
        return None
    for name, pattern in _SHAPES.items():
        if all(re.fullmatch(pattern, text) for text in texts):
            return name
    return None


def _is_key(field: FieldProfile) -> bool:
    """Whether nearly all keys equal this field of their value."""
    return (
        field.sql_type in _KEY_TYPES
        and field.with_key >= MIN_VALUES
        and field.equal_to_key >= _NEARLY_ALL * field.with_key
    )


def _regex_rule(column: str, sentence: str, pattern: str) -> dict[str, Any]:
    kwargs = {"column": column, "regex": pattern}
    return _rule("expect_column_values_to_match_regex", kwargs, sentence)


def _null_rule(column: str, sentence: str, always: bool) -> dict[str, Any]:
    kwargs: dict[str, Any] = {"column": column}
    if not always:
        kwargs["mostly"] = _NEARLY_ALL
        sentence = f"{sentence}, in {_NEARLY_ALL:.0%} of the records"
    return _rule("expect_column_values_to_be_null", kwargs, sentence)


def _rule(kind: str, kwargs: Mapping[str, Any], sentence: str) -> dict[str, Any]:
    return {
        "type": kind,
        "kwargs": dict(kwargs),
        "severity": "warning",
        "description": sentence,
    }


def _checks(profile: Profile) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield limits of built-in checks: twice the share in the sample."""
    shares = {
        "null_key_percent": profile.records - profile.with_key,
        "null_value_percent": profile.tombstones,
    }
    for name, without in shares.items():
        if profile.records >= MIN_VALUES and without < profile.records / 2:
            limit = -(-200 * without // profile.records)
            yield name, {"limit": limit, "severity": "warning"}


def _notes(profile: Profile, fields: list[FieldProfile]) -> str:
    notes = f"Drafted from {profile.records:,} record(s), the newest of each partition. "
    if fields:
        left_out = [name for name in profile.fields if name not in {each.name for each in fields}]
        if left_out:
            notes += (
                f"{len(left_out)} field(s) have no rules: they are nested, always null, or their "
                "names are not plain identifiers. "
            )
    elif profile.values:
        notes += (
            f"{profile.objects:,} of {profile.values:,} values are JSON objects, so the suite has "
            "no rules about fields. "
        )
    return (
        f"{notes}The rules contain sampled values, also of blocked plans. "
        "Edit every rule, and make rules that must hold critical."
    )
