"""What a broker says about a topic at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from tidemark.core.offsets import Span, SpanSet


class IsolationLevel(StrEnum):
    """Kafka's `isolation.level`: what a reader may see, and so where its log ends (S8)."""

    READ_COMMITTED = "read_committed"
    """Up to the last stable offset, aborted transactions left out."""
    READ_UNCOMMITTED = "read_uncommitted"
    """Up to the high watermark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks:
    """The readable log of one partition is `[low, end)`.

    Attributes:
        low: Low watermark (log start offset).
        end: Last stable offset or high watermark, by the isolation level that was asked for.
        leader_epoch: Which leader, counted by Kafka, the partition's log ends under; None if the
            broker does not tell.
    """

    low: int
    end: int
    leader_epoch: int | None = None

    def readable(self, spans: SpanSet) -> SpanSet:
        """Those of some offsets that the log has now."""
        return spans.within(Span(self.low, self.end)) if self.low < self.end else SpanSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place in the log of one partition, and the leader that it was known under.

    Attributes:
        offset: The next offset.
        leader_epoch: Kafka's leader epoch; None if nobody knows it.
    """

    offset: int
    leader_epoch: int | None


K = TypeVar("K")


def furthest_positions(placed: Iterable[tuple[K, Position]]) -> dict[K, Position]:
    """The furthest of some positions at each place; of two with one offset the older leader's."""

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
        topic_id: Kafka's UUID of this incarnation of the topic, in its text form.
        isolation_level: The level that `end` of each partition was read with.
        partitions: Watermarks by partition number.
    """

    cluster_id: str
    topic: str
    topic_id: str
    isolation_level: IsolationLevel
    partitions: Mapping[int, Watermarks]
