"""Protobuf descriptors as Python's library takes them, for adapters that make or read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool


def pool_of(schema: str) -> DescriptorPool:
    """The messages of a schema, and those that every library brings.

    Args:
        schema: Descriptors in JSON, as `core.protobuf` has them.

    Raises:
        TypeError, ValueError, json_format.Error: The library does not take them. It refuses some
            that the compiler takes, such as a second definition of a well-known message.
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
    # Each behind those that it imports.
    for module in (
        *(any_pb2, source_context_pb2, type_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2),
        *(field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2),
    ):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for file in json_format.Parse(schema, descriptor_pb2.FileDescriptorSet()).file:
        for message in _with_inner(file.message_type):
            # Names in JSON are nobody's here, and two that are the same are no reason to refuse.
            message.options.deprecated_legacy_json_field_conflicts = True
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def _with_inner(messages: Iterator[DescriptorProto]) -> Iterator[DescriptorProto]:
    for each in messages:
        yield each
        yield from _with_inner(each.nested_type)
