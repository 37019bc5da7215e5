"""Beginning at offsets that somebody else has come to: what they say, and whether it fits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tidemark.core import plan_rules as planning
from tidemark.core.watermarks import TopicWatermarks
from tidemark.ingest.errors import InvalidStart, PartitionsUnsaid, StartBehindEnd


class OtherPartitions(StrEnum):
    """Where to begin in partitions that a source does not name."""

    EARLIEST = "earliest"
    """At the low watermark."""
    LATEST = "latest"
    """At the end of the log: only what comes after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOffsets:
    """How far somebody else has come in a topic.

    Attributes:
        source: Who, as a noun phrase; it becomes part of the recorded reason.
        offsets: The next offset to read, by partition; not of all partitions perhaps.
        notes: What whoever goes on from there has to know, as sentences.
    """

    source: str
    offsets: Mapping[int, int]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOffsets:
    """Offsets that a person named."""

    offsets: Mapping[int, int]

    def read(self, topic: str, partitions: int) -> SourceOffsets:  # noqa: ARG002  the port's
        """As `OffsetSource.read`."""
        return SourceOffsets(source="offsets given by hand", offsets=self.offsets)


def given_offsets(text: str) -> GivenOffsets:
    """Offsets from `PARTITION:OFFSET,PARTITION:OFFSET`.

    Raises:
        InvalidStart
    """
    offsets: dict[int, int] = {}
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*:\s*(\d+)\s*", part)
        if found is None:
            raise InvalidStart(
                rule="PARTITION:OFFSET,PARTITION:OFFSET with numbers from 0", seen=repr(text)
            )
        partition, offset = int(found[1]), int(found[2])
        if partition in offsets:
            raise InvalidStart(rule="each partition once", seen=f"partition {partition} twice")
        offsets[partition] = offset
    return GivenOffsets(offsets=offsets)


def why(progress: SourceOffsets, others: OtherPartitions | None, reason: str | None) -> str:
    """The reason that is recorded; the same for the same question."""
    parts = [
        f"begun at the {progress.source}",
        f"other partitions at {others}" if others else None,
        reason,
    ]
    return "; ".join(part for part in parts if part)


def beginning(
    pipeline: str,
    watermarks: TopicWatermarks,
    progress: SourceOffsets,
    others: OtherPartitions | None,
) -> Mapping[int, int]:
    """First offset to read of every partition of the topic.

    Offsets below a low watermark are allowed: the first plan tells them as a loss.

    Args:
        pipeline: Pipeline name, for errors.
        watermarks: The topic's watermarks, read after `progress` was.
        progress: What the source says.
        others: Where to begin in partitions that it does not name.

    Raises:
        UnknownPartition: The topic has not all of its partitions.
        InvalidStart: A negative offset.
        StartBehindEnd: The log has not come so far.
        PartitionsUnsaid: The source does not name a partition, and nobody said where to begin.
    """
    planning.check_partitions(watermarks, progress.offsets)
    for partition, offset in sorted(progress.offsets.items()):
        if offset < 0:
            raise InvalidStart(
                rule="offsets from 0", seen=f"{offset} for partition {partition}: {progress.source}"
            )
        if offset > (end := watermarks.partitions[partition].end):  # fence: start-within-log
            raise StartBehindEnd(
                topic=watermarks.topic,
                source=progress.source,
                partition=partition,
                offset=offset,
                end=end,
            )
    unsaid = tuple(sorted(set(watermarks.partitions) - set(progress.offsets)))
    if unsaid and others is None:
        raise PartitionsUnsaid(
            pipeline=pipeline, topic=watermarks.topic, source=progress.source, partitions=unsaid
        )
    chosen = {
        p: watermarks.partitions[p].low
        if others is OtherPartitions.EARLIEST
        else watermarks.partitions[p].end
        for p in unsaid
    }
    return dict(sorted({**progress.offsets, **chosen}.items()))
