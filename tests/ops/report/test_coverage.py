"""Tests of the state of every offset, and of the cells of its bar."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.plans import (
    MemoryPipeline,
    land_and_delete_before_watermarks,
    make_spec,
    wanted,
)
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.origins import RunOrigin
from tidemark.ops.report.coverage import OffsetState, PartitionCoverage, coverage
from tidemark.spec.model import StartPolicy


def covered(pipeline: MemoryPipeline, partition: int = 0) -> PartitionCoverage:
    """Return the coverage of a partition of a pipeline in memory."""
    spec = pipeline.spec
    watermarks = pipeline.kafka.topic_watermarks(spec.topic, spec.isolation_level)
    return coverage(pipeline.control.summary(spec.name), watermarks)[partition]


def states(pipeline: MemoryPipeline, partition: int = 0) -> dict[str, list[str]]:
    """Return the spans of each state, as text."""
    found = covered(pipeline, partition).states
    return {state.value: [str(span) for span in spans] for state, spans in found.items()}


def with_states(
    states: dict[OffsetState, list[tuple[int, int]]], window: Span
) -> PartitionCoverage:
    """Return a partition with these offsets by state."""
    return PartitionCoverage(
        partition=0,
        low_watermark=0,
        end=window.end,
        committed_offset=0,
        states={
            state: SpanSet.of(Span(*each) for each in states[state])
            for state in OffsetState
            if state in states
        },
    )


def test_the_states_are_in_the_order_of_their_severity() -> None:
    """A cell of a bar has the first state of its offsets."""
    assert [state.value for state in OffsetState] == [
        "lost",
        "missing",
        "gap or missing",
        "quarantined",
        "unread",
        "expired",
        "before the start",
        "in an open plan",
        "gap",
        "landed",
    ]


def test_offsets_before_the_first_plan_are_unread() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 10)
    assert states(pipeline) == {"unread": ["[0, 10)"]}
    assert covered(pipeline).committed_offset is None
    assert states(pipeline, 1) == {}
    assert covered(pipeline, 1).extent is None


def test_landed_planned_and_unread_offsets_follow_each_other() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 4)
    pipeline.run("a")
    pipeline.produce(0, 3)
    pipeline.plan("b")
    pipeline.produce(0, 2)
    assert states(pipeline) == {
        "unread": ["[7, 9)"],
        "in an open plan": ["[4, 7)"],
        "landed": ["[0, 4)"],
    }


def test_a_backfill_before_the_start_has_landed() -> None:
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST))
    pipeline.produce(0, 10)
    pipeline.run("a")
    plan = pipeline.planner.backfill(wanted((0, 2, 4)), RunOrigin("b")).plan
    assert plan is not None
    pipeline.ingest.execute(plan.sequence)
    assert states(pipeline) == {
        "before the start": ["[0, 2)", "[4, 10)"],
        "landed": ["[2, 4)"],
    }
    pipeline.kafka.delete_records("events", 0, before=7)
    assert states(pipeline) == {
        "expired": ["[0, 2)", "[4, 7)"],
        "before the start": ["[7, 10)"],
        "landed": ["[2, 4)"],
    }
    assert covered(pipeline).extent == Span(2, 10)
    assert covered(pipeline).window(0) == Span(0, 10)
    assert covered(pipeline).window(4, 99) == Span(4, 10)
    assert covered(pipeline).window(12) is None


def test_offsets_that_land_after_the_read_of_the_watermarks_are_not_lost() -> None:
    """The watermarks are read before the ledger, so that no state comes from an older ledger."""
    pipeline = MemoryPipeline()
    pipeline.run("a")
    pipeline.produce(0, 5)
    land_and_delete_before_watermarks(pipeline)
    found = pipeline.pipeline.report.coverage.read().partitions[0]
    assert found.states == {OffsetState.LANDED: SpanSet.of([Span(0, 5)])}


def test_a_partition_with_expired_offsets_alone_shows_them() -> None:
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST))
    pipeline.produce(0, 10)
    pipeline.run("a")
    pipeline.kafka.delete_records("events", 0, before=10)
    assert states(pipeline) == {"expired": ["[0, 10)"]}
    assert covered(pipeline).extent == Span(0, 10)


def test_without_kafka_the_offsets_of_plans_and_accepted_losses_are_known() -> None:
    pipeline = MemoryPipeline(partitions=3)
    pipeline.produce(0, 4)
    pipeline.produce(1, 2)
    pipeline.run("a")
    pipeline.produce(0, 6)
    pipeline.kafka.delete_records("events", 0, before=7)
    pipeline.decisions.accept_loss((), "ada", "outage")
    pipeline.plan("b")
    pipeline.produce(0, 5)
    ledger = pipeline.control.summary("events")
    first, second, third = coverage(ledger, None)
    second = second.with_quarantined(SpanSet((Span(1, 9),)))
    assert (first.low_watermark, first.end, first.committed_offset) == (None, None, 7)
    assert first.states == {
        OffsetState.LOST: SpanSet((Span(4, 7),)),
        OffsetState.PLANNED: SpanSet((Span(7, 10),)),
        OffsetState.LANDED: SpanSet((Span(0, 4),)),
    }
    assert second.states == {
        OffsetState.QUARANTINED: SpanSet((Span(1, 2),)),
        OffsetState.LANDED: SpanSet((Span(0, 1),)),
    }
    assert (third.committed_offset, third.states, third.extent) == (0, {}, None)


def test_offsets_between_landed_ones_are_unknown_without_kafka() -> None:
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST))
    pipeline.produce(0, 10)
    pipeline.run("a")
    plan = pipeline.planner.backfill(wanted((0, 2, 4), (0, 8, 9)), RunOrigin("b")).plan
    assert plan is not None
    pipeline.ingest.execute(plan.sequence)
    first, _ = coverage(pipeline.control.summary("events"), None)
    assert first.extent == Span(2, 9)
    cells = first.cells(Span(2, 9), 7)
    assert [cell.state and cell.state.value for cell in cells] == [
        *["landed"] * 2,
        *[None] * 4,
        "landed",
    ]


def test_only_landed_offsets_are_quarantined() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 4)
    pipeline.run("a")
    pipeline.produce(0, 4)
    watermarks = pipeline.kafka.topic_watermarks("events", pipeline.spec.isolation_level)
    known = coverage(pipeline.control.summary("events"), watermarks)[0]
    found = known.with_quarantined(SpanSet((Span(1, 2), Span(3, 6))))
    assert found.states == {
        OffsetState.QUARANTINED: SpanSet((Span(1, 2), Span(3, 4))),
        OffsetState.UNREAD: SpanSet((Span(4, 8),)),
        OffsetState.LANDED: SpanSet((Span(0, 1), Span(2, 3))),
    }
    assert found.totals(Span(2, 5)) == {
        OffsetState.QUARANTINED: 1,
        OffsetState.UNREAD: 1,
        OffsetState.LANDED: 1,
    }


def test_offsets_that_kafka_deleted_unread_are_lost_before_and_after_the_acceptance() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 4)
    pipeline.run("a")
    pipeline.produce(0, 6)
    pipeline.kafka.delete_records("events", 0, before=7)
    before = states(pipeline)
    assert before == {"lost": ["[4, 7)"], "unread": ["[7, 10)"], "landed": ["[0, 4)"]}
    pipeline.decisions.accept_loss((), "ada", "outage")
    assert states(pipeline) == before
    pipeline.run("b")
    assert states(pipeline) == {"lost": ["[4, 7)"], "landed": ["[0, 4)", "[7, 10)"]}


def test_one_lost_offset_in_a_billion_is_a_visible_cell() -> None:
    window = Span(0, 10**9)
    found = {OffsetState.LOST: [(500, 501)], OffsetState.LANDED: [(0, 500), (501, window.end)]}
    states = with_states(found, window).cell_states(window, 60)
    assert states == [OffsetState.LOST, *[OffsetState.LANDED] * 59]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9 - 1), st.integers(20, 200))
def test_zooming_into_the_most_severe_cell_finds_one_lost_offset_in_a_billion(
    lost: int, width: int
) -> None:
    size = 10**9
    partition = PartitionCoverage(
        partition=0,
        low_watermark=0,
        end=size,
        committed_offset=0,
        states={
            OffsetState.LOST: SpanSet.of([Span(lost, lost + 1)]),
            OffsetState.LANDED: SpanSet.of(
                Span(*each) for each in ((0, lost), (lost + 1, size)) if each[0] < each[1]
            ),
        },
    )
    window = Span(0, size)
    for _ in range(8):
        cells = partition.cells(window, width)
        window = next(cell.window for cell in cells if cell.state is OffsetState.LOST)
    assert window == Span(lost, lost + 1)


def test_a_window_with_fewer_offsets_than_cells_has_one_cell_for_each_offset() -> None:
    found = {OffsetState.UNREAD: [(4, 6)], OffsetState.LANDED: [(0, 4)]}
    window = Span(2, 8)
    states = with_states(found, window).cell_states(window, 60)
    assert states == [*[OffsetState.LANDED] * 2, *[OffsetState.UNREAD] * 2, None, None]


@settings(deadline=None)
@given(st.data())
def test_each_cell_has_the_state_of_most_offsets_unless_some_are_lost_or_missing(
    data: st.DataObject,
) -> None:
    """Quarantined offsets are landed ones, with a density of their own."""
    size = data.draw(st.integers(1, 40))
    start = data.draw(st.integers(0, size - 1))
    window = Span(start, data.draw(st.integers(start + 1, size)))
    width = min(data.draw(st.integers(1, 50)), window.size)
    state_of = data.draw(
        st.lists(st.sampled_from([None, *OffsetState]), min_size=size, max_size=size)
    )
    partition = PartitionCoverage(
        partition=0,
        low_watermark=0,
        end=size,
        committed_offset=None,
        states={
            state: SpanSet.of(Span(o, o + 1) for o, each in enumerate(state_of) if each is state)
            for state in OffsetState
            if state in state_of
        },
    )
    cells = partition.cells(window, width)
    levels = partition.quarantine_levels(window, width)
    assert SpanSet.of(cell.window for cell in cells).spans == (window,)
    assert len(cells) == width
    for number, cell in enumerate(cells):
        weights: Counter[OffsetState | None] = Counter()
        for offset in range(window.start, window.end):
            place = (offset - window.start) * width
            first, after = number * window.size, (number + 1) * window.size
            weights[state_of[offset]] += max(0, min(place + width, after) - max(place, first))
        quarantined = weights.pop(OffsetState.QUARANTINED, 0)
        assert (levels[number] if levels else 0) == expected_level(quarantined / window.size)
        weights[OffsetState.LANDED] += quarantined
        fixed = [OffsetState.LOST, OffsetState.MISSING, OffsetState.UNCLEAR]
        known = [state for state in OffsetState if weights[state]]
        expected = max(known, key=lambda each: (each in fixed, weights[each]), default=None)
        if any(state in fixed for state in known):
            expected = next(state for state in fixed if state in known)
        assert cell.state is expected


def expected_level(share: float) -> int:
    """Return the level of a share of quarantined offsets."""
    return sum(share >= limit for limit in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1)) + (share > 0)


def test_a_few_quarantined_offsets_of_many_do_not_hide_the_landed_ones() -> None:
    """At 5 %, each cell of a large topic has some."""
    size = 1_000_000
    partition = PartitionCoverage(
        partition=0,
        low_watermark=0,
        end=size,
        committed_offset=size,
        states={OffsetState.LANDED: SpanSet((Span(0, size),))},
    ).with_quarantined(SpanSet.of(Span(offset, offset + 5) for offset in range(0, size, 100)))
    assert {*partition.cell_states(Span(0, size), 240)} == {OffsetState.LANDED}
    assert {*partition.quarantine_levels(Span(0, size), 240)} == {5}
    assert partition.quarantine_levels(Span(5, 100), 240) == ()


def test_older_watermarks_end_where_later_plans_end() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 4)
    pipeline.run("a")
    pipeline.produce(0, 3)
    pipeline.produce(1, 2)
    older = pipeline.pipeline.report.coverage.watermarks()
    assert older.beside(pipeline.ledger) is older.watermarks
    pipeline.produce(0, 2)
    pipeline.plan("b")
    first, second = coverage(pipeline.ledger, older.beside(pipeline.ledger))
    assert (first.end, first.states) == (
        9,
        {
            OffsetState.PLANNED: SpanSet((Span(4, 9),)),
            OffsetState.LANDED: SpanSet((Span(0, 4),)),
        },
    )
    assert (second.end, second.states) == (2, {OffsetState.PLANNED: SpanSet((Span(0, 2),))})


def test_older_watermarks_keep_an_end_after_all_plans() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 4)
    pipeline.run("a")
    pipeline.produce(0, 6)
    older = pipeline.pipeline.report.coverage.watermarks()
    pipeline.undo.undo(1, "ops", "wrong")
    found = coverage(pipeline.ledger, older.beside(pipeline.ledger))[0]
    assert (found.end, found.states) == (10, {OffsetState.UNREAD: SpanSet((Span(0, 10),))})
