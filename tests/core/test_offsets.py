"""Half-open spans and sets of them, against plain sets of integers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.core.offsets import Span, SpanSet

spans = st.tuples(st.integers(0, 40), st.integers(1, 10)).map(lambda s: Span(s[0], s[0] + s[1]))
span_sets = st.lists(spans, max_size=8)


def members(some: SpanSet) -> set[int]:
    """The offsets of a set, one by one."""
    return {offset for span in some for offset in range(span.start, span.end)}


def test_a_span_needs_at_least_one_offset() -> None:
    """Empty and reversed spans are not representable."""
    for start, end in ((3, 3), (4, 3), (-1, 2)):
        with pytest.raises(ValueError, match="start < end"):
            Span(start, end)


@given(span_sets)
def test_a_set_is_sorted_disjoint_and_has_no_adjacent_spans(some: list[Span]) -> None:
    """Normalising changes no member and leaves a gap between neighbours."""
    made = SpanSet.of(some)
    assert members(made) == {o for span in some for o in range(span.start, span.end)}
    assert made.size == len(members(made))
    for before, after in zip(made.spans, made.spans[1:], strict=False):
        assert before.end < after.start


@given(span_sets, spans)
def test_missing_is_set_difference(some: list[Span], wanted: Span) -> None:
    """What is missing from a span, and how much is there, agree with plain sets."""
    have = SpanSet.of(some)
    asked = set(range(wanted.start, wanted.end))
    assert members(have.missing_from(wanted)) == asked - members(have)
    assert have.overlap_size(wanted) == len(asked & members(have))


@given(span_sets, st.integers(0, 60))
def test_the_first_offsets_are_the_lowest(some: list[Span], count: int) -> None:
    """As many as were asked for, or all there are."""
    have = SpanSet.of(some)
    assert members(have.first(count)) == set(sorted(members(have))[:count])


@given(span_sets, span_sets)
def test_union_is_set_union(left: list[Span], right: list[Span]) -> None:
    """Union agrees with plain sets."""
    both = SpanSet.of(left).union(SpanSet.of(right))
    assert members(both) == members(SpanSet.of(left)) | members(SpanSet.of(right))


@given(span_sets, st.integers(0, 50))
def test_s3_contiguous_end_never_passes_a_gap(some: list[Span], start: int) -> None:
    """I3: every offset from the start to the contiguous end is in the set, and the end is not."""
    have = SpanSet.of(some)
    end = have.contiguous_end(start)
    assert set(range(start, end)) <= members(have)
    assert end not in members(have)


def test_offsets_are_64_bit() -> None:
    """S4: offsets past 2^31 and 2^53 keep their value."""
    big = 2**62
    assert SpanSet.of([Span(big, big + 2)]).contiguous_end(big) == big + 2
