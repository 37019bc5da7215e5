"""Random histories of one pipeline: one rule for each kind of event.

A rule that starts a service creates an actor that is paused before its first call. Other rules
resume it for a few calls, let a call fail, or kill it, so every actor is a zombie until it is
resumed. To add a service, add a program to `_PROGRAMS`.

At most one fault of the topic or the tables is present until the operator has fixed it.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.model.actors import Actor, Call, Done, Fault, Program, faults_of
from tests.model.invariants import check_end, check_settled, check_step, check_world
from tests.model.programs import (
    abandon,
    accept_loss,
    accept_recreation,
    backfill,
    check,
    fill,
    ingest,
    plan,
    rebuild,
    reject,
    release,
    rewind,
    run,
    settle,
    undo,
)
from tests.model.world import Truth, World, make_world

MAX_PAUSED = 4
TOPIC = "events"

_EXPECTED = frozenset(
    {
        *("KafkaUnavailable", "EngineFailed", "ControlConflict", "TransactionConflict"),
        *("CommitNotFound", "PlanCancelled", "PlanCannotLand", "NothingToDo"),
        *("InvalidSelection", "PlanStillOpen", "RowsChanged", "NothingToDo"),
        *("InvalidSelection", "LostRange", "OffsetsDeleted", "BackfillAhead"),
        *("TopicRecreated", "EndBehindCommitted", "TopicChanged", "TableBehindLedger"),
        *("LedgerBehindTable", "RepairUnfinished", "RowsInDoubt"),
        # An operator abandons a plan whose undo has not ended.
        "UndoUnfinished",
    }
)

_numbers = st.integers(min_value=0, max_value=7)
_PROGRAMS: dict[str, Callable[[World, int, int], Program]] = {
    "plan": lambda _, requester, __: plan(f"run-{requester}"),
    "run": lambda _, requester, __: run(f"run-{requester}"),
    "ingest": lambda world, __, which: ingest(_some_plan(world, which)),
    "abandon": lambda world, __, which: abandon(_some_plan(world, which)),
    "discard": lambda world, __, which: abandon(_some_plan(world, which), discard=True),
    "backfill": lambda world, requester, which: _some_backfill(world, requester, which),
    "replace": lambda world, requester, which: _some_backfill(
        world, requester, which, replaces=True
    ),
    "undo": lambda world, __, which: undo(_some_plan(world, which)),
    "fill": lambda _, requester, which: fill(f"ask-{requester}", which + 1),
    "accept loss": lambda *_: accept_loss(),
    "accept recreation": lambda *_: accept_recreation(),
    "rewind": lambda *_: rewind(),
    "rebuild": lambda *_: rebuild(),
    "pass": lambda world, _, which: check(_some_plan(world, which), passes=True),
    "block": lambda world, _, which: check(_some_plan(world, which), passes=False),
    "release": lambda world, _, which: release(_some_plan(world, which)),
    "reject": lambda world, _, which: reject(_some_plan(world, which)),
}


def _some_plan(world: World, which: int) -> int:
    """Return the number of a plan; 0 selects the newest."""
    newest = max((row.get("plan_sequence") or 0 for row in world.control.rows), default=0)
    return max(1, newest - which)


def _some_backfill(world: World, requester: int, which: int, *, replaces: bool = False) -> Program:
    partition = which % len(world.kafka.topics[TOPIC])
    end = max(1, world.kafka.topics[TOPIC][partition].end)
    start = max(0, end - 1 - which)
    name = "replace" if replaces else "fill"
    return backfill(f"{name}-{requester}", partition, start, end, replaces=replaces)


class History(RuleBasedStateMachine):
    """One pipeline and all actors that access it."""

    def __init__(self) -> None:
        super().__init__()
        self.world = make_world((1, 0))
        self.paused: list[Actor] = []
        self.is_damaged = False
        self.steps = 0
        self.step_failed = False

    # -- Kafka -----------------------------------------------------------------------------------

    @rule(partition=_numbers, count=st.integers(1, 3))
    def produce(self, partition: int, count: int) -> None:
        self.world.kafka.produce(TOPIC, self._partition(partition), count)

    @rule(partition=_numbers, name=st.sampled_from("ab"), count=st.integers(1, 2))
    def produce_in_transaction(self, partition: int, name: str, count: int) -> None:
        self.world.kafka.produce_in_transaction(TOPIC, self._partition(partition), name, count)

    @precondition(lambda self: self._in_transactions())
    @rule(which=_numbers, commit=st.booleans())
    def end_transaction(self, which: int, commit: bool) -> None:
        open_transactions = self._in_transactions()
        partition, name = open_transactions[which % len(open_transactions)]
        self.world.kafka.end_transaction(TOPIC, partition, name, commit)

    @rule(partition=_numbers, back=_numbers)
    def compact(self, partition: int, back: int) -> None:
        number = self._partition(partition)
        offset = self._truth(number).stable - 1 - back
        if offset >= 0:
            self.world.kafka.compact(TOPIC, number, offset)

    @rule(partition=_numbers, back=_numbers)
    def delete_records(self, partition: int, back: int) -> None:
        """The low watermark rises at most to the last stable offset."""
        number = self._partition(partition)
        before = self._truth(number).stable - back
        if before > self._truth(number).low:
            self.world.kafka.delete_records(TOPIC, number, before)

    @rule(partition=_numbers)
    def elect(self, partition: int) -> None:
        self.world.kafka.elect(TOPIC, self._partition(partition))

    @precondition(lambda self: len(self.world.kafka.topics[TOPIC]) < 3)
    @rule()
    def add_partition(self) -> None:
        self.world.kafka.add_partition(TOPIC)

    @precondition(lambda self: not self.is_damaged)
    @rule(count=st.integers(0, 3))
    def recreate(self, count: int) -> None:
        self.is_damaged = True
        topic_id = f"{self.world.kafka.topic_ids[TOPIC]}'"
        self.world.kafka.create(TOPIC, len(self.world.kafka.topics[TOPIC]), topic_id)
        self.world.kafka.produce(TOPIC, 0, count)

    # -- the tables ------------------------------------------------------------------------------

    @precondition(lambda self: self.world.table.commits and not self.is_damaged)
    @rule(back=_numbers)
    def restore_table(self, back: int) -> None:
        self.is_damaged = True
        self.world.table.restore(max(0, len(self.world.table.commits) - 1 - back))

    @precondition(lambda self: self.world.control.rows and not self.is_damaged)
    @rule(back=_numbers)
    def restore_control(self, back: int) -> None:
        self.is_damaged = True
        name = self.world.spec.name
        self.world.control.restore(name, self.world.control.newest[name] - back)

    @precondition(lambda self: self.world.control.rows and not (self.is_damaged or self.paused))
    @rule()
    def remove_control(self) -> None:
        """No writer of the old table is alive."""
        self.is_damaged = True
        self.world.control.rows.clear()
        self.world.control.newest.clear()

    # -- Tidemark --------------------------------------------------------------------------------

    @precondition(lambda self: len(self.paused) < MAX_PAUSED)
    @rule(kind=st.sampled_from(sorted(_PROGRAMS)), requester=_numbers, which=st.integers(0, 3))
    def start(self, kind: str, requester: int, which: int) -> None:
        program = _PROGRAMS[kind](self.world, requester, which)
        self.paused.append(Actor(name=kind, program=program, spec=self.world.spec))

    @precondition(lambda self: len(self.paused) < MAX_PAUSED)
    @rule()
    def pause_before_the_commit(self) -> None:
        """A driver of the newest plan has read Kafka and commits when it is resumed."""
        program = ingest(_some_plan(self.world, 0))
        actor = Actor(name="zombie", program=program, spec=self.world.spec)
        self.paused.append(actor)
        while isinstance(actor.at, Call) and actor.at.method != "finish":
            self._step(actor)

    @rule(requester=_numbers)
    def run_undisturbed(self, requester: int) -> None:
        """Perform a whole scheduled run while all other actors are paused."""
        actor = Actor(name="run", program=run(f"run-{requester}"), spec=self.world.spec)
        self._resume(actor, calls=None)

    @precondition(lambda self: self.paused)
    @rule(which=_numbers, calls=st.integers(1, 12) | st.none())
    def resume(self, which: int, calls: int | None) -> None:
        self._resume(self._paused_actor(which), calls)

    @precondition(lambda self: self.paused)
    @rule(which=_numbers, calls=st.integers(0, 12), kind=_numbers)
    def fail(self, which: int, calls: int, kind: int) -> None:
        """Resume an actor for some calls, then let a call fail."""
        actor = self._paused_actor(which)
        self._resume(actor, calls)
        if isinstance(actor.at, Call):
            faults = faults_of(actor.at)
            if faults:
                self._step(actor, faults[kind % len(faults)])

    @precondition(lambda self: self.paused)
    @rule(which=_numbers)
    def kill(self, which: int) -> None:
        self.paused.remove(self._paused_actor(which))

    @rule()
    def settle_all(self) -> None:
        """Kill all actors, and let the operator work until nothing is left to do."""
        self.paused.clear()
        self.is_damaged = False
        settle(self.world)
        check_world(self.world)
        check_settled(self.world)

    @invariant()
    def holds(self) -> None:
        """Check I1 to I5."""
        check_world(self.world)

    def teardown(self) -> None:
        """Check that every history can be settled, unless a step has failed the test."""
        if not self.step_failed:
            self.settle_all()

    # -- helpers ---------------------------------------------------------------------------------

    def _resume(self, actor: Actor, calls: int | None) -> None:
        while isinstance(actor.at, Call) and calls != 0:
            self._step(actor)
            calls = None if calls is None else calls - 1

    def _step(self, actor: Actor, fault: Fault | None = None) -> None:
        before, self.step_failed = self.world.fork(), True
        actor.step(self.world, fault)
        self.steps += 1
        check_step(before, self.world)
        check_world(self.world)
        if isinstance(actor.at, Done):
            if actor in self.paused:
                self.paused.remove(actor)
            check_end(self.world, actor.at, _EXPECTED, began=actor.began)
        self.step_failed = False

    def _paused_actor(self, which: int) -> Actor:
        return self.paused[which % len(self.paused)]

    def _partition(self, number: int) -> int:
        return number % len(self.world.kafka.topics[TOPIC])

    def _truth(self, partition: int) -> Truth:
        return self.world.kafka.truth[self.world.kafka.topic_ids[TOPIC], partition]

    def _in_transactions(self) -> list[tuple[int, str]]:
        partitions = range(len(self.world.kafka.topics[TOPIC]))
        return [(p, name) for p in partitions for name in sorted(self._truth(p).open)]
