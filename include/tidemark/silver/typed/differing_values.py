"""Comparison of the values of a typed row with the expected values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.silver.typed.json_values import (
    JsonText,
    NotJudged,
    parsed_json,
)
from tidemark.silver.typed.payload_values import MalformedPayload
from tidemark.spec.fields import FieldType, ListOf, MapOf, Struct


@dataclass(frozen=True, slots=True)
class Unjudged:
    """A column that cannot be compared.

    Attributes:
        path: The column, or the field in it.
        reason: Why.
    """

    path: str
    reason: str


def differing_columns(
    expected: Any, found: Any, kind: FieldType, path: str
) -> Iterator[str | Unjudged]:
    """Yield the paths at which a typed value differs from the expected one.

    Args:
        expected: A result of `expected_value`, or a part of it.
        found: The value in the typed table, as Arrow returns it in Python.
        kind: The type of the column.
        path: The name of the column.
    """
    if isinstance(expected, NotJudged):
        yield Unjudged(path, str(expected))
    elif expected is None or found is None:
        if expected is not found:
            yield path
    elif isinstance(kind, Struct):
        yield from _differing_fields(expected, found, kind, path)
    else:
        try:
            if not _is_same(expected, found, kind):
                yield path + ("[]" if isinstance(kind, ListOf) else "{}" * isinstance(kind, MapOf))
        except NotJudged as why:
            yield Unjudged(path, str(why))


def _differing_fields(
    expected: Mapping[str, Any], found: Mapping[str, Any], kind: Struct, path: str
) -> Iterator[str | Unjudged]:
    inner = dict(kind.fields)
    for name, each in inner.items():
        yield from differing_columns(expected.get(name), found.get(name), each, f"{path}.{name}")
    for name in expected.keys() - inner.keys():
        if expected[name] is not None:
            yield f"{path}.{name}"


def _is_same(expected: Any, found: Any, kind: FieldType) -> bool:
    match kind:
        case ListOf(element=element):
            return _same_elements(expected, found, element)
        case MapOf(value=value):
            return _same_entries(dict(expected), found, value)
        case _:
            return _same_scalar(expected, found, kind)


def _same_entries(
    expected: Mapping[str, Any], found: Sequence[tuple[str, Any]], kind: FieldType
) -> bool:
    entries = dict(found)
    if len(entries) < len(found):
        raise NotJudged("a map has a key twice")
    if expected.keys() != entries.keys():
        return False
    return _same_elements([*expected.values()], [entries[key] for key in expected], kind)


def _same_elements(expected: Sequence[Any], found: Sequence[Any], kind: FieldType) -> bool:
    if len(expected) != len(found):
        return False
    for one, other in zip(expected, found, strict=True):
        for each in differing_columns(one, other, kind, "element"):
            if isinstance(each, Unjudged):
                raise NotJudged(each.reason)
            return False
    return True


def _same_scalar(expected: Any, found: Any, kind: FieldType) -> bool:
    if isinstance(expected, JsonText):
        return _is_text_of(expected, found)
    if kind in ("float", "double"):
        return _same_float(float(expected), found)
    return bool(expected == found)


def _same_float(expected: float, found: Any) -> bool:
    """Return whether two numbers have the same bits, or are both NaN."""
    if not isinstance(found, float) or math.isnan(expected) or math.isnan(found):
        return isinstance(found, float) and math.isnan(expected) and math.isnan(found)
    return expected == found and math.copysign(1, expected) == math.copysign(1, found)


def _is_text_of(expected: JsonText, found: Any) -> bool:
    """Return whether a text is the JSON of a value."""
    try:
        read = parsed_json(found)
    except MalformedPayload:
        return False
    return _same_json(expected.value, read)


def _same_json(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal."""
    match one, other:
        case dict(), dict():
            return one.keys() == other.keys() and all(_same_json(one[n], other[n]) for n in one)
        case list(), list():
            return len(one) == len(other) and all(map(_same_json, one, other))
        case (bool(), _) | (_, bool()):
            return one is other
        case _:
            return bool(one == other)
