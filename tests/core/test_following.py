"""Tests of the required and allowed offsets at an event, and of their changes between events."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta, timezone
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.follow_history import FollowHistory
from tests.model.follow_world import Event, Events, Kind, Policy, view_of
from tests.support.histories import pipeline_with_history
from tests.support.memory import MemoryControlTable
from tests.support.plans import make_plan
from tests.support.services import NOW
from tidemark.core.accounting import Landing, RangeCount
from tidemark.core.bookmark import Bookmark, OffsetList
from tidemark.core.errors import ControlTableDamaged
from tidemark.core.event_rows import Row, decode, encode, event_digest
from tidemark.core.events import (
    Abandoned,
    Adopted,
    ControlEvent,
    EventKind,
    Landed,
    NewEpoch,
    Planned,
    PublicationDecided,
    Superseded,
    Undone,
    UndoStarted,
)
from tidemark.core.following import (
    VISIBLE_EVENTS,
    Batch,
    BatchOffsets,
    Totals,
    allowed,
    claimed,
    compared_totals,
    first_ranges,
    listed_part,
    places_of,
    read_all,
    read_since,
    required,
)
from tidemark.core.ledger import Ledger, PlanRecord
from tidemark.core.offsets import Span, SpanSet, difference
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan
from tidemark.core.publication import PublicationStatus, PublishRule

CHECKED, ALWAYS = PublishRule.CHECKED, PublishRule.ALWAYS
BY: dict[str, Any] = {"requested_by": "ops", "reason": "a test"}


def table_of(*steps: Collection[ControlEvent]) -> MemoryControlTable:
    """Return a control table in which each step is an event number."""
    rows = [row for n, step in enumerate(steps, 1) for row in encode("events", n, NOW, step)]
    return MemoryControlTable(rows=rows, newest={"events": len(steps)})


def landed(plan: Plan, *kept: tuple[int, int, int]) -> Landed:
    """Return the landing of a plan, with all of its offsets or with the given ones."""
    ranges = kept or [(r.partition, r.start, r.end) for r in plan.ranges]
    counts = tuple(RangeCount(partition=p, start=s, end=e, records=e - s) for p, s, e in ranges)
    landing = Landing(sequence=plan.sequence, table_version=plan.sequence, counts=counts)
    return Landed(plan=plan, landing=landing, committed={})


def decided(
    plan: Plan, status: PublicationStatus, spans: Mapping[int, SpanSet] | None = None
) -> PublicationDecided:
    """Return a decision of an operator about all offsets of a plan, or about the given ones."""
    return PublicationDecided(
        sequence=plan.sequence,
        status=status,
        topic_id=plan.topic_id,
        spans=plan.spans() if spans is None else spans,
        decided_by="ops",
    )


def bookmark_at(
    table: MemoryControlTable,
    event: int,
    publish: PublishRule = CHECKED,
    pending: Collection[int] = (),
) -> Bookmark:
    """Return a bookmark of a decoder that has followed an event."""
    return Bookmark(
        event=event,
        digest=event_digest(row for row in table.rows if row["event_number"] == event),
        publish=publish,
        pending=SpanSet.of_numbers(pending),
        decoded=None,
        removed=None,
        changes_quarantine=False,
    )


def plans_at(table: MemoryControlTable, event: int) -> Collection[PlanRecord]:
    """Return all plans at an event, from the whole ledger."""
    history = decode("events", [row for row in table.rows if row["event_number"] <= event])
    return Ledger.fold("events", history).plans.values()


def offsets(found: BatchOffsets) -> list[tuple[int, int, int, int]]:
    """Return plan, partition, start and end of each span."""
    return [
        (batch.sequence, partition, span.start, span.end)
        for batch, by_partition in found.items()
        for partition, spans in by_partition.items()
        for span in spans
    ]


# -- digests -------------------------------------------------------------------------------------


def rows_of_a_replacement() -> list[Row]:
    plan = replace(make_plan((0, 0, 5), (1, 0, 3), sequence=2), replaces=True)
    older = Superseded(sequence=1, by=2, topic_id="id-1", counts=())
    return encode("events", 7, NOW, [Planned(plan=plan), older])


def test_the_digest_of_an_event_depends_on_its_values_alone() -> None:
    """Engines may return rows and columns in any order, columns that are null, and local times."""
    rows = rows_of_a_replacement()
    assert event_digest(rows) == (
        "7b3693d84dbe776b5cd1578c4661ec2e08416b9cc3a9216b526e52ef94af62ed"
    )
    local = NOW.astimezone(timezone(timedelta(hours=5)))
    again = [
        {**dict(sorted(row.items(), reverse=True)), "recorded_at": local, "new_column": None}
        for row in reversed(rows)
    ]
    assert event_digest(again) == event_digest(rows)


@pytest.mark.parametrize(
    "change",
    [
        {"recorded_at": NOW + timedelta(microseconds=1)},
        {"pipeline": "others"},
        {"event_number": 8},
        {"start_offset": None},
        {"replaces": False},
        {"reason": "a reason"},
    ],
)
def test_the_digest_of_an_event_depends_on_each_value(change: Row) -> None:
    rows = rows_of_a_replacement()
    assert event_digest([{**rows[0], **change}, *rows[1:]]) != event_digest(rows)
    assert event_digest(rows[1:]) != event_digest(rows)


# -- required and allowed offsets ----------------------------------------------------------------

PLAN = make_plan((0, 0, 5), (1, 0, 3), sequence=1)
UNDONE = Undone(sequence=1, table_version=4, **BY)
PART = {0: SpanSet.of([Span(0, 2)])}
WHOLE = [(1, 0, 0, 5), (1, 1, 0, 3)]


@pytest.mark.parametrize(
    ("later", "in_view", "may_stay", "in_table"),
    [
        ([], [], WHOLE, WHOLE),
        ([decided(PLAN, PublicationStatus.PUBLISHED)], WHOLE, WHOLE, WHOLE),
        ([decided(PLAN, PublicationStatus.RELEASED)], WHOLE, WHOLE, WHOLE),
        ([decided(PLAN, PublicationStatus.BLOCKED)], [], [], WHOLE),
        ([decided(PLAN, PublicationStatus.REJECTED)], [], [], WHOLE),
        ([decided(PLAN, PublicationStatus.RELEASED, PART)], [(1, 0, 0, 2)], [(1, 0, 0, 2)], WHOLE),
        ([UndoStarted(sequence=1, **BY)], [], [], []),
        ([UndoStarted(sequence=1, **BY), UNDONE], [], [], []),
        ([UNDONE, landed(PLAN, (1, 0, 3))], [], [(1, 1, 0, 3)], [(1, 1, 0, 3)]),
    ],
    ids=[
        "without a decision, rows may stay",
        "published",
        "released",
        "blocked",
        "rejected",
        "offsets that a RESTORE brought back are not decided",
        "an undo has started",
        "undone",
        "a repair records another landing",
    ],
)
def test_offsets_that_are_required_and_allowed(
    later: list[ControlEvent],
    in_view: list[tuple[int, int, int, int]],
    may_stay: list[tuple[int, int, int, int]],
    in_table: list[tuple[int, int, int, int]],
) -> None:
    steps: list[Collection[ControlEvent]] = [[each] for each in later]
    table = table_of([Planned(plan=PLAN)], [landed(PLAN)], *steps)
    plans = plans_at(table, 99)
    assert offsets(required(plans, CHECKED)) == in_view
    assert offsets(allowed(plans, CHECKED)) == may_stay
    assert offsets(required(plans, ALWAYS)) == offsets(allowed(plans, ALWAYS)) == in_table


def test_a_bookmark_does_not_claim_pending_plans() -> None:
    other = make_plan((0, 5, 9), sequence=2)
    table = table_of(
        [Planned(plan=PLAN), Planned(plan=other)],
        [landed(PLAN), landed(other)],
        [decided(each, PublicationStatus.PUBLISHED) for each in (PLAN, other)],
    )
    plans = plans_at(table, 3)
    assert offsets(claimed(plans, bookmark_at(table, 3, pending=[1]))) == [(2, 0, 5, 9)]
    assert offsets(claimed(plans, bookmark_at(table, 3))) == [*WHOLE, (2, 0, 5, 9)]


def test_the_listed_part_of_some_offsets() -> None:
    """Whole plans by number, the rest by offset; all offsets without a list."""
    whole, part = {0: SpanSet.of([Span(0, 9)])}, {0: SpanSet.of([Span(4, 6)])}
    some = {Batch(1, "id-1"): whole, Batch(2, "id-1"): whole, Batch(3, "id-2"): whole}
    listed = OffsetList(plans=SpanSet.of_numbers([1]), spans={"id-1": part})
    assert listed_part(some, listed) == {Batch(1, "id-1"): whole, Batch(2, "id-1"): part}
    assert listed_part(some, None) == some


# -- the plans since a bookmark ------------------------------------------------------------------


def totals(rows: int, first: int, last: int) -> Totals:
    return Totals(rows=rows, first=first, last=last, sum=rows, squares=rows)


def test_offsets_of_plans_with_the_same_totals_are_known() -> None:
    """Plan 2 has other rows. Plan 3 has not landed, and its rows need a look."""
    control = table_of(*settled_plans(2))
    batches = [Batch(n, "id-1") for n in (1, 2, 3)]
    typed = {batch: {0: totals(3, 10, 14)} for batch in batches}
    bronze = {**typed, batches[1]: {0: totals(4, 10, 14)}}
    same, unknown = compared_totals(plans_at(control, 99), typed, bronze)
    assert offsets(same) == [(1, 0, 10, 15)]
    assert offsets(unknown) == [(2, 0, 10, 15), (3, 0, 10, 15)]


def test_first_ranges_and_places_are_ordered_by_batch_partition_and_offset() -> None:
    some = {
        Batch(2, "id-1"): {0: SpanSet.of([Span(7, 8)])},
        Batch(1, "id-1"): {1: SpanSet.of([Span(4, 6)]), 0: SpanSet.of([Span(1, 2), Span(3, 4)])},
    }
    first = first_ranges(some, 3)
    assert [place[1:] for place in places_of(first)] == [(0, 1), (0, 3), (1, 4), (1, 5)]
    assert first_ranges(some, 9) == some


def check_changes(table: MemoryControlTable, event: int, chance: Random) -> None:
    """Compare the changes since an event with the difference of two whole ledgers."""
    newest = max(row["event_number"] for row in table.rows)
    before, now = plans_at(table, event), plans_at(table, newest)
    numbers = [each.plan.sequence for each in now]
    pending = chance.sample(numbers, len(numbers) // 3)
    for publish, earlier in ((CHECKED, CHECKED), (ALWAYS, ALWAYS), (CHECKED, ALWAYS)):
        bookmark = bookmark_at(table, event, earlier, pending)
        missing = difference(required(now, publish), claimed(before, bookmark))
        surplus = difference(allowed(before, earlier), allowed(now, publish))
        for more in (SpanSet(), bookmark.pending):
            found = read_since(table, "events", bookmark, publish, more)
            assert found is not None
            assert found.surplus(bookmark, publish) == surplus
            expected = missing
            if not more and earlier is publish:
                # Pending plans that were not requested are not read unless an event affects them.
                read = found.now.keys()
                expected = {
                    batch: spans
                    for batch, spans in missing.items()
                    if batch.sequence not in pending or batch.sequence in read
                }
            assert found.missing(bookmark, publish) == expected
            assert found.event == newest
            assert found.digest == bookmark_at(table, newest).digest
            assert found.is_visible or (required(before, publish), allowed(before, publish)) == (
                required(now, publish),
                allowed(now, publish),
            )


@pytest.mark.parametrize(
    "seed", [3, 10, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 40))]
)
def test_changes_since_an_event_equal_the_difference_of_whole_ledgers(seed: int) -> None:
    """The services record replacements, undos, RESTOREs, and losses of control events."""
    table = pipeline_with_history(seed, with_repairs=True).control
    chance = Random(seed)
    events = sorted({row["event_number"] for row in table.rows})
    for event in chance.sample(events, min(12, len(events))):
        check_changes(table, event, chance)


@dataclass
class RandomEvents:
    """Random events of a few plans, also of repairs. The services would not record all of them."""

    chance: Random

    def __post_init__(self) -> None:
        self.table = table_of()
        self._next = 1

    def record(self) -> None:
        """Record one or more random events under the next number."""
        ledger = self.table.ledger("events")
        weights = {"plan": 6, "land": 5, "decide": 5, "undo": 3, "repair": 2, "adopt": 1}
        step = self.chance.choices([*weights], [*weights.values()])[0]
        events = getattr(self, f"_{step}")([*ledger.plans.values()])
        if events:
            number = self.table.newest.get("events", 0) + 1
            at = NOW + timedelta(seconds=number)
            self.table.rows += encode("events", number, at, events)
            self.table.newest["events"] = number

    def _spans(self) -> tuple[tuple[int, int, int], ...]:
        starts = sorted(self.chance.sample(range(0, 16, 4), self.chance.randint(1, 3)))
        return tuple((0, start, start + self.chance.randint(1, 3)) for start in starts)

    def _new_plan(self, number: int) -> Plan:
        topic_id = self.chance.choice(("id-1", "id-1", "id-2"))
        return make_plan(*self._spans(), sequence=number, topic_id=topic_id)

    def _plan(self, records: list[PlanRecord]) -> list[ControlEvent]:
        plan = self._new_plan(self._next)
        self._next += 1
        held = [each for each in records if each.held_now]
        replaced = self.chance.sample(held, self.chance.randint(0, min(2, len(held))))
        return [
            Planned(plan=replace(plan, replaces=bool(replaced))),
            *(self._superseded(each, plan) for each in replaced),
        ]

    def _superseded(self, record: PlanRecord, by: Plan) -> Superseded:
        assert record.held_now is not None
        counts = record.held_now.counts
        kept = tuple(each for each in counts if self.chance.random() < 0.5)
        older = record.plan
        return Superseded(
            sequence=older.sequence, by=by.sequence, topic_id=older.topic_id, counts=kept
        )

    def _landing(self, plan: Plan) -> Landed:
        """Return a landing of at least one range of a plan."""
        ranges = [(r.partition, r.start, r.end) for r in plan.ranges]
        return landed(plan, *self.chance.sample(ranges, self.chance.randint(1, len(ranges))))

    def _land(self, records: list[PlanRecord]) -> list[ControlEvent]:
        opened = [each.plan for each in records if each.is_open]
        return [self._landing(opened[0])] if opened else []

    def _decide(self, records: list[PlanRecord]) -> list[ControlEvent]:
        known = [each.plan for each in records] or [make_plan((0, 0, 1), sequence=9)]
        plan = self.chance.choice(known)
        event = decided(plan, self.chance.choice([*PublicationStatus]))
        half = {0: SpanSet.of([Span(0, 6)])}
        return [
            replace(
                event,
                decided_by=self.chance.choice((None, "ops")),
                spans=self.chance.choice((event.spans, half)),
            )
        ]

    def _undo(self, records: list[PlanRecord]) -> list[ControlEvent]:
        undoing = [each for each in records if each.undoing]
        if undoing:
            return [replace(UNDONE, sequence=undoing[0].plan.sequence)]
        held = [each for each in records if each.held_now]
        return [
            UndoStarted(sequence=each.plan.sequence, **BY)
            for each in self.chance.sample(held, min(1, len(held)))
        ]

    def _adopt(self, records: list[PlanRecord]) -> list[ControlEvent]:
        """Adopt or abandon an open plan."""
        opened = [each.plan.sequence for each in records if each.is_open][:1]
        if self.chance.random() < 0.5:
            return [Abandoned(sequence=each, **BY) for each in opened]
        return [Adopted(sequence=each, origin=RunOrigin("test:later")) for each in opened]

    def _repair(self, records: list[PlanRecord]) -> list[ControlEvent]:
        """Land plans again, undo or abandon some, or record other plans under their numbers."""
        events: list[ControlEvent] = []
        for each in self.chance.sample(records, len(records) // 2):
            number = each.plan.sequence
            match self.chance.choice(("again", "gone", "other")):
                case "other":
                    plan = self._new_plan(number)
                    events += [Planned(plan=plan), self._landing(plan)]
                case "again":
                    events.append(self._landing(each.plan))
                case "gone" if each.held_now:
                    version = self.chance.choice((None, 3))
                    events.append(replace(UNDONE, sequence=number, table_version=version))
                case "gone" if each.is_open:
                    events.append(Abandoned(sequence=number, **BY))
        epoch = NewEpoch(epoch=1, table_version=9, sequence=self._next, committed={}, **BY)
        self._next += 1
        return [*events, epoch]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_changes_since_an_event_are_right_for_any_events(seed: int) -> None:
    chance = Random(seed)
    history = RandomEvents(chance)
    for _ in range(24):
        history.record()
    events = sorted({row["event_number"] for row in history.table.rows})
    for event in chance.sample(events, 2):
        check_changes(history.table, event, chance)


def settled_plans(number: int) -> list[Collection[ControlEvent]]:
    """Return the events of some published plans."""
    plans = [make_plan((0, 10 * n, 10 * n + 5), sequence=n) for n in range(1, number + 1)]
    steps: list[Collection[ControlEvent]] = []
    for plan in plans:
        steps += [[Planned(plan=plan)], [landed(plan)]]
        steps.append([decided(plan, PublicationStatus.PUBLISHED)])
    return steps


@dataclass
class CountedRows(MemoryControlTable):
    """Counts the rows that are read."""

    read: int = 0

    def rows_since(self, pipeline: str, event: int) -> list[Row]:
        return self._counted([*super().rows_since(pipeline, event)])

    def rows_of_plans(
        self, pipeline: str, plans: SpanSet, *, with_replaced: bool = False
    ) -> list[Row]:
        return self._counted([*super().rows_of_plans(pipeline, plans, with_replaced=with_replaced)])

    def _counted(self, rows: list[Row]) -> list[Row]:
        self.read += len(rows)
        return rows


def test_changes_since_an_event_need_few_rows_of_a_long_ledger() -> None:
    """A plan of the ledger is replaced: only its events and those of the new plan are read."""
    again = replace(make_plan((0, 30, 35), sequence=51), replaces=True)
    nothing = Superseded(sequence=3, by=51, topic_id="id-1", counts=())
    steps = settled_plans(50)
    steps.append([Planned(plan=again), nothing])
    table = table_of(*steps, [landed(again)])
    counted = CountedRows(rows=table.rows, newest=table.newest)
    bookmark = bookmark_at(table, len(steps))
    found = read_since(counted, "events", bookmark, CHECKED)
    assert found is not None
    assert found.now.keys() == found.before.keys() == {3, 51}
    assert offsets(found.surplus(bookmark, CHECKED)) == [(3, 0, 30, 35)]
    assert offsets(found.missing(bookmark, CHECKED)) == []
    assert counted.read < 12


def test_an_event_of_another_ledger_is_unknown() -> None:
    """An older ledger has grown to the same number, or has no event with that number."""
    steps = settled_plans(3)
    table = table_of(*steps)
    bookmark = bookmark_at(table, 6)
    assert read_since(table, "events", bookmark, CHECKED) is not None
    assert read_since(table, "events", replace(bookmark, digest="other"), CHECKED) is None
    assert read_since(table, "events", replace(bookmark, digest="other"), ALWAYS) is None
    assert read_since(table_of(*steps[:5]), "events", bookmark, CHECKED) is None
    assert read_since(table_of(), "events", bookmark, CHECKED) is None
    assert read_since(table, "others", bookmark, CHECKED) is None


def test_without_a_bookmark_all_required_offsets_are_missing() -> None:
    table = table_of(*settled_plans(2))
    found = read_all(table, "events")
    assert (found.event, found.digest) == (6, bookmark_at(table, 6).digest)
    assert offsets(found.missing(None, CHECKED)) == [(1, 0, 10, 15), (2, 0, 20, 25)]
    assert read_all(table_of(), "events").event == 0


def test_events_during_the_read_are_left_for_the_next_decode() -> None:
    """The histories of plans, which are read after the newest event, contain these events."""
    steps = settled_plans(2)
    table = table_of(*steps)
    bookmark = bookmark_at(table, 1)
    expected = read_since(table, "events", bookmark, CHECKED)
    recent = table.rows_since("events", 1)
    table.rows += encode("events", 7, NOW, [UndoStarted(sequence=1, **BY)])

    class Later(MemoryControlTable):
        def rows_since(self, pipeline: str, event: int) -> list[Row]:  # noqa: ARG002
            return [*recent]

    assert read_since(Later(rows=table.rows), "events", bookmark, CHECKED) == expected


@pytest.mark.parametrize("event", [3, 1])
def test_a_duplicate_row_is_an_error(event: int) -> None:
    table = table_of(*settled_plans(1))
    bookmark = bookmark_at(table, event)
    table.rows += [row for row in table.rows if row["event_number"] == 2]
    if event == 3:
        table.rows += encode("events", 4, NOW, [UndoStarted(sequence=1, **BY)])
    with pytest.raises(ControlTableDamaged):
        read_since(table, "events", bookmark, CHECKED)


def test_events_that_change_no_offsets_are_not_visible() -> None:
    """Examples are an open plan and the start of a pipeline. They need no commit of a decoder."""
    steps = settled_plans(1)
    table = table_of(*steps, [Planned(plan=make_plan((0, 50, 55), sequence=2))])
    found = read_since(table, "events", bookmark_at(table, 3), CHECKED)
    assert found is not None
    assert (found.event, found.is_visible, found.now) == (4, False, {})
    assert {*VISIBLE_EVENTS}.isdisjoint({EventKind.PLANNED, EventKind.STARTED})


# -- comparison with the model -------------------------------------------------------------------


def runs(numbers: Collection[int]) -> list[tuple[int, int, int]]:
    return [(0, run.start, run.end) for run in SpanSet.of_numbers(numbers)]


def as_events(history: Events) -> MemoryControlTable:
    """Return a control table with the events of a history of the model."""
    plans: dict[int, Plan] = {}
    steps: list[Collection[ControlEvent]] = []
    for number, event in enumerate(history):
        if event.kind is Kind.PLANNED:
            made = make_plan(*runs(event.offsets), sequence=event.plan)
            plans[event.plan] = replace(made, replaces=event.replaces)
        steps.append(_as_events(event, history[:number], plans))
    return table_of(*steps)


def _as_events(event: Event, before: Events, plans: dict[int, Plan]) -> list[ControlEvent]:
    match event.kind:
        case Kind.PLANNED:
            plan = plans[event.plan]
            return [Planned(plan=plan), *(_superseded_by(plan, before) if plan.replaces else [])]
        case Kind.LANDED:
            return [landed(plans[event.plan])]
        case Kind.DECIDED:
            # In the model, a decision is about all offsets of a plan, landed or not.
            status = PublicationStatus.RELEASED if event.shown else PublicationStatus.REJECTED
            return [decided(plans[event.plan], status)]
        case Kind.UNDO_STARTED:
            return [UndoStarted(sequence=event.plan, **BY)]
        case Kind.UNDONE:
            return [replace(UNDONE, sequence=event.plan)]
        case Kind.REWOUND:
            return _rewound(event, before, plans)


def _held(history: Events) -> dict[int, set[int]]:
    held: dict[int, set[int]] = {}
    for place in view_of(history).landed:
        held.setdefault(place.plan, set()).add(place.offset)
    return held


def _superseded_by(plan: Plan, before: Events) -> list[ControlEvent]:
    replaced = {offset for r in plan.ranges for offset in range(r.start, r.end)}
    return [
        Superseded(
            sequence=older,
            by=plan.sequence,
            topic_id=plan.topic_id,
            counts=landed(plan, *runs(own - replaced)).landing.counts if own - replaced else (),
        )
        for older, own in _held(before).items()
        if own & replaced
    ]


def _rewound(event: Event, before: Events, plans: dict[int, Plan]) -> list[ControlEvent]:
    """Return the events of a repair, which lands all plans of the bronze table again."""
    held: dict[int, set[int]] = {}
    for place in event.held:
        held.setdefault(place.plan, set()).add(place.offset)
    unknown = [number for number in held if number not in plans]
    plans |= {number: make_plan(*runs(held[number]), sequence=number) for number in unknown}
    view = view_of(before)
    gone = ({*_held(before)} | view.undoing) - held.keys()
    return [
        *(Planned(plan=plans[number]) for number in unknown),
        *(landed(plans[number], *runs(own)) for number, own in held.items()),
        *(Undone(sequence=number, **BY) for number in gone),
        *(Abandoned(sequence=each.plan, **BY) for each in view.open if each.plan not in held),
        NewEpoch(epoch=1, table_version=9, sequence=99, committed={}, **BY),
    ]


def test_offsets_are_those_of_the_model() -> None:
    compared = 0
    for seed in range(60):
        model = FollowHistory(seed)
        model.run(60)
        table = as_events(model.world.events)
        for number in range(1, len(model.world.events) + 1):
            view, plans = view_of(model.world.events[:number]), plans_at(table, number)
            for policy in Policy:
                rule = PublishRule(policy)
                for found, expected in (
                    (required(plans, rule), view.required(policy)),
                    (allowed(plans, rule), view.allowed(policy)),
                ):
                    assert {
                        (plan, offset)
                        for plan, _, start, end in offsets(found)
                        for offset in range(start, end)
                    } == {tuple(place) for place in expected}
                    compared += len(expected)
    assert compared > 1_000
