"""Offsets from and to other readers of a topic."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from tidemark.app.adapters import Adapters
from tidemark.bronze.ingest.start import StartResult, StartService, group_position
from tidemark.bronze.ingest.start_checkpoint import checkpoint_position
from tidemark.bronze.ingest.start_rules import OtherPartitions, SourceOffsets
from tidemark.bronze.repair.exports import ExportedOffset, Exports


@dataclass(frozen=True)
class OffsetsPart:
    """The start offsets of a pipeline, and offsets for other tools. Needs no JVM.

    Attributes:
        adapters: The adapters of the pipeline.
    """

    adapters: Adapters

    def of_group(self, group: str) -> SourceOffsets:
        """Return the committed offsets of a consumer group of the cluster, to start from."""
        groups, topic = self.adapters.group_offsets, self.adapters.spec.topic
        return group_position(groups, group, topic, self._partitions())

    def of_checkpoint(self, path: str) -> SourceOffsets:
        """Return the position of a Structured Streaming query by its checkpoint, to start from."""
        return checkpoint_position(path, self.adapters.spec.topic)

    def start_from(
        self,
        found: SourceOffsets,
        requested_by: str,
        reason: str | None = None,
        *,
        others: OtherPartitions | None = None,
        dry_run: bool = False,
    ) -> StartResult:
        """Record the offsets of another reader as the start. See `StartService.start`."""
        starts = StartService(spec=self.adapters.spec, ports=self.adapters.topic_ports())
        return starts.start(found, requested_by, reason, others=others, dry_run=dry_run)

    def export(self, group: str, *, dry_run: bool = False) -> tuple[ExportedOffset, ...]:
        """Write the committed offsets to a consumer group. No run does this (I6)."""
        ports, groups = self.adapters.topic_ports(reads_only=True), self.adapters.group_offsets
        exports = Exports(spec=self.adapters.spec, ports=ports, groups=groups)
        return exports.export(group, dry_run=dry_run)

    def at(self, partition: int, moment: datetime, topic_id: str | None = None) -> int:
        """Return the first offset at or after a moment. See `records.offset_at`."""
        from tidemark.ops.report.records import offset_at

        ports = self.adapters.topic_ports(reads_only=True)
        return offset_at(self.adapters.spec, ports, partition, moment, topic_id)

    def _partitions(self) -> Collection[int]:
        """Return the partitions of the topic."""
        return self.adapters.topic_ports().watermarks_of(self.adapters.spec).partitions
