"""Maintenance concurrently with every other writer of its table, without forced steps.

The rows of the data tables come from Kafka. The tests compare them with librdkafka's records every
ten rounds; after each round no row is doubled. The events of the control table do not come from
Kafka, so each test compares all its rows and columns with the earlier ones.
Each test prints the number of rounds in which both writers worked at the same time, and results.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from tests.conftest import TopicFactory
from tests.faults.tally import TableJudge
from tests.faults.test_concurrent_operations import finish
from tests.support.file_lake import WEEK
from tests.support.kafka_file_lake import KafkaFileLake
from tests.support.plans import make_spec
from tests.support.spark_optimize import optimize
from tidemark.bronze.ingest.errors import DuplicateRows
from tidemark.bronze.ingest.ledgers import read_checked_ledger
from tidemark.core.errors import ControlTableDamaged, TransientError, UnknownOutcomeError
from tidemark.delta.compaction import Compaction
from tidemark.delta.control_repair import DeltaControlRepair
from tidemark.delta.deduplication import deduplicate
from tidemark.delta.errors import TableConflict
from tidemark.delta.maintained_table import DeltaMaintainedTable
from tidemark.local.broker import BrokerStatus
from tidemark.ops.maintenance.rules import MaintenanceOutcome
from tidemark.ops.maintenance.service import Maintenance
from tidemark.spec.ref import PipelineRef

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.faults, pytest.mark.broker]

ROUNDS = 100
SPARK_ROUNDS = 20
"""One of these rounds takes some seconds."""
JUDGED_EVERY = 10
"""The table is compared with Kafka after this many rounds, after the last, and after repairs."""
SEED = 22

Writer: TypeAlias = Callable[[], bool]
"""Changes a table. Returns False if a concurrent writer prevented the change."""


# -- two writers at once -------------------------------------------------------------------------


@dataclass
class Races:
    """Rounds of two writers of one table.

    Attributes:
        random: Draws when each writer begins.
        rounds: Number of rounds so far.
        overlapped: Rounds in which both writers worked at the same time.
        refused: Number of refusals of each writer.
        doubled: Rounds after which rows were doubled.
    """

    random: Random = field(default_factory=lambda: Random(SEED))
    rounds: int = 0
    overlapped: int = 0
    refused: list[int] = field(default_factory=lambda: [0, 0])
    doubled: int = 0
    _durations: list[float] = field(default_factory=lambda: [0.01, 0.01])

    def run(self, one: Writer, other: Writer) -> None:
        """Run both at once; the faster one begins while the slower one works."""
        barrier = threading.Barrier(2)
        slack = max(self._durations) - min(self._durations)
        pauses = [0.0, 0.0]
        pauses[self._durations.index(min(self._durations))] = self.random.random() * slack

        def work(writer: Writer, pause: float) -> tuple[float, float, bool]:
            barrier.wait()
            time.sleep(pause)
            start = time.monotonic()
            done = writer()
            return start, time.monotonic(), done

        with ThreadPoolExecutor(2) as threads:
            times = list(threads.map(work, (one, other), pauses))
        self.rounds += 1
        self._durations = [end - start for start, end, _ in times]
        self.overlapped += max(start for start, _, _ in times) < min(end for _, end, _ in times)
        for which, (_, _, done) in enumerate(times):
            self.refused[which] += not done

    def report(self, name: str) -> None:
        print(
            f"maintenance and {name}, seed {SEED}: {self.overlapped} of {self.rounds} overlapped, "
            f"maintenance deferred in {self.refused[0]}, {name} refused in {self.refused[1]}, "
            f"rows doubled in {self.doubled}"
        )
        assert self.overlapped > self.rounds / 4


# -- writers of a data table ---------------------------------------------------------------------


def compact(lake: KafkaFileLake) -> bool:
    return succeeds(DeltaMaintainedTable(str(lake.uri), lake.spec.name).compact)


def ingest(lake: KafkaFileLake) -> bool:
    return succeeds(lambda: lake.run(2))


def undo(lake: KafkaFileLake) -> bool:
    landed = [number for number, record in lake.ledger.plans.items() if record.has_landed]
    return succeeds(lambda: lake.undo.undo(max(landed), "ops", "a test"))


def replace(lake: KafkaFileLake) -> bool:
    end = lake.committed()[0]
    return succeeds(lambda: lake.land_again((0, end - 2, end)))


def compact_with_delta_rs(lake: KafkaFileLake) -> bool:
    return delta_rs_compaction(lake.uri)


WRITERS = {
    "maintenance": compact,
    "ingest": ingest,
    "undo": undo,
    "replacement": replace,
    "compaction by delta-rs": compact_with_delta_rs,
}


def succeeds(step: Callable[[], object]) -> bool:
    """Return whether a step succeeds; False if its error is retryable."""
    try:
        step()
    except (TransientError, UnknownOutcomeError):
        return False
    return True


def delta_rs_compaction(uri: Path) -> bool:
    """Compact with delta-rs alone; return False if delta-rs refuses."""
    try:
        DeltaTable(uri).optimize.compact()
    except CommitFailedError:
        return False
    return True


def lakes(
    broker: BrokerStatus, topic: TopicFactory, root: Path, *names: str
) -> list[KafkaFileLake]:
    """Pipelines over a topic of their own, which share a control table."""
    return [
        KafkaFileLake(
            root,
            spec=make_spec(
                ref=PipelineRef(name), topic=topic(partitions=2), target=f"bronze/{name}"
            ),
            bootstrap=broker.bootstrap,
        )
        for name in names
    ]


def race(
    table_judge: TableJudge, lake: KafkaFileLake, name: str, other: Writer, rounds: int
) -> None:
    """Maintain concurrently with another writer; after each round the table equals the log.

    A compaction of another program can duplicate rows, and Tidemark cannot refuse it. Then the
    status reports them, and `tidemark deduplicate` removes the copies.
    """
    races = Races()
    lake.run(2)
    for number in range(rounds):
        lake.produce(2, 1)
        lake.run(2)
        races.run(lambda: compact(lake), other)
        finish(lake, f"after round {number}")
        rows = lake.rows()
        copies = len(rows) - len(set(rows))
        assert has_duplicates(lake) == bool(copies), f"round {number}"
        if copies:
            races.doubled += 1
            assert isinstance(lake.status().problem, DuplicateRows)
            assert deduplicate(str(lake.uri), lake.spec.name).rows == copies
        if copies or number % JUDGED_EVERY == 0:
            lake.check_exact(table_judge)
    lake.check_exact(table_judge)
    lake.verify.verify().check()
    races.report(name)
    assert name == "compaction by delta-rs" or not races.doubled


def has_duplicates(lake: KafkaFileLake) -> bool:
    """Return whether the check of status, report and decode finds duplicate rows."""
    try:
        read_checked_ledger(lake.control, lake.spec.name, lake.table, rows=True)
    except DuplicateRows:
        return True
    return False


@pytest.mark.parametrize("name", WRITERS)
def test_i1_the_table_equals_the_log_after_maintenance_beside_another_writer(
    table_judge: TableJudge, broker: BrokerStatus, topic: TopicFactory, tmp_path: Path, name: str
) -> None:
    """The second commit is refused or compatible; a refused writer succeeds on repetition."""
    (lake,) = lakes(broker, topic, tmp_path, "events")
    race(table_judge, lake, name, lambda: WRITERS[name](lake), ROUNDS)


@pytest.mark.spark
def test_i1_the_table_equals_the_log_after_maintenance_beside_optimize_of_spark(
    table_judge: TableJudge,
    broker: BrokerStatus,
    topic: TopicFactory,
    tmp_path: Path,
    spark: SparkSession,
) -> None:
    (lake,) = lakes(broker, topic, tmp_path, "events")
    race(table_judge, lake, "OPTIMIZE of Spark", lambda: optimize(spark, lake.uri), SPARK_ROUNDS)


# -- the control table, which pipelines share ----------------------------------------------------


def maintain_control(lake: KafkaFileLake) -> bool:
    """Maintain the shared control table, as `tidemark maintain` does after other tables."""
    maintained = DeltaMaintainedTable(str(lake.control_uri))
    control = Maintenance(name="control table", table=maintained, now=lake.maintenance().now)
    return control.maintain(WEEK).outcome is MaintenanceOutcome.MAINTAINED


def compact_own(lake: KafkaFileLake) -> bool:
    try:
        Compaction(str(lake.control_uri)).run({"pipeline": lake.spec.name})
    except TableConflict:
        return False
    return True


CONTROL_WRITERS: dict[str, Callable[[KafkaFileLake], bool]] = {
    "maintenance of another pipeline": maintain_control,
    "own compaction of the control table": compact_own,
    "ingest of another pipeline": ingest,
    "compaction by delta-rs": lambda lake: delta_rs_compaction(lake.control_uri),
}


def events(lake: KafkaFileLake) -> Counter[str]:
    rows = pa.table(DeltaTable(lake.control_uri).scan()).to_pylist()
    return Counter(json.dumps(row, default=str, sort_keys=True) for row in rows)


def race_for_control(
    table_judge: TableJudge, pair: list[KafkaFileLake], name: str, other: Writer, rounds: int
) -> None:
    """Check after each round of two pipelines that each event is recorded once."""
    one = pair[0]
    races = Races()
    for number in range(rounds):
        for lake in pair:
            lake.run(2)
        before = events(one)
        races.run(lambda: maintain_control(one), other)
        after = events(one)
        assert set(after) >= set(before), f"round {number}"
        if max(after.values()) > 1:
            races.doubled += 1
            repair_control(pair)
            after = events(one)
        assert max(after.values()) == 1, f"round {number}"
        assert name.startswith("ingest") or after == before, f"round {number}"
    for lake in pair:
        finish(lake, "at the end")
        lake.check_exact(table_judge)
        lake.verify.verify().check()
    races.report(name)
    assert name == "compaction by delta-rs" or not races.doubled


def repair_control(pair: list[KafkaFileLake]) -> None:
    """Check that reads of a pipeline with duplicate events are refused, and repair."""
    repair = DeltaControlRepair(str(pair[0].control_uri))
    doubled = repair.repair(dry_run=True).duplicate_events
    for lake in pair:
        if lake.spec.name in doubled:
            with pytest.raises(ControlTableDamaged, match="more than once"):
                lake.control.ledger(lake.spec.name)
    assert repair.repair().duplicate_events == doubled


@pytest.mark.parametrize("name", CONTROL_WRITERS)
def test_i2_each_event_is_recorded_once_after_maintenance_beside_another_writer(
    table_judge: TableJudge, broker: BrokerStatus, topic: TopicFactory, tmp_path: Path, name: str
) -> None:
    """After a compaction by delta-rs, the repair restores this."""
    pair = lakes(broker, topic, tmp_path, "events", "prices")
    race_for_control(table_judge, pair, name, lambda: CONTROL_WRITERS[name](pair[1]), ROUNDS)


@pytest.mark.spark
def test_i2_each_event_is_recorded_once_after_maintenance_beside_optimize_of_spark(
    table_judge: TableJudge,
    broker: BrokerStatus,
    topic: TopicFactory,
    tmp_path: Path,
    spark: SparkSession,
) -> None:
    pair = lakes(broker, topic, tmp_path, "events", "prices")
    other = lambda: optimize(spark, pair[0].control_uri)  # noqa: E731
    race_for_control(table_judge, pair, "OPTIMIZE of Spark", other, SPARK_ROUNDS)
