"""A draft of a spec's section `decode`, from a sample of landed records.

A person edits the draft and stores it in the spec. A schema inferred in each run would change under
its readers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from tidemark.core.record import LogRecord
from tidemark.spec.decode import FRAME_BYTES, FRAME_MAGIC, Format
from tidemark.spec.fields import Decimal, FieldType, ListOf, Struct, parse_type, plain_type
from tidemark.typed.profile import json_object

MAX_FIELDS = 200
"""The most fields of a nested object. A larger one is treated as a map, and becomes JSON text."""
_MAX_DEPTH = 50
"""The most levels of a value that become fields; deeper levels become JSON text."""
_NEARLY_ALL = 0.99
"""The share of values that decides the format; the other values go to the quarantine."""
_LONGS = range(-(2**63), 2**63)
_WIDE = Decimal(28, 0)
_FORMS: dict[str, re.Pattern[str]] = {
    "date": re.compile(r"\d{4}-\d{2}-\d{2}"),
    "timestamp": re.compile(
        r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,6})?"
        r"(Z|[+-](0\d|1[0-7]):[0-5]\d|[+-]18:00)?"
    ),
}
"""The text forms that are decoded as these types."""
_UNKNOWN = "unknown"
"""The type of a field with null values only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeDraft:
    """A draft of the section `decode`.

    Attributes:
        records: Number of records in the sample.
        key: Format of the keys.
        value: Format of the values.
        schema: Fields of the values; None if they are not JSON.
        left_out: Paths of fields that the schema leaves out, each with the reason.
        is_framed: Whether nearly all values begin like payloads with a schema id.
    """

    records: int
    key: Format
    value: Format
    schema: Struct | None
    left_out: Sequence[tuple[str, str]]
    is_framed: bool

    def as_section(self) -> dict[str, Any]:
        """Return the section `decode` of a spec as plain values."""
        value: dict[str, Any] = {"format": str(self.value)}
        if self.schema:
            value["schema"] = plain_type(self.schema)
        return {"key": {"format": str(self.key)}, "value": value}


def draft(records: Iterable[LogRecord]) -> DecodeDraft:
    """Return a draft for a sample of records, read once.

    The value format is JSON if nearly all values are JSON objects, string if all are text, and
    binary otherwise.
    """
    seen, objects, values, texts, framed = 0, 0, 0, 0, 0
    key_is_text = True
    found: FieldType = _UNKNOWN
    for record in records:
        seen += 1
        key_is_text = key_is_text and _is_text(record.key)
        if record.value is None:
            continue
        values += 1
        texts += _is_text(record.value)
        framed += record.value.startswith(FRAME_MAGIC) and len(record.value) >= FRAME_BYTES
        content = json_object(record.value)
        if content is not None:
            objects += 1
            found = _common_type(found, _type_of(content, 0))
    left_out: list[tuple[str, str]] = []
    schema = _without_unknown(found, "", left_out) if objects >= _NEARLY_ALL * values else None
    if isinstance(schema, Struct):
        kind = Format.JSON
    else:
        schema = None
        kind = Format.STRING if values and texts == values else Format.BINARY
    return DecodeDraft(
        records=seen,
        key=Format.STRING if key_is_text else Format.BINARY,
        value=kind,
        schema=schema,
        left_out=left_out,
        is_framed=0 < _NEARLY_ALL * values <= framed,
    )


def _is_text(data: bytes | None) -> bool:
    try:
        # A text does not begin with a zero byte; a payload with a schema id does.
        return data is None or "\0" not in data.decode("utf-8")[:1]
    except UnicodeDecodeError:
        return False


def _type_of(value: Any, depth: int) -> FieldType:
    if depth > _MAX_DEPTH:
        return "string"
    match value:
        case None:
            return _UNKNOWN
        case bool():
            return "boolean"
        case int():
            return "long" if value in _LONGS else _wide(value)
        case float():
            return "double"
        case str():
            return _type_of_text(value)
        case list():
            element: FieldType = _UNKNOWN
            for each in value:
                element = _common_type(element, _type_of(each, depth + 1))
            return ListOf(element)
        case dict():
            return Struct(tuple((name, _type_of(each, depth + 1)) for name, each in value.items()))
    raise AssertionError(type(value))


def _wide(value: int) -> FieldType:
    return _WIDE if len(str(abs(value))) <= _WIDE.precision else "string"


def _type_of_text(text: str) -> FieldType:
    for kind, form in _FORMS.items():
        if form.fullmatch(text):
            try:
                _ = date.fromisoformat(text) if kind == "date" else datetime.fromisoformat(text)
            except ValueError:
                return "string"
            return kind
    return "string"


def _common_type(one: FieldType, other: FieldType) -> FieldType:
    """Return the type for values of both types; string stores any value, as its JSON."""
    if one in (_UNKNOWN, other):
        return other
    if other == _UNKNOWN:
        return one
    match one, other:
        case Struct(), Struct():
            there = dict(one.fields)
            for name, each in other.fields:
                there[name] = _common_type(there[name], each) if name in there else each
            return Struct(tuple(there.items()))
        case ListOf(), ListOf():
            return ListOf(_common_type(one.element, other.element))
    if {one, other} == {"long", "double"}:
        return "double"
    return _WIDE if {one, other} == {"long", _WIDE} else "string"


def _without_unknown(
    kind: FieldType, path: str, left_out: list[tuple[str, str]]
) -> FieldType | None:
    """Return a type without unknown parts, and append those to `left_out`; None if none is left."""
    match kind:
        case str() if kind == _UNKNOWN:
            left_out.append((path, "only null values or empty lists"))
            return None
        case ListOf():
            element = _without_unknown(kind.element, f"{path}[]", left_out)
            return None if element is None else ListOf(element)
        case Struct():
            return _struct_without_unknown(kind, path, left_out)
        case _:
            return kind


def _struct_without_unknown(
    kind: Struct, path: str, left_out: list[tuple[str, str]]
) -> FieldType | None:
    if len(kind.fields) > MAX_FIELDS and path:
        return "string"
    fields: dict[str, tuple[str, FieldType]] = {}
    for name, each in kind.fields:
        place = f"{path}.{name}" if path else name
        try:
            parse_type({name: "string"})
        except ValueError as why:
            left_out.append((place, str(why)))
            continue
        if name.lower() in fields:
            left_out.append((place, "the name of another field differs only in case"))
            continue
        found = _without_unknown(each, place, left_out)
        if found is not None:
            fields[name.lower()] = (name, found)
    if not fields and path:
        left_out.append((path, "an object without usable fields"))
    return Struct(tuple(fields.values())) if fields else None
