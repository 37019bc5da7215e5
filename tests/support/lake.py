"""One pipeline on real Kafka, Spark and Delta, and its table as other readers see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.support.kafka_judge import DeliveredRecord
from tests.support.plans import make_spec
from tests.support.services import NOW, DeltaServices
from tidemark.bronze.ingest.executor import ExecutionResult
from tidemark.bronze.ingest.spark_sink import SparkSink
from tidemark.core.plan import Plan
from tidemark.kafka.options import client_config, spark_options
from tidemark.kafka.reader import KafkaLogReader
from tidemark.kafka.watermarks import KafkaWatermarkReader
from tidemark.spec.model import PipelineSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JUDGES_TYPE = {0: 1, 1: 2}
"""Librdkafka's numbers of timestamp types (create, append), by Spark's."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(kw_only=True)
class Lake(DeltaServices):
    """One pipeline.

    Attributes:
        session: Spark.
        root: Folder of the lakehouse.
        connection: Field `extra` of the Kafka connection.
        spec: The pipeline.
    """

    session: SparkSession
    root: Path
    connection: Mapping[str, Any]
    spec: PipelineSpec = field(default_factory=make_spec)

    def of(self, topic: str, **changes: Any) -> Self:
        """Return the lake of a pipeline over another topic, with further changes of its spec."""
        return replace(self, spec=replace(self.spec, topic=topic, **changes))

    @property
    def watermarks(self) -> KafkaWatermarkReader:
        """Reads watermarks."""
        return KafkaWatermarkReader(client_config("lake", self.connection))

    @property
    def log_reader(self) -> KafkaLogReader:
        """Reads records with librdkafka."""
        return KafkaLogReader(client_config("lake", self.connection))

    @property
    def sink(self) -> SparkSink:
        """Lands plans with Spark."""
        config = client_config("lake", self.connection)
        return SparkSink(
            open_session=lambda: self.session,
            uri=str(self.uri),
            kafka_options=spark_options(config),
            log_reader=self.log_reader,
            now=lambda: NOW,
        )

    def plan(self, requested_by: str) -> Plan:
        """Plan unread offsets, of which there must be some."""
        plan = self.planner.plan(requested_by).plan
        if plan is None:
            raise LookupError("nothing to do")
        return plan

    def run(self, requested_by: str) -> ExecutionResult:
        """Plan and ingest unread offsets, of which there must be some."""
        return self.ingest.execute(self.plan(requested_by).sequence)

    def version(self) -> int | None:
        """Return the newest version of the data table; None if it does not exist."""
        try:
            return DeltaTable(self.uri).version()
        except TableNotFoundError:
            return None

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows of the data table, read by delta-rs."""
        if self.version() is None:
            return []
        rows: list[dict[str, Any]] = pa.table(DeltaTable(self.uri).scan()).to_pylist()
        return rows

    def delivered_rows(self) -> list[DeliveredRecord]:
        """Return all rows as the judge's records, by partition and offset, with duplicates."""
        return sorted(row_as_delivered(row) for row in self.rows())

    def files(self) -> int:
        """Return the number of files of the data table's newest version."""
        return len(DeltaTable(self.uri).file_uris())


def row_as_delivered(row: Mapping[str, Any]) -> DeliveredRecord:
    """Return a bronze row as the record that librdkafka delivers."""
    return DeliveredRecord(
        row["partition"],
        row["offset"],
        row["key"],
        row["value"],
        tuple((header["key"], header["value"]) for header in row["headers"] or ()),
        _JUDGES_TYPE[row["timestamp_type"]],
        row["timestamp_out_of_range_ms"]
        if row["timestamp"] is None
        else (row["timestamp"] - _EPOCH) // timedelta(milliseconds=1),
    )
