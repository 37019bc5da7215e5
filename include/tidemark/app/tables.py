"""The bronze table of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark.app.adapters import Adapters
from tidemark.app.repair import RepairPart
from tidemark.bronze.ingest.executor import ExecutionResult, PlanExecutor
from tidemark.bronze.ingest.ports import Ports
from tidemark.bronze.ingest.protocols import Sink
from tidemark.core.plan import Plan
from tidemark.core.table_state import SizeEstimate
from tidemark.quality.data_docs import DataDocs
from tidemark.quality.publication_service import Publication
from tidemark.quality.service import Quality
from tidemark.spec.model import PipelineSpec

if TYPE_CHECKING:
    from tidemark.ops.report.verify import Verifier


@dataclass(frozen=True)
class BronzePart:
    """The bronze table of a pipeline, whose source is the topic.

    Attributes:
        spec: The spec of the pipeline.
        adapters: The adapters of the pipeline.
    """

    spec: PipelineSpec
    adapters: Adapters

    @property
    def name(self) -> str:
        """The name of the pipeline."""
        return self.spec.name

    @property
    def ports(self) -> Ports:
        """The ports of the bronze table."""
        return self.adapters.topic_ports()

    @property
    def repair(self) -> RepairPart:
        """The repairs of the table, and the decisions of operators about its topic."""
        return RepairPart(spec=self.spec, ports=self.ports)

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

    @property
    def executor(self) -> PlanExecutor:
        """Executes plans with Spark."""
        sink = self.adapters.wrap("sink", self._sink())
        return PlanExecutor(spec=self.spec, ports=self.ports, sink=sink)

    def execute(self, sequence: int) -> ExecutionResult:
        """Execute a recorded plan with Spark: land its offsets in one transaction, exactly once."""
        return self.executor.execute(sequence)

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
