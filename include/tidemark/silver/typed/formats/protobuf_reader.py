"""Protobuf messages as Arrow columns: one walk over the descriptors makes their types and values.

Spark's Python workers run this module without Spark. Each column is filled for all messages of a
batch at once, because that is faster than one message at a time. If a value does not fit, the
reader searches for the messages at fault, and fills the column without them.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, cast

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from tidemark.silver.typed.formats.arrow_results import (
    result_type,
    results,
    without_garbage_collection,
)
from tidemark.silver.typed.formats.protobuf import FIRST, WELL_KNOWN, first_message, message_index
from tidemark.silver.typed.formats.struct_type import struct_type
from tidemark.silver.typed.formats.value_limits import MAX_VALUES, TOO_MANY_VALUES
from tidemark.spec.decode import QuarantineReason
from tidemark.spec.fields import (
    Decimal,
    FieldType,
    ListOf,
    MapOf,
    Struct,
    UnsupportedSchema,
    path_prefix,
)
from tidemark.spec.schema_limits import SchemaTooLarge

_SCALARS: Mapping[int, tuple[FieldType, pa.DataType]] = {
    FieldDescriptor.CPPTYPE_DOUBLE: ("double", pa.float64()),
    FieldDescriptor.CPPTYPE_FLOAT: ("float", pa.float32()),
    FieldDescriptor.CPPTYPE_INT32: ("integer", pa.int32()),
    FieldDescriptor.CPPTYPE_INT64: ("long", pa.int64()),
    FieldDescriptor.CPPTYPE_UINT32: ("long", pa.int64()),
    FieldDescriptor.CPPTYPE_UINT64: (Decimal(20, 0), pa.decimal128(20, 0)),
    FieldDescriptor.CPPTYPE_BOOL: ("boolean", pa.bool_()),
    FieldDescriptor.CPPTYPE_STRING: ("string", pa.string()),
}
_TEXT = ("string", pa.string())
_BINARY = ("binary", pa.binary())
_MOMENT = ("timestamp", pa.timestamp("us", tz="UTC"))
_TIMESTAMP = "google.protobuf.Timestamp"
_DURATION = "google.protobuf.Duration"
_FIELD_MASK = "google.protobuf.FieldMask"
_ANY = "google.protobuf.Any"
_WRAPPERS = "google/protobuf/wrappers.proto"
_JSON_TEXTS = {
    f"google/protobuf/{n}.proto" for n in ("any", "duration", "empty", "field_mask", "struct")
}
"""Files whose messages become their JSON text."""
_SECONDS = range(-62_135_596_800, 253_402_300_800)
"""Seconds since 1970 in the years 1 to 9999, the bounds of Protobuf and Spark."""
_NANOS = range(10**9)
_INVALID_VALUE = (ValueError, OverflowError, RecursionError, DecodeError, json_format.Error)
"""Errors of Arrow and Protobuf's JSON for invalid values."""

_Fill: TypeAlias = Callable[[Sequence[Any]], pa.Array]
"""Returns values as an Arrow array; None is a missing value. Raises one of `_INVALID_VALUE`."""
_FieldReader: TypeAlias = Callable[[Sequence[Message | None]], Sequence[Any]]
"""Returns the values of one field of some messages."""


class _Column(NamedTuple):
    """A column for the values of a field or a message.

    Attributes:
        kind: Its type.
        arrow: Its Arrow type.
        fill: Converts values.
        fields: The fields of a message: the segment in a path, a function that reads the field of
            messages, and the column.
    """

    kind: FieldType
    arrow: pa.DataType
    fill: _Fill
    fields: Sequence[tuple[str, _FieldReader, _Column]] = ()


# Unbound methods, because a field of the same name hides the method of its message.
_has_field = AnyMessage.HasField
_is_initialized = AnyMessage.IsInitialized
_byte_size = AnyMessage.ByteSize
_discard_unknown_fields = AnyMessage.DiscardUnknownFields
_list_fields = AnyMessage.ListFields


class _Unreadable(ValueError):
    """A value does not fit its column. The text is the path of its field."""


def _path(place: str, wrong: Exception) -> str:
    """Return the path of an invalid value in a field."""
    return f"{place}.{wrong}" if isinstance(wrong, _Unreadable) else place


def _is_whole(message: Message) -> bool:
    """Return whether a message has all required fields, and no unknown ones, at any depth.

    Discards unknown fields. Does not look into an Any, or below 64 levels of messages.
    """
    if not _is_initialized(message):
        return False
    size = _byte_size(message)
    _discard_unknown_fields(message)
    return bool(_byte_size(message) == size)


def _has_too_many_elements(message: Message) -> bool:
    """Return whether the lists and maps of a message have too many elements, at any depth."""
    elements, waiting = 0, [iter([message])]
    while waiting:
        each = next(waiting[-1], None)
        if each is None:
            waiting.pop()
            continue
        for field, value in _list_fields(each):
            if field.is_repeated:
                elements += len(value)
                if elements > MAX_VALUES:
                    return True
            if _is_map(field):
                held = field.message_type.fields_by_name["value"]
                waiting.append(iter(value.values() if held.message_type else ()))
            elif field.message_type is not None:
                waiting.append(iter(value if field.is_repeated else [value]))
    return False


class _Columns:
    """Makes the columns of messages, each message once.

    Args:
        pool: The messages that an Any may contain.
    """

    def __init__(self, pool: DescriptorPool) -> None:
        self._pool = pool
        self._made: dict[str, _Column] = {}
        self._within: list[str] = []

    def of(self, message: Descriptor) -> _Column:
        """Return the column of a message.

        Raises:
            SchemaTooLarge: The message exceeds a limit.
            UnsupportedSchema: The message has no type in Delta.
            RecursionError: Messages are nested too deep.
        """
        name = message.full_name
        if name in self._within:
            raise UnsupportedSchema(f"{name} contains itself")
        if name not in self._made:
            self._within.append(name)
            self._made[name] = self._struct(message)
            self._within.pop()
        return self._made[name]

    def _struct(self, message: Descriptor) -> _Column:
        name, columns = message.full_name, list[_Column]()

        def type_of(field: FieldDescriptor) -> FieldType:
            columns.append(self._field(field))
            return columns[-1].kind

        kind = struct_type(name, ((each.name, each) for each in message.fields), type_of)
        both = list(zip(message.fields, columns, strict=True))
        arrow = pa.struct([(field.name, column.arrow) for field, column in both])
        fields = [(each.name + _suffix(each), _reader_of(each), column) for each, column in both]

        def fill(messages: Sequence[Message | None]) -> pa.Array:
            made = []
            for place, values, column in fields:
                try:
                    made.append(column.fill(values(messages)))
                except _INVALID_VALUE as wrong:
                    raise _Unreadable(_path(place, wrong)) from None
            return _struct_array(messages, made, arrow)

        return _Column(kind, arrow, fill, fields)

    def _field(self, field: FieldDescriptor) -> _Column:
        with path_prefix(_suffix(field)):
            if _is_map(field):
                return _map_column(self._value(field.message_type.fields_by_name["value"]))
            value = self._value(field)
            return _list_column(value) if field.is_repeated else value

    def _value(self, field: FieldDescriptor) -> _Column:
        """Return the column of single values of a field."""
        message = field.message_type
        if field.enum_type is not None:
            names: dict[int, str] = {}
            for each in field.enum_type.values:
                # The first of several aliases, as in Protobuf's JSON.
                names.setdefault(each.number, each.name)
            return _leaf(_TEXT, lambda number: names.get(number, str(number)))
        if message is None:
            is_bytes = field.type == FieldDescriptor.TYPE_BYTES
            return _leaf(_BINARY if is_bytes else _SCALARS[field.cpp_type])
        if message.full_name == _TIMESTAMP:
            return _leaf(_MOMENT, _microseconds)
        file = message.file.name
        if file == _WRAPPERS:
            wrapped = self._value(message.fields_by_name["value"])
            return _leaf((wrapped.kind, wrapped.arrow), attrgetter("value"))
        # A struct column needs a field, so a message without fields becomes text.
        if file in _JSON_TEXTS or not message.fields:
            return _leaf(_TEXT, partial(_text, pool=self._pool))
        if file in WELL_KNOWN:
            raise UnsupportedSchema(f"{message.full_name} is not a supported type")
        return self.of(message)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _suffix(field: FieldDescriptor) -> str:
    """Return what follows a field's name in a path."""
    return "{}" if _is_map(field) else "[]" if field.is_repeated else ""


def _struct_array(
    messages: Sequence[Message | None], fields: Sequence[pa.Array], kind: pa.StructType
) -> pa.Array:
    missing = pa.array([each is None for each in messages], pa.bool_())
    return pa.StructArray.from_arrays(fields, fields=list(kind), mask=missing)


def _reader_of(field: FieldDescriptor) -> _FieldReader:
    """Return a function that reads a field of messages; a missing value is None."""
    name, get = field.name, attrgetter(field.name)
    if field.has_presence:
        return lambda messages: [
            get(each) if each is not None and _has_field(each, name) else None for each in messages
        ]
    return lambda messages: [None if each is None else get(each) for each in messages]


def _list_column(element: _Column) -> _Column:
    arrow = pa.list_(pa.field("element", element.arrow))

    def fill(lists: Sequence[Any]) -> pa.Array:
        some = [each or () for each in lists]
        values = element.fill(list(chain.from_iterable(some)))
        return pa.ListArray.from_arrays(_offsets(some), values, type=arrow)

    return _Column(ListOf(element.kind), arrow, fill)


def _map_column(value: _Column) -> _Column:
    """Return a column of maps, sorted by their keys as text."""
    arrow = pa.map_(pa.string(), value.arrow)

    def fill(maps: Sequence[Any]) -> pa.Array:
        entries = [sorted((_key(key), each) for key, each in (m or {}).items()) for m in maps]
        keys = pa.array([key for each in entries for key, _ in each], pa.string())
        values = value.fill([held for each in entries for _, held in each])
        return pa.MapArray.from_arrays(_offsets(entries), keys, values, type=arrow)

    return _Column(MapOf(value.kind), arrow, fill)


def _key(key: Any) -> str:
    """Return the key of a map as text."""
    if isinstance(key, bytes):
        raise ValueError("a key is not UTF-8")
    return key if isinstance(key, str) else json.dumps(key)


def _offsets(some: Sequence[Collection[Any]]) -> pa.Array:
    return pa.array(accumulate(map(len, some), initial=0), pa.int32())


def _leaf(
    types: tuple[FieldType, pa.DataType], convert: Callable[[Any], Any] | None = None
) -> _Column:
    """Return a column of single values; `convert` makes a value that Arrow accepts."""
    kind, arrow = types

    def fill(values: Sequence[Any]) -> pa.Array:
        if convert is not None:
            values = [None if each is None else convert(each) for each in values]
        return pa.array(values, arrow)

    return _Column(kind, arrow, fill)


def _microseconds(moment: Any) -> int:
    """Return microseconds since 1970, rounded down."""
    if moment.seconds not in _SECONDS or moment.nanos not in _NANOS:
        raise ValueError("the timestamp is outside the years 1 to 9999")
    return int(moment.seconds * 10**6 + moment.nanos // 1000)


def _text(message: Message, pool: DescriptorPool) -> str:
    """Return a message as JSON; an Any of a type outside the schema has its bytes in base64."""
    kind = message.DESCRIPTOR.full_name
    held: Any = message
    if kind == _FIELD_MASK:
        # Protobuf's JSON changes the case of paths, and rejects some.
        return ",".join(held.paths)
    try:
        _check_held(message, pool)
        made = json_format.MessageToDict(message, descriptor_pool=pool)
    except (TypeError, KeyError):
        made = {"@type": held.type_url, "value": b64encode(held.value).decode()}
    if kind == _DURATION:
        return str(made)
    return json.dumps(made, ensure_ascii=False, sort_keys=True, allow_nan=False)


def _check_held(message: Message, pool: DescriptorPool) -> None:
    """Check the message inside an Any.

    Raises:
        KeyError: The schema does not define its type.
        ValueError, DecodeError: The message is invalid.
    """
    if message.DESCRIPTOR.full_name != _ANY or not _list_fields(message):
        # An empty Any becomes `{}`.
        return
    held: Any = message
    kind = pool.FindMessageTypeByName(held.type_url.rpartition("/")[2])
    inner = GetMessageClass(kind).FromString(held.value)
    if not _is_whole(inner):
        raise ValueError("the message lacks a required field, or has an unknown one")
    _check_fields(inner, pool)


def _check_fields(message: Message, pool: DescriptorPool) -> None:
    for field, value in _list_fields(message):
        parts = [(field, value if field.is_repeated else [value])]
        if _is_map(field):
            key, held = field.message_type.fields
            parts = [(key, value.keys()), (held, value.values())]
        for kind, values in parts:
            for each in values:
                if isinstance(each, bytes) and kind.type != FieldDescriptor.TYPE_BYTES:
                    raise ValueError("a text is not UTF-8")
                if isinstance(each, Message):
                    _check_held(each, pool)
                    _check_fields(each, pool)


# -- batches -------------------------------------------------------------------------------------

_MAX_SHOWN_NUMBERS = 5
"""Maximum numbers of a message index in a detail: an invalid index may have very many."""


def column_of(schema: str) -> Struct:
    """Return the type of the column for the first message of a schema.

    Raises:
        UnsupportedSchema: The schema has no column.
    """
    return cast(Struct, _reader(schema).column.kind)


def read_type(schema: str) -> pa.StructType:
    """Return the type of `read`'s result."""
    return result_type(_reader(schema).column.arrow)


def read(payloads: pa.Array, schema: str) -> pa.StructArray:
    """Decode payloads as the first message of a schema.

    Args:
        payloads: Binary column: the message index and the message, or null.
        schema: The schema's descriptors in JSON.

    Returns:
        The result of `arrow_results.results`. The detail is the wrong field, the index of a message
        that is not the first, `TOO_MANY_VALUES`, or null.
    """
    with without_garbage_collection():
        return _reader(schema).read(payloads.to_pylist())


class _Reader:
    """Reads the first message of one schema.

    Raises:
        UnsupportedSchema: The schema has no column.
    """

    def __init__(self, schema: str) -> None:
        message = first_message(schema)
        name = message.full_name
        if not message.fields:
            raise UnsupportedSchema(f"{name} has no fields")
        try:
            self.column = _Columns(message.file.pool).of(message)
        except RecursionError:
            raise SchemaTooLarge(f"{name} nests messages too deep for a column") from None
        self._parse = GetMessageClass(message).FromString

    def read(self, payloads: Sequence[bytes | None]) -> pa.StructArray:
        """See `read`."""
        details: dict[int, str] = {}
        messages = [self._message(each, n, details) for n, each in enumerate(payloads)]
        made = []
        for place, values_of, column in self.column.fields:
            values = values_of(messages)
            try:
                made.append(column.fill(values))
            except _INVALID_VALUE:
                for number, path in _faults(column.fill, values, place):
                    details[number] = path
                    messages[number] = None
                made.append(column.fill(values_of(messages)))
        values = _struct_array(messages, made, self.column.arrow)
        return results(
            values,
            {
                each: (QuarantineReason.MALFORMED, detail or None)
                for each, detail in details.items()
            },
        )

    def _message(
        self, payload: bytes | None, number: int, details: dict[int, str]
    ) -> Message | None:
        """Return the message of a payload; None without one. Adds a fault to `details`."""
        if payload is None:
            return None
        try:
            index, start = message_index(payload)
            if index != FIRST:
                details[number] = f"message {'.'.join(map(str, index[:_MAX_SHOWN_NUMBERS]))}"
                return None
            message = self._parse(payload[start:])
        except (ValueError, DecodeError):
            message = None
        if message is None or not _is_whole(message):
            details[number] = ""
            return None
        if len(payload) > MAX_VALUES and _has_too_many_elements(message):
            details[number] = TOO_MANY_VALUES
            return None
        return cast(Message, message)


def _faults(
    fill: _Fill, values: Sequence[Any], place: str, first: int = 0
) -> Iterator[tuple[int, str]]:
    """Yield the position and the path of each invalid value, by halving the values.

    Args:
        fill: Converts the values.
        values: Values of a field.
        place: The field's segment in a path.
        first: The position of the first value.
    """
    try:
        fill(values)
    except _INVALID_VALUE as wrong:
        if len(values) == 1:
            yield first, _path(place, wrong)
            return
        half = len(values) // 2
        yield from _faults(fill, values[:half], place, first)
        yield from _faults(fill, values[half:], place, first + half)


@lru_cache(maxsize=64)
def _reader(schema: str) -> _Reader:
    return _Reader(schema)
