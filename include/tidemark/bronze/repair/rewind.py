"""Rewind and rebuild: the control table follows the data table (I5).

A rewind follows a RESTORE of the data table. A rebuild also records plans that the control table
has lost.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.bronze.ingest.ledgers import read_checked_ledger
from tidemark.bronze.ingest.ports import Ports
from tidemark.bronze.ingest.recorder import Recorder
from tidemark.bronze.repair import rules
from tidemark.bronze.repair.errors import NothingToDo, UnexplainedRows
from tidemark.bronze.repair.rules import Differences, TableLog
from tidemark.core.accounting import Landing
from tidemark.core.errors import HistoriesDiverge, LedgerBehindTable
from tidemark.core.events import NewEpoch
from tidemark.core.ledger import CheckedLedger, Ledger, PlanRecord
from tidemark.core.offsets import SpanSet
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan, PlanKind, removal_app_id, transaction_app_id
from tidemark.core.table_state import RowRange
from tidemark.core.watermarks import TopicWatermarks
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.delta.errors import ControlConflict, TransactionConflict
from tidemark.spec.model import PipelineSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RepairState:
    """State of the topic and the data table, and its differences from the ledger.

    Attributes:
        watermarks: Watermarks of the topic.
        row_ranges: Contents of the table.
        log: The table's log.
        found: Differences between ledger and table.
    """

    watermarks: TopicWatermarks
    row_ranges: Sequence[RowRange]
    log: TableLog
    found: Differences


@dataclass(frozen=True, kw_only=True)
class Repair:
    """Records in a new epoch what the data table of one pipeline contains.

    Fences all older epochs, reads the table, then records: no driver of an older epoch can land
    after the read. Does not change rows. Raises `CommitConflict`, as `retry_on_conflict` does.
    """

    spec: PipelineSpec
    ports: Ports

    def rewind(self, requested_by: str, reason: str, *, dry_run: bool = False) -> Differences:
        """Record as unread the offsets whose rows a RESTORE or the table's removal has removed.

        Args:
            requested_by: The operator.
            reason: The operator's reason.
            dry_run: Write nothing.

        Returns:
            The differences, recorded or to record.

        Raises:
            NothingToDo: The control table and the data table agree.
            LedgerBehindTable: The table has plans that the ledger lacks; `rebuild` adds them.
            UnexplainedRows: The table's rows do not match the landed plans; nothing is changed.
            TableAltered: One of the tables cannot be written; nothing is changed.
        """
        return retry_on_conflict(
            lambda: self._attempt_repair(requested_by, reason, dry_run=dry_run, add_unknown=False)
        )

    def rebuild(self, requested_by: str, reason: str, *, dry_run: bool = False) -> Differences:
        """Record plans that the data table contains and the control table has lost.

        The plans come from the commits in the table's log, or from the columns of the rows if the
        log no longer has the commit. Also does what `rewind` does; arguments, result and errors are
        those of `rewind`.
        """
        return retry_on_conflict(
            lambda: self._attempt_repair(requested_by, reason, dry_run=dry_run, add_unknown=True)
        )

    def _attempt_repair(
        self, requested_by: str, reason: str, *, dry_run: bool, add_unknown: bool
    ) -> Differences:
        ledger = self.ports.control.ledger(self.spec.name)
        state = self._read_state(ledger, requested_by)
        found = state.found
        if found.unknown and not add_unknown:
            raise LedgerBehindTable.without_plan(
                pipeline=self.spec.name,
                sequence=found.unknown[-1].sequence,
                newest=ledger.last_sequence,
            )
        if not found.any and self._agree(ledger):
            raise NothingToDo(
                pipeline=self.spec.name, finding="its control table and its data table agree"
            )
        # Raise for unexplained rows before anything is fenced.
        landings, _ = self._landings(ledger, state)
        if dry_run:
            return rules.with_recounts(ledger, found, landings)
        self.ports.control.check_appends()
        older = range(self._next_epoch(ledger))
        app_ids = [each for epoch in older for each in self._app_ids(epoch)]
        fenced = self.ports.table.fence_chains(
            self.spec.name,
            app_ids,  # fence: older-epochs-are-fenced
            requested_by,
        )
        # No plan of an older epoch can still land: read the table again.
        state = self._read_state(ledger, requested_by)  # fence: look-again-after-fence
        found = state.found
        start = rules.start_events(
            ledger, found, state.log.commits, state.watermarks, requested_by, reason
        )
        if start:
            # In a separate commit, so that each commit has one committed offset per partition.
            self.ports.control.append(_corrected(ledger), start, self.ports.now())
            number, missing = ledger.event_number + 1, ledger.missing_events
            ledger = self.ports.control.ledger(self.spec.name)
            if (ledger.event_number, ledger.missing_events) != (number, missing):
                # A concurrent process recorded events after the differences were read.
                raise ControlConflict(pipeline=ledger.pipeline, event_number=number + 1)
        # Includes fences of an earlier, killed repair. Transactions outlive the log's commits.
        fences = state.log.fences.values()
        epoch = NewEpoch(
            epoch=len(older),
            table_version=fenced,
            # Never reuse the number of a plan without rows: results of checks apply to its number.
            sequence=max(
                ledger.last_sequence,
                *(plan.sequence for plan in found.unknown),
                *(commit.plan.sequence for commit in state.log.commits),
                *[each.before for each in fences],  # fence: numbers-of-forgotten-plans-stay-used
            ),
            committed={},
            requested_by=requested_by,
            reason=reason,
            missing_events=ledger.missing_events,
        )
        landings, covered = self._landings(ledger, state)
        events = rules.repair_events(ledger, found, landings, covered, epoch)
        self.ports.control.append(_corrected(ledger), events, self.ports.now())
        log.info(
            "repaired pipeline=%s epoch=%d recorded=%d unread=%d",
            self.spec.name,
            epoch.epoch,
            len(found.to_record),
            len(found.gone),
        )
        return rules.with_recounts(ledger, found, landings)

    def _read_state(self, ledger: Ledger, requested_by: str) -> _RepairState:
        watermarks = self.ports.watermarks_of(self.spec)
        fallback = rules.fallback_plan(
            self.spec.name, watermarks, self.spec.isolation_level, requested_by
        )
        row_ranges = self.ports.table.row_ranges()
        commits = self.ports.table.plan_commits(RunOrigin(requested_by))
        app_ids = [each for epoch in range(ledger.epoch + 1) for each in self._app_ids(epoch)]
        now = self.ports.table.state(self.spec.name, app_ids, restores_since=-1)
        table_log = TableLog(
            commits=commits,
            restores=now.restores,
            transactions=now.transactions,
            removals=self.ports.table.removal_versions(),
            fences=self.ports.table.fences(),
            start=self.ports.table.log_start(),
        )
        found = rules.compare(ledger, row_ranges, table_log, fallback)
        return _RepairState(
            watermarks=watermarks,
            row_ranges=row_ranges,
            log=table_log,
            found=found,
        )

    def _landings(
        self, ledger: Ledger, state: _RepairState
    ) -> tuple[Mapping[int, Landing], rules.Coverage]:
        """Return the landing of each plan to record, and the offsets that all plans landed.

        Newest plans first: an older plan does not hold offsets of a newer plan.
        """
        found = state.found
        to_land = {plan.sequence: plan for plan in found.to_land}
        gone = {plan.sequence for plan in found.gone}
        replacers = rules.replacing_plans(ledger, state.log)
        landings: dict[int, Landing] = {}
        covered: dict[tuple[str, int], SpanSet] = {}
        for sequence in sorted({*ledger.plans, *to_land} - gone, reverse=True):
            record = ledger.plans.get(sequence)
            if plan := to_land.get(sequence):
                if record and record.plan.fingerprint != plan.fingerprint:
                    # Another plan with the same number, of a table from a backup.
                    record = None
                plan = state.log.with_landed_epochs(plan, record)
                # First try the offsets that it landed; a RESTORE may have restored more.
                known = (
                    record.landed_originally.spans() if record and record.landed_originally else {}
                )
                left = [
                    rules.remaining_plan(plan, spans, replacers, covered)
                    for spans in (known, plan.spans())
                ]
                landings[sequence] = self._landing(plan, record, left, state)
                rules.add_coverage(covered, plan, landings[sequence])
            elif record and record.held_now:
                rules.add_coverage(covered, record.plan, record.held_now)
        return landings, covered

    def _agree(self, ledger: Ledger) -> bool:
        """Return whether ledger and table agree.

        After other errors, such as `StorageFailure`, this is unknown. They end the repair, which
        would otherwise abandon the open plans of an undamaged pipeline.
        """
        try:
            read_checked_ledger(self.ports.control, self.spec.name, self.ports.table)
            for record in ledger.open_plans():
                # A RESTORE may have removed a commit before it was recorded.
                self.ports.table.find_landing(record.plan)
        except HistoriesDiverge:
            return False
        return True

    def _next_epoch(self, ledger: Ledger) -> int:
        """Return the first epoch that no driver can have a plan of.

        Each epoch starts with a fence in the table. The newest epoch may be missing from the table
        and the ledger, so the result is higher by one.
        """
        epochs = 0
        while self._is_in_table(epochs):
            epochs += 1
        return max(epochs, ledger.epoch) + 1  # fence: one-more-epoch-is-fenced

    def _is_in_table(self, epoch: int) -> bool:
        state = self.ports.table.state(self.spec.name, self._app_ids(epoch))
        return bool(state.transactions)

    def _app_ids(self, epoch: int) -> Sequence[str]:
        """Return the application ids of an epoch's landings, and of its removals of rows."""
        landings = [transaction_app_id(self.spec.name, epoch, kind) for kind in PlanKind]
        return [*landings, removal_app_id(self.spec.name, epoch)]

    def _unchanged_landing(
        self, record: PlanRecord | None, part: Plan, state: _RepairState
    ) -> Landing | None:
        """Return the recorded landing of a plan that holds the same offsets as before.

        Its missing rows were deleted from the table, so their offsets are not read again. None for
        all other plans: an undo, a replay or a RESTORE may have removed their rows.
        """
        if (
            record is None
            or record.held_now is None
            or record.plan not in state.found.recounted
            or state.log.discarded_at(record.plan.sequence, record.held_now) is not None
            or not state.log.has_kept_landing(record)
            or record.held_now.spans() != part.spans()
        ):
            return None
        return record.held_now

    def _landing(
        self,
        plan: Plan,
        record: PlanRecord | None,
        parts: Sequence[Plan | None],
        state: _RepairState,
    ) -> Landing:
        """Return what the table contains of a plan; gaps of a deleted topic stay unproven.

        Args:
            plan: The plan.
            record: What the ledger has of it.
            parts: Candidates for its offsets; the first that contains all its rows is used.
            state: The state of the table.
        """
        rows = sum(each.rows for each in state.row_ranges if each.sequence == plan.sequence)
        for part in parts:
            held = self.ports.table.current_landing(part or plan)
            if part is None:
                held = replace(held, counts=())
            if held.records != rows:
                continue
            if part is None:
                return held
            unchanged = self._unchanged_landing(record, part, state)
            if unchanged is not None:  # fence: deleted-rows-stay-landed
                return unchanged
            if plan.topic_id != state.watermarks.topic_id:
                return held.with_unproven_gaps()
            # The ledger may have counted rows of a version that the table no longer has.
            has_kept = (
                not (record and record.held_now)
                or state.log.has_kept_landing(record)
                or state.log.has_kept_commit(plan)
            )
            was_read = has_kept and plan not in state.found.by_rows
            return Recorder(ports=self.ports).account_for(part, held, was_read=was_read)[0]
        if self.ports.table.row_ranges() != state.row_ranges:
            # Another process changed the table between two reads.
            raise TransactionConflict(pipeline=plan.pipeline, sequence=plan.sequence)
        raise UnexplainedRows(
            pipeline=plan.pipeline,
            sequence=plan.sequence,
            needed=f"{held.records} rows, at offsets that no other plan landed",
            seen=f"{rows} rows",
        )


def _corrected(ledger: Ledger) -> CheckedLedger:
    """Return a ledger that differs from its table, for the events that correct the differences."""
    return CheckedLedger(ledger)
