"""Tests of the status history: appends beside each other, reads by step, removal of old days."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from arro3.core import Schema
from deltalake import DeltaTable, write_deltalake

from tests.conftest import PROJECT
from tests.support.services import NOW
from tidemark.app.app import App
from tidemark.app.statuses import record_status
from tidemark.delta.compaction import Compaction
from tidemark.delta.errors import ClockDiffers, DeltaLogDamaged, EngineFailed, TableConflict
from tidemark.delta.maintained_table import DeltaMaintainedTable
from tidemark.delta.status_history import (
    COLUMNS,
    RETENTION,
    append_statuses,
    read_lags,
    remove_old_statuses,
)
from tidemark.delta.status_table import COLUMNS as STATUS_COLUMNS
from tidemark.delta.status_table import read_status
from tidemark.delta.table_io import arrow_table, query_rows
from tidemark.kafka.errors import TopicMissing
from tidemark.ops.maintenance.rules import MaintenanceOutcome

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def row(pipeline: str, at: datetime, lag: int | None, **values: Any) -> dict[str, Any]:
    return {"pipeline": pipeline, "checked_at": at, "lag": lag, "topic": "t", **values}


def stored(uri: str) -> list[tuple[str, datetime, int | None]]:
    rows = query_rows(DeltaTable(uri), "SELECT * FROM t ORDER BY checked_at, pipeline, lag")
    return [(each["pipeline"], each["checked_at"], each["lag"]) for each in rows]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "status_history")


@pytest.fixture
def app(tmp_path: Path) -> App:
    """A home with one valid and one invalid spec."""
    specs = tmp_path / "pipelines"
    specs.mkdir()
    (specs / "prices.yaml").write_text("name: prices\ntopic: t\nschedule: '@daily'\n")
    return App(
        environ={
            "TIDEMARK_HOME": str(tmp_path),
            "TIDEMARK_LAKEHOUSE": str(tmp_path / "lakehouse"),
            "TIDEMARK_PIPELINES": str(specs),
        }
    )


def test_the_columns_are_those_of_the_status_table_and_are_documented() -> None:
    assert set(COLUMNS.names) - {"day"} <= set(STATUS_COLUMNS.names)
    page = (PROJECT / "docs" / "how-to" / "alarms.md").read_text(encoding="utf-8")
    section = page.partition("### History")[2].partition("\n## ")[0]
    assert [name for name in COLUMNS.names if f"`{name}`" not in section] == []


# -- writing -------------------------------------------------------------------------------------


def test_concurrent_recorders_keep_all_rows_also_when_both_create_the_table(uri: str) -> None:
    barrier = threading.Barrier(4)

    def record(recorder: int) -> None:
        barrier.wait()
        for number in range(5):
            at = NOW + timedelta(minutes=number)
            append_statuses(uri, [row(f"p{recorder}", at, number)])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(record, range(4)))
    assert stored(uri) == [
        (f"p{recorder}", NOW + timedelta(minutes=number), number)
        for number in range(5)
        for recorder in range(4)
    ]


def test_a_status_is_recorded_in_both_tables(app: App) -> None:
    record_status(app, {"prices": TopicMissing(topic="t")})
    record_status(app, {"prices": TopicMissing(topic="t")})
    assert [each["state"] for each in read_status(app.layout.status_table)] == ["TopicMissing"]
    assert history(app) == [("prices", "TopicMissing")] * 2


def history(app: App) -> list[tuple[str, str]]:
    rows = query_rows(DeltaTable(app.layout.status_history), "SELECT pipeline, state FROM t")
    return [(each["pipeline"], each["state"]) for each in rows]


@pytest.mark.parametrize("damaged", ["status_table", "status_history"])
def test_a_damaged_table_does_not_prevent_the_write_to_the_other(app: App, damaged: str) -> None:
    damage(Path(getattr(app.layout, damaged)))
    with pytest.raises(DeltaLogDamaged):
        record_status(app, {"prices": TopicMissing(topic="t")})
    if damaged == "status_table":
        assert history(app) == [("prices", "TopicMissing")]
    else:
        assert [each["pipeline"] for each in read_status(app.layout.status_table)] == ["prices"]


def damage(folder: Path) -> None:
    """Leave a table without a beginning of its log."""
    (folder / "_delta_log").mkdir(parents=True)
    (folder / "_delta_log" / f"{7:020}.json").write_text("{}\n")


def test_a_table_of_an_older_release_gets_a_new_column(uri: str) -> None:
    old = Schema([COLUMNS.field(name) for name in COLUMNS.names if name != "records"])
    DeltaTable.create(uri, schema=old, partition_by=["day"])
    append_statuses(uri, [row("a", NOW, 1, records=5)])
    assert query_rows(DeltaTable(uri), "SELECT lag, records FROM t") == [{"lag": 1, "records": 5}]


# -- reading -------------------------------------------------------------------------------------


def test_lags_are_read_by_pipeline_and_time_with_the_highest_of_each_step(uri: str) -> None:
    assert read_lags(uri, NOW, HOUR) == {}
    hour = NOW.replace(minute=0, second=0, microsecond=0)
    times_and_lags = [(0, 9), (61, 3), (75, 7), (90, None), (119, 7), (120, None), (180, 0)]
    rows = [row("a", hour + timedelta(minutes=minute), lag) for minute, lag in times_and_lags]
    append_statuses(uri, [*rows, row("b", hour + HOUR, 5, lag_seconds=1.5, state="ok")])
    found = read_lags(uri, hour + HOUR, HOUR)
    assert [(each.checked_at - hour, each.lag) for each in found["a"]] == [
        (timedelta(minutes=119), 7),
        (timedelta(minutes=120), None),
        (timedelta(minutes=180), 0),
    ]
    (only,) = found["b"]
    assert (only.lag_time, only.state) == (timedelta(seconds=1.5), "ok")
    assert list(read_lags(uri, hour, HOUR, "b")) == ["b"]
    assert read_lags(uri, hour, HOUR, "c") == {}


def test_the_highest_age_of_each_step_is_read_beside_the_highest_lag(uri: str) -> None:
    hour = NOW.replace(minute=0, second=0, microsecond=0)
    figures = [(1, 10, 18_000.0), (2, 1_000, 1.0), (3, 5, 2.0)]
    rows = [
        row("a", hour + timedelta(minutes=minute), lag, lag_seconds=age)
        for minute, lag, age in figures
    ]
    append_statuses(uri, rows)
    assert [each.lag for each in read_lags(uri, hour, HOUR)["a"]] == [10, 1_000]


def test_every_change_of_the_state_is_read(uri: str) -> None:
    """The first status of the period counts as a change, because the state before is not read."""
    hour = NOW.replace(minute=0, second=0, microsecond=0)
    states = ["ok", "ok", "LostRange", "LostRange", "ok", "ok", "ok"]
    rows = [
        row("a", hour + timedelta(minutes=minute), minute, state=state)
        for minute, state in enumerate(states)
    ]
    append_statuses(uri, rows)
    assert [each.lag for each in read_lags(uri, hour, HOUR)["a"]] == [0, 2, 4, 6]


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e300])
def test_an_age_that_is_no_duration_is_unknown(uri: str, seconds: float) -> None:
    append_statuses(uri, [row("a", NOW, 1, lag_seconds=seconds)])
    (sample,) = read_lags(uri, NOW - HOUR, HOUR)["a"]
    assert (sample.lag, sample.lag_time) == (1, None)


def test_a_table_that_is_no_history_is_a_named_error(uri: str) -> None:
    columns = Schema([COLUMNS.field("state")])
    write_deltalake(uri, arrow_table([{"state": "ok"}], columns))
    with pytest.raises(EngineFailed, match="checked_at"):
        read_lags(uri, NOW, HOUR)


# -- retention -----------------------------------------------------------------------------------


def fill(uri: str, *ages: timedelta) -> None:
    """Record a status of each age."""
    for age in ages:
        append_statuses(uri, [row("a", datetime.now(UTC) - age, age.days)])


def lags(uri: str) -> list[int]:
    return sorted(lag or 0 for _, _, lag in stored(uri))


def test_maintenance_removes_days_before_the_retention_and_keeps_the_others(app: App) -> None:
    uri = app.layout.status_history
    fill(uri, RETENTION + 2 * DAY, RETENTION + DAY, RETENTION, DAY, timedelta(), timedelta())
    (maintenance,) = (each for each in app.shared_maintenance() if each.name == "status history")
    draft = maintenance.maintain(timedelta(days=7), dry_run=True)
    assert (draft.outcome, len(lags(uri))) == (MaintenanceOutcome.DRY_RUN, 6)
    done = maintenance.maintain(timedelta(days=7))
    assert lags(uri) == [0, 0, 1, 30]
    # The two newest rows have been compacted, unless midnight has passed between them.
    assert done.replaced in (0, 2)
    assert done.removed == ()
    version = DeltaTable(uri).version()
    maintenance.maintain(timedelta(days=7))
    assert (lags(uri), DeltaTable(uri).version()) == ([0, 0, 1, 30], version)


def test_a_wrong_clock_removes_no_rows(uri: str) -> None:
    fill(uri, RETENTION + 2 * DAY)
    table = DeltaMaintainedTable(uri, remove_expired=lambda now: remove_old_statuses(uri, now))
    with pytest.raises(ClockDiffers):
        table.remove_unreferenced(datetime.now(UTC) + 60 * DAY, DAY, lambda _: False)
    assert lags(uri) == [32]


def append(uri: str) -> None:
    fill(uri, DAY)


def compact(uri: str) -> None:
    """Compact, unless a concurrent commit has removed the files."""
    with suppress(TableConflict):
        Compaction(uri).run()


def remove(uri: str) -> None:
    remove_old_statuses(uri, datetime.now(UTC))


@pytest.mark.parametrize("other", [append, compact, remove])
def test_the_removal_takes_a_concurrent_commit_into_account(
    uri: str, monkeypatch: pytest.MonkeyPatch, other: Callable[[str], None]
) -> None:
    """The other commit happens after the removal has chosen its files."""
    fill(uri, RETENTION + 2 * DAY, RETENTION + 2 * DAY, DAY)
    from tidemark.delta import checked_commits

    commit = checked_commits._commit
    races: list[int] = []

    def commit_late(table: DeltaTable, change: checked_commits.Change) -> None:
        if not races:
            races.append(table.version())
            other(uri)
        commit(table, change)

    monkeypatch.setattr(checked_commits, "_commit", commit_late)
    remove_old_statuses(uri, datetime.now(UTC))
    assert races
    assert lags(uri) == ([1, 1] if other is append else [1])


def test_a_compaction_does_not_bring_removed_rows_back(uri: str) -> None:
    fill(uri, RETENTION + 2 * DAY, RETENTION + 2 * DAY, DAY, DAY)
    compaction = Compaction(uri)
    rewrites = compaction.rewrite()
    remove_old_statuses(uri, datetime.now(UTC))
    compaction.commit(rewrites)
    assert lags(uri) == [1, 1]


def test_appends_beside_removals_and_compactions_lose_no_row(uri: str) -> None:
    fill(uri, *[RETENTION + 2 * DAY] * 3)
    barrier = threading.Barrier(3)

    def repeat(step: Callable[[str], None]) -> None:
        barrier.wait()
        for _ in range(8):
            step(uri)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(repeat, [append, remove, compact]))
    remove(uri)
    assert lags(uri) == [1] * 8
