"""Watermarks and leader epochs of a topic, as a broker returns them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from tidemark.core.offsets import Span, SpanSet


class IsolationLevel(StrEnum):
    """Kafka's `isolation.level`: the records that a reader sees, and the end of its log (S8)."""

    READ_COMMITTED = "read_committed"
    """Records up to the last stable offset, without aborted transactions."""
    READ_UNCOMMITTED = "read_uncommitted"
    """Records up to the high watermark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks:
    """The readable log of one partition is `[low, end)`.

    Attributes:
        low: Low watermark (log start offset).
        end: Last stable offset or high watermark, depending on the isolation level.
        leader_epoch: Kafka's leader epoch of the partition; None if the broker does not return it.
    """

    low: int
    end: int
    leader_epoch: int | None = None

    def readable(self, spans: SpanSet) -> SpanSet:
        """Return the offsets of `spans` that the log contains now."""
        return spans.within(Span(self.low, self.end)) if self.low < self.end else SpanSet()

    def deleted(self, spans: SpanSet) -> SpanSet:
        """Return the offsets of `spans` before the low watermark."""
        return spans.within(Span(0, self.low)) if self.low else SpanSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """An offset in the log of one partition, with the leader epoch at which it was observed.

    Attributes:
        offset: Next offset to read.
        leader_epoch: Kafka's leader epoch; None if unknown.
    """

    offset: int
    leader_epoch: int | None


K = TypeVar("K")


def furthest_positions(placed: Iterable[tuple[K, Position]]) -> dict[K, Position]:
    """Return the position with the highest offset for each key.

    If two positions have the same offset, the older leader epoch wins.
    """

    def distance(item: tuple[K, Position]) -> tuple[int, bool, int]:
        epoch = item[1].leader_epoch
        return item[1].offset, epoch is not None, -(epoch or 0)

    return dict(sorted(placed, key=distance))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicWatermarks:
    """One topic's identity and the watermarks of all its partitions.

    Attributes:
        cluster_id: Kafka's id of the cluster.
        topic: Topic name.
        topic_id: Kafka's UUID of this incarnation of the topic, as text.
        isolation_level: Isolation level of each partition's `end`.
        partitions: Watermarks by partition number.
    """

    cluster_id: str
    topic: str
    topic_id: str
    isolation_level: IsolationLevel
    partitions: Mapping[int, Watermarks]
