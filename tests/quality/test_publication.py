"""Publication of plans by checks and operators, on real tables read by DuckDB and Spark."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.file_lake import FileLake, put_back
from tests.support.plans import make_plan
from tests.support.quality_reports import REPORT
from tests.support.services import NOW
from tidemark.bronze.ingest.errors import PlanCancelled, PlanStillOpen
from tidemark.bronze.ingest.ledgers import recorded_plan
from tidemark.bronze.repair.errors import NothingToDo
from tidemark.core.errors import InvalidSelection, TableBehindLedger
from tidemark.core.event_rows import decode, encode
from tidemark.core.events import ControlEvent, Planned, PublicationDecided
from tidemark.core.ledger import CheckedLedger, Ledger
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.publication import PublicationStatus
from tidemark.delta.control_table import COLUMNS, DeltaControlTable
from tidemark.delta.errors import ControlConflict
from tidemark.delta.published_view import Engine, published_view
from tidemark.delta.table_io import arrow_table
from tidemark.quality.check_results import BatchRef, QualityReport, RecordedRange, Severity
from tidemark.quality.publication_service import PlanPublication
from tidemark.quality.service import Quality

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Land plans of two, three and four records; the check of the second one failed."""
    lake = FileLake(root=tmp_path)
    for records in (2, 3, 4):
        lake.run(records)
    for plan, passed in ((1, True), (2, False), (3, True)):
        check(lake, plan, passed=passed)
    return lake


def status_of(lake: FileLake, plan: int) -> PublicationStatus | None:
    """Return the effective publication status of a plan; None without a decision."""
    return lake.control.publication_statuses("events").get(plan)


def publication_of(lake: FileLake, plan: int) -> PlanPublication:
    record = recorded_plan(lake.control, "events", plan)
    return lake.publication.of_record(record)


def decisions_of(lake: FileLake) -> int:
    """Return the number of recorded decisions."""
    rows = pa.table(DeltaTable(lake.control_uri).scan()).to_pylist()
    return len({row["event_number"] for row in rows if row["event"] == "publication_decided"})


@dataclass(frozen=True)
class FixedResult:
    """A checker with a fixed result."""

    passed: bool
    severity: Severity
    during: Callable[[], object] = lambda: None

    def check(
        self,
        ref: BatchRef,
        expected: Sequence[RecordedRange],  # noqa: ARG002
        suite: str | None,  # noqa: ARG002
        run_at: datetime,
    ) -> QualityReport:
        """Return a report with the fixed result, after a call of `during`."""
        self.during()
        (result,) = REPORT.results
        return replace(
            REPORT,
            pipeline=ref.pipeline,
            plan_sequence=ref.plan_sequence,
            run_at=run_at,
            results=(replace(result, passed=self.passed, severity=self.severity),),
        )

    def record(self, report: QualityReport) -> None:
        """Store nothing."""


def check(
    lake: FileLake,
    plan: int,
    *,
    passed: bool,
    severity: Severity = Severity.CRITICAL,
    during: Callable[[], object] = lambda: None,
) -> None:
    """Check a plan."""
    Quality(
        spec=lake.spec,
        data_table=str(lake.uri),
        ports=lake.pipeline.bronze.ports,
        checker=FixedResult(passed, severity, during=during),
    ).check(plan)


@pytest.mark.parametrize("later_passes", [True, False])
def test_of_two_checks_at_the_same_time_the_one_that_blocks_wins(
    lake: FileLake, later_passes: bool
) -> None:
    """The inner check begins later and ends first. The next check decides."""

    def later() -> None:
        check(lake, 1, passed=later_passes)

    check(lake, 1, passed=not later_passes, during=later)
    assert not publication_of(lake, 1).is_published
    check(lake, 1, passed=True)
    assert publication_of(lake, 1).is_published


def test_of_racing_checks_the_one_that_blocks_wins(lake: FileLake) -> None:
    """Both have read the ledger before either of them records its decision."""
    for _ in range(4):
        both = Barrier(2)
        with ThreadPoolExecutor(2) as threads:
            checks = [
                threads.submit(check, lake, 1, passed=passed, during=both.wait)
                for passed in (True, False)
            ]
            for each in checks:
                each.result()
        assert status_of(lake, 1) is PublicationStatus.BLOCKED
        check(lake, 1, passed=True)
        assert status_of(lake, 1) is PublicationStatus.PUBLISHED


def test_events_of_other_plans_during_a_check_do_not_change_its_decision(lake: FileLake) -> None:
    """A block that was recorded before the check began counts no longer."""

    def others() -> None:
        check(lake, 3, passed=False)
        lake.run(2)

    check(lake, 2, passed=True, during=others)
    assert [status_of(lake, plan) for plan in (2, 3)] == ["published", "blocked"]


def test_a_plan_that_is_undone_during_its_check_gets_no_decision(lake: FileLake) -> None:
    def undo() -> None:
        lake.undo.undo(2, "ops", "wrong")

    with pytest.raises(PlanCancelled):
        check(lake, 2, passed=True, during=undo)
    assert decisions_of(lake) == 3


def test_a_rejection_during_a_check_stays(lake: FileLake) -> None:
    check(lake, 1, passed=True, during=lambda: lake.publication.reject(1, "ann", "why"))
    assert status_of(lake, 1) is PublicationStatus.REJECTED


def test_nothing_is_decided_about_a_table_with_another_history(lake: FileLake) -> None:
    """Its rows may be those of another plan of the same number."""
    shutil.rmtree(lake.uri)
    for decide in (lake.publication.release, lake.publication.reject):
        with pytest.raises(TableBehindLedger):
            decide(2, "ann", "why")
    with pytest.raises(TableBehindLedger):
        check(lake, 2, passed=True)
    assert decisions_of(lake) == 3


def test_a_release_whose_answer_was_lost_is_recorded_once(
    lake: FileLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage repeats the commit, which conflicts with itself."""
    append = DeltaControlTable.append

    def lost(
        table: DeltaControlTable,
        ledger: CheckedLedger,
        events: Sequence[ControlEvent],
        recorded_at: datetime,
    ) -> None:
        append(table, ledger, events, recorded_at)
        raise ControlConflict(pipeline=ledger.pipeline, event_number=ledger.event_number + 1)

    with monkeypatch.context() as patched:
        patched.setattr(DeltaControlTable, "append", lost)
        released = lake.publication.release(2, "cli:ann:1", "it is right")
    assert released.is_published
    assert decisions_of(lake) == 4


def test_a_plan_is_unchecked_until_a_check_or_an_operator_decides(lake: FileLake) -> None:
    """Open plans and undone plans have no rows to check."""
    assert lake.publication.unchecked() == []
    for records in (2, 3, 1):
        lake.run(records)
    lake.plan(1)
    assert lake.publication.unchecked() == [4, 5, 6]
    check(lake, 5, passed=False)
    lake.publication.release(6, "test", "checked by hand")
    assert lake.publication.unchecked() == [4]
    lake.undo.undo(4, "test", "wrong")
    assert lake.publication.unchecked() == []


def published_rows(lake: FileLake) -> list[tuple[int, int]]:
    """Return partition and offset of the rows in the published view, read by DuckDB."""
    sql = published_view("events", str(lake.uri), str(lake.control_uri), Engine.DUCKDB)
    named = re.sub(r"delta_scan\('[^']*/(\w+)'\)", r"\1", sql)
    with duckdb.connect() as connection:
        for uri in (lake.uri, lake.control_uri):
            connection.register(uri.name, pa.table(DeltaTable(uri).scan()))
        rows = connection.execute(f'SELECT "partition", "offset" FROM ({named}) ORDER BY ALL')
        decisions = {number: each.decision for number, each in lake.ledger.plans.items()}
        assert lake.control.publication_statuses("events") == {
            plan: decision.status for plan, decision in decisions.items() if decision
        }
        return rows.fetchall()


def test_a_blocked_range_is_hidden_and_later_plans_are_published(lake: FileLake) -> None:
    """Plan 2 has offsets 2 to 4."""
    assert published_rows(lake) == [(0, offset) for offset in (0, 1, 5, 6, 7, 8)]
    plans = lake.publication.plans()
    assert [each.is_published for each in plans] == [True, False, True]
    assert plans[1].as_record() == {
        "plan": 2,
        "records": 3,
        "ranges": [[0, 2, 5]],
        "published": False,
        "unchecked": [],
        "replaced": [],
        "status": "blocked",
        "decided_at": NOW.isoformat(),
        "decided_by": None,
        "reason": "all counts match",
    }


def test_a_failed_warning_does_not_block_a_plan(lake: FileLake) -> None:
    """Only failed critical checks block."""
    check(lake, 2, passed=False, severity=Severity.WARNING)
    assert published_rows(lake) == [(0, offset) for offset in range(9)]
    decision = lake.publication.plans()[1].decision
    assert decision is not None
    assert (decision.status, decision.reason) == (PublicationStatus.PUBLISHED, None)


def test_an_unchecked_plan_is_not_published_until_an_operator_releases_it(lake: FileLake) -> None:
    """A plan that can no longer be checked can be released, too."""
    lake.run(2)
    assert (0, 9) not in published_rows(lake)
    assert lake.publication.plans()[-1].decision is None
    lake.publication.release(4, "ann", "its version is no longer readable")
    assert (0, 9) in published_rows(lake)


def test_an_operators_decision_overrides_later_checks(lake: FileLake) -> None:
    """The next operator's decision replaces it."""
    lake.publication.release(2, "ann", "the currency is new")
    check(lake, 2, passed=False)
    assert len(published_rows(lake)) == 9
    lake.publication.reject(2, "bob", "it is not")
    check(lake, 2, passed=True)
    assert len(published_rows(lake)) == 6
    decision = lake.publication.plans()[1].decision
    assert decision is not None
    assert (decision.status, decision.decided_by, decision.reason) == (
        PublicationStatus.REJECTED,
        "bob",
        "it is not",
    )
    lake.publication.release(2, "ann", "it is")
    assert len(published_rows(lake)) == 9
    assert decisions_of(lake) == 3 + 5


def test_the_newest_check_decides(lake: FileLake) -> None:
    check(lake, 2, passed=True)
    assert len(published_rows(lake)) == 9
    check(lake, 2, passed=False)
    assert len(published_rows(lake)) == 6


def test_a_dry_run_of_a_decision_records_nothing(lake: FileLake) -> None:
    drafted = lake.publication.release(2, "ann", "why", dry_run=True)
    assert drafted.is_published
    lake.publication.reject(1, "ann", "why", dry_run=True)
    assert decisions_of(lake) == 3


def test_deciding_about_published_unknown_open_or_undone_plans_is_an_error(lake: FileLake) -> None:
    """Each state has its own error."""
    with pytest.raises(NothingToDo, match="already published"):
        lake.publication.release(1, "ann", "why")
    with pytest.raises(InvalidSelection):
        lake.publication.release(9, "ann", "why")
    lake.plan(1)
    for decide in (lake.publication.release, lake.publication.reject):
        with pytest.raises(PlanStillOpen, match="has not landed"):
            decide(4, "ann", "why")
    lake.ingest.execute(4)
    lake.undo.undo(2, "ann", "it was wrong")
    with pytest.raises(PlanCancelled):
        lake.publication.release(2, "ann", "why")
    assert [each.plan.sequence for each in lake.publication.plans()] == [1, 3, 4]
    assert decisions_of(lake) == 3


def test_the_replacement_of_a_blocked_plan_needs_its_own_check(lake: FileLake) -> None:
    """The view shows no offset twice and no replaced row."""
    plan = lake.land_again((0, 2, 5))
    assert len(published_rows(lake)) == 6
    check(lake, plan.sequence, passed=True)
    assert published_rows(lake) == [(0, offset) for offset in range(9)]
    lake.publication.reject(1, "ann", "why")
    assert published_rows(lake) == [(0, offset) for offset in range(2, 9)]


def test_rows_of_an_open_replacement_are_not_listed_as_published(lake: FileLake) -> None:
    """The view does not show them. The ledger has the earlier plans until the plan is recorded."""
    plan = lake.commit_again((0, 1, 4))
    assert published_rows(lake) == [(0, 0), *((0, offset) for offset in range(5, 9))]
    first, second, third = lake.publication.plans()
    assert first.replaced == {0: SpanSet.of([Span(1, 2)])}
    assert first.as_record()["replaced"] == [[0, 1, 2]]
    assert [each.is_published for each in (first, second, third)] == [False, False, True]
    hidden = lake.publication.hidden()
    assert (hidden.unchecked, hidden.refused) == (3, 1)
    assert not publication_of(lake, 3).replaced
    assert publication_of(lake, 1).replaced == first.replaced
    lake.ingest.execute(plan.sequence)
    assert [each.replaced for each in lake.publication.plans()] == [{}, {}, {}, {}]


def test_offsets_that_a_restore_brought_back_need_their_own_decision(lake: FileLake) -> None:
    """The decision covered the rest of the plan."""
    before = DeltaTable(lake.uri).version()
    lake.land_again((0, 3, 4))
    check(lake, 2, passed=True)
    assert published_rows(lake) == [(0, offset) for offset in range(9) if offset != 3]
    DeltaTable(lake.uri).restore(before)
    lake.repair.rewind("ann", "a mistake")
    assert published_rows(lake) == [(0, offset) for offset in range(9) if offset != 3]
    back = lake.publication.plans()[1]
    assert (back.is_published, back.unchecked) == (False, {0: SpanSet.of([Span(3, 4)])})
    assert back.as_record()["unchecked"] == [[0, 3, 4]]
    assert lake.publication.unchecked() == [2]
    assert lake.publication.release(2, "ann", "it is right").is_published
    assert published_rows(lake) == [(0, offset) for offset in range(9)]


def test_a_check_is_not_repeated_for_offsets_that_only_an_operator_can_decide(
    lake: FileLake,
) -> None:
    """A check cannot override the operator, whose decision covered the rest of the plan."""
    before = DeltaTable(lake.uri).version()
    lake.land_again((0, 3, 4))
    lake.publication.release(2, "ann", "it is right")
    check(lake, 4, passed=True)
    DeltaTable(lake.uri).restore(before)
    lake.repair.rewind("ann", "a mistake")
    check(lake, 2, passed=True)
    assert not publication_of(lake, 2).is_published
    assert lake.publication.unchecked() == []
    assert lake.publication.release(2, "ann", "it is right").is_published


def test_a_decision_has_the_ranges_of_its_plan(lake: FileLake) -> None:
    lake.kafka.produce("events", 1, 5, timestamp_ms=1_000)
    plan = lake.run(2)
    check(lake, plan.sequence, passed=True)
    rows = pa.table(DeltaTable(lake.control_uri).scan()).to_pylist()
    ranges = [
        (row["topic_id"], row["partition"], row["start_offset"], row["end_offset"])
        for row in rows
        if (row["event"], row["plan_sequence"]) == ("publication_decided", plan.sequence)
    ]
    assert sorted(ranges) == [(plan.topic_id, 0, 9, 11), (plan.topic_id, 1, 0, 5)]


def test_recreated_tables_have_no_decisions(lake: FileLake) -> None:
    """Their plans have the same numbers."""
    lake.publication.reject(3, "ann", "test data")
    shutil.rmtree(lake.uri)
    shutil.rmtree(lake.root / "control")
    lake.run(1)
    assert published_rows(lake) == []
    assert [each.decision for each in lake.publication.plans()] == [None]
    check(lake, 1, passed=True)
    assert published_rows(lake) == [(0, offset) for offset in range(10)]


@pytest.mark.parametrize("runs", [1, 5])
def test_a_check_of_a_removed_data_table_does_not_publish_the_recreated_one(
    lake: FileLake, runs: int
) -> None:
    """The operator removes both tables during the check, and the new plan has the same number."""

    def recreate() -> None:
        shutil.rmtree(lake.uri)
        shutil.rmtree(lake.root / "control")
        for _ in range(runs):
            lake.run(1)

    with pytest.raises(ControlConflict):
        check(lake, 1, passed=True, during=recreate)
    assert lake.publication.unchecked() == list(range(1, runs + 1))
    assert published_rows(lake) == []
    check(lake, 1, passed=True)
    assert published_rows(lake) == [(0, offset) for offset in range(10)]


def test_a_plan_with_the_number_of_a_decided_plan_that_a_backup_lacks_is_unchecked(
    lake: FileLake, tmp_path: Path
) -> None:
    """Bronze and control table come from one backup, so no repair is due."""
    tables = [lake.uri, lake.control_uri]
    for number, table in enumerate(tables):
        shutil.copytree(table, tmp_path / f"copy {number}")
    lake.run(2)
    lake.publication.release(4, "ann", "looks right")
    for number, table in enumerate(tables):
        put_back(tmp_path / f"copy {number}", table)
    plan = lake.run(1)
    assert plan.sequence == 4
    assert lake.publication.unchecked() == [4]
    assert published_rows(lake) == [(0, offset) for offset in (0, 1, 5, 6, 7, 8)]
    check(lake, 4, passed=False)
    # Plans 2 and 4 have three records each.
    assert lake.publication.hidden().refused == 6
    lake.run(1)
    assert lake.verified() == [(13, 13)]


def test_no_decision_applies_to_the_plan_of_another_copy_with_the_same_number(
    lake: FileLake, tmp_path: Path
) -> None:
    """The control table is from one copy, the data table from another one.

    Both copies have a plan 4, of different offsets. The repair records the plan of the data table.
    """
    tables = {"bronze": lake.uri, "control": lake.control_uri}
    for name, table in tables.items():
        shutil.copytree(table, tmp_path / f"first {name}")
    lake.run(2)
    check(lake, 4, passed=True)
    shutil.copytree(lake.control_uri, tmp_path / "second control")
    for name, table in tables.items():
        put_back(tmp_path / f"first {name}", table)
    lake.run(3)
    put_back(tmp_path / "second control", lake.control_uri)
    lake.repair.rebuild("ann", "the copies differ")
    assert lake.ledger.plans[4].plan.size == 5
    assert lake.publication.unchecked() == [4]
    assert (0, 9) not in published_rows(lake)


def test_a_rebuilt_control_table_has_no_decisions(lake: FileLake) -> None:
    """All plans need a check, and rejected plans another decision of an operator."""
    lake.publication.reject(1, "ann", "test data")
    shutil.rmtree(lake.root / "control")
    lake.repair.rebuild("ann", "the control table was lost")
    assert published_rows(lake) == []
    assert lake.publication.unchecked() == [1, 2, 3]
    check(lake, 1, passed=True)
    assert published_rows(lake) == [(0, 0), (0, 1)]


def test_decisions_stay_after_a_rewind(lake: FileLake) -> None:
    """The repair begins a new epoch, and a RESTORE brings back the rows of an undone plan."""
    lake.publication.reject(3, "ann", "test data")
    before = DeltaTable(lake.uri).version()
    lake.undo.undo(1, "ann", "wrong")
    DeltaTable(lake.uri).restore(before)
    lake.repair.rewind("ann", "a mistake")
    assert published_rows(lake) == [(0, 0), (0, 1)]
    assert [status_of(lake, plan) for plan in (1, 2, 3)] == ["published", "blocked", "rejected"]


def test_a_partly_replaced_plan_stays_blocked_and_can_be_released(lake: FileLake) -> None:
    """A plan without remaining rows cannot be released."""
    for name, span in (("part", (0, 2, 3)), ("rest", (0, 3, 5))):
        lake.land_again(span, requested_by=name)
        plans = {each.plan.sequence: each for each in lake.publication.plans()}
        if name == "part":
            assert (plans[2].landing.records, plans[2].is_published) == (2, False)
            assert lake.publication.release(2, "ann", "why", dry_run=True).landing.records == 2
    assert sorted(plans) == [1, 3, 4, 5]
    with pytest.raises(InvalidSelection, match="have replaced all rows"):
        lake.publication.release(2, "ann", "why")


def _decision_about(sequence: int) -> st.SearchStrategy[PublicationDecided]:
    return st.builds(
        PublicationDecided,
        sequence=st.just(sequence),
        status=st.sampled_from(PublicationStatus),
        topic_id=st.just("id-1"),
        spans=st.sampled_from([{0: SpanSet.of([Span(0, 5)])}, {0: SpanSet.of([Span(1, 2)])}]),
        decided_by=st.sampled_from([None, "ann", "bob"]),
    )


_EVENTS = st.one_of(
    _decision_about(1),
    _decision_about(2),
    st.sampled_from([1, 2]).map(lambda each: Planned(plan=make_plan((0, 0, 5), sequence=each))),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(_EVENTS, max_size=8))
def test_the_view_and_the_ledger_agree_about_effective_decisions(
    events: list[ControlEvent],
) -> None:
    """SQL and Python apply the same rule, also to plans that are recorded again."""
    begun: list[ControlEvent] = [Planned(plan=make_plan((0, 0, 5), sequence=1))]
    control = [
        row for n, each in enumerate([*begun, *events], 1) for row in encode("p", n, NOW, [each])
    ]
    sql = published_view("p", "/none/rows", "/none/control", Engine.DUCKDB)
    named = re.sub(r"delta_scan\('[^']*/(\w+)'\)", r"\1", sql)
    rows = [
        {"plan_sequence": plan, "topic_id": "id-1", "partition": 0, "offset": offset}
        for plan in (1, 2)
        for offset in (0, 1)
    ]
    with duckdb.connect() as connection:
        connection.register("control", pa.table(arrow_table(control, COLUMNS)))
        connection.register("rows", pa.Table.from_pylist(rows))
        shown = connection.execute(f'SELECT plan_sequence, "offset" FROM ({named}) ORDER BY ALL')
        found = shown.fetchall()
    plans = Ledger.fold("p", decode("p", control)).plans
    assert found == [
        (number, offset)
        for number, record in sorted(plans.items())
        if record.decision and record.decision.status.is_visible
        for offset in (0, 1)
        if record.decision.spans[0].overlap_size(Span(offset, offset + 1))
    ]


def test_concurrent_decisions_are_all_recorded(lake: FileLake) -> None:
    with ThreadPoolExecutor(4) as threads:
        found = threads.map(
            lambda number: lake.publication.reject(2, f"cli:ann:{number}", "why"), range(4)
        )
        assert {each.decision.status for each in found if each.decision} == {"rejected"}
    assert decisions_of(lake) == 3 + 4


@pytest.mark.spark
def test_spark_reads_the_published_view(lake: FileLake, spark: SparkSession) -> None:
    """Spark runs the query that `tidemark publication view` prints."""
    sql = published_view("events", str(lake.uri), str(lake.control_uri), Engine.SPARK)
    assert sorted(row["offset"] for row in spark.sql(sql).collect()) == [0, 1, 5, 6, 7, 8]
