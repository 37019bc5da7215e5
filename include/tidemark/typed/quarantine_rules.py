"""Records that could not be decoded, as they are kept."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidemark.spec.decode import Part, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """One record in quarantine.

    Attributes:
        topic_id: Incarnation of the topic.
        partition: Partition number.
        offset: Offset.
        plan_sequence: The typed pipeline's plan that has put it there.
        reason: Why.
        part: What could not be decoded; None for a broken rule.
        detail: The field, or the rule; None where nobody knows.
        schema_id: The schema that its `part` says it is written with, or its value, of one that
            breaks a rule; None where it says none.
        value_bytes: Length of its value; None for a tombstone.
        closed_by: The plan that has decoded it, or tried to, since; None for one that is open.
        closed_at: When.
    """

    topic_id: str
    partition: int
    offset: int
    plan_sequence: int
    reason: Reason
    part: Part | None
    detail: str | None
    schema_id: int | None
    value_bytes: int | None
    closed_by: int | None
    closed_at: datetime | None

    def as_record(self) -> dict[str, Any]:
        """The record as plain values, for `--json`; never its content."""
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
