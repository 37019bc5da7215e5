"""Actors over the world of derived tables: the ports, and the answers to their calls.

An actor stops before each call of a port, as in `tests/model/actors.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from tests.model.actors import Answer, Call, Done, Port, Script, resume_over
from tests.model.follow_world import (
    Bookmark,
    Change,
    CommitName,
    Event,
    Events,
    FollowWorld,
    Kind,
    Place,
    Policy,
    Refused,
    Table,
    commits_since,
    view_of,
)


@dataclass(frozen=True, slots=True)
class Ports:
    """The ledger and the tables, as a program sees them."""

    control: Any
    bronze: Any
    typed: Any
    quarantine: Any
    upsert: Any


FollowProgram: TypeAlias = Callable[[Ports], object]


def resume(program: FollowProgram, _: FollowWorld, answers: tuple[Answer, ...]) -> Call | Done:
    """Return the next call of a program after these answers, or its end."""
    return resume_over(program, _ports, answers)


def _ports(script: Script) -> Ports:
    names = ("control", "bronze", "typed", "quarantine", "upsert")
    return Ports(*(Port(name, script) for name in names))


def perform(world: FollowWorld, call: Call) -> Answer:
    """Perform a step, which may change the world."""
    port = {"control": Control, "bronze": Bronze}.get(call.port)
    acting: Any = port(world) if port else Derived(world, call.port)
    try:
        return Answer(getattr(acting, call.method)(*call.args, **dict(call.kwargs)))
    except Refused as refused:
        return Answer(error=refused)


def divergence(events: Events, bronze: Table) -> str | None:
    """Return the error of a ledger and a bronze table with different histories; None without one.

    This is the comparison of decision 6.
    """
    view = view_of(events)
    if view.newest > bronze.version:
        return "TableBehindLedger"
    planned = {event.plan for event in events if event.kind is Kind.PLANNED}
    for commit in bronze.commits[view.acknowledged :]:
        match commit.change:
            case Change.RESTORE:
                return "TableRestored"
            case Change.FENCE:
                return "RepairUnfinished"
            case Change.LAND if commit.note not in planned:
                return "LedgerBehindTable"
            case Change.REMOVE if commit.note not in view.undoing | view.removed:
                return "LedgerBehindTable"
    return None


@dataclass(frozen=True, slots=True)
class Control:
    """The ledger. Each method is one compare-and-set, repeated until it succeeds."""

    world: FollowWorld

    def ledger(self) -> Events:
        return self.world.events

    def plan(self, offsets: frozenset[int], *, replaces: bool = False) -> int:
        """Record a plan, and return its number."""
        self._check()
        view = view_of(self.world.events)
        landed = {place.offset for place in view.landed}
        planned = {offset for event in view.open for offset in event.offsets}
        covered = landed | planned | {row.offset for row in self.world.bronze.rows}
        if offsets & (planned if replaces else covered) or (replaces and offsets - landed):
            raise Refused("InvalidSelection")
        number = self.world.next_plan
        self.world.next_plan += 1
        self.world.record(Kind.PLANNED, plan=number, offsets=offsets, replaces=replaces)
        return number

    def record_landed(self, plan: int) -> None:
        """Record an open plan that the bronze table has."""
        self._check()
        view, bronze = view_of(self.world.events), self.world.bronze
        commits = bronze.commits
        versions = [
            n for n, c in enumerate(commits, 1) if (c.change, c.note) == (Change.LAND, plan)
        ]
        if not versions or plan not in {event.plan for event in view.open}:
            raise Refused("PlanNotLanded")
        self.world.record(Kind.LANDED, plan=plan, version=versions[-1])

    def decide(self, plan: int, *, shown: bool) -> None:
        """Record a result of a check, or an operator's decision."""
        if plan not in {place.plan for place in view_of(self.world.events).landed}:
            raise Refused("PlanNotLanded")
        self.world.record(Kind.DECIDED, plan=plan, shown=shown)

    def begin_undo(self, plan: int) -> int:
        """Record the start of an undo; return what its removal is valid for."""
        self._check()
        view = view_of(self.world.events)
        if plan not in view.undoing:
            if plan not in {place.plan for place in view.landed}:
                raise Refused("PlanNotLanded")
            self.world.record(Kind.UNDO_STARTED, plan=plan)
        return Bronze(self.world).fences

    def end_undo(self, plan: int) -> None:
        self._check()
        rows = self.world.bronze.rows
        if plan in view_of(self.world.events).undoing and plan not in {row.plan for row in rows}:
            self.world.record(Kind.UNDONE, plan=plan)

    def rewind(self) -> None:
        """Record the content of the fenced bronze table: a rewind or a rebuild."""
        view, bronze = view_of(self.world.events), self.world.bronze
        if not any(each.change is Change.FENCE for each in bronze.commits[view.acknowledged :]):
            raise Refused("NothingToDo")
        newest: dict[int, Place] = {}
        for place in sorted(bronze.rows):
            newest[place.offset] = place  # A newer plan has the offset, not an older one.
        held = frozenset(newest.values())
        self.world.record(Kind.REWOUND, version=bronze.version, held=held)

    def report(self, events: Events) -> None:
        """Note that a decode has ended with nothing left to do. Writes nothing in reality."""
        reported = self.world.reported
        if len(events) > len(reported) or events != reported[: len(events)]:
            self.world.reported = events

    def restore(self, number: int) -> None:
        """Replace the ledger by a backup with this number of events."""
        if number < len(self.world.events):
            self.world.events = self.world.events[:number]
            self.world.generation += 1
            self.world.disturbed = True

    def _check(self) -> None:
        error = divergence(self.world.events, self.world.bronze)
        if error:
            raise Refused(error)


@dataclass(frozen=True, slots=True)
class Bronze:
    """The bronze table."""

    world: FollowWorld

    @property
    def fences(self) -> int:
        return sum(each.change is Change.FENCE for each in self.world.bronze.commits)

    def open(self) -> Table:
        return self.world.bronze

    def rows_now(self) -> frozenset[Place]:
        """Return the newest rows, which a decoder with a planted bug reads."""
        return self.world.bronze.rows

    def land(self, plan: int) -> None:
        """Commit the rows of a plan once; remove the rows that it replaces."""
        commits = self.world.bronze.commits
        if any((each.change, each.note) == (Change.LAND, plan) for each in commits):
            return
        if any(each.change is Change.FENCE and each.note >= plan for each in commits):
            raise Refused("PlanFenced")
        event = _planned(self.world.events, plan)
        rows = self.world.bronze.rows
        if event.replaces:
            rows = frozenset(row for row in rows if row.offset not in event.offsets)
        new = {Place(plan, offset) for offset in event.offsets}
        self.world.append_commit("bronze", Change.LAND, rows | new, plan)

    def remove(self, plan: int, fences: int) -> None:
        """Remove the rows of a plan."""
        if self.fences != fences:
            raise Refused("RemovalFenced")
        rows = self.world.bronze.rows
        kept = {row for row in rows if row.plan != plan}
        if kept != rows:
            self.world.append_commit("bronze", Change.REMOVE, kept, plan)

    def fence(self) -> None:
        """Let no plan with an existing number land, and no undo that has started remove rows."""
        rows, newest = self.world.bronze.rows, self.world.next_plan - 1
        self.world.append_commit("bronze", Change.FENCE, rows, newest)

    def restore(self, version: int) -> None:
        restore(self.world, "bronze", version)

    def delete(self, place: Place) -> None:
        """Another program deletes a row."""
        rows = self.world.bronze.rows
        if place in rows:
            self.world.append_commit("bronze", Change.DELETE, rows - {place})
            self.world.lost |= {place}


def _planned(events: Events, plan: int) -> Event:
    for event in events:
        if (event.kind, event.plan) == (Kind.PLANNED, plan):
            return event
    raise Refused("InvalidSelection")


def restore(world: FollowWorld, name: str, version: int) -> None:
    """Commit the rows of an earlier version again; 0 is an empty table."""
    table: Table = getattr(world, name)
    if version < table.version:
        rows = table.commits[version - 1].rows if version else frozenset()
        world.append_commit(name, Change.RESTORE, rows)


@dataclass(frozen=True, slots=True)
class Derived:
    """The typed table, the quarantine, or the upsert table."""

    world: FollowWorld
    name: str

    @property
    def table(self) -> Table:
        table: Table = getattr(self.world, self.name)
        return table

    def open(self) -> Table:
        return self.table

    def commit(
        self,
        seen: Table,
        change: Change,
        remove: Collection[Any],
        add: Collection[Any],
        note: Bookmark | CommitName,
        *,
        exact: bool = True,
    ) -> Table:
        """Commit a change that was computed from a version, and return the table after it.

        Args:
            seen: The version.
            change: Kind of the commit.
            remove: Rows to remove, if the table has them.
            add: Rows to add.
            note: What the commit stores.
            exact: Whether only commits without a change of rows may follow the version.

        Raises:
            Refused: Another commit came first (`Conflict`).
        """
        since = commits_since(self.table, seen)
        if exact and (since is None or any(c.change is not Change.MAINTAIN for c in since)):
            raise Refused("Conflict")
        rows = self.table.rows - frozenset(remove)
        twice = {row._replace(copies=2) for row in rows & frozenset(add) if change is Change.DECODE}
        rows |= frozenset(add) | twice
        if isinstance(note, Bookmark):
            self._account(note)
        self.world.append_commit(self.name, change, rows, note)
        return self.table

    def _account(self, bookmark: Bookmark) -> None:
        """Remove deleted rows that may come back with this commit."""
        allowed = view_of(bookmark.history).allowed(bookmark.policy)
        if bookmark.compared:
            self.world.deleted = frozenset()
        elif bookmark.requested:
            self.world.deleted = frozenset(
                place
                for place in self.world.deleted - bookmark.places
                if place.plan not in bookmark.pending
            )
        self.world.deleted &= allowed

    def maintain(self) -> None:
        self.world.append_commit(self.name, Change.MAINTAIN, self.table.rows)

    def delete(self, place: Place) -> None:
        """Another program deletes a row of the typed table."""
        rows = self.table.rows
        kept = {row for row in rows if row.place != place}
        if kept != rows:
            self.world.append_commit(self.name, Change.DELETE, kept)
            self.world.deleted |= {place}
            self.world.ever_deleted |= {place}

    def restore(self, version: int) -> None:
        restore(self.world, self.name, version)
        self._disturb()

    def copy(self, version: int) -> None:
        """Replace the files of the table by an older copy of them."""
        if version < self.table.version:
            older = Table(commits=self.table.commits[:version])
            setattr(self.world, self.name, older)
            self.world.generation += 1
            self._disturb()
            if self.name == "typed":
                self._limit_deletions()

    def _limit_deletions(self) -> None:
        """Let the rows count as deleted that the log of a copy has deleted and its rows lack."""
        commits = self.table.commits
        bookmarks = [each.note for each in commits if isinstance(each.note, Bookmark)]
        view = view_of(bookmarks[-1].history if bookmarks else ())
        policy = bookmarks[-1].policy if bookmarks else Policy.CHECKED
        pending = bookmarks[-1].pending if bookmarks else frozenset()
        gone = [
            row.place
            for before, commit in pairwise(commits)
            if commit.change is Change.DELETE
            for row in before.rows - commit.rows
        ]
        present = {row.place for row in self.table.rows}
        self.world.deleted = frozenset(
            place
            for place in view.allowed(policy).intersection(gone)
            if place.plan not in pending and place not in present
        )

    def clean_log(self) -> None:
        """Remove all commits before the newest one from the log."""
        table = self.table
        setattr(self.world, self.name, Table(table.commits, max(0, table.version - 1)))
        self._disturb()

    def _disturb(self) -> None:
        self.world.disturbed |= self.name == "typed"
