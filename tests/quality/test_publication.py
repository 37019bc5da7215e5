"""Publication of plans by checks and operators, on real tables read by DuckDB and Spark."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.file_lake import FileLake, put_back
from tests.support.quality_reports import REPORT
from tests.support.services import NOW
from tidemark.core.offsets import Span, SpanSet
from tidemark.ingest.errors import PlanCancelled, UnknownPlan
from tidemark.quality.check_results import BatchRef, QualityReport, RecordedRange, Severity
from tidemark.quality.errors import NotBlocked, PlanReplaced
from tidemark.quality.publication import PublicationDecision, PublicationStatus, effective_decisions
from tidemark.quality.publication_service import Publication
from tidemark.quality.publication_table import DeltaPublicationTable, Engine, published_view
from tidemark.quality.service import Quality
from tidemark.repair.errors import PlanNotLanded

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


def table_of(lake: FileLake) -> DeltaPublicationTable:
    """Return the publication table."""
    return lake.publication


def publication_of(lake: FileLake, minutes: int = 0) -> Publication:
    """Return the publication at a time some minutes from now."""
    return Publication(
        pipeline="events",
        control=lake.control,
        data_log=lake.table,
        publication=table_of(lake),
        now=lambda: NOW + timedelta(minutes=minutes),
    )


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
    minutes: int = 0,
    during: Callable[[], object] = lambda: None,
) -> None:
    """Check a plan at a time some minutes after the start of the test."""
    Quality(
        spec=lake.spec,
        data_table=str(lake.uri),
        data_log=lake.table,
        control=lake.control,
        checker=FixedResult(passed, severity, during=during),
        publication=table_of(lake),
        now=lambda: NOW + timedelta(minutes=minutes),
    ).check(plan)


def test_a_failed_check_hides_a_plan_that_a_clock_ahead_has_published(lake: FileLake) -> None:
    """The decisions of other plans stay."""
    check(lake, 1, passed=True, minutes=5)
    check(lake, 1, passed=False, minutes=1)
    assert published_rows(lake) == [(0, offset) for offset in (5, 6, 7, 8)]


@pytest.mark.parametrize("minutes", [0, 1, 60])
@pytest.mark.parametrize("later_passes", [True, False])
def test_of_two_checks_at_the_same_time_the_one_that_blocks_wins(
    lake: FileLake, later_passes: bool, minutes: int
) -> None:
    """Their clocks may differ. The next check decides."""

    def later() -> None:
        check(lake, 1, passed=later_passes, minutes=1)

    check(lake, 1, passed=not later_passes, minutes=minutes, during=later)
    assert not publication_of(lake).of(1).is_published
    check(lake, 1, passed=True)
    assert publication_of(lake).of(1).is_published


def test_a_plan_is_unchecked_until_a_check_or_an_operator_decides(lake: FileLake) -> None:
    """Open plans and undone plans have no rows to check."""
    assert publication_of(lake).unchecked() == []
    for records in (2, 3, 1):
        lake.run(records)
    lake.plan(1)
    assert publication_of(lake).unchecked() == [4, 5, 6]
    check(lake, 5, passed=False)
    publication_of(lake).release(6, "test", "checked by hand")
    assert publication_of(lake).unchecked() == [4]
    lake.undo.undo(4, "test", "wrong")
    assert publication_of(lake).unchecked() == []


def published_rows(lake: FileLake) -> list[tuple[int, int]]:
    """Return partition and offset of the rows in the published view, read by DuckDB."""
    sql = published_view("events", str(lake.uri), str(lake.root / "publication"), Engine.DUCKDB)
    named = re.sub(r"delta_scan\('[^']*/(\w+)'\)", r"\1", sql)
    with duckdb.connect() as connection:
        for uri in (lake.uri, lake.root / "publication"):
            connection.register(uri.name, pa.table(DeltaTable(uri).scan()))
        rows = connection.execute(f'SELECT "partition", "offset" FROM ({named}) ORDER BY ALL')
        decisions = effective_decisions(table_of(lake).decisions("events"))
        assert table_of(lake).statuses("events") == {
            plan: decision.status for plan, decision in decisions.items()
        }
        return rows.fetchall()


def test_a_blocked_range_is_hidden_and_later_plans_are_published(lake: FileLake) -> None:
    """Plan 2 has offsets 2 to 4."""
    assert published_rows(lake) == [(0, offset) for offset in (0, 1, 5, 6, 7, 8)]
    assert table_of(lake).statuses("events", [2, 9]) == {2: PublicationStatus.BLOCKED}
    assert table_of(lake).statuses("events", []) == {}
    plans = publication_of(lake).plans()
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
    check(lake, 2, passed=False, severity=Severity.WARNING, minutes=1)
    assert published_rows(lake) == [(0, offset) for offset in range(9)]
    decision = publication_of(lake).plans()[1].decision
    assert decision is not None
    assert (decision.status, decision.reason) == (PublicationStatus.PUBLISHED, None)


def test_an_unchecked_plan_is_not_published_until_an_operator_releases_it(lake: FileLake) -> None:
    """A plan that can no longer be checked can be released, too."""
    lake.run(2)
    assert (0, 9) not in published_rows(lake)
    assert publication_of(lake).plans()[-1].decision is None
    publication_of(lake).release(4, "ann", "its version is no longer readable")
    assert (0, 9) in published_rows(lake)


def test_an_operators_decision_overrides_later_checks(lake: FileLake) -> None:
    """The next operator's decision replaces it."""
    publication_of(lake, 1).release(2, "ann", "the currency is new")
    check(lake, 2, passed=False, minutes=2)
    assert len(published_rows(lake)) == 9
    publication_of(lake, 3).reject(2, "bob", "it is not")
    check(lake, 2, passed=True, minutes=4)
    assert len(published_rows(lake)) == 6
    decision = publication_of(lake).plans()[1].decision
    assert decision is not None
    assert (decision.status, decision.decided_by, decision.reason) == (
        PublicationStatus.REJECTED,
        "bob",
        "it is not",
    )
    publication_of(lake, 5).release(2, "ann", "it is")
    assert len(published_rows(lake)) == 9
    assert len(table_of(lake).decisions("events")) == 3 + 5


def test_the_newest_check_decides(lake: FileLake) -> None:
    """The check that started last is the newest, also with a clock that is behind."""
    check(lake, 2, passed=True, minutes=-1)
    assert len(published_rows(lake)) == 9
    check(lake, 2, passed=False, minutes=-2)
    assert len(published_rows(lake)) == 6


def test_a_dry_run_of_a_decision_records_nothing(lake: FileLake) -> None:
    drafted = publication_of(lake).release(2, "ann", "why", dry_run=True)
    assert drafted.is_published
    publication_of(lake).reject(1, "ann", "why", dry_run=True)
    assert len(table_of(lake).decisions("events")) == 3


def test_deciding_about_published_unknown_open_or_undone_plans_is_an_error(lake: FileLake) -> None:
    """Each state has its own error."""
    with pytest.raises(NotBlocked, match="already published"):
        publication_of(lake).release(1, "ann", "why")
    with pytest.raises(UnknownPlan):
        publication_of(lake).release(9, "ann", "why")
    lake.plan(1)
    for decide in (publication_of(lake).release, publication_of(lake).reject):
        with pytest.raises(PlanNotLanded):
            decide(4, "ann", "why")
    lake.ingest.execute(4)
    lake.undo.undo(2, "ann", "it was wrong")
    with pytest.raises(PlanCancelled):
        publication_of(lake).release(2, "ann", "why")
    assert [each.plan.sequence for each in publication_of(lake).plans()] == [1, 3, 4]
    assert len(table_of(lake).decisions("events")) == 3


def test_the_replacement_of_a_blocked_plan_needs_its_own_check(lake: FileLake) -> None:
    """The view shows no offset twice and no replaced row."""
    plan = lake.land_again((0, 2, 5))
    assert len(published_rows(lake)) == 6
    check(lake, plan.sequence, passed=True, minutes=1)
    assert published_rows(lake) == [(0, offset) for offset in range(9)]
    publication_of(lake).reject(1, "ann", "why")
    assert published_rows(lake) == [(0, offset) for offset in range(2, 9)]


def test_rows_of_an_open_replacement_are_not_listed_as_published(lake: FileLake) -> None:
    """The view does not show them. The ledger has the earlier plans until the plan is recorded."""
    plan = lake.commit_again((0, 1, 4))
    assert published_rows(lake) == [(0, 0), *((0, offset) for offset in range(5, 9))]
    first, second, third = publication_of(lake).plans()
    assert first.replaced == {0: SpanSet.of([Span(1, 2)])}
    assert first.as_record()["replaced"] == [[0, 1, 2]]
    assert [each.is_published for each in (first, second, third)] == [False, False, True]
    hidden = publication_of(lake).hidden()
    topic_id = first.plan.topic_id
    assert hidden.unchecked == {topic_id: {0: SpanSet.of([Span(1, 4)])}}
    assert hidden.refused == {topic_id: {0: SpanSet.of([Span(4, 5)])}}
    assert not publication_of(lake).of(3).replaced
    assert publication_of(lake).of(1).replaced == first.replaced
    lake.ingest.execute(plan.sequence)
    assert [each.replaced for each in publication_of(lake).plans()] == [{}, {}, {}, {}]


def test_offsets_that_a_restore_brought_back_need_their_own_decision(lake: FileLake) -> None:
    """The decision covered the rest of the plan."""
    before = DeltaTable(lake.uri).version()
    lake.land_again((0, 3, 4))
    check(lake, 2, passed=True, minutes=1)
    assert published_rows(lake) == [(0, offset) for offset in range(9) if offset != 3]
    DeltaTable(lake.uri).restore(before)
    lake.repair.rewind("ann", "a mistake")
    assert published_rows(lake) == [(0, offset) for offset in range(9) if offset != 3]
    back = publication_of(lake).plans()[1]
    assert (back.is_published, back.unchecked) == (False, {0: SpanSet.of([Span(3, 4)])})
    assert back.as_record()["unchecked"] == [[0, 3, 4]]
    assert publication_of(lake).decision_of(lake.control.ledger("events").plans[2]) is None
    assert publication_of(lake).unchecked() == [2]
    assert publication_of(lake, 2).release(2, "ann", "it is right").is_published
    assert published_rows(lake) == [(0, offset) for offset in range(9)]


def test_a_check_is_not_repeated_for_offsets_that_only_an_operator_can_decide(
    lake: FileLake,
) -> None:
    """A check cannot override the operator, whose decision covered the rest of the plan."""
    before = DeltaTable(lake.uri).version()
    lake.land_again((0, 3, 4))
    publication_of(lake).release(2, "ann", "it is right")
    check(lake, 4, passed=True, minutes=1)
    DeltaTable(lake.uri).restore(before)
    lake.repair.rewind("ann", "a mistake")
    check(lake, 2, passed=True, minutes=2)
    assert not publication_of(lake).of(2).is_published
    assert publication_of(lake).unchecked() == []
    assert publication_of(lake, 3).release(2, "ann", "it is right").is_published


def test_decisions_are_separate_by_pipeline_and_combine_the_ranges_of_a_plan(
    lake: FileLake,
) -> None:
    """Two pipelines have a plan 2."""
    assert table_of(lake).decisions("other") == []
    assert [decision.plan for decision in table_of(lake).decisions("events", 2)] == [2]
    assert (
        DeltaPublicationTable(str(lake.root / "nowhere"), str(lake.uri)).decisions("events") == []
    )
    lake.kafka.produce("events", 1, 5, timestamp_ms=1_000)
    plan = lake.run(2)
    check(lake, plan.sequence, passed=True)
    assert len(effective_decisions(table_of(lake).decisions("events"))) == 4
    rows = pa.table(DeltaTable(lake.root / "publication").scan()).to_pylist()
    ranges = [(row["partition"], row["start_offset"], row["end_offset"], row["records"])
              for row in rows if row["plan_sequence"] == 4]  # fmt: skip
    assert sorted(ranges) == [(0, 9, 11, 2), (1, 0, 5, 5)]


def test_the_last_of_two_decisions_wins_despite_a_slow_clock(lake: FileLake) -> None:
    """The second operator's clock is two minutes behind."""
    publication_of(lake, 5).release(2, "ann", "it is right")
    assert not publication_of(lake, 3).reject(2, "bob", "it is not").is_published
    assert len(published_rows(lake)) == 6


def test_a_recreated_data_table_has_no_decisions(lake: FileLake) -> None:
    """Its plans have the same numbers."""
    publication_of(lake).reject(3, "ann", "test data")
    shutil.rmtree(lake.uri)
    shutil.rmtree(lake.root / "control")
    lake.run(1)
    assert published_rows(lake) == []
    assert [each.decision for each in publication_of(lake).plans()] == [None]
    check(lake, 1, passed=True)
    assert published_rows(lake) == [(0, offset) for offset in range(10)]


def test_a_check_of_a_removed_data_table_does_not_publish_the_recreated_one(lake: FileLake) -> None:
    """The operator removes both tables during the check, and the new plan has the same number."""

    def recreate() -> None:
        shutil.rmtree(lake.uri)
        shutil.rmtree(lake.root / "control")
        lake.run(1)

    check(lake, 1, passed=True, during=recreate)
    assert publication_of(lake).unchecked() == [1]
    assert published_rows(lake) == []
    check(lake, 1, passed=True)
    assert published_rows(lake) == [(0, offset) for offset in range(10)]


@pytest.mark.parametrize("preview", [True, False])
def test_a_plan_never_gets_the_number_of_a_decided_plan_that_a_backup_lacks(
    lake: FileLake, tmp_path: Path, preview: bool
) -> None:
    """Bronze and control table come from one backup, so no repair is due. Decisions are newer."""
    tables = [lake.uri, lake.control_uri]
    for number, table in enumerate(tables):
        shutil.copytree(table, tmp_path / f"copy {number}")
    lake.run(2)
    publication_of(lake).release(4, "ann", "looks right")
    for number, table in enumerate(tables):
        put_back(tmp_path / f"copy {number}", table)
    lake.produce(3, 0)
    plan = lake.planner.preview().plan if preview else lake.run(1)
    assert plan is not None
    assert plan.sequence == 5
    if preview:
        return
    assert publication_of(lake).unchecked() == [5]
    assert published_rows(lake) == [(0, offset) for offset in (0, 1, 5, 6, 7, 8)]
    check(lake, 5, passed=False)
    assert publication_of(lake).hidden().refused.keys() == {plan.topic_id}
    lake.run(1)
    assert lake.verified() == [(16, 16)]


def test_a_partly_replaced_plan_stays_blocked_and_can_be_released(lake: FileLake) -> None:
    """A plan without remaining rows cannot be released."""
    for name, span in (("part", (0, 2, 3)), ("rest", (0, 3, 5))):
        lake.land_again(span, requested_by=name)
        plans = {each.plan.sequence: each for each in publication_of(lake).plans()}
        if name == "part":
            assert (plans[2].landing.records, plans[2].is_published) == (2, False)
            assert publication_of(lake).release(2, "ann", "why", dry_run=True).landing.records == 2
    assert sorted(plans) == [1, 3, 4, 5]
    with pytest.raises(PlanReplaced):
        publication_of(lake).release(2, "ann", "why")


_decisions = st.builds(
    PublicationDecision,
    plan=st.integers(1, 2),
    status=st.sampled_from(PublicationStatus),
    decided_at=st.integers(0, 2).map(lambda minutes: NOW + timedelta(minutes=minutes)),
    decided_by=st.sampled_from([None, "ann", "bob"]),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(_decisions, max_size=6))
def test_the_view_and_the_command_agree_about_effective_decisions(
    decisions: list[PublicationDecision],
) -> None:
    """SQL and Python apply the same rule, even to ties."""
    partition = {"topic_id": "id", "partition": 0}
    columns = ["plan_sequence", "status", "decided_at", "decided_by"]
    values = [(w.plan, str(w.status), w.decided_at, w.decided_by) for w in decisions]
    sql = published_view("p", "/none/rows", "/none/publication", Engine.DUCKDB)
    named = re.sub(r"delta_scan\('[^']*/(\w+)'\)", r"\1", sql)
    table = pa.table(
        {
            **{name: [row[n] for row in values] for n, name in enumerate(columns)},
            "pipeline": ["p"] * len(decisions),
            "table_id": [""] * len(decisions),
            **{name: [value] * len(decisions) for name, value in partition.items()},
            "start_offset": [0] * len(decisions),
            "end_offset": [1] * len(decisions),
        },
        pa.schema(
            [
                *{("plan_sequence", pa.int64()), ("status", pa.string())},
                ("decided_at", pa.timestamp("us", tz="UTC")),
                *{
                    ("decided_by", pa.string()),
                    ("pipeline", pa.string()),
                    ("table_id", pa.string()),
                },
                *{("topic_id", pa.string()), ("partition", pa.int32())},
                *{("start_offset", pa.int64()), ("end_offset", pa.int64())},
            ]
        ),
    )
    with duckdb.connect() as connection:
        connection.register("publication", table)
        rows = [{"plan_sequence": plan, "offset": 0, **partition} for plan in (1, 2)]
        connection.register("rows", pa.Table.from_pylist(rows))
        shown = connection.execute(f"SELECT plan_sequence FROM ({named}) ORDER BY 1").fetchall()
    counted = effective_decisions(decisions).items()
    assert [plan for (plan,) in shown] == [
        n for n, decision in counted if decision.status.is_visible
    ]


def test_concurrent_decisions_are_all_recorded(lake: FileLake, tmp_path: Path) -> None:
    """The table does not exist yet, and one of the writers creates it."""
    table = DeltaPublicationTable(str(tmp_path / "new"), str(lake.uri))
    record = lake.ledger.plans[1]
    assert record.held_now is not None
    landing = record.held_now
    decision = PublicationDecision(plan=1, status=PublicationStatus.PUBLISHED, decided_at=NOW)
    with ThreadPoolExecutor(6) as threads:
        decided_by = [replace(decision, decided_by=str(number)) for number in range(6)]
        table_id = table.table_id()
        list(
            threads.map(
                lambda each: table.append(record.plan, landing, each, table_id=table_id),
                decided_by,
            )
        )
    assert len(table.decisions("events")) == 6


@pytest.mark.spark
def test_spark_reads_the_published_view(lake: FileLake, spark: SparkSession) -> None:
    """Spark runs the query that `tidemark publication view` prints."""
    sql = published_view("events", str(lake.uri), str(lake.root / "publication"), Engine.SPARK)
    assert sorted(row["offset"] for row in spark.sql(sql).collect()) == [0, 1, 5, 6, 7, 8]
