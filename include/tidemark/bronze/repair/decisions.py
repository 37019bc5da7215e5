"""Operator decisions: accept the loss of deleted records, continue with a recreated topic."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from tidemark.bronze.ingest.errors import PlanStillOpen
from tidemark.bronze.ingest.ledgers import read_checked_ledger
from tidemark.bronze.ingest.ports import Ports
from tidemark.bronze.repair.errors import NothingToDo
from tidemark.core import plan_rules
from tidemark.core.errors import TopicChanged
from tidemark.core.events import LossAccepted, RecreationAccepted, Started
from tidemark.core.ledger import Ledger
from tidemark.core.texts import listed
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.spec.model import PipelineSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """Records an operator's decisions about one pipeline. Writes no rows.

    Every decision raises `HistoriesDiverge` and `ControlConflict`, as
    `ledgers.read_checked_ledger` and `retry_on_conflict` do.
    """

    spec: PipelineSpec
    ports: Ports

    def accept_loss(
        self,
        partitions: Collection[int],
        requested_by: str,
        reason: str,
        *,
        dry_run: bool = False,
    ) -> LossAccepted:
        """Record that unread offsets are lost, so that the next plan starts after them.

        Args:
            partitions: Partitions with a loss to accept; all partitions with a loss if empty.
            requested_by: The operator.
            reason: The operator's reason.
            dry_run: Record nothing.

        Raises:
            NothingToDo: One of the given partitions, or every partition, has no loss.
            InvalidSelection: The topic has no such partition.
            PlanStillOpen: An open plan contains deleted offsets.
            TopicDiffers: The topic was replaced, which cannot be accepted as a loss.
        """
        return retry_on_conflict(
            lambda: self._accept_loss(partitions, requested_by, reason, dry_run=dry_run)
        )

    def _accept_loss(
        self, partitions: Collection[int], requested_by: str, reason: str, *, dry_run: bool
    ) -> LossAccepted:
        ledger = read_checked_ledger(self.ports.control, self.spec.name, self.ports.table)
        watermarks = self.ports.watermarks_of(self.spec)
        # The end of the log does not matter: the loss is before the low watermark.
        plan_rules.check_identity(ledger, watermarks)
        plan_rules.check_partitions(watermarks, partitions)
        # Partitions that were added, and lost records before their first plan.
        added = plan_rules.new_partitions(ledger, watermarks)
        lost = plan_rules.lost_ranges(ledger, added, watermarks)
        chosen = sorted(partitions or lost)
        for partition in partitions or watermarks.partitions:
            _refuse_open(ledger, partition, watermarks.partitions[partition].low)
        without_loss = [partition for partition in chosen if partition not in lost]
        if without_loss or not chosen:
            partitions = without_loss or sorted(watermarks.partitions)
            raise NothingToDo(
                pipeline=ledger.pipeline,
                finding="Kafka has deleted no unread offset of topic "
                f"{watermarks.topic!r}, {listed('partition', partitions)}",
            )
        accepted_loss = {partition: lost[partition] for partition in chosen}
        started = {partition: added[partition] for partition in chosen if partition in added}
        accepted = LossAccepted(
            topic=watermarks.topic,
            topic_id=watermarks.topic_id,
            lost=accepted_loss,
            committed=ledger.committed_with(accepted_loss, started),
            requested_by=requested_by,
            reason=reason,
        )
        if dry_run:
            return accepted
        if started:
            # In a separate commit, so that each commit has one committed offset per partition.
            self.ports.control.append(
                ledger, [Started.at(watermarks, started, requested_by)], self.ports.now()
            )
            return self._accept_loss(partitions, requested_by, reason, dry_run=dry_run)
        self.ports.control.append(ledger, [accepted], self.ports.now())
        log.info(
            "loss accepted pipeline=%s partitions=%s",
            self.spec.name,
            ",".join(map(str, chosen)),
        )
        return accepted

    def accept_recreation(
        self, requested_by: str, reason: str, *, dry_run: bool = False
    ) -> RecreationAccepted:
        """Record that the topic was recreated, and continue from its low watermarks.

        Rows of the old topic stay in the data table under its topic id.

        Args:
            requested_by: The operator.
            reason: The operator's reason.
            dry_run: Record nothing.

        Raises:
            NothingToDo: The topic was not recreated, or the pipeline has not started.
            PlanStillOpen: A plan of the old topic may still land.
            TopicChanged: The spec names another topic, which needs another pipeline.
        """
        return retry_on_conflict(
            lambda: self._accept_recreation(requested_by, reason, dry_run=dry_run)
        )

    def _accept_recreation(
        self, requested_by: str, reason: str, *, dry_run: bool
    ) -> RecreationAccepted:
        ledger = read_checked_ledger(self.ports.control, self.spec.name, self.ports.table)
        watermarks = self.ports.watermarks_of(self.spec)
        known = (ledger.cluster_id, ledger.topic_id)
        if known in ((None, None), (watermarks.cluster_id, watermarks.topic_id)):
            raise NothingToDo(
                pipeline=ledger.pipeline,
                finding=f"topic {watermarks.topic!r} was not recreated, its id is still "
                f"{watermarks.topic_id}",
            )
        if ledger.topic is not None and ledger.topic != watermarks.topic:
            raise TopicChanged.of_name(
                pipeline=ledger.pipeline, known_topic=ledger.topic, topic=watermarks.topic
            )
        opened = ledger.open_plans()
        if opened:  # fence: no-accepted-recreation-beside-open-plan
            raise PlanStillOpen.before_decision(
                ledger.pipeline, opened[0].plan.sequence, "continuing with a recreated topic"
            )
        accepted = RecreationAccepted(
            cluster_id=watermarks.cluster_id,
            topic=watermarks.topic,
            topic_id=watermarks.topic_id,
            offsets={
                partition: ledger.first_landed_offset(watermarks.topic_id, partition, here.low)
                for partition, here in watermarks.partitions.items()
            },
            requested_by=requested_by,
            reason=reason,
        )
        if not dry_run:
            self.ports.control.append(ledger, [accepted], self.ports.now())
            log.info(
                "recreation accepted pipeline=%s topic_id=%s", self.spec.name, watermarks.topic_id
            )
        return accepted


def _refuse_open(ledger: Ledger, partition: int, low: int) -> None:
    for record in ledger.open_plans():
        for planned in record.plan.ranges:
            # fence: no-accepted-loss-in-open-plan
            if planned.partition == partition and planned.start < low:
                raise PlanStillOpen.before_decision(
                    ledger.pipeline, record.plan.sequence, "accepting a loss"
                )
