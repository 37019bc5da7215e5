"""Tests of half-open spans and sets of them, compared with sets of integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

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


@given(span_sets, span_sets)
def test_difference_and_intersection_are_those_of_sets(left: list[Span], right: list[Span]) -> None:
    one, other = SpanSet.of(left), SpanSet.of(right)
    assert members(one.difference(other)) == members(one) - members(other)
    assert members(one.intersection(other)) == members(one) & members(other)
    for some in (one.difference(other), one.intersection(other)):
        assert some == SpanSet.of(some)


@given(span_sets, spans)
def test_within_and_before_return_the_part_in_their_bounds(some: list[Span], bounds: Span) -> None:
    have = SpanSet.of(some)
    requested = set(range(bounds.start, bounds.end))
    assert members(have.within(bounds)) == members(have) & requested
    assert members(have.before(bounds.end)) == {o for o in members(have) if o < bounds.end}


@given(span_sets, st.integers(0, 60))
def test_last_returns_the_highest_offsets(some: list[Span], count: int) -> None:
    have = SpanSet.of(some)
    lower = sorted(members(have))[: max(0, have.size - count)]
    assert members(have.last(count)) == members(have) - {*lower}


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


# -- many spans -----------------------------------------------------------------------------------


class CountedSpans(tuple[Span, ...]):
    """Spans that count how often an operation reads one of them."""

    reads = 0

    def __getitem__(self, key: Any) -> Any:
        CountedSpans.reads += 1
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[Span]:
        for span in super().__iter__():
            CountedSpans.reads += 1
            yield span


def spans_read(count: int, operation: Callable[[SpanSet, SpanSet], object]) -> int:
    """Return the number of spans that an operation on two sets of `count` spans reads."""
    one = CountedSpans(Span(4 * n, 4 * n + 2) for n in range(count))
    other = CountedSpans(Span(4 * n + 1, 4 * n + 3) for n in range(count))
    CountedSpans.reads = 0
    operation(SpanSet(one), SpanSet(other))
    return CountedSpans.reads


OPERATIONS: dict[str, Callable[[SpanSet, SpanSet], object]] = {
    "difference": lambda one, other: one.difference(other),
    "intersection": lambda one, other: one.intersection(other),
    "union": lambda one, other: one.union(other),
    "missing_from": lambda one, _: one.missing_from(Span(0, 10**6)),
    "overlap_size": lambda one, _: one.overlap_size(Span(0, 10**6)),
    "within": lambda one, _: one.within(Span(0, 10**6)),
    "last": lambda one, _: one.last(1000),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_work_of_an_operation_is_proportional_to_the_number_of_spans(name: str) -> None:
    """A topic with transactions has a span for each transaction."""
    operation = OPERATIONS[name]
    assert spans_read(4_000, operation) < 5 * spans_read(1_000, operation)


def test_the_part_outside_a_large_set_is_found_without_a_walk_from_its_beginning() -> None:
    last = Span(4 * 3_999, 4 * 4_000)
    assert spans_read(4_000, lambda one, _: one.missing_from(last)) < 50
