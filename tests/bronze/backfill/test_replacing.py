"""Tests of replacements: one commit, each record once, and a consistent control table.

The tests use real Delta tables and a log in memory.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from tests.support.file_lake import FileLake
from tests.support.plans import UNCOMPARED, MemoryPipeline, around_removal, wanted
from tidemark.bronze.backfill.selection import OffsetRanges
from tidemark.bronze.ingest.errors import PlanCancelled, RowsChanged
from tidemark.bronze.ingest.planner import PlanOutcome
from tidemark.bronze.repair.errors import NothingToDo
from tidemark.core.datafile import DataFile
from tidemark.core.errors import InvalidSelection, PlanCannotLand, TableBehindLedger, TransientError
from tidemark.core.offsets import SpanSet
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan, PlanKind
from tidemark.delta.conditional_writes import prove_conditional_writes
from tidemark.delta.maintained_table import DeltaMaintainedTable
from tidemark.ops.maintenance.service import finished_plans
from tidemark.ops.report.errors import TableDiffers
from tidemark.quality.check_results_table import DeltaCheckResults
from tidemark.quality.checker import BatchChecker
from tidemark.quality.data_docs import DataDocs
from tidemark.quality.service import Quality

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def landed_tables(tmp_path_factory: pytest.TempPathFactory) -> FileLake:
    """Plan 1 landed partition 0 up to 10, plan 2 partition 0 up to 15 and partition 1 up to 5."""
    lake = FileLake(root=tmp_path_factory.mktemp("landed"))
    lake.run(10)
    lake.kafka.produce("events", 1, 5, timestamp_ms=1_000)
    lake.run(5)
    return lake


@pytest.fixture
def lake(landed_tables: FileLake, tmp_path: Path) -> FileLake:
    """Return a copy of the landed tables for one test."""
    shutil.copytree(landed_tables.root, tmp_path, dirs_exist_ok=True)
    lake = FileLake(root=tmp_path)
    lake.kafka = deepcopy(landed_tables.kafka)
    # The copy is another location. This commit records that its storage has been tested.
    DeltaTable(lake.uri).create_write_transaction(
        [],
        mode="append",
        schema=DeltaTable(lake.uri).schema(),
        commit_properties=CommitProperties(
            app_transactions=[prove_conditional_writes(str(lake.uri))],
            custom_metadata={"userMetadata": '{"compacted": 0}'},
        ),
    )
    return lake


def rows_by_plan(lake: FileLake) -> dict[int, list[tuple[int, int]]]:
    """Return partition and offset of every row in the data table, by plan number."""
    found: dict[int, list[tuple[int, int]]] = {}
    for row in pa.table(DeltaTable(lake.uri).scan()).to_pylist():
        found.setdefault(row["plan_sequence"], []).append((row["partition"], row["offset"]))
    return {plan: sorted(rows) for plan, rows in sorted(found.items())}


def ledger_by_plan(lake: FileLake) -> dict[int, list[tuple[int, int]]]:
    """Return the same from the ledger, which must equal the summary; these logs have no gaps."""
    ledger, summary = lake.control.ledger("events"), lake.control.summary("events")
    assert (summary.landed, summary.pending) == (ledger.landed, ledger.pending)
    assert (summary.records, summary.last_sequence) == (ledger.records, ledger.last_sequence)
    for kind in PlanKind:
        assert summary.positions(kind) == ledger.positions(kind)
        assert summary.chain_head(kind) == ledger.chain_head(kind)
    return {
        number: places
        for number, record in ledger.plans.items()
        if record.held_now and (places := _places(record.held_now.spans()))
    }


def _places(spans: Mapping[int, SpanSet]) -> list[tuple[int, int]]:
    return [
        (p, o) for p, some in spans.items() for span in some for o in range(span.start, span.end)
    ]


def places(partition: int, *offsets: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in offsets]


EVERYTHING = places(0, *range(15)) + places(1, *range(5))

# -- effects -------------------------------------------------------------------------------------


def test_a_replacement_swaps_old_and_new_rows_in_one_commit(lake: FileLake) -> None:
    before = DeltaTable(lake.uri).version()
    plan = lake.land_again((0, 4, 6), (0, 8, 12))
    assert DeltaTable(lake.uri).version() == before + 1
    assert lake.rows(before) == lake.rows() == EVERYTHING
    assert rows_by_plan(lake) == {
        1: places(0, 0, 1, 2, 3, 6, 7),
        2: places(0, 12, 13, 14) + places(1, *range(5)),
        plan.sequence: places(0, 4, 5, 8, 9, 10, 11),
    }
    assert ledger_by_plan(lake) == rows_by_plan(lake)
    assert lake.verified() == [(15, 15), (5, 5)]


def test_i3_a_replacement_does_not_move_committed_offsets(lake: FileLake) -> None:
    lake.land_again((0, 0, 15))
    assert lake.control.summary("events").committed_offset(0) == 15
    newest = lake.run(3)
    assert [(r.partition, r.start, r.end) for r in newest.ranges] == [(0, 15, 18)]
    assert lake.verified() == [(18, 18), (5, 5)]


def test_a_replacement_also_lands_missing_offsets(lake: FileLake) -> None:
    lake.kafka.produce("events", 1, 2, timestamp_ms=1_000)
    plan = lake.land_again((1, 3, 7))
    assert rows_by_plan(lake)[plan.sequence] == places(1, 3, 4, 5, 6)
    assert lake.control.summary("events").committed_offset(1) == 7
    assert lake.planner.plan("run").outcome is PlanOutcome.NOTHING
    assert lake.verified() == [(15, 15), (7, 7)]


def test_a_replacement_of_unread_offsets_replaces_nothing(lake: FileLake) -> None:
    lake.kafka.produce("events", 1, 2, timestamp_ms=1_000)
    assert not lake.plan_replacing((1, 5, 7)).replaces


def test_a_replacement_can_be_replaced(lake: FileLake) -> None:
    lake.land_again((0, 2, 8))
    lake.land_again((0, 6, 9))
    assert rows_by_plan(lake)[3] == places(0, 2, 3, 4, 5)
    assert rows_by_plan(lake)[4] == places(0, 6, 7, 8)
    assert ledger_by_plan(lake) == rows_by_plan(lake)
    assert lake.verified() == [(15, 15), (5, 5)]


def test_a_replacement_corrects_changed_rows(lake: FileLake) -> None:
    table = DeltaTable(lake.uri)
    table.delete("partition = 0 AND offset = 3")
    DeltaTable(lake.uri).update(
        updates={"value": "arrow_cast('x', 'Binary')"}, predicate="offset = 5"
    )
    with pytest.raises(TableDiffers):
        lake.verified()
    lake.land_again((0, 0, 10))
    assert lake.verified()[0] == (15, 15)


def test_replaced_rows_have_the_columns_of_a_landing(lake: FileLake) -> None:
    """All columns except `plan_sequence` and `ingested_at` keep their types and values."""
    before = _by_place(lake)
    lake.land_again((0, 0, 15), (1, 0, 5))
    after = _by_place(lake)
    assert after.schema == before.schema
    assert after.to_pylist() == before.to_pylist()


def _by_place(lake: FileLake) -> pa.Table:
    rows = pa.table(DeltaTable(lake.uri).scan()).drop_columns(("plan_sequence", "ingested_at"))
    in_order = sorted(rows.to_pylist(), key=lambda row: (row["partition"], row["offset"]))
    return pa.Table.from_pylist(in_order, rows.schema)


def test_one_replacement_covers_hundreds_of_ranges(tmp_path: Path) -> None:
    """The predicate of the commit has one condition for each range."""
    lake = FileLake(root=tmp_path)
    lake.run(800)
    every_second = [(0, offset, offset + 1) for offset in range(0, 800, 2)]
    plan = lake.land_again(*every_second)
    assert len(rows_by_plan(lake)[plan.sequence]) == len(rows_by_plan(lake)[1]) == 400
    assert ledger_by_plan(lake) == rows_by_plan(lake)
    assert lake.verified()[0] == (800, 800)


def test_a_replacement_accepts_gaps(lake: FileLake) -> None:
    """Transaction markers have no row before and after the replacement."""
    lake.kafka.add_gaps("events", 0, 2)
    lake.run(2)
    plan = lake.land_again((0, 13, 19))
    landing = lake.control.ledger("events").plans[plan.sequence].held_now
    assert landing is not None
    assert (landing.records, landing.gaps) == (4, 2)
    assert lake.verified()[0] == (17, 17)


def test_added_columns_are_null_in_replaced_rows(lake: FileLake) -> None:
    DeltaTable(lake.uri).alter.add_columns([Field("note", PrimitiveType("string"))])
    lake.land_again((0, 4, 12))
    rows = pa.table(DeltaTable(lake.uri).scan())
    assert rows["note"].null_count == rows.num_rows == 20
    assert lake.verified() == [(15, 15), (5, 5)]


# -- refusals ------------------------------------------------------------------------------------


def test_a_changed_range_can_be_replaced_only_as_a_whole(lake: FileLake) -> None:
    """The remaining counts of a changed range that is replaced in part are unknown."""
    DeltaTable(lake.uri).delete("partition = 0 AND offset = 3")
    before = lake.control.summary("events").event_number
    with pytest.raises(RowsChanged) as refused:
        lake.plan_replacing((0, 6, 12))
    assert (refused.value.sequence, refused.value.start, refused.value.end) == (1, 0, 10)
    assert lake.control.summary("events").event_number == before
    lake.land_again((0, 0, 10))
    assert lake.verified()[0] == (15, 15)


def test_a_replacement_removes_duplicate_rows(lake: FileLake) -> None:
    """Replacing a part of their range is refused, as for any changed range."""
    rows = pa.table(DeltaTable(lake.uri).scan(predicate="plan_sequence = 1").read_all())
    write_deltalake(lake.uri, rows, mode="append")
    with pytest.raises(RowsChanged) as refused:
        lake.plan_replacing((0, 6, 12))
    assert (refused.value.recorded, refused.value.rows) == (10, 20)
    lake.land_again((0, 0, 10))
    assert lake.verified()[0] == (15, 15)


def test_rows_without_a_record_in_kafka_are_not_replaced(lake: FileLake) -> None:
    """Compaction removed two records after the landing."""
    before = DeltaTable(lake.uri).version()
    plan = lake.plan_replacing((0, 0, 10))
    del lake.kafka.topics["events"][0].records[4]
    del lake.kafka.topics["events"][0].records[7]
    with pytest.raises(PlanCannotLand, match="no longer shows") as refused:
        lake.ingest.execute(plan.sequence)
    assert "at 0:4-5, 0:7-8." in refused.value.cause
    assert DeltaTable(lake.uri).version() == before
    lake.abandon.abandon(plan.sequence, "ops", "compacted")
    with pytest.raises(PlanCancelled):
        lake.ingest.execute(plan.sequence)
    assert rows_by_plan(lake) == ledger_by_plan(lake)
    assert lake.rows() == EVERYTHING


def test_replacing_offsets_deleted_in_kafka_is_refused_or_skips_them(lake: FileLake) -> None:
    lake.kafka.delete_records("events", 0, 3)
    with pytest.raises(InvalidSelection, match="low watermark is 3"):
        lake.plan_replacing((0, 0, 10))
    request = replace(wanted((0, 0, 10)), replaces=True, readable_only=True)
    plan = lake.planner.backfill(request, RunOrigin("the rest")).plan
    assert plan is not None
    lake.ingest.execute(plan.sequence)
    assert rows_by_plan(lake)[1] == places(0, 0, 1, 2)
    assert rows_by_plan(lake) == ledger_by_plan(lake)


def test_rows_of_another_incarnation_do_not_prevent_a_replacement(lake: FileLake) -> None:
    lake.kafka.create("events", 2, "id-2")
    lake.kafka.produce("events", 0, 4, timestamp_ms=1_000)
    lake.decisions.accept_recreation("ops", "recreated")
    lake.run(1)
    lake.land_again((0, 0, 5))
    assert sorted(lake.rows()) == sorted([*EVERYTHING, *places(0, *range(5))])
    assert lake.verified()[0] == (5, 5)


# -- replaced plans -----------------------------------------------------------------------------


def test_executing_a_replaced_plan_returns_its_original_landing(lake: FileLake) -> None:
    lake.land_again((0, 4, 12))
    again = lake.ingest.execute(1)
    assert (again.wrote, again.landing.records) == (False, 10)


@pytest.mark.spark
def test_checks_of_a_replaced_plan_read_its_version(lake: FileLake, spark: SparkSession) -> None:
    lake.land_again((0, 4, 12))
    home = lake.root / "quality"
    checker = BatchChecker(
        spark=lambda: spark,
        suites=home,
        docs=DataDocs(home),
        results=DeltaCheckResults(str(lake.root / "results")),
    )
    quality = Quality(
        spec=lake.spec,
        data_table=str(lake.uri),
        ports=lake.pipeline.bronze.ports,
        checker=checker,
    )
    for plan in (1, 2, 3):
        report = quality.check(plan)
        assert not report.failed_critical()
        (records,) = (result for result in report.results if result.check == "records")
        record = lake.ledger.plans[plan]
        assert record.held_now is not None
        assert records.value == record.held_now.records
    assert set(lake.control.publication_statuses("events").values()) == {"published"}


# -- chunks --------------------------------------------------------------------------------------


def test_a_replacing_backfill_is_done_when_its_own_plans_have_landed(lake: FileLake) -> None:
    """Earlier landings of the offsets do not count, and a chunk is replaced once."""
    everything = OffsetRanges(spans=wanted((0, 0, 15), (1, 0, 5)).spans)
    backfills = lake.backfills
    preview = backfills.preview(everything, 10, readable_only=False, replaces=True)
    assert preview.offsets == 20
    assert preview.as_record()["replaced"] == [[0, 0, 15], [1, 0, 5]]
    assert (preview.rewritten, preview.plans) == (3, {1: 10, 2: 10})
    assert "rewrites 3 files" in preview.explain()
    assert "1 (10), 2 (10)" in preview.explain()
    with pytest.raises(InvalidSelection):
        backfills.request(preview, "ops", approved=False)
    chunks = backfills.request(preview, "ops", approved=False, reason="a test")
    assert chunks == 2
    assert [each.done for each in backfills.progress("ops")] == [False, False]
    for number in (1, 2, 2, 1):
        planning = backfills.plan_chunk("ops", number)
        assert planning.plan is not None
        lake.ingest.execute(planning.plan.sequence)
    assert [each.done for each in backfills.progress("ops")] == [True, True]
    assert sorted(rows_by_plan(lake)) == [3, 4]
    assert lake.verified() == [(15, 15), (5, 5)]


def test_a_preview_of_a_backfill_states_that_no_file_is_rewritten(lake: FileLake) -> None:
    lake.kafka.produce("events", 0, 5, timestamp_ms=1_000)
    offsets = OffsetRanges(spans=wanted((0, 10, 20)).spans)
    preview = lake.backfills.preview(offsets, None, readable_only=False)
    assert (preview.offsets, preview.rewritten) == (5, 0)
    assert preview.explain().endswith("; no file is rewritten")
    beyond = OffsetRanges(spans=wanted((0, 15, 20)).spans)
    preview = lake.backfills.preview(beyond, None, readable_only=False, replaces=True)
    assert preview.explain().endswith("; none of them has landed, no file is rewritten")


def test_a_preview_of_landed_offsets_alone_names_the_option_that_reads_them(lake: FileLake) -> None:
    """Not if Kafka has deleted the offsets, or if the option is given."""
    offsets = OffsetRanges(spans=wanted((0, 0, 5)).spans)
    nothing = "nothing to do: no selected offset is left to land"
    preview = lake.backfills.preview(offsets, None, readable_only=True)
    assert preview.explain().endswith(f"{nothing}; `--replace` reads landed offsets again")
    lake.kafka.delete_records("events", 0, before=5)
    preview = lake.backfills.preview(offsets, None, readable_only=True, replaces=True)
    assert preview.explain().endswith(nothing)
    lake.kafka.produce("events", 0, 5, timestamp_ms=1_000)
    lake.kafka.delete_records("events", 0, before=20)
    deleted = OffsetRanges(spans=wanted((0, 15, 20)).spans)
    preview = lake.backfills.preview(deleted, None, readable_only=True)
    assert preview.explain().endswith(nothing)


def test_a_preview_raises_the_errors_of_its_chunks(lake: FileLake) -> None:
    """The fix in the error contains a sufficient chunk size."""
    DeltaTable(lake.uri).delete("partition = 0 AND offset = 3")
    selection = OffsetRanges(spans=wanted((0, 0, 10)).spans)
    with pytest.raises(RowsChanged) as refused:
        lake.backfills.preview(selection, 5, readable_only=False, replaces=True)
    assert "--offsets 0:0-10 --chunk 10 --replace" in str(refused.value)
    preview = lake.backfills.preview(selection, 10, readable_only=False, replaces=True)
    assert len(preview.chunks) == 1


def test_a_preview_counts_a_landed_replacement_that_is_not_recorded(lake: FileLake) -> None:
    request = replace(wanted((0, 3, 8)), replaces=True)
    plan = lake.planner.backfill(request, RunOrigin("killed")).plan
    assert plan is not None
    lake.land(plan)
    again = OffsetRanges(spans=wanted((0, 3, 8)).spans)
    preview = lake.backfills.preview(again, None, readable_only=False, replaces=True)
    assert preview.plans == {plan.sequence: 5}
    partly = OffsetRanges(spans=wanted((0, 1, 5)).spans)
    preview = lake.backfills.preview(partly, None, readable_only=False, replaces=True)
    assert preview.plans == {1: 2, plan.sequence: 2}
    assert [record.plan for record in lake.ledger.open_plans()] == [plan]
    lake.land_again((0, 1, 5))
    assert lake.verified() == [(15, 15), (5, 5)]


# -- undo, RESTORE, rebuild ----------------------------------------------------------------------


def test_offsets_of_an_undone_replacement_are_read_again(lake: FileLake) -> None:
    plan = lake.land_again((0, 4, 12))
    lake.undo.undo(plan.sequence, "ops", "wrong")
    assert rows_by_plan(lake) == ledger_by_plan(lake)
    assert lake.control.summary("events").committed_offset(0) == 4
    again = lake.plan(0)
    assert [(r.start, r.end) for r in again.ranges] == [(4, 12)]
    lake.ingest.execute(again.sequence)
    assert lake.verified() == [(15, 15), (5, 5)]


def test_undoing_a_plan_keeps_rows_of_its_replacement(lake: FileLake) -> None:
    lake.land_again((0, 4, 12))
    lake.undo.undo(1, "ops", "wrong")
    assert rows_by_plan(lake) == ledger_by_plan(lake)
    again = lake.plan(0)
    assert [(r.start, r.end) for r in again.ranges] == [(0, 4)]
    lake.ingest.execute(again.sequence)
    assert lake.verified() == [(15, 15), (5, 5)]


def test_a_rewind_after_a_restore_returns_rows_to_the_replaced_plans(lake: FileLake) -> None:
    before = DeltaTable(lake.uri).version()
    lake.land_again((0, 4, 12))
    lake.land_again((0, 0, 6))
    DeltaTable(lake.uri).restore(before)
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        lake.planner.plan("run")
    lake.repair.rewind("ops", "restored")
    assert rows_by_plan(lake) == ledger_by_plan(lake)
    assert sorted(rows_by_plan(lake)) == [1, 2]
    assert lake.planner.plan("run").outcome is PlanOutcome.NOTHING
    assert lake.verified() == [(15, 15), (5, 5)]


def test_a_rewind_after_a_restore_between_replacements_keeps_the_first(lake: FileLake) -> None:
    lake.land_again((0, 4, 12))
    between = DeltaTable(lake.uri).version()
    lake.land_again((0, 0, 6))
    DeltaTable(lake.uri).restore(between)
    lake.repair.rewind("ops", "restored")
    assert rows_by_plan(lake) == ledger_by_plan(lake)
    assert sorted(rows_by_plan(lake)) == [1, 2, 3]
    assert lake.verified() == [(15, 15), (5, 5)]


def test_a_restore_to_before_an_undone_replacement_is_detected_and_rewound(lake: FileLake) -> None:
    before = DeltaTable(lake.uri).version()
    plan = lake.land_again((0, 4, 12))
    lake.undo.undo(plan.sequence, "ops", "wrong")
    DeltaTable(lake.uri).restore(before)
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        lake.planner.plan("run")
    lake.repair.rewind("ops", "restored")
    assert rows_by_plan(lake) == ledger_by_plan(lake)
    assert lake.verified() == [(15, 15), (5, 5)]


def test_a_rebuild_records_a_replacement_that_a_second_restore_returned(lake: FileLake) -> None:
    before = DeltaTable(lake.uri).version()
    lake.land_again((0, 4, 12))
    after = DeltaTable(lake.uri).version()
    DeltaTable(lake.uri).restore(before)
    lake.repair.rewind("ops", "restored")
    DeltaTable(lake.uri).restore(after)
    lake.repair.rebuild("ops", "restored back")
    assert rows_by_plan(lake) == ledger_by_plan(lake)
    assert lake.verified() == [(15, 15), (5, 5)]


def test_a_restore_to_a_timestamp_after_an_undo_needs_no_rewind(lake: FileLake) -> None:
    """The log does not contain the restored version. The files of the versions show it."""
    plan = lake.land_again((0, 4, 12))
    lake.undo.undo(plan.sequence, "ops", "wrong")
    moment = datetime.now(UTC)
    DeltaTable(lake.uri).delete("partition = 0 AND offset = 13")
    DeltaTable(lake.uri).restore(moment)
    with pytest.raises(NothingToDo):
        lake.repair.rewind("ops", "restored")
    assert rows_by_plan(lake) == ledger_by_plan(lake)
    lake.run(0)
    assert lake.verified() == [(15, 15), (5, 5)]


def test_a_rebuild_starts_where_the_live_chain_started(lake: FileLake) -> None:
    """All of the first plan was replaced, and the replacement is undone after the rebuild."""
    plan = lake.land_again((0, 0, 10))
    (lake.root / "control").rename(lake.root / "lost")
    lake.repair.rebuild("ops", "lost")
    lake.undo.undo(plan.sequence, "ops", "wrong")
    lake.run(0)
    assert lake.verified() == [(15, 15), (5, 5)]


def test_a_rebuild_separates_two_plans_with_the_same_number(lake: FileLake) -> None:
    """The backup lacks plan 3 of a slow driver, and a replacement gets its number."""
    shutil.copytree(lake.root / "control", lake.root / "backup")
    slow = lake.plan(3)
    files = lake.sink.write(slow, 100)
    shutil.rmtree(lake.root / "control")
    (lake.root / "backup").rename(lake.root / "control")
    assert lake.plan_replacing((0, 4, 12)).sequence == slow.sequence
    lake.table.append(slow, files, UNCOMPARED)
    lake.repair.rebuild("ops", "it has landed since")
    assert rows_by_plan(lake) == ledger_by_plan(lake)
    assert lake.planner.plan("run").outcome is PlanOutcome.NOTHING
    assert lake.verified() == [(18, 18), (5, 5)]


@pytest.mark.parametrize("deleted", [0, 8], ids=["Kafka has all", "Kafka has deleted some"])
def test_a_lost_control_table_is_rebuilt_after_a_replacement(lake: FileLake, deleted: int) -> None:
    lake.land_again((0, 4, 12))
    lake.land_again((0, 6, 7))
    lake.kafka.delete_records("events", 0, deleted)
    (lake.root / "control").rename(lake.root / "lost")
    lake.repair.rebuild("ops", "lost")
    assert rows_by_plan(lake) == ledger_by_plan(lake)
    assert lake.planner.plan("run").outcome is PlanOutcome.NOTHING
    assert [rows for _, rows in lake.verified()] == [15 - deleted, 5]


def test_a_rebuild_records_replacements_that_a_control_table_backup_lacks(lake: FileLake) -> None:
    events = DeltaTable(lake.control_uri).version()
    lake.land_again((0, 4, 12))
    lake.land_again((0, 10, 14))
    DeltaTable(lake.control_uri).restore(events)
    lake.repair.rebuild("ops", "from a backup")
    assert rows_by_plan(lake) == ledger_by_plan(lake)
    assert lake.verified() == [(15, 15), (5, 5)]


def test_an_undo_during_a_restore_is_not_recorded_as_done() -> None:
    pipeline = replaced_in_memory()
    around_removal(pipeline, before=lambda: pipeline.table.restore(1))
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        pipeline.undo.undo(2, "ops", "wrong")
    pipeline.repair.rewind("ops", "restored")
    assert pipeline.planner.plan("run").outcome is PlanOutcome.NOTHING
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_a_replacement_of_a_recreated_topic_is_never_discarded() -> None:
    """The rows that it replaced are nowhere else."""
    pipeline = replaced_in_memory(land=False)
    pipeline.table.land(pipeline.ledger.plans[2].plan)
    before = pipeline.landed_identities()
    pipeline.kafka.create("events", 2, "id-2")
    with pytest.raises(NothingToDo, match="has landed"):
        pipeline.abandon.abandon(2, "ops", "recreated", discard=True)
    assert pipeline.landed_identities() == before
    assert len(before) == 5
    pipeline.decisions.accept_recreation("ops", "recreated")


def test_a_replacement_keeps_rows_of_another_incarnation_at_the_same_offsets() -> None:
    pipeline = replaced_in_memory()
    pipeline.kafka.create("events", 2, "id-2")
    pipeline.produce(0, 5)
    pipeline.decisions.accept_recreation("ops", "recreated")
    pipeline.run("run")
    request = replace(wanted((0, 0, 5)), replaces=True)
    plan = pipeline.planner.backfill(request, RunOrigin("again")).plan
    assert plan is not None
    pipeline.ingest.execute(plan.sequence)
    assert Counter(row[0] for row in pipeline.table.rows) == {"id-1": 5, "id-2": 5}


def replaced_in_memory(*, land: bool = True) -> MemoryPipeline:
    """Return a pipeline whose plan 1 landed five records; plan 2 replaces two of them."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    pipeline.run("run-1")
    request = replace(wanted((0, 1, 3)), replaces=True)
    assert pipeline.planner.backfill(request, RunOrigin("replace")).plan is not None
    if land:
        pipeline.ingest.execute(2)
    return pipeline


# -- concurrent processes ------------------------------------------------------------------------


def files_of(lake: FileLake, plan: Plan) -> Sequence[DataFile]:
    lake.table.prepare("events")
    return lake.sink.write(plan, 100)


def test_the_second_of_two_drivers_of_a_replacement_commits_nothing(lake: FileLake) -> None:
    plan = lake.plan_replacing((0, 4, 12))
    slow = files_of(lake, plan)
    lake.ingest.execute(plan.sequence)
    before = DeltaTable(lake.uri).version()
    lake.table.append(plan, slow, UNCOMPARED)
    assert DeltaTable(lake.uri).version() == before
    assert lake.verified() == [(15, 15), (5, 5)]


def test_i4_one_of_two_concurrent_drivers_of_a_replacement_commits(
    lake: FileLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second driver commits after the first has read the table and before it commits."""
    plan = lake.plan_replacing((0, 4, 12))
    _meanwhile(monkeypatch, lambda: lake.ingest.execute(plan.sequence))
    before = DeltaTable(lake.uri).version()
    lake.ingest.execute(plan.sequence)
    assert DeltaTable(lake.uri).version() == before + 1
    assert rows_by_plan(lake) == ledger_by_plan(lake)
    assert lake.verified() == [(15, 15), (5, 5)]


def test_a_replacement_keeps_concurrent_rows(
    lake: FileLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = lake.plan_replacing((0, 4, 12))
    _meanwhile(monkeypatch, lambda: lake.run(3))
    lake.ingest.execute(plan.sequence)
    assert rows_by_plan(lake) == ledger_by_plan(lake)
    assert lake.verified() == [(18, 18), (5, 5)]


def test_a_replacement_does_not_restore_rows_of_a_concurrent_undo(
    lake: FileLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The undone plan has rows in a file that the replacement rewrites."""
    plan = lake.plan_replacing((0, 4, 12))
    _meanwhile(monkeypatch, lambda: lake.undo.undo(1, "ops", "wrong"))
    with suppress(TransientError):
        lake.ingest.execute(plan.sequence)
    lake.ingest.execute(plan.sequence)
    assert rows_by_plan(lake) == ledger_by_plan(lake)
    assert 1 not in rows_by_plan(lake)
    lake.run(0)
    assert lake.verified() == [(15, 15), (5, 5)]


@pytest.mark.parametrize("step", ["compact", "remove_unreferenced"])
def test_each_record_is_landed_once_if_maintenance_runs_during_a_replacement(
    lake: FileLake, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    plan = lake.plan_replacing((0, 4, 12))
    maintained = DeltaMaintainedTable(str(lake.uri), "events")
    is_finished = finished_plans(lake.control, "events", lake.table)
    steps = {
        "compact": maintained.compact,
        "remove_unreferenced": lambda: maintained.remove_unreferenced(
            datetime.now(UTC), timedelta(0), is_finished
        ),
    }
    _meanwhile(monkeypatch, steps[step])
    with suppress(TransientError):
        lake.ingest.execute(plan.sequence)
    lake.ingest.execute(plan.sequence)
    assert rows_by_plan(lake) == ledger_by_plan(lake)
    assert lake.verified() == [(15, 15), (5, 5)]


def _meanwhile(monkeypatch: pytest.MonkeyPatch, event: object) -> None:
    """Call `event` once, after a replacement has loaded the table version it starts from."""
    from tidemark.delta import data_table, replacement

    real, pending = replacement.replace_rows, [event]

    def late(*args: object) -> None:
        if pending:
            pending.pop()()  # type: ignore[operator]
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(data_table, "replace_rows", late)


def test_superseded_events_contain_the_remaining_counts_of_each_plan(lake: FileLake) -> None:
    plan = lake.land_again((0, 4, 12))
    rows = pa.table(DeltaTable(lake.control_uri).scan()).to_pylist()
    remaining = Counter(
        (row["plan_sequence"], row["superseded_by"], row["partition"], row["start_offset"])
        for row in rows
        if row["event"] == "superseded"
    )
    assert sorted(remaining) == [
        (1, plan.sequence, 0, 0),
        (2, plan.sequence, 0, 12),
        (2, plan.sequence, 1, 0),
    ]
