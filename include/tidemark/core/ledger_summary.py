"""Plans that are over, added up: what a ledger needs of them without reading each one again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tidemark.core.event_rows import Row
from tidemark.core.events import EventKind
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import PlanKind
from tidemark.core.watermarks import Position, furthest_positions

SETTLED_PLAN_EVENTS = (
    EventKind.PLANNED,
    EventKind.SUPERSEDED,
    EventKind.ADOPTED,
    EventKind.LANDED,
)
"""All that is ever said of a plan that went well."""
CORRECTING_EVENTS = (EventKind.ABANDONED, EventKind.UNDO_STARTED, EventKind.UNDONE)
"""What keeps a plan from being settled, also if it landed later."""
_ASKED = (EventKind.PLANNED, EventKind.ADOPTED)

Place: TypeAlias = tuple[str, int]
"""Topic id and partition."""
ChainPlace: TypeAlias = tuple[str, int, PlanKind]
"""Topic id, partition, and which chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainHead:
    """The newest settled plan of a chain, and the newest version of the data table that one made.

    Attributes:
        sequence: Plan number.
        table_version: Version of the data table.
    """

    sequence: int
    table_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledTotals:
    """Settled plans added up: planned once, landed once, and nothing was said against them.

    Nor against a plan that replaced rows of theirs, which has landed.

    Attributes:
        landed: Offsets that landed, gaps included, and that no later plan replaced.
        ends: Where the range of each chain ends that goes furthest.
        chain_heads: By epoch and kind of plan.
        requesters: Number of the newest plan, by who asked for it or took it over.
        records: How many records landed.
    """

    landed: Mapping[Place, SpanSet] = field(default_factory=dict)
    ends: Mapping[ChainPlace, Position] = field(default_factory=dict)
    chain_heads: Mapping[tuple[int, PlanKind], ChainHead] = field(default_factory=dict)
    requesters: Mapping[str, int] = field(default_factory=dict)
    records: int = 0


def split_settled(rows: Iterable[Row]) -> tuple[list[Row], SettledTotals]:
    """Split the rows of one pipeline: those to be read one by one, and the settled rest added up.

    What backfills were asked for is in neither: nothing follows from it but by their plans.

    The Delta adapter has the same in SQL; a test compares them.
    """
    rows = list(rows)
    over = _settled_plans(rows)
    of_settled: list[Row] = []
    others: list[Row] = []
    for row in rows:
        if row["event"] == EventKind.BACKFILL_REQUESTED:
            continue
        is_settled = row["event"] in SETTLED_PLAN_EVENTS and row["plan_sequence"] in over
        (of_settled if is_settled else others).append(row)
    landed = [row for row in of_settled if row["event"] == EventKind.LANDED]
    planned = [row for row in of_settled if row["event"] == EventKind.PLANNED]
    held = _held(of_settled)
    return others, SettledTotals(
        landed=_spans([row for row in held if row.get("partition") is not None]),
        ends=_ends(planned),
        chain_heads=_newest(landed),
        requesters=_requesters(row for row in of_settled if row["event"] in _ASKED),
        records=sum(row.get("records") or 0 for row in held),
    )


def _settled_plans(rows: Sequence[Row]) -> set[int]:
    told: dict[int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    superseders: dict[int, set[int]] = defaultdict(set)
    for row in rows:
        if row.get("plan_sequence") is not None:
            told[row["plan_sequence"]][row["event"]].add(row["event_number"])
        if row["event"] == EventKind.SUPERSEDED:
            superseders[row["plan_sequence"]].add(row["superseded_by"])
    over = {
        sequence
        for sequence, events in told.items()
        if len(events[EventKind.PLANNED]) == len(events[EventKind.LANDED]) == 1
        and not any(
            events[kind] for kind in CORRECTING_EVENTS
        )  # fence: corrected-plan-is-read-in-full
    }
    # fence: doubtful-replacement-is-read-in-full
    return {sequence for sequence in over if superseders[sequence] <= over}


def _held(of_settled: Sequence[Row]) -> list[Row]:
    """Rows that say what settled plans hold: the newest that replaced some of a plan, or its own.

    Plans that replace rows land in the order of their numbers.
    """
    newest: dict[int, int] = {}
    for row in of_settled:
        if row["event"] == EventKind.SUPERSEDED:
            sequence = row["plan_sequence"]
            newest[sequence] = max(row["superseded_by"], newest.get(sequence, 0))
    return [
        row
        for row in of_settled
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


def _ends(planned: Iterable[Row]) -> Mapping[ChainPlace, Position]:
    return furthest_positions(
        (
            (row["topic_id"], row["partition"], PlanKind(row["plan_kind"])),
            Position(offset=row["end_offset"], leader_epoch=row.get("leader_epoch")),
        )
        for row in planned
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


def _requesters(asked: Iterable[Row]) -> Mapping[str, int]:
    oldest_first = sorted(asked, key=lambda row: row["plan_sequence"])
    return {row["requested_by"]: row["plan_sequence"] for row in oldest_first}
