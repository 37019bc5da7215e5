"""Types of sampled JSON values, for drafts of `decode` sections and of suites."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

from tidemark.spec.fields import Decimal, FieldType, ListOf, Struct

UNKNOWN = "unknown"
"""The type of null and of the elements of an empty list."""
_MAX_DEPTH = 50
"""Maximum levels of a value that become fields; deeper levels become JSON text."""
_LONGS = range(-(2**63), 2**63)
_WIDE_INTEGER = Decimal(28, 0)
_TEXT_FORMS: dict[str, re.Pattern[str]] = {
    "date": re.compile(r"\d{4}-\d{2}-\d{2}"),
    "timestamp": re.compile(
        r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,6})?"
        r"(Z|[+-](0\d|1[0-7]):[0-5]\d|[+-]18:00)?"
    ),
}
"""Forms of text that the decoder reads as these types."""


def json_object(data: bytes) -> Mapping[str, Any] | None:
    """Return a value parsed as a JSON object; None if it is not a JSON object."""
    try:
        # Spark accepts no byte order mark. Python accepts NaN and Infinity, which are not JSON.
        content = json.loads(data.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def type_of(value: Any, depth: int = 0) -> FieldType:
    """Return the type of a parsed JSON value.

    Args:
        value: The value.
        depth: Number of objects and lists that contain the value.
    """
    if depth > _MAX_DEPTH:
        return "string"
    match value:
        case None:
            return UNKNOWN
        case bool():
            return "boolean"
        case int():
            return "long" if value in _LONGS else _wide_integer(value)
        case float():
            return "double"
        case str():
            return _type_of_text(value)
        case list():
            element: FieldType = UNKNOWN
            for each in value:
                element = common_type(element, type_of(each, depth + 1))
            return ListOf(element)
        case dict():
            return Struct(tuple((name, type_of(each, depth + 1)) for name, each in value.items()))
    raise AssertionError(type(value))


def _wide_integer(value: int) -> FieldType:
    return _WIDE_INTEGER if len(str(abs(value))) <= _WIDE_INTEGER.precision else "string"


def _type_of_text(text: str) -> FieldType:
    for kind, form in _TEXT_FORMS.items():
        if form.fullmatch(text):
            try:
                _ = date.fromisoformat(text) if kind == "date" else datetime.fromisoformat(text)
            except ValueError:
                return "string"
            return kind
    return "string"


def common_type(one: FieldType, other: FieldType) -> FieldType:
    """Return the type for values of both types; string stores any value, as its JSON."""
    if one in (UNKNOWN, other):
        return other
    if other == UNKNOWN:
        return one
    match one, other:
        case Struct(), Struct():
            fields = dict(one.fields)
            for name, each in other.fields:
                fields[name] = common_type(fields[name], each) if name in fields else each
            return Struct(tuple(fields.items()))
        case ListOf(), ListOf():
            return ListOf(common_type(one.element, other.element))
    if {one, other} == {"long", "double"}:
        return "double"
    return _WIDE_INTEGER if {one, other} == {"long", _WIDE_INTEGER} else "string"
