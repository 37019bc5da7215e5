"""Zombie drivers and planners, and processes that act at the same moment.

They meet at barriers: inside the Delta transaction, between its start and its commit, or at the
append to the control table.
"""

from __future__ import annotations

import multiprocessing
import os
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from tests.conftest import TopicFactory
from tests.faults.tally import TableJudge
from tests.support.crashes import Site
from tests.support.kafka_judge import Range, log_ranges
from tests.support.lake import Lake
from tests.support.plans import wanted
from tests.support.proxy import ProxiedBroker
from tests.support.services import with_ports
from tests.support.topics import make_topic
from tests.support.transactions import Record, produce_aborted, produce_values
from tests.support.waiting import wait_until
from tests.support.zombies import LostAnswer, PortWithStep, zombie
from tidemark.bronze.ingest.errors import PlanCancelled, PlanStillOpen
from tidemark.bronze.ingest.executor import ExecutionResult
from tidemark.bronze.ingest.planner import Planner, PlanOutcome
from tidemark.bronze.repair.errors import NothingToDo
from tidemark.core.errors import ExitCode
from tidemark.core.events import Abandoned
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan, PlanKind
from tidemark.delta.errors import ControlConflict, TransactionConflict
from tidemark.delta.maintained_table import DeltaMaintainedTable
from tidemark.local.broker import BrokerStatus
from tidemark.spec.model import StartPolicy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture
def pipeline(lake: Lake, broker: BrokerStatus, topic: TopicFactory) -> Lake:
    """Return a pipeline over a topic with records and gaps in two partitions."""
    pipeline = lake.of(topic(partitions=2))
    fill(broker.bootstrap, pipeline)
    return pipeline


def fill(bootstrap: str, lake: Lake) -> None:
    for partition in (0, 1):
        produce_values(bootstrap, lake.spec.topic, 15, partition=partition)
    produce_aborted(bootstrap, lake.spec.topic, [Record(partition=p) for p in (0, 1)])


def assert_settled(
    table_judge: TableJudge, lake: Lake, ranges: dict[int, Range] | None = None
) -> None:
    """Check that the table equals the log, no plan is open, and landed ranges do not overlap.

    Each landed plan has one commit in the data table and one event in the control table.
    """
    table_judge.check(lake, ranges=ranges)
    ledger = lake.ledger
    assert ledger.open_plans() == []
    bootstrap = str(lake.connection["bootstrap.servers"])
    ends = {p: end for p, (_, end) in log_ranges(bootstrap, lake.spec.topic).items()}
    assert lake.committed() == ends
    plans = [record.plan for record in ledger.plans.values() if record.held_now]
    landed = sorted((r.partition, r.start, r.end) for plan in plans for r in plan.ranges)
    for (one, _, end), (other, start, _) in pairwise(landed):
        assert one != other or end <= start, landed
    for plan in plans:
        assert commits(lake, plan) == 1
    rows = DeltaTable(lake.control_uri).to_pyarrow_table().to_pylist()
    recorded = {(row["plan_sequence"], row["event_number"]) for row in rows if is_landed(row)}
    assert sorted(sequence for sequence, _ in recorded) == [plan.sequence for plan in plans]


def is_landed(row: dict[str, Any]) -> bool:
    return bool(row["event"] == "landed")


def commits(lake: Lake, plan: Plan) -> int:
    history = DeltaTable(lake.uri).history()
    return sum(plan.fingerprint in (commit.get("userMetadata") or "") for commit in history)


def run_concurrently(*calls: Callable[[], Any]) -> list[Any]:
    def outcome(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as failure:  # noqa: BLE001  the caller checks it
            return failure

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(outcome, calls))


# -- two drivers of one plan ---------------------------------------------------------------------


def test_i4_one_of_two_drivers_commits_and_both_succeed(
    table_judge: TableJudge, pipeline: Lake
) -> None:
    plan = pipeline.plan("a run")
    with (
        zombie(pipeline, plan) as one,
        zombie(pipeline, plan) as other,
    ):
        first, second = one.wake(), other.wake()
    assert isinstance(first, ExecutionResult)
    assert isinstance(second, ExecutionResult)
    assert first.landing == second.landing
    assert one.table.failure is None
    assert isinstance(other.table.failure, TransactionConflict)
    assert_settled(table_judge, pipeline)


@pytest.mark.faults
def test_i4_one_of_two_drivers_that_commit_at_once_writes(
    table_judge: TableJudge, pipeline: Lake
) -> None:
    plan = pipeline.plan("a run")
    with (
        zombie(pipeline, plan) as one,
        zombie(pipeline, plan) as other,
    ):
        outcomes = run_concurrently(one.wake, other.wake)
    assert len({outcome.landing.table_version for outcome in outcomes}) == 1
    assert sorted(outcome.wrote for outcome in outcomes) == [False, True]
    assert [one.table.failure, other.table.failure].count(None) == 1
    assert_settled(table_judge, pipeline)


@pytest.mark.faults
def test_i4_a_driver_whose_plan_has_landed_writes_nothing(
    table_judge: TableJudge, pipeline: Lake
) -> None:
    plan = pipeline.plan("a run")
    # The first driver lands the plan just before the second one commits.
    table = PortWithStep(
        pipeline.table, "append", before=lambda: pipeline.ingest.execute(plan.sequence)
    )
    second = with_ports(pipeline.ingest, table=table).execute(plan.sequence)
    assert not second.wrote
    assert second.landing.table_version == pipeline.version()
    assert commits(pipeline, plan) == 1
    assert_settled(table_judge, pipeline)


@pytest.mark.e2e
@pytest.mark.faults
def test_two_driver_processes_of_one_plan_land_it_once(
    table_judge: TableJudge, spark: SparkSession, proxied: ProxiedBroker, tmp_path: Path
) -> None:
    """I4. After the death of an Airflow worker, its Spark job lives on during the retry."""
    name = slow_topic(proxied)
    site = Site(home=tmp_path, bootstrap=proxied.bootstrap, topic=name, session=spark)
    plan = site.lake.plan("a run")
    gate = proxied.proxy.hold()
    with site.started(site.driver("ingest", plan.sequence)) as one:
        gate.wait_held()
        with site.started(site.driver("ingest", plan.sequence)) as other:
            # Before its read, a driver checks whether its plan has landed.
            wait_until(lambda: other.reads_from(proxied.proxy.port))
            gate.release()
            assert one.wait().code == ExitCode.OK
            assert other.wait().code == ExitCode.OK
    assert commits(site.lake, plan) == 1
    table_judge.check(site.lake)
    assert site.lake.ledger.event_number == 2


def slow_topic(proxied: ProxiedBroker) -> str:
    """Create a topic behind the proxy, with records in two partitions."""
    admin = AdminClient({"bootstrap.servers": proxied.direct, "log_level": 0})
    name = make_topic(admin, proxied.direct, f"zombies-{uuid.uuid4().hex[:8]}", partitions=2)
    for partition in (0, 1):
        produce_values(proxied.direct, name, 100, partition=partition)
    return name


# -- drivers that wake too late ------------------------------------------------------------------


@pytest.mark.parametrize(
    "landed_again",
    [
        pytest.param(False, id="abandoned"),
        pytest.param(True, id="abandoned-and-landed-again", marks=pytest.mark.faults),
    ],
)
def test_a_driver_that_wakes_after_its_plan_was_abandoned_lands_nothing(
    table_judge: TableJudge, pipeline: Lake, landed_again: bool
) -> None:
    """I4. The fence is newer than the driver's snapshot, so delta-rs refuses the commit."""
    plan = pipeline.plan("a run that hangs")
    with zombie(pipeline, plan) as sleeper:
        pipeline.abandon.abandon(plan.sequence, "ops", "it hangs")
        if landed_again:
            pipeline.run("the next run")
        outcome = sleeper.wake()
    assert isinstance(outcome, PlanCancelled)
    assert commits(pipeline, plan) == 0
    with pytest.raises(PlanCancelled):
        pipeline.ingest.execute(plan.sequence)
    if not landed_again:
        pipeline.run("the next run")
    assert_settled(table_judge, pipeline)


@pytest.mark.e2e
@pytest.mark.faults
def test_i4_a_driver_process_whose_plan_is_abandoned_during_its_read_lands_nothing(
    table_judge: TableJudge, spark: SparkSession, proxied: ProxiedBroker, tmp_path: Path
) -> None:
    name = slow_topic(proxied)
    site = Site(home=tmp_path, bootstrap=proxied.bootstrap, topic=name, session=spark)
    plan = site.lake.plan("a run that hangs")
    gate = proxied.proxy.hold()
    with site.started(site.driver("ingest", plan.sequence)) as driver:
        gate.wait_held()
        site.run(site.tidemark("abandon", "events", "--plan=1", "--reason=it hangs"))
        gate.release()
        ended = driver.wait()
    assert ended.code == ExitCode.REFUSED, ended.printed
    assert "PlanCancelled" in ended.printed
    retried = site.run(site.driver("ingest", plan.sequence), code=ExitCode.REFUSED)
    assert "PlanCancelled" in retried.printed
    assert site.lake.rows() == []
    site.lake.run("the next run")
    table_judge.check(site.lake)


@pytest.mark.faults
def test_i4_a_driver_that_wakes_after_its_plan_and_the_next_landed_succeeds(
    table_judge: TableJudge, pipeline: Lake, broker: BrokerStatus
) -> None:
    plan = pipeline.plan("a run that hangs")
    with zombie(pipeline, plan) as sleeper:
        done = pipeline.ingest.execute(plan.sequence)
        fill(broker.bootstrap, pipeline)
        pipeline.run("the next run")
        outcome = sleeper.wake()
    assert isinstance(outcome, ExecutionResult)
    assert outcome.landing.table_version == done.landing.table_version
    assert_settled(table_judge, pipeline)


@pytest.mark.faults
def test_abandon_of_a_plan_that_just_landed_is_refused(
    table_judge: TableJudge, pipeline: Lake
) -> None:
    """I1. Its offsets are not planned again."""
    plan = pipeline.plan("a run that hangs")
    pipeline.table.prepare(plan.pipeline)
    # Only the data table's log contains the landing, because its driver is slow or dead.
    late = PortWithStep(pipeline.table, "fence", before=lambda: pipeline.land(plan))
    with pytest.raises(NothingToDo, match="has landed"):
        with_ports(pipeline.abandon, table=late).abandon(plan.sequence, "ops", "it hangs")
    fill(str(pipeline.connection["bootstrap.servers"]), pipeline)
    pipeline.run("the next run")
    assert_settled(table_judge, pipeline)


@pytest.mark.faults
def test_i5_driver_and_abandon_record_one_landing(table_judge: TableJudge, pipeline: Lake) -> None:
    plan = pipeline.plan("a run")

    def abandon() -> None:
        with pytest.raises(NothingToDo, match="has landed"):
            pipeline.abandon.abandon(plan.sequence, "ops", "it hangs")

    control = PortWithStep(pipeline.control, "append", before=abandon)
    with_ports(pipeline.ingest, control=control).execute(plan.sequence)
    assert_settled(table_judge, pipeline)


@pytest.mark.faults
def test_a_plan_adopted_during_its_abandon_is_abandoned(
    table_judge: TableJudge, pipeline: Lake
) -> None:
    """I2. The abandon meets a conflict and repeats its record."""
    plan = pipeline.plan("a run")
    control = PortWithStep(
        pipeline.control, "append", before=lambda: pipeline.plan("a run in between")
    )
    with_ports(pipeline.abandon, control=control).abandon(plan.sequence, "ops", "too large")
    record = pipeline.ledger.plans[plan.sequence]
    assert record.requesters == (RunOrigin("a run"), RunOrigin("a run in between"))
    assert record.cancelled_by == Abandoned(
        sequence=plan.sequence, requested_by="ops", reason="too large"
    )
    pipeline.run("the next run")
    assert_settled(table_judge, pipeline)


# -- concurrent planners -------------------------------------------------------------------------


def planner_waiting_at_append(lake: Lake, barrier: Barrier) -> Planner:
    """Return a planner that waits at the barrier before it records."""
    return with_ports(
        lake.planner, control=PortWithStep(lake.control, "append", before=barrier.wait)
    )


@pytest.mark.faults
def test_i2_the_second_concurrent_planner_adopts_the_plan(
    table_judge: TableJudge, pipeline: Lake
) -> None:
    barrier = Barrier(2, timeout=180)
    one, other = (
        planner_waiting_at_append(pipeline, barrier),
        planner_waiting_at_append(pipeline, barrier),
    )
    outcomes = run_concurrently(lambda: one.plan("one"), lambda: other.plan("other"))
    assert {outcome.outcome for outcome in outcomes} == {PlanOutcome.NEW, PlanOutcome.ADOPTED}
    assert outcomes[0].plan.fingerprint == outcomes[1].plan.fingerprint
    pipeline.ingest.execute(1)
    assert_settled(table_judge, pipeline)


@pytest.mark.faults
def test_i4_two_planners_of_one_run_get_one_plan(table_judge: TableJudge, pipeline: Lake) -> None:
    barrier = Barrier(2, timeout=180)
    one, other = (
        planner_waiting_at_append(pipeline, barrier),
        planner_waiting_at_append(pipeline, barrier),
    )
    outcomes = run_concurrently(lambda: one.plan("a run"), lambda: other.plan("a run"))
    assert {outcome.outcome for outcome in outcomes} == {PlanOutcome.NEW, PlanOutcome.KEPT}
    assert pipeline.ledger.plans[1].requesters == (RunOrigin("a run"),)
    pipeline.ingest.execute(1)
    assert_settled(table_judge, pipeline)


@pytest.mark.faults
def test_i5_planners_record_one_landing(
    table_judge: TableJudge, pipeline: Lake, broker: BrokerStatus
) -> None:
    plan = pipeline.plan("a run whose driver died after its commit")
    pipeline.table.prepare(plan.pipeline)
    pipeline.land(plan)
    fill(broker.bootstrap, pipeline)
    barrier = Barrier(2, timeout=180)
    one, other = (
        planner_waiting_at_append(pipeline, barrier),
        planner_waiting_at_append(pipeline, barrier),
    )
    outcomes = run_concurrently(lambda: one.plan("one"), lambda: other.plan("other"))
    assert [outcome.plan.sequence for outcome in outcomes] == [2, 2]
    pipeline.ingest.execute(2)
    assert_settled(table_judge, pipeline)


@pytest.mark.faults
def test_i5_planner_and_driver_record_once(
    table_judge: TableJudge, pipeline: Lake, broker: BrokerStatus
) -> None:
    plan = pipeline.plan("a run")
    barrier = Barrier(2, timeout=180)
    late = PortWithStep(pipeline.control, "append", before=barrier.wait)

    def next_run() -> None:
        wait_until(lambda: commits_or_none(pipeline, plan))
        planner_waiting_at_append(pipeline, barrier).plan("the next run")

    driven, planned = run_concurrently(
        lambda: with_ports(pipeline.ingest, control=late).execute(plan.sequence), next_run
    )
    assert isinstance(driven, ExecutionResult)
    assert planned is None
    assert_settled(table_judge, pipeline)


def commits_or_none(lake: Lake, plan: Plan) -> int:
    """Return the number of commits with the plan; 0 without a table."""
    return commits(lake, plan) if lake.version() is not None else 0


def compact_control(lake: Lake) -> None:
    assert DeltaMaintainedTable(str(lake.control_uri)).compact() > 0


@pytest.mark.faults
def test_i4_a_compaction_before_an_append_loses_nothing(
    table_judge: TableJudge, pipeline: Lake
) -> None:
    pipeline.run("a run")
    fill(str(pipeline.connection["bootstrap.servers"]), pipeline)
    planner_control = PortWithStep(
        pipeline.control, "append", before=lambda: compact_control(pipeline)
    )
    assert with_ports(pipeline.planner, control=planner_control).plan("the next").plan is not None
    driver_control = PortWithStep(
        pipeline.control, "append", before=lambda: compact_control(pipeline)
    )
    with_ports(pipeline.ingest, control=driver_control).execute(2)
    assert_settled(table_judge, pipeline)


@pytest.mark.faults
def test_i2_planners_and_a_compaction_record_one_plan(
    table_judge: TableJudge, pipeline: Lake
) -> None:
    pipeline.run("a run")
    fill(str(pipeline.connection["bootstrap.servers"]), pipeline)
    barrier = Barrier(3, timeout=180)
    one, other = (
        planner_waiting_at_append(pipeline, barrier),
        planner_waiting_at_append(pipeline, barrier),
    )

    def compact() -> None:
        barrier.wait()
        compact_control(pipeline)

    planned = run_concurrently(lambda: one.plan("one"), lambda: other.plan("other"), compact)[:2]
    assert {outcome.outcome for outcome in planned} == {PlanOutcome.NEW, PlanOutcome.ADOPTED}
    pipeline.ingest.execute(2)
    assert_settled(table_judge, pipeline)


def plan_in_a_process(lake: Lake, barrier: Any, answers: Any) -> None:
    planned = planner_waiting_at_append(lake, barrier).plan(f"process {os.getpid()}")
    assert planned.plan is not None
    answers.put((planned.outcome.value, planned.plan.fingerprint))


@pytest.mark.faults
def test_i2_four_planner_processes_record_one_plan(table_judge: TableJudge, pipeline: Lake) -> None:
    processes = multiprocessing.get_context("spawn")
    barrier, answers = processes.Barrier(4), processes.Queue()
    # A Spark session cannot be pickled, and planning needs none.
    arguments = (replace(pipeline, session=None), barrier, answers)
    planners = [processes.Process(target=plan_in_a_process, args=arguments) for _ in range(4)]
    for planner in planners:
        planner.start()
    results = [answers.get(timeout=240) for _ in planners]
    for planner in planners:
        planner.join(30)
    assert [planner.exitcode for planner in planners] == [0] * 4
    assert sorted(outcome for outcome, _ in results) == ["adopted"] * 3 + ["new"]
    assert len({fingerprint for _, fingerprint in results}) == 1
    pipeline.ingest.execute(1)
    assert_settled(table_judge, pipeline)


# -- backfills -----------------------------------------------------------------------------------


@pytest.mark.faults
def test_i2_a_scheduled_run_and_a_backfill_of_the_same_offsets_do_not_overlap(
    table_judge: TableJudge, pipeline: Lake, broker: BrokerStatus
) -> None:
    lake = pipeline.of(pipeline.spec.topic, start=StartPolicy.LATEST)
    lake.planner.plan("begin at the end")
    starts = lake.committed()
    fill(broker.bootstrap, lake)
    barrier = Barrier(2, timeout=180)
    scheduled, filling = (
        planner_waiting_at_append(lake, barrier),
        planner_waiting_at_append(lake, barrier),
    )
    # The range starts before the pipeline's start offset and reaches into the scheduled run's.
    request = wanted((0, 4, starts[0] + 6))
    run_concurrently(
        lambda: scheduled.plan("scheduled"), lambda: filling.backfill(request, RunOrigin("ops"))
    )
    live, backfill = lake.ledger.open_plan(PlanKind.LIVE), lake.ledger.open_plan(PlanKind.BACKFILL)
    assert live is not None
    assert backfill is not None
    with (
        zombie(lake, live.plan) as one,
        zombie(lake, backfill.plan) as other,
    ):
        outcomes = run_concurrently(one.wake, other.wake)
    assert [type(outcome) for outcome in outcomes] == [ExecutionResult, ExecutionResult]
    ends = lake.committed()
    assert_settled(table_judge, lake, {0: (4, ends[0]), 1: (starts[1], ends[1])})


@pytest.mark.faults
def test_i2_one_of_two_concurrent_backfills_is_refused(
    table_judge: TableJudge, pipeline: Lake
) -> None:
    lake = pipeline.of(pipeline.spec.topic, start=StartPolicy.LATEST)
    lake.planner.plan("begin at the end")
    barrier = Barrier(2, timeout=180)
    request = wanted((0, 2, 9))
    one, other = planner_waiting_at_append(lake, barrier), planner_waiting_at_append(lake, barrier)
    outcomes = run_concurrently(
        lambda: one.backfill(request, RunOrigin("one")),
        lambda: other.backfill(request, RunOrigin("other")),
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, PlanStillOpen)]
    assert len(refused) == 1
    lake.ingest.execute(refused[0].sequence)
    assert_settled(table_judge, lake, {0: (2, 9)})


# -- lost answers --------------------------------------------------------------------------------


@pytest.mark.faults
def test_i4_an_unacknowledged_commit_is_found_and_recorded(
    table_judge: TableJudge, pipeline: Lake
) -> None:
    plan = pipeline.plan("a run")
    done = with_ports(pipeline.ingest, table=LostAnswer(str(pipeline.uri))).execute(plan.sequence)
    assert done.wrote
    assert_settled(table_judge, pipeline)


@pytest.mark.faults
@pytest.mark.parametrize("calls", [1, 2], ids=["once", "by-the-retry-as-well"])
def test_an_unacknowledged_plan_is_kept(
    table_judge: TableJudge, pipeline: Lake, calls: int
) -> None:
    """I4. The conflict is with the planner's own commit."""
    conflict = ControlConflict(pipeline="events", event_number=1)
    for _ in range(calls):
        control = PortWithStep(pipeline.control, "append", after=raises(conflict))
        planned = with_ports(pipeline.planner, control=control).plan("a run")
        assert planned.outcome is PlanOutcome.KEPT
    assert sorted(pipeline.ledger.plans) == [1]
    pipeline.ingest.execute(1)
    assert_settled(table_judge, pipeline)


@pytest.mark.faults
def test_i4_an_unacknowledged_landing_is_recorded_once(
    table_judge: TableJudge, pipeline: Lake
) -> None:
    plan = pipeline.plan("a run")
    conflict = ControlConflict(pipeline="events", event_number=2)
    control = PortWithStep(pipeline.control, "append", after=raises(conflict))
    with_ports(pipeline.ingest, control=control).execute(plan.sequence)
    assert_settled(table_judge, pipeline)


@pytest.mark.faults
def test_i4_an_unacknowledged_abandon_is_recorded_once(
    table_judge: TableJudge, pipeline: Lake
) -> None:
    plan = pipeline.plan("a run")
    unfenced = TransactionConflict(pipeline="events", sequence=plan.sequence)
    conflict = ControlConflict(pipeline="events", event_number=2)
    abandon = with_ports(
        pipeline.abandon,
        table=PortWithStep(pipeline.table, "fence", after=raises(unfenced)),
        control=PortWithStep(pipeline.control, "append", after=raises(conflict)),
    )
    assert abandon.abandon(plan.sequence, "ops", "too large") == plan
    assert pipeline.ledger.event_number == 2
    pipeline.run("the next run")
    assert_settled(table_judge, pipeline)


def raises(failure: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise failure

    return fail
