"""Programs over derived tables: the decoder, its guards, the merge, and the operator.

`decode` is the protocol of decision 28, step by step. Each guard is a field of `Guards`, so that a
test can remove one and let a search find the bug.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tests.model.follow_actors import (
    Bronze,
    Control,
    Derived,
    FollowProgram,
    Ports,
    divergence,
)
from tests.model.follow_world import (
    Bookmark,
    Change,
    Commit,
    CommitName,
    Events,
    FollowWorld,
    KeyRow,
    Kind,
    Place,
    Policy,
    Refused,
    Table,
    TypedRow,
    View,
    decodes,
    key_of,
    view_of,
)

MAX_ROUNDS = 12
"""Maximum number of rounds until an operator has settled a world."""

_FIXED_BY_A_REWIND = ("TableRestored", "LedgerBehindTable", "RepairUnfinished", "PlanFenced")

_VISIBLE = frozenset(Kind) - {Kind.PLANNED}
"""Kinds of events that may change which places belong in the typed table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """The rules of the protocol; a planted bug is one that is missing."""

    derived_first: bool = True
    """Each table is opened before the tables that it follows, and the ledger is read last."""
    bronze_compared: bool = True
    """The bronze table has the history of the ledger."""
    bronze_as_opened: bool = True
    """The rows are those of the compared version of the bronze table."""
    bronze_has_named: bool = True
    """The bronze table has each version that the ledger names."""
    replacement_awaited: bool = True
    """A plan whose rows an open plan may have replaced stays pending."""
    event_digest: bool = True
    """A bookmark names its event by number and digest."""
    policy_stored: bool = True
    """A bookmark has the policy of its decoder."""
    pending_stored: bool = True
    """A bookmark has the plans that a commit left for later."""
    commits_known: bool = True
    """After the last commit of a decoder, the typed table has no commit of an unknown kind."""
    present_left_out: bool = True
    """A place that the typed table has is not added."""
    allowed_removed: bool = True
    """All places that are no longer allowed are removed, not only required ones."""
    bookmark_moves: bool = True
    """A commit moves the bookmark past each visible event, even if it changes no row."""
    typed_exact: bool = True
    """The commit to the typed table follows the version that was read."""
    quarantine_last: bool = True
    """The quarantine gets entries after the commit to the typed table."""
    quarantine_exact: bool = True
    """A commit to the quarantine follows the version that was read."""
    quarantine_digest: bool = True
    """A commit to the quarantine names the typed table's commit by digest."""
    quarantine_commits_known: bool = True
    """After its last commit of a decoder, the quarantine has no commit of an unknown kind."""
    places_stored: bool = True
    """A commit to the typed table has the places that it decoded."""
    change_announced: bool = True
    """A commit to the typed table announces that the quarantine has to follow it."""
    replaced_kept: bool = True
    """A replaced row stays until its new row is decoded."""
    replaced_only: bool = True
    """A row that is no longer allowed stays only if it was replaced."""
    outdated_stored: bool = True
    """A bookmark has the plans with replaced rows that stay."""
    merge_digest: bool = True
    """A merge names the version of the typed table by number and digest."""
    merge_known: bool = True
    """A merge follows only commits of decoders and maintenance."""
    merge_exact: bool = True
    """A merge follows the version of the upsert table that was read."""


ALL = Guards()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A spec, and the requests of an operator.

    Attributes:
        rules: Number of the decoding rules.
        unreadable: Offsets whose schemas are not known, so that their plans have to wait.
        policy: Which landed offsets are decoded.
        plans: Maximum number of bronze plans of one commit.
        commits: Maximum number of rounds.
        again: Offsets to decode again after everything was followed.
        guards: The guards that it has.
    """

    rules: int = 1
    unreadable: frozenset[int] = frozenset()
    policy: Policy = Policy.CHECKED
    plans: int = 9
    commits: int = 3
    again: frozenset[int] = frozenset()
    guards: Guards = ALL


def bookmark_of(typed: Table, events: Events, guards: Guards) -> Bookmark | None:
    """Return the bookmark of the typed table; None if its rows have to be compared."""
    last = last_decode(typed, guards)
    if last is None:
        return None
    bookmark: Bookmark = last.note
    return bookmark if _is_in_history(bookmark, events, guards) else None


def last_decode(typed: Table, guards: Guards) -> Commit | None:
    for commit in reversed(typed.log):
        if commit.change is Change.DECODE:
            return commit
        if commit.change not in (Change.MAINTAIN, Change.DELETE) and guards.commits_known:
            return None
    return None


def _is_in_history(bookmark: Bookmark, events: Events, guards: Guards) -> bool:
    if len(events) < bookmark.event or bookmark.event == 0:
        return bookmark.event == 0
    return not guards.event_digest or events[bookmark.event - 1].digest == bookmark.digest


def changes_for_quarantine(
    typed: Table, quarantine: Table, guards: Guards
) -> tuple[Commit, ...] | None:
    """Return the commits to the typed table that the quarantine has not followed.

    Returns:
        Only commits that announce a change of entries; None if all entries have to be compared.
    """
    known: tuple[Change, ...] = (Change.MAINTAIN, Change.INDEX)
    last = None
    for commit in reversed(quarantine.log):
        if commit.change is Change.INDEX:
            last = commit
            break
        if commit.change not in known and guards.quarantine_commits_known:
            return None
    if last is None:
        return None
    later = _commits_after(typed, last.note, guards)
    if later is None:
        return None
    return tuple(c for c in later if c.change is Change.DECODE and c.note.announces)


def _commits_after(typed: Table, name: CommitName, guards: Guards) -> tuple[Commit, ...] | None:
    """Return the commits after a named one; None if the log does not have it."""
    if not typed.cleaned <= name.version <= typed.version:
        return None
    digest = typed.commits[name.version - 1].digest if name.version else 0
    if guards.quarantine_digest and digest != name.digest:
        return None
    if name.version == typed.cleaned and name.version:
        return None
    return typed.commits[name.version :]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """The tables and the ledger, as one round reads them."""

    typed: Table
    quarantine: Table
    bronze: Table
    events: Events


def _open(ports: Ports, guards: Guards) -> _Opened:
    if guards.derived_first:
        quarantine, typed = ports.quarantine.open(), ports.typed.open()
        bronze, events = ports.bronze.open(), ports.control.ledger()
    else:
        events, bronze = ports.control.ledger(), ports.bronze.open()
        typed, quarantine = ports.typed.open(), ports.quarantine.open()
    error = divergence(events, bronze)
    if error == "TableBehindLedger":
        if guards.bronze_has_named:
            # The ledger is newer than the opened version. The next attempt opens a newer one.
            raise Refused("Conflict")
    elif error and guards.bronze_compared:
        raise Refused(error)
    return _Opened(typed=typed, quarantine=quarantine, bronze=bronze, events=events)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """The places that a round has to change.

    Attributes:
        missing: Places to decode.
        surplus: Places to remove, now or later.
        claimed: Places that the bookmark claims.
        pending: Plans that the bookmark does not claim yet.
    """

    missing: frozenset[Place]
    surplus: frozenset[Place]
    claimed: frozenset[Place]
    pending: frozenset[int]


def _work(opened: _Opened, bookmark: Bookmark | None, decoder: Decoder) -> _Work:
    view, guards = view_of(opened.events), decoder.guards
    required, allowed = view.required(decoder.policy), view.allowed(decoder.policy)
    present = frozenset(row.place for row in opened.typed.rows)
    if bookmark is None:
        nothing: frozenset[Place] = frozenset()
        return _Work(
            missing=required - present,
            surplus=present - allowed,
            claimed=nothing,
            pending=frozenset(),
        )
    policy = bookmark.policy if guards.policy_stored else decoder.policy
    before = view_of(opened.events[: bookmark.event])
    claimed = claimed_at(before, policy, bookmark.pending)
    missing = required - claimed
    if guards.present_left_out:
        missing -= present
    left = before.allowed(policy) if guards.allowed_removed else before.required(policy)
    left |= frozenset(place for place in present if place.plan in bookmark.outdated)
    return _Work(missing=missing, surplus=left - allowed, claimed=claimed, pending=bookmark.pending)


def claimed_at(view: View, policy: Policy, pending: frozenset[int]) -> frozenset[Place]:
    """Return the places that a bookmark claims to be decoded."""
    return frozenset(place for place in view.required(policy) if place.plan not in pending)


def _outdated(
    work: _Work, view: View, chosen: frozenset[Place], guards: Guards
) -> frozenset[Place]:
    """Return the places to remove later, because their new rows are not decoded yet."""
    if not guards.replaced_kept:
        return frozenset()
    waiting = {place.offset for place in work.missing - chosen}
    withdrawn = view.withdrawn if guards.replaced_only else frozenset()
    return frozenset(
        place for place in work.surplus if place.offset in waiting and place.plan not in withdrawn
    )


def _replaced(view: View) -> frozenset[int]:
    """Return the offsets that open plans replace."""
    return frozenset(o for event in view.open if event.replaces for o in event.offsets)


def _chosen(
    work: _Work, opened: _Opened, decoder: Decoder, rows: Collection[Place]
) -> tuple[frozenset[Place], frozenset[int]]:
    """Return the places to decode in this commit, and the plans that stay pending."""
    replaced = _replaced(view_of(opened.events)) if decoder.guards.replacement_awaited else ()
    awaited = {
        place.plan
        for place in work.missing
        if (place not in rows and place.offset in replaced) or place.offset in decoder.unreadable
    }
    plans = sorted({place.plan for place in work.missing} - awaited)[: decoder.plans]
    chosen = frozenset(place for place in work.missing if place.plan in plans)
    pending = {place.plan for place in work.missing} - set(plans)
    return chosen, frozenset(pending)


def _round(ports: Ports, decoder: Decoder, again: frozenset[int] = frozenset()) -> Events | None:
    """Follow the ledger by one commit of the typed table, and let the quarantine follow.

    Returns:
        The events that were read, if nothing was left to do; None after a commit.
    """
    guards = decoder.guards
    opened = _open(ports, guards)
    if not opened.events:
        return opened.events
    bookmark = bookmark_of(opened.typed, opened.events, guards)
    work = _work(opened, bookmark, decoder)
    rows = opened.bronze.rows if guards.bronze_as_opened else ports.bronze.rows_now()
    chosen, pending = _chosen(work, opened, decoder, rows)
    required = view_of(opened.events).required(decoder.policy)
    present = frozenset(row.place for row in opened.typed.rows)
    repeated = frozenset(
        place
        for place in (present | opened.quarantine.rows) & required & rows
        if place.offset in again and place.plan not in pending
    )
    places = chosen | repeated
    decoded = frozenset(
        TypedRow(place, decoder.rules)
        for place in places & rows
        if decodes(place.offset, decoder.rules)
    )
    outdated = _outdated(work, view_of(opened.events), chosen, guards)
    surplus = work.surplus - outdated
    removed = frozenset(row for row in opened.typed.rows if row.place in surplus | repeated)
    unclaimed = work.claimed - claimed_at(view_of(opened.events), decoder.policy, pending)
    moved = bookmark is None or any(
        event.kind in _VISIBLE for event in opened.events[bookmark.event :]
    )
    moved |= bookmark is not None and bookmark.policy is not decoder.policy
    changed = bool(places or removed or surplus) or pending != work.pending or bookmark is None
    typed = opened.typed
    if changed or (moved and guards.bookmark_moves):
        number, stored = len(opened.events), opened.events
        if pending and not guards.pending_stored:
            # The bookmark stays where it was until the last chunk.
            number = bookmark.event if bookmark else 0
            stored = opened.events[:number]
        note = Bookmark(
            event=number,
            digest=stored[-1].digest if stored else 0,
            policy=decoder.policy,
            pending=pending if guards.pending_stored else frozenset(),
            outdated=frozenset(place.plan for place in outdated if guards.outdated_stored),
            places=places if guards.places_stored else frozenset(),
            announces=guards.change_announced
            and bool(repeated or unclaimed or bookmark is None or len(decoded) < len(places)),
            compared=bookmark is None,
            requested=bool(again),
            history=stored,
        )
        if not guards.quarantine_last:
            _index(ports, decoder, opened, rows, _after(typed, removed, decoded, note))
        typed = ports.typed.commit(
            typed, Change.DECODE, removed, decoded, note, exact=guards.typed_exact
        )
        if not guards.quarantine_last:
            return None
    elif not _needs_index(typed, opened.quarantine, guards):
        return opened.events
    _index(ports, decoder, opened, rows, typed)
    return None


def _after(
    typed: Table, removed: frozenset[TypedRow], decoded: frozenset[TypedRow], note: Bookmark
) -> Table:
    """Return the typed table as it will be; its last commit is not made yet."""
    rows = (typed.rows - removed) | decoded
    commit = Commit(change=Change.DECODE, rows=rows, note=note, digest=typed.digest)
    return Table(commits=(*typed.commits, commit), cleaned=typed.cleaned)


def _needs_index(typed: Table, quarantine: Table, guards: Guards) -> bool:
    return changes_for_quarantine(typed, quarantine, guards) != ()


def _index(
    ports: Ports, decoder: Decoder, opened: _Opened, rows: frozenset[Place], typed: Table
) -> None:
    """Let the quarantine follow the typed table.

    An entry is a place of the bronze table that the typed table claims and does not have.
    """
    guards = decoder.guards
    changes = changes_for_quarantine(typed, opened.quarantine, guards)
    last = last_decode(typed, guards)
    if changes == () or last is None:
        return
    bookmark: Bookmark = last.note
    view = view_of(opened.events)
    claimed = claimed_at(view, decoder.policy, bookmark.pending)
    present = frozenset(row.place for row in typed.rows)
    candidates = claimed
    if changes is not None:
        candidates &= frozenset(place for commit in changes for place in commit.note.places)
    entries = opened.quarantine.rows
    add = (candidates - present - entries) & rows
    drop = entries & present | entries - claimed
    followed = typed if guards.quarantine_last else opened.typed
    name = CommitName(version=followed.version, digest=followed.digest)
    ports.quarantine.commit(
        opened.quarantine, Change.INDEX, drop, add, name, exact=guards.quarantine_exact
    )


# -- programs ------------------------------------------------------------------------------------


def decode(decoder: Decoder) -> FollowProgram:
    """Return a decode until nothing is left to do, or until the maximum number of rounds."""

    def program(ports: Ports) -> bool:
        for _ in range(decoder.commits):
            followed = _round(ports, decoder)
            if followed is not None:
                ports.control.report(followed)
                if decoder.unreadable:
                    raise Refused("SchemaConflict")
                if decoder.again:
                    _round(ports, decoder, decoder.again)
                return True
        return False

    return program


def from_scratch(decoder: Decoder) -> FollowProgram:
    """Return the removal of all typed rows; the next decode follows from nothing."""

    def program(ports: Ports) -> None:
        opened = _open(ports, decoder.guards)
        if not opened.events:
            return
        places = view_of(opened.events).required(decoder.policy)
        note = Bookmark(
            event=len(opened.events),
            digest=opened.events[-1].digest,
            policy=decoder.policy,
            pending=frozenset(place.plan for place in places),
            outdated=frozenset(),
            places=frozenset(),
            announces=True,
            compared=False,
            requested=True,
            history=opened.events,
        )
        ports.typed.commit(opened.typed, Change.DECODE, opened.typed.rows, (), note)

    return program


def merge(guards: Guards = ALL) -> FollowProgram:
    """Return a merge of the upsert table, as decision 19 has it."""

    def program(ports: Ports) -> bool:
        upsert, typed = ports.upsert.open(), ports.typed.open()
        last = upsert.commits[-1] if upsert.commits else None
        since = _changes_for_merge(typed, last.note, guards) if last else None
        if since == frozenset():
            return False
        keys = {key_of(row.place.offset) for row in since or ()}
        newest = newest_rows(typed)
        removed = {
            row for row in upsert.rows if since is None or row.key in keys or row in newest
        } - newest
        added = {row for row in newest if since is None or row.key in keys}
        note = CommitName(version=typed.version, digest=typed.digest)
        ports.upsert.commit(upsert, Change.MERGE, removed, added, note, exact=guards.merge_exact)
        return True

    return program


def _changes_for_merge(
    typed: Table, note: CommitName, guards: Guards
) -> frozenset[TypedRow] | None:
    """Return the rows that changed since a merge; None if the table has to be rebuilt."""
    if typed.version < note.version:
        return None
    before = typed.commits[note.version - 1] if note.version else None
    if guards.merge_digest and note.digest != (before.digest if before else 0):
        return None
    if note.version < typed.cleaned:
        return None
    rows = before.rows if before else frozenset()
    later = typed.commits[note.version :]
    known = (Change.DECODE, Change.MAINTAIN)
    if guards.merge_known:
        if any(commit.change not in known for commit in later):
            return None
        return frozenset(rows ^ typed.rows) if later else frozenset()
    # A program that ignores what other programs did.
    changed: set[TypedRow] = set()
    for commit in later:
        changed |= rows ^ commit.rows if commit.change in known else set()
        rows = commit.rows
    return frozenset(changed)


def newest_rows(typed: Table) -> frozenset[KeyRow]:
    """Return the newest typed row of each key."""
    newest: dict[str, TypedRow] = {}
    for row in sorted(typed.rows, key=lambda row: row.place.offset):
        newest[key_of(row.place.offset)] = row
    return frozenset(KeyRow(key, row) for key, row in newest.items())


# -- the bronze side -----------------------------------------------------------------------------


def land(*offsets: int, replaces: bool = False, is_checked: bool = True) -> FollowProgram:
    """Return a landing, from plan to check."""

    def program(ports: Ports) -> None:
        plan = ports.control.plan(frozenset(offsets), replaces=replaces)
        ports.bronze.land(plan)
        ports.control.record_landed(plan)
        if is_checked:
            ports.control.decide(plan, shown=True)

    return program


def continue_landing(plan: int) -> FollowProgram:
    """Return the landing of an open plan."""

    def program(ports: Ports) -> None:
        ports.bronze.land(plan)
        ports.control.record_landed(plan)
        ports.control.decide(plan, shown=True)

    return program


def decide(plan: int, *decisions: bool) -> FollowProgram:
    """Return decisions about a plan, one after the other."""

    def program(ports: Ports) -> None:
        for shown in decisions:
            ports.control.decide(plan, shown=shown)

    return program


def undo(plan: int) -> FollowProgram:
    def program(ports: Ports) -> None:
        valid_for = ports.control.begin_undo(plan)
        ports.bronze.remove(plan, valid_for)
        ports.control.end_undo(plan)

    return program


def rewind() -> FollowProgram:
    def program(ports: Ports) -> None:
        ports.bronze.fence()
        ports.control.rewind()

    return program


def then(*programs: FollowProgram) -> FollowProgram:
    def program(ports: Ports) -> None:
        for one in programs:
            one(ports)

    return program


def external(port: str, method: str, *args: object) -> FollowProgram:
    """Return a step of another program or of an operator with other tools."""
    return lambda ports: getattr(getattr(ports, port), method)(*args)


# -- the operator --------------------------------------------------------------------------------


def direct(world: FollowWorld) -> Ports:
    """Return ports without interleaving."""
    return Ports(
        control=Control(world),
        bronze=Bronze(world),
        typed=Derived(world, "typed"),
        quarantine=Derived(world, "quarantine"),
        upsert=Derived(world, "upsert"),
    )


def settle(world: FollowWorld, decoder: Decoder) -> None:
    """Finish what actors left, check each plan, and decode and merge until nothing changes.

    Raises:
        AssertionError: Work is left after the maximum number of rounds.
    """
    ports = direct(world)
    for _ in range(MAX_ROUNDS):
        try:
            if not finish_bronze(world) and _round(ports, decoder) is not None:
                break
        except Refused as refused:
            raise AssertionError(f"the operator cannot fix {refused.name}") from refused
    else:
        raise AssertionError(f"not settled after {MAX_ROUNDS} rounds")
    merge(decoder.guards)(ports)


def finish_bronze(world: FollowWorld) -> bool:
    """Finish one thing on the bronze side as an operator does; return whether there was one."""
    ports = direct(world)
    try:
        if divergence(world.events, world.bronze):
            rewind()(ports)
            return True
        return _finish_plan(world, ports)
    except Refused as refused:
        if refused.name not in _FIXED_BY_A_REWIND:
            raise
        rewind()(ports)
        return True


def _finish_plan(world: FollowWorld, ports: Ports) -> bool:
    view = view_of(world.events)
    for event in view.open:
        ports.bronze.land(event.plan)
        ports.control.record_landed(event.plan)
        return True
    for plan in view.undoing:
        undo(plan)(ports)
        return True
    undecided = {place.plan for place in view.landed} - view.shown - view.hidden
    for plan in undecided:
        ports.control.decide(plan, shown=True)
        return True
    return False
