"""Recording the start offsets of a pipeline that continues from another consumer."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from tidemark.bronze.ingest.errors import AlreadyStarted, InvalidStart
from tidemark.bronze.ingest.ledgers import read_checked_ledger
from tidemark.bronze.ingest.ports import Ports
from tidemark.bronze.ingest.start_rules import (
    OtherPartitions,
    SourceOffsets,
    start_offsets,
    start_reason,
)
from tidemark.core.events import Started
from tidemark.core.ledger import Ledger
from tidemark.core.plain import record_of
from tidemark.core.watermarks import TopicWatermarks
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.spec.model import PipelineSpec

log = logging.getLogger(__name__)


class GroupReader(Protocol):
    """Reads committed offsets of consumer groups without joining them."""

    def committed(self, group: str, topic: str, partitions: Collection[int]) -> Mapping[int, int]:
        """Return a group's committed offsets of some partitions; empty for an unknown group.

        Raises:
            TopicMissing, KafkaUnavailable, KafkaRefused
        """

    def has_members(self, group: str) -> bool:
        """Return whether the group has members now.

        Raises:
            KafkaUnavailable, KafkaRefused
        """


class StartOutcome(StrEnum):
    """Outcome of a request to start a pipeline."""

    RECORDED = "recorded"
    """The start offsets were recorded."""
    NOTHING = "nothing to do"
    """The same source gave the same start offsets before."""
    DRAFT = "draft"
    """A dry run: these offsets would be recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStart:
    """Start offset and watermarks of one partition.

    Attributes:
        partition: Partition number.
        offset: First offset to read.
        low_watermark: Low watermark.
        end: End of the readable log.
        named_by_source: Whether the source has an offset of the partition.
    """

    partition: int
    offset: int
    low_watermark: int
    end: int
    named_by_source: bool

    @property
    def lost(self) -> int:
        """Deleted offsets after the start; the first plan raises `LostRange` for them."""
        return max(0, self.low_watermark - self.offset)

    def as_record(self) -> dict[str, Any]:
        """Return plain values, for `--json`."""
        to_read = self.end - max(self.low_watermark, self.offset)
        return record_of(self, to_read=to_read, deleted_unread=self.lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartResult:
    """Result of a request to start a pipeline.

    Attributes:
        outcome: What was done.
        topic: Topic name.
        reason: The recorded reason.
        partitions: Ordered by number.
        notes: Warnings for the operator, as sentences.
    """

    outcome: StartOutcome
    topic: str
    reason: str
    partitions: tuple[PartitionStart, ...]
    notes: tuple[str, ...]


def group_position(
    groups: GroupReader, group: str, topic: str, partitions: Collection[int]
) -> SourceOffsets:
    """Return the committed offsets of a consumer group in some partitions of a topic.

    Raises:
        InvalidStart: The group has no committed offsets of the topic.
        TopicMissing, KafkaUnavailable, KafkaRefused
    """
    source = f"offsets of consumer group {group!r}"
    offsets = groups.committed(group, topic, partitions)
    if not offsets:
        raise InvalidStart(source=source, rule=f"committed offsets of topic {topic!r}", seen="none")
    notes: tuple[str, ...] = ()
    if groups.has_members(group):
        notes = (
            f"consumer group {group!r} has members; records that they read from now on are read "
            "twice, so stop them and run the command again",
        )
    return SourceOffsets(source=source, offsets=offsets, notes=notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartService:
    """Records start offsets of one pipeline. Writes one control event and no rows."""

    spec: PipelineSpec
    ports: Ports

    def start(
        self,
        found: SourceOffsets,
        requested_by: str,
        reason: str | None = None,
        *,
        others: OtherPartitions | None = None,
        dry_run: bool = False,
    ) -> StartResult:
        """Record where the pipeline starts, before its first plan.

        A repetition with the same source, offsets and reason changes nothing, so a command that
        lost its answer can be run again.

        Args:
            found: The other consumer's position.
            requested_by: The operator.
            reason: The operator's reason, recorded after the source.
            others: Where to start in partitions without an offset from the source.
            dry_run: Record nothing.

        Raises:
            AlreadyStarted: The pipeline has other start offsets, or another recorded reason.
            InvalidStart: The offsets do not fit the topic.
            InvalidSelection: The source has an offset of a partition that the topic lacks.
            TopicMissing, KafkaUnavailable, KafkaRefused
            HistoriesDiverge: The data table and the control table have different histories.
            ControlConflict: Concurrent processes were first, several times.
        """
        recorded_reason = start_reason(found, others, reason)
        return retry_on_conflict(
            lambda: self._begin(found, others, requested_by, recorded_reason, dry_run=dry_run)
        )

    def _begin(
        self,
        found: SourceOffsets,
        others: OtherPartitions | None,
        requested_by: str,
        reason: str,
        *,
        dry_run: bool,
    ) -> StartResult:
        ledger = read_checked_ledger(self.ports.control, self.spec.name, self.ports.table)
        # Read after the source, so the log contains every offset that the source had read.
        watermarks = self.ports.watermarks_of(self.spec)
        if ledger.starts:  # fence: pipeline-starts-once
            _check_same_start(ledger, watermarks, found, reason)
            return _result(StartOutcome.NOTHING, watermarks, ledger.starts, found, reason)
        offsets = start_offsets(watermarks, found, others)
        if dry_run:
            return _result(StartOutcome.DRAFT, watermarks, offsets, found, reason)
        started = Started.at(watermarks, offsets, requested_by, reason)
        self.ports.control.append(ledger, [started], self.ports.now())
        log.info(
            "start recorded pipeline=%s topic=%s reason=%s",
            self.spec.name,
            watermarks.topic,
            reason,
        )
        return _result(StartOutcome.RECORDED, watermarks, offsets, found, reason)


def _check_same_start(
    ledger: Ledger, watermarks: TopicWatermarks, found: SourceOffsets, reason: str
) -> None:
    """Accept a repetition of the recorded request only; its answer may have been lost.

    Raises:
        AlreadyStarted
    """
    known = {p: ledger.starts.get(p) for p in found.offsets}
    if (known, ledger.topic_id, ledger.start_reason) != (
        found.offsets,
        watermarks.topic_id,
        reason,
    ):
        raise AlreadyStarted(
            pipeline=ledger.pipeline,
            wanted=tuple(f"{p}:{offset}" for p, offset in sorted(found.offsets.items())),
            known=tuple(f"{p}:{offset}" for p, offset in sorted(ledger.starts.items())),
            reason=ledger.start_reason or "by the spec's start policy",
        )


def _result(
    outcome: StartOutcome,
    watermarks: TopicWatermarks,
    offsets: Mapping[int, int],
    found: SourceOffsets,
    reason: str,
) -> StartResult:
    return StartResult(
        outcome=outcome,
        topic=watermarks.topic,
        reason=reason,
        partitions=tuple(
            PartitionStart(
                partition=partition,
                offset=offset,
                low_watermark=watermarks.partitions[partition].low,
                end=watermarks.partitions[partition].end,
                named_by_source=partition in found.offsets,
            )
            for partition, offset in sorted(offsets.items())
        ),
        notes=found.notes,
    )
