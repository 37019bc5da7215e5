"""Every step of every process is killed before and after it, and the process runs again.

Each case kills a real process at a fail point (local/failpoints.py) or during a read. It repeats
the command as an operator or Airflow does, and then compares the table with the log.
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
from tests.faults.tally import TableJudge
from tests.support.crashes import KILLED, Site, Trace, held_in_mid_read
from tests.support.kafka_judge import Range, log_ranges
from tests.support.plans import UNCOMPARED, wanted
from tests.support.proxy import ProxiedBroker
from tests.support.transactions import (
    Record,
    produce_aborted,
    produce_committed,
    produce_values,
)
from tests.support.waiting import wait_until
from tidemark.bronze.backfill.selection import select
from tidemark.bronze.backfill.service import Backfills, ChunkState
from tidemark.bronze.repair.errors import NothingToDo
from tidemark.core.errors import ExitCode, PlanCannotLand, TidemarkError
from tidemark.core.events import Abandoned
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan
from tidemark.local.broker import BrokerStatus
from tidemark.local.failpoints import kill_message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.e2e]


def points(*calls: str, bounded: tuple[str, ...] = ()) -> list[ParameterSet]:
    """Return fail points before and after each call `step:n`; those not in `bounded` are slow."""
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
    """Produce plain, committed and aborted records in two partitions."""
    produce_values(bootstrap, topic, 20, partition=0)
    produce_aborted(bootstrap, topic, [Record(value=b"never", partition=p) for p in (0, 1)])
    produce_committed(bootstrap, topic, [Record(value=b"both", partition=p) for p in (0, 1)])
    produce_values(bootstrap, topic, 10, partition=1)


@pytest.fixture
def site(spark: SparkSession, broker: BrokerStatus, topic: TopicFactory, tmp_path: Path) -> Site:
    """Return a pipeline of this test, over a topic with records."""
    name = topic(partitions=2)
    fill(broker.bootstrap, name)
    return Site(home=tmp_path, bootstrap=broker.bootstrap, topic=name, session=spark)


@pytest.fixture
def late_site(site: Site) -> Site:
    """Return the same pipeline with start policy `latest`."""
    return replace(site, start="latest")


def assert_settled(
    table_judge: TableJudge, site: Site, ranges: dict[int, Range] | None = None
) -> None:
    """Check that the table equals the log, no plan is open, and landed ranges do not overlap.

    Args:
        table_judge: The judge.
        site: The pipeline.
        ranges: The offsets that must have landed; the whole log if None.
    """
    lake = site.lake
    table_judge.check(lake, ranges=ranges)
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


def land_open_and_unread(site: Site) -> None:
    """Execute open plans, then land unread records, as the next run does."""
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
RECORDING = (
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
    "table.check_removals:1",
    "table.current_landing:1",
    *BACKFILL[4:-1],
    "control.ledger:2",
    "table.check_removals:2",
    "table.current_landing:2",
    "table.current_landing:3",
    BACKFILL[-1],
)
ADOPTING = (
    "control.summary:1",
    "table.state:1",
    "table.find_landing:1",
    "control.append:1",
)
DRIVER = (
    "control.plan_record:1",
    "control.summary:1",
    "table.state:1",
    "control.check_appends:1",
    "table.state:2",
    "table.find_landing:1",
    "watermarks.topic_watermarks:1",
    "table.prepare:1",
    "sink.write:1",
    "watermarks.topic_watermarks:2",
    "table.append:1",
    "control.summary:2",
    "control.plan_record:2",
    "table.state:3",
    "table.find_landing:2",
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
    "watermarks.topic_watermarks:1",
    "table.last_rows:1",
    "log_reader.read:1",
    "table.check_removable:1",
    "control.append:1",
    "table.remove_rows:1",
    "control.summary:2",
    "table.state:2",
    "control.plan_record:2",
    "table.state:3",
    "control.append:2",
)
ABANDONING = (
    "control.summary:1",
    "table.state:1",
    "control.plan_record:1",
    "control.check_appends:1",
    "table.fence:1",
    "table.find_landing:1",
    "control.append:1",
)
ABANDONING_A_LANDED_PLAN = (
    "control.summary:1",
    "table.state:1",
    "control.plan_record:1",
    "control.check_appends:1",
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
    """The constants above list all calls of each process to its ports, in order."""
    lake = site.lake

    def steps(service: Any, call: Callable[[Any], object]) -> tuple[str, ...]:
        trace = Trace()
        with suppress(NothingToDo):
            call(trace.on(service))
        return tuple(trace.steps)

    def land(requested_by: str) -> None:
        lake.land(lake.plan(requested_by))
        fill(site.bootstrap, site.topic)

    assert steps(lake.planner, lambda planner: planner.plan("one")) == FIRST_PLAN
    assert steps(lake.planner, lambda planner: planner.plan("two")) == ADOPTING
    assert steps(lake.ingest, lambda ingest: ingest.execute(1)) == DRIVER
    fill(site.bootstrap, site.topic)
    land("three")
    assert steps(lake.planner, lambda planner: planner.plan("four")) == RECORDING
    assert steps(lake.abandon, lambda abandon: abandon.abandon(3, "five", "a test")) == ABANDONING
    land("six")
    found = steps(lake.abandon, lambda abandon: abandon.abandon(4, "seven", "a test"))
    assert found == ABANDONING_A_LANDED_PLAN
    offsets = select(offsets=["0:0-1"])

    def back_fill(backfills: Backfills, *, replaces: bool) -> None:
        preview = backfills.preview(offsets, None, readable_only=False, replaces=replaces)
        backfills.request(preview, f"eight {replaces}", approved=False, reason="a test")
        backfills.progress(f"eight {replaces}")
        backfills.plan_chunk(f"eight {replaces}", 1)

    assert steps(lake.backfills, partial(back_fill, replaces=True)) == REPLACING
    lake.abandon.abandon(5, "nine", "a test")
    assert steps(lake.undo, lambda undo: undo.undo(1, "ten", "a test")) == UNDOING
    assert steps(lake.backfills, partial(back_fill, replaces=False)) == BACKFILL


# -- the planner ---------------------------------------------------------------------------------


@pytest.mark.parametrize("at", points(*FIRST_PLAN))
def test_i2_a_killed_first_plan_leaves_one_plan(
    table_judge: TableJudge, site: Site, at: str
) -> None:
    site.crash(site.tidemark("plan", "events"), at)
    site.run(site.tidemark("plan", "events"))
    assert sorted(site.lake.ledger.plans) == [1]
    land_open_and_unread(site)
    assert_settled(table_judge, site)


@pytest.mark.parametrize("at", points(*RECORDING))
def test_a_killed_planner_records_a_landing_once(
    table_judge: TableJudge, site: Site, at: str
) -> None:
    """I5. Later records are planned once."""
    lake = site.lake
    plan = lake.plan("a run whose driver died after its commit")
    lake.table.prepare("events")
    lake.land(plan)
    fill(site.bootstrap, site.topic)
    site.crash(site.tidemark("plan", "events"), at)
    site.run(site.tidemark("plan", "events"))
    assert [record.plan.sequence for record in lake.ledger.open_plans()] == [2]
    land_open_and_unread(site)
    assert_settled(table_judge, site)
    assert sorted(lake.ledger.plans) == [1, 2]


@pytest.mark.parametrize("at", points(*ADOPTING))
def test_i4_a_killed_adoption_does_not_change_the_plan(
    table_judge: TableJudge, site: Site, at: str
) -> None:
    plan = site.lake.plan("a run that planned and died")
    fill(site.bootstrap, site.topic)
    site.crash(site.tidemark("plan", "events"), at)
    site.run(site.tidemark("plan", "events"))
    assert site.lake.ledger.plans[1].plan == plan
    land_open_and_unread(site)
    assert_settled(table_judge, site)


@pytest.mark.parametrize("at", points(*BACKFILL))
def test_a_backfill_killed_in_planning_lands_once(
    table_judge: TableJudge, late_site: Site, at: str
) -> None:
    """I2. Its request is recorded or not."""
    late_site.lake.planner.plan("begin at the end")
    command = late_site.tidemark("backfill", "events", "--offsets=0:3-9", "--master=local[2]")
    late_site.crash(command, at)
    requesters = backfill_requesters(late_site)
    if not requesters:
        late_site.run(command)
    for requested_by in requesters:
        late_site.lake.backfills.plan_chunk(requested_by, 1)
    land_open_and_unread(late_site)
    assert_settled(table_judge, late_site, {0: (3, 9)})


def backfill_requesters(site: Site) -> set[str]:
    uri = site.app.layout.control_table
    if not DeltaTable.is_deltatable(uri):
        return set()
    rows = DeltaTable(uri).to_pyarrow_table(columns=["event", "requested_by"]).to_pylist()
    return {row["requested_by"] for row in rows if row["event"] == "backfill_requested"}


@pytest.mark.faults
@pytest.mark.parametrize("chunks", [3, 10])
def test_resume_completes_a_killed_backfill(
    table_judge: TableJudge, late_site: Site, chunks: int
) -> None:
    """I1, I2, I4. No chunk lands twice."""
    size = -(
        -sum(end for _, end in log_ranges(late_site.bootstrap, late_site.topic).values()) // chunks
    )
    command = late_site.tidemark("backfill", "events", "--retained", f"--chunk={size}")

    def landed() -> int:
        return sum(
            each.done
            for requester in backfill_requesters(late_site)
            for each in progress(requester)
        )

    def progress(requester: str) -> list[ChunkState]:
        return late_site.lake.backfills.progress(requester)

    with late_site.started([*command, "--master=local[2]"]) as running:
        wait_until(lambda: landed() >= chunks // 2)
        printed = running.kill().printed
    (requester,) = backfill_requesters(late_site)
    assert f"tidemark backfill events --resume {requester}" in printed
    assert chunks // 2 <= landed() < chunks
    resumed = late_site.run(
        late_site.tidemark("backfill", "events", "--resume", requester, "--master=local[2]")
    )
    print(printed, resumed.printed)
    assert [each.done for each in progress(requester)] == [True] * chunks
    assert sorted(late_site.lake.ledger.plans) == list(range(1, chunks + 1))
    assert_settled(table_judge, late_site)
    again = late_site.run(late_site.tidemark("backfill", "events", "--retained"))
    assert "nothing to do" in again.printed


# -- the driver ----------------------------------------------------------------------------------


@pytest.mark.parametrize("at", points(*DRIVER, bounded=("after table.append:1",)))
def test_i1_i4_a_killed_and_repeated_driver_lands_once(
    table_judge: TableJudge, site: Site, at: str
) -> None:
    plan = site.lake.plan("a run")
    site.crash(site.driver("ingest", plan.sequence), at)
    site.run(site.driver("ingest", plan.sequence))
    assert_settled(table_judge, site)
    assert landings(site, plan) == 1


@pytest.mark.parametrize("at", points("sink.write:1", "table.append:1", "control.append:1"))
def test_s2_i1_i5_the_next_run_lands_a_killed_plan_once(
    table_judge: TableJudge, site: Site, at: str
) -> None:
    plan = site.lake.plan("a run that does not come back")
    site.crash(site.driver("ingest", plan.sequence), at)
    fill(site.bootstrap, site.topic)
    site.run(site.tidemark("ingest", "events", "--master=local[2]"))
    land_open_and_unread(site)
    assert_settled(table_judge, site)
    assert landings(site, plan) == 1


@pytest.mark.parametrize("at", points("sink.write:1", "table.append:1", "control.append:1"))
def test_i2_i4_a_killed_backfill_driver_lands_once(
    table_judge: TableJudge, late_site: Site, at: str
) -> None:
    lake = late_site.lake
    lake.planner.plan("begin at the end")
    starts = lake.committed()
    request = wanted((0, 3, 9))
    plan = lake.planner.backfill(request, RunOrigin("ops")).plan
    assert plan is not None
    late_site.crash(late_site.driver("ingest", plan.sequence), at)
    fill(late_site.bootstrap, late_site.topic)
    lake.run("a scheduled run")
    late_site.run(late_site.driver("ingest", plan.sequence))
    assert lake.ledger.open_plans() == []
    assert landings(late_site, plan) == 1
    # The judge compares one range of each partition, so the offsets in between must land too.
    lake.planner.backfill(wanted((0, 9, starts[0])), RunOrigin("the rest"))
    land_open_and_unread(late_site)
    assert_settled(
        table_judge, late_site, {0: (3, lake.committed()[0]), 1: (starts[1], lake.committed()[1])}
    )


@pytest.mark.parametrize("at", points(*REPLACING))
def test_a_replacement_killed_in_planning_replaces_once(
    table_judge: TableJudge, site: Site, at: str
) -> None:
    """I2. It is resumed by its name or requested again."""
    lake = site.lake
    lake.run("a run")
    options = ("--offsets=0:3-9", "--replace", "--reason=a test")
    command = site.tidemark("backfill", "events", *options, "--master=local[2]")
    site.crash(command, at)
    requesters = backfill_requesters(site)
    if not requesters:
        site.run(command)
    for requested_by in requesters:
        site.run(site.tidemark("backfill", "events", f"--resume={requested_by}"))
    assert Counter(row["plan_sequence"] for row in lake.rows() if row["partition"] == 0)[2] == 6
    assert_settled(table_judge, site)


@pytest.mark.parametrize("at", points("sink.write:1", "table.append:1", "control.append:1"))
def test_i1_i4_a_killed_replacement_driver_replaces_once(
    table_judge: TableJudge, site: Site, at: str
) -> None:
    lake = site.lake
    lake.run("a run")
    fill(site.bootstrap, site.topic)
    lake.run("a second run")
    DeltaTable(lake.uri).delete("partition = 0 AND offset = 4")
    request = replace(wanted((0, 0, 30)), replaces=True)
    plan = lake.planner.backfill(request, RunOrigin("ops")).plan
    assert plan is not None
    site.crash(site.driver("ingest", plan.sequence), at)
    fill(site.bootstrap, site.topic)
    lake.run("a scheduled run")
    site.run(site.driver("ingest", plan.sequence))
    assert landings(site, plan) == 1
    assert_settled(table_judge, site)


@pytest.mark.parametrize("at", points(*UNDOING, bounded=("after table.remove_rows:1",)))
def test_a_repeated_undo_completes_a_killed_one(
    table_judge: TableJudge, site: Site, at: str
) -> None:
    """I1, I2. The plan's offsets are read again once."""
    lake = site.lake
    lake.run("a run that was wrong")
    fill(site.bootstrap, site.topic)
    lake.run("a run after it")
    command = site.tidemark("undo", "events", "--plan=1", "--reason=a test")
    site.crash(command, at)
    site.run(command)
    assert lake.ledger.plans[1].undone_version is not None
    assert {row["plan_sequence"] for row in lake.rows()} == {2}
    land_open_and_unread(site)
    assert_settled(table_judge, site)


def landings(site: Site, plan: Plan) -> int:
    """Return the number of commits of the data table with the plan's fingerprint."""
    commits = DeltaTable(site.lake.uri).history()
    return sum(plan.fingerprint in (commit.get("userMetadata") or "") for commit in commits)


# -- during a read -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "is_jvm_killed",
    [
        pytest.param(True, id="python-and-jvm"),
        pytest.param(False, id="python-alone", marks=pytest.mark.faults),
    ],
)
def test_i1_files_of_a_driver_killed_during_its_read_are_not_in_the_table(
    table_judge: TableJudge, long_read: Site, proxied: ProxiedBroker, is_jvm_killed: bool
) -> None:
    plan = long_read.lake.plan("a run")
    driver = long_read.driver("ingest", plan.sequence)
    with held_in_mid_read(long_read, proxied, driver) as (running, gate):
        if is_jvm_killed:
            ended = running.kill()
        else:
            (python,) = set(running.find("jobs/ingest.py")) - set(running.find("SparkSubmit"))
            os.kill(python, signal.SIGKILL)
            ended = running.wait()
        assert ended.code in KILLED, ended
        gate.release()
    files = {file.name for file in long_read.files()}
    # A JVM whose Python process was killed shuts down and removes its files.
    assert files or not is_jvm_killed
    assert long_read.lake.rows() == []
    long_read.run(driver)
    assert_settled(table_judge, long_read)
    assert not files & {Path(file).name for file in DeltaTable(long_read.lake.uri).file_uris()}


@pytest.mark.parametrize(
    "all_executors",
    [
        pytest.param(False, id="one-of-two"),
        pytest.param(True, id="both"),
    ],
)
@pytest.mark.faults
def test_i1_tasks_of_an_executor_killed_during_its_read_run_again_and_land_once(
    table_judge: TableJudge, long_read: Site, proxied: ProxiedBroker, all_executors: bool
) -> None:
    plan = long_read.lake.plan("a run")
    driver = long_read.driver("ingest", plan.sequence, master="local-cluster[2,1,1024]")
    with held_in_mid_read(long_read, proxied, driver) as (running, gate):
        executors = running.find("CoarseGrainedExecutorBackend")
        assert len(executors) == 2
        killed = executors[: 2 if all_executors else 1]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not set(killed) & set(running.members()))
        gate.release()
        ended = running.wait()
    assert ended.code == ExitCode.OK, ended.printed
    assert_settled(table_judge, long_read)
    assert landings(long_read, plan) == 1


# -- abandon -------------------------------------------------------------------------------------

ABANDON = ("abandon", "events", "--plan=1", "--reason=a test of crashes")


@pytest.mark.parametrize("at", points(*ABANDONING, bounded=("after table.fence:1",)))
def test_a_repeated_abandon_completes_a_killed_one(
    table_judge: TableJudge, site: Site, at: str
) -> None:
    """I2. The next run plans and lands the offsets."""
    site.lake.plan("a run")
    site.crash(site.tidemark(*ABANDON), at)
    site.run(site.tidemark(*ABANDON))
    assert isinstance(site.lake.ledger.plans[1].cancelled_by, Abandoned)
    land_open_and_unread(site)
    assert_settled(table_judge, site)
    assert sorted(site.lake.ledger.plans) == [1, 2]


@pytest.mark.faults
def test_i7_a_run_after_a_killed_abandon_is_refused(table_judge: TableJudge, site: Site) -> None:
    """I7. The abandon was killed after its fence."""
    plan = site.lake.plan("a run")
    site.crash(site.tidemark(*ABANDON), "table.fence:after:1")
    assert site.lake.plan("the next run") == plan
    with pytest.raises(PlanCannotLand, match="fenced its transaction"):
        site.lake.ingest.execute(plan.sequence)
    assert site.lake.rows() == []
    site.run(site.tidemark(*ABANDON))
    land_open_and_unread(site)
    assert_settled(table_judge, site)


@pytest.mark.faults
def test_i7_the_error_of_a_fenced_plan_is_final_and_names_abandon(site: Site) -> None:
    plan = site.lake.plan("a run")
    site.lake.table.fence(plan, UNCOMPARED)
    with pytest.raises(TidemarkError) as refused:
        site.lake.ingest.execute(plan.sequence)
    assert "tidemark abandon" in refused.value.rendered("fix")
    assert not refused.value.exit_code.retryable


@pytest.mark.parametrize("at", points(*ABANDONING_A_LANDED_PLAN))
def test_i5_a_killed_abandon_of_a_landed_plan_is_refused(
    table_judge: TableJudge, site: Site, at: str
) -> None:
    plan = site.lake.plan("a run whose driver died after its commit")
    site.lake.table.prepare("events")
    site.lake.land(plan)
    site.crash(site.tidemark(*ABANDON), at)
    refused = site.run(site.tidemark(*ABANDON), code=ExitCode.REFUSED)
    assert "has landed, so it cannot be abandoned" in refused.printed
    assert_settled(table_judge, site)


# -- maintenance of the control table ------------------------------------------------------------


@pytest.mark.parametrize("at", points("maintenance.compact:2"))
def test_killed_maintenance_changes_no_event(table_judge: TableJudge, site: Site, at: str) -> None:
    """I4. The plan that was open during it lands."""
    site.lake.run("a run")
    fill(site.bootstrap, site.topic)
    site.lake.run("another run")
    fill(site.bootstrap, site.topic)
    site.lake.plan("a run that planned and died")
    ledger = site.lake.ledger
    # The second compaction is that of the control table.
    maintain = site.tidemark("maintain", "events")
    site.crash(maintain, at)
    assert site.lake.ledger == ledger
    site.run(maintain)
    assert site.lake.ledger == ledger
    fill(site.bootstrap, site.topic)
    land_open_and_unread(site)
    assert_settled(table_judge, site)
    assert sorted(site.lake.ledger.plans) == [1, 2, 3, 4]


# -- check ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "at",
    points(
        "control.plan_record:1",
        "quality.check:1",
        "quality.record:1",
        "control.append:1",
    ),
)
def test_i1_a_killed_check_leaves_only_complete_results(
    table_judge: TableJudge, site: Site, at: str
) -> None:
    landed = site.lake.run("a run").landing
    site.crash(site.driver("check", 1), at)
    site.run(site.driver("check", 1))
    results = DeltaTable(site.app.layout.quality_results).to_pyarrow_table().to_pylist()
    attempts: dict[object, set[str]] = {}
    for row in results:
        assert row["plan_sequence"] == 1
        assert row["outcome"] != "failed"
        attempts.setdefault(row["run_at"], set()).add(row["check"])
    once = "append" not in at and at != "quality.record:after:1"
    assert len(attempts) == (1 if once else 2)
    (plan,) = site.app.pipeline("events").publication.plans()
    assert plan.is_published
    assert len({frozenset(checks) for checks in attempts.values()}) == 1
    assert len(results) == sum(map(len, attempts.values()))
    assert site.lake.version() == landed.table_version
    assert_settled(table_judge, site)


# -- Airflow -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return Airflow's migrated database; the migration takes longer than a test."""
    home = tmp_path_factory.mktemp("airflow")
    command = [str(Path(sys.executable).parent / "airflow"), "db", "migrate"]
    subprocess.run(command, env=airflow_environment(home), check=True, capture_output=True)
    return home / "airflow.db"


@pytest.fixture
def airflow_site(site: Site, empty_database: Path) -> Site:
    """Return the same pipeline with its own Airflow, which has no scheduler."""
    site.environ = {
        **airflow_environment(site.home / "airflow"),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
    }
    home = site.home / "airflow"
    home.mkdir()
    shutil.copy(empty_database, home)
    return site


def dag_run(*skipped: str) -> list[str]:
    """Return the command line of one run of the pipeline's DAG, always the same run."""
    script = str(PROJECT / "tests" / "support" / "run_dag.py")
    return [sys.executable, script, "tidemark_events", "2026-01-01T00:00:00+00:00", *skipped]


@pytest.mark.airflow
@pytest.mark.parametrize("at", points("watermarks.topic_watermarks:1", "control.append:1"))
def test_i4_a_dag_run_keeps_a_killed_tasks_plan(
    table_judge: TableJudge, airflow_site: Site, at: str
) -> None:
    only_ingest = dag_run("check|publish")
    airflow_site.crash(only_ingest, at)
    fill(airflow_site.bootstrap, airflow_site.topic)
    airflow_site.run(only_ingest)
    ledger = airflow_site.lake.ledger
    assert sorted(ledger.plans) == [1]
    assert len(ledger.plans[1].requesters) == 1
    land_open_and_unread(airflow_site)
    assert_settled(table_judge, airflow_site)


@pytest.mark.airflow
@pytest.mark.faults
@pytest.mark.parametrize("at", points("table.append:1", "quality.check:1", "quality.record:1"))
def test_i4_a_dag_run_completes_a_killed_job(
    table_judge: TableJudge, airflow_site: Site, at: str
) -> None:
    with airflow_site.started(dag_run(), fail_at=at) as running:
        ended = running.wait()
    assert kill_message(at) in ended.printed, ended.printed
    assert ended.code == 1, ended.printed
    fill(airflow_site.bootstrap, airflow_site.topic)
    airflow_site.run(dag_run())
    assert sorted(airflow_site.lake.ledger.plans) == [1]
    land_open_and_unread(airflow_site)
    assert_settled(table_judge, airflow_site)
