"""Tests of the rules that derive planned ranges from a ledger and watermarks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.plans import make_plan, make_watermarks
from tidemark.core.errors import (
    EndBehindCommitted,
    InvalidSelection,
    LostRange,
    TopicChanged,
    TopicRecreated,
)
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan_rules import (
    ComparedTopic,
    check_identity,
    check_readable,
    classify_offsets,
    fair_shares,
    live_ranges,
    new_partitions,
    planned_ranges,
)

backlogs = st.dictionaries(st.integers(0, 20), st.integers(1, 1000), max_size=12)


def ledger(starts: dict[int, int], landed: dict[int, list[Span]] | None = None) -> Ledger:
    return Ledger(
        pipeline="events",
        cluster_id="memory",
        topic="events",
        topic_id="id-1",
        starts=starts,
        landed={p: SpanSet.of(spans) for p, spans in (landed or {}).items()},
    )


def compared_topic(known_ledger: Ledger, partitions: dict[int, tuple[int, int]]) -> ComparedTopic:
    return ComparedTopic(ledger=known_ledger, watermarks=make_watermarks(partitions))


@given(backlogs, st.integers(1, 5000))
def test_fair_shares_use_the_limit_and_differ_by_one_at_most(
    unread: dict[int, int], limit: int
) -> None:
    """No share is empty, and a smaller share is the whole backlog or one less."""
    shares = fair_shares(unread, limit)
    assert sum(shares.values()) == min(max(limit, len(unread)), sum(unread.values()))
    assert all(shares.values())
    for partition, granted in shares.items():
        assert 0 <= granted <= unread[partition]
        if granted < unread[partition]:
            assert all(other <= granted + 1 for other in shares.values())


def test_fair_shares_without_limit_are_the_backlogs() -> None:
    assert fair_shares({0: 5, 1: 7}, None) == {0: 5, 1: 7}


def test_s3_live_ranges_begin_at_the_committed_offset() -> None:
    """This offset ends the contiguous landed offsets, even if later ones have landed."""
    known_ledger = ledger({0: 2, 1: 0}, {0: [Span(2, 6), Span(8, 10)]})
    assert known_ledger.committed_offset(0) == 6
    ranges = live_ranges(compared_topic(known_ledger, {0: (0, 12), 1: (0, 0)}), {}, None)
    assert [(r.partition, r.start, r.end) for r in ranges] == [(0, 6, 8), (0, 10, 12)]


@pytest.mark.parametrize(
    ("limit", "planned"), [(None, [(5, 8), (10, 20)]), (6, [(5, 8), (10, 13)]), (2, [(5, 7)])]
)
def test_i2_live_ranges_skip_offsets_of_a_landed_backfill(
    limit: int | None, planned: list[tuple[int, int]]
) -> None:
    """The committed offset is lower than these offsets."""
    known_ledger = ledger({0: 0}, {0: [Span(0, 5), Span(8, 10)]})
    ranges = live_ranges(compared_topic(known_ledger, {0: (0, 20)}), {}, limit)
    assert [(r.start, r.end) for r in ranges] == planned


def test_s7_a_low_watermark_above_the_committed_offset_raises_lost_range() -> None:
    """The error contains exactly the deleted offsets."""
    with pytest.raises(LostRange) as lost:
        live_ranges(compared_topic(ledger({0: 3}), {0: (7, 9)}), {}, None)
    assert lost.value.lost == ((0, 3, 7),)


def test_log_end_below_the_committed_offset_raises() -> None:
    known_ledger = ledger({0: 0}, {0: [Span(0, 9)]})
    with pytest.raises(EndBehindCommitted):
        live_ranges(compared_topic(known_ledger, {0: (0, 5)}), {}, None)


def test_s10_added_partitions_are_read_from_offset_zero() -> None:
    """The start policy does not apply to them."""
    known_ledger = ledger({0: 100})
    assert new_partitions(known_ledger, make_watermarks({0: (0, 100), 1: (0, 4)})) == {1: 0}
    assert new_partitions(Ledger(pipeline="events"), make_watermarks({0: (0, 1)})) == {}


@pytest.mark.parametrize(
    ("changes", "partitions", "error", "problem"),
    [
        (
            {"cluster_id": "other"},
            {0: (0, 1), 1: (0, 1)},
            TopicRecreated,
            "different Kafka cluster",
        ),
        ({"topic": "other"}, {0: (0, 1), 1: (0, 1)}, TopicChanged, "names topic 'other'"),
        ({"topic_id": "id-2"}, {0: (0, 1), 1: (0, 1)}, TopicRecreated, "was recreated"),
        ({}, {0: (0, 1)}, TopicChanged, "lacks partition 1"),
    ],
)
def test_s5_s10_other_cluster_topic_id_or_fewer_partitions_raise(
    changes: dict[str, str],
    partitions: dict[int, tuple[int, int]],
    error: type[Exception],
    problem: str,
) -> None:
    with pytest.raises(error, match=problem):
        check_identity(ledger({0: 0, 1: 0}), make_watermarks(partitions, **changes))


@pytest.mark.parametrize(
    ("partitions", "error"), [({0: (6, 10)}, LostRange), ({0: (0, 9)}, EndBehindCommitted)]
)
def test_plan_outside_the_readable_log_raises(
    partitions: dict[int, tuple[int, int]], error: type[Exception]
) -> None:
    plan = make_plan((0, 5, 10))
    check_readable(plan, make_watermarks({0: (5, 10)}))
    with pytest.raises(error):
        check_readable(plan, make_watermarks(partitions))


def test_i2_backfill_leaves_out_landed_offsets() -> None:
    known_ledger = ledger({0: 0}, {0: [Span(3, 5), Span(7, 20)]})
    topic = compared_topic(known_ledger, {0: (0, 30)})
    found = classify_offsets(topic, {0: SpanSet.of([Span(1, 10)])}, readable_only=False)
    ranges = planned_ranges(topic.watermarks, found.missing)
    assert [(r.start, r.end) for r in ranges] == [(1, 3), (5, 7)]


@pytest.mark.parametrize(
    ("partition", "start", "end", "rule"),
    [
        (9, 0, 1, "partition from 0 to 0"),
        (0, 1, 5, "low watermark"),
        (0, 5, 31, "readable log ends at 30"),
    ],
)
def test_backfill_outside_the_log_raises_with_the_reason(
    partition: int, start: int, end: int, rule: str
) -> None:
    with pytest.raises(InvalidSelection, match=rule) as caught:
        classify_offsets(
            compared_topic(ledger({0: 2}), {0: (2, 30)}),
            {partition: SpanSet.of([Span(start, end)])},
            readable_only=False,
        )
    assert "PIPELINE" not in caught.value.rendered("fix")
