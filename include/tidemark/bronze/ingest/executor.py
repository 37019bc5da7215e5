"""Execution of a plan: land, confirm, record. Each step is skipped if it is already done."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tidemark.bronze.ingest.errors import CommitNotFound
from tidemark.bronze.ingest.ledgers import read_compared_ledger, recorded_plan, refuse_cancelled
from tidemark.bronze.ingest.log_comparison import LogComparison
from tidemark.bronze.ingest.ports import Ports
from tidemark.bronze.ingest.protocols import Sink
from tidemark.bronze.ingest.recorder import Recorder
from tidemark.core import plan_rules
from tidemark.core.accounting import Landing
from tidemark.core.errors import PlanCannotLand, TransientError
from tidemark.core.ledger import Ledger
from tidemark.core.plan import CommittablePlan, Plan, ReadablePlan
from tidemark.core.table_state import TableState
from tidemark.core.watermarks import TopicWatermarks
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.delta.errors import TransactionConflict
from tidemark.delta.opened_tables import reopen_tables, tables_opened_once
from tidemark.spec.model import PipelineSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """Result of executing a plan.

    Attributes:
        plan: The plan.
        landing: Its commit and counts.
        wrote: Whether this execution committed the rows. False if the plan had landed before, or if
            a concurrent execution committed it first.
    """

    plan: Plan
    landing: Landing
    wrote: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanExecutor:
    """Executes recorded plans of one pipeline. Any number of executions has the effect of one.

    Attributes:
        spec: The pipeline.
        ports: The ports of its table.
        sink: Writes a plan's files.
    """

    spec: PipelineSpec
    ports: Ports
    sink: Sink

    def execute(self, sequence: int) -> ExecutionResult:
        """Land and record one plan; skip the steps that are already done.

        Raises:
            InvalidSelection: The control table has no such plan.
            PlanCancelled: The plan is abandoned or undone.
            PlanCannotLand: Another process has started to abandon the plan.
            ForeignTable: The target is not the data table of this pipeline.
            TableAltered: See `DataTable.prepare` and `ControlTable.check_appends`.
            HistoriesDiverge: The data table and the control table have different histories.
            LostRange, EndBehindCommitted, TopicRecreated, TopicChanged: Kafka no longer has the
                planned records; nothing was written.
            LogTruncated: Kafka has another record at the offset of the last landed row; nothing
                was written.
            RecordsMissed: Some visible records did not land; the landed ones are recorded.
            CommitNotFound: The commit was made, but the table's log does not contain it.
            TableReplaced: An older copy replaced the table during the read, or files of the plan
                disappeared before the commit. Nothing was written.
            TableConflict: A conflicting commit to the table was first; nothing was written.
            PlanCannotLand: A row to replace has no new row; nothing was changed.
            KafkaFailure: Kafka did not answer, or refused.
            EngineFailed: The engine failed and the table's log does not contain the plan.
        """
        with tables_opened_once():
            record = recorded_plan(self.ports.control, self.spec.name, sequence)
            plan = record.plan
            refuse_cancelled(record)
            # Also check a landed plan: a RESTORE may have removed its rows.
            ledger, seen = read_compared_ledger(self.ports.control, plan.pipeline, self.ports.table)
            if record.held_now and record.landed_originally:
                log.info("landed already pipeline=%s plan=%d", plan.pipeline, sequence)
                return ExecutionResult(plan=plan, landing=record.landed_originally, wrote=False)
            self.ports.control.check_appends()
            landing = self._find_landing(plan)
        wrote = landing is None and self._land(plan, ledger, seen)
        landing = retry_on_conflict(lambda: self._record(plan))
        return ExecutionResult(plan=plan, landing=landing, wrote=wrote)

    @tables_opened_once()
    def _find_landing(self, plan: Plan) -> Landing | None:
        """Return the plan's commit; None if the plan has not landed and still can.

        Raises:
            PlanCancelled, PlanCannotLand: The plan can no longer land.
        """
        # Read the transactions first: a plan that lands between the two reads is not mistaken for
        # a fenced plan.
        state = self.ports.table.state(plan.pipeline, (plan.app_id,))
        landing = self.ports.table.find_landing(plan)
        if landing is None and state.transactions.get(plan.app_id, 0) >= plan.sequence:
            # A concurrent process has abandoned the plan, or has started to.
            reopen_tables()
            refuse_cancelled(recorded_plan(self.ports.control, plan.pipeline, plan.sequence))
            raise PlanCannotLand.by_fence(plan.pipeline, plan.sequence)
        return landing

    def _land(self, plan: Plan, ledger: Ledger, seen: TableState) -> bool:
        """Write and commit the plan; return whether this process committed it.

        Args:
            plan: The plan.
            ledger: The ledger.
            seen: The state of the table that was compared with the ledger.
        """
        wrote = False
        source = TopicSource(ports=self.ports)
        readable = source.check_before_reading(plan, ledger)
        size = self.ports.table.prepare(plan.pipeline)
        try:
            records_per_task = size.records_within(
                self.spec.records_per_task, self.spec.bytes_per_task
            )
            files = self.sink.write(readable, records_per_task)
            committable = source.check_before_commit(readable)
            # An append whose answer is lost may have committed.
            wrote = True
            wrote = self.ports.table.append(committable, files, seen)
        except TransientError as error:
            # The commit may have succeeded before the failure, or in a concurrent execution.
            if self._find_landing(plan) is None:
                source.raise_if_lost(plan)
                raise
            return wrote and not isinstance(error, TransactionConflict)
        return wrote

    def _record(self, plan: Plan) -> Landing:
        with tables_opened_once():
            ledger = self.ports.control.summary(plan.pipeline)
            record = recorded_plan(self.ports.control, plan.pipeline, plan.sequence)
            if record.held_now and record.landed_originally:
                return record.landed_originally
            # An operator may have rewound the pipeline to a state before this landing.
            refuse_cancelled(record)  # fence: abandoned-plan-is-not-recorded
            # Search for the landing after the read of the ledger, whose check reads only RESTOREs
            # after the newest recorded landing. Another plan may have that landing, so the check
            # may not read a RESTORE that has removed the rows of this plan.
            landing = self._find_landing(plan)  # fence: landing-is-found-after-its-ledger
        if landing is not None:
            return Recorder(ports=self.ports).record(ledger, plan, landing)
        # fence: reported-commit-is-looked-up
        raise CommitNotFound(pipeline=plan.pipeline, sequence=plan.sequence, seen="no such commit")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSource:
    """Checks the topic that a plan is read from."""

    ports: Ports

    def check_before_reading(self, plan: Plan, ledger: Ledger) -> ReadablePlan:
        """Refuse a topic that lacks the planned records, or differs from the landed records.

        The returned plan has the leader epochs of this check.

        Raises:
            TopicRecreated, EndBehindCommitted and so on: See `LogComparison.check_plan`.
        """
        watermarks = self._watermarks(plan)
        LogComparison(ports=self.ports).check_plan(plan, ledger, watermarks)
        # Every record that is read from now on has one of these epochs, or a newer one. So a later
        # truncation before the end of the plan ends one of these epochs there.
        epochs = {p: here.leader_epoch for p, here in watermarks.partitions.items()}
        return ReadablePlan(plan.with_leader_epochs(epochs))

    def check_before_commit(self, plan: ReadablePlan) -> CommittablePlan:
        """Refuse files with records of a topic that was recreated while they were read.

        Raises:
            TopicRecreated and so on: See `plan_rules.check_same_topic`.
        """
        # fence: same-topic-before-commit
        plan_rules.check_same_topic(plan, self._watermarks(plan))
        return CommittablePlan(plan)

    def raise_if_lost(self, plan: Plan) -> None:
        """Raise the specific error if Kafka no longer has the planned records.

        Raises:
            LostRange, TopicRecreated and so on: See `plan_rules.check_readable`.
        """
        try:
            watermarks = self._watermarks(plan)
        except TransientError:
            return
        plan_rules.check_readable(plan, watermarks)

    def _watermarks(self, plan: Plan) -> TopicWatermarks:
        return self.ports.watermarks.topic_watermarks(plan.topic, plan.isolation_level)
