"""The state of a typed table: what a decode has to do, and what it left in quarantine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

from tidemark.bronze.ingest.ledgers import OpenPlan
from tidemark.bronze.ingest.protocols import ControlReader
from tidemark.core.errors import TidemarkError
from tidemark.core.events import EventKind
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBacklog:
    """Numbers of offsets at which the typed table differs from the bronze table.

    Attributes:
        missing: Offsets to decode, including those of open plans.
        open: Offsets in open plans.
        stale: Decoded offsets to decode again, because they have landed again since; None if
            unknown, because only the full ledgers show them.
        surplus: Decoded offsets to remove, because they left the bronze table, or a check or an
            operator refused them. If stale offsets are unknown, this number omits unchecked stale
            offsets.
        unchecked: Landed offsets that wait for a check, or for an operator's decision.
        refused: Landed offsets of blocked and rejected plans.
    """

    missing: int = 0
    open: int = 0
    stale: int | None = None
    surplus: int = 0
    unchecked: int = 0
    refused: int = 0

    @property
    def to_decode(self) -> int:
        """Number of offsets to decode, or to decode again."""
        return self.missing + (self.stale or 0)

    @property
    def offsets(self) -> int:
        """Number of offsets to decode, to decode again, or to remove."""
        return self.to_decode + self.surplus

    def as_record(self) -> dict[str, int | None]:
        """Return the numbers as plain values, for `--json`."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedState:
    """The state of the typed table of one pipeline and of its quarantine.

    Attributes:
        backlog: How the typed table differs from the bronze table. Its stale offsets are unknown.
        undecoded_since: Time from which on missing offsets could have been decoded; None without
            any, or while a plan of the typed table is open.
        open_plans: Open plans of the typed table.
        quarantined: Number of open records in the quarantine; None without a typed table, or if the
            quarantine cannot be read.
        error: The error of the registry's connection, the typed table or its quarantine that would
            refuse the next decode; None without one.
    """

    backlog: DecodeBacklog = DecodeBacklog()
    undecoded_since: datetime | None = None
    open_plans: tuple[OpenPlan, ...] = ()
    quarantined: int | None = None
    error: TidemarkError | None = None


def decodable_since(
    control: ControlReader, ledger: Ledger, missing: Mapping[str, Mapping[int, SpanSet]]
) -> datetime | None:
    """Return the time from which on offsets of a bronze table could have been decoded.

    At this time, the plan that holds the first of them had landed and was published. The partition
    with most of the offsets stands for the others, so that a status needs few reads.

    Args:
        control: The control table.
        ledger: The ledger of the pipeline; a summary suffices.
        missing: Landed offsets of the table by topic id and partition, at least one.
    """
    topic_id, partition, spans = max(
        ((topic_id, *each) for topic_id, spans in missing.items() for each in spans.items()),
        key=lambda each: each[2].size,
    )
    first = spans.spans[0].start
    window = Span(first, first + 1)
    # At most one settled plan holds the offset now.
    plans = {*control.settled_counts(ledger.pipeline, topic_id, partition, window)}
    for number, record in ledger.plans.items():
        held = record.held_now.spans() if record.held_now else {}
        if record.plan.topic_id == topic_id and held.get(partition, SpanSet()).overlap_size(window):
            plans.add(number)
    landed_at = control.recorded_at(ledger.pipeline, EventKind.LANDED)
    decided_at = (_decided_at(control, ledger.pipeline, plan) for plan in plans)
    return max(
        (at for at in (*map(landed_at.get, plans), *decided_at) if at is not None), default=None
    )


def _decided_at(control: ControlReader, pipeline: str, plan: int) -> datetime | None:
    """Return the time of the effective decision about a plan; None without one."""
    record = control.plan_record(pipeline, plan)
    return record.decision.decided_at if record and record.decision else None
