"""Unfinished work in a status: open plans, undecoded and quarantined records, blocked plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.quality.test_publication import check
from tests.support import services
from tests.support.consoles import app_of
from tests.support.file_lake import FileLake
from tests.support.plans import MemoryPipeline, make_spec, wanted
from tests.support.services import NOW, with_ports
from tests.support.typed_job import NoRows
from tests.support.typed_lake import DECODE, TypedLake, home_typed_lake
from tidemark.app.silver import TypedPart
from tidemark.bronze.backfill.errors import BackfillAhead
from tidemark.bronze.backfill.selection import select
from tidemark.bronze.backfill.service import Backfills
from tidemark.core.offsets import Span
from tidemark.core.origins import RunOrigin
from tidemark.core.publication import PublishRule
from tidemark.delta import table_io
from tidemark.delta.control_table import DeltaControlTable
from tidemark.delta.errors import DeltaLogDamaged
from tidemark.ops.report.errors import PlanStuck, QuarantineTooLarge, RowsToWithdraw, TableStalled
from tidemark.ops.report.status import PipelineStatus, pipeline_status
from tidemark.ops.report.unfinished_work import UnfinishedWork, UnfinishedWorkReader
from tidemark.silver.typed.quarantine_index import QuarantineIndex
from tidemark.silver.typed.state import DecodeBacklog, TypedState
from tidemark.spec.model import AlarmRules
from tidemark.spec.upsert import MergeScope

pytestmark = pytest.mark.slow

HOUR = timedelta(hours=1)


def names(status: PipelineStatus) -> list[str]:
    """Return the names of the alarms."""
    return [type(alarm).__name__ for alarm in status.alarms()]


def test_a_plan_that_three_runs_leave_open_is_an_alarm() -> None:
    """The state is open after one run, and retrying after two."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    states = []
    for run in ("run-1", "run-2", "run-3"):
        pipeline.planner.plan(run)
        states.append(pipeline.status().state)
    assert states == ["open", "retrying", "PlanStuck"]
    record = pipeline.status().as_record()
    assert (record["open_plans"], record["open_plan_runs"], record["open_since"]) == (
        [1],
        3,
        NOW.isoformat(),
    )
    pipeline.ingest.execute(1)
    assert (pipeline.status().state, names(pipeline.status())) == ("ok", [])


def test_a_repeated_request_of_one_run_counts_once() -> None:
    """Airflow retries tasks."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    for _ in range(3):
        pipeline.planner.plan("run-1")
    assert (pipeline.status().state, pipeline.status().unfinished.runs) == ("open", 1)


def status_at(pipeline: MemoryPipeline, now: datetime) -> PipelineStatus:
    """Return the status at a time of the clock."""
    ports = replace(pipeline.planner.ports, now=lambda: now)
    return pipeline_status(pipeline.spec, ports, pipeline.unfinished_work)


@pytest.mark.parametrize(("stalled", "alarms"), [(HOUR, ["PlanStuck"]), (3 * HOUR, []), (None, [])])
def test_a_plan_that_is_open_for_longer_than_the_limit_is_an_alarm(
    stalled: timedelta | None, alarms: list[str]
) -> None:
    """One request is enough, such as that of a backfill."""
    pipeline = MemoryPipeline(spec=make_spec(alarms=AlarmRules(stalled=stalled)))
    pipeline.produce(0, 5)
    pipeline.planner.plan("run-1")
    later = status_at(pipeline, NOW + 2 * HOUR)
    found = [alarm for alarm in later.alarms() if isinstance(alarm, PlanStuck)]
    assert [type(alarm).__name__ for alarm in found] == alarms
    assert all("open for 2 h" in alarm.rendered("problem") for alarm in found)


def test_waiting_chunks_of_a_backfill_are_no_alarm() -> None:
    """A chunk is planned when the previous chunk has landed. A plan that never lands is stuck."""
    pipeline = MemoryPipeline(spec=make_spec(alarms=AlarmRules(stalled=HOUR)))
    pipeline.produce(0, 1)
    pipeline.run("run-1")
    pipeline.produce(0, 4)
    now = NOW

    def backfills() -> Backfills:
        planner = with_ports(pipeline.planner, now=lambda: now)
        return replace(pipeline.backfills, planner=planner)

    def stuck() -> list[int]:
        status = status_at(pipeline, now)
        return [alarm.sequence for alarm in status.alarms() if isinstance(alarm, PlanStuck)]

    preview = backfills().preview(select(offsets=["0:1-5"]), 1, readable_only=False)
    assert backfills().request(preview, "ops", approved=False) == 4
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


def typed_status(lake: TypedLake, limit: int | None = None) -> PipelineStatus:
    """Return the status of a pipeline with a decoded table."""
    spec = make_spec(decode=DECODE, alarms=AlarmRules(quarantined_records=limit))
    return pipeline_status(
        spec,
        lake.bronze.planner.ports,
        UnfinishedWorkReader(spec=spec, control=lake.control, typed=lake.state),
    )


def test_records_in_quarantine_are_counted_until_a_replay_decodes_them(tmp_path: Path) -> None:
    """Without a limit in the spec they are no alarm."""
    lake = TypedLake(tmp_path, broken=(1, 2, 3))
    lake.bronze.run(5)
    assert (typed_status(lake).state, typed_status(lake).unfinished.typed.backlog.missing) == (
        "undecoded",
        5,
    )
    lake.run()
    status = typed_status(lake)
    assert (status.state, status.as_record()["quarantined"], names(status)) == (
        "quarantined",
        3,
        [],
    )
    assert names(typed_status(lake, limit=3)) == []
    (alarm,) = typed_status(lake, limit=2).alarms()
    assert isinstance(alarm, QuarantineTooLarge)
    lake.broken = (3,)
    lake.replay(Span(1, 4))
    assert typed_status(lake).unfinished.typed.quarantined == len(lake.quarantined()) == 1
    lake.broken = ()
    lake.replay(Span(3, 4))
    assert typed_status(lake).unfinished == UnfinishedWork(
        typed=TypedState(rows=5, quarantined=0), last_check="not checked", newest_plan=1
    )
    assert typed_status(lake).state == "ok"


def test_records_of_blocked_and_unchecked_plans_are_not_undecoded(tmp_path: Path) -> None:
    """The decoder does not decode them."""
    lake = TypedLake(root=tmp_path, publish=PublishRule.CHECKED)
    for records in (2, 3, 4):
        lake.bronze.run(records)
    check(lake.bronze, 1, passed=True)
    check(lake.bronze, 2, passed=False)
    assert typed_status(lake).unfinished.typed.backlog.missing == 2
    lake.run()
    status = typed_status(lake)
    assert (status.unfinished.typed.backlog.missing, status.unfinished.typed.backlog.unchecked) == (
        0,
        4,
    )
    assert [*status.unfinished.states()] == ["unchecked"]
    status = typed_status(lake)
    line, _blocked = map(str, status.unfinished.explain("events", NOW + HOUR))
    assert line == (
        "events: 4 landed offsets not decoded, because plan 3 is not checked for 1 h: "
        "`tidemark run events` checks and decodes"
    )
    check(lake.bronze, 3, passed=False)
    assert [*typed_status(lake).unfinished.states()] == []


def test_records_of_all_incarnations_of_a_recreated_topic_are_undecoded(tmp_path: Path) -> None:
    """The next decode decodes them all."""
    lake = TypedLake(tmp_path)
    lake.bronze.run(3)
    lake.bronze.kafka.create("events", 2, "id-2")
    lake.bronze.decisions.accept_recreation("test", "on purpose")
    lake.bronze.run(2)
    work = typed_status(lake).unfinished
    assert (work.typed.backlog.missing, work.typed.undecoded_since) == (5, NOW)
    lake.run()
    assert typed_status(lake).unfinished.typed.backlog.missing == 0


def upserted_work(home: Path) -> UnfinishedWork:
    """Return the unfinished work of pipeline `events` of a home without Kafka."""
    return app_of(home)().pipeline("events").report.status().unfinished


def committed_at(lake: TypedLake, newer: int = 0) -> datetime:
    """Return the time of the commit to the typed table with the given number of newer ones."""
    commits = DeltaTable(lake.typed_uri).history()
    return datetime.fromtimestamp(commits[newer]["timestamp"] / 1000, UTC)


def test_a_replay_leaves_the_upsert_table_out_of_date_until_the_next_merge(
    tmp_path: Path,
) -> None:
    lake = home_typed_lake(tmp_path, "value: {format: string}, upsert: {}")
    upserts = app_of(tmp_path)().pipeline("events").upsert.planner
    merger = NoRows(tmp_path / "lakehouse" / "silver" / "events_latest")
    lake.broken = {1}
    lake.land_values([b"a", b"b", b"c"])
    lake.run()
    assert upserted_work(tmp_path).unmerged is MergeScope.ALL
    upserts.execute(merger)
    assert [*upserted_work(tmp_path).states()] == ["quarantined"]

    lake.broken = ()
    lake.replay(Span(1, 2))
    work = upserted_work(tmp_path)
    assert [*work.states()] == ["unmerged"]
    assert work.as_row()["unmerged"] == "affected keys"
    since = work.unmerged_since
    assert since is not None
    (line,) = map(str, work.explain("events", since + 2 * HOUR))
    assert line == (
        "events: upsert table out of date for 2 h: `tidemark upsert events` merges affected keys"
    )
    upserts.execute(merger)
    assert [*upserted_work(tmp_path).states()] == []
    lake.bronze.undo.undo(1, "ops", "a test")
    lake.run()
    assert upserted_work(tmp_path).unmerged_since == committed_at(lake)


def test_a_changed_spec_does_not_make_an_upsert_table_out_of_date_since_its_first_record(
    tmp_path: Path,
) -> None:
    """No alarm: the merge rebuilds the table, which lacks no record."""
    lake = home_typed_lake(tmp_path, "value: {format: string}, upsert: {}")
    lake.land_values([b"a"])
    lake.run()
    upserts = app_of(tmp_path)().pipeline("events").upsert.planner
    upserts.execute(NoRows(tmp_path / "lakehouse" / "silver" / "events_latest"))
    spec = tmp_path / "pipelines" / "events.yaml"
    spec.write_text(spec.read_text().replace("upsert: {}", "upsert: {deletes: hard}"))
    work = upserted_work(tmp_path)
    assert (work.unmerged, work.unmerged_since) == (MergeScope.ALL, None)
    alarms = work.alarms("events", AlarmRules(stalled=HOUR), NOW + 1000 * HOUR)
    assert [*alarms] == []


@pytest.mark.parametrize("cause", ["spec", "restore", "other typed table"])
def test_a_due_rebuild_is_out_of_date_since_the_first_change_after_the_last_merge(
    tmp_path: Path, cause: str
) -> None:
    """Otherwise no alarm would report a rebuild that always fails."""
    lake = home_typed_lake(tmp_path, "value: {format: string}, upsert: {}")
    spec = tmp_path / "pipelines" / "events.yaml"
    uri = tmp_path / "lakehouse" / "silver" / "events_latest"
    upserts = app_of(tmp_path)().pipeline("events").upsert.planner
    for _ in range(2):
        lake.land_values([b"a"])
        lake.run()
        upserts.execute(NoRows(uri))
    if cause == "restore":
        DeltaTable(uri).restore(1)
    elif cause == "spec":
        spec.write_text(spec.read_text().replace("upsert: {}", "upsert: {deletes: hard}"))
    else:
        spec.write_text(
            spec.read_text().replace(
                "upsert: {}", "target: silver/other, upsert: {target: silver/events_latest}"
            )
        )
        lake.decode = replace(lake.decode, target="silver/other")
    assert upserted_work(tmp_path).unmerged_since is None
    for _ in range(2):
        lake.land_values([b"b"])
        lake.run()
    work = upserted_work(tmp_path)
    since = committed_at(lake, newer=1)
    assert (work.unmerged, work.unmerged_since) == (MergeScope.ALL, since)
    alarms = work.alarms("events", AlarmRules(stalled=HOUR), since + 2 * HOUR)
    assert [alarm.table for alarm in alarms if isinstance(alarm, TableStalled)] == ["upsert"]
    upserts = app_of(tmp_path)().pipeline("events").upsert.planner
    upserts.execute(NoRows(uri))
    assert upserted_work(tmp_path).unmerged is None


def test_a_table_that_is_out_of_date_for_longer_than_the_limit_raises_an_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other alarm reports a decode that fails before it records a plan."""
    lake = home_typed_lake(tmp_path, "value: {format: string}, upsert: {}")

    def stalled(after: timedelta, limit: timedelta | None = HOUR) -> list[str]:
        work = upserted_work(tmp_path)
        since = work.typed.undecoded_since or work.unmerged_since
        assert since is not None
        alarms = work.alarms("events", AlarmRules(stalled=limit), since + after)
        return [alarm.table for alarm in alarms if isinstance(alarm, TableStalled)]

    lake.land_values([b"a"])
    assert stalled(2 * HOUR) == ["typed"]
    assert stalled(HOUR / 2) == stalled(2 * HOUR, limit=None) == []
    lake.run()
    assert stalled(2 * HOUR) == ["upsert"]
    for hours in (1, 2):
        monkeypatch.setattr(services, "NOW", NOW + hours * HOUR)
        lake.land_values([b"b"])
    work = upserted_work(tmp_path)
    assert work.typed.undecoded_since == NOW + HOUR
    assert str(next(work.explain("events", NOW + 2 * HOUR))) == (
        "events: 2 published offsets not decoded for 1 h"
    )


def test_a_quarantine_that_is_behind_is_a_state_until_the_next_decode(tmp_path: Path) -> None:
    """A decode was stopped between its two commits, or another program restored the table."""
    lake = home_typed_lake(tmp_path)
    lake.broken = {1, 4}
    for values in ([b"a", b"b", b"c"], [b"d", b"e"]):
        lake.land_values(values)
        lake.run()
    quarantine = DeltaTable(lake.quarantine_uri)
    quarantine.restore(quarantine.version() - 1)
    status = app_of(tmp_path)().pipeline("events").report.status()
    assert [*status.unfinished.states()] == ["quarantined", "quarantine behind"]
    assert str([*status.unfinished.explain("events", NOW)][-1]) == (
        "events: the quarantine has not followed the typed table: "
        "`tidemark decode events` completes it"
    )
    record = status.as_record()
    assert (record["typed_rows"], record["quarantined"]) == (3, 1)
    assert record["quarantine_behind"] is True
    lake.run()
    record = app_of(tmp_path)().pipeline("events").report.status().as_record()
    assert record["typed_rows"] + record["quarantined"] == record["records"] == 5
    assert record["quarantine_behind"] is False


def test_a_typed_row_that_another_program_deleted_is_an_alarm(tmp_path: Path) -> None:
    """Nothing waits, and the next decode would not add the row."""
    lake = home_typed_lake(tmp_path)
    lake.land_and_run(3)
    DeltaTable(lake.typed_uri).delete('"offset" = 1')
    status = app_of(tmp_path)().pipeline("events").report.status()
    assert status.unfinished.typed.backlog == DecodeBacklog()
    assert names(status)[-1] == "RecordsUnaccounted"
    assert replace(status, kafka_error=None, problem=None).state == "RecordsUnaccounted"
    assert str(next(status.explain(NOW))) == (
        "events: 1 landed record is neither in the typed table nor in quarantine: "
        "`tidemark verify events` finds the difference"
    )


def test_the_alarm_about_a_missing_record_ends_with_a_restore_or_an_erasure(tmp_path: Path) -> None:
    """An erasure also deletes the row of the bronze table."""
    lake = home_typed_lake(tmp_path)
    lake.land_and_run(3)
    version = DeltaTable(lake.typed_uri).version()
    ends: Sequence[Callable[[], object]] = [
        lambda: DeltaTable(lake.typed_uri).restore(version),
        lambda: DeltaTable(lake.bronze.uri).delete('"offset" = 1'),
    ]
    for end in ends:
        DeltaTable(lake.typed_uri).delete('"offset" = 1')
        assert "RecordsUnaccounted" in names(app_of(tmp_path)().pipeline("events").report.status())
        end()
        lake.run()
        status = app_of(tmp_path)().pipeline("events").report.status()
        assert "RecordsUnaccounted" not in names(status)


def test_rows_of_a_plan_that_is_decoded_during_the_read_are_no_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status read the ledger before the plan landed, and the typed table afterwards."""
    lake = home_typed_lake(tmp_path)
    lake.land_and_run(3)
    state, plans = TypedPart.state, [2]

    def after_a_decode(part: TypedPart) -> TypedState:
        # A thread opens its own tables, as another process does.
        with ThreadPoolExecutor(max_workers=1) as others:
            while plans:
                others.submit(lake.land_and_run, plans.pop()).result()
        return state(part)

    monkeypatch.setattr(TypedPart, "state", after_a_decode)
    status = app_of(tmp_path)().pipeline("events").report.status()
    assert (status.records, status.unfinished.typed.rows) == (5, 5)
    assert "RowsToWithdraw" not in names(status)
    assert "RecordsUnaccounted" not in status.state


def test_withdrawn_rows_are_an_alarm_until_the_typed_and_the_upsert_table_lack_them(
    tmp_path: Path,
) -> None:
    """The plan was undone. Until the merge, readers of the upsert table find its rows."""
    lake = home_typed_lake(tmp_path, "value: {format: string}, upsert: {}")
    upserts = app_of(tmp_path)().pipeline("events").upsert.planner
    merger = NoRows(tmp_path / "lakehouse" / "silver" / "events_latest")
    for values in ([b"a", b"b"], [b"c"]):
        lake.land_values(values)
        lake.run()
    upserts.execute(merger)

    def alarms() -> list[str]:
        work = upserted_work(tmp_path)
        found = work.alarms("events", AlarmRules(), NOW)
        return [each.rendered("problem") for each in found if isinstance(each, RowsToWithdraw)]

    assert alarms() == []
    lake.bronze.undo.undo(1, "ops", "a test")
    work = upserted_work(tmp_path)
    assert work.as_row()["to_withdraw"] == 2
    assert "events: the typed table has 2 offsets that are no longer published: " in "".join(
        map(str, work.explain("events", NOW))
    )
    assert alarms() == [
        "Tables of pipeline 'events' still have withdrawn rows: the typed table has 2 offsets "
        "outside the published view."
    ]
    lake.run()
    assert alarms() == [
        "Tables of pipeline 'events' still have withdrawn rows: the upsert table has rows of 2 "
        "offsets that left the typed table."
    ]
    upserts.execute(merger)
    assert alarms() == []


@pytest.mark.parametrize("operator", [True, False])
def test_rows_of_a_plan_that_is_no_longer_published_are_an_alarm(
    tmp_path: Path, operator: bool
) -> None:
    """An operator rejects a plan, or a later check blocks it. Lost decisions withdraw no row."""
    lake = TypedLake(root=tmp_path, publish=PublishRule.CHECKED)
    for plan in (1, 2, 3):
        lake.bronze.run(plan)
        if plan < 3:
            check(lake.bronze, plan, passed=True)
    lake.run()
    assert typed_status(lake).unfinished.typed.backlog.surplus == 0
    if operator:
        lake.bronze.publication.reject(2, "ada", "test data")
    else:
        check(lake.bronze, 2, passed=False)
    assert typed_status(lake).unfinished.typed.backlog.surplus == 2
    assert "RowsToWithdraw" in typed_status(lake).state
    lake.run()
    assert typed_status(lake).unfinished.typed.backlog.surplus == 0


def test_a_status_opens_each_table_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An opening takes longer than a query of a small table."""
    lake = home_typed_lake(tmp_path)
    lake.land_values([b"a", b"b"])
    lake.run()
    opened: list[str] = []
    real = table_io.newest_if_exists

    def count(uri: str) -> DeltaTable | None:
        opened.append(uri)
        return real(uri)

    monkeypatch.setattr(table_io, "newest_if_exists", count)
    status = app_of(tmp_path)().pipeline("events").report.status()
    assert status.records == 2
    assert sorted(opened) == sorted(set(opened))


def checked_status(lake: FileLake) -> PipelineStatus:
    """Return the status of a pipeline with checked plans."""
    return pipeline_status(
        lake.spec,
        lake.planner.ports,
        UnfinishedWorkReader(spec=lake.spec, control=lake.control),
    )


def test_the_publication_status_of_a_backfill_has_its_plan(tmp_path: Path) -> None:
    """The last landed plan beside it is the newest live one."""
    lake = FileLake(root=tmp_path)
    lake.run(4)
    assert (checked_status(lake).last_landed, checked_status(lake).last_check) == (1, "not checked")
    lake.planner.backfill(replace(wanted((0, 0, 2)), replaces=True), RunOrigin("again"))
    lake.ingest.execute(2)
    check(lake, 2, passed=False)
    assert (checked_status(lake).last_landed, checked_status(lake).last_check) == (
        1,
        "blocked (plan 2)",
    )


def test_blocked_plans_are_an_alarm_until_an_operator_decides(tmp_path: Path) -> None:
    """A newer check that passes, or an undo, also ends the alarm."""
    lake = FileLake(root=tmp_path)
    for plan in (1, 2, 3, 4, 5):
        lake.run(2)
        check(lake, plan, passed=plan == 1)
    status = checked_status(lake)
    assert status.as_record()["blocked_plans"] == [2, 3, 4, 5]
    assert (status.state, names(status)) == ("PlansBlocked", ["PlansBlocked"])
    assert [*map(str, status.unfinished.explain("events", NOW))] == [
        "events: a quality check blocked plans 2, 3, 4, 5"
    ]
    check(lake, 2, passed=True)
    lake.publication.release(3, "ada", "known outage")
    lake.publication.reject(4, "ada", "test data")
    assert checked_status(lake).unfinished.blocked == (5,)
    lake.undo.undo(5, "ada", "test data")
    assert checked_status(lake).unfinished == UnfinishedWork(
        published=2, released=1, rejected=1, last_check="rejected", newest_plan=4
    )
    # The undone offsets are unread again.
    lake.run(0)
    assert checked_status(lake).state == "ok"


def test_plans_without_a_check_result_are_an_alarm_after_two_later_plans(tmp_path: Path) -> None:
    """A check that ends with an unexpected error leaves no other trace."""
    lake = FileLake(root=tmp_path)
    seen = []
    for plan in (1, 2, 3, 4, 5):
        lake.run(2)
        if plan not in (3, 4):
            check(lake, plan, passed=True)
        seen.append(names(checked_status(lake)))
    assert seen == [[], [], [], [], ["PlansUnchecked"]]
    status = checked_status(lake)
    (alarm,) = status.alarms()
    assert "lacks the rows of plan 3, " in alarm.rendered("problem")
    assert "`tidemark check events --plan 3`" in alarm.rendered("fix")
    assert status.as_record()["unchecked_plans"] == [3, 4]
    assert status.as_record()["unchecked_since"] == NOW.isoformat()
    late = status.unfinished.alarms("events", AlarmRules(stalled=HOUR), NOW + 2 * HOUR)
    assert [each.rendered("problem") for each in late] == [
        "The published view of pipeline 'events' lacks the rows of plans 3, 4, because their check "
        "has had no result for 2 h."
    ]
    lake.publication.reject(3, "ada", "test data")
    lake.undo.undo(4, "ada", "test data")
    assert names(checked_status(lake)) == []


def test_chunks_of_a_backfill_are_no_later_runs(tmp_path: Path) -> None:
    """A plan whose check still runs is no alarm while chunks land. A chunk is one after a while."""
    lake = FileLake(root=tmp_path)
    lake.run(9)
    check(lake, 1, passed=True)
    lake.run(2)
    for offset in range(3):
        lake.land_again((0, offset, offset + 1))
    assert names(checked_status(lake)) == []
    late = checked_status(lake).unfinished.alarms(
        "events", AlarmRules(stalled=HOUR), NOW + 2 * HOUR
    )
    assert ["plans 2, 3, 4, 5" in each.rendered("problem") for each in late] == [True]


def test_plans_of_a_pipeline_that_is_never_checked_are_no_alarm(tmp_path: Path) -> None:
    """An operator may decide about a plan without any check."""
    lake = FileLake(root=tmp_path)
    for _ in range(4):
        lake.run(2)
    lake.publication.reject(4, "ada", "test data")
    assert (checked_status(lake).state, checked_status(lake).as_row()["unchecked_since"]) == (
        "ok",
        None,
    )


def test_a_typed_table_that_waits_for_checks_is_an_alarm(tmp_path: Path) -> None:
    """Even the first check of a pipeline can end without a result."""
    lake = TypedLake(root=tmp_path, publish=PublishRule.CHECKED)
    seen = []
    for _ in range(3):
        lake.bronze.run(2)
        seen.append(typed_status(lake).state)
    assert seen == ["unchecked", "unchecked", "PlansUnchecked"]


def test_a_status_with_a_blocked_plan_reads_no_full_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The console reads a status every few seconds, and a full ledger of many plans takes long."""
    lake = FileLake(root=tmp_path)
    for plan in (1, 2):
        lake.run(2)
        check(lake, plan, passed=plan == 2)

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("the full ledger was read")

    monkeypatch.setattr(DeltaControlTable, "ledger", refuse)
    assert checked_status(lake).unfinished.blocked == (1,)


def test_a_status_has_the_publication_status_of_the_newest_landed_plan(tmp_path: Path) -> None:
    """Without a check, or without a landing, no check is claimed."""
    lake = FileLake(root=tmp_path)
    lake.plan(2)
    assert checked_status(lake).as_record()["last_check"] is None
    lake.run(0)
    seen = [checked_status(lake).unfinished.last_check]
    for passed in (True, False):
        lake.run(1)
        check(lake, checked_status(lake).last_landed or 0, passed=passed)
        seen.append(checked_status(lake).unfinished.last_check)
    lake.publication.release(3, "ada", "known outage")
    seen.append(checked_status(lake).unfinished.last_check)
    lake.run(1)
    seen.append(checked_status(lake).as_record()["last_check"])
    assert seen == ["not checked", "published", "blocked", "released", "not checked"]
    assert checked_status(lake).as_row()["last_check"] == "not checked"


def test_the_publication_status_is_that_of_a_newer_backfill_that_replaced_all_rows(
    tmp_path: Path,
) -> None:
    """The check of the replaced plan does not apply to the new rows."""
    lake = FileLake(root=tmp_path)
    lake.run(3)
    check(lake, 1, passed=True)
    lake.land_again((0, 0, 3))
    assert checked_status(lake).unfinished.last_check == "not checked"


def test_the_size_of_an_absent_or_unreadable_quarantine_is_not_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error hides no other unfinished work."""
    lake = TypedLake(root=tmp_path)
    lake.bronze.run(3)
    assert checked_status(lake.bronze).as_record()["quarantined"] is None

    def unreadable(*_: object) -> NoReturn:
        raise DeltaLogDamaged(location="quarantine", reason="checkpoint missing")

    monkeypatch.setattr(QuarantineIndex, "count", unreadable)
    status = typed_status(lake)
    record = status.as_record()
    assert (record["quarantined"], record["undecoded"]) == (None, 3)
    assert record["problem"]["error"] == "DeltaLogDamaged"
    assert names(status) == ["DeltaLogDamaged"]


class CheckedLake:
    """A typed table of published records, with a clock."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.at(0)
        self.typed = TypedLake(root=root, publish=PublishRule.CHECKED)
        self.bronze = self.typed.bronze

    def at(self, hours: float) -> None:
        """Set the clock."""
        self._monkeypatch.setattr(services, "NOW", NOW + hours * HOUR)

    def land(self, plan: int, *, passed: bool = True) -> None:
        """Land two records, and check their plan."""
        self.bronze.run(2)
        check(self.bronze, plan, passed=passed)

    def waiting_since(self) -> float | None:
        """Return since when the typed table is out of date, in hours of the clock."""
        since = self.typed.state().undecoded_since
        return None if since is None else round((since - NOW) / HOUR, 1)


def test_records_wait_for_a_decode_from_their_landing_and_decision_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A blocked plan and its late release raise no early alarm."""
    lake = CheckedLake(tmp_path, monkeypatch)
    lake.land(1)
    assert lake.waiting_since() is not None
    lake.typed.run()
    lake.at(1)
    lake.land(2, passed=False)
    assert lake.waiting_since() is None
    lake.at(9)
    lake.land(3)
    assert lake.waiting_since() == 9
    lake.typed.run()

    lake.at(10)
    lake.bronze.publication.release(2, "ada", "ok")
    assert lake.waiting_since() == 10
    lake.typed.run()
    assert lake.waiting_since() is None


def test_offsets_that_land_again_wait_from_their_new_landing_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = CheckedLake(tmp_path, monkeypatch)
    lake.land(1)
    lake.typed.run()
    lake.at(1)
    lake.bronze.run(2)
    lake.bronze.undo.undo(2, "ops", "a test")
    lake.at(30)
    lake.bronze.run(0)
    check(lake.bronze, 3, passed=True)
    assert lake.waiting_since() == 30


def test_an_error_of_the_upsert_table_hides_no_other_unfinished_work(tmp_path: Path) -> None:
    """It is an alarm beside the others."""
    lake = home_typed_lake(tmp_path, "value: {format: string}, upsert: {}")
    lake.land_values([b"a"])
    lake.run()
    lake.land_values([b"b"])
    lake.bronze.plan(1)
    write_deltalake(str(tmp_path / "lakehouse" / "silver" / "events_latest"), pa.table({"n": [1]}))
    work = upserted_work(tmp_path)
    assert [*work.states()] == ["open", "undecoded"]
    alarms = work.alarms("events", AlarmRules(), NOW)
    assert "ForeignTable" in {type(each).__name__ for each in alarms}
