"""Protobuf messages as Arrow columns: what Python workers of Spark run, without Spark itself.

Field by field over all messages of a batch, for a value at a time costs more. Messages with a value
that a field's column does not take are left out, and the batch is filled again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import pyarrow as pa
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from tidemark.spec.decode import Reason
from tidemark.typed.formats.descriptors import pool_of
from tidemark.typed.formats.message_columns import Unreadable, arrow_type, is_whole, struct_column
from tidemark.typed.formats.protobuf import FIRST, column_of, first_message, message_index

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
        reasons = [Reason.MALFORMED.value if each in details else None for each in numbers]
        told = [details.get(each) or None for each in numbers]
        return pa.StructArray.from_arrays(
            [values, pa.array(reasons, pa.string()), pa.array(told, pa.string())],
            fields=list(self._type),
        )

    def _message(self, payload: bytes) -> Message:
        try:
            index, start = message_index(payload)
            message = self._parse(payload[start:]) if index == FIRST else None
        except (ValueError, DecodeError):
            raise _Malformed from None
        if message is None:
            raise _Malformed(f"message {'.'.join(map(str, index[:_SHOWN]))}")
        if not is_whole(message):
            raise _Malformed
        return message

    def _values(self, messages: list[Message | None], details: dict[int, str]) -> pa.Array:
        """The column of the messages; those that it does not take are left out, with why."""
        while True:
            try:
                return self._column(messages)
            except Unreadable as wrong:
                for each in wrong.at:
                    messages[each], details[each] = None, wrong.place


class _Malformed(Exception):
    """A payload is no message of its schema; the text, if there is one, is what it is instead."""
