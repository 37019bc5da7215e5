"""One pipeline on real parts: Kafka, Spark, Delta; and its table as an outsider reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.support.file_lake import AfterSomeTime
from tests.support.kafka_judge import Judged
from tests.support.plans import make_spec
from tests.support.services import NOW, Services
from tidemark.core.plan import Plan
from tidemark.ingest.executor import ExecutionResult
from tidemark.ingest.spark_sink import SparkSink
from tidemark.kafka.options import client_config, spark_options
from tidemark.kafka.reader import KafkaLogReader
from tidemark.kafka.watermarks import KafkaWatermarkReader
from tidemark.lake.control_table import DeltaControlTable
from tidemark.lake.data_table import DeltaDataTable
from tidemark.maintenance.service import Maintenance, finished_plans
from tidemark.spec.model import PipelineSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JUDGES_TYPE = {0: 1, 1: 2}
"""Spark's number of a timestamp type (create, append) to librdkafka's."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(kw_only=True)
class Lake(Services):
    """One pipeline, its folders and its clients.

    Attributes:
        session: Spark.
        root: Folder of its tables.
        connection: The connection's extra.
        spec: The pipeline.
    """

    session: SparkSession
    root: Path
    connection: Mapping[str, Any]
    spec: PipelineSpec = field(default_factory=make_spec)

    def of(self, topic: str, **changes: Any) -> Self:
        """The same lake with a pipeline over another topic; other keys of the spec as well."""
        return replace(self, spec=replace(self.spec, topic=topic, **changes))

    @property
    def uri(self) -> str:
        """The data table."""
        return str(self.root / self.spec.target)

    @property
    def watermarks(self) -> KafkaWatermarkReader:
        """Reads marks with the connection."""
        return KafkaWatermarkReader(client_config("lake", self.connection))

    @property
    def control(self) -> DeltaControlTable:
        """The control table."""
        return DeltaControlTable(str(self.root / "control"))

    @property
    def table(self) -> DeltaDataTable:
        """The data table's log."""
        return DeltaDataTable(self.uri)

    @property
    def log_reader(self) -> KafkaLogReader:
        """Looks into gaps."""
        return KafkaLogReader(client_config("lake", self.connection))

    @property
    def sink(self) -> SparkSink:
        """Lands plans."""
        config = client_config("lake", self.connection)
        return SparkSink(
            session=self.session,
            uri=self.uri,
            kafka_options=spark_options(config),
            log_reader=self.log_reader,
            now=lambda: NOW,
        )

    def plan(self, requested_by: str) -> Plan:
        """Make a plan; there must be something to do."""
        plan = self.planner.plan(requested_by).plan
        if plan is None:
            raise LookupError("nothing to do")
        return plan

    def run(self, requested_by: str) -> ExecutionResult:
        """Plan and ingest; there must be something to do."""
        return self.ingest.execute(self.plan(requested_by).sequence)

    def maintenance(self, after: timedelta) -> Maintenance:
        """Maintains the data table as it would be some time from now."""
        return Maintenance(
            name=self.spec.name,
            table=AfterSomeTime(after).maintained_table(self.uri, self.spec.name),
            finished_plans=lambda: finished_plans(self.control, self.spec.name, self.table),
            now=AfterSomeTime(after).now,
        )

    def version(self) -> int | None:
        """Newest version of the data table; None if there is none."""
        try:
            return DeltaTable(self.uri).version()
        except TableNotFoundError:
            return None

    def rows(self) -> list[dict[str, Any]]:
        """All rows of the data table, read by delta-rs."""
        if self.version() is None:
            return []
        rows: list[dict[str, Any]] = pa.table(DeltaTable(self.uri).scan()).to_pylist()
        return rows

    def judged(self) -> list[Judged]:
        """All rows in the judge's form, ordered by partition and offset; doubles stay doubles."""
        return sorted(as_judged(row) for row in self.rows())

    def files(self) -> int:
        """Number of files of the data table's newest version."""
        return len(DeltaTable(self.uri).file_uris())


def as_judged(row: Mapping[str, Any]) -> Judged:
    """A bronze row as librdkafka delivers the record."""
    return Judged(
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
