"""Records in quarantine. The bronze table has their keys, values and headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Self

from tidemark.core.following import Batch
from tidemark.core.offsets import Span, spans_by_partition
from tidemark.core.record import LogRecord
from tidemark.spec.decode import Part, QuarantineReason

if TYPE_CHECKING:
    from tidemark.delta.data_table import DeltaDataTable


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
    part: Part | None = None
    detail: str | None = None
    schema_id: int | None = None

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """Return the record of a row of the quarantine."""
        values = {name: each for name, each in row.items() if name != "plan_sequence"}
        reason, part = QuarantineReason(row["reason"]), row["part"]
        return cls(
            **{**values, "reason": reason, "part": Part(part) if part else None},
            plan=row["plan_sequence"],
        )

    def as_row(self) -> dict[str, Any]:
        """Return the row of the record in the quarantine."""
        values = asdict(self)
        return {"plan_sequence": values.pop("plan"), **values}

    @property
    def place(self) -> tuple[Batch, int, int]:
        """The record's batch, partition and offset."""
        return Batch(self.plan, self.topic_id), self.partition, self.offset


def with_bronze_rows(
    records: Iterable[QuarantinedRecord], bronze: DeltaDataTable
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
