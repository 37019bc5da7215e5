"""Types of sampled JSON values, for drafts of `decode` sections and of suites."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

from tidemark.core.payload_text import refuse_constant
from tidemark.silver.typed.formats.value_limits import has_too_many_values
from tidemark.spec.fields import Decimal, FieldType, ListOf, Struct
from tidemark.spec.schema_limits import MAX_LEVELS

UNKNOWN = "unknown"
"""The type of null and of the elements of an empty list."""
ENOUGH = 0.95
"""The share of sampled values that decides a type or a format; the others go to quarantine."""
MAX_FIELDS = 200
"""Maximum fields of a nested object. A larger object is treated as a map, and becomes JSON text."""
_MAX_DEPTH = MAX_LEVELS - 1
"""Maximum levels of a value that become fields; deeper levels become JSON text."""
_LIST, _OBJECT = "list", "object"
_LONGS = range(-(2**63), 2**63)
_WIDE_INTEGER = Decimal(28, 0)
TEXT_FORMS: dict[str, re.Pattern[str]] = {
    "date": re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII),
    "timestamp": re.compile(
        r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,6})?"
        r"(Z|[+-](0\d|1[0-7]):[0-5]\d|[+-]18:00)?",
        re.ASCII,
    ),
}
"""Forms of text that the decoder reads as these types."""


def json_object(data: bytes) -> Mapping[str, Any] | None:
    """Return a value parsed as a JSON object; None if a decode would refuse it."""
    if has_too_many_values(data):
        return None
    try:
        # Spark accepts no byte order mark. Python accepts NaN and Infinity, which are not JSON.
        content = json.loads(data.decode("utf-8"), parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


@dataclass(slots=True)
class TypeCounts:
    """Counts of the types of the JSON values at one path.

    Attributes:
        kinds: Number of values by type; `list` and `object` for those, without nulls.
        elements: The elements of the lists; None without a list.
        fields: The fields of the objects by name, in the order of their first occurrence.
        is_map: Whether the objects have too many different fields. Then none is counted.
    """

    kinds: Counter[FieldType] = field(default_factory=Counter)
    elements: TypeCounts | None = None
    fields: dict[str, TypeCounts] = field(default_factory=dict)
    is_map: bool = False

    @property
    def values(self) -> int:
        """Number of values other than null."""
        return self.kinds.total()

    def add(self, value: Any, depth: int = 1) -> None:
        """Count a parsed JSON value.

        Args:
            value: The value.
            depth: Number of objects and lists that contain the value.
        """
        if value is None:
            return
        if isinstance(value, list | dict) and depth <= _MAX_DEPTH:
            self._add_nested(value, depth)
        else:
            self.kinds[_scalar_type(value)] += 1

    def _add_nested(self, value: list[Any] | dict[str, Any], depth: int) -> None:
        if isinstance(value, list):
            self.kinds[_LIST] += 1
            self.elements = self.elements or TypeCounts()
            for each in value:
                self.elements.add(each, depth + 1)
            return
        self.kinds[_OBJECT] += 1
        for name, each in () if self.is_map else value.items():
            counts = self.fields.get(name)
            if counts is None:
                counts = self.fields[name] = TypeCounts()
            counts.add(each, depth + 1)
        if len(self.fields) > MAX_FIELDS:
            self.is_map = True
            self.fields.clear()

    def type_for(self, share: float) -> FieldType:
        """Return the type that fits at least this share of the values, and as many as possible.

        Returns:
            `string`, which stores any value as its JSON, if no other type does. `UNKNOWN` without
            a value.
        """
        if not self.values:
            return UNKNOWN
        fitting = {kind: self.fitting(kind) for kind in _CANDIDATES}
        # If several types fit the same values, the first one is the narrowest.
        best = max(fitting, key=lambda kind: fitting[kind])
        if fitting[best] < share * self.values:
            return "string"
        if best == _LIST:
            return ListOf(self.elements.type_for(share) if self.elements else UNKNOWN)
        if best == _OBJECT:
            fields = ((name, each.type_for(share)) for name, each in self.fields.items())
            return "string" if self.is_map else Struct(tuple(fields))
        return best

    def fitting(self, kind: FieldType) -> int:
        """Return the number of values that fit a type; nested values are not examined."""
        match kind:
            case "string":
                return self.values
            case "double":
                return self.kinds["long"] + self.kinds["double"]
            case Decimal():
                return self.kinds["long"] + self.kinds[kind]
            case ListOf():
                return self.kinds[_LIST]
            case Struct():
                return self.kinds[_OBJECT]
            case _:
                return self.kinds[kind]


_CANDIDATES: tuple[FieldType, ...] = (
    "boolean",
    "long",
    _WIDE_INTEGER,
    "double",
    "date",
    "timestamp",
    _LIST,
    _OBJECT,
)
"""Types that `type_for` selects from, and the two kinds of nested values."""


def _scalar_type(value: Any) -> FieldType:
    match value:
        case bool():
            return "boolean"
        case int():
            return "long" if value in _LONGS else _wide_integer(value)
        case float():
            return "double"
        case str():
            return _type_of_text(value)
        case _:
            return "string"


def _wide_integer(value: int) -> FieldType:
    return _WIDE_INTEGER if len(str(abs(value))) <= _WIDE_INTEGER.precision else "string"


def _type_of_text(text: str) -> FieldType:
    for kind, form in TEXT_FORMS.items():
        if form.fullmatch(text):
            try:
                _ = date.fromisoformat(text) if kind == "date" else datetime.fromisoformat(text)
            except ValueError:
                return "string"
            return kind
    return "string"
