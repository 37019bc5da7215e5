"""Reads a page of records: Kafka's, the bronze table's and the typed table's, side by side.

Reading changes nothing. Every part has limits, so that a page needs neither long nor much memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tidemark.core import plan_rules
from tidemark.core.errors import InvalidRange, InvalidSelection, TidemarkError
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.record import LogRecord
from tidemark.core.watermarks import TopicWatermarks, Watermarks
from tidemark.ingest.protocols import BronzeLog, ControlReader, TopicLogReader, WatermarkReader
from tidemark.report.absence import AbsenceRules, HeldRange, KafkaState
from tidemark.report.coverage_rows import held_ranges, readable_bounds, state_without_row
from tidemark.report.decoded_rows import DecodedRows, DecodedTables, ValueTable, open_rows
from tidemark.report.errors import FilesTooLarge
from tidemark.report.record_page import (
    BronzeRow,
    PagePart,
    RecordEntry,
    RecordPage,
)
from tidemark.spec.model import PipelineSpec

MAX_COUNT = 500
"""Offsets of a page."""
KAFKA_SECONDS = 2.0
KAFKA_BYTES = 2**20
"""Limits of a page's read from Kafka."""
MAX_FILE_BYTES = 64 * 2**20
"""Bytes that a page may read from each table."""
_MAX_OFFSET = 2**63 - 1
_ATTEMPTS = 3
"""Reads of the rows, if other processes change the pipeline meanwhile."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordReader:
    """Reads pages of one pipeline.

    Attributes:
        spec: The pipeline.
        open_watermarks: Returns the reader of watermarks.
        open_log: Returns the reader of Kafka's records.
        control: The control table.
        bronze: The bronze table.
        decoded: The typed table and its quarantine; None for a pipeline without a typed table.
    """

    spec: PipelineSpec
    open_watermarks: Callable[[], WatermarkReader]
    open_log: Callable[[], TopicLogReader]
    control: ControlReader
    bronze: BronzeLog
    decoded: DecodedTables | None = None

    def page(
        self, partition: int, start: int, count: int, topic_id: str | None = None
    ) -> RecordPage:
        """Return consecutive offsets of a partition. See `Pipeline.records`."""
        if topic_id is not None and not re.fullmatch(r"[\w-]+", topic_id):
            raise InvalidSelection(rule="a topic id of Kafka", seen=repr(topic_id))
        return _PageReader(self).page(partition, self._span(partition, start, count), topic_id)

    def _span(self, partition: int, start: int, count: int) -> Span:
        if not (0 <= start <= _MAX_OFFSET - count and 1 <= count <= MAX_COUNT):
            rule = f"an offset of 0 or more, and 1 to {MAX_COUNT} offsets"
            raise InvalidRange(
                topic=self.spec.topic,
                partition=partition,
                start=start,
                end=start + count,
                rule=rule,
            )
        return Span(start, start + count)


@dataclass(slots=True)
class _PageReader:
    """Reads one page, and collects the errors of its parts."""

    parts: RecordReader
    errors: dict[PagePart, TidemarkError] = field(default_factory=dict)

    def page(self, partition: int, span: Span, topic_id: str | None) -> RecordPage:
        spec = self.parts.spec
        ledger = self._attempt(PagePart.CONTROL, self._ledger)
        current = self._attempt(PagePart.KAFKA, self._watermarks)
        for known in (ledger, current):
            topic_id = topic_id or (known.topic_id if known else None)
        if topic_id is None:
            raise self.errors[PagePart.KAFKA]
        here = None
        if current is not None and current.topic_id == topic_id:
            plan_rules.check_partitions(current, [partition])
            here = current.partitions[partition]
        records, unread = self._kafka_records(here, partition, span)
        ledger, rows = self._ledger_and_rows(ledger, topic_id, partition, span)
        decoded = self._decoded(topic_id, partition, span)
        is_complete = rows is None or len(rows) == span.size
        rules = None if is_complete else self._rules(ledger, topic_id, partition, span)
        entries = []
        for offset in range(span.start, span.end):
            if here is not None:
                kafka = _kafka_state(offset, here, offset in records, unread)
            else:
                kafka = KafkaState.OTHER_TOPIC if current else KafkaState.UNKNOWN
            found = (rows or {}).get(offset, ())
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
            topic=spec.topic,
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

    def _watermarks(self) -> TopicWatermarks:
        spec = self.parts.spec
        return self.parts.open_watermarks().topic_watermarks(spec.topic, spec.isolation_level)

    def _kafka_records(
        self, here: Watermarks | None, partition: int, span: Span
    ) -> tuple[Mapping[int, LogRecord], int]:
        """Return Kafka's records by offset, and the first offset that was not read."""
        readable = here.readable(SpanSet((span,))) if here else SpanSet()
        if not readable:
            return {}, span.end
        (wanted,) = readable
        spec = self.parts.spec
        found = self._attempt(
            PagePart.KAFKA,
            lambda: self.parts.open_log().read_briefly(
                spec.topic,
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

    def _ledger_and_rows(
        self, ledger: Ledger | None, topic_id: str, partition: int, span: Span
    ) -> tuple[Ledger | None, Mapping[int, Sequence[BronzeRow]] | None]:
        """Return the ledger and the rows of one moment, as far as other processes allow it."""
        rows = None
        for _ in range(_ATTEMPTS):
            rows = self._rows(topic_id, partition, span)
            before, ledger = ledger, self._attempt(PagePart.CONTROL, self._ledger)
            if rows is None or not (before and ledger):
                break
            if before.event_number == ledger.event_number:
                break
        return ledger, rows

    def _ledger(self) -> Ledger:
        return self.parts.control.summary(self.parts.spec.name)

    def _rows(
        self, topic_id: str, partition: int, span: Span
    ) -> Mapping[int, Sequence[BronzeRow]] | None:
        table = self.parts.bronze

        def read() -> Mapping[int, Sequence[BronzeRow]]:
            _check_size(table, PagePart.BRONZE, topic_id, partition, span)
            rows: dict[int, list[BronzeRow]] = {}
            for plan, record in table.rows_of(topic_id, partition, span):
                rows.setdefault(record.offset, []).append(BronzeRow(plan=plan, record=record))
            return rows

        return self._attempt(PagePart.BRONZE, read)

    def _rules(
        self, ledger: Ledger | None, topic_id: str, partition: int, span: Span
    ) -> AbsenceRules | None:
        if ledger is None:
            return None
        control = self.parts.control
        # A summary has the losses of the current incarnation only.
        may_be_lost = ledger.accepted_losses or ledger.topic_id != topic_id
        losses = (
            self._attempt(PagePart.CONTROL, lambda: control.accepted_losses(ledger.pipeline))
            if may_be_lost
            else None
        )
        held = self._attempt(
            PagePart.CONTROL, lambda: self._held(ledger, topic_id, partition, span)
        )
        return AbsenceRules(
            ledger=ledger,
            topic_id=topic_id,
            partition=partition,
            losses=losses or (),
            held=held or (),
        )

    def _held(
        self, ledger: Ledger, topic_id: str, partition: int, span: Span
    ) -> Sequence[HeldRange]:
        bronze = self.parts.bronze
        held = held_ranges(self.parts.control, ledger, topic_id, partition, span)
        rows = None
        # Only ranges with proven gaps need the number of their rows.
        has_gaps = any(count.gaps and not count.unproven_gaps for _, count in held)
        bounds = readable_bounds(bronze, partition, span, held) if has_gaps else None
        if bounds is not None:
            rows = self._attempt(
                PagePart.BRONZE, lambda: bronze.spans_by_plan(topic_id, partition, bounds)
            )
        return [
            HeldRange(
                plan=plan,
                count=count,
                without_row=state_without_row(
                    count, (rows or {}).get(plan, SpanSet()), bounds or span
                ),
            )
            for plan, count in held
        ]

    def _decoded(self, topic_id: str, partition: int, span: Span) -> DecodedRows | None:
        tables = self.parts.decoded
        if tables is None:
            return None

        def values(part: PagePart, table: ValueTable) -> list[dict[str, Any]] | None:
            def read() -> list[dict[str, Any]]:
                _check_size(table, part, topic_id, partition, span)
                return table.values_at(topic_id, partition, span)

            return self._attempt(part, read)

        typed = values(PagePart.TYPED, tables.typed)
        quarantined = values(PagePart.QUARANTINE, tables.quarantine)
        ledger = self._attempt(
            PagePart.CONTROL, lambda: self.parts.control.summary(tables.pipeline)
        )
        if ledger is None:
            return None
        return DecodedRows(
            ledger=ledger,
            pending=ledger.pending.get(partition, SpanSet()),
            typed={row["offset"]: row for row in typed or ()},
            quarantined=open_rows(ledger, quarantined or ()),
            is_complete=typed is not None and quarantined is not None,
        )


def _check_size(
    table: ValueTable | BronzeLog, part: PagePart, topic_id: str, partition: int, span: Span
) -> None:
    """Raise `FilesTooLarge` if reading the offsets would read too much."""
    found = table.bytes_to_read(partition, span, MAX_FILE_BYTES)
    if found > MAX_FILE_BYTES:
        raise FilesTooLarge(
            table=str(part),
            topic_id=topic_id,
            partition=partition,
            start=span.start,
            end=span.end,
            megabytes=found // 2**20,
            limit=MAX_FILE_BYTES // 2**20,
        )


def _kafka_state(offset: int, here: Watermarks, has_record: bool, unread: int) -> KafkaState:
    if offset < here.low:
        return KafkaState.DELETED
    if offset >= here.end:
        return KafkaState.AFTER_END
    if has_record:
        return KafkaState.RECORD
    return KafkaState.NOT_READ if offset >= unread else KafkaState.NO_RECORD
