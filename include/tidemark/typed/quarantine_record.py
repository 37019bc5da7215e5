"""Records in quarantine, without their content."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidemark.spec.decode import Part, QuarantineReason


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedRecord:
    """One record in quarantine.

    Attributes:
        topic_id: Incarnation of the topic.
        partition: Partition number.
        offset: Offset.
        plan_sequence: Number of the typed plan that quarantined the record.
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
    plan_sequence: int
    reason: QuarantineReason
    part: Part | None
    detail: str | None
    schema_id: int | None
    value_bytes: int | None
    closed_by: int | None
    closed_at: datetime | None

    def as_record(self) -> dict[str, Any]:
        """Return the record as plain values, for `--json`, without its content."""
        return {
            "topic_id": self.topic_id,
            "partition": self.partition,
            "offset": self.offset,
            "plan": self.plan_sequence,
            "reason": str(self.reason),
            "part": str(self.part) if self.part else None,
            "detail": self.detail,
            "schema_id": self.schema_id,
            "value_bytes": self.value_bytes,
            "closed_by": self.closed_by,
            "closed_at": self.closed_at.isoformat() if self.closed_at else None,
        }
