"""Lag and problems of a pipeline, over in-memory adapters."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.support.memory import MemoryPartition
from tests.support.plans import MemoryPipeline, make_overtaken, make_spec, wanted
from tests.support.services import NOW
from tidemark.core.errors import EndBehindCommitted, LedgerBehindTable
from tidemark.core.throughput import Forecast
from tidemark.ingest.errors import LogTruncated, NoStartOffset
from tidemark.kafka.errors import TopicMissing
from tidemark.report.errors import UndoUnfinished
from tidemark.spec.model import AlarmRules, StartPolicy


def test_a_pipeline_that_has_not_begun_has_no_lag() -> None:
    """Not 0: an alert on lag must not take it for caught up."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    assert (pipeline.status().begun, pipeline.status().lag) == (False, None)


def test_lag_is_what_has_not_landed() -> None:
    """Also after a gap: what landed beyond it is not unread."""
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.EARLIEST))
    pipeline.planner.plan("begin")
    pipeline.produce(0, 10)
    plan = pipeline.planner.backfill(wanted((0, 4, 9)), "fill").plan
    assert plan is not None
    pipeline.ingest.execute(plan.sequence)
    shown = pipeline.status()
    assert shown.lag == 5
    assert shown.partitions[0].committed == 0
    pipeline.run("live")
    assert pipeline.status().lag == 0


def test_a_log_that_was_cut_and_has_grown_again_is_a_problem() -> None:
    """The next run would be refused, and says so before it comes."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 10)
    pipeline.run("a")
    pipeline.kafka.elect("events", 0, end=6)
    pipeline.produce(0, 20)
    shown = pipeline.status()
    assert isinstance(shown.problem, LogTruncated)
    assert shown.partitions[0].committed == 10


def test_a_run_at_the_same_time_is_no_problem() -> None:
    """Nothing is wrong; the status is of after it."""
    shown = make_overtaken().status()
    assert (shown.problem, shown.records) == (None, 2)


def test_an_open_plan_that_cannot_land_is_a_problem() -> None:
    """The next run would take it over and be refused."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    pipeline.planner.plan("run-1")
    pipeline.kafka.topics["events"][0].end = 3
    assert isinstance(pipeline.status().problem, EndBehindCommitted)


def test_what_a_run_would_be_refused_for_is_shown() -> None:
    """Policy none, a missing topic, a table of another history."""
    fresh = MemoryPipeline(spec=make_spec(start=StartPolicy.NONE))
    assert isinstance(fresh.status().problem, NoStartOffset)
    assert raised(fresh) == ["NoStartOffset"]
    del fresh.kafka.topic_ids["events"]
    assert isinstance(fresh.status().problem, TopicMissing)
    landed = MemoryPipeline()
    landed.produce(0, 5)
    landed.run("run-1")
    amnesiac = MemoryPipeline(kafka=landed.kafka, table=landed.table)
    assert isinstance(amnesiac.status().problem, LedgerBehindTable)


HOUR = timedelta(hours=1)


def make_waiting(hours: int, **rules: Any) -> MemoryPipeline:
    """A pipeline that has landed 5 records, and whose next 10 have waited so long."""
    pipeline = MemoryPipeline(spec=make_spec(alarms=AlarmRules(**rules)))
    pipeline.produce(0, 5)
    pipeline.run("before")
    stamp = int((NOW - hours * HOUR).timestamp() * 1000)
    pipeline.kafka.add_gaps("events", 0, 2)
    pipeline.kafka.produce("events", 0, 10, stamp)
    return pipeline


def raised(pipeline: MemoryPipeline) -> list[str]:
    """Names of the alarms."""
    return [type(alarm).__name__ for alarm in pipeline.status().alarms()]


def test_lag_in_time_is_the_age_of_the_oldest_visible_record() -> None:
    """Not of what is no record; nothing has waited where nothing is unread."""
    shown = make_waiting(3).status()
    assert (shown.lag, shown.lag_time, shown.forecast) == (12, 3 * HOUR, Forecast.NEXT_RUN)
    assert [here.lag_time for here in shown.partitions] == [3 * HOUR, None]
    assert shown.last_landed_at == NOW


def test_runway_is_of_the_partition_that_loses_first() -> None:
    """By the topic's retention time."""
    pipeline = make_waiting(3)
    pipeline.kafka.retention = 24 * HOUR
    pipeline.kafka.produce("events", 1, 1, int((NOW - 5 * HOUR).timestamp() * 1000))
    shown = pipeline.status()
    assert [here.runway for here in shown.partitions] == [21 * HOUR, 19 * HOUR]
    assert shown.runway == 19 * HOUR


def test_each_rule_has_an_alarm_and_none_is_raised_before_its_time() -> None:
    """At the limit nothing is said; beyond it, by name."""
    assert raised(make_waiting(3, lag_records=12, lag_time=3 * HOUR)) == []
    assert raised(make_waiting(3, lag_records=11)) == ["LagTooLarge"]
    assert raised(make_waiting(4, lag_time=3 * HOUR)) == ["LagTooLong"]
    pipeline = make_waiting(22, runway=2 * HOUR)
    pipeline.kafka.retention = 24 * HOUR
    assert raised(pipeline) == []
    pipeline.kafka.retention = 23 * HOUR
    assert raised(pipeline) == ["RunwayTooShort"]


def test_stalled_is_lag_without_a_landing() -> None:
    """Records that wait for long are no stall if something landed meanwhile."""
    moving = make_waiting(4, stalled=3 * HOUR)
    assert raised(moving) == []
    stalled = make_waiting(4, stalled=3 * HOUR)
    for row in stalled.control.rows:
        row["recorded_at"] -= 4 * HOUR
    assert raised(stalled) == ["PipelineStalled"]
    never = MemoryPipeline(spec=make_spec(alarms=AlarmRules(stalled=3 * HOUR)))
    never.planner.plan("nothing there")
    never.kafka.produce("events", 0, 1, int((NOW - 4 * HOUR).timestamp() * 1000))
    assert raised(never) == ["PipelineStalled"]


def test_a_limited_pipeline_is_told_when_it_has_caught_up() -> None:
    """One offset each time, while 10 wait and none arrives for long: by the runs' throughput."""
    pipeline = MemoryPipeline(spec=make_spec(records_per_run=2))
    pipeline.kafka.produce("events", 0, 14, int((NOW - 100 * HOUR).timestamp() * 1000))
    for run in range(3):
        pipeline.run(str(run))
    for row in pipeline.control.rows:
        row["recorded_at"] -= (10 - row["event_number"]) * HOUR
    shown = pipeline.status()
    assert (shown.lag, shown.forecast) == (8, Forecast.LATER)
    # 2 offsets every 2 hours, less 8 that have arrived in 100 hours.
    assert shown.caught_up_at is not None
    assert abs(shown.caught_up_at - (NOW + HOUR * 8 / (1 - 0.08))) < timedelta(seconds=1)


def test_records_behind_an_open_transaction_are_held_back_and_not_forgotten() -> None:
    """Nobody can read them, and Kafka deletes them all the same."""
    pipeline = make_waiting(8, stalled=3 * HOUR, runway=1 * HOUR)
    pipeline.kafka.retention = 8 * HOUR + HOUR / 2
    pipeline.kafka.topics["events"][0].stable = 5
    shown = pipeline.status()
    assert (shown.lag, shown.held_back, shown.forecast) == (0, 12, Forecast.HELD_BACK)
    assert (shown.lag_time, shown.runway) == (8 * HOUR, HOUR / 2)
    assert raised(pipeline) == ["RunwayTooShort"]


def test_a_partition_that_was_added_lags_before_the_first_run_sees_it() -> None:
    """The next run reads it from its start."""
    pipeline = make_waiting(0, runway=1 * HOUR)
    pipeline.run("all")
    pipeline.kafka.retention = 24 * HOUR
    pipeline.kafka.topics["events"][2] = MemoryPartition()
    pipeline.kafka.produce("events", 2, 4, int((NOW - 23.5 * HOUR).timestamp() * 1000))
    shown = pipeline.status()
    assert (shown.lag, shown.partitions[2].committed, shown.runway) == (4, 0, HOUR / 2)
    assert raised(pipeline) == ["RunwayTooShort"]


def test_what_a_pipeline_will_begin_with_may_expire_before_it_does() -> None:
    """Paused since it was made: nothing lags, because nothing has begun."""
    pipeline = MemoryPipeline(spec=make_spec(alarms=AlarmRules(runway=1 * HOUR)))
    pipeline.kafka.retention = 24 * HOUR
    pipeline.kafka.produce("events", 0, 4, int((NOW - 23.5 * HOUR).timestamp() * 1000))
    shown = pipeline.status()
    assert (shown.begun, shown.lag, shown.runway) == (False, None, HOUR / 2)
    assert raised(pipeline) == ["RunwayTooShort"]


@pytest.mark.parametrize("stamp", [-1, 10**16, 10**14])
def test_a_timestamp_that_cannot_be_meant_switches_no_alarm_off(stamp: int) -> None:
    """None, microseconds for milliseconds, and a far future: the last landing tells."""
    pipeline = MemoryPipeline(spec=make_spec(alarms=AlarmRules(stalled=3 * HOUR, lag_records=1)))
    pipeline.produce(0, 5)
    pipeline.run("before")
    pipeline.kafka.produce("events", 0, 2, stamp)
    assert raised(pipeline) == ["LagTooLarge"]
    for row in pipeline.control.rows:
        row["recorded_at"] -= 4 * HOUR
    assert raised(pipeline) == ["PipelineStalled", "LagTooLarge"]


def test_an_undo_that_was_begun_is_the_problem_whatever_kafka_has() -> None:
    """Also if what it takes out was deleted meanwhile."""
    pipeline = make_waiting(1)
    begun = pipeline.undo.undo(1, "ops", "wrong")
    assert begun.rows == 5
    pipeline.control.rows = [row for row in pipeline.control.rows if row["event"] != "undone"]
    pipeline.control.newest["events"] -= 1
    pipeline.kafka.delete_records("events", 0, 3)
    assert isinstance(pipeline.status().problem, UndoUnfinished)
    assert pipeline.status().last_landed is None
