"""A record as a reader of Kafka sees it, and the checksum that two readers compare."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TypeAlias

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

FIRST_DATED_MS = -62_135_596_800_000
"""0001-01-01T00:00:00Z."""
LAST_DATED_MS = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z. Python, and so most readers of a table, has no later date."""


class TimestampType(IntEnum):
    """Who set a record's timestamp, in Kafka's own numbers, which the bronze table keeps."""

    NONE = -1
    """Nobody: the record has no timestamp."""
    CREATE = 0
    """The producer."""
    LOG_APPEND = 1
    """The broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One record at its place; None is not empty (S4).

    Attributes:
        partition: Partition number.
        offset: Offset.
        key: Key.
        value: Value; None is a tombstone.
        headers: Names and values in their order; names may repeat. None if the reader cannot
            decode them, because a name is not UTF-8.
        timestamp_ms: Milliseconds since 1970; -1 where there is none.
        timestamp_type: Who set it.
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

    def without_payload(self) -> LogRecord:
        """The same without its key and value, which a typed table does not keep as they are."""
        return replace(self, key=None, value=None)

    def without_headers(self) -> LogRecord:
        """The same record without headers, to compare it with a record with undecodable headers."""
        return replace(self, headers=None)

    @property
    def checksum(self) -> str:
        """BLAKE2 of everything but the place, 128 bits in hexadecimal.

        A header name counts up to its first zero byte, because librdkafka returns no more of it.
        """
        digest = hashlib.blake2b(digest_size=16)
        for part in self._parts():
            # Lengths keep neighbours apart; -1 keeps what is absent from what is empty.
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
