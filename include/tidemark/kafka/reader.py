"""Reads records with librdkafka, without a group: a second reader that is independent of Spark."""

from __future__ import annotations

import json
import logging
import math
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tidemark.core.offsets import Span, SpanSet
from tidemark.core.record import Headers, LogRecord, TimestampType
from tidemark.core.watermarks import IsolationLevel, Position
from tidemark.kafka.admin import (
    MISSING_TOPIC_CODES,
    REFUSAL_CODES,
    REFUSAL_GRACE_S,
    client_settings_error,
)
from tidemark.kafka.errors import KafkaRefused, KafkaUnavailable, OffsetsDeleted, TopicMissing

log = logging.getLogger(__name__)

_PARTITIONS_PER_CLIENT = 200
"""Each partition of a client has a fetch buffer."""
_SEEK_BEYOND = 20_000
"""Offsets up to which reading and discarding records is cheaper than a seek."""
_BATCH = 1_000
_POLL_S = 0.05
"""Seconds that a call waits for a full batch, even at the end of the log."""
PROGRESS_TIMEOUT_S = 60.0

_CONSUMER: Mapping[str, Any] = {
    # librdkafka's consumer requires a group name. Partitions are assigned explicitly and no offset
    # is committed, so Kafka creates no group (S1).
    "group.id": "tidemark",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # Set explicitly, although it is the default: reading must never create a topic (S15).
    "allow.auto.create.topics": False,
    # A missing offset is an error; the client must not choose another offset.
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "check.crcs": True,
    # The largest possible value: a topic may allow larger records than the default of 100 MB.
    "receive.message.max.bytes": 2**31 - 1,
    "fetch.wait.max.ms": 10,
    "queued.max.messages.kbytes": 8_192,
    # The topic existed when its watermarks were read; only a broker that just started lacks it.
    "topic.metadata.propagation.max.ms": 5_000,
    # The statistics show the progress of fetches through ranges without a visible record.
    "statistics.interval.ms": 5_000,
    "log_level": 0,
}

_FIRST_RECORD_ONLY: Mapping[str, Any] = {
    # Kafka sends at least one batch of any size.
    "max.partition.fetch.bytes": 1_024,
    "queued.max.messages.kbytes": 64,
}
"""Settings for reading one record of each partition."""

_GROUP_CODES = {KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.COORDINATOR_NOT_AVAILABLE}
"""Ignored codes: librdkafka always looks for a group coordinator, and this reader needs none."""

_CORRUPTION_CODES = {
    KafkaError._BAD_MSG,
    KafkaError._BAD_COMPRESSION,
    KafkaError.INVALID_MSG,
}
"""After one of these codes the position of the client is undefined, so reading must stop."""


class KafkaLogReader:
    """Reads spans of offsets; seeks over long ranges between the spans. Raises `KafkaFailure`.

    Args:
        config: librdkafka configuration; needs `bootstrap.servers`.
        progress_timeout_s: Longest time without any progress, in seconds.
    """

    def __init__(
        self, config: Mapping[str, Any], progress_timeout_s: float = PROGRESS_TIMEOUT_S
    ) -> None:
        self._config = {**config, **_CONSUMER}
        self._progress_timeout_s = progress_timeout_s

    def truncated_partition(self, topic: str, positions: Mapping[int, Position]) -> int | None:
        """Return a partition whose log was truncated before a position and has grown again.

        Before it fetches the first record, librdkafka requests the end offset of the position's
        leader epoch from each leader (KIP-320).
        """
        spans = {
            partition: SpanSet((Span(position.offset, position.offset + 1),))
            for partition, position in positions.items()
        }
        # Read up to the high watermark: a position may be inside an open transaction.
        records = self._records(topic, IsolationLevel.READ_UNCOMMITTED, spans, positions)
        try:
            deque(records, maxlen=0)
        except _TruncatedLogError as error:
            return error.partition
        return None

    def read(
        self, topic: str, isolation_level: IsolationLevel, spans: Mapping[int, SpanSet]
    ) -> Iterator[LogRecord]:
        """Yield every visible record at these offsets; each partition in offset order."""
        return self._records(topic, isolation_level, spans, {})

    def first_records(
        self, topic: str, isolation_level: IsolationLevel, spans: Mapping[int, SpanSet]
    ) -> Iterator[LogRecord]:
        """Yield the first visible record at these offsets of each partition, if there is one."""
        return self._records(topic, isolation_level, spans, {}, only_first=True)

    def read_briefly(
        self,
        topic: str,
        isolation_level: IsolationLevel,
        partition: int,
        span: Span,
        *,
        seconds: float,
        size: int,
    ) -> tuple[list[LogRecord], int]:
        """See `TopicLogReader.read_briefly`."""
        fetch = {
            "max.partition.fetch.bytes": size,
            "queued.max.messages.kbytes": max(1, size // 1024),
            "fetch.queue.backoff.ms": 10,
        }
        config = {**self._config, "isolation.level": str(isolation_level), **fetch}
        records: list[LogRecord] = []
        deadline = time.monotonic() + seconds
        with closing(_SpanReader(config, topic, {partition: SpanSet((span,))}, {})) as reader:
            for record in reader.records(self._progress_timeout_s, deadline):
                records.append(record)
                size -= record.size
                if size <= 0:
                    break
            else:
                if reader.is_done:
                    return records, span.end
        return records, records[-1].offset + 1 if records else span.start

    def limited(
        self, topic: str, isolation_level: IsolationLevel, *, seconds: float, size: int
    ) -> LimitedReader:
        """Return a reader of one topic that stops after a time or a size.

        Args:
            topic: Topic name.
            isolation_level: Visibility of transactional records.
            seconds: Longest time of all reads together, from now on.
            size: Size of keys, values and headers after which reading stops, in bytes. The last
                record may exceed it.
        """
        config = {**self._config, "isolation.level": str(isolation_level)}
        return LimitedReader(config, topic, time.monotonic() + seconds, size)

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
        for first in range(0, len(partitions), _PARTITIONS_PER_CLIENT):
            some = partitions[first : first + _PARTITIONS_PER_CLIENT]
            config = {**self._config, "isolation.level": str(isolation_level)}
            if only_first:
                config |= _FIRST_RECORD_ONLY
            reader = _SpanReader(config, topic, {p: spans[p] for p in some}, positions)
            with closing(reader):
                for record in reader.records(self._progress_timeout_s):
                    yield record
                    if only_first:
                        reader.skip_partition(record.partition)


class LimitedReader:
    """Reads records of one topic until a deadline, or until the records reach a size.

    Attributes:
        is_complete: Whether every read reached the end of its spans.
    """

    def __init__(self, config: Mapping[str, Any], topic: str, deadline: float, size: int) -> None:
        self.is_complete = True
        self._config = config
        self._topic = topic
        self._deadline = deadline
        self._size = size

    def read(self, spans: Mapping[int, SpanSet]) -> Iterator[LogRecord]:
        """Yield the visible records at some offsets; each partition in offset order."""
        partitions = sorted(partition for partition, wanted in spans.items() if wanted)
        for first in range(0, len(partitions), _PARTITIONS_PER_CLIENT):
            if self._size <= 0 or time.monotonic() >= self._deadline:
                self.is_complete = False
                return
            some = {p: spans[p] for p in partitions[first : first + _PARTITIONS_PER_CLIENT]}
            yield from self._read(some)

    def _read(self, spans: Mapping[int, SpanSet]) -> Iterator[LogRecord]:
        with closing(_SpanReader(self._config, self._topic, spans, {})) as reader:
            for record in reader.records(PROGRESS_TIMEOUT_S, self._deadline):
                yield record
                self._size -= record.size
                if self._size <= 0:
                    break
            self.is_complete &= reader.is_done


class _TruncatedLogError(Exception):
    """The log of a partition was truncated before the first position to read."""

    def __init__(self, partition: int) -> None:
        super().__init__(partition)
        self.partition = partition


class _SpanReader:
    """One consumer, and the spans that are left to read of each of its partitions."""

    def __init__(
        self,
        config: Mapping[str, Any],
        topic: str,
        spans: Mapping[int, SpanSet],
        positions: Mapping[int, Position],
    ) -> None:
        self._topic = topic
        self._positions = positions
        self._remaining: dict[int, list[Span]] = {p: list(some) for p, some in spans.items()}
        self._seeks: dict[int, int] = {}
        self._next_offsets: dict[str, int] = {}
        self._last_progress = time.monotonic()
        self._reasons: dict[str, None] = {}
        self._refusals: dict[str, None] = {}
        self._refused_at = 0.0
        self._is_topic_missing = False
        try:
            self._consumer = Consumer(
                {**config, "error_cb": self._on_error, "stats_cb": self._on_statistics}
            )
        except KafkaException as raised:
            raise client_settings_error(raised) from raised
        self._consumer.assign([self._start_of(p, left[0]) for p, left in self._remaining.items()])

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def skip_partition(self, partition: int) -> None:
        """Drop the remaining spans of a partition."""
        if left := self._remaining.get(partition):
            self._drop_before(partition, left[-1].end)

    def _start_of(self, partition: int, first: Span) -> TopicPartition:
        known = self._positions.get(partition)
        if known is None:
            return TopicPartition(self._topic, partition, first.start)
        return TopicPartition(self._topic, partition, first.start, leader_epoch=known.leader_epoch)

    @property
    def is_done(self) -> bool:
        """Whether no span remains."""
        return not self._remaining

    def records(self, progress_timeout_s: float, deadline: float = math.inf) -> Iterator[LogRecord]:
        """Yield the visible records of the remaining spans.

        Ends when no span remains, or at a deadline by the monotonic clock, in seconds.
        """
        while self._remaining and time.monotonic() < deadline:
            for message in self._consumer.consume(_BATCH, timeout=_POLL_S):
                error = message.error()
                if error is None:
                    self._last_progress = time.monotonic()
                    yield from self._wanted(message)
                else:
                    self._handle_error(message.partition(), message.offset(), error)
            if self._remaining:
                self._check(progress_timeout_s)

    def _check(self, progress_timeout_s: float) -> None:
        now = time.monotonic()
        if self._is_topic_missing:
            raise TopicMissing(topic=self._topic)
        if self._refusals and now > self._refused_at + REFUSAL_GRACE_S:
            raise KafkaRefused(operation=f"reading {self._topic}", reason="; ".join(self._refusals))
        if now > self._last_progress + progress_timeout_s:
            partition, left = next(iter(self._remaining.items()))
            raise KafkaUnavailable(
                operation=f"reading {self._topic}[{partition}] from offset {left[0].start}",
                reason="; ".join(self._reasons) or "no record and no end of the log in time",
            )

    def _wanted(self, message: Message) -> Iterator[LogRecord]:
        partition, offset = message.partition(), message.offset()
        self._drop_before(partition, offset)
        left = self._remaining.get(partition)
        if not left:
            return
        wanted = left[0].start
        if wanted <= offset:
            yield _record(message)
            self._drop_before(partition, offset + 1)
        elif wanted > offset + _SEEK_BEYOND and self._seeks.get(partition) != wanted:
            # Seek once: the next messages may be from fetches before the seek.
            self._seeks[partition] = wanted
            self._consumer.seek(TopicPartition(self._topic, partition, wanted))

    def _drop_before(self, partition: int, offset: int) -> None:
        """Drop the spans before an offset, which the consumer has reached."""
        left = self._remaining.get(partition)
        if left is None:
            return
        while left and left[0].end <= offset:
            left.pop(0)
        if not left:
            del self._remaining[partition]
            self._consumer.pause([TopicPartition(self._topic, partition)])

    def _handle_error(self, partition: int, offset: int, error: KafkaError) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            # After a change of leaders this end may be before the wanted offsets. Then the progress
            # timeout ends the read.
            self._drop_before(partition, offset)
        elif code == KafkaError._AUTO_OFFSET_RESET:
            # The code is irrelevant for a partition that is read completely.
            if partition in self._remaining:
                raise self._out_of_range(partition, error)
        elif code in _CORRUPTION_CODES:
            raise KafkaUnavailable(
                operation=f"reading {self._topic}[{partition}]",
                reason=f"a corrupt batch: {error.str()}",
            )
        else:
            self._on_error(error)

    def _out_of_range(
        self, partition: int, error: KafkaError
    ) -> _TruncatedLogError | OffsetsDeleted:
        offset = self._remaining[partition][0].start
        # librdkafka has one code for truncation and deletion; only the message differs.
        if partition in self._positions and "truncation" in error.str():
            return _TruncatedLogError(partition)
        return OffsetsDeleted(topic=self._topic, partition=partition, offset=offset)

    def _on_error(self, error: KafkaError) -> None:
        code = error.code()
        if code in MISSING_TOPIC_CODES:
            self._is_topic_missing = True
        elif code in REFUSAL_CODES:
            self._refused_at = self._refused_at or time.monotonic()
            self._refusals[error.str()] = None
        elif code not in _GROUP_CODES:
            self._reasons[error.str()] = None

    def _on_statistics(self, text: str) -> None:
        """Count fetches of aborted records as progress, although no record is visible."""
        topics = json.loads(text)["topics"]
        partitions = topics.get(self._topic, {"partitions": {}})["partitions"]
        next_offsets = {partition: each["next_offset"] for partition, each in partitions.items()}
        if next_offsets != self._next_offsets:
            self._next_offsets = next_offsets
            self._last_progress = time.monotonic()


def _headers(message: Message) -> Headers | None:
    try:
        # `map` makes a checked call; the reason is below.
        (headers,) = map(Message.headers, (message,))
        return tuple(headers or ())
    except (UnicodeDecodeError, SystemError) as failed:
        # The client decodes all names at once, and drops all of them if one is not UTF-8. Then it
        # returns a value although an exception is set. A checked call raises SystemError for that.
        # A call that Python has specialised does not, and the exception appears in later code.
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
        # Kafka's numbers of timestamp types start at -1, librdkafka's at 0 ("not available").
        timestamp_ms=milliseconds if kind else -1,
        timestamp_type=TimestampType(kind - 1),
    )
