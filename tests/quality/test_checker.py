"""The quality check with real Delta tables, Spark and Great Expectations."""

from __future__ import annotations

import json
import multiprocessing
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from tests.conftest import PROJECT
from tests.support.quality_reports import BRONZE, report_often
from tests.support.registry import avro_bytes, framed
from tidemark.core.offsets import Span
from tidemark.core.plan import PlanRef
from tidemark.delta.errors import EngineFailed
from tidemark.delta.row_queries import RowQueries
from tidemark.draft.profile import Profile
from tidemark.draft.suite import draft_suite
from tidemark.local.samples import SAMPLES
from tidemark.quality.check_results import (
    BatchRef,
    CheckOutcome,
    CheckResult,
    Example,
    QualityReport,
    RecordedRange,
    Severity,
)
from tidemark.quality.check_results_table import DeltaCheckResults
from tidemark.quality.checker import BatchChecker
from tidemark.quality.checks import BUILT_IN_CHECKS, is_measured
from tidemark.quality.data_docs import DataDocs
from tidemark.silver.typed.registry_answers import RegistryAnswers
from tidemark.spec.decode import RegisteredSchema
from tidemark.spec.errors import SpecError

SHIPPED = PROJECT / "include" / "expectations"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)

Row = dict[str, Any]


def row(offset: int, **more: Any) -> Row:
    """Return one bronze row of plan 1."""
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
    """Return bronze rows that differ by offset."""
    return [row(offset, **more) for offset in offsets]


def price(offset: int, **fields: Any) -> Row:
    """Return a bronze row with a price, as `tidemark sample produce` creates it."""
    value = {
        "quote_id": f"Q{offset}",
        "ticker": "ACME",
        "price": 10.5,
        "currency": "USD",
        "event_time": "2026-03-01T12:00:00.000Z",
    }
    return row(offset, key=b"ACME", value=json.dumps(value | fields).encode())


def planned_range(
    start: int, end: int, records: int | None = None, partition: int = 0
) -> RecordedRange:
    """Return the recorded number of records of a range; by default one for each offset."""
    return RecordedRange(
        topic_id="T1",
        partition=partition,
        start=start,
        end=end,
        records=end - start if records is None else records,
    )


class Check:
    """The table of one pipeline and its quality check, in their own folders."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.table = str(folder / "bronze")
        self.home = folder / "data_docs"
        self.suites = folder / "suites"
        self.suites.mkdir()
        self.results_table = str(folder / "results")
        self.quality = BatchChecker(
            spark=lambda: spark,
            suites=self.suites,
            docs=DataDocs(self.home),
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
        *expected: RecordedRange,
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
    """Return a pipeline without a table."""
    return Check(spark, tmp_path)


@pytest.fixture
def shipped(check: Check) -> Check:
    """Return a pipeline with the suites of the repository."""
    check.suites.rmdir()
    check.suites.symlink_to(SHIPPED)
    return check


def result_of(report: QualityReport, name: str) -> CheckResult:
    """Return the result of one check, by its name or its column."""
    (result,) = (result for result in report.results if name in (result.check, result.column))
    return result


def page(report: QualityReport) -> str:
    """Return the page of the rules of a suite."""
    assert report.data_docs is not None
    return Path(report.data_docs).read_text(encoding="utf-8")


def jobs_of(spark: SparkSession, group: str, action: Callable[[], object]) -> int:
    """Return the number of Spark jobs of an action."""
    spark.sparkContext.setJobGroup(group, group)
    try:
        action()
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


pytestmark = pytest.mark.spark


# -- the samples ---------------------------------------------------------------------------------


def sample_rows(topic: str) -> list[Row]:
    """Return bronze rows of 500 records that `tidemark sample produce` creates."""
    records = SAMPLES[topic].records(
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
        for offset, sample in enumerate(records)
    ]


@pytest.mark.parametrize(
    ("topic", "suite"),
    [("streams-intro", "streams_intro"), ("prices", "prices"), ("orders", "orders")],
)
def test_the_samples_pass_their_suites(shipped: Check, topic: str, suite: str) -> None:
    """Covers every check of every shipped suite."""
    shipped.land(sample_rows(topic))
    report = shipped(planned_range(0, 500), suite=suite)
    assert [result for result in report.results if not result.passed] == []
    assert report.outcome is CheckOutcome.PASSED


@pytest.mark.parametrize("topic", ["prices", pytest.param("orders", marks=pytest.mark.faults)])
def test_the_sample_of_a_draft_passes_it_and_another_record_fails_it(
    check: Check, topic: str
) -> None:
    """Each rule about a field of the other record fails."""
    landed = sample_rows(topic)
    check.land(landed)
    found = RowQueries(check.table).rows_of("T1", 0, Span(0, 500))
    suite = draft_suite("mine", Profile.of(record for _, record in found))
    (check.suites / "mine.json").write_text(json.dumps(suite), encoding="utf-8")
    report = check(planned_range(0, 500), suite="mine")
    assert len(report.results) == len(BUILT_IN_CHECKS) + len(suite["expectations"])
    assert [result for result in report.results if not result.passed] == []

    number = {"prices": "price", "orders": "quantity"}[topic]
    value = json.loads(landed[0]["value"] or landed[1]["value"])
    odd = json.dumps({**value, number: -1, "ticker": None}).encode()
    version = check.land([row(500, key=b"other", value=odd)])
    report = check(planned_range(0, 501), suite="mine", version=version)
    failed = {result.column for result in report.results if not result.passed}
    assert failed >= {number, "value_problem"}
    assert report.outcome is CheckOutcome.WARNED


def test_the_sample_of_an_avro_draft_passes_it_and_other_values_fail_it(check: Check) -> None:
    """A value of another schema than the sampled ones passes."""
    schemas = {
        each: {
            "type": "record",
            "name": "Trade",
            "doc": "the trader's",
            "fields": [
                {"name": "id", "type": "string"},
                {"name": "n", "type": {3: "int", 4: "long"}[each]},
                {"name": "side", "type": {"type": "enum", "name": "Side", "symbols": ["b", "s"]}},
                *([{"name": "note", "type": ["null", "string"]}] if each == 4 else []),
            ],
        }
        for each in (3, 4)
    }

    def trade(place: int, schema_id: int, **more: Any) -> bytes:
        value = {"id": f"T{place % 20}", "n": place % 50, "side": "bs"[place % 2], **more}
        return framed(schema_id, avro_bytes(schemas[schema_id], value))

    landed = [row(n, key=b"T%d" % (n % 20), value=trade(n, 3 + n % 2)) for n in range(400)]
    check.land(landed)
    found = [each for _, each in RowQueries(check.table).rows_of("T1", 0, Span(0, 400))]
    known = {
        each: RegisteredSchema(id=each, kind="AVRO", text=json.dumps(schema))
        for each, schema in schemas.items()
    }
    answers = RegistryAnswers(connection="registry", schemas=known)
    profile = Profile.of_sample(lambda: found, lambda _: answers)
    suite = draft_suite("mine", profile)
    (check.suites / "mine.json").write_text(json.dumps(suite), encoding="utf-8")
    report = check(planned_range(0, 400), suite="mine")
    assert {each.column for each in report.results if each.column} == {
        *("value_problem", "n", "side", "key_problem")
    }
    assert [result for result in report.results if not result.passed] == []

    others = [trade(400, 4, n=-5), trade(401, 3)[:-3], b"oops", framed(9, b""), None]
    version = check.land([row(400 + n, key=b"other", value=each) for n, each in enumerate(others)])
    report = check(planned_range(0, 405), suite="mine", version=version)
    failed = [each for each in report.results if each.column and not each.passed]
    counts = {each.column: each.unexpected_count for each in failed}
    assert counts == {"value_problem": 2, "n": 1, "key_problem": 1}


def test_a_draft_compares_keys_with_numbers_as_text(check: Check) -> None:
    """A key that is no number fails the rule, and the check completes."""
    landed = [
        row(n, key=b"%d" % n, value=b'{"id": %d, "at": "0000-00-00 00:00:00"}' % n)
        for n in range(400)
    ]
    check.land([*landed, row(400, key=b"abc", value=b'{"id": 400, "at": ""}')])
    found = RowQueries(check.table).rows_of("T1", 0, Span(0, 401))
    suite = draft_suite("mine", Profile.of(record for _, record in found))
    (check.suites / "mine.json").write_text(json.dumps(suite), encoding="utf-8")
    report = check(planned_range(0, 401), suite="mine")
    assert [result for result in report.results if not result.passed] == []
    assert result_of(report, "key_problem").unexpected_count == 1


# -- built-in checks -----------------------------------------------------------------------------


def test_duplicate_missing_and_stray_rows_fail_the_fixed_checks(check: Check) -> None:
    """I1. Figures have separate tests, and only rules on rows have a page."""
    check.land(rows(range(8)))
    version = check.land([row(5), row(10)])
    report = check(planned_range(0, 10), version=version)
    assert report.outcome is CheckOutcome.FAILED
    assert {result.check: result.observed for result in report.failed_critical()} == {
        "duplicate_records": "1 (partition 0: 1)",
        "range_count_mismatches": "1 (partition 0 [0, 10): 9 records, 10 recorded)",
        "records_outside_plan": "1 (partition 0 of topic T1: 1)",
    }
    assert (report.data_docs, check.home.exists()) == (None, False)


def test_a_plan_of_gaps_passes_checks_and_suite(check: Check) -> None:
    """S6: the batch is empty."""
    check.land(rows(range(3), plan_sequence=2))
    suite = check.suite(
        [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "key_text"}}]
    )
    report = check(planned_range(0, 10, records=0), suite=suite)
    assert report.outcome is CheckOutcome.PASSED
    assert result_of(report, "largest_partition_percent").observed is None


def test_other_plans_and_later_versions_are_not_checked(check: Check) -> None:
    """This holds for built-in checks and for the suite."""
    version = check.land([*rows(range(10)), *rows(range(10), plan_sequence=2)])
    check.land(rows(range(10)))
    suite = check.suite([{"type": "expect_table_row_count_to_equal", "kwargs": {"value": 10}}])
    report = check(planned_range(0, 10), suite=suite, version=version)
    assert [result for result in report.results if not result.passed] == []


def test_late_clocks_and_missing_timestamps_are_warnings(check: Check) -> None:
    """One timestamp is two hours after ingestion, and Kafka marks another one as missing."""
    check.land(
        [row(0, timestamp=NOW + timedelta(hours=2)), row(1, timestamp_type=-1), row(2), row(3)]
    )
    report = check(planned_range(0, 4))
    assert report.outcome is CheckOutcome.WARNED
    assert {r.check: r.observed for r in report.failed(Severity.WARNING)} == {
        "no_timestamp_percent": 25.0,
        "seconds_ahead": 7200.0,
    }


def test_freshness_and_lateness_are_measured_from_ingestion(check: Check) -> None:
    """Records without a timestamp do not count. A suite may set limits."""
    stamps = [NOW - timedelta(hours=3), NOW - timedelta(minutes=1)]
    check.land(
        [row(offset, timestamp=stamp) for offset, stamp in enumerate(stamps)]
        + [row(2, timestamp=None), row(3, timestamp_type=-1, timestamp=NOW - timedelta(days=9))]
    )
    suite = check.suite([], checks={"oldest_seconds_behind": {"limit": 60, "severity": "warning"}})
    report = check(planned_range(0, 4), suite=suite)
    assert result_of(report, "seconds_behind").value == 60
    late = result_of(report, "oldest_seconds_behind")
    assert (late.value, late.passed, late.severity) == (3 * 3600, False, Severity.WARNING)
    assert result_of(report, "records").expectation == "No limit"


def test_built_in_checks_import_neither_spark_nor_great_expectations(tmp_path: Path) -> None:
    """The imports take longer than the checks."""
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
    assert done.stdout.splitlines() == ["['range_count_mismatches']", "[]"]


def test_s16_a_suite_can_make_skew_critical(check: Check) -> None:
    """S16: the suite sets the limit, and the report names the partition."""
    check.land([*rows(range(9)), row(0, partition=1)])
    checks = {"largest_partition_percent": {"limit": 50, "severity": "critical"}}
    expected = (planned_range(0, 9), planned_range(0, 1, partition=1))
    (skewed,) = check(*expected, suite=check.suite([], checks=checks)).failed_critical()
    assert skewed.observed == "90 % (partition 0)"
    assert skewed.expectation == "At most 50% of records in the largest partition"


def test_a_lost_spark_session_is_not_reported_as_a_storage_error(tmp_path: Path) -> None:
    """PySpark raises the connection error of a Java process that has ended."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()

    def lost_session() -> NoReturn:
        socket.create_connection(address)
        raise AssertionError("unreachable: the port is closed")

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
    quality = BatchChecker(
        spark=lost_session,
        suites=tmp_path,
        docs=DataDocs(tmp_path / "data_docs"),
        results=DeltaCheckResults(str(tmp_path / "results")),
    )
    ref = BatchRef(pipeline="prices", table=table, table_version=0, plan_sequence=1)
    with pytest.raises(ConnectionRefusedError):
        quality.check(ref, [planned_range(0, 2)], "mine", NOW)


# -- a suite's own expectations ------------------------------------------------------------------


def test_unexpected_values_are_counted_and_shown_with_partition_and_offset(shipped: Check) -> None:
    """This holds for the results and for the page."""
    shipped.land(
        [
            *(price(offset) for offset in range(18)),
            row(18, key=b"ACME", value=b"{not json"),
            price(19, price=-1.0),
        ]
    )
    report = shipped(planned_range(0, 20), suite="prices")
    bad = result_of(report, "value_problem")
    assert (bad.passed, bad.unexpected_count, bad.severity) == (False, 1, Severity.CRITICAL)
    assert result_of(report, "price").unexpected_count == 1
    assert result_of(report, "price").unexpected_percent == pytest.approx(100 / 19)
    assert {r.column for r in report.failed_critical()} == {"value_problem", "price"}
    shown = " ".join(re.sub(r"<[^>]+>", " ", page(report)).split())
    assert "Unexpected Value Count partition offset not JSON 1 0 18" in shown
    assert "Unexpected Value Count partition offset -1.0 1 0 19" in shown
    assert result_of(report, "price").examples == (Example(0, 19, "-1.0"),)
    assert bad.examples == (Example(0, 18, "not JSON"),)
    assert result_of(report, "currency").examples == ()


def test_ten_shortened_examples_are_shown_of_many_unexpected_rows(check: Check) -> None:
    """All of them are counted."""
    check.land([row(offset, value=b"%03d" % offset + b"x" * 497) for offset in range(25)])
    rule = {
        "type": "expect_column_values_to_be_in_set",
        "kwargs": {"value_set": ["x"], "column": "value_text"},
    }
    report = check(planned_range(0, 25), suite=check.suite([rule]))
    result = result_of(report, "value_text")
    assert (result.unexpected_count, len(result.examples)) == (25, 10)
    assert [each.value for each in result.examples] == [
        f"{each.offset:03}" + "x" * 77 for each in result.examples
    ]
    shown = page(report)
    assert len(set(re.findall(r"(\d{3})x{77}", shown))) == 10
    assert "x" * 78 not in shown


def test_masked_values_are_in_no_page_table_or_result(check: Check) -> None:
    """Counts, partitions and offsets are shown."""
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
    report = check(planned_range(0, 2), suite=suite)
    check.quality.record(report)
    keys, values, topics, *_ = report.results[-len(rules) :]
    assert keys.examples == (Example(0, 0, "(masked)"), Example(0, 1, "(masked)"))
    assert (values.examples, values.unexpected_count) == ((Example(0, 0, "(masked)"),), 1)
    assert [example.value for example in topics.examples] == ["t", "t"]
    stored = str(pa.table(DeltaTable(check.results_table).scan()).to_pylist())
    pages = [file.read_text(encoding="utf-8") for file in check.home.rglob("*.html")]
    assert len(pages) > 1
    for text in (*pages, stored, str(report.as_record())):
        assert not re.search("secret|987,?654", text)


def test_tombstones_pass_rules_on_values(shipped: Check) -> None:
    """S4: null is no unexpected value."""
    shipped.land(
        [price(0), price(1), row(2, key=b"ACME", value=None), row(3, key=None, value=None)]
    )
    assert shipped(planned_range(0, 4), suite="prices").outcome is CheckOutcome.PASSED


def test_a_rule_on_a_column_of_nulls_observes_nothing(check: Check) -> None:
    check.land([row(0, key=None)])
    suite = check.suite(
        [
            {
                "type": "expect_column_values_to_be_in_set",
                "kwargs": {"column": "key_text", "value_set": ["foo"]},
            }
        ]
    )
    result = result_of(check(planned_range(0, 1), suite=suite), "key_text")
    assert (result.passed, result.observed, is_measured(result)) == (True, None, False)


def test_a_rule_that_observes_infinity_has_a_text_and_no_figure(check: Check) -> None:
    """JSON has no such number, and Airflow's database refuses it."""
    check.land([row(0, value=b"-Infinity")])
    suite = check.suite(
        [{"type": "expect_column_sum_to_be_between", "kwargs": {"column": "n", "min_value": 0}}],
        columns={"n": "CAST(value_text AS DOUBLE)"},
    )
    report = check(planned_range(0, 1), suite=suite)
    assert (result_of(report, "n").observed, result_of(report, "n").value) == ("-inf", None)
    json.dumps(report.as_record(), allow_nan=False)
    check.quality.record(report)
    assert "<html" in page(report)


def test_mostly_tolerates_a_share_of_unexpected_rows(check: Check) -> None:
    """The result contains their number."""
    check.land([*rows(range(9)), row(9, key=b"bar")])
    suite = check.suite(
        [
            {
                "type": "expect_column_values_to_be_in_set",
                "kwargs": {"column": "key_text", "value_set": ["foo"], "mostly": 0.9},
            }
        ]
    )
    result = result_of(check(planned_range(0, 10), suite=suite), "key_text")
    assert (result.passed, result.observed) == (True, "1 of 10 unexpected")


def test_results_have_the_order_of_the_suites_file(check: Check) -> None:
    """Great Expectations returns them in another order."""
    check.land(rows(range(10)))
    kinds = [
        ("expect_column_values_to_not_be_null", {"column": "key"}),
        ("expect_column_max_to_be_between", {"column": "offset", "max_value": 9}),
        ("expect_table_row_count_to_be_between", {"min_value": 1}),
        ("expect_column_values_to_be_in_set", {"column": "topic", "value_set": ["t"]}),
    ]
    suite = check.suite([{"type": kind, "kwargs": kwargs} for kind, kwargs in kinds])
    report = check(planned_range(0, 10), suite=suite)
    assert [r.check for r in report.results[-4:]] == [kind for kind, _ in kinds]
    assert [r.observed for r in report.results[-4:]] == [
        "0 of 10 unexpected",
        9,
        10,
        "0 of 10 unexpected",
    ]


def test_more_expectations_run_no_more_spark_jobs(check: Check, spark: SparkSession) -> None:
    """All rules on rows share one aggregation, and passed rules need no examples."""
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
    check(planned_range(0, 10), suite=few)  # fills the caches of Spark and Delta
    jobs = [jobs_of(spark, f"few-{check.table}", lambda: check(planned_range(0, 10), suite=few))]
    many = check.suite([one, *more])
    jobs += [jobs_of(spark, f"many-{check.table}", lambda: check(planned_range(0, 10), suite=many))]
    assert jobs[0] == jobs[1]
    assert jobs[0] > 0


def test_a_check_leaves_no_rows_in_sparks_cache(shipped: Check, spark: SparkSession) -> None:
    """Great Expectations caches a batch by default."""
    shipped.land([price(0), price(1, price=-1.0)])
    manager = spark._jsparkSession.sharedState().cacheManager()
    shipped(planned_range(0, 2), suite="prices")
    assert manager.isEmpty()


def test_expressions_that_spark_refuses_are_suite_errors(check: Check) -> None:
    """All of them are reported, with their keys."""
    check.land(rows(range(2)))
    columns = {"one": "no_such_function(key)", "two": "no_such_column", "three": "1"}
    suite = check.suite([], columns=columns)
    with pytest.raises(SpecError, match="a quality suite") as caught:
        check(planned_range(0, 2), suite=suite)
    assert [problem.key for problem in caught.value.problems] == [
        "meta.tidemark.columns.one",
        "meta.tidemark.columns.two",
    ]


def test_expectations_that_fail_on_zero_rows_are_suite_errors(check: Check) -> None:
    """A retry cannot help."""
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
    with pytest.raises(SpecError, match="a quality suite") as caught:
        check(planned_range(0, 2), suite=suite)
    found = {problem.key: problem.found for problem in caught.value.problems}
    assert list(found) == ["expectations[1]", "expectations[2]"]
    assert "no_such_column" in found["expectations[1]"]
    assert "min_value" in found["expectations[2]"]


@pytest.mark.parametrize(
    ("expression", "condition"),
    [
        ("CAST(value_text AS INT)", "CAST_INVALID_INPUT"),
        ("offset + 9223372036854775807", "ARITHMETIC_OVERFLOW"),
    ],
)
def test_a_rule_that_cannot_be_evaluated_on_these_rows_fails_alone(
    check: Check, expression: str, condition: str
) -> None:
    """Repeating the check would not help. Spark's message contains the value."""
    check.land(rows(range(2), key=None))
    suite = check.suite(
        [
            {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": column}}
            for column in ("number", "value", "key")
        ],
        columns={"number": expression},
    )
    report = check(planned_range(0, 2), suite=suite)
    assert report.outcome is CheckOutcome.FAILED
    assert result_of(report, "number").observed == f"not evaluated: {condition}"
    assert result_of(report, "number").masked({"number"}).observed == f"not evaluated: {condition}"
    assert f"not evaluated: {condition}" in page(report)
    assert result_of(report, "value").passed
    missing = result_of(report, "key")
    assert [example.offset for example in missing.examples] == [0, 1]
    for file in check.home.rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        assert "&#39;text" not in text
        assert "'text'" not in text


def test_a_failure_without_a_condition_of_spark_is_an_engine_error(check: Check) -> None:
    """The text of such a failure may contain the value of a record."""
    check.land(rows(range(2), value=b"[SECRET] SQLSTATE: 22000 "))
    suite = check.suite(
        [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "name"}}],
        columns={"name": "xpath_string(value_text, 'a')"},
    )
    with pytest.raises(EngineFailed, match="an error without a condition") as failed:
        check(planned_range(0, 2), suite=suite)
    assert "SECRET" not in str(failed.value)


# -- Data Docs and the results table -------------------------------------------------------------


def test_pages_load_no_external_resources(shipped: Check) -> None:
    """The library's own pages load from six hosts."""
    shipped.land([price(0), price(1, price=-1.0)])
    shipped(planned_range(0, 2), suite="prices")
    pages = list(shipped.home.rglob("*.html"))
    assert len(pages) == 2  # the suite, its validation
    for file in pages:
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"<script|<link|<img|https?://", text), file


def test_markup_in_records_is_escaped_on_pages(shipped: Check) -> None:
    """A record cannot put a script into a page."""
    evil = "<script>alert(1)</script>"
    shipped.land([price(0, currency=evil), row(1, key=evil.encode())])
    report = shipped(planned_range(0, 2), suite="prices")
    assert result_of(report, "currency").unexpected_count == 1
    for file in shipped.home.rglob("*.html"):
        assert evil not in file.read_text(encoding="utf-8"), file


def test_a_second_attempt_is_stored_beside_the_first(check: Check) -> None:
    """Each has its page and its results. The newest is effective."""
    check.land(rows(range(9)))
    rule = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "offset"}}
    suite, docs = check.suite([rule]), DataDocs(check.home)
    for minutes, records in ((0, 10), (5, 9)):
        run_at = NOW + timedelta(minutes=minutes)
        report = check(planned_range(0, 10, records=records), suite=suite, run_at=run_at)
        check.quality.record(report)
        assert report.data_docs == str(docs.page("prices", 1, run_at))
    results = DeltaCheckResults(check.results_table)
    plan = PlanRef(pipeline="prices", sequence=1)
    attempts = results.attempts(plan)
    rules = len(report.results)
    assert [(each.run_at, each.outcome, each.rules, each.failed) for each in attempts] == [
        (run_at, CheckOutcome.PASSED, rules, 0),
        (NOW, CheckOutcome.FAILED, rules, 1),
    ]
    assert CheckOutcome.of(results.checked([plan])[plan].results) is CheckOutcome.PASSED


def test_spark_reads_recorded_results_unchanged(check: Check, spark: SparkSession) -> None:
    """Null values stay null."""
    check.land(rows(range(9)))
    report = check(planned_range(0, 10))
    check.quality.record(report)
    read = spark.read.format("delta").load(check.results_table).orderBy("position").collect()
    assert [(r["check"], r["passed"], r["column"]) for r in read] == [
        (r.check, r.passed, r.column) for r in report.results
    ]
    assert {r["run_at"].astimezone(UTC) for r in read} == {NOW}
    assert {(r["pipeline"], r["plan_sequence"], r["outcome"]) for r in read} == {
        ("prices", 1, "failed")
    }


def test_concurrent_processes_lose_no_report(tmp_path: Path) -> None:
    """Four processes write results of two pipelines."""
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
