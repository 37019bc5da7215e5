"""Tests that the diagrams are those of their sources, and agree with the product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from docs.diagrams import commit_protocol, coverage, plan_life
from docs.diagrams.__main__ import DIAGRAMS
from docs.diagrams.commit_protocol import Write
from docs.diagrams.coverage import Range

from tests.conftest import PROJECT
from tests.faults.test_crash_points import DRIVER, FIRST_PLAN
from tests.support.plans import make_plan, make_watermarks
from tidemark.core.accounting import Landing
from tidemark.core.events import (
    Abandoned,
    Adopted,
    BackfillRequested,
    ControlEvent,
    EventKind,
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
from tidemark.core.plan import Plan, PlanKind
from tidemark.core.plan_rules import ComparedTopic, check_readable, live_ranges
from tidemark.core.publication import PublicationStatus
from tidemark.local.failpoints import FailPoint

OPERATOR: dict[str, Any] = {"requested_by": "test", "reason": "a test"}
TOPIC: dict[str, Any] = {"topic": "events", "topic_id": "id-1"}
CLUSTER: dict[str, Any] = {"cluster_id": "memory", **TOPIC}
STARTED = Started(**CLUSTER, requested_by="test", offsets={0: 0})


def landed(plan: Plan) -> Landed:
    landing = Landing.of(plan, table_version=1, records={0: 1})
    return Landed(plan=plan, landing=landing, committed={})


PLAN = make_plan((0, 0, 9))
EVENTS: Mapping[str, ControlEvent] = {
    "started": STARTED,
    "backfill_requested": BackfillRequested(
        **CLUSTER, requested_by="test", readable_only=False, chunks=()
    ),
    "planned": Planned(plan=PLAN),
    "superseded": Superseded(sequence=1, by=2, topic_id="id-1", counts=()),
    "adopted": Adopted(sequence=1, origin=RunOrigin("test")),
    "abandoned": Abandoned(sequence=1, **OPERATOR),
    "landed": landed(PLAN),
    "publication_decided": PublicationDecided(
        sequence=1, status=PublicationStatus.PUBLISHED, topic_id="id-1", spans={}
    ),
    "undo_started": UndoStarted(sequence=1, **OPERATOR),
    "undone": Undone(sequence=1, **OPERATOR),
    "loss_accepted": LossAccepted(
        **TOPIC, **OPERATOR, lost={0: SpanSet.of([Span(9, 12)])}, committed={}
    ),
    "recreation_accepted": RecreationAccepted(**CLUSTER, **OPERATOR, offsets={0: 0}),
    "new_epoch": NewEpoch(epoch=1, table_version=9, sequence=1, committed={}, **OPERATOR),
}


def ledger_of(*events: ControlEvent) -> Ledger:
    return Ledger.fold("events", [(number, [event]) for number, event in enumerate(events, 1)])


def state_after(events: Sequence[str]) -> str:
    """Return the state of the plan after some of its events."""
    record = ledger_of(STARTED, *(EVENTS[event] for event in events)).plans[1]
    if record.is_open:
        return "open"
    if record.held_now:
        return "landed"
    return "undoing" if record.undoing else events[-1]


def paths() -> Mapping[str, Sequence[str]]:
    """Return events that lead to each state."""
    found: dict[str | None, list[str]] = {None: []}
    for transition in plan_life.TRANSITIONS:
        found.setdefault(transition.after, [*found[transition.before], transition.event])
    return {state: events for state, events in found.items() if state}


@pytest.mark.parametrize("path", DIAGRAMS, ids=lambda path: path.name)
def test_each_committed_diagram_is_the_one_that_its_source_draws(path: Path) -> None:
    """`python -m docs.diagrams` writes it."""
    assert path.read_bytes() == DIAGRAMS[path]().encode()


def test_each_diagram_has_a_source_and_a_page() -> None:
    folder = PROJECT / "docs" / "diagrams"
    assert set(folder.glob("*.svg")) == set(DIAGRAMS)
    pages = "".join(page.read_text(encoding="utf-8") for page in (PROJECT / "docs").rglob("*.md"))
    assert [path.name for path in DIAGRAMS if f"diagrams/{path.name})" not in pages] == []


# -- the life of a plan --------------------------------------------------------------------------


def test_the_life_of_a_plan_has_every_kind_of_event() -> None:
    """An event of a plan is in a transition or in a state; any other is in the list below them."""
    of_plans = {each.event for each in plan_life.TRANSITIONS}
    of_plans |= {event for state in plan_life.STATES.values() for event, _ in state.repeated}
    others = [event for line in plan_life.OTHER_EVENTS for event in line]
    assert sorted([*of_plans, *others]) == sorted(EventKind)
    assert set(EVENTS) == set(EventKind)


def test_events_lead_to_the_states_of_the_diagram() -> None:
    leading = paths()
    assert set(leading) == set(plan_life.STATES)
    for each in plan_life.TRANSITIONS:
        before = leading[each.before] if each.before else []
        assert state_after([*before, each.event]) == each.after, each


def test_events_that_repeat_a_state_leave_it() -> None:
    for name, state in plan_life.STATES.items():
        for event, _ in state.repeated:
            assert state_after([*paths()[name], event]) == name


@pytest.mark.parametrize("event", [event for line in plan_life.OTHER_EVENTS for event in line])
@pytest.mark.parametrize("state", plan_life.STATES)
def test_events_of_the_pipeline_change_no_plan(state: str, event: str) -> None:
    events = [STARTED, *(EVENTS[each] for each in paths()[state])]
    assert ledger_of(*events, EVENTS[event]).plans == ledger_of(*events).plans


@pytest.mark.parametrize("name", plan_life.STATES)
def test_offsets_of_a_plan_are_what_its_state_means(name: str) -> None:
    ledger = ledger_of(STARTED, *(EVENTS[event] for event in paths()[name]))
    (found,) = (
        word
        for word, holds in (
            ("reserved", bool(ledger.pending)),
            ("covered", bool(ledger.covered(0))),
            ("unread", not ledger.covered_or_planned(0)),
        )
        if holds
    )
    assert found in " ".join(plan_life.STATES[name].meaning)


# -- the commit protocol -------------------------------------------------------------------------


def test_the_commit_protocol_has_the_calls_of_a_first_plan_and_a_driver_in_order() -> None:
    """The tests of crash points compare these calls with those of the services."""
    drawn = [
        step
        for part in commit_protocol.PROTOCOL
        for step in ([part.step] if isinstance(part, Write) else part.calls)
    ]
    assert drawn == [step.partition(":")[0] for step in (*FIRST_PLAN, *DRIVER)]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_crash_points_of_the_commit_protocol_exist(moment: str) -> None:
    for part in commit_protocol.PROTOCOL:
        if isinstance(part, Write):
            FailPoint(f"{part.step}:{moment}:1")


# -- the coverage of a partition -----------------------------------------------------------------


def plan_of(drawn: Range, kind: PlanKind = PlanKind.LIVE) -> Plan:
    sequence = int(drawn.label.removeprefix("plan "))
    return make_plan((0, drawn.start, drawn.end), sequence=sequence, kind=kind)


def drawn_ledger() -> Ledger:
    """Return the ledger of the partition in the diagram."""
    plans = [plan_of(each) for each in coverage.LIVE]
    plans += [plan_of(each, PlanKind.BACKFILL) for each in coverage.BACKFILLS]
    lost = SpanSet.of([Span(coverage.LOST.start, coverage.LOST.end)])
    return ledger_of(
        Started(**CLUSTER, requested_by="test", offsets={0: coverage.START}),
        *(event for plan in plans for event in (Planned(plan=plan), landed(plan))),
        LossAccepted(**TOPIC, **OPERATOR, lost={0: lost}, committed={}),
        Planned(plan=plan_of(coverage.OPEN)),
    )


def test_the_committed_offset_of_the_drawn_partition() -> None:
    assert drawn_ledger().committed_offset(0) == coverage.COMMITTED_OFFSET


def test_the_next_plan_of_the_drawn_partition() -> None:
    watermarks = make_watermarks({0: (coverage.LOW_WATERMARK, coverage.LAST_STABLE_OFFSET)})
    check_readable(plan_of(coverage.OPEN), watermarks)
    topic = ComparedTopic(ledger=drawn_ledger(), watermarks=watermarks)
    planned = [(each.start, each.end) for each in live_ranges(topic, {}, None)]
    assert planned == [(each.start, each.end) for each in coverage.NEXT]


def test_drawn_gaps_are_inside_their_ranges() -> None:
    assert any(each.gaps for each in coverage.LIVE)
    for each in coverage.LIVE:
        assert all(each.start <= gap < each.end for gap in each.gaps)
