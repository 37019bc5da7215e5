"""Previews of replays: which records in quarantine the current spec would decode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from tidemark.core.following import Batch, BatchOffsets
from tidemark.core.offsets import Span, spans_by_partition
from tidemark.core.plain import plain
from tidemark.silver.typed.quarantine_record import QuarantinedRecord
from tidemark.spec.decode import Part, QuarantineReason


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeResult:
    """Whether a record is decoded, or why not.

    Attributes:
        reason: Why the record would be quarantined; None if it is decoded.
        part: The part that cannot be decoded; None for a broken rule.
        detail: The first wrong field, or the broken rule; None if unknown.
    """

    reason: QuarantineReason | None
    part: Part | None
    detail: str | None

    @classmethod
    def of(cls, reason: str | None, part: str | None, detail: str | None) -> Self:
        """Return the result of texts."""
        return cls(
            reason=QuarantineReason(reason) if reason else None,
            part=Part(part) if reason and part else None,
            detail=detail if reason else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPreview:
    """The result of a replay with the current spec.

    Attributes:
        records: Number of records in quarantine.
        results: The number of records with each result.
    """

    records: int
    results: Counter[DecodeResult]

    @property
    def decoded(self) -> int:
        """Number of records that would go to the typed table."""
        return sum(count for each, count in self.results.items() if each.reason is None)

    @property
    def skipped(self) -> int:
        """Number of records that a replay would leave unchanged.

        They left the bronze table or its published view, or their plan waits.
        """
        return self.records - self.results.total()

    def as_record(self) -> dict[str, Any]:
        """Return the preview as plain values, for `--json`."""
        failed = [
            {
                "reason": plain(each.reason),
                "part": plain(each.part),
                "detail": each.detail,
                "records": count,
            }
            for each, count in self.results.most_common()
            if each.reason is not None
        ]
        return {
            "outcome": "draft",
            "offsets": self.records,
            "decoded": self.decoded,
            "quarantined": sum(each["records"] for each in failed),
            "skipped": self.skipped,
            "reasons": failed,
        }


def chosen(
    records: Iterable[QuarantinedRecord], partition: int | None, reason: QuarantineReason | None
) -> list[QuarantinedRecord]:
    """Return the records of a partition and with a reason; None selects all."""
    return [
        each
        for each in records
        if partition in (None, each.partition) and reason in (None, each.reason)
    ]


def offsets_of(records: Iterable[QuarantinedRecord]) -> BatchOffsets:
    """Return the offsets of records by bronze plan."""
    places: dict[Batch, list[tuple[int, Span]]] = {}
    for each in records:
        place = (each.partition, Span(each.offset, each.offset + 1))
        places.setdefault(Batch(each.plan, each.topic_id), []).append(place)
    return {batch: spans_by_partition(found) for batch, found in sorted(places.items())}
