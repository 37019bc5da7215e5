"""The invariants of docs/explanation/design.md as predicates over a world.

They read the rows of the control table as a person with SQL does, and compare them with the truth
that `ModelKafka` stores. From the code under test they use only the committed offset and the
number of missing events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.model.actors import Done
from tests.model.programs import CheckEnd
from tests.model.world import Fate, World
from tidemark.bronze.ingest.executor import ExecutionResult
from tidemark.core.errors import TidemarkError
from tidemark.core.event_rows import Row
from tidemark.core.publication import PublicationStatus
from tidemark.spec.model import StartPolicy

Offset = tuple[str, int, int]
"""Topic id, partition, offset."""


class InvariantViolated(AssertionError):
    """The message begins with the invariant's number."""


@dataclass
class PlanHistory:
    """History of one plan according to the rows.

    Attributes:
        planned: The `planned` rows.
        status: `open`, `landed`, `undo_started`, `abandoned` or `undone`.
        landed: The rows of its newest `landed` event.
        superseded: Rows of its remaining ranges, by number of the plan that replaced others.
        held: Rows of its current ranges: of `superseded` if some were replaced, else `landed`.
        was_replaced: Whether other plans replaced some of its ranges.
        is_undone: Whether an undo removed its rows, and not a RESTORE.
        decided: Rows of decisions about its publication, without those of an earlier plan with the
            same number.
    """

    planned: list[Row] = field(default_factory=list)
    status: str = "open"
    landed: list[Row] = field(default_factory=list)
    superseded: dict[int, list[Row]] = field(default_factory=dict)
    held: list[Row] = field(default_factory=list)
    was_replaced: bool = False
    is_undone: bool = False
    decided: list[Row] = field(default_factory=list)

    @property
    def live(self) -> Iterator[Offset]:
        """Yield the current offsets of the plan, as often as its rows contain them."""
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
class PipelineHistory:
    """History of the pipeline according to the rows.

    Attributes:
        plans: The plans by number.
        starts: First offset to read, by topic id and partition.
        accepted: Offsets with an accepted loss.
        lost_plans: Plans of later events of this epoch whose `planned` event is missing.
    """

    plans: dict[int, PlanHistory] = field(default_factory=dict)
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    accepted: set[Offset] = field(default_factory=set)
    lost_plans: set[int] = field(default_factory=set)


_OF_PLANS = ("superseded", "landed", "abandoned", "undo_started", "undone")


def history_of(world: World) -> PipelineHistory:
    history = PipelineHistory()
    for row in sorted(world.control.rows, key=lambda row: int(row["event_number"])):
        _fold(history, row)
    for plan in history.plans.values():
        plan.held = plan.landed
        for by, remaining in sorted(plan.superseded.items()):
            if _has_replaced(world, history.plans[by]):
                plan.held, plan.was_replaced = remaining, True
    return history


def _fold(history: PipelineHistory, row: Row) -> None:
    event, sequence = row["event"], int(row.get("plan_sequence") or 0)
    if event in ("started", "recreation_accepted"):
        history.starts[row["topic_id"], row["partition"]] = row["committed_offset"]
    elif event == "loss_accepted":
        lost = range(row["start_offset"], row["end_offset"])
        history.accepted |= {(row["topic_id"], row["partition"], o) for o in lost}
    elif event == "planned":
        plan = history.plans.setdefault(sequence, PlanHistory())
        plan.planned.append(row)
        plan.decided.clear()
    elif event == "publication_decided" and sequence in history.plans:
        history.plans[sequence].decided.append(row)
    elif event in _OF_PLANS and sequence not in history.plans:
        history.lost_plans.add(sequence)
    elif event == "new_epoch" and row.get("missing_events"):
        history.lost_plans.clear()
    elif event in _OF_PLANS:
        _fold_plan(history.plans[sequence], row)


def _fold_plan(plan: PlanHistory, row: Row) -> None:
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


def _has_replaced(world: World, plan: PlanHistory) -> bool:
    """Return whether a plan's rows have replaced others, even if they were undone."""
    if plan.status == "open":
        # The plan may be committed and not recorded.
        return plan.planned[0]["fingerprint"] in {each for _, _, each in world.table.commits}
    return plan.status in ("landed", "undo_started") or plan.is_undone


def check_world(world: World) -> None:
    """Check what must hold in every state.

    Raises:
        InvariantViolated: Something does not.
    """
    history = history_of(world)
    for check in _ALWAYS:
        check(world, history)
    if not world.is_disturbed:
        for check in _UNDISTURBED:
            check(world, history)


def _i1_no_duplicates(world: World, _: PipelineHistory) -> None:
    counts = Counter(row[:3] for row in world.table.rows)
    duplicates = sorted(identity for identity, times in counts.items() if times > 1)
    _require(not duplicates, "I1", f"rows that are in the table more than once: {duplicates}")


def _i1_all_of_landed_ranges(world: World, history: PipelineHistory) -> None:
    counts = Counter(row[:3] for row in world.table.rows)
    for number, plan in history.plans.items():
        if plan.status != "landed":
            continue
        foreign = [row for row in world.table.foreign if row[3] == number]
        _require(
            not foreign, "I1", f"plan {number} landed records of another incarnation: {foreign}"
        )
        for identity in plan.live:
            fate = _fate(world, identity)
            count = counts[identity]
            if fate is Fate.RECORD:
                broken = f"{identity} is in landed plan {number}, not in the table"
                _require(count == 1 or _is_refused(world), "I1", broken)
            elif fate is not Fate.COMPACTED:
                _require(count == 0, "I1", f"{identity} is {fate} and in the table")


def _i2_no_overlap(_: World, history: PipelineHistory) -> None:
    holders: dict[Offset, int] = {}
    for number, plan in history.plans.items():
        for identity in plan.live:
            other = holders.setdefault(identity, number)
            if plan.status == "open" and number in history.plans[other].superseded:
                continue
            _require(other == number, "I2", f"plans {other} and {number} both hold {identity}")
        counts = Counter(plan.live)
        _require(max(counts.values(), default=1) == 1, "I2", f"plan {number} names an offset twice")


def _i3_committed_offset(world: World, history: PipelineHistory) -> None:
    landed = {row[:3] for row in world.table.rows}
    ledger = world.pipeline.ledger
    for partition in ledger.starts:
        topic_id = ledger.topic_id or ""
        committed = ledger.committed_offset(partition)
        for offset in range(history.starts[topic_id, partition], committed):
            identity = (topic_id, partition, offset)
            is_accounted_for = (
                identity in landed
                or identity in history.accepted
                or _fate(world, identity) in (Fate.GAP, Fate.COMPACTED)
            )
            broken = f"committed offset {committed} passed {identity}, which is not accounted for"
            _require(is_accounted_for or _is_refused(world), "I3", broken)
    for identity in history.accepted:
        low = world.kafka.truth[identity[:2]].low
        _require(identity[2] < low, "I3", f"{identity} was accepted as lost and is readable")


def _i4_effect_of_once(world: World, _: PipelineHistory) -> None:
    landed = Counter(fingerprint for _, _, fingerprint in world.table.commits if fingerprint)
    twice = [fingerprint for fingerprint, times in landed.items() if times > 1]
    _require(not twice, "I4", f"plans that were committed more than once: {twice}")


def _i5_table_is_the_truth(world: World, history: PipelineHistory) -> None:
    """A landing contains a version of the table with the plan: its commit or a later one."""
    for number, plan in history.plans.items():
        if plan.status != "landed":
            continue
        version = plan.landed[0]["table_version"]
        _require(1 <= version <= len(world.table.commits), "I5", f"there is no version {version}")
        _require(
            _contains_landing(world, plan.landed[0], version),
            "I5",
            f"plan {number} is recorded as landed in version {version}, which does not have it",
        )
        then, now = world.table.contents[version - 1], world.table.rows
        for content, events in ((then, plan.landed), (now, plan.held)):
            recorded: Counter[int] = Counter()
            for row in events:
                recorded[row.get("partition", -1)] += row.get("records", 0)
            rows = Counter(row[1] for row in content if row[3] == number)
            broken = f"plan {number} is recorded with {+recorded}, the table has {+rows}"
            _require(+rows == +recorded or (content is now and _is_refused(world)), "I5", broken)


def _is_refused(world: World) -> bool:
    """Return whether commands refuse the control table because it has lost events."""
    return world.pipeline.ledger.missing_events > 0


def _contains_landing(world: World, landed: Row, version: int) -> bool:
    """Return whether a version has the plan's commit, or only rows can show it."""
    fingerprints = [fingerprint for _, _, fingerprint in world.table.commits]
    if landed["fingerprint"] in fingerprints:
        return fingerprints.index(landed["fingerprint"]) < version
    return bool(landed.get("records"))


def _i5_no_rows_of_abandoned_plans(world: World, history: PipelineHistory) -> None:
    # Rows of a topic that was recreated during the read stay until `--discard` has completed.
    current = set(world.kafka.topic_ids.values())
    sequences = {row[3] for row in world.table.rows if row[0] in current}
    for number, plan in history.plans.items():
        is_removed = plan.status in ("abandoned", "undone")
        _require(
            not (is_removed and number in sequences),
            "I5",
            f"plan {number} is {plan.status} and has rows",
        )


_Check: TypeAlias = Callable[[World, PipelineHistory], None]


def _i7_lost_events_are_detected(world: World, history: PipelineHistory) -> None:
    refused = _is_refused(world)
    _require(
        refused or not history.lost_plans,
        "I7",
        f"plans {history.lost_plans} were lost and not detected",
    )


def _i7_decisions(world: World, history: PipelineHistory) -> None:
    """The newest decision of an operator is effective; without one, the newest check."""
    plans = world.pipeline.ledger.plans
    for number, plan in history.plans.items():
        decided = [row for row in plan.decided if row["requested_by"]] or plan.decided
        expected = (decided[-1]["event_number"], decided[-1]["status"]) if decided else None
        found = plans[number].decision
        seen = (found.number, found.status) if found else None
        _require(seen == expected, "I7", f"decision about plan {number}: {seen}, not {expected}")


_ALWAYS: tuple[_Check, ...] = (
    _i7_decisions,
    _i1_no_duplicates,
    _i2_no_overlap,
    _i4_effect_of_once,
    _i7_lost_events_are_detected,
)

_UNDISTURBED: tuple[_Check, ...] = (
    _i1_all_of_landed_ranges,
    _i3_committed_offset,
    _i5_table_is_the_truth,
    _i5_no_rows_of_abandoned_plans,
)
"""Checks that a RESTORE breaks until a repair."""


def check_step(before: World, after: World) -> None:
    """Check the changes of a step of Tidemark.

    Raises:
        InvariantViolated: A recorded event changed or was overwritten (I4), a version of the data
            table changed (I5), or Kafka changed (I6).
    """
    before_count = len(before.control.rows)
    _require(
        after.control.rows[:before_count] == before.control.rows, "I4", "a recorded event changed"
    )
    newest = before.control.newest.get(before.spec.name, 0)
    numbers = {row["event_number"] for row in after.control.rows[before_count:]}
    _require(numbers <= {newest + 1}, "I4", f"event {newest} is followed by {sorted(numbers)}")
    commits = len(before.table.commits)
    _require(after.table.commits[:commits] == before.table.commits, "I5", "the table's log changed")
    _require(repr(after.kafka) == repr(before.kafka), "I6", "a step of Tidemark changed Kafka")


def check_end(world: World, done: Done, errors: Container[str], began: int | None = None) -> None:
    """Check that an actor's error fits the world, and that a reported landing is recorded.

    Args:
        world: The current world.
        done: The end of the actor.
        errors: Names of the errors that fit.
        began: The newest event number before the actor began. Another actor may have undone the
            landing since. None if no other actor undoes it.

    Raises:
        InvariantViolated: The error does not fit, or the landing is not recorded (I7).
    """
    error = done.error
    _require(
        error is None or isinstance(error, TidemarkError), "I7", f"not a named error: {error!r}"
    )
    _require(
        error is None or type(error).__name__ in errors,
        "I7",
        f"{type(error).__name__} without a reason",
    )
    if isinstance(done.result, CheckEnd):
        _check_decision(world, done.result)
    if isinstance(done.result, ExecutionResult):
        number = done.result.plan.sequence
        found = _statuses(world, number, began)
        _require("landed" in found, "I7", f"plan {number} was reported landed: {', '.join(found)}")


def _statuses(world: World, number: int, began: int | None) -> list[str]:
    """Return the statuses of a plan from the event `began` on; without it, only the last one."""
    history, found = PipelineHistory(), list[str]()
    for row in sorted(world.control.rows, key=lambda row: int(row["event_number"])):
        _fold(history, row)
        if began is None or row["event_number"] <= began:
            found.clear()
        if number in history.lost_plans:
            found.append("landed")
        elif number in history.plans:
            found.append(history.plans[number].status)
    return found


def _check_decision(world: World, end: CheckEnd) -> None:
    """Check that no pass was recorded over a block that was recorded during its check."""
    blocks = [
        row["event_number"]
        for row in world.control.rows
        if (row["event"], row.get("plan_sequence")) == ("publication_decided", end.sequence)
        and row["status"] == PublicationStatus.BLOCKED
    ]
    over = [number for number in blocks if end.began < number < (end.recorded or 0)]
    _require(
        not (end.passes and over),
        "I7",
        f"the pass {end.recorded} of plan {end.sequence} overrides the concurrent block {over}",
    )


def check_settled(world: World) -> None:
    """Check a world in which nothing is left to do: every readable record has landed.

    Raises:
        InvariantViolated: A record is missing or doubled.
    """
    topic_id = world.kafka.topic_ids[world.spec.topic]
    counts = Counter(row[:3] for row in world.table.rows)
    history = history_of(world)
    for (its_id, partition), truth in world.kafka.truth.items():
        if its_id != topic_id:
            continue
        first = truth.low
        if world.spec.start is not StartPolicy.EARLIEST:
            first = max(first, history.starts.get((topic_id, partition), 0))
        for offset in range(first, truth.stable):
            identity = (topic_id, partition, offset)
            if truth.fates[offset] is Fate.RECORD:
                _require(
                    counts[identity] == 1, "I1", f"{identity}: {counts[identity]} times at the end"
                )
    still_open = [
        number for number, plan in history.plans.items() if plan.status in ("open", "undo_started")
    ]
    _require(not still_open, "I7", f"plans that cannot be settled: {still_open}")


def _fate(world: World, identity: Offset) -> Fate:
    topic_id, partition, offset = identity
    return world.kafka.truth[topic_id, partition].fates[offset]


def _require(holds: bool, invariant: str, broken: str) -> None:
    if not holds:
        raise InvariantViolated(f"{invariant}: {broken}")
