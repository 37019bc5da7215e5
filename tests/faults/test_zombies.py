"""Drivers and planners that nobody knows of any more, or that come at the same moment.

They meet at barriers: inside the Delta transaction, between its beginning and its commit, or at the
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
from tests.faults.tally import Court
from tests.support.crashes import Site, wait_until
from tests.support.kafka_judge import Range, log_ranges
from tests.support.lake import Lake
from tests.support.plans import wanted
from tests.support.proxy import ProxiedBroker
from tests.support.topics import make_topic
from tests.support.transactions import Record, produce_aborted, produce_values
from tests.support.zombies import Interposed, LostAnswer, zombie
from tidemark.core.errors import ExitCode
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan, PlanKind
from tidemark.dev.broker import BrokerStatus
from tidemark.ingest.errors import BackfillOpen, PlanAbandoned
from tidemark.ingest.executor import ExecutionResult
from tidemark.ingest.planner import Planner, PlanOutcome
from tidemark.lake.errors import ControlConflict, TransactionConflict
from tidemark.lake.maintained_table import DeltaMaintainedTable
from tidemark.repair.errors import PlanLanded
from tidemark.spec.model import StartPolicy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture
def pipeline(lake: Lake, broker: BrokerStatus, topic: TopicFactory) -> Lake:
    """A pipeline over a topic with records and gaps in two partitions."""
    mine = lake.of(topic(partitions=2))
    fill(broker.bootstrap, mine)
    return mine


def fill(bootstrap: str, lake: Lake) -> None:
    """More records, and gaps, in both partitions."""
    for partition in (0, 1):
        produce_values(bootstrap, lake.spec.topic, 15, partition=partition)
    produce_aborted(bootstrap, lake.spec.topic, [Record(partition=p) for p in (0, 1)])


def settled(court: Court, lake: Lake, ranges: dict[int, Range] | None = None) -> None:
    """I1, I2, I3: the table is the log, nothing is open, nothing overlaps, offsets are at the end.

    Each plan that landed is one commit of the data table and one event of the control table.
    """
    court.judge(lake, ranges=ranges)
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
    rows = DeltaTable(str(lake.root / "control")).to_pyarrow_table().to_pylist()
    recorded = {(row["plan_sequence"], row["event_number"]) for row in rows if is_landed(row)}
    assert sorted(sequence for sequence, _ in recorded) == [plan.sequence for plan in plans]


def is_landed(row: dict[str, Any]) -> bool:
    """Whether a row of the control table says that a plan has landed."""
    return bool(row["event"] == "landed")


def commits(lake: Lake, plan: Plan) -> int:
    """How many commits of the data table carry a plan's fingerprint."""
    history = DeltaTable(lake.uri).history()
    return sum(plan.fingerprint in (commit.get("userMetadata") or "") for commit in history)


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Do these in a thread each; what each came to, or its exception."""

    def outcome(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as failure:  # noqa: BLE001  it is the answer
            return failure

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(outcome, calls))


# -- two live drivers of one plan ----------------------------------------------------------------


def test_two_drivers_of_one_plan_inside_the_transaction_at_once(
    court: Court, pipeline: Lake
) -> None:
    """I4: Delta lets one commit; the other is refused, looks, and ends well."""
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
    settled(court, pipeline)


@pytest.mark.faults
def test_two_drivers_of_one_plan_commit_at_the_same_moment(court: Court, pipeline: Lake) -> None:
    """I4: whichever of them is first."""
    plan = pipeline.plan("a run")
    with (
        zombie(pipeline, plan) as one,
        zombie(pipeline, plan) as other,
    ):
        outcomes = together(one.wake, other.wake)
    assert len({outcome.landing.table_version for outcome in outcomes}) == 1
    assert sorted(outcome.wrote for outcome in outcomes) == [False, True]
    assert [one.table.failure, other.table.failure].count(None) == 1
    settled(court, pipeline)


@pytest.mark.faults
def test_two_drivers_of_one_plan_that_read_at_the_same_time(court: Court, pipeline: Lake) -> None:
    """I4: the second finds the transaction there, commits nothing and confirms the first."""
    plan = pipeline.plan("a run")
    # Both have looked, and have read all; the second looks for the transaction after the first.
    table = Interposed(
        pipeline.table, "append", before=lambda: pipeline.ingest.execute(plan.sequence)
    )
    second = replace(pipeline.ingest, table=table).execute(plan.sequence)
    assert not second.wrote
    assert second.landing.table_version == pipeline.version()
    assert commits(pipeline, plan) == 1
    settled(court, pipeline)


@pytest.mark.e2e
@pytest.mark.faults
def test_two_driver_processes_of_one_plan(
    court: Court, spark: SparkSession, proxied: ProxiedBroker, tmp_path: Path
) -> None:
    """I4: as when Airflow's worker dies, its Spark job lives on, and the task is tried again."""
    name = slow_topic(proxied)
    site = Site(home=tmp_path, bootstrap=proxied.bootstrap, topic=name, session=spark)
    plan = site.lake.plan("a run")
    gate = proxied.proxy.hold()
    with site.started(site.driver("ingest", plan.sequence)) as one:
        gate.wait_held()
        with site.started(site.driver("ingest", plan.sequence)) as other:
            # It has looked for the plan before it reads.
            wait_until(lambda: other.reads_from(proxied.proxy.port))
            gate.release()
            assert one.wait().code == ExitCode.OK
            assert other.wait().code == ExitCode.OK
    assert commits(site.lake, plan) == 1
    court.judge(site.lake)
    assert site.lake.ledger.event_number == 2


def slow_topic(proxied: ProxiedBroker) -> str:
    """A topic behind the proxy, with records in two partitions."""
    admin = AdminClient({"bootstrap.servers": proxied.direct, "log_level": 0})
    name = make_topic(admin, proxied.direct, f"zombies-{uuid.uuid4().hex[:8]}", partitions=2)
    for partition in (0, 1):
        produce_values(proxied.direct, name, 100, partition=partition)
    return name


# -- a driver that wakes too late ----------------------------------------------------------------


@pytest.mark.parametrize(
    "landed_again",
    [
        pytest.param(False, id="given-up"),
        pytest.param(True, id="given-up-and-replaced", marks=pytest.mark.faults),
    ],
)
def test_a_driver_wakes_after_its_plan_was_given_up(
    court: Court, pipeline: Lake, landed_again: bool
) -> None:
    """I4: the fence is younger than its look, so delta-rs refuses it, and it says so."""
    plan = pipeline.plan("a run that hangs")
    with zombie(pipeline, plan) as sleeper:
        pipeline.abandon.abandon(plan.sequence, "somebody", "it hangs")
        if landed_again:
            pipeline.run("the next run")
        outcome = sleeper.wake()
    assert isinstance(outcome, PlanAbandoned)
    assert commits(pipeline, plan) == 0
    with pytest.raises(PlanAbandoned):
        pipeline.ingest.execute(plan.sequence)
    if not landed_again:
        pipeline.run("the next run")
    settled(court, pipeline)


@pytest.mark.e2e
@pytest.mark.faults
def test_a_driver_process_wakes_after_its_plan_was_given_up(
    court: Court, spark: SparkSession, proxied: ProxiedBroker, tmp_path: Path
) -> None:
    """I4: a real driver, in the middle of its read, and the command that gives its plan up."""
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
    assert "PlanAbandoned" in ended.printed
    retried = site.run(site.driver("ingest", plan.sequence), code=ExitCode.REFUSED)
    assert "PlanAbandoned" in retried.printed
    assert site.lake.rows() == []
    site.lake.run("the next run")
    court.judge(site.lake)


@pytest.mark.faults
def test_a_driver_wakes_when_others_have_landed_its_plan_and_the_next(
    court: Court, pipeline: Lake, broker: BrokerStatus
) -> None:
    """I4: its transaction is stale by two plans; it finds its own landed, and ends well."""
    plan = pipeline.plan("a run that hangs")
    with zombie(pipeline, plan) as sleeper:
        done = pipeline.ingest.execute(plan.sequence)
        fill(broker.bootstrap, pipeline)
        pipeline.run("the next run")
        outcome = sleeper.wake()
    assert isinstance(outcome, ExecutionResult)
    assert outcome.landing.table_version == done.landing.table_version
    settled(court, pipeline)


@pytest.mark.faults
def test_a_driver_commits_when_giving_up_is_about_to_fence(court: Court, pipeline: Lake) -> None:
    """I1: the plan has landed, so it is not given up, and its offsets are not planned again."""
    plan = pipeline.plan("a run that hangs")
    pipeline.table.prepare(plan.pipeline)
    # Its driver is slow, or dies: the data table's log alone knows of the landing.
    late = Interposed(pipeline.table, "fence", before=lambda: pipeline.land(plan))
    with pytest.raises(PlanLanded):
        replace(pipeline.abandon, table=late).abandon(plan.sequence, "somebody", "it hangs")
    fill(str(pipeline.connection["bootstrap.servers"]), pipeline)
    pipeline.run("the next run")
    settled(court, pipeline)


@pytest.mark.faults
def test_giving_up_meets_a_driver_that_has_committed_and_not_yet_recorded(
    court: Court, pipeline: Lake
) -> None:
    """I5: what has landed is recorded by whoever finds it, once, and both end well."""
    plan = pipeline.plan("a run")

    def abandon() -> None:
        with pytest.raises(PlanLanded):
            pipeline.abandon.abandon(plan.sequence, "somebody", "it hangs")

    control = Interposed(pipeline.control, "append", before=abandon)
    replace(pipeline.ingest, control=control).execute(plan.sequence)
    settled(court, pipeline)


@pytest.mark.faults
def test_a_run_takes_over_a_plan_that_is_being_given_up(court: Court, pipeline: Lake) -> None:
    """I2: it was fenced already; giving it up meets a conflict, looks again, and is done."""
    plan = pipeline.plan("a run")
    control = Interposed(
        pipeline.control, "append", before=lambda: pipeline.plan("a run that comes between")
    )
    replace(pipeline.abandon, control=control).abandon(plan.sequence, "somebody", "too large")
    record = pipeline.ledger.plans[plan.sequence]
    assert record.requesters == ("a run", "a run that comes between")
    assert record.abandoned == "too large"
    pipeline.run("the next run")
    settled(court, pipeline)


# -- planner against planner ---------------------------------------------------------------------


def at_the_append(lake: Lake, barrier: Barrier) -> Planner:
    """A planner that meets others when it has decided, and has not yet recorded."""
    return replace(lake.planner, control=Interposed(lake.control, "append", before=barrier.wait))


def test_two_planners_at_once_make_one_plan(court: Court, pipeline: Lake) -> None:
    """I2: the control table takes one; the other sees it and takes it over."""
    barrier = Barrier(2, timeout=180)
    one, other = at_the_append(pipeline, barrier), at_the_append(pipeline, barrier)
    outcomes = together(lambda: one.plan("one"), lambda: other.plan("other"))
    assert {outcome.outcome for outcome in outcomes} == {PlanOutcome.NEW, PlanOutcome.ADOPTED}
    assert outcomes[0].plan.fingerprint == outcomes[1].plan.fingerprint
    pipeline.ingest.execute(1)
    settled(court, pipeline)


@pytest.mark.faults
def test_two_planners_of_one_run_get_one_plan(court: Court, pipeline: Lake) -> None:
    """I4: one task, run twice at once: the plan is the run's, whichever of them recorded it."""
    barrier = Barrier(2, timeout=180)
    one, other = at_the_append(pipeline, barrier), at_the_append(pipeline, barrier)
    outcomes = together(lambda: one.plan("a run"), lambda: other.plan("a run"))
    assert {outcome.outcome for outcome in outcomes} == {PlanOutcome.NEW, PlanOutcome.KEPT}
    assert pipeline.ledger.plans[1].requesters == ("a run",)
    pipeline.ingest.execute(1)
    settled(court, pipeline)


@pytest.mark.faults
def test_two_planners_record_one_landing(
    court: Court, pipeline: Lake, broker: BrokerStatus
) -> None:
    """I5: a landing that nobody recorded is recorded once, and what is new is planned once."""
    plan = pipeline.plan("a run whose driver died after its commit")
    pipeline.table.prepare(plan.pipeline)
    pipeline.land(plan)
    fill(broker.bootstrap, pipeline)
    barrier = Barrier(2, timeout=180)
    one, other = at_the_append(pipeline, barrier), at_the_append(pipeline, barrier)
    outcomes = together(lambda: one.plan("one"), lambda: other.plan("other"))
    assert [outcome.plan.sequence for outcome in outcomes] == [2, 2]
    pipeline.ingest.execute(2)
    settled(court, pipeline)


@pytest.mark.faults
def test_a_planner_and_the_driver_record_one_landing(
    court: Court, pipeline: Lake, broker: BrokerStatus
) -> None:
    """I5: the driver is slow to record, the next run does it first, and the driver ends well."""
    plan = pipeline.plan("a run")
    barrier = Barrier(2, timeout=180)
    late = Interposed(pipeline.control, "append", before=barrier.wait)

    def next_run() -> None:
        wait_until(lambda: commits_or_none(pipeline, plan))
        at_the_append(pipeline, barrier).plan("the next run")

    driven, planned = together(
        lambda: replace(pipeline.ingest, control=late).execute(plan.sequence), next_run
    )
    assert isinstance(driven, ExecutionResult)
    assert planned is None
    settled(court, pipeline)


def commits_or_none(lake: Lake, plan: Plan) -> int:
    """How many commits carry the plan; none as well while there is no table."""
    return commits(lake, plan) if lake.version() is not None else 0


def compact_control(lake: Lake) -> None:
    """Maintain the control table, as the DAG does."""
    assert DeltaMaintainedTable(str(lake.root / "control")).compact() > 0


@pytest.mark.faults
def test_compaction_comes_between_a_decision_and_its_record(court: Court, pipeline: Lake) -> None:
    """I4: a run that decided before the control table was compacted records, or decides again."""
    pipeline.run("a run")
    fill(str(pipeline.connection["bootstrap.servers"]), pipeline)
    planner_control = Interposed(
        pipeline.control, "append", before=lambda: compact_control(pipeline)
    )
    assert replace(pipeline.planner, control=planner_control).plan("the next").plan is not None
    driver_control = Interposed(
        pipeline.control, "append", before=lambda: compact_control(pipeline)
    )
    replace(pipeline.ingest, control=driver_control).execute(2)
    settled(court, pipeline)


@pytest.mark.faults
def test_two_planners_and_a_compaction_at_once(court: Court, pipeline: Lake) -> None:
    """I2: whatever the order, there is one plan."""
    pipeline.run("a run")
    fill(str(pipeline.connection["bootstrap.servers"]), pipeline)
    barrier = Barrier(3, timeout=180)
    one, other = at_the_append(pipeline, barrier), at_the_append(pipeline, barrier)

    def compact() -> None:
        barrier.wait()
        compact_control(pipeline)

    planned = together(lambda: one.plan("one"), lambda: other.plan("other"), compact)[:2]
    assert {outcome.outcome for outcome in planned} == {PlanOutcome.NEW, PlanOutcome.ADOPTED}
    pipeline.ingest.execute(2)
    settled(court, pipeline)


def plan_in_a_process(lake: Lake, barrier: Any, answers: Any) -> None:
    """A planner in a process of its own."""
    planned = at_the_append(lake, barrier).plan(f"process {os.getpid()}")
    assert planned.plan is not None
    answers.put((planned.outcome.value, planned.plan.fingerprint))


@pytest.mark.faults
def test_planner_processes_at_once_make_one_plan(court: Court, pipeline: Lake) -> None:
    """I2: nothing but the control table is between four processes, which also have to make it."""
    processes = multiprocessing.get_context("spawn")
    barrier, answers = processes.Barrier(4), processes.Queue()
    # Spark does not travel, and planning needs none.
    arguments = (replace(pipeline, session=None), barrier, answers)
    planners = [processes.Process(target=plan_in_a_process, args=arguments) for _ in range(4)]
    for planner in planners:
        planner.start()
    told = [answers.get(timeout=240) for _ in planners]
    for planner in planners:
        planner.join(30)
    assert [planner.exitcode for planner in planners] == [0] * 4
    assert sorted(outcome for outcome, _ in told) == ["adopted"] * 3 + ["new"]
    assert len({fingerprint for _, fingerprint in told}) == 1
    pipeline.ingest.execute(1)
    settled(court, pipeline)


# -- a scheduled run against a backfill ----------------------------------------------------------


def test_a_scheduled_run_and_a_backfill_want_the_same_offsets(
    court: Court, pipeline: Lake, broker: BrokerStatus
) -> None:
    """I2: planned at once, one plans around the other; landed at once, no row is doubled."""
    lake = pipeline.of(pipeline.spec.topic, start=StartPolicy.LATEST)
    lake.planner.plan("begin at the end")
    begun = lake.committed()
    fill(broker.bootstrap, lake)
    barrier = Barrier(2, timeout=180)
    scheduled, filling = at_the_append(lake, barrier), at_the_append(lake, barrier)
    # From before where the pipeline began into what the scheduled run wants.
    request = wanted((0, 4, begun[0] + 6))
    together(
        lambda: scheduled.plan("scheduled"),
        lambda: filling.backfill(request, RunOrigin("somebody")),
    )
    live, backfill = lake.ledger.open_plan(PlanKind.LIVE), lake.ledger.open_plan(PlanKind.BACKFILL)
    assert live is not None
    assert backfill is not None
    with (
        zombie(lake, live.plan) as one,
        zombie(lake, backfill.plan) as other,
    ):
        outcomes = together(one.wake, other.wake)
    assert [type(outcome) for outcome in outcomes] == [ExecutionResult, ExecutionResult]
    ends = lake.committed()
    settled(court, lake, {0: (4, ends[0]), 1: (begun[1], ends[1])})


@pytest.mark.faults
def test_two_backfills_want_the_same_offsets(court: Court, pipeline: Lake) -> None:
    """I2: one is planned, the other is refused with the name of the first."""
    lake = pipeline.of(pipeline.spec.topic, start=StartPolicy.LATEST)
    lake.planner.plan("begin at the end")
    barrier = Barrier(2, timeout=180)
    request = wanted((0, 2, 9))
    one, other = at_the_append(lake, barrier), at_the_append(lake, barrier)
    outcomes = together(
        lambda: one.backfill(request, RunOrigin("one")),
        lambda: other.backfill(request, RunOrigin("other")),
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, BackfillOpen)]
    assert len(refused) == 1
    lake.ingest.execute(refused[0].sequence)
    settled(court, lake, {0: (2, 9)})


# -- done, and the answer lost -------------------------------------------------------------------


def test_the_answer_to_the_commit_of_a_landing_is_lost(court: Court, pipeline: Lake) -> None:
    """I4: a failure whose outcome is unknown: it looks, finds its own commit and records it."""
    plan = pipeline.plan("a run")
    done = replace(pipeline.ingest, table=LostAnswer(pipeline.uri)).execute(plan.sequence)
    assert done.wrote
    settled(court, pipeline)


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(1, id="once"),
        pytest.param(2, id="by-the-retry-as-well", marks=pytest.mark.faults),
    ],
)
def test_the_answer_to_an_append_of_a_plan_is_lost(
    court: Court, pipeline: Lake, calls: int
) -> None:
    """I4: what looks like a conflict with another planner was its own commit: the plan is kept."""
    conflict = ControlConflict(pipeline="events", event_number=1)
    for _ in range(calls):
        control = Interposed(pipeline.control, "append", after=raises(conflict))
        planned = replace(pipeline.planner, control=control).plan("a run")
        assert planned.outcome is PlanOutcome.KEPT
    assert sorted(pipeline.ledger.plans) == [1]
    pipeline.ingest.execute(1)
    settled(court, pipeline)


@pytest.mark.faults
def test_the_answer_to_an_append_of_a_landing_is_lost(court: Court, pipeline: Lake) -> None:
    """I4: it looks again, and the landing is recorded: by itself."""
    plan = pipeline.plan("a run")
    conflict = ControlConflict(pipeline="events", event_number=2)
    control = Interposed(pipeline.control, "append", after=raises(conflict))
    replace(pipeline.ingest, control=control).execute(plan.sequence)
    settled(court, pipeline)


@pytest.mark.faults
def test_the_answers_to_a_fence_and_to_giving_up_are_lost(court: Court, pipeline: Lake) -> None:
    """I4: both are looked for, found done, and not done again."""
    plan = pipeline.plan("a run")
    unfenced = TransactionConflict(pipeline="events", sequence=plan.sequence)
    conflict = ControlConflict(pipeline="events", event_number=2)
    abandon = replace(
        pipeline.abandon,
        table=Interposed(pipeline.table, "fence", after=raises(unfenced)),
        control=Interposed(pipeline.control, "append", after=raises(conflict)),
    )
    assert abandon.abandon(plan.sequence, "somebody", "too large") == plan
    assert pipeline.ledger.event_number == 2
    pipeline.run("the next run")
    settled(court, pipeline)


def raises(failure: Exception) -> Callable[[], None]:
    """A function that raises it."""

    def fail() -> None:
        raise failure

    return fail
