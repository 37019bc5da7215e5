"""What only a person can decide: that records are lost, that a topic is another one now."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace

from tidemark.core import plan_rules as planning
from tidemark.core.events import LossAccepted, NewIncarnation, Started
from tidemark.core.ledger import Ledger
from tidemark.ingest.conflicts import retry_on_conflict
from tidemark.ingest.protocols import Clock, ControlTable, DataLog, WatermarkReader
from tidemark.ingest.recorder import checked_ledger
from tidemark.repair.errors import NothingLost, PlanStillOpen, SameIncarnation
from tidemark.spec.model import PipelineSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """Records decisions about one pipeline, with who made them and why. Writes no rows."""

    spec: PipelineSpec
    watermarks: WatermarkReader
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
            PlanStillOpen: A plan that may still land wants deleted offsets.
            TopicRecreated, TopicChanged, ClusterChanged, PartitionsShrunk: It is not loss.
            ControlTruncated, TableBehindLedger, LedgerBehindTable, TableRestored: First things
                first.
            ControlConflict: Others were first, several times over.
        """
        return retry_on_conflict(
            lambda: self._accept_loss(partitions, requested_by, reason, dry_run=dry_run)
        )

    def _accept_loss(
        self, partitions: Collection[int], requested_by: str, reason: str, *, dry_run: bool
    ) -> LossAccepted:
        ledger = checked_ledger(self.control, self.spec.name, self.data_log)
        watermarks = self.watermarks.topic_watermarks(self.spec.topic, self.spec.isolation_level)
        planning.check_identity(ledger, watermarks)
        planning.check_partitions(watermarks, partitions)
        # Partitions that were added and had records deleted before they were ever seen.
        added = planning.new_partitions(ledger, watermarks)
        lost = planning.lost_ranges(ledger, added, watermarks)
        asked = sorted(partitions or lost)
        for partition in partitions or watermarks.partitions:
            _refuse_open(ledger, partition, watermarks.partitions[partition].low)
        spared = tuple(partition for partition in asked if partition not in lost)
        if spared or not asked:
            raise NothingLost(
                pipeline=ledger.pipeline,
                topic=watermarks.topic,
                partitions=spared or tuple(sorted(watermarks.partitions)),
            )
        chosen = {partition: lost[partition] for partition in asked}
        begun = {partition: added[partition] for partition in asked if partition in added}
        accepted = LossAccepted(
            topic=watermarks.topic,
            topic_id=watermarks.topic_id,
            lost=chosen,
            committed=replace(ledger, starts={**ledger.starts, **begun}).committed_with(chosen),
            requested_by=requested_by,
            reason=reason,
        )
        if dry_run:
            return accepted
        if begun:
            # A commit of its own, so that each commit tells one committed offset of a partition.
            self.control.append(ledger, [Started.at(watermarks, begun, requested_by)], self.now())
            return self._accept_loss(partitions, requested_by, reason, dry_run=dry_run)
        self.control.append(ledger, [accepted], self.now())
        log.info("loss accepted pipeline=%s partitions=%s", self.spec.name, asked)
        return accepted

    def new_incarnation(
        self, requested_by: str, reason: str, *, dry_run: bool = False
    ) -> NewIncarnation:
        """Accept that the topic is another one now, and read it from its low watermarks.

        What landed of the old one stays in the data table under its own topic id.

        Args:
            requested_by: Who accepts it.
            reason: Why, in their words.
            dry_run: Only say what would be recorded.

        Raises:
            SameIncarnation: The topic is the one that is known, or none is known yet.
            PlanStillOpen: A plan of the old topic may still land.
            TopicChanged: The spec names another topic: that is another pipeline.
            ControlTruncated, TableBehindLedger, LedgerBehindTable, TableRestored: First things
                first.
            ControlConflict: Others were first, several times over.
        """
        return retry_on_conflict(
            lambda: self._new_incarnation(requested_by, reason, dry_run=dry_run)
        )

    def _new_incarnation(self, requested_by: str, reason: str, *, dry_run: bool) -> NewIncarnation:
        ledger = checked_ledger(self.control, self.spec.name, self.data_log)
        watermarks = self.watermarks.topic_watermarks(self.spec.topic, self.spec.isolation_level)
        known = (ledger.cluster_id, ledger.topic_id)
        if known in ((None, None), (watermarks.cluster_id, watermarks.topic_id)):
            raise SameIncarnation(
                pipeline=ledger.pipeline, topic=watermarks.topic, topic_id=watermarks.topic_id
            )
        if ledger.topic != watermarks.topic:
            planning.check_identity(replace(ledger, cluster_id=watermarks.cluster_id), watermarks)
        opened = ledger.open_plans()
        if opened:  # fence: no-new-incarnation-beside-open-plan
            raise PlanStillOpen(
                pipeline=ledger.pipeline,
                sequence=opened[0].plan.sequence,
                decision="accepting a new incarnation",
            )
        accepted = NewIncarnation(
            cluster_id=watermarks.cluster_id,
            topic=watermarks.topic,
            topic_id=watermarks.topic_id,
            offsets={
                partition: ledger.began(watermarks.topic_id, partition, here.low)
                for partition, here in watermarks.partitions.items()
            },
            requested_by=requested_by,
            reason=reason,
        )
        if not dry_run:
            self.control.append(ledger, [accepted], self.now())
            log.info("new incarnation pipeline=%s topic_id=%s", self.spec.name, watermarks.topic_id)
        return accepted


def _refuse_open(ledger: Ledger, partition: int, low: int) -> None:
    for record in ledger.open_plans():
        for planned in record.plan.ranges:
            # fence: no-accepted-loss-in-open-plan
            if planned.partition == partition and planned.start < low:
                raise PlanStillOpen(
                    pipeline=ledger.pipeline,
                    sequence=record.plan.sequence,
                    decision="accepting a loss",
                )
