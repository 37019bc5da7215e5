"""What a plan that replaces rows leaves of the plans that landed them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tidemark.core.events import Superseded
from tidemark.core.landing import Landing, RangeCount
from tidemark.core.ledger import Ledger, PlanRecord
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import Plan, PlannedRange
from tidemark.errors import RowsChanged
from tidemark.ports import DataLog


def superseded_by(
    plan: Plan, ledger: Ledger, data_log: DataLog, *, is_landed: bool = False
) -> list[Superseded]:
    """One event for each landed plan with offsets of a new one.

    Args:
        plan: The new plan.
        ledger: Read whole.
        data_log: Counts rows where only a part of a range is replaced.
        is_landed: Whether the new plan has replaced the rows already.

    Raises:
        RowsChanged: Such a range has not the rows that it landed with: what is left of it cannot
            be told from what somebody changed.
    """
    spans = plan.spans()
    return [
        Superseded(
            sequence=record.plan.sequence,
            by=plan.sequence,
            topic_id=plan.topic_id,
            landing=_left(record, record.landing, spans, data_log, check=not is_landed),
        )
        for record in ledger.plans.values()
        if record.landing
        and record.plan.topic_id == plan.topic_id
        and any(_taken(count, spans) for count in record.landing.counts)
    ]


def _taken(count: RangeCount, spans: Mapping[int, SpanSet]) -> int:
    return spans.get(count.partition, SpanSet()).overlap(Span(count.start, count.end))


def _left(
    record: PlanRecord,
    landing: Landing,
    spans: Mapping[int, SpanSet],
    data_log: DataLog,
    *,
    check: bool,
) -> Landing:
    kept = [count for count in landing.counts if not _taken(count, spans)]
    cut = [count for count in landing.counts if 0 < _taken(count, spans) < count.end - count.start]
    if cut:
        if check:
            _check(record.plan, cut, data_log)
        kept += _pieces(record.plan, cut, spans, data_log)
    kept.sort(key=lambda count: (count.partition, count.start))
    return replace(landing, counts=tuple(kept))


def _check(plan: Plan, cut: list[RangeCount], data_log: DataLog) -> None:
    """Refuse ranges that have not the rows that they landed with."""
    here = data_log.held(_over(plan, ((c.partition, Span(c.start, c.end)) for c in cut)))
    for recorded, seen in zip(cut, here.counts, strict=True):
        if recorded.records != seen.records:
            raise RowsChanged(
                pipeline=plan.pipeline,
                sequence=plan.sequence,
                partition=recorded.partition,
                start=recorded.start,
                end=recorded.end,
                recorded=recorded.records,
                rows=seen.records,
            )


def _pieces(
    plan: Plan, cut: list[RangeCount], spans: Mapping[int, SpanSet], data_log: DataLog
) -> list[RangeCount]:
    """What is left of ranges, with its rows."""
    unproven = {}
    pieces = []
    for count in cut:
        whole = Span(count.start, count.end)
        for span in spans[count.partition].missing_from(whole):
            pieces.append((count.partition, span))
            unproven[count.partition, span.start] = count.unproven_holes
    here = data_log.held(_over(plan, pieces))
    # Nobody knows in which piece the unproven ones are: at most all of a piece's holes.
    return [
        replace(each, unproven_holes=min(each.holes, unproven[each.partition, each.start]))
        for each in here.counts
    ]


def _over(plan: Plan, placed: Iterable[tuple[int, Span]]) -> Plan:
    """The plan as if it were of these ranges alone."""
    return replace(plan, ranges=tuple(PlannedRange.bare(*each) for each in placed))
