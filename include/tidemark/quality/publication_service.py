"""Operator decisions about landed plans: release a blocked plan, or reject a published one."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidemark.bronze.ingest.errors import PlanStillOpen
from tidemark.bronze.ingest.ledgers import read_checked_ledger, recorded_plan, refuse_cancelled
from tidemark.bronze.ingest.ports import Ports
from tidemark.bronze.repair.errors import NothingToDo
from tidemark.core.accounting import Landing
from tidemark.core.errors import InvalidSelection
from tidemark.core.events import EventKind, PublicationDecided
from tidemark.core.ledger import Ledger, PlanRecord
from tidemark.core.offsets import (
    SpanSet,
    difference_by_partition,
    intersection_by_partition,
    size_of_all,
    span_lists,
    union_by_partition,
)
from tidemark.core.plan import Plan, PlanRef
from tidemark.core.publication import PublicationStatus
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.delta.opened_tables import tables_opened_once

log = logging.getLogger(__name__)

_FEW_PLANS = 20
"""Maximum number of plans to read by their numbers. For more plans, reading all plans of a pipeline
is faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPublication:
    """One landed plan and its effective publication decision.

    Attributes:
        record: The plan, with its rows in the data table and its decision. Without a decision, the
            published view hides the plan.
        replaced: Offsets whose rows an open plan has replaced in the data table. Until that plan is
            recorded, the ledger has the earlier rows, and the published view has neither.
    """

    record: PlanRecord
    replaced: Mapping[int, SpanSet] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.record.plan

    @property
    def landing(self) -> Landing:
        """The rows of the plan in the data table, by range."""
        return _current_landing(self.record)

    @property
    def decision(self) -> PublicationDecided | None:
        """The effective decision; None if the plan was never checked."""
        return self.record.decision

    @property
    def unchecked(self) -> Mapping[int, SpanSet]:
        """Landed offsets without a decision; see `PlanRecord.unchecked`."""
        return self.record.unchecked

    @property
    def is_published(self) -> bool:
        """Whether the published view shows all rows of the plan."""
        is_visible = self.decision is not None and self.decision.status.is_visible
        return is_visible and not self.unchecked and not self.replaced

    def as_record(self) -> dict[str, Any]:
        """Return the plan's publication as plain values, for `--json`."""
        undecided = {"status": None, "decided_at": None, "decided_by": None, "reason": None}
        return {
            "plan": self.plan.sequence,
            "records": self.landing.records,
            "ranges": [[c.partition, c.start, c.end] for c in self.landing.counts],
            "published": self.is_published,
            "unchecked": span_lists(self.unchecked),
            "replaced": span_lists(self.replaced),
            **(self.decision.as_record() if self.decision else undecided),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenOffsets:
    """Numbers of landed offsets that the published view hides.

    Attributes:
        unchecked: Offsets without a decision.
        refused: Offsets of blocked and rejected plans.
    """

    unchecked: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """Reads and decides which plans of one pipeline the published view shows.

    Decisions never change rows of the data table. Methods about one plan raise
    `InvalidSelection` if the pipeline has no such plan. They raise `PlanStillOpen`, `PlanCancelled`
    or `InvalidSelection` if none of its rows are in the table.
    """

    pipeline: str
    ports: Ports

    def plans(self, ledger: Ledger | None = None) -> list[PlanPublication]:
        """Return every landed plan with ranges in the data table, oldest first.

        Args:
            ledger: The full ledger of the pipeline; None to read it.
        """
        ledger = ledger or self.ports.control.ledger(self.pipeline)
        replaced = self._replaced_unrecorded(ledger)
        records = ledger.plans.values()
        return [_publication_of(record, replaced) for record in records if record.has_rows]

    @tables_opened_once()
    def unchecked(self) -> list[int]:
        """Return the plans with landed offsets that need a check, oldest first.

        The published view omits these offsets. Omits plans that an operator has decided: a check
        cannot override the decision, and only another one covers offsets that a RESTORE brought
        back.
        """
        landed = self.ports.control.recorded_at(self.pipeline, EventKind.LANDED)
        decided = self.ports.control.publication_statuses(self.pipeline)
        ledger = self.ports.control.summary(self.pipeline)
        return [
            each.plan.sequence
            for each in self._current(ledger, set(landed).difference(decided))
            if each.unchecked and not (each.decision and each.decision.decided_by)
        ]

    @tables_opened_once()
    def hidden(self) -> HiddenOffsets:
        """Return the numbers of landed offsets that the published view hides."""
        # Read the plans before the decisions: a plan that lands later is decided later.
        ledger = self.ports.control.summary(self.pipeline)
        landed = self.ports.control.recorded_at(self.pipeline, EventKind.LANDED)
        statuses = self.ports.control.publication_statuses(self.pipeline)
        others = set(landed).difference(
            plan for plan, status in statuses.items() if status.is_visible
        )
        replaced = self._replaced_unrecorded(ledger)
        unchecked, refused = [], []
        for each in self._current(ledger, others):
            unchecked.append((each.plan.topic_id, each.unchecked))
            if each.decision and not each.decision.status.is_visible:
                landed_now = _current_landing(each).spans()
                decided = intersection_by_partition(landed_now, each.decision.spans)
                rows = difference_by_partition(decided, replaced.get(each.plan.topic_id, {}))
                refused.append((each.plan.topic_id, rows))
        # fence: unrecorded-replacement-is-unchecked
        unchecked += replaced.items()
        return HiddenOffsets(
            unchecked=size_of_all(_by_topic_id(unchecked)),
            refused=size_of_all(_by_topic_id(refused)),
        )

    def _replaced_unrecorded(self, ledger: Ledger) -> Mapping[str, Mapping[int, SpanSet]]:
        """Return the offsets whose rows an open plan has replaced, by topic id.

        The ledger still has the plans whose rows were there before.
        """
        replacing = [each.plan for each in ledger.open_plans() if each.plan.replaces]
        return _by_topic_id(
            (
                plan.topic_id,
                intersection_by_partition(plan.spans(), ledger.landed_of(plan.topic_id)),
            )
            for plan in replacing
            if self.ports.table.find_landing(plan)
        )

    def _current(self, ledger: Ledger, sequences: Collection[int]) -> list[PlanRecord]:
        """Return the given plans that have rows in the data table, oldest first.

        May return other plans too: all plans if that is faster. In a later epoch, a RESTORE may
        have brought back offsets of any plan, which its decision does not cover.
        """
        is_restored = ledger.epoch > 0
        if is_restored or len(sequences) > _FEW_PLANS:
            records = self.ports.control.ledger(self.pipeline).plans.values()
        else:
            plans = [PlanRef(pipeline=self.pipeline, sequence=each) for each in sorted(sequences)]
            records = self.ports.control.plan_records(plans).values()
        return [record for record in records if record.has_rows]

    def of_record(self, record: PlanRecord) -> PlanPublication:
        """Return the landed plan of a record with its effective decision."""
        _current_landing(record)
        replaced = self._replaced_unrecorded(self.ports.control.summary(self.pipeline))
        return _publication_of(record, replaced)

    def release(
        self, sequence: int, requested_by: str, reason: str, *, dry_run: bool = False
    ) -> PlanPublication:
        """Publish a plan that is blocked, rejected or unchecked.

        Args:
            sequence: The plan.
            requested_by: The operator's command, as `cli:<user>:<id>`.
            reason: The operator's reason.
            dry_run: Return the decision without recording it.

        Raises:
            NothingToDo: The published view already shows all rows of the plan.
            HistoriesDiverge, ControlConflict: See `read_checked_ledger` and `retry_on_conflict`.
        """
        return retry_on_conflict(
            lambda: self._decide(
                sequence, PublicationStatus.RELEASED, requested_by, reason, dry_run=dry_run
            )
        )

    def reject(
        self, sequence: int, requested_by: str, reason: str, *, dry_run: bool = False
    ) -> PlanPublication:
        """Hide a plan from the published view, regardless of its check results.

        Arguments and errors are those of `release`, without `NothingToDo`.
        """
        return retry_on_conflict(
            lambda: self._decide(
                sequence, PublicationStatus.REJECTED, requested_by, reason, dry_run=dry_run
            )
        )

    def _decide(
        self,
        sequence: int,
        status: PublicationStatus,
        requested_by: str,
        reason: str,
        *,
        dry_run: bool,
    ) -> PlanPublication:
        control = self.ports.control
        ledger = read_checked_ledger(control, self.pipeline, self.ports.table)
        record = recorded_plan(control, self.pipeline, sequence)
        current = _publication_of(record, self._replaced_unrecorded(ledger))
        decided = PublicationDecided(
            sequence=sequence,
            status=status,
            topic_id=record.plan.topic_id,
            spans=current.landing.spans(),
            decided_by=requested_by,
            reason=reason,
            decided_at=self.ports.now(),
        )
        if record.decision == decided:
            # The answer of the append was lost.
            return current
        if status is PublicationStatus.RELEASED and record.decision and current.is_published:
            shown = f"plan {sequence} is already published (status: {record.decision.status})"
            raise NothingToDo(pipeline=self.pipeline, finding=shown)
        if not dry_run:
            control.append(ledger, [decided], self.ports.now())
            log.info("decided pipeline=%s plan=%d status=%s", self.pipeline, sequence, status)
        return replace(current, record=replace(record, decision=decided))


def _publication_of(
    record: PlanRecord, replaced: Mapping[str, Mapping[int, SpanSet]]
) -> PlanPublication:
    """Return a plan with its decision; `replaced` is from `_replaced_unrecorded`."""
    gone = intersection_by_partition(
        _current_landing(record).spans(), replaced.get(record.plan.topic_id, {})
    )
    return PlanPublication(record=record, replaced=gone)


def _by_topic_id(
    found: Iterable[tuple[str, Mapping[int, SpanSet]]],
) -> Mapping[str, Mapping[int, SpanSet]]:
    """Return the union of some offsets by topic id, without topic ids that have none."""
    parts: dict[str, list[Mapping[int, SpanSet]]] = {}
    for topic_id, spans in found:
        parts.setdefault(topic_id, []).append(spans)
    united = {topic_id: union_by_partition(each) for topic_id, each in parts.items()}
    return {topic_id: spans for topic_id, spans in united.items() if spans}


def landing_of(record: PlanRecord) -> Landing:
    """Return what a plan landed, including ranges that later plans replaced.

    Raises `PlanCancelled` for an abandoned or undone plan, and `PlanStillOpen` for an open one.
    """
    refuse_cancelled(record)
    if record.landed_originally is None:
        raise PlanStillOpen.before_landing(record.plan.pipeline, record.plan.sequence)
    return record.landed_originally


def _current_landing(record: PlanRecord) -> Landing:
    """Return the rows that a plan has in the data table; raises the errors of `Publication`."""
    landing_of(record)
    if record.held_now is None or not record.held_now.counts:
        raise InvalidSelection.of_replaced_plan(record.plan.pipeline, record.plan.sequence)
    return record.held_now
