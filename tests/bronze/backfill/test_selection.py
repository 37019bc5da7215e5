"""Tests of backfill selections and of their chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.bronze.backfill.errors import BackfillTooLarge
from tidemark.bronze.backfill.selection import (
    MAX_CHUNKS,
    OffsetRanges,
    PlanRanges,
    RetainedLog,
    TimeWindow,
    chunks,
    select,
    split_list,
)
from tidemark.core.errors import InvalidSelection
from tidemark.core.offsets import Span, SpanSet, size_of


def test_overlapping_and_adjacent_ranges_in_any_order_are_merged() -> None:
    selection = select(offsets=["1:7-9", "0:5-10", "0:1-5", "0:8-12", " 1 : 20 - 30 "])
    assert selection == OffsetRanges(
        spans={0: SpanSet((Span(1, 12),)), 1: SpanSet((Span(7, 9), Span(20, 30)))}
    )


def test_ranges_as_pages_and_errors_print_them_are_accepted() -> None:
    text = "1: [477, 634), 0:1-5\n2: [0,4), "
    assert split_list(text) == ["1: [477, 634)", "0:1-5", "2: [0,4)"]
    assert select(offsets=split_list(text)) == select(offsets=["0:1-5", "1:477-634", "2:0-4"])


def test_each_kind_of_selection_is_parsed() -> None:
    window = select(start="2026-03-01T00:00:00Z", end="2026-03-01T02:00:00+01:00", partitions=[3])
    assert isinstance(window, TimeWindow)
    assert (window.end - window.start).total_seconds() == 3600
    assert list(window.partitions) == [3]
    assert select(retained=True) == RetainedLog()
    assert select(plan=7) == PlanRanges(sequence=7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "expected one of: offset ranges.*got none"),
        ({"retained": True, "plan": 7}, "got retained log and ranges of a plan"),
        ({"offsets": ["0:1-2"], "end": "2026-03-01T00:00:00Z"}, "offset ranges and time window"),
        ({"offsets": ["0:5-5"]}, "START < END.*got '0:5-5'"),
        ({"offsets": ["5-9"]}, "PARTITION:START-END"),
        ({"offsets": ["0:0-" + "9" * 5_000]}, "PARTITION:START-END"),
        ({"offsets": ["\u0660:\u0669-12"]}, "PARTITION:START-END"),
        ({"offsets": ["0:-1-9"]}, "PARTITION:START-END"),
        ({"offsets": ["0:[1, 9]"]}, "PARTITION:START-END"),
        ({"start": "2026-03-01T00:00:00Z"}, "both ends of a time window.*got None"),
        ({"start": "2026-03-01T00:00", "end": "2026-03-02"}, "got '2026-03-01T00:00'"),
        ({"start": "2026-03-01T02:00+02:00", "end": "2026-03-01T00:00Z"}, "starts before its end"),
        ({"start": "yesterday", "end": "today"}, "got 'yesterday'"),
        ({"plan": 7, "partitions": [1]}, "got partitions with ranges of a plan"),
    ],
)
def test_invalid_selections_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSelection, match=message):
        select(**arguments)


spans = st.builds(
    lambda start, size: Span(start, start + size), st.integers(0, 400), st.integers(1, 60)
)
wanted_offsets = st.dictionaries(
    st.integers(0, 5), st.lists(spans, min_size=1).map(SpanSet.of), min_size=1
)


@given(wanted=wanted_offsets, chunk=st.integers(5, 200), task=st.integers(1, 80))
def test_i2_chunks_have_every_offset_once(
    wanted: Mapping[int, SpanSet], chunk: int, task: int
) -> None:
    parts = chunks("events", wanted, chunk, task)
    assert sum(size_of(part) for part in parts) == size_of(wanted)
    for partition, spans in wanted.items():
        own = [part[partition] for part in parts if partition in part]
        assert SpanSet.of(span for some in own for span in some) == spans
        # Chunks are in offset order, so a cancelled backfill has landed the lowest offsets.
        firsts = [next(iter(some)).start for some in own]
        assert firsts == sorted(firsts)
        assert all(len(some.spans) <= 20 for some in own)
    assert all(0 < size_of(part) <= chunk for part in parts)


def test_a_chunk_has_few_partitions_with_one_full_file_each() -> None:
    wanted = {partition: SpanSet.of([Span(0, 1_000)]) for partition in range(50)}
    parts = chunks("events", wanted, 3_000, 500)
    assert {size_of(part) for part in parts} == {3_000, 2_000}
    assert {spans.size for part in parts for spans in part.values()} == {500}
    assert [sorted(part) for part in parts[:2]] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]


def test_a_chunk_has_at_most_twenty_ranges_of_a_partition() -> None:
    """Spark reads each further range of a partition separately."""
    wanted = {0: SpanSet.of(Span(10 * n, 10 * n + 1) for n in range(50))}
    assert [len(part[0].spans) for part in chunks("events", wanted, 1_000, 1_000)] == [20, 20, 10]


def test_too_many_chunks_are_refused_with_a_sufficient_chunk_size() -> None:
    wanted = {0: SpanSet.of([Span(0, 10**15)])}
    with pytest.raises(BackfillTooLarge, match=f"at least {10**12:,} offsets"):
        chunks("events", wanted, 1, 1)
    assert len(chunks("events", wanted, 10**12, 10**12)) == MAX_CHUNKS
