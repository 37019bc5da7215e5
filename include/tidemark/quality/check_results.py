"""Words of the quality check: one landed slice, what was checked on it, what came of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from tidemark.core.accounting import Landing
from tidemark.core.plan import Plan, PlanKind


class Severity(StrEnum):
    """How bad it is when a check fails; the names are those of Great Expectations."""

    CRITICAL = "critical"
    """The run fails."""
    WARNING = "warning"
    """The run goes on and the report says so."""
    INFO = "info"
    """Shown only."""


class CheckOutcome(StrEnum):
    """What all results of one check of one slice add up to."""

    PASSED = "passed"
    """No critical check and no warning failed."""
    WARNED = "warned"
    """Warnings failed, no critical check did."""
    FAILED = "failed"
    """A critical check failed."""

    @classmethod
    def of(cls, results: Iterable[CheckResult]) -> Self:
        """Return the outcome of some results; `passed` for no results."""
        failed = {result.severity for result in results if not result.passed}
        if Severity.CRITICAL in failed:
            return cls("failed")
        return cls("warned" if Severity.WARNING in failed else "passed")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRef:
    """One landed plan in one version of a data table: what a quality check reads, and no more.

    Attributes:
        pipeline: Pipeline name.
        table: Path or URI of the data table.
        table_version: Version that the plan's commit made, or a later one that still has its rows.
        plan_sequence: Number of the plan; the slice is the rows that carry it.
        kind: The plan's; slices are compared with earlier ones of the same kind.
    """

    pipeline: str
    table: str
    table_version: int
    plan_sequence: int
    kind: PlanKind = PlanKind.LIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchExpectation:
    """What the control table says landed of one planned range.

    Attributes:
        topic_id: Incarnation of the topic that was planned.
        partition: Partition number.
        start: First planned offset.
        end: Next offset after the planned range.
        records: Records landed, at most `end - start` (S6).
    """

    topic_id: str
    partition: int
    start: int
    end: int
    records: int

    @classmethod
    def of(cls, plan: Plan, landing: Landing) -> tuple[Self, ...]:
        """One for every range of a landed plan."""
        return tuple(
            cls(
                topic_id=plan.topic_id,
                partition=count.partition,
                start=count.start,
                end=count.end,
                records=count.records,
            )
            for count in landing.counts
        )

    def __str__(self) -> str:
        return f"partition {self.partition} [{self.start}, {self.end})"


MASKED = "(masked)"
"""Stands for each value of a column that a suite masks."""
MOST_EXAMPLES = 10
"""Rows that a result shows of those that broke its rule."""


@dataclass(frozen=True, slots=True)
class Example:
    """A row that broke a rule.

    Attributes:
        partition: Where it is.
        offset: The record that it was made of.
        value: What the rule looked at, as text, shortened; None if it was null.
    """

    partition: int
    offset: int
    value: str | None

    def as_record(self) -> dict[str, Any]:
        """The example as plain values."""
        return {"partition": self.partition, "offset": self.offset, "value": self.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one check found.

    Attributes:
        check: Name of a built-in check, or the type of an expectation from the suite's file.
        column: Column that it looked at; None for a check of the slice as a whole.
        severity: What a failure means.
        passed: Whether it held.
        observed: What was found; None if there was nothing to look at.
        value: The same as a number; of a rule on rows, the percent that broke it.
        expectation: What should be found, as a sentence.
        unexpected_count: Rows that broke the rule; None where rows are not counted.
        unexpected_percent: Their share of the rows with a value, 0 to 100; None as above.
        examples: Some of these rows, `MOST_EXAMPLES` at most.
    """

    check: str
    column: str | None
    severity: Severity
    passed: bool
    observed: str | int | float | None
    expectation: str
    unexpected_count: int | None = None
    unexpected_percent: float | None = None
    value: float | None = None
    examples: tuple[Example, ...] = ()

    @property
    def name(self) -> str:
        """The check, and the column that it looked at."""
        return self.check if self.column is None else f"{self.check} of column {self.column}"

    def masking(self, columns: Collection[str]) -> CheckResult:
        """The result without values of these columns, which its check may not have masked yet."""
        if not columns or self.column not in (None, *columns):
            return self
        shown = [replace(each, value=MASKED) for each in self.examples]
        # What rules on rows and built-in checks observe are counts, but for a key behind them.
        observed = self.observed
        if self.column is not None and self.unexpected_count is None:
            observed = MASKED
        elif isinstance(observed, str) and "(key " in observed:
            observed = observed.partition(" (key ")[0]
        value = None if observed == MASKED else self.value
        return replace(self, observed=observed, value=value, examples=tuple(shown))

    def as_record(self) -> dict[str, Any]:
        """The result as plain values, for `--json` and the results table."""
        return {
            "check": self.check,
            "column": self.column,
            "severity": str(self.severity),
            "passed": self.passed,
            "observed": self.observed,
            "value": self.value,
            "expectation": self.expectation,
            "unexpected_count": self.unexpected_count,
            "unexpected_percent": self.unexpected_percent,
            "examples": [example.as_record() for example in self.examples],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityReport:
    """One attempt to judge one slice. Judging again makes another report, never changes one.

    Attributes:
        pipeline: Pipeline name.
        plan_sequence: Plan whose rows were judged.
        table_version: Version of the data table that was read.
        kind: The plan's kind.
        run_at: When the attempt was made; the newest attempt of a plan is the one that counts.
        results: Built-in checks first, then the suite's own, each in its file's order.
        data_docs: Path of the report's start page in Data Docs.
    """

    pipeline: str
    plan_sequence: int
    table_version: int
    run_at: datetime
    results: tuple[CheckResult, ...]
    data_docs: str
    kind: PlanKind = PlanKind.LIVE

    def __post_init__(self) -> None:
        if self.run_at.tzinfo is None:
            raise ValueError("run_at carries a time zone")

    @property
    def outcome(self) -> CheckOutcome:
        """What the results add up to."""
        return CheckOutcome.of(self.results)

    def failed(self, severity: Severity) -> tuple[CheckResult, ...]:
        """Results of one severity that did not hold."""
        return tuple(r for r in self.results if not r.passed and r.severity is severity)

    def failed_critical(self) -> tuple[CheckResult, ...]:
        """Results that make the run fail."""
        return self.failed(Severity.CRITICAL)

    def as_record(self) -> dict[str, Any]:
        """The report as plain values, for `--json`."""
        return {
            "pipeline": self.pipeline,
            "plan": self.plan_sequence,
            "table_version": self.table_version,
            "kind": str(self.kind),
            "run_at": self.run_at.isoformat(),
            "outcome": str(self.outcome),
            "data_docs": self.data_docs,
            "results": [result.as_record() for result in self.results],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPlan:
    """What a check of one plan found: of several, the newest.

    Attributes:
        sequence: The plan.
        results: What each rule found.
    """

    sequence: int
    results: Sequence[CheckResult]
