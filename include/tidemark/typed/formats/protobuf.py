"""Protobuf: the message that a payload says it is, and the types of the fields of a schema.

A schema's text is its descriptors, as Protobuf has them in JSON: one `FileDescriptorSet` whose
last file is the schema itself, and whose other files are what it imports.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from tidemark.spec.fields import Decimal, FieldType, ListOf, MapOf, NoColumn, Struct, within

WELL_KNOWN = tuple(
    f"google/protobuf/{name}.proto"
    for name in (
        "any",
        "api",
        "descriptor",
        "duration",
        "empty",
        "field_mask",
        "source_context",
        "struct",
        "timestamp",
        "type",
        "wrappers",
    )
)
"""Files that every Protobuf library brings: no schema's text has them."""
TEXTS = frozenset(
    f"google.protobuf.{name}"
    for name in ("Any", "Duration", "Empty", "FieldMask", "ListValue", "Struct", "Value")
)
"""Messages that are text here: their JSON."""
NOT_COMPILED = "// not compiled: "
"""Prefix of the text of a schema that does not compile; the reason follows."""
TIMESTAMP = "google.protobuf.Timestamp"
FIRST = (0,)
"""The index of a schema's first message, which is what its column is made of."""

_SCALARS: Mapping[str, FieldType] = {
    "TYPE_DOUBLE": "double",
    "TYPE_FLOAT": "float",
    "TYPE_INT32": "integer",
    "TYPE_SINT32": "integer",
    "TYPE_SFIXED32": "integer",
    "TYPE_UINT32": "long",
    "TYPE_FIXED32": "long",
    "TYPE_INT64": "long",
    "TYPE_SINT64": "long",
    "TYPE_SFIXED64": "long",
    "TYPE_UINT64": Decimal(20, 0),
    "TYPE_FIXED64": Decimal(20, 0),
    "TYPE_BOOL": "boolean",
    "TYPE_STRING": "string",
    "TYPE_BYTES": "binary",
    "TYPE_ENUM": "string",
}
WRAPPERS: Mapping[str, FieldType] = {
    f"google.protobuf.{name}Value": kind
    for name, kind in (
        ("Double", "double"),
        ("Float", "float"),
        ("Int32", "integer"),
        ("UInt32", "long"),
        ("Int64", "long"),
        ("UInt64", Decimal(20, 0)),
        ("Bool", "boolean"),
        ("String", "string"),
        ("Bytes", "binary"),
    )
}
"""Messages that are a scalar that may be missing."""
_WELL_KNOWN_TYPES: Mapping[str, FieldType] = {
    TIMESTAMP: "timestamp",
    **WRAPPERS,
    **dict.fromkeys(TEXTS, "string"),
}
_MESSAGES = {"TYPE_MESSAGE", "TYPE_GROUP"}
_LONE_ZERO = b"\x00"
_MOST_LEVELS = 100
"""A message that is read lies in fewer."""
MOST_COLUMNS = 10_000
"""Columns of one schema, those of a message counted for each field that has it."""
_VARINT_BYTES = 5
"""Indexes are numbers of four bytes."""

_Messages: TypeAlias = Mapping[str, Mapping[str, Any]]


def message_index(payload: bytes) -> tuple[tuple[int, ...], int]:
    """Which message of its schema a payload is, and where in the payload that message begins.

    As Confluent's serializers write it behind the schema's id: how many numbers there are, and the
    numbers, each in zigzag varints; the first is the place of a message in the file, the next of
    one in that message, and so on. A lone zero stands for the first message.

    Raises:
        ValueError: It begins with no such list.
    """
    if payload[:1] == _LONE_ZERO:
        return FIRST, 1
    count, place = _varint(payload, 0)
    if count > _MOST_LEVELS:
        raise ValueError("more messages in messages than there can be")
    index = []
    for _ in range(count):
        number, place = _varint(payload, place)
        index.append(number)
    return tuple(index), place


def _varint(payload: bytes, place: int) -> tuple[int, int]:
    """A number that is not negative, and where the next one begins."""
    number = 0
    for step, byte in enumerate(payload[place : place + _VARINT_BYTES]):
        number |= (byte & 0x7F) << (7 * step)
        if byte < 0x80:
            if number & 1:
                raise ValueError("a number below zero")
            return number >> 1, place + step + 1
    raise ValueError("a number that does not end")


def first_message(text: str) -> str:
    """The full name of a schema's first message.

    Raises:
        NoColumn: It has no message, or it is not JSON because it did not compile.
    """
    try:
        schema = json.loads(text)["file"][-1]
    except (ValueError, LookupError, TypeError):
        problem = "it is no Protobuf schema that can be compiled"
        if text.startswith(NOT_COMPILED):
            problem += f": {text.partition(chr(10))[0].removeprefix(NOT_COMPILED)}"
        raise NoColumn(problem) from None
    if not schema.get("messageType"):
        raise NoColumn("it has no message")
    name, package = schema["messageType"][0]["name"], schema.get("package")
    return f"{package}.{name}" if package else str(name)


def column_of(text: str) -> Struct:
    """The type of the column that the first message of a schema makes.

    Raises:
        NoColumn: No column can be made of it.
    """
    name = first_message(text)
    messages: dict[str, Mapping[str, Any]] = {}
    for file in json.loads(text)["file"]:
        messages.update(_named(file.get("messageType", ()), file.get("package", "")))
    if not messages[name].get("field"):
        raise NoColumn(f"{name} has no fields")
    try:
        return _Columns(messages).of(name)
    except RecursionError:
        raise NoColumn(f"{name} has messages in messages too deep for a column") from None


def _named(messages: Any, within: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Messages and those in them, by their full names."""
    for each in messages:
        name = f"{within}.{each['name']}" if within else each["name"]
        yield name, each
        yield from _named(each.get("nestedType", ()), name)


class _Columns:
    """Makes the columns of messages, those of each once.

    Args:
        messages: All of a schema, by their full names.
    """

    def __init__(self, messages: _Messages) -> None:
        self._messages = messages
        self._made: dict[str, Struct] = {}
        self._counts: dict[str, int] = {}
        self._within: list[str] = []

    def of(self, name: str) -> Struct:
        """The type of the column that a message makes.

        Raises:
            NoColumn: None can be made of it.
            RecursionError: It has messages in messages too deep.
        """
        if name in self._within:
            raise NoColumn(f"{name} contains itself, which no column can")
        if name not in self._made:
            self._within.append(name)
            fields = self._messages[name]["field"]
            folded = Counter(each["name"].lower() for each in fields)
            if twice := sorted(each for each, times in folded.items() if times > 1):
                raise NoColumn(
                    f"{name} has fields that differ in upper and lower case alone: {twice[0]}"
                )
            made = []
            for each in fields:
                with within(str(each["name"])):
                    made.append((str(each["name"]), self._field(each)))
            self._counts[name] = sum(self._count(each) for each in fields)
            if self._counts[name] > MOST_COLUMNS:
                raise NoColumn(f"{name} makes more than {MOST_COLUMNS:,} columns")
            self._within.pop()
            self._made[name] = Struct(tuple(made))
        return self._made[name]

    def _count(self, field: Mapping[str, Any]) -> int:
        return self._counts.get(_type_name(self._held(field)), 1)

    def _field(self, field: Mapping[str, Any]) -> FieldType:
        held = self._held(field)
        is_message = held["type"] in _MESSAGES
        is_map, is_list = held is not field, field.get("label") == "LABEL_REPEATED"
        with within("{}" if is_map else "[]" if is_list else ""):
            kind = self._message(_type_name(held)) if is_message else _SCALARS[held["type"]]
        if is_map:
            return MapOf(kind)
        return ListOf(kind) if is_list else kind

    def _held(self, field: Mapping[str, Any]) -> Mapping[str, Any]:
        """The field itself; of a map the field of its values."""
        entry = self._messages.get(_type_name(field), {})
        is_map = entry.get("options", {}).get("mapEntry")
        return entry["field"][1] if is_map else field

    def _message(self, name: str) -> FieldType:
        if name in _WELL_KNOWN_TYPES:
            return _WELL_KNOWN_TYPES[name]
        if name not in self._messages:
            raise NoColumn(f"it has {name}, which is no type of a column")
        # A column has to have a field; one message without any is as good as another.
        return self.of(name) if self._messages[name].get("field") else "string"


def _type_name(field: Mapping[str, Any]) -> str:
    """The full name of a field's message; empty where it has none."""
    return str(field.get("typeName", "")).removeprefix(".")
