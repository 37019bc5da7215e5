"""Tests of the work that a driver gives to a job that decodes."""

from __future__ import annotations

import json

import pytest

from tidemark.core.decode_work import EVERY_PLAN, Decoded, DecodeWork
from tidemark.core.following import Batch
from tidemark.core.offsets import Span, SpanSet


@pytest.mark.parametrize(
    "work",
    [
        DecodeWork(),
        DecodeWork(plans=EVERY_PLAN),
        DecodeWork(
            plans=SpanSet.of_numbers([1, 2, 7]),
            replayed={Batch(7, "id-1"): {0: SpanSet.of([Span(3, 5), Span(8, 9)])}},
            schemas={"value": [1, 4]},
            oversized={"key": [9]},
        ),
    ],
)
def test_work_is_the_same_after_json(work: DecodeWork) -> None:
    assert DecodeWork.parsed(json.loads(json.dumps(work.as_record()))) == work


def test_results_of_rounds_are_added() -> None:
    one = Decoded(plans=SpanSet.of_numbers([1]), offsets=3, records=2, quarantined=1, rounds=1)
    other = Decoded(plans=SpanSet.of_numbers([2]), removed=4, rounds=1)
    assert one + other == Decoded(
        plans=SpanSet.of([Span(1, 3)]), offsets=3, records=2, quarantined=1, removed=4, rounds=2
    )
