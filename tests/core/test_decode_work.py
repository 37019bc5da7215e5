"""Tests of the results of decodes."""

from __future__ import annotations

from tidemark.core.decode_work import Decoded
from tidemark.core.offsets import Span, SpanSet


def test_results_of_rounds_are_added() -> None:
    """A round without a commit to the typed table keeps the version of the earlier rounds."""
    one = Decoded(
        plans=SpanSet.of_numbers([1]),
        offsets=3,
        records=2,
        quarantined=1,
        rounds=1,
        table_version=4,
    )
    other = Decoded(plans=SpanSet.of_numbers([2]), removed=4, rounds=1)
    both = one + other
    assert both == Decoded(
        plans=SpanSet.of([Span(1, 3)]),
        offsets=3,
        records=2,
        quarantined=1,
        removed=4,
        rounds=2,
        table_version=4,
    )
    assert (both + Decoded(table_version=5)).table_version == 5
    assert both.as_record() == {
        "plans": [1, 2],
        "records": 2,
        "quarantined": 1,
        "removed": 4,
        "table_version": 4,
    }
