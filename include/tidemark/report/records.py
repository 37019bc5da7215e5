"""Reads a page of records: Kafka's, the bronze table's and the typed table's, side by side.

Reading changes nothing. Every part has limits, so that a page needs neither long nor much memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from tidemark.core import plan_rules
from tidemark.core.errors import InvalidRange, InvalidSelection, TidemarkError
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.record import LogRecord
from tidemark.core.watermarks import IsolationLevel, TopicWatermarks, Watermarks
from tidemark.ingest.protocols import ControlReader, WatermarkReader
from tidemark.report.absence import AbsenceRules, KafkaState
from tidemark.report.errors import FilesTooLarge
from tidemark.report.record_page import (
    BronzeRow,
    Decoding,
    DecodingState,
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

_T = TypeVar("_T")


class BriefReader(Protocol):
    """Reads records of a topic within limits."""

    def read_briefly(
        self,
        topic: str,
        isolation_level: IsolationLevel,
        partition: int,
        span: Span,
        *,
        seconds: float,
        size: int,
    ) -> tuple[list[LogRecord], int]:
        """Return the visible records, and the first offset that was not read in time."""


class ValueTable(Protocol):
    """Reads rows at some offsets with all columns."""

    def bytes_to_read(self, topic_id: str, partition: int, span: Span, most: int) -> int:
        """Return the bytes of files, or of their parts, that may contain the offsets."""

    def values_at(self, topic_id: str, partition: int, span: Span) -> list[dict[str, Any]]:
        """Return the rows in offset order."""


class RowTable(Protocol):
    """Reads rows at some offsets as records."""

    def bytes_to_read(self, topic_id: str, partition: int, span: Span, most: int) -> int:
        """Return the bytes of files, or of their parts, that may contain the offsets."""

    def rows_of(self, topic_id: str, partition: int, span: Span) -> Iterator[tuple[int, LogRecord]]:
        """Return plan and record of each row in offset order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedTables:
    """The typed table of a pipeline and its quarantine.

    Attributes:
        pipeline: Name of the typed table in the control table.
        typed: The typed table.
        quarantine: The quarantine.
    """

    pipeline: str
    typed: ValueTable
    quarantine: ValueTable


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
    open_log: Callable[[], BriefReader]
    control: ControlReader
    bronze: RowTable
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
        spec, control = self.parts.spec, self.parts.control
        ledger = self._attempt(PagePart.CONTROL, lambda: control.summary(spec.name))
        current = self._attempt(PagePart.KAFKA, self._watermarks)
        topic_id = topic_id or (ledger and ledger.topic_id) or (current and current.topic_id)
        if topic_id is None:
            raise self.errors.get(PagePart.KAFKA) or self.errors[PagePart.CONTROL]
        here = None
        if current is not None and current.topic_id == topic_id:
            plan_rules.check_partitions(current, [partition])
            here = current.partitions[partition]
        records, unread = self._kafka_records(here, partition, span)
        rows = self._rows(topic_id, partition, span)
        decoded = self._decoded(topic_id, partition, span)
        rules = self._rules(ledger, topic_id, partition) if rows is not None else None
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

    def _rules(self, ledger: Ledger | None, topic_id: str, partition: int) -> AbsenceRules | None:
        if ledger is None:
            return None
        control = self.parts.control
        losses = (
            self._attempt(PagePart.CONTROL, lambda: control.accepted_losses(ledger.pipeline))
            # A summary has no losses of earlier incarnations.
            if ledger.accepted_losses or ledger.topic_id != topic_id
            else ()
        )
        return AbsenceRules(
            ledger=ledger, topic_id=topic_id, partition=partition, losses=losses or ()
        )

    def _decoded(self, topic_id: str, partition: int, span: Span) -> _DecodedRows | None:
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
        return _DecodedRows(
            ledger=ledger,
            pending=ledger.pending.get(partition, SpanSet()),
            typed={row["offset"]: row for row in typed or ()},
            quarantined=_open_rows(ledger, quarantined or ()),
            is_complete=typed is not None and quarantined is not None,
        )


def _check_size(
    table: ValueTable | RowTable, part: PagePart, topic_id: str, partition: int, span: Span
) -> None:
    """Raise `FilesTooLarge` if reading the offsets would read too much."""
    found = table.bytes_to_read(topic_id, partition, span, MAX_FILE_BYTES)
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


# -- typed tables ----------------------------------------------------------------------------------

_METADATA = frozenset(
    {
        *("headers", "topic", "topic_id", "partition", "offset"),
        *("timestamp", "timestamp_type", "timestamp_out_of_range_ms"),
        *("plan_sequence", "ingested_at"),
    }
)
"""Columns of a typed table that are not decoded values."""


def _open_rows(
    ledger: Ledger, rows: Iterable[Mapping[str, Any]]
) -> Mapping[int, Mapping[str, Any]]:
    """Return the quarantined rows of landed plans that no landed plan has closed, by offset."""
    return {
        row["offset"]: row
        for row in rows
        if _has_landed(ledger, row["plan_sequence"]) and not _has_landed(ledger, row["closed_by"])
    }


def _has_landed(ledger: Ledger, sequence: int | None) -> bool:
    # A summary contains only the plans that are not settled.
    record = ledger.plans.get(sequence or 0)
    return sequence is not None and (record is None or record.held_now is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecodedRows:
    """Rows of a typed table and its quarantine by offset."""

    ledger: Ledger
    pending: SpanSet
    typed: Mapping[int, Mapping[str, Any]]
    quarantined: Mapping[int, Mapping[str, Any]]
    is_complete: bool

    def at(self, offset: int, *, has_row: bool) -> Decoding | None:
        if (row := self.typed.get(offset)) is not None:
            values = {name: each for name, each in row.items() if name not in _METADATA}
            return Decoding(state=DecodingState.DECODED, plan=row["plan_sequence"], values=values)
        if (row := self.quarantined.get(offset)) is not None:
            parts = (row["reason"], row["part"], row["detail"])
            return Decoding(
                state=DecodingState.QUARANTINED,
                plan=row["plan_sequence"],
                reason=", ".join(part for part in parts if part),
            )
        if not (has_row and self.is_complete):
            return None
        if self.pending.overlap_size(Span(offset, offset + 1)):
            return Decoding(state=DecodingState.PLANNED)
        return Decoding(state=DecodingState.NOT_DECODED)
