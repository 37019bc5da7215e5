"""A typed table has the rows of the published view; on real tables with real decisions."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.quality.test_publication import check, published_rows
from tests.silver.typed.test_following import once
from tests.support.follow_lake import Follower
from tests.support.typed_lake import FileDecoder, TypedLake
from tidemark.core.publication import PublishRule
from tidemark.silver.typed.state import DecodeBacklog

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path) -> TypedLake:
    """Three plans of two, three and four records have landed, and none is checked."""
    lake = TypedLake(root=tmp_path, publish=PublishRule.CHECKED)
    for records in (2, 3, 4):
        lake.bronze.run(records)
    return lake


def offsets(lake: TypedLake) -> list[int]:
    """Return the decoded offsets of partition 0."""
    return [offset for _, offset, _ in lake.decoded()]


def check_plans(lake: TypedLake, failed: int | None = None) -> None:
    """Check the plans 1, 2 and 3; block the failed plan and publish the others."""
    for sequence in (1, 2, 3):
        check(lake.bronze, sequence, passed=sequence != failed)


def test_landed_records_wait_for_their_check(lake: TypedLake) -> None:
    """The backlog counts waiting records separately, so that users see the cause."""
    assert lake.run() == []
    assert lake.part.backlog() == DecodeBacklog(unchecked=9)
    assert lake.part.backlog().offsets == 0
    check(lake.bronze, 2, passed=True)
    assert lake.part.backlog() == DecodeBacklog(missing=3, unchecked=6)
    assert lake.run() == [2]
    assert offsets(lake) == [2, 3, 4]


def test_a_blocked_plan_is_decoded_after_its_release(lake: TypedLake) -> None:
    """Until then, only other plans are decoded."""
    check_plans(lake, failed=2)
    assert lake.run() == [1, 3]
    assert offsets(lake) == [0, 1, 5, 6, 7, 8]
    assert lake.part.backlog() == DecodeBacklog(refused=3)
    lake.bronze.publication.release(2, "test", "checked by hand")
    assert lake.run() == [2]
    assert offsets(lake) == list(range(9))


def test_the_rows_of_a_rejected_plan_leave_the_typed_table(lake: TypedLake) -> None:
    """Rows that were decoded together with them stay."""
    check_plans(lake)
    lake.run()
    lake.bronze.publication.reject(2, "test", "wrong unit")
    assert lake.part.backlog() == DecodeBacklog(surplus=3, refused=3)
    assert lake.run() == []
    assert offsets(lake) == [0, 1, 5, 6, 7, 8]


def test_lost_decisions_remove_no_typed_row(lake: TypedLake) -> None:
    """The next checks decide again; a rejection still removes rows."""
    check_plans(lake)
    lake.run()
    shutil.rmtree(lake.bronze.control_uri)
    lake.bronze.repair.rebuild("ops", "the control table was lost")
    assert lake.part.backlog() == DecodeBacklog(unchecked=9, quarantine_behind=True)
    assert lake.run() == []
    assert lake.part.backlog() == DecodeBacklog(unchecked=9)
    assert offsets(lake) == list(range(9))
    check_plans(lake, failed=2)
    lake.run()
    assert offsets(lake) == [0, 1, 5, 6, 7, 8]


def test_rows_of_unchecked_plans_stay_when_a_decode_begins_to_follow_decisions(
    lake: TypedLake,
) -> None:
    """They were decoded under `publish: always`. Offsets that landed again since are removed."""
    lake.publish = PublishRule.ALWAYS
    lake.run()
    lake.publish = PublishRule.CHECKED
    assert lake.run() == []
    assert offsets(lake) == list(range(9))
    lake.bronze.land_again((0, 2, 5))
    lake.run()
    assert offsets(lake) == [0, 1, 5, 6, 7, 8]


def _reject(lake: TypedLake) -> None:
    lake.bronze.publication.reject(2, "test", "wrong unit")


def _replace(lake: TypedLake) -> None:
    lake.bronze.land_again((0, 0, 2))


def _undo(lake: TypedLake) -> None:
    lake.bronze.undo.undo(1, "test", "wrong")


@pytest.mark.parametrize("refuse", [_reject, _replace, _undo])
def test_offsets_that_are_refused_during_a_decode_are_not_committed(
    lake: TypedLake, refuse: Callable[[TypedLake], None]
) -> None:
    """The decoder has read them before. The same decode commits the others."""
    check_plans(lake)
    follower = Follower(lake, FileDecoder(lake), publish=PublishRule.CHECKED)
    once(follower, "decoded", lambda: refuse(lake))
    assert follower.decode() == 1
    assert offsets(lake) == [offset for _, offset in published_rows(lake.bronze)]


def test_replaced_rows_leave_the_typed_table_until_the_new_rows_are_checked(
    lake: TypedLake,
) -> None:
    """The published view does not show them either. The new rows may be wrong."""
    check_plans(lake)
    lake.run()
    first, second = lake.bronze.land_again((0, 0, 2)), lake.bronze.land_again((0, 5, 9))
    lake.run()
    assert offsets(lake) == [2, 3, 4]
    check(lake.bronze, first.sequence, passed=True)
    check(lake.bronze, second.sequence, passed=False)
    lake.run()
    assert offsets(lake) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("decoded_before", [False, True])
@pytest.mark.parametrize("passed", [False, True])
def test_rows_of_a_replacement_wait_for_their_check(
    lake: TypedLake, decoded_before: bool, passed: bool
) -> None:
    """Replaced rows that were decoded before stay until the replacement is recorded."""
    check_plans(lake)
    if decoded_before:
        lake.run()
    sequence = lake.bronze.commit_again((0, 2, 5)).sequence
    check(lake.bronze, lake.bronze.run(2).sequence, passed=True)
    lake.run()
    others = [0, 1, *range(5, 11)]
    assert offsets(lake) == (list(range(11)) if decoded_before else others)
    lake.bronze.ingest.execute(sequence)
    lake.run()
    assert offsets(lake) == others
    assert lake.part.backlog() == DecodeBacklog(unchecked=3)
    check(lake.bronze, sequence, passed=passed)
    lake.run()
    assert offsets(lake) == (list(range(11)) if passed else others)
