"""A typed table has the rows of the published view; on real tables."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.quality.test_publication import check, published_rows
from tests.support.typed_lake import TypedLake
from tidemark.bronze.repair.errors import NothingToDo
from tidemark.core.datafile import DataFile
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import Plan
from tidemark.silver.typed.decoder import HiddenOffsets
from tidemark.silver.typed.errors import NoLongerPublished

pytestmark = pytest.mark.slow


def lake_of(root: Path) -> TypedLake:
    """A lake whose decoder follows publication decisions."""
    lake = TypedLake(root=root)
    return replace(lake, hidden=lambda: lake.bronze.publication.hidden())


@pytest.fixture
def lake(tmp_path: Path) -> TypedLake:
    """Three plans of two, three and four records have landed, and none is checked."""
    lake = lake_of(tmp_path)
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
    backlog = lake.decoding.backlog()
    assert (backlog.missing, backlog.unchecked, backlog.refused) == (0, 9, 0)
    assert backlog.offsets == 0
    check(lake.bronze, 2, passed=True)
    assert lake.decoding.backlog().missing == 3
    assert lake.run() == [1]
    assert offsets(lake) == [2, 3, 4]


def test_a_blocked_plan_is_decoded_after_its_release(lake: TypedLake) -> None:
    """Until then, only other plans are decoded."""
    check_plans(lake, failed=2)
    lake.run()
    assert offsets(lake) == [0, 1, 5, 6, 7, 8]
    backlog = lake.decoding.backlog()
    assert (backlog.missing, backlog.unchecked, backlog.refused) == (0, 0, 3)
    lake.bronze.publication.release(2, "test", "checked by hand")
    assert lake.run() == [2]
    assert offsets(lake) == list(range(9))


def test_the_rows_of_a_rejected_plan_leave_the_typed_table(lake: TypedLake) -> None:
    """Rows of other plans that were decoded together with them are decoded again."""
    check_plans(lake)
    assert lake.run() == [1]
    lake.bronze.publication.reject(2, "test", "wrong unit")
    assert lake.decoding.backlog().surplus == 3
    assert lake.run() == [2]
    assert offsets(lake) == [0, 1, 5, 6, 7, 8]


def test_an_open_typed_plan_of_a_rejected_plan_is_abandoned(lake: TypedLake) -> None:
    """A plan without the refused offsets takes its place."""
    check_plans(lake)
    assert lake.decoding.plan().plan is not None
    lake.bronze.publication.reject(3, "test", "wrong unit")
    second = lake.decoding.plan().plan
    assert second is not None
    assert (second.sequence, second.spans()) == (2, {0: SpanSet((Span(0, 5),))})


def test_rejecting_a_plan_keeps_the_rows_that_were_decoded_together_with_it(
    lake: TypedLake,
) -> None:
    """A plan replaces the rows of the other plans before the rejected rows are removed."""
    check_plans(lake)
    lake.run()
    lake.bronze.publication.reject(2, "test", "wrong unit")
    again = lake.decoding.plan().plan
    assert again is not None
    assert (again.replaces, again.spans()) == (True, {0: SpanSet((Span(0, 2), Span(5, 9)))})
    assert offsets(lake) == list(range(9))
    lake.ingest.execute(again.sequence)
    assert lake.decoding.plan().plan is None
    assert offsets(lake) == [0, 1, 5, 6, 7, 8]


def test_lost_decisions_remove_no_typed_row(lake: TypedLake) -> None:
    """The next checks decide again; a rejection still removes rows."""
    check_plans(lake)
    lake.run()
    shutil.rmtree(lake.bronze.control_uri)
    lake.bronze.repair.rebuild("ops", "the control table was lost")
    lake.repair.rebuild("ops", "the control table was lost")
    backlog = lake.decoding.backlog()
    assert (backlog.unchecked, backlog.surplus) == (9, 0)
    assert lake.run() == []
    assert offsets(lake) == list(range(9))
    check_plans(lake, failed=2)
    lake.run()
    assert offsets(lake) == [0, 1, 5, 6, 7, 8]


def test_rows_of_unchecked_plans_stay_when_a_decoder_begins_to_follow_decisions(
    tmp_path: Path,
) -> None:
    """They were decoded under `publish: always`. Offsets that landed again since are removed."""
    lake = TypedLake(root=tmp_path)
    for records in (2, 3, 4):
        lake.bronze.run(records)
    lake.run()
    lake.hidden = lambda: lake.bronze.publication.hidden()
    assert lake.run() == []
    assert offsets(lake) == list(range(9))
    lake.bronze.land_again((0, 2, 5))
    lake.run()
    assert 2 not in offsets(lake)


def _reject(lake: TypedLake) -> None:
    lake.bronze.publication.reject(2, "test", "wrong unit")


def _replace(lake: TypedLake) -> None:
    lake.bronze.land_again((0, 0, 2))


def _undo(lake: TypedLake) -> None:
    lake.bronze.undo.undo(1, "test", "wrong")


def _commit_replacement(lake: TypedLake) -> None:
    lake.bronze.commit_again((0, 0, 2))


@pytest.mark.parametrize("refuse", [_reject, _replace, _undo, _commit_replacement])
def test_offsets_that_are_refused_during_a_job_are_not_committed(
    lake: TypedLake, refuse: Callable[[TypedLake], None]
) -> None:
    """The job has read them before. The next run decodes the others."""
    check_plans(lake)
    plan = lake.decoding.plan().plan
    assert plan is not None

    class SinkWithRefusal:
        """Sink that refuses the offsets after it has written them."""

        def write(self, plan: Plan, records_per_task: int) -> list[DataFile]:
            written = list(lake.sink.write(plan, records_per_task))
            refuse(lake)
            return written

    with pytest.raises(NoLongerPublished):
        replace(lake.ingest, sink=SinkWithRefusal()).execute(plan.sequence)
    assert lake.typed.row_count() == 0
    lake.run()
    assert offsets(lake) == [offset for _, offset in published_rows(lake.bronze)]


def test_offsets_of_a_blocked_plan_that_is_undone_meanwhile_are_not_planned(
    lake: TypedLake,
) -> None:
    """The undo is between the reads of the ledger and of the decisions: both are read again."""
    check(lake.bronze, 1, passed=True)
    lake.run()
    for number, passed in ((2, False), (3, True)):
        check(lake.bronze, number, passed=passed)
    undone = iter([2])

    def hidden() -> HiddenOffsets:
        for number in undone:
            lake.bronze.undo.undo(number, "test", "wrong")
        return lake.bronze.publication.hidden()

    lake.hidden = hidden
    plan = lake.decoding.plan().plan
    assert plan is not None
    assert plan.spans() == {0: SpanSet((Span(5, 9),))}


def test_offsets_that_a_restore_brought_back_are_unchecked(lake: TypedLake) -> None:
    """The decision about their plan does not cover them, so the next check takes the plan."""
    check_plans(lake)
    version = lake.bronze.table.version_and_id()[0]
    lake.bronze.land_again((0, 2, 4))
    check(lake.bronze, 2, passed=True)
    DeltaTable(str(lake.bronze.uri)).restore(version)
    lake.bronze.repair.rewind("test", "restored")
    assert lake.bronze.publication.unchecked() == [2]


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
@pytest.mark.parametrize("lands_between", [False, True])
@pytest.mark.parametrize("passed", [False, True])
def test_rows_of_a_replacement_that_is_not_recorded_are_unchecked(
    lake: TypedLake, decoded_before: bool, lands_between: bool, passed: bool
) -> None:
    """A live plan that is recorded in between has a later version of the bronze table."""
    check_plans(lake)
    if decoded_before:
        lake.run()
    sequence = lake.bronze.commit_again((0, 2, 5)).sequence
    assert lake.decoding.backlog().unchecked == 3
    end = 9
    if lands_between:
        check(lake.bronze, lake.bronze.run(2).sequence, passed=True)
        end = 11
    lake.run()
    others = [0, 1, *range(5, end)]
    assert offsets(lake) == others
    lake.bronze.ingest.execute(sequence)
    lake.run()
    assert offsets(lake) == others
    assert lake.decoding.backlog().unchecked == 3
    check(lake.bronze, sequence, passed=passed)
    lake.run()
    assert offsets(lake) == (list(range(end)) if passed else others)


_ACTIONS = st.sampled_from(
    ["land", "pass", "fail", "release", "reject", "undo", "replace", "commit", "decode"]
)


_RANDOM = given(st.lists(st.tuples(_ACTIONS, st.integers(0, 10)), min_size=4, max_size=14))


def _examples(count: int) -> settings:
    return settings(
        max_examples=count,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@pytest.mark.e2e
@_examples(3)
@_RANDOM
def test_decoded_rows_are_the_rows_of_the_published_view(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    """This holds for any decisions of checks and operators, in any order."""
    _check_decoded(lake_of(tmp_path_factory.mktemp("lake")), actions)


@pytest.mark.faults
@_examples(20)
@_RANDOM
def test_decoded_rows_are_the_rows_of_the_published_view_in_many_orders(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    """The same with more examples."""
    _check_decoded(lake_of(tmp_path_factory.mktemp("lake")), actions)


def _check_decoded(lake: TypedLake, actions: list[tuple[str, int]]) -> None:
    lake.bronze.run(2)
    check(lake.bronze, 1, passed=True)
    lake.run()
    for action, number in actions:
        _act(lake, action, number)
    lake.run()
    assert offsets(lake) == [offset for _, offset in published_rows(lake.bronze)]
    assert lake.run() == []


def _act(lake: TypedLake, action: str, number: int) -> None:
    plans = lake.bronze.publication.plans()
    if action == "land" or not plans:
        lake.bronze.run(1 + number % 3)
        return
    chosen = plans[number % len(plans)]
    sequence, span = chosen.plan.sequence, chosen.landing.spans()[0].spans[0]
    if action in ("pass", "fail"):
        check(lake.bronze, sequence, passed=action == "pass")
    elif action == "reject":
        lake.bronze.publication.reject(sequence, "test", "wrong")
    elif action == "release":
        _ignoring(
            NothingToDo,
            lambda: lake.bronze.publication.release(sequence, "test", "fine"),
        )
    elif action == "undo":
        lake.bronze.undo.undo(sequence, "test", "wrong")
    elif action == "replace":
        _record_open(lake)
        lake.bronze.land_again((0, span.start, span.end))
    elif action == "commit":
        _record_open(lake)
        lake.bronze.commit_again((0, span.start, span.end))
    else:
        lake.run()


def _record_open(lake: TypedLake) -> None:
    """Record the replacement of a killed driver, because a second one would be refused."""
    for record in lake.bronze.control.ledger("events").open_plans():
        lake.bronze.ingest.execute(record.plan.sequence)


def _ignoring(error: type[Exception], act: Callable[[], object]) -> None:
    try:
        act()
    except error:
        return
