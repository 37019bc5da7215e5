"""The checks that every slice gets, whatever its suite: figures of the slice, and their limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tidemark.quality.check_results import BatchExpectation, CheckResult, Severity

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeFigures:
    """What a slice holds of one planned range, or of no planned range at all.

    Attributes:
        topic_id: Topic id that the rows carry.
        partition: Partition that the rows carry.
        start: Start of the planned range that the rows lie in; None for rows outside the plan.
        records: Rows.
        distinct: Different offsets among them; `records - distinct` are doubles (S5).
        null_keys: Rows without a key.
        null_values: Rows without a value (tombstones).
        no_timestamps: Rows without a timestamp, or with Kafka's -1 that says there is none.
        seconds_ahead: How far the latest timestamp lies after its ingestion, below 0 if it lies
            before; None without one.
        oldest_seconds_behind: How far the earliest timestamp lies before its ingestion.
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
class TopKey:
    """The key that most rows have.

    Attributes:
        key: The key as text, shortened; None if no row has a key.
        records: Rows that have it.
    """

    key: str | None
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltInCheck:
    """One figure of a slice and the limit it must keep.

    Attributes:
        name: Name in suites, reports and the results table.
        sentence: What is expected; `{limit}` stands for the limit.
        limit: Highest figure that passes, unless a suite says otherwise; None if every one does.
        severity: What a failure means, unless a suite says otherwise.
        fixed: Whether the limit is not for suites to change: Tidemark's own promises are not.
    """

    name: str
    sentence: str
    limit: float | None
    severity: Severity
    fixed: bool = False

    @property
    def expectation(self) -> str:
        """The expectation as a sentence, with the limit."""
        if self.limit is None:
            return "no limit is set"
        return self.sentence.format(limit=f"{self.limit:,g}")

    def result(self, figure: Figure) -> CheckResult:
        """Compare a figure with the limit. Without a figure or a limit, the check passes."""
        value = figure.value
        has_detail = value is not None and figure.detail
        return CheckResult(
            check=self.name,
            column=None,
            severity=self.severity,
            passed=value is None or self.limit is None or value <= self.limit,
            observed=f"{value:g} ({figure.detail})" if has_detail else value,
            value=value,
            expectation=self.expectation,
        )


DRIFT: Mapping[str, str] = MappingProxyType(
    {
        f"{measure}_drift": measure
        for measure in (
            "records",
            "null_key_percent",
            "null_value_percent",
            "top_key_percent",
            "largest_partition_percent",
            "seconds_behind",
            "oldest_seconds_behind",
        )
    }
)
"""Checks of how unlike its predecessors a slice is, and the check whose figure each compares."""

BUILT_IN_CHECKS: Mapping[str, BuiltInCheck] = MappingProxyType(
    {
        check.name: check
        for check in (
            BuiltInCheck(
                name="duplicate_records",
                sentence="at most {limit} records share topic id, partition and offset with "
                "another record",
                limit=0,
                severity=Severity.CRITICAL,
                fixed=True,
            ),
            BuiltInCheck(
                name="ranges_off",
                sentence="at most {limit} planned ranges hold another number of records than "
                "the control table says",
                limit=0,
                severity=Severity.CRITICAL,
                fixed=True,
            ),
            BuiltInCheck(
                name="records_outside_plan",
                sentence="at most {limit} records lie outside the planned ranges, or come from "
                "another incarnation of the topic",
                limit=0,
                severity=Severity.CRITICAL,
                fixed=True,
            ),
            BuiltInCheck(
                name="null_key_percent",
                sentence="at most {limit} % of the records have no key",
                limit=100,
                severity=Severity.INFO,
            ),
            BuiltInCheck(
                name="null_value_percent",
                sentence="at most {limit} % of the records have no value (tombstones)",
                limit=100,
                severity=Severity.INFO,
            ),
            BuiltInCheck(
                name="top_key_percent",
                sentence="the most frequent key is on at most {limit} % of the records that "
                "have a key",
                limit=100,
                severity=Severity.INFO,
            ),
            BuiltInCheck(
                name="largest_partition_percent",
                sentence="the largest partition holds at most {limit} % of the records",
                limit=100,
                severity=Severity.INFO,
            ),
            BuiltInCheck(
                name="no_timestamp_percent",
                sentence="at most {limit} % of the records have no timestamp",
                limit=0,
                severity=Severity.WARNING,
            ),
            BuiltInCheck(
                name="seconds_ahead",
                sentence="no timestamp lies more than {limit} seconds after its ingestion",
                limit=3600,
                severity=Severity.WARNING,
            ),
            BuiltInCheck(
                name="records",
                sentence="at most {limit} records",
                limit=None,
                severity=Severity.INFO,
            ),
            BuiltInCheck(
                name="seconds_behind",
                sentence="the latest timestamp lies at most {limit} seconds before its ingestion",
                limit=None,
                severity=Severity.INFO,
            ),
            BuiltInCheck(
                name="oldest_seconds_behind",
                sentence="no timestamp lies more than {limit} seconds before its ingestion",
                limit=None,
                severity=Severity.INFO,
            ),
            *(
                BuiltInCheck(
                    name=name,
                    sentence=f"{measure} is at most {{limit}} times its usual spread away from "
                    "what it was in earlier plans",
                    limit=5,
                    severity=Severity.INFO,
                )
                for name, measure in DRIFT.items()
            ),
        )
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What one built-in check looks at.

    Attributes:
        value: The figure; None if the slice has nothing to take it from, which passes.
        detail: Where it comes from: the ranges or the key behind it; empty if there is none.
    """

    value: float | None
    detail: str = ""


def figures(
    ranges: Sequence[RangeFigures], top_key: TopKey, expected: Sequence[BatchExpectation]
) -> dict[str, Figure]:
    """The figure of every built-in check.

    Args:
        ranges: What the slice holds, by planned range, and what it holds besides.
        top_key: The key that most rows have.
        expected: What the control table says landed.

    Returns:
        One figure for each name in `BUILT_IN_CHECKS` that needs no history.
    """
    records = sum(r.records for r in ranges)
    null_keys = sum(r.null_keys for r in ranges)
    ahead = [r.seconds_ahead for r in ranges if r.seconds_ahead is not None]
    latest = max(ahead, default=None)
    behind = [r.oldest_seconds_behind for r in ranges if r.oldest_seconds_behind is not None]
    return {
        "duplicate_records": _doubles(ranges),
        "ranges_off": _off(ranges, expected),
        "records_outside_plan": _outside(ranges),
        "null_key_percent": Figure(value=_percent(null_keys, records)),
        "null_value_percent": Figure(value=_percent(sum(r.null_values for r in ranges), records)),
        "top_key_percent": Figure(
            value=_percent(top_key.records, records - null_keys),
            detail="" if top_key.key is None else f"key {top_key.key!r}",
        ),
        "largest_partition_percent": _largest(ranges, records),
        "no_timestamp_percent": Figure(
            value=_percent(sum(r.no_timestamps for r in ranges), records)
        ),
        "seconds_ahead": Figure(value=latest),
        "records": Figure(value=records),
        "seconds_behind": Figure(value=None if latest is None else max(0.0, -latest)),
        "oldest_seconds_behind": Figure(value=max(behind, default=None)),
    }


def _doubles(ranges: Sequence[RangeFigures]) -> Figure:
    doubled = [r for r in ranges if r.records > r.distinct]
    return Figure(
        value=sum(r.records - r.distinct for r in doubled),
        detail=_some([f"partition {r.partition}: {r.records - r.distinct:,}" for r in doubled]),
    )


def _off(ranges: Sequence[RangeFigures], expected: Sequence[BatchExpectation]) -> Figure:
    held = {(r.topic_id, r.partition, r.start): r.records for r in ranges}
    off = [
        f"{one}: {found:,} records, {one.records:,} landed"
        for one in expected
        if (found := held.get((one.topic_id, one.partition, one.start), 0)) != one.records
    ]
    return Figure(value=len(off), detail=_some(off))


def _outside(ranges: Sequence[RangeFigures]) -> Figure:
    stray = [r for r in ranges if r.start is None]
    return Figure(
        value=sum(r.records for r in stray),
        detail=_some(
            [f"partition {r.partition} of topic {r.topic_id}: {r.records:,}" for r in stray]
        ),
    )


def _largest(ranges: Sequence[RangeFigures], records: int) -> Figure:
    sizes: dict[int, int] = {}
    for held in ranges:
        sizes[held.partition] = sizes.get(held.partition, 0) + held.records
    if not sizes:
        return Figure(value=None)
    partition = max(sizes, key=lambda number: sizes[number])
    return Figure(value=_percent(sizes[partition], records), detail=f"partition {partition}")


def _percent(part: int, whole: int) -> float | None:
    return round(100 * part / whole, 4) if whole else None


def _some(lines: Sequence[str]) -> str:
    left = len(lines) - _SHOWN
    return "; ".join(lines[:_SHOWN]) + (f"; and {left:,} more" if left > 0 else "")
