"""Ingest, undo, replacement, decoding and maintenance at once, in random sequences, some killed.

Each round starts several actors on one pipeline and its typed table, while records arrive and two
maintenances of the data table run. Threads complete their operations concurrently; real processes
kill themselves at a random fail point. Then the next runs land and decode the remaining records.
The data table must equal the log. Each of its rows must be exactly once in the typed table or in
quarantine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeAlias

import pytest

from tests.conftest import TopicFactory
from tests.faults import test_crash_points_typed as typed
from tests.faults.tally import TableJudge
from tests.faults.test_crash_points import DRIVER, assert_settled
from tests.support.crashes import KILLED, Site
from tests.support.file_lake import FileLake
from tests.support.lake import Lake
from tests.support.transactions import (
    Record,
    produce_aborted,
    produce_committed,
    produce_records,
)
from tidemark.bronze.backfill.selection import select
from tidemark.bronze.ingest.errors import PlanCancelled, PlanStillOpen
from tidemark.core.errors import ExitCode, TransientError, UnknownOutcomeError
from tidemark.local.broker import BrokerStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.e2e]

PARTITIONS = 2
ACTORS = 3
MAINTENANCES = 2
WEEK = timedelta(days=7)
REFUSALS = (
    TransientError,
    UnknownOutcomeError,
    PlanStillOpen,
    PlanCancelled,
    PlanStillOpen,
)
"""Errors of an operation that lost a race. Any other error is a defect."""

DECODE = """
decode:
  publish: always
  value: {format: json, schema: {n: long}}
  quarantine: {records: 100000}
"""

Operation: TypeAlias = Callable[[Site, str, Random], object]


# -- operations ----------------------------------------------------------------------------------


def ingest(site: Site, name: str, random: Random) -> object:
    planned = site.lake.planner.plan(name).plan
    return planned and site.lake.ingest.execute(planned.sequence).landing


def replace_rows(site: Site, name: str, random: Random) -> object:
    lake, partition = site.lake, random.randrange(PARTITIONS)
    end = max(lake.ledger.committed_offset(partition), 1)
    start = random.randrange(end)
    offsets = select(offsets=[f"{partition}:{start}-{random.randint(start + 1, end)}"])
    preview = lake.backfills.preview(offsets, None, readable_only=False, replaces=True)
    if not lake.backfills.request(preview, name, approved=True, reason="a test"):
        return None
    planned = lake.backfills.plan_chunk(name, 1).plan
    return planned and lake.ingest.execute(planned.sequence).landing


def undo(site: Site, name: str, random: Random) -> object:
    landed = [n for n, record in site.lake.ledger.plans.items() if record.has_landed]
    return landed and site.lake.undo.undo(random.choice(landed), name, "a test")


def decode(site: Site, name: str, random: Random) -> object:
    return site.app.pipeline("events").typed.decode()


def produce(site: Site, name: str, random: Random) -> None:
    """Append plain records, and committed and aborted ones; some cannot be decoded."""
    produce_records(
        site.bootstrap,
        site.topic,
        [
            Record(value=typed.value(random.randrange(1_000)), partition=partition)
            for partition in range(PARTITIONS)
            for _ in range(random.randint(5, 40))
        ],
    )
    partition = random.randrange(PARTITIONS)
    produce_aborted(site.bootstrap, site.topic, [Record(value=b"aborted", partition=partition)])
    committed = Record(value=typed.value(0), partition=partition)
    produce_committed(site.bootstrap, site.topic, [committed])


OPERATIONS = (ingest, replace_rows, undo, decode)
TOGETHER = (ingest, decode)
"""First operations of two actors, which then do the same work at the same time."""


# -- actors --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Operations of one round, chosen at random before it begins.

    Attributes:
        name: Name of the round; it is the seed.
        actors: Operations of each actor, in order.
        victim: Kind of the killed process: `plan`, `ingest`, `undo` or `maintain`.
        fail_at: Fail point of the killed process.
    """

    name: str
    actors: tuple[tuple[Operation, ...], ...]
    victim: str
    fail_at: str

    @classmethod
    def of(cls, name: str, victims: Sequence[str]) -> Round:
        """Choose a round; equal names give equal rounds."""
        random = Random(name)
        actors = tuple(
            (*(TOGETHER if number < 2 else ()), *random.choices(OPERATIONS, k=random.randint(1, 2)))
            for number in range(ACTORS)
        )
        victim = random.choice(victims)
        step = random.choice(STEPS[victim])
        moment = random.choice(("before", "after"))
        step, _, number = step.partition(":")
        return cls(name=name, actors=actors, victim=victim, fail_at=f"{step}:{moment}:{number}")

    def __str__(self) -> str:
        actors = "; ".join(", ".join(each.__name__ for each in actor) for actor in self.actors)
        return f"{self.name}: {actors}; {self.victim} killed at {self.fail_at}"


STEPS = {
    "plan": ("control.summary:1", "watermarks.topic_watermarks:1", "control.append:1"),
    "ingest": DRIVER,
    "undo": ("control.append:1", "table.remove_rows:1", "control.append:2"),
    "maintain": (
        "maintenance.compact:1",
        "maintenance.remove_unreferenced:1",
        "maintenance.compact:2",
    ),
}
"""Fail points of each killed process. Some are not reached if another actor was first."""


def act(site: Site, name: str, operations: Sequence[Operation]) -> None:
    """Perform operations in order; each one completes or loses a race."""
    random = Random(name)
    for number, operation in enumerate(operations):
        try:
            result = str(operation(site, f"{name}-{number}", random))
        except REFUSALS as refused:
            result = f"{type(refused).__name__}: {refused.rendered('problem')}"
        print(f"{name} {operation.__name__}: {result[:200]}")


def command(site: Site, round_: Round) -> list[str]:
    """Return the command line of the killed process."""
    lake, name = site.lake, f"{round_.name} victim"
    match round_.victim:
        case "ingest":
            plan = lake.planner.plan(name).plan
            return site.driver("ingest", plan.sequence if plan else max(lake.ledger.plans))
        case "undo":
            landed = [n for n, record in lake.ledger.plans.items() if record.held_now]
            plan_argument = f"--plan={Random(name).choice(landed)}"
            return site.tidemark("undo", "events", plan_argument, "--reason=a test")
        case _:
            return site.tidemark(round_.victim, "events")


def run_and_kill(site: Site, round_: Round) -> None:
    """Run a process that kills itself at the fail point, if it reaches it."""
    with site.started(command(site, round_), fail_at=round_.fail_at) as running:
        ended = running.wait()
    print(f"{round_.name} {round_.victim}: {ended.code} {ended.printed[-200:]}")
    assert ended.code in KILLED | set(ExitCode) - {ExitCode.CRASH, ExitCode.USAGE}, ended.printed


@contextmanager
def continuous_maintenance(site: Site) -> Iterator[None]:
    """Run two concurrent loops of maintenance until the block ends."""
    stop = threading.Event()

    def loop() -> None:
        results = []
        while not stop.is_set():
            results.append(site.lake.maintenance(timedelta(0)).maintain(WEEK))
        print(
            f"{len(results)} maintenances, {sum(each.replaced for each in results)} files replaced"
        )

    with ThreadPoolExecutor(MAINTENANCES) as threads:
        ended = [threads.submit(loop) for _ in range(MAINTENANCES)]
        try:
            yield
        finally:
            stop.set()
        for each in ended:
            each.result()


def perform(site: Site, round_: Round) -> None:
    """Run all actors of a round concurrently and wait for them."""
    print(round_)
    with ThreadPoolExecutor(ACTORS + 2) as threads:
        running = [
            threads.submit(act, site, f"{round_.name} actor {number}", operations)
            for number, operations in enumerate(round_.actors)
        ]
        running.append(threads.submit(act, site, f"{round_.name} records", [produce] * 3))
        running.append(threads.submit(run_and_kill, site, round_))
    for each in running:
        each.result()


def finish(lake: Lake | FileLake, name: str) -> None:
    """Repeat interrupted commands, as the fix of their errors requires, and land the rest."""
    for sequence, record in lake.ledger.plans.items():
        if record.undoing:
            lake.undo.undo(sequence, name, "a test")
    for record in lake.ledger.open_plans():
        lake.ingest.execute(record.plan.sequence)
    runs = 0
    while planned := lake.planner.plan(f"{name}, run {runs}").plan:
        lake.ingest.execute(planned.sequence)
        runs += 1


# -- rounds --------------------------------------------------------------------------------------


def operate(
    table_judge: TableJudge, site: Site, seed: int, rounds: int, victims: Sequence[str]
) -> None:
    """Perform random rounds, and compare the tables with Kafka after each."""
    lake = site.lake
    for number in range(3):
        produce(site, "", Random(f"{seed} {number}"))
        lake.run(f"run {number}")
    for number in range(rounds):
        round_ = Round.of(f"seed {seed} round {number}", victims)
        produce(site, "", Random(round_.name))
        with continuous_maintenance(site):
            perform(site, round_)
        finish(lake, f"after {round_.name}")
        assert_settled(table_judge, site)
        lake.verify.verify().check()
        typed.decode(site)
        typed.assert_settled(table_judge, site)


@pytest.fixture
def site(spark: SparkSession, broker: BrokerStatus, topic: TopicFactory, tmp_path: Path) -> Site:
    name = topic(partitions=PARTITIONS)
    return Site(home=tmp_path, bootstrap=broker.bootstrap, topic=name, session=spark, more=DECODE)


def test_concurrent_and_killed_operations_land_every_record_once(
    table_judge: TableJudge, site: Site
) -> None:
    """I1, I2, I3."""
    operate(table_judge, site, 1, 1, ("plan", "undo", "maintain"))


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(2, 6))
def test_longer_sequences_land_every_record_once(
    table_judge: TableJudge, site: Site, seed: int
) -> None:
    """I1, I2, I3."""
    operate(table_judge, site, seed, 4, tuple(STEPS))
