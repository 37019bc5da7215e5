"""Content of the owner's report: completeness, check results, publication status, quarantine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from tidemark.core.plain import plain, record_of
from tidemark.core.publication import NOT_CHECKED
from tidemark.ops.report.certificate import Certificate
from tidemark.ops.report.removed_rows import RemovedRows
from tidemark.ops.report.typed_account import PlanAccount, TypedAccount
from tidemark.quality.check_results import CheckedPlan, CheckResult, Example, Severity
from tidemark.quality.checks import BUILT_IN_CHECKS, NO_LIMIT, is_measured
from tidemark.silver.typed.quarantine_record import QuarantinedRecord
from tidemark.silver.typed.unnamed import UnnamedFields

MAX_EXAMPLES = 20
"""Maximum number of quarantined records on the page; the quarantine table contains all."""


class RuleOutcome(StrEnum):
    """Outcome of a rule over the checked plans of a period."""

    FAILED = "failed"
    """At least one plan failed the rule."""
    PASSED = "passed"
    """Every plan with something to check passed the rule."""
    NO_LIMIT = "no limit"
    """The rule only measures a figure."""
    NOT_CHECKED = "not checked"
    """No plan had anything to check."""


def outcome_of(result: CheckResult) -> RuleOutcome:
    """Return the outcome of a rule in one plan."""
    if not result.passed:
        return RuleOutcome.FAILED
    if not is_measured(result):
        return RuleOutcome.NOT_CHECKED
    has_limit = result.check not in BUILT_IN_CHECKS or result.expectation != NO_LIMIT
    return RuleOutcome.PASSED if has_limit else RuleOutcome.NO_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSummary:
    """Results of one rule over all checked plans of the period.

    Attributes:
        name: The rule and its column.
        check: The check without its column.
        severity: Effect of a failure.
        expectation: The expectation of the newest plan's check.
        observed: The observation of the newest plan's check.
        is_newest_measured: Whether the newest plan had something to check.
        plans: Number of checked plans.
        measured_plans: Number of checked plans with something to check.
        failed_plans: Plans that failed the rule, oldest first.
        values: Observed figures by plan, oldest first.
        examples: Rows of the newest failed plan that violate the rule.
        is_share: Whether the figures are percentages of rows that violate the rule.
    """

    name: str
    check: str
    severity: str
    expectation: str
    observed: str | None
    is_newest_measured: bool
    plans: int
    measured_plans: int
    failed_plans: tuple[int, ...]
    values: tuple[tuple[int, float], ...]
    examples: tuple[Example, ...]
    is_share: bool

    @property
    def outcome(self) -> RuleOutcome:
        """The outcome over all checked plans."""
        if self.failed_plans:
            return RuleOutcome.FAILED
        if not self.measured_plans:
            return RuleOutcome.NOT_CHECKED
        has_limit = self.check not in BUILT_IN_CHECKS or self.expectation != NO_LIMIT
        return RuleOutcome.PASSED if has_limit else RuleOutcome.NO_LIMIT

    def as_record(self) -> dict[str, Any]:
        """Return the summary as plain values."""
        return record_of(
            self,
            without=["name", "check", "is_share", "is_newest_measured"],
            rule=self.name,
            outcome=self.outcome,
        )


def _newest_examples(results: Sequence[tuple[int, CheckResult]]) -> tuple[Example, ...]:
    """Return the examples of the newest plan that failed the rule."""
    return next((result.examples for _, result in reversed(results) if not result.passed), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineReport:
    """Content of the owner's report of one pipeline.

    Attributes:
        created_at: Time of the report.
        description: The pipeline's description in its spec.
        certificate: The completeness certificate of the period.
        missing_rows: Landed rows of any period that another program removed from the table; None
            if unknown.
        checked: Checked plans of the period that still have rows.
        plans_by_status: Plan numbers of the period by publication status, or `not checked`.
        quarantined: Records in quarantine; None without a typed table.
        unnamed_fields: Fields of the newest decoded plans that the schema does not name. None if
            the spec does not keep them, or no record is decoded.
        removed: Plans that landed in the period and lost rows, newest first.
        typed: The records of all plans in the typed table and the quarantine; None without a typed
            table, or if it is unknown.
        typed_plans: The same of each published plan of the period; None while a decode is due, or
            if it is unknown.
    """

    created_at: datetime
    description: str
    certificate: Certificate
    missing_rows: int | None
    checked: Sequence[CheckedPlan]
    plans_by_status: Mapping[str, Sequence[int]]
    quarantined: Sequence[QuarantinedRecord] | None
    unnamed_fields: UnnamedFields | None = None
    removed: Sequence[RemovedRows] = ()
    typed: TypedAccount | None = None
    typed_plans: Sequence[PlanAccount] | None = None

    @property
    def differing_plans(self) -> Sequence[PlanAccount]:
        """Plans of the period whose typed rows and quarantine are not their landed records."""
        return [each for each in self.typed_plans or () if each.difference]

    @property
    def unaccounted(self) -> int:
        """Number of records that the typed table and the quarantine lack or have too many."""
        differences = sum(abs(each.difference) for each in self.differing_plans)
        total = self.typed.unaccounted if self.typed else None
        return max(abs(total or 0), differences)

    @property
    def typed_problem(self) -> str | None:
        """The problem of these records as text; None without one."""
        return self.typed.problem(self.differing_plans) if self.typed else None

    @property
    def rules(self) -> list[RuleSummary]:
        """Results of each rule; failed rules come first, the most severe of them at the top."""
        results: dict[tuple[str, str | None], list[tuple[int, CheckResult]]] = {}
        for plan in sorted(self.checked, key=lambda each: each.sequence):
            for result in plan.results:
                # The expectation distinguishes two rules of one type on one column. The expectation
                # of a built-in check contains its limit, which a suite may change.
                built_in = result.check in BUILT_IN_CHECKS
                rule = (result.name, None if built_in else result.expectation)
                results.setdefault(rule, []).append((plan.sequence, result))
        rules = [
            RuleSummary(
                name=name,
                check=each[-1][1].check,
                severity=str(each[-1][1].severity),
                expectation=each[-1][1].expectation,
                observed=None if each[-1][1].observed is None else str(each[-1][1].observed),
                is_newest_measured=is_measured(each[-1][1]),
                plans=len(each),
                measured_plans=sum(is_measured(result) for _, result in each),
                failed_plans=tuple(number for number, result in each if not result.passed),
                values=tuple(
                    (number, result.value) for number, result in each if result.value is not None
                ),
                examples=_newest_examples(each),
                is_share=any(result.unexpected_percent is not None for _, result in each),
            )
            for (name, _), each in results.items()
        ]
        severities = list(Severity)
        return sorted(
            rules,
            key=lambda rule: (
                not rule.failed_plans,
                severities.index(Severity(rule.severity)) if rule.failed_plans else 0,
                -len(rule.failed_plans),
            ),
        )

    @property
    def unchecked_plans(self) -> Collection[int]:
        """Plans of the period whose rows no check has read, also released ones."""
        landed = {each.plan for each in self.certificate.plans}
        unchecked = landed.difference(each.sequence for each in self.checked)
        return unchecked.union(self.plans_by_status.get(NOT_CHECKED, ()))

    @property
    def reasons(self) -> Mapping[tuple[str, str, str], int]:
        """Number of quarantined records by reason, part (key or value), and field or rule."""
        counts: dict[tuple[str, str, str], int] = {}
        for each in self.quarantined or ():
            reason = (str(each.reason), str(each.part or ""), each.detail or "")
            counts[reason] = counts.get(reason, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: -item[1]))

    @property
    def oldest_quarantining_plan(self) -> int | None:
        """The oldest plan with a record in quarantine; None without such records."""
        return min((each.plan for each in self.quarantined or ()), default=None)

    @property
    def examples(self) -> Sequence[QuarantinedRecord]:
        """The first `MAX_EXAMPLES` quarantined records, without their contents."""
        return list(self.quarantined or ())[:MAX_EXAMPLES]

    def as_record(self) -> dict[str, Any]:
        """Return the report as plain values, for `--json`."""
        quarantine = None
        if self.quarantined is not None:
            quarantine = {
                "records": len(self.quarantined),
                "oldest_plan": self.oldest_quarantining_plan,
                "reasons": [
                    {"reason": reason, "part": part or None, "detail": detail or None, "records": n}
                    for (reason, part, detail), n in self.reasons.items()
                ],
                "examples": plain(self.examples),
            }
        typed = self.typed and {**self.typed.as_record(), "plans": plain(self.typed_plans)}
        return record_of(
            self,
            without=["checked", "quarantined", "typed_plans"],
            rules=self.rules,
            quarantine=quarantine,
            typed=typed,
        )
