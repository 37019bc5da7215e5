"""Tests of the control table, in memory and on Delta, and of its documentation page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import TYPE_CHECKING, Any, get_args
from unittest.mock import Mock

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pytest
from arro3.core import Schema
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from tests.conftest import PROJECT
from tests.core.test_events import decisions, history
from tests.support.histories import pipeline_with_history
from tests.support.memory import MemoryControlTable
from tests.support.plans import MemoryPipeline, make_plan, wanted
from tests.support.plans import append_events as append
from tests.support.services import NOW
from tidemark.bronze.ingest.protocols import ControlTable
from tidemark.core.accounting import Landing, RangeCount
from tidemark.core.bookmark import Bookmark
from tidemark.core.errors import ControlTableDamaged
from tidemark.core.event_rows import encode, event_digest
from tidemark.core.events import (
    Adopted,
    ControlEvent,
    EventKind,
    Landed,
    LossAccepted,
    NewEpoch,
    Planned,
    PublicationDecided,
    RecreationAccepted,
    Started,
    Superseded,
    Undone,
    UndoStarted,
)
from tidemark.core.following import EventRows, PlansSince, read_since
from tidemark.core.ledger import CheckedLedger, Ledger
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan, PlanKind, PlanRef
from tidemark.core.publication import PublicationStatus, PublishRule
from tidemark.delta.conditional_writes import PROOF_PREFIX
from tidemark.delta.control_table import COLUMNS, DeltaControlTable
from tidemark.delta.errors import ControlConflict
from tidemark.delta.ledger_summary import read_pipeline_rows
from tidemark.delta.table_io import arrow_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = PROJECT / "docs" / "reference" / "control-table.md"


def started_event(offsets: dict[int, int]) -> Started:
    return Started(
        cluster_id="memory",
        topic="events",
        topic_id="id-1",
        requested_by="test:0",
        offsets=offsets,
    )


def landed_event(ledger: Ledger, plan: Plan, gaps: int = 0) -> Landed:
    """Return the landing of a whole plan with `gaps` gaps in each range."""
    counts = tuple(
        RangeCount(partition=r.partition, start=r.start, end=r.end, records=r.span.size - gaps)
        for r in plan.ranges
    )
    landing = Landing(sequence=plan.sequence, table_version=plan.sequence, counts=counts)
    return Landed(plan=plan, landing=landing, committed=ledger.committed_with(landing.spans()))


# -- both implementations ------------------------------------------------------------------------


@pytest.fixture(params=["memory", "delta"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> ControlTable:
    """Return an empty control table of each implementation."""
    if request.param == "memory":
        return MemoryControlTable()
    return DeltaControlTable(str(tmp_path / "control"))


def test_a_pipeline_without_events_has_an_empty_ledger(table: ControlTable) -> None:
    assert table.ledger("events") == Ledger(pipeline="events")
    append(table, "other", started_event({0: 0}))
    assert table.ledger("events") == Ledger(pipeline="events")


def test_i7_reading_creates_no_table(tmp_path: Path) -> None:
    DeltaControlTable(str(tmp_path / "control")).ledger("events")
    assert list(tmp_path.iterdir()) == []


def test_i4_events_of_every_kind_are_read_as_recorded(table: ControlTable) -> None:
    recorded = [*history(), *decisions()]
    for _, events in recorded:
        append(table, "events", *events)
    assert table.ledger("events") == Ledger.fold("events", recorded)
    kinds = {type(event) for _, events in recorded for event in events}
    assert kinds == set(get_args(ControlEvent))


def test_the_landing_time_of_a_plan_is_that_of_its_first_landed_event(table: ControlTable) -> None:
    """A repair records the landing again a month later."""
    plan = make_plan((0, 0, 5))
    ledger = append(table, "events", started_event({0: 0}), Planned(plan=plan))
    append(table, "events", landed_event(ledger, plan))
    again = landed_event(table.ledger("events"), plan)
    append(table, "events", again, at=NOW + timedelta(days=31))
    assert table.recorded_at("events", EventKind.LANDED) == {1: NOW}
    assert table.recorded_at("events", EventKind.PLANNED) == {1: NOW}
    assert table.recorded_at("others", EventKind.PLANNED) == {}


def test_i7_events_that_a_restore_removed_are_counted_as_missing(tmp_path: Path) -> None:
    uri = str(tmp_path / "control")
    memory, delta = MemoryControlTable(), DeltaControlTable(uri)
    for table in (memory, delta):
        append(table, "events", started_event({0: 0}))
    version = DeltaTable(uri).version()
    for table in (memory, delta):
        append(table, "events", Planned(plan=make_plan((0, 0, 5))))
    DeltaTable(uri).restore(version)
    memory.restore("events", 1)
    ledger = delta.ledger("events")
    assert ledger == memory.ledger("events")
    assert (ledger.event_number, ledger.missing_events) == (2, 1)
    after = append(delta, "events", Planned(plan=make_plan((0, 0, 9))))
    # Another event does not hide the gap.
    assert (after.event_number, after.missing_events) == (3, 1)


def test_a_cached_summary_is_read_again_only_after_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers other processes, other pipelines, a RESTORE and a recreated table."""
    uri = str(tmp_path / "control")
    table, other = DeltaControlTable(uri), DeltaControlTable(uri)
    read = Mock(wraps=read_pipeline_rows)
    monkeypatch.setattr("tidemark.delta.control_table.read_pipeline_rows", read)
    append(other, "events", started_event({0: 0}))
    summaries = [table.summary("events") for _ in range(3)]
    assert (summaries[0].event_number, len(set(map(id, summaries)))) == (1, 1)
    assert table.summary("others") == Ledger(pipeline="others")
    assert read.call_count == 2
    append(other, "events", Planned(plan=make_plan((0, 0, 5))))
    assert sorted(table.summary("events").plans) == [1]
    assert read.call_count == 3
    newest = table.summary("events")
    append(other, "others", started_event({0: 0}))
    assert table.summary("events") is newest
    version = DeltaTable(uri).version()
    DeltaTable(uri).restore(1)
    assert table.summary("events").missing_events == 1
    DeltaTable(uri).restore(version)
    assert table.summary("events") == newest
    version = DeltaTable(uri).version()
    shutil.rmtree(uri)
    while not Path(uri).exists() or DeltaTable(uri).version() < version:
        append(other, "events", started_event({0: 8}))
    assert table.summary("events").starts == {0: 8}


@pytest.fixture
def compact_every(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("tidemark.delta.control_table.COMPACT_EVERY", 5)
    return 5


def test_appending_compacts_only_files_of_its_pipeline(tmp_path: Path, compact_every: int) -> None:
    uri = str(tmp_path / "control")
    table = DeltaControlTable(uri)
    append(table, "other", started_event({0: 0}))
    ledger = append(table, "events", started_event({0: 0}))
    for number in range(2, compact_every + 3):
        assert ledger.event_number == number - 1
        ledger = append(table, "events", Adopted(sequence=number, origin=RunOrigin("test")))
    files = DeltaTable(uri).get_add_actions(flatten=True).column("partition.pipeline")
    assert sorted(files.to_pylist()) == [*["events"] * 3, "other"]
    assert (ledger.event_number, ledger.missing_events) == (compact_every + 2, 0)


def test_an_event_is_recorded_even_if_its_compaction_fails(
    tmp_path: Path, compact_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process compacts at the same time."""
    table = DeltaControlTable(str(tmp_path / "control"))
    refused = CommitFailedError("a concurrent transaction deleted the same data")

    def refuse(*_: object, **__: object) -> dict[str, object]:
        raise refused

    monkeypatch.setattr("deltalake.table.TableOptimizer.compact", refuse)
    for number in range(compact_every):
        append(table, "events", Adopted(sequence=number, origin=RunOrigin("test")))
    assert table.ledger("events").event_number == compact_every


# -- summaries -----------------------------------------------------------------------------------


def state(ledger: Ledger) -> dict[str, Any]:
    """Return all that services read from a ledger."""
    places = {(r.plan.topic_id, p) for r in ledger.plans.values() for p in r.plan.spans()}
    places |= set(ledger.settled.landed)
    return {
        "numbers": (ledger.event_number, ledger.missing_events, ledger.last_sequence),
        "identity": (ledger.cluster_id, ledger.topic, ledger.topic_id),
        "offsets": (
            ledger.starts,
            ledger.start_epochs,
            ledger.landed,
            ledger.accepted_losses,
            ledger.pending,
        ),
        "epoch": (ledger.epoch, ledger.epoch_version),
        "open": ledger.open_plans(),
        "newest": [ledger.chain_head(kind) for kind in PlanKind],
        "positions": [ledger.positions(kind) for kind in PlanKind],
        "totals": (ledger.last_landed_sequence, ledger.records),
        "began": {place: ledger.first_landed_offset(*place, -1) for place in places},
    }


def test_a_summary_adds_up_settled_plans_and_lists_open_ones() -> None:
    pipeline = MemoryPipeline()
    for number in range(3):
        pipeline.produce(0, 10)
        pipeline.run(f"run-{number}")
    pipeline.produce(1, 5)
    pipeline.planner.plan("open")
    summary = pipeline.control.summary("events")
    assert sorted(summary.plans) == [4]
    assert summary.settled.landed == {("id-1", 0): SpanSet((Span(0, 30),))}
    assert summary.settled.requesters == {RunOrigin(f"run-{n}"): n + 1 for n in range(3)}
    assert (summary.records, summary.last_landed_sequence, summary.next_sequence) == (30, 3, 5)


def test_a_summary_counts_each_record_of_a_replaced_plan_once() -> None:
    """Plans of an open or undone replacement are listed."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 10)
    pipeline.run("run")
    request = replace(wanted((0, 2, 5)), replaces=True)
    plan = pipeline.planner.backfill(request, RunOrigin("replace")).plan
    assert plan is not None
    assert sorted(pipeline.control.summary("events").plans) == [1, 2]
    pipeline.ingest.execute(plan.sequence)
    summary = pipeline.control.summary("events")
    assert (sorted(summary.plans), summary.records) == ([], 10)
    assert summary.settled.landed == {("id-1", 0): SpanSet((Span(0, 10),))}
    pipeline.undo.undo(plan.sequence, "ops", "wrong")
    summary = pipeline.control.summary("events")
    assert (sorted(summary.plans), summary.records) == ([1, 2], 7)
    assert summary.landed == {0: SpanSet((Span(0, 2), Span(5, 10)))}


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 2, 3, *range(5, 13)))]
)
def test_a_summary_equals_the_summary_of_the_whole_ledger(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers memory, SQL on Delta, and all rows on Delta, for random histories."""
    pipeline = pipeline_with_history(seed, with_repairs=True)
    memory = pipeline.control
    uri = str(tmp_path / "control")
    delta = DeltaControlTable(uri)
    write_deltalake(
        delta._create(),
        arrow_table(memory.rows, COLUMNS),
        mode="append",
        commit_properties=CommitProperties(
            app_transactions=[Transaction("events", memory.newest["events"])]
        ),
    )
    ledger, summary = memory.ledger("events"), memory.summary("events")
    assert delta.ledger("events") == ledger
    for few, expected in ((-1, summary), (1_000_000, ledger)):
        monkeypatch.setattr("tidemark.delta.ledger_summary.MAX_ROWS_IN_FULL", few)
        assert DeltaControlTable(uri).summary("events") == expected
    assert state(summary) == state(ledger)
    statuses = delta.publication_statuses("events")
    assert list(statuses.items()) == list(memory.publication_statuses("events").items())
    assert len(statuses) > 2
    requesters = {origin for record in ledger.plans.values() for origin in record.requesters}
    assert len(requesters) > 5
    assert delta.throughput("events") == memory.throughput("events")
    assert {each: summary.plan_requested_by(each) for each in requesters} == {
        each: ledger.plan_requested_by(each) for each in requesters
    }
    for origin in requesters:
        assert delta.plans_of("events", origin) == memory.plans_of("events", origin)
    for topic_id, partition in {place for place in summary.settled.landed}:
        for window in (Span(0, 500), Span(3, 9)):
            of_window = ("events", topic_id, partition, window)
            assert delta.settled_counts(*of_window) == memory.settled_counts(*of_window)
    for table in (memory, delta):
        assert {n: table.plan_record("events", n) for n in ledger.plans} == ledger.plans
        assert table.plan_record("events", max(ledger.plans) + 1) is None
        refs = [each.plan.ref for each in ledger.plans.values()]
        assert list(table.plan_records(refs).values()) == list(ledger.plans.values())
    for event in sorted({row["event_number"] for row in memory.rows})[::9]:
        changes = plans_since(delta, event)
        assert changes == plans_since(memory, event)
        assert changes is not None


def plans_since(table: EventRows, event: int) -> PlansSince | None:
    """Return the plans that may have changed since an event, and some others."""
    own = (row for row in table.rows_since("events", event) if row["event_number"] == event)
    bookmark = Bookmark(
        event=event,
        digest=event_digest(own),
        publish=PublishRule.CHECKED,
        pending=SpanSet(),
        decoded=None,
        removed=None,
        changes_quarantine=False,
    )
    others = SpanSet.of([Span(1, 3), Span(5, 6)])
    return read_since(table, "events", bookmark, PublishRule.CHECKED, others)


def test_plans_of_several_pipelines_are_read_at_once(tmp_path: Path) -> None:
    """Plans of different pipelines have the same numbers. A missing plan is left out."""
    control = DeltaControlTable(str(tmp_path / "control"))
    plans = [
        make_plan((0, 5 * n, 5 * n + 5), pipeline=name, sequence=n)
        for name in ("a", "b")
        for n in (1, 2)
    ]
    for plan in plans:
        append(control, plan.pipeline, Planned(plan=plan))
    wanted = [plans[1].ref, plans[2].ref]
    missing = [PlanRef(pipeline=name, sequence=n) for name, n in (("a", 3), ("c", 1))]
    found = control.plan_records([*wanted, *missing])
    assert {ref: record.plan for ref, record in found.items()} == dict(
        zip(wanted, plans[1:3], strict=True)
    )
    assert control.plan_records([]) == {}


@pytest.mark.parametrize("partition", [0, 31, 69])
def test_a_summary_by_sql_finds_a_single_duplicate_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partition: int
) -> None:
    """Two ranges of one partition in a plan are no duplicates."""
    monkeypatch.setattr("tidemark.delta.ledger_summary.MAX_ROWS_IN_FULL", -1)
    uri = str(tmp_path / "control")
    table = DeltaControlTable(uri)
    ranges = [(number, start, start + 5) for number in range(70) for start in (0, 10)]
    ledger = append(table, "events", started_event(dict.fromkeys(range(70), 0)))
    planned = Planned(plan=make_plan(*ranges))
    append(table, "events", planned)
    assert DeltaControlTable(uri).summary("events").plans[1].plan == planned.plan
    rows = encode("events", ledger.event_number + 1, NOW, [planned])
    write_deltalake(uri, arrow_table([rows[2 * partition + 1]], COLUMNS), mode="append")
    with pytest.raises(ControlTableDamaged, match="more than once") as caught:
        DeltaControlTable(uri).summary("events")
    number = ledger.event_number + 1
    assert caught.value.finding.endswith(f"from event {number} to {number}.")


def test_a_summary_of_thousands_of_plans_with_split_ranges_is_read_by_sql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their event numbers form thousands of runs. A flat chain of conditions ended the process."""
    plans = 6_000
    rows = [
        row
        for n in range(1, plans + 1)
        for row in encode(
            "events",
            n,
            NOW,
            [
                Planned(
                    plan=make_plan(
                        (0, 20 * n, 20 * n + 5),
                        *([(0, 20 * n + 9, 20 * n + 12)] * (n % 2)),
                        sequence=n,
                    )
                )
            ],
        )
    ]
    uri = str(tmp_path / "control")
    write_deltalake(DeltaControlTable(uri)._create(), arrow_table(rows, COLUMNS), mode="append")
    table = DeltaTable(uri)
    monkeypatch.setattr("tidemark.delta.ledger_summary.MAX_ROWS_IN_FULL", -1)
    found = read_pipeline_rows(table, "events")
    assert (found.newest, found.present, len(found.others)) == (plans, plans, len(rows))
    again = encode(
        "events", plans - 1, NOW, [Planned(plan=make_plan((0, 1, 2), sequence=plans - 1))]
    )
    write_deltalake(table, arrow_table(again * 2, COLUMNS), mode="append")
    with pytest.raises(ControlTableDamaged, match="more than once"):
        read_pipeline_rows(DeltaTable(uri), "events")


def events_of_plans(pipeline: str, plans: int, partitions: int) -> pa.Table:
    """Return the rows of landed plans with one offset of each partition."""
    plan = make_plan(*((partition, 0, 1) for partition in range(partitions)), sequence=1)
    ledger = Ledger(pipeline=pipeline, starts=dict.fromkeys(range(partitions), 0))
    events: list[ControlEvent] = [Planned(plan=plan), landed_event(ledger, plan)]
    first = [
        row
        for number, event in enumerate(events, start=1)
        for row in encode(pipeline, number, NOW, [event])
    ]
    rows = pa.table(arrow_table(first, COLUMNS)).take(np.tile(np.arange(len(first)), plans))
    later = np.repeat(np.arange(plans), len(first))
    for name, step in {"plan_sequence": 1, "event_number": 2}.items():
        place = rows.schema.get_field_index(name)
        values = pa.array(np.asarray(rows[name]) + later * step)
        rows = rows.set_column(place, rows.schema.field(name), values)
    return rows


_GROWTH = """
import sys
from bench.probes import peak_mb
from tidemark.delta.control_table import DeltaControlTable

table = DeltaControlTable(sys.argv[1])
table.throughput("short")
before = peak_mb()
table.throughput("long")
print(peak_mb() - before)
"""


@pytest.mark.slow
def test_the_newest_runs_are_read_without_the_rows_of_all_plans_in_memory(tmp_path: Path) -> None:
    """400,000 rows: a join over them took 73 MB, for each thread of the console."""
    uri = str(tmp_path / "control")
    rows = [events_of_plans("short", 1, 25), events_of_plans("long", 8_000, 25)]
    write_deltalake(DeltaControlTable(uri)._create(), pa.concat_tables(rows), mode="append")
    command = [sys.executable, "-c", _GROWTH, uri]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 40


def test_threads_that_need_the_same_summary_read_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = DeltaControlTable(str(tmp_path / "control"))
    append(table, "events", started_event({0: 0}))
    waiting, reads = Barrier(2, timeout=5), []

    def read(*arguments: Any) -> Any:
        reads.append(arguments)
        with suppress(BrokenBarrierError):
            # Only a second read would end this before its time.
            waiting.wait(0.3)
        return read_pipeline_rows(*arguments)

    monkeypatch.setattr("tidemark.delta.control_table.read_pipeline_rows", read)
    with ThreadPoolExecutor(2) as pool:
        summaries = [*pool.map(table.summary, ["events", "events"])]
    assert (len(reads), summaries[0] is summaries[1]) == (1, True)


def test_a_table_of_an_older_release_gets_a_new_column(tmp_path: Path) -> None:
    uri = str(tmp_path / "control")
    old = Schema([COLUMNS.field(name) for name in COLUMNS.names if name != "unproven_gaps"])
    DeltaTable.create(uri, schema=old, partition_by=["pipeline"])
    table = DeltaControlTable(uri)
    assert append(table, "events", started_event({0: 0})).event_number == 1
    assert "unproven_gaps" in {field.name for field in DeltaTable(uri).schema().fields}


def test_s2_the_second_of_two_writers_with_one_ledger_is_refused(table: ControlTable) -> None:
    """The refused writer can continue from a new ledger."""
    ledger = append(table, "events", started_event({0: 0}))
    table.append(ledger, [Planned(plan=make_plan((0, 0, 5)))], NOW)
    with pytest.raises(ControlConflict) as caught:
        table.append(ledger, [Planned(plan=make_plan((0, 0, 9)))], NOW)
    assert (caught.value.pipeline, caught.value.event_number) == ("events", 2)
    assert table.ledger("events").plans[1].plan == make_plan((0, 0, 5))
    after = append(table, "events", Adopted(sequence=1, origin=RunOrigin("test:again")))
    assert after.event_number == 3


@pytest.mark.parametrize("number", [0, 1, 2, 4, 40])
def test_appending_to_an_old_or_future_ledger_is_refused(table: ControlTable, number: int) -> None:
    for offset in range(3):
        append(table, "events", started_event({offset: offset}))
    before = table.ledger("events")
    other = CheckedLedger(Ledger(pipeline="events", event_number=number))
    with pytest.raises(ControlConflict):
        table.append(other, [started_event({9: 9})], NOW)
    assert table.ledger("events") == before


def test_s13_events_of_other_pipelines_cause_no_conflict(table: ControlTable) -> None:
    mine = append(table, "mine", started_event({0: 1}))
    append(table, "theirs", started_event({0: 2}))
    append(table, "theirs", started_event({1: 2}))
    table.append(mine, [started_event({1: 1})], NOW)
    assert table.ledger("mine").starts == {0: 1, 1: 1}
    assert table.ledger("theirs").starts == {0: 2, 1: 2}


# -- Delta: the log ------------------------------------------------------------------------------


def commits(uri: Path) -> list[list[dict[str, Any]]]:
    return [
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in sorted((uri / "_delta_log").glob("*.json"))
    ]


def test_every_commit_has_one_file_and_its_event_number_as_transaction(tmp_path: Path) -> None:
    table = DeltaControlTable(str(tmp_path / "control"))
    for offset in range(3):
        append(table, "events", started_event({offset: offset}))
    append(table, "other", started_event({0: 0}))
    transactions = [
        (action["txn"]["appId"], action["txn"]["version"])
        for commit in commits(tmp_path / "control")
        for action in commit
        if "txn" in action and not action["txn"]["appId"].startswith(PROOF_PREFIX)
    ]
    assert transactions == [("events", 1), ("events", 2), ("events", 3), ("other", 1)]
    added = [sum("add" in action for action in commit) for commit in commits(tmp_path / "control")]
    assert added == [0, 1, 1, 1, 1]


def test_i4_rows_cannot_be_deleted(tmp_path: Path) -> None:
    table = DeltaControlTable(str(tmp_path / "control"))
    append(table, "events", started_event({0: 0}))
    with pytest.raises(Exception, match=r"(?i)append"):
        DeltaTable(str(tmp_path / "control")).delete()
    assert table.ledger("events").starts == {0: 0}


# -- Delta: real processes -----------------------------------------------------------------------

WORKER = """
import sys
from datetime import UTC, datetime
from tidemark.delta.control_table import DeltaControlTable
from tidemark.core.events import Started
from tidemark.core.errors import TidemarkError
from tidemark.delta.errors import ControlConflict

uri, rounds, *pipelines = sys.argv[1:]
table = DeltaControlTable(uri)
print("ready", flush=True)
sys.stdin.readline()
conflicts = 0
for _ in range(int(rounds)):
    for pipeline in pipelines:
        while True:
            ledger = table.ledger(pipeline)
            offsets = {0: ledger.starts.get(0, 0) + 1}
            more = Started(
                cluster_id="c", topic="t", topic_id="i", requested_by="w", offsets=offsets
            )
            try:
                table.append(ledger, [more], datetime.now(UTC))
            except ControlConflict:
                conflicts += 1
            else:
                break
print(conflicts, flush=True)
"""


def race(code: str, arguments: Sequence[str], processes: int) -> list[str]:
    """Run the code in processes that start together; return the last line of each."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    try:
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=120) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert [process.returncode for process in running] == [0] * processes, outputs
    return [out.splitlines()[-1] for out, _ in outputs]


@pytest.mark.e2e
def test_s2_no_update_is_lost_between_processes(tmp_path: Path) -> None:
    """I2. Five processes increment offsets of two pipelines."""
    uri = tmp_path / "control"
    outputs = race(WORKER, [str(uri), "5", "first", "second"], processes=5)
    table = DeltaControlTable(str(uri))
    for pipeline in ("first", "second"):
        ledger = table.ledger(pipeline)
        assert ledger.event_number == 25
        assert ledger.starts == {0: 25}
    rows = pa.table(DeltaTable(str(uri)).scan(columns=["pipeline", "event_number"])).to_pylist()
    numbers = [(row["pipeline"], row["event_number"]) for row in rows]
    assert sorted(numbers) == sorted(
        (pipeline, number) for pipeline in ("first", "second") for number in range(1, 26)
    )
    # Without conflicts the processes did not race.
    assert sum(int(conflicts) for conflicts in outputs) > 0


CREATOR = """
import os, sys, time
from datetime import UTC, datetime
from pathlib import Path
from tidemark.delta.control_table import DeltaControlTable
from tidemark.core.events import Started
from tidemark.core.ledger import Ledger

folder, rounds, processes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
pipeline = f"p{os.getpid()}"
first = Started(cluster_id="c", topic="t", topic_id="i", requested_by="w", offsets={0: 0})
print("ready", flush=True)
sys.stdin.readline()
for round in range(rounds):
    table = DeltaControlTable(str(folder / f"table-{round}"))
    (folder / f"at-{round}-{os.getpid()}").touch()
    deadline = time.monotonic() + 180
    while len(list(folder.glob(f"at-{round}-*"))) < processes:
        assert time.monotonic() < deadline
    table.append(Ledger(pipeline=pipeline), [first], datetime.now(UTC))
print("done", flush=True)
"""


@pytest.mark.e2e
def test_concurrent_processes_create_one_table(tmp_path: Path) -> None:
    rounds, processes = 20, 4
    race(CREATOR, [str(tmp_path), str(rounds), str(processes)], processes)
    for number in range(rounds):
        log = commits(tmp_path / f"table-{number}")
        assert [any("metaData" in action for action in commit) for commit in log] == [
            True,
            *[False] * processes,
        ]


@pytest.mark.e2e
def test_processes_that_read_the_table_exit_with_code_zero(tmp_path: Path) -> None:
    """Some ways to read a Delta table abort processes at exit."""
    uri = str(tmp_path / "control")
    table = DeltaControlTable(uri)
    for offset in range(20):
        append(table, "events", started_event({offset: offset}))
    code = (
        "import sys\n"
        "from tidemark.delta.control_table import DeltaControlTable\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "print(DeltaControlTable(sys.argv[1]).ledger('events').event_number)\n"
    )
    assert race(code, [uri], processes=4) == ["20"] * 4


# -- Delta: other readers and docs/reference/control-table.md ------------------------------------


@pytest.fixture
def documented(tmp_path: Path) -> str:
    """Return a table with all kinds of events in several pipelines."""
    uri = str(tmp_path / "control")
    table = DeltaControlTable(uri)
    clock = iter(NOW + timedelta(minutes=minute) for minute in range(100))

    def record(pipeline: str, *events: ControlEvent) -> None:
        append(table, pipeline, *events, at=next(clock))

    def plan(*ranges: tuple[int, int, int], sequence: int, **changes: Any) -> Plan:
        return make_plan(*ranges, sequence=sequence, pipeline="prices", **changes)

    first = plan((0, 5, 10), (1, 0, 4), sequence=1)
    record("prices", started_event({0: 5, 1: 0}), Planned(plan=first))
    record("prices", landed_event(table.ledger("prices"), first, gaps=1))
    record("prices", Planned(plan=plan((0, 1, 2), (0, 3, 5), sequence=2, kind=PlanKind.BACKFILL)))
    second = table.ledger("prices").plans[2].plan
    record("prices", landed_event(table.ledger("prices"), second))
    record("prices", Planned(plan=plan((0, 10, 12), sequence=3)))
    record("prices", Adopted(sequence=3, origin=RunOrigin("test:later")))
    record("orders", started_event({0: 0}))
    record_decisions(table, lambda: next(clock))
    replace_twice(table, lambda: next(clock))
    decided = PublicationDecided(
        sequence=1,
        status=PublicationStatus.PUBLISHED,
        topic_id="id-1",
        spans={0: SpanSet.of([Span(5, 10)])},
    )
    rejected = PublicationStatus.REJECTED
    record("prices", decided)
    record("prices", replace(decided, status=rejected, decided_by="cli:ann:1", reason="because"))
    return uri


def record_decisions(table: DeltaControlTable, now: Callable[[], datetime]) -> None:
    """Record pipeline `clicks`: two topics, a rewound plan, an accepted loss, an open undo."""
    decision: dict[str, Any] = {"requested_by": "cli:ann:1", "reason": "because"}

    def record(*events: ControlEvent) -> None:
        append(table, "clicks", *events, at=now())

    def land(sequence: int, *ranges: tuple[int, int, int], **changes: Any) -> None:
        plan = make_plan(*ranges, sequence=sequence, pipeline="clicks", **changes)
        record(Planned(plan=plan))
        record(landed_event(table.ledger("clicks"), plan))

    record(replace(started_event({0: 0}), reason="started at offsets given by hand"))
    land(1, (0, 0, 50))
    other = {"cluster_id": "memory", "topic": "events", "topic_id": "id-2"}
    record(RecreationAccepted(**other, offsets={0: 3}, **decision))
    land(2, (0, 3, 6), topic_id="id-2")
    land(3, (0, 6, 9), topic_id="id-2")
    record(
        Undone(sequence=3, **decision),
        NewEpoch(epoch=2, table_version=9, sequence=3, committed={0: 6}, **decision),
    )
    lost = {0: SpanSet((Span(6, 7),))}
    record(
        LossAccepted(topic="events", topic_id="id-2", lost=lost, committed={0: 7}, **decision),
    )
    land(4, (0, 8, 9), topic_id="id-2")
    land(5, (0, 7, 8), topic_id="id-2")
    record(UndoStarted(sequence=5, **decision, committed={0: 7}))


def replace_twice(table: DeltaControlTable, now: Callable[[], datetime]) -> None:
    """Record pipeline `quotes`: a range replaced twice; the second replacement is being undone."""

    def record(*events: ControlEvent) -> None:
        append(table, "quotes", *events, at=now())

    def land(
        sequence: int, span: tuple[int, int, int], left: Mapping[int, list[RangeCount]]
    ) -> None:
        plan = make_plan(span, sequence=sequence, pipeline="quotes", replaces=bool(left))
        record(
            Planned(plan=plan),
            *(
                Superseded(
                    sequence=older,
                    by=sequence,
                    topic_id="id-1",
                    counts=tuple(counts),
                )
                for older, counts in left.items()
            ),
        )
        record(landed_event(table.ledger("quotes"), plan))

    def count(start: int, end: int) -> RangeCount:
        return RangeCount(partition=0, start=start, end=end, records=end - start)

    record(started_event({0: 0}))
    land(1, (0, 0, 10), {})
    land(2, (0, 4, 6), {1: [count(0, 4), count(6, 10)]})
    land(3, (0, 5, 8), {1: [count(0, 4), count(8, 10)], 2: [count(4, 5)]})
    undone = UndoStarted(sequence=3, requested_by="cli:ann:1", reason="because", committed={0: 5})
    record(undone)


def queries() -> dict[str, str]:
    """Return every query of the page that reads the view, by its heading."""
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found = {}
    for section in sections:
        title = section.splitlines()[0]
        blocks = re.findall(r"```sql\n(.*?)```", section, flags=re.DOTALL)
        if title != "Opening it" and blocks:
            (found[title],) = (block.strip().removesuffix(";") for block in blocks)
    return found


AT = [NOW + timedelta(minutes=minute) for minute in range(32)]
ANSWERS: dict[str, list[tuple[Any, ...]]] = {
    "What is the committed offset of each partition?": [
        ("clicks", "events", 0, 7),
        ("orders", "events", 0, 0),
        ("prices", "events", 0, 10),
        ("prices", "events", 1, 4),
        ("quotes", "events", 0, 5),
    ],
    "What did a plan land?": [(0, 5, 10, 4, 1, 1, 10), (1, 0, 4, 3, 1, 1, 4)],
    "Which ranges does each plan hold now?": [],
    "Which offsets are not covered?": [
        ("clicks", 0, 7, 8),
        ("prices", 0, 2, 3),
        ("quotes", 0, 5, 8),
    ],
    "Which plans are open?": [("prices", 3, "live", "test:3", AT[4])],
    "How far behind was each run?": [
        ("clicks", 0, AT[8], 50, 0, 0),
        ("clicks", 0, AT[11], 3, 0, 0),
        ("clicks", 0, AT[13], 3, 0, 0),
        ("clicks", 0, AT[17], 1, 0, 0),
        ("clicks", 0, AT[19], 1, 0, 0),
        ("prices", 0, AT[0], 5, 0, 0),
        ("prices", 0, AT[4], 2, 0, 0),
        ("prices", 1, AT[0], 4, 0, 0),
        ("quotes", 0, AT[23], 10, 0, 0),
        ("quotes", 0, AT[25], 2, 0, 0),
        ("quotes", 0, AT[27], 3, 0, 0),
    ],
    "How much did each run land, and when?": [
        ("clicks", 1, AT[8], AT[9], 50, 0, None),
        ("clicks", 2, AT[11], AT[12], 3, 0, None),
        ("clicks", 3, AT[13], AT[14], 3, 0, AT[15]),
        ("clicks", 4, AT[17], AT[18], 1, 0, None),
        ("clicks", 5, AT[19], AT[20], 1, 0, None),
        ("prices", 1, AT[0], AT[1], 7, 2, None),
        ("prices", 2, AT[2], AT[3], 3, 0, None),
        ("prices", 3, AT[4], None, None, None, None),
        ("quotes", 1, AT[23], AT[24], 10, 0, None),
        ("quotes", 2, AT[25], AT[26], 2, 0, None),
        ("quotes", 3, AT[27], AT[28], 3, 0, None),
    ],
    "Which plan landed a record?": [("id-1", 1, "live", "test:1")],
    "What did operators decide?": [
        (
            AT[7],
            "clicks",
            "started",
            0,
            None,
            None,
            None,
            None,
            "test:0",
            "started at offsets given by hand",
        ),
        (
            AT[10],
            "clicks",
            "recreation_accepted",
            0,
            None,
            None,
            None,
            None,
            "cli:ann:1",
            "because",
        ),
        (AT[15], "clicks", "new_epoch", 0, None, None, 3, None, "cli:ann:1", "because"),
        (AT[15], "clicks", "undone", None, None, None, 3, None, "cli:ann:1", "because"),
        (AT[16], "clicks", "loss_accepted", 0, 6, 7, None, None, "cli:ann:1", "because"),
        (AT[21], "clicks", "undo_started", 0, None, None, 5, None, "cli:ann:1", "because"),
        (AT[29], "quotes", "undo_started", 0, None, None, 3, None, "cli:ann:1", "because"),
        (
            AT[31],
            "prices",
            "publication_decided",
            0,
            5,
            10,
            1,
            "rejected",
            "cli:ann:1",
            "because",
        ),
    ],
    "Which runs worked on each plan?": [
        ("clicks", 1, "planned", "test:1"),
        ("clicks", 2, "planned", "test:2"),
        ("clicks", 3, "planned", "test:3"),
        ("clicks", 4, "planned", "test:4"),
        ("clicks", 5, "planned", "test:5"),
        ("prices", 1, "planned", "test:1"),
        ("prices", 2, "planned", "test:2"),
        ("prices", 3, "planned", "test:3"),
        ("prices", 3, "adopted", "test:later"),
        ("quotes", 1, "planned", "test:1"),
        ("quotes", 2, "planned", "test:2"),
        ("quotes", 3, "planned", "test:3"),
    ],
}


def plain(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return rows as tuples with times in UTC; Spark returns local times without a zone."""
    return [tuple(v.astimezone(UTC) if isinstance(v, datetime) else v for v in row) for row in rows]


def answers_of(
    execute: Callable[[str], Sequence[Sequence[Any]]],
) -> dict[str, list[tuple[Any, ...]]]:
    return {title: plain(execute(sql)) for title, sql in queries().items()}


@pytest.mark.slow
def test_the_view_of_the_page_equals_the_ledger(tmp_path: Path) -> None:
    (view,) = (sql for title, sql in queries().items() if "VIEW held" in sql)
    for seed in range(12):
        pipeline = pipeline_with_history(seed)
        offset_ranges = pa.table(arrow_table(pipeline.control.rows, COLUMNS))
        with duckdb.connect() as connection:
            connection.register("offset_ranges", offset_ranges)
            connection.execute(view)
            rows = connection.execute(
                "SELECT plan_sequence, partition, start_offset, end_offset, records FROM held"
            ).fetchall()
        assert sorted(rows) == sorted(
            (number, count.partition, count.start, count.end, count.records)
            for number, record in pipeline.ledger.plans.items()
            if record.held_now
            for count in record.held_now.counts
        )


@pytest.mark.slow
def test_the_queries_of_the_page_run_in_duckdb(documented: str) -> None:
    offset_ranges = pa.table(DeltaTable(documented).scan())
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("offset_ranges", offset_ranges)
        assert answers_of(lambda sql: connection.execute(sql).fetchall()) == ANSWERS


@pytest.mark.spark
def test_the_queries_of_the_page_run_in_spark(documented: str, spark: SparkSession) -> None:
    """The table is opened as the page describes."""
    opening = re.search(
        r"```sql\n(-- Spark\nCREATE OR REPLACE TEMPORARY.*?);\n```", PAGE.read_text(), re.S
    )
    assert opening is not None
    spark.sql(opening[1].replace(".tidemark/lakehouse/control/offset_ranges", documented))
    # Otherwise each query reads every file of the table several times.
    spark.catalog.cacheTable("offset_ranges")
    try:
        assert answers_of(lambda sql: spark.sql(sql).collect()) == ANSWERS
    finally:
        spark.catalog.uncacheTable("offset_ranges")
        spark.catalog.dropTempView("held")
        spark.catalog.dropTempView("offset_ranges")


def test_the_page_lists_every_column_in_order() -> None:
    page = PAGE.read_text(encoding="utf-8")
    table = page.partition("| column | type | meaning |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE) == COLUMNS.names


def test_the_page_lists_every_event_in_order() -> None:
    page = PAGE.read_text(encoding="utf-8")
    table = page.partition("| `event` | what happened |")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)
    assert listed == [kind.value for kind in EventKind]


@pytest.mark.spark
def test_spark_polars_duckdb_and_delta_rs_read_the_same(
    documented: str, spark: SparkSession
) -> None:
    scanned = pa.table(DeltaTable(documented).scan()).select(COLUMNS.names)
    by_delta_rs = [tuple(row.values()) for row in scanned.to_pylist()]
    by_polars = polars.read_delta(documented).select(COLUMNS.names).rows()
    by_spark = spark.read.format("delta").load(documented).select(*COLUMNS.names).collect()
    with duckdb.connect() as connection:
        connection.register("scanned", scanned)
        by_duckdb = connection.execute("SELECT * FROM scanned").fetchall()

    def ordered(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
        return sorted(plain(rows), key=repr)

    assert len(by_delta_rs) == 44
    assert ordered(by_delta_rs) == ordered(by_polars)
    assert ordered(by_delta_rs) == ordered(by_spark)
    assert ordered(by_delta_rs) == ordered(by_duckdb)
