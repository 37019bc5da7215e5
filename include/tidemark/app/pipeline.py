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

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.app.adapters import Adapters, PipelineContext
from tidemark.app.maintenance import maintenance
from tidemark.app.quality import publication, quality
from tidemark.app.repair import BronzeRepairPart
from tidemark.app.tables import BronzePart, PlannedTable
from tidemark.app.typed import TypedPart
from tidemark.app.upsert import UpsertPart
from tidemark.core.plan import Plan, PlanRef
from tidemark.core.table_state import SizeEstimate
from tidemark.spec.model import PipelineSpec
from tidemark.spec.ref import PipelineKind

if TYPE_CHECKING:
    from tidemark.bronze.backfill.service import Backfills
    from tidemark.bronze.ingest.executor import ExecutionResult
    from tidemark.bronze.ingest.planner import Planner, PlanResult
    from tidemark.bronze.ingest.protocols import ControlTable
    from tidemark.bronze.ingest.start import StartResult, StartService
    from tidemark.bronze.ingest.start_rules import OtherPartitions, SourceOffsets
    from tidemark.bronze.repair.exports import ExportedOffset
    from tidemark.core.record import LogRecord
    from tidemark.ops.maintenance.service import Maintenance
    from tidemark.ops.report.coverage import KnownWatermarks, TopicCoverage
    from tidemark.ops.report.owner_report import PipelineReport
    from tidemark.ops.report.record_page import RecordPage
    from tidemark.ops.report.records import RecordReader
    from tidemark.ops.report.status import PipelineStatus
    from tidemark.ops.report.unfinished_work import UnfinishedWorkReader
    from tidemark.ops.report.verification import Verification
    from tidemark.quality.check_results import QualityReport
    from tidemark.quality.check_results_table import DeltaCheckResults
    from tidemark.quality.publication_service import Publication
    from tidemark.silver.typed.decoded_payloads import PayloadDecoder
    from tidemark.silver.typed.registry_answers import Registry


REPORTED_PERIOD = timedelta(days=30)
"""Period of a report without another one."""
REPORTED_PLANS = 1_000
"""Maximum number of plans of a report in the console, because a report reads every plan."""
REPORTED_RECORDS = 10_000
"""Maximum number of open records in quarantine of a report in the console."""
_PAGE_TIMEOUT_S = 5.0
"""Longest wait for Kafka for a page of records, in seconds."""


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
    def context(self) -> PipelineContext:
        """The settings that all pipelines share."""
        return self.adapters.context

    @property
    def control(self) -> ControlTable:
        """The control table."""
        return self.context.control

    def with_kafka_timeout(self, seconds: float) -> Pipeline:
        """Return a copy of this pipeline that waits for Kafka for at most some seconds."""
        return Pipeline(self.adapters.with_kafka_timeout(seconds))

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
        return quality(self.adapters).check(sequence)

    # -- parts -------------------------------------------------------------------------------------

    @property
    def bronze(self) -> BronzePart:
        """The bronze table."""
        return BronzePart(self.spec, self.adapters)

    @property
    def typed(self) -> TypedPart:
        """The typed table with its quarantine.

        Raises:
            NotDecoded: The spec defines no typed table.
        """
        return TypedPart(self.spec.typed_spec(), self.adapters)

    @property
    def upsert(self) -> UpsertPart:
        """The upsert table.

        Raises:
            NotDecoded, NotUpserted: The spec defines no upsert table.
        """
        self.spec.upsert()
        return UpsertPart(self.typed)

    def table_of(self, plan: PlanRef) -> PlannedTable:
        """Return the table of a plan: the bronze table or the typed table."""
        return self.bronze if plan.pipeline == self.name else self.typed

    @property
    def repair(self) -> BronzeRepairPart:
        """Repairs of the bronze table, and decisions of operators about the topic."""
        return self.bronze.repair

    # -- planning and publication ------------------------------------------------------------------

    @property
    def planner(self) -> Planner:
        """Plans the offsets after the committed offsets, or given offsets. Needs no JVM."""
        from tidemark.bronze.ingest.planner import Planner

        return Planner(spec=self.spec, ports=self.adapters.topic_ports())

    @property
    def backfills(self) -> Backfills:
        """Records requests of offsets, and plans them in chunks. Needs no JVM."""
        from tidemark.bronze.backfill.service import Backfills

        return Backfills(planner=self.planner)

    @property
    def publication(self) -> Publication:
        """Decides which plans the published view shows. Needs neither a JVM nor Kafka."""
        return publication(self.adapters)

    @property
    def check_results(self) -> DeltaCheckResults:
        """The results of all checks. Needs neither a JVM nor Kafka."""
        return self.adapters.check_results

    def size_estimate(self, plan: Plan) -> SizeEstimate:
        """Return the size that a plan would add to the bronze table. Reads only the table."""
        return self.bronze.size_estimate(plan)

    # -- records and tables ------------------------------------------------------------------------

    def verify(
        self,
        partition: int | None = None,
        start: int | None = None,
        end: int | None = None,
        print_line: Callable[[str], None] = lambda _: None,
        show_done: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> Verification:
        """Compare the bronze table with Kafka record by record. See `Verifier.verify`."""
        return self.bronze.verify(partition, start, end, print_line, show_done)

    def maintenance(self, kind: PipelineKind = PipelineKind.LIVE) -> Maintenance:
        """Return the maintenance of a table of the pipeline. Needs no JVM.

        Raises:
            NotDecoded, NotUpserted: The spec defines no such table.
        """
        return maintenance(self.adapters, kind)

    def masked_columns(self) -> Collection[str]:
        """Return the columns whose values the suite hides in reports."""
        return self.adapters.masked_columns()

    def payload_decoder(self, records: Iterable[LogRecord]) -> PayloadDecoder:
        """Return the decoder of keys and values of some records, for commands that show them."""
        from tidemark.silver.typed.decoded_payloads import PayloadDecoder

        return PayloadDecoder.of(records, self.registry_answers)

    @property
    def registry_answers(self) -> Registry:
        """Returns stored schemas, and requests missing ones from the registry."""
        from tidemark.silver.typed.registry_answers import with_stored_schemas
        from tidemark.spec.decode import DEFAULT_REGISTRY

        registry = self.spec.decode.registry if self.spec.decode else DEFAULT_REGISTRY
        request = self.context.connections.registry_answers(registry)
        return with_stored_schemas(self.adapters.schema_store(), request)

    # -- offsets and reports -----------------------------------------------------------------------

    def import_offsets(
        self,
        found: SourceOffsets,
        requested_by: str,
        reason: str | None = None,
        *,
        others: OtherPartitions | None = None,
        dry_run: bool = False,
    ) -> StartResult:
        """Record the offsets of another reader as the start. See `StartService.start`."""
        return self._starts.start(found, requested_by, reason, others=others, dry_run=dry_run)

    def group_position(self, group: str) -> SourceOffsets:
        """Return the committed offsets of a consumer group of the cluster, to import."""
        from tidemark.bronze.ingest.start import group_position

        return group_position(
            self.adapters.group_offsets, group, self.spec.topic, self._partitions()
        )

    def checkpoint_position(self, path: str) -> SourceOffsets:
        """Return the position of a Structured Streaming query by its checkpoint, to import."""
        from tidemark.bronze.ingest.start_checkpoint import checkpoint_position

        return checkpoint_position(_absolute(path), self.spec.topic)

    def _partitions(self) -> Collection[int]:
        """Return the partitions of the topic."""
        spec = self.spec
        return self.adapters.watermarks.topic_watermarks(
            spec.topic, spec.isolation_level
        ).partitions

    def export_offsets(self, group: str, *, dry_run: bool = False) -> tuple[ExportedOffset, ...]:
        """Write the committed offsets to a consumer group. No run does this (I6)."""
        from tidemark.bronze.repair.exports import Exports

        exports = Exports(
            spec=self.spec,
            ports=self.adapters.topic_ports(reads_only=True),
            groups=self.adapters.group_offsets,
        )
        return exports.export(group, dry_run=dry_run)

    @property
    def _starts(self) -> StartService:
        from tidemark.bronze.ingest.start import StartService

        return StartService(spec=self.spec, ports=self.adapters.topic_ports())

    def status(self) -> PipelineStatus:
        """Return how far the pipeline is behind its topic, with its alarms. Needs no JVM."""
        from tidemark.ops.report.status import pipeline_status

        return pipeline_status(self.spec, self.adapters.topic_ports(), self._unfinished_work())

    def known_watermarks(self) -> KnownWatermarks:
        """Return the current watermarks of the topic, for `coverage`.

        Raises:
            IsTyped: The table is made from another table.
            TidemarkError: Kafka or the connection failed.
        """
        from tidemark.ops.report.coverage_rows import known_watermarks

        return known_watermarks(self.spec, self.adapters.topic_ports(reads_only=True))

    def coverage(
        self,
        partition: int | None = None,
        start: int | None = None,
        end: int | None = None,
        read_watermarks: Callable[[], KnownWatermarks] | None = None,
        *,
        checks_table: bool = True,
    ) -> TopicCoverage:
        """Return the state of every offset of the topic. See `topic_coverage`. Needs no JVM."""
        from tidemark.ops.report.coverage_rows import topic_coverage

        return topic_coverage(
            self.spec,
            self.adapters.topic_ports(reads_only=True),
            self.typed.quarantined_spans if self.spec.decode else None,
            (partition, start, end),
            read_watermarks or self.known_watermarks,
            checks_table=checks_table,
        )

    def records(
        self, partition: int, start: int, count: int = 50, topic_id: str | None = None
    ) -> RecordPage:
        """Return offsets of a partition: Kafka's records, rows, and why a row is absent.

        An error of Kafka or of a table spoils its own part of the page only. Needs no JVM.

        Args:
            partition: Partition number.
            start: First offset.
            count: Number of offsets, at most `records.MAX_COUNT`.
            topic_id: Incarnation of the topic; None for the one that the pipeline reads.

        Raises:
            InvalidReference: This is a typed or an upsert table, or the topic id is invalid.
            InvalidRange: The offset or the count is out of bounds.
            UnknownPartition: The topic has no such partition.
            KafkaFailure: Kafka failed, and the pipeline has no plan yet.
            SuiteError: The suite is invalid, so its masked columns are unknown.
        """
        from tidemark.quality.suite import masked_payloads

        masked = masked_payloads(self.adapters.masked_columns())
        return replace(self._record_reader.page(partition, start, count, topic_id), masked=masked)

    def offset_at(self, partition: int, moment: datetime, topic_id: str | None = None) -> int:
        """Return the first offset at or after a moment. See `records.offset_at`."""
        from tidemark.ops.report.records import offset_at

        ports = self.adapters.topic_ports(reads_only=True)
        return offset_at(self.spec, ports, partition, moment, topic_id)

    @property
    def _record_reader(self) -> RecordReader:
        from tidemark.ops.report.decoded_rows import DecodedTables
        from tidemark.ops.report.records import RecordReader

        quick = self.with_kafka_timeout(self.context.kafka_timeout_s or _PAGE_TIMEOUT_S)
        decoded = None
        if self.spec.decode is not None:
            typed = self.typed
            decoded = DecodedTables(
                pipeline=typed.name,
                typed=typed.table(),
                quarantine=typed.quarantine.table,
                flattens=self.spec.decode.flattens,
            )
        return RecordReader(
            spec=self.spec, ports=quick.adapters.topic_ports(reads_only=True), decoded=decoded
        )

    def _unfinished_work(self) -> UnfinishedWorkReader:
        from tidemark.ops.report.unfinished_work import UnfinishedWorkReader

        if self.spec.decode is None:
            return UnfinishedWorkReader(spec=self.spec, control=self.control)
        typed = self.typed
        return UnfinishedWorkReader(
            spec=self.spec,
            control=self.control,
            quarantined=lambda plans: typed.quarantine.count_open(plans),
            hidden=typed.hidden_offsets(),
            check_typed=typed.check_next,
            next_merge=lambda: self.upsert.planner.next() if self.spec.has_upsert else None,
        )

    def report(
        self, since: datetime | None = None, until: datetime | None = None
    ) -> PipelineReport:
        """Return the owner's report of a period. Needs neither a JVM nor Kafka.

        Args:
            since: Start of the period; by default 30 days before its end.
            until: End of the period, exclusive; by default now.
        """
        from tidemark.ops.report.service import Reports

        spec = self.spec
        reports = Reports(
            spec=spec,
            control=self.control,
            data_log=self.adapters.bronze(reads_only=True),
            history=self.adapters.check_results,
            publication=self.publication,
            masked=self.adapters.masked_columns(),
            quarantine=self.typed.quarantine.records if spec.decode else None,
            unnamed_fields=self.typed.unnamed_fields if spec.decode else lambda: None,
            now=self.context.now,
        )
        until = until or self.context.now()
        return reports.report(since or until - REPORTED_PERIOD, until)

    def reason_against_report(self) -> str | None:
        """Return why a report takes too long for a page; None if it does not."""
        newest = self.control.summary(self.name).last_sequence
        if newest > REPORTED_PLANS:
            return f"{newest:,} plans, more than {REPORTED_PLANS:,}"
        if self.spec.decode is None:
            return None
        records = len(self.typed.quarantine.records(most=REPORTED_RECORDS + 1))
        if records > REPORTED_RECORDS:
            return f"more than {REPORTED_RECORDS:,} records in quarantine"
        return None


def _absolute(path: str) -> str:
    """Return the absolute form of a path, or a URI unchanged."""
    return path if re.match(r"[a-z][a-z0-9+.-]*:", path) else str(Path(path).resolve())
