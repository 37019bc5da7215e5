"""Records in quarantine. The bronze table has their keys, values and headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from tidemark.core.offsets import Span, SpanSet, spans_by_partition
from tidemark.core.plain import record_of
from tidemark.core.record import LogRecord
from tidemark.spec.decode import Part, QuarantineReason


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedRecord:
    """One record in quarantine.

    Attributes:
        topic_id: Incarnation of the topic.
        partition: Partition number.
        offset: Offset.
        plan: Number of its bronze plan.
        reason: Why the record is in quarantine.
        part: The part that could not be decoded; None for a broken rule.
        detail: The first wrong field, or the broken rule; None if unknown.
        schema_id: Schema id of `part`, or of the value for a broken rule; None without one.
    """

    topic_id: str
    partition: int
    offset: int
    plan: int
    reason: QuarantineReason
    part: Part | None
    detail: str | None
    schema_id: int | None

    def as_record(self) -> dict[str, Any]:
        """Return the record as plain values, for `--json`."""
        return record_of(self)


class BronzeRows(Protocol):
    """Reads rows of a bronze table."""

    def rows_at(
        self, topic_id: str, spans: Mapping[int, SpanSet]
    ) -> Iterator[tuple[int, LogRecord]]:
        """Return plan and record of each row at some offsets, ordered by partition and offset."""
        ...


def with_bronze_rows(
    records: Iterable[QuarantinedRecord], bronze: BronzeRows
) -> Iterator[tuple[QuarantinedRecord, Sequence[tuple[int, LogRecord]]]]:
    """Yield each record with its bronze rows, as plan and content.

    A record has no row after an undo of its bronze plan, or if another program deleted the row.
    With duplicate rows, it has several.

    Args:
        records: The records, ordered by topic id.
        bronze: The bronze table.
    """
    for topic_id, group in groupby(records, lambda each: each.topic_id):
        here = list(group)
        spans = spans_by_partition(
            (each.partition, Span(each.offset, each.offset + 1)) for each in here
        )
        rows: dict[tuple[int, int], list[tuple[int, LogRecord]]] = {}
        for plan, content in bronze.rows_at(topic_id, spans):
            rows.setdefault((content.partition, content.offset), []).append((plan, content))
        for each in here:
            yield each, rows.get((each.partition, each.offset), ())
