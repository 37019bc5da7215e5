"""Fields of Protobuf messages as Arrow columns, each of all messages of a batch at once."""

from __future__ import annotations

import json
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
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

from tidemark.spec.fields import Decimal, FieldType, ListOf, MapOf, Struct
from tidemark.typed.formats.protobuf import TIMESTAMP, WRAPPERS

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
"""Since 1970, in the years from 1 to 9999: Protobuf's bounds, and those of Spark."""
_NANOS = range(10**9)
_NO_VALUE = (ValueError, OverflowError, RecursionError, DecodeError, json_format.Error)
"""What Arrow and Protobuf's JSON raise of values that they do not take."""

Column: TypeAlias = Callable[[Sequence[Any]], pa.Array]
"""Values of one field, None where there is none, as a column."""
_Taker: TypeAlias = Callable[[Sequence[Message | None]], Sequence[Any]]
"""The values of one field of some messages."""


# Of all messages: a field of such a name hides that of its own message.
_has_field = AnyMessage.HasField
_is_initialized = AnyMessage.IsInitialized
_byte_size = AnyMessage.ByteSize
_discard_unknown_fields = AnyMessage.DiscardUnknownFields
_list_fields = AnyMessage.ListFields


class Unreadable(Exception):
    """Payloads are no messages of their schema, or have values that no column takes.

    Args:
        place: Their field's path; empty if that is not known.
        at: Which of those that were given; never empty.
    """

    def __init__(self, place: str, at: Sequence[int]) -> None:
        super().__init__(place)
        self.place = place
        self.at = at


def is_whole(message: Message) -> bool:
    """Whether a message has all that it has to, and nothing unknown, wherever in it.

    What is unknown is discarded. What lies in an Any, or under more than 64 messages, is not seen.
    """
    if not _is_initialized(message):
        return False
    size = _byte_size(message)
    _discard_unknown_fields(message)
    return bool(_byte_size(message) == size)


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

    The column raises `Unreadable` with all messages that have a value in one field that it does
    not take.
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
                raise Unreadable(".".join(filter(None, (place, wrong.place))), wrong.at) from None
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
    """Maps by the JSON of their keys, in the order of that."""
    values, made = _value(value, kind.value, pool), arrow_type(kind)

    def column(maps: Sequence[Any]) -> pa.Array:
        some = [found or {} for found in maps]
        # Keys are text, numbers or flags: what comes as bytes is text that is not UTF-8.
        if wrong := [n for n, found in enumerate(some) if any(type(k) is bytes for k in found)]:
            raise Unreadable("", wrong)
        entries = [sorted((_key(name), each) for name, each in found.items()) for found in some]
        keys = pa.array([name for each in entries for name, _ in each], pa.string())
        filled = _flat(values, [[held for _, held in each] for each in entries])
        return pa.MapArray.from_arrays(_offsets(some), keys, filled, type=made)

    return column


def _flat(column: Column, some: Sequence[Collection[Any]]) -> pa.Array:
    """The elements of all of some as one column; what it does not take is told by where it is."""
    try:
        return column(list(chain.from_iterable(some)))
    except Unreadable as wrong:
        ends = list(accumulate(map(len, some)))
        at = sorted({bisect_right(ends, each) for each in wrong.at})
        raise Unreadable(wrong.place, at) from None


def _key(key: Any) -> str:
    """A map's key as text."""
    return key if isinstance(key, str) else json.dumps(key)


def _offsets(some: Sequence[Collection[Any]]) -> pa.Array:
    return pa.array(accumulate(map(len, some), initial=0), pa.int32())


def _value(field: FieldDescriptor, kind: FieldType, pool: DescriptorPool) -> Column:
    """One value each, of a field or of its elements."""
    message, made = field.message_type, arrow_type(kind)
    if isinstance(kind, Struct):
        return struct_column(message, kind, pool)
    if message is None:
        if field.enum_type is None:
            return _leaf(made)
        names: dict[int, str] = {}
        for each in field.enum_type.values:
            # Of aliases the first one, as in Protobuf's own JSON.
            names.setdefault(each.number, each.name)
        return _leaf(made, lambda number: names.get(number, str(number)))
    if message.full_name == TIMESTAMP:
        return _leaf(made, _microseconds)
    if message.full_name in WRAPPERS:
        return _leaf(made, attrgetter("value"))
    return _leaf(made, lambda each: _text(each, pool))


def _leaf(made: pa.DataType, convert: Callable[[Any], Any] | None = None) -> Column:
    """Values of a type of Arrow, None where there is none; `convert` makes them of what is given.

    Good columns pay nothing for it that those at fault are told apart.
    """

    def filled(values: Sequence[Any]) -> pa.Array:
        if convert is not None:
            values = [None if each is None else convert(each) for each in values]
        return pa.array(values, made)

    def is_taken(value: Any) -> bool:
        try:
            filled([value])
        except _NO_VALUE:
            return False
        return True

    def column(values: Sequence[Any]) -> pa.Array:
        try:
            return filled(values)
        except _NO_VALUE:
            wrong = [number for number, each in enumerate(values) if not is_taken(each)]
            if not wrong:
                raise
            raise Unreadable("", wrong) from None

    return column


def _microseconds(moment: Any) -> int:
    """Since 1970; what is less than one is cut off."""
    if moment.seconds not in _SECONDS or moment.nanos not in _NANOS:
        raise ValueError("no moment of the years from 1 to 9999")
    return int(moment.seconds * 10**6 + moment.nanos // 1000)


def _text(message: Message, pool: DescriptorPool) -> str:
    """A message's JSON; of an Any whose type the schema does not have its bytes in base64."""
    kind = message.DESCRIPTOR.full_name
    held: Any = message
    if kind == _FIELD_MASK:
        # Its JSON would write the paths in another case, and take no other.
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
    """Look into an Any as into any other message.

    Raises:
        KeyError: The schema does not have its type.
        ValueError, DecodeError: It is not whole.
    """
    if message.DESCRIPTOR.full_name != _ANY or not _list_fields(message):
        # An Any with nothing in it is `{}`.
        return
    held: Any = message
    kind = pool.FindMessageTypeByName(held.type_url.rpartition("/")[2])
    inner = GetMessageClass(kind).FromString(held.value)
    if not is_whole(inner):
        raise ValueError("a message that is not whole")
    _check_fields(inner, pool)


def _check_fields(message: Message, pool: DescriptorPool) -> None:
    for field, value in _list_fields(message):
        for kind, values in _elements(field, value):
            for each in values:
                if isinstance(each, bytes) and kind.type != FieldDescriptor.TYPE_BYTES:
                    raise ValueError("text that is not UTF-8")
                if isinstance(each, Message):
                    _check_held(each, pool)
                    _check_fields(each, pool)


def _elements(
    field: FieldDescriptor, value: Any
) -> Iterator[tuple[FieldDescriptor, Iterable[Any]]]:
    """The values of a field, with the field whose type they have: a map has two."""
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        yield entry.fields_by_name["key"], value.keys()
        yield entry.fields_by_name["value"], value.values()
    else:
        yield field, value if field.is_repeated else [value]
