"""What is published follows checks and people; on real tables, read by DuckDB and by Spark."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
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

from tests.support.file_lake import FileLake
from tests.support.quality_reports import REPORT
from tests.support.services import NOW
from tidemark.core.offsets import Span, SpanSet
from tidemark.ingest.errors import PlanAbandoned, UnknownPlan
from tidemark.quality.check_results import QualityReport, Severity, SliceExpectation, SliceRef
from tidemark.quality.errors import NotBlocked
from tidemark.quality.publication import Standing, Word, counting
from tidemark.quality.publication_service import Verdicts
from tidemark.quality.publication_table import DeltaVerdictTable, Engine, published_view
from tidemark.quality.service import Quality
from tidemark.repair.errors import PlanNotLanded
from tidemark.repair.undo import Undo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Three plans of two, three and four records have landed; the second was blocked."""
    lake = FileLake(root=tmp_path)
    for records in (2, 3, 4):
        lake.run(records)
    for plan, passed in ((1, True), (2, False), (3, True)):
        check(lake, plan, passed=passed)
    return lake


def said(lake: FileLake) -> DeltaVerdictTable:
    """The verdict table."""
    return DeltaVerdictTable(str(lake.root / "verdicts"), str(lake.uri))


def verdicts(lake: FileLake, minutes: int = 0) -> Verdicts:
    """Decides, some minutes from now."""
    return Verdicts(
        pipeline="events",
        control=lake.control,
        verdicts=said(lake),
        now=lambda: NOW + timedelta(minutes=minutes),
    )


@dataclass(frozen=True)
class Finds:
    """A checker that finds what a test says; nobody reads what it keeps."""

    passed: bool
    severity: Severity

    def check(
        self,
        ref: SliceRef,
        expected: Sequence[SliceExpectation],  # noqa: ARG002
        suite: str | None,  # noqa: ARG002
        run_at: datetime,
    ) -> QualityReport:
        """As `QualityChecker.check`."""
        (result,) = REPORT.results
        return replace(
            REPORT,
            pipeline=ref.pipeline,
            plan_sequence=ref.plan_sequence,
            run_at=run_at,
            results=(replace(result, passed=self.passed, severity=self.severity),),
        )

    def record(self, report: QualityReport) -> None:
        """As `QualityChecker.record`."""


def check(
    lake: FileLake,
    plan: int,
    *,
    passed: bool,
    severity: Severity = Severity.CRITICAL,
    minutes: int = 0,
) -> None:
    """Check a plan, some minutes from now."""
    Quality(
        spec=lake.spec,
        data_table=str(lake.uri),
        data_log=lake.table,
        control=lake.control,
        checker=Finds(passed, severity),
        verdicts=said(lake),
        now=lambda: NOW + timedelta(minutes=minutes),
    ).check(plan)


def test_a_plan_is_unchecked_until_a_check_or_an_operator_decides(lake: FileLake) -> None:
    """An open plan and an undone plan have no rows to check."""
    assert verdicts(lake).unchecked() == []
    for records in (2, 3, 1):
        lake.run(records)
    lake.plan(1)
    assert verdicts(lake).unchecked() == [4, 5, 6]
    check(lake, 5, passed=False)
    verdicts(lake).release(6, "test", "as it is")
    assert verdicts(lake).unchecked() == [4]
    undo = Undo(pipeline="events", control=lake.control, table=lake.table, now=lambda: NOW)
    undo.undo(4, "test", "wrong")
    assert verdicts(lake).unchecked() == []


def published(lake: FileLake) -> list[tuple[int, int]]:
    """Partition and offset of what the view shows, by DuckDB."""
    sql = published_view("events", str(lake.uri), str(lake.root / "verdicts"), Engine.DUCKDB)
    named = re.sub(r"delta_scan\('[^']*/(\w+)'\)", r"\1", sql)
    with duckdb.connect() as connection:
        for uri in (lake.uri, lake.root / "verdicts"):
            connection.register(uri.name, pa.table(DeltaTable(uri).scan()))
        rows = connection.execute(f'SELECT "partition", "offset" FROM ({named}) ORDER BY ALL')
        words = counting(said(lake).words("events")).values()
        blocked = [word.sequence for word in words if word.standing is Standing.BLOCKED]
        assert said(lake).blocked("events") == blocked
        return rows.fetchall()


def test_a_blocked_range_stays_out_and_later_ones_go_on(lake: FileLake) -> None:
    """Offsets 2 to 4 are plan 2's."""
    assert published(lake) == [(0, offset) for offset in (0, 1, 5, 6, 7, 8)]
    judged = verdicts(lake).judged()
    assert [each.is_visible for each in judged] == [True, False, True]
    assert judged[1].as_record() == {
        "plan": 2,
        "records": 3,
        "ranges": [[0, 2, 5]],
        "published": False,
        "unjudged": [],
        "standing": "blocked",
        "said_at": NOW.isoformat(),
        "said_by": None,
        "reason": "ranges_off",
    }


def test_only_what_is_critical_keeps_a_range_back(lake: FileLake) -> None:
    """A broken warning is told, and the rows are published."""
    check(lake, 2, passed=False, severity=Severity.WARNING, minutes=1)
    assert published(lake) == [(0, offset) for offset in range(9)]
    word = verdicts(lake).judged()[1].word
    assert word is not None
    assert (word.standing, word.reason) == (Standing.PUBLISHED, None)


def test_what_nobody_has_checked_is_not_published(lake: FileLake) -> None:
    """It has landed, and that is all."""
    lake.run(2)
    assert (0, 9) not in published(lake)
    assert verdicts(lake).judged()[-1].word is None
    verdicts(lake).release(4, "ann", "its version cannot be read any more")
    assert (0, 9) in published(lake)


def test_a_person_decides_and_later_checks_change_nothing(lake: FileLake) -> None:
    """Until a person decides again."""
    verdicts(lake, 1).release(2, "ann", "the currency is new")
    check(lake, 2, passed=False, minutes=2)
    assert len(published(lake)) == 9
    verdicts(lake, 3).reject(2, "bob", "it is not")
    check(lake, 2, passed=True, minutes=4)
    assert len(published(lake)) == 6
    word = verdicts(lake).judged()[1].word
    assert word is not None
    assert (word.standing, word.said_by, word.reason) == (Standing.REJECTED, "bob", "it is not")
    verdicts(lake, 5).release(2, "ann", "it is")
    assert len(published(lake)) == 9
    assert len(said(lake).words("events")) == 3 + 5


def test_the_newest_check_counts(lake: FileLake) -> None:
    """One that was mended is published; the older word stays in the table."""
    check(lake, 2, passed=True, minutes=-1)
    assert len(published(lake)) == 6
    check(lake, 2, passed=True, minutes=1)
    assert len(published(lake)) == 9


def test_a_draft_of_a_decision_says_nothing(lake: FileLake) -> None:
    """`--dry-run`."""
    drafted = verdicts(lake).release(2, "ann", "why", dry_run=True)
    assert drafted.is_visible
    verdicts(lake).reject(1, "ann", "why", dry_run=True)
    assert len(said(lake).words("events")) == 3


def test_only_what_is_in_the_table_and_kept_back_can_be_released(lake: FileLake) -> None:
    """Each error says what there is instead."""
    with pytest.raises(NotBlocked, match="it is published"):
        verdicts(lake).release(1, "ann", "why")
    with pytest.raises(UnknownPlan):
        verdicts(lake).release(9, "ann", "why")
    lake.plan(1)
    for decide in (verdicts(lake).release, verdicts(lake).reject):
        with pytest.raises(PlanNotLanded):
            decide(4, "ann", "why")
    lake.ingest.execute(4)
    lake.undo.undo(2, "ann", "it was wrong")
    with pytest.raises(PlanAbandoned):
        verdicts(lake).release(2, "ann", "why")
    assert [each.plan.sequence for each in verdicts(lake).judged()] == [1, 3, 4]
    assert len(said(lake).words("events")) == 3


def test_what_replaces_a_blocked_plan_is_judged_anew(lake: FileLake) -> None:
    """The view never shows an offset twice, nor rows that were replaced."""
    plan = lake.land_again((0, 2, 5))
    assert len(published(lake)) == 6
    check(lake, plan.sequence, passed=True, minutes=1)
    assert published(lake) == [(0, offset) for offset in range(9)]
    verdicts(lake).reject(1, "ann", "why")
    assert published(lake) == [(0, offset) for offset in range(2, 9)]


def test_what_a_restore_brings_back_waits_for_a_word_of_its_own(lake: FileLake) -> None:
    """What was left of the blocked plan was published without the offset that was replaced."""
    before = DeltaTable(lake.uri).version()
    lake.land_again((0, 3, 4))
    check(lake, 2, passed=True, minutes=1)
    assert published(lake) == [(0, offset) for offset in range(9) if offset != 3]
    DeltaTable(lake.uri).restore(before)
    lake.repair.rewind("ann", "a mistake")
    assert published(lake) == [(0, offset) for offset in range(9) if offset != 3]
    back = verdicts(lake).judged()[1]
    assert (back.is_visible, back.unjudged) == (False, {0: SpanSet.of([Span(3, 4)])})
    assert back.as_record()["unjudged"] == [[0, 3, 4]]
    assert verdicts(lake, 2).release(2, "ann", "it is right").is_visible
    assert published(lake) == [(0, offset) for offset in range(9)]


def test_pipelines_and_places_are_told_apart(lake: FileLake) -> None:
    """Two pipelines have a plan 2; ranges of one plan are one word."""
    assert said(lake).words("other") == []
    assert [word.sequence for word in said(lake).words("events", 2)] == [2]
    assert DeltaVerdictTable(str(lake.root / "nowhere"), str(lake.uri)).words("events") == []
    lake.kafka.produce("events", 1, 5, timestamp_ms=1_000)
    plan = lake.run(2)
    check(lake, plan.sequence, passed=True)
    assert len(counting(said(lake).words("events"))) == 4
    rows = pa.table(DeltaTable(lake.root / "verdicts").scan()).to_pylist()
    ranges = [(row["partition"], row["start_offset"], row["end_offset"], row["records"])
              for row in rows if row["plan_sequence"] == 4]  # fmt: skip
    assert sorted(ranges) == [(0, 9, 11, 2), (1, 0, 5, 5)]


def test_the_last_to_speak_has_the_last_word(lake: FileLake) -> None:
    """Whatever their clocks say."""
    verdicts(lake, 5).release(2, "ann", "it is right")
    assert not verdicts(lake, 3).reject(2, "bob", "it is not").is_visible
    assert len(published(lake)) == 6


def test_what_was_said_of_a_table_that_is_gone_says_nothing_of_the_next(lake: FileLake) -> None:
    """Its plans have the same numbers."""
    verdicts(lake).reject(3, "ann", "test data")
    shutil.rmtree(lake.uri)
    shutil.rmtree(lake.root / "control")
    lake.run(1)
    assert published(lake) == []
    assert [each.word for each in verdicts(lake).judged()] == [None]
    check(lake, 1, passed=True)
    assert published(lake) == [(0, offset) for offset in range(10)]


def test_what_is_left_of_a_plan_is_judged_by_itself(lake: FileLake) -> None:
    """A plan of which all was replaced has nothing left to be released."""
    for name, span in (("part", (0, 2, 3)), ("rest", (0, 3, 5))):
        lake.land_again(span, requested_by=name)
        judged = {each.plan.sequence: each for each in verdicts(lake).judged()}
        if name == "part":
            assert (judged[2].landing.records, judged[2].is_visible) == (2, False)
            assert verdicts(lake).release(2, "ann", "why", dry_run=True).landing.records == 2
    assert sorted(judged) == [1, 3, 4, 5]
    with pytest.raises(PlanAbandoned, match="replaced all of it"):
        verdicts(lake).release(2, "ann", "why")


_words = st.builds(
    Word,
    sequence=st.integers(1, 2),
    standing=st.sampled_from(Standing),
    said_at=st.integers(0, 2).map(lambda minutes: NOW + timedelta(minutes=minutes)),
    said_by=st.sampled_from([None, "ann", "bob"]),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(_words, max_size=6))
def test_the_query_and_the_command_agree(words: list[Word]) -> None:
    """One rule in two languages: which word counts, ties as well."""
    place = {"topic_id": "id", "partition": 0}
    columns = ["plan_sequence", "standing", "said_at", "said_by"]
    said_rows = [(w.sequence, str(w.standing), w.said_at, w.said_by) for w in words]
    sql = published_view("p", "/none/rows", "/none/verdicts", Engine.DUCKDB)
    named = re.sub(r"delta_scan\('[^']*/(\w+)'\)", r"\1", sql)
    told = pa.table(
        {
            **{name: [row[n] for row in said_rows] for n, name in enumerate(columns)},
            "pipeline": ["p"] * len(words),
            "table_id": [""] * len(words),
            **{name: [value] * len(words) for name, value in place.items()},
            "start_offset": [0] * len(words),
            "end_offset": [1] * len(words),
        },
        pa.schema(
            [
                *{("plan_sequence", pa.int64()), ("standing", pa.string())},
                ("said_at", pa.timestamp("us", tz="UTC")),
                *{("said_by", pa.string()), ("pipeline", pa.string()), ("table_id", pa.string())},
                *{("topic_id", pa.string()), ("partition", pa.int32())},
                *{("start_offset", pa.int64()), ("end_offset", pa.int64())},
            ]
        ),
    )
    with duckdb.connect() as connection:
        connection.register("verdicts", told)
        rows = [{"plan_sequence": plan, "offset": 0, **place} for plan in (1, 2)]
        connection.register("rows", pa.Table.from_pylist(rows))
        shown = connection.execute(f"SELECT plan_sequence FROM ({named}) ORDER BY 1").fetchall()
    counted = counting(words).items()
    assert [plan for (plan,) in shown] == [n for n, word in counted if word.standing.is_visible]


def test_two_at_once_both_say_their_word(lake: FileLake, tmp_path: Path) -> None:
    """The table is not there yet, and one of them makes it."""
    table = DeltaVerdictTable(str(tmp_path / "new"), str(lake.uri))
    record = lake.ledger.plans[1]
    assert record.landing is not None
    landing = record.landing
    word = Word(sequence=1, standing=Standing.PUBLISHED, said_at=NOW)
    with ThreadPoolExecutor(6) as threads:
        said_by = [replace(word, said_by=str(number)) for number in range(6)]
        list(threads.map(lambda each: table.say(record.plan, landing, each), said_by))
    assert len(table.words("events")) == 6


@pytest.mark.spark
def test_spark_reads_the_published_view(lake: FileLake, spark: SparkSession) -> None:
    """The query as `tidemark verdict view` prints it."""
    for checksums in lake.root.rglob("*.crc"):
        # Empty here, and Spark would compare.
        checksums.unlink()
    sql = published_view("events", str(lake.uri), str(lake.root / "verdicts"), Engine.SPARK)
    assert sorted(row["offset"] for row in spark.sql(sql).collect()) == [0, 1, 5, 6, 7, 8]
