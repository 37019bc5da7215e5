"""The invariants of derived tables, as predicates over a world.

F1 No offset is twice in the typed table.
F2 The typed table has no row of a place that the events up to its bookmark do not allow, except
   those of F9.
F3 If the quarantine has followed the typed table, each place that the bookmark claims is in one of
   them, unless another program deleted it.
F4 If the quarantine has followed the typed table, no place is in both, and the bookmark
   claims each entry.
F5 Following adds no row that another program deleted.
F6 The bookmark moves forward in one history, and not behind a decode that has ended.
F7 From each world, an operator and repeated decodes reach the end. Then both tables together have
   exactly the published rows, and the upsert table has the newest row of each key. Each row and
   entry is right for some rules.
F9 A commit removes no replaced row before its new row is decoded. Only such rows stay although the
   events up to the bookmark do not allow them, and a pending plan has their offsets.
F8 Only a first decode, or one after the typed table or the ledger was replaced by an older state,
   compares the typed table. A lost, restored or replaced quarantine brings no typed row back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from tests.model.actors import Done
from tests.model.follow_programs import (
    ALL,
    Decoder,
    changes_for_quarantine,
    claimed_at,
    last_decode,
    newest_rows,
    settle,
)
from tests.model.follow_world import (
    Bookmark,
    Change,
    FollowWorld,
    Kind,
    Place,
    Refused,
    decodes,
    view_of,
)
from tests.model.invariants import InvariantViolated


def check_world(world: FollowWorld) -> None:
    """Check F1 to F4.

    Raises:
        InvariantViolated: One of them does not hold.
    """
    counts = Counter(row.place.offset for row in world.typed.rows for _ in range(row.copies))
    twice = sorted(offset for offset, times in counts.items() if times > 1)
    _require(not twice, "F1", f"offsets that are in the typed table more than once: {twice}")
    wrong = [row for row in world.typed.rows if not decodes(row.place.offset, row.rules)]
    wrong += [p for p in world.quarantine.rows if p.offset not in (2, 3)]
    # Of rows that came back after another program had deleted them, the quarantine has entries with
    # the reason `decodable`.
    wrong = [row for row in wrong if row not in world.ever_deleted | world.lost]
    _require(not wrong, "F7", f"rows that no rules produce: {wrong}")
    keys = Counter(row.key for row in world.upsert.rows)
    more = sorted(key for key, times in keys.items() if times > 1)
    _require(not more, "F1", f"keys that are in the upsert table more than once: {more}")
    last = last_decode(world.typed, ALL)
    if last is not None:
        _check_bookmark(world, last.note)


def _check_bookmark(world: FollowWorld, bookmark: Bookmark) -> None:
    view = view_of(bookmark.history)
    allowed = view.allowed(bookmark.policy)
    typed = frozenset(row.place for row in world.typed.rows)
    required = view.required(bookmark.policy)
    waiting = {place.offset for place in required if place.plan in bookmark.pending}
    outdated = frozenset(
        place
        for place in typed - allowed
        if place.offset in waiting and place.plan not in view.withdrawn
    )
    extra = sorted(typed - allowed - outdated)
    _require(not extra, "F2", f"typed rows that event {bookmark.event} does not allow: {extra}")
    forgotten = sorted(place for place in outdated if place.plan not in bookmark.outdated)
    _require(not forgotten, "F9", f"replaced rows that no bookmark lists: {forgotten}")
    if changes_for_quarantine(world.typed, world.quarantine, ALL) != ():
        return
    entries: frozenset[Place] = world.quarantine.rows
    claimed = claimed_at(view, bookmark.policy, bookmark.pending)
    missing = sorted(claimed - typed - entries - world.deleted - world.lost)
    _require(not missing, "F3", f"claimed at event {bookmark.event}, and in no table: {missing}")
    both = sorted(typed & entries)
    _require(not both, "F4", f"in both tables at event {bookmark.event}: {both}")
    extra = sorted(entries - claimed)
    _require(not extra, "F4", f"entries not claimed at event {bookmark.event}: {extra}")


def check_step(before: FollowWorld, after: FollowWorld) -> None:
    """Check F5, F6, F8 and F9 for a step of Tidemark.

    Raises:
        InvariantViolated: One of them does not hold.
    """
    _require(after.events[: len(before.events)] == before.events, "I4", "an event changed")
    if after.typed.version <= before.typed.version:
        return
    commit = after.typed.commits[-1]
    if commit.change is not Change.DECODE:
        return
    bookmark: Bookmark = commit.note
    if bookmark.compared:
        first = all(each.change is not Change.DECODE for each in before.typed.commits)
        _require(before.disturbed or first, "F8", "a comparison of an undisturbed table")
    elif not bookmark.requested:
        back = {row.place for row in commit.rows - before.typed.rows} & before.deleted
        _require(not back, "F5", f"rows that another program deleted are back: {sorted(back)}")
    if bookmark.places or not bookmark.requested:
        _check_removed({row.place for row in before.typed.rows - commit.rows}, bookmark)
    earlier = [c.note.history for c in before.typed.log if c.change is Change.DECODE][-1:]
    for history in (*earlier, before.reported):
        if after.events[: len(history)] != history:
            continue
        newest = [n for n, event in enumerate(history, 1) if event.kind is not Kind.PLANNED]
        since = max(newest, default=0)
        _require(bookmark.event >= since, "F6", f"from event {since} back to {bookmark.event}")


def _check_removed(removed: set[Place], bookmark: Bookmark) -> None:
    view = view_of(bookmark.history)
    waiting = {place.offset for place in view.required(bookmark.policy) - bookmark.places}
    early = sorted(p for p in removed if p.offset in waiting and p.plan not in view.withdrawn)
    _require(not early, "F9", f"replaced rows that are removed before their new rows: {early}")


def check_end(_: FollowWorld, done: Done, errors: Container[str]) -> None:
    """Check that an actor ended with an expected error.

    Raises:
        InvariantViolated: It did not.
    """
    name = done.error.name if isinstance(done.error, Refused) else None
    _require(done.error is None or name in errors, "I7", f"{done.error!r} without a reason")


def check_progress(world: FollowWorld, decoder: Decoder) -> None:
    """Check that an operator and decodes can always reach the end (F7).

    Raises:
        InvariantViolated: They do not.
    """
    end = world.fork()
    try:
        settle(end, decoder)
    except AssertionError as error:
        raise InvariantViolated(f"F7: {error}") from error
    check_world(end)
    check_settled(end, decoder)


def check_settled(world: FollowWorld, decoder: Decoder) -> None:
    """Check a world after the end: every published record is in one of the tables.

    Raises:
        InvariantViolated: A record is missing, doubled or hidden, or a merge is wrong.
    """
    view = view_of(world.events)
    required, allowed = view.required(decoder.policy), view.allowed(decoder.policy)
    typed = frozenset(row.place for row in world.typed.rows)
    entries: frozenset[Place] = world.quarantine.rows
    missing = sorted(required - typed - entries - world.deleted - world.lost)
    _require(not missing, "F7", f"published, and in no table at the end: {missing}")
    both = sorted(typed & entries)
    _require(not both, "F7", f"in both tables at the end: {both}")
    extra = sorted((typed | entries) - allowed)
    _require(not extra, "F7", f"not published, and decoded at the end: {extra}")
    _require(world.upsert.rows == newest_rows(world.typed), "F7", "the upsert table is wrong")


def _require(holds: bool, invariant: str, broken: str) -> None:
    if not holds:
        raise InvariantViolated(f"{invariant}: {broken}")
