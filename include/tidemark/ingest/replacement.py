"""What a plan that replaces rows leaves of the plans that landed them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tidemark.core.accounting import RangeCount
from tidemark.core.errors import OverfullRange
from tidemark.core.events import Superseded
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import Plan
from tidemark.ingest.errors import RowsChanged
from tidemark.ingest.protocols import DataLog


def superseded_events(plan: Plan, ledger: Ledger, data_log: DataLog) -> list[Superseded]:
    """One event for each landed plan with offsets of a new one.

    Args:
        plan: The new plan.
        ledger: Read whole.
        data_log: Counts rows where only a part of a range is replaced.

    Raises:
        RowsChanged: Such a range has not the rows that it landed with: what is left of it cannot
            be told from what somebody changed.
    """
    spans = plan.spans()
    return [
        Superseded(
            sequence=older.sequence,
            by=plan.sequence,
            topic_id=plan.topic_id,
            counts=_left(older, counts, spans, data_log),
        )
        for older, counts in _replaced(ledger, plan.topic_id, spans)
    ]


def replaced_offsets(
    spans: Mapping[int, SpanSet], topic_id: str, ledger: Ledger, data_log: DataLog
) -> Mapping[int, int]:
    """How many offsets each landed plan would lose, by its number.

    Args:
        spans: Offsets of one new plan, by partition.
        topic_id: Incarnation that they belong to.
        ledger: Read whole.
        data_log: Counts rows where only a part of a range is replaced.

    Raises:
        RowsChanged: As in `superseded_events`.
    """
    found = {}
    for older, counts in _replaced(ledger, topic_id, spans):
        _check(older, _cut(counts, spans), data_log)
        found[older.sequence] = sum(_taken(count, spans) for count in counts)
    return found


def _replaced(
    ledger: Ledger, topic_id: str, spans: Mapping[int, SpanSet]
) -> list[tuple[Plan, tuple[RangeCount, ...]]]:
    """Plans that landed some of these offsets, and what they hold."""
    return [
        (record.plan, record.landing.counts)
        for record in ledger.plans.values()
        if record.landing
        and record.plan.topic_id == topic_id
        and any(_taken(count, spans) for count in record.landing.counts)
    ]


def _taken(count: RangeCount, spans: Mapping[int, SpanSet]) -> int:
    return spans.get(count.partition, SpanSet()).overlap(Span(count.start, count.end))


def _cut(counts: Iterable[RangeCount], spans: Mapping[int, SpanSet]) -> list[RangeCount]:
    """Ranges of which a part is replaced, and a part is not."""
    return [count for count in counts if 0 < _taken(count, spans) < count.end - count.start]


def _left(
    older: Plan,
    counts: tuple[RangeCount, ...],
    spans: Mapping[int, SpanSet],
    data_log: DataLog,
) -> tuple[RangeCount, ...]:
    cut = _cut(counts, spans)
    _check(older, cut, data_log)  # fence: changed-range-is-not-guessed
    kept = [count for count in counts if not _taken(count, spans)]
    kept += _pieces(older, cut, spans, data_log)
    return tuple(sorted(kept, key=lambda count: (count.partition, count.start)))


def _check(older: Plan, cut: list[RangeCount], data_log: DataLog) -> None:
    """Refuse ranges that have not the rows that they landed with."""
    for recorded in cut:
        span = Span(recorded.start, recorded.end)
        try:
            rows = data_log.current_landing(older.over([(recorded.partition, span)])).records
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


def _pieces(
    older: Plan, cut: list[RangeCount], spans: Mapping[int, SpanSet], data_log: DataLog
) -> list[RangeCount]:
    """What is left of ranges, with its rows."""
    unproven = {}
    pieces = []
    for count in cut:
        for span in spans[count.partition].missing_from(Span(count.start, count.end)):
            pieces.append((count.partition, span))
            unproven[count.partition, span.start] = count.unproven_gaps
    if not pieces:
        return []
    # Nobody knows in which piece the unproven ones are: at most all of a piece's gaps.
    return [
        replace(each, unproven_gaps=min(each.gaps, unproven[each.partition, each.start]))
        for each in data_log.current_landing(older.over(pieces)).counts
    ]
