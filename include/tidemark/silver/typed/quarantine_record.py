"""Records in quarantine, without their content."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidemark.core.plain import record_of
from tidemark.spec.decode import Part, QuarantineReason


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedRecord:
    """One record in quarantine.

    Attributes:
        topic_id: Incarnation of the topic.
        partition: Partition number.
        offset: Offset.
        plan: Number of the typed plan that quarantined the record.
        reason: Why the record is in quarantine.
        part: The part that could not be decoded; None for a broken rule.
        detail: The first wrong field, or the broken rule; None if unknown.
        schema_id: Schema id of `part`, or of the value for a broken rule; None without one.
        value_bytes: Length of the value in bytes; None for a tombstone.
        closed_by: The plan that processed the record again; None for an open record.
        closed_at: Time of the closing (UTC).
    """

    topic_id: str
    partition: int
    offset: int
    plan: int
    reason: QuarantineReason
    part: Part | None
    detail: str | None
    schema_id: int | None
    value_bytes: int | None
    closed_by: int | None
    closed_at: datetime | None

    def as_record(self) -> dict[str, Any]:
        """Return the record as plain values, for `--json`."""
        return record_of(self)
