"""Tests of the control-table events: their rows, and the ledger that they fold to."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.support.plans import make_plan
from tests.support.services import NOW
from tidemark.core.accounting import Landing, RangeCount
from tidemark.core.event_rows import decode, encode
from tidemark.core.events import (
    Abandoned,
    Adopted,
    BackfillRequested,
    ControlEvent,
    Landed,
    LossAccepted,
    NewEpoch,
    Planned,
    PublicationDecided,
    RecreationAccepted,
    Started,
    Superseded,
    Undone,
    UndoStarted,
)
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import PlanKind, PlannedRange
from tidemark.core.publication import PublicationStatus
from tidemark.core.watermarks import Position

LOST = {0: SpanSet.of([Span(5, 7), Span(9, 11)])}


def history() -> list[tuple[int, list[ControlEvent]]]:
    """Return a start, a plan, its adoption, a backfill, a landing and a replacement."""
    first = make_plan((0, 0, 5), (1, 0, 3), sequence=1)
    backfill = make_plan((0, 9, 12), sequence=2, kind=PlanKind.BACKFILL)
    landing = Landing(
        sequence=1,
        table_version=4,
        counts=(
            RangeCount(partition=0, start=0, end=5, records=4),
            RangeCount(partition=1, start=0, end=3, records=0),
        ),
    )
    started = Started(
        cluster_id="memory",
        topic="events",
        topic_id="id-1",
        requested_by="test:1",
        offsets={0: 0, 1: 0},
        leader_epochs={1: 3},
        reason="started at the offsets of consumer group 'old'",
    )
    request = BackfillRequested(
        cluster_id="memory",
        topic="events",
        topic_id="id-1",
        requested_by="test:2",
        readable_only=True,
        chunks=(
            {0: SpanSet.of([Span(2, 5), Span(9, 20)]), 1: SpanSet.of([Span(4, 5)])},
            {0: SpanSet.of([Span(20, 21)])},
        ),
        replaces=True,
        reason="rows deleted by hand",
    )
    again = replace(backfill, sequence=4, replaces=True)
    remaining = Superseded(sequence=1, by=4, topic_id="id-1", counts=landing.counts[1:])
    nothing = Superseded(sequence=2, by=4, topic_id="id-1", counts=())
    other = replace(remaining, by=3, counts=())
    return [
        (1, [started, Planned(plan=first)]),
        (2, [Adopted(sequence=1, origin=RunOrigin("test:later"))]),
        (3, [Planned(plan=backfill)]),
        (4, [Landed(plan=first, landing=landing, committed={0: 5, 1: 3})]),
        (5, [Abandoned(sequence=2, requested_by="test:3", reason="too large")]),
        (6, [request, Planned(plan=replace(backfill, sequence=3))]),
        (7, [Planned(plan=again), other, remaining, nothing]),
    ]


def publication(
    number: int, status: PublicationStatus, by: str | None = None, sequence: int = 1
) -> tuple[int, list[ControlEvent]]:
    """Return a decision about a plan, of an operator if named."""
    spans = {0: SpanSet.of([Span(0, 2), Span(3, 5)]), 1: SpanSet.of([Span(0, 3)])}
    return number, [
        PublicationDecided(
            sequence=sequence,
            status=status,
            topic_id="id-1",
            spans=spans if sequence == 1 else {},
            decided_by=by,
            reason=by and "why",
        )
    ]


def decisions() -> list[tuple[int, list[ControlEvent]]]:
    """Return the decisions of an operator after `history`, with unusual values."""
    far = 2**62
    ann: dict[str, Any] = {"requested_by": "cli:ann:1", "reason": "why"}
    plan, other = make_plan((0, far, far + 3), sequence=5), make_plan((0, 50, 53), sequence=6)
    missed = Landing(sequence=5, table_version=8, counts=())
    count = RangeCount(partition=0, start=50, end=53, records=1, unproven_gaps=1)
    unproven = Landing(sequence=6, table_version=7, counts=(count,))
    epoch = NewEpoch(epoch=1, table_version=10, sequence=7, committed={0: 7, 1: 0}, **ann)
    topic = {"cluster_id": "other", "topic": "events", "topic_id": "id-2"}
    return [
        (8, [Planned(plan=other), Landed(plan=other, landing=unproven, committed={0: 5})]),
        (9, [LossAccepted(topic="events", topic_id="id-1", lost=LOST, committed={0: 7}, **ann)]),
        (10, [UndoStarted(sequence=1, committed={0: 0, 1: 0}, **ann)]),
        (11, [Undone(sequence=1, table_version=9, **ann), Undone(sequence=6, **ann)]),
        (12, [Planned(plan=plan), Landed(plan=plan, landing=missed, committed={})]),
        (13, [epoch]),
        (14, [replace(epoch, epoch=2, table_version=11, committed={}, missing_events=2)]),
        (15, [RecreationAccepted(**topic, offsets={0: 2, 1: far}, **ann)]),
        publication(16, PublicationStatus.PUBLISHED, sequence=5),
        publication(17, PublicationStatus.REJECTED, "cli:ann:1"),
    ]


def test_events_decode_from_their_rows_in_any_order() -> None:
    recorded = [*history(), *decisions()]
    rows = [row for n, events in recorded for row in encode("events", n, NOW, events)]
    Random(7).shuffle(rows)
    assert decode("events", rows) == recorded


def test_a_recorded_decision_has_the_number_and_the_time_of_its_event() -> None:
    rows = encode("events", 8, NOW, publication(8, PublicationStatus.BLOCKED)[1])
    ((_, (decided,)),) = decode("events", rows)
    assert isinstance(decided, PublicationDecided)
    assert (decided.number, decided.decided_at) == (8, NOW)


def test_events_are_rows_of_the_pipeline_that_they_are_appended_to() -> None:
    """The pipeline that their plan names does not count."""
    (row,) = encode("prices", 9, NOW, [Planned(plan=make_plan((0, 0, 5), pipeline="events"))])
    assert (row["pipeline"], row["event_number"]) == ("prices", 9)


def test_equal_events_of_a_commit_are_encoded_once() -> None:
    """Equal rows in the table mean that another program has duplicated them."""
    undone = Undone(sequence=1, requested_by="ops", reason="a test")
    rows = encode("events", 9, NOW, [undone, replace(undone, sequence=2), undone])
    assert [row["plan_sequence"] for row in rows] == [1, 2]
    assert decode("events", rows) == [(9, [undone, replace(undone, sequence=2)])]


def test_ledger_state_follows_from_its_events() -> None:
    ledger = Ledger.fold("events", history())
    assert ledger.event_number == 7
    assert ledger.next_sequence == 5
    assert ledger.start_reason == "started at the offsets of consumer group 'old'"
    assert [ledger.committed_offset(p) for p in (0, 1)] == [5, 3]
    assert [record.plan.sequence for record in ledger.open_plans()] == [3, 4]
    assert ledger.open_plan(PlanKind.LIVE) is None
    assert ledger.plan_requested_by(RunOrigin("test:later")) == 1
    assert [str(span) for span in ledger.covered_or_planned(0)] == ["[0, 5)", "[9, 12)"]


def test_decisions_change_the_ledger() -> None:
    recorded = [*history(), *decisions()]
    after = {number: Ledger.fold("events", recorded[:number]) for number in range(9, 16)}
    assert after[9].accepted_losses == after[14].accepted_losses == LOST
    assert [after[9].committed_offset(p) for p in (0, 1)] == [7, 3]
    assert (after[10].plans[1].held_now, after[10].plans[1].undoing) == (None, True)
    assert [after[11].plans[n].undone_version for n in (1, 6)] == [9, None]
    assert after[12].plans[5].held_now == Landing(sequence=5, table_version=8, counts=())
    assert (after[14].epoch, after[14].epoch_version, after[14].next_sequence) == (2, 11, 8)
    new = after[15]
    assert (new.cluster_id, new.topic_id, new.starts) == ("other", "id-2", {0: 2, 1: 2**62})
    assert (new.accepted_losses, new.covered(0), new.next_sequence) == ({}, SpanSet(), 8)


@pytest.mark.parametrize(
    ("decided", "effective"),
    [
        ([("published", None), ("blocked", None)], "blocked"),
        ([("blocked", None), ("published", None)], "published"),
        ([("rejected", "ann"), ("published", None)], "rejected"),
        ([("rejected", "ann"), ("released", "bob"), ("blocked", None)], "released"),
        ([("blocked", None), ("rejected", "ann")], "rejected"),
    ],
)
def test_the_newest_decision_of_an_operator_is_effective_otherwise_the_newest_check(
    decided: list[tuple[str, str | None]], effective: str
) -> None:
    """Decisions about a plan that is not recorded have no effect."""
    new = [
        publication(number, PublicationStatus(status), by)
        for number, (status, by) in enumerate(decided, start=8)
    ]
    unknown = publication(20, PublicationStatus.REJECTED, "ann", sequence=9)
    ledger = Ledger.fold("events", [*history(), *new, unknown])
    decision = ledger.plans[1].decision
    assert decision is not None
    assert decision.status == effective
    assert {each: record.decision for each, record in ledger.plans.items() if each != 1} == {
        2: None,
        3: None,
        4: None,
    }


def test_a_decision_does_not_apply_to_a_later_plan_of_the_same_number() -> None:
    """A repair records the plan of another copy of the tables under its number."""
    published = publication(8, PublicationStatus.PUBLISHED)
    again = Planned(plan=make_plan((0, 0, 5), sequence=1))
    ledger = Ledger.fold("events", [*history(), published, (9, [again])])
    assert ledger.plans[1].decision is None


def test_chain_position_is_the_furthest_landed_end_or_the_start_offset() -> None:
    """If two ranges have the same end, the older leader epoch counts."""
    missed, again = (
        replace(make_plan((0, start, 5), sequence=number), ranges=(
            replace(PlannedRange.without_watermarks(0, Span(start, 5)), leader_epoch=epoch),
        ))
        for number, start, epoch in ((4, 0, 1), (5, 3, 2))
    )  # fmt: skip
    landings = (Landing.of(plan, plan.sequence, {0: 2}) for plan in (missed, again))
    live_events: list[ControlEvent] = [
        event
        for plan, landing in zip((missed, again), landings, strict=True)
        for event in (Planned(plan=plan), Landed(plan=plan, landing=landing, committed={0: 5}))
    ]
    first = history()[0][1][:1]
    for events in (live_events, live_events[2:] + live_events[:2]):
        ledger = Ledger.fold("events", [(1, first), *enumerate([[e] for e in events], start=2)])
        assert ledger.positions(PlanKind.LIVE) == {
            0: Position(offset=5, leader_epoch=1),
            1: Position(offset=0, leader_epoch=3),
        }
        assert ledger.positions(PlanKind.BACKFILL) == {}


def test_every_landed_row_carries_the_committed_offset() -> None:
    rows = encode("events", 4, NOW, history()[3][1])
    assert {row["partition"]: row["committed_offset"] for row in rows} == {0: 5, 1: 3}
    assert {row["partition"]: row["gaps"] for row in rows} == {0: 1, 1: 3}
