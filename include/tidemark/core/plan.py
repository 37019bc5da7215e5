"""A plan: a frozen, recorded set of offset ranges for one pipeline."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NewType, Self

from tidemark.core.offsets import Span, SpanSet, difference_by_partition, spans_by_partition
from tidemark.core.origins import PlanOrigin
from tidemark.core.texts import counted
from tidemark.core.watermarks import IsolationLevel


class PlanKind(StrEnum):
    """The chain of plans that a plan belongs to; plans of a chain land in order."""

    LIVE = "live"
    """Scheduled runs create these plans, which follow the log."""
    BACKFILL = "backfill"
    """The plan has explicit offsets of a backfill."""


def transaction_app_id(pipeline: str, epoch: int, kind: PlanKind) -> str:
    """Return the Delta application id of a chain of plans."""
    return f"tidemark:{pipeline}:{epoch}{'' if kind is PlanKind.LIVE else f':{kind}'}"


_REMOVAL = ":removal"


def removal_app_id(pipeline: str, epoch: int) -> str:
    """Return the Delta application id of the commits that remove rows of plans in an epoch."""
    return f"tidemark:{pipeline}:{epoch}{_REMOVAL}"


def plan_removal_app_id(pipeline: str, epoch: int, sequence: int) -> str:
    """Return the Delta application id of the commits that remove rows of one plan in an epoch."""
    return f"tidemark:{pipeline}:{epoch}:{sequence}{_REMOVAL}"


def is_removal(app_id: str) -> bool:
    """Return whether a Delta application id is one of commits that remove rows."""
    return app_id.endswith(_REMOVAL)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PlannedRange:
    """Offsets `[start, end)` of one partition, with the partition's watermarks at planning time.

    Attributes:
        partition: Partition number.
        start: First offset to read.
        end: Next offset after the range.
        low_watermark: Low watermark at planning time.
        log_end_offset: End of the readable log at planning time.
        leader_epoch: Kafka's leader epoch at planning time; None if unknown. In a plan that was
            checked before its read, the epoch at this check; see `Plan.with_leader_epochs`.
        left_over: Number of unread offsets of the partition that a limit leaves for later plans;
            above 0 only in the last range of a partition.
    """

    partition: int
    start: int
    end: int
    low_watermark: int
    log_end_offset: int
    leader_epoch: int | None = None
    left_over: int = 0

    def __post_init__(self) -> None:
        if self.partition < 0:
            raise ValueError(f"a partition must not be negative, got {self.partition}")
        Span(self.start, self.end)

    @classmethod
    def without_watermarks(
        cls, partition: int, span: Span, leader_epoch: int | None = None
    ) -> Self:
        """Build a range with unknown watermarks: its own bounds replace them."""
        return cls(
            partition=partition,
            start=span.start,
            end=span.end,
            low_watermark=span.start,
            log_end_offset=span.end,
            leader_epoch=leader_epoch,
        )

    @property
    def span(self) -> Span:
        """The range without its partition."""
        return Span(self.start, self.end)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PlanRef:
    """Reference to a recorded plan, the only argument of a job. As text: `prices=7`.

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
        """Parse the text of a reference.

        Raises:
            ValueError: The text is not a plan reference.
        """
        pipeline, _, sequence = text.partition("=")
        if not pipeline or not sequence.isdecimal():
            raise ValueError(f"PIPELINE=NUMBER, not {text!r}")
        return cls(pipeline=pipeline, sequence=int(sequence))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The offsets that one run reads. The plan is recorded before the run and never changes (I4).

    Attributes:
        pipeline: Pipeline name.
        sequence: Number of the plan in its pipeline, from 1. Both kinds share the numbers.
        kind: Chain of the plan.
        epoch: Part of the Delta application id. A rewind or a rebuild of the control table
            increments it.
        cluster_id: Kafka's id of the cluster.
        topic: Topic name.
        topic_id: Kafka's id of the incarnation of the topic.
        isolation_level: Isolation level of the reader.
        origin: Why the plan was made. It is the idempotency key: a second request of the same
            origin returns this plan.
        ranges: Ranges, sorted by partition and start. Ranges of one partition are not adjacent.
        replaces: Whether the plan's rows replace the rows at its offsets.
    """

    pipeline: str
    sequence: int
    kind: PlanKind
    epoch: int
    cluster_id: str
    topic: str
    topic_id: str
    isolation_level: IsolationLevel
    origin: PlanOrigin
    ranges: tuple[PlannedRange, ...]
    replaces: bool = False

    def __post_init__(self) -> None:
        if not self.ranges:
            raise ValueError("a plan needs at least one range")
        if list(self.ranges) != sorted(self.ranges):
            raise ValueError("the ranges of a plan must be sorted by partition and start")
        for before, after in zip(self.ranges, self.ranges[1:], strict=False):
            if before.partition == after.partition and after.start <= before.end:
                raise ValueError(f"ranges overlap or are adjacent: {before} and {after}")

    @property
    def ref(self) -> PlanRef:
        """Reference to the plan."""
        return PlanRef(pipeline=self.pipeline, sequence=self.sequence)

    @property
    def requested_by(self) -> str:
        """The requester: the text of the origin."""
        return str(self.origin)

    @property
    def number(self) -> Span:
        """The plan number, as a range."""
        return Span(self.sequence, self.sequence + 1)

    @property
    def size(self) -> int:
        """Number of planned offsets; the plan has at most this many records."""
        return sum(planned.span.size for planned in self.ranges)

    @property
    def left(self) -> int:
        """Number of unread offsets that a limit leaves for later plans."""
        return sum(planned.left_over for planned in self.ranges)

    @property
    def app_id(self) -> str:
        """Delta application id: one for each pipeline, epoch and chain."""
        return transaction_app_id(self.pipeline, self.epoch, self.kind)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all fields that decide which records the plan contains, in hexadecimal."""
        return hashlib.sha256(_canonical(self._identity()).encode()).hexdigest()

    def spans(self) -> Mapping[int, SpanSet]:
        """Return the planned offsets of each partition."""
        return spans_by_partition((planned.partition, planned.span) for planned in self.ranges)

    def offsets_outside(self, landed: Mapping[int, SpanSet]) -> Mapping[int, SpanSet]:
        """Return the planned offsets that are not in `landed`, without empty partitions."""
        return difference_by_partition(self.spans(), landed)

    def with_ranges(self, placed: Iterable[tuple[int, Span]]) -> Self:
        """Return a copy of the plan with other ranges, at least one, given by partition."""
        epochs = self.leader_epochs
        return replace(
            self,
            ranges=tuple(
                PlannedRange.without_watermarks(partition, span, epochs.get(partition))
                for partition, span in placed
            ),
        )

    @property
    def leader_epochs(self) -> Mapping[int, int]:
        """Kafka's leader epoch by partition, without unknown ones."""
        return {
            planned.partition: planned.leader_epoch
            for planned in self.ranges
            if planned.leader_epoch is not None
        }

    def with_leader_epochs(self, epochs: Mapping[int, int | None]) -> Self:
        """Return a copy with these leader epochs by partition; missing ones are unknown."""
        return replace(
            self,
            ranges=tuple(
                # fence: epochs-of-the-read
                replace(planned, leader_epoch=epochs.get(planned.partition))
                for planned in self.ranges
            ),
        )

    def commit_metadata(self) -> str:
        """Return JSON for the data table's commit: the plan's identity and its leader epochs."""
        epochs = {str(partition): epoch for partition, epoch in self.leader_epochs.items()}
        return _canonical(
            {
                **self._identity(),
                "fingerprint": self.fingerprint,
                **({"leader_epochs": epochs} if epochs else {}),
            }
        )

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], origin: PlanOrigin) -> Self:
        """Build a plan from the metadata of a data table's commit, without watermarks.

        Its leader epochs are those that were known before the committed rows were read.

        Args:
            metadata: The parsed value of `commit_metadata`.
            origin: Origin of the new value; the commit does not contain the original.
        """
        epochs = metadata.get("leader_epochs", {})
        return cls(
            pipeline=metadata["pipeline"],
            sequence=metadata["sequence"],
            kind=PlanKind(metadata["kind"]),
            epoch=metadata["epoch"],
            cluster_id=metadata["cluster_id"],
            topic=metadata["topic"],
            topic_id=metadata["topic_id"],
            isolation_level=IsolationLevel(metadata["isolation_level"]),
            origin=origin,
            ranges=tuple(
                PlannedRange.without_watermarks(
                    partition, Span(start, end), epochs.get(str(partition))
                )
                for partition, start, end in metadata["ranges"]
            ),
            replaces=metadata.get("replaces", False),
        )

    def as_record(self) -> dict[str, Any]:
        """Return the plan as plain values, for `--json`."""
        return {
            **self._identity(),
            "fingerprint": self.fingerprint,
            "requested_by": self.requested_by,
            "offsets": self.size,
            "left": self.left,
        }

    def explain(self) -> str:
        """Return a table of the plan's ranges, as text."""
        lines = [
            f"plan {self.sequence} of pipeline {self.pipeline} ({self.kind}), "
            f"requested by {self.requested_by}",
            f"topic {self.topic}, id {self.topic_id}, {self.isolation_level}",
            f"{counted(self.size, 'offset')} in {counted(len(self.ranges), 'range')}"
            f"{', replacing the landed rows' if self.replaces else ''}:",
            f"{'partition':>10} {'start':>14} {'end':>14} {'offsets':>12} "
            f"{'low watermark':>14} {'log end':>14}",
        ]
        lines += [
            f"{r.partition:>10} {r.start:>14,} {r.end:>14,} {r.span.size:>12,} "
            f"{r.low_watermark:>14,} {r.log_end_offset:>14,}"
            for r in self.ranges
        ]
        return "\n".join(lines)

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
            # Only present if true, so that fingerprints of other plans stay the same.
            **({"replaces": True} if self.replaces else {}),
        }


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


ReadablePlan = NewType("ReadablePlan", Plan)
"""A plan that was checked against its source before the read. A `Sink` reads no other plan."""

CommittablePlan = NewType("CommittablePlan", Plan)
"""A plan that was checked again after the read. `DataTable.append` commits no other plan."""
