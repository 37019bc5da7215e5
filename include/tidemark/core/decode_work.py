"""The work of a decode: values for the driver, the job and the decoder, and the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from tidemark.core.following import Batch, BatchOffsets
from tidemark.core.offsets import Span, SpanSet, span_lists, spans_by_partition

EVERY_PLAN = SpanSet.of([Span(0, 2**63 - 1)])
"""The numbers of all plans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeWork:
    """The plans that a decode may decode, and the schemas of their records.

    Attributes:
        plans: Numbers of bronze plans. Without schema ids, these can be `EVERY_PLAN`. Empty if the
            decode only removes rows or moves bookmarks, which needs no decoder.
        replayed: Offsets to decode again.
        schemas: Ids of the records' schemas, ascending, by part.
        oversized: Ids of schemas that exceed a limit, by part. All other ids are unknown.
    """

    plans: SpanSet = field(default_factory=SpanSet)
    replayed: BatchOffsets = field(default_factory=dict)
    schemas: Mapping[str, Sequence[int]] = field(default_factory=dict)
    oversized: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def as_record(self) -> dict[str, Any]:
        """Return plain values, for the argument of a job."""
        return {
            "plans": [[run.start, run.end] for run in self.plans],
            "replayed": [[*batch, span_lists(spans)] for batch, spans in self.replayed.items()],
            "schemas": {part: list(ids) for part, ids in self.schemas.items()},
            "oversized": {part: list(ids) for part, ids in self.oversized.items()},
        }

    @classmethod
    def parsed(cls, record: Mapping[str, Any]) -> Self:
        """Return the work with these values of `as_record`."""
        return cls(
            plans=SpanSet.of(Span(*run) for run in record["plans"]),
            replayed={
                Batch(*batch): spans_by_partition((p, Span(*span)) for p, *span in spans)
                for *batch, spans in record["replayed"]
            },
            schemas=record["schemas"],
            oversized=record["oversized"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRequest:
    """Records of a bronze table to decode.

    Attributes:
        pipeline: The pipeline of the typed table.
        version: Version of the bronze table.
        offsets: The offsets, by batch and partition; at least one, and each in one batch. Rows with
            another plan number, such as those of an unrecorded replacement, are not decoded.
        schemas: As in `DecodeWork`.
        oversized: As in `DecodeWork`.
        quarantined: Number of these records that are in quarantine already, and do not count for
            its limit.
    """

    pipeline: str
    version: int
    offsets: BatchOffsets
    schemas: Mapping[str, Sequence[int]]
    oversized: Mapping[str, Sequence[int]]
    quarantined: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The changes that a decode has made.

    Attributes:
        plans: Numbers of the bronze plans that were decoded.
        offsets: Number of offsets that were decoded for the first time or again.
        records: Number of decoded records.
        quarantined: Number of records that could not be decoded.
        removed: Number of offsets whose rows were removed.
        rounds: Number of rounds.
    """

    plans: SpanSet = field(default_factory=SpanSet)
    offsets: int = 0
    records: int = 0
    quarantined: int = 0
    removed: int = 0
    rounds: int = 0

    def __add__(self, other: Decoded) -> Decoded:
        """Return the changes of both."""
        return Decoded(
            plans=self.plans.union(other.plans),
            offsets=self.offsets + other.offsets,
            records=self.records + other.records,
            quarantined=self.quarantined + other.quarantined,
            removed=self.removed + other.removed,
            rounds=self.rounds + other.rounds,
        )
