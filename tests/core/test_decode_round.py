"""Tests of the rounds of a decode, over tables in memory and real events."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

import pytest

from tests.core.test_following import CHECKED, decided, landed, plans_at, settled_plans, table_of
from tests.support.histories import random_steps
from tests.support.memory import MemoryControlTable
from tests.support.plans import MemoryPipeline, make_plan
from tidemark.bronze.ingest.ledgers import read_checked_ledger
from tidemark.core import bookmark as bookmark_module
from tidemark.core import decode_round
from tidemark.core.bookmark import Bookmark, OffsetList
from tidemark.core.decode_round import DecodeRound, cleared_bookmark
from tidemark.core.errors import TidemarkError
from tidemark.core.events import ControlEvent, Planned, Superseded
from tidemark.core.following import (
    Batch,
    BatchOffsets,
    allowed,
    claimed,
    listed_part,
    read_all,
    read_since,
    required,
)
from tidemark.core.ledger import PlanRecord
from tidemark.core.offsets import Span, SpanSet, intersection, spans_by_partition
from tidemark.core.publication import PublicationStatus, PublishRule


class Place(NamedTuple):
    """A record of a bronze plan."""

    sequence: int
    topic_id: str
    partition: int
    offset: int


def is_in(place: Place, offsets: BatchOffsets) -> bool:
    spans = offsets.get(Batch(place.sequence, place.topic_id), {})
    return place.offset in spans.get(place.partition, SpanSet())


def offsets_of(places: Iterable[Place]) -> BatchOffsets:
    found: dict[Batch, list[tuple[int, Span]]] = {}
    for place in places:
        span = Span(place.offset, place.offset + 1)
        batch = Batch(place.sequence, place.topic_id)
        found.setdefault(batch, []).append((place.partition, span))
    return {batch: spans_by_partition(placed) for batch, placed in found.items()}


@dataclass
class MemoryTypedTable:
    """A typed table and its quarantine, which follow a pipeline. Some records cannot be decoded.

    Attributes:
        pipeline: The pipeline.
        chance: Chooses the sizes of rounds, and kills.
        publish: The rule by which landed offsets are decoded.
        rows: The rows of the typed table.
        entries: The entries of the quarantine.
        log: The bookmarks of commits to the typed table.
        followed: Number of these commits that the quarantine has followed; None if unknown.
        deleted: Rows that another program has deleted, and that no round can have brought back.
        rule: Remainder, after division by five, of the offsets that cannot be decoded.
    """

    pipeline: MemoryPipeline
    chance: Random
    publish: PublishRule = PublishRule.CHECKED
    rows: set[Place] = field(default_factory=set)
    entries: set[Place] = field(default_factory=set)
    log: list[Bookmark] = field(default_factory=list)
    followed: int | None = None
    deleted: set[Place] = field(default_factory=set)
    rule: int = 2

    @property
    def bronze(self) -> set[Place]:
        return {Place(each[3], *each[:3]) for each in self.pipeline.table.rows}

    def decode(self, replayed: BatchOffsets | None = None) -> bool:
        """Make rounds until no work is left; return False if the driver is killed before."""
        for _ in range(500):
            bookmark = self.round(replayed)
            replayed = None
            if self.chance.random() < 0.1:
                return False
            is_followed = self.follow()
            if bookmark is None and is_followed:
                return True
        raise AssertionError("a decode does not end")

    def round(self, replayed: BatchOffsets | None = None) -> Bookmark | None:
        control, earlier = self.pipeline.control, self.log[-1] if self.log else None
        read_checked_ledger(control, "events", self.pipeline.table)
        found, examined = None, SpanSet()
        if earlier is not None:
            examined = earlier.pending.first(self.chance.choice((2, 50))).union(
                SpanSet.of_numbers(batch.sequence for batch in replayed or ())
            )
            found = read_since(control, "events", earlier, self.publish, examined)
        if found is None or earlier is None:
            self.deleted.clear()
            found = read_all(control, "events")
            step = DecodeRound.compared(found, self.publish, offsets_of(self.rows))
        else:
            present = offsets_of(self.rows)
            step = DecodeRound.since(found, earlier, self.publish, present, examined)
        decoded = step.chosen((), self.chance.choice((1, 5, 100)))
        again = step.replayed(replayed or {}, decoded)
        wanted = {p for p in self.bronze if is_in(p, decoded) or is_in(p, again)}
        failed = {place for place in wanted if place.offset % 5 == self.rule}
        bookmark = step.bookmark(decoded, again, has_failed=bool(failed))
        if bookmark is not None and found.event:
            removed = {p for p in self.rows if is_in(p, step.removed(decoded))}
            self.check_removed(removed, wanted)
            self.rows -= removed | {p for p in self.rows if is_in(p, again)}
            assert not self.rows & (wanted - failed)
            self.rows |= wanted - failed
            self.log.append(bookmark)
            self.deleted &= {p for p in self.deleted if is_in(p, allowed(self.plans, self.publish))}
            self.deleted -= wanted
            self.check()
            return bookmark
        return None

    @property
    def plans(self) -> Collection[PlanRecord]:
        return plans_at(self.pipeline.control, self.log[-1].event)

    def follow(self) -> bool:
        """Let the quarantine follow; return whether there was nothing to do."""
        if not self.log:
            return True
        own = claimed(self.plans, self.log[-1])
        changes = None if self.followed is None else self.log[self.followed :]
        if changes is not None and not any(each.changes_quarantine for each in changes):
            return True
        candidates = {place for place in self.bronze if is_in(place, own)}
        if changes is not None:
            parts = [listed_part(own, each.decoded) for each in changes]
            candidates = {p for p in candidates if any(is_in(p, part) for part in parts)}
        self.entries |= candidates - self.rows
        self.entries -= self.rows | {place for place in self.entries if not is_in(place, own)}
        self.followed = len(self.log)
        return False

    def check_removed(self, removed: set[Place], decoded: set[Place]) -> None:
        """Check that no replaced row is removed before its new row is decoded."""
        plans = {each.plan.sequence: each for each in self.pipeline.ledger.plans.values()}
        wanted = required(plans.values(), self.publish)
        places = {p[1:] for p in self.bronze if is_in(p, wanted)} - {p[1:] for p in decoded}
        for place in removed:
            plan = plans.get(place.sequence)
            if (
                plan is None
                or plan.cancelled_by is not None
                or place.topic_id != plan.plan.topic_id
            ):
                continue
            if plan.decision is None or plan.decision.status.is_visible:
                assert place[1:] not in places

    def check(self) -> None:
        """Check that no row is in the table twice, and that the bookmark allows each row.

        The bookmark allows replaced rows while a pending plan has their offsets.
        """
        assert len({place[1:] for place in self.rows}) == len(self.rows)
        last = self.log[-1]
        may_stay = allowed(self.plans, last.publish)
        others = {place for place in self.rows if not is_in(place, may_stay)}
        assert all(place.sequence in last.outdated for place in others)
        wanted = required(self.plans, last.publish)
        waiting = {p[1:] for p in self.bronze if p.sequence in last.pending and is_in(p, wanted)}
        assert {place[1:] for place in others} <= waiting

    def check_end(self) -> None:
        """Check that each published record is in one table, unless another program deleted it.

        No hidden record is in either table.
        """
        newest = self.pipeline.ledger.plans.values()
        published = {p for p in self.bronze if is_in(p, required(newest, self.publish))}
        assert published - self.deleted <= self.rows | self.entries
        assert not self.rows & self.entries
        assert self.entries <= published | {p for p in self.entries if p not in self.bronze}
        may_stay = allowed(newest, self.publish)
        assert all(is_in(place, may_stay) for place in self.rows | self.entries)


@pytest.mark.parametrize(
    "seed", [0, 3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(50, 80))]
)
def test_random_decodes_put_each_published_record_in_one_table(seed: int) -> None:
    """Decoders are killed, other programs delete rows, and bookmarks are lost."""
    chance, pipeline = Random(seed), MemoryPipeline()
    typed = MemoryTypedTable(pipeline, chance)
    ended = 0
    for _ in random_steps(pipeline, chance, with_repairs=True):
        match chance.choices(("wait", "decode", "delete", "replay", "lose"), (6, 10, 1, 2, 0.3))[0]:
            case "delete" if typed.rows:
                place = chance.choice(sorted(typed.rows))
                typed.rows.remove(place)
                typed.deleted.add(place)
            case "lose":
                typed.log.clear()
                typed.followed = None
            case "decode" | "replay" as what:
                own = [place for place in typed.rows | typed.entries if chance.random() < 0.5]
                replayed = offsets_of(own) if what == "replay" else None
                with suppress(TidemarkError):
                    if typed.decode(replayed):
                        typed.check_end()
                        ended += 1
        if chance.random() < 0.05:
            typed.publish, typed.rule = chance.choice([*PublishRule]), chance.randrange(1, 3)
    assert ended >= 3


# -- single rounds -------------------------------------------------------------------------------

PLANS = [make_plan((0, 10 * n, 10 * n + 5), sequence=n) for n in (1, 2, 3)]
EVENTS = settled_plans(3)
NEWER = make_plan((0, 10, 12), sequence=4, replaces=True)
REPLACED: list[Collection[ControlEvent]] = [
    [
        Planned(plan=NEWER),
        Superseded(
            sequence=1, by=4, topic_id="id-1", counts=landed(PLANS[0], (0, 12, 15)).landing.counts
        ),
    ],
    [landed(NEWER)],
    [decided(NEWER, PublicationStatus.PUBLISHED)],
]
"""Plan 4 replaces two offsets of plan 1."""


def first_round(spec: str = "") -> DecodeRound:
    found = read_all(table_of(*EVENTS), "events")
    return DecodeRound.compared(found, PublishRule.CHECKED, {}, spec)


def next_round(
    bookmark: Bookmark | None, *more: Collection[ControlEvent], spec: str = ""
) -> DecodeRound:
    assert bookmark is not None
    examined = bookmark.pending.union(SpanSet.of_numbers([1]))
    found = read_since(table_of(*EVENTS, *more), "events", bookmark, PublishRule.CHECKED, examined)
    assert found is not None
    return DecodeRound.since(found, bookmark, PublishRule.CHECKED, {}, examined, spec)


@pytest.mark.parametrize(
    ("waiting", "most", "plans"),
    [((), 15, [1, 2, 3]), ((), 14, [1, 2]), ((), 1, [1]), ((1,), 9, [2]), ((1, 2, 3), 9, [])],
)
def test_a_round_chooses_whole_plans_from_the_oldest_on(
    waiting: Collection[int], most: int, plans: list[int]
) -> None:
    """A plan that is larger than the limit is chosen alone."""
    step = first_round()
    decoded = step.chosen(waiting, most)
    assert [batch.sequence for batch in decoded] == plans
    bookmark = step.bookmark(decoded, {}, has_failed=False)
    assert bookmark is not None
    assert bookmark.pending == SpanSet.of_numbers({1, 2, 3}.difference(plans))
    assert bookmark.decoded == OffsetList(plans=SpanSet.of_numbers(plans))


def test_rounds_continue_with_the_pending_plans() -> None:
    step = first_round()
    step = next_round(step.bookmark(step.chosen((), 5), {}, has_failed=False))
    decoded = step.chosen((), 100)
    assert [batch.sequence for batch in decoded] == [2, 3]
    bookmark = step.bookmark(decoded, {}, has_failed=False)
    assert bookmark is not None
    assert (bookmark.event, bookmark.pending, bookmark.changes_quarantine) == (9, SpanSet(), False)
    end = next_round(bookmark)
    assert (end.chosen((), 100), end.bookmark({}, {}, has_failed=False)) == ({}, None)
    renewed = end.bookmark({}, {}, has_failed=False, renews=True)
    assert renewed == replace(bookmark, decoded=OffsetList())


def test_a_commit_without_rows_follows_a_visible_event() -> None:
    """The version that a late decoder has opened is then no longer the newest one.

    An event that records only a plan needs no commit.
    """
    step = first_round()
    bookmark = step.bookmark(step.chosen((), 100), {}, has_failed=False)
    plan = make_plan((0, 50, 55), sequence=4)
    opened = next_round(bookmark, [Planned(plan=plan)])
    assert opened.bookmark({}, {}, has_failed=False) is None
    moved = next_round(bookmark, [Planned(plan=plan)], [landed(plan)])
    assert (moved.missing, moved.surplus) == ({}, {})
    after = moved.bookmark({}, {}, has_failed=False)
    assert after is not None
    assert (after.event, after.changes_quarantine) == (11, False)


def test_a_changed_policy_moves_the_bookmark() -> None:
    """The bookmark claims what its policy requires."""
    step = first_round()
    bookmark = step.bookmark(step.chosen((), 100), {}, has_failed=False)
    assert bookmark is not None
    found = read_since(table_of(*EVENTS), "events", bookmark, PublishRule.ALWAYS)
    assert found is not None
    changed = DecodeRound.since(found, bookmark, PublishRule.ALWAYS, {}, SpanSet())
    after = changed.bookmark({}, {}, has_failed=False)
    assert after is not None
    assert after.publish is PublishRule.ALWAYS


def test_a_rejected_plan_leaves_both_tables() -> None:
    step = first_round()
    bookmark = step.bookmark(step.chosen((), 100), {}, has_failed=False)
    step = next_round(bookmark, [decided(PLANS[1], PublicationStatus.REJECTED)])
    spans = PLANS[1].spans()
    assert step.surplus == {Batch(2, "id-1"): spans}
    after = step.bookmark({}, {}, has_failed=False)
    assert after is not None
    assert (after.removed, after.changes_quarantine) == (OffsetList(spans={"id-1": spans}), True)


def replaced_rounds(waiting: Collection[int] = ()) -> tuple[DecodeRound, Bookmark]:
    """Return the round after plan 4 has replaced two offsets of plan 1, and its bookmark."""
    step = first_round()
    bookmark = step.bookmark(step.chosen((), 100), {}, has_failed=False)
    step = next_round(bookmark, *REPLACED)
    after = step.bookmark(step.chosen(waiting, 100), {}, has_failed=False)
    assert after is not None
    return step, after


def test_replaced_rows_stay_until_their_new_rows_are_decoded() -> None:
    rows = {Batch(1, "id-1"): {0: SpanSet.of([Span(10, 12)])}}
    step, bookmark = replaced_rounds(waiting=[4])
    assert (step.surplus, step.removed({})) == (rows, {})
    assert (bookmark.pending, bookmark.outdated) == (
        SpanSet.of([Span(4, 5)]),
        SpanSet.of([Span(1, 2)]),
    )
    assert bookmark.removed == OffsetList()
    found = read_since(table_of(*EVENTS, *REPLACED), "events", bookmark, CHECKED)
    assert found is not None
    step = DecodeRound.since(found, bookmark, CHECKED, rows, SpanSet())
    assert step.bookmark({}, {}, has_failed=False) is None
    decoded = step.chosen((), 100)
    assert (step.removed({}), step.removed(decoded)) == ({}, rows)
    after = step.bookmark(decoded, {}, has_failed=False)
    assert after is not None
    assert (after.pending, after.outdated) == (SpanSet(), SpanSet())
    assert after.removed == OffsetList(spans={"id-1": rows[Batch(1, "id-1")]})


@pytest.mark.parametrize("sequence", [1, 4])
def test_replaced_rows_of_rejected_plans_do_not_stay(sequence: int) -> None:
    """Neither if their own plan is rejected, nor if the plan that replaces them is."""
    _, bookmark = replaced_rounds(waiting=[4])
    rows = {Batch(1, "id-1"): {0: SpanSet.of([Span(10, 12)])}}
    plan = PLANS[0] if sequence == 1 else NEWER
    events = [*EVENTS, *REPLACED, [decided(plan, PublicationStatus.REJECTED)]]
    found = read_since(table_of(*events), "events", bookmark, CHECKED)
    assert found is not None
    step = DecodeRound.since(found, bookmark, CHECKED, rows, SpanSet())
    assert intersection(step.removed({}), rows) == rows
    after = step.bookmark({}, {}, has_failed=False)
    assert after is not None
    assert after.outdated == SpanSet()


def test_a_decode_from_scratch_leaves_all_plans_pending() -> None:
    found = read_all(table_of(*EVENTS), "events")
    cleared = cleared_bookmark(found, PublishRule.CHECKED)
    step = next_round(cleared)
    assert [batch.sequence for batch in step.chosen((), 100)] == [1, 2, 3]
    assert step.surplus == {}
    assert cleared_bookmark(read_all(table_of(), "events"), PublishRule.CHECKED) is None


def published(*sequences: int, of: int) -> MemoryControlTable:
    """Return the events of some plans, of which the given ones are published."""
    steps: list[list[ControlEvent]] = []
    for sequence in range(1, of + 1):
        plan = make_plan((0, 10 * sequence, 10 * sequence + 5), sequence=sequence)
        is_published = sequence in sequences
        status = PublicationStatus.PUBLISHED if is_published else PublicationStatus.REJECTED
        steps += [[Planned(plan=plan)], [landed(plan)], [decided(plan, status)]]
    return table_of(*steps)


def decoded_in_rounds(
    control: MemoryControlTable, first: Bookmark | None, examined: int, most: int
) -> list[int]:
    """Make rounds until none is needed, and return the decoded plans."""
    bookmark, typed = first, dict[Batch, Mapping[int, SpanSet]]()
    for _ in range(100):
        if bookmark is None:
            step = DecodeRound.compared(read_all(control, "events"), CHECKED, typed)
        else:
            plans = bookmark.pending.first(examined)
            found = read_since(control, "events", bookmark, CHECKED, plans)
            assert found is not None
            step = DecodeRound.since(found, bookmark, CHECKED, typed, plans)
        chosen = step.chosen((), most)
        new = step.bookmark(chosen, {}, has_failed=False)
        if new is None:
            return sorted(batch.sequence for batch in typed)
        bookmark, typed = new, {**typed, **chosen}
    raise AssertionError("the rounds do not end")


def test_pending_plans_that_are_not_required_stop_no_decode() -> None:
    """A round examines only some pending plans, for example after a decode from scratch."""
    control = published(4, 5, of=5)
    cleared = cleared_bookmark(read_all(control, "events"), CHECKED)
    assert decoded_in_rounds(control, cleared, examined=2, most=100) == [4, 5]


@pytest.mark.parametrize(("examined", "most"), [(2, 5), (6, 5), (50, 100)])
def test_more_runs_of_pending_plans_than_a_bookmark_has_stop_no_decode(
    monkeypatch: pytest.MonkeyPatch, examined: int, most: int
) -> None:
    for module in (bookmark_module, decode_round):
        monkeypatch.setattr(module, "MAX_RUNS", 3)
    odd = list(range(1, 21, 2))
    assert decoded_in_rounds(published(*odd, of=20), None, examined, most) == odd


def test_a_replay_lists_its_offsets() -> None:
    """Offsets of pending plans, and offsets that are not required, are not decoded again."""
    step = first_round()
    step = next_round(step.bookmark(step.chosen((2,), 100), {}, has_failed=True))
    part = {0: SpanSet.of([Span(12, 14)])}
    wanted = {Batch(1, "id-1"): part, Batch(2, "id-1"): part, Batch(7, "id-1"): part}
    replayed = step.replayed(wanted, {})
    assert replayed == {Batch(1, "id-1"): part}
    bookmark = step.bookmark({}, replayed, has_failed=False)
    assert bookmark is not None
    assert bookmark.decoded == bookmark.removed == OffsetList(spans={"id-1": part})
    assert (bookmark.pending, bookmark.changes_quarantine) == (SpanSet.of_numbers([2]), True)


def test_a_bookmark_lists_the_plans_that_its_spec_has_decoded_whole() -> None:
    """A changed spec starts again, also in a round that only removes rows, or by a replay."""

    def after(step: DecodeRound, most: int, replayed: BatchOffsets | None = None) -> Bookmark:
        decoded = step.chosen((), most) if most else {}
        bookmark = step.bookmark(decoded, replayed or {}, has_failed=False)
        assert bookmark is not None
        return bookmark

    first = after(first_round("one"), 5)
    assert (first.spec, first.decoded_by_spec) == ("one", SpanSet.of_numbers([1]))
    assert after(next_round(first, spec="one"), 5).decoded_by_spec == SpanSet.of_numbers([1, 2])
    other = after(next_round(first, spec="two"), 5)
    assert (other.spec, other.decoded_by_spec) == ("two", SpanSet.of_numbers([2]))
    again = {Batch(1, "id-1"): PLANS[0].spans()}
    replayed = after(next_round(first, spec="two"), 0, again)
    assert (replayed.spec, replayed.decoded_by_spec) == ("two", SpanSet())
    back = after(next_round(replayed, spec="one"), 5)
    assert (back.spec, back.decoded_by_spec) == ("one", SpanSet.of_numbers([2]))
    rejected = [decided(PLANS[0], PublicationStatus.REJECTED)]
    assert after(next_round(first, rejected, spec="two"), 0).decoded_by_spec == SpanSet()


def test_a_bookmark_lists_the_plans_of_an_unknown_spec_until_they_are_decoded_again() -> None:
    """A change by another program leaves the lists of specs, and a RESTORE does not."""
    found, rows = read_all(table_of(*EVENTS), "events"), {Batch(1, "id-1"): PLANS[0].spans()}

    def compared(noted: Bookmark | None) -> Bookmark:
        step = DecodeRound.compared(found, CHECKED, rows, "one", noted)
        bookmark = step.bookmark(step.chosen((), 5), {}, has_failed=False)
        assert bookmark is not None
        return bookmark

    first = first_round("one")
    noted = first.bookmark(first.chosen((), 5), {}, has_failed=False)
    known = compared(noted)
    assert (known.decoded_by_spec, known.unknown_spec) == (SpanSet.of_numbers([1, 2]), SpanSet())
    restored = compared(None)
    lists = (restored.decoded_by_spec, restored.unknown_spec)
    assert lists == (SpanSet.of_numbers([2]), SpanSet.of_numbers([1]))
    step = next_round(restored, spec="two")
    after = step.bookmark(step.chosen((), 100), {}, has_failed=False)
    assert after is not None
    lists = (after.decoded_by_spec, after.unknown_spec)
    assert lists == (SpanSet.of_numbers([3]), SpanSet.of_numbers([1]))
    step = next_round(cleared_bookmark(found, CHECKED, "two", restored), spec="two")
    after = step.bookmark(step.chosen((), 100), {}, has_failed=False)
    assert after is not None
    assert after.unknown_spec == SpanSet()


def test_a_bookmark_lists_the_newest_plans_of_its_spec_in_few_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (bookmark_module, decode_round):
        monkeypatch.setattr(module, "MAX_RUNS", 2)
    found = read_all(published(1, 3, 5, 7, of=7), "events")
    step = DecodeRound.compared(found, CHECKED, {}, "one")
    bookmark = step.bookmark(step.chosen((), 100), {}, has_failed=False)
    assert bookmark is not None
    assert bookmark.decoded_by_spec == SpanSet.of_numbers([5, 7])
    assert bookmark.unknown_spec == SpanSet.of_numbers([1, 3])
