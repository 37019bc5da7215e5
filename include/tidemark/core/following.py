"""The bronze offsets that belong in the tables derived from a bronze table.

Two sets follow from the events of a pipeline, by plan:

- *required* offsets belong in the typed table or the quarantine: the published ones. With
  `publish: always`, all landed offsets are required.
- *allowed* offsets may stay in the typed table: the required ones, and landed offsets of plans
  without any decision. After the loss of the control table, no plan has a decision.

A bookmark names an earlier event. The changes since that event follow from the later events and
all events of the plans that these affect (`read_since`). The offsets of other plans are unchanged.

The protocol is in docs/adr/0028-derived-tables-follow-the-ledger.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeAlias

from tidemark.core.bookmark import Bookmark, OffsetList
from tidemark.core.event_rows import Row, check_no_duplicates, decode, event_digest
from tidemark.core.events import EventKind
from tidemark.core.ledger import Ledger, PlanRecord
from tidemark.core.offsets import (
    Span,
    SpanSet,
    difference,
    intersection_by_partition,
    spans_by_partition,
    union,
)
from tidemark.core.plan_history import superseding_plans
from tidemark.core.publication import PublishRule

VISIBLE_EVENTS = (
    EventKind.LANDED,
    EventKind.PUBLICATION_DECIDED,
    EventKind.UNDO_STARTED,
    EventKind.UNDONE,
)
"""Kinds of events that can change required or allowed offsets.

A plan that replaces rows does so when it lands. A repair records a landing or an undo of each plan
whose offsets it changes.
"""


class Batch(NamedTuple):
    """The rows of a plan. A repair may record a plan of another topic id under a number in use."""

    sequence: int
    topic_id: str


BatchOffsets: TypeAlias = Mapping[Batch, Mapping[int, SpanSet]]
"""Offsets by batch and partition, without empty batches and partitions."""


class Totals(NamedTuple):
    """Totals of the rows of one batch in one partition.

    Attributes:
        rows: Number of rows.
        first, last: Lowest and highest offset.
        sum, squares: Sums of the offsets and of their squares, each offset as a remainder.
    """

    rows: int
    first: int
    last: int
    sum: int
    squares: int


BatchTotals: TypeAlias = Mapping[Batch, Mapping[int, Totals]]
"""Totals by batch and partition."""

_NO_PLANS = SpanSet()


def required(plans: Iterable[PlanRecord], publish: PublishRule) -> BatchOffsets:
    """Return the offsets that belong in the typed table or the quarantine."""
    if publish is PublishRule.ALWAYS:
        return _by_batch(plans, _landed)
    return _by_batch(plans, _published)


def allowed(plans: Iterable[PlanRecord], publish: PublishRule) -> BatchOffsets:
    """Return the offsets whose rows may stay in the typed table."""
    if publish is PublishRule.ALWAYS:
        return _by_batch(plans, _landed)
    return _by_batch(plans, lambda each: _published(each) if each.decision else _landed(each))


def claimed(plans: Iterable[PlanRecord], bookmark: Bookmark) -> BatchOffsets:
    """Return the offsets that a bookmark claims.

    Args:
        plans: Plans at the event of the bookmark.
        bookmark: The bookmark.
    """
    decoded = [
        plan
        for plan in plans
        # fence: pending-plans-are-not-claimed
        if plan.plan.sequence not in bookmark.pending
    ]
    return required(decoded, bookmark.publish)


def _by_batch(
    plans: Iterable[PlanRecord], offsets: Callable[[PlanRecord], Mapping[int, SpanSet]]
) -> BatchOffsets:
    found = {Batch(each.plan.sequence, each.plan.topic_id): offsets(each) for each in plans}
    return {batch: spans for batch, spans in found.items() if spans}


def _landed(record: PlanRecord) -> Mapping[int, SpanSet]:
    return record.held_now.spans() if record.held_now else {}


def _published(record: PlanRecord) -> Mapping[int, SpanSet]:
    decision = record.decision
    if decision is None or not decision.status.is_visible:
        return {}
    return intersection_by_partition(_landed(record), decision.spans)


def by_topic_id(*parts: BatchOffsets) -> Mapping[str, Mapping[int, SpanSet]]:
    """Return the offsets of all batches, by topic id and partition."""
    return union({batch.topic_id: spans} for part in parts for batch, spans in part.items())


def listed_part(offsets: BatchOffsets, listed: OffsetList | None) -> BatchOffsets:
    """Return those of the offsets that are in a list; all of the offsets without a list."""
    if listed is None:
        return offsets
    part = {
        batch: spans
        if batch.sequence in listed.plans
        else intersection_by_partition(spans, listed.spans.get(batch.topic_id, {}))
        for batch, spans in offsets.items()
    }
    return {batch: spans for batch, spans in part.items() if spans}


def places_of(offsets: BatchOffsets) -> Iterator[tuple[Batch, int, int]]:
    """Iterate over batch, partition and offset of each of the offsets."""
    for batch, partition, span in _ranges_of(offsets):
        for offset in range(span.start, span.end):
            yield batch, partition, offset


def first_ranges(offsets: BatchOffsets, most: int) -> BatchOffsets:
    """Return the offsets of the first ranges, at most `most` of them."""
    found: dict[Batch, list[tuple[int, Span]]] = {}
    for batch, partition, span in islice(_ranges_of(offsets), most):
        found.setdefault(batch, []).append((partition, span))
    return {batch: spans_by_partition(placed) for batch, placed in found.items()}


def _ranges_of(offsets: BatchOffsets) -> Iterator[tuple[Batch, int, Span]]:
    for batch, spans in sorted(offsets.items(), key=lambda each: each[0]):
        for partition, some in sorted(spans.items()):
            for span in some:
                yield batch, partition, span


def compared_totals(
    plans: Iterable[PlanRecord], typed: BatchTotals, bronze: BatchTotals
) -> tuple[BatchOffsets, BatchOffsets]:
    """Compare the rows of a typed table with those of its bronze table by their totals.

    Args:
        plans: The plans of the bronze table.
        typed: Totals of the typed table.
        bronze: Totals of the bronze table.

    Returns:
        The landed offsets at which both tables have the same rows. Then ranges that contain all
        other typed rows: their offsets are unknown.
    """
    landed = _by_batch(plans, _landed)
    same: dict[Batch, dict[int, SpanSet]] = {}
    unknown: dict[Batch, dict[int, SpanSet]] = {}
    for batch, own in typed.items():
        for partition, totals in own.items():
            spans = landed.get(batch, {}).get(partition)
            if (
                spans
                # fence: same-totals-are-the-same-rows
                and totals == bronze.get(batch, {}).get(partition)
            ):
                same.setdefault(batch, {})[partition] = spans
            else:
                span = Span(totals.first, totals.last + 1)
                unknown.setdefault(batch, {})[partition] = SpanSet.of([span])
    return same, unknown


# -- the plans since a bookmark ------------------------------------------------------------------


class EventRows(Protocol):
    """Reads rows of the control table."""

    def rows_since(self, pipeline: str, event: int) -> Sequence[Row]:
        """Return the rows of an event number and of all later ones."""

    def rows_of_plans(
        self, pipeline: str, plans: SpanSet, *, with_replaced: bool = False
    ) -> Sequence[Row]:
        """Return all rows of some plans.

        Args:
            pipeline: Pipeline name.
            plans: Plan numbers.
            with_replaced: Also return the `superseded` rows that name one of these plans in
                `superseded_by`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PlansSince:
    """Plans of a pipeline at an earlier and at the newest event.

    Attributes:
        event: Number of the newest event; 0 without events.
        digest: Digest of that event.
        is_visible: Whether an event since the earlier one can change required or allowed offsets.
        before: The plans at the earlier event, by number.
        now: The plans at the newest event, by number.
    """

    event: int
    digest: str
    is_visible: bool
    before: Mapping[int, PlanRecord]
    now: Mapping[int, PlanRecord]

    def missing(self, bookmark: Bookmark | None, publish: PublishRule) -> BatchOffsets:
        """Return the offsets that are required now and that a bookmark does not claim."""
        known = claimed(self.before.values(), bookmark) if bookmark else {}
        return difference(required(self.now.values(), publish), known)

    def surplus(self, bookmark: Bookmark, publish: PublishRule) -> BatchOffsets:
        """Return the offsets that were allowed at a bookmark and are no longer allowed."""
        were_allowed = allowed(self.before.values(), bookmark.publish)
        return difference(were_allowed, allowed(self.now.values(), publish))

    def outdated(self, bookmark: Bookmark, publish: PublishRule) -> BatchOffsets:
        """Return the offsets at which the typed table of a bookmark may have outdated rows."""
        plans = [plan for number, plan in self.now.items() if number in bookmark.outdated]
        planned = _by_batch(plans, lambda each: each.plan.spans())
        return difference(planned, allowed(self.now.values(), publish))


def read_all(reader: EventRows, pipeline: str) -> PlansSince:
    """Return all plans, for a typed table without a known bookmark."""
    return _plans_since(pipeline, reader.rows_since(pipeline, 0), earlier=0)


def read_since(
    reader: EventRows,
    pipeline: str,
    bookmark: Bookmark,
    publish: PublishRule,
    more: SpanSet = _NO_PLANS,
) -> PlansSince | None:
    """Return the plans whose required or allowed offsets may have changed since a bookmark.

    Args:
        reader: Reads the control table.
        pipeline: Pipeline name.
        bookmark: The bookmark.
        publish: The present rule. If the bookmark has another rule, every plan may have changed, so
            all plans are read.
        more: Numbers of further plans to return, for example of pending plans. All pending plans
            are returned if the bookmark has plans with outdated rows: these stay while a pending
            plan has their offsets.

    Returns:
        None if the bookmark is unknown: the ledger lacks its event, or has another event with the
        same number.

    Raises:
        ControlTableDamaged: The control table has a row more than once.
    """
    is_other_rule = bookmark.publish is not publish
    recent = reader.rows_since(pipeline, 0 if is_other_rule else bookmark.event)
    # fence: followed-event-is-known-by-its-digest
    if _digest_of(recent, bookmark.event) != bookmark.digest:
        return None
    if is_other_rule:
        return _plans_since(pipeline, recent, earlier=bookmark.event)
    changed = SpanSet.of_numbers(
        row["plan_sequence"]
        for row in recent
        if row["event_number"] > bookmark.event
        and row["event"] in VISIBLE_EVENTS
        and row["plan_sequence"] is not None
    )
    if bookmark.outdated:  # fence: outdated-rows-and-their-pending-plans-are-read
        more = more.union(bookmark.outdated).union(bookmark.pending)
    histories = _histories(reader, pipeline, changed.union(more))
    return _plans_since(pipeline, recent, earlier=bookmark.event, histories=histories)


class _Histories(NamedTuple):
    """All events of some plans.

    Attributes:
        rows: Control rows of these plans, and of the plans that replace their rows.
        plans: The numbers of these plans.
    """

    rows: Collection[Row]
    plans: SpanSet


def _histories(reader: EventRows, pipeline: str, plans: SpanSet) -> _Histories:
    """Read the events of some plans, and of the plans whose rows they replace.

    The offsets of a plan also depend on whether the plans that replace its rows have landed.
    """
    found: dict[frozenset[tuple[str, Any]], Row] = {}

    def read(wanted: SpanSet, *, with_replaced: bool = False) -> None:
        rows = reader.rows_of_plans(pipeline, wanted, with_replaced=with_replaced) if wanted else ()
        check_no_duplicates(pipeline, rows)
        found.update((frozenset(row.items()), row) for row in rows)

    read(plans, with_replaced=True)
    replaced = SpanSet.of_numbers(row["plan_sequence"] for row in found.values()).difference(plans)
    read(replaced)
    plans = plans.union(replaced)
    read(SpanSet.of_numbers(superseding_plans(found.values())).difference(plans))
    return _Histories(found.values(), plans)


def _digest_of(rows: Iterable[Row], event: int) -> str:
    return event_digest(row for row in rows if row["event_number"] == event)


def _plans_since(
    pipeline: str, recent: Sequence[Row], *, earlier: int, histories: _Histories | None = None
) -> PlansSince:
    """Return plans at two events.

    Args:
        pipeline: Pipeline name.
        recent: All rows since the earlier event.
        earlier: The earlier event.
        histories: The events of the plans; None if `recent` has all events.
    """
    newest = max((row["event_number"] for row in recent), default=0)
    history = decode(pipeline, histories.rows if histories else recent)

    def plans_at(event: int) -> Mapping[int, PlanRecord]:
        # Another process may have recorded later events after `recent` was read.
        plans = Ledger.fold(pipeline, [each for each in history if each[0] <= event]).plans
        return {
            number: record
            for number, record in plans.items()
            if histories is None or number in histories.plans
        }

    return PlansSince(
        event=newest,
        digest=_digest_of(recent, newest),
        is_visible=any(
            row["event"] in VISIBLE_EVENTS for row in recent if row["event_number"] > earlier
        ),
        before=plans_at(earlier),
        now=plans_at(newest),
    )
