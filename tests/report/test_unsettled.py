"""What a status reports beside lag: open plans, quarantined records, blocked plans."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.quality.test_publication import check, publication_of, table_of
from tests.support.file_lake import FileLake
from tests.support.plans import MemoryPipeline, make_spec
from tests.support.services import NOW
from tests.support.typed_lake import DECODE, TypedLake
from tests.typed.test_decoder import Dies
from tidemark.backfill.errors import BackfillAhead
from tidemark.backfill.selection import select
from tidemark.backfill.service import Backfills
from tidemark.core.offsets import Span
from tidemark.lake.errors import EngineFailed
from tidemark.report.errors import PlanStuck, QuarantineTooLarge
from tidemark.report.status import PipelineStatus, pipeline_status
from tidemark.report.unsettled import Unsettled, Unsettling
from tidemark.spec.model import AlarmRules

HOUR = timedelta(hours=1)


def names(status: PipelineStatus) -> list[str]:
    """Names of the alarms."""
    return [type(alarm).__name__ for alarm in status.alarms()]


def test_a_plan_that_run_after_run_leaves_open_is_not_ok() -> None:
    """Open at first; retrying once a later run takes it over; an alarm after two failed runs."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    seen = []
    for run in ("run-1", "run-2", "run-3"):
        pipeline.planner.plan(run)
        seen.append(pipeline.status().state)
    assert seen == ["open", "retrying", "PlanStuck"]
    record = pipeline.status().as_record()
    assert (record["open_plans"], record["runs"], record["open_since"]) == ([1], 3, NOW)
    pipeline.ingest.execute(1)
    assert (pipeline.status().state, names(pipeline.status())) == ("ok", [])


def test_a_run_that_asks_again_for_its_own_plan_is_no_further_run() -> None:
    """Airflow's retries of one task."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    for _ in range(3):
        pipeline.planner.plan("run-1")
    assert (pipeline.status().state, pipeline.status().unsettled.runs) == ("open", 1)


@pytest.mark.parametrize(("stalled", "alarms"), [(HOUR, ["PlanStuck"]), (3 * HOUR, []), (None, [])])
def test_a_plan_that_is_open_for_longer_than_the_rule_is_an_alarm(
    stalled: timedelta | None, alarms: list[str]
) -> None:
    """Also one that only one run has asked for: a backfill, or a typed table's."""
    pipeline = MemoryPipeline(spec=make_spec(alarms=AlarmRules(stalled=stalled)))
    pipeline.produce(0, 5)
    pipeline.planner.plan("run-1")
    later = pipeline_status(
        pipeline.spec,
        pipeline.control,
        pipeline.table,
        open_watermarks=lambda: pipeline.watermarks,
        open_log=lambda: pipeline.log_reader,
        unsettling=pipeline.unsettling,
        now=NOW + 2 * HOUR,
    )
    found = [alarm for alarm in later.alarms() if isinstance(alarm, PlanStuck)]
    assert [type(alarm).__name__ for alarm in found] == alarms
    assert all("open for 2 h" in alarm.rendered("problem") for alarm in found)


def test_chunks_of_a_backfill_that_wait_for_their_turn_are_no_alarm() -> None:
    """A chunk gets its plan once the previous chunk landed; a plan that never lands is stuck."""
    pipeline = MemoryPipeline(spec=make_spec(alarms=AlarmRules(stalled=HOUR)))
    pipeline.produce(0, 1)
    pipeline.run("run-1")
    pipeline.produce(0, 4)
    now = NOW

    def backfills() -> Backfills:
        return replace(pipeline.backfills, now=lambda: now)

    def stuck() -> list[int]:
        status = pipeline_status(
            pipeline.spec,
            pipeline.control,
            pipeline.table,
            open_watermarks=lambda: pipeline.watermarks,
            open_log=lambda: pipeline.log_reader,
            unsettling=pipeline.unsettling,
            now=now,
        )
        return [alarm.sequence for alarm in status.alarms() if isinstance(alarm, PlanStuck)]

    seen = backfills().preview(select(offsets=["0:1-5"]), 1, readable_only=False)
    assert backfills().request(seen, "ops", approved=False) == 4
    for number in (1, 2, 3):
        plan = backfills().plan_chunk("ops", number).plan
        assert plan is not None
        with pytest.raises(BackfillAhead):
            backfills().plan_chunk("ops", number + 1)
        now += 0.9 * HOUR
        assert stuck() == []
        pipeline.ingest.execute(plan.sequence)
    plan = backfills().plan_chunk("ops", 4).plan
    assert plan is not None
    now += 1.1 * HOUR
    assert stuck() == [plan.sequence]


def typed_status(lake: TypedLake, most: int | None = None) -> PipelineStatus:
    """The status of the pipeline with a decoded table."""
    spec = make_spec(decode=DECODE, alarms=AlarmRules(quarantined_records=most))
    return pipeline_status(
        spec,
        lake.control,
        lake.bronze.table,
        open_watermarks=lambda: lake.bronze.watermarks,
        open_log=lambda: lake.bronze.log_reader,
        unsettling=Unsettling(
            spec=spec,
            control=lake.control,
            blocked=lambda: (),
            quarantined=lake.quarantine.count_open,
        ),
        now=NOW,
    )


def test_records_in_quarantine_are_counted_until_a_replay_decodes_them(tmp_path: Path) -> None:
    """An alarm only if the spec sets a limit: a decoder may tolerate some."""
    lake = TypedLake(tmp_path, broken=(1, 2, 3))
    lake.bronze.run(5)
    assert (typed_status(lake).state, typed_status(lake).unsettled.undecoded) == ("undecoded", 5)
    lake.run()
    status = typed_status(lake)
    assert (status.state, status.as_record()["quarantined"], names(status)) == (
        "quarantined",
        3,
        [],
    )
    assert names(typed_status(lake, most=3)) == []
    (alarm,) = typed_status(lake, most=2).alarms()
    assert isinstance(alarm, QuarantineTooLarge)
    lake.broken = (3,)
    lake.replay(Span(1, 4))
    assert typed_status(lake).unsettled.quarantined == len(lake.quarantined()) == 1
    lake.broken = ()
    lake.replay(Span(3, 4))
    assert typed_status(lake).unsettled == Unsettled()
    assert typed_status(lake).state == "ok"


def test_a_decoder_that_died_half_way_leaves_an_open_plan_and_no_records(tmp_path: Path) -> None:
    """Its rows in the quarantine count once its plan has landed; so do those that it closed."""
    lake = TypedLake(tmp_path, broken=(1,))
    lake.bronze.run(3)
    lake.run()
    lake.bronze.run(2)
    dying = Dies(tmp_path, broken=(3,))
    dying.bronze = lake.bronze
    plan = dying.decoding.plan().plan
    assert plan is not None
    with pytest.raises(EngineFailed):
        dying.ingest.execute(plan.sequence)
    found = typed_status(lake).unsettled
    assert (found.quarantined, found.undecoded, found.runs) == (1, 2, 1)
    assert [(each.pipeline, each.sequence) for each in found.opened] == [(lake.spec.name, 2)]
    lake.broken = (1, 3)
    lake.run()
    assert typed_status(lake).unsettled.quarantined == len(lake.quarantined()) == 2


def checked_status(lake: FileLake) -> PipelineStatus:
    """The status of a pipeline with checked plans."""
    return pipeline_status(
        lake.spec,
        lake.control,
        lake.table,
        open_watermarks=lambda: lake.watermarks,
        open_log=lambda: lake.log_reader,
        unsettling=Unsettling(
            spec=lake.spec,
            control=lake.control,
            blocked=lambda: table_of(lake).blocked_plans("events"),
            quarantined=lambda _plans: 0,
        ),
        now=NOW,
    )


def test_plans_that_a_check_blocked_are_an_alarm_until_a_person_decides(tmp_path: Path) -> None:
    """A newer check that passes, a release, a rejection, and an undo all settle them."""
    lake = FileLake(root=tmp_path)
    for plan in (1, 2, 3, 4, 5):
        lake.run(2)
        check(lake, plan, passed=plan == 1)
    status = checked_status(lake)
    assert status.as_record()["blocked_plans"] == [2, 3, 4, 5]
    assert (status.state, names(status)) == ("PlansBlocked", ["PlansBlocked"])
    assert list(status.unsettled.explain("events", NOW)) == [
        "events: plan(s) 2, 3, 4, 5 are blocked by a quality check"
    ]
    check(lake, 2, passed=True, minutes=1)
    publication_of(lake).release(3, "ada", "known outage")
    publication_of(lake).reject(4, "ada", "test data")
    assert checked_status(lake).unsettled.blocked == (5,)
    lake.undo.undo(5, "ada", "test data")
    assert checked_status(lake).unsettled == Unsettled()
    # The undone offsets are unread again.
    lake.run(0)
    assert checked_status(lake).state == "ok"
