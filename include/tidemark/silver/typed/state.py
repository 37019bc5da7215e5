"""The state of a typed table: what a decode has to do, and what it left in quarantine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tidemark.bronze.ingest.protocols import ControlReader
from tidemark.core.errors import TidemarkError
from tidemark.core.events import EventKind
from tidemark.core.following import BatchOffsets
from tidemark.core.offsets import SpanSet


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowState:
    """The differences of a typed table and its quarantine from the bronze table.

    Attributes:
        undecoded: Published offsets that are in neither table, by bronze plan.
        to_withdraw: Decoded offsets that left the bronze table or its published view.
        quarantine_behind: Whether the quarantine has to follow the typed table: a decode ended
            between its two commits, or the next decode compares.
    """

    undecoded: BatchOffsets = field(default_factory=dict)
    to_withdraw: BatchOffsets = field(default_factory=dict)
    quarantine_behind: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeProgress:
    """Which offsets of the bronze table the typed table and its quarantine should have.

    Attributes:
        landed: Landed offsets of the bronze table, by topic id and partition.
        decoded: Offsets that a decode has completed.
        plans: The same offsets by bronze plan.
        hidden: Landed offsets that the published view hides.
        stale: Offsets of typed rows that the next decode removes or decodes again, and all offsets
            of open replacements.
        by_spec: Numbers of plans that were decoded whole by the present spec.
        unknown_spec: Numbers of plans that may have been decoded by any spec. All others, which are
            in neither set, were decoded by another spec.
    """

    landed: Mapping[str, Mapping[int, SpanSet]]
    decoded: Mapping[str, Mapping[int, SpanSet]]
    plans: BatchOffsets
    hidden: Mapping[str, Mapping[int, SpanSet]]
    stale: Mapping[str, Mapping[int, SpanSet]]
    by_spec: SpanSet
    unknown_spec: SpanSet

    def plan_at(self, topic_id: str, partition: int, offset: int) -> int | None:
        """Return the number of the plan whose decoded offsets contain one; None without one."""
        for batch, spans in self.plans.items():
            if batch.topic_id == topic_id and offset in spans.get(partition, SpanSet()):
                return batch.sequence
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBacklog:
    """The work of the next decode: differences of the typed table from the bronze table.

    Attributes:
        missing: Offsets to decode.
        surplus: Decoded offsets to remove, because they left the bronze table, or a check or an
            operator refused them.
        unchecked: Landed offsets that wait for a check, or for an operator's decision.
        refused: Landed offsets of blocked and rejected plans.
        quarantine_behind: As in `FollowState`.
    """

    missing: int = 0
    surplus: int = 0
    unchecked: int = 0
    refused: int = 0
    quarantine_behind: bool = False

    @property
    def offsets(self) -> int:
        """Number of offsets to decode or to remove."""
        return self.missing + self.surplus


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedState:
    """The state of the typed table of one pipeline and of its quarantine.

    Attributes:
        backlog: How the typed table differs from the bronze table.
        undecoded_since: Time from which on missing offsets could have been decoded; None without
            any.
        rows: Number of rows of the typed table; None without one in the spec, or if it is unknown.
        quarantined: Number of records in quarantine; None without a typed table, or if the
            quarantine cannot be read.
        error: The error of the registry's connection, the bronze table, the typed table or its
            quarantine that would refuse the next decode; None without one.
    """

    backlog: DecodeBacklog = DecodeBacklog()
    undecoded_since: datetime | None = None
    rows: int | None = None
    quarantined: int | None = None
    error: TidemarkError | None = None


def decodable_since(
    control: ControlReader, pipeline: str, undecoded: BatchOffsets
) -> datetime | None:
    """Return the time from which on the oldest of some bronze plans could have been decoded.

    At this time, the plan had landed and was published.

    Args:
        control: The control table.
        pipeline: The bronze pipeline.
        undecoded: Published offsets by plan, at least one.
    """
    plan = min(batch.sequence for batch in undecoded)
    record = control.plan_record(pipeline, plan)
    decided_at = record.decision.decided_at if record and record.decision else None
    landed_at = control.recorded_at(pipeline, EventKind.LANDED).get(plan)
    return max((at for at in (landed_at, decided_at) if at is not None), default=None)
