"""Writes record batches byte by byte, for records that client libraries refuse.

The format is Kafka's record batch, version 2, in a Produce request, version 3:
https://kafka.apache.org/documentation/#messageformat and https://kafka.apache.org/protocol
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

_CASTAGNOLI = 0x82F63B78
_BATCH_BEFORE_CRC = 17
"""Bytes of a batch up to its checksum: base offset, length, leader epoch, magic."""


class RawRecord(NamedTuple):
    """A record; None is not empty."""

    key: bytes | None = None
    value: bytes | None = b"value"
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    timestamp_ms: int = 0


def produce_raw(
    bootstrap: str, topic: str, records: Sequence[RawRecord], partition: int = 0
) -> int:
    """Append one batch and return the offset of its first record.

    Raises:
        RuntimeError: The broker refuses the batch.
    """
    host, port = bootstrap.rsplit(":", 1)
    name, batch = topic.encode(), _batch(records)
    body = (
        struct.pack(">hhih", 0, 3, 1, -1)  # Produce, version 3, correlation id, no client id
        + struct.pack(">hhi", -1, -1, 30_000)  # no transaction, all replicas, time limit in ms
        + struct.pack(">ih", 1, len(name))
        + name
        + struct.pack(">iii", 1, partition, len(batch))
        + batch
    )
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        (length,) = struct.unpack(">i", _received(connection, 4))
        answer = _received(connection, length)
    # Correlation id, one topic with its name, one partition with its number, then the outcome.
    error, first = struct.unpack_from(">hq", answer, 4 + 4 + 2 + len(name) + 4 + 4)
    if error:
        raise RuntimeError(f"the broker refuses the batch with error code {error}")
    return int(first)


def _received(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        data += connection.recv(length - len(data)) or _closed()
    return data


def _closed() -> bytes:
    raise RuntimeError("the broker closed the connection")


def _batch(records: Sequence[RawRecord]) -> bytes:
    base = records[0].timestamp_ms
    body = struct.pack(
        ">hiqqqhii",
        0,  # no compression, the producer's timestamps
        len(records) - 1,
        base,
        max(record.timestamp_ms for record in records),
        -1,
        -1,
        -1,  # no producer id, epoch, sequence
        len(records),
    ) + b"".join(_record(record, number, base) for number, record in enumerate(records))
    head = struct.pack(">qiib", 0, _BATCH_BEFORE_CRC - 8 + len(body), -1, 2)
    return head + struct.pack(">I", _crc32c(body)) + body


def _record(record: RawRecord, number: int, base: int) -> bytes:
    body = b"\x00" + _varint(record.timestamp_ms - base) + _varint(number)
    body += _sized(record.key) + _sized(record.value) + _varint(len(record.headers))
    body += b"".join(_sized(name) + _sized(value) for name, value in record.headers)
    return _varint(len(body)) + body


def _sized(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Return a zigzag varint; differences wrap at 64 bits, as in Java."""
    number = (number + 2**63) % 2**64 - 2**63
    left = (number << 1) ^ (number >> 63)
    left &= 2**64 - 1
    data = bytearray()
    while left >= 0x80:
        data.append(left & 0x7F | 0x80)
        left >>= 7
    data.append(left)
    return bytes(data)


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_CASTAGNOLI if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
