"""Tests of half-open spans and sets of them, compared with sets of integers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.core.offsets import Span, SpanSet

spans = st.tuples(st.integers(0, 40), st.integers(1, 10)).map(lambda s: Span(s[0], s[0] + s[1]))
span_sets = st.lists(spans, max_size=8)


def members(some: SpanSet) -> set[int]:
    return {offset for span in some for offset in range(span.start, span.end)}


def test_a_span_needs_at_least_one_offset() -> None:
    for start, end in ((3, 3), (4, 3), (-1, 2)):
        with pytest.raises(ValueError, match="start < end"):
            Span(start, end)


@given(span_sets)
def test_a_set_is_sorted_disjoint_and_has_no_adjacent_spans(some: list[Span]) -> None:
    span_set = SpanSet.of(some)
    assert members(span_set) == {o for span in some for o in range(span.start, span.end)}
    assert span_set.size == len(members(span_set))
    for before, after in zip(span_set.spans, span_set.spans[1:], strict=False):
        assert before.end < after.start


@given(span_sets, spans)
def test_missing_is_set_difference(some: list[Span], wanted: Span) -> None:
    have = SpanSet.of(some)
    requested = set(range(wanted.start, wanted.end))
    assert members(have.missing_from(wanted)) == requested - members(have)
    assert have.overlap_size(wanted) == len(requested & members(have))


@given(span_sets, st.integers(0, 60))
def test_first_returns_the_lowest_offsets(some: list[Span], count: int) -> None:
    have = SpanSet.of(some)
    assert members(have.first(count)) == set(sorted(members(have))[:count])


@given(span_sets, span_sets)
def test_union_is_set_union(left: list[Span], right: list[Span]) -> None:
    both = SpanSet.of(left).union(SpanSet.of(right))
    assert members(both) == members(SpanSet.of(left)) | members(SpanSet.of(right))


@given(span_sets, st.integers(0, 50))
def test_i3_s3_contiguous_end_never_passes_a_gap(some: list[Span], start: int) -> None:
    have = SpanSet.of(some)
    end = have.contiguous_end(start)
    assert set(range(start, end)) <= members(have)
    assert end not in members(have)


def test_s4_offsets_up_to_64_bits_keep_their_value() -> None:
    big = 2**62
    assert SpanSet.of([Span(big, big + 2)]).contiguous_end(big) == big + 2
