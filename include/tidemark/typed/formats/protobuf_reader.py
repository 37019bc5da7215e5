"""Protobuf messages as Arrow columns. Spark's Python workers run this module without Spark.

Each column is filled for all messages of a batch at once, because that is faster than one message
at a time. Messages with a value that does not fit its column are removed, and the batch is filled
again.
"""

from __future__ import annotations

import gc
import json
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any, TypeAlias

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from tidemark.spec.decode import QuarantineReason
from tidemark.spec.fields import Decimal, FieldType, ListOf, MapOf, Struct
from tidemark.typed.formats.protobuf import (
    FIRST,
    TIMESTAMP,
    WRAPPERS,
    column_of,
    first_message,
    message_index,
    pool_of,
)

_ARROW = {
    "boolean": pa.bool_(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_DURATION = "google.protobuf.Duration"
_FIELD_MASK = "google.protobuf.FieldMask"
_ANY = "google.protobuf.Any"
_SECONDS = range(-62_135_596_800, 253_402_300_800)
"""Seconds since 1970 in the years 1 to 9999, the bounds of Protobuf and Spark."""
_NANOS = range(10**9)
_INVALID_VALUE = (ValueError, OverflowError, RecursionError, DecodeError, json_format.Error)
"""Errors of Arrow and Protobuf's JSON for invalid values."""

Column: TypeAlias = Callable[[Sequence[Any]], pa.Array]
"""Returns the values of one field as a column; None is a missing value."""
_FieldReader: TypeAlias = Callable[[Sequence[Message | None]], Sequence[Any]]
"""Returns the values of one field of some messages."""


# Unbound methods, because a field of the same name hides the method of its message.
_has_field = AnyMessage.HasField
_is_initialized = AnyMessage.IsInitialized
_byte_size = AnyMessage.ByteSize
_discard_unknown_fields = AnyMessage.DiscardUnknownFields
_list_fields = AnyMessage.ListFields


class Unreadable(Exception):
    """Some messages have a value that does not fit its column.

    Args:
        place: Path of the field; empty if unknown.
        at: Positions of these messages in the batch; never empty.
    """

    def __init__(self, place: str, at: Sequence[int]) -> None:
        super().__init__(place)
        self.place = place
        self.at = at


def is_whole(message: Message) -> bool:
    """Return whether a message has all required fields, and no unknown ones, at any depth.

    Discards unknown fields. Does not look into an Any, or below 64 levels of messages.
    """
    if not _is_initialized(message):
        return False
    size = _byte_size(message)
    _discard_unknown_fields(message)
    return bool(_byte_size(message) == size)


def arrow_type(kind: FieldType) -> pa.DataType:
    """Return the Arrow type of a column."""
    match kind:
        case Struct():
            return pa.struct([(name, arrow_type(each)) for name, each in kind.fields])
        case ListOf():
            return pa.list_(pa.field("element", arrow_type(kind.element)))
        case MapOf():
            return pa.map_(pa.string(), arrow_type(kind.value))
        case Decimal():
            return pa.decimal128(kind.precision, kind.scale)
        case _:
            return _ARROW[kind]


def struct_column(message: Descriptor, shape: Struct, pool: DescriptorPool) -> Column:
    """Return a function that converts messages of one type to a struct column.

    The function raises `Unreadable` with all messages whose value in one field does not fit.
    """
    fields = []
    for name, kind in shape.fields:
        field = message.fields_by_name[name]
        fields.append((_place(name, kind), _field_reader(field), _field(field, kind, pool)))
    columns = list(arrow_type(shape))

    def column(messages: Sequence[Message | None]) -> pa.Array:
        made = []
        for place, take, fill in fields:
            try:
                made.append(fill(take(messages)))
            except Unreadable as wrong:
                raise Unreadable(".".join(filter(None, (place, wrong.place))), wrong.at) from None
        missing = pa.array([each is None for each in messages], pa.bool_())
        return pa.StructArray.from_arrays(made, fields=columns, mask=missing)

    return column


def _place(name: str, kind: FieldType) -> str:
    """Return a field's segment of a path, in the form of schema conflicts."""
    match kind:
        case ListOf():
            return f"{name}[]"
        case MapOf():
            return f"{name}{{}}"
        case _:
            return name


def _field_reader(field: FieldDescriptor) -> _FieldReader:
    """Return a function that reads a field of messages; a missing value is None."""
    name, get = field.name, attrgetter(field.name)
    if field.has_presence:
        return lambda messages: [
            get(each) if each is not None and _has_field(each, name) else None for each in messages
        ]
    return lambda messages: [None if each is None else get(each) for each in messages]


def _field(field: FieldDescriptor, kind: FieldType, pool: DescriptorPool) -> Column:
    match kind:
        case MapOf():
            return _map(field.message_type.fields_by_name["value"], kind, pool)
        case ListOf():
            return _list(_value(field, kind.element, pool), arrow_type(kind))
        case _:
            return _value(field, kind, pool)


def _list(elements: Column, kind: pa.ListType) -> Column:
    def column(lists: Sequence[Any]) -> pa.Array:
        some = [each or () for each in lists]
        values = _flat(elements, some)
        return pa.ListArray.from_arrays(_offsets(some), values, type=kind)

    return column


def _map(value: FieldDescriptor, kind: MapOf, pool: DescriptorPool) -> Column:
    """Return a function that converts maps to a column, sorted by their keys as text."""
    values, made = _value(value, kind.value, pool), arrow_type(kind)

    def column(maps: Sequence[Any]) -> pa.Array:
        some = [found or {} for found in maps]
        # Keys are texts, numbers or booleans; a key of bytes is a text that is not UTF-8.
        if wrong := [n for n, found in enumerate(some) if any(type(k) is bytes for k in found)]:
            raise Unreadable("", wrong)
        entries = [sorted((_key(name), each) for name, each in found.items()) for found in some]
        keys = pa.array([name for each in entries for name, _ in each], pa.string())
        filled = _flat(values, [[held for _, held in each] for each in entries])
        return pa.MapArray.from_arrays(_offsets(some), keys, filled, type=made)

    return column


def _flat(column: Column, some: Sequence[Collection[Any]]) -> pa.Array:
    """Return the elements of all collections as one column.

    Raises:
        Unreadable: With the positions of the collections that contain wrong elements.
    """
    try:
        return column(list(chain.from_iterable(some)))
    except Unreadable as wrong:
        ends = list(accumulate(map(len, some)))
        at = sorted({bisect_right(ends, each) for each in wrong.at})
        raise Unreadable(wrong.place, at) from None


def _key(key: Any) -> str:
    """Return the key of a map as text."""
    return key if isinstance(key, str) else json.dumps(key)


def _offsets(some: Sequence[Collection[Any]]) -> pa.Array:
    return pa.array(accumulate(map(len, some), initial=0), pa.int32())


def _value(field: FieldDescriptor, kind: FieldType, pool: DescriptorPool) -> Column:
    """Return a function that converts single values of a field, or of its elements."""
    message, made = field.message_type, arrow_type(kind)
    if isinstance(kind, Struct):
        return struct_column(message, kind, pool)
    if message is None:
        if field.enum_type is None:
            return _leaf(made)
        names: dict[int, str] = {}
        for each in field.enum_type.values:
            # The first of several aliases, as in Protobuf's JSON.
            names.setdefault(each.number, each.name)
        return _leaf(made, lambda number: names.get(number, str(number)))
    if message.full_name == TIMESTAMP:
        return _leaf(made, _microseconds)
    if message.full_name in WRAPPERS:
        return _leaf(made, attrgetter("value"))
    return _leaf(made, lambda each: _text(each, pool))


def _leaf(made: pa.DataType, convert: Callable[[Any], Any] | None = None) -> Column:
    """Return a function that converts values to an Arrow column.

    The function looks for wrong values only after a conversion has failed.

    Args:
        made: Type of the column.
        convert: Converts a value for Arrow; None if Arrow accepts the values.
    """

    def filled(values: Sequence[Any]) -> pa.Array:
        if convert is not None:
            values = [None if each is None else convert(each) for each in values]
        return pa.array(values, made)

    def is_valid(value: Any) -> bool:
        try:
            filled([value])
        except _INVALID_VALUE:
            return False
        return True

    def column(values: Sequence[Any]) -> pa.Array:
        try:
            return filled(values)
        except _INVALID_VALUE:
            wrong = [number for number, each in enumerate(values) if not is_valid(each)]
            if not wrong:
                raise
            raise Unreadable("", wrong) from None

    return column


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
    if not is_whole(inner):
        raise ValueError("the message lacks a required field, or has an unknown one")
    _check_fields(inner, pool)


def _check_fields(message: Message, pool: DescriptorPool) -> None:
    for field, value in _list_fields(message):
        for kind, values in _elements(field, value):
            for each in values:
                if isinstance(each, bytes) and kind.type != FieldDescriptor.TYPE_BYTES:
                    raise ValueError("a text is not UTF-8")
                if isinstance(each, Message):
                    _check_held(each, pool)
                    _check_fields(each, pool)


def _elements(
    field: FieldDescriptor, value: Any
) -> Iterator[tuple[FieldDescriptor, Iterable[Any]]]:
    """Yield the values of a field with the field that describes them; a map has keys and values."""
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        yield entry.fields_by_name["key"], value.keys()
        yield entry.fields_by_name["value"], value.values()
    else:
        yield field, value if field.is_repeated else [value]


# -- batches -------------------------------------------------------------------------------------

_MAX_SHOWN_NUMBERS = 5
"""The most numbers of a message index in a detail: an invalid index may have very many."""


def read_type(schema: str) -> pa.StructType:
    """Return the type of `read`'s result."""
    value = arrow_type(column_of(schema))
    return pa.struct([("value", value), ("reason", pa.string()), ("detail", pa.string())])


def read(payloads: pa.Array, schema: str) -> pa.StructArray:
    """Decode payloads as the first message of a schema.

    Args:
        payloads: Binary column: the message index and the message, or null.
        schema: The schema's descriptors in JSON.

    Returns:
        A struct for each payload: `value`; `reason`, a `QuarantineReason`; and `detail`, the wrong
        field or the index of another message than the first, null if unknown.
    """
    with _without_garbage_collection():
        return _reader(schema).read(payloads.to_pylist())


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Switch off garbage collection: it took a third of the time, and a batch has no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@lru_cache(maxsize=64)
def _reader(schema: str) -> _Reader:
    return _Reader(schema)


class _Reader:
    """Reads the first message of one schema."""

    def __init__(self, schema: str) -> None:
        pool = pool_of(schema)
        message = pool.FindMessageTypeByName(first_message(schema))
        self._parse = GetMessageClass(message).FromString
        self._type = read_type(schema)
        self._column = struct_column(message, column_of(schema), pool)

    def read(self, payloads: Sequence[bytes | None]) -> pa.StructArray:
        messages: list[Message | None] = []
        details: dict[int, str] = {}
        for number, payload in enumerate(payloads):
            message = None
            if payload is not None:
                try:
                    message = self._message(payload)
                except _Malformed as wrong:
                    details[number] = str(wrong)
            messages.append(message)
        values = self._values(messages, details)
        numbers = range(len(messages))
        reasons = [
            QuarantineReason.MALFORMED.value if each in details else None for each in numbers
        ]
        texts = [details.get(each) or None for each in numbers]
        return pa.StructArray.from_arrays(
            [values, pa.array(reasons, pa.string()), pa.array(texts, pa.string())],
            fields=list(self._type),
        )

    def _message(self, payload: bytes) -> Message:
        try:
            index, start = message_index(payload)
            message = self._parse(payload[start:]) if index == FIRST else None
        except (ValueError, DecodeError):
            raise _Malformed from None
        if message is None:
            raise _Malformed(f"message {'.'.join(map(str, index[:_MAX_SHOWN_NUMBERS]))}")
        if not is_whole(message):
            raise _Malformed
        return message

    def _values(self, messages: list[Message | None], details: dict[int, str]) -> pa.Array:
        """Return the column of the messages; replace messages that do not fit by null."""
        while True:
            try:
                return self._column(messages)
            except Unreadable as wrong:
                for each in wrong.at:
                    messages[each], details[each] = None, wrong.place


class _Malformed(Exception):
    """A payload is not the first message of its schema. The text is the detail, if any."""
