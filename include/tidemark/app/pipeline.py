"""`Pipeline`: one table of a pipeline with all use cases. Start here.

    from tidemark.app.app import App

    prices = App.from_environment().pipeline("prices")
    planned = prices.plan("notebook:1").plan
    prices.ingest(planned.sequence)

docs/how-to/python.md has examples and a list of the use cases. Methods import heavy libraries when
they need them: planning never loads Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tidemark.app.adapters import Adapters, PipelineContext
from tidemark.core.errors import InvalidReference
from tidemark.core.offsets import Span, SpanSet, intersection_by_partition, size_of
from tidemark.core.plan import Plan
from tidemark.core.table_state import SizeEstimate
from tidemark.spec.decode import Part, PublishRule, QuarantineReason
from tidemark.spec.errors import IsTyped
from tidemark.spec.model import PipelineSpec
from tidemark.spec.ref import PipelineKind, PipelineRef
from tidemark.spec.upsert import MergePlan

if TYPE_CHECKING:
    from tidemark.bronze.backfill.service import Backfills
    from tidemark.bronze.ingest.executor import ExecutionResult, PlanExecutor
    from tidemark.bronze.ingest.planner import Planner, PlanResult
    from tidemark.bronze.ingest.ports import Ports
    from tidemark.bronze.ingest.protocols import (
        ControlTable,
        DataTable,
        PlanSource,
        Sink,
    )
    from tidemark.bronze.ingest.start import StartResult, StartService
    from tidemark.bronze.ingest.start_rules import OtherPartitions, SourceOffsets
    from tidemark.bronze.repair.abandon import Abandon
    from tidemark.bronze.repair.decisions import Decisions
    from tidemark.bronze.repair.exports import ExportedOffset
    from tidemark.bronze.repair.rewind import Repair
    from tidemark.bronze.repair.rules import Differences
    from tidemark.bronze.repair.undo import Undo, UndoResult
    from tidemark.core.events import LossAccepted, RecreationAccepted
    from tidemark.core.record import LogRecord
    from tidemark.delta.data_table import DeltaDataTable
    from tidemark.delta.deduplication import DeduplicationResult
    from tidemark.ops.maintenance.service import Maintenance
    from tidemark.ops.report.coverage import KnownWatermarks, TopicCoverage
    from tidemark.ops.report.owner_report import PipelineReport
    from tidemark.ops.report.record_page import RecordPage
    from tidemark.ops.report.records import RecordReader
    from tidemark.ops.report.status import PipelineStatus
    from tidemark.ops.report.unfinished_work import UnfinishedWorkReader
    from tidemark.ops.report.verification import Verification
    from tidemark.ops.report.verify import Verifier
    from tidemark.quality.check_results import QualityReport
    from tidemark.quality.check_results_table import DeltaCheckResults
    from tidemark.quality.publication_service import Publication
    from tidemark.quality.service import Quality
    from tidemark.silver.typed.clearing import ClearedTable
    from tidemark.silver.typed.decoded_payloads import PayloadDecoder
    from tidemark.silver.typed.decoder import DecodePlanner, HiddenOffsets
    from tidemark.silver.typed.quarantine import DeltaQuarantine, TypedTablePair
    from tidemark.silver.typed.registry_answers import Registry
    from tidemark.silver.typed.replay_preview import ReplayPreview
    from tidemark.silver.typed.schemas import SchemaRegistry, SchemaStore
    from tidemark.silver.typed.spark_decoder import SparkDecoder
    from tidemark.silver.typed.unnamed import UnnamedFields
    from tidemark.silver.upsert.service import Upserts
    from tidemark.spec.fields import FieldType

_Part = TypeVar("_Part")
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
    """One table of a pipeline, with its spec bound to Kafka, Delta tables and Spark.

    Attributes:
        spec: The spec of the table.
        adapters: The adapters of the pipeline.
    """

    spec: PipelineSpec
    adapters: Adapters

    @property
    def live_spec(self) -> PipelineSpec:
        """The spec of the live bronze table of the same pipeline."""
        return self.adapters.spec

    @property
    def context(self) -> PipelineContext:
        """The settings that all pipelines share."""
        return self.adapters.context

    @property
    def ref(self) -> PipelineRef:
        """The table."""
        return self.spec.ref

    @property
    def name(self) -> str:
        """The text of `ref`."""
        return self.spec.name

    def table_version(self) -> int:
        """Return the newest version of the table; -1 if it does not exist."""
        from tidemark.delta.delta_errors import translate_delta_errors
        from tidemark.delta.table_io import open_if_exists

        uri = self.adapters.uri(self.spec.target)
        with translate_delta_errors(uri, "reading the table"):
            table = open_if_exists(uri)
            return -1 if table is None else table.version()

    @property
    def typed(self) -> Pipeline:
        """The typed table of the pipeline.

        Raises:
            InvalidReference: This is an upsert table.
            NotDecoded: The spec defines no typed table.
        """
        self._check_kind(PipelineKind.LIVE, PipelineKind.TYPED)
        return self._typed

    @property
    def _typed(self) -> Pipeline:
        return Pipeline(self.live_spec.typed_spec(), self.adapters)

    @property
    def _live(self) -> Pipeline:
        return Pipeline(self.live_spec, self.adapters)

    def _check_kind(self, *kinds: PipelineKind) -> None:
        if self.ref.kind not in kinds:
            raise InvalidReference(
                rule=f"a reference to {' or '.join(kinds)} tables", seen=repr(self.name)
            )

    # -- planning and execution --------------------------------------------------------------------

    def plan(self, requested_by: str, *, dry_run: bool = False) -> PlanResult:
        """Plan the offsets after the committed offsets, and record the plan.

        Args:
            requested_by: The run. A repeated call with the same run returns the same plan.
            dry_run: Record nothing.
        """
        return self.planner.preview() if dry_run else self.planner.plan(requested_by)

    def ingest(self, sequence: int) -> ExecutionResult:
        """Execute a recorded plan with Spark: land its offsets in one transaction, exactly once.

        The plan of a typed table reads the bronze table instead of Kafka.
        """
        return self.executor.execute(sequence)

    def check(self, sequence: int) -> QualityReport:
        """Check a landed plan, with Spark if its suite needs Spark, and publish or block it."""
        return self.quality.check(sequence)

    def preview_replay(
        self, partition: int | None = None, reason: QuarantineReason | None = None
    ) -> ReplayPreview:
        """Decode open records in quarantine with the current spec and Spark. Writes nothing.

        Args:
            partition: Only records of this partition; None for all.
            reason: Only records with this reason; None for all.
        """
        from tidemark.silver.typed.replay_preview import chosen, preview
        from tidemark.silver.typed.schemas import DraftSchemas

        typed = self.typed
        schemas = DraftSchemas(typed._schema_store())
        records = chosen(typed.quarantine.records(), partition, reason)
        return preview(records, typed._decoder(schemas), typed._spark_decoder(schemas))

    def merge(self) -> MergePlan | None:
        """Bring the upsert table up to date with Spark; None if it was up to date."""
        from tidemark.silver.upsert.spark import SparkMerger

        upserts = self.upserts
        merger = SparkMerger(
            open_session=self.context.sessions.own,
            typed=self.adapters.uri(upserts.spec.target),
            upsert=self.adapters.uri(upserts.upsert.target),
            spec=upserts.upsert,
        )
        return upserts.execute(self.adapters.wrap("merger", merger))

    def size_estimate(self, plan: Plan) -> SizeEstimate:
        """Return the size that a plan would add to the data table. Reads only the table."""
        size = self.table.size()
        per_file = size.records_within(self.spec.records_per_task, self.spec.bytes_per_task)
        return size.size_estimate((planned.span for planned in plan.ranges), per_file)

    def quarantined(self, sequence: int) -> int | None:
        """Return the number of quarantined records of a plan; None if the table is not typed."""
        return size_of(self.quarantine.spans(sequence)) if self.spec.is_typed else None

    def unnamed_fields(self, sequence: int | None = None) -> UnnamedFields | None:
        """Return the fields that the schema does not name, of a typed plan or of the newest plans.

        Returns:
            None unless the spec keeps these fields. Without names if the suite masks values.
        """
        decode = self.live_spec.decode
        if decode is None or not decode.value.keeps_rest:
            return None
        from tidemark.quality.suite import masked_payloads
        from tidemark.silver.typed.unnamed import newest_plans, read_unnamed_fields

        if sequence is None:
            typed = self._typed
            size = typed._typed_table().size()
            plans = newest_plans(self.control.ledger(typed.name), size)
        else:
            plans = (sequence, sequence)
        found = plans and read_unnamed_fields(self.adapters.uri(decode.target), *plans)
        is_masked = Part.VALUE in masked_payloads(self.adapters.masked_columns())
        return found.without_names() if found and is_masked else found

    @property
    def planner(self) -> Planner:
        """Plans the offsets after the committed offsets, or given offsets. Needs no JVM."""
        from tidemark.bronze.ingest.planner import Planner

        return Planner(spec=self.kafka_spec, ports=self.adapters.topic_ports())

    @property
    def executor(self) -> PlanExecutor:
        """Executes plans with Spark."""
        from tidemark.bronze.ingest.executor import PlanExecutor

        return PlanExecutor(
            spec=self.spec,
            ports=self.ports,
            sink=self.adapters.wrap("sink", self._sink()),
            source=self._source(),
        )

    @property
    def backfills(self) -> Backfills:
        """Records requests of offsets, and plans them in chunks. Needs no JVM."""
        from tidemark.bronze.backfill.service import Backfills

        return Backfills(planner=self.planner)

    @property
    def decoder(self) -> DecodePlanner:
        """Plans the records to decode into the typed table. Needs neither a JVM nor Kafka.

        Raises:
            InvalidReference: This is an upsert table.
            NotDecoded: The spec defines no typed table.
        """
        return self._decoder(self._schema_store())

    def clear_typed(self, requested_by: str, reason: str, *, dry_run: bool = False) -> ClearedTable:
        """Empty the typed table, so that the next decode starts again from the bronze table.

        The table gets the columns of the current spec. See `TypedClearing.clear`.
        """
        from tidemark.silver.typed.clearing import TypedClearing
        from tidemark.silver.typed.columns import typed_schema, typed_table_of_any_columns
        from tidemark.silver.typed.quarantine import TypedTablePair

        typed, decode = self.typed, self.live_spec.decoding()
        table = typed_table_of_any_columns(self.adapters.uri(decode.target))
        pair = TypedTablePair(
            table, typed._quarantine(table), typed._typed_table, flattens=decode.flattens
        )
        planner = self._decoder(self._schema_store())
        return TypedClearing(
            planner=replace(planner, table=self.adapters.wrap("table", pair)),
            replace_columns=lambda: table.replace_columns(typed.name, typed_schema(decode)),
        ).clear(requested_by, reason, dry_run=dry_run)

    def _decoder(self, schemas: SchemaStore) -> DecodePlanner:
        from tidemark.silver.typed.decoder import DecodePlanner
        from tidemark.silver.typed.framed_table import FramedBronzeTable
        from tidemark.silver.typed.schemas import SchemaResolver

        spec = self.live_spec.typed_spec()
        decode = self.live_spec.decoding()
        bronze = self.adapters.wrap(
            "bronze", FramedBronzeTable(self.adapters.uri(self.live_spec.target), reads_only=True)
        )
        table = self.typed._typed_tables()
        return DecodePlanner(
            spec=spec,
            decode=decode,
            control=self.control,
            bronze=bronze,
            table=table,
            schemas=SchemaResolver(
                decode=decode,
                pipeline=spec.name,
                # One for all plans of a run: it caches the answers.
                open_registry=cache(self._registry),
                store=schemas,
                bronze=bronze,
                table=table,
            ),
            now=self.context.now,
            hidden=self._hidden_offsets(),
        )

    def _hidden_offsets(self) -> Callable[[], HiddenOffsets]:
        """Return the function that reads the landed offsets that are not decoded."""
        from tidemark.silver.typed.decoder import HiddenOffsets

        decode = self.live_spec.decode
        if decode is None or decode.publish is PublishRule.ALWAYS:
            return HiddenOffsets
        return self._live.publication.hidden

    @property
    def upserts(self) -> Upserts:
        """Plans merges into the upsert table. Needs no JVM.

        Raises:
            NotDecoded, NotUpserted: The spec defines no upsert table.
        """
        from tidemark.silver.upsert.service import Upserts
        from tidemark.silver.upsert.table import DeltaUpsertTable

        upsert = self.live_spec.upsert()
        table = DeltaUpsertTable(self.adapters.uri(upsert.target), upsert)
        return Upserts(
            spec=self.live_spec.typed_spec(),
            upsert=upsert,
            control=self.control,
            typed=self.adapters.wrap("typed", self._typed._typed_tables()),
            table=self.adapters.wrap("upsert_table", table),
        )

    # -- quality -----------------------------------------------------------------------------------

    @property
    def quality(self) -> Quality:
        """Checks landed plans, with Spark if their suite needs Spark."""
        from tidemark.quality.checker import BatchChecker
        from tidemark.quality.data_docs import DataDocs
        from tidemark.quality.service import Quality

        spec, layout = self.kafka_spec, self.context.layout
        checker = BatchChecker(
            spark=self.context.sessions.shared,
            suites=layout.expectations,
            docs=DataDocs(layout.data_docs),
            results=self.adapters.check_results,
        )
        return Quality(
            spec=spec,
            data_table=self.adapters.uri(spec.target),
            ports=self.ports,
            checker=self.adapters.wrap("quality", checker),
        )

    @property
    def publication(self) -> Publication:
        """Decides which plans the published view shows. Needs neither a JVM nor Kafka."""
        from tidemark.quality.publication_service import Publication

        return Publication(
            pipeline=self.kafka_spec.name, ports=self.adapters.topic_ports(reads_only=True)
        )

    @property
    def check_results(self) -> DeltaCheckResults:
        """The results of all checks. Needs neither a JVM nor Kafka."""
        return self.adapters.check_results

    def masked_columns(self) -> Collection[str]:
        """Return the columns whose values the suite hides in reports."""
        return self.adapters.masked_columns()

    def payload_decoder(self, records: Iterable[LogRecord]) -> PayloadDecoder:
        """Return the decoder of keys and values of some records, for commands that show them.

        The decoder uses stored schemas, and schemas of the registry.
        """
        from tidemark.silver.typed.decoded_payloads import PayloadDecoder

        return PayloadDecoder.of(records, self.registry_answers)

    @property
    def registry_answers(self) -> Registry:
        """Returns stored schemas, and requests missing ones from the registry."""
        from tidemark.silver.typed.registry_answers import with_stored_schemas
        from tidemark.spec.decode import DEFAULT_REGISTRY

        decode = self.live_spec.decode
        registry = decode.registry if decode else DEFAULT_REGISTRY
        return with_stored_schemas(
            self.adapters.schema_store(),
            self.context.connections.registry_answers(registry),
        )

    # -- repair ------------------------------------------------------------------------------------

    def abandon(
        self,
        sequence: int,
        requested_by: str,
        reason: str,
        *,
        discard: bool = False,
        dry_run: bool = False,
    ) -> Plan:
        """Abandon a plan that has not landed. See `Abandon.abandon`."""
        return self._abandon.abandon(
            sequence, requested_by, reason, discard=discard, dry_run=dry_run
        )

    def undo(
        self,
        sequence: int,
        requested_by: str,
        reason: str,
        *,
        allow_loss: bool = False,
        dry_run: bool = False,
    ) -> UndoResult:
        """Remove the rows of a landed plan; its offsets can be read again. See `Undo.undo`."""
        return self._undo.undo(
            sequence, requested_by, reason, allow_loss=allow_loss, dry_run=dry_run
        )

    def decoded_offsets(self, plan: Plan) -> int:
        """Return how many offsets of a plan the typed table or its quarantine has.

        0 without a typed table.
        """
        if self.spec.decode is None or not self.spec.reads_kafka:
            return 0
        typed = self.control.summary(self.typed.name)
        return size_of(intersection_by_partition(plan.spans(), typed.landed_of(plan.topic_id)))

    def accept_loss(
        self, partitions: Collection[int], requested_by: str, reason: str, *, dry_run: bool = False
    ) -> LossAccepted:
        """Skip offsets that Kafka has deleted. See `Decisions.accept_loss`."""
        return self._decisions.accept_loss(partitions, requested_by, reason, dry_run=dry_run)

    def accept_recreation(
        self, requested_by: str, reason: str, *, dry_run: bool = False
    ) -> RecreationAccepted:
        """Continue with a recreated topic. See `Decisions.accept_recreation`."""
        return self._decisions.accept_recreation(requested_by, reason, dry_run=dry_run)

    def rewind(self, requested_by: str, reason: str, *, dry_run: bool = False) -> Differences:
        """Follow a RESTORE of the data table. See `Repair.rewind`."""
        return self._repair.rewind(requested_by, reason, dry_run=dry_run)

    def rebuild(self, requested_by: str, reason: str, *, dry_run: bool = False) -> Differences:
        """Rebuild the control table from the data table. See `Repair.rebuild`."""
        return self._repair.rebuild(requested_by, reason, dry_run=dry_run)

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
        spec = self.kafka_spec
        return self.adapters.watermarks.topic_watermarks(
            spec.topic, spec.isolation_level
        ).partitions

    def export_offsets(self, group: str, *, dry_run: bool = False) -> tuple[ExportedOffset, ...]:
        """Write the committed offsets to a consumer group. No run does this (I6)."""
        from tidemark.bronze.repair.exports import Exports

        exports = Exports(
            spec=self.kafka_spec,
            ports=self.adapters.topic_ports(reads_only=True),
            groups=self.adapters.group_offsets,
        )
        return exports.export(group, dry_run=dry_run)

    def deduplicate(self, *, dry_run: bool = False) -> DeduplicationResult:
        """Remove copies of rows from the data table. Needs neither a JVM nor Kafka."""
        from tidemark.delta.deduplication import Deduplication

        return Deduplication(self.adapters.uri(self.spec.target), self.name).run(dry_run=dry_run)

    @property
    def _starts(self) -> StartService:
        from tidemark.bronze.ingest.start import StartService

        return StartService(spec=self.kafka_spec, ports=self.adapters.topic_ports())

    @property
    def _abandon(self) -> Abandon:
        from tidemark.bronze.repair.abandon import Abandon

        return Abandon(pipeline=self.name, ports=self.ports)

    @property
    def _undo(self) -> Undo:
        from tidemark.bronze.repair.undo import Undo

        return Undo(
            pipeline=self.name,
            ports=self.ports,
            asks_kafka=not self.spec.is_typed,
            check_source=self._check_bronze,
        )

    def _check_bronze(self) -> None:
        """Raise `BronzeRowsMissing` if typed rows may be the only copy of their records."""
        if self.spec.is_typed:
            self.decoder.check_bronze()

    @property
    def _decisions(self) -> Decisions:
        from tidemark.bronze.repair.decisions import Decisions

        return Decisions(spec=self.kafka_spec, ports=self.adapters.topic_ports())

    @property
    def _repair(self) -> Repair:
        from tidemark.bronze.repair.rewind import Repair

        return Repair(spec=self.spec, ports=self.ports)

    # -- reports and maintenance -------------------------------------------------------------------

    def status(self) -> PipelineStatus:
        """Return how far the pipeline is behind its topic, with its alarms. Needs no JVM."""
        from tidemark.ops.report.status import pipeline_status

        return pipeline_status(
            self.kafka_spec, self.adapters.topic_ports(), self._unfinished_work()
        )

    def known_watermarks(self) -> KnownWatermarks:
        """Return the current watermarks of the topic, for `coverage`.

        Raises:
            IsTyped: The table is made from another table.
            TidemarkError: Kafka or the connection failed.
        """
        from tidemark.ops.report.coverage_rows import known_watermarks

        return known_watermarks(self.kafka_spec, self.adapters.topic_ports(reads_only=True))

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
            self.kafka_spec,
            self.adapters.topic_ports(reads_only=True),
            self._quarantined_spans if self.spec.decode else None,
            (partition, start, end),
            read_watermarks or self.known_watermarks,
            checks_table=checks_table,
        )

    def _quarantined_spans(
        self, topic_id: str, within: tuple[int, Span] | None
    ) -> Mapping[int, SpanSet] | None:
        """Return the offsets in quarantine; None if they form too many spans for coverage."""
        from tidemark.ops.report.coverage_rows import MOST_SPANS

        typed = self.control.summary(self.typed.name)
        unlanded = [record.plan.sequence for record in typed.open_plans()]
        return self.quarantine.open_spans(topic_id, unlanded, MOST_SPANS, within)

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
        return offset_at(self.kafka_spec, ports, partition, moment, topic_id)

    @property
    def _record_reader(self) -> RecordReader:
        from tidemark.ops.report.decoded_rows import DecodedTables
        from tidemark.ops.report.records import RecordReader

        self._check_kind(PipelineKind.LIVE)
        quick = self.with_kafka_timeout(self.context.kafka_timeout_s or _PAGE_TIMEOUT_S)
        decoded = None
        if self.spec.decode is not None and self.ref.kind is PipelineKind.LIVE:
            typed = self._typed
            decoded = DecodedTables(
                pipeline=typed.name,
                typed=typed._typed_table(),
                quarantine=typed.quarantine.table,
                flattens=self.spec.decode.flattens,
            )
        return RecordReader(
            spec=self.spec, ports=quick.adapters.topic_ports(reads_only=True), decoded=decoded
        )

    def _unfinished_work(self) -> UnfinishedWorkReader:
        from tidemark.ops.report.unfinished_work import UnfinishedWorkReader

        return UnfinishedWorkReader(
            spec=self.spec,
            control=self.control,
            quarantined=lambda plans: self.quarantine.count_open(plans),
            hidden=self._hidden_offsets(),
            check_typed=self._check_decode,
            next_merge=lambda: self.upserts.next() if self.spec.has_upsert else None,
        )

    def _check_decode(self) -> None:
        """Raise the error with which the next decode would be refused. Requests no schema."""
        if self.live_spec.registry:
            self.context.connections.extra(self.live_spec.registry, "url")
        self.decoder.check_tables()

    def verify(
        self,
        partition: int | None = None,
        start: int | None = None,
        end: int | None = None,
        print_line: Callable[[str], None] = lambda _: None,
        show_done: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> Verification:
        """Compare the data table with Kafka record by record. See `Verifier.verify`."""
        return self._verifier.verify(partition, start, end, print_line, show_done)

    @property
    def _verifier(self) -> Verifier:
        from tidemark.ops.report.verify import Verifier

        if self.spec.is_typed:
            return Verifier(spec=self.spec, ports=self.ports)
        ports = self.adapters.topic_ports(reads_only=True)
        return Verifier(spec=self.spec, ports=ports, row_origins=ports.table)

    def report(
        self, since: datetime | None = None, until: datetime | None = None
    ) -> PipelineReport:
        """Return the owner's report of a period. Needs neither a JVM nor Kafka.

        Args:
            since: Start of the period; by default 30 days before its end.
            until: End of the period, exclusive; by default now.
        """
        from tidemark.ops.report.service import Reports

        spec = self.kafka_spec
        reports = Reports(
            spec=spec,
            control=self.control,
            data_log=self.adapters.bronze(reads_only=True),
            history=self.adapters.check_results,
            publication=self.publication,
            masked=self.adapters.masked_columns(),
            quarantine=self.quarantine.records if spec.decode else None,
            unnamed_fields=self.unnamed_fields,
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
        records = len(self.quarantine.records(most=REPORTED_RECORDS + 1))
        if records > REPORTED_RECORDS:
            return f"more than {REPORTED_RECORDS:,} records in quarantine"
        return None

    def maintenance(self) -> Maintenance:
        """Return the maintenance of the data table. Needs no JVM."""
        return self._maintenance(self.spec.target, self.spec.name)

    def quarantine_maintenance(self) -> Maintenance:
        """Return the maintenance of the quarantine of the typed table."""
        return self.typed._maintenance(
            self.live_spec.decoding().quarantine_target,
            str(self.ref.of_kind(PipelineKind.QUARANTINE)),
        )

    def _maintenance(self, target: str, table: str) -> Maintenance:
        from tidemark.delta.maintained_table import DeltaMaintainedTable
        from tidemark.ops.maintenance.service import Maintenance, finished_plans

        maintained = self.adapters.wrap(
            "maintenance", DeltaMaintainedTable(self.adapters.uri(target), self.name)
        )
        if self.ref.kind is PipelineKind.UPSERT:
            # No process waits for its files: a failed merge writes new ones.
            return Maintenance(name=table, table=maintained, now=self.context.now)
        return Maintenance(
            name=table,
            table=maintained,
            finished_plans=lambda: finished_plans(self.control, self.name, self.table),
            now=self.context.now,
        )

    # -- parts -------------------------------------------------------------------------------------

    @property
    def control(self) -> ControlTable:
        """The control table."""
        return self.context.control

    @property
    def table(self) -> DataTable:
        """The data table, without Spark. Its use raises `TableAltered` if plans cannot land."""
        return self._typed_tables() if self.spec.is_typed else self.adapters.bronze()

    @property
    def quarantine(self) -> DeltaQuarantine:
        """The quarantine of the typed table, without Spark.

        Raises:
            InvalidReference: This is an upsert table.
            NotDecoded: The spec defines no typed table.
        """
        typed = self.typed
        return typed._quarantine(typed._typed_table())

    def _quarantine(self, typed: DeltaDataTable) -> DeltaQuarantine:
        from tidemark.silver.typed.quarantine import DeltaQuarantine

        return DeltaQuarantine(
            self.adapters.uri(self.live_spec.decoding().quarantine_target),
            self.context.now,
            typed,
            lambda: self.control.ledger(self.name).landed_sequences(),
        )

    def with_kafka_timeout(self, seconds: float) -> Pipeline:
        """Return a copy of this pipeline that waits for Kafka for at most some seconds."""
        return replace(self, adapters=self.adapters.with_kafka_timeout(seconds))

    @property
    def ports(self) -> Ports:
        """The ports of the table. The source of a typed table is the bronze table."""
        if not self.spec.is_typed:
            return self.adapters.topic_ports()
        from tidemark.bronze.ingest.ports import Ports

        bronze_log = self.decoder.bronze_log
        return Ports(
            control=self.control,
            table=self.table,
            open_watermarks=cache(lambda: self.adapters.wrap("watermarks", bronze_log)),
            open_log_reader=cache(lambda: self.adapters.wrap("log_reader", bronze_log)),
            now=self.context.now,
        )

    def _source(self) -> PlanSource:
        if self.spec.is_typed:
            from tidemark.silver.typed.source import PublishedSource

            return PublishedSource(ports=self.ports, decoder=self.decoder)
        from tidemark.bronze.ingest.source import TopicSource

        return TopicSource(ports=self.adapters.topic_ports())

    def _sink(self) -> Sink:
        sessions = self.context.sessions
        if self.spec.is_typed:
            return self._spark_decoder(self._schema_store())
        from tidemark.bronze.ingest.spark_sink import SparkSink
        from tidemark.kafka.options import spark_options

        return SparkSink(
            open_session=sessions.shared,
            uri=self.adapters.uri(self.spec.target),
            kafka_options=spark_options(self.adapters.kafka_config()),
            log_reader=self.adapters.log_reader,
            now=self.context.now,
            write_options=sessions.write_options,
        )

    def _spark_decoder(self, schemas: SchemaStore) -> SparkDecoder:
        from tidemark.silver.typed.spark_decoder import SparkDecoder

        sessions, decode = self.context.sessions, self.live_spec.decoding()
        return SparkDecoder(
            open_session=sessions.shared,
            bronze=self.adapters.uri(self.live_spec.target),
            typed=self.adapters.uri(decode.target),
            quarantine=self.adapters.uri(decode.quarantine_target),
            spec=decode,
            schemas=schemas,
            write_options=sessions.write_options,
        )

    def _typed_tables(self) -> TypedTablePair:
        from tidemark.silver.typed.quarantine import TypedTablePair

        flattens = self.live_spec.decoding().flattens
        pair = TypedTablePair(
            self._typed_table(), self.quarantine, self._typed_table, flattens=flattens
        )
        return self.adapters.wrap("table", pair)

    def _typed_table(self, columns: Mapping[Part, FieldType] | None = None) -> DeltaDataTable:
        from tidemark.silver.typed.columns import typed_table

        decode = self.live_spec.decoding()
        return typed_table(self.adapters.uri(decode.target), decode, columns)

    def _registry(self) -> SchemaRegistry:
        from tidemark.silver.typed.registry import ConfluentRegistry

        connection = self.live_spec.decoding().registry
        extra = self.context.connections.extra(connection, "url")
        return self.adapters.wrap("registry", ConfluentRegistry(connection, extra))

    def _schema_store(self) -> SchemaStore:
        return self.adapters.wrap("schemas", self.adapters.schema_store())

    @property
    def kafka_spec(self) -> PipelineSpec:
        """The spec of a table that reads Kafka.

        Raises:
            IsTyped: The table is made from another table.
        """
        if not self.spec.reads_kafka:
            raise IsTyped(pipeline=self.name, origin=self.spec.origin)
        return self.spec


def _absolute(path: str) -> str:
    """Return the absolute form of a path, or a URI unchanged."""
    return path if re.match(r"[a-z][a-z0-9+.-]*:", path) else str(Path(path).resolve())
