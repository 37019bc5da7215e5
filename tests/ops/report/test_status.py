"""Lag, alarms and problems of a pipeline, with in-memory adapters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.memory import MemoryPartition
from tests.support.plans import (
    MemoryPipeline,
    land_and_delete_before_watermarks,
    make_pipeline_with_concurrent_run,
    make_spec,
    wanted,
)
from tests.support.services import NOW
from tidemark.bronze.ingest.errors import LogTruncated, NoStartOffset
from tidemark.bronze.ingest.ledgers import missing_rows
from tidemark.bronze.repair.errors import UndoUnfinished
from tidemark.core.errors import (
    EndBehindCommitted,
    LedgerBehindTable,
    LostRange,
    TableBehindLedger,
    TopicDiffers,
)
from tidemark.core.origins import RunOrigin
from tidemark.core.throughput import Forecast
from tidemark.delta.status_table import KAFKA_COLUMNS
from tidemark.kafka.errors import TopicMissing
from tidemark.ops.report.metrics import openmetrics
from tidemark.spec.model import AlarmRules, StartPolicy

HOUR = timedelta(hours=1)


def test_a_pipeline_that_has_not_started_has_no_lag() -> None:
    """With a lag of 0 it would look caught up."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    assert (pipeline.status().has_started, pipeline.status().lag) == (False, None)


def test_lag_counts_offsets_that_have_not_landed() -> None:
    """Offsets that a backfill landed beyond the committed offset do not count."""
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.EARLIEST))
    pipeline.planner.plan("begin")
    pipeline.produce(0, 10)
    plan = pipeline.planner.backfill(wanted((0, 4, 9)), RunOrigin("fill")).plan
    assert plan is not None
    pipeline.ingest.execute(plan.sequence)
    status = pipeline.status()
    assert status.lag == 5
    assert status.partitions[0].committed_offset == 0
    pipeline.run("live")
    assert pipeline.status().lag == 0


def test_a_truncated_log_that_has_grown_again_is_a_problem() -> None:
    """The error would refuse the next run."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 10)
    pipeline.run("a")
    pipeline.kafka.elect("events", 0, end=6)
    pipeline.produce(0, 20)
    status = pipeline.status()
    assert isinstance(status.problem, LogTruncated)
    assert status.partitions[0].committed_offset == 10


def test_offsets_that_another_run_lands_during_the_status_are_not_lost() -> None:
    """The ledger that was read before the watermarks lacks their landing."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    pipeline.run("a")
    pipeline.produce(0, 3)
    land_and_delete_before_watermarks(pipeline)
    status = pipeline.status()
    assert (status.problem, status.lag, status.records) == (None, 0, 8)


def recreate(pipeline: MemoryPipeline, records: int) -> None:
    pipeline.kafka.create("events", 2, "id-2")
    pipeline.produce(0, records)


def connect_elsewhere(pipeline: MemoryPipeline, records: int) -> None:
    pipeline.kafka.cluster_id = "other"
    pipeline.kafka.topics["events"][0] = MemoryPartition()
    pipeline.produce(0, records)


def shrink(pipeline: MemoryPipeline, records: int) -> None:
    del pipeline.kafka.topics["events"][1]
    pipeline.produce(0, records)


def name_another_topic(pipeline: MemoryPipeline, records: int) -> None:
    pipeline.kafka.create("renamed", 2, "id-2")
    pipeline.spec = make_spec(topic="renamed")
    pipeline.produce(0, records)


@pytest.mark.parametrize("records", [4, 20])
@pytest.mark.parametrize("change", [recreate, connect_elsewhere, shrink, name_another_topic])
def test_the_lag_in_another_topic_is_unknown(
    change: Callable[[MemoryPipeline, int], None], records: int
) -> None:
    """Its offsets name other records, whether it ends before or after the committed offset."""
    pipeline = MemoryPipeline(spec=make_spec(alarms=AlarmRules(stalled=HOUR, runway=HOUR)))
    pipeline.kafka.retention = HOUR
    pipeline.produce(0, 9)
    pipeline.run("a")
    change(pipeline, records)
    status = pipeline.status()
    assert isinstance(status.problem, TopicDiffers)
    assert [type(alarm) for alarm in status.alarms()] == [type(status.problem)]
    assert (status.lag, status.lag_time, status.runway) == (None, None, None)
    assert (status.held_back, status.arrival_rate) == (None, None)
    assert (status.forecast, status.caught_up_at) == (Forecast.UNKNOWN, None)
    # The committed offset is known, and belongs to no watermark of this topic.
    assert [each.committed_offset for each in status.partitions] == [9, 0]
    assert {(each.low_watermark, each.end) for each in status.partitions} == {(None, None)}


def test_the_recorded_row_of_a_recreated_topic_has_no_lag_and_no_earlier_one() -> None:
    """Kafka was read: without its time, the row would keep the last lag of the old topic."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 9)
    pipeline.run("a")
    recreate(pipeline, 4)
    row = pipeline.status().as_row()
    assert row["lag_checked_at"] == NOW
    assert {row[name] for name in KAFKA_COLUMNS} == {NOW, None}
    text = openmetrics([row], NOW, invalid_specs=0)
    assert "tidemark_lag_offsets{" not in text
    assert 'tidemark_forecast{pipeline="events",forecast="unknown"} 1' in text


@pytest.mark.parametrize("grown_to", [7, 20])
def test_the_lag_of_a_truncated_partition_is_unknown_beside_known_ones(grown_to: int) -> None:
    """The total is unknown as well: without the partition, it would be too small."""
    pipeline = MemoryPipeline()
    for partition in (0, 1):
        pipeline.produce(partition, 9)
    pipeline.run("a")
    pipeline.kafka.elect("events", 0, end=5)
    pipeline.produce(0, grown_to - 5)
    pipeline.produce(1, 2)
    status = pipeline.status()
    assert isinstance(status.problem, (EndBehindCommitted, LogTruncated))
    assert [each.lag for each in status.partitions] == [None, 2]
    assert [each.end for each in status.partitions] == [grown_to, 11]
    assert (status.lag, status.forecast) == (None, Forecast.UNKNOWN)
    assert status.lag_time == status.partitions[1].lag_time


def test_a_lag_with_lost_offsets_is_known_without_a_forecast() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 9)
    pipeline.run("a")
    pipeline.produce(0, 6)
    pipeline.kafka.delete_records("events", 0, 12)
    status = pipeline.status()
    assert isinstance(status.problem, LostRange)
    assert (status.lag, status.forecast) == (6, Forecast.UNKNOWN)


def test_a_pipeline_with_a_problem_is_never_caught_up() -> None:
    """The control table has no unread offset, but the data table lacks the landed ones."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 9)
    pipeline.run("a")
    amnesiac = MemoryPipeline(kafka=pipeline.kafka, control=pipeline.control)
    status = amnesiac.status()
    assert isinstance(status.problem, TableBehindLedger)
    assert (status.lag, status.forecast) == (0, Forecast.UNKNOWN)


def test_a_concurrent_run_is_no_problem() -> None:
    """The status is that after the run."""
    status = make_pipeline_with_concurrent_run().status()
    assert (status.problem, status.records) == (None, 2)


def test_an_open_plan_that_cannot_land_is_a_problem() -> None:
    """The next run would take it over and fail."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    pipeline.planner.plan("run-1")
    pipeline.kafka.topics["events"][0].end = 3
    assert isinstance(pipeline.status().problem, EndBehindCommitted)


def test_the_problem_is_the_error_that_would_refuse_a_run() -> None:
    """Covers a missing start offset, a missing topic, and a table with another history."""
    fresh = MemoryPipeline(spec=make_spec(start=StartPolicy.NONE))
    assert isinstance(fresh.status().problem, NoStartOffset)
    assert alarm_names(fresh) == ["NoStartOffset"]
    del fresh.kafka.topic_ids["events"]
    assert isinstance(fresh.status().problem, TopicMissing)
    landed = MemoryPipeline()
    landed.produce(0, 5)
    landed.run("run-1")
    amnesiac = MemoryPipeline(kafka=landed.kafka, table=landed.table)
    assert isinstance(amnesiac.status().problem, LedgerBehindTable)


def test_committed_offsets_are_known_without_kafka() -> None:
    """The lag is unknown. The error of Kafka is an alarm, also beside a problem of the table."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    pipeline.run("run-1")
    committed = [each.committed_offset for each in pipeline.status().partitions]
    del pipeline.kafka.topic_ids["events"]
    away = pipeline.status()
    assert [each.committed_offset for each in away.partitions] == committed
    assert {each.end for each in away.partitions} == {None}
    assert (away.lag, away.records, away.as_row()["lag_checked_at"]) == (None, 5, None)
    assert alarm_names(pipeline) == ["TopicMissing"]
    pipeline.control.rows.clear()
    pipeline.control.newest.clear()
    assert alarm_names(pipeline) == ["LedgerBehindTable", "TopicMissing"]


def make_waiting(hours: int, **rules: Any) -> MemoryPipeline:
    """Create a pipeline with 5 landed records and 10 unread records of a given age."""
    pipeline = MemoryPipeline(spec=make_spec(alarms=AlarmRules(**rules)))
    pipeline.produce(0, 5)
    pipeline.run("before")
    stamp = int((NOW - hours * HOUR).timestamp() * 1000)
    pipeline.kafka.add_gaps("events", 0, 2)
    pipeline.kafka.produce("events", 0, 10, stamp)
    return pipeline


def alarm_names(pipeline: MemoryPipeline) -> list[str]:
    """Return the names of the alarms."""
    return [type(alarm).__name__ for alarm in pipeline.status().alarms()]


def test_lag_in_time_is_the_age_of_the_oldest_visible_record() -> None:
    """Gaps have no age, and neither has a partition without unread records."""
    status = make_waiting(3).status()
    assert (status.lag, status.lag_time, status.forecast) == (12, 3 * HOUR, Forecast.NEXT_RUN)
    assert [each.lag_time for each in status.partitions] == [3 * HOUR, None]
    assert status.last_landed_at == NOW


def test_runway_is_that_of_the_partition_with_the_oldest_unread_record() -> None:
    """The topic's retention time determines it."""
    pipeline = make_waiting(3)
    pipeline.kafka.retention = 24 * HOUR
    pipeline.kafka.produce("events", 1, 1, int((NOW - 5 * HOUR).timestamp() * 1000))
    status = pipeline.status()
    assert [each.runway for each in status.partitions] == [21 * HOUR, 19 * HOUR]
    assert status.runway == 19 * HOUR


def test_an_alarm_is_raised_beyond_its_limit_and_not_at_the_limit() -> None:
    """This holds for each rule."""
    assert alarm_names(make_waiting(3, lag_records=12, lag_time=3 * HOUR)) == []
    (many,) = make_waiting(3, lag_records=11).status().alarms()
    assert (
        many.rendered("problem") == "Pipeline 'events' is behind its topic: 12 offsets are unread."
    )
    (old,) = make_waiting(4, lag_time=3 * HOUR).status().alarms()
    assert "the oldest unread record is 4 h old" in old.rendered("problem")
    (both,) = make_waiting(4, lag_time=3 * HOUR, lag_records=11).status().alarms()
    assert (
        both.rendered("expected")
        == "at most 3 h (alarms.lag_minutes), at most 11 (alarms.lag_records)"
    )
    pipeline = make_waiting(22, runway=2 * HOUR)
    pipeline.kafka.retention = 24 * HOUR
    assert alarm_names(pipeline) == []
    pipeline.kafka.retention = 23 * HOUR
    assert alarm_names(pipeline) == ["RunwayTooShort"]


def test_a_problem_that_refuses_a_run_hides_only_the_alarms_of_the_lag() -> None:
    """Until the problem is fixed, Kafka deletes records and no plan lands."""
    limits = {"runway": 2 * HOUR, "lag_time": HOUR, "lag_records": 1}
    pipeline = make_waiting(23, stalled=3 * HOUR, **limits)
    pipeline.kafka.retention = 24 * HOUR
    assert alarm_names(pipeline) == ["RunwayTooShort", "LagTooLarge"]
    for row in pipeline.control.rows:
        row["recorded_at"] -= 4 * HOUR
    pipeline.kafka.delete_records("events", 0, 8)
    assert alarm_names(pipeline) == ["LostRange", "RunwayTooShort", "PipelineStalled"]


def test_a_pipeline_with_lag_and_recent_landings_is_not_stalled() -> None:
    """The age of unread records does not matter."""
    moving = make_waiting(4, stalled=3 * HOUR)
    assert alarm_names(moving) == []
    stalled = make_waiting(4, stalled=3 * HOUR)
    for row in stalled.control.rows:
        row["recorded_at"] -= 4 * HOUR
    assert alarm_names(stalled) == ["PipelineStalled"]
    never = MemoryPipeline(spec=make_spec(alarms=AlarmRules(stalled=3 * HOUR)))
    never.planner.plan("nothing there")
    never.kafka.produce("events", 0, 1, int((NOW - 4 * HOUR).timestamp() * 1000))
    assert alarm_names(never) == ["PipelineStalled"]


def test_the_forecast_of_a_pipeline_with_a_limit_follows_its_throughput() -> None:
    """Each run lands one offset. There are 10 unread offsets and no new records."""
    pipeline = MemoryPipeline(spec=make_spec(records_per_run=2))
    pipeline.kafka.produce("events", 0, 14, int((NOW - 100 * HOUR).timestamp() * 1000))
    for run in range(3):
        pipeline.run(str(run))
    for row in pipeline.control.rows:
        row["recorded_at"] -= (10 - row["event_number"]) * HOUR
    status = pipeline.status()
    assert (status.lag, status.forecast) == (8, Forecast.LATER)
    # 2 offsets every 2 hours, less 8 that have arrived in 100 hours.
    assert status.caught_up_at is not None
    assert abs(status.caught_up_at - (NOW + HOUR * 8 / (1 - 0.08))) < timedelta(seconds=1)


def test_records_of_an_open_transaction_are_held_back_and_have_a_runway() -> None:
    """No reader sees them, and Kafka still deletes them."""
    pipeline = make_waiting(8, stalled=3 * HOUR, runway=1 * HOUR)
    pipeline.kafka.retention = 8 * HOUR + HOUR / 2
    pipeline.kafka.topics["events"][0].stable = 5
    status = pipeline.status()
    assert (status.lag, status.held_back, status.forecast) == (0, 12, Forecast.HELD_BACK)
    assert (status.lag_time, status.runway) == (8 * HOUR, HOUR / 2)
    assert alarm_names(pipeline) == ["RunwayTooShort"]


def test_a_new_partition_has_lag_before_the_next_run() -> None:
    """The next run reads it from its first offset."""
    pipeline = make_waiting(0, runway=1 * HOUR)
    pipeline.run("all")
    pipeline.kafka.retention = 24 * HOUR
    pipeline.kafka.topics["events"][2] = MemoryPartition()
    pipeline.kafka.produce("events", 2, 4, int((NOW - 23.5 * HOUR).timestamp() * 1000))
    status = pipeline.status()
    assert (status.lag, status.partitions[2].committed_offset, status.runway) == (4, 0, HOUR / 2)
    assert alarm_names(pipeline) == ["RunwayTooShort"]


def test_a_pipeline_that_has_not_started_has_a_runway_and_no_lag() -> None:
    """Kafka may delete its first records."""
    pipeline = MemoryPipeline(spec=make_spec(alarms=AlarmRules(runway=1 * HOUR)))
    pipeline.kafka.retention = 24 * HOUR
    pipeline.kafka.produce("events", 0, 4, int((NOW - 23.5 * HOUR).timestamp() * 1000))
    status = pipeline.status()
    assert (status.has_started, status.lag, status.runway) == (False, None, HOUR / 2)
    assert alarm_names(pipeline) == ["RunwayTooShort"]


@pytest.mark.parametrize("stamp", [-1, 10**16, 10**14])
def test_invalid_timestamps_do_not_prevent_the_stalled_alarm(stamp: int) -> None:
    """Covers no timestamp, microseconds, and a far future. The last landing decides."""
    pipeline = MemoryPipeline(spec=make_spec(alarms=AlarmRules(stalled=3 * HOUR, lag_records=1)))
    pipeline.produce(0, 5)
    pipeline.run("before")
    pipeline.kafka.produce("events", 0, 2, stamp)
    assert alarm_names(pipeline) == ["LagTooLarge"]
    for row in pipeline.control.rows:
        row["recorded_at"] -= 4 * HOUR
    assert alarm_names(pipeline) == ["PipelineStalled", "LagTooLarge"]


def test_an_unfinished_undo_is_the_problem_even_if_kafka_deleted_its_records() -> None:
    """It precedes the lost range."""
    pipeline = make_waiting(1)
    begun = pipeline.undo.undo(1, "ops", "wrong")
    assert begun.rows == 5
    pipeline.control.rows = [row for row in pipeline.control.rows if row["event"] != "undone"]
    pipeline.control.newest["events"] -= 1
    pipeline.kafka.delete_records("events", 0, 3)
    assert isinstance(pipeline.status().problem, UndoUnfinished)
    assert pipeline.status().last_landed is None


# -- missing rows ----------------------------------------------------------------------------------


def test_rows_that_another_program_removed_are_counted() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    pipeline.run("a")
    assert pipeline.status().missing_rows == 0
    del pipeline.table.rows[1:3]
    status = pipeline.status()
    assert (status.missing_rows, status.state) == (2, "ok")
    assert str(next(status.explain(NOW))).startswith("events: the data table lacks 2 landed rows")


def test_rows_that_tidemark_removed_are_not_missing() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    pipeline.run("a")
    pipeline.produce(0, 3)
    pipeline.run("b")
    pipeline.undo.undo(1, "ops", "wrong")
    assert pipeline.status().missing_rows == 0


def test_the_number_of_missing_rows_is_unknown_while_a_plan_replaces_rows() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    pipeline.run("a")
    request = replace(wanted((0, 0, 5)), replaces=True)
    assert pipeline.planner.backfill(request, RunOrigin("again")).plan is not None
    pipeline.table.rows.clear()
    assert pipeline.status().missing_rows is None


def test_rows_that_an_undo_removes_during_the_count_are_not_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    pipeline.run("a")
    ledger, count = pipeline.control.summary("events"), pipeline.table.row_count

    def undone_before() -> int:
        monkeypatch.setattr(pipeline.table, "row_count", count)
        pipeline.undo.undo(1, "ops", "wrong")
        return count()

    monkeypatch.setattr(pipeline.table, "row_count", undone_before)
    assert missing_rows(pipeline.control, ledger, pipeline.table) == 0
