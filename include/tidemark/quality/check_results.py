"""Values of the quality check: the batch to check, the results, and their outcome."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from tidemark.core.accounting import Landing
from tidemark.core.plain import record_of
from tidemark.core.plan import Plan, PlanKind


class Severity(StrEnum):
    """Effect of a failed check. The names are those of Great Expectations."""

    CRITICAL = "critical"
    """The run fails."""
    WARNING = "warning"
    """The run continues; the report shows the failure."""
    INFO = "info"
    """The report shows the failure; the outcome does not change."""


class CheckOutcome(StrEnum):
    """Outcome of all checks of one batch."""

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
    """The rows of one landed plan in one version of a data table.

    Attributes:
        pipeline: Pipeline name.
        table: Path or URI of the data table.
        table_version: Version of the plan's commit, or a later version that contains its rows.
        plan_sequence: Number of the plan.
        kind: Kind of the plan.
    """

    pipeline: str
    table: str
    table_version: int
    plan_sequence: int
    kind: PlanKind = PlanKind.LIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRange:
    """The recorded number of records of one planned range.

    Attributes:
        topic_id: Topic id of the plan.
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
        """Return one expectation for each landed range of a plan."""
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
"""Replaces each value of a column that a suite masks."""
NOT_EVALUATED = "not evaluated"
"""Start of the observation of a rule that cannot be evaluated on the rows of a batch."""
MAX_EXAMPLES = 10
"""Maximum number of rows that a result contains as examples of a failed rule."""


@dataclass(frozen=True, slots=True)
class Example:
    """A row that violates a rule.

    Attributes:
        partition: Partition number of the record.
        offset: Offset of the record.
        value: The checked value as text, shortened; None for null.
    """

    partition: int
    offset: int
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one check.

    Attributes:
        check: Name of a built-in check, or the type of an expectation from the suite's file.
        column: The checked column; None for a check of the whole batch.
        severity: Effect of a failure.
        passed: Whether the check passed.
        observed: The observed figure or text; None without rows to check.
        expectation: The expectation as a sentence.
        unexpected_count: Number of rows that violate the rule; None for other checks.
        unexpected_percent: Percentage of the rows with a value that violate the rule; None for
            other checks.
        value: The observed figure as a number; for a rule on rows `unexpected_percent`.
        examples: At most `MAX_EXAMPLES` of the rows that violate the rule.
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
        """The check and its column, as text."""
        return self.check if self.column is None else f"{self.check} of column {self.column}"

    def masked(self, columns: Collection[str]) -> CheckResult:
        """Return the result without values of these columns.

        The suite may mask columns that it did not mask when the check ran.
        """
        if not columns or self.column not in (None, *columns):
            return self
        examples = tuple(replace(each, value=MASKED) for each in self.examples)
        # Rules on rows and built-in checks observe counts.
        is_value = (
            self.column is not None
            and self.unexpected_count is None
            and not str(self.observed).startswith(NOT_EVALUATED)
        )
        observed = MASKED if is_value else self.observed
        value = None if observed == MASKED else self.value
        return replace(self, observed=observed, value=value, examples=examples)


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityReport:
    """The results of one attempt to check one batch. Each attempt creates a new report.

    Attributes:
        pipeline: Pipeline name.
        plan_sequence: Plan whose rows were checked.
        table_version: Version of the data table that was read.
        kind: Kind of the plan.
        run_at: Time of the attempt; the newest attempt of a plan is effective.
        results: Results of built-in checks, then of the suite's rules in the order of its file.
        data_docs: Path of the attempt's page in Data Docs; None without rules on rows.
    """

    pipeline: str
    plan_sequence: int
    table_version: int
    run_at: datetime
    results: tuple[CheckResult, ...]
    data_docs: str | None
    kind: PlanKind = PlanKind.LIVE

    def __post_init__(self) -> None:
        if self.run_at.tzinfo is None:
            raise ValueError("run_at has no time zone")

    @property
    def outcome(self) -> CheckOutcome:
        """The outcome of all results."""
        return CheckOutcome.of(self.results)

    def failed(self, severity: Severity) -> tuple[CheckResult, ...]:
        """Return the failed results of one severity."""
        return tuple(r for r in self.results if not r.passed and r.severity is severity)

    def failed_critical(self) -> tuple[CheckResult, ...]:
        """Return the failed results that fail the run."""
        return self.failed(Severity.CRITICAL)

    def as_record(self) -> dict[str, Any]:
        """Return the report as plain values, for `--json`."""
        plan, outcome = self.plan_sequence, self.outcome
        return record_of(self, without=["plan_sequence"], plan=plan, outcome=outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckAttempt:
    """One attempt to check a plan.

    Attributes:
        run_at: Time of the attempt.
        outcome: Outcome of all results.
        table_version: Version of the data table that was read.
        rules: Number of results.
        failed: Number of failed results.
    """

    run_at: datetime
    outcome: CheckOutcome
    table_version: int
    rules: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPlan:
    """The results of the newest check of one plan.

    Attributes:
        sequence: Plan number.
        results: The result of each rule.
    """

    sequence: int
    results: Sequence[CheckResult]
