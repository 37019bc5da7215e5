"""What happens to a pipeline, as the control table keeps it: one value for each kind of event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self, TypeAlias

from tidemark.core.accounting import Landing, RangeCount
from tidemark.core.offsets import SpanSet
from tidemark.core.plan import Plan
from tidemark.core.watermarks import TopicWatermarks


class EventKind(StrEnum):
    """The `event` column."""

    STARTED = "started"
    """The pipeline began in a partition, at `committed_offset`."""
    BACKFILL_REQUESTED = "backfill_requested"
    """`[start_offset, end_offset)` shall be landed; a plan of each `chunk` follows."""
    PLANNED = "planned"
    """`[start_offset, end_offset)` belongs to plan `plan_sequence`."""
    SUPERSEDED = "superseded"
    """`[start_offset, end_offset)` is what plan `plan_sequence` still holds once plan
    `superseded_by`, recorded with it, has landed and replaced the rest."""
    ADOPTED = "adopted"
    """Another run took an open plan over."""
    ABANDONED = "abandoned"
    """A plan was given up before it landed; its offsets are unread again."""
    LANDED = "landed"
    """The range is in the data table; `committed_offset` is where the partition stands now."""
    UNDO_STARTED = "undo_started"
    """A landed plan's rows are being taken out of the data table; nobody counts on them, and
    `committed_offset` is where the partition stands without them."""
    UNDONE = "undone"
    """A landed plan's rows were taken out of the data table; its offsets are unread again."""
    LOSS_ACCEPTED = "loss_accepted"
    """Somebody accepted that `[start_offset, end_offset)` was deleted before it was read."""
    NEW_INCARNATION = "new_incarnation"
    """Somebody accepted that the topic was made again; it is read from `committed_offset` on."""
    NEW_EPOCH = "new_epoch"
    """What was open was fenced off for good; plans after it carry the transaction of `epoch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Partitions that the pipeline had no position in, and where it begins in them.

    Attributes:
        cluster_id: Kafka cluster.
        topic: Topic name.
        topic_id: Incarnation of the topic.
        requested_by: The run that found the partitions.
        offsets: First offset to read, by partition.
        leader_epochs: Kafka's leader epoch by partition, as far as it is known.
        reason: Where the offsets come from, if a person said; None if the spec's policy did.
    """

    cluster_id: str
    topic: str
    topic_id: str
    requested_by: str
    offsets: Mapping[int, int]
    leader_epochs: Mapping[int, int] = field(default_factory=dict)
    reason: str | None = None

    @classmethod
    def at(
        cls,
        watermarks: TopicWatermarks,
        offsets: Mapping[int, int],
        requested_by: str,
        reason: str | None = None,
    ) -> Self:
        """Beginning at these offsets of the topic as it is."""
        epochs = {p: watermarks.partitions[p].leader_epoch for p in offsets}
        return cls(
            cluster_id=watermarks.cluster_id,
            topic=watermarks.topic,
            topic_id=watermarks.topic_id,
            requested_by=requested_by,
            offsets=offsets,
            leader_epochs={p: epoch for p, epoch in epochs.items() if epoch is not None},
            reason=reason,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRequested:
    """Somebody asked for offsets, which were decided then. Their plans follow, one by one.

    Attributes:
        cluster_id: Kafka cluster.
        topic: Topic name.
        topic_id: Incarnation of the topic that the offsets belong to.
        requested_by: Who asked; asking again with the same value returns this request.
        readable_only: Whether offsets that Kafka deletes meanwhile are left out, or refused.
        replaces: Whether what has landed of them is landed again, in place of the rows there.
        reason: Why it is replaced, in their words.
        chunks: Offsets of each plan, by partition.
    """

    cluster_id: str
    topic: str
    topic_id: str
    requested_by: str
    readable_only: bool
    chunks: tuple[Mapping[int, SpanSet], ...]
    replaces: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan was made."""

    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """A plan that replaces rows was made: what a landed plan still holds once it has landed.

    It says nothing while the newer plan is open, or once that was given up.

    Attributes:
        sequence: The plan whose rows are replaced, at least in part.
        by: The plan that replaces them.
        topic_id: Incarnation of the topic that the offsets of both belong to.
        counts: What is left of the older plan's ranges, sorted by partition and start.
    """

    sequence: int
    by: int
    topic_id: str
    counts: tuple[RangeCount, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A run took over a plan that another run left open."""

    sequence: int
    requested_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """A plan was given up: the data table's fence keeps it from landing later.

    Attributes:
        sequence: The plan.
        requested_by: Who gave it up.
        reason: Why, in their words.
    """

    sequence: int
    requested_by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """A plan's commit was found in the data table.

    Attributes:
        plan: The plan.
        landing: What the data table's log says of it, every offset accounted for.
        committed: Committed offset of each of the plan's partitions, this landing included; none
            if the plan is of an older incarnation of the topic.
    """

    plan: Plan
    landing: Landing
    committed: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoStarted:
    """Somebody takes a landed plan out of the data table; `Undone` follows.

    Attributes:
        sequence: The plan.
        requested_by: Who undoes it.
        reason: Why, in their words.
        committed: Committed offset of each of the plan's partitions, this landing left out.
    """

    sequence: int
    requested_by: str
    reason: str
    committed: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """A landed plan is not in the data table any more.

    Attributes:
        sequence: The plan.
        requested_by: Who had the ledger follow the table, or undid the plan.
        reason: Why, in their words.
        table_version: Of a plan that was undone, a version of the data table without its rows;
            None if a RESTORE took them out.
    """

    sequence: int
    requested_by: str
    reason: str
    table_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossAccepted:
    """Somebody accepted that offsets were deleted from Kafka before they were read.

    Attributes:
        topic: Topic name.
        topic_id: Incarnation of the topic that they belonged to.
        lost: The offsets, by partition.
        committed: Committed offset of each of these partitions, the loss included.
        requested_by: Who accepted it.
        reason: Why, in their words.
    """

    topic: str
    topic_id: str
    lost: Mapping[int, SpanSet]
    committed: Mapping[int, int]
    requested_by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewIncarnation:
    """Somebody accepted that the topic is another one now, and that it is read from its start.

    Attributes:
        cluster_id: Kafka cluster.
        topic: Topic name.
        topic_id: The new incarnation.
        offsets: First offset to read, by partition.
        requested_by: Who accepted it.
        reason: Why, in their words.
    """

    cluster_id: str
    topic: str
    topic_id: str
    offsets: Mapping[int, int]
    requested_by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEpoch:
    """From here on plans carry another transaction id; no older one can land any more.

    Attributes:
        epoch: The epoch of plans from here on.
        table_version: Version of the data table that fenced the older epochs off.
        sequence: The highest plan number that the data table has seen; new ones are higher.
        committed: Committed offset of every partition with which the epoch begins.
        requested_by: Who opened it.
        reason: Why, in their words.
        missing_events: Number of lost events that the epoch makes up for. An event that is lost
            after the repair has read the ledger is not among them, and stays missing.
    """

    epoch: int
    table_version: int
    sequence: int
    committed: Mapping[int, int]
    requested_by: str
    reason: str
    missing_events: int = 0


ControlEvent: TypeAlias = (
    Started
    | BackfillRequested
    | Planned
    | Superseded
    | Adopted
    | Abandoned
    | Landed
    | UndoStarted
    | Undone
    | LossAccepted
    | NewIncarnation
    | NewEpoch
)
