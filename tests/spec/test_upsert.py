"""What a merge has to look at."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.support.plans import make_plan
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import Plan
from tidemark.spec.upsert import Changes, How, how_to_merge


def plan(partition: int, start: int, end: int, topic_id: str = "new") -> Plan:
    """A plan of one range."""
    return make_plan((partition, start, end), topic_id=topic_id)


def landed(**spans: tuple[int, int]) -> Mapping[str, Mapping[int, SpanSet]]:
    """What has landed of partition 0, by incarnation."""
    return {topic: {0: SpanSet.of([Span(*span)])} for topic, span in spans.items()}


@pytest.mark.parametrize(
    ("changes", "there", "how"),
    [
        (None, landed(new=(0, 9)), How.ALL),
        (Changes(appended=[plan(0, 5, 9)]), landed(new=(0, 9)), How.NEW),
        # Not recorded yet.
        (Changes(appended=[plan(0, 5, 9)]), landed(new=(0, 5)), How.NEW),
        (Changes(appended=[plan(0, 0, 2)]), landed(new=(0, 9)), How.KEYS),
        # Before all that is there, with a gap between.
        (Changes(appended=[plan(0, 0, 2)]), landed(new=(5, 9)), How.KEYS),
        (Changes(appended=[plan(1, 0, 2)]), landed(new=(5, 9)), How.NEW),
        (Changes(appended=[plan(0, 9, 12), plan(0, 12, 15)]), landed(new=(0, 12)), How.NEW),
        (Changes(appended=[plan(0, 0, 2)]), landed(old=(0, 50)), How.NEW),
        (Changes(appended=[plan(0, 50, 60, "old")]), landed(old=(0, 50), new=(0, 1)), How.KEYS),
        (Changes(replaced=[plan(0, 9, 12)]), landed(new=(0, 9)), How.KEYS),
        (Changes(removed=[3]), landed(new=(0, 9)), How.KEYS),
    ],
)
def test_only_what_is_newer_than_all_is_looked_at_alone(
    changes: Changes | None, there: Mapping[str, Mapping[int, SpanSet]], how: How
) -> None:
    """Else all records of the keys, or of the table."""
    assert how_to_merge(changes, there, ("old", "new")) is how
