"""Built-in checks, which run on every batch: figures of the batch, and their limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType
from typing import Any

from tidemark.core.texts import format_seconds
from tidemark.quality.check_results import CheckResult, RecordedRange, Severity

NO_LIMIT = "No limit"
"""The expectation of a check without a limit, which only measures."""
_WHOLE = 1_000
"""Smallest figure that is shown without decimals."""
_LEAST_PERCENT = 0.01
"""Smallest percentage above 0 that is shown as a number."""
_MAX_LISTED = 5
"""Maximum number of ranges that the detail of a figure lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeFigures:
    """Figures of the rows of a batch in one planned range, or outside all planned ranges.

    Attributes:
        topic_id: Topic id that the rows carry.
        partition: Partition that the rows carry.
        start: Start of the planned range of the rows; None for rows outside the plan.
        records: Number of rows.
        distinct: Number of distinct offsets; `records - distinct` rows are duplicates (S5).
        null_keys: Rows without a key.
        null_values: Rows without a value (tombstones).
        no_timestamps: Rows without a timestamp; Kafka stores -1 for none.
        seconds_ahead: Seconds from ingestion to the latest timestamp, negative if the timestamp is
            earlier; None without timestamps.
        oldest_seconds_behind: Seconds from the earliest timestamp to ingestion.
    """

    topic_id: str
    partition: int
    start: int | None
    records: int
    distinct: int
    null_keys: int
    null_values: int
    no_timestamps: int
    seconds_ahead: float | None
    oldest_seconds_behind: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltInCheck:
    """A check that compares one figure of a batch with an upper limit.

    Attributes:
        name: Name in suites, reports and the results table.
        sentence: The expectation; `{limit}` stands for the limit.
        zero_sentence: The expectation if the limit is 0; None if `sentence` applies.
        limit: Highest figure that passes, unless a suite sets another; None for no limit.
        in_seconds: Whether the figure and the limit are times in seconds.
        severity: Severity of a failure, unless a suite sets another.
        fixed: Whether suites cannot change limit and severity.
    """

    name: str
    sentence: str
    limit: float | None = None
    severity: Severity = Severity.INFO
    zero_sentence: str | None = None
    in_seconds: bool = False
    fixed: bool = False

    @property
    def expectation(self) -> str:
        """The expectation as a sentence, with the limit."""
        if self.limit is None:
            return NO_LIMIT
        if not self.limit and self.zero_sentence is not None:
            return self.zero_sentence
        is_time = self.in_seconds
        limit = format_seconds(self.limit) if is_time else f"{self.limit:,g}"
        return self.sentence.format(limit=limit)

    def result(self, figure: Figure) -> CheckResult:
        """Compare a figure with the limit. Without a figure or a limit, the check passes."""
        value = figure.value
        observed: str | float | None = value
        if figure.detail:
            text = None if value is None else figure_text(self.name, value)
            observed = f"{text} ({figure.detail})" if text else figure.detail
        return CheckResult(
            check=self.name,
            column=None,
            severity=self.severity,
            passed=value is None or self.limit is None or value <= self.limit,
            observed=observed,
            value=value,
            expectation=self.expectation,
        )


_FIXED: Mapping[str, Any] = {"limit": 0, "severity": Severity.CRITICAL, "fixed": True}

BUILT_IN_CHECKS: Mapping[str, BuiltInCheck] = MappingProxyType(
    {
        check.name: check
        for check in (
            BuiltInCheck(
                name="duplicate_records",
                sentence="At most {limit} duplicate records",
                zero_sentence="No duplicate records",
                **_FIXED,
            ),
            BuiltInCheck(
                name="range_count_mismatches",
                sentence="At most {limit} planned ranges whose record count is not as recorded",
                zero_sentence="Record count of every planned range as recorded",
                **_FIXED,
            ),
            BuiltInCheck(
                name="records_outside_plan",
                sentence="At most {limit} records outside the planned ranges",
                zero_sentence="No records outside the planned ranges or of another topic id",
                **_FIXED,
            ),
            BuiltInCheck(
                name="null_key_percent",
                sentence="At most {limit}% of records without a key",
                zero_sentence="No records without a key",
            ),
            BuiltInCheck(
                name="null_value_percent",
                sentence="At most {limit}% tombstones",
                zero_sentence="No tombstones",
            ),
            BuiltInCheck(
                name="largest_partition_percent",
                sentence="At most {limit}% of records in the largest partition",
            ),
            BuiltInCheck(
                name="no_timestamp_percent",
                sentence="At most {limit}% of records without a timestamp",
                zero_sentence="No records without a timestamp",
                limit=0,
                severity=Severity.WARNING,
            ),
            BuiltInCheck(
                name="seconds_ahead",
                sentence="No timestamp more than {limit} after ingestion",
                zero_sentence="No timestamp after ingestion",
                limit=3600,
                in_seconds=True,
                severity=Severity.WARNING,
            ),
            BuiltInCheck(
                name="records",
                sentence="At most {limit} records",
                zero_sentence="No records",
            ),
            BuiltInCheck(
                name="seconds_behind",
                sentence="Latest timestamp at most {limit} before ingestion",
                in_seconds=True,
            ),
            BuiltInCheck(
                name="oldest_seconds_behind",
                sentence="No timestamp more than {limit} before ingestion",
                in_seconds=True,
            ),
        )
    }
)


def observed_text(check: str, observed: str | float) -> str:
    """Return what a check observed: a figure rounded and with its unit, a text unchanged."""
    try:
        return figure_text(check, float(observed))
    except ValueError:
        return str(observed)


def figure_text(check: str, value: float) -> str:
    """Return a figure of a check with its unit: a whole number, or three digits."""
    built_in = BUILT_IN_CHECKS.get(check)
    if built_in and built_in.in_seconds:
        sign = "-" if value < 0 else ""
        return f"{sign}{format_seconds(abs(value))}"
    if check.endswith("_percent") and 0 < value < _LEAST_PERCENT:
        return f"< {_LEAST_PERCENT} %"
    is_whole = not isfinite(value) or value == int(value) or abs(value) >= _WHOLE
    text = f"{value:,.0f}" if is_whole else f"{value:.3g}"
    return f"{text} %" if check.endswith("_percent") else text


def is_measured(result: CheckResult) -> bool:
    """Return whether a check had anything to check; otherwise its success proves nothing."""
    if not result.passed:
        return True
    if result.check in BUILT_IN_CHECKS:
        return result.value is not None
    # A rule on rows has no percentage if no row had a value.
    return result.unexpected_count is None or result.unexpected_percent is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The input of one built-in check.

    Attributes:
        value: The figure; None if the batch has no rows for it, which passes.
        detail: The ranges that determine the figure, or why there is none.
    """

    value: float | None
    detail: str = ""


def figures(ranges: Sequence[RangeFigures], expected: Sequence[RecordedRange]) -> dict[str, Figure]:
    """Return the figure of every built-in check.

    Args:
        ranges: Figures of each planned range, and of rows outside all ranges.
        expected: The recorded number of records of each planned range.

    Returns:
        Figures by name of the check.
    """
    records = sum(r.records for r in ranges)
    null_keys = sum(r.null_keys for r in ranges)
    ahead = [r.seconds_ahead for r in ranges if r.seconds_ahead is not None]
    latest = max(ahead, default=None)
    behind = [r.oldest_seconds_behind for r in ranges if r.oldest_seconds_behind is not None]
    return {
        "duplicate_records": _duplicates(ranges),
        "range_count_mismatches": _range_count_mismatches(ranges, expected),
        "records_outside_plan": _outside_plan(ranges),
        "null_key_percent": Figure(value=_percent(null_keys, records)),
        "null_value_percent": Figure(value=_percent(sum(r.null_values for r in ranges), records)),
        "largest_partition_percent": _largest_partition(ranges, records),
        "no_timestamp_percent": Figure(
            value=_percent(sum(r.no_timestamps for r in ranges), records)
        ),
        "seconds_ahead": Figure(value=latest),
        "records": Figure(value=records),
        "seconds_behind": Figure(value=None if latest is None else max(0.0, -latest)),
        "oldest_seconds_behind": Figure(value=max(behind, default=None)),
    }


def _duplicates(ranges: Sequence[RangeFigures]) -> Figure:
    duplicated = [r for r in ranges if r.records > r.distinct]
    return Figure(
        value=sum(r.records - r.distinct for r in duplicated),
        detail=_first_of(
            [f"partition {r.partition}: {r.records - r.distinct:,}" for r in duplicated]
        ),
    )


def _range_count_mismatches(
    ranges: Sequence[RangeFigures], expected: Sequence[RecordedRange]
) -> Figure:
    counts = {(r.topic_id, r.partition, r.start): r.records for r in ranges}
    mismatches = [
        f"{each}: {records:,} records, {each.records:,} recorded"
        for each in expected
        if (records := counts.get((each.topic_id, each.partition, each.start), 0)) != each.records
    ]
    return Figure(value=len(mismatches), detail=_first_of(mismatches))


def _outside_plan(ranges: Sequence[RangeFigures]) -> Figure:
    outside = [r for r in ranges if r.start is None]
    return Figure(
        value=sum(r.records for r in outside),
        detail=_first_of(
            [f"partition {r.partition} of topic {r.topic_id}: {r.records:,}" for r in outside]
        ),
    )


def _largest_partition(ranges: Sequence[RangeFigures], records: int) -> Figure:
    sizes: dict[int, int] = {}
    for each in ranges:
        sizes[each.partition] = sizes.get(each.partition, 0) + each.records
    if not sizes:
        return Figure(value=None)
    partition = max(sizes, key=lambda number: sizes[number])
    return Figure(value=_percent(sizes[partition], records), detail=f"partition {partition}")


def _percent(part: int, total: int) -> float | None:
    return round(100 * part / total, 4) if total else None


def _first_of(lines: Sequence[str]) -> str:
    more = len(lines) - _MAX_LISTED
    return "; ".join(lines[:_MAX_LISTED]) + (f"; and {more:,} more" if more > 0 else "")
