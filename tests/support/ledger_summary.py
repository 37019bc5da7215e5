"""Totals of settled plans in Python: what `tidemark.delta.ledger_summary` computes in SQL.

A random test compares both (tests/delta/test_control_table.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tidemark.core.event_rows import Row
from tidemark.core.events import EventKind
from tidemark.core.ledger_summary import (
    CORRECTING_EVENTS,
    SETTLED_PLAN_EVENTS,
    ChainHead,
    ChainPlace,
    Place,
    SettledTotals,
)
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.origins import PlanOrigin, origin_of_row
from tidemark.core.plan import PlanKind
from tidemark.core.watermarks import Position, furthest_positions

_REQUESTS = (EventKind.PLANNED, EventKind.ADOPTED)


def split_settled(rows: Iterable[Row]) -> tuple[list[Row], SettledTotals]:
    """Return the rows of one pipeline that are not of settled plans, and the settled totals.

    Requested backfills are in neither: only their plans affect a ledger.
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
        and not any(events[kind] for kind in CORRECTING_EVENTS)
    }
    return {sequence for sequence in settled if superseders[sequence] <= settled}


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
