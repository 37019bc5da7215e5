"""Initial worlds of searches, and the actors that act in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.model.actors import Program
from tests.model.programs import (
    abandon,
    accept_loss,
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
from tests.model.search import Scenario
from tests.model.world import World, make_world
from tests.support.plans import MemoryPipeline, wanted
from tidemark.core.origins import RunOrigin
from tidemark.spec.model import StartPolicy

# -- initial worlds ------------------------------------------------------------------------------


def new() -> World:
    """One record, and no event."""
    return make_world((1,))


def planned() -> World:
    """Open live plan 1 over one record in each of two partitions."""
    world = make_world((1, 1))
    world.pipeline.planner.plan("run-1")
    return world


def landed() -> World:
    """Plan 1 has landed, and another record is unread."""
    world = new()
    world.pipeline.run("run-1")
    world.kafka.produce("events", 0, 1)
    return world


def started_at_the_end() -> World:
    """A pipeline that started at the end of the log, with old and new records."""
    world = make_world((2,), start=StartPolicy.LATEST)
    world.pipeline.planner.plan("run-0")
    world.kafka.produce("events", 0, 1)
    return world


def with_open_backfill() -> World:
    """An open live plan and an open backfill."""
    world = started_at_the_end()
    world.pipeline.planner.plan("run-1")
    world.pipeline.planner.backfill(wanted((0, 0, 2)), RunOrigin("fill-1"))
    return world


def with_open_transaction() -> World:
    """A record, two records of an open transaction, and another record."""
    world = new()
    world.kafka.produce_in_transaction("events", 0, "t", 2)
    world.kafka.produce("events", 0, 1)
    return world


def with_a_gap() -> World:
    """An open plan over a record, a gap, and a record."""
    world = new()
    world.kafka.add_gaps("events", 0, 1)
    world.kafka.produce("events", 0, 1)
    world.pipeline.planner.plan("run-1")
    return world


def with_a_lossy_engine() -> World:
    """An open plan over two records, one of which the engine misses."""
    world = make_world((2,))
    world.table.missing = (0,)
    world.pipeline.planner.plan("run-1")
    return world


def landed_and_recreated() -> World:
    """A plan has landed, and the topic was recreated before the record."""
    world = planned()
    world.table.land(world.pipeline.ledger.plans[1].plan)
    recreate()(world.pipeline)
    return world


def with_a_lost_range() -> World:
    """Retention deleted an unread record."""
    world = landed()
    world.kafka.produce("events", 0, 1)
    world.kafka.delete_records("events", 0, 2)
    return world


def restored() -> World:
    """Two plans landed, and a RESTORE removed the rows of the second."""
    world = landed()
    world.pipeline.run("run-2")
    world.table.restore(1)
    return world


def landed_with_open_plan() -> World:
    """A plan has landed, and another is open."""
    world = landed()
    world.pipeline.planner.plan("run-2")
    return world


def restored_with_open_plan() -> World:
    """A plan is open, and a RESTORE removed the rows of the landed one."""
    world = landed_with_open_plan()
    world.table.restore(0)
    return world


def without_control_table() -> World:
    """Two plans landed, and the control table is lost."""
    world = landed()
    world.pipeline.run("run-2")
    world.control.rows.clear()
    world.control.newest.clear()
    return world


def replacing() -> World:
    """Plan 1 has landed two records, and open plan 2 replaces the second."""
    world = make_world((2,))
    world.pipeline.run("run-1")
    world.pipeline.planner.backfill(
        replace(wanted((0, 1, 2)), replaces=True), RunOrigin("replace-1")
    )
    return world


def replaced_world() -> World:
    """Plan 2 has replaced a record of plan 1."""
    world = replacing()
    world.pipeline.ingest.execute(2)
    return world


def replaced_without_control_table() -> World:
    """Plan 2 has replaced a record of plan 1, and the control table is lost."""
    world = replaced_world()
    world.control.rows.clear()
    world.control.newest.clear()
    return world


# -- environment ---------------------------------------------------------------------------------


def produce() -> Program:
    return lambda pipeline: pipeline.kafka.produce("events", 0, 1)


def delete() -> Program:
    return lambda pipeline: pipeline.kafka.delete_records("events", 0, 1)


def compact() -> Program:
    return lambda pipeline: pipeline.kafka.compact("events", 0, 0)  # type: ignore[attr-defined]


def end_transaction(commit: bool) -> Program:
    return lambda pipeline: pipeline.kafka.end_transaction(  # type: ignore[attr-defined]
        "events", 0, "t", commit
    )


def recreate() -> Program:
    """The topic is recreated and gets as many records as the old one had."""

    def program(pipeline: MemoryPipeline) -> None:
        pipeline.kafka.create("events", 2, "id-2")
        pipeline.kafka.produce("events", 0, 1)
        pipeline.kafka.produce("events", 1, 1)

    return program


def replace_first() -> Program:
    return backfill("replace-1", 0, 0, 1, replaces=True)


def restore(version: int) -> Program:
    return lambda pipeline: pipeline.table.restore(version)


# -- scenarios -----------------------------------------------------------------------------------

RETRYABLE = frozenset(
    {"KafkaUnavailable", "EngineFailed", "ControlConflict", "TransactionConflict"}
)
"""Retryable errors: the injected ones, and lost races."""

ABANDONED = RETRYABLE | {"CommitNotFound", "PlanCancelled", "PlanCannotLand", "NothingToDo"}
"""Also errors about abandoned plans."""

REPAIRED = ABANDONED | {
    "TableBehindLedger",
    "LedgerBehindTable",
    "NothingToDo",
    "RepairUnfinished",
    "RemovalFenced",
}
"""Also errors about tables that differ, and about repairs."""


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """A scenario without its number of faults.

    Attributes:
        name: Its name in the report.
        world: Creates the initial world.
        actors: Programs by name; `kafka` and `external` are not Tidemark.
        errors: Errors that actors may end with.
        floor: Minimum number of states of a search.
        faults: Number of faults in `make test`.
        more_faults: Number of faults in `make test-faults`.
    """

    name: str
    world: Callable[[], World]
    actors: dict[str, Program]
    floor: int
    errors: frozenset[str] = RETRYABLE
    faults: int = 2
    more_faults: int = 3

    def with_faults(self, faults: int) -> Scenario:
        return Scenario(
            name=f"{self.name}, {faults} faults",
            world=self.world(),
            actors=self.actors,
            operator=settle,
            errors=self.errors,
            faults=faults,
            environment=frozenset(n for n in self.actors if n.startswith(("kafka", "external"))),
        )


def _then(*programs: Program) -> Program:
    def program(pipeline: MemoryPipeline) -> None:
        for one in programs:
            one(pipeline)

    return program


PAIRS = [
    Sketch(
        name="two drivers of one plan",
        world=planned,
        actors={"one": ingest(1), "two": ingest(1)},
        floor=800,
    ),
    Sketch(
        name="two drivers of one plan with a gap",
        world=with_a_gap,
        actors={"one": ingest(1), "two": ingest(1)},
        floor=1_000,
    ),
    Sketch(
        name="two planners",
        world=new,
        actors={"one": plan("run-1"), "two": plan("run-2")},
        floor=100,
    ),
    Sketch(
        name="one run started twice",
        world=new,
        actors={"one": run("run-1"), "two": run("run-1")},
        floor=5_000,
        faults=1,
    ),
    Sketch(
        name="two runs",
        world=new,
        actors={"one": run("run-1"), "two": run("run-2")},
        floor=5_000,
        faults=0,
        more_faults=2,
    ),
    Sketch(
        name="a driver, and a run that recovers it",
        world=planned,
        actors={"driver": ingest(1), "run": run("run-2")},
        floor=2_000,
        faults=1,
    ),
    Sketch(
        name="a live driver and a backfill's driver",
        world=with_open_backfill,
        actors={"live": ingest(1), "fill": ingest(2)},
        floor=800,
    ),
    Sketch(
        name="a run and a backfill",
        world=started_at_the_end,
        actors={"run": run("run-1"), "fill": backfill("fill-1", 0, 0, 2)},
        floor=3_000,
        faults=0,
        more_faults=2,
    ),
]
"""Pairs of Tidemark's actors."""

ZOMBIES = [
    Sketch(
        name="a driver whose plan is abandoned",
        world=planned,
        actors={"driver": ingest(1), "ops": abandon(1)},
        errors=ABANDONED,
        floor=200,
    ),
    Sketch(
        name="a plan abandoned twice",
        world=planned,
        actors={"one": abandon(1), "two": abandon(1)},
        errors=ABANDONED,
        floor=60,
    ),
    Sketch(
        name="a driver whose topic was recreated, and whose plan is abandoned",
        world=landed_and_recreated,
        actors={"driver": ingest(1), "ops": abandon(1, discard=True)},
        errors=ABANDONED | {"TopicRecreated"},
        floor=30,
    ),
    Sketch(
        name="a zombie, and a run after its plan was abandoned",
        world=planned,
        actors={"zombie": ingest(1), "ops": _then(abandon(1), run("run-2"))},
        errors=ABANDONED,
        floor=500,
    ),
]
"""Abandoned plans, and actors that still execute them."""

HOSTILE_LOGS = [
    Sketch(
        name="records arrive",
        world=new,
        actors={"run": run("run-1"), "kafka": produce()},
        floor=100,
    ),
    Sketch(
        name="retention",
        world=planned,
        actors={"driver": ingest(1), "kafka": delete()},
        errors=RETRYABLE | {"LostRange"},
        floor=40,
    ),
    Sketch(
        name="compaction",
        world=planned,
        actors={"driver": ingest(1), "kafka": compact()},
        floor=60,
    ),
    Sketch(
        name="a transaction is committed",
        world=with_open_transaction,
        actors={"run": run("run-1"), "kafka": end_transaction(commit=True)},
        floor=100,
    ),
    Sketch(
        name="a transaction is aborted",
        world=with_open_transaction,
        actors={"run": run("run-1"), "kafka": end_transaction(commit=False)},
        floor=100,
    ),
    Sketch(
        name="an engine that misses a record",
        world=with_a_lossy_engine,
        actors={"driver": ingest(1), "run": run("run-2")},
        errors=RETRYABLE | {"RecordsMissed"},
        floor=2_000,
        faults=1,
    ),
    Sketch(
        name="the topic is recreated",
        world=planned,
        actors={"driver": ingest(1), "kafka": recreate()},
        errors=RETRYABLE | {"TopicRecreated", "EndBehindCommitted", "OffsetsDeleted"},
        floor=80,
    ),
]
"""Changes of Kafka during a run."""

DECISIONS = [
    Sketch(
        name="a loss accepted twice",
        world=with_a_lost_range,
        actors={"one": accept_loss(), "two": accept_loss()},
        errors=RETRYABLE | {"NothingToDo"},
        floor=30,
    ),
    Sketch(
        name="a loss accepted, and a run",
        world=with_a_lost_range,
        actors={"ops": accept_loss(), "run": run("run-2")},
        # If the answer was lost, the repetition has no loss to accept.
        errors=RETRYABLE | {"LostRange", "NothingToDo"},
        floor=60,
    ),
]
"""Decisions of an operator during runs."""

PUBLICATIONS = [
    Sketch(
        name="a check that passes, and one that blocks",
        world=landed,
        actors={"one": check(1, passes=True), "two": check(1, passes=False)},
        floor=300,
        faults=1,
    ),
    Sketch(
        name="a check and a rejection",
        world=landed,
        actors={"check": check(1, passes=True), "ops": reject(1)},
        floor=250,
        faults=1,
        more_faults=2,
    ),
    Sketch(
        name="a release and a rejection",
        world=landed,
        actors={"one": release(1), "two": reject(1)},
        errors=RETRYABLE | {"NothingToDo"},
        floor=200,
        faults=1,
    ),
    Sketch(
        name="a check and a run",
        world=landed,
        actors={"check": check(1, passes=True), "run": run("run-2")},
        floor=400,
        faults=0,
        more_faults=1,
    ),
    Sketch(
        name="a check and an undo",
        world=landed,
        actors={"check": check(1, passes=False), "ops": undo(1)},
        errors=ABANDONED,
        floor=150,
        faults=0,
        more_faults=2,
    ),
    Sketch(
        name="a check and a rewind",
        world=restored,
        actors={"check": check(1, passes=True), "ops": rewind()},
        errors=REPAIRED,
        floor=500,
        faults=1,
    ),
]
"""Checks and operators that decide about the publication of a plan."""

REPLACEMENTS = [
    Sketch(
        name="two drivers of a plan that replaces rows",
        world=replacing,
        actors={"one": ingest(2), "two": ingest(2)},
        floor=500,
    ),
    Sketch(
        name="rows replaced, and a run",
        world=landed,
        actors={"ops": replace_first(), "run": run("run-2")},
        floor=1_000,
        faults=0,
        more_faults=2,
    ),
    Sketch(
        name="a plan whose rows are replaced is undone",
        world=replacing,
        actors={"driver": ingest(2), "ops": undo(1)},
        floor=300,
    ),
    Sketch(
        name="rows replaced, and undone",
        world=replacing,
        actors={"driver": ingest(2), "ops": undo(2)},
        errors=ABANDONED | {"PlanStillOpen"},
        floor=300,
    ),
    Sketch(
        name="a driver that replaces rows, and whose plan is abandoned",
        world=replacing,
        actors={"driver": ingest(2), "ops": abandon(2)},
        errors=ABANDONED,
        floor=200,
    ),
    Sketch(
        name="rows replaced, and RESTORE",
        world=replacing,
        actors={"ops": _then(ingest(2), rewind()), "external": restore(1)},
        errors=REPAIRED,
        floor=50,
    ),
    Sketch(
        name="rows replaced and undone, and RESTORE",
        world=replaced_world,
        actors={"ops": _then(undo(2), rewind()), "external": restore(1)},
        errors=REPAIRED,
        floor=50,
    ),
    Sketch(
        name="rows replaced, and the control table is lost",
        world=replaced_without_control_table,
        actors={"one": rebuild(), "run": run("run-2")},
        errors=REPAIRED,
        floor=100,
    ),
    Sketch(
        name="rows replaced, and the topic is recreated",
        world=replacing,
        actors={"driver": ingest(2), "ops": abandon(2, discard=True), "kafka": recreate()},
        errors=ABANDONED | {"TopicRecreated", "EndBehindCommitted", "OffsetsDeleted"},
        floor=100,
        faults=1,
        more_faults=2,
    ),
    Sketch(
        name="rows replaced, and compaction",
        world=replacing,
        actors={"driver": ingest(2), "kafka": compact()},
        errors=RETRYABLE | {"PlanCannotLand"},
        floor=50,
    ),
]
"""Replacements, and concurrent actors."""

REPAIRS = [
    Sketch(
        name="an undo and a run",
        world=landed,
        actors={"ops": undo(1), "run": run("run-2")},
        floor=100,
        faults=0,
    ),
    Sketch(
        name="two undos",
        world=landed,
        actors={"one": undo(1), "two": undo(1)},
        floor=50,
        faults=1,
    ),
    Sketch(
        name="an undo and its plan's driver",
        world=planned,
        actors={"ops": undo(1), "driver": ingest(1)},
        errors=ABANDONED | {"PlanStillOpen"},
        floor=100,
    ),
    Sketch(
        name="an undo and RESTORE",
        world=landed,
        actors={"ops": undo(1), "external": restore(1)},
        errors=REPAIRED,
        floor=20,
    ),
    Sketch(
        name="RESTORE and a driver",
        world=planned,
        actors={"driver": ingest(1), "external": restore(0)},
        errors=REPAIRED,
        floor=50,
    ),
    Sketch(
        name="two rewinds",
        world=restored,
        actors={"one": rewind(), "two": rewind()},
        errors=REPAIRED,
        floor=2_500,
        faults=0,
        # A search with two faults takes more than 10 GB of memory.
        more_faults=1,
    ),
    Sketch(
        name="a rewind and a run",
        world=restored,
        actors={"ops": rewind(), "run": run("run-3")},
        errors=REPAIRED,
        floor=80,
        faults=1,
    ),
    Sketch(
        name="a rewind and a zombie",
        world=restored_with_open_plan,
        actors={"zombie": ingest(2), "ops": rewind()},
        errors=REPAIRED,
        floor=30,
    ),
    Sketch(
        name="RESTORE and a driver of a later plan",
        world=landed_with_open_plan,
        actors={"driver": ingest(2), "external": restore(0)},
        errors=REPAIRED,
        floor=50,
    ),
    Sketch(
        name="a rebuild and a run",
        world=without_control_table,
        actors={"ops": rebuild(), "run": run("run-3")},
        errors=REPAIRED,
        floor=40,
    ),
    Sketch(
        name="a rebuild and a driver",
        world=planned,
        actors={"ops": rebuild(), "driver": ingest(1)},
        errors=REPAIRED,
        floor=250,
    ),
    Sketch(
        name="an undo and a rewind",
        world=landed,
        actors={"ops": undo(1), "repair": rewind()},
        errors=REPAIRED,
        floor=500,
        faults=0,
        more_faults=1,
    ),
    Sketch(
        name="an undo and a rebuild",
        world=landed,
        actors={"ops": undo(1), "repair": rebuild()},
        errors=REPAIRED,
        floor=500,
        faults=0,
        more_faults=1,
    ),
    Sketch(
        name="rows discarded, and a rewind",
        world=landed_and_recreated,
        actors={"ops": abandon(1, discard=True), "repair": rewind()},
        errors=REPAIRED | {"TopicRecreated", "RowsInDoubt"},
        floor=300,
        faults=0,
        more_faults=1,
    ),
    Sketch(
        name="a driver, a backfill's driver, and RESTORE",
        world=with_open_backfill,
        actors={"driver": ingest(1), "fill": ingest(2), "external": restore(0)},
        errors=REPAIRED,
        floor=5_000,
        faults=0,
        more_faults=1,
    ),
    Sketch(
        name="an undo, a driver of a later plan, and RESTORE",
        world=landed_with_open_plan,
        actors={"ops": undo(1), "run": ingest(2), "external": restore(1)},
        errors=REPAIRED,
        floor=6_000,
        faults=0,
        more_faults=1,
    ),
]
"""Tables that differ, and their repairs."""

LONG = [
    Sketch(
        name="three drivers of one plan",
        world=planned,
        actors={"one": ingest(1), "two": ingest(1), "three": ingest(1)},
        floor=30_000,
    ),
    Sketch(
        name="three planners",
        world=new,
        actors={"one": plan("run-1"), "two": plan("run-2"), "three": plan("run-3")},
        floor=4_000,
    ),
    Sketch(
        name="a driver, abandon, and a run",
        world=planned,
        actors={"driver": ingest(1), "ops": abandon(1), "run": run("run-2")},
        errors=ABANDONED,
        floor=60_000,
    ),
    Sketch(
        name="two live drivers and a backfill's driver",
        world=with_open_backfill,
        actors={"one": ingest(1), "two": ingest(1), "fill": ingest(2)},
        floor=30_000,
        # A search with two faults takes more than 10 GB of memory.
        faults=1,
    ),
    Sketch(
        name="a driver, abandon, and a recreated topic",
        world=planned,
        actors={"driver": ingest(1), "ops": abandon(1, discard=True), "kafka": recreate()},
        errors=ABANDONED | {"TopicRecreated", "EndBehindCommitted", "OffsetsDeleted"},
        floor=500,
    ),
    Sketch(
        name="a driver, a rewind, and RESTORE",
        world=planned,
        actors={"driver": ingest(1), "ops": rewind(), "external": restore(0)},
        errors=REPAIRED,
        floor=1_500,
    ),
    Sketch(
        name="a driver, abandon, and a rebuild",
        world=planned,
        actors={"driver": ingest(1), "ops": abandon(1), "repair": rebuild()},
        errors=REPAIRED,
        floor=4_000,
    ),
    Sketch(
        name="a backfill in two chunks, and a run",
        world=started_at_the_end,
        actors={"run": run("run-1"), "fill": fill("ask-1", 1)},
        floor=500_000,
        faults=0,
    ),
    Sketch(
        name="two rebuilds",
        world=without_control_table,
        actors={"one": rebuild(), "two": rebuild()},
        errors=REPAIRED,
        floor=500,
        # A search with one fault takes more than 10 GB of memory.
        faults=0,
    ),
]
"""Scenarios whose searches take long, most with three actors."""
