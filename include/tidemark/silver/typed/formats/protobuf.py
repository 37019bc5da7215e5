"""Protobuf schemas: their descriptors, and the message index of a payload.

The text of a schema is its descriptors in Protobuf's JSON form, a `FileDescriptorSet`. The last
file is the schema itself, and the other files are its imports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from tidemark.spec.fields import UnsupportedSchema

# Each file after its imports.
_WELL_KNOWN = (
    *("any", "source_context", "type", "api", "descriptor", "duration", "empty", "field_mask"),
    *("struct", "timestamp", "wrappers"),
)
WELL_KNOWN = tuple(f"google/protobuf/{name}.proto" for name in _WELL_KNOWN)
"""Files that every Protobuf library provides; the text of a schema does not contain them."""
NOT_COMPILED = "// not compiled: "
"""Prefix of the text of a schema that does not compile; the reason follows."""
FIRST = (0,)
"""The index of a schema's first message, whose fields are the column."""
_SINGLE_ZERO = b"\x00"
_MAX_LEVELS = 100
"""Maximum levels of a message index; Protobuf readers allow fewer levels of messages."""
_VARINT_BYTES = 5
"""Maximum bytes of a number in an index; the number has 32 bits."""


def message_index(payload: bytes) -> tuple[tuple[int, ...], int]:
    """Return the message index of a payload, and the position of the message in bytes.

    Confluent's serializers write the index after the schema id: the count of numbers and the
    numbers, as zigzag varints. The first number is the position of a message in the file, the next
    one the position of a message inside that message. A single zero means the first message.
    Protobuf's library has no public function for numbers outside a message.

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
    """Return a non-negative number, and the position after it."""
    number = 0
    for step, byte in enumerate(payload[place : place + _VARINT_BYTES]):
        number |= (byte & 0x7F) << (7 * step)
        if byte < 0x80:
            if number & 1:
                raise ValueError("the message index has a negative number")
            return number >> 1, place + step + 1
    raise ValueError("the message index has an incomplete number")


def first_message(text: str) -> Descriptor:
    """Return the descriptor of a schema's first message.

    Raises:
        UnsupportedSchema: The schema has no message, or did not compile.
    """
    try:
        files = files_of(text)
        main = files[-1]
    except (json_format.Error, LookupError):
        problem = "the Protobuf schema does not compile"
        if text.startswith(NOT_COMPILED):
            problem += f": {text.partition(chr(10))[0].removeprefix(NOT_COMPILED)}"
        raise UnsupportedSchema(problem) from None
    if not main.message_type:
        raise UnsupportedSchema("the schema has no message")
    name = main.message_type[0].name
    return pool_of(files).FindMessageTypeByName(f"{main.package}.{name}".lstrip("."))


def files_of(text: str) -> Sequence[FileDescriptorProto]:
    """Return the files of a schema, each after its imports.

    Raises:
        json_format.Error: The text is not descriptors.
    """
    return json_format.Parse(text, FileDescriptorSet()).file  # type: ignore[no-any-return]


def pool_of(files: Iterable[FileDescriptorProto]) -> DescriptorPool:
    """Return a pool of the messages of files and of Protobuf's well-known files.

    Raises:
        TypeError, ValueError: Protobuf's library rejects the descriptors. It rejects some that the
            compiler accepts, such as a redefined well-known message.
    """
    pool = DescriptorPool()
    for name in _WELL_KNOWN:
        module = import_module(f"google.protobuf.{name}_pb2")
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for file in files:
        for message in _with_inner(file.message_type):
            # Names in JSON are not used, so two equal ones do no harm.
            message.options.deprecated_legacy_json_field_conflicts = True
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def _with_inner(messages: Iterable[DescriptorProto]) -> Iterator[DescriptorProto]:
    for each in messages:
        yield each
        yield from _with_inner(each.nested_type)
