"""The remaining ranges of landed plans after another plan replaces some of their rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tidemark.bronze.ingest.errors import RowsChanged
from tidemark.bronze.ingest.protocols import DataLog
from tidemark.core.accounting import RangeCount
from tidemark.core.errors import OverfullRange
from tidemark.core.events import Superseded
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import Plan


def superseded_events(plan: Plan, ledger: Ledger, data_log: DataLog) -> list[Superseded]:
    """Return one event for each landed plan that shares offsets with a new plan.

    Args:
        plan: The new plan.
        ledger: The full ledger.
        data_log: Counts the rows of ranges that are replaced in part.

    Raises:
        RowsChanged: The row count of a range to replace in part has changed since it landed, so
            its remaining rows cannot be determined.
        TableAltered: Another program has forbidden the removal of rows.
    """
    spans = plan.spans()
    data_log.check_removals()  # fence: replacement-of-removable-rows
    return [
        Superseded(
            sequence=older.sequence,
            by=plan.sequence,
            topic_id=plan.topic_id,
            counts=_remaining_counts(older, counts, spans, data_log),
        )
        for older, counts in _affected_plans(ledger, plan.topic_id, spans)
    ]


def replaced_offsets(
    spans: Mapping[int, SpanSet], topic_id: str, ledger: Ledger, data_log: DataLog
) -> Mapping[int, int]:
    """Return the number of offsets that each landed plan would lose, by plan number.

    Args:
        spans: Offsets of one new plan, by partition.
        topic_id: Incarnation of the topic.
        ledger: The full ledger.
        data_log: Counts the rows of ranges that are replaced in part.

    Raises:
        RowsChanged, TableAltered: See `superseded_events`.
    """
    data_log.check_removals()
    found = {}
    for older, counts in _affected_plans(ledger, topic_id, spans):
        _check_row_counts(older, _partly_replaced(counts, spans), data_log)
        found[older.sequence] = sum(_overlap(count, spans) for count in counts)
    return found


def _affected_plans(
    ledger: Ledger, topic_id: str, spans: Mapping[int, SpanSet]
) -> list[tuple[Plan, tuple[RangeCount, ...]]]:
    """Return the plans that landed some of these offsets, with their counts."""
    return [
        (record.plan, record.held_now.counts)
        for record in ledger.plans.values()
        if record.held_now
        and record.plan.topic_id == topic_id
        and any(_overlap(count, spans) for count in record.held_now.counts)
    ]


def _overlap(count: RangeCount, spans: Mapping[int, SpanSet]) -> int:
    return spans.get(count.partition, SpanSet()).overlap_size(Span(count.start, count.end))


def _partly_replaced(
    counts: Iterable[RangeCount], spans: Mapping[int, SpanSet]
) -> list[RangeCount]:
    """Return the ranges that are replaced in part."""
    return [count for count in counts if 0 < _overlap(count, spans) < count.end - count.start]


def _remaining_counts(
    older: Plan,
    counts: tuple[RangeCount, ...],
    spans: Mapping[int, SpanSet],
    data_log: DataLog,
) -> tuple[RangeCount, ...]:
    partial = _partly_replaced(counts, spans)
    _check_row_counts(older, partial, data_log)  # fence: changed-range-is-not-guessed
    kept = [count for count in counts if not _overlap(count, spans)]
    kept += _remaining_pieces(older, partial, spans, data_log)
    return tuple(sorted(kept, key=lambda count: (count.partition, count.start)))


def _check_row_counts(older: Plan, partial: list[RangeCount], data_log: DataLog) -> None:
    """Check that ranges have the row count that they landed with."""
    for recorded in partial:
        span = Span(recorded.start, recorded.end)
        try:
            rows = data_log.current_landing(older.with_ranges([(recorded.partition, span)])).records
        except OverfullRange as overfull:
            rows = overfull.records
        if recorded.records != rows:
            raise RowsChanged(
                pipeline=older.pipeline,
                sequence=older.sequence,
                partition=recorded.partition,
                start=recorded.start,
                end=recorded.end,
                recorded=recorded.records,
                rows=rows,
            )


def _remaining_pieces(
    older: Plan, partial: list[RangeCount], spans: Mapping[int, SpanSet], data_log: DataLog
) -> list[RangeCount]:
    """Return the remaining pieces of ranges, with their row counts."""
    whole = {}
    pieces = []
    for count in partial:
        for span in spans[count.partition].missing_from(Span(count.start, count.end)):
            pieces.append((count.partition, span))
            whole[count.partition, span.start] = count
    if not pieces:
        return []
    # The position of unproven gaps is unknown: count up to all gaps of each piece as unproven.
    return [
        replace(
            each,
            unproven_gaps=min(each.gaps, of.unproven_gaps),
            leader_epoch=of.leader_epoch,
        )
        for each in data_log.current_landing(older.with_ranges(pieces)).counts
        for of in (whole[each.partition, each.start],)
    ]
