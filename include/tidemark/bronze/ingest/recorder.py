"""Records landings.

A recorded landing is the only event that moves committed offsets in a regular run.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tidemark.bronze.ingest.errors import RecordsMissed
from tidemark.bronze.ingest.ledgers import check_ledger
from tidemark.bronze.ingest.ports import Ports
from tidemark.core import plan_rules
from tidemark.core.accounting import GapEvidence, Landing, apply_gap_evidence
from tidemark.core.errors import TopicDiffers
from tidemark.core.events import Landed
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, spans_by_partition
from tidemark.core.plan import Plan
from tidemark.core.watermarks import TopicWatermarks

log = logging.getLogger(__name__)

NO_EVIDENCE = GapEvidence(gaps={}, visible={}, deleted={})
"""The evidence for a plan without gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """Records landings after every planned offset is accounted for."""

    ports: Ports

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
            TopicRecreated, TopicChanged: The topic was replaced, so the rows may be of either
                topic.
            TableBehindLedger: A RESTORE removed rows from the table in the meantime.
            RecordsMissed: Some visible records did not land; the landed ones are recorded.
            ControlConflict: A concurrent process recorded an event first; read the ledger again.
        """
        landing, evidence = self.account_for(plan, landing)
        # A RESTORE during the landing is older than this landing, so later checks skip it.
        # fence: restore-during-landing
        checked = check_ledger(self.ports.control, ledger, self.ports.table)
        is_current = plan.topic_id == ledger.topic_id
        committed = ledger.committed_with(landing.spans()) if is_current else {}
        self.ports.control.append(
            checked, [Landed(plan=plan, landing=landing, committed=committed)], self.ports.now()
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
            before = self._watermarks(plan)
            plan_rules.check_same_topic(plan, before)  # fence: same-topic-before-recording
            if landing.gaps == 0:  # fence: gaps-need-evidence
                return landing, NO_EVIDENCE
            evidence = self._collect_evidence(plan, before)
            # The evidence is valid only if the topic was not replaced during the read.
            self.check_same_topic(plan)  # fence: same-topic-after-evidence
        except TopicDiffers:
            if not plan.replaces:  # fence: doubtful-replacement-stays
                raise
            # The executor checked the topic before the commit, so the rows are of the planned
            # topic. The replaced rows exist nowhere else, so the new rows must stay.
            return landing.with_unproven_gaps(), NO_EVIDENCE
        if not was_read:
            evidence = evidence.with_deleted_as_missed()
        return apply_gap_evidence(landing, evidence), evidence

    def check_same_topic(self, plan: Plan) -> None:
        """Check that a plan's topic was not replaced.

        Raises:
            TopicRecreated and so on: See `plan_rules.check_same_topic`.
        """
        plan_rules.check_same_topic(plan, self._watermarks(plan))

    def _watermarks(self, plan: Plan) -> TopicWatermarks:
        return self.ports.watermarks.topic_watermarks(plan.topic, plan.isolation_level)

    def _collect_evidence(self, plan: Plan, watermarks: TopicWatermarks) -> GapEvidence:
        gaps = self.ports.table.offsets_without_rows(plan)
        kept, deleted = {}, {}
        for partition, spans in gaps.items():
            readable = watermarks.partitions[partition].readable(spans)
            if readable:
                kept[partition] = readable
            if gone := spans.difference(readable):
                deleted[partition] = gone
        seen = self.ports.log_reader.read(plan.topic, plan.isolation_level, kept)
        return GapEvidence(
            gaps=gaps,
            visible=spans_by_partition((r.partition, Span(r.offset, r.offset + 1)) for r in seen),
            deleted=deleted,
        )
