"""The world of derived tables: one ledger of events, and four Delta tables.

This models the protocol of decision 28, and does not use the code of the package. The bronze side
has only atomic transitions here, because `tests/model/world.py` checks its protocol.

A world has mutable fields with immutable values, so a copy is shallow. Each event and each commit
has a digest over everything before it. So two logs with the same digest are the same log.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple


class Place(NamedTuple):
    """An offset in the batch of a bronze plan; its record never changes."""

    plan: int
    offset: int


class TypedRow(NamedTuple):
    """A row of the typed table, or equal rows."""

    place: Place
    rules: int
    copies: int = 1


class KeyRow(NamedTuple):
    """A row of the upsert table."""

    key: str
    row: TypedRow


def decodes(offset: int, rules: int) -> bool:
    """Return whether rules can decode a record: 2 only with new rules, 3 only with old ones."""
    return {2: rules >= 2, 3: rules < 2}.get(offset, True)


def key_of(offset: int) -> str:
    return "b" if offset == 3 else "a"


class Refused(Exception):
    """A step that ends with a named error.

    Attributes:
        name: The name of the error.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __repr__(self) -> str:
        return f"Refused({self.name})"


# -- the ledger ----------------------------------------------------------------------------------


class Kind(StrEnum):
    """Kind of an event."""

    PLANNED = "planned"
    LANDED = "landed"
    DECIDED = "decided"
    UNDO_STARTED = "undo_started"
    UNDONE = "undone"
    REWOUND = "rewound"


@dataclass(frozen=True, kw_only=True, repr=False)
class Event:
    """An event of the pipeline.

    Attributes:
        kind: Its kind.
        plan: Number of its plan; 0 for `rewound`.
        offsets: Offsets of a plan.
        replaces: Whether a plan replaces landed offsets.
        shown: Whether a decision publishes the plan.
        version: Version of the bronze table of `landed` and `rewound`.
        held: The content of the bronze table at a rewind.
        content: Digest of the event alone.
        digest: Digest of the event and all events before it.
    """

    kind: Kind
    plan: int = 0
    offsets: frozenset[int] = frozenset()
    replaces: bool = False
    shown: bool = False
    version: int = 0
    held: frozenset[Place] = frozenset()
    content: int = 0
    digest: int = 0

    def __hash__(self) -> int:
        return self.digest

    def __repr__(self) -> str:
        return str(self.digest)


Events = tuple[Event, ...]


class Policy(StrEnum):
    """Which landed offsets belong in the typed table."""

    CHECKED = "checked"
    ALWAYS = "always"


@dataclass(frozen=True, kw_only=True)
class View:
    """The fold of the events of a ledger.

    Attributes:
        landed: Landed places, without plans that an undo removes.
        shown: Plans that the newest decision publishes.
        hidden: Plans that the newest decision hides.
        open: Planned and not landed plans.
        undoing: Plans whose undo has started.
        acknowledged: Newest version of the bronze table that a rewind has read.
        newest: Newest version of the bronze table that an event names.
        removed: Plans that an undo or a rewind has removed.
    """

    landed: frozenset[Place]
    shown: frozenset[int]
    hidden: frozenset[int]
    open: tuple[Event, ...]
    undoing: frozenset[int]
    acknowledged: int
    newest: int
    removed: frozenset[int]

    def required(self, policy: Policy) -> frozenset[Place]:
        """Return the places that the typed table or the quarantine must have."""
        if policy is Policy.ALWAYS:
            return self.landed
        return frozenset(place for place in self.landed if place.plan in self.shown)

    def allowed(self, policy: Policy) -> frozenset[Place]:
        """Return the places that may stay: also those of plans without any decision."""
        if policy is Policy.ALWAYS:
            return self.landed
        return frozenset(place for place in self.landed if place.plan not in self.hidden)

    @property
    def withdrawn(self) -> frozenset[int]:
        """Plans whose rows must not stay, even if their offsets are missing then."""
        return self.hidden | self.undoing | self.removed


@lru_cache(maxsize=100_000)
def view_of(events: Events) -> View:
    """Return the fold of events."""
    held: dict[int, set[int]] = {}
    planned: dict[int, Event] = {}
    decisions: dict[int, bool] = {}
    undoing: set[int] = set()
    removed: set[int] = set()
    acknowledged = newest = 0
    for event in events:
        newest = max(newest, event.version)
        match event.kind:
            case Kind.PLANNED:
                planned[event.plan] = event
            case Kind.LANDED:
                plan = planned.pop(event.plan)
                for other in held.values():
                    other -= plan.offsets if plan.replaces else set()
                held[event.plan] = set(plan.offsets)
            case Kind.DECIDED:
                decisions[event.plan] = event.shown
            case Kind.UNDO_STARTED:
                undoing.add(event.plan)
            case Kind.UNDONE:
                undoing.discard(event.plan)
                removed.add(event.plan)
                held.pop(event.plan, None)
            case Kind.REWOUND:
                removed |= held.keys()
                planned, held, undoing = {}, {}, set()
                for place in event.held:
                    held.setdefault(place.plan, set()).add(place.offset)
                removed -= held.keys()
                acknowledged = event.version
    return View(
        landed=frozenset(
            Place(plan, offset)
            for plan, offsets in held.items()
            if plan not in undoing
            for offset in offsets
        ),
        shown=frozenset(plan for plan, shown in decisions.items() if shown),
        hidden=frozenset(plan for plan, shown in decisions.items() if not shown),
        open=tuple(planned.values()),
        undoing=frozenset(undoing),
        acknowledged=acknowledged,
        newest=newest,
        removed=frozenset(removed),
    )


# -- tables --------------------------------------------------------------------------------------


class Change(StrEnum):
    """Kind of a commit."""

    LAND = "land"
    REMOVE = "remove"
    FENCE = "fence"
    DECODE = "decode"
    """A commit of a decoder to the typed table."""
    INDEX = "index"
    """A commit of a decoder to the quarantine."""
    MERGE = "merge"
    MAINTAIN = "maintain"
    """A commit that changes no row."""
    DELETE = "delete"
    """Rows that another program deletes."""
    RESTORE = "restore"


Rows = frozenset[Any]


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A version of a table.

    Attributes:
        change: Its kind.
        rows: The rows of the version.
        note: What its writer stored in it.
        digest: Digest of the commit and all commits before it.
    """

    change: Change
    rows: Rows
    note: Any
    digest: int


@dataclass(frozen=True, eq=False)
class Table:
    """A Delta table.

    Attributes:
        commits: Its versions, from version 1 on; a missing table has none.
        cleaned: Number of commits that the log no longer has.
    """

    commits: tuple[Commit, ...] = ()
    cleaned: int = 0

    @property
    def version(self) -> int:
        return len(self.commits)

    @property
    def rows(self) -> Rows:
        return self.commits[-1].rows if self.commits else frozenset()

    @property
    def digest(self) -> int:
        return self.commits[-1].digest if self.commits else 0

    @property
    def log(self) -> tuple[Commit, ...]:
        return self.commits[self.cleaned :]

    def __repr__(self) -> str:
        return f"{self.version}:{self.digest}:{self.cleaned}"


@dataclass(frozen=True, kw_only=True)
class Bookmark:
    """The metadata of a commit of a decoder to the typed table.

    Attributes:
        event: Number of the newest event that the table has followed.
        digest: Digest of that event.
        policy: The policy of the decoder.
        pending: Plans that the decoder left for a later commit.
        outdated: Plans with replaced rows that stay until a pending plan is decoded.
        places: The places that the commit decoded.
        announces: Whether entries of the quarantine may change.
        compared: Whether the decoder compared all offsets. For checks only.
        requested: Whether an operator requested this commit. For checks only.
        history: The events that the decoder read. For checks only.
    """

    event: int
    digest: int
    policy: Policy
    pending: frozenset[int]
    outdated: frozenset[int]
    places: frozenset[Place]
    announces: bool
    compared: bool
    requested: bool
    history: Events

    @property
    def _stored(self) -> tuple[Hashable, ...]:
        return (
            *(self.event, self.digest, self.policy, self.pending, self.outdated),
            *(self.places, self.announces, self.compared, self.requested),
        )

    def __hash__(self) -> int:
        return hash(self._stored)

    def __repr__(self) -> str:
        return repr(self._stored)


@dataclass(frozen=True, kw_only=True)
class CommitName:
    """The metadata of a commit to the quarantine or the upsert table.

    Attributes:
        version: The version of the typed table that it has followed.
        digest: The digest of that version.
    """

    version: int
    digest: int


@dataclass
class FollowWorld:
    """The ledger, the bronze table, the typed table, the quarantine and the upsert table.

    Attributes:
        events: The ledger.
        bronze, typed, quarantine, upsert: The tables.
        generation: Number of logs that were replaced by older ones. New digests depend on it, as
            times of events and commits do.
        next_plan: Number of the next plan; no number is used twice.
        deleted: Places whose typed rows another program deleted.
        ever_deleted: All places that were ever in `deleted`.
        lost: Places whose bronze rows another program deleted.
        reported: The events of the newest decode that ended with nothing left to do.
        disturbed: Whether the typed table, its log or the ledger was replaced by an older state.
    """

    events: Events = ()
    bronze: Table = field(default_factory=Table)
    typed: Table = field(default_factory=Table)
    quarantine: Table = field(default_factory=Table)
    upsert: Table = field(default_factory=Table)
    generation: int = 0
    next_plan: int = 1
    deleted: frozenset[Place] = frozenset()
    ever_deleted: frozenset[Place] = frozenset()
    lost: frozenset[Place] = frozenset()
    reported: Events = ()
    disturbed: bool = False

    @property
    def key(self) -> Hashable:
        """Return a value that is equal for equal worlds."""
        newest = self.events[-1].digest if self.events else 0
        tables = (self.bronze, self.typed, self.quarantine, self.upsert)
        logs = tuple((table.version, table.digest, table.cleaned) for table in tables)
        ghosts = (
            *(self.generation, self.next_plan, self.disturbed),
            *(self.deleted, self.ever_deleted, self.lost, self.reported),
        )
        return (len(self.events), newest, logs, ghosts)

    def fork(self) -> FollowWorld:
        """Return an independent copy."""
        return replace(self)

    # -- changes of tables -----------------------------------------------------------------------

    def append_commit(
        self, name: str, change: Change, rows: Iterable[Any], note: Any = None
    ) -> None:
        """Append a commit with these rows to a table."""
        table: Table = getattr(self, name)
        content = frozenset(rows)
        digest = hash((table.digest, change, content, note, self.generation))
        commit = Commit(change=change, rows=content, note=note, digest=digest)
        setattr(self, name, replace(table, commits=(*table.commits, commit)))

    def record(self, kind: Kind, **values: Any) -> None:
        """Append an event to the ledger."""
        before = self.events[-1].digest if self.events else 0
        bare = Event(kind=kind, **values)
        content = hash((kind, tuple(sorted(values.items(), key=lambda item: item[0]))))
        digest = hash((before, content, self.generation))
        self.events = (*self.events, replace(bare, content=content, digest=digest))


def commits_since(table: Table, seen: Table) -> tuple[Commit, ...] | None:
    """Return the commits after a version that was read; None if the version is another one."""
    if table.version < seen.version:
        return None
    if seen.version and table.commits[seen.version - 1].digest != seen.digest:
        return None
    return table.commits[seen.version :]
