"""The invariants of docs/design.md as predicates over a world.

They read the control table's rows as a person with SQL would, and compare them with the truth that
`ModelKafka` keeps. Nothing here asks the code under test what it thinks, but for one line: what it
takes for the committed offset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.model.actors import Done
from tests.model.world import Fate, World
from tidemark.core.errors import TidemarkError
from tidemark.core.event_rows import Row
from tidemark.ingest.executor import ExecutionResult
from tidemark.spec.model import StartPolicy

Offset = tuple[str, int, int]
"""Topic id, partition, offset."""


class InvariantViolated(AssertionError):
    """The message begins with the invariant's number."""


@dataclass
class PlanStory:
    """What the rows say about one plan.

    Attributes:
        planned: The `planned` rows.
        status: `open`, `landed`, `undo_started`, `abandoned` or `undone`.
        landed: The rows of its newest `landed` event.
        superseded: Rows of what it still holds once other plans have replaced the rest, by them.
        held: What it holds now: of those rows, or of its landing.
        was_replaced: Whether that is less than its landing.
        is_undone: Whether its rows were taken out by an undo and not by a RESTORE.
    """

    planned: list[Row] = field(default_factory=list)
    status: str = "open"
    landed: list[Row] = field(default_factory=list)
    superseded: dict[int, list[Row]] = field(default_factory=dict)
    held: list[Row] = field(default_factory=list)
    was_replaced: bool = False
    is_undone: bool = False

    @property
    def live(self) -> Iterator[Offset]:
        """Offsets that the plan holds, as often as its rows name them."""
        undoing = self.held if self.was_replaced else self.planned
        rows = {"open": self.planned, "landed": self.held, "undo_started": undoing}.get(
            self.status, []
        )
        topic_id = self.planned[0]["topic_id"]
        for row in rows:
            if "partition" in row:
                for offset in range(row["start_offset"], row["end_offset"]):
                    yield topic_id, row["partition"], offset


@dataclass
class Story:
    """What the control table's rows say about the pipeline.

    Attributes:
        plans: By number.
        starts: First offset to read, by topic id and partition.
        accepted: Offsets whose loss was accepted.
        untold: Plans that this epoch says something of and that the table no longer tells of.
    """

    plans: dict[int, PlanStory] = field(default_factory=dict)
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    accepted: set[Offset] = field(default_factory=set)
    untold: set[int] = field(default_factory=set)


_OF_PLANS = ("superseded", "landed", "abandoned", "undo_started", "undone")


def story_of(world: World) -> Story:
    """Fold the control table's rows in the order of their event numbers."""
    story = Story()
    for row in sorted(world.control.rows, key=lambda row: int(row["event_number"])):
        _fold(story, row)
    for plan in story.plans.values():
        plan.held = plan.landed
        for by, left in sorted(plan.superseded.items()):
            if _has_replaced(world, story.plans[by]):
                plan.held, plan.was_replaced = left, True
    return story


def _fold(story: Story, row: Row) -> None:
    event, sequence = row["event"], int(row.get("plan_sequence") or 0)
    if event in ("started", "new_incarnation"):
        story.starts[row["topic_id"], row["partition"]] = row["committed_offset"]
    elif event == "loss_accepted":
        lost = range(row["start_offset"], row["end_offset"])
        story.accepted |= {(row["topic_id"], row["partition"], o) for o in lost}
    elif event == "planned":
        story.plans.setdefault(sequence, PlanStory()).planned.append(row)
    elif event in _OF_PLANS and sequence not in story.plans:
        story.untold.add(sequence)
    elif event == "new_epoch" and row.get("missing_events"):
        story.untold.clear()
    elif event in _OF_PLANS:
        _tell(story.plans[sequence], row)


def _tell(plan: PlanStory, row: Row) -> None:
    """Fold one row about a plan."""
    event = row["event"]
    if event == "superseded":
        plan.superseded.setdefault(int(row["superseded_by"]), []).append(row)
        return
    if event == "landed":
        if plan.landed and plan.landed[0]["event_number"] != row["event_number"]:
            plan.landed, plan.superseded = [], {}
        plan.landed.append(row)
    plan.status = event
    plan.is_undone = event == "undone" and row.get("table_version") is not None


def _has_replaced(world: World, plan: PlanStory) -> bool:
    """Whether a plan's rows are in the place of others, or were until they were taken out."""
    if plan.status == "open":
        # Committed, and nobody has said so yet.
        return plan.planned[0]["fingerprint"] in {each for _, _, each in world.table.commits}
    return plan.status in ("landed", "undo_started") or plan.is_undone


def check_world(world: World) -> None:
    """Check what must hold in every state.

    Raises:
        InvariantViolated: Something does not.
    """
    story = story_of(world)
    for check in _ALWAYS:
        check(world, story)
    if not world.is_disturbed:
        for check in _UNDISTURBED:
            check(world, story)


def _i1_no_doubles(world: World, _: Story) -> None:
    held = Counter(row[:3] for row in world.table.rows)
    doubled = sorted(identity for identity, times in held.items() if times > 1)
    _hold(not doubled, "I1", f"rows that are in the table more than once: {doubled}")


def _i1_all_of_landed_ranges(world: World, story: Story) -> None:
    held = Counter(row[:3] for row in world.table.rows)
    for number, plan in story.plans.items():
        if plan.status != "landed":
            continue
        foreign = [row for row in world.table.foreign if row[3] == number]
        _hold(not foreign, "I1", f"plan {number} landed records of another incarnation: {foreign}")
        for identity in plan.live:
            fate = _fate(world, identity)
            found = held[identity]
            if fate is Fate.RECORD:
                broken = f"{identity} is in landed plan {number}, not in the table"
                _hold(found == 1 or _is_refused(world), "I1", broken)
            elif fate is not Fate.COMPACTED:
                _hold(found == 0, "I1", f"{identity} is {fate} and in the table")


def _i2_no_overlap(_: World, story: Story) -> None:
    holders: dict[Offset, int] = {}
    for number, plan in story.plans.items():
        for identity in plan.live:
            other = holders.setdefault(identity, number)
            if plan.status == "open" and number in story.plans[other].superseded:
                continue
            _hold(other == number, "I2", f"plans {other} and {number} both hold {identity}")
        seen = Counter(plan.live)
        _hold(max(seen.values(), default=1) == 1, "I2", f"plan {number} names an offset twice")


def _i3_committed_offset(world: World, story: Story) -> None:
    held = {row[:3] for row in world.table.rows}
    ledger = world.pipeline.ledger
    for partition in ledger.starts:
        topic_id = ledger.topic_id or ""
        committed = ledger.committed_offset(partition)
        for offset in range(story.starts[topic_id, partition], committed):
            identity = (topic_id, partition, offset)
            told = (
                identity in held
                or identity in story.accepted
                or _fate(world, identity) in (Fate.HOLE, Fate.COMPACTED)
            )
            broken = f"committed offset {committed} passed {identity}, which is nowhere"
            _hold(told or _is_refused(world), "I3", broken)
    for identity in story.accepted:
        low = world.kafka.truth[identity[:2]].low
        _hold(identity[2] < low, "I3", f"{identity} was accepted as lost and is there")


def _i4_effect_of_once(world: World, _: Story) -> None:
    landed = Counter(fingerprint for _, _, fingerprint in world.table.commits if fingerprint)
    twice = [fingerprint for fingerprint, times in landed.items() if times > 1]
    _hold(not twice, "I4", f"plans that were committed more than once: {twice}")


def _i5_table_is_the_truth(world: World, story: Story) -> None:
    """A landing names a version of the table that holds the plan: its commit, or a later look."""
    for number, plan in story.plans.items():
        if plan.status != "landed":
            continue
        version = plan.landed[0]["table_version"]
        _hold(1 <= version <= len(world.table.commits), "I5", f"there is no version {version}")
        _hold(
            _has_seen(world, plan.landed[0], version),
            "I5",
            f"plan {number} is recorded as landed in version {version}, which does not have it",
        )
        then, now = world.table.contents[version - 1], world.table.rows
        for content, told_by in ((then, plan.landed), (now, plan.held)):
            told: Counter[int] = Counter()
            for row in told_by:
                told[row.get("partition", -1)] += row.get("records", 0)
            rows = Counter(row[1] for row in content if row[3] == number)
            broken = f"plan {number} is told as {+told}, the table has {+rows}"
            _hold(+rows == +told or (content is now and _is_refused(world)), "I5", broken)


def _is_refused(world: World) -> bool:
    """Whether no command goes by the control table, because it has lost events.

    One from before an undo tells of rows that are not there any more.
    """
    return world.pipeline.ledger.missing_events > 0


def _has_seen(world: World, landed: Row, version: int) -> bool:
    """Whether the plan's commit is not after a version, or its log is gone: rows tell alone."""
    fingerprints = [fingerprint for _, _, fingerprint in world.table.commits]
    if landed["fingerprint"] in fingerprints:
        return fingerprints.index(landed["fingerprint"]) < version
    return bool(landed.get("records"))


def _i5_no_commit_of_what_was_given_up(world: World, story: Story) -> None:
    # Rows of a topic that was made again under its reader stay until `--discard` has ended.
    current = set(world.kafka.topic_ids.values())
    held = {row[3] for row in world.table.rows if row[0] in current}
    for number, plan in story.plans.items():
        gone = plan.status in ("abandoned", "undone")
        _hold(not (gone and number in held), "I5", f"plan {number} is {plan.status} and has rows")


_Check: TypeAlias = Callable[[World, Story], None]


def _i7_lost_events_are_noticed(world: World, story: Story) -> None:
    refused = _is_refused(world)
    _hold(refused or not story.untold, "I7", f"plans {story.untold} were lost, nobody notices")


_ALWAYS: tuple[_Check, ...] = (
    _i1_no_doubles,
    _i2_no_overlap,
    _i4_effect_of_once,
    _i7_lost_events_are_noticed,
)

_UNDISTURBED: tuple[_Check, ...] = (
    _i1_all_of_landed_ranges,
    _i3_committed_offset,
    _i5_table_is_the_truth,
    _i5_no_commit_of_what_was_given_up,
)
"""What a RESTORE breaks until a repair has followed it."""


def check_step(before: World, after: World) -> None:
    """Check what a step of Tidemark may change.

    Raises:
        InvariantViolated: A recorded event changed or was written over (I4), a version of the data
            table changed (I5), or Kafka did (I6).
    """
    kept = len(before.control.rows)
    _hold(after.control.rows[:kept] == before.control.rows, "I4", "a recorded event changed")
    newest = before.control.newest.get(before.spec.name, 0)
    numbers = {row["event_number"] for row in after.control.rows[kept:]}
    _hold(numbers <= {newest + 1}, "I4", f"event {newest} is followed by {sorted(numbers)}")
    commits = len(before.table.commits)
    _hold(after.table.commits[:commits] == before.table.commits, "I5", "the table's log changed")
    _hold(repr(after.kafka) == repr(before.kafka), "I6", "a step of Tidemark changed Kafka")


def check_end(world: World, done: Done, errors: Container[str]) -> None:
    """Check that an actor ended with an error that fits the world, and that a success is one.

    Args:
        world: As it is now.
        done: The end.
        errors: Names of the errors that fit.

    Raises:
        InvariantViolated: It is not so (I7).
    """
    error = done.error
    _hold(error is None or isinstance(error, TidemarkError), "I7", f"without a name: {error!r}")
    _hold(
        error is None or type(error).__name__ in errors, "I7", f"{type(error).__name__}, no reason"
    )
    if isinstance(done.result, ExecutionResult):
        number = done.result.plan.sequence
        story = story_of(world)
        status = "landed" if number in story.untold else story.plans[number].status
        _hold(status == "landed", "I7", f"plan {number} was reported landed: {status}")


def check_settled(world: World) -> None:
    """Check a world in which nothing is left to do: every record that can be read is there.

    Raises:
        InvariantViolated: A record is missing or doubled.
    """
    topic_id = world.kafka.topic_ids[world.spec.topic]
    held = Counter(row[:3] for row in world.table.rows)
    story = story_of(world)
    for (its_id, partition), truth in world.kafka.truth.items():
        if its_id != topic_id:
            continue
        first = truth.low
        if world.spec.start is not StartPolicy.EARLIEST:
            first = max(first, story.starts.get((topic_id, partition), 0))
        for offset in range(first, truth.stable):
            identity = (topic_id, partition, offset)
            if truth.fates[offset] is Fate.RECORD:
                _hold(held[identity] == 1, "I1", f"{identity}: {held[identity]} times at the end")
    still_open = [
        number for number, plan in story.plans.items() if plan.status in ("open", "undo_started")
    ]
    _hold(not still_open, "I7", f"plans that nobody can settle: {still_open}")


def _fate(world: World, identity: Offset) -> Fate:
    topic_id, partition, offset = identity
    return world.kafka.truth[topic_id, partition].fates[offset]


def _hold(holds: bool, invariant: str, broken: str) -> None:
    if not holds:
        raise InvariantViolated(f"{invariant}: {broken}")
