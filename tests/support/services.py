"""The services of one pipeline, over whatever ports the pipeline has."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol

from tidemark.backfill.service import Backfills
from tidemark.core.ledger import Ledger
from tidemark.core.plan import Plan
from tidemark.ingest.executor import PlanExecutor
from tidemark.ingest.log_comparison import LogComparison
from tidemark.ingest.planner import Planner
from tidemark.ingest.protocols import (
    BronzeLog,
    BronzeTable,
    ControlTable,
    DataTable,
    LogReader,
    Sink,
    TopicLogReader,
    TopicReader,
    WatermarkReader,
)
from tidemark.ingest.start import StartService
from tidemark.repair.abandon import Abandon
from tidemark.repair.decisions import Decisions
from tidemark.repair.repair import Repair
from tidemark.repair.undo import Undo
from tidemark.report.status import PipelineStatus, pipeline_status
from tidemark.report.unfinished_work import UnfinishedWorkReader
from tidemark.report.verify import Verifier
from tidemark.spec.model import PipelineSpec

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
"""The clock of every service."""


class LogPorts(Protocol):
    """What a pipeline of the tests has, whatever it reads."""

    @property
    def spec(self) -> PipelineSpec: ...
    @property
    def watermarks(self) -> WatermarkReader: ...
    @property
    def log_reader(self) -> LogReader: ...
    @property
    def control(self) -> ControlTable: ...
    @property
    def table(self) -> DataTable: ...
    @property
    def sink(self) -> Sink: ...
    @property
    def comparison(self) -> LogComparison | None: ...
    @property
    def row_origins(self) -> BronzeLog | None: ...


class Ports(LogPorts, Protocol):
    """What one has that reads a topic."""

    @property
    def watermarks(self) -> TopicReader: ...
    @property
    def log_reader(self) -> TopicLogReader: ...
    @property
    def unfinished_work(self) -> UnfinishedWorkReader: ...
    @property
    def table(self) -> BronzeTable: ...


class LandingServices:
    """The services of a pipeline that lands something; it inherits them and brings its ports."""

    @property
    def ingest(self: LogPorts) -> PlanExecutor:
        """Executes plans."""
        return PlanExecutor(
            spec=self.spec,
            watermarks=self.watermarks,
            control=self.control,
            table=self.table,
            sink=self.sink,
            log_reader=self.log_reader,
            now=lambda: NOW,
            comparison=self.comparison,
        )

    @property
    def comparison(self) -> LogComparison | None:
        """Compares what landed with a topic."""
        return None

    @property
    def undo(self: LogPorts) -> Undo:
        """Takes landed plans out again."""
        return Undo(
            pipeline=self.spec.name, control=self.control, table=self.table, now=lambda: NOW
        )

    @property
    def abandon(self: LogPorts) -> Abandon:
        """Gives plans up."""
        return Abandon(
            pipeline=self.spec.name,
            watermarks=self.watermarks,
            control=self.control,
            table=self.table,
            log_reader=self.log_reader,
            now=lambda: NOW,
        )

    @property
    def repair(self: LogPorts) -> Repair:
        """Has the control table follow the data table."""
        return Repair(
            spec=self.spec,
            watermarks=self.watermarks,
            control=self.control,
            table=self.table,
            log_reader=self.log_reader,
            now=lambda: NOW,
        )

    @property
    def verify(self: LogPorts) -> Verifier:
        """Compares the data table with the topic."""
        return Verifier(
            spec=self.spec,
            watermarks=self.watermarks,
            control=self.control,
            data_log=self.table,
            log_reader=self.log_reader,
            row_origins=self.row_origins,
        )

    @property
    def row_origins(self) -> BronzeLog | None:
        """Rows with compared labels."""
        return None

    def land(self: LogPorts, plan: Plan) -> None:
        """Write and commit a plan, and record nothing."""
        self.table.append(plan, self.sink.write(plan, self.spec.records_per_task))

    @property
    def ledger(self: LogPorts) -> Ledger:
        """What the control table says now."""
        return self.control.ledger(self.spec.name)

    def committed(self: LogPorts) -> dict[int, int]:
        """Committed offset by partition."""
        ledger = self.control.ledger(self.spec.name)
        return {partition: ledger.committed_offset(partition) for partition in ledger.starts}


class Services(LandingServices):
    """The services of a pipeline that reads a topic."""

    @property
    def row_origins(self: Ports) -> BronzeLog:
        """Rows with compared labels."""
        return self.table

    @property
    def comparison(self: Ports) -> LogComparison:
        """Compares what landed with the topic."""
        return LogComparison(
            watermarks=self.watermarks,
            control=self.control,
            landed=self.table,
            log_reader=self.log_reader,
        )

    @property
    def planner(self: Ports) -> Planner:
        """Makes plans."""
        return Planner(
            spec=self.spec,
            watermarks=self.watermarks,
            control=self.control,
            data_log=self.table,
            log_reader=self.log_reader,
            now=lambda: NOW,
        )

    @property
    def backfills(self: Ports) -> Backfills:
        """Asks for offsets, and plans them in chunks."""
        return Backfills(
            spec=self.spec,
            watermarks=self.watermarks,
            control=self.control,
            data_log=self.table,
            log_reader=self.log_reader,
            now=lambda: NOW,
        )

    @property
    def decisions(self: Ports) -> Decisions:
        """Records what a person decides."""
        return Decisions(
            spec=self.spec,
            watermarks=self.watermarks,
            control=self.control,
            data_log=self.table,
            now=lambda: NOW,
        )

    @property
    def starts(self: Ports) -> StartService:
        """Begins where another reader has come to."""
        return StartService(
            spec=self.spec,
            watermarks=self.watermarks,
            control=self.control,
            data_log=self.table,
            now=lambda: NOW,
        )

    def status(self: Ports) -> PipelineStatus:
        """How far it is behind its topic."""
        return pipeline_status(
            self.spec,
            self.control,
            self.table,
            open_watermarks=lambda: self.watermarks,
            open_log=lambda: self.log_reader,
            unfinished=self.unfinished_work,
            now=NOW,
        )

    @property
    def unfinished_work(self: Ports) -> UnfinishedWorkReader:
        """Finds open plans; no check and no decoder has run."""
        return UnfinishedWorkReader(
            spec=self.spec,
            control=self.control,
            blocked=lambda: (),
            quarantined=lambda _plans: 0,
        )
