"""Figures of checks as text, with the extremes that Kafka's timestamps allow."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.support.quality_reports import BRONZE, check_without_a_suite
from tidemark.quality.check_results import CheckOutcome
from tidemark.quality.checks import BUILT_IN_CHECKS, figure_text

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("timestamp_ms", [-(2**63), -(2**62), 1_767_225_600_000_000_000, 2**63 - 1])
def test_a_plan_with_a_timestamp_outside_all_dates_is_checked(
    tmp_path: Path, timestamp_ms: int
) -> None:
    """A producer sent nanoseconds as milliseconds. Each check has a result."""
    row = {
        "value": b"text",
        "topic": "t",
        "partition": 0,
        "offset": 0,
        "timestamp_out_of_range_ms": timestamp_ms,
        "timestamp_type": 0,
        "topic_id": "T1",
        "plan_sequence": 1,
        "ingested_at": NOW,
    }
    write_deltalake(tmp_path / "bronze", pa.Table.from_pylist([row], BRONZE))
    report = check_without_a_suite(tmp_path, records=1)
    assert report.outcome is (CheckOutcome.WARNED if timestamp_ms > 0 else CheckOutcome.PASSED)
    texts = {each.check: figure_text(each.check, each.value or 0) for each in report.results}
    assert texts["seconds_ahead"].removeprefix("-").split()[1] == "d"


def test_a_length_beyond_the_range_of_timedelta_has_a_text() -> None:
    """Figures follow from timestamps, limits from a suite."""
    days = 2**62 // 86_400_000
    assert figure_text("seconds_ahead", -(2.0**62) / 1000).startswith(f"-{days:,} d")
    limit = replace(BUILT_IN_CHECKS["seconds_behind"], limit=1e300)
    assert "at most 11,574,074," in limit.expectation
