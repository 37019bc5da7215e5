"""Every step of every process, killed before it and after it, and run again.

Each case kills a real process at a fail point (dev/failpoints.py) or in the middle of a read,
runs the same thing again as a person or Airflow would, and compares the table with the log.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.mark import ParameterSet
from deltalake import DeltaTable

from tests.airflow.conftest import airflow_environment
from tests.conftest import PROJECT, TopicFactory
from tests.faults.tally import Court
from tests.support.crashes import KILLED, Site, Trace, held_in_mid_read, wait_until
from tests.support.kafka_judge import Range, log_ranges
from tests.support.plans import wanted
from tests.support.proxy import ProxiedBroker
from tests.support.transactions import (
    Record,
    produce_aborted,
    produce_committed,
    produce_values,
)
from tidemark.backfill.selection import select
from tidemark.backfill.service import Backfills, ChunkState
from tidemark.core.errors import ExitCode, TidemarkError
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan
from tidemark.dev.broker import BrokerStatus
from tidemark.dev.failpoints import kill_message
from tidemark.ingest.errors import PlanFenced
from tidemark.repair.errors import PlanLanded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.e2e]


def points(*calls: str, bounded: tuple[str, ...] = ()) -> list[ParameterSet]:
    """Fail points before and after each call, `step:n`; those not in `bounded` are marked long."""
    return [
        pytest.param(
            f"{step}:{moment}:{number}",
            id=f"{moment}-{step}-{number}",
            marks=() if f"{moment} {step}:{number}" in bounded else pytest.mark.faults,
        )
        for step, _, number in (call.partition(":") for call in calls)
        for moment in ("before", "after")
    ]


def fill(bootstrap: str, topic: str) -> None:
    """Some of all: plain records, committed and aborted ones, in two partitions."""
    produce_values(bootstrap, topic, 20, partition=0)
    produce_aborted(bootstrap, topic, [Record(value=b"never", partition=p) for p in (0, 1)])
    produce_committed(bootstrap, topic, [Record(value=b"both", partition=p) for p in (0, 1)])
    produce_values(bootstrap, topic, 10, partition=1)


@pytest.fixture
def site(spark: SparkSession, broker: BrokerStatus, topic: TopicFactory, tmp_path: Path) -> Site:
    """A pipeline of this test's own, over a topic with something in it."""
    name = topic(partitions=2)
    fill(broker.bootstrap, name)
    return Site(home=tmp_path, bootstrap=broker.bootstrap, topic=name, session=spark)


@pytest.fixture
def late_site(site: Site) -> Site:
    """The same pipeline, which begins at the end of what is there."""
    return replace(site, start="latest")


def settled(court: Court, site: Site, ranges: dict[int, Range] | None = None) -> None:
    """I1, I2, I3: the table is the log, nothing is open, nothing overlaps, offsets are at the end.

    Args:
        court: The judge.
        site: The pipeline.
        ranges: What must have landed; the whole log if None.
    """
    lake = site.lake
    court.judge(lake, ranges=ranges)
    ledger = lake.ledger
    assert ledger.open_plans() == []
    ends = {
        partition: end for partition, (_, end) in log_ranges(site.bootstrap, site.topic).items()
    }
    assert lake.committed() == ends
    landed = sorted(
        (count.partition, count.start, count.end)
        for record in ledger.plans.values()
        if record.held_now
        for count in record.held_now.counts
    )
    assert landed
    for (one, _, end), (other, start, _) in pairwise(landed):
        assert one != other or end <= start, landed


def land_what_is_open(site: Site) -> None:
    """Execute what is open, then what is unread, as the next run does."""
    lake = site.lake
    for record in lake.ledger.open_plans():
        lake.ingest.execute(record.plan.sequence)
    planned = lake.planner.plan("the next run").plan
    if planned:
        lake.ingest.execute(planned.sequence)


# -- the steps -----------------------------------------------------------------------------------

FIRST_PLAN = (
    "control.summary:1",
    "table.state:1",
    "watermarks.topic_watermarks:1",
    "control.append:1",
)
SETTLING = (
    "control.summary:1",
    "table.state:1",
    "table.find_landing:1",
    "watermarks.topic_watermarks:1",
    "table.offsets_without_rows:1",
    "log_reader.read:1",
    "watermarks.topic_watermarks:2",
    "table.state:2",
    "control.append:1",
    "control.summary:2",
    "table.state:3",
    "watermarks.topic_watermarks:3",
    "control.append:2",
)
BACKFILL = (
    "control.summary:1",
    "table.state:1",
    "watermarks.topic_watermarks:1",
    "table.size:1",
    "control.backfills:1",
    "control.summary:2",
    "table.state:2",
    "control.backfills:2",
    "control.append:1",
    "control.backfills:3",
    "control.summary:3",
    "control.backfills:4",
    "control.summary:4",
    "table.state:3",
    "watermarks.topic_watermarks:2",
    "control.append:2",
)
REPLACING = (
    *BACKFILL[:4],
    "table.files_with:1",
    "control.ledger:1",
    "table.current_landing:1",
    *BACKFILL[4:-1],
    "control.ledger:2",
    "table.current_landing:2",
    "table.current_landing:3",
    BACKFILL[-1],
)
TAKING_OVER = (
    "control.summary:1",
    "table.state:1",
    "table.find_landing:1",
    "control.append:1",
)
DRIVER = (
    "control.plan_record:1",
    "control.summary:1",
    "table.state:1",
    "table.state:2",
    "table.find_landing:1",
    "watermarks.topic_watermarks:1",
    "table.prepare:1",
    "sink.write:1",
    "watermarks.topic_watermarks:2",
    "table.append:1",
    "table.state:3",
    "table.find_landing:2",
    "control.summary:2",
    "control.plan_record:2",
    "watermarks.topic_watermarks:3",
    "table.offsets_without_rows:1",
    "log_reader.read:1",
    "watermarks.topic_watermarks:4",
    "table.state:4",
    "control.append:1",
)
UNDOING = (
    "control.summary:1",
    "table.state:1",
    "control.plan_record:1",
    "table.check_removable:1",
    "control.append:1",
    "table.remove_rows:1",
    "control.summary:2",
    "table.state:2",
    "control.plan_record:2",
    "control.append:2",
)
GIVING_UP = (
    "control.summary:1",
    "table.state:1",
    "control.plan_record:1",
    "table.fence:1",
    "table.find_landing:1",
    "control.append:1",
)
GIVING_UP_WHAT_HAS_LANDED = (
    "control.summary:1",
    "table.state:1",
    "control.plan_record:1",
    "table.fence:1",
    "table.find_landing:1",
    "watermarks.topic_watermarks:1",
    "table.offsets_without_rows:1",
    "log_reader.read:1",
    "watermarks.topic_watermarks:2",
    "table.state:2",
    "control.append:1",
)


def test_the_matrix_has_every_step(site: Site) -> None:
    """The steps above are all that each process does to the world, and in this order."""
    lake = site.lake

    def steps(service: Any, call: Callable[[Any], object]) -> tuple[str, ...]:
        trace = Trace()
        with suppress(PlanLanded):
            call(trace.on(service))
        return tuple(trace.steps)

    def land(requested_by: str) -> None:
        lake.land(lake.plan(requested_by))
        fill(site.bootstrap, site.topic)

    assert steps(lake.planner, lambda planner: planner.plan("one")) == FIRST_PLAN
    assert steps(lake.planner, lambda planner: planner.plan("two")) == TAKING_OVER
    assert steps(lake.ingest, lambda ingest: ingest.execute(1)) == DRIVER
    fill(site.bootstrap, site.topic)
    land("three")
    assert steps(lake.planner, lambda planner: planner.plan("four")) == SETTLING
    assert steps(lake.abandon, lambda abandon: abandon.abandon(3, "five", "a test")) == GIVING_UP
    land("six")
    found = steps(lake.abandon, lambda abandon: abandon.abandon(4, "seven", "a test"))
    assert found == GIVING_UP_WHAT_HAS_LANDED
    offsets = select(offsets=["0:0-1"])

    def back_fill(backfills: Backfills, *, replaces: bool) -> None:
        asked = backfills.preview(offsets, None, readable_only=False, replaces=replaces)
        backfills.request(asked, f"eight {replaces}", approved=False, reason="a test")
        backfills.progress(f"eight {replaces}")
        backfills.plan_chunk(f"eight {replaces}", 1)

    assert steps(lake.backfills, partial(back_fill, replaces=True)) == REPLACING
    lake.abandon.abandon(5, "nine", "a test")
    assert steps(lake.undo, lambda undo: undo.undo(1, "ten", "a test")) == UNDOING
    assert steps(lake.backfills, partial(back_fill, replaces=False)) == BACKFILL


# -- the planner ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "at",
    points(*FIRST_PLAN),
)
def test_planner_dies_making_the_first_plan(court: Court, site: Site, at: str) -> None:
    """I2: the next run makes the plan, or takes over the one that was recorded."""
    site.crash(site.tidemark("plan", "events"), at)
    site.run(site.tidemark("plan", "events"))
    assert sorted(site.lake.ledger.plans) == [1]
    land_what_is_open(site)
    settled(court, site)


@pytest.mark.parametrize(
    "at",
    points(*SETTLING),
)
def test_planner_dies_settling_a_landing_that_nobody_recorded(
    court: Court, site: Site, at: str
) -> None:
    """I5: the landing is recorded once, and what came after it is planned once."""
    lake = site.lake
    plan = lake.plan("a run whose driver died after its commit")
    lake.table.prepare("events")
    lake.land(plan)
    fill(site.bootstrap, site.topic)
    site.crash(site.tidemark("plan", "events"), at)
    site.run(site.tidemark("plan", "events"))
    assert [record.plan.sequence for record in lake.ledger.open_plans()] == [2]
    land_what_is_open(site)
    settled(court, site)
    assert sorted(lake.ledger.plans) == [1, 2]


@pytest.mark.parametrize("at", points(*TAKING_OVER))
def test_planner_dies_taking_over_an_open_plan(court: Court, site: Site, at: str) -> None:
    """I4: the plan stays as it is, and the run after it lands it."""
    plan = site.lake.plan("a run that planned and died")
    fill(site.bootstrap, site.topic)
    site.crash(site.tidemark("plan", "events"), at)
    site.run(site.tidemark("plan", "events"))
    assert site.lake.ledger.plans[1].plan == plan
    land_what_is_open(site)
    settled(court, site)


@pytest.mark.parametrize(
    "at",
    points(*BACKFILL),
)
def test_backfill_dies_planning(
    court: Court,
    late_site: Site,
    at: str,
) -> None:
    """I2: what was asked for is known or not; whoever goes on with it lands it once."""
    late_site.lake.planner.plan("begin at the end")
    asked = late_site.tidemark("backfill", "events", "--offsets=0:3-9", "--master=local[2]")
    late_site.crash(asked, at)
    known = asked_by(late_site)
    if not known:
        late_site.run(asked)
    for requested_by in known:
        late_site.lake.backfills.plan_chunk(requested_by, 1)
    land_what_is_open(late_site)
    settled(court, late_site, {0: (3, 9)})


def asked_by(site: Site) -> set[str]:
    """Who has asked for backfills."""
    uri = site.app.layout.control_table
    if not DeltaTable.is_deltatable(uri):
        return set()
    rows = DeltaTable(uri).to_pyarrow_table(columns=["event", "requested_by"]).to_pylist()
    return {row["requested_by"] for row in rows if row["event"] == "backfill_requested"}


@pytest.mark.faults
@pytest.mark.parametrize("chunks", [3, 10])
def test_machine_dies_in_the_middle_of_a_backfill(
    court: Court,
    late_site: Site,
    chunks: int,
) -> None:
    """I1, I2, I4: whole chunks are there; --resume lands the others, and none of them twice."""
    size = -(
        -sum(end for _, end in log_ranges(late_site.bootstrap, late_site.topic).values()) // chunks
    )
    asked = late_site.tidemark("backfill", "events", "--retained", f"--chunk={size}")

    def landed() -> int:
        return sum(each.done for who in asked_by(late_site) for each in progress(who))

    def progress(who: str) -> list[ChunkState]:
        return late_site.lake.backfills.progress(who)

    with late_site.started([*asked, "--master=local[2]"]) as running:
        wait_until(lambda: landed() >= chunks // 2)
        printed = running.kill().printed
    (who,) = asked_by(late_site)
    assert f"tidemark backfill events --resume {who}" in printed
    assert chunks // 2 <= landed() < chunks
    resumed = late_site.run(
        late_site.tidemark("backfill", "events", "--resume", who, "--master=local[2]")
    )
    print(printed, resumed.printed)
    assert [each.done for each in progress(who)] == [True] * chunks
    assert sorted(late_site.lake.ledger.plans) == list(range(1, chunks + 1))
    settled(court, late_site)
    again = late_site.run(late_site.tidemark("backfill", "events", "--retained"))
    assert "nothing to do" in again.printed


# -- the driver ----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", points(*DRIVER, bounded=("after table.append:1",)))
def test_driver_dies_and_the_same_task_runs_again(court: Court, site: Site, at: str) -> None:
    """I1, I4: what was done is found done, what was not is done, by a driver like the first."""
    plan = site.lake.plan("a run")
    site.crash(site.driver("ingest", plan.sequence), at)
    site.run(site.driver("ingest", plan.sequence))
    settled(court, site)
    assert landings(site, plan) == 1


@pytest.mark.parametrize("at", points("sink.write:1", "table.append:1", "control.append:1"))
def test_driver_dies_and_the_next_run_goes_on(court: Court, site: Site, at: str) -> None:
    """I1, I5: `tidemark ingest` settles or takes over what is open before it reads on."""
    plan = site.lake.plan("a run that does not come back")
    site.crash(site.driver("ingest", plan.sequence), at)
    fill(site.bootstrap, site.topic)
    site.run(site.tidemark("ingest", "events", "--master=local[2]"))
    land_what_is_open(site)
    settled(court, site)
    assert landings(site, plan) == 1


@pytest.mark.parametrize("at", points("sink.write:1", "table.append:1", "control.append:1"))
def test_backfills_driver_dies_and_runs_again(
    court: Court,
    late_site: Site,
    at: str,
) -> None:
    """I2, I4: a live run lands beside the open backfill, and the backfill is landed once."""
    lake = late_site.lake
    lake.planner.plan("begin at the end")
    begun = lake.committed()
    request = wanted((0, 3, 9))
    plan = lake.planner.backfill(request, RunOrigin("somebody")).plan
    assert plan is not None
    late_site.crash(late_site.driver("ingest", plan.sequence), at)
    fill(late_site.bootstrap, late_site.topic)
    lake.run("a scheduled run")
    late_site.run(late_site.driver("ingest", plan.sequence))
    assert lake.ledger.open_plans() == []
    assert landings(late_site, plan) == 1
    # The judge takes one range of a partition at a time: what is between the two was never asked.
    lake.planner.backfill(wanted((0, 9, begun[0])), RunOrigin("the rest"))
    land_what_is_open(late_site)
    settled(court, late_site, {0: (3, lake.committed()[0]), 1: (begun[1], lake.committed()[1])})


@pytest.mark.parametrize("at", points(*REPLACING))
def test_replacement_dies_planning(court: Court, site: Site, at: str) -> None:
    """I2: asked for once more by its name, or anew, it replaces the rows once."""
    lake = site.lake
    lake.run("a run")
    replaced = ("--offsets=0:3-9", "--replace", "--reason=a test")
    asked = site.tidemark("backfill", "events", *replaced, "--master=local[2]")
    site.crash(asked, at)
    known = asked_by(site)
    if not known:
        site.run(asked)
    for requested_by in known:
        site.run(site.tidemark("backfill", "events", f"--resume={requested_by}"))
    assert Counter(row["plan_sequence"] for row in lake.rows() if row["partition"] == 0)[2] == 6
    settled(court, site)


@pytest.mark.parametrize(
    "at",
    points("sink.write:1", "table.append:1", "control.append:1"),
)
def test_replacements_driver_dies_and_runs_again(court: Court, site: Site, at: str) -> None:
    """I1, I4: rows that somebody has changed are replaced in one commit, by whoever comes next."""
    lake = site.lake
    lake.run("a run")
    fill(site.bootstrap, site.topic)
    lake.run("a second run")
    DeltaTable(lake.uri).delete("partition = 0 AND offset = 4")
    request = replace(wanted((0, 0, 30)), replaces=True)
    plan = lake.planner.backfill(request, RunOrigin("somebody")).plan
    assert plan is not None
    site.crash(site.driver("ingest", plan.sequence), at)
    fill(site.bootstrap, site.topic)
    lake.run("a scheduled run")
    site.run(site.driver("ingest", plan.sequence))
    assert landings(site, plan) == 1
    settled(court, site)


@pytest.mark.parametrize("at", points(*UNDOING, bounded=("after table.remove_rows:1",)))
def test_undo_dies_and_is_said_again(court: Court, site: Site, at: str) -> None:
    """I1, I2: the same command goes on, and what the plan had landed is read again, once."""
    lake = site.lake
    lake.run("a run that was wrong")
    fill(site.bootstrap, site.topic)
    lake.run("a run after it")
    asked = site.tidemark("undo", "events", "--plan=1", "--reason=a test")
    site.crash(asked, at)
    site.run(asked)
    assert lake.ledger.plans[1].undone_version is not None
    assert {row["plan_sequence"] for row in lake.rows()} == {2}
    land_what_is_open(site)
    settled(court, site)


def landings(site: Site, plan: Plan) -> int:
    """How many commits of the data table carry the plan's fingerprint."""
    commits = DeltaTable(site.lake.uri).history()
    return sum(plan.fingerprint in (commit.get("userMetadata") or "") for commit in commits)


# -- in the middle of a read ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "whole",
    [
        pytest.param(True, id="python-and-jvm"),
        pytest.param(False, id="python-alone", marks=pytest.mark.faults),
    ],
)
def test_driver_dies_in_mid_read_with_some_of_its_files_written(
    court: Court, long_read: Site, proxied: ProxiedBroker, whole: bool
) -> None:
    """I1: files that no commit names are no rows, and the same task lands all of them once."""
    plan = long_read.lake.plan("a run")
    driver = long_read.driver("ingest", plan.sequence)
    with held_in_mid_read(long_read, proxied, driver) as (running, gate):
        if whole:
            ended = running.kill()
        else:
            (python,) = set(running.find("jobs/ingest.py")) - set(running.find("SparkSubmit"))
            os.kill(python, signal.SIGKILL)
            ended = running.wait()
        assert ended.code in KILLED, ended
        gate.release()
    left = {file.name for file in long_read.files()}
    # A JVM whose Python has gone ends in order, and takes its files with it.
    assert left or not whole
    assert long_read.lake.rows() == []
    long_read.run(driver)
    settled(court, long_read)
    assert not left & {Path(file).name for file in DeltaTable(long_read.lake.uri).file_uris()}


@pytest.mark.parametrize(
    "all_of_them",
    [
        pytest.param(False, id="one-of-two"),
        pytest.param(True, id="both"),
    ],
)
@pytest.mark.faults
def test_executor_dies_in_mid_read(
    court: Court, long_read: Site, proxied: ProxiedBroker, all_of_them: bool
) -> None:
    """I1: its tasks run again elsewhere, and what it had written is in no commit."""
    plan = long_read.lake.plan("a run")
    driver = long_read.driver("ingest", plan.sequence, master="local-cluster[2,1,1024]")
    with held_in_mid_read(long_read, proxied, driver) as (running, gate):
        executors = running.find("CoarseGrainedExecutorBackend")
        assert len(executors) == 2
        killed = executors[: 2 if all_of_them else 1]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not set(killed) & set(running.members()))
        gate.release()
        ended = running.wait()
    assert ended.code == ExitCode.OK, ended.printed
    settled(court, long_read)
    assert landings(long_read, plan) == 1


# -- giving up -----------------------------------------------------------------------------------

ABANDON = ("abandon", "events", "--plan=1", "--reason=a test of crashes")


@pytest.mark.parametrize("at", points(*GIVING_UP, bounded=("after table.fence:1",)))
def test_abandon_dies_and_is_said_again(court: Court, site: Site, at: str) -> None:
    """I2: the plan is given up once, and its offsets are planned and landed by the next run."""
    site.lake.plan("a run")
    site.crash(site.tidemark(*ABANDON), at)
    site.run(site.tidemark(*ABANDON))
    assert site.lake.ledger.plans[1].abandoned == "a test of crashes"
    land_what_is_open(site)
    settled(court, site)
    assert sorted(site.lake.ledger.plans) == [1, 2]


@pytest.mark.faults
def test_abandon_dies_behind_its_fence_and_a_run_comes_first(court: Court, site: Site) -> None:
    """I7: the run fails by name and writes nothing; giving the plan up again cures it."""
    plan = site.lake.plan("a run")
    site.crash(site.tidemark(*ABANDON), "table.fence:after:1")
    assert site.lake.plan("the next run") == plan
    with pytest.raises(PlanFenced):
        site.lake.ingest.execute(plan.sequence)
    assert site.lake.rows() == []
    site.run(site.tidemark(*ABANDON))
    land_what_is_open(site)
    settled(court, site)


@pytest.mark.faults
def test_a_run_that_meets_a_fence_is_told_to_give_the_plan_up(site: Site) -> None:
    """I7: the error says what to do, and a retry by itself is not it."""
    plan = site.lake.plan("a run")
    site.lake.table.fence(plan)
    with pytest.raises(TidemarkError) as refused:
        site.lake.ingest.execute(plan.sequence)
    assert "tidemark abandon" in refused.value.rendered("fix")
    assert not refused.value.exit_code.retryable


@pytest.mark.parametrize("at", points(*GIVING_UP_WHAT_HAS_LANDED))
def test_abandon_dies_recording_a_landing_that_it_found(court: Court, site: Site, at: str) -> None:
    """I5: a plan that has landed is not given up, however often it is said."""
    plan = site.lake.plan("a run whose driver died after its commit")
    site.lake.table.prepare("events")
    site.lake.land(plan)
    site.crash(site.tidemark(*ABANDON), at)
    refused = site.run(site.tidemark(*ABANDON), code=ExitCode.REFUSED)
    assert "PlanLanded" in refused.printed
    settled(court, site)


# -- maintenance of the control table ------------------------------------------------------------


@pytest.mark.parametrize("at", points("maintenance.compact:2"))
def test_maintenance_of_the_control_table_dies_and_runs_again(
    court: Court, site: Site, at: str
) -> None:
    """I4: no event changes, and the plan that was open all the while lands."""
    site.lake.run("a run")
    fill(site.bootstrap, site.topic)
    site.lake.run("another run")
    fill(site.bootstrap, site.topic)
    site.lake.plan("a run that planned and died")
    ledger = site.lake.ledger
    # The data table's files first, then the control table's.
    maintain = site.tidemark("maintain", "events")
    site.crash(maintain, at)
    assert site.lake.ledger == ledger
    site.run(maintain)
    assert site.lake.ledger == ledger
    fill(site.bootstrap, site.topic)
    land_what_is_open(site)
    settled(court, site)
    assert sorted(site.lake.ledger.plans) == [1, 2, 3, 4]


# -- quality -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "at",
    points(
        "control.plan_record:1",
        "quality.check:1",
        "quality.record:1",
        "publication.append:1",
    ),
)
def test_quality_dies_and_runs_again(court: Court, site: Site, at: str) -> None:
    """I1: what landed is not touched, and every attempt that is kept is kept whole."""
    landed = site.lake.run("a run").landing
    site.crash(site.driver("quality", 1), at)
    site.run(site.driver("quality", 1))
    results = DeltaTable(site.app.layout.quality_results).to_pyarrow_table().to_pylist()
    attempts: dict[object, set[str]] = {}
    for row in results:
        assert row["plan_sequence"] == 1
        assert row["outcome"] != "failed"
        attempts.setdefault(row["run_at"], set()).add(row["check"])
    once = "publication" not in at and at != "quality.record:after:1"
    assert len(attempts) == (1 if once else 2)
    (plan,) = site.app.pipeline("events").publication.plans()
    assert plan.is_published
    assert len({frozenset(checks) for checks in attempts.values()}) == 1
    assert len(results) == sum(map(len, attempts.values()))
    assert site.lake.version() == landed.table_version
    settled(court, site)


# -- Airflow -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Airflow's database before anything has run; making it takes longer than a test."""
    home = tmp_path_factory.mktemp("airflow")
    command = [str(Path(sys.executable).parent / "airflow"), "db", "migrate"]
    subprocess.run(command, env=airflow_environment(home), check=True, capture_output=True)
    return home / "airflow.db"


@pytest.fixture
def airflow_site(site: Site, empty_database: Path) -> Site:
    """The same pipeline with an Airflow of its own, which has no scheduler."""
    site.environ = {
        **airflow_environment(site.home / "airflow"),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
    }
    home = site.home / "airflow"
    home.mkdir()
    shutil.copy(empty_database, home)
    return site


def dag_run(*skipped: str) -> list[str]:
    """The command line of one run of the pipeline's DAG; always the same run."""
    script = str(PROJECT / "tests" / "support" / "run_dag.py")
    return [sys.executable, script, "tidemark_events", "2026-01-01T00:00:00+00:00", *skipped]


@pytest.mark.airflow
@pytest.mark.parametrize(
    "at",
    points("watermarks.topic_watermarks:1", "control.append:1"),
)
def test_airflows_plan_task_dies_and_the_same_run_goes_on(
    court: Court, airflow_site: Site, at: str
) -> None:
    """I4: a plan belongs to the run: run again it gets the same one, and lands it."""
    only_ingest = dag_run("quality|publish")
    airflow_site.crash(only_ingest, at)
    fill(airflow_site.bootstrap, airflow_site.topic)
    airflow_site.run(only_ingest)
    ledger = airflow_site.lake.ledger
    assert sorted(ledger.plans) == [1]
    assert len(ledger.plans[1].requesters) == 1
    land_what_is_open(airflow_site)
    settled(court, airflow_site)


@pytest.mark.airflow
@pytest.mark.faults
@pytest.mark.parametrize("at", points("table.append:1", "quality.check:1", "quality.record:1"))
def test_airflows_spark_job_dies_and_the_same_run_goes_on(
    court: Court, airflow_site: Site, at: str
) -> None:
    """I4: the task fails with its driver, and the whole run done again ends well."""
    with airflow_site.started(dag_run(), fail_at=at) as running:
        ended = running.wait()
    assert kill_message(at) in ended.printed, ended.printed
    assert ended.code == 1, ended.printed
    fill(airflow_site.bootstrap, airflow_site.topic)
    airflow_site.run(dag_run())
    assert sorted(airflow_site.lake.ledger.plans) == [1]
    land_what_is_open(airflow_site)
    settled(court, airflow_site)
