"""Events of a pipeline in the control table: one class for each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Self, TypeAlias

from tidemark.core.accounting import Landing, RangeCount
from tidemark.core.offsets import SpanSet
from tidemark.core.origins import PlanOrigin
from tidemark.core.plan import Plan
from tidemark.core.publication import PublicationStatus
from tidemark.core.watermarks import TopicWatermarks


class EventKind(StrEnum):
    """Value of the `event` column."""

    STARTED = "started"
    """The pipeline began in a partition, at `committed_offset`."""
    BACKFILL_REQUESTED = "backfill_requested"
    """A backfill of `[start_offset, end_offset)` was requested; a plan of each `chunk` follows."""
    PLANNED = "planned"
    """`[start_offset, end_offset)` belongs to plan `plan_sequence`."""
    SUPERSEDED = "superseded"
    """Plan `plan_sequence` keeps only `[start_offset, end_offset)` when plan `superseded_by` of
    the same commit lands; that plan replaces the other rows."""
    ADOPTED = "adopted"
    """Another run took over an open plan."""
    ABANDONED = "abandoned"
    """The plan was abandoned before it landed; its offsets are unread again."""
    LANDED = "landed"
    """The range is in the data table; `committed_offset` includes it."""
    PUBLICATION_DECIDED = "publication_decided"
    """A check or an operator decided whether the published view shows the rows of plan
    `plan_sequence` at `[start_offset, end_offset)`."""
    UNDO_STARTED = "undo_started"
    """The removal of a landed plan's rows has started; `committed_offset` excludes them."""
    UNDONE = "undone"
    """A landed plan's rows were removed from the data table; its offsets are unread again."""
    LOSS_ACCEPTED = "loss_accepted"
    """An operator accepted that Kafka deleted `[start_offset, end_offset)` unread."""
    RECREATION_ACCEPTED = "recreation_accepted"
    """An operator accepted a recreated topic, which is read from `committed_offset`."""
    NEW_EPOCH = "new_epoch"
    """A repair fenced all older transactions; later plans use the transaction id of `epoch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The pipeline began in partitions without a committed offset.

    Attributes:
        cluster_id: Kafka's id of the cluster.
        topic: Topic name.
        topic_id: Kafka's id of the incarnation of the topic.
        requested_by: The run or the operator that found the partitions.
        offsets: First offset to read, by partition.
        leader_epochs: Kafka's leader epoch by partition; unknown ones are missing.
        reason: Origin of the offsets if an operator gave them; None for the spec's start policy.
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
        """Build the event for start offsets in the current topic."""
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
    """An operator requested a backfill. The event contains its offsets; its plans follow in order.

    Attributes:
        cluster_id: Kafka's id of the cluster.
        topic: Topic name.
        topic_id: Kafka's id of the incarnation of the topic that the offsets belong to.
        requested_by: Requester. It is the idempotency key: a second request with the same value
            returns this event.
        readable_only: Whether the plans leave out offsets that Kafka deletes later. Otherwise
            such offsets are an error.
        replaces: Whether the plans land already landed offsets again and replace their rows.
        reason: The operator's reason for the replacement.
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
    """A plan was recorded."""

    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """A plan was recorded that replaces rows of a landed plan.

    The event takes effect when the newer plan lands. It has no effect while that plan is open, or
    after it was abandoned.

    Attributes:
        sequence: The older plan, some or all rows of which are replaced.
        by: The newer plan, which replaces them.
        topic_id: Kafka's id of the incarnation of the topic of both plans.
        counts: Ranges that the older plan keeps, sorted by partition and start.
    """

    sequence: int
    by: int
    topic_id: str
    counts: tuple[RangeCount, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A run took over an open plan of another run."""

    sequence: int
    origin: PlanOrigin


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """A plan was abandoned. A fence in the data table prevents a late landing.

    Attributes:
        sequence: Plan number.
        requested_by: The operator's command, as `cli:<user>:<id>`.
        reason: The reason of the operator.
    """

    sequence: int
    requested_by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """The commit of a plan is in the data table.

    Attributes:
        plan: The plan.
        landing: The plan's commit, with every offset accounted for.
        committed: Committed offset of each of the plan's partitions, including this landing.
            Empty if the plan belongs to an earlier incarnation of the topic.
    """

    plan: Plan
    landing: Landing
    committed: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationDecided:
    """A check or an operator decided whether the published view shows the rows of a landed plan.

    The decision applies to the newest plan with this number that was recorded before it. It applies
    to its own offsets alone, not to offsets of the plan that a RESTORE brings back later.

    Attributes:
        sequence: Plan number.
        status: The decided status.
        topic_id: Kafka's id of the incarnation of the plan's topic.
        spans: Offsets that the decision applies to, by partition.
        decided_by: The operator's command, as `cli:<user>:<id>`; None for a check.
        reason: Operator's reason, or the expectations of the failed critical rules.
        number: Event number; None before the event is recorded.
        decided_at: Time of the record (UTC); None before it.
    """

    sequence: int
    status: PublicationStatus
    topic_id: str
    spans: Mapping[int, SpanSet]
    decided_by: str | None = None
    reason: str | None = None
    number: int | None = field(default=None, compare=False)
    decided_at: datetime | None = field(default=None, compare=False)

    def after(self, earlier: PublicationDecided | None) -> PublicationDecided:
        """Return the effective decision after this one.

        The newest decision of an operator is effective; without one, the newest check. The
        published view implements the same rule in SQL (delta/published_view.py).
        """
        is_overridden = self.decided_by is None and earlier and earlier.decided_by is not None
        return earlier if earlier and is_overridden else self

    def as_record(self) -> dict[str, Any]:
        """Return status, time, author and reason as plain values, for `--json`."""
        return {
            "status": self.status.value,
            "decided_at": self.decided_at.isoformat() if self.decided_at else None,
            "decided_by": self.decided_by,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoStarted:
    """The removal of a landed plan's rows from the data table has started; `Undone` follows.

    Attributes:
        sequence: Plan number.
        requested_by: The operator's command, as `cli:<user>:<id>`.
        reason: The reason of the operator.
        committed: Committed offset of each of the plan's partitions, without this landing.
    """

    sequence: int
    requested_by: str
    reason: str
    committed: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """The rows of a landed plan were removed from the data table, by `undo` or by a RESTORE.

    Attributes:
        sequence: Plan number.
        requested_by: The operator's `undo` or `rewind`, as `cli:<user>:<id>`.
        reason: The reason of the operator.
        table_version: After `undo`, a version of the data table without the rows; None after a
            RESTORE.
    """

    sequence: int
    requested_by: str
    reason: str
    table_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossAccepted:
    """An operator accepted that Kafka deleted offsets before the pipeline read them.

    Attributes:
        topic: Topic name.
        topic_id: Kafka's id of the incarnation of the topic.
        lost: The lost offsets, by partition.
        committed: Committed offset of each of these partitions, including the loss.
        requested_by: The operator's command, as `cli:<user>:<id>`.
        reason: The operator's reason.
    """

    topic: str
    topic_id: str
    lost: Mapping[int, SpanSet]
    committed: Mapping[int, int]
    requested_by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecreationAccepted:
    """An operator accepted a recreated topic, which the pipeline reads from its first offset.

    Attributes:
        cluster_id: Kafka's id of the cluster.
        topic: Topic name.
        topic_id: Kafka's id of the recreated topic.
        offsets: First offset to read, by partition.
        requested_by: The operator's command, as `cli:<user>:<id>`.
        reason: The operator's reason.
    """

    cluster_id: str
    topic: str
    topic_id: str
    offsets: Mapping[int, int]
    requested_by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEpoch:
    """A repair started a new epoch: later plans use another transaction id, older ones cannot land.

    Attributes:
        epoch: Epoch of later plans.
        table_version: Version of the data table that fenced the older epochs.
        sequence: Highest plan number in the data table's log; later plans have higher numbers.
        committed: Committed offset of each partition at the start of the epoch.
        requested_by: The operator's command, as `cli:<user>:<id>`.
        reason: The operator's reason.
        missing_events: Number of lost events that the repair replaced. An event that is lost
            after the repair read the ledger is not counted, and stays missing.
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
    | PublicationDecided
    | UndoStarted
    | Undone
    | LossAccepted
    | RecreationAccepted
    | NewEpoch
)
