"""Holds the execution of a plan in the middle of a fetch; clients with short timeouts."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from confluent_kafka.admin import AdminClient

from tests.support.lake import Lake
from tests.support.proxy import Gate, ProxiedBroker
from tests.support.services import NOW
from tests.support.topics import make_topic
from tests.support.transactions import Record, produce_records
from tidemark.bronze.ingest.executor import ExecutionResult
from tidemark.bronze.ingest.spark_sink import SparkSink
from tidemark.core.plan import Plan
from tidemark.kafka.options import client_config, spark_options
from tidemark.kafka.watermarks import KafkaWatermarkReader

LONG = [Record(value=b"%07d" % number * 70_000) for number in range(24)]
"""12 MB: three fetches of the reader, which takes 4 MiB at a time."""
ONE_FETCH_AND_A_HALF = 6 * 1024 * 1024

SHORT_TIMEOUTS = {
    # Kafka's client closes the connection of a request without an answer; 30 s by default.
    "kafka.request.timeout.ms": "2000",
    # Limit of one call with all its retries; 60 s by default.
    "kafka.default.api.timeout.ms": "10000",
    # Spark fails after a poll without records; spark.network.timeout, 120 s, by default.
    "kafkaConsumer.pollTimeoutMs": "10000",
}
"""Options of Spark's Kafka source. With them Spark fails after seconds."""


@dataclass(kw_only=True)
class ShortTimeoutLake(Lake):
    """A lake whose clients fail after seconds without an answer.

    Attributes:
        reader_timeouts: Further options of Spark's Kafka source.
        watermarks_timeout_s: Time limit of a request of the planner.
    """

    reader_timeouts: dict[str, str] = field(default_factory=lambda: dict(SHORT_TIMEOUTS))
    watermarks_timeout_s: float = 2.0

    @property
    def watermarks(self) -> KafkaWatermarkReader:
        """Reads watermarks, with a short time limit."""
        return KafkaWatermarkReader(
            client_config("lake", self.connection), self.watermarks_timeout_s
        )

    @property
    def sink(self) -> SparkSink:
        """Lands plans, with short time limits."""
        options = spark_options(client_config("lake", self.connection))
        return SparkSink(
            open_session=lambda: self.session,
            uri=str(self.uri),
            kafka_options={**options, **self.reader_timeouts},
            log_reader=self.log_reader,
            now=lambda: NOW,
        )


def long_topic(broker: ProxiedBroker, purpose: str) -> str:
    """Create a topic of one partition with the `LONG` records, without the proxy."""
    name = f"{purpose}-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.direct, "log_level": 0})
    make_topic(admin, broker.direct, name)
    produce_records(broker.direct, name, LONG)
    return name


@contextmanager
def in_mid_read(
    lake: Lake, plan: Plan, broker: ProxiedBroker
) -> Iterator[tuple[Future[ExecutionResult], Gate]]:
    """Execute a plan, and run the block while Spark waits in the middle of its second fetch.

    The end of the block releases the fetch and waits for the end of the execution.
    """
    gate = broker.proxy.hold(after=ONE_FETCH_AND_A_HALF)
    with ThreadPoolExecutor(1) as driver:
        running = driver.submit(lake.ingest.execute, plan.sequence)
        try:
            gate.wait_held()
            assert not running.done()
            yield running, gate
        finally:
            gate.release()
