"""Having the control table follow the data table: after a RESTORE, and after its own loss (I5)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemark.core import repair
from tidemark.core.events import Landed, NewEpoch, Planned, Superseded
from tidemark.core.landing import Landing
from tidemark.core.ledger import Ledger
from tidemark.core.marks import TopicMarks
from tidemark.core.plan import Plan, PlanKind, transaction_app_id
from tidemark.core.repair import Differences
from tidemark.core.spec import PipelineSpec
from tidemark.errors import ControlConflict, NotARewind, NothingToRepair, TidemarkError
from tidemark.ports import Clock, ControlTable, DataTable, LogReader, MarkReader
from tidemark.services.conflicts import after_conflicts
from tidemark.services.recording import Recorder, checked_ledger
from tidemark.services.superseding import superseded_events

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What one look at the topic and the data table showed.

    Attributes:
        marks: The topic.
        told: Plans by number that the table's commits tell of.
        found: What the ledger and the table do not agree on.
    """

    marks: TopicMarks
    told: Mapping[int, Plan]
    found: Differences


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """Makes one pipeline's ledger tell what its data table holds, in a new epoch.

    Fenced first, then looked at, then recorded: no driver of an older epoch can land after the
    look. The data table's rows are not touched.
    """

    spec: PipelineSpec
    marks: MarkReader
    control: ControlTable
    table: DataTable
    log_reader: LogReader
    now: Clock

    def rewind(self, requested_by: str, reason: str, *, dry_run: bool = False) -> Differences:
        """Return offsets to unread whose rows a RESTORE, or a removal, took out of the data table.

        Args:
            requested_by: Who wants it.
            reason: Why, in their words.
            dry_run: Only say what would change.

        Raises:
            NothingToRepair: The tables agree.
            NotARewind: The table has plans that the ledger does not know; `rebuild` takes them in.
            TableTampered: Rows that no plan explains; nothing is changed.
            ControlConflict, TransactionConflict: Others were first, several times over.
        """
        return after_conflicts(
            lambda: self._once(requested_by, reason, dry_run=dry_run, take_in=False)
        )

    def rebuild(self, requested_by: str, reason: str, *, dry_run: bool = False) -> Differences:
        """Record again what the data table holds and the control table has lost.

        From the commits that the table's log still tells of; from the rows' own columns where it
        does not. Takes rewound plans out as `rewind` does.

        Args:
            requested_by: Who wants it.
            reason: Why, in their words.
            dry_run: Only say what would change.

        Raises:
            NothingToRepair: The tables agree.
            TableTampered: Rows that no plan explains; nothing is changed.
            ControlConflict, TransactionConflict: Others were first, several times over.
        """
        return after_conflicts(
            lambda: self._once(requested_by, reason, dry_run=dry_run, take_in=True)
        )

    def _once(self, requested_by: str, reason: str, *, dry_run: bool, take_in: bool) -> Differences:
        ledger = self.control.ledger(self.spec.name)
        look = self._look(ledger, requested_by)
        found = look.found
        if found.unknown and not take_in:
            raise NotARewind(
                pipeline=self.spec.name, unknown=tuple(plan.sequence for plan in found.unknown)
            )
        if not found.any and self._agree(ledger):
            raise NothingToRepair(pipeline=self.spec.name)
        # A rehearsal: whatever cannot be explained is told before anything is fenced.
        landings = self._landings(look)
        repair.coverage(ledger, found, landings, self._superseded(ledger, look, landings))
        if dry_run:
            return found
        known = self._epochs(ledger)
        fenced = self.table.fence_chains(self.spec.name, known)
        # Nothing of the old epochs can land from here on: look again.
        look = self._look(ledger, requested_by)
        found = look.found
        begun = repair.beginning(ledger, found, look.marks, requested_by, reason)
        if begun:
            # A commit of its own, so that each commit tells one committed offset of a partition.
            self.control.append(ledger, begun, self.now())
            number, missing = ledger.event_number + 1, ledger.missing_events
            ledger = self.control.ledger(self.spec.name)
            if (ledger.event_number, ledger.missing_events) != (number, missing):
                # What was found is of before what others recorded meanwhile.
                raise ControlConflict(pipeline=ledger.pipeline, event_number=number + 1)
        epoch = NewEpoch(
            epoch=len(known) // len(PlanKind),
            table_version=fenced,
            # A number that a RESTORE took out of the table with its plan stays taken.
            sequence=max(
                ledger.last_sequence,
                *(plan.sequence for plan in found.unknown),
                *look.told,
                0,
            ),
            committed={},
            requested_by=requested_by,
            reason=reason,
            missing_events=ledger.missing_events,
        )
        landings = self._landings(look)
        superseded = self._superseded(ledger, look, landings)
        events = repair.settled(ledger, found, landings, superseded, epoch)
        self.control.append(ledger, events, self.now())
        log.info(
            "repaired pipeline=%s epoch=%d recorded=%d returned=%d",
            self.spec.name,
            epoch.epoch,
            len(found.to_record),
            len(found.gone),
        )
        return found

    def _look(self, ledger: Ledger, requested_by: str) -> _Look:
        marks = self.marks.topic_marks(self.spec.topic, self.spec.isolation_level)
        fallback = repair.fallback_plan(
            self.spec.name, marks, self.spec.isolation_level, requested_by
        )
        holdings = self.table.holdings()
        told = self.table.landed_plans(requested_by)
        restores = self.table.state((), since=-1).restores
        discards = self.table.discards()
        found = repair.compare(ledger, holdings, told, restores, discards, fallback)
        return _Look(marks=marks, told=told, found=found)

    def _landings(self, look: _Look) -> Mapping[int, Landing]:
        return {
            plan.sequence: self._landing(
                repair.not_replaced(plan, look.found.to_record),
                look.marks.topic_id,
                told=plan not in look.found.by_rows,
            )
            for plan in look.found.to_record
        }

    def _superseded(
        self, ledger: Ledger, look: _Look, landings: Mapping[int, Landing]
    ) -> list[Superseded]:
        """What plans that replaced rows, and that the ledger does not know, left of known ones."""
        events: list[Superseded] = []
        for plan in look.found.unknown:
            if plan.replaces:
                left = superseded_events(plan, ledger, self.table, check=False)
                landed = Landed(plan=plan, landing=landings[plan.sequence], committed={})
                ledger = ledger.after([Planned(plan=plan), *left, landed])
                events += left
        return events

    def _agree(self, ledger: Ledger) -> bool:
        try:
            checked_ledger(self.control, self.spec.name, self.table)
            for record in ledger.open_plans():
                # The commit of one may have been restored away before it was recorded.
                self.table.find(record.plan)
        except TidemarkError:
            return False
        return True

    def _epochs(self, ledger: Ledger) -> Sequence[str]:
        """Application ids of every epoch that a driver may still hold a plan of.

        Epochs follow each other by fencing, so each but the last is in the table; the last may be
        in nobody's table or ledger but a lost one.
        """
        epochs = 0
        while self._in_table(epochs):
            epochs += 1
        return [
            transaction_app_id(self.spec.name, epoch, kind)
            for epoch in range(max(epochs, ledger.epoch) + 1)
            for kind in PlanKind
        ]

    def _in_table(self, epoch: int) -> bool:
        app_ids = [transaction_app_id(self.spec.name, epoch, kind) for kind in PlanKind]
        return bool(self.table.state(app_ids, since=0).transactions)

    def _landing(self, plan: Plan, topic_id: str, *, told: bool) -> Landing:
        """What the table holds of a plan; holes of a topic that is no more stay unproven."""
        held = self.table.held(plan)
        if plan.topic_id == topic_id:
            return self._recorder.accounted(plan, held, was_read=told)[0]
        return held.without_proof()

    @property
    def _recorder(self) -> Recorder:
        return Recorder(
            control=self.control,
            data_log=self.table,
            marks=self.marks,
            log_reader=self.log_reader,
            now=self.now,
        )
