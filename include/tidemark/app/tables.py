"""The base class of tables with plans of their own, and the bronze table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark.app.adapters import Adapters
from tidemark.app.repair import BronzeRepairPart, RepairPart
from tidemark.bronze.ingest.executor import ExecutionResult, PlanExecutor
from tidemark.bronze.ingest.ports import Ports, TopicPorts
from tidemark.bronze.ingest.protocols import PlanSource, Sink
from tidemark.bronze.ingest.source import TopicSource
from tidemark.core.plan import Plan
from tidemark.core.table_state import SizeEstimate
from tidemark.quality.data_docs import DataDocs
from tidemark.quality.publication_service import Publication
from tidemark.quality.service import Quality
from tidemark.spec.model import PipelineSpec

if TYPE_CHECKING:
    from tidemark.ops.report.verify import Verifier


@dataclass(frozen=True)
class PlannedTable(ABC):
    """A table with plans of its own: the bronze table or the typed table.

    Attributes:
        spec: The spec of the table.
        adapters: The adapters of the pipeline.
    """

    spec: PipelineSpec
    adapters: Adapters

    @property
    def name(self) -> str:
        """The name of the table in the control table, such as `prices@typed`."""
        return self.spec.name

    @property
    @abstractmethod
    def ports(self) -> Ports:
        """The ports of the table."""

    @property
    @abstractmethod
    def repair(self) -> RepairPart:
        """The repairs of the table."""

    @abstractmethod
    def _sink(self) -> Sink: ...

    @abstractmethod
    def _source(self) -> PlanSource: ...

    @property
    def executor(self) -> PlanExecutor:
        """Executes plans with Spark."""
        sink, source = self.adapters.wrap("sink", self._sink()), self._source()
        return PlanExecutor(spec=self.spec, ports=self.ports, sink=sink, source=source)

    def execute(self, sequence: int) -> ExecutionResult:
        """Execute a recorded plan with Spark: land its offsets in one transaction, exactly once."""
        return self.executor.execute(sequence)


@dataclass(frozen=True)
class BronzePart(PlannedTable):
    """The bronze table of a pipeline, whose source is the topic."""

    @property
    def ports(self) -> TopicPorts:
        """The ports of the bronze table."""
        return self.adapters.topic_ports()

    @property
    def repair(self) -> BronzeRepairPart:
        """The repairs of the table, and the decisions of operators about its topic."""
        return BronzeRepairPart(self.spec, self.ports, self.adapters.uri(self.spec.target))

    @property
    def verifier(self) -> Verifier:
        """Compares the table with the topic."""
        from tidemark.ops.report.verify import Verifier

        return Verifier(spec=self.spec, ports=self.adapters.topic_ports(reads_only=True))

    @property
    def quality(self) -> Quality:
        """Checks landed plans, with Spark if their suite needs Spark."""
        from tidemark.quality.checker import BatchChecker

        layout = self.adapters.layout
        checker = BatchChecker(
            spark=self.adapters.sessions.shared,
            suites=layout.expectations,
            docs=DataDocs(layout.data_docs),
            results=self.adapters.check_results,
        )
        return Quality(
            spec=self.spec,
            data_table=self.adapters.uri(self.spec.target),
            ports=self.ports,
            checker=self.adapters.wrap("quality", checker),
        )

    @property
    def publication(self) -> Publication:
        """Decides which plans the published view shows. Needs neither a JVM nor Kafka."""
        ports = self.adapters.topic_ports(reads_only=True)
        return Publication(pipeline=self.name, ports=ports)

    def size_estimate(self, plan: Plan) -> SizeEstimate:
        """Return the size that a plan would add to the table. Reads only the table."""
        size = self.adapters.bronze().size()
        per_file = size.records_within(self.spec.records_per_task, self.spec.bytes_per_task)
        return size.size_estimate((planned.span for planned in plan.ranges), per_file)

    def _sink(self) -> Sink:
        from tidemark.bronze.ingest.spark_sink import SparkSink
        from tidemark.kafka.options import spark_options

        sessions = self.adapters.sessions
        return SparkSink(
            open_session=sessions.shared,
            uri=self.adapters.uri(self.spec.target),
            kafka_options=spark_options(self.adapters.kafka_config()),
            log_reader=self.adapters.log_reader,
            now=self.adapters.now,
            write_options=sessions.write_options,
        )

    def _source(self) -> PlanSource:
        return TopicSource(ports=self.ports)
