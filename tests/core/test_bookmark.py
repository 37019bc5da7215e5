"""Tests of bookmarks: their metadata, and their limits."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.core.bookmark import (
    MAX_RUNS,
    Bookmark,
    OffsetList,
    TypedChanges,
    limited_plans,
)
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.publication import PublishRule

span_sets = st.lists(
    st.tuples(st.integers(0, 2**62), st.integers(1, 10)).map(lambda s: Span(s[0], s[0] + s[1]))
).map(SpanSet.of)
lists = st.builds(
    OffsetList,
    plans=span_sets,
    spans=st.dictionaries(
        st.text(), st.dictionaries(st.integers(0, 9), span_sets.filter(bool)).filter(bool)
    ),
)
bookmarks = st.builds(
    Bookmark,
    event=st.integers(1, 2**63 - 1),
    digest=st.text(),
    publish=st.sampled_from(PublishRule),
    pending=span_sets,
    decoded=st.none() | lists,
    removed=st.none() | lists,
    changes_quarantine=st.booleans(),
    spec=st.text(),
    decoded_by_spec=span_sets,
    replaced_specs=st.lists(st.text()).map(tuple),
    outdated=span_sets,
    unknown_spec=span_sets,
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)

METADATA = Bookmark(
    event=17,
    digest="5f2a",
    publish=PublishRule.CHECKED,
    pending=SpanSet.of([Span(3, 9), Span(12, 13)]),
    decoded=OffsetList(
        plans=SpanSet.of([Span(1, 3)]), spans={"id-1": {0: SpanSet.of([Span(5, 7)])}}
    ),
    removed=OffsetList(),
    changes_quarantine=True,
    spec="0ab1",
    decoded_by_spec=SpanSet.of([Span(1, 3)]),
    replaced_specs=("0ab0",),
    outdated=SpanSet.of([Span(2, 3)]),
    unknown_spec=SpanSet.of([Span(7, 8)]),
).as_metadata()


@settings(max_examples=40, deadline=None)
@given(bookmarks)
def test_a_bookmark_is_read_from_its_metadata(bookmark: Bookmark) -> None:
    assert Bookmark.from_metadata(json.loads(json.dumps(bookmark.as_metadata()))) == bookmark


def test_metadata_list_plan_numbers_as_runs() -> None:
    assert METADATA == {
        "form": 2,
        "event": 17,
        "digest": "5f2a",
        "publish": "checked",
        "pending": [[3, 9], [12, 13]],
        "decoded": {"plans": [[1, 3]], "spans": {"id-1": [[0, 5, 7]]}},
        "removed": {"plans": [], "spans": {}},
        "changes_quarantine": True,
        "spec": "0ab1",
        "decoded_by_spec": [[1, 3]],
        "replaced_specs": ["0ab0"],
        "outdated": [[2, 3]],
        "unknown_spec": [[7, 8]],
    }


@settings(max_examples=40, deadline=None)
@given(values)
def test_other_values_are_no_bookmark(value: Any) -> None:
    assert Bookmark.from_metadata(value) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("form", 1),
        ("form", 3),
        ("form", True),
        ("event", 17.0),
        ("event", 2**63),
        ("digest", 5),
        ("publish", "sometimes"),
        ("pending", None),
        ("pending", [[9, 3]]),
        ("pending", [[3, 4, 5]]),
        ("pending", [["3", "4"]]),
        ("decoded", {}),
        ("decoded", 0),
        ("decoded", {"plans": [], "spans": []}),
        ("decoded", {"plans": [], "spans": {"id-1": [[0, 5]]}}),
        ("removed", []),
        ("changes_quarantine", None),
        ("spec", 5),
        ("decoded_by_spec", [[3, 1]]),
        ("replaced_specs", [5]),
    ],
)
def test_a_bookmark_that_is_damaged_or_in_another_format_is_unknown(key: str, value: Any) -> None:
    assert Bookmark.from_metadata({**METADATA, key: value}) is None
    assert (
        Bookmark.from_metadata({name: METADATA[name] for name in METADATA if name != key}) is None
    )


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(METADATA)), values)
def test_reading_metadata_with_any_value_raises_nothing(key: str, value: Any) -> None:
    Bookmark.from_metadata({**METADATA, key: value})


def test_a_year_of_pending_plans_is_one_run() -> None:
    assert limited_plans(SpanSet.of_numbers(range(1, 100_001))).spans == (Span(1, 100_001),)


def test_pending_plans_in_too_many_runs_contain_a_few_other_plans() -> None:
    """The nearest runs are joined, so the next decode compares the fewest other plans."""
    numbers = [*range(0, 4 * MAX_RUNS, 4), *range(9_001, 9_101, 2)]
    limited = limited_plans(SpanSet.of_numbers(numbers))
    assert len(limited.spans) == MAX_RUNS
    assert limited.size == len(numbers) + 49 + 3
    assert all(number in limited for number in numbers)


@given(st.sets(st.integers(0, 3 * MAX_RUNS)))
def test_pending_plans_in_few_runs_are_exact(numbers: set[int]) -> None:
    pending = SpanSet.of_numbers(numbers)
    assert limited_plans(pending) == pending
    assert all(before.end < after.start for before, after in pairwise(pending))


def test_offsets_in_too_many_ranges_are_not_listed() -> None:
    """For example of a replay of single offsets, or of thousands of plans."""
    few = SpanSet.of_numbers(range(0, 2 * MAX_RUNS, 2))
    many = SpanSet.of_numbers(range(0, 2 * MAX_RUNS + 2, 2))
    for spans in ({}, {"id-1": {0: few}}):
        assert OffsetList(plans=few, spans=spans).limited() is not None
        assert OffsetList(plans=many, spans=spans).limited() is None
    assert OffsetList(spans={"id-1": {0: few, 1: few}}).limited() is None


def test_changes_of_commits_are_unknown_if_one_or_all_of_them_list_too_many() -> None:
    """A merge then reads all records, instead of a condition with thousands of ranges."""
    bookmark = Bookmark.from_metadata(METADATA)
    assert bookmark is not None

    def listing(*numbers: int) -> Bookmark:
        return replace(bookmark, decoded=OffsetList(plans=SpanSet.of_numbers(numbers)))

    changes = TypedChanges.of([listing(1), listing(2, 9)])
    assert changes == TypedChanges(decoded=OffsetList(plans=SpanSet.of_numbers((1, 2, 9))))
    assert TypedChanges.of([]) == TypedChanges()
    for unknown in (replace(bookmark, decoded=None), replace(bookmark, removed=None)):
        assert TypedChanges.of([listing(1), unknown]) is None
    assert TypedChanges.of([listing(1), None]) is None
    even, odd = listing(*range(0, 2 * MAX_RUNS, 2)), listing(2 * MAX_RUNS + 1)
    assert TypedChanges.of([even]) is not None
    assert TypedChanges.of([even, odd]) is None
