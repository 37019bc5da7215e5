"""Protobuf schemas: their column types, their descriptors, and the message index of a payload.

The text of a schema is its descriptors in Protobuf's JSON form: a `FileDescriptorSet` whose last
file is the schema itself, and whose other files are its imports.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from tidemark.spec.fields import (
    Decimal,
    FieldType,
    ListOf,
    MapOf,
    Struct,
    UnsupportedSchema,
    path_prefix,
)

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool

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
"""Files that every Protobuf library provides; the text of a schema does not contain them."""
TEXTS = frozenset(
    f"google.protobuf.{name}"
    for name in ("Any", "Duration", "Empty", "FieldMask", "ListValue", "Struct", "Value")
)
"""Messages that become their JSON text."""
NOT_COMPILED = "// not compiled: "
"""Prefix of the text of a schema that does not compile; the reason follows."""
TIMESTAMP = "google.protobuf.Timestamp"
FIRST = (0,)
"""The index of a schema's first message, whose fields are the column."""

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
"""Messages that wrap an optional scalar."""
_WELL_KNOWN_TYPES: Mapping[str, FieldType] = {
    TIMESTAMP: "timestamp",
    **WRAPPERS,
    **dict.fromkeys(TEXTS, "string"),
}
_MESSAGES = {"TYPE_MESSAGE", "TYPE_GROUP"}
_SINGLE_ZERO = b"\x00"
_MAX_LEVELS = 100
"""The most levels of a message index; Protobuf readers allow fewer levels of messages."""
MAX_COLUMNS = 10_000
"""The most columns of one schema. Columns of a message count for each field of its type."""
_VARINT_BYTES = 5
"""The most bytes of a number in an index, which has 32 bits."""

_Messages: TypeAlias = Mapping[str, Mapping[str, Any]]


def message_index(payload: bytes) -> tuple[tuple[int, ...], int]:
    """Return the message index of a payload, and the position of the message in bytes.

    Confluent's serializers write the index behind the schema id: the count of numbers and the
    numbers, as zigzag varints. The first number is the position of a message in the file, the next
    one the position of a message inside that message. A single zero means the first message.

    Raises:
        ValueError: The payload does not begin with an index.
    """
    if payload[:1] == _SINGLE_ZERO:
        return FIRST, 1
    count, place = _varint(payload, 0)
    if count > _MAX_LEVELS:
        raise ValueError("the message index has too many numbers")
    index = []
    for _ in range(count):
        number, place = _varint(payload, place)
        index.append(number)
    return tuple(index), place


def _varint(payload: bytes, place: int) -> tuple[int, int]:
    """Return a non-negative number, and the position behind it."""
    number = 0
    for step, byte in enumerate(payload[place : place + _VARINT_BYTES]):
        number |= (byte & 0x7F) << (7 * step)
        if byte < 0x80:
            if number & 1:
                raise ValueError("the message index has a negative number")
            return number >> 1, place + step + 1
    raise ValueError("the message index has an incomplete number")


def first_message(text: str) -> str:
    """Return the full name of a schema's first message.

    Raises:
        UnsupportedSchema: The schema has no message, or did not compile.
    """
    try:
        schema = json.loads(text)["file"][-1]
    except (ValueError, LookupError, TypeError):
        problem = "the Protobuf schema does not compile"
        if text.startswith(NOT_COMPILED):
            problem += f": {text.partition(chr(10))[0].removeprefix(NOT_COMPILED)}"
        raise UnsupportedSchema(problem) from None
    if not schema.get("messageType"):
        raise UnsupportedSchema("the schema has no message")
    name, package = schema["messageType"][0]["name"], schema.get("package")
    return f"{package}.{name}" if package else str(name)


def column_of(text: str) -> Struct:
    """The type of the column that the first message of a schema makes.

    Raises:
        UnsupportedSchema: No column can be made of it.
    """
    name = first_message(text)
    messages: dict[str, Mapping[str, Any]] = {}
    for file in json.loads(text)["file"]:
        messages.update(_named(file.get("messageType", ()), file.get("package", "")))
    if not messages[name].get("field"):
        raise UnsupportedSchema(f"{name} has no fields")
    try:
        return _Columns(messages).of(name)
    except RecursionError:
        raise UnsupportedSchema(f"{name} nests messages too deep for a column") from None


def _named(messages: Any, within: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield messages and the messages inside them, by their full names."""
    for each in messages:
        name = f"{within}.{each['name']}" if within else each["name"]
        yield name, each
        yield from _named(each.get("nestedType", ()), name)


class _Columns:
    """Derives the columns of messages, each message once.

    Args:
        messages: All messages of a schema by their full names.
    """

    def __init__(self, messages: _Messages) -> None:
        self._messages = messages
        self._made: dict[str, Struct] = {}
        self._counts: dict[str, int] = {}
        self._within: list[str] = []

    def of(self, name: str) -> Struct:
        """Return the type of the column for a message.

        Raises:
            UnsupportedSchema: The message has no type in Delta.
            RecursionError: Messages are nested too deep.
        """
        if name in self._within:
            raise UnsupportedSchema(f"{name} contains itself")
        if name not in self._made:
            self._within.append(name)
            fields = self._messages[name]["field"]
            folded = Counter(each["name"].lower() for each in fields)
            if twice := sorted(each for each, times in folded.items() if times > 1):
                raise UnsupportedSchema(
                    f"{name} has fields whose names differ only in case: {twice[0]}"
                )
            made = []
            for each in fields:
                with path_prefix(str(each["name"])):
                    made.append((str(each["name"]), self._field(each)))
            self._counts[name] = sum(self._count(each) for each in fields)
            if self._counts[name] > MAX_COLUMNS:
                raise UnsupportedSchema(f"{name} has more than {MAX_COLUMNS:,} columns")
            self._within.pop()
            self._made[name] = Struct(tuple(made))
        return self._made[name]

    def _count(self, field: Mapping[str, Any]) -> int:
        return self._counts.get(_type_name(self._held(field)), 1)

    def _field(self, field: Mapping[str, Any]) -> FieldType:
        held = self._held(field)
        is_message = held["type"] in _MESSAGES
        is_map, is_list = held is not field, field.get("label") == "LABEL_REPEATED"
        with path_prefix("{}" if is_map else "[]" if is_list else ""):
            kind = self._message(_type_name(held)) if is_message else _SCALARS[held["type"]]
        if is_map:
            return MapOf(kind)
        return ListOf(kind) if is_list else kind

    def _held(self, field: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the field; for a map, the field of its values."""
        entry = self._messages.get(_type_name(field), {})
        is_map = entry.get("options", {}).get("mapEntry")
        return entry["field"][1] if is_map else field

    def _message(self, name: str) -> FieldType:
        if name in _WELL_KNOWN_TYPES:
            return _WELL_KNOWN_TYPES[name]
        if name not in self._messages:
            raise UnsupportedSchema(f"{name} is not a supported type")
        # A struct column needs a field, so a message without fields becomes text.
        return self.of(name) if self._messages[name].get("field") else "string"


def _type_name(field: Mapping[str, Any]) -> str:
    """Return the full name of a field's message; empty for a scalar."""
    return str(field.get("typeName", "")).removeprefix(".")


def pool_of(schema: str) -> DescriptorPool:
    """Return the messages of a schema and of Protobuf's well-known files.

    Args:
        schema: The schema's descriptors in JSON.

    Raises:
        TypeError, ValueError, json_format.Error: Protobuf's library rejects the descriptors. It
            rejects some that the compiler accepts, such as a redefined well-known message.
    """
    from google.protobuf import (
        any_pb2,
        api_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        json_format,
        source_context_pb2,
        struct_pb2,
        timestamp_pb2,
        type_pb2,
        wrappers_pb2,
    )
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    # Each file after its imports.
    for module in (
        *(any_pb2, source_context_pb2, type_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2),
        *(field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2),
    ):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for file in json_format.Parse(schema, descriptor_pb2.FileDescriptorSet()).file:
        for message in _with_inner(file.message_type):
            # Names in JSON are not used, so two equal ones do no harm.
            message.options.deprecated_legacy_json_field_conflicts = True
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def _with_inner(messages: Iterator[DescriptorProto]) -> Iterator[DescriptorProto]:
    for each in messages:
        yield each
        yield from _with_inner(each.nested_type)
