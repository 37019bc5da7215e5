"""One pipeline over a real topic, on real tables, without Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from confluent_kafka import Producer

from tests.faults.tally import TableJudge
from tests.support.file_lake import FileLake
from tests.support.transactions import Record, append
from tests.support.verdict import Verdict, judge
from tidemark.core.watermarks import IsolationLevel
from tidemark.kafka.options import client_config
from tidemark.kafka.reader import KafkaLogReader
from tidemark.kafka.watermarks import KafkaWatermarkReader
from tidemark.local.producer import producer_settings


@dataclass
class KafkaFileLake(FileLake):
    """A pipeline over Kafka whose files this process writes.

    Attributes:
        bootstrap: Address list of the broker.
    """

    bootstrap: str = field(kw_only=True)

    def __post_init__(self) -> None:
        """Keep the topic, which exists."""

    @property
    def watermarks(self) -> KafkaWatermarkReader:
        """Reads watermarks."""
        return KafkaWatermarkReader(client_config("lake", {"bootstrap.servers": self.bootstrap}))

    @property
    def log_reader(self) -> KafkaLogReader:
        """Reads records."""
        return KafkaLogReader(client_config("lake", {"bootstrap.servers": self.bootstrap}))

    def produce(self, records: int, partition: int) -> None:
        """Append records to the topic."""
        values = (b"%d" % number for number in range(records))
        some = [Record(value=value, partition=partition) for value in values]
        append(self._producer, self.spec.topic, some)

    @cached_property
    def _producer(self) -> Producer:
        """One producer for all records: the first record waits for a connection."""
        return Producer(producer_settings({"bootstrap.servers": self.bootstrap}))

    def check_exact(self, table_judge: TableJudge) -> Verdict:
        """Compare the data table with librdkafka's records of the topic, which must be equal."""
        topic = self.spec.topic
        topic_id = self.watermarks.topic_watermarks(topic, IsolationLevel.READ_COMMITTED).topic_id
        return table_judge.count(judge(self.bronze_rows(), self.bootstrap, topic, topic_id))
