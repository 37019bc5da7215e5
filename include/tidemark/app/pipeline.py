"""`Pipeline`: a pipeline with all use cases. Start here.

    from tidemark.app.app import App

    prices = App.from_environment().pipeline("prices")
    planned = prices.plan("notebook:1").plan
    prices.ingest(planned.sequence)
    prices.typed.decode()

docs/how-to/python.md has examples and a list of the use cases. Methods import heavy libraries when
they need them: planning never loads Spark.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemark.app.adapters import Adapters
from tidemark.app.offsets import OffsetsPart
from tidemark.app.repair import RepairPart
from tidemark.app.report import ReportPart
from tidemark.app.silver import TypedPart, UpsertPart
from tidemark.app.tables import BronzePart
from tidemark.bronze.backfill.service import Backfills
from tidemark.bronze.ingest.executor import ExecutionResult
from tidemark.bronze.ingest.planner import Planner, PlanResult
from tidemark.bronze.ingest.protocols import ControlTable
from tidemark.ops.maintenance.service import Maintenance, finished_plans
from tidemark.quality.check_results import QualityReport
from tidemark.quality.publication_service import Publication
from tidemark.silver.typed.registry_answers import Registry, with_stored_schemas
from tidemark.spec.decode import DEFAULT_REGISTRY
from tidemark.spec.model import PipelineSpec
from tidemark.spec.ref import PipelineKind

if TYPE_CHECKING:
    from tidemark.quality.check_results_table import DeltaCheckResults


@dataclass(frozen=True)
class Pipeline:
    """A pipeline with all use cases: the steps of its runs, and its parts.

    Attributes:
        adapters: The adapters of the pipeline.
    """

    adapters: Adapters

    @property
    def spec(self) -> PipelineSpec:
        """The spec of the pipeline."""
        return self.adapters.spec

    @property
    def name(self) -> str:
        """The name of the pipeline."""
        return self.spec.name

    @property
    def control(self) -> ControlTable:
        """The control table."""
        return self.adapters.control

    # -- steps of a run ----------------------------------------------------------------------------

    def plan(self, requested_by: str, *, dry_run: bool = False) -> PlanResult:
        """Plan the offsets after the committed offsets, and record the plan.

        Args:
            requested_by: The run. A repeated call with the same run returns the same plan.
            dry_run: Record nothing.
        """
        return self.planner.preview() if dry_run else self.planner.plan(requested_by)

    def ingest(self, sequence: int) -> ExecutionResult:
        """Execute a recorded plan with Spark: land its offsets in one transaction, exactly once."""
        return self.bronze.execute(sequence)

    def check(self, sequence: int) -> QualityReport:
        """Check a landed plan, with Spark if its suite needs Spark, and publish or block it."""
        return self.bronze.quality.check(sequence)

    # -- parts -------------------------------------------------------------------------------------

    @property
    def bronze(self) -> BronzePart:
        """The bronze table."""
        return BronzePart(self.spec, self.adapters)

    @property
    def typed(self) -> TypedPart:
        """The typed table with its quarantine.

        Raises:
            InvalidReference: The spec defines no typed table.
        """
        return TypedPart(self.spec.typed_spec(), self.adapters)

    @property
    def upsert(self) -> UpsertPart:
        """The upsert table.

        Raises:
            InvalidReference: The spec defines no upsert table.
        """
        self.spec.upsert()
        return UpsertPart(self.typed)

    @property
    def repair(self) -> RepairPart:
        """Repairs of the bronze table, and decisions of operators about the topic."""
        return self.bronze.repair

    @property
    def offsets(self) -> OffsetsPart:
        """Offsets from and to other readers of the topic."""
        return OffsetsPart(self.adapters)

    @property
    def report(self) -> ReportPart:
        """The reports about the pipeline."""
        return ReportPart(self.adapters, self.typed if self.spec.decode else None)

    # -- planning and publication ------------------------------------------------------------------

    @property
    def planner(self) -> Planner:
        """Plans the offsets after the committed offsets, or given offsets. Needs no JVM."""
        return Planner(spec=self.spec, ports=self.adapters.topic_ports())

    @property
    def backfills(self) -> Backfills:
        """Records requests of offsets, and plans them in chunks. Needs no JVM."""
        return Backfills(planner=self.planner)

    @property
    def publication(self) -> Publication:
        """Decides which plans the published view shows. Needs neither a JVM nor Kafka."""
        return self.bronze.publication

    @property
    def check_results(self) -> DeltaCheckResults:
        """The results of all checks. Needs neither a JVM nor Kafka."""
        return self.adapters.check_results

    # -- records and tables ------------------------------------------------------------------------

    def maintenance(self, kind: PipelineKind = PipelineKind.LIVE) -> Maintenance:
        """Return the maintenance of a table of the pipeline. Needs no JVM.

        Raises:
            InvalidReference: The spec defines no such table.
        """
        from tidemark.delta.maintained_table import DeltaMaintainedTable

        spec, adapters = self.spec, self.adapters
        if kind is PipelineKind.UPSERT:
            table = spec.upsert_spec()
        else:
            table = spec if kind is PipelineKind.LIVE else spec.typed_spec()
        target = table.target
        if kind is PipelineKind.QUARANTINE:
            target = spec.decoding().quarantine_target
        maintained = DeltaMaintainedTable(adapters.uri(target), table.name)
        maintenance = Maintenance(
            name=str(spec.ref.of_kind(kind)),
            table=adapters.wrap("maintenance", maintained),
            now=adapters.now,
        )
        if kind is not PipelineKind.LIVE:
            return maintenance
        bronze = self.bronze.ports.table
        return replace(
            maintenance, finished_plans=lambda: finished_plans(adapters.control, spec.name, bronze)
        )

    def masked_columns(self) -> Collection[str]:
        """Return the columns whose values the suite hides in reports."""
        return self.adapters.masked_columns()

    @property
    def registry_answers(self) -> Registry:
        """Returns stored schemas, and requests missing ones from the registry."""
        registry = self.spec.decode.registry if self.spec.decode else DEFAULT_REGISTRY
        request = self.adapters.connections.registry_answers(registry)
        return with_stored_schemas(self.adapters.schema_store(), request)
