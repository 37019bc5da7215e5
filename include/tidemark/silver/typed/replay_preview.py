"""Previews of replays: which open records in quarantine the current spec would decode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from tidemark.core.offsets import Span, SpanSet, spans_by_partition
from tidemark.core.plain import plain
from tidemark.core.plan import Plan
from tidemark.silver.typed.quarantine_record import QuarantinedRecord
from tidemark.spec.decode import Part, QuarantineReason
from tidemark.spec.fields import FieldType


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
        records: Number of open records.
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

        They left the bronze table or its published view, or follow a schema conflict.
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


class ReplayPlanner(Protocol):
    """Drafts the plans of a replay."""

    def replay_drafts(
        self, topic_id: str, spans: Mapping[int, SpanSet]
    ) -> Iterator[tuple[Plan, Mapping[Part, FieldType]]]:
        """See `DecodePlanner.replay_drafts`."""
        ...


class DecodeCounter(Protocol):
    """Decodes records and counts the results."""

    def count(self, plan: Plan, columns: Mapping[Part, FieldType]) -> Counter[DecodeResult]:
        """See `SparkDecoder.count`."""
        ...


def chosen(
    records: Iterable[QuarantinedRecord], partition: int | None, reason: QuarantineReason | None
) -> list[QuarantinedRecord]:
    """Return the records of a partition and with a reason; None selects all."""
    return [
        each
        for each in records
        if partition in (None, each.partition) and reason in (None, each.reason)
    ]


def offsets_by_topic_id(
    records: Iterable[QuarantinedRecord],
) -> dict[str, Mapping[int, SpanSet]]:
    """Return the offsets of records by incarnation of the topic, of which each plan has one."""
    places: dict[str, list[tuple[int, Span]]] = {}
    for each in records:
        place = (each.partition, Span(each.offset, each.offset + 1))
        places.setdefault(each.topic_id, []).append(place)
    return {topic_id: spans_by_partition(found) for topic_id, found in sorted(places.items())}


def preview(
    records: Iterable[QuarantinedRecord], planner: ReplayPlanner, decoder: DecodeCounter
) -> ReplayPreview:
    """Decode open records with the current spec. Writes nothing."""
    offsets = offsets_by_topic_id(records)
    results: Counter[DecodeResult] = Counter()
    for topic_id, spans in offsets.items():
        for plan, columns in planner.replay_drafts(topic_id, spans):
            results += decoder.count(plan, columns)
    size = sum(each.size for spans in offsets.values() for each in spans.values())
    return ReplayPreview(records=size, results=results)
