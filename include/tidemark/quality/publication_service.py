"""What people decide about landed ranges: to release what a check blocked, or to reject it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from tidemark.core.accounting import Landing
from tidemark.core.events import EventKind
from tidemark.core.ledger import PlanRecord
from tidemark.core.offsets import SpanSet, without
from tidemark.core.plan import Plan
from tidemark.ingest.errors import PlanAbandoned
from tidemark.ingest.protocols import Clock, ControlReader
from tidemark.ingest.recorder import recorded_plan, refuse_abandoned
from tidemark.quality.errors import NotBlocked
from tidemark.quality.publication import Standing, Word, counting
from tidemark.repair.errors import PlanNotLanded


class VerdictTable(Protocol):
    """Keeps what checks and people say of landed plans; nothing that was said is changed."""

    def say(self, plan: Plan, landing: Landing, word: Word) -> None:
        """Add a word on a plan that landed.

        Raises:
            EngineFailed: Nothing was said, or the answer was lost: say it again.
        """
        ...

    def words(self, pipeline: str, plan: int | None = None) -> Sequence[Word]:
        """Return every decision about a pipeline's plans, or about one plan, in any order."""
        ...

    def decided(self, pipeline: str) -> Collection[int]:
        """Return the plans of a pipeline with a decision by a check or an operator."""
        ...

    def blocked(self, pipeline: str) -> Collection[int]:
        """Return the plans whose effective publication status is `blocked`."""
        ...


log = logging.getLogger(__name__)

_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One landed plan, and the word on it that counts.

    Attributes:
        plan: The plan.
        landing: What it landed.
        word: What was said of it; None if nobody has looked yet, so that it is not published.
    """

    plan: Plan
    landing: Landing
    word: Word | None

    @property
    def unjudged(self) -> Mapping[int, SpanSet]:
        """Offsets that nobody has said anything of: a RESTORE brought them back since, perhaps."""
        return without(self.landing.spans(), self.word.spans if self.word else {})

    @property
    def is_visible(self) -> bool:
        """Whether all its rows are in the published view."""
        return self.word is not None and self.word.standing.is_visible and not self.unjudged

    def as_record(self) -> dict[str, Any]:
        """It as plain values, for `--json`."""
        nothing = {"standing": None, "said_at": None, "said_by": None, "reason": None}
        return {
            "plan": self.plan.sequence,
            "records": self.landing.records,
            "ranges": [[c.partition, c.start, c.end] for c in self.landing.counts],
            "published": self.is_visible,
            "unjudged": [[p, s.start, s.end] for p, each in self.unjudged.items() for s in each],
            **(self.word.as_record() if self.word else nothing),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """Decides what of one pipeline's table is published. Changes no row of it."""

    pipeline: str
    control: ControlReader
    verdicts: VerdictTable
    now: Clock

    def judged(self) -> list[Judged]:
        """Every plan that holds offsets in the table, oldest first."""
        words = counting(self.verdicts.words(self.pipeline))
        return [
            Judged(plan=record.plan, landing=record.landing, word=words.get(sequence))
            for sequence, record in self.control.ledger(self.pipeline).plans.items()
            if record.landing is not None and record.landing.counts
        ]

    def unchecked(self) -> list[int]:
        """Return landed plans without a decision, oldest first. The published view omits them."""
        landed = self.control.recorded_at(self.pipeline, EventKind.LANDED)
        candidates = sorted(set(landed).difference(self.verdicts.decided(self.pipeline)))
        found = ((n, self.control.plan_record(self.pipeline, n)) for n in candidates)
        return [n for n, record in found if record and record.landing and record.landing.counts]

    def of(self, sequence: int) -> Judged:
        """Return one landed plan with its effective decision.

        Raises:
            UnknownPlan: No such plan.
            PlanNotLanded, PlanAbandoned: None of its rows are in the table.
        """
        plan, landing = self._landed(sequence)
        word = counting(self.verdicts.words(self.pipeline, sequence)).get(sequence)
        return Judged(plan=plan, landing=landing, word=word)

    def release(
        self, sequence: int, requested_by: str, reason: str, *, dry_run: bool = False
    ) -> Judged:
        """Publish what a check has blocked, somebody rejected, or nobody has checked.

        Args:
            sequence: The plan.
            requested_by: Who decides.
            reason: Why, in their words.
            dry_run: Only say what would be decided.

        Raises:
            UnknownPlan: No such plan.
            PlanNotLanded, PlanAbandoned: None of its rows are in the table.
            NotBlocked: Nothing keeps it from being seen.
            EngineFailed: The decision could not be recorded.
        """
        now = self.of(sequence)
        if now.word and now.is_visible:
            raise NotBlocked(pipeline=self.pipeline, sequence=sequence, standing=now.word.standing)
        return self._decide(sequence, Standing.RELEASED, requested_by, reason, dry_run=dry_run)

    def reject(
        self, sequence: int, requested_by: str, reason: str, *, dry_run: bool = False
    ) -> Judged:
        """Keep a plan out of the published view, whatever checks say of it.

        Args:
            sequence: The plan.
            requested_by: Who decides.
            reason: Why, in their words.
            dry_run: Only say what would be decided.

        Raises:
            UnknownPlan: No such plan.
            PlanNotLanded, PlanAbandoned: None of its rows are in the table.
            EngineFailed: The decision could not be recorded.
        """
        return self._decide(sequence, Standing.REJECTED, requested_by, reason, dry_run=dry_run)

    def _landed(self, sequence: int) -> tuple[Plan, Landing]:
        record = recorded_plan(self.control, self.pipeline, sequence)
        landing_of(record)
        if record.landing is None or not record.landing.counts:
            replaced = "later plans have replaced all of it"
            raise PlanAbandoned(pipeline=self.pipeline, sequence=sequence, reason=replaced)
        return record.plan, record.landing

    def _decide(
        self, sequence: int, standing: Standing, requested_by: str, reason: str, *, dry_run: bool
    ) -> Judged:
        plan, landing = self._landed(sequence)
        # Another machine's clock may be ahead of this one's: the last to speak has the last word.
        earlier = (word.said_at for word in self.verdicts.words(self.pipeline, sequence))
        after = max(earlier, default=self.now() - _TICK) + _TICK
        word = Word(
            sequence=sequence,
            standing=standing,
            said_at=max(self.now(), after),
            said_by=requested_by,
            reason=reason,
            spans=landing.spans(),
        )
        if not dry_run:
            self.verdicts.say(plan, landing, word)
            log.info("%s pipeline=%s plan=%d", standing, self.pipeline, sequence)
        return Judged(plan=plan, landing=landing, word=word)


def landing_of(record: PlanRecord) -> Landing:
    """What a plan landed, with what others have replaced since.

    Raises:
        PlanAbandoned: It was given up, or its rows were taken out again.
        PlanNotLanded: It is open.
    """
    refuse_abandoned(record)
    if record.whole is None:
        raise PlanNotLanded(pipeline=record.plan.pipeline, sequence=record.plan.sequence)
    return record.whole
