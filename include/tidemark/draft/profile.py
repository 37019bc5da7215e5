"""A profile of sampled records: counts of keys, tombstones and values, and the values' fields.

Drafts of `decode` sections and of quality suites are made from it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, TypeAlias

from tidemark.core.record import LogRecord
from tidemark.silver.typed.json_types import ENOUGH, TypeCounts, json_object
from tidemark.silver.typed.payload_values import MalformedPayload, decoded_fields
from tidemark.silver.typed.registry_answers import (
    Registry,
    RegistryAnswers,
    leading_schema_ids,
)
from tidemark.spec.decode import Part, RegisteredSchema
from tidemark.spec.fields import FieldType, ListOf, Struct

MAX_LISTED_VALUES = 10
"""Maximum number of distinct values of a field that a rule lists."""
LONGEST_TEXT = 200
"""Length of a text from which on a profile keeps a hash of it; no rule lists such a text."""
_SQL_TYPES = {"boolean": "BOOLEAN", "long": "BIGINT", "double": "DOUBLE"}

_Scalar: TypeAlias = str | int | float | bool


@dataclass(slots=True, kw_only=True)
class FieldProfile:
    """A profile of one top-level field of the values.

    Attributes:
        name: Name of the field.
        present: Number of records with a value other than null.
        types: Counts of the types of these values.
        texts: Number of these records whose value is a text.
        minimum: The smallest number, or the length of the shortest text; None without either.
        maximum: The largest number, or the length of the longest text; None without either.
        distinct: The distinct values as text, each with its number of records. A text longer than
            `LONGEST_TEXT` is its beginning and a hash.
        with_key: Number of records with the field and a key.
        equal_to_key: Number of records whose key equals the value as text.
    """

    name: str
    present: int = 0
    types: TypeCounts = field(default_factory=TypeCounts)
    texts: int = 0
    minimum: float | None = None
    maximum: float | None = None
    distinct: Counter[str] = field(default_factory=Counter)
    with_key: int = 0
    equal_to_key: int = 0

    @property
    def common_type(self) -> FieldType:
        """The type that represents all sampled values; text for values of several types."""
        return self.types.type_for(1.0)

    @property
    def sql_type(self) -> str | None:
        """The Spark SQL type that represents all sampled values; None for objects and lists."""
        if isinstance(self.common_type, Struct | ListOf):
            return None
        return _SQL_TYPES.get(str(self.common_type), "STRING")

    @property
    def is_number(self) -> bool:
        """Whether the values are numbers."""
        return self.sql_type in ("BIGINT", "DOUBLE")

    @property
    def is_unique(self) -> bool:
        """Whether all values differ."""
        return len(self.distinct) == self.present

    def add(self, value: Any, key: str | None, *, has_key: bool) -> None:
        """Add one record.

        Args:
            value: The value of the field.
            key: The key as text; None without a key, or if it is not UTF-8.
            has_key: Whether the record has a key.
        """
        if value is None:
            return
        self.present += 1
        self.with_key += has_key
        self.types.add(value)
        self.texts += isinstance(value, str)
        if isinstance(value, dict | list):
            return
        text = _text_of(value)
        self.distinct[_shortened(text)] += 1
        self.equal_to_key += key == text
        if not isinstance(value, bool):
            size = len(value) if isinstance(value, str) else value
            self.minimum = size if self.minimum is None else min(self.minimum, size)
            self.maximum = size if self.maximum is None else max(self.maximum, size)


@dataclass(slots=True, kw_only=True)
class Profile:
    """A profile of sampled records.

    Attributes:
        records: Number of records.
        keys: The distinct keys as text; all keys that are not UTF-8 count as one.
        with_key: Number of records with a key.
        tombstones: Number of records without a value.
        objects: Number of records whose value is a JSON object, or has fields in its schema.
        text_values: Number of records whose value is text.
        text_keys: Number of records whose key is text.
        value_schemas: Number of records by the schema id that their value seems to begin with.
        key_schemas: The same for keys.
        answers: The registry's answers to these ids; None without a request.
        malformed: Number of keys and of values that do not match their schemas.
        fields: Profiles of the objects' fields by name, in the order of their first occurrence.
    """

    records: int = 0
    keys: set[str | None] = field(default_factory=set)
    with_key: int = 0
    tombstones: int = 0
    objects: int = 0
    text_values: int = 0
    text_keys: int = 0
    value_schemas: Counter[int] = field(default_factory=Counter)
    key_schemas: Counter[int] = field(default_factory=Counter)
    answers: RegistryAnswers | None = None
    malformed: Counter[Part] = field(default_factory=Counter)
    fields: dict[str, FieldProfile] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[LogRecord]) -> Profile:
        """Return the profile of some records, read once."""
        profile = cls()
        for record in records:
            profile.add(record)
        return profile

    @classmethod
    def of_sample(cls, read: Callable[[], Iterable[LogRecord]], registry: Registry) -> Profile:
        """Return the profile of some records. A registry returns the schemas of their ids.

        Args:
            read: Returns the records. Called twice if keys or values have schema ids.
            registry: Returns the schemas of the ids that keys and values begin with.
        """
        profile = cls.of(read())
        ids = profile.schema_ids(Part.KEY).keys() | profile.schema_ids(Part.VALUE).keys()
        if ids:
            profile.answers = registry(ids)
            profile._decode(read())
        return profile

    @property
    def values(self) -> int:
        """Number of records with a value."""
        return self.records - self.tombstones

    def schema_ids(self, part: Part) -> Counter[int]:
        """Return the schema ids of keys or values; empty if too few begin with an id."""
        found, payloads = (
            (self.key_schemas, self.with_key)
            if part is Part.KEY
            else (self.value_schemas, self.values)
        )
        return found if 0 < ENOUGH * payloads <= found.total() else Counter()

    def schemas(self, part: Part) -> Mapping[int, RegisteredSchema]:
        """Return the known schemas of keys or values, by id."""
        known = self.answers.schemas if self.answers else {}
        return {each: known[each] for each in sorted(self.schema_ids(part)) if each in known}

    def _decode(self, records: Iterable[LogRecord]) -> None:
        """Count the payloads that do not match their schemas, and add the values' fields."""
        of_keys, of_values = self.schemas(Part.KEY), self.schemas(Part.VALUE)
        if of_values:
            # A JSON object without a schema id does not have the drafted format.
            self.fields, self.objects = {}, 0
        for record in records:
            if of_keys:
                self._fields(Part.KEY, record.key, of_keys)
            if found := self._fields(Part.VALUE, record.value, of_values):
                self._add_object(found, record)

    def _fields(
        self, part: Part, payload: bytes | None, schemas: Mapping[int, RegisteredSchema]
    ) -> Mapping[str, Any]:
        """Return the fields of a payload; empty if its schema is unknown or it is malformed."""
        for schema_id in leading_schema_ids(payload or b""):
            if schema_id in schemas:
                try:
                    return decoded_fields(payload or b"", schemas[schema_id])
                except MalformedPayload:
                    self.malformed[part] += 1
        return {}

    def add(self, record: LogRecord) -> None:
        """Add one record."""
        self.records += 1
        key = _text(record.key)
        if record.key is not None:
            self.with_key += 1
            self.text_keys += _is_text(record.key)
            self.key_schemas.update(leading_schema_ids(record.key))
            self.keys.add(key)
        if record.value is None:
            self.tombstones += 1
            return
        self.text_values += _is_text(record.value)
        self.value_schemas.update(leading_schema_ids(record.value))
        content = json_object(record.value)
        if content is not None:
            self._add_object(content, record)

    def _add_object(self, content: Mapping[str, Any], record: LogRecord) -> None:
        """Add the fields of a value."""
        self.objects += 1
        key = _text(record.key)
        for name, value in content.items():
            profile = self.fields.get(name)
            if profile is None:
                profile = self.fields[name] = FieldProfile(name=name)
            profile.add(value, key, has_key=record.key is not None)

    def as_record(self) -> dict[str, Any]:
        """Return the profile as plain values, for `--json`."""
        return {
            "records": self.records,
            "with_key": self.with_key,
            "tombstones": self.tombstones,
            "objects": self.objects,
            "fields": {
                each.name: {"type": each.sql_type or "NESTED", "present": each.present}
                for each in self.fields.values()
            },
        }


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _is_text(data: bytes) -> bool:
    """Return whether bytes are text, which does not begin with a zero byte."""
    return not data.startswith(b"\0") and _text(data) is not None


def _text_of(value: _Scalar) -> str:
    if isinstance(value, str):
        return value
    # A boolean is an int too, but JSON has another text for it.
    return str(value) if type(value) is int else json.dumps(value)


def _shortened(text: str) -> str:
    """Return a text that is equal for equal texts only, and needs little memory."""
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]} {sha256(text.encode(errors='surrogatepass')).hexdigest()}"
