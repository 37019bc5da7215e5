"""Undo of landed plans: removes their rows, so that their offsets are unread again."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidemark.bronze.ingest.errors import PlanCancelled, PlanStillOpen
from tidemark.bronze.ingest.ledgers import check_ledger, read_compared_ledger, recorded_plan
from tidemark.bronze.ingest.log_comparison import LogComparison
from tidemark.bronze.ingest.ports import Ports
from tidemark.core.accounting import Landing
from tidemark.core.errors import OnlyCopy, TidemarkError
from tidemark.core.events import Abandoned, Undone, UndoStarted
from tidemark.core.ledger import PlanRecord
from tidemark.core.offsets import size_of
from tidemark.core.plan import Plan
from tidemark.core.table_state import TableState, check_survives_restores
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.delta.errors import ControlConflict, RemovalFenced, UnreadableFile
from tidemark.kafka.errors import InvalidConnection, KafkaFailure
from tidemark.spec.model import PipelineSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoResult:
    """Result of an undo.

    Attributes:
        plan: The plan.
        rows: Number of rows removed, or to remove in a dry run.
        lost: Number of the plan's offsets whose records Kafka no longer has, at most; None if it
            is unknown.
        problem: Why it is unknown: the failure of Kafka or of the connection.
    """

    plan: Plan
    rows: int
    lost: int | None = 0
    problem: TidemarkError | None = None

    def as_record(self) -> dict[str, Any]:
        """Return plain values, for `--json`."""
        problem = self.problem and self.problem.as_record()
        return {**self.plan.as_record(), "rows": self.rows, "lost": self.lost, "problem": problem}


class _Losses(NamedTuple):
    """Losses of an undo; the fields are those of `UndoResult`."""

    lost: int | None = 0
    problem: TidemarkError | None = None


@dataclass(frozen=True, kw_only=True)
class Undo:
    """Removes exactly the rows of landed plans of one pipeline.

    Attributes:
        spec: The spec of the pipeline.
        ports: The ports of its table.
    """

    spec: PipelineSpec
    ports: Ports

    def undo(
        self,
        sequence: int,
        requested_by: str,
        reason: str,
        *,
        allow_loss: bool = False,
        dry_run: bool = False,
    ) -> UndoResult:
        """Record that the undo begins, remove the plan's rows, record that the undo is complete.

        In this order: from the first step on no process relies on the rows, and no process plans
        their offsets before the last step. After an interruption, a repetition continues. A plan
        that was undone already stays so.

        Args:
            sequence: The plan.
            requested_by: The operator.
            reason: The operator's reason.
            allow_loss: Also undo a plan whose records Kafka may no longer have.
            dry_run: Only return the rows to remove, and what would be lost.

        Raises:
            OnlyCopy: Kafka no longer has records of the plan; nothing is recorded.
            KafkaFailure, InvalidConnection: It is unknown whether Kafka has the
                records of the plan; nothing is recorded.
            InvalidSelection: The control table has no such plan.
            PlanStillOpen: The plan is open; it can be abandoned instead.
            PlanCancelled: The plan was abandoned, or a RESTORE removed its rows.
            UnreadableFile: A file with rows of the plan and of others cannot be read; nothing is
                recorded.
            TableAltered, StorageFailure: The rows cannot be removed; nothing is recorded, unless
                the table changed after the undo had begun. Then a rewind ends the undo.
            EngineFailed: The outcome of the removal is unknown; run the undo again.
            TableConflict: Other processes changed the table in every attempt; run the undo again.
            RemovalFenced: A repair ran during the undo, and the rows may still or again be in the
                table; run the undo again.
            TableReplaced: An older copy replaced the table during the undo; run the undo again.
            TableBehindLedger: A RESTORE brought the rows back; run the undo again.
            HistoriesDiverge, ControlConflict: See `read_checked_ledger` and `retry_on_conflict`.
        """
        record, epoch, seen, losses = retry_on_conflict(
            lambda: self._record_start(
                sequence, requested_by, reason, allow_loss=allow_loss, dry_run=dry_run
            )
        )
        plan = record.plan
        if record.undone_version is not None:
            return UndoResult(plan=plan, rows=0)
        if dry_run:
            rows = self.ports.table.current_landing(plan).records
            return UndoResult(plan=plan, rows=rows, **losses._asdict())
        rows, version = self.ports.table.remove_rows(plan, epoch, seen)
        undone = Undone(
            sequence=sequence, requested_by=requested_by, reason=reason, table_version=version
        )
        retry_on_conflict(lambda: self._record_end(undone, epoch), ControlConflict)
        log.info("undone pipeline=%s plan=%d rows=%d", plan.pipeline, sequence, rows)
        return UndoResult(plan=plan, rows=rows, **losses._asdict())

    def _check_losses(self, plan: Plan, landing: Landing, *, permitted: bool) -> _Losses:
        """Return what an undo of a landed plan would lose, if the loss is permitted.

        Raises:
            OnlyCopy, KafkaFailure, InvalidConnection: See `undo`.
        """
        try:
            lost = self._lost_offsets(plan, landing)
        except (KafkaFailure, InvalidConnection) as problem:
            if not permitted:  # fence: unknown-loss-is-refused
                raise
            log.warning(
                "not compared with Kafka pipeline=%s plan=%d error=%s message=%s",
                *(plan.pipeline, plan.sequence, type(problem).__name__, problem),
            )
            return _Losses(lost=None, problem=problem)
        if lost and not permitted:  # fence: only-copy-is-not-removed
            raise OnlyCopy.of_records(plan.pipeline, plan.sequence, lost)
        return _Losses(lost=lost)

    def _lost_offsets(self, plan: Plan, landing: Landing) -> int:
        """Return the number of a landed plan's offsets whose records Kafka no longer has.

        If a partition has another record at the last landed offset of the plan, its log was
        truncated before that offset. Then all offsets of the plan in that partition count.
        """
        spans = landing.spans()
        if not spans:
            return 0
        now = self.ports.watermarks.topic_watermarks(plan.topic, plan.isolation_level)
        if now.topic_id != plan.topic_id:
            return size_of(spans)
        here = {
            p: now.partitions[p].readable(some) for p, some in spans.items() if p in now.partitions
        }
        try:
            replaced = LogComparison(ports=self.ports).replaced_partitions(plan.pipeline, now, here)
        except UnreadableFile:
            # A damaged file is no copy. An undo is the way to land its records again.
            replaced = set()
        if replaced:  # fence: replaced-records-count-as-lost
            here = {p: some for p, some in here.items() if p not in replaced}
        return size_of(spans) - size_of(here)

    def _record_start(
        self, sequence: int, requested_by: str, reason: str, *, allow_loss: bool, dry_run: bool
    ) -> tuple[PlanRecord, int, TableState, _Losses]:
        """Record that the undo starts, unless it already has.

        Returns:
            The plan's record, the epoch and the state of the table at the comparison, and what the
            undo loses. An undo that has already begun reports no loss: it must be completed.
        """
        ledger, seen = read_compared_ledger(self.ports.control, self.spec.name, self.ports.table)
        record = recorded_plan(self.ports.control, self.spec.name, sequence)
        if record.is_open:
            raise PlanStillOpen.before_landing(self.spec.name, sequence)
        end = record.cancelled_by
        if isinstance(end, Abandoned) or (isinstance(end, Undone) and end.table_version is None):
            raise PlanCancelled.by(self.spec.name, sequence, end)
        if record.held_now is None:
            return record, ledger.epoch, seen, _Losses()
        # After the ledger, so that a plan that lands or returns meanwhile is compared, too.
        losses = self._check_losses(record.plan, record.held_now, permitted=allow_loss or dry_run)
        # Checked first: a recorded undo blocks all other commands until it is complete.
        if dry_run:
            # An operator without the right to write may look.
            self.ports.table.check_removals()
        else:
            self.ports.table.check_removable(record.plan)  # fence: only-possible-undos-begin
            is_current = record.plan.topic_id == ledger.topic_id
            started = UndoStarted(
                sequence=sequence,
                requested_by=requested_by,
                reason=reason,
                committed=ledger.committed_without(record.held_now.spans()) if is_current else {},
            )
            self.ports.control.append(ledger, [started], self.ports.now())
        return record, ledger.epoch, seen, losses

    def _record_end(self, undone: Undone, epoch: int) -> None:
        # A RESTORE during the undo may have restored rows that the plan had replaced.
        # fence: restore-during-undo
        ledger = check_ledger(
            self.ports.control, self.ports.control.summary(self.spec.name), self.ports.table
        )
        record = recorded_plan(self.ports.control, self.spec.name, undone.sequence)
        if ledger.epoch != epoch:  # fence: undo-ends-in-its-epoch
            # A repair ended the epoch of this undo. It may have read the table before the removal,
            # or after a RESTORE or a copy had brought the rows back.
            raise RemovalFenced(pipeline=self.spec.name, sequence=undone.sequence)
        if record.undoing and undone.table_version is not None:
            # The ledger lacks the removal's version. If another plan has landed after a RESTORE,
            # `check_ledger` reads later RESTOREs only.
            since = self.ports.table.state(self.spec.name, (), restores_since=undone.table_version)
            # fence: restore-of-unrecorded-removal
            check_survives_restores(record.plan, undone.table_version, since.restores)
            self.ports.control.append(ledger, [undone], self.ports.now())
