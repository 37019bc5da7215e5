"""What only a person can decide: that records are lost, that a topic is another one now."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace

from tidemark.core import plan_rules as planning
from tidemark.core.events import LossAccepted, NewIncarnation, Started
from tidemark.core.ledger import Ledger
from tidemark.ingest.conflicts import after_conflicts
from tidemark.ingest.ports import Clock, ControlTable, DataLog, MarkReader
from tidemark.ingest.recorder import checked_ledger
from tidemark.repair.errors import NothingLost, OpenPlanInTheWay, SameIncarnation
from tidemark.spec.model import PipelineSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """Records decisions about one pipeline, with who made them and why. Writes no rows."""

    spec: PipelineSpec
    marks: MarkReader
    control: ControlTable
    data_log: DataLog
    now: Clock

    def accept_loss(
        self,
        partitions: Collection[int],
        requested_by: str,
        reason: str,
        *,
        dry_run: bool = False,
    ) -> LossAccepted:
        """Accept that Kafka deleted unread offsets; the pipeline goes on behind them.

        Args:
            partitions: Partitions to accept it for; all that have lost something if empty.
            requested_by: Who accepts it.
            reason: Why, in their words.
            dry_run: Only say what would be accepted.

        Raises:
            NothingLost: One of the partitions has lost nothing, or none has.
            UnknownPartition: The topic has no such partition.
            OpenPlanInTheWay: A plan that may still land wants deleted offsets.
            TopicRecreated, TopicChanged, ClusterChanged, PartitionsShrunk: It is not loss.
            ControlTruncated, TableBehindLedger, LedgerBehindTable, TableRestored: First things
                first.
            ControlConflict: Others were first, several times over.
        """
        return after_conflicts(
            lambda: self._accept_loss(partitions, requested_by, reason, dry_run=dry_run)
        )

    def _accept_loss(
        self, partitions: Collection[int], requested_by: str, reason: str, *, dry_run: bool
    ) -> LossAccepted:
        ledger = checked_ledger(self.control, self.spec.name, self.data_log)
        marks = self.marks.topic_marks(self.spec.topic, self.spec.isolation_level)
        planning.check_identity(ledger, marks)
        planning.check_partitions(marks, partitions)
        # Partitions that were added and had records deleted before they were ever seen.
        added = planning.new_partitions(ledger, marks)
        lost = planning.lost_ranges(ledger, added, marks)
        asked = sorted(partitions or lost)
        for partition in partitions or marks.partitions:
            _refuse_open(ledger, partition, marks.partitions[partition].low)
        spared = tuple(partition for partition in asked if partition not in lost)
        if spared or not asked:
            raise NothingLost(
                pipeline=ledger.pipeline,
                topic=marks.topic,
                partitions=spared or tuple(sorted(marks.partitions)),
            )
        chosen = {partition: lost[partition] for partition in asked}
        begun = {partition: added[partition] for partition in asked if partition in added}
        accepted = LossAccepted(
            topic=marks.topic,
            topic_id=marks.topic_id,
            lost=chosen,
            committed=replace(ledger, starts={**ledger.starts, **begun}).committed_with(chosen),
            requested_by=requested_by,
            reason=reason,
        )
        if dry_run:
            return accepted
        if begun:
            # A commit of its own, so that each commit tells one committed offset of a partition.
            self.control.append(ledger, [Started.at(marks, begun, requested_by)], self.now())
            return self._accept_loss(partitions, requested_by, reason, dry_run=dry_run)
        self.control.append(ledger, [accepted], self.now())
        log.info("loss accepted pipeline=%s partitions=%s", self.spec.name, asked)
        return accepted

    def new_incarnation(
        self, requested_by: str, reason: str, *, dry_run: bool = False
    ) -> NewIncarnation:
        """Accept that the topic is another one now, and read it from its low-water marks.

        What landed of the old one stays in the data table under its own topic id.

        Args:
            requested_by: Who accepts it.
            reason: Why, in their words.
            dry_run: Only say what would be recorded.

        Raises:
            SameIncarnation: The topic is the one that is known, or none is known yet.
            OpenPlanInTheWay: A plan of the old topic may still land.
            TopicChanged: The spec names another topic: that is another pipeline.
            ControlTruncated, TableBehindLedger, LedgerBehindTable, TableRestored: First things
                first.
            ControlConflict: Others were first, several times over.
        """
        return after_conflicts(lambda: self._new_incarnation(requested_by, reason, dry_run=dry_run))

    def _new_incarnation(self, requested_by: str, reason: str, *, dry_run: bool) -> NewIncarnation:
        ledger = checked_ledger(self.control, self.spec.name, self.data_log)
        marks = self.marks.topic_marks(self.spec.topic, self.spec.isolation_level)
        known = (ledger.cluster_id, ledger.topic_id)
        if known in ((None, None), (marks.cluster_id, marks.topic_id)):
            raise SameIncarnation(
                pipeline=ledger.pipeline, topic=marks.topic, topic_id=marks.topic_id
            )
        if ledger.topic != marks.topic:
            planning.check_identity(replace(ledger, cluster_id=marks.cluster_id), marks)
        opened = ledger.open_plans()
        if opened:  # fence: no-new-incarnation-beside-open-plan
            raise OpenPlanInTheWay(
                pipeline=ledger.pipeline,
                sequence=opened[0].plan.sequence,
                decision="accepting a new incarnation",
            )
        accepted = NewIncarnation(
            cluster_id=marks.cluster_id,
            topic=marks.topic,
            topic_id=marks.topic_id,
            offsets={
                partition: ledger.began(marks.topic_id, partition, here.low)
                for partition, here in marks.partitions.items()
            },
            requested_by=requested_by,
            reason=reason,
        )
        if not dry_run:
            self.control.append(ledger, [accepted], self.now())
            log.info("new incarnation pipeline=%s topic_id=%s", self.spec.name, marks.topic_id)
        return accepted


def _refuse_open(ledger: Ledger, partition: int, low: int) -> None:
    for record in ledger.open_plans():
        for planned in record.plan.ranges:
            # fence: no-accepted-loss-in-open-plan
            if planned.partition == partition and planned.start < low:
                raise OpenPlanInTheWay(
                    pipeline=ledger.pipeline,
                    sequence=record.plan.sequence,
                    decision="accepting a loss",
                )
