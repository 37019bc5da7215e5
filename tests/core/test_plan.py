"""Tests of plans: immutability, ranges, fingerprint and texts."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace

import pytest

from tests.support.plans import make_plan, make_range
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import PlanKind


def test_i4_plan_is_immutable() -> None:
    plan = make_plan((0, 0, 5))
    with pytest.raises(FrozenInstanceError):
        plan.sequence = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    "ranges", [(), ((1, 0, 5), (0, 0, 5)), ((0, 0, 5), (0, 4, 9)), ((0, 0, 5), (0, 5, 9))]
)
def test_plan_rejects_empty_unsorted_overlapping_and_adjacent_ranges(
    ranges: tuple[tuple[int, int, int], ...],
) -> None:
    with pytest.raises(ValueError, match="range"):
        make_plan(*ranges)


def test_fingerprint_covers_every_field_that_selects_records() -> None:
    """The requester is not part of the fingerprint."""
    plan = make_plan((0, 0, 5))
    others = [
        replace(plan, sequence=2),
        replace(plan, epoch=1),
        replace(plan, topic_id="id-2"),
        replace(plan, cluster_id="other"),
        replace(plan, kind=PlanKind.BACKFILL),
        replace(plan, ranges=(make_range(0, 0, 6),)),
    ]
    assert len({plan.fingerprint, *(other.fingerprint for other in others)}) == 1 + len(others)
    assert replace(plan, origin=RunOrigin("another requester")).fingerprint == plan.fingerprint


def test_backfill_plans_have_their_own_application_id() -> None:
    plan = make_plan((0, 0, 5))
    assert plan.app_id == "tidemark:events:0"
    assert replace(plan, kind=PlanKind.BACKFILL).app_id == "tidemark:events:0:backfill"


def test_commit_metadata_contains_fingerprint_and_ranges() -> None:
    plan = make_plan((0, 0, 5), (2, 7, 9))
    metadata = json.loads(plan.commit_metadata())
    assert metadata["fingerprint"] == plan.fingerprint
    assert metadata["ranges"] == [[0, 0, 5], [2, 7, 9]]


def test_explain_shows_every_range() -> None:
    text = make_plan((0, 0, 5), (2, 7_000, 9_000)).explain()
    assert "2,005 offsets in 2 ranges" in text
    assert "7,000" in text
    assert "9,000" in text
