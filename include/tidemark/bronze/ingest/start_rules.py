"""Start offsets of a pipeline: by the policy of its spec, or from another consumer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import assert_never

from tidemark.bronze.ingest.errors import InvalidStart, NoStartOffset
from tidemark.core import plan_rules
from tidemark.core.texts import listed
from tidemark.core.watermarks import TopicWatermarks
from tidemark.spec.model import PipelineSpec, StartPolicy


class OtherPartitions(StrEnum):
    """Where to start in partitions without an offset from the source."""

    EARLIEST = "earliest"
    """At the low watermark."""
    LATEST = "latest"
    """At the log end offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOffsets:
    """The position of another consumer in a topic.

    Attributes:
        source: The consumer, as a noun phrase; it becomes part of the recorded reason.
        offsets: The next offset to read, by partition; may lack partitions.
        notes: Warnings for the operator, as sentences.
    """

    source: str
    offsets: Mapping[int, int]
    notes: tuple[str, ...] = ()


def policy_offsets(
    spec: PipelineSpec,
    watermarks: TopicWatermarks,
    offsets_at: Callable[[str, Sequence[int], datetime], Mapping[int, int]],
) -> Mapping[int, int]:
    """Return the start offset of each partition by the spec's start policy.

    Args:
        spec: The pipeline.
        watermarks: Watermarks of its topic.
        offsets_at: As `TopicReader.offsets_at`.

    Raises:
        NoStartOffset: The spec has `start: none`.
    """
    match spec.start:
        case StartPolicy.EARLIEST:
            return {p: here.low for p, here in watermarks.partitions.items()}
        case StartPolicy.LATEST:
            return {p: here.end for p, here in watermarks.partitions.items()}
        case StartPolicy.TIMESTAMP if spec.start_at:
            found = offsets_at(spec.topic, sorted(watermarks.partitions), spec.start_at)
            return {p: min(found[p], here.end) for p, here in watermarks.partitions.items()}
        case StartPolicy.NONE | StartPolicy.TIMESTAMP:
            raise NoStartOffset(
                pipeline=spec.name,
                topic=watermarks.topic,
                partitions=tuple(sorted(watermarks.partitions)),
            )
        case never:
            assert_never(never)


def given_offsets(text: str) -> SourceOffsets:
    """Parse `PARTITION:OFFSET,PARTITION:OFFSET`.

    Raises:
        InvalidStart
    """
    offsets: dict[int, int] = {}
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*:\s*(\d+)\s*", part)
        if found is None:
            raise InvalidStart(
                source="--offsets",
                rule="PARTITION:OFFSET,PARTITION:OFFSET with numbers from 0",
                seen=repr(text),
            )
        partition, offset = int(found[1]), int(found[2])
        if partition in offsets:
            raise InvalidStart(
                source="--offsets", rule="each partition once", seen=f"partition {partition} twice"
            )
        offsets[partition] = offset
    return SourceOffsets(source="offsets given by hand", offsets=offsets)


def start_reason(found: SourceOffsets, others: OtherPartitions | None, reason: str | None) -> str:
    """Return the reason to record; equal arguments give an equal reason."""
    parts = [
        f"started at the {found.source}",
        f"other partitions at {others}" if others else None,
        reason,
    ]
    return "; ".join(part for part in parts if part)


def start_offsets(
    watermarks: TopicWatermarks, found: SourceOffsets, others: OtherPartitions | None
) -> Mapping[int, int]:
    """Return the first offset to read of every partition of the topic.

    Offsets below a low watermark are allowed: the first plan reports them as a loss.

    Args:
        watermarks: The topic's watermarks, read after the source.
        found: The position of the other consumer.
        others: Where to start in partitions without an offset from the source.

    Raises:
        InvalidSelection: The source has an offset of a partition that the topic lacks.
        InvalidStart: An offset is negative or beyond the log end, or a partition has no offset
            and `others` is None.
    """
    plan_rules.check_partitions(watermarks, found.offsets)
    for partition, offset in sorted(found.offsets.items()):
        end = watermarks.partitions[partition].end
        if not 0 <= offset <= end:  # fence: start-within-log
            raise InvalidStart(
                source=found.source,
                rule=f"an offset from 0 to {end}, the log end of {watermarks.topic}[{partition}]",
                seen=f"offset {offset}",
            )
    missing = sorted(set(watermarks.partitions) - set(found.offsets))
    if missing and others is None:
        raise InvalidStart(
            source=found.source,
            rule=f"an offset for every partition of topic {watermarks.topic!r}, or "
            "--others earliest or latest",
            seen=f"none for {listed('partition', missing)}",
        )
    chosen = {
        p: watermarks.partitions[p].low
        if others is OtherPartitions.EARLIEST
        else watermarks.partitions[p].end
        for p in missing
    }
    return dict(sorted({**found.offsets, **chosen}.items()))
