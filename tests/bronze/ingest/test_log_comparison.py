"""Tests that truncated and restored logs are detected, and that `undo` fixes the table."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.file_lake import FileLake
from tests.support.memory import MemoryKafka
from tests.support.plans import MemoryPipeline, make_spec, wanted
from tidemark.bronze.ingest.errors import LogTruncated
from tidemark.bronze.ingest.recorder import Recorder
from tidemark.core.errors import EndBehindCommitted, TopicRecreated
from tidemark.core.offsets import SpanSet
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan, PlanKind
from tidemark.core.record import LogRecord
from tidemark.core.watermarks import IsolationLevel
from tidemark.ops.report.errors import TableDiffers
from tidemark.spec.model import StartPolicy

LATER_MS = 1_000
"""Timestamp of records written after a truncation; it distinguishes them from earlier records."""


def restore_snapshot(pipeline: MemoryPipeline, end: int, partition: int = 0) -> None:
    """Restore a partition, with its leader epochs, from a snapshot that ended at `end`."""
    pipeline.kafka.restore_log("events", partition, end)


def truncate(pipeline: MemoryPipeline, end: int, partition: int = 0) -> None:
    """Truncate a partition by an unclean election."""
    pipeline.kafka.elect("events", partition, end=end)


each_damage = pytest.mark.parametrize("damage", [restore_snapshot, truncate])


def pipeline_with_plans(*counts: int) -> MemoryPipeline:
    """Return a pipeline with one landed plan for each count of records in partition 0."""
    pipeline = MemoryPipeline()
    pipeline.produce(1, 1)
    for number, count in enumerate(counts):
        pipeline.produce(0, count)
        pipeline.run(f"run {number}")
    return pipeline


def error_of_next_run(pipeline: MemoryPipeline) -> Any:
    """Return the error of the next run, which must write nothing to the data table."""
    before = (list(pipeline.table.rows), list(pipeline.table.commits))
    with pytest.raises((LogTruncated, EndBehindCommitted)) as caught:
        pipeline.run("refused")
    assert (pipeline.table.rows, pipeline.table.commits) == before
    return caught.value


def follow_fixes(pipeline: MemoryPipeline) -> None:
    """Follow the fixes in the errors until runs succeed, then compare the table with Kafka."""
    for attempt in range(10):
        try:
            for record in pipeline.ledger.open_plans():
                pipeline.ingest.execute(record.plan.sequence)
            if pipeline.run(f"after {attempt}") is None:
                break
        except (LogTruncated, EndBehindCommitted) as error:
            command = f"`tidemark undo events --plan {error.undo[0]} --allow-loss --reason TEXT`"
            if command not in str(error):
                raise
            for plan in error.undo:
                pipeline.undo.undo(plan, "ops", "the log was cut", allow_loss=True)
    pipeline.verify.verify().check()
    assert pipeline.landed_identities() == pipeline.visible_identities()
    assert pipeline.status().problem is None


@each_damage
def test_i3_a_log_with_other_records_at_landed_offsets_is_refused(
    damage: Callable[[MemoryPipeline, int], None],
) -> None:
    """Watermarks do not show that landed offsets have other records."""
    pipeline = pipeline_with_plans(60)
    damage(pipeline, 30)
    pipeline.produce(0, 40, LATER_MS)
    assert isinstance(pipeline.status().problem, LogTruncated)
    error = error_of_next_run(pipeline)
    assert isinstance(error, LogTruncated)
    assert (error.partition, error.offset, error.undo) == (0, 60, (1,))
    follow_fixes(pipeline)


@each_damage
def test_log_truncated_names_all_plans_after_the_truncation_and_no_others(
    damage: Callable[[MemoryPipeline, int], None],
) -> None:
    pipeline = pipeline_with_plans(10, 10, 10, 10)
    damage(pipeline, 15)
    pipeline.produce(0, 40, LATER_MS)
    assert error_of_next_run(pipeline).undo == (4, 3, 2)
    follow_fixes(pipeline)


@each_damage
def test_status_reports_a_truncated_log_that_grew_to_the_committed_offset(
    damage: Callable[[MemoryPipeline, int], None],
) -> None:
    """No offset is after the committed one, so no run would report it."""
    pipeline = pipeline_with_plans(40)
    damage(pipeline, 20)
    pipeline.produce(0, 20, LATER_MS)
    status = pipeline.status()
    assert (status.partitions[0].end, status.lag) == (40, None)
    assert isinstance(status.problem, LogTruncated)
    assert status.problem.undo == (1,)
    pipeline.undo.undo(1, "ops", "the log was cut", allow_loss=True)
    follow_fixes(pipeline)


@each_damage
def test_undo_recovers_from_a_log_truncated_between_plan_and_landing(
    damage: Callable[[MemoryPipeline, int], None],
) -> None:
    """The plan lands the new log alone: the log changed before the read."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 40)
    plan = pipeline.plan("before")
    damage(pipeline, 20)
    pipeline.produce(0, 30, LATER_MS)
    pipeline.ingest.execute(plan.sequence)
    follow_fixes(pipeline)


@each_damage
@pytest.mark.parametrize("regrown", [5, 20, 60])
def test_a_truncation_after_an_undone_plan_is_detected(
    damage: Callable[[MemoryPipeline, int], None], regrown: int
) -> None:
    """The truncation is between the committed offset and a later landed plan."""
    pipeline = pipeline_with_plans(20, 20, 20)
    pipeline.undo.undo(2, "ops", "wrong")
    damage(pipeline, 30)
    pipeline.produce(0, regrown, LATER_MS)
    assert isinstance(
        pipeline.status().problem, LogTruncated if regrown > 30 else EndBehindCommitted
    )
    assert error_of_next_run(pipeline).undo == (3,)
    follow_fixes(pipeline)


@each_damage
def test_undo_recovers_from_a_log_that_ends_before_landed_offsets(
    damage: Callable[[MemoryPipeline, int], None],
) -> None:
    pipeline = pipeline_with_plans(10, 10, 10)
    damage(pipeline, 15)
    error = error_of_next_run(pipeline)
    assert isinstance(error, EndBehindCommitted)
    assert error.undo == (3, 2)
    assert pipeline.status().as_record()["problem"]["fix"] == error.rendered("fix")
    follow_fixes(pipeline)


@each_damage
def test_a_plan_that_ends_after_the_truncated_log_can_be_abandoned(
    damage: Callable[[MemoryPipeline, int], None],
) -> None:
    pipeline = pipeline_with_plans(10)
    pipeline.produce(0, 20)
    plan = pipeline.plan("before")
    damage(pipeline, 15)
    with pytest.raises(EndBehindCommitted) as caught:
        pipeline.ingest.execute(plan.sequence)
    assert (caught.value.undo, caught.value.plan) == ((), plan.sequence)
    assert f"`tidemark abandon events --plan {plan.sequence} --reason TEXT`" in str(caught.value)
    pipeline.abandon.abandon(plan.sequence, "ops", "the log was cut")
    follow_fixes(pipeline)


def test_a_backfill_is_refused_only_for_the_truncated_partition() -> None:
    """The execution compares the last landed records of the planned partitions."""
    pipeline = pipeline_with_plans(20)
    pipeline.undo.undo(1, "ops", "wrong")
    fill = pipeline.planner.backfill(wanted((0, 10, 20)), RunOrigin("ops")).plan
    assert fill is not None
    pipeline.ingest.execute(fill.sequence)
    restore_snapshot(pipeline, 15)
    pipeline.produce(0, 15, LATER_MS)
    other = pipeline.planner.backfill(wanted((1, 0, 1)), RunOrigin("ops 2")).plan
    assert other is not None
    pipeline.ingest.execute(other.sequence)
    truncated = pipeline.planner.backfill(wanted((0, 0, 10)), RunOrigin("ops 3")).plan
    assert truncated is not None
    with pytest.raises(LogTruncated) as caught:
        pipeline.ingest.execute(truncated.sequence)
    assert caught.value.undo == (fill.sequence,)
    follow_fixes(pipeline)


def test_a_record_that_compaction_removed_is_not_compared() -> None:
    """The newest landed record in Kafka is compared instead."""
    pipeline = pipeline_with_plans(30)
    log = pipeline.kafka.topics["events"][0]
    for offset in (29, 28, 26):
        del log.records[offset]
    pipeline.produce(0, 5, LATER_MS)
    assert pipeline.status().problem is None
    assert pipeline.run("next") is not None
    restore_snapshot(pipeline, 10)
    pipeline.produce(0, 40, LATER_MS + 1)
    for offset in (34, 33):
        del log.records[offset]
    assert isinstance(pipeline.status().problem, LogTruncated)
    assert error_of_next_run(pipeline).undo == (2, 1)


def test_committed_records_at_landed_offsets_without_rows_show_another_log() -> None:
    """In the new log, transaction markers are at the offsets of old records."""
    pipeline = MemoryPipeline(partitions=1)
    for _ in range(10):
        pipeline.produce(0, 1)
        pipeline.kafka.add_gaps("events", 0, 1)
    pipeline.run("first")
    restore_snapshot(pipeline, 0)
    for _ in range(15):
        pipeline.kafka.add_gaps("events", 0, 1)
        pipeline.produce(0, 1, LATER_MS)
    assert error_of_next_run(pipeline).undo == (1,)
    follow_fixes(pipeline)


# -- no false alarms -----------------------------------------------------------------------------


def check_log_is_accepted(pipeline: MemoryPipeline) -> None:
    """Check that status and next run report no problem of the log."""
    assert pipeline.status().problem is None
    assert pipeline.run("next") is not None
    assert pipeline.status().problem is None


def test_log_comparison_passes_before_the_first_live_landing() -> None:
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST))
    pipeline.produce(0, 10)
    pipeline.planner.plan("begin")
    for start, end in ((0, 3), (5, 8), (3, 5)):
        plan = pipeline.planner.backfill(wanted((0, start, end)), RunOrigin(f"fill {start}")).plan
        assert plan is not None
        pipeline.ingest.execute(plan.sequence)
    pipeline.produce(0, 10)
    check_log_is_accepted(pipeline)


def test_log_comparison_passes_if_retention_deleted_all_landed_offsets() -> None:
    """A later loss was accepted."""
    pipeline = pipeline_with_plans(10)
    pipeline.produce(0, 20)
    pipeline.kafka.delete_records("events", 0, 15)
    pipeline.decisions.accept_loss((), "ops", "retention")
    check_log_is_accepted(pipeline)


@pytest.mark.parametrize("isolation_level", list(IsolationLevel))
def test_log_comparison_skips_gaps_at_the_end_of_landed_offsets(
    isolation_level: IsolationLevel,
) -> None:
    """The second plan landed gaps only."""
    pipeline = MemoryPipeline(spec=make_spec(isolation_level=isolation_level))
    pipeline.produce(0, 5)
    pipeline.kafka.add_gaps("events", 0, 3)
    pipeline.run("first")
    pipeline.kafka.add_gaps("events", 0, 4)
    pipeline.run("gaps alone")
    pipeline.produce(0, 5, LATER_MS)
    check_log_is_accepted(pipeline)


def test_log_comparison_passes_after_a_leader_change_without_truncation() -> None:
    pipeline = pipeline_with_plans(10)
    pipeline.kafka.elect("events", 0)
    pipeline.produce(0, 10, LATER_MS)
    check_log_is_accepted(pipeline)


class KafkaRecreatingTopic(MemoryKafka):
    """Kafka that recreates the topic before a read of records if `is_due`."""

    is_due = False

    def read(
        self, topic: str, isolation_level: IsolationLevel, spans: Mapping[int, SpanSet]
    ) -> Iterator[LogRecord]:
        if self.is_due:
            self.create(topic, 2, "id-2")
            self.produce(topic, 0, 30, LATER_MS)
        return super().read(topic, isolation_level, spans)


def test_i1_a_recreated_topic_is_not_reported_as_a_restored_log() -> None:
    """The fix differs."""
    kafka = KafkaRecreatingTopic()
    pipeline = MemoryPipeline(kafka=kafka)
    pipeline.produce(0, 10)
    pipeline.run("first")
    pipeline.produce(0, 10)
    kafka.is_due = True
    with pytest.raises(TopicRecreated):
        pipeline.run("second")


# -- rows that another program changed -------------------------------------------------------------


def compact_log(lake: FileLake, *retained: int) -> None:
    """Produce as many records again; compaction removes the first ones except `retained`."""
    log = lake.kafka.topics["events"][0]
    old = [offset for offset in log.records if offset not in retained]
    lake.kafka.produce("events", 0, len(log.records), LATER_MS)
    for offset in old:
        del log.records[offset]


def change_rows(lake: FileLake, condition: str, value: str = "NULL") -> None:
    DeltaTable(lake.uri).update(updates={"value": value}, predicate=condition)


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_deleted_row_is_not_taken_for_a_truncated_log(tmp_path: Path, is_compacted: bool) -> None:
    """After log compaction, Kafka has only the record of the deleted row."""
    lake = FileLake(tmp_path)
    lake.run(20)
    lake.run(40)
    if is_compacted:
        DeltaTable(lake.uri).optimize.compact()
    DeltaTable(lake.uri).delete('"offset" = 30')
    compact_log(lake, 30)
    assert lake.status().problem is None
    lake.run(5)
    assert len(lake.rows()) == 59 + 65
    assert lake.status().problem is None


@pytest.mark.parametrize("deleted", [(1, 0), (0, 2)])
def test_a_row_deleted_elsewhere_does_not_hide_a_truncated_log(
    tmp_path: Path, deleted: tuple[int, int]
) -> None:
    """The other plan, or the other partition, has all its rows."""
    lake = FileLake(tmp_path)
    lake.kafka.produce("events", 1, 2, 0)
    for _ in range(2):
        for _ in range(10):
            lake.kafka.produce("events", 0, 1, 0)
            lake.kafka.add_gaps("events", 0, 1)
        lake.run(1, partition=1)
    partition, offset = deleted
    DeltaTable(lake.uri).delete(f'partition = {partition} AND "offset" = {offset}')
    lake.kafka.restore_log("events", 0, 0)
    for _ in range(25):
        lake.kafka.add_gaps("events", 0, 1)
        lake.kafka.produce("events", 0, 1, LATER_MS)
    assert isinstance(lake.status().problem, LogTruncated)


@pytest.mark.parametrize("value", ["NULL", "cast('other' as bytea)"])
def test_the_error_of_a_changed_newest_row_has_a_working_fix(tmp_path: Path, value: str) -> None:
    lake = FileLake(tmp_path)
    lake.run(10)
    change_rows(lake, '"offset" >= 8', value)
    with pytest.raises(TableDiffers):
        lake.verified()
    problem = lake.status().problem
    assert isinstance(problem, LogTruncated)
    assert "or the row was changed" in problem.rendered("problem")
    for text in (
        "`tidemark backfill events --offsets 0:START-END --replace --reason TEXT`",
        "`tidemark undo events --plan 1 --allow-loss --reason TEXT`",
        "`tidemark verify events`",
    ):
        assert text in problem.rendered("fix")
    with pytest.raises(LogTruncated):
        lake.run(1)
    lake.land_again((0, 8, 10))
    assert lake.status().problem is None
    lake.ingest.execute(lake.ledger.open_plans()[0].plan.sequence)
    assert lake.verified() == [(11, 11)]


def regrow(lake: FileLake | MemoryPipeline, end: int, to: int) -> None:
    """Truncate partition 0 by an unclean election, and let it grow again to other records."""
    lake.kafka.elect("events", 0, end=end)
    lake.kafka.produce("events", 0, to - end, LATER_MS)


def test_runs_continue_after_rows_that_were_read_after_a_truncation(tmp_path: Path) -> None:
    """The plan was recorded before the truncation. All of its rows equal Kafka's records."""
    lake = FileLake(tmp_path)
    plan = lake.plan(60)
    regrow(lake, 40, 80)
    lake.ingest.execute(plan.sequence)
    assert lake.status().problem is None
    lake.run(5)
    assert lake.verified() == [(85, 85)]


def test_a_landing_that_another_process_records_has_the_leader_epochs_of_its_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies between the commit and the record."""
    lake = FileLake(tmp_path)
    plan = lake.plan(60)
    regrow(lake, 40, 80)
    with monkeypatch.context() as dying:
        dying.setattr(Recorder, "record", killed)
        with pytest.raises(SystemExit):
            lake.ingest.execute(plan.sequence)
    lake.run(5)
    assert lake.verified() == [(85, 85)]


def killed(*_: object) -> None:
    """Die instead of recording a landing."""
    raise SystemExit


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_a_repair_keeps_the_leader_epochs_of_landings(tmp_path: Path, is_rebuilt: bool) -> None:
    """A rewind counts the landing again; a rebuild finds it in the log of the data table."""
    lake = FileLake(tmp_path)
    plan = lake.plan(60)
    regrow(lake, 40, 80)
    lake.ingest.execute(plan.sequence)
    lake.land_again((0, 70, 80))
    lake.land_again((0, 10, 20))
    before = [lake.ledger.positions(kind)[0] for kind in PlanKind]
    assert [position.leader_epoch for position in before] == [1, 1]
    if is_rebuilt:
        shutil.rmtree(lake.control_uri)
        lake.repair.rebuild("ops", "the control table is lost")
    else:
        lake.run(1)
        DeltaTable(lake.uri).restore(DeltaTable(lake.uri).version() - 1)
        lake.repair.rewind("ops", "the table was restored")
    assert [lake.ledger.positions(kind)[0] for kind in PlanKind] == before
    lake.run(5)


@pytest.mark.parametrize("is_slow_first", [False, True])
def test_i3_the_driver_that_commits_decides_the_leader_epochs_of_a_landing(
    is_slow_first: bool,
) -> None:
    """Two drivers execute a plan; one has read before a truncation, the other one after it."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 60)
    plan = pipeline.plan("run")

    def continue_after_truncation(_: Plan) -> None:
        pipeline.table.before_commit = lambda _plan: None
        regrow(pipeline, 40, 80)
        if not is_slow_first:
            pipeline.ingest.execute(plan.sequence)

    pipeline.table.before_commit = continue_after_truncation
    assert pipeline.ingest.execute(plan.sequence).wrote is is_slow_first
    if is_slow_first:
        error = error_of_next_run(pipeline)
        assert isinstance(error, LogTruncated)
        assert (error.offset, error.leader_epoch, error.undo) == (60, 0, (1,))
    follow_fixes(pipeline)


def test_i3_a_truncation_between_planning_and_reading_is_detected_without_comparable_rows() -> None:
    """The next run would not detect it: the landing has the new leader epoch."""
    pipeline = pipeline_with_plans(60)
    pipeline.produce(0, 20)
    plan = pipeline.plan("run")
    regrow(pipeline, 40, 60)
    pipeline.kafka.add_gaps("events", 0, 30)
    log = pipeline.kafka.topics["events"][0]
    log.records = {offset: stamp for offset, stamp in log.records.items() if offset < 10}
    rows = list(pipeline.table.rows)
    with pytest.raises(LogTruncated) as caught:
        pipeline.ingest.execute(plan.sequence)
    assert (caught.value.offset, caught.value.leader_epoch) == (60, 0)
    assert pipeline.table.rows == rows


@pytest.mark.slow
def test_changed_rows_can_be_replaced_in_chunks(tmp_path: Path) -> None:
    """The newest row is still changed when the first chunk lands."""
    lake = FileLake(tmp_path)
    lake.run(10)
    change_rows(lake, '"offset" >= 2')
    for start, end in ((2, 5), (5, 8), (8, 10)):
        lake.land_again((0, start, end))
    assert lake.verified() == [(10, 10)]
    assert lake.status().problem is None


@each_damage
def test_replacing_rows_after_a_truncation_is_refused(
    damage: Callable[[MemoryPipeline, int], None],
) -> None:
    """Rows before the replaced ones are of the old log."""
    pipeline = pipeline_with_plans(60)
    request = replace(wanted((0, 40, 60)), replaces=True)
    plan = pipeline.planner.backfill(request, RunOrigin("ops")).plan
    assert plan is not None
    damage(pipeline, 30)
    pipeline.produce(0, 40, LATER_MS)
    before = list(pipeline.table.rows)
    with pytest.raises(LogTruncated):
        pipeline.ingest.execute(plan.sequence)
    assert pipeline.table.rows == before


def test_verify_reports_the_last_row_that_equals_its_record(tmp_path: Path) -> None:
    """After a truncation no later row equals its record; after a changed row others do."""

    def last_line() -> str:
        lines: list[str] = []
        assert lake.verify.verify(print_line=lines.append).differences
        return lines[-1]

    lake = FileLake(tmp_path)
    lake.run(10)
    change_rows(lake, '"offset" IN (6, 9)')
    assert last_line() == "partition 0: the last row that equals Kafka's record has offset 8"
    lake.land_again((0, 6, 10))
    lake.kafka.restore_log("events", 0, 6)
    lake.kafka.produce("events", 0, 10, LATER_MS + 1)
    assert last_line() == "partition 0: the last row that equals Kafka's record has offset 5"
