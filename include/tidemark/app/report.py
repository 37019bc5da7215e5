"""Reports about a pipeline: status, coverage, records, and the report for the owner of the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tidemark.app.adapters import Adapters
from tidemark.app.quality import publication
from tidemark.app.typed import TypedPart
from tidemark.app.upsert import UpsertPart
from tidemark.spec.model import PipelineSpec

if TYPE_CHECKING:
    from tidemark.ops.report.coverage import KnownWatermarks, TopicCoverage
    from tidemark.ops.report.owner_report import PipelineReport
    from tidemark.ops.report.record_page import RecordPage
    from tidemark.ops.report.status import PipelineStatus
    from tidemark.ops.report.unfinished_work import UnfinishedWorkReader

REPORTED_PERIOD = timedelta(days=30)
"""Period of a report without another one."""
REPORTED_PLANS = 1_000
"""Maximum number of plans of a report in the console, because a report reads every plan."""
REPORTED_RECORDS = 10_000
"""Maximum number of open records in quarantine of a report in the console."""
_PAGE_TIMEOUT_S = 5.0
"""Longest wait for Kafka for a page of records, in seconds."""


@dataclass(frozen=True)
class ReportPart:
    """The reports about a pipeline. They only read, and need no JVM.

    Attributes:
        adapters: The adapters of the pipeline.
        typed: The typed table; None without one.
    """

    adapters: Adapters
    typed: TypedPart | None

    def status(self) -> PipelineStatus:
        """Return how far the pipeline is behind its topic, with its alarms."""
        from tidemark.ops.report.status import pipeline_status

        return pipeline_status(self._spec, self.adapters.topic_ports(), self._unfinished_work())

    def watermarks(self) -> KnownWatermarks:
        """Return the current watermarks of the topic, for `coverage`.

        Raises:
            TidemarkError: Kafka or the connection failed.
        """
        from tidemark.ops.report.coverage_rows import known_watermarks

        return known_watermarks(self._spec, self.adapters.topic_ports(reads_only=True))

    def coverage(
        self,
        partition: int | None = None,
        start: int | None = None,
        end: int | None = None,
        read_watermarks: Callable[[], KnownWatermarks] | None = None,
        *,
        checks_table: bool = True,
    ) -> TopicCoverage:
        """Return the state of every offset of the topic. See `coverage_rows.topic_coverage`."""
        from tidemark.ops.report.coverage_rows import topic_coverage

        return topic_coverage(
            self._spec,
            self.adapters.topic_ports(reads_only=True),
            self.typed.quarantined_spans if self.typed else None,
            (partition, start, end),
            read_watermarks or self.watermarks,
            checks_table=checks_table,
        )

    def records(
        self, partition: int, start: int, count: int = 50, topic_id: str | None = None
    ) -> RecordPage:
        """Return offsets of a partition: Kafka's records, rows, and why a row is absent.

        An error of Kafka or of a table spoils its own part of the page only.

        Args:
            partition: Partition number.
            start: First offset.
            count: Number of offsets, at most `records.MAX_COUNT`.
            topic_id: Incarnation of the topic; None for the one that the pipeline reads.

        Raises:
            InvalidReference: The topic id is invalid.
            InvalidRange: The offset or the count is out of bounds.
            UnknownPartition: The topic has no such partition.
            KafkaFailure: Kafka failed, and the pipeline has no plan yet.
            SuiteError: The suite is invalid, so its masked columns are unknown.
        """
        from tidemark.ops.report.decoded_rows import DecodedTables
        from tidemark.ops.report.records import RecordReader
        from tidemark.quality.suite import masked_payloads

        masked = masked_payloads(self.adapters.masked_columns())
        timeout = self.adapters.context.kafka_timeout_s or _PAGE_TIMEOUT_S
        ports = self.adapters.with_kafka_timeout(timeout).topic_ports(reads_only=True)
        reader = RecordReader(spec=self._spec, ports=ports)
        if self.typed:
            decoded = DecodedTables(
                pipeline=self.typed.name,
                typed=self.typed.table(),
                quarantine=self.typed.quarantine.table,
                flattens=self.typed.spec.decoding().flattens,
            )
            reader = replace(reader, decoded=decoded)
        return replace(reader.page(partition, start, count, topic_id), masked=masked)

    def of_period(
        self, since: datetime | None = None, until: datetime | None = None
    ) -> PipelineReport:
        """Return the owner's report of a period. Does not read Kafka.

        Args:
            since: Start of the period; by default 30 days before its end.
            until: End of the period, exclusive; by default now.
        """
        from tidemark.ops.report.service import Reports

        reports = Reports(
            spec=self._spec,
            control=self.adapters.context.control,
            data_log=self.adapters.bronze(reads_only=True),
            history=self.adapters.check_results,
            publication=publication(self.adapters),
            masked=self.adapters.masked_columns(),
            quarantine=self.typed.quarantine.records if self.typed else None,
            unnamed_fields=self.typed.unnamed_fields if self.typed else lambda: None,
            now=self.adapters.context.now,
        )
        until = until or self.adapters.context.now()
        return reports.report(since or until - REPORTED_PERIOD, until)

    def reason_against_page(self) -> str | None:
        """Return why a report takes too long for a page; None if it does not."""
        newest = self.adapters.context.control.summary(self._spec.name).last_sequence
        if newest > REPORTED_PLANS:
            return f"{newest:,} plans, more than {REPORTED_PLANS:,}"
        most = REPORTED_RECORDS
        if self.typed and len(self.typed.quarantine.records(most=most + 1)) > most:
            return f"more than {most:,} records in quarantine"
        return None

    @property
    def _spec(self) -> PipelineSpec:
        return self.adapters.spec

    def _unfinished_work(self) -> UnfinishedWorkReader:
        from tidemark.ops.report.unfinished_work import UnfinishedWorkReader

        control, typed = self.adapters.context.control, self.typed
        if typed is None:
            return UnfinishedWorkReader(spec=self._spec, control=control)
        upsert = UpsertPart(typed) if self._spec.has_upsert else None
        return UnfinishedWorkReader(
            spec=self._spec,
            control=control,
            quarantined=lambda plans: typed.quarantine.count_open(plans),
            hidden=typed.hidden_offsets(),
            check_typed=typed.check_next,
            next_merge=lambda: upsert.planner.next() if upsert else None,
        )
