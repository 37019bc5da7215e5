"""Recording that a plan has landed: the one place that moves committed offsets by landing."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tidemark.core import plan_rules as planning
from tidemark.core.accounting import Evidence, Landing, account
from tidemark.core.errors import (
    ClusterChanged,
    LedgerBehindTable,
    PartitionsShrunk,
    RepairUnfinished,
    TopicRecreated,
)
from tidemark.core.events import Landed
from tidemark.core.ledger import Ledger, PlanRecord
from tidemark.core.offsets import Span, spans_by_partition
from tidemark.core.plan import Plan
from tidemark.core.table_state import (
    chains,
    check_table,
    fenced_chains,
    most_rows,
    newest_table_version,
)
from tidemark.core.watermarks import TopicWatermarks
from tidemark.ingest.conflicts import retry_on_conflict
from tidemark.ingest.errors import DuplicateRows, PlanAbandoned, RecordsMissed, UnknownPlan
from tidemark.ingest.protocols import (
    Clock,
    ControlReader,
    ControlTable,
    DataLog,
    LogReader,
    WatermarkReader,
)
from tidemark.lake.errors import ControlConflict

log = logging.getLogger(__name__)

_LOOKS = 5
"""Reads of the ledger and the rows, until both are of one moment."""
NO_EVIDENCE = Evidence(gaps={}, visible={}, deleted={})
"""Of a plan without gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """Records landings, once every offset of them is accounted for."""

    control: ControlTable
    data_log: DataLog
    watermarks: WatermarkReader
    log_reader: LogReader
    now: Clock

    def record(self, ledger: Ledger, plan: Plan, landing: Landing) -> Landing:
        """Append `landed` for a plan that the data table's log has.

        Offsets without a row are looked at in Kafka by a second reader. What it sees nothing at is
        a gap. What it sees a record at was missed, and stays unread.

        Args:
            ledger: As it is now; the plan is open in it.
            plan: The plan.
            landing: Its commit.

        Returns:
            The landing as it was recorded.

        Raises:
            TopicRecreated, TopicChanged, ClusterChanged, PartitionsShrunk: The topic is not the
                planned one any more, so nobody can tell whose records were read.
            TableRestored: A RESTORE took rows out of the table meanwhile.
            RecordsMissed: Not every visible record landed; what did is recorded.
            ControlConflict: Somebody else wrote first; read the ledger again and look.
        """
        landing, evidence = self.account_for(plan, landing)
        # A RESTORE that came while the plan was landing lies before this landing, where nobody
        # would look for it any more.
        check_ledger(self.control, ledger, self.data_log)  # fence: restore-during-landing
        is_current = plan.topic_id == ledger.topic_id
        committed = ledger.committed_with(landing.spans()) if is_current else {}
        self.control.append(
            ledger, [Landed(plan=plan, landing=landing, committed=committed)], self.now()
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
    ) -> tuple[Landing, Evidence]:
        """The landing with each offset a record, a gap, or left out because it was missed.

        Args:
            plan: The plan.
            landing: What the table holds of it.
            was_read: Whether the engine is known to have read all of it. If not, its word for
                offsets that Kafka has deleted is worth nothing: they are left out.
        """
        try:
            before = self._same_topic(plan)  # fence: same-topic-before-recording
            if landing.gaps == 0:  # fence: gaps-need-evidence
                return landing, NO_EVIDENCE
            evidence = self._look(plan, before)
            # What was seen counts only if it was this topic's until the end.
            self._same_topic(plan)  # fence: same-topic-after-evidence
        except (TopicRecreated, ClusterChanged, PartitionsShrunk):
            if not plan.replaces:  # fence: doubtful-replacement-stays
                raise
            # Its rows were read of the planned topic, or they would not have been committed. What
            # they replaced is nowhere else: nobody may take them out again because of this.
            return landing.without_proof(), NO_EVIDENCE
        if not was_read:
            evidence = evidence.without_word()
        return account(landing, evidence), evidence

    def _same_topic(self, plan: Plan) -> TopicWatermarks:
        watermarks = self.watermarks.topic_watermarks(plan.topic, plan.isolation_level)
        planning.check_same_topic(plan, watermarks)
        return watermarks

    def _look(self, plan: Plan, watermarks: TopicWatermarks) -> Evidence:
        gaps = self.data_log.offsets_without_rows(plan)
        kept, deleted = {}, {}
        for partition, spans in gaps.items():
            readable = watermarks.partitions[partition].readable(spans)
            if readable:
                kept[partition] = readable
            if gone := spans.minus(readable):
                deleted[partition] = gone
        seen = self.log_reader.read(plan.topic, plan.isolation_level, kept)
        return Evidence(
            gaps=gaps,
            visible=spans_by_partition((r.partition, Span(r.offset, r.offset + 1)) for r in seen),
            deleted=deleted,
        )


def check_ledger(control: ControlReader, ledger: Ledger, data_log: DataLog) -> None:
    """Refuse to go on where the ledger and the data table are not of one history.

    Args:
        control: The control table, which is read again if the ledger seems to be behind.
        ledger: What was read of it.
        data_log: The data table's log now.

    Raises:
        ForeignTable: Somebody else's table, or files, are where the pipeline's table should be.
        ControlTruncated, TableBehindLedger, LedgerBehindTable, RepairUnfinished, TableRestored
        ControlConflict: The ledger is not the newest; read it again and look.
    """
    app_ids = [*chains(ledger).values(), *fenced_chains(ledger)]
    state = data_log.state(ledger.pipeline, app_ids, restores_since=newest_table_version(ledger))
    if state.restores:
        # Which plans a RESTORE took out is told by the version that each of them made.
        whole = control.ledger(ledger.pipeline)
        if whole.event_number != ledger.event_number:  # fence: one-ledger-for-one-look
            raise ControlConflict(pipeline=ledger.pipeline, event_number=whole.event_number)
        ledger = whole
    try:
        check_table(ledger, state)  # fence: ledger-and-table-agree
    except (LedgerBehindTable, RepairUnfinished):
        # The table was looked at later than the control table: others may have gone on meanwhile.
        newest = control.summary(ledger.pipeline).event_number
        if newest != ledger.event_number:
            raise ControlConflict(pipeline=ledger.pipeline, event_number=newest) from None
        raise


def checked_ledger(control: ControlReader, pipeline: str, data_log: DataLog) -> Ledger:
    """The pipeline's ledger as a summary, which fits the data table.

    Raises:
        ForeignTable, ControlTruncated, TableBehindLedger, LedgerBehindTable, RepairUnfinished,
            TableRestored: As in `check_ledger`.
    """

    def read() -> Ledger:
        ledger = control.summary(pipeline)
        check_ledger(control, ledger, data_log)
        return ledger

    return retry_on_conflict(read)


def check_rows(control: ControlReader, pipeline: str, data_log: DataLog) -> None:
    """Refuse a data table that has more rows than can have landed in it.

    Raises:
        DuplicateRows
    """
    ledger = control.summary(pipeline)
    for _ in range(_LOOKS):
        rows, most = data_log.row_count(), most_rows(ledger)
        if rows is None or rows <= most:  # fence: doubled-rows-are-noticed
            return
        newest = control.summary(pipeline)
        if newest.event_number == ledger.event_number:
            raise DuplicateRows(pipeline=pipeline, rows=rows, landed=most)
        # A plan may have landed or been undone between the two reads.
        ledger = newest


def recorded_plan(control: ControlReader, pipeline: str, sequence: int) -> PlanRecord:
    """A plan and what became of it.

    Raises:
        UnknownPlan: The control table has no such plan.
    """
    record = control.plan_record(pipeline, sequence)
    if record is None:
        latest = control.summary(pipeline).last_sequence or None
        raise UnknownPlan(pipeline=pipeline, sequence=sequence, latest=latest)
    return record


def refuse_abandoned(record: PlanRecord) -> None:
    """Refuse a plan that was given up.

    Raises:
        PlanAbandoned
    """
    if record.abandoned is not None:
        raise PlanAbandoned(
            pipeline=record.plan.pipeline,
            sequence=record.plan.sequence,
            reason=record.abandoned,
        )
