"""A Kafka record, and the checksum by which two readers compare it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import TypeAlias

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

FIRST_DATED_MS = -62_135_596_800_000
"""0001-01-01T00:00:00Z."""
LAST_DATED_MS = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the latest date of Python, and so of most table readers."""


class TimestampType(IntEnum):
    """Origin of a record's timestamp. The values are Kafka's; the bronze table contains them."""

    NONE = -1
    """The record has no timestamp."""
    CREATE = 0
    """The producer set the timestamp."""
    LOG_APPEND = 1
    """The broker set the timestamp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One record with its partition and offset; None differs from empty (S4).

    Attributes:
        partition: Partition number.
        offset: Offset.
        key: Key.
        value: Value; None is a tombstone.
        headers: Names and values in order; names may repeat. None if the reader cannot decode
            the headers, because a name is not UTF-8.
        timestamp_ms: Milliseconds since 1970; -1 without a timestamp.
        timestamp_type: Origin of the timestamp.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    timestamp_ms: int
    timestamp_type: TimestampType

    @property
    def is_dated(self) -> bool:
        """Whether the column `timestamp` can hold the timestamp."""
        return FIRST_DATED_MS <= self.timestamp_ms <= LAST_DATED_MS

    @property
    def timestamp_text(self) -> str:
        """The timestamp as readable text, in UTC with milliseconds."""
        if self.timestamp_type is TimestampType.NONE:
            return "no timestamp"
        if not self.is_dated:
            return f"{self.timestamp_ms} ms since 1970"
        at = _EPOCH + timedelta(milliseconds=self.timestamp_ms)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def without_headers(self) -> LogRecord:
        """Return the record without headers, to compare it with undecodable headers."""
        return replace(self, headers=None)

    @property
    def size(self) -> int:
        """Size of key, value and headers in bytes."""
        headers = ((name.encode("utf-8", "surrogateescape"), v) for name, v in self.headers or ())
        parts = (self.key, self.value, *(part for header in headers for part in header))
        return sum(len(part) for part in parts if part is not None)

    @property
    def checksum(self) -> str:
        """BLAKE2 of all fields but partition and offset: 128 bits, in hexadecimal.

        A header name counts up to its first zero byte, because librdkafka cuts names there.
        """
        digest = hashlib.blake2b(digest_size=16)
        for part in self._parts():
            # Lengths separate neighbours; -1 separates None from empty.
            digest.update(b"%d:" % (-1 if part is None else len(part)))
            digest.update(part or b"")
        return digest.hexdigest()

    def _parts(self) -> Iterator[bytes | None]:
        yield self.key
        yield self.value
        yield b"%d/%d" % (self.timestamp_ms, self.timestamp_type)
        for name, value in self.headers or ():
            yield name.partition("\0")[0].encode("utf-8", "surrogateescape")
            yield value
