"""Reports about a pipeline: status, coverage, records, and the report for the owner of the data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tidemark.app.adapters import Adapters
from tidemark.app.silver import TypedPart, UpsertPart
from tidemark.app.tables import BronzePart
from tidemark.silver.typed.state import TypedState

if TYPE_CHECKING:
    from tidemark.ops.report.coverage_rows import CoverageReader
    from tidemark.ops.report.owner_report import PipelineReport
    from tidemark.ops.report.records import RecordReader
    from tidemark.ops.report.status import PipelineStatus
    from tidemark.ops.report.unfinished_work import UnfinishedWorkReader

_REPORTED_PERIOD = timedelta(days=30)
"""Default period of a report."""
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

        return pipeline_status(
            self.adapters.spec, self.adapters.topic_ports(), self._unfinished_work()
        )

    @property
    def coverage(self) -> CoverageReader:
        """Reads the state of every offset of the topic."""
        from tidemark.ops.report.coverage_rows import MOST_SPANS, CoverageReader

        ports = self.adapters.topic_ports(reads_only=True)
        if self.typed is None:
            return CoverageReader(spec=self.adapters.spec, ports=ports)
        quarantine = self.typed.quarantine
        return CoverageReader(
            spec=self.adapters.spec,
            ports=ports,
            quarantined=lambda topic_id, within: quarantine.spans(topic_id, MOST_SPANS, within),
        )

    @property
    def records(self) -> RecordReader:
        """Reads pages of records of Kafka and of the tables, side by side.

        Raises:
            SpecError: The suite is invalid, so its masked columns are unknown.
        """
        from tidemark.ops.report.decoded_rows import DecodedTables
        from tidemark.ops.report.records import RecordReader
        from tidemark.quality.suite import masked_payloads

        timeout = self.adapters.kafka_timeout_s or _PAGE_TIMEOUT_S
        typed = self.typed
        return RecordReader(
            spec=self.adapters.spec,
            ports=replace(self.adapters, kafka_timeout_s=timeout).topic_ports(reads_only=True),
            decoded=None
            if typed is None
            else DecodedTables(
                typed=typed.tables.typed(),
                quarantine=typed.quarantine,
                flattens=typed.tables.decode.flattens,
            ),
            masked=masked_payloads(self.adapters.masked_columns()),
        )

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
            spec=self.adapters.spec,
            control=self.adapters.control,
            data_log=self.adapters.bronze(reads_only=True),
            history=self.adapters.check_results,
            publication=BronzePart(self.adapters.spec, self.adapters).publication,
            masked=self.adapters.masked_columns(),
            typed=self.typed,
            now=self.adapters.now,
        )
        until = until or self.adapters.now()
        return reports.report(since or until - _REPORTED_PERIOD, until)

    def _unfinished_work(self) -> UnfinishedWorkReader:
        from tidemark.ops.report.unfinished_work import UnfinishedWorkReader

        typed, spec = self.typed, self.adapters.spec
        return UnfinishedWorkReader(
            spec=spec,
            control=self.adapters.control,
            typed=typed.state if typed else TypedState,
            upserts=UpsertPart(typed).planner if typed and spec.has_upsert else None,
        )
