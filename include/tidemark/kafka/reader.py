"""Reading records with librdkafka as a free consumer: the second reader, apart from Spark's."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tidemark.core.offsets import Span, SpanSet
from tidemark.core.record import Headers, LogRecord, TimestampType
from tidemark.core.watermarks import IsolationLevel, Position
from tidemark.kafka.admin import MISSING, REFUSAL_GRACE_S, REFUSALS, client_settings_error
from tidemark.kafka.errors import KafkaRefused, KafkaUnavailable, OffsetsDeleted, TopicMissing

log = logging.getLogger(__name__)

_AT_ONCE = 200
"""Partitions read by one client; each has a fetch buffer."""
_SEEK_BEYOND = 20_000
"""Reading on is cheaper than a seek up to about so many offsets."""
_BATCH = 1_000
_POLL_S = 0.05
"""A call waits so long for a full batch, also where the log has ended before."""
_PATIENCE_S = 60.0

_CONSUMER: Mapping[str, Any] = {
    # librdkafka's consumer wants a name. Partitions are assigned by hand and nothing is committed,
    # so no group comes of it (S1).
    "group.id": "tidemark",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # librdkafka's default for consumers, set explicitly: reading must never create a topic (S15).
    "allow.auto.create.topics": False,
    # No choosing of another offset: what is not there is an error.
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "check.crcs": True,
    # A topic may allow larger records than the default of 100 MB; this is the most there is.
    "receive.message.max.bytes": 2**31 - 1,
    "fetch.wait.max.ms": 10,
    "queued.max.messages.kbytes": 8_192,
    # The topic was there when its watermarks were read; only brokers that just started know less.
    "topic.metadata.propagation.max.ms": 5_000,
    # Tells how far the fetches are where no record is visible for long.
    "statistics.interval.ms": 5_000,
    "log_level": 0,
}

_ONE_BATCH: Mapping[str, Any] = {
    # Kafka sends a batch at least, however large.
    "max.partition.fetch.bytes": 1_024,
    "queued.max.messages.kbytes": 64,
}
"""For a reader that wants one record of each partition."""

_OF_GROUPS = {KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.COORDINATOR_NOT_AVAILABLE}
"""Only a group would need these rights; librdkafka looks for a coordinator without being asked."""

_CORRUPT = {
    KafkaError._BAD_MSG,
    KafkaError._BAD_COMPRESSION,
    KafkaError.INVALID_MSG,
}
"""After one of these the client no longer knows where it is: what it shows next is no evidence."""


class KafkaLogReader:
    """Reads spans of offsets; what lies between them is not fetched if it is long.

    Args:
        config: librdkafka configuration; needs `bootstrap.servers`.
        patience_s: How long to wait without any progress, in seconds.
    """

    def __init__(self, config: Mapping[str, Any], patience_s: float = _PATIENCE_S) -> None:
        self._config = {**config, **_CONSUMER}
        self._patience_s = patience_s

    def truncated_partition(self, topic: str, positions: Mapping[int, Position]) -> int | None:
        """Return a partition with a log that was truncated before a position and has grown again.

        librdkafka asks each leader where the log of a leader epoch ends (KIP-320) before it
        fetches the first record.

        Raises:
            OffsetsDeleted: A position was deleted meanwhile.
            TopicMissing, KafkaUnavailable, KafkaRefused
        """
        spans = {
            partition: SpanSet((Span(position.offset, position.offset + 1),))
            for partition, position in positions.items()
        }
        # Up to the high watermark: what a transaction holds back may lie right at a position.
        records = self._records(topic, IsolationLevel.READ_UNCOMMITTED, spans, positions)
        try:
            deque(records, maxlen=0)
        except _Cut as cut:
            return cut.partition
        return None

    def read(
        self, topic: str, isolation_level: IsolationLevel, spans: Mapping[int, SpanSet]
    ) -> Iterator[LogRecord]:
        """Every visible record at these offsets; each partition in offset order.

        Raises:
            OffsetsDeleted: Offsets were deleted from Kafka while they were read.
            TopicMissing, KafkaUnavailable, KafkaRefused
        """
        return self._records(topic, isolation_level, spans, {})

    def first_records(
        self, topic: str, isolation_level: IsolationLevel, spans: Mapping[int, SpanSet]
    ) -> Iterator[LogRecord]:
        """The first visible record at these offsets of each partition that has one.

        Raises:
            OffsetsDeleted, TopicMissing, KafkaUnavailable, KafkaRefused: As in `read`.
        """
        return self._records(topic, isolation_level, spans, {}, only_first=True)

    def _records(
        self,
        topic: str,
        isolation_level: IsolationLevel,
        spans: Mapping[int, SpanSet],
        positions: Mapping[int, Position],
        *,
        only_first: bool = False,
    ) -> Iterator[LogRecord]:
        partitions = sorted(partition for partition, wanted in spans.items() if wanted)
        for first in range(0, len(partitions), _AT_ONCE):
            some = partitions[first : first + _AT_ONCE]
            config = {**self._config, "isolation.level": str(isolation_level)}
            if only_first:
                config |= _ONE_BATCH
            reading = _Reading(config, topic, {p: spans[p] for p in some}, positions)
            with closing(reading):
                for record in reading.records(self._patience_s):
                    yield record
                    if only_first:
                        reading.leave(record.partition)


class _Cut(Exception):
    """The log of a partition was truncated before the first position to read."""

    def __init__(self, partition: int) -> None:
        super().__init__(partition)
        self.partition = partition


class _Reading:
    """One consumer, and what is left to read of each of its partitions."""

    def __init__(
        self,
        config: Mapping[str, Any],
        topic: str,
        spans: Mapping[int, SpanSet],
        positions: Mapping[int, Position],
    ) -> None:
        self._topic = topic
        self._positions = positions
        self._left: dict[int, list[Span]] = {p: list(some) for p, some in spans.items()}
        self._sought: dict[int, int] = {}
        self._fetched: dict[str, int] = {}
        self._progress = time.monotonic()
        self._reasons: dict[str, None] = {}
        self._refusals: dict[str, None] = {}
        self._refused_at = 0.0
        self._missing = False
        try:
            self._consumer = Consumer(
                {**config, "error_cb": self._note, "stats_cb": self._note_fetches}
            )
        except KafkaException as raised:
            raise client_settings_error(raised) from raised
        self._consumer.assign([self._beginning(p, left[0]) for p, left in self._left.items()])

    def close(self) -> None:
        """Leave the brokers."""
        self._consumer.close()

    def leave(self, partition: int) -> None:
        """Read nothing more of a partition."""
        if left := self._left.get(partition):
            self._passed(partition, left[-1].end)

    def _beginning(self, partition: int, first: Span) -> TopicPartition:
        known = self._positions.get(partition)
        if known is None:
            return TopicPartition(self._topic, partition, first.start)
        return TopicPartition(self._topic, partition, first.start, leader_epoch=known.leader_epoch)

    def records(self, patience_s: float) -> Iterator[LogRecord]:
        """Every visible record of what is left, until nothing is left."""
        while self._left:
            for message in self._consumer.consume(_BATCH, timeout=_POLL_S):
                error = message.error()
                if error is None:
                    self._progress = time.monotonic()
                    yield from self._taken(message)
                else:
                    self._reached(message.partition(), message.offset(), error)
            if self._left:
                self._check(patience_s)

    def _check(self, patience_s: float) -> None:
        now = time.monotonic()
        if self._missing:
            raise TopicMissing(topic=self._topic)
        if self._refusals and now > self._refused_at + REFUSAL_GRACE_S:
            raise KafkaRefused(operation=f"reading {self._topic}", reason="; ".join(self._refusals))
        if now > self._progress + patience_s:
            partition, left = next(iter(self._left.items()))
            raise KafkaUnavailable(
                operation=f"reading {self._topic}[{partition}] from offset {left[0].start}",
                reason="; ".join(self._reasons) or "no record and no end of the log in time",
            )

    def _taken(self, message: Message) -> Iterator[LogRecord]:
        partition, offset = message.partition(), message.offset()
        self._passed(partition, offset)
        left = self._left.get(partition)
        if not left:
            return
        wanted = left[0].start
        if wanted <= offset:
            yield _record(message)
            self._passed(partition, offset + 1)
        elif wanted > offset + _SEEK_BEYOND and self._sought.get(partition) != wanted:
            # Once: what was fetched before the seek may still be at hand.
            self._sought[partition] = wanted
            self._consumer.seek(TopicPartition(self._topic, partition, wanted))

    def _passed(self, partition: int, offset: int) -> None:
        """Forget what lies before an offset: the reader has been there."""
        left = self._left.get(partition)
        if left is None:
            return
        while left and left[0].end <= offset:
            left.pop(0)
        if not left:
            del self._left[partition]
            self._consumer.pause([TopicPartition(self._topic, partition)])

    def _reached(self, partition: int, offset: int, error: KafkaError) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            # The end may be behind what was asked for while leaders change: patience decides.
            self._passed(partition, offset)
        elif code == KafkaError._AUTO_OFFSET_RESET:
            # Of a partition that is read to its end already it is no matter.
            if partition in self._left:
                raise self._out_of_range(partition, error)
        elif code in _CORRUPT:
            raise KafkaUnavailable(
                operation=f"reading {self._topic}[{partition}]",
                reason=f"a corrupt batch: {error.str()}",
            )
        else:
            self._note(error)

    def _out_of_range(self, partition: int, error: KafkaError) -> _Cut | OffsetsDeleted:
        offset = self._left[partition][0].start
        # librdkafka has one code for both, and tells them apart in words.
        if partition in self._positions and "truncation" in error.str():
            return _Cut(partition)
        return OffsetsDeleted(topic=self._topic, partition=partition, offset=offset)

    def _note(self, error: KafkaError) -> None:
        code = error.code()
        if code in MISSING:
            self._missing = True
        elif code in REFUSALS:
            self._refused_at = self._refused_at or time.monotonic()
            self._refusals[error.str()] = None
        elif code not in _OF_GROUPS:
            self._reasons[error.str()] = None

    def _note_fetches(self, statistics: str) -> None:
        """Aborted records are fetched and not shown: that is progress as well."""
        topics = json.loads(statistics)["topics"]
        told = topics.get(self._topic, {"partitions": {}})["partitions"]
        fetched = {partition: each["next_offset"] for partition, each in told.items()}
        if fetched != self._fetched:
            self._fetched = fetched
            self._progress = time.monotonic()


def _headers(message: Message) -> Headers | None:
    try:
        # By way of `map`, whose call checks what the client does not: see below.
        (headers,) = map(Message.headers, (message,))
        return tuple(headers or ())
    except (UnicodeDecodeError, SystemError) as failed:
        # The client decodes all names at once, and keeps none of them if one is not UTF-8. It
        # returns a value with the exception set. A checked call raises SystemError for that; a call
        # that Python has specialised does not, and the exception appears in later code.
        cause: BaseException | None = failed
        while cause is not None and not isinstance(cause, UnicodeDecodeError):
            cause = cause.__cause__
        if cause is None:
            raise
        return None


def _record(message: Message) -> LogRecord:
    kind, milliseconds = message.timestamp()
    return LogRecord(
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        headers=_headers(message),
        # librdkafka counts kinds from "not available", Kafka itself from -1.
        timestamp_ms=milliseconds if kind else -1,
        timestamp_type=TimestampType(kind - 1),
    )
