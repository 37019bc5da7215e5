"""Having the control table follow the data table: after a RESTORE, and after its own loss (I5)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.core.accounting import Landing
from tidemark.core.errors import TidemarkError
from tidemark.core.events import NewEpoch
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import SpanSet
from tidemark.core.plan import Plan, PlanKind, transaction_app_id
from tidemark.core.table_state import Commit, Restore, RowRange
from tidemark.core.watermarks import TopicWatermarks
from tidemark.ingest.conflicts import retry_on_conflict
from tidemark.ingest.protocols import Clock, ControlTable, DataTable, LogReader, WatermarkReader
from tidemark.ingest.recorder import Recorder, checked_ledger
from tidemark.lake.errors import ControlConflict, TransactionConflict
from tidemark.repair import rules as repair
from tidemark.repair.errors import NothingToRepair, RebuildRequired, UnexplainedRows
from tidemark.repair.rules import Differences
from tidemark.spec.model import PipelineSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What one look at the topic and the data table showed.

    Attributes:
        watermarks: The topic.
        row_ranges: What the table holds.
        commits: Plans' commits that the table's log tells of, newest first.
        restores: Every RESTORE that it tells of.
        found: What the ledger and the table do not agree on.
    """

    watermarks: TopicWatermarks
    row_ranges: Sequence[RowRange]
    commits: Sequence[Commit]
    restores: Sequence[Restore]
    found: Differences


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """Makes one pipeline's ledger tell what its data table holds, in a new epoch.

    Fenced first, then looked at, then recorded: no driver of an older epoch can land after the
    look. The data table's rows are not touched.
    """

    spec: PipelineSpec
    watermarks: WatermarkReader
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
            RebuildRequired: The table has plans that the ledger lacks; `rebuild` adds them.
            UnexplainedRows: Rows that no plan explains; nothing is changed.
            ControlConflict, TransactionConflict: Others were first, several times over.
        """
        return retry_on_conflict(
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
            UnexplainedRows: Rows that no plan explains; nothing is changed.
            ControlConflict, TransactionConflict: Others were first, several times over.
        """
        return retry_on_conflict(
            lambda: self._once(requested_by, reason, dry_run=dry_run, take_in=True)
        )

    def _once(self, requested_by: str, reason: str, *, dry_run: bool, take_in: bool) -> Differences:
        ledger = self.control.ledger(self.spec.name)
        look = self._look(ledger, requested_by)
        found = look.found
        if found.unknown and not take_in:
            raise RebuildRequired(
                pipeline=self.spec.name, unknown=tuple(plan.sequence for plan in found.unknown)
            )
        if not found.any and self._agree(ledger):
            raise NothingToRepair(pipeline=self.spec.name)
        # A rehearsal: whatever cannot be explained is told before anything is fenced.
        self._landings(ledger, look)
        if dry_run:
            return found
        known = self._epochs(ledger)
        fenced = self.table.fence_chains(self.spec.name, known)  # fence: older-epochs-are-fenced
        # Nothing of the old epochs can land from here on: look again.
        look = self._look(ledger, requested_by)  # fence: look-again-after-fence
        found = look.found
        begun = repair.beginning(ledger, found, look.commits, look.watermarks, requested_by, reason)
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
                *(commit.plan.sequence for commit in look.commits),
                0,
            ),
            committed={},
            requested_by=requested_by,
            reason=reason,
            missing_events=ledger.missing_events,
        )
        landings, covered = self._landings(ledger, look)
        events = repair.settled(ledger, found, landings, covered, epoch)
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
        watermarks = self.watermarks.topic_watermarks(self.spec.topic, self.spec.isolation_level)
        fallback = repair.fallback_plan(
            self.spec.name, watermarks, self.spec.isolation_level, requested_by
        )
        row_ranges = self.table.row_ranges()
        commits = self.table.plan_commits(requested_by)
        restores = self.table.state(self.spec.name, (), restores_since=-1).restores
        removal_versions = self.table.removal_versions()
        found = repair.compare(ledger, row_ranges, commits, restores, removal_versions, fallback)
        return _Look(
            watermarks=watermarks,
            row_ranges=row_ranges,
            commits=commits,
            restores=restores,
            found=found,
        )

    def _landings(
        self, ledger: Ledger, look: _Look
    ) -> tuple[Mapping[int, Landing], repair.Coverage]:
        """What each plan landed whose landing is to be written anew, and what all have landed.

        Newest first: what a newer plan holds, or has replaced, no older one does.

        Raises:
            UnexplainedRows: Two plans landed the same offset.
        """
        found = look.found
        to_land = {plan.sequence: plan for plan in found.to_land}
        gone = {plan.sequence for plan in found.gone}
        replacers = repair.replacing(ledger, look.commits, look.restores)
        landings: dict[int, Landing] = {}
        covered: dict[tuple[str, int], SpanSet] = {}
        for sequence in sorted({*ledger.plans, *to_land} - gone, reverse=True):
            record = ledger.plans.get(sequence)
            if plan := to_land.get(sequence):
                # What it once missed stays others'; but a RESTORE may have brought more back.
                known = record.whole.spans() if record and record.whole else {}
                left = [
                    repair.not_replaced(plan, spans, replacers, covered)
                    for spans in (known, plan.spans())
                ]
                landings[sequence] = self._landing(plan, left, look)
                repair.cover(covered, plan, landings[sequence])
            elif record and record.landing:
                repair.cover(covered, record.plan, record.landing)
        return landings, covered

    def _agree(self, ledger: Ledger) -> bool:
        try:
            checked_ledger(self.control, self.spec.name, self.table)
            for record in ledger.open_plans():
                # The commit of one may have been restored away before it was recorded.
                self.table.find_landing(record.plan)
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
            for epoch in range(max(epochs, ledger.epoch) + 1)  # fence: newer-epochs-are-fenced
            for kind in PlanKind
        ]

    def _in_table(self, epoch: int) -> bool:
        app_ids = [transaction_app_id(self.spec.name, epoch, kind) for kind in PlanKind]
        return bool(self.table.state(self.spec.name, app_ids).transactions)

    def _landing(self, plan: Plan, parts: Sequence[Plan | None], look: _Look) -> Landing:
        """What the table holds of a plan; gaps of a topic that is no more stay unproven.

        Args:
            plan: The plan.
            parts: Of what it may be: the first that has all its rows is taken.
            look: The table.

        Raises:
            UnexplainedRows: It has rows of the plan elsewhere.
            TransactionConflict: The table is another one now; look again.
        """
        rows = sum(each.rows for each in look.row_ranges if each.sequence == plan.sequence)
        for part in parts:
            held = self.table.current_landing(part or plan)
            if part is None:
                held = replace(held, counts=())
            if held.records != rows:
                continue
            if part is None:
                return held
            if plan.topic_id != look.watermarks.topic_id:
                return held.without_proof()
            return self._recorder.account_for(part, held, was_read=plan not in look.found.by_rows)[
                0
            ]
        if self.table.row_ranges() != look.row_ranges:
            # Somebody changed the table between two looks.
            raise TransactionConflict(pipeline=plan.pipeline, sequence=plan.sequence)
        raise UnexplainedRows(
            pipeline=plan.pipeline,
            sequence=plan.sequence,
            needed=f"{held.records} rows, at offsets that no other plan landed",
            seen=f"{rows} rows",
        )

    @property
    def _recorder(self) -> Recorder:
        return Recorder(
            control=self.control,
            data_log=self.table,
            watermarks=self.watermarks,
            log_reader=self.log_reader,
            now=self.now,
        )
