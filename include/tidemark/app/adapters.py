"""The adapters of a pipeline: its bronze table, its Kafka clients, and the shared tables.

Methods import heavy libraries when they need them: planning never loads Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Protocol, TypeVar

from tidemark.app.connections import Connections
from tidemark.spark.sessions import Sessions
from tidemark.spec.decode import DEFAULT_REGISTRY
from tidemark.spec.layout import Layout
from tidemark.spec.model import PipelineSpec

if TYPE_CHECKING:
    from tidemark.bronze.ingest.ports import Ports
    from tidemark.bronze.ingest.protocols import (
        ControlTable,
        DataTable,
        TopicLogReader,
        TopicReader,
    )
    from tidemark.bronze.repair.exports import GroupOffsets
    from tidemark.quality.check_results_table import DeltaCheckResults
    from tidemark.silver.typed.schema_table import DeltaSchemaStore

_Adapter = TypeVar("_Adapter")


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


class AdapterWrapper(Protocol):
    """Wraps adapters in tests of crashes."""

    def __call__(self, name: str, adapter: _Adapter, /) -> _Adapter:
        """Return the adapter with this name, or in tests of crashes a wrapper of it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """The adapters of one pipeline.

    Attributes:
        spec: The spec of the pipeline.
        layout: Folders and tables.
        connections: Connections to Kafka and to schema registries.
        sessions: Provides the Spark sessions of jobs.
        control: The control table.
        wrap: Wraps adapters in tests of crashes.
        now: The clock of services.
        kafka_timeout_s: Longest wait for Kafka without progress, in seconds; None for the default
            of each reader.
    """

    spec: PipelineSpec
    layout: Layout
    connections: Connections
    sessions: Sessions
    control: ControlTable
    wrap: AdapterWrapper
    now: Callable[[], datetime]
    kafka_timeout_s: float | None = None

    def uri(self, target: str) -> str:
        """Return the location of a table."""
        return self.layout.data_table(target)

    def bronze(self, *, reads_only: bool = False) -> DataTable:
        """Return the bronze table, without Spark.

        Args:
            reads_only: Whether the table may be one in which plans cannot land. Otherwise such a
                table raises `TableAltered` when it is used.
        """
        from tidemark.delta.data_table import DeltaDataTable

        table = DeltaDataTable(self.uri(self.spec.target), reads_only=reads_only)
        return self.wrap("table", table)

    def topic_ports(self, *, reads_only: bool = False) -> Ports:
        """Return the ports of the bronze table; see `bronze`."""
        from tidemark.bronze.ingest.ports import Ports

        return Ports(
            control=self.control,
            table=self.bronze(reads_only=reads_only),
            open_watermarks=cache(lambda: self.watermarks),
            open_log_reader=cache(lambda: self.log_reader),
            now=self.now,
        )

    @property
    def watermarks(self) -> TopicReader:
        """Reads watermarks of the topic."""
        from tidemark.kafka.watermarks import TIMEOUT_S, KafkaWatermarkReader

        timeout = self.kafka_timeout_s or TIMEOUT_S
        return self.wrap("watermarks", KafkaWatermarkReader(self.kafka_config(), timeout))

    @property
    def log_reader(self) -> TopicLogReader:
        """Reads records of the topic with librdkafka."""
        from tidemark.kafka.reader import PROGRESS_TIMEOUT_S, KafkaLogReader

        timeout = self.kafka_timeout_s or PROGRESS_TIMEOUT_S
        return self.wrap("log_reader", KafkaLogReader(self.kafka_config(), timeout))

    @property
    def group_offsets(self) -> GroupOffsets:
        """Reads and sets offsets of consumer groups of the cluster."""
        from tidemark.kafka.groups import KafkaGroupOffsets

        return self.wrap("groups", KafkaGroupOffsets(self.kafka_config()))

    def kafka_config(self) -> dict[str, object]:
        """Return the configuration of librdkafka for the cluster."""
        return self.connections.kafka_config(self.spec.connection)

    @property
    def check_results(self) -> DeltaCheckResults:
        """The results of all checks. Needs neither a JVM nor Kafka."""
        from tidemark.quality.check_results_table import DeltaCheckResults

        return self.wrap("results", DeltaCheckResults(self.layout.quality_results))

    def masked_columns(self) -> Collection[str]:
        """Return the columns whose values the suite hides in reports."""
        from tidemark.quality.suite import load_suite

        suite = self.spec.suite
        return load_suite(self.layout.suite(suite)).masked if suite else ()

    def schema_store(self) -> DeltaSchemaStore:
        """Return the stored schemas of the pipeline's registry, or of the default registry."""
        from tidemark.silver.typed.schema_table import DeltaSchemaStore

        registry = self.spec.decode.registry if self.spec.decode else DEFAULT_REGISTRY
        return DeltaSchemaStore(self.layout.schema_table, registry, self.now)
