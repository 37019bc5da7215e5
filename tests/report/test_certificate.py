"""What became of the offsets of a period."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.support.plans import make_plan
from tidemark.core.accounting import Landing, RangeCount
from tidemark.core.ledger import Ledger, PlanRecord
from tidemark.core.offsets import Span, SpanSet, union_by_partition
from tidemark.report.certificate import certify

_DAY = datetime(2026, 3, 1, tzinfo=UTC)
_NEXT = _DAY + timedelta(days=1)


def landed(sequence: int, start: int, end: int, gaps: int = 0, **changes: object) -> PlanRecord:
    """A plan over partition 0 that landed."""
    count = RangeCount(partition=0, start=start, end=end, records=end - start - gaps)
    return over(sequence, count, **changes)


def over(sequence: int, *counts: RangeCount, **changes: object) -> PlanRecord:
    """A plan over some ranges that landed."""
    landing = Landing(sequence=sequence, table_version=sequence, counts=counts)
    ranges = [(count.partition, count.start, count.end) for count in counts]
    return PlanRecord(
        plan=make_plan(*ranges, sequence=sequence, **changes),
        requesters=(),
        held_now=landing,
        landed_originally=landing,
    )


def ledger(*records: PlanRecord, lost: Mapping[int, Span] | None = None) -> Ledger:
    """A ledger of some plans."""
    mine = [r for r in records if r.plan.topic_id == "id-1" and r.held_now]
    return Ledger(
        pipeline="events",
        topic="events",
        topic_id="id-1",
        plans={record.plan.sequence: record for record in records},
        landed=union_by_partition(record.held_now.spans() for record in mine if record.held_now),
        accepted_losses={partition: SpanSet.of([span]) for partition, span in (lost or {}).items()},
    )


def test_every_offset_between_the_first_and_the_last_is_told() -> None:
    """By what landed it, or why it did not; what nobody knows of is missing."""
    records = [landed(1, 0, 10, gaps=2), landed(2, 10, 20), landed(3, 30, 40), landed(4, 50, 60)]
    # The second one landed a day later, when somebody asked for it.
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
        "landed_otherwise": 10,
        "lost": 5,
        "missing": [[25, 30], [40, 50]],
        "undone": 0,
    }
    told = sum(
        account.as_record()[name] for name in ("records", "gaps", "landed_otherwise", "lost")
    )
    assert told + certificate.missing == 60
    assert not certificate.is_complete
    assert [plan.sequence for plan in certificate.plans] == [1, 3, 4]


def test_each_partition_is_told_by_itself() -> None:
    """Gaps, those nobody could look at, losses and gaps of one are not counted in another."""
    both = over(
        1,
        RangeCount(partition=0, start=0, end=10, records=8, unproven_gaps=1),
        RangeCount(partition=1, start=100, end=120, records=15, unproven_gaps=3),
    )
    one = over(2, RangeCount(partition=1, start=130, end=140, records=10))
    other = over(3, RangeCount(partition=0, start=14, end=20, records=6))
    later = over(4, RangeCount(partition=1, start=140, end=150, records=9))
    undone = replace(
        over(5, RangeCount(partition=1, start=150, end=155, records=5)),
        held_now=None,
        landed_originally=None,
        abandoned="why",
        undone_version=5,
    )
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
        "landed_otherwise": 0,
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
        "landed_otherwise": 10,
        "lost": 5,
        "missing": [[125, 130], [150, 155]],
        "undone": 5,
    }
    for account in (zero, first):
        parts = sum(account[name] for name in ("records", "gaps", "landed_otherwise", "lost"))
        assert parts + sum(end - start for start, end in account["missing"]) == account["offsets"]
    told = certificate.as_record()
    assert {name: told[name] for name in ("records", "gaps", "unproven_gaps", "lost")} == {
        "records": 44,
        "gaps": 7,
        "unproven_gaps": 4,
        "lost": 8,
    }
    assert (told["missing"], told["undone"]) == (11, 5)
    assert [(plan.sequence, plan.records, plan.gaps) for plan in certificate.plans] == [
        (1, 23, 7),
        (2, 10, 0),
        (3, 6, 0),
        (6, 5, 0),
    ]


def test_what_is_not_of_the_period_or_of_the_topic_is_not_counted() -> None:
    """A topic that was made again since, plans that are open, and those of other days."""
    records = [
        landed(1, 0, 10, topic_id="id-0"),
        landed(2, 0, 10),
        landed(3, 10, 20),
        PlanRecord(plan=make_plan((0, 20, 30), sequence=4), requesters=()),
    ]
    times = {1: _DAY, 2: _DAY, 3: _NEXT}
    certificate = certify(ledger(*records), times, _DAY, _NEXT)
    assert (certificate.other_incarnations, certificate.open_plans) == (1, (4,))
    assert [(each.start, each.end) for each in certificate.partitions] == [(0, 10)]
    assert certificate.missing == 0
    # Nobody has added up what landed of the topic before.
    assert not certificate.is_complete
    assert certify(ledger(*records[1:]), times, _DAY, _NEXT).is_complete
    nothing = certify(ledger(*records), times, _NEXT + timedelta(days=1), _NEXT + timedelta(days=2))
    assert (nothing.partitions, nothing.plans, nothing.missing) == ((), (), 0)


def test_an_end_that_was_undone_or_missed_is_missing() -> None:
    """What is left would be complete by itself, and is not what the period had."""
    undone = replace(
        landed(2, 10, 20), held_now=None, landed_originally=None, abandoned="why", undone_version=5
    )
    certificate = certify(ledger(landed(1, 0, 10), undone), {1: _DAY, 2: _DAY}, _DAY, _NEXT)
    (account,) = certificate.partitions
    assert (account.end, account.undone, certificate.is_complete) == (20, 10, False)
    assert account.missing == SpanSet.of([Span(10, 20)])
    assert [plan.sequence for plan in certificate.plans] == [1]
    # Landed again since, whenever that was.
    times = {1: _DAY, 2: _DAY, 3: _NEXT}
    again = certify(ledger(landed(1, 0, 10), undone, landed(3, 10, 20)), times, _DAY, _NEXT)
    assert (again.is_complete, again.total("otherwise")) == (True, 10)

    short = replace(landed(4, 0, 8), plan=make_plan((0, 0, 10), sequence=4))
    (account,) = certify(ledger(short), {4: _DAY}, _DAY, _NEXT).partitions
    assert (account.end, account.missing, account.undone) == (10, SpanSet.of([Span(8, 10)]), 0)


def test_a_partition_of_which_all_was_undone_is_told() -> None:
    """There is no plan any more, and the period is not complete."""
    undone = replace(
        landed(1, 0, 10), held_now=None, landed_originally=None, abandoned="why", undone_version=5
    )
    certificate = certify(ledger(undone), {1: _DAY}, _DAY, _NEXT)
    assert (certificate.plans, certificate.missing, certificate.is_complete) == ((), 10, False)


def test_what_a_restore_took_out_is_missing_until_it_lands_again() -> None:
    """Its plan landed in the period, whatever the table was brought back to since."""
    rewound = replace(landed(2, 10, 20), held_now=None, landed_originally=None, abandoned="why")
    records = (landed(1, 0, 10), rewound)
    certificate = certify(ledger(*records), {1: _DAY, 2: _DAY}, _DAY, _NEXT)
    (account,) = certificate.partitions
    assert (account.end, account.undone, certificate.is_complete) == (20, 10, False)
    assert account.missing == SpanSet.of([Span(10, 20)])
    assert ([plan.sequence for plan in certificate.plans], account.records) == ([1], 10)
    # A part of it by a plan of the period, the rest later.
    parts = (landed(3, 10, 14), landed(4, 14, 20))
    times = {1: _DAY, 2: _DAY, 3: _DAY, 4: _NEXT}
    again = certify(ledger(*records, *parts), times, _DAY, _NEXT)
    assert (again.is_complete, again.total("records"), again.total("otherwise")) == (True, 14, 6)
    assert (again.missing, again.total("undone")) == (0, 0)
    # Where nothing else landed, its offsets are all that there is to tell.
    alone = certify(ledger(rewound), {2: _DAY}, _DAY, _NEXT)
    assert (alone.plans, alone.missing, alone.is_complete) == ((), 10, False)
    before = replace(rewound, plan=make_plan((0, 10, 20), sequence=2, topic_id="id-0"))
    assert certify(ledger(before), {2: _DAY}, _DAY, _NEXT).other_incarnations == 1


def test_a_plan_that_is_being_undone_is_missing_and_not_yet_taken_out() -> None:
    """Some of its rows may still be there, and nobody counts on them."""
    undoing = replace(landed(2, 10, 20), held_now=None, abandoned="why", undoing=True)
    certificate = certify(ledger(landed(1, 0, 10), undoing), {1: _DAY, 2: _DAY}, _DAY, _NEXT)
    assert (certificate.missing, certificate.total("undone")) == (10, 0)


def test_a_plan_that_never_landed_is_not_of_the_period() -> None:
    """One that was given up, and one that landed after its ledger had been read."""
    plans = [make_plan((0, 10 * n, 10 * n + 10), sequence=n) for n in (2, 3)]
    given_up = PlanRecord(plan=plans[0], requesters=(), abandoned="why")
    late = PlanRecord(plan=plans[1], requesters=())
    times = {1: _DAY, 3: _DAY}
    certificate = certify(ledger(landed(1, 10, 20), given_up, late), times, _DAY, _NEXT)
    assert [(each.start, each.end) for each in certificate.partitions] == [(10, 20)]
    assert (certificate.is_complete, certificate.open_plans) == (True, (3,))
