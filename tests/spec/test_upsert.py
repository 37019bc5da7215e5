"""The records that a merge must read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import pytest

from tidemark.core.offsets import Span, SpanSet
from tidemark.spec.upsert import MergeScope, merge_scope

_Offsets: TypeAlias = Mapping[str, Mapping[int, SpanSet]]


def offsets(start: int, end: int, topic_id: str = "new", partition: int = 0) -> _Offsets:
    """Return one range of offsets."""
    return {topic_id: {partition: SpanSet.of([Span(start, end)])}}


@pytest.mark.parametrize(
    ("new", "present", "scope"),
    [
        (offsets(5, 9), offsets(0, 9), MergeScope.NEW),
        # All of them failed.
        (offsets(5, 9), offsets(0, 5), MergeScope.NEW),
        (offsets(5, 9), {}, MergeScope.NEW),
        (offsets(0, 2), offsets(0, 9), MergeScope.KEYS),
        # Before all present offsets, with a gap.
        (offsets(0, 2), offsets(5, 9), MergeScope.KEYS),
        (offsets(0, 2, partition=1), offsets(5, 9), MergeScope.NEW),
        (offsets(9, 15), offsets(0, 12), MergeScope.NEW),
        (offsets(0, 2), offsets(0, 50, "old"), MergeScope.NEW),
        (
            offsets(50, 60, "old"),
            {**offsets(0, 50, "old"), **offsets(0, 1)},
            MergeScope.KEYS,
        ),
        # No row has this topic id.
        (offsets(50, 60, "unknown"), offsets(0, 1), MergeScope.KEYS),
    ],
)
def test_only_records_newer_than_all_others_are_merged_alone(
    new: _Offsets, present: _Offsets, scope: MergeScope
) -> None:
    """Otherwise the merge reads all records of the keys."""
    assert merge_scope(new, present, ("old", "new")) is scope
