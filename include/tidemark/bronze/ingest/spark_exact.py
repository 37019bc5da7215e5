"""Files that the driver writes if Spark's Kafka source alters timestamps or fails.

Spark converts each timestamp through `java.sql.Timestamp`. The conversion moves moments before 1900
by days or seconds, depending on the JVM's time zone, and fails beyond 64-bit microseconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tidemark.bronze.ingest.protocols import LogReader
from tidemark.core.datafile import DataFile
from tidemark.core.offsets import Span, SpanSet, spans_by_partition
from tidemark.core.plan import Plan
from tidemark.core.record import LAST_DATED_MS, Headers, LogRecord
from tidemark.core.texts import counted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

log = logging.getLogger(__name__)

_FIRST_KEPT_MS = -2_177_452_800_000
"""1901-01-01T00:00:00Z. Spark keeps moments from 1900 on (RebaseDateTime.lastSwitchJulianTs), in
every time zone. Earlier moments move by a few days, and so stay below this limit."""
_GROUP_RECORDS = 20_000
_GROUP_BYTES = 32 * 2**20
"""Maximum rows or bytes of a row group, which is in memory as Python values."""


def is_kept_by_spark(timestamp_ms: int) -> bool:
    """Return whether Spark reads this timestamp exactly and every reader can represent it."""
    return _FIRST_KEPT_MS <= timestamp_ms <= LAST_DATED_MS


def has_exact_timestamps(file: DataFile) -> bool:
    """Return whether Spark has altered no timestamp of a file."""
    extremes = (file.earliest_ms, file.latest_ms)
    # fence: altered-timestamps-are-landed-again
    return all(each is not None and is_kept_by_spark(each) for each in extremes)


def altered_spans(log_reader: LogReader, plan: Plan) -> Mapping[int, SpanSet]:
    """Return the offsets from the first to the last altered timestamp of each partition.

    A timestamp is altered if Spark does not keep it exactly. Reads all records of the plan.

    Raises:
        OffsetsDeleted, TopicMissing, KafkaUnavailable, KafkaRefused: See `LogReader.read`.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for record in log_reader.read(plan.topic, plan.isolation_level, plan.spans()):
        if not is_kept_by_spark(record.timestamp_ms):
            first.setdefault(record.partition, record.offset)
            last[record.partition] = record.offset
    return spans_by_partition((p, Span(first[p], last[p] + 1)) for p in first)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactFileWriter:
    """Writes records of a plan to files of one folder, read by the second reader of Kafka.

    Attributes:
        log_reader: Reads the records.
        plan: The plan of the new rows.
        headers_of: Reads the headers of a record at a partition and offset that `log_reader` cannot
            decode.
        ingested_at: Time of the landing.
        files: Storage of the folder.
        folder: The folder.
    """

    log_reader: LogReader
    headers_of: Callable[[int, int], Headers]
    plan: Plan
    ingested_at: datetime
    files: FileSystem
    folder: str

    def write(self, partition: int, span: Span, records_per_file: int) -> int:
        """Write every visible record of some offsets and return their number.

        Raises:
            OSError: The folder cannot be written.
            OffsetsDeleted, TopicMissing, KafkaUnavailable, KafkaRefused: See `LogReader.read`.
        """
        log.warning(
            "Spark would alter timestamps, so the driver writes the rows "
            "pipeline=%s plan=%d partition=%d span=%s",
            self.plan.pipeline,
            self.plan.sequence,
            partition,
            span,
        )
        return sum(
            self._write_file(partition, Span(start, min(start + records_per_file, span.end)))
            for start in range(span.start, span.end, records_per_file)
        )

    def write_again(self, file: DataFile, records_per_file: int) -> None:
        """Rewrite the records of a file that Spark wrote for one partition.

        Raises:
            ValueError: The second reader and Spark read different numbers of records.
            OSError, OffsetsDeleted, TopicMissing, KafkaUnavailable, KafkaRefused: See `write`.
        """
        if file.partition is None:
            raise ValueError(f"{file.path} has records of several partitions")
        written = self.write(file.partition, Span(file.first, file.last + 1), records_per_file)
        if written != file.records:  # fence: two-readers-see-the-same-records
            raise ValueError(
                f"Spark read {counted(file.records, 'record')} of partition {file.partition} from "
                f"offset {file.first} to {file.last}, librdkafka {written}"
            )

    def _write_file(self, partition: int, span: Span) -> int:
        import pyarrow as pa
        import pyarrow.parquet as pq

        read = self.log_reader.read(
            self.plan.topic, self.plan.isolation_level, {partition: SpanSet((span,))}
        )
        groups = _groups(read)
        group = next(groups, None)
        if group is None:
            return 0
        written = 0
        schema = bronze_schema()
        path = f"{self.folder}/driver-{partition}-{span.start}.parquet"
        with pq.ParquetWriter(path, schema, filesystem=self.files) as writer:
            while group is not None:
                rows = [self._row(record) for record in group]
                writer.write_table(pa.Table.from_pylist(rows, schema))
                written += len(rows)
                group = next(groups, None)
        return written

    def _row(self, record: LogRecord) -> Mapping[str, Any]:
        named = record.headers
        if named is None:
            named = self.headers_of(record.partition, record.offset)
        headers = [{"key": name, "value": value} for name, value in named]
        return {
            "key": record.key,
            "value": record.value,
            # Spark writes null for a record without headers.
            "headers": headers or None,
            "topic": self.plan.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms * 1000 if record.is_dated else None,
            "timestamp_out_of_range_ms": None if record.is_dated else record.timestamp_ms,
            "timestamp_type": int(record.timestamp_type),
            "topic_id": self.plan.topic_id,
            "plan_sequence": self.plan.sequence,
            "ingested_at": self.ingested_at,
        }


def _groups(records: Iterable[LogRecord]) -> Iterator[list[LogRecord]]:
    """Yield records in lists that fit into memory."""
    group: list[LogRecord] = []
    size = 0
    for record in records:
        group.append(record)
        size += len(record.key or b"") + len(record.value or b"")
        size += sum(len(name) + len(value or b"") for name, value in record.headers or ())
        if len(group) == _GROUP_RECORDS or size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def bronze_schema() -> pa.Schema:
    """Return the Arrow schema of a bronze row, with the column order and types of Spark."""
    import pyarrow as pa

    moment = pa.timestamp("us", "UTC")
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(header)),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", moment),
            ("timestamp_out_of_range_ms", pa.int64()),
            ("timestamp_type", pa.int32()),
            ("topic_id", pa.string()),
            ("plan_sequence", pa.int64()),
            ("ingested_at", moment),
        ]
    )
