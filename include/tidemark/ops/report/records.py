"""Reads a page of records: Kafka's, the bronze table's and the typed table's, side by side.

Reading changes nothing. Every part has limits, so that a page needs neither long nor much memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

from tidemark.bronze.ingest.ledgers import check_current, read_checked_ledger
from tidemark.bronze.ingest.ports import Ports
from tidemark.bronze.ingest.protocols import BronzeLog
from tidemark.core import plan_rules
from tidemark.core.accounting import RangeCount
from tidemark.core.errors import InvalidReference, InvalidSelection, TidemarkError
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet, spans_by_partition
from tidemark.core.record import LogRecord
from tidemark.core.watermarks import IsolationLevel, TopicWatermarks, Watermarks
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.delta.opened_tables import tables_opened_once
from tidemark.ops.report.absence import AbsenceRules, HeldRange, KafkaState
from tidemark.ops.report.coverage_rows import held_ranges, rows_of_range, state_without_row
from tidemark.ops.report.decoded_rows import DecodedRows, DecodedTables
from tidemark.ops.report.errors import PageTooLarge
from tidemark.ops.report.record_page import (
    BronzeRow,
    PagePart,
    RecordEntry,
    RecordPage,
)
from tidemark.silver.typed.quarantine_record import QuarantinedRecord
from tidemark.spec.model import PipelineSpec

MAX_COUNT = 500
"""Offsets of a page."""
KAFKA_SECONDS = 2.0
KAFKA_BYTES = 2**20
"""Limits of a page's read from Kafka."""
MAX_FILE_BYTES = 64 * 2**20
"""Bytes that a page may read from each table."""
_MAX_OFFSET = 2**63 - 1

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordReader:
    """Reads pages of one pipeline.

    Attributes:
        spec: The pipeline.
        ports: The ports of the bronze table.
        decoded: The typed table and its quarantine; None for a pipeline without a typed table.
        masked: Those of `key`, `value` and `headers` that reports hide.
    """

    spec: PipelineSpec
    ports: Ports
    decoded: DecodedTables | None = None
    masked: frozenset[str] = frozenset()

    @tables_opened_once()
    def page(
        self, partition: int, start: int, count: int = 50, topic_id: str | None = None
    ) -> RecordPage:
        """Return offsets of a partition: Kafka's records, rows, and why a row is absent.

        An error of Kafka or of a table affects only its own part of the page.

        Args:
            partition: Partition number.
            start: First offset.
            count: Number of offsets, at most `MAX_COUNT`.
            topic_id: Incarnation of the topic; None for the one that the pipeline reads.

        Raises:
            InvalidReference: The topic id is invalid.
            InvalidSelection: The offset or the count is out of bounds, or the topic has no such
                partition.
            KafkaFailure: Kafka failed, and the pipeline has no plan yet.
        """
        if topic_id is not None and not re.fullmatch(r"[\w-]+", topic_id):
            raise InvalidReference.of_name(rule="a topic id of Kafka", seen=repr(topic_id))
        span = self._span(partition, start, count)
        return replace(_PageReader(self).page(partition, span, topic_id), masked=self.masked)

    def _span(self, partition: int, start: int, count: int) -> Span:
        if not (0 <= start <= _MAX_OFFSET - count and 1 <= count <= MAX_COUNT):
            rule = f"an offset of 0 or more, and 1 to {MAX_COUNT} offsets"
            raise InvalidSelection.of_range(
                pipeline=self.spec.name,
                topic=self.spec.topic,
                partition=partition,
                start=start,
                end=start + count,
                rule=rule,
            )
        return Span(start, start + count)


def offset_at(
    spec: PipelineSpec,
    ports: Ports,
    partition: int,
    moment: datetime,
    topic_id: str | None,
) -> int:
    """Return the first offset with a timestamp at or after a moment, or the log end offset.

    Args:
        spec: The pipeline.
        ports: The ports of its table.
        partition: Partition number.
        moment: The time.
        topic_id: Incarnation of the topic; None for the one that the pipeline reads.

    Raises:
        TopicChanged, TopicRecreated, InvalidSelection: Kafka's topic differs from the requested
            one, so its offsets mean other records; or the topic has no such partition.
    """
    current, ledger = ports.watermarks_of(spec), ports.control.summary(spec.name)
    if topic_id in (None, ledger.topic_id):
        plan_rules.check_identity(ledger, current)
    else:
        plan_rules.check_incarnation(spec.name, topic_id, current)
    plan_rules.check_partitions(current, [partition])
    return ports.watermarks.offsets_at(spec.topic, [partition], moment)[partition]


@dataclass(slots=True)
class _PageReader:
    """Reads one page, and collects the errors of its parts."""

    parts: RecordReader
    errors: dict[PagePart, TidemarkError] = field(default_factory=dict)

    def page(self, partition: int, span: Span, topic_id: str | None) -> RecordPage:
        spec = self.parts.spec
        control = self.parts.ports.control
        ledger = self._attempt(PagePart.CONTROL, lambda: control.summary(spec.name))
        topic_id = topic_id or (ledger.topic_id if ledger else None)
        topic = self._topic(ledger, topic_id)
        current = self._current(ledger, topic, topic_id)
        topic_id = topic_id or (current.topic_id if current else None)
        if topic_id is None:
            raise self.errors[PagePart.KAFKA]
        here = None
        if current is not None and current.topic_id == topic_id:
            plan_rules.check_partitions(current, [partition])
            here = current.partitions[partition]
        records, unread = self._kafka_records(topic, here, partition, span)
        ledger, rows = self._with_ledger(spec.name, lambda: self._rows(topic_id, partition, span))
        if ledger is not None:
            self._check_history()
        decoded = self._decoded(topic_id, partition, span)
        is_complete = rows is None or len(rows) == span.size
        rules = None if is_complete else self._rules(ledger, topic_id, partition, span, rows)
        entries = []
        for offset in range(span.start, span.end):
            if here is not None:
                kafka = _kafka_state(offset, here, offset in records, unread)
            else:
                kafka = KafkaState.OTHER_TOPIC if current else KafkaState.UNKNOWN
            found = [
                replace(row, is_recorded=_holds_rows(ledger, row.plan) if ledger else None)
                for row in (rows or {}).get(offset, ())
            ]
            entries.append(
                RecordEntry(
                    offset=offset,
                    kafka=kafka,
                    record=records.get(offset),
                    rows=tuple(found),
                    absence=rules.reason(offset, kafka) if rules and not found else None,
                    decoding=decoded.at(offset, has_row=bool(found)) if decoded else None,
                )
            )
        return RecordPage(
            pipeline=spec.name,
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            watermarks=here,
            entries=tuple(entries),
            errors=self.errors,
        )

    def _attempt(self, part: PagePart, read: Callable[[], _T]) -> _T | None:
        """Return what a part returns; None, with the error kept, if it fails."""
        try:
            return read()
        except TidemarkError as failed:
            self.errors.setdefault(part, failed)
            return None

    def _topic(self, ledger: Ledger | None, topic_id: str | None) -> str:
        """Return the name of the topic: of the landed one, even if the spec names another."""
        if ledger and ledger.topic and ledger.topic_id == topic_id:
            return ledger.topic
        return self.parts.spec.topic

    def _current(
        self, ledger: Ledger | None, topic: str, topic_id: str | None
    ) -> TopicWatermarks | None:
        """Return Kafka's watermarks; None without Kafka, or from another cluster.

        A topic that differs from the one that the pipeline reads is an error beside the page.
        """
        spec = self.parts.spec
        found = self._attempt(
            PagePart.KAFKA,
            lambda: self.parts.ports.watermarks.topic_watermarks(topic, spec.isolation_level),
        )
        if ledger is None or found is None:
            return found
        named = replace(found, topic=spec.topic)
        self._attempt(PagePart.KAFKA, lambda: plan_rules.check_identity(ledger, named))
        is_landed = topic_id is not None and topic_id == ledger.topic_id
        return None if is_landed and ledger.cluster_id != found.cluster_id else found

    def _kafka_records(
        self, topic: str, here: Watermarks | None, partition: int, span: Span
    ) -> tuple[Mapping[int, LogRecord], int]:
        """Return Kafka's records by offset, and the first offset that was not read."""
        readable = here.readable(SpanSet((span,))) if here else SpanSet()
        if not readable:
            return {}, span.end
        (wanted,) = readable
        spec = self.parts.spec
        found = self._attempt(
            PagePart.KAFKA,
            lambda: self.parts.ports.log_reader.read_briefly(
                topic,
                spec.isolation_level,
                partition,
                wanted,
                seconds=KAFKA_SECONDS,
                size=KAFKA_BYTES,
            ),
        )
        if found is None:
            return {}, wanted.start
        records, unread = found
        return {record.offset: record for record in records}, unread

    def _with_ledger(self, pipeline: str, read: Callable[[], _T]) -> tuple[Ledger | None, _T]:
        """Return the ledger of a pipeline, and the result of `read` in the same state.

        The ledger is None if it cannot be read, or if other processes changed the pipeline during
        each of several attempts. The page then has the error.
        """
        control, found = self.parts.ports.control, list[_T]()

        def attempt() -> Ledger:
            ledger = control.summary(pipeline)
            found[:] = [read()]
            check_current(control, ledger)
            return ledger

        ledger = self._attempt(PagePart.CONTROL, lambda: retry_on_conflict(attempt))
        return ledger, found[0] if found else read()

    def _rows(
        self, topic_id: str, partition: int, span: Span
    ) -> Mapping[int, Sequence[BronzeRow]] | None:
        table = self.parts.ports.table

        def read() -> Mapping[int, Sequence[BronzeRow]]:
            _check_size(table, PagePart.BRONZE, topic_id, partition, span)
            rows: dict[int, list[BronzeRow]] = {}
            for plan, record in table.rows_of(topic_id, partition, span):
                rows.setdefault(record.offset, []).append(BronzeRow(plan=plan, record=record))
            return rows

        return self._attempt(PagePart.BRONZE, read)

    def _check_history(self) -> None:
        """Compare the histories of the control table and the bronze table."""
        ports, name = self.parts.ports, self.parts.spec.name
        self._attempt(
            PagePart.BRONZE, lambda: read_checked_ledger(ports.control, name, ports.table)
        )

    def _rules(
        self,
        ledger: Ledger | None,
        topic_id: str,
        partition: int,
        span: Span,
        rows: Mapping[int, Sequence[BronzeRow]] | None,
    ) -> AbsenceRules | None:
        if ledger is None:
            return None
        control = self.parts.ports.control
        # A summary has the losses of the current incarnation only.
        may_be_lost = ledger.accepted_losses or ledger.topic_id != topic_id
        losses = (
            self._attempt(PagePart.CONTROL, lambda: control.accepted_losses(ledger.pipeline))
            if may_be_lost
            else None
        )
        held = self._attempt(
            PagePart.CONTROL, lambda: held_ranges(control, ledger, topic_id, partition, span)
        )
        by_plan = spans_by_partition(
            (row.plan, Span(offset, offset + 1))
            for offset, some in (rows or {}).items()
            for row in some
        )
        return AbsenceRules(
            ledger=ledger,
            topic_id=topic_id,
            partition=partition,
            landed=ledger.landed_of(topic_id).get(partition, SpanSet()),
            plans=[
                (record, planned)
                for record in ledger.plans.values()
                if record.plan.topic_id == topic_id
                if (planned := record.plan.spans().get(partition))
            ],
            losses=losses or (),
            held=[
                self._held_range(topic_id, span, plan, count, by_plan) for plan, count in held or ()
            ],
        )

    def _held_range(
        self,
        topic_id: str,
        span: Span,
        plan: int,
        count: RangeCount,
        by_plan: Mapping[int, SpanSet],
    ) -> HeldRange:
        spec, control, table = self.parts.spec, self.parts.ports.control, self.parts.ports.table
        rows = self._attempt(
            PagePart.BRONZE,
            lambda: rows_of_range(table, topic_id, plan, count, span, by_plan),
        )
        record = None
        if spec.isolation_level is IsolationLevel.READ_UNCOMMITTED:
            record = self._attempt(PagePart.CONTROL, lambda: control.plan_record(spec.name, plan))
        return HeldRange(
            plan=plan,
            count=count,
            without_row=state_without_row(count, rows),
            hid_aborted=bool(
                record and record.plan.isolation_level is not IsolationLevel.READ_UNCOMMITTED
            ),
        )

    def _decoded(self, topic_id: str, partition: int, span: Span) -> DecodedRows | None:
        tables = self.parts.decoded
        if tables is None or PagePart.CONTROL in self.errors:
            return None

        def typed_rows() -> list[dict[str, Any]]:
            _check_size(tables.typed, PagePart.TYPED, topic_id, partition, span)
            return tables.typed.values_at(topic_id, partition, span)

        def quarantined_records() -> Sequence[QuarantinedRecord]:
            return tables.quarantine.records_at(topic_id, partition, span)

        # In this order, a record of a concurrent replay is in at least one of them.
        quarantined = self._attempt(PagePart.QUARANTINE, quarantined_records)
        typed = self._attempt(PagePart.TYPED, typed_rows)
        return DecodedRows(
            typed={row["offset"]: row for row in typed or ()},
            quarantined={each.offset: each for each in quarantined or ()},
            is_complete=typed is not None and quarantined is not None,
            flattens=tables.flattens,
        )


def _check_size(
    table: BronzeLog, part: PagePart, topic_id: str, partition: int, span: Span
) -> None:
    """Raise `PageTooLarge` if reading the offsets would read too much."""
    found = table.bytes_to_read(partition, span, MAX_FILE_BYTES)
    if found > MAX_FILE_BYTES:
        raise PageTooLarge.of_records(
            table=str(part),
            topic_id=topic_id,
            partition=partition,
            start=span.start,
            end=span.end,
            megabytes=found // 2**20,
            limit=MAX_FILE_BYTES // 2**20,
        )


def _holds_rows(ledger: Ledger, sequence: int | None) -> bool:
    """Return whether the ledger, which is a summary, records that a plan holds rows."""
    # A summary contains only the plans that are not settled.
    record = ledger.plans.get(sequence or 0)
    return sequence is not None and (record is None or record.held_now is not None)


def _kafka_state(offset: int, here: Watermarks, has_record: bool, unread: int) -> KafkaState:
    if offset < here.low:
        return KafkaState.DELETED
    if offset >= here.end:
        return KafkaState.AFTER_END
    if has_record:
        return KafkaState.RECORD
    return KafkaState.NOT_READ if offset >= unread else KafkaState.NO_RECORD
