"""The work of a decode: values for the service and the decoder, and the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidemark.core.following import BatchOffsets
from tidemark.core.offsets import Span, SpanSet

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
        resolved: The offsets of the records with these schemas; None without schema ids.
        earlier_spec: The spec of the newest bookmark when the work was found; None if unknown.
    """

    plans: SpanSet = field(default_factory=SpanSet)
    replayed: BatchOffsets = field(default_factory=dict)
    schemas: Mapping[str, Sequence[int]] = field(default_factory=dict)
    oversized: Mapping[str, Sequence[int]] = field(default_factory=dict)
    resolved: BatchOffsets | None = None
    earlier_spec: str | None = None


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
        quarantined: Number of these records that are in quarantine already, also as records that
            they replace. They do not count for its limit.
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
        records: Number of records at these offsets, decoded or quarantined.
        quarantined: Number of records among them that could not be decoded.
        removed: Number of offsets whose rows were removed.
        rounds: Number of rounds.
        table_version: The version of the typed table that the last commit created; None without a
            commit to it.
    """

    plans: SpanSet = field(default_factory=SpanSet)
    offsets: int = 0
    records: int = 0
    quarantined: int = 0
    removed: int = 0
    rounds: int = 0
    table_version: int | None = None

    def __add__(self, other: Decoded) -> Decoded:
        """Return the changes of both; the other ones came later."""
        later = other.table_version
        return Decoded(
            plans=self.plans.union(other.plans),
            offsets=self.offsets + other.offsets,
            records=self.records + other.records,
            quarantined=self.quarantined + other.quarantined,
            removed=self.removed + other.removed,
            rounds=self.rounds + other.rounds,
            table_version=self.table_version if later is None else later,
        )

    def as_record(self) -> dict[str, Any]:
        """Return the changes as plain values, for `--json`."""
        return {
            "plans": self.plans.numbers(),
            "records": self.records,
            "quarantined": self.quarantined,
            "removed": self.removed,
            "table_version": self.table_version,
        }
