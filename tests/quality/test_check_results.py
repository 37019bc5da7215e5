"""Check outcomes, figures of built-in checks, and masked results."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.plans import make_plan
from tidemark.core.accounting import Landing, RangeCount
from tidemark.quality.check_results import (
    MASKED,
    CheckOutcome,
    CheckResult,
    Example,
    QualityReport,
    RecordedRange,
    Severity,
)
from tidemark.quality.checks import BUILT_IN_CHECKS, Figure, RangeFigures, figures
from tidemark.quality.errors import QualityFailed
from tidemark.quality.service import raise_if_failed


def result(severity: Severity, *, passed: bool) -> CheckResult:
    """Return a result with a severity; its other values do not matter."""
    return CheckResult(
        check="some_check",
        column=None,
        severity=severity,
        passed=passed,
        observed=1,
        expectation="an expectation",
    )


def report(
    *results: CheckResult, run_at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
) -> QualityReport:
    """Return a report of some results."""
    return QualityReport(
        pipeline="prices",
        plan_sequence=3,
        table_version=7,
        run_at=run_at,
        results=results,
        data_docs=None,
    )


def range_of(
    partition: int = 0, start: int | None = 0, records: int = 10, **more: object
) -> RangeFigures:
    """Return figures of one range without a problem, unless given otherwise."""
    values: dict[str, object] = {
        "topic_id": "T1",
        "partition": partition,
        "start": start,
        "records": records,
        "distinct": records,
        "null_keys": 0,
        "null_values": 0,
        "no_timestamps": 0,
        "seconds_ahead": 0.0,
        "oldest_seconds_behind": 0.0,
    }
    return RangeFigures(**(values | more))  # type: ignore[arg-type]


def planned_range(
    partition: int = 0, start: int = 0, end: int = 10, records: int = 10
) -> RecordedRange:
    """Return the recorded number of records of one range."""
    return RecordedRange(topic_id="T1", partition=partition, start=start, end=end, records=records)


@pytest.mark.parametrize(
    ("failed", "outcome"),
    [
        ((), CheckOutcome.PASSED),
        ((Severity.INFO,), CheckOutcome.PASSED),
        ((Severity.WARNING, Severity.INFO), CheckOutcome.WARNED),
        ((Severity.WARNING, Severity.CRITICAL), CheckOutcome.FAILED),
    ],
)
def test_the_most_severe_failed_check_decides_the_outcome(
    failed: tuple[Severity, ...], outcome: CheckOutcome
) -> None:
    """Passed checks do not count, even critical ones."""
    results = [result(severity, passed=True) for severity in Severity]
    results += [result(severity, passed=False) for severity in failed]
    assert report(*results).outcome is outcome


def test_failed_critical_omits_failed_warnings_and_passed_checks() -> None:
    """Only failed critical checks fail a run."""
    bad = result(Severity.CRITICAL, passed=False)
    other = (result(Severity.WARNING, passed=False), result(Severity.CRITICAL, passed=True))
    assert report(bad, *other).failed_critical() == (bad,)


def test_a_failed_run_names_the_check_and_its_column() -> None:
    """A suite may have one expectation for several columns."""
    of_rows = result(Severity.CRITICAL, passed=False)
    of_price = replace(of_rows, column="price")
    with pytest.raises(QualityFailed) as failed:
        raise_if_failed(report(of_rows, of_price))
    assert failed.value.failed == (of_rows.check, f"{of_rows.check} of column price")


def test_a_report_refuses_a_time_without_time_zone() -> None:
    """Times of attempts are compared."""
    with pytest.raises(ValueError, match="time zone"):
        report(run_at=datetime(2026, 1, 1))


def test_a_report_as_record_has_json_types() -> None:
    """`--json` prints the record."""
    record = report(result(Severity.WARNING, passed=False)).as_record()
    assert record["outcome"] == "warned"
    assert record["run_at"] == "2026-01-01T00:00:00+00:00"
    assert record["results"][0]["severity"] == "warning"


def test_a_landing_yields_one_expectation_for_each_range() -> None:
    """It has the recorded number of records."""
    plan = make_plan((0, 5, 9), topic_id="T1")
    landing = Landing(
        sequence=1,
        table_version=0,
        counts=(RangeCount(partition=0, start=5, end=9, records=3),),
    )
    assert RecordedRange.of(plan, landing) == (planned_range(0, 5, 9, 3),)


def test_every_built_in_check_has_a_figure() -> None:
    """Every figure has a check, too."""
    found = figures([range_of()], [planned_range()])
    assert set(found) == set(BUILT_IN_CHECKS)


def test_a_batch_as_planned_passes_all_fixed_checks() -> None:
    """I1: every landed record is in the table once."""
    found = figures([range_of()], [planned_range()])
    assert {found[name].value for name, check in BUILT_IN_CHECKS.items() if check.fixed} == {0}


def test_duplicates_are_counted_by_partition() -> None:
    """I1, S5: topic id, partition and offset identify a record."""
    found = figures([range_of(0), range_of(1, distinct=7)], [planned_range(0), planned_range(1)])
    assert found["duplicate_records"] == Figure(value=3, detail="partition 1: 3")


def test_a_range_with_another_record_count_is_a_mismatch() -> None:
    """Covers too few records, too many, and none."""
    expected = [planned_range(0), planned_range(1), planned_range(2), planned_range(3)]
    found = figures([range_of(0), range_of(1, records=9), range_of(2, records=11)], expected)
    assert found["range_count_mismatches"].value == 3
    assert found["range_count_mismatches"].detail == (
        "partition 1 [0, 10): 9 records, 10 recorded; "
        "partition 2 [0, 10): 11 records, 10 recorded; "
        "partition 3 [0, 10): 0 records, 10 recorded"
    )


def test_a_range_of_gaps_without_rows_is_no_mismatch() -> None:
    """S6: no reader sees a record there."""
    assert figures([], [planned_range(records=0)])["range_count_mismatches"].value == 0


def test_rows_outside_the_plan_are_counted() -> None:
    """They differ by partition, offset or topic id."""
    stray = range_of(4, start=None, records=2, topic_id="T2")
    found = figures([range_of(), stray], [planned_range()])
    assert found["records_outside_plan"] == Figure(value=2, detail="partition 4 of topic T2: 2")


def test_a_detail_lists_five_ranges_and_counts_the_others() -> None:
    """A message stays short with a thousand partitions."""
    found = figures([], [planned_range(partition) for partition in range(1000)])
    assert found["range_count_mismatches"].value == 1000
    assert found["range_count_mismatches"].detail.endswith("; and 995 more")


def test_s16_shares_are_percentages_of_all_records() -> None:
    ranges = [range_of(0, records=30, null_keys=10, null_values=6), range_of(1, records=10)]
    found = figures(ranges, [])
    assert found["null_key_percent"].value == 25.0
    assert found["null_value_percent"].value == 15.0
    assert found["largest_partition_percent"] == Figure(value=75.0, detail="partition 0")


def test_the_largest_partition_is_measured_over_all_its_ranges() -> None:
    """A backfill may land several ranges of one partition."""
    ranges = [range_of(0, 0), range_of(0, 100), range_of(1, 0, records=15)]
    found = figures(ranges, [])["largest_partition_percent"]
    assert found.detail == "partition 0"


def test_an_empty_batch_has_no_shares() -> None:
    """No division by zero occurs."""
    found = figures([], [])
    assert {name for name, figure in found.items() if figure.value is not None} == {
        "records",
        *(name for name, check in BUILT_IN_CHECKS.items() if check.fixed),
    }


def test_seconds_ahead_and_behind_use_the_latest_timestamp_of_all_ranges() -> None:
    """Ranges without timestamps are ignored."""
    ranges = [
        range_of(0, seconds_ahead=-3.0),
        range_of(1, seconds_ahead=12.5),
        range_of(2, seconds_ahead=None),
    ]
    found = figures(ranges, [])
    assert (found["seconds_ahead"].value, found["seconds_behind"].value) == (12.5, 0)
    assert figures([range_of(0, seconds_ahead=-3.0)], [])["seconds_behind"].value == 3


def test_oldest_seconds_behind_uses_the_earliest_timestamp_of_all_ranges() -> None:
    """Ranges without timestamps are ignored."""
    ranges = [
        range_of(0, oldest_seconds_behind=60.0),
        range_of(1, oldest_seconds_behind=None),
        range_of(2),
    ]
    assert figures(ranges, [])["oldest_seconds_behind"].value == 60


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"column": "price"}, {}),
        ({"column": "email"}, {"examples": (Example(0, 1, MASKED),)}),
        ({"column": None}, {"examples": (Example(0, 1, MASKED),)}),
        (
            {"column": "email", "unexpected_count": None, "observed": 5, "value": 5.0},
            {"examples": (Example(0, 1, MASKED),), "observed": MASKED, "value": None},
        ),
        ({"column": None, "observed": 90, "examples": ()}, {}),
    ],
)
def test_stored_results_are_masked_by_the_current_suite(
    changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    """The suite may mask a column after the check."""
    stored = CheckResult(
        check="expect_something",
        column=None,
        severity=Severity.WARNING,
        passed=False,
        observed="1 of 2 unexpected",
        expectation="",
        unexpected_count=1,
        examples=(Example(0, 1, "jane"),),
    )
    stored = replace(stored, **changes)
    assert stored.masked({"email"}) == replace(stored, **expected)
    assert stored.masked(()) == stored
