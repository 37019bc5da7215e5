"""Protobuf messages as Arrow columns: what Python workers of Spark run, without Spark itself.

Field by field over all messages of a batch, for a value at a time costs more. A batch with a field
that has no value here is halved until the messages that are at fault are alone.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import pyarrow as pa
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
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from tidemark.adapters.spark.message_columns import Unreadable, arrow_type, struct_column
from tidemark.core.decoding import Reason
from tidemark.core.protobuf import FIRST, column_of, first_message, message_index

_WELL_KNOWN = (
    *(any_pb2, source_context_pb2, type_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2),
    *(field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2),
)
"""Each behind those that it imports."""
_SHOWN = 5
"""Of a message's index: a broken one may have as many numbers as the payload has bytes."""


def read_type(schema: str) -> pa.StructType:
    """The type of what `read` returns."""
    value = arrow_type(column_of(schema))
    return pa.struct([("value", value), ("reason", pa.string()), ("detail", pa.string())])


def read(payloads: pa.Array, schema: str) -> pa.StructArray:
    """Payloads decoded.

    Args:
        payloads: Binary: the index of the message, then the message; or null.
        schema: The text of the schema that they were written with.

    Returns:
        Of each `value`, `reason` (as `Reason`) and `detail`: the field at fault, or the index of a
        message that is not the schema's first; null where nobody knows.
    """
    with _without_collection():
        return _reader(schema).read(payloads.to_pylist())


@contextmanager
def _without_collection() -> Iterator[None]:
    """No search for cycles: a batch has none, and many objects, which took a third of the time."""
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
        pool = DescriptorPool()
        for module in _WELL_KNOWN:
            pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        files = json_format.Parse(schema, descriptor_pb2.FileDescriptorSet())
        for file in files.file:
            pool.AddSerializedFile(file.SerializeToString())
        message = pool.FindMessageTypeByName(first_message(schema))
        self._parse = GetMessageClass(message).FromString
        self._type = read_type(schema)
        self._column = struct_column(message, column_of(schema), pool)

    def read(self, payloads: Sequence[bytes | None]) -> pa.StructArray:
        messages: list[Message | None] = []
        details: list[str | None] = []
        for payload in payloads:
            message, detail = None, None
            if payload is not None:
                try:
                    message = self._message(payload)
                except Unreadable as wrong:
                    detail = wrong.place
            messages.append(message)
            details.append(detail)
        values = pa.concat_arrays(list(self._values(messages, details, 0, len(messages))))
        reasons = [None if each is None else Reason.MALFORMED.value for each in details]
        return pa.StructArray.from_arrays(
            [
                values,
                pa.array(reasons, pa.string()),
                pa.array([each or None for each in details], pa.string()),
            ],
            fields=list(self._type),
        )

    def _message(self, payload: bytes) -> Message:
        try:
            index, start = message_index(payload)
            message = self._parse(payload[start:]) if index == FIRST else None
        except (ValueError, DecodeError):
            raise Unreadable("") from None
        if message is None:
            raise Unreadable(f"message {'.'.join(map(str, index[:_SHOWN]))}")
        if not message.IsInitialized():
            raise Unreadable("")
        # Wherever in it they are.
        whole = message.ByteSize()
        message.DiscardUnknownFields()
        if message.ByteSize() != whole:
            raise Unreadable("")
        return message

    def _values(
        self, messages: list[Message | None], details: list[str | None], start: int, end: int
    ) -> Sequence[pa.Array]:
        """The columns of some messages; says in `details` which of them are at fault."""
        try:
            return [self._column(messages[start:end])]
        except Unreadable as wrong:
            if end - start == 1:
                details[start] = wrong.place
                return [pa.nulls(1, self._type.field("value").type)]
        middle = (start + end) // 2
        return [
            *self._values(messages, details, start, middle),
            *self._values(messages, details, middle, end),
        ]
