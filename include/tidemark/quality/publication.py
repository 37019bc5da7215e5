"""Whether what a plan landed may be seen by those who read only what has been checked.

A check publishes or blocks. A person may release what it blocked, or reject what it published, and
says why; from then on the newest word of a person counts, whatever later checks say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from tidemark.core.offsets import SpanSet
from tidemark.quality.check_results import QualityReport, Verdict


class Standing(StrEnum):
    """What somebody said of the rows of one plan."""

    PUBLISHED = "published"
    """A check found no critical fault."""
    BLOCKED = "blocked"
    """A check found one."""
    RELEASED = "released"
    """A person lets them be seen."""
    REJECTED = "rejected"
    """A person keeps them from being seen."""

    @property
    def is_visible(self) -> bool:
        """Whether the rows are in the published view."""
        return self in (Standing.PUBLISHED, Standing.RELEASED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What was said of one plan, once.

    Attributes:
        sequence: The plan.
        standing: What it was.
        said_at: When.
        said_by: The person; None for a check.
        reason: Why, in their words; what did not hold, by a check that blocked.
        spans: The offsets that it was said of, by partition.
    """

    sequence: int
    standing: Standing
    said_at: datetime
    said_by: str | None = None
    reason: str | None = None
    spans: Mapping[int, SpanSet] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, report: QualityReport) -> Self:
        """What a check says."""
        blocks = report.verdict is Verdict.FAILED  # fence: failed-check-blocks
        return cls(
            sequence=report.plan_sequence,
            standing=Standing.BLOCKED if blocks else Standing.PUBLISHED,
            said_at=report.run_at,
            reason=", ".join(result.name for result in report.failed_critical()) or None,
        )

    def as_record(self) -> dict[str, Any]:
        """The word as plain values, for `--json`."""
        return {
            "plan": self.sequence,
            "standing": str(self.standing),
            "said_at": self.said_at.isoformat(),
            "said_by": self.said_by,
            "reason": self.reason,
        }


def counting(words: Iterable[Word]) -> Mapping[int, Word]:
    """The word that counts of each plan, in the plans' order: of the offsets that it was said of.

    The published view says the same in SQL (quality/publication_table.py).
    """
    by_weight = sorted(
        words,
        key=lambda word: (word.said_by is not None, word.said_at, not word.standing.is_visible),
    )
    newest = {word.sequence: word for word in by_weight}
    return {sequence: newest[sequence] for sequence in sorted(newest)}
