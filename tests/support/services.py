"""The product's `Pipeline` over the ports that a test chooses, and its services."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from tests.support import PROJECT
from tidemark.app.adapters import Adapters
from tidemark.app.connections import Connections
from tidemark.app.pipeline import Pipeline
from tidemark.app.repair import RepairPart
from tidemark.app.report import ReportPart
from tidemark.app.tables import BronzePart
from tidemark.bronze.backfill.service import Backfills
from tidemark.bronze.ingest.executor import PlanExecutor
from tidemark.bronze.ingest.planner import Planner
from tidemark.bronze.ingest.protocols import (
    DataTable,
    Sink,
    TopicLogReader,
    TopicReader,
)
from tidemark.bronze.ingest.start import StartService
from tidemark.core.ledger import Ledger
from tidemark.core.plan import Plan
from tidemark.delta.control_table import DeltaControlTable
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.maintained_table import DeltaMaintainedTable
from tidemark.ops.maintenance.service import Maintenance, finished_plans
from tidemark.ops.report.status import PipelineStatus
from tidemark.ops.report.unfinished_work import UnfinishedWorkReader
from tidemark.ops.report.verify import Verifier
from tidemark.quality.publication_service import Publication
from tidemark.spark.sessions import ApplicationSessions
from tidemark.spec.layout import Layout
from tidemark.spec.model import PipelineSpec

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
"""The clock of every service."""

_Part = TypeVar("_Part")
_Service = TypeVar("_Service")


@dataclass(frozen=True, kw_only=True)
class PortAdapters(Adapters):
    """Adapters that a test gives instead of the product's own.

    Attributes:
        given: Has `spec`, `watermarks`, `log_reader`, `control`, `table` and `sink`; or `spec`,
            `control`, `decodes`, `tables` and `quarantine` for a typed table.
    """

    given: Any

    @classmethod
    def over(cls, given: Any) -> Self:
        """Return these adapters. No check and no decoder has run."""
        return cls(
            spec=given.spec,
            layout=Layout(project=PROJECT, home=Path("/nonexistent")),
            connections=Connections(lambda _: None, lambda: None),
            sessions=ApplicationSessions(),
            control=given.control,
            wrap=_unchanged,
            now=lambda: NOW,
            given=given,
        )

    @property
    def watermarks(self) -> TopicReader:
        """Reads watermarks of the topic."""
        return self.given.watermarks

    @property
    def log_reader(self) -> TopicLogReader:
        """Reads records of the topic."""
        return self.given.log_reader

    def bronze(self, *, reads_only: bool = False) -> DataTable:  # noqa: ARG002
        """Return the data table."""
        return self.given.table


@dataclass(frozen=True)
class PortBronze(BronzePart):
    """A bronze table with a given sink."""

    adapters: PortAdapters

    def _sink(self) -> Sink:
        return self.adapters.given.sink


@dataclass(frozen=True)
class PortPipeline(Pipeline):
    """A pipeline that uses given ports instead of opening its own.

    Attributes:
        adapters: The given ports.
    """

    adapters: PortAdapters

    @property
    def table(self) -> Any:
        """The data table."""
        return self.adapters.given.table

    @property
    def bronze(self) -> PortBronze:
        """The bronze table."""
        return PortBronze(self.spec, self.adapters)

    @property
    def report(self) -> ReportPart:
        """The reports about the pipeline, without its typed table."""
        return ReportPart(self.adapters, None)


def _unchanged(_: str, part: _Part, /) -> _Part:
    return part


class Services:
    """The services of one pipeline. A class that inherits them has the ports of `PortPipeline`.

    Tests replace single ports of a service, which the use cases of `Pipeline` do not allow.
    """

    @property
    def pipeline(self: Any) -> PortPipeline:
        """The pipeline over these ports."""
        return PortPipeline(PortAdapters.over(self))

    @property
    def planner(self) -> Planner:
        """Makes plans."""
        return self.pipeline.planner

    @property
    def ingest(self) -> PlanExecutor:
        """Executes plans."""
        return self.pipeline.bronze.executor

    @property
    def backfills(self) -> Backfills:
        """Records requests of offsets, and plans them in chunks."""
        return self.pipeline.backfills

    @property
    def starts(self) -> StartService:
        """Records where a pipeline starts."""
        return StartService(spec=self.pipeline.spec, ports=self.pipeline.bronze.ports)

    @property
    def repair(self) -> RepairPart:
        """Repairs the tables, and records decisions of operators."""
        return self.pipeline.repair

    undo = abandon = decisions = repair

    @property
    def verify(self) -> Verifier:
        """Compares the data table with the topic."""
        return self.pipeline.bronze.verifier

    @property
    def unfinished_work(self) -> UnfinishedWorkReader:
        """Finds open plans."""
        return self.pipeline.report._unfinished_work()

    def status(self) -> PipelineStatus:
        """Return how far the pipeline is behind its topic."""
        return self.pipeline.report.status()

    @property
    def publication(self) -> Publication:
        """Decides which plans the published view shows."""
        return self.pipeline.publication

    def land(self: Any, plan: Plan) -> None:
        """Write and commit a plan, and record nothing."""
        files = self.sink.write(plan, self.spec.records_per_task)
        self.table.append(plan, files, self.table.state(plan.pipeline, ()))

    @property
    def ledger(self) -> Ledger:
        """The newest ledger."""
        pipeline = self.pipeline
        return pipeline.control.ledger(pipeline.name)

    def committed(self) -> dict[int, int]:
        """Return the committed offset of each partition."""
        ledger = self.ledger
        return {partition: ledger.committed_offset(partition) for partition in ledger.starts}


def with_ports(service: _Service, **changes: Any) -> _Service:
    """Return a service with other ports or another sink."""
    found = cast("Any", service)
    if "sink" in changes:
        found = replace(found, sink=changes.pop("sink"))
    for name in ("watermarks", "log_reader"):
        if name in changes:
            changes[f"open_{name}"] = partial(_returned, changes.pop(name))
    found = replace(found, ports=replace(found.ports, **changes))
    return cast("_Service", found)


def _returned(part: _Part) -> _Part:
    return part


class DeltaServices(Services):
    """Services over Delta tables at the locations that commands use.

    Attributes:
        root: Folder of the lakehouse.
        spec: The pipeline.
    """

    root: Path
    spec: PipelineSpec

    @property
    def uri(self) -> Path:
        """The place of the data table."""
        return self.root / self.spec.target

    @property
    def table(self) -> DeltaDataTable:
        """The data table."""
        return DeltaDataTable(str(self.uri))

    @property
    def control_uri(self) -> Path:
        """The place of the control table."""
        return self.root / "control" / "offset_ranges"

    @property
    def control(self) -> DeltaControlTable:
        """The control table."""
        return DeltaControlTable(str(self.control_uri))

    def maintenance(self, after: timedelta = timedelta(0), **changes: Any) -> Maintenance:
        """Return the maintenance of the data table as of some time from now.

        Args:
            after: How much later this machine's clock and the storage's clock are.
            changes: Other arguments of `Maintenance`.
        """
        name = self.spec.name
        usual = {
            "name": name,
            "table": _table_later(self.uri, name, after),
            "finished_plans": lambda: finished_plans(self.control, name, self.table),
            "now": lambda: datetime.now(UTC) + after,
        }
        return Maintenance(**{**usual, **changes})


def _table_later(uri: Path, pipeline: str, after: timedelta) -> DeltaMaintainedTable:
    class TableWithLaterClock(DeltaMaintainedTable):
        def _storage_time(self) -> datetime:
            return super()._storage_time() + after

    return TableWithLaterClock(str(uri), pipeline)
