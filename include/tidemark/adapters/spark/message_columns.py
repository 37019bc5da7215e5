"""Fields of Protobuf messages as Arrow columns, each of all messages of a batch at once."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any, TypeAlias

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message

from tidemark.core.fields import Decimal, FieldType, ListOf, MapOf, Struct
from tidemark.core.protobuf import TIMESTAMP, WRAPPERS

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
_PLAIN = {"google.protobuf.Duration", "google.protobuf.FieldMask"}
"""Messages whose JSON is text and nothing else: it needs no quotes."""
_SECONDS = range(-62_135_596_800, 253_402_300_800)
"""Since 1970, in the years from 1 to 9999: Protobuf's bounds, and those of Spark."""
_NANOS = range(10**9)
_NO_VALUE = (ValueError, OverflowError, RecursionError, DecodeError, json_format.Error)
"""What Arrow and Protobuf's JSON raise of values that they do not take."""

Column: TypeAlias = Callable[[Sequence[Any]], pa.Array]
"""Values of one field, None where there is none, as a column."""
_Taker: TypeAlias = Callable[[Sequence[Message | None]], Sequence[Any]]
"""The values of one field of some messages."""


class Unreadable(Exception):
    """A payload is no message of its schema, or has a value that no column takes.

    Args:
        place: Its field's path; empty if that is not known.
    """

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place


def arrow_type(kind: FieldType) -> pa.DataType:
    """The type of a column that has values of a type."""
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
    """Messages of one type as a column of mappings.

    The column raises `Unreadable` if one of them has a value that it does not take.
    """
    fields = []
    for name, kind in shape.fields:
        field = message.fields_by_name[name]
        fields.append((_place(name, kind), _taker(field), _field(field, kind, pool)))
    columns = list(arrow_type(shape))

    def column(messages: Sequence[Message | None]) -> pa.Array:
        made = []
        for place, take, fill in fields:
            try:
                made.append(fill(take(messages)))
            except Unreadable as wrong:
                raise Unreadable(f"{place}.{wrong.place}") from None
            except _NO_VALUE:
                raise Unreadable(place) from None
        missing = pa.array([each is None for each in messages], pa.bool_())
        return pa.StructArray.from_arrays(made, fields=columns, mask=missing)

    return column


def _place(name: str, kind: FieldType) -> str:
    """A field's part of a path, as conflicts of schemas tell it."""
    match kind:
        case ListOf():
            return f"{name}[]"
        case MapOf():
            return f"{name}{{}}"
        case _:
            return name


def _taker(field: FieldDescriptor) -> _Taker:
    """How the values of a field are taken from messages: None where it is not set."""
    name, get = field.name, attrgetter(field.name)
    if field.has_presence:
        return lambda messages: [
            get(each) if each is not None and each.HasField(name) else None for each in messages
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
        values = elements(list(chain.from_iterable(some)))
        return pa.ListArray.from_arrays(_offsets(some), values, type=kind)

    return column


def _map(value: FieldDescriptor, kind: MapOf, pool: DescriptorPool) -> Column:
    """Maps by the JSON of their keys, in the order of that."""
    values, made = _value(value, kind.value, pool), arrow_type(kind)

    def column(maps: Sequence[Any]) -> pa.Array:
        some = [
            sorted((_key(name), each) for name, each in found.items()) if found else ()
            for found in maps
        ]
        entries = list(chain.from_iterable(some))
        names = pa.array([name for name, _ in entries], pa.string())
        filled = values([each for _, each in entries])
        return pa.MapArray.from_arrays(_offsets(some), names, filled, type=made)

    return column


def _key(key: Any) -> str:
    """A map's key as text."""
    if isinstance(key, bytes):
        raise ValueError("text that is not UTF-8")
    return key if isinstance(key, str) else json.dumps(key)


def _offsets(some: Sequence[Sequence[Any]]) -> pa.Array:
    return pa.array(accumulate(map(len, some), initial=0), pa.int32())


def _value(field: FieldDescriptor, kind: FieldType, pool: DescriptorPool) -> Column:
    """One value each, of a field or of its elements."""
    message, made = field.message_type, arrow_type(kind)
    if isinstance(kind, Struct):
        return struct_column(message, kind, pool)
    if message is None:
        if field.enum_type is None:
            return lambda values: pa.array(values, made)
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return _each(lambda number: names.get(number, str(number)), made)
    if message.full_name == TIMESTAMP:
        return _each(_microseconds, made)
    if message.full_name in WRAPPERS:
        return _each(attrgetter("value"), made)
    return _each(lambda each: _text(each, pool), made)


def _each(convert: Callable[[Any], Any], made: pa.DataType) -> Column:
    return lambda values: pa.array(
        [None if each is None else convert(each) for each in values], made
    )


def _microseconds(moment: Any) -> int:
    """Since 1970; what is less than one is cut off."""
    if moment.seconds not in _SECONDS or moment.nanos not in _NANOS:
        raise ValueError("no moment of the years from 1 to 9999")
    return int(moment.seconds * 10**6 + moment.nanos // 1000)


def _text(message: Message, pool: DescriptorPool) -> str:
    """A message's JSON; of an Any whose type the schema does not have its bytes in base64."""
    try:
        made = json_format.MessageToDict(message, descriptor_pool=pool)
    except TypeError:
        held: Any = message
        made = {"@type": held.type_url, "value": b64encode(held.value).decode()}
    if message.DESCRIPTOR.full_name in _PLAIN:
        return str(made)
    return json.dumps(made, ensure_ascii=False, sort_keys=True, allow_nan=False)
