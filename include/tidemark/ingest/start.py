"""Recording where a pipeline begins, when somebody else has read its topic so far."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from tidemark.core.events import Started
from tidemark.core.ledger import Ledger
from tidemark.core.watermarks import TopicWatermarks
from tidemark.ingest.conflicts import retry_on_conflict
from tidemark.ingest.errors import AlreadyStarted, NotLive, UnusableSource
from tidemark.ingest.protocols import Clock, ControlTable, DataLog, TopicReader
from tidemark.ingest.recorder import checked_ledger
from tidemark.ingest.start_rules import OtherPartitions, SourceOffsets, beginning, why
from tidemark.spec.model import PipelineSpec


class OffsetSource(Protocol):
    """Tells how far somebody else has come in a topic; changes nothing of theirs."""

    def read(self, topic: str, partitions: int) -> SourceOffsets:
        """The next offset to read, by partition, as far as the source names them.

        Args:
            topic: Topic name.
            partitions: How many partitions it has.

        Raises:
            UnusableSource: It is not what it was said to be, or tells nothing of this topic.
            KafkaUnavailable, KafkaRefused
        """
        ...


class GroupReader(Protocol):
    """Reads what consumer groups have committed, without joining them."""

    def committed(self, group: str, topic: str, partitions: Collection[int]) -> Mapping[int, int]:
        """A group's offsets of some partitions, as far as it has any; empty for an unknown group.

        Raises:
            TopicMissing, KafkaUnavailable, KafkaRefused
        """
        ...

    def has_members(self, group: str) -> bool:
        """Whether consumers have joined the group now.

        Raises:
            KafkaUnavailable, KafkaRefused
        """
        ...


log = logging.getLogger(__name__)


class StartOutcome(StrEnum):
    """How a request for a beginning ended."""

    RECORDED = "begun"
    """The beginning was recorded."""
    NOTHING = "nothing to do"
    """The same source gave the same beginning before."""
    DRAFT = "draft"
    """A dry run: this would be recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStart:
    """Where one partition begins, and what of its log that leaves out.

    Attributes:
        partition: The partition.
        offset: First offset to read.
        low: Low watermark.
        end: End of the readable log.
        named: Whether the source named it.
    """

    partition: int
    offset: int
    low: int
    end: int
    named: bool

    @property
    def lost(self) -> int:
        """Offsets from the beginning on that Kafka has deleted: the first plan is a LostRange."""
        return max(0, self.low - self.offset)

    def as_record(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        return {
            "partition": self.partition,
            "offset": self.offset,
            "low_watermark": self.low,
            "end": self.end,
            "to_read": self.end - max(self.low, self.offset),
            "deleted_unread": self.lost,
            "named_by_source": self.named,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StartResult:
    """The answer to a request for a beginning.

    Attributes:
        outcome: How it ended.
        topic: Topic name.
        reason: As it is recorded.
        partitions: By number.
        notes: What whoever goes on from there has to know.
    """

    outcome: StartOutcome
    topic: str
    reason: str
    partitions: tuple[PartitionStart, ...]
    notes: tuple[str, ...]

    def as_record(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        return {
            "outcome": self.outcome.value,
            "topic": self.topic,
            "reason": self.reason,
            "partitions": [each.as_record() for each in self.partitions],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSource:
    """The committed offsets of a consumer group."""

    groups: GroupReader
    group: str

    def read(self, topic: str, partitions: int) -> SourceOffsets:
        """As `OffsetSource.read`."""
        source = f"offsets of consumer group {self.group!r}"
        offsets = self.groups.committed(self.group, topic, range(partitions))
        if not offsets:
            raise UnusableSource(
                source=source, rule=f"committed offsets of topic {topic!r}", seen="none"
            )
        notes: tuple[str, ...] = ()
        if self.groups.has_members(self.group):
            notes = (
                f"consumer group {self.group!r} has members: what they read from here on is read "
                "twice, so stop them and ask again",
            )
        return SourceOffsets(source=source, offsets=offsets, notes=notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartService:
    """Begins one pipeline at given offsets. Writes one control event, and no rows."""

    spec: PipelineSpec
    watermarks: TopicReader
    control: ControlTable
    data_log: DataLog
    now: Clock

    def begin(
        self,
        source: OffsetSource,
        requested_by: str,
        reason: str | None = None,
        *,
        others: OtherPartitions | None = None,
        dry_run: bool = False,
    ) -> StartResult:
        """Record that the pipeline begins where the source has come to.

        Args:
            source: Who has read the topic so far.
            requested_by: Who decides it.
            reason: Why, in their words.
            others: Where to begin in partitions that the source does not name.
            dry_run: Only say what would be recorded.

        Raises:
            NotLive: A copy, which has backfills alone.
            AlreadyStarted: The pipeline has another beginning, or the same for another reason.
            UnusableSource: The source tells no offsets of the topic.
            UnknownPartition, InvalidStart, StartBehindEnd, PartitionsUnsaid: Its offsets do not fit
                the topic.
            TopicMissing, KafkaUnavailable, KafkaRefused
            ControlTruncated, TableBehindLedger, LedgerBehindTable, TableRestored: First things
                first.
            ControlConflict: Others were first, several times over.
        """
        if not self.spec.is_live:
            raise NotLive(pipeline=self.spec.name, origin=self.spec.origin)
        progress = source.read(self.spec.topic, len(self._watermarks().partitions))
        because = why(progress, others, reason)
        return retry_on_conflict(
            lambda: self._begin(progress, others, requested_by, because, dry_run=dry_run)
        )

    def _begin(
        self,
        progress: SourceOffsets,
        others: OtherPartitions | None,
        requested_by: str,
        because: str,
        *,
        dry_run: bool,
    ) -> StartResult:
        ledger = checked_ledger(self.control, self.spec.name, self.data_log)
        # After the source was read: what it has come to by now, the log has too.
        watermarks = self._watermarks()
        if ledger.starts:  # fence: pipeline-starts-once
            _refuse_other(ledger, watermarks, progress, because)
            return _told(StartOutcome.NOTHING, watermarks, ledger.starts, progress, because)
        offsets = beginning(self.spec.name, watermarks, progress, others)
        if dry_run:
            return _told(StartOutcome.DRAFT, watermarks, offsets, progress, because)
        started = Started.at(watermarks, offsets, requested_by, because)
        self.control.append(ledger, [started], self.now())
        log.info("begun pipeline=%s topic=%s reason=%s", self.spec.name, watermarks.topic, because)
        return _told(StartOutcome.RECORDED, watermarks, offsets, progress, because)

    def _watermarks(self) -> TopicWatermarks:
        return self.watermarks.topic_watermarks(self.spec.topic, self.spec.isolation_level)


def _refuse_other(
    ledger: Ledger, watermarks: TopicWatermarks, progress: SourceOffsets, because: str
) -> None:
    """Let only the question pass that was answered already: its answer may have been lost."""
    known = {p: ledger.starts.get(p) for p in progress.offsets}
    if (known, ledger.topic_id, ledger.start_reason) != (
        progress.offsets,
        watermarks.topic_id,
        because,
    ):
        raise AlreadyStarted(
            pipeline=ledger.pipeline,
            wanted=tuple(sorted(progress.offsets.items())),
            known=tuple(sorted(ledger.starts.items())),
            reason=ledger.start_reason or "by the spec's start policy",
        )


def _told(
    outcome: StartOutcome,
    watermarks: TopicWatermarks,
    offsets: Mapping[int, int],
    progress: SourceOffsets,
    because: str,
) -> StartResult:
    return StartResult(
        outcome=outcome,
        topic=watermarks.topic,
        reason=because,
        partitions=tuple(
            PartitionStart(
                partition=partition,
                offset=offset,
                low=watermarks.partitions[partition].low,
                end=watermarks.partitions[partition].end,
                named=partition in progress.offsets,
            )
            for partition, offset in sorted(offsets.items())
        ),
        notes=progress.notes,
    )
