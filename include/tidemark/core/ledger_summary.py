"""Totals of settled plans, so that a ledger need not read the events of each one.

A plan is settled if it was planned once and landed once, and no later event corrects it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tidemark.core.event_rows import Row
from tidemark.core.events import EventKind
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.origins import PlanOrigin, origin_of_row
from tidemark.core.plan import PlanKind
from tidemark.core.watermarks import Position, furthest_positions

SETTLED_PLAN_EVENTS = (
    EventKind.PLANNED,
    EventKind.SUPERSEDED,
    EventKind.ADOPTED,
    EventKind.LANDED,
    EventKind.PUBLICATION_DECIDED,
)
"""All kinds of events of a settled plan."""
CORRECTING_EVENTS = (EventKind.ABANDONED, EventKind.UNDO_STARTED, EventKind.UNDONE)
"""Events of a plan that is not settled, even if it landed later."""
_REQUESTS = (EventKind.PLANNED, EventKind.ADOPTED)

Place: TypeAlias = tuple[str, int]
"""Topic id and partition."""
ChainPlace: TypeAlias = tuple[str, int, PlanKind]
"""Topic id, partition and chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainHead:
    """The newest plan of a chain, and the newest version of the data table from that chain.

    Attributes:
        sequence: Plan number.
        table_version: Version of the data table.
    """

    sequence: int
    table_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledTotals:
    """Totals of settled plans. All plans that replaced rows of a settled plan are settled too.

    Attributes:
        landed: Landed offsets, including gaps, without those that later plans replaced.
        ends: Furthest end of a landed range, by chain and partition.
        chain_heads: Newest plan and table version, by epoch and kind of plan.
        requesters: Number of the newest plan of each origin, including runs that took the plan
            over.
        records: Number of landed records.
    """

    landed: Mapping[Place, SpanSet] = field(default_factory=dict)
    ends: Mapping[ChainPlace, Position] = field(default_factory=dict)
    chain_heads: Mapping[tuple[int, PlanKind], ChainHead] = field(default_factory=dict)
    requesters: Mapping[PlanOrigin, int] = field(default_factory=dict)
    records: int = 0


def split_settled(rows: Iterable[Row]) -> tuple[list[Row], SettledTotals]:
    """Return the rows of one pipeline that are not of settled plans, and the settled totals.

    Requested backfills are in neither: only their plans affect a ledger. The control table
    computes the same in SQL (`lake.ledger_summary`); a test compares both.
    """
    rows = list(rows)
    settled = _settled_sequences(rows)
    settled_rows: list[Row] = []
    others: list[Row] = []
    for row in rows:
        if row["event"] == EventKind.BACKFILL_REQUESTED:
            continue
        is_settled = row["event"] in SETTLED_PLAN_EVENTS and row["plan_sequence"] in settled
        (settled_rows if is_settled else others).append(row)
    landed = [row for row in settled_rows if row["event"] == EventKind.LANDED]
    held = _held(settled_rows)
    return others, SettledTotals(
        landed=_spans([row for row in held if row.get("partition") is not None]),
        ends=_ends(row for row in landed if row.get("partition") is not None),
        chain_heads=_newest(landed),
        requesters=_requesters(row for row in settled_rows if row["event"] in _REQUESTS),
        records=sum(row.get("records") or 0 for row in held),
    )


def _settled_sequences(rows: Sequence[Row]) -> set[int]:
    events_of: dict[int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    superseders: dict[int, set[int]] = defaultdict(set)
    for row in rows:
        if row.get("plan_sequence") is not None:
            events_of[row["plan_sequence"]][row["event"]].add(row["event_number"])
        if row["event"] == EventKind.SUPERSEDED:
            superseders[row["plan_sequence"]].add(row["superseded_by"])
    settled = {
        sequence
        for sequence, events in events_of.items()
        if len(events[EventKind.PLANNED]) == len(events[EventKind.LANDED]) == 1
        # fence: corrected-plan-is-read-in-full
        and not any(events[kind] for kind in CORRECTING_EVENTS)
    }
    return {
        sequence
        for sequence in settled
        if superseders[sequence] <= settled  # fence: doubtful-replacement-is-read-in-full
    }


def _held(settled_rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the current counts of settled plans.

    These are the rows of the newest `superseded` event, otherwise those of `landed`. Plans that
    replace rows land in the order of their numbers.
    """
    newest: dict[int, int] = {}
    for row in settled_rows:
        if row["event"] == EventKind.SUPERSEDED:
            sequence = row["plan_sequence"]
            newest[sequence] = max(row["superseded_by"], newest.get(sequence, 0))
    return [
        row
        for row in settled_rows
        if row["event"] in (EventKind.LANDED, EventKind.SUPERSEDED)
        and row.get("superseded_by") == newest.get(row["plan_sequence"])
    ]


def _spans(landed: Iterable[Row]) -> Mapping[Place, SpanSet]:
    spans: dict[Place, list[Span]] = defaultdict(list)
    for row in landed:
        spans[row["topic_id"], row["partition"]].append(
            Span(row["start_offset"], row["end_offset"])
        )
    return {place: SpanSet.of(some) for place, some in spans.items()}


def _ends(landed: Iterable[Row]) -> Mapping[ChainPlace, Position]:
    return furthest_positions(
        (
            (row["topic_id"], row["partition"], PlanKind(row["plan_kind"])),
            Position(offset=row["end_offset"], leader_epoch=row.get("leader_epoch")),
        )
        for row in landed
    )


def _newest(landed: Iterable[Row]) -> Mapping[tuple[int, PlanKind], ChainHead]:
    chains: dict[tuple[int, PlanKind], list[Row]] = defaultdict(list)
    for row in landed:
        chains[row["epoch"], PlanKind(row["plan_kind"])].append(row)
    return {
        chain: ChainHead(
            sequence=max(row["plan_sequence"] for row in rows),
            table_version=max(row["table_version"] for row in rows),
        )
        for chain, rows in chains.items()
    }


def _requesters(requests: Iterable[Row]) -> Mapping[PlanOrigin, int]:
    oldest_first = sorted(requests, key=lambda row: row["plan_sequence"])
    return {origin_of_row(row): row["plan_sequence"] for row in oldest_first}
