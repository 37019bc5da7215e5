"""What a data owner is told of a pipeline: completeness, rules, what is kept back, trends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidemark.quality.check_results import CheckedPlan, CheckResult, Example
from tidemark.quality.checks import BUILT_IN_CHECKS
from tidemark.report.certificate import Certificate
from tidemark.typed.quarantine_record import QuarantinedRecord

EXAMPLES = 20
"""Places that are shown of what is in quarantine; the table has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSummary:
    """One rule over all plans of the period that were checked.

    Attributes:
        name: The rule, and the column that it looks at.
        severity: What a failure means.
        expectation: What should be found, as the newest plan has it.
        observed: What was found in the newest plan.
        plans: How many plans it looked at.
        broken: The plans that broke it, oldest first.
        values: What was found as a number, by plan, oldest first.
        examples: Some rows that broke it, of the newest plan that did.
    """

    name: str
    severity: str
    expectation: str
    observed: str | None
    plans: int
    broken: tuple[int, ...]
    values: tuple[tuple[int, float], ...]
    examples: tuple[Example, ...]

    def as_record(self) -> dict[str, Any]:
        """The summary as plain values."""
        return {
            "rule": self.name,
            "severity": self.severity,
            "expectation": self.expectation,
            "observed": self.observed,
            "plans": self.plans,
            "broken_by": list(self.broken),
            "values": [list(each) for each in self.values],
            "examples": [each.as_record() for each in self.examples],
        }


def _newest_examples(results: Sequence[tuple[int, CheckResult]]) -> tuple[Example, ...]:
    """Of the newest plan that broke the rule."""
    return next((result.examples for _, result in reversed(results) if not result.passed), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineReport:
    """All that the page of a pipeline shows.

    Attributes:
        made_at: When.
        description: What the spec says of the pipeline.
        certificate: What became of every offset.
        checked: Plans of the period that were checked.
        plans_by_status: Plan numbers of the period by publication status, or `not checked`.
        quarantined: What is in quarantine and open; None if the pipeline decodes nothing.
    """

    made_at: datetime
    description: str
    certificate: Certificate
    checked: Sequence[CheckedPlan]
    plans_by_status: Mapping[str, Sequence[int]]
    quarantined: Sequence[QuarantinedRecord] | None

    @property
    def rules(self) -> list[RuleSummary]:
        """Each rule, those that were broken first."""
        found: dict[tuple[str, str | None], list[tuple[int, CheckResult]]] = {}
        for plan in sorted(self.checked, key=lambda each: each.sequence):
            for result in plan.results:
                # Two rules of a kind on one column are told apart by what they say. A built-in
                # check is one, whatever its limit was, which its sentence has.
                built_in = result.check in BUILT_IN_CHECKS
                rule = (result.name, None if built_in else result.expectation)
                found.setdefault(rule, []).append((plan.sequence, result))
        rules = [
            RuleSummary(
                name=name,
                severity=str(each[-1][1].severity),
                expectation=each[-1][1].expectation,
                observed=None if each[-1][1].observed is None else str(each[-1][1].observed),
                plans=len(each),
                broken=tuple(number for number, result in each if not result.passed),
                values=tuple(
                    (number, result.value) for number, result in each if result.value is not None
                ),
                examples=_newest_examples(each),
            )
            for (name, _), each in found.items()
        ]
        return sorted(rules, key=lambda rule: -len(rule.broken))

    @property
    def reasons(self) -> Mapping[tuple[str, str, str], int]:
        """How many records are in quarantine, by reason, half, and field or rule."""
        counted: dict[tuple[str, str, str], int] = {}
        for each in self.quarantined or ():
            why = (str(each.reason), str(each.part or ""), each.detail or "")
            counted[why] = counted.get(why, 0) + 1
        return dict(sorted(counted.items(), key=lambda item: -item[1]))

    @property
    def examples(self) -> Sequence[QuarantinedRecord]:
        """Some places of what is in quarantine; of no record the content."""
        return list(self.quarantined or ())[:EXAMPLES]

    def as_record(self) -> dict[str, Any]:
        """The report as plain values, for `--json`."""
        quarantine = None
        if self.quarantined is not None:
            quarantine = {
                "open": len(self.quarantined),
                "reasons": [[*why, count] for why, count in self.reasons.items()],
                "examples": [each.as_record() for each in self.examples],
            }
        return {
            "made_at": self.made_at.isoformat(),
            "description": self.description,
            "certificate": self.certificate.as_record(),
            "rules": [rule.as_record() for rule in self.rules],
            "plans_by_status": {name: list(plans) for name, plans in self.plans_by_status.items()},
            "quarantine": quarantine,
        }
