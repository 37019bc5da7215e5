"""Records landings, and checks that the control table and the data table agree.

A recorded landing is the only event that moves committed offsets in a regular run.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tidemark.core import plan_rules
from tidemark.core.accounting import GapEvidence, Landing, apply_gap_evidence
from tidemark.core.errors import LedgerBehindTable, RepairUnfinished, TopicDiffers
from tidemark.core.events import Landed
from tidemark.core.ledger import CheckedLedger, Ledger, PlanRecord
from tidemark.core.offsets import Span, spans_by_partition
from tidemark.core.plan import Plan
from tidemark.core.table_state import (
    chains,
    check_table,
    fenced_chains,
    max_rows,
    newest_table_version,
)
from tidemark.core.watermarks import TopicWatermarks
from tidemark.ingest.errors import DuplicateRows, PlanAbandoned, RecordsMissed, UnknownPlan
from tidemark.ingest.protocols import (
    Clock,
    ControlReader,
    ControlTable,
    DataLog,
    LogReader,
    WatermarkReader,
)
from tidemark.lake.conflicts import retry_on_conflict
from tidemark.lake.errors import ControlConflict

log = logging.getLogger(__name__)

_LOOKS = 5
"""Reads of ledger and row count, until no event was recorded between the two reads."""
NO_EVIDENCE = GapEvidence(gaps={}, visible={}, deleted={})
"""The evidence for a plan without gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """Records landings after every planned offset is accounted for."""

    control: ControlTable
    data_log: DataLog
    watermarks: WatermarkReader
    log_reader: LogReader
    now: Clock

    def record(self, ledger: Ledger, plan: Plan, landing: Landing) -> Landing:
        """Append `landed` for a plan that the data table's log contains.

        A second reader checks offsets without a row in Kafka. An offset without a visible record
        is a gap. An offset with a visible record was missed and stays unread.

        Args:
            ledger: The current state; the plan is open in it.
            plan: The plan.
            landing: Its commit.

        Returns:
            The landing as recorded.

        Raises:
            TopicRecreated, TopicChanged, ClusterChanged, PartitionsShrunk: The topic was replaced,
                so the rows may be of either topic.
            TableRestored: A RESTORE removed rows from the table in the meantime.
            RecordsMissed: Some visible records did not land; the landed ones are recorded.
            ControlConflict: A concurrent process recorded an event first; read the ledger again.
        """
        landing, evidence = self.account_for(plan, landing)
        # A RESTORE during the landing is older than this landing, so later checks skip it.
        # fence: restore-during-landing
        checked = check_ledger(self.control, ledger, self.data_log)
        is_current = plan.topic_id == ledger.topic_id
        committed = ledger.committed_with(landing.spans()) if is_current else {}
        self.control.append(
            checked, [Landed(plan=plan, landing=landing, committed=committed)], self.now()
        )
        log.info(
            "landed pipeline=%s plan=%d records=%d gaps=%d table_version=%d",
            plan.pipeline,
            plan.sequence,
            landing.records,
            landing.gaps,
            landing.table_version,
        )
        if evidence.missed:
            raise RecordsMissed(
                pipeline=plan.pipeline,
                sequence=plan.sequence,
                records=evidence.missed,
                first=min((p, next(iter(spans)).start) for p, spans in evidence.visible.items()),
            )
        return landing

    def account_for(
        self, plan: Plan, landing: Landing, *, was_read: bool = True
    ) -> tuple[Landing, GapEvidence]:
        """Classify each offset of a landing: a record, a gap, or missed and left out.

        Args:
            plan: The plan.
            landing: The plan's rows in the table.
            was_read: Whether the engine is known to have read the whole plan. If not, offsets that
                Kafka has deleted since are left out: they may have had records.

        Returns:
            The landing, and the evidence for its gaps.
        """
        try:
            before = self._same_topic(plan)  # fence: same-topic-before-recording
            if landing.gaps == 0:  # fence: gaps-need-evidence
                return landing, NO_EVIDENCE
            evidence = self._collect_evidence(plan, before)
            # The evidence is valid only if the topic was not replaced during the read.
            self._same_topic(plan)  # fence: same-topic-after-evidence
        except TopicDiffers:
            if not plan.replaces:  # fence: doubtful-replacement-stays
                raise
            # The executor checked the topic before the commit, so the rows are of the planned
            # topic. The replaced rows exist nowhere else, so the new rows must stay.
            return landing.with_unproven_gaps(), NO_EVIDENCE
        if not was_read:
            evidence = evidence.with_deleted_as_missed()
        return apply_gap_evidence(landing, evidence), evidence

    def _same_topic(self, plan: Plan) -> TopicWatermarks:
        watermarks = self.watermarks.topic_watermarks(plan.topic, plan.isolation_level)
        plan_rules.check_same_topic(plan, watermarks)
        return watermarks

    def _collect_evidence(self, plan: Plan, watermarks: TopicWatermarks) -> GapEvidence:
        gaps = self.data_log.offsets_without_rows(plan)
        kept, deleted = {}, {}
        for partition, spans in gaps.items():
            readable = watermarks.partitions[partition].readable(spans)
            if readable:
                kept[partition] = readable
            if gone := spans.difference(readable):
                deleted[partition] = gone
        seen = self.log_reader.read(plan.topic, plan.isolation_level, kept)
        return GapEvidence(
            gaps=gaps,
            visible=spans_by_partition((r.partition, Span(r.offset, r.offset + 1)) for r in seen),
            deleted=deleted,
        )


def check_ledger(control: ControlReader, ledger: Ledger, data_log: DataLog) -> CheckedLedger:
    """Return the ledger if it and the data table have the same history.

    Args:
        control: The control table, which is read again if the ledger seems to be behind.
        ledger: The state read from the control table.
        data_log: The data table's log.

    Raises:
        ForeignTable: The location contains files, or a table of another pipeline.
        HistoriesDiverge: The data table and the control table have different histories.
        ControlConflict: The ledger is not current; read it again.
    """
    app_ids = [*chains(ledger).values(), *fenced_chains(ledger)]
    state = data_log.state(ledger.pipeline, app_ids, restores_since=newest_table_version(ledger))
    compared = ledger
    if state.restores:
        # The full ledger has the table version of each plan, which shows the removed plans.
        compared = control.ledger(ledger.pipeline)
        if compared.event_number != ledger.event_number:  # fence: one-ledger-for-one-look
            raise ControlConflict(pipeline=ledger.pipeline, event_number=compared.event_number)
    try:
        check_table(compared, state)  # fence: ledger-and-table-agree
    except (LedgerBehindTable, RepairUnfinished):
        # The table was read after the ledger: a concurrent process may have recorded events since.
        newest = control.summary(ledger.pipeline).event_number
        if newest != ledger.event_number:
            raise ControlConflict(pipeline=ledger.pipeline, event_number=newest) from None
        raise
    return CheckedLedger(ledger)


def checked_ledger(
    control: ControlReader,
    pipeline: str,
    data_log: DataLog,
    *,
    full: bool = False,
    rows: bool = False,
) -> CheckedLedger:
    """Return the pipeline's ledger, after `check_ledger`.

    Args:
        control: The control table.
        pipeline: Pipeline name.
        data_log: The data table's log.
        full: Return the full ledger instead of a summary.
        rows: Also check that the data table has no more rows than have landed. A plan does not
            need this check; a report or a typed table would contain the rows twice.

    Raises:
        ForeignTable, HistoriesDiverge: See `check_ledger`.
        DuplicateRows: The data table has more rows than have landed.
    """
    read = control.ledger if full else control.summary
    ledger = retry_on_conflict(lambda: check_ledger(control, read(pipeline), data_log))
    if rows:
        _check_rows(control, ledger, data_log)
    return ledger


def _check_rows(control: ControlReader, ledger: Ledger, data_log: DataLog) -> None:
    for _ in range(_LOOKS):
        rows, most = data_log.row_count(), max_rows(ledger)
        if rows is None or rows <= most:  # fence: doubled-rows-are-noticed
            return
        newest = control.summary(ledger.pipeline)
        if newest.event_number == ledger.event_number:
            raise DuplicateRows(pipeline=ledger.pipeline, rows=rows, landed=most)
        # A plan may have landed, or was undone, between the two reads.
        ledger = newest


def recorded_plan(control: ControlReader, pipeline: str, sequence: int) -> PlanRecord:
    """Return a plan with its outcome.

    Raises:
        UnknownPlan: The control table has no such plan.
    """
    record = control.plan_record(pipeline, sequence)
    if record is None:
        latest = control.summary(pipeline).last_sequence or None
        raise UnknownPlan(pipeline=pipeline, sequence=sequence, latest=latest)
    return record


def refuse_abandoned(record: PlanRecord) -> None:
    """Check that a plan is not abandoned.

    Raises:
        PlanAbandoned
    """
    if record.abandoned is not None:
        raise PlanAbandoned(
            pipeline=record.plan.pipeline,
            sequence=record.plan.sequence,
            reason=record.abandoned,
        )
