"""The completeness certificate of a period."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.support.plans import make_plan
from tidemark.core.accounting import Landing, RangeCount
from tidemark.core.events import Abandoned, Undone, UndoStarted
from tidemark.core.ledger import Ledger, PlanRecord
from tidemark.core.offsets import Span, SpanSet, union_by_partition
from tidemark.ops.report.certificate import certify

_DAY = datetime(2026, 3, 1, tzinfo=UTC)
_NEXT = _DAY + timedelta(days=1)


def landed_plan(
    sequence: int, start: int, end: int, gaps: int = 0, **changes: object
) -> PlanRecord:
    """Return a landed plan over partition 0."""
    count = RangeCount(partition=0, start=start, end=end, records=end - start - gaps)
    return over(sequence, count, **changes)


def over(sequence: int, *counts: RangeCount, **changes: object) -> PlanRecord:
    """Return a landed plan over some ranges."""
    landing = Landing(sequence=sequence, table_version=sequence, counts=counts)
    ranges = [(count.partition, count.start, count.end) for count in counts]
    return PlanRecord(
        plan=make_plan(*ranges, sequence=sequence, **changes),
        requesters=(),
        held_now=landing,
        landed_originally=landing,
    )


def without_rows(record: PlanRecord, table_version: int | None = 5) -> PlanRecord:
    """Return a landed plan after its undo, or after a RESTORE without a table version."""
    event = Undone(
        sequence=record.plan.sequence,
        requested_by="ann",
        reason="why",
        table_version=table_version,
    )
    return replace(record, held_now=None, landed_originally=None, cancelled_by=event)


def ledger(*records: PlanRecord, lost: Mapping[int, Span] | None = None) -> Ledger:
    """Return a ledger of some plans."""
    mine = [r for r in records if r.plan.topic_id == "id-1" and r.held_now]
    return Ledger(
        pipeline="events",
        topic="events",
        topic_id="id-1",
        plans={record.plan.sequence: record for record in records},
        landed=union_by_partition(record.held_now.spans() for record in mine if record.held_now),
        accepted_losses={partition: SpanSet.of([span]) for partition, span in (lost or {}).items()},
    )


def test_every_offset_of_the_period_is_landed_a_gap_lost_or_missing() -> None:
    """Plans outside the period may have landed the offset."""
    records = [
        landed_plan(1, 0, 10, gaps=2),
        landed_plan(2, 10, 20),
        landed_plan(3, 30, 40),
        landed_plan(4, 50, 60),
    ]
    # Plan 2 landed a day later.
    times = {1: _DAY, 2: _NEXT, 3: _DAY, 4: _NEXT - timedelta(microseconds=1)}
    certificate = certify(ledger(*records, lost={0: Span(20, 25)}), times, _DAY, _NEXT)
    (account,) = certificate.partitions
    assert account.as_record() == {
        "partition": 0,
        "start": 0,
        "end": 60,
        "offsets": 60,
        "records": 28,
        "gaps": 2,
        "unproven_gaps": 0,
        "landed_outside_period": 10,
        "lost": 5,
        "missing": [[25, 30], [40, 50]],
        "undone": 0,
    }
    record = sum(
        account.as_record()[name] for name in ("records", "gaps", "landed_outside_period", "lost")
    )
    assert record + certificate.missing == 60
    assert not certificate.is_complete
    assert [each.plan for each in certificate.plans] == [1, 3, 4]


def test_partitions_have_separate_counts() -> None:
    """Covers gaps, unproven gaps, losses and missing offsets."""
    both = over(
        1,
        RangeCount(partition=0, start=0, end=10, records=8, unproven_gaps=1),
        RangeCount(partition=1, start=100, end=120, records=15, unproven_gaps=3),
    )
    one = over(2, RangeCount(partition=1, start=130, end=140, records=10))
    other = over(3, RangeCount(partition=0, start=14, end=20, records=6))
    later = over(4, RangeCount(partition=1, start=140, end=150, records=9))
    undone = without_rows(over(5, RangeCount(partition=1, start=150, end=155, records=5)))
    last = over(6, RangeCount(partition=1, start=155, end=160, records=5))
    records = (both, one, other, later, undone, last)
    times = {1: _DAY, 2: _DAY, 3: _DAY, 4: _NEXT, 5: _DAY, 6: _DAY}
    lost = {0: Span(10, 13), 1: Span(120, 125)}
    certificate = certify(ledger(*records, lost=lost), times, _DAY, _NEXT)
    zero, first = (each.as_record() for each in certificate.partitions)
    assert zero == {
        "partition": 0,
        "start": 0,
        "end": 20,
        "offsets": 20,
        "records": 14,
        "gaps": 2,
        "unproven_gaps": 1,
        "landed_outside_period": 0,
        "lost": 3,
        "missing": [[13, 14]],
        "undone": 0,
    }
    assert first == {
        "partition": 1,
        "start": 100,
        "end": 160,
        "offsets": 60,
        "records": 30,
        "gaps": 5,
        "unproven_gaps": 3,
        "landed_outside_period": 10,
        "lost": 5,
        "missing": [[125, 130], [150, 155]],
        "undone": 5,
    }
    for account in (zero, first):
        parts = sum(account[name] for name in ("records", "gaps", "landed_outside_period", "lost"))
        assert parts + sum(end - start for start, end in account["missing"]) == account["offsets"]
    record = certificate.as_record()
    assert {name: record[name] for name in ("records", "gaps", "unproven_gaps", "lost")} == {
        "records": 44,
        "gaps": 7,
        "unproven_gaps": 4,
        "lost": 8,
    }
    assert (record["missing"], record["undone"]) == (11, 5)
    assert [(each.plan, each.records, each.gaps) for each in certificate.plans] == [
        (1, 23, 7),
        (2, 10, 0),
        (3, 6, 0),
        (6, 5, 0),
    ]


def test_plans_of_other_periods_and_topics_and_open_plans_are_not_counted() -> None:
    """The topic was recreated."""
    records = [
        landed_plan(1, 0, 10, topic_id="id-0"),
        landed_plan(2, 0, 10),
        landed_plan(3, 10, 20),
        PlanRecord(plan=make_plan((0, 20, 30), sequence=4), requesters=()),
    ]
    times = {1: _DAY, 2: _DAY, 3: _NEXT}
    certificate = certify(ledger(*records), times, _DAY, _NEXT)
    assert (certificate.plans_of_other_incarnations, certificate.open_plans) == (1, (4,))
    assert [(each.start, each.end) for each in certificate.partitions] == [(0, 10)]
    assert certificate.missing == 0
    # The certificate does not cover the earlier topic.
    assert not certificate.is_complete
    assert certify(ledger(*records[1:]), times, _DAY, _NEXT).is_complete
    nothing = certify(ledger(*records), times, _NEXT + timedelta(days=1), _NEXT + timedelta(days=2))
    assert (nothing.partitions, nothing.plans, nothing.missing) == ((), (), 0)


def test_undone_or_missed_offsets_at_the_end_are_missing() -> None:
    """The certificate covers the planned offsets, not only the landed ones."""
    undone = without_rows(landed_plan(2, 10, 20))
    certificate = certify(ledger(landed_plan(1, 0, 10), undone), {1: _DAY, 2: _DAY}, _DAY, _NEXT)
    (account,) = certificate.partitions
    assert (account.end, account.undone, certificate.is_complete) == (20, 10, False)
    assert account.missing == SpanSet.of([Span(10, 20)])
    assert [each.plan for each in certificate.plans] == [1]
    # A later plan landed the offsets again.
    times = {1: _DAY, 2: _DAY, 3: _NEXT}
    again = certify(
        ledger(landed_plan(1, 0, 10), undone, landed_plan(3, 10, 20)), times, _DAY, _NEXT
    )
    assert (again.is_complete, again.total("landed_outside_period")) == (True, 10)

    short = replace(landed_plan(4, 0, 8), plan=make_plan((0, 0, 10), sequence=4))
    (account,) = certify(ledger(short), {4: _DAY}, _DAY, _NEXT).partitions
    assert (account.end, account.missing, account.undone) == (10, SpanSet.of([Span(8, 10)]), 0)


def test_a_partition_whose_plans_are_all_undone_is_missing() -> None:
    """The period no longer has a plan, and is not complete."""
    undone = without_rows(landed_plan(1, 0, 10))
    certificate = certify(ledger(undone), {1: _DAY}, _DAY, _NEXT)
    assert (certificate.plans, certificate.missing, certificate.is_complete) == ((), 10, False)


def test_offsets_that_a_restore_removed_are_missing_until_they_land_again() -> None:
    """Their plan landed in the period."""
    rewound = without_rows(landed_plan(2, 10, 20), table_version=None)
    records = (landed_plan(1, 0, 10), rewound)
    certificate = certify(ledger(*records), {1: _DAY, 2: _DAY}, _DAY, _NEXT)
    (account,) = certificate.partitions
    assert (account.end, account.undone, certificate.is_complete) == (20, 10, False)
    assert account.missing == SpanSet.of([Span(10, 20)])
    assert ([each.plan for each in certificate.plans], account.records) == ([1], 10)
    # A plan of the period landed a part of the offsets again, and a later plan the others.
    parts = (landed_plan(3, 10, 14), landed_plan(4, 14, 20))
    times = {1: _DAY, 2: _DAY, 3: _DAY, 4: _NEXT}
    again = certify(ledger(*records, *parts), times, _DAY, _NEXT)
    assert (again.is_complete, again.total("records"), again.total("landed_outside_period")) == (
        True,
        14,
        6,
    )
    assert (again.missing, again.total("undone")) == (0, 0)
    # Nothing else landed.
    alone = certify(ledger(rewound), {2: _DAY}, _DAY, _NEXT)
    assert (alone.plans, alone.missing, alone.is_complete) == ((), 10, False)
    before = replace(rewound, plan=make_plan((0, 10, 20), sequence=2, topic_id="id-0"))
    assert certify(ledger(before), {2: _DAY}, _DAY, _NEXT).plans_of_other_incarnations == 1


def test_offsets_of_an_unfinished_undo_are_missing_and_not_undone() -> None:
    """The table may still contain some of the rows."""
    started = UndoStarted(sequence=2, requested_by="ann", reason="why")
    undoing = replace(landed_plan(2, 10, 20), held_now=None, cancelled_by=started)
    certificate = certify(ledger(landed_plan(1, 0, 10), undoing), {1: _DAY, 2: _DAY}, _DAY, _NEXT)
    assert (certificate.missing, certificate.total("undone")) == (10, 0)


def test_abandoned_plans_and_plans_landed_after_the_ledger_was_read_are_not_counted() -> None:
    """The second one is open in the ledger."""
    plans = [make_plan((0, 10 * n, 10 * n + 10), sequence=n) for n in (2, 3)]
    event = Abandoned(sequence=2, requested_by="ann", reason="why")
    abandoned = PlanRecord(plan=plans[0], requesters=(), cancelled_by=event)
    late = PlanRecord(plan=plans[1], requesters=())
    times = {1: _DAY, 3: _DAY}
    certificate = certify(ledger(landed_plan(1, 10, 20), abandoned, late), times, _DAY, _NEXT)
    assert [(each.start, each.end) for each in certificate.partitions] == [(10, 20)]
    assert (certificate.is_complete, certificate.open_plans) == (True, (3,))
