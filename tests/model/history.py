"""Random histories: everything that can happen to one pipeline, one rule for each kind of event.

A rule that starts something of Tidemark's makes an actor, asleep before its first call. Other rules
wake it for a few calls, let one fail, or kill it; so every actor is a zombie until it is woken. To
add a service, add a program to `_PROGRAMS`.

One thing goes wrong with the topic or the tables at a time, until the operator has put it right.
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
    backfill,
    fill,
    ingest,
    new_incarnation,
    plan,
    rebuild,
    rewind,
    run,
    settle,
    undo,
)
from tests.model.world import Truth, World, make_world

MOST_ASLEEP = 4
TOPIC = "events"

_FORESEEN = frozenset(
    {
        *("KafkaUnavailable", "EngineFailed", "ControlConflict", "TransactionConflict"),
        *(
            "CommitNotFound",
            "PlanAbandoned",
            "PlanFenced",
            "PlanLanded",
            "UnknownPlan",
            "UnknownBackfill",
            "BackfillOpen",
            "PlanNotLanded",
            "InvalidRange",
            "RowsChanged",
            "RowsWouldBeLost",
        ),
        *("LostRange", "OffsetsDeleted", "PlanStillOpen", "BackfillAhead"),
        *("TopicRecreated", "EndBehindCommitted", "PartitionsShrunk"),
        *("TableRestored", "LedgerBehindTable", "NothingToDo"),
        *("ControlTruncated", "RepairUnfinished", "RowsInDoubt"),
    }
)

_numbers = st.integers(min_value=0, max_value=7)
_PROGRAMS: dict[str, Callable[[World, int, int], Program]] = {
    "plan": lambda _, asked, __: plan(f"run-{asked}"),
    "run": lambda _, asked, __: run(f"run-{asked}"),
    "ingest": lambda world, __, which: ingest(_some_plan(world, which)),
    "give up": lambda world, __, which: abandon(_some_plan(world, which)),
    "discard": lambda world, __, which: abandon(_some_plan(world, which), discard=True),
    "backfill": lambda world, asked, which: _some_backfill(world, asked, which),
    "replace": lambda world, asked, which: _some_backfill(world, asked, which, replaces=True),
    "undo": lambda world, __, which: undo(_some_plan(world, which)),
    "fill": lambda _, asked, which: fill(f"ask-{asked}", which + 1),
    "accept loss": lambda *_: accept_loss(),
    "new incarnation": lambda *_: new_incarnation(),
    "rewind": lambda *_: rewind(),
    "rebuild": lambda *_: rebuild(),
}


def _some_plan(world: World, which: int) -> int:
    """A plan's number, the newest for 0."""
    newest = max((row.get("plan_sequence") or 0 for row in world.control.rows), default=0)
    return max(1, newest - which)


def _some_backfill(world: World, asked: int, which: int, *, replaces: bool = False) -> Program:
    """A range somewhere in a partition, for the requester of that number."""
    partition = which % len(world.kafka.topics[TOPIC])
    end = max(1, world.kafka.topics[TOPIC][partition].end)
    start = max(0, end - 1 - which)
    name = "replace" if replaces else "fill"
    return backfill(f"{name}-{asked}", partition, start, end, replaces=replaces)


class History(RuleBasedStateMachine):
    """One pipeline and everybody who touches it."""

    def __init__(self) -> None:
        super().__init__()
        self.world = make_world((1, 0))
        self.asleep: list[Actor] = []
        self.in_trouble = False
        self.steps = 0
        self.step_failed = False

    # -- Kafka -----------------------------------------------------------------------------------

    @rule(partition=_numbers, count=st.integers(1, 3))
    def produce(self, partition: int, count: int) -> None:
        """Records arrive."""
        self.world.kafka.produce(TOPIC, self._partition(partition), count)

    @rule(partition=_numbers, name=st.sampled_from("ab"), count=st.integers(1, 2))
    def produce_in_transaction(self, partition: int, name: str, count: int) -> None:
        """Records of a transaction arrive; it stays open."""
        self.world.kafka.produce_in_transaction(TOPIC, self._partition(partition), name, count)

    @precondition(lambda self: self._in_transactions())
    @rule(which=_numbers, commit=st.booleans())
    def end_transaction(self, which: int, commit: bool) -> None:
        """A transaction ends."""
        there = self._in_transactions()
        partition, name = there[which % len(there)]
        self.world.kafka.end_transaction(TOPIC, partition, name, commit)

    @rule(partition=_numbers, back=_numbers)
    def compact(self, partition: int, back: int) -> None:
        """Compaction takes a stable record."""
        number = self._partition(partition)
        offset = self._truth(number).stable - 1 - back
        if offset >= 0:
            self.world.kafka.compact(TOPIC, number, offset)

    @rule(partition=_numbers, back=_numbers)
    def delete_records(self, partition: int, back: int) -> None:
        """Retention moves the low watermark, at most to the last stable offset."""
        number = self._partition(partition)
        before = self._truth(number).stable - back
        if before > self._truth(number).low:
            self.world.kafka.delete_records(TOPIC, number, before)

    @rule(partition=_numbers)
    def elect(self, partition: int) -> None:
        """Another leader takes over, with the same log."""
        self.world.kafka.elect(TOPIC, self._partition(partition))

    @precondition(lambda self: len(self.world.kafka.topics[TOPIC]) < 3)
    @rule()
    def add_partition(self) -> None:
        """The topic grows."""
        self.world.kafka.add_partition(TOPIC)

    @precondition(lambda self: not self.in_trouble)
    @rule(count=st.integers(0, 3))
    def recreate(self, count: int) -> None:
        """The topic is deleted and made again."""
        self.in_trouble = True
        topic_id = f"{self.world.kafka.topic_ids[TOPIC]}'"
        self.world.kafka.create(TOPIC, len(self.world.kafka.topics[TOPIC]), topic_id)
        self.world.kafka.produce(TOPIC, 0, count)

    # -- the tables ------------------------------------------------------------------------------

    @precondition(lambda self: self.world.table.commits and not self.in_trouble)
    @rule(back=_numbers)
    def restore_table(self, back: int) -> None:
        """Somebody restores the data table."""
        self.in_trouble = True
        self.world.table.restore(max(0, len(self.world.table.commits) - 1 - back))

    @precondition(lambda self: self.world.control.rows and not self.in_trouble)
    @rule(back=_numbers)
    def restore_control(self, back: int) -> None:
        """Somebody restores the control table."""
        self.in_trouble = True
        name = self.world.spec.name
        self.world.control.restore(name, self.world.control.newest[name] - back)

    @precondition(lambda self: self.world.control.rows and not (self.in_trouble or self.asleep))
    @rule()
    def remove_control(self) -> None:
        """Somebody removes the control table; no writer of the old one is alive."""
        self.in_trouble = True
        self.world.control.rows.clear()
        self.world.control.newest.clear()

    # -- Tidemark --------------------------------------------------------------------------------

    @precondition(lambda self: len(self.asleep) < MOST_ASLEEP)
    @rule(kind=st.sampled_from(sorted(_PROGRAMS)), asked=_numbers, which=st.integers(0, 3))
    def start(self, kind: str, asked: int, which: int) -> None:
        """Somebody starts; nothing is called yet."""
        program = _PROGRAMS[kind](self.world, asked, which)
        self.asleep.append(Actor(name=kind, program=program, spec=self.world.spec))

    @precondition(lambda self: len(self.asleep) < MOST_ASLEEP)
    @rule()
    def fall_asleep_before_the_commit(self) -> None:
        """A driver of the newest plan has read Kafka, and commits when it is woken."""
        program = ingest(_some_plan(self.world, 0))
        actor = Actor(name="zombie", program=program, spec=self.world.spec)
        self.asleep.append(actor)
        while isinstance(actor.at, Call) and actor.at.method != "finish":
            self._step(actor)

    @rule(asked=_numbers)
    def run_undisturbed(self, asked: int) -> None:
        """A whole scheduled run, while everybody else sleeps."""
        actor = Actor(name="run", program=run(f"run-{asked}"), spec=self.world.spec)
        self._wake(actor, calls=None)

    @precondition(lambda self: self.asleep)
    @rule(which=_numbers, calls=st.integers(1, 12) | st.none())
    def wake(self, which: int, calls: int | None) -> None:
        """Somebody goes on for some calls, or to the end."""
        self._wake(self._sleeper(which), calls)

    @precondition(lambda self: self.asleep)
    @rule(which=_numbers, calls=st.integers(0, 12), kind=_numbers)
    def fail(self, which: int, calls: int, kind: int) -> None:
        """Somebody goes on for some calls, and then one fails, if it is one that can."""
        actor = self._sleeper(which)
        self._wake(actor, calls)
        if isinstance(actor.at, Call):
            faults = faults_of(actor.at)
            if faults:
                self._step(actor, faults[kind % len(faults)])

    @precondition(lambda self: self.asleep)
    @rule(which=_numbers)
    def kill(self, which: int) -> None:
        """Somebody is killed where they are."""
        self.asleep.remove(self._sleeper(which))

    @rule()
    def come_to_rest(self) -> None:
        """Everybody is killed, and the operator works until nothing is left to do."""
        self.asleep.clear()
        self.in_trouble = False
        settle(self.world)
        check_world(self.world)
        check_settled(self.world)

    @invariant()
    def holds(self) -> None:
        """I1-I5."""
        check_world(self.world)

    def teardown(self) -> None:
        """Whatever happened, it can be brought to rest, unless a step has failed the test."""
        if not self.step_failed:
            self.come_to_rest()

    # -- helpers ---------------------------------------------------------------------------------

    def _wake(self, actor: Actor, calls: int | None) -> None:
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
            if actor in self.asleep:
                self.asleep.remove(actor)
            check_end(self.world, actor.at, _FORESEEN)
        self.step_failed = False

    def _sleeper(self, which: int) -> Actor:
        return self.asleep[which % len(self.asleep)]

    def _partition(self, number: int) -> int:
        return number % len(self.world.kafka.topics[TOPIC])

    def _truth(self, partition: int) -> Truth:
        return self.world.kafka.truth[self.world.kafka.topic_ids[TOPIC], partition]

    def _in_transactions(self) -> list[tuple[int, str]]:
        partitions = range(len(self.world.kafka.topics[TOPIC]))
        return [(p, name) for p in partitions for name in sorted(self._truth(p).open)]
