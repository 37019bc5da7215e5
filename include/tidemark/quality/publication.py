"""Publication status of plans: which landed rows the published view shows.

A check publishes or blocks a plan. An operator can release a blocked plan or reject a published
one. The newest operator decision overrides all checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Self

from tidemark.core.offsets import SpanSet
from tidemark.core.plain import record_of
from tidemark.quality.check_results import CheckOutcome, QualityReport

NOT_CHECKED = "not checked"
"""Status of a landed plan without a decision of a check or an operator."""


class PublicationStatus(StrEnum):
    """Publication status of a plan: a check decides the first two, an operator the others."""

    PUBLISHED = "published"
    """A check found no critical failure."""
    BLOCKED = "blocked"
    """A check found a critical failure."""
    RELEASED = "released"
    """An operator published the plan despite a failed or missing check."""
    REJECTED = "rejected"
    """An operator hid the plan."""

    @property
    def is_visible(self) -> bool:
        """Whether the published view shows the rows."""
        return self in (PublicationStatus.PUBLISHED, PublicationStatus.RELEASED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationDecision:
    """One decision about one plan.

    Attributes:
        plan: Plan number.
        status: The decided status.
        decided_at: Time of the decision (UTC).
        decided_by: The operator's command, as `cli:<user>:<id>`; None for a check.
        reason: Operator's reason, or the expectations of the failed critical rules.
        spans: Offsets that the decision applies to, by partition.
    """

    plan: int
    status: PublicationStatus
    decided_at: datetime
    decided_by: str | None = None
    reason: str | None = None
    spans: Mapping[int, SpanSet] = field(default_factory=dict, hash=False)

    @classmethod
    def from_report(
        cls, report: QualityReport, earlier: Iterable[Self] = (), during: Iterable[Self] = ()
    ) -> Self:
        """Return the decision of a check. A block wins over a pass at the same time.

        Args:
            report: The results of the check.
            earlier: The decisions about the plan before the check.
            during: The decisions about the plan that were made during the check.
        """
        blocks = report.outcome is CheckOutcome.FAILED  # fence: failed-check-blocks
        before = [*earlier]
        if blocks:  # fence: concurrent-block-wins
            # Clocks differ, so `run_at` does not show which of several checks started last.
            before += during
        decided_at = time_after(before, report.run_at)
        if not blocks:
            # Of equal times, the decision that hides wins.
            blocked = [each for each in during if each.status is PublicationStatus.BLOCKED]
            decided_at = min([decided_at, *(each.decided_at for each in blocked)])
        return cls(
            plan=report.plan_sequence,
            status=PublicationStatus.BLOCKED if blocks else PublicationStatus.PUBLISHED,
            decided_at=decided_at,
            reason="; ".join(each.expectation for each in report.failed_critical()) or None,
        )

    def as_record(self) -> dict[str, Any]:
        """Return the decision as plain values, for `--json`."""
        return record_of(self, without=["spans"])


def time_after(earlier: Iterable[PublicationDecision], now: datetime) -> datetime:
    """Return the time of a new decision: `now`, or a later time if `earlier` has newer ones.

    The clock of another machine may be ahead.
    """
    # fence: new-decision-is-the-newest
    later = [each.decided_at + timedelta(microseconds=1) for each in earlier]
    return max([now, *later])


def effective_decisions(
    decisions: Iterable[PublicationDecision],
) -> Mapping[int, PublicationDecision]:
    """Return the effective decision of each plan, ordered by plan number.

    The newest operator decision wins; without one, the newest check. If two decisions have the
    same time, the one that hides the rows wins. A decision applies to its own offsets only. The
    published view implements the same rules in SQL (quality/publication_table.py).
    """
    by_precedence = sorted(
        decisions,
        key=lambda each: (
            each.decided_by is not None,
            each.decided_at,
            not each.status.is_visible,
        ),
    )
    effective = {each.plan: each for each in by_precedence}
    return {plan: effective[plan] for plan in sorted(effective)}
