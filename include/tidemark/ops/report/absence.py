"""Why a table has no row at an offset: rules over the ledger and Kafka's answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from tidemark.core.accounting import RangeCount
from tidemark.core.events import LossAccepted, Undone
from tidemark.core.ledger import Ledger, PlanRecord
from tidemark.core.offsets import Span, SpanSet
from tidemark.ops.report.coverage import OffsetState


class KafkaState(StrEnum):
    """Kafka's answer at one offset."""

    RECORD = "record"
    """Kafka has a visible record."""
    NO_RECORD = "no visible record"
    """The log contains the offset, and no reader can see a record at it."""
    DELETED = "deleted"
    """The offset is below the low watermark."""
    AFTER_END = "after the end of the readable log"
    """Kafka has not written the offset yet, or an open transaction hides it."""
    NOT_READ = "not read"
    """The limits of time and size ended the read before the offset, or the read failed."""
    OTHER_TOPIC = "another incarnation of the topic"
    """The topic was recreated, so Kafka's record at the offset is another one."""
    UNKNOWN = "unknown"
    """Kafka did not answer, or the connection leads to another cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsenceReason:
    """Why a table has no row at an offset.

    Attributes:
        state: The state of the offset in the coverage; Kafka's answer for an offset that the
            coverage does not contain.
        detail: The reason in a sentence, with its plan or its operator.
        plan: Number of the plan that contains the offset; None without one.
    """

    state: OffsetState | KafkaState
    detail: str
    plan: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRange:
    """A range that a plan holds.

    Attributes:
        plan: Number of the plan.
        count: The range with the counts of its landing.
        without_row: State of its offsets without a row: a gap, missing, or unclear.
        hid_aborted: Whether the plan's reader could not see aborted records, although Kafka's
            answers contain them. Then a record in Kafka proves nothing about the plan.
    """

    plan: int
    count: RangeCount
    without_row: OffsetState
    hid_aborted: bool = False


_AFTER_UNDO = {
    KafkaState.DELETED: "Kafka has deleted the offset.",
    KafkaState.OTHER_TOPIC: "No run can read the offset again, because the topic was recreated.",
    KafkaState.UNKNOWN: "The offset is unread again, unless Kafka has deleted it.",
}
"""Texts about the offsets of an undone plan, if Kafka may not have them."""
_GAP = (
    "No reader can see a record: an aborted transaction, a transaction marker, or a record that "
    "compaction removed. Kafka does not report which."
)
_ABORTED = (
    "The plan read committed records only, and the table has all of its rows. Kafka's record here "
    "is visible because the spec's isolation_level is read_uncommitted now."
)
_LATER_RECORD = (
    "The plan found no visible record, and the table has all of its rows. Kafka has a record now, "
    "which a truncation of the log can cause. `tidemark verify` compares all records."
)
_MISSING = (
    "The offset has landed with a record, and the table has no row. `tidemark verify` compares "
    "all records."
)
_UNCLEAR = (
    "The offset has landed without a record, or the table lost its row. The number of rows in the "
    "range does not show which."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsenceRules:
    """Explains the offsets without a row of one partition of one incarnation of a topic.

    Attributes:
        ledger: State of the pipeline; a summary suffices.
        topic_id: The incarnation.
        partition: Partition number.
        landed: The landed offsets.
        plans: Plans with offsets of the partition, and these offsets, oldest first.
        losses: Accepted losses of the pipeline with their times, oldest first.
        held: Ranges that plans hold around the offsets.
    """

    ledger: Ledger
    topic_id: str
    partition: int
    landed: SpanSet
    plans: Sequence[tuple[PlanRecord, SpanSet]]
    losses: Sequence[tuple[datetime, LossAccepted]] = ()
    held: Sequence[HeldRange] = ()

    def reason(self, offset: int, kafka: KafkaState) -> AbsenceReason:
        """Return the reason for an offset without a row."""
        if _contains(self.landed, offset):
            return self._landed_without_row(offset, kafka)
        return (
            self._accepted_loss(offset) or self._plan(offset) or self._without_plan(offset, kafka)
        )

    def _landed_without_row(self, offset: int, kafka: KafkaState) -> AbsenceReason:
        # Only a damaged control table has landed offsets that no plan holds.
        held = next((h for h in self.held if h.count.start <= offset < h.count.end), None)
        state = held.without_row if held else OffsetState.UNCLEAR
        has_record = kafka is KafkaState.RECORD
        hid_aborted = bool(held and held.hid_aborted)
        if state is OffsetState.GAP:
            detail = _GAP
            if has_record:
                detail = _ABORTED if hid_aborted else _LATER_RECORD
        elif state is OffsetState.MISSING or (has_record and not hid_aborted):
            state, detail = OffsetState.MISSING, _MISSING
        else:
            state, detail = OffsetState.UNCLEAR, _UNCLEAR
        return AbsenceReason(state=state, plan=held.plan if held else None, detail=detail)

    def _accepted_loss(self, offset: int) -> AbsenceReason | None:
        for at, loss in self.losses:
            is_here = loss.topic_id == self.topic_id
            if is_here and _contains(loss.lost.get(self.partition), offset):
                detail = (
                    f"Kafka deleted the offset before a plan read it. {loss.requested_by} accepted "
                    f"the loss at {at:%Y-%m-%d %H:%M} UTC: {loss.reason}"
                )
                return AbsenceReason(state=OffsetState.LOST, detail=detail)
        is_current = self.ledger.topic_id == self.topic_id
        if is_current and _contains(self.ledger.accepted_losses.get(self.partition), offset):
            detail = "An operator accepted the loss. The event cannot be read."
            return AbsenceReason(state=OffsetState.LOST, detail=detail)
        return None

    def _plan(self, offset: int) -> AbsenceReason | None:
        for record in self._plans_with(offset):
            number = record.plan.sequence
            if record.is_open:
                return AbsenceReason(
                    state=OffsetState.PLANNED,
                    plan=number,
                    detail=f"Plan {number} contains the offset and has not landed.",
                )
            if record.undoing:
                return AbsenceReason(
                    state=OffsetState.PLANNED,
                    plan=number,
                    detail=f"An undo is removing the rows of plan {number}.",
                )
        return None

    def _without_plan(self, offset: int, kafka: KafkaState) -> AbsenceReason:
        found = self._other_topic() or self._uncovered(offset, kafka)
        for record in reversed(self._plans_with(offset)):
            if isinstance(by := record.cancelled_by, Undone):
                number = record.plan.sequence
                now = _AFTER_UNDO.get(kafka, "The offset is unread again.")
                detail = f"{now} {by.requested_by} undid plan {number}: {by.reason}"
                return replace(found, plan=number, detail=detail)
        return found

    def _plans_with(self, offset: int) -> list[PlanRecord]:
        return [record for record, planned in self.plans if _contains(planned, offset)]

    def _other_topic(self) -> AbsenceReason | None:
        known = self.ledger.topic_id
        if known in (None, self.topic_id):
            return None
        return AbsenceReason(
            state=KafkaState.OTHER_TOPIC,
            detail=(
                f"The offset belongs to topic id {self.topic_id}. The pipeline reads topic "
                f"{self.ledger.topic}, id {known}."
            ),
        )

    def _uncovered(self, offset: int, kafka: KafkaState) -> AbsenceReason:
        """Return the reason for an offset that no plan contains."""
        # A partition that was added to the topic begins at 0 (S10).
        start = self.ledger.starts.get(self.partition, 0 if self.ledger.starts else None)
        deleted = kafka is KafkaState.DELETED
        state: OffsetState | KafkaState = kafka
        if kafka is KafkaState.AFTER_END:
            detail = "Kafka has no readable record here yet."
        elif start is not None and offset < start:
            state = OffsetState.EXPIRED if deleted else OffsetState.BEFORE_START
            detail = f"The pipeline starts at {start}, and no backfill has landed the offset."
        elif kafka is KafkaState.OTHER_TOPIC:
            detail = "The topic was recreated before a plan landed the offset. No run can read it."
        elif kafka is KafkaState.UNKNOWN:
            detail = "No plan contains the offset. Kafka did not answer whether it has a record."
        elif start is None:
            state = OffsetState.EXPIRED if deleted else OffsetState.UNREAD
            detail = "The pipeline has no plan yet."
        elif deleted:
            state = OffsetState.LOST
            detail = "Kafka deleted the offset before a plan read it. The loss is not accepted."
        else:
            state, detail = OffsetState.UNREAD, "No plan contains the offset yet."
        return AbsenceReason(state=state, detail=detail)


def _contains(spans: SpanSet | None, offset: int) -> bool:
    return bool(spans and spans.within(Span(offset, offset + 1)))
