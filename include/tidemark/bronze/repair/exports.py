"""Export of committed offsets to a consumer group, for tools that show lag.

This is the only exception to I6, and only an operator can start it: no run, job or DAG imports this
module (tests/test_architecture.py). Tidemark does not read the exported offsets; the control table
stays authoritative.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tidemark.bronze.ingest.errors import NothingLanded
from tidemark.bronze.ingest.ledgers import read_checked_ledger
from tidemark.bronze.ingest.ports import Ports
from tidemark.bronze.ingest.start import GroupReader
from tidemark.core import plan_rules
from tidemark.kafka.errors import GroupActive
from tidemark.spec.model import PipelineSpec


class GroupOffsets(GroupReader, Protocol):
    """Sets the committed offsets of a consumer group. No planner or executor has one (I6)."""

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set a group's offsets, and create the group if needed. Idempotent.

        Raises:
            GroupActive: The group has members.
        """


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedOffset:
    """One partition's offset in the group.

    Attributes:
        partition: The partition.
        before: The group's offset before the export; None without one.
        committed_offset: The pipeline's committed offset, which the export writes.
        end: End of the readable log.
    """

    partition: int
    before: int | None
    committed_offset: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exports:
    """Writes one pipeline's committed offsets to consumer groups. Writes nothing else."""

    spec: PipelineSpec
    ports: Ports
    groups: GroupOffsets

    def export(self, group: str, *, dry_run: bool = False) -> tuple[ExportedOffset, ...]:
        """Set the offsets of a group to the committed offsets of the live chain.

        Args:
            group: Name of a consumer group without members; it is created if needed.
            dry_run: Write nothing.

        Raises:
            NothingLanded: The pipeline has no committed offsets.
            GroupActive: The group has members.
            TopicDiffers, EndBehindCommitted: The committed offsets do not fit the topic.
            HistoriesDiverge, KafkaFailure: See `ledgers.read_checked_ledger` and `TopicReader`.
        """
        ledger = read_checked_ledger(self.ports.control, self.spec.name, self.ports.table)
        if not ledger.starts:
            raise NothingLanded(pipeline=ledger.pipeline, topic=self.spec.topic)
        watermarks = self.ports.watermarks_of(self.spec)
        plan_rules.check_identity(ledger, watermarks)  # fence: export-of-same-topic
        # Only the exported offsets have to be inside the log, not the ends of landed backfills.
        committed = {p: ledger.committed_offset(p) for p in sorted(ledger.starts)}
        for partition, offset in committed.items():
            plan_rules.check_end(ledger.pipeline, watermarks, partition, offset)
        if self.groups.has_members(group):
            raise GroupActive(group=group, reason="it has members")
        before = self.groups.committed(group, watermarks.topic, committed)
        if not dry_run:
            self.groups.commit(group, watermarks.topic, committed)
            offsets = ",".join(f"{partition}:{offset}" for partition, offset in committed.items())
            log.info(
                "offsets exported pipeline=%s group=%s committed_offsets=%s",
                ledger.pipeline,
                group,
                offsets,
            )
        return tuple(
            ExportedOffset(
                partition=partition,
                before=before.get(partition),
                committed_offset=offset,
                end=watermarks.partitions[partition].end,
            )
            for partition, offset in committed.items()
        )
