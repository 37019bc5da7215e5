"""A bronze pipeline whose records have keys and values of their own, in files that Spark reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeAlias

from tests.support.file_lake import FileLake, FileSink, HomeFileLake
from tidemark.core.datafile import DataFile
from tidemark.core.offsets import SpanSet
from tidemark.core.plan import Plan
from tidemark.core.record import LogRecord
from tidemark.core.watermarks import IsolationLevel, Position
from tidemark.ingest.protocols import TopicLogReader

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]


@dataclass
class Payloads:
    """A log whose records have keys and values of their own."""

    kafka: TopicLogReader
    values: Mapping[tuple[int, int], bytes | None]
    keys: Mapping[tuple[int, int], bytes | None]
    headers: Mapping[tuple[int, int], Headers]

    def read(
        self, topic: str, isolation_level: IsolationLevel, spans: Mapping[int, SpanSet]
    ) -> Iterator[LogRecord]:
        for record in self.kafka.read(topic, isolation_level, spans):
            place = (record.partition, record.offset)
            yield replace(
                record,
                key=self.keys.get(place),
                value=self.values.get(place),
                headers=self.headers.get(place, ()),
            )

    def first_records(
        self, topic: str, isolation_level: IsolationLevel, spans: Mapping[int, SpanSet]
    ) -> Iterator[LogRecord]:
        for partition, some in spans.items():
            yield from islice(self.read(topic, isolation_level, {partition: some}), 1)

    def truncated_partition(self, topic: str, positions: Mapping[int, Position]) -> int | None:
        return self.kafka.truncated_partition(topic, positions)


class PayloadSink(FileSink):
    """Its files are for Spark, which would compare them with checksums that are none."""

    def write(self, plan: Plan, records_per_task: int) -> Sequence[DataFile]:
        files = super().write(plan, records_per_task)
        for each in self.uri.glob("*/.*.crc"):
            each.unlink()
        return files


@dataclass
class PayloadLake(FileLake):
    """A bronze pipeline over records with payloads."""

    values: dict[tuple[int, int], bytes | None] = field(default_factory=dict)
    keys: dict[tuple[int, int], bytes | None] = field(default_factory=dict)
    headers: dict[tuple[int, int], Headers] = field(default_factory=dict)

    @property
    def sink(self) -> FileSink:
        """Writes files."""
        return PayloadSink(self.uri, self.log_reader)

    @property
    def log_reader(self) -> Payloads:
        """Reads the records with their payloads."""
        return Payloads(self.kafka, self.values, self.keys, self.headers)

    def land_payloads(
        self,
        payloads: Sequence[tuple[bytes | None, bytes | None]],
        partition: int = 0,
        headers: Headers = (),
    ) -> Plan:
        """Land records with these keys and values, all with the same headers."""
        for offset, (key, value) in enumerate(
            payloads, start=self.kafka.topics["events"][partition].end
        ):
            self.keys[partition, offset] = key
            self.values[partition, offset] = value
            self.headers[partition, offset] = headers
        return self.run(len(payloads), partition)


class HomePayloadLake(PayloadLake, HomeFileLake):
    """The same where commands and tasks look for it."""
