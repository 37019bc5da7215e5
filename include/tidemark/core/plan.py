"""A plan: a frozen, recorded set of offset ranges for one pipeline."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from tidemark.core.offsets import Span, SpanSet, difference_by_partition, spans_by_partition
from tidemark.core.watermarks import IsolationLevel, Position


class PlanKind(StrEnum):
    """Which chain of plans a plan belongs to; each chain lands in its own order."""

    LIVE = "live"
    """Follows the log; made by scheduled runs."""
    BACKFILL = "backfill"
    """Takes an explicit range that somebody asked for."""


def transaction_app_id(pipeline: str, epoch: int, kind: PlanKind) -> str:
    """The Delta transaction's application id of a chain of plans."""
    return f"tidemark:{pipeline}:{epoch}{'' if kind is PlanKind.LIVE else f':{kind}'}"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PlannedRange:
    """Offsets `[start, end)` of one partition, with the watermarks seen when they were planned.

    Attributes:
        partition: Partition number.
        start: First offset to read.
        end: Next offset after the range.
        low_watermark: Log start when planned.
        log_end_offset: End of the readable log when planned; `log_end_offset - end` is left.
        leader_epoch: Kafka's leader epoch when planned; None if nobody knows it.
    """

    partition: int
    start: int
    end: int
    low_watermark: int
    log_end_offset: int
    leader_epoch: int | None = None

    def __post_init__(self) -> None:
        if self.partition < 0:
            raise ValueError(f"a partition is not negative, got {self.partition}")
        Span(self.start, self.end)

    @classmethod
    def without_watermarks(cls, partition: int, span: Span) -> Self:
        """A range of which nobody knows the watermarks any more: its own bounds stand for them."""
        return cls(
            partition=partition,
            start=span.start,
            end=span.end,
            low_watermark=span.start,
            log_end_offset=span.end,
        )

    @property
    def span(self) -> Span:
        """The range without its partition."""
        return Span(self.start, self.end)

    @property
    def position(self) -> Position:
        """Where whoever has read the range is."""
        return Position(offset=self.end, leader_epoch=self.leader_epoch)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PlanRef:
    """A recorded plan by name and number, which is all that jobs are told; its text is `prices=7`.

    Attributes:
        pipeline: Pipeline name.
        sequence: Plan number.
    """

    pipeline: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.pipeline}={self.sequence}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The plan that a text names.

        Raises:
            ValueError: It names none.
        """
        pipeline, _, sequence = text.partition("=")
        if not pipeline or not sequence.isdecimal():
            raise ValueError(f"PIPELINE=NUMBER, not {text!r}")
        return cls(pipeline=pipeline, sequence=int(sequence))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one run reads, decided before anything is read. It never changes (I4).

    Attributes:
        pipeline: Pipeline name.
        sequence: Number of the plan in its pipeline, from 1, both kinds counted together.
        kind: The chain it belongs to.
        epoch: Part of the transaction's application id; raised when a table is rewound or a
            control table rebuilt.
        cluster_id: Kafka cluster that the offsets belong to.
        topic: Topic name.
        topic_id: Incarnation of the topic that the offsets belong to.
        isolation_level: What the reader may see.
        requested_by: Who asked: `airflow:<dag>:<run>` or `cli:<user>:<id>`. Asking again with
            the same value returns this plan.
        ranges: Sorted by partition and start; ranges of one partition do not touch.
        replaces: Whether its rows take the place of those at its offsets.
    """

    pipeline: str
    sequence: int
    kind: PlanKind
    epoch: int
    cluster_id: str
    topic: str
    topic_id: str
    isolation_level: IsolationLevel
    requested_by: str
    ranges: tuple[PlannedRange, ...]
    replaces: bool = False

    def __post_init__(self) -> None:
        if not self.ranges:
            raise ValueError("a plan has at least one range; nothing to do is no plan")
        if list(self.ranges) != sorted(self.ranges):
            raise ValueError("a plan's ranges are sorted by partition and start")
        for before, after in zip(self.ranges, self.ranges[1:], strict=False):
            if before.partition == after.partition and after.start <= before.end:
                raise ValueError(f"ranges overlap or touch: {before} and {after}")

    @property
    def ref(self) -> PlanRef:
        """The plan by name and number."""
        return PlanRef(pipeline=self.pipeline, sequence=self.sequence)

    @property
    def size(self) -> int:
        """Number of offsets planned; at most this many records."""
        return sum(planned.span.size for planned in self.ranges)

    @property
    def left(self) -> int:
        """Number of offsets that were readable behind the planned ones, and left for later."""
        return sum(planned.log_end_offset - planned.end for planned in self._last_ranges())

    @property
    def app_id(self) -> str:
        """The Delta transaction's application id: one per pipeline, epoch and chain."""
        return transaction_app_id(self.pipeline, self.epoch, self.kind)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over all that decides which records the plan names, in hexadecimal."""
        return hashlib.sha256(_canonical(self._identity()).encode()).hexdigest()

    def spans(self) -> Mapping[int, SpanSet]:
        """Planned offsets by partition."""
        return spans_by_partition((planned.partition, planned.span) for planned in self.ranges)

    def offsets_outside(self, landed: Mapping[int, SpanSet]) -> Mapping[int, SpanSet]:
        """Planned offsets that are not among `landed`; partitions without any are left out."""
        return difference_by_partition(self.spans(), landed)

    def with_ranges(self, placed: Iterable[tuple[int, Span]]) -> Self:
        """The plan as if it were of these ranges alone, by partition; of at least one."""
        return replace(
            self, ranges=tuple(PlannedRange.without_watermarks(*each) for each in placed)
        )

    def commit_metadata(self) -> str:
        """JSON for the data table's commit: enough to tell there which plan landed."""
        return _canonical({**self._identity(), "fingerprint": self.fingerprint})

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], requested_by: str) -> Self:
        """The plan that a data table's commit tells of, without the watermarks it was made from.

        Args:
            metadata: What `commit_metadata` wrote.
            requested_by: Who asks for it now; the commit does not say who asked then.
        """
        return cls(
            pipeline=metadata["pipeline"],
            sequence=metadata["sequence"],
            kind=PlanKind(metadata["kind"]),
            epoch=metadata["epoch"],
            cluster_id=metadata["cluster_id"],
            topic=metadata["topic"],
            topic_id=metadata["topic_id"],
            isolation_level=IsolationLevel(metadata["isolation_level"]),
            requested_by=requested_by,
            ranges=tuple(
                PlannedRange.without_watermarks(partition, Span(start, end))
                for partition, start, end in metadata["ranges"]
            ),
            replaces=metadata.get("replaces", False),
        )

    def as_record(self) -> dict[str, Any]:
        """The plan as plain values, for `--json`."""
        return {
            **self._identity(),
            "fingerprint": self.fingerprint,
            "requested_by": self.requested_by,
            "offsets": self.size,
            "left": self.left,
        }

    def explain(self) -> str:
        """What the plan will read and what it leaves, for people."""
        lines = [
            f"plan {self.sequence} of pipeline {self.pipeline} ({self.kind}), "
            f"asked for by {self.requested_by}",
            f"topic {self.topic}, id {self.topic_id}, {self.isolation_level}",
            f"{self.size:,} offset(s) in {len(self.ranges)} range(s)"
            f"{', replacing the rows that are there' if self.replaces else ''}:",
            f"{'partition':>10} {'start':>14} {'end':>14} {'offsets':>12} "
            f"{'log start':>14} {'log end':>14}",
        ]
        lines += [
            f"{r.partition:>10} {r.start:>14,} {r.end:>14,} {r.span.size:>12,} "
            f"{r.low_watermark:>14,} {r.log_end_offset:>14,}"
            for r in self.ranges
        ]
        return "\n".join(lines)

    def _last_ranges(self) -> list[PlannedRange]:
        return list({planned.partition: planned for planned in self.ranges}.values())

    def _identity(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "sequence": self.sequence,
            "kind": str(self.kind),
            "epoch": self.epoch,
            "cluster_id": self.cluster_id,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "isolation_level": str(self.isolation_level),
            "ranges": [[r.partition, r.start, r.end] for r in self.ranges],
            # Left out where it says nothing: a fingerprint never changes.
            **({"replaces": True} if self.replaces else {}),
        }


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
