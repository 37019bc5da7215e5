"""The quality check on real Delta tables, Spark and Great Expectations."""

from __future__ import annotations

import json
import multiprocessing
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from tests.conftest import PROJECT
from tests.support.quality_reports import BRONZE, report_often
from tidemark.core.offsets import Span
from tidemark.dev.samples import SAMPLES
from tidemark.lake import row_queries
from tidemark.lake.errors import EngineFailed
from tidemark.quality.check_results import (
    BatchExpectation,
    BatchRef,
    CheckOutcome,
    CheckResult,
    Example,
    QualityReport,
    Severity,
)
from tidemark.quality.check_results_table import DeltaCheckResults
from tidemark.quality.checks import BUILT_IN_CHECKS
from tidemark.quality.errors import SuiteError
from tidemark.quality.gx.checker import GreatExpectationsQuality
from tidemark.quality.gx.suite import BATCH_COLUMNS
from tidemark.quality.range_figures import range_figures
from tidemark.quality.suite_draft import draft
from tidemark.quality.top_key import top_key
from tidemark.typed.profile import Profile

SHIPPED = PROJECT / "include" / "expectations"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)

Row = dict[str, Any]


def row(offset: int, **more: Any) -> Row:
    """One bronze row of plan 1."""
    return {
        "key": b"foo",
        "value": b"text",
        "headers": None,
        "topic": "t",
        "partition": 0,
        "offset": offset,
        "timestamp": NOW,
        "timestamp_type": 0,
        "topic_id": "T1",
        "plan_sequence": 1,
        "ingested_at": NOW,
        **more,
    }


def rows(offsets: Iterable[int], **more: Any) -> list[Row]:
    """Bronze rows that differ by offset."""
    return [row(offset, **more) for offset in offsets]


def price(offset: int, **fields: Any) -> Row:
    """A bronze row with a price as `tidemark sample produce` makes them."""
    value = {
        "quote_id": f"Q{offset}",
        "ticker": "ACME",
        "price": 10.5,
        "currency": "USD",
        "event_time": "2026-03-01T12:00:00.000Z",
    }
    return row(offset, key=b"ACME", value=json.dumps(value | fields).encode())


def planned(
    start: int, end: int, records: int | None = None, partition: int = 0
) -> BatchExpectation:
    """What the control table says of one range; full of records unless said otherwise."""
    return BatchExpectation(
        topic_id="T1",
        partition=partition,
        start=start,
        end=end,
        records=end - start if records is None else records,
    )


class Check:
    """One pipeline's table and its quality check, in folders of their own."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.table = str(folder / "bronze")
        self.home = folder / "quality"
        self.suites = folder / "suites"
        self.suites.mkdir()
        self.results_table = str(folder / "results")
        self.quality = GreatExpectationsQuality(
            spark=lambda: spark,
            suites=self.suites,
            home=self.home,
            ranges=range_figures,
            top_key=top_key,
            results=DeltaCheckResults(self.results_table),
        )

    def land(self, landed: Sequence[Row]) -> int:
        write_deltalake(self.table, pa.Table.from_pylist(list(landed), BRONZE), mode="append")
        return DeltaTable(self.table).version()

    def suite(self, expectations: list[dict[str, Any]], **tidemark: Any) -> str:
        content = {"name": "mine", "meta": {"tidemark": tidemark}, "expectations": expectations}
        (self.suites / "mine.json").write_text(json.dumps(content), encoding="utf-8")
        return "mine"

    def __call__(
        self,
        *expected: BatchExpectation,
        suite: str | None = None,
        version: int = 0,
        plan: int = 1,
        run_at: datetime = NOW,
    ) -> QualityReport:
        ref = BatchRef(
            pipeline="prices", table=self.table, table_version=version, plan_sequence=plan
        )
        return self.quality.check(ref, expected, suite, run_at)


@pytest.fixture
def check(spark: SparkSession, tmp_path: Path) -> Check:
    """A pipeline with an empty place for its table."""
    return Check(spark, tmp_path)


@pytest.fixture
def shipped(check: Check) -> Check:
    """The same, with the suites of the repository."""
    check.suites.rmdir()
    check.suites.symlink_to(SHIPPED)
    return check


def of(report: QualityReport, name: str) -> CheckResult:
    """The result of one check, by its name or its column."""
    (result,) = (result for result in report.results if name in (result.check, result.column))
    return result


def page(report: QualityReport, suite: str) -> str:
    """The newest page of a suite."""
    runs = json.loads(Path(report.data_docs).with_name("runs.json").read_text(encoding="utf-8"))
    return (Path(report.data_docs).parent / runs[0]["pages"][suite]).read_text(encoding="utf-8")


def jobs_of(spark: SparkSession, group: str, action: Callable[[], object]) -> int:
    """How many Spark jobs an action runs."""
    spark.sparkContext.setJobGroup(group, group)
    try:
        action()
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


pytestmark = pytest.mark.spark


# -- the samples ---------------------------------------------------------------------------------


def sample_rows(topic: str) -> list[Row]:
    """Bronze rows of 500 records that `tidemark sample produce` makes."""
    made = SAMPLES[topic].records(
        seed=1, start=0, count=500, base_ms=int(NOW.timestamp() * 1000) - 60_000
    )
    return [
        row(
            offset,
            key=sample.key,
            value=sample.value,
            headers=[{"key": name, "value": value} for name, value in sample.headers],
            timestamp=datetime.fromtimestamp(sample.timestamp_ms / 1000, UTC),
        )
        for offset, sample in enumerate(made)
    ]


@pytest.mark.parametrize(
    ("topic", "suite"),
    [("streams-intro", "streams_intro"), ("prices", "prices"), ("orders", "orders")],
)
def test_the_samples_pass_their_suites(shipped: Check, topic: str, suite: str) -> None:
    """Every check of every shipped suite holds on what `tidemark sample produce` makes."""
    shipped.land(sample_rows(topic))
    report = shipped(planned(0, 500), suite=suite)
    assert [result for result in report.results if not result.passed] == []
    assert report.outcome is CheckOutcome.PASSED


@pytest.mark.parametrize("topic", ["prices", "orders"])
def test_what_a_suite_was_drafted_from_passes_it(check: Check, topic: str) -> None:
    """As it is; and of one record that is like none of them every rule on its field tells."""
    landed = sample_rows(topic)
    check.land(landed)
    found = row_queries.rows_of(DeltaTable(check.table), "T1", 0, Span(0, 500))
    suite = draft("mine", Profile.of(record for _, record in found), set(BATCH_COLUMNS))
    (check.suites / "mine.json").write_text(json.dumps(suite), encoding="utf-8")
    report = check(planned(0, 500), suite="mine")
    assert len(report.results) == len(BUILT_IN_CHECKS) + len(suite["expectations"])
    assert [result for result in report.results if not result.passed] == []

    number = {"prices": "price", "orders": "quantity"}[topic]
    value = json.loads(landed[0]["value"] or landed[1]["value"])
    odd = json.dumps({**value, number: -1, "ticker": None}).encode()
    version = check.land([row(500, key=b"other", value=odd)])
    report = check(planned(0, 501), suite="mine", version=version)
    failed = {result.column for result in report.results if not result.passed}
    assert failed >= {number, "value_problem"}
    assert report.outcome is CheckOutcome.WARNED


def test_a_draft_compares_keys_with_numbers_as_text(check: Check) -> None:
    """A key that is no number breaks the rule, and stops no check."""
    landed = [
        row(n, key=b"%d" % n, value=b'{"id": %d, "at": "0000-00-00 00:00:00"}' % n)
        for n in range(200)
    ]
    check.land([*landed, row(200, key=b"abc", value=b'{"id": 200, "at": ""}')])
    found = row_queries.rows_of(DeltaTable(check.table), "T1", 0, Span(0, 201))
    suite = draft("mine", Profile.of(record for _, record in found), set(BATCH_COLUMNS))
    (check.suites / "mine.json").write_text(json.dumps(suite), encoding="utf-8")
    report = check(planned(0, 201), suite="mine")
    assert [result for result in report.results if not result.passed] == []
    assert of(report, "key_problem").unexpected_count == 1


# -- built-in checks -----------------------------------------------------------------------------


def test_a_double_is_found(check: Check) -> None:
    """I1: one record twice, in another file and row group, among 40,000 others."""
    check.land(rows(range(40_000)))
    version = check.land([row(32_768)])
    report = check(planned(0, 40_000, records=40_001), version=version)
    double = of(report, "duplicate_records")
    assert (double.passed, double.observed) == (False, "1 (partition 0: 1)")
    assert report.failed_critical() == (double,)
    assert report.outcome is CheckOutcome.FAILED


def test_equal_offsets_of_other_partitions_are_no_doubles(check: Check) -> None:
    """S5: an offset says nothing without its partition."""
    check.land([*rows(range(10)), *rows(range(10), partition=1)])
    assert check(planned(0, 10), planned(0, 10, partition=1)).outcome is CheckOutcome.PASSED


def test_a_missing_record_is_found(check: Check) -> None:
    """I1: the control table says ten, the data table has nine."""
    check.land(rows(range(9)))
    report = check(planned(0, 10))
    off = of(report, "ranges_off")
    assert (off.passed, off.observed) == (False, "1 (partition 0 [0, 10): 9 records, 10 recorded)")
    assert "partition 0 [0, 10): 9 records, 10 recorded" in page(report, "built_in")


def test_ranges_of_one_partition_are_told_apart(check: Check) -> None:
    """One range short and the next one long does not even out."""
    check.land(rows([0, 1, 2, 10, 11]))
    report = check(planned(0, 4, records=2), planned(10, 14, records=3))
    assert of(report, "ranges_off").observed == (
        "2 (partition 0 [0, 4): 3 records, 2 recorded; partition 0 [10, 14): 2 records, 3 recorded)"
    )


@pytest.mark.parametrize(
    "stray", [{"offset": 10}, {"partition": 7}, {"topic_id": "T2"}], ids=lambda one: next(iter(one))
)
def test_a_record_that_nobody_planned_is_found(check: Check, stray: Row) -> None:
    """The end of a range is outside it, and another incarnation's offsets mean nothing here."""
    check.land([*rows(range(10)), row(5) | stray])
    report = check(planned(0, 10))
    assert [result.check for result in report.failed_critical()] == ["records_outside_plan"]


def test_gaps_are_no_failure(check: Check) -> None:
    """S6: what counts is what landed, not the width of the range."""
    check.land(rows([0, 3, 9]))
    assert check(planned(0, 10, records=3)).outcome is CheckOutcome.PASSED


def test_a_plan_of_nothing_but_gaps_passes(check: Check) -> None:
    """S6: an empty slice has nothing to fail on, in the suite as well."""
    check.land(rows(range(3), plan_sequence=2))
    suite = check.suite(
        [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "key_text"}}]
    )
    report = check(planned(0, 10, records=0), suite=suite)
    assert report.outcome is CheckOutcome.PASSED
    assert of(report, "top_key_percent").observed is None


def test_only_the_slice_is_read(check: Check) -> None:
    """Other plans and later versions of the table are no part of what is judged."""
    version = check.land([*rows(range(10)), *rows(range(10), plan_sequence=2)])
    check.land(rows(range(10)))
    assert check(planned(0, 10), version=version).outcome is CheckOutcome.PASSED


def test_clocks_and_missing_timestamps_warn(check: Check) -> None:
    """A timestamp two hours after ingestion, and one that Kafka says is none."""
    check.land(
        [row(0, timestamp=NOW + timedelta(hours=2)), row(1, timestamp_type=-1), row(2), row(3)]
    )
    report = check(planned(0, 4))
    assert report.outcome is CheckOutcome.WARNED
    assert {r.check: r.observed for r in report.failed(Severity.WARNING)} == {
        "no_timestamp_percent": 25.0,
        "seconds_ahead": 7200.0,
    }


def test_freshness_and_lateness_are_measured_from_ingestion(check: Check) -> None:
    """Records without a timestamp are neither; a suite may set limits."""
    stamps = [NOW - timedelta(hours=3), NOW - timedelta(minutes=1)]
    check.land(
        [row(offset, timestamp=stamp) for offset, stamp in enumerate(stamps)]
        + [row(2, timestamp=None), row(3, timestamp_type=-1, timestamp=NOW - timedelta(days=9))]
    )
    suite = check.suite([], checks={"oldest_seconds_behind": {"limit": 60, "severity": "warning"}})
    report = check(planned(0, 4), suite=suite)
    assert of(report, "seconds_behind").value == 60
    late = of(report, "oldest_seconds_behind")
    assert (late.value, late.passed, late.severity) == (3 * 3600, False, Severity.WARNING)
    assert of(report, "records").expectation == "No limit"


def test_a_slice_unlike_its_predecessors_is_told(check: Check) -> None:
    """Volume and keys, against what the results table has of earlier plans."""
    check.land(rows(range(40)))
    usual = check(planned(0, 40))
    for plan in range(1, 9):
        check.quality.record(replace(usual, plan_sequence=plan))
    version = check.land([row(offset, plan_sequence=9) for offset in range(40, 80)])
    same = check(planned(40, 80), version=version, plan=9)
    assert (of(same, "records_drift").value, of(same, "records_drift").passed) == (0, True)
    version = check.land([row(offset, plan_sequence=10, key=None) for offset in range(80, 90)])
    odd = check(planned(80, 90), version=version, plan=10)
    drifted = {r.check: r.observed for r in odd.results if r.check.endswith("_drift")}
    assert [r.check for r in odd.failed(Severity.INFO)] == [
        "records_drift",
        "null_key_percent_drift",
    ]
    assert drifted["records_drift"] == "13.8 (10 against 40 in 8 earlier plans)"
    assert odd.outcome is CheckOutcome.PASSED
    assert of(usual, "records_drift").value is None


def test_built_in_checks_need_neither_spark_nor_great_expectations(tmp_path: Path) -> None:
    """The imports of both take longer than the checks."""
    write_deltalake(tmp_path / "bronze", pa.Table.from_pylist(rows(range(3)), BRONZE))
    code = f"""
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.support.quality_reports import check_without_a_suite

report = check_without_a_suite(Path({str(tmp_path)!r}), records=4)
print([result.check for result in report.failed_critical()])
print([name for name in ("pyspark", "great_expectations") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["['ranges_off']", "[]"]


def test_a_suite_can_make_skew_critical(check: Check) -> None:
    """S16: the limit is the suite's, and the report names the key."""
    check.land([*rows(range(9)), row(9, key=b"bar")])
    suite = check.suite([], checks={"top_key_percent": {"limit": 50, "severity": "critical"}})
    (skewed,) = check(planned(0, 10), suite=suite).failed_critical()
    assert skewed.observed == "90 (key 'foo')"
    assert skewed.expectation.startswith("At most 50% of records with the most frequent key")


def test_a_lost_spark_session_is_no_failure_to_write_pages(tmp_path: Path) -> None:
    """PySpark raises the error of its connection to a Java process that has ended."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()

    def lost_session() -> NoReturn:
        socket.create_connection(address)
        raise AssertionError("the port is closed")

    table = str(tmp_path / "bronze")
    write_deltalake(table, pa.Table.from_pylist(rows(range(2)), BRONZE))
    (tmp_path / "mine.json").write_text(
        json.dumps(
            {
                "name": "mine",
                "meta": {},
                "expectations": [
                    {
                        "type": "expect_column_values_to_not_be_null",
                        "kwargs": {"column": "offset"},
                        "severity": "critical",
                    }
                ],
            }
        )
    )
    quality = GreatExpectationsQuality(
        spark=lost_session,
        suites=tmp_path,
        home=tmp_path / "quality",
        ranges=range_figures,
        top_key=top_key,
        results=DeltaCheckResults(str(tmp_path / "results")),
    )
    ref = BatchRef(pipeline="prices", table=table, table_version=0, plan_sequence=1)
    with pytest.raises(ConnectionRefusedError):
        quality.check(ref, [planned(0, 2)], "mine", NOW)


# -- a suite's own expectations ------------------------------------------------------------------


def test_bad_values_are_counted_and_shown(shipped: Check) -> None:
    """The results count them; the page shows what they are and where."""
    shipped.land(
        [
            *(price(offset) for offset in range(18)),
            row(18, key=b"ACME", value=b"{not json"),
            price(19, price=-1.0),
        ]
    )
    report = shipped(planned(0, 20), suite="prices")
    bad = of(report, "value_problem")
    assert (bad.passed, bad.unexpected_count, bad.severity) == (False, 1, Severity.CRITICAL)
    assert of(report, "price").unexpected_count == 1
    assert of(report, "price").unexpected_percent == pytest.approx(100 / 19)
    assert {r.column for r in report.failed_critical()} == {"value_problem", "price"}
    shown = " ".join(re.sub(r"<[^>]+>", " ", page(report, "prices")).split())
    assert "Unexpected Value Count partition offset not JSON 1 0 18" in shown
    assert "Unexpected Value Count partition offset -1.0 1 0 19" in shown
    assert of(report, "price").examples == (Example(0, 19, "-1.0"),)
    assert bad.examples == (Example(0, 18, "not JSON"),)
    assert of(report, "currency").examples == ()


def test_of_many_broken_rows_a_few_are_shown_and_each_shortened(check: Check) -> None:
    """All of them are counted; a page shows no more of rows than the results."""
    check.land([row(offset, value=b"%03d" % offset + b"x" * 497) for offset in range(25)])
    rule = {
        "type": "expect_column_values_to_be_in_set",
        "kwargs": {"value_set": ["x"], "column": "value_text"},
    }
    report = check(planned(0, 25), suite=check.suite([rule]))
    result = of(report, "value_text")
    assert (result.unexpected_count, len(result.examples)) == (25, 10)
    assert [each.value for each in result.examples] == [
        f"{each.offset:03}" + "x" * 77 for each in result.examples
    ]
    shown = page(report, "mine")
    assert len(set(re.findall(r"(\d{3})x{77}", shown))) == 10
    assert "x" * 78 not in shown


def test_no_report_shows_what_a_suite_masks(check: Check) -> None:
    """Not the pages, not the table, not what is returned; how many and where stays."""
    check.land([row(0, key=b"secret-key", value=b"secret-value"), row(1, value=None)])
    in_set = {"type": "expect_column_values_to_be_in_set"}
    rules: list[dict[str, Any]] = [
        {**in_set, "kwargs": {"value_set": ["x"], "column": column}}
        for column in ("key_text", "value_text", "topic")
    ]
    rules += [
        {"type": "expect_column_max_to_be_between", "kwargs": {"column": "number", **limits}}
        for limits in ({"max_value": 1}, {"max_value": 10**9})
    ]
    rules.append(
        {
            "type": "expect_column_pair_values_to_be_equal",
            "kwargs": {"column_A": "topic", "column_B": "value_text"},
        }
    )
    masked = ["key_text", "value_text", "number"]
    suite = check.suite(rules, columns={"number": "if(value IS NULL, 0, 987654)"}, masked=masked)
    report = check(planned(0, 2), suite=suite)
    check.quality.record(report)
    keys, values, topics, *_ = report.results[-len(rules) :]
    assert keys.examples == (Example(0, 0, "(masked)"), Example(0, 1, "(masked)"))
    assert (values.examples, values.unexpected_count) == ((Example(0, 0, "(masked)"),), 1)
    assert [example.value for example in topics.examples] == ["t", "t"]
    kept = str(pa.table(DeltaTable(check.results_table).scan()).to_pylist())
    pages = [file.read_text(encoding="utf-8") for file in check.home.rglob("*.html")]
    assert len(pages) > 1
    for text in (*pages, kept, str(report.as_record())):
        assert not re.search("secret|987,?654", text)


def test_tombstones_break_no_rule_on_values(shipped: Check) -> None:
    """S4: null is not a bad value."""
    shipped.land(
        [price(0), price(1), row(2, key=b"ACME", value=None), row(3, key=None, value=None)]
    )
    assert shipped(planned(0, 4), suite="prices").outcome is CheckOutcome.PASSED


def test_a_share_may_be_tolerated(check: Check) -> None:
    """`mostly` works, and the counts still say how many there were."""
    check.land([*rows(range(9)), row(9, key=b"bar")])
    suite = check.suite(
        [
            {
                "type": "expect_column_values_to_be_in_set",
                "kwargs": {"column": "key_text", "value_set": ["foo"], "mostly": 0.9},
            }
        ]
    )
    result = of(check(planned(0, 10), suite=suite), "key_text")
    assert (result.passed, result.observed) == (True, "1 of 10 unexpected")


def test_results_keep_the_order_of_the_file(check: Check) -> None:
    """Great Expectations answers aggregates and row rules in an order of its own."""
    check.land(rows(range(10)))
    kinds = [
        ("expect_column_values_to_not_be_null", {"column": "key"}),
        ("expect_column_max_to_be_between", {"column": "offset", "max_value": 9}),
        ("expect_table_row_count_to_be_between", {"min_value": 1}),
        ("expect_column_values_to_be_in_set", {"column": "topic", "value_set": ["t"]}),
    ]
    suite = check.suite([{"type": kind, "kwargs": kwargs} for kind, kwargs in kinds])
    report = check(planned(0, 10), suite=suite)
    assert [r.check for r in report.results[-4:]] == [kind for kind, _ in kinds]
    assert [r.observed for r in report.results[-4:]] == [
        "0 of 10 unexpected",
        9,
        10,
        "0 of 10 unexpected",
    ]


def test_more_expectations_take_no_more_jobs(check: Check, spark: SparkSession) -> None:
    """All row rules share one aggregation, and what held is not asked for examples."""
    check.land(rows(range(10)))
    one = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "key_text"}}
    more = [
        {
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": "offset", "max_value": 100 + n},
        }
        for n in range(10)
    ]
    few = check.suite([one])
    check(planned(0, 10), suite=few)  # what Spark and Delta cache is cached for both
    jobs = [jobs_of(spark, f"few-{check.table}", lambda: check(planned(0, 10), suite=few))]
    many = check.suite([one, *more])
    jobs += [jobs_of(spark, f"many-{check.table}", lambda: check(planned(0, 10), suite=many))]
    assert jobs[0] == jobs[1]
    assert jobs[0] > 0


def test_nothing_stays_cached(shipped: Check, spark: SparkSession) -> None:
    """Great Expectations caches what it validates, if it is let."""
    shipped.land([price(0), price(1, price=-1.0)])
    manager = spark._jsparkSession.sharedState().cacheManager()
    shipped(planned(0, 2), suite="prices")
    assert manager.isEmpty()


def test_an_expression_that_spark_refuses_is_a_problem_of_the_file(check: Check) -> None:
    """With its place in the file, and all of them at once."""
    check.land(rows(range(2)))
    suite = check.suite([], columns={"one": "no_such_function(key)", "two": "((", "three": "1"})
    with pytest.raises(SuiteError) as caught:
        check(planned(0, 2), suite=suite)
    assert [problem.key for problem in caught.value.problems] == [
        "meta.tidemark.columns.one",
        "meta.tidemark.columns.two",
    ]


def test_an_expectation_that_makes_no_sense_is_a_problem_of_the_file(check: Check) -> None:
    """It fails on no rows as well, so neither the data nor Spark is blamed, and nobody retries."""
    check.land(rows(range(2)))
    condition = {
        "type": "comparison",
        "column": {"name": "no_such_column"},
        "operator": "==",
        "parameter": 1,
    }
    suite = check.suite(
        [
            {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "key"}},
            {
                "type": "expect_column_values_to_not_be_null",
                "kwargs": {"column": "key_text", "row_condition": condition},
            },
            {
                "type": "expect_column_values_to_be_between",
                "kwargs": {"column": "offset", "min_value": 5, "max_value": 1},
            },
        ]
    )
    with pytest.raises(SuiteError) as caught:
        check(planned(0, 2), suite=suite)
    found = {problem.key: problem.found for problem in caught.value.problems}
    assert list(found) == ["expectations[1]", "expectations[2]"]
    assert "no_such_column" in found["expectations[1]"]
    assert "min_value" in found["expectations[2]"]


def test_an_expectation_that_fails_on_this_data_is_no_verdict(check: Check) -> None:
    """Spark stops at a cast of its own accord: that is no finding about the data."""
    check.land(rows(range(2)))
    suite = check.suite(
        [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "number"}}],
        columns={"number": "CAST(value_text AS INT)"},
    )
    with pytest.raises(EngineFailed, match="CAST_INVALID_INPUT") as failed:
        check(planned(0, 2), suite=suite)
    # Not the value, which Spark tells.
    assert "'text'" not in str(failed.value)


# -- Data Docs and the results table -------------------------------------------------------------


def test_pages_fetch_nothing_from_anywhere(shipped: Check) -> None:
    """As shipped by Great Expectations they load from six hosts, one of them with an id."""
    shipped.land([price(0), price(1, price=-1.0)])
    shipped(planned(0, 2), suite="prices")
    pages = list(shipped.home.rglob("*.html"))
    assert len(pages) == 5  # pipelines, runs, built-in checks, the suite, its validation
    for file in pages:
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"<script|<link|<img|https?://", text), file


def test_links_between_pages_lead_somewhere(shipped: Check) -> None:
    """From the page over all pipelines to a run and back."""
    shipped.land([price(0)])
    shipped(planned(0, 1), suite="prices")
    for file in shipped.home.rglob("*.html"):
        for link in re.findall(r'href="([^"#]+)"', file.read_text(encoding="utf-8")):
            assert (file.parent / link).exists(), (file, link)


def test_markup_in_data_stays_text(shipped: Check) -> None:
    """A record cannot put a script into the report about it."""
    evil = "<script>alert(1)</script>"
    shipped.land([price(0, currency=evil), row(1, key=evil.encode())])
    report = shipped(planned(0, 2), suite="prices")
    assert of(report, "currency").unexpected_count == 1
    for file in shipped.home.rglob("*.html"):
        assert evil not in file.read_text(encoding="utf-8"), file


def test_a_second_attempt_is_kept_beside_the_first(check: Check) -> None:
    """Data Docs list both, the newest first; the results table answers which one counts."""
    check.land(rows(range(9)))
    for minutes, records in ((0, 10), (5, 9)):
        report = check(planned(0, 10, records=records), run_at=NOW + timedelta(minutes=minutes))
        check.quality.record(report)
    listed = Path(report.data_docs).read_text(encoding="utf-8")
    assert re.findall(r'class="outcome (\w+)"', listed) == ["passed", "failed"]
    results = pa.table(DeltaTable(check.results_table).scan())
    newest = duckdb.sql(
        """
        SELECT DISTINCT outcome FROM results
        QUALIFY run_at = max(run_at) OVER (PARTITION BY pipeline, plan_sequence)
        """
    )
    assert results.num_rows == 2 * len(report.results)
    assert newest is not None
    assert newest.fetchall() == [("passed",)]


def test_repeating_an_attempt_replaces_its_pages(check: Check) -> None:
    """The same plan at the same time is the same attempt."""
    check.land(rows(range(10)))
    for _ in range(2):
        report = check(planned(0, 10))
    assert Path(report.data_docs).read_text(encoding="utf-8").count('class="outcome ') == 1


def test_recorded_results_read_in_spark_as_they_were(check: Check, spark: SparkSession) -> None:
    """The table is for every Delta reader; nulls stay nulls."""
    check.land(rows(range(9)))
    report = check(planned(0, 10))
    check.quality.record(report)
    read = spark.read.format("delta").load(check.results_table).orderBy("position").collect()
    assert [(r["check"], r["passed"], r["column"]) for r in read] == [
        (r.check, r.passed, r.column) for r in report.results
    ]
    assert {r["run_at"].astimezone(UTC) for r in read} == {NOW}
    assert {(r["pipeline"], r["plan_sequence"], r["outcome"]) for r in read} == {
        ("prices", 1, "failed")
    }


def test_pipelines_report_at_the_same_time(tmp_path: Path) -> None:
    """Four processes over two pipelines: no run is lost, in pages or in the results table."""
    context = multiprocessing.get_context("spawn")
    work = [
        context.Process(target=report_often, args=(tmp_path, pipeline, 10))
        for pipeline in ("orders", "prices", "orders", "prices")
    ]
    for process in work:
        process.start()
    for process in work:
        process.join(timeout=120)
    assert [process.exitcode for process in work] == [0] * 4
    results = pa.table(DeltaTable(str(tmp_path / "results")).scan())
    assert results.num_rows == 40
    sites = tmp_path / "quality" / "data_docs"
    for pipeline in ("orders", "prices"):
        listed = (sites / pipeline / "index.html").read_text(encoding="utf-8")
        assert set(re.findall(r'href="(\d+)\.html"', listed)) == {str(n) for n in range(1, 11)}
    assert re.findall(r'href="(\w+)/index', (sites / "index.html").read_text()) == [
        "orders",
        "prices",
    ]
