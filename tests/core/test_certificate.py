"""What became of the offsets of a period."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.support.plans import make_plan
from tidemark.core.certificate import certify
from tidemark.core.landing import Landing, RangeCount
from tidemark.core.ledger import Ledger, PlanRecord
from tidemark.core.offsets import Span, SpanSet

_DAY = datetime(2026, 3, 1, tzinfo=UTC)
_NEXT = _DAY + timedelta(days=1)


def landed(sequence: int, start: int, end: int, holes: int = 0, **changes: object) -> PlanRecord:
    """A plan over partition 0 that landed."""
    count = RangeCount(partition=0, start=start, end=end, records=end - start - holes)
    landing = Landing(sequence=sequence, table_version=sequence, counts=(count,))
    return PlanRecord(
        plan=make_plan((0, start, end), sequence=sequence, **changes),
        requesters=(),
        landing=landing,
        whole=landing,
    )


def ledger(*records: PlanRecord, lost: Span | None = None) -> Ledger:
    """A ledger of some plans."""
    mine = [r for r in records if r.plan.topic_id == "id-1" and r.landing]
    spans = SpanSet.of(Span(c.start, c.end) for r in mine if r.landing for c in r.landing.counts)
    return Ledger(
        pipeline="events",
        topic="events",
        topic_id="id-1",
        plans={record.plan.sequence: record for record in records},
        landed={0: spans},
        accepted={0: SpanSet.of([lost])} if lost else {},
    )


def test_every_offset_between_the_first_and_the_last_is_told() -> None:
    """By what landed it, or why it did not; what nobody knows of is missing."""
    records = [landed(1, 0, 10, holes=2), landed(2, 10, 20), landed(3, 30, 40), landed(4, 50, 60)]
    # The second one landed a day later, when somebody asked for it.
    times = {1: _DAY, 2: _NEXT, 3: _DAY, 4: _NEXT - timedelta(microseconds=1)}
    certificate = certify(ledger(*records, lost=Span(20, 25)), times, _DAY, _NEXT)
    (account,) = certificate.partitions
    assert account.as_record() == {
        "partition": 0,
        "start": 0,
        "end": 60,
        "offsets": 60,
        "records": 28,
        "holes": 2,
        "unproven_holes": 0,
        "landed_otherwise": 10,
        "lost": 5,
        "missing": [[25, 30], [40, 50]],
        "undone": 0,
    }
    told = sum(
        account.as_record()[name] for name in ("records", "holes", "landed_otherwise", "lost")
    )
    assert told + certificate.missing == 60
    assert not certificate.is_complete
    assert [plan.sequence for plan in certificate.plans] == [1, 3, 4]


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
    undone = replace(landed(2, 10, 20), landing=None, whole=None, abandoned="why", undone_at=5)
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
    undone = replace(landed(1, 0, 10), landing=None, whole=None, abandoned="why", undone_at=5)
    certificate = certify(ledger(undone), {1: _DAY}, _DAY, _NEXT)
    assert (certificate.plans, certificate.missing, certificate.is_complete) == ((), 10, False)
