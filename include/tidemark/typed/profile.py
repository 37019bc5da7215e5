"""What some records look like: how many have a key, whose values are JSON, what is in their fields.

It is told of a sample, so that a person can say of all records what must hold.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from tidemark.core.record import LogRecord

MOST_VALUES = 10
"""As many different values a field may have to be told by listing them."""
_LEAST_LONG, _MOST_LONG = -(2**63), 2**63 - 1

_Scalar: TypeAlias = str | int | float | bool


class FieldType(StrEnum):
    """The Spark SQL type that holds every value that was seen of a field."""

    BOOLEAN = "BOOLEAN"
    BIGINT = "BIGINT"
    DOUBLE = "DOUBLE"
    STRING = "STRING"
    """Text, and values of several types."""
    NESTED = "NESTED"
    """Objects and lists: what is in them is not looked at."""


@dataclass(slots=True, kw_only=True)
class FieldProfile:
    """What was seen of one top-level field of JSON values, record by record.

    Attributes:
        name: As the values have it.
        seen: Records that have it with a value other than null.
        types: How many of them by type.
        least: Least number, or shortest text's length; None if there is neither.
        greatest: Greatest number, or longest text's length.
        values: The different values, written as text.
        keyed: Records that have it, and a key.
        as_key: Those whose key is its value, written as text.
    """

    name: str
    seen: int = 0
    types: Counter[FieldType] = field(default_factory=Counter)
    least: float | None = None
    greatest: float | None = None
    values: set[str] = field(default_factory=set)
    keyed: int = 0
    as_key: int = 0

    @property
    def type(self) -> FieldType:
        """The type for all values that were seen."""
        kinds = set(self.types)
        if kinds == {FieldType.BIGINT, FieldType.DOUBLE}:
            return FieldType.DOUBLE
        return kinds.pop() if len(kinds) == 1 else FieldType.STRING

    @property
    def is_number(self) -> bool:
        """Whether its values have a size."""
        return self.type in (FieldType.BIGINT, FieldType.DOUBLE)

    @property
    def is_unique(self) -> bool:
        """Whether no value came twice."""
        return len(self.values) == self.seen

    def add(self, value: Any, key: str | None, *, keyed: bool) -> None:
        """Look at the field in one more record, which may have a key that is no text."""
        if value is None:
            return
        self.seen += 1
        self.keyed += keyed
        kind = _type_of(value)
        self.types[kind] += 1
        if kind is FieldType.NESTED:
            return
        text = _text_of(value)
        self.values.add(text)
        self.as_key += key == text
        if not isinstance(value, bool):
            size = len(value) if isinstance(value, str) else value
            self.least = size if self.least is None else min(self.least, size)
            self.greatest = size if self.greatest is None else max(self.greatest, size)


@dataclass(slots=True, kw_only=True)
class Profile:
    """What was seen of some records.

    Attributes:
        records: How many there were.
        keys: Different keys; bytes that are no UTF-8 count as one.
        with_key: Records with a key.
        tombstones: Records without a value.
        objects: Records whose value is a JSON object.
        fields: Its fields, by name, in the order in which they came.
    """

    records: int = 0
    keys: set[str | None] = field(default_factory=set)
    with_key: int = 0
    tombstones: int = 0
    objects: int = 0
    fields: dict[str, FieldProfile] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[LogRecord]) -> Profile:
        """Look at records once, one after the other."""
        profile = cls()
        for record in records:
            profile.add(record)
        return profile

    @property
    def values(self) -> int:
        """Records with a value."""
        return self.records - self.tombstones

    def add(self, record: LogRecord) -> None:
        """Look at one more record."""
        self.records += 1
        key = _decoded(record.key)
        if record.key is not None:
            self.with_key += 1
            self.keys.add(key)
        if record.value is None:
            self.tombstones += 1
            return
        content = json_object(record.value)
        if content is None:
            return
        self.objects += 1
        for name, value in content.items():
            self.fields.setdefault(name, FieldProfile(name=name)).add(
                value, key, keyed=record.key is not None
            )

    def as_record(self) -> dict[str, Any]:
        """The profile as plain values, for `--json`."""
        return {
            "records": self.records,
            "with_key": self.with_key,
            "tombstones": self.tombstones,
            "json_objects": self.objects,
            "fields": {
                each.name: {"type": str(each.type), "seen": each.seen}
                for each in self.fields.values()
            },
        }


def _decoded(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def json_object(data: bytes) -> Mapping[str, Any] | None:
    """The JSON object that a value is; None for all else."""
    try:
        # Spark reads UTF-8 without a mark. NaN and its like are not JSON, though Python reads them.
        content = json.loads(data.decode("utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _type_of(value: Any) -> FieldType:
    match value:
        case bool():
            return FieldType.BOOLEAN
        case int():
            return FieldType.BIGINT if _LEAST_LONG <= value <= _MOST_LONG else FieldType.STRING
        case float():
            return FieldType.DOUBLE
        case str():
            return FieldType.STRING
        case _:
            return FieldType.NESTED


def _text_of(value: _Scalar) -> str:
    return value if isinstance(value, str) else json.dumps(value)
