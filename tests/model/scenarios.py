"""Beginnings for the search, and who meets in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.model.actors import Program
from tests.model.programs import (
    abandon,
    accept_loss,
    backfill,
    fill,
    ingest,
    plan,
    rebuild,
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

# -- beginnings ----------------------------------------------------------------------------------


def new() -> World:
    """One record, and nothing done yet."""
    return make_world((1,))


def planned() -> World:
    """An open live plan 1 over two records of two partitions."""
    world = make_world((1, 1))
    world.pipeline.planner.plan("run-1")
    return world


def landed() -> World:
    """Plan 1 landed, and a record came after it."""
    world = new()
    world.pipeline.run("run-1")
    world.kafka.produce("events", 0, 1)
    return world


def begun_at_the_end() -> World:
    """A pipeline that began at the end of the log: old records to fill, a new one to follow."""
    world = make_world((2,), start=StartPolicy.LATEST)
    world.pipeline.planner.plan("run-0")
    world.kafka.produce("events", 0, 1)
    return world


def filling() -> World:
    """An open live plan and an open backfill beside it."""
    world = begun_at_the_end()
    world.pipeline.planner.plan("run-1")
    world.pipeline.planner.backfill(wanted((0, 0, 2)), RunOrigin("fill-1"))
    return world


def with_open_transaction() -> World:
    """A record, two of a transaction that is open, and one after them."""
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
    """An open plan over two records of one partition, of which the engine will miss one."""
    world = make_world((2,))
    world.table.missing = (0,)
    world.pipeline.planner.plan("run-1")
    return world


def read_of_another_topic() -> World:
    """A plan landed, the topic was made again before that was recorded."""
    world = planned()
    world.table.land(world.pipeline.ledger.plans[1].plan)
    recreate()(world.pipeline)
    return world


def lost() -> World:
    """Retention took a record that was never read."""
    world = landed()
    world.kafka.produce("events", 0, 1)
    world.kafka.delete_records("events", 0, 2)
    return world


def restored() -> World:
    """Two plans landed, and a RESTORE took the second out again."""
    world = landed()
    world.pipeline.run("run-2")
    world.table.restore(1)
    return world


def landed_under_a_plan() -> World:
    """A plan landed and another is open."""
    world = landed()
    world.pipeline.planner.plan("run-2")
    return world


def restored_under_a_plan() -> World:
    """And a RESTORE took the first out again."""
    world = landed_under_a_plan()
    world.table.restore(0)
    return world


def forgotten() -> World:
    """Two plans landed, and the control table is lost."""
    world = landed()
    world.pipeline.run("run-2")
    world.control.rows.clear()
    world.control.newest.clear()
    return world


def replacing() -> World:
    """Plan 1 has landed two records, and an open plan 2 replaces the second of them."""
    world = make_world((2,))
    world.pipeline.run("run-1")
    world.pipeline.planner.backfill(
        replace(wanted((0, 1, 2)), replaces=True), RunOrigin("replace-1")
    )
    return world


def has_replaced() -> World:
    """And plan 2 has landed."""
    world = replacing()
    world.pipeline.ingest.execute(2)
    return world


def forgot_what_it_replaced() -> World:
    """And the control table is lost."""
    world = has_replaced()
    world.control.rows.clear()
    world.control.newest.clear()
    return world


# -- who is not Tidemark -------------------------------------------------------------------------


def produce() -> Program:
    """A record arrives."""
    return lambda pipeline: pipeline.kafka.produce("events", 0, 1)


def delete() -> Program:
    """Retention takes the first record."""
    return lambda pipeline: pipeline.kafka.delete_records("events", 0, 1)


def compact() -> Program:
    """Compaction takes the first record."""
    return lambda pipeline: pipeline.kafka.compact("events", 0, 0)  # type: ignore[attr-defined]


def end_transaction(commit: bool) -> Program:
    """The producer ends its transaction."""
    return lambda pipeline: pipeline.kafka.end_transaction(  # type: ignore[attr-defined]
        "events", 0, "t", commit
    )


def recreate() -> Program:
    """The topic is deleted and made again, and soon is as long as the old one was."""

    def program(pipeline: MemoryPipeline) -> None:
        pipeline.kafka.create("events", 2, "id-2")
        pipeline.kafka.produce("events", 0, 1)
        pipeline.kafka.produce("events", 1, 1)

    return program


def replaced() -> Program:
    """The first record is landed again, in place of its row."""
    return backfill("replace-1", 0, 0, 1, replaces=True)


def restore(version: int) -> Program:
    """Somebody restores the data table."""
    return lambda pipeline: pipeline.table.restore(version)


# -- scenarios -----------------------------------------------------------------------------------

PASSING = frozenset({"KafkaUnavailable", "EngineFailed", "ControlConflict", "TransactionConflict"})
"""Errors that may pass: the injected ones, and a race that was lost."""

GIVEN_UP = PASSING | {"CommitNotFound", "PlanAbandoned", "PlanFenced", "PlanLanded"}
"""And those about plans that were given up."""

REPAIRED = GIVEN_UP | {
    "TableRestored",
    "LedgerBehindTable",
    "NothingToDo",
    "RepairUnfinished",
}
"""And those about tables that are not of one history."""


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """A scenario without its number of faults.

    Attributes:
        name: For the report.
        world: Makes the beginning.
        actors: By name; what begins with `kafka` or `vandal` is not Tidemark.
        errors: What actors may end with.
        floor: A search that sees fewer states has not looked.
        faults: How many the short form searches with; what is large has fewer.
        more_faults: How many the long form searches with.
    """

    name: str
    world: Callable[[], World]
    actors: dict[str, Program]
    floor: int
    errors: frozenset[str] = PASSING
    faults: int = 2
    more_faults: int = 3

    def with_faults(self, faults: int) -> Scenario:
        """The scenario."""
        return Scenario(
            name=f"{self.name}, {faults} faults",
            world=self.world(),
            actors=self.actors,
            operator=settle,
            errors=self.errors,
            faults=faults,
            environment=frozenset(n for n in self.actors if n.startswith(("kafka", "vandal"))),
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
        faults=1,
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
        world=filling,
        actors={"live": ingest(1), "fill": ingest(2)},
        floor=800,
    ),
    Sketch(
        name="a run and a backfill",
        world=begun_at_the_end,
        actors={"run": run("run-1"), "fill": backfill("fill-1", 0, 0, 2)},
        floor=3_000,
        faults=0,
        more_faults=2,
    ),
]
"""Every two of Tidemark that can meet."""

ZOMBIES = [
    Sketch(
        name="a driver whose plan is given up",
        world=planned,
        actors={"driver": ingest(1), "ops": abandon(1)},
        errors=GIVEN_UP,
        floor=200,
    ),
    Sketch(
        name="a plan given up twice",
        world=planned,
        actors={"one": abandon(1), "two": abandon(1)},
        errors=GIVEN_UP,
        floor=60,
    ),
    Sketch(
        name="a driver whose topic was made again, and whose plan is given up",
        world=read_of_another_topic,
        actors={"driver": ingest(1), "ops": abandon(1, discard=True)},
        errors=GIVEN_UP | {"TopicRecreated"},
        floor=30,
    ),
    Sketch(
        name="a zombie, and a run after its plan was given up",
        world=planned,
        actors={"zombie": ingest(1), "ops": _then(abandon(1), run("run-2"))},
        errors=GIVEN_UP,
        floor=500,
    ),
]
"""Plans that are given up, and those who still work on them."""

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
        errors=PASSING | {"LostRange"},
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
        errors=PASSING | {"RecordsMissed"},
        floor=2_000,
        faults=1,
    ),
    Sketch(
        name="the topic is made again",
        world=planned,
        actors={"driver": ingest(1), "kafka": recreate()},
        errors=PASSING | {"TopicRecreated", "EndBehindCommitted", "OffsetsDeleted"},
        floor=80,
    ),
]
"""Kafka changes while a run is on its way."""

DECISIONS = [
    Sketch(
        name="a loss accepted twice",
        world=lost,
        actors={"one": accept_loss(), "two": accept_loss()},
        errors=PASSING | {"NothingToDo"},
        floor=30,
    ),
    Sketch(
        name="a loss accepted, and a run",
        world=lost,
        actors={"ops": accept_loss(), "run": run("run-2")},
        # Whoever accepts a loss and does not hear of it finds nothing left to accept.
        errors=PASSING | {"LostRange", "NothingToDo"},
        floor=60,
    ),
]
"""What a person decides while runs go on."""

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
        actors={"ops": replaced(), "run": run("run-2")},
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
        errors=GIVEN_UP | {"PlanNotLanded"},
        floor=300,
    ),
    Sketch(
        name="a driver that replaces rows, and whose plan is given up",
        world=replacing,
        actors={"driver": ingest(2), "ops": abandon(2)},
        errors=GIVEN_UP,
        floor=200,
    ),
    Sketch(
        name="rows replaced, and RESTORE",
        world=replacing,
        actors={"ops": _then(ingest(2), rewind()), "vandal": restore(1)},
        errors=REPAIRED,
        floor=50,
    ),
    Sketch(
        name="rows replaced and undone, and RESTORE",
        world=has_replaced,
        actors={"ops": _then(undo(2), rewind()), "vandal": restore(1)},
        errors=REPAIRED,
        floor=50,
    ),
    Sketch(
        name="rows replaced, and the control table is lost",
        world=forgot_what_it_replaced,
        actors={"one": rebuild(), "run": run("run-2")},
        errors=REPAIRED,
        floor=100,
    ),
    Sketch(
        name="rows replaced, and the topic is made again",
        world=replacing,
        actors={"driver": ingest(2), "ops": abandon(2, discard=True), "kafka": recreate()},
        errors=GIVEN_UP | {"TopicRecreated", "EndBehindCommitted", "OffsetsDeleted"},
        floor=100,
        faults=1,
        more_faults=2,
    ),
    Sketch(
        name="rows replaced, and compaction",
        world=replacing,
        actors={"driver": ingest(2), "kafka": compact()},
        errors=PASSING | {"RowsWouldBeLost"},
        floor=50,
    ),
]
"""Rows that take the place of others, and who gets in between."""

REPAIRS = [
    Sketch(
        name="an undo and a run",
        world=landed,
        actors={"ops": undo(1), "run": run("run-2")},
        floor=100,
        faults=1,
    ),
    Sketch(
        name="two undos",
        world=landed,
        actors={"one": undo(1), "two": undo(1)},
        floor=50,
    ),
    Sketch(
        name="an undo and its plan's driver",
        world=planned,
        actors={"ops": undo(1), "driver": ingest(1)},
        errors=GIVEN_UP | {"PlanNotLanded"},
        floor=100,
    ),
    Sketch(
        name="an undo and RESTORE",
        world=landed,
        actors={"ops": undo(1), "vandal": restore(1)},
        errors=REPAIRED,
        floor=20,
    ),
    Sketch(
        name="RESTORE and a driver",
        world=planned,
        actors={"driver": ingest(1), "vandal": restore(0)},
        errors=REPAIRED,
        floor=50,
    ),
    Sketch(
        name="two rewinds",
        world=restored,
        actors={"one": rewind(), "two": rewind()},
        errors=REPAIRED,
        floor=5_000,
        faults=1,
        more_faults=2,
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
        world=restored_under_a_plan,
        actors={"zombie": ingest(2), "ops": rewind()},
        errors=REPAIRED,
        floor=30,
    ),
    Sketch(
        name="RESTORE and a driver of a later plan",
        world=landed_under_a_plan,
        actors={"driver": ingest(2), "vandal": restore(0)},
        errors=REPAIRED,
        floor=50,
    ),
    Sketch(
        name="two rebuilds",
        world=forgotten,
        actors={"one": rebuild(), "two": rebuild()},
        errors=REPAIRED,
        floor=500,
        faults=0,
        more_faults=1,
    ),
    Sketch(
        name="a rebuild and a run",
        world=forgotten,
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
]
"""Tables that are not of one history any more, and putting that right."""

THREE = [
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
        name="a driver, giving up, and a run",
        world=planned,
        actors={"driver": ingest(1), "ops": abandon(1), "run": run("run-2")},
        errors=GIVEN_UP,
        floor=60_000,
    ),
    Sketch(
        name="two live drivers and a backfill's driver",
        world=filling,
        actors={"one": ingest(1), "two": ingest(1), "fill": ingest(2)},
        floor=30_000,
    ),
    Sketch(
        name="a driver, giving up, and a topic made again",
        world=planned,
        actors={"driver": ingest(1), "ops": abandon(1, discard=True), "kafka": recreate()},
        errors=GIVEN_UP | {"TopicRecreated", "EndBehindCommitted", "OffsetsDeleted"},
        floor=500,
    ),
    Sketch(
        name="a driver, a rewind, and RESTORE",
        world=planned,
        actors={"driver": ingest(1), "ops": rewind(), "vandal": restore(0)},
        errors=REPAIRED,
        floor=1_500,
    ),
    Sketch(
        name="a driver, giving up, and a rebuild",
        world=planned,
        actors={"driver": ingest(1), "ops": abandon(1), "mender": rebuild()},
        errors=REPAIRED,
        floor=4_000,
    ),
    Sketch(
        name="a backfill in two chunks, and a run",
        world=begun_at_the_end,
        actors={"run": run("run-1"), "fill": fill("ask-1", 1)},
        floor=500_000,
        faults=0,
    ),
]
"""Three who meet, and two who take long."""
