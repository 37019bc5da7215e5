"""The records that a merge must read."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.support.plans import make_plan
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import Plan
from tidemark.core.table_state import TableChanges
from tidemark.spec.upsert import MergeScope, merge_scope


def plan(partition: int, start: int, end: int, topic_id: str = "new") -> Plan:
    """A plan of one range."""
    return make_plan((partition, start, end), topic_id=topic_id)


def landed_offsets(**spans: tuple[int, int]) -> Mapping[str, Mapping[int, SpanSet]]:
    """Return the landed offsets of partition 0, by incarnation."""
    return {topic: {0: SpanSet.of([Span(*span)])} for topic, span in spans.items()}


@pytest.mark.parametrize(
    ("changes", "there", "scope"),
    [
        (None, landed_offsets(new=(0, 9)), MergeScope.ALL),
        (TableChanges(appended=[plan(0, 5, 9)]), landed_offsets(new=(0, 9)), MergeScope.NEW),
        # Not recorded yet.
        (TableChanges(appended=[plan(0, 5, 9)]), landed_offsets(new=(0, 5)), MergeScope.NEW),
        (TableChanges(appended=[plan(0, 0, 2)]), landed_offsets(new=(0, 9)), MergeScope.KEYS),
        # Before all landed offsets, with a gap.
        (TableChanges(appended=[plan(0, 0, 2)]), landed_offsets(new=(5, 9)), MergeScope.KEYS),
        (TableChanges(appended=[plan(1, 0, 2)]), landed_offsets(new=(5, 9)), MergeScope.NEW),
        (
            TableChanges(appended=[plan(0, 9, 12), plan(0, 12, 15)]),
            landed_offsets(new=(0, 12)),
            MergeScope.NEW,
        ),
        (TableChanges(appended=[plan(0, 0, 2)]), landed_offsets(old=(0, 50)), MergeScope.NEW),
        (
            TableChanges(appended=[plan(0, 50, 60, "old")]),
            landed_offsets(old=(0, 50), new=(0, 1)),
            MergeScope.KEYS,
        ),
        (TableChanges(replaced=[plan(0, 9, 12)]), landed_offsets(new=(0, 9)), MergeScope.KEYS),
        (TableChanges(removed=[3]), landed_offsets(new=(0, 9)), MergeScope.KEYS),
    ],
)
def test_only_records_newer_than_all_others_are_merged_alone(
    changes: TableChanges | None, there: Mapping[str, Mapping[int, SpanSet]], scope: MergeScope
) -> None:
    """Otherwise the merge reads all records of the keys, or of the table."""
    assert merge_scope(changes, there, ("old", "new")) is scope
