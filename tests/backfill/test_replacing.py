"""Replacing rows that have landed: one commit, each record once, and every plan says what it holds.

On real Delta tables and a log in memory.
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
from tests.support.plans import MemoryPipeline, wanted
from tests.support.services import NOW
from tidemark.backfill.selection import OffsetRanges
from tidemark.core.datafile import DataFile
from tidemark.core.errors import InvalidRange, InvalidSelection, TableRestored, TransientError
from tidemark.core.offsets import SpanSet
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan, PlanKind
from tidemark.ingest.errors import PlanAbandoned, RowsChanged
from tidemark.ingest.planner import PlanOutcome
from tidemark.lake.conditional_writes import prove_conditional_writes
from tidemark.lake.errors import RowsWouldBeLost
from tidemark.lake.maintained_table import DeltaMaintainedTable
from tidemark.maintenance.service import finished_plans
from tidemark.quality.check_results_table import DeltaCheckResults
from tidemark.quality.gx.checker import GreatExpectationsQuality
from tidemark.quality.publication import PublicationStatus, effective_decisions
from tidemark.quality.publication_table import DeltaPublicationTable
from tidemark.quality.service import Quality
from tidemark.repair.errors import PlanLanded
from tidemark.report.errors import TableDiffers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def landed(tmp_path_factory: pytest.TempPathFactory) -> FileLake:
    """Plan 1 landed partition 0 up to 10, plan 2 partition 0 up to 15 and partition 1 up to 5."""
    lake = FileLake(root=tmp_path_factory.mktemp("landed"))
    lake.run(10)
    lake.kafka.produce("events", 1, 5, timestamp_ms=1_000)
    lake.run(5)
    return lake


@pytest.fixture
def lake(landed: FileLake, tmp_path: Path) -> FileLake:
    """A copy of it, for one test."""
    shutil.copytree(landed.root, tmp_path, dirs_exist_ok=True)
    lake = FileLake(root=tmp_path)
    lake.kafka = deepcopy(landed.kafka)
    # A copy is another location, and its storage is tested before the next landing.
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


def held(lake: FileLake) -> dict[int, list[tuple[int, int]]]:
    """Partition and offset of every row, by the plan that its row names."""
    found: dict[int, list[tuple[int, int]]] = {}
    for row in pa.table(DeltaTable(lake.uri).scan()).to_pylist():
        found.setdefault(row["plan_sequence"], []).append((row["partition"], row["offset"]))
    return {plan: sorted(rows) for plan, rows in sorted(found.items())}


def told(lake: FileLake) -> dict[int, list[tuple[int, int]]]:
    """The same as the ledger has it; these logs have no gaps. A summary says no other thing."""
    whole, summary = lake.control.ledger("events"), lake.control.summary("events")
    assert (summary.landed, summary.pending) == (whole.landed, whole.pending)
    assert (summary.records, summary.last_sequence) == (whole.records, whole.last_sequence)
    for kind in PlanKind:
        assert summary.positions(kind) == whole.positions(kind)
        assert summary.chain_head(kind) == whole.chain_head(kind)
    return {
        number: places
        for number, record in whole.plans.items()
        if record.held_now and (places := _places(record.held_now.spans()))
    }


def _places(spans: Mapping[int, SpanSet]) -> list[tuple[int, int]]:
    return [
        (p, o) for p, some in spans.items() for span in some for o in range(span.start, span.end)
    ]


def places(partition: int, *offsets: int) -> list[tuple[int, int]]:
    """Partition and offset."""
    return [(partition, offset) for offset in offsets]


EVERYTHING = places(0, *range(15)) + places(1, *range(5))

# -- what it does --------------------------------------------------------------------------------


def test_a_replacement_swaps_old_and_new_rows_in_one_commit(lake: FileLake) -> None:
    """In the middle of one plan's range and over the end of it into another plan's."""
    before = DeltaTable(lake.uri).version()
    plan = lake.land_again((0, 4, 6), (0, 8, 12))
    assert DeltaTable(lake.uri).version() == before + 1
    assert lake.rows(before) == lake.rows() == EVERYTHING
    assert held(lake) == {
        1: places(0, 0, 1, 2, 3, 6, 7),
        2: places(0, 12, 13, 14) + places(1, *range(5)),
        plan.sequence: places(0, 4, 5, 8, 9, 10, 11),
    }
    assert told(lake) == held(lake)
    assert lake.verified() == [(15, 15), (5, 5)]


def test_a_replacement_does_not_move_committed_offsets(lake: FileLake) -> None:
    """I3: a replacement changes nothing about what is read next."""
    lake.land_again((0, 0, 15))
    assert lake.control.summary("events").committed_offset(0) == 15
    newest = lake.run(3)
    assert [(r.partition, r.start, r.end) for r in newest.ranges] == [(0, 15, 18)]
    assert lake.verified() == [(18, 18), (5, 5)]


def test_a_replacement_also_lands_missing_offsets(lake: FileLake) -> None:
    """One plan for both; nobody reads the new part again."""
    lake.kafka.produce("events", 1, 2, timestamp_ms=1_000)
    plan = lake.land_again((1, 3, 7))
    assert held(lake)[plan.sequence] == places(1, 3, 4, 5, 6)
    assert lake.control.summary("events").committed_offset(1) == 7
    assert lake.planner.plan("run").outcome is PlanOutcome.NOTHING
    assert lake.verified() == [(15, 15), (7, 7)]


def test_a_replacement_of_unread_offsets_replaces_nothing(lake: FileLake) -> None:
    """It is a backfill as any other."""
    lake.kafka.produce("events", 1, 2, timestamp_ms=1_000)
    assert not lake.plan_replacing((1, 5, 7)).replaces


def test_a_replacement_can_be_replaced(lake: FileLake) -> None:
    """Whoever came last holds them."""
    lake.land_again((0, 2, 8))
    lake.land_again((0, 6, 9))
    assert held(lake)[3] == places(0, 2, 3, 4, 5)
    assert held(lake)[4] == places(0, 6, 7, 8)
    assert told(lake) == held(lake)
    assert lake.verified() == [(15, 15), (5, 5)]


def test_a_replacement_corrects_changed_rows(lake: FileLake) -> None:
    """A record that was deleted and one that was altered, behind Tidemark's back."""
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
    """Types and values, but for the plan that brought them."""
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
    """Every second offset: no limit of a parser is in the way."""
    lake = FileLake(root=tmp_path)
    lake.run(800)
    every_second = [(0, offset, offset + 1) for offset in range(0, 800, 2)]
    plan = lake.land_again(*every_second)
    assert len(held(lake)[plan.sequence]) == len(held(lake)[1]) == 400
    assert told(lake) == held(lake)
    assert lake.verified()[0] == (800, 800)


def test_a_replacement_accepts_gaps(lake: FileLake) -> None:
    """Markers have no row before and none after."""
    lake.kafka.add_gaps("events", 0, 2)
    lake.run(2)
    plan = lake.land_again((0, 13, 19))
    landing = lake.control.ledger("events").plans[plan.sequence].held_now
    assert landing is not None
    assert (landing.records, landing.gaps) == (4, 2)
    assert lake.verified()[0] == (17, 17)


def test_added_columns_are_null_in_replaced_rows(lake: FileLake) -> None:
    """As they are in a landing."""
    DeltaTable(lake.uri).alter.add_columns([Field("note", PrimitiveType("string"))])
    lake.land_again((0, 4, 12))
    rows = pa.table(DeltaTable(lake.uri).scan())
    assert rows["note"].null_count == rows.num_rows == 20
    assert lake.verified() == [(15, 15), (5, 5)]


# -- what it refuses -----------------------------------------------------------------------------


def test_a_changed_range_can_be_replaced_only_as_a_whole(lake: FileLake) -> None:
    """What would be left of it cannot be told; nothing is recorded."""
    DeltaTable(lake.uri).delete("partition = 0 AND offset = 3")
    before = lake.control.summary("events").event_number
    with pytest.raises(RowsChanged) as refused:
        lake.plan_replacing((0, 6, 12))
    assert (refused.value.sequence, refused.value.start, refused.value.end) == (1, 0, 10)
    assert lake.control.summary("events").event_number == before
    lake.land_again((0, 0, 10))
    assert lake.verified()[0] == (15, 15)


def test_a_replacement_removes_duplicate_rows(lake: FileLake) -> None:
    """A part of their range is refused like any other that was changed."""
    rows = pa.table(DeltaTable(lake.uri).scan(predicate="plan_sequence = 1").read_all())
    write_deltalake(lake.uri, rows, mode="append")
    with pytest.raises(RowsChanged) as refused:
        lake.plan_replacing((0, 6, 12))
    assert (refused.value.recorded, refused.value.rows) == (10, 20)
    lake.land_again((0, 0, 10))
    assert lake.verified()[0] == (15, 15)


def test_rows_without_a_record_in_kafka_are_not_replaced(lake: FileLake) -> None:
    """Compacted since: the table stays as it is, and the plan can be given up."""
    before = DeltaTable(lake.uri).version()
    plan = lake.plan_replacing((0, 0, 10))
    del lake.kafka.topics["events"][0].records[4]
    del lake.kafka.topics["events"][0].records[7]
    with pytest.raises(RowsWouldBeLost) as refused:
        lake.ingest.execute(plan.sequence)
    assert refused.value.lost == ((0, 4, 5), (0, 7, 8))
    assert DeltaTable(lake.uri).version() == before
    lake.abandon.abandon(plan.sequence, "ops", "compacted")
    with pytest.raises(PlanAbandoned):
        lake.ingest.execute(plan.sequence)
    assert held(lake) == told(lake)
    assert lake.rows() == EVERYTHING


def test_replacing_deleted_offsets_is_refused_or_skips_them(lake: FileLake) -> None:
    """Retention took them from Kafka; their rows are all there is."""
    lake.kafka.delete_records("events", 0, 3)
    with pytest.raises(InvalidRange):
        lake.plan_replacing((0, 0, 10))
    request = replace(wanted((0, 0, 10)), replaces=True, readable_only=True)
    plan = lake.planner.backfill(request, RunOrigin("what is left")).plan
    assert plan is not None
    lake.ingest.execute(plan.sequence)
    assert held(lake)[1] == places(0, 0, 1, 2)
    assert held(lake) == told(lake)


def test_rows_of_another_incarnation_do_not_prevent_a_replacement(lake: FileLake) -> None:
    """The condition of the commit names the incarnation."""
    lake.kafka.create("events", 2, "id-2")
    lake.kafka.produce("events", 0, 4, timestamp_ms=1_000)
    lake.decisions.new_incarnation("ops", "made again")
    lake.run(1)
    lake.land_again((0, 0, 5))
    assert sorted(lake.rows()) == sorted([*EVERYTHING, *places(0, *range(5))])
    assert lake.verified()[0] == (5, 5)


# -- what it leaves -----------------------------------------------------------------------------


def test_a_plan_that_was_replaced_is_found_landed_as_it_landed(lake: FileLake) -> None:
    """A task that runs once more tells what its commit brought."""
    lake.land_again((0, 4, 12))
    again = lake.ingest.execute(1)
    assert (again.wrote, again.landing.records) == (False, 10)


@pytest.mark.spark
def test_a_plan_that_was_replaced_passes_its_checks(lake: FileLake, spark: SparkSession) -> None:
    """They look at the table as it was when the plan landed."""
    lake.land_again((0, 4, 12))
    for checksums in lake.uri.rglob("*.crc"):
        # Empty here, and Spark would compare.
        checksums.unlink()
    home = lake.root / "quality"
    checker = GreatExpectationsQuality(
        spark=lambda: spark,
        suites=home,
        home=home,
        results=DeltaCheckResults(str(lake.root / "results")),
    )
    quality = Quality(
        spec=lake.spec,
        data_table=str(lake.uri),
        data_log=lake.table,
        control=lake.control,
        checker=checker,
        publication=DeltaPublicationTable(str(lake.root / "publication"), str(lake.uri)),
        now=lambda: NOW,
    )
    for plan in (1, 2, 3):
        report = quality.check(plan)
        assert not report.failed_critical()
        (records,) = (result for result in report.results if result.check == "records")
        record = lake.ledger.plans[plan]
        assert record.held_now is not None
        assert records.value == record.held_now.records
    decisions = effective_decisions(quality.publication.decisions("events")).values()
    assert {each.status for each in decisions} == {PublicationStatus.PUBLISHED}


# -- chunks --------------------------------------------------------------------------------------


def test_a_backfill_that_replaces_is_done_when_its_own_plans_have_landed(lake: FileLake) -> None:
    """That its offsets have landed before says nothing; a chunk is replaced once."""
    everything = OffsetRanges(spans=wanted((0, 0, 15), (1, 0, 5)).spans)
    backfills = lake.backfills
    seen = backfills.preview(everything, 10, readable_only=False, replaces=True)
    assert seen.offsets == 20
    assert seen.as_record()["replaced"] == [[0, 0, 15], [1, 0, 5]]
    assert (seen.rewritten, seen.plans) == (3, {1: 10, 2: 10})
    assert "rewrites 3 file(s)" in seen.explain()
    assert "1 (10), 2 (10)" in seen.explain()
    with pytest.raises(InvalidSelection):
        backfills.request(seen, "ops", approved=False)
    chunks = backfills.request(seen, "ops", approved=False, reason="a test")
    assert chunks == 2
    assert [each.done for each in backfills.progress("ops")] == [False, False]
    for number in (1, 2, 2, 1):
        planning = backfills.plan_chunk("ops", number)
        assert planning.plan is not None
        lake.ingest.execute(planning.plan.sequence)
    assert [each.done for each in backfills.progress("ops")] == [True, True]
    assert sorted(held(lake)) == [3, 4]
    assert lake.verified() == [(15, 15), (5, 5)]


def test_a_preview_of_a_backfill_states_that_no_file_is_rewritten(lake: FileLake) -> None:
    """And so does a replacement of what has not landed."""
    lake.kafka.produce("events", 0, 5, timestamp_ms=1_000)
    offsets = OffsetRanges(spans=wanted((0, 10, 20)).spans)
    seen = lake.backfills.preview(offsets, None, readable_only=False)
    assert (seen.offsets, seen.rewritten) == (5, 0)
    assert seen.explain().endswith("; no file is rewritten")
    beyond = OffsetRanges(spans=wanted((0, 15, 20)).spans)
    seen = lake.backfills.preview(beyond, None, readable_only=False, replaces=True)
    assert seen.explain().endswith("; none of them has landed, no file is rewritten")


def test_a_preview_raises_the_errors_of_its_chunks(lake: FileLake) -> None:
    """A changed range in two chunks; the error says which chunk size does it."""
    DeltaTable(lake.uri).delete("partition = 0 AND offset = 3")
    whole = OffsetRanges(spans=wanted((0, 0, 10)).spans)
    with pytest.raises(RowsChanged) as refused:
        lake.backfills.preview(whole, 5, readable_only=False, replaces=True)
    assert "--offsets 0:0-10 --chunk 10 --replace" in str(refused.value)
    seen = lake.backfills.preview(whole, 10, readable_only=False, replaces=True)
    assert len(seen.chunks) == 1


def test_a_preview_counts_a_replacement_that_has_landed_and_is_not_recorded(
    lake: FileLake,
) -> None:
    """Its driver died before the record: the rows of the replaced plan are gone for a reason."""
    request = replace(wanted((0, 3, 8)), replaces=True)
    plan = lake.planner.backfill(request, RunOrigin("killed")).plan
    assert plan is not None
    lake.land(plan)
    again = OffsetRanges(spans=wanted((0, 3, 8)).spans)
    seen = lake.backfills.preview(again, None, readable_only=False, replaces=True)
    assert seen.plans == {plan.sequence: 5}
    partly = OffsetRanges(spans=wanted((0, 1, 5)).spans)
    seen = lake.backfills.preview(partly, None, readable_only=False, replaces=True)
    assert seen.plans == {1: 2, plan.sequence: 2}
    assert [record.plan for record in lake.ledger.open_plans()] == [plan]
    lake.land_again((0, 1, 5))
    assert lake.verified() == [(15, 15), (5, 5)]


# -- taken out again -----------------------------------------------------------------------------


def test_undoing_a_replacement_returns_its_offsets(lake: FileLake) -> None:
    """What it replaced does not come back: the offsets are read again."""
    plan = lake.land_again((0, 4, 12))
    lake.undo.undo(plan.sequence, "ops", "wrong")
    assert held(lake) == told(lake)
    assert lake.control.summary("events").committed_offset(0) == 4
    again = lake.plan(0)
    assert [(r.start, r.end) for r in again.ranges] == [(4, 12)]
    lake.ingest.execute(again.sequence)
    assert lake.verified() == [(15, 15), (5, 5)]


def test_undoing_a_plan_keeps_rows_that_replaced_its_own(lake: FileLake) -> None:
    """Only its own rows go, and only their offsets are unread."""
    lake.land_again((0, 4, 12))
    lake.undo.undo(1, "ops", "wrong")
    assert held(lake) == told(lake)
    again = lake.plan(0)
    assert [(r.start, r.end) for r in again.ranges] == [(0, 4)]
    lake.ingest.execute(again.sequence)
    assert lake.verified() == [(15, 15), (5, 5)]


def test_restore_brings_back_what_was_replaced(lake: FileLake) -> None:
    """The replacement is gone, and the old plans hold what they held."""
    before = DeltaTable(lake.uri).version()
    lake.land_again((0, 4, 12))
    lake.land_again((0, 0, 6))
    DeltaTable(lake.uri).restore(before)
    with pytest.raises(TableRestored):
        lake.planner.plan("run")
    lake.repair.rewind("ops", "restored")
    assert held(lake) == told(lake)
    assert sorted(held(lake)) == [1, 2]
    assert lake.planner.plan("run").outcome is PlanOutcome.NOTHING
    assert lake.verified() == [(15, 15), (5, 5)]


def test_restore_to_between_two_replacements(lake: FileLake) -> None:
    """The first one stands."""
    lake.land_again((0, 4, 12))
    between = DeltaTable(lake.uri).version()
    lake.land_again((0, 0, 6))
    DeltaTable(lake.uri).restore(between)
    lake.repair.rewind("ops", "restored")
    assert held(lake) == told(lake)
    assert sorted(held(lake)) == [1, 2, 3]
    assert lake.verified() == [(15, 15), (5, 5)]


def test_restore_over_an_undone_replacement(lake: FileLake) -> None:
    """Undone, and then a RESTORE to before it was made: the old rows are back."""
    before = DeltaTable(lake.uri).version()
    plan = lake.land_again((0, 4, 12))
    lake.undo.undo(plan.sequence, "ops", "wrong")
    DeltaTable(lake.uri).restore(before)
    with pytest.raises(TableRestored):
        lake.planner.plan("run")
    lake.repair.rewind("ops", "restored")
    assert held(lake) == told(lake)
    assert lake.verified() == [(15, 15), (5, 5)]


def test_restore_forth_and_back(lake: FileLake) -> None:
    """To before the replacement, and then to after it: it is taken in again."""
    before = DeltaTable(lake.uri).version()
    lake.land_again((0, 4, 12))
    after = DeltaTable(lake.uri).version()
    DeltaTable(lake.uri).restore(before)
    lake.repair.rewind("ops", "restored")
    DeltaTable(lake.uri).restore(after)
    lake.repair.rebuild("ops", "restored back")
    assert held(lake) == told(lake)
    assert lake.verified() == [(15, 15), (5, 5)]


def test_restore_to_a_moment_after_an_undo(lake: FileLake) -> None:
    """The table's log does not name the version: whatever it was, the rows tell."""
    plan = lake.land_again((0, 4, 12))
    lake.undo.undo(plan.sequence, "ops", "wrong")
    moment = datetime.now(UTC)
    DeltaTable(lake.uri).delete("partition = 0 AND offset = 13")
    DeltaTable(lake.uri).restore(moment)
    lake.repair.rewind("ops", "restored")
    assert held(lake) == told(lake)
    lake.run(0)
    assert lake.verified() == [(15, 15), (5, 5)]


def test_a_rebuild_starts_where_the_live_chain_started(lake: FileLake) -> None:
    """All of its first plan was replaced, and that is undone after the rebuild."""
    plan = lake.land_again((0, 0, 10))
    (lake.root / "control").rename(lake.root / "lost")
    lake.repair.rebuild("ops", "lost")
    lake.undo.undo(plan.sequence, "ops", "wrong")
    lake.run(0)
    assert lake.verified() == [(15, 15), (5, 5)]


def test_a_rebuild_separates_two_plans_with_the_same_number(lake: FileLake) -> None:
    """A backup has forgotten plan 3, whose driver is slow; a replacement gets its number."""
    shutil.copytree(lake.root / "control", lake.root / "backup")
    slow = lake.plan(3)
    files = lake.sink.write(slow, 100)
    shutil.rmtree(lake.root / "control")
    (lake.root / "backup").rename(lake.root / "control")
    assert lake.plan_replacing((0, 4, 12)).sequence == slow.sequence
    lake.table.append(slow, files)
    lake.repair.rebuild("ops", "it has landed since")
    assert held(lake) == told(lake)
    assert lake.planner.plan("run").outcome is PlanOutcome.NOTHING
    assert lake.verified() == [(18, 18), (5, 5)]


@pytest.mark.parametrize("deleted", [0, 8], ids=["Kafka has all", "Kafka has deleted some"])
def test_a_lost_control_table_is_rebuilt_after_a_replacement(lake: FileLake, deleted: int) -> None:
    """Old plans hold what is left of them, whether or not Kafka can still be asked."""
    lake.land_again((0, 4, 12))
    lake.land_again((0, 6, 7))
    lake.kafka.delete_records("events", 0, deleted)
    (lake.root / "control").rename(lake.root / "lost")
    lake.repair.rebuild("ops", "lost")
    assert held(lake) == told(lake)
    assert lake.planner.plan("run").outcome is PlanOutcome.NOTHING
    assert [rows for _, rows in lake.verified()] == [15 - deleted, 5]


def test_a_control_table_from_before_a_replacement(lake: FileLake) -> None:
    """A backup knows the old plans whole; the rebuild takes the newer ones in."""
    events = DeltaTable(lake.root / "control").version()
    lake.land_again((0, 4, 12))
    lake.land_again((0, 10, 14))
    DeltaTable(lake.root / "control").restore(events)
    lake.repair.rebuild("ops", "from a backup")
    assert held(lake) == told(lake)
    assert lake.verified() == [(15, 15), (5, 5)]


def test_restore_while_a_replacement_is_undone() -> None:
    """The old rows are back before the undo says that it is done: it does not say so."""
    pipeline = replaced_in_memory()
    discard = pipeline.table.remove_rows

    def too_late(plan: Plan) -> tuple[int, int]:
        pipeline.table.restore(1)
        return discard(plan)

    pipeline.table.remove_rows = too_late  # type: ignore[method-assign]
    with pytest.raises(TableRestored):
        pipeline.undo.undo(2, "ops", "wrong")
    pipeline.repair.rewind("ops", "restored")
    assert pipeline.planner.plan("run").outcome is PlanOutcome.NOTHING
    assert pipeline.landed_identities() == pipeline.visible_identities()


def test_a_replacement_of_a_recreated_topic_is_never_discarded() -> None:
    """Its rows were read of the old topic, and what they replaced is nowhere else."""
    pipeline = replaced_in_memory(land=False)
    pipeline.table.land(pipeline.ledger.plans[2].plan)
    before = pipeline.landed_identities()
    pipeline.kafka.create("events", 2, "id-2")
    with pytest.raises(PlanLanded):
        pipeline.abandon.abandon(2, "ops", "made again", discard=True)
    assert pipeline.landed_identities() == before
    assert len(before) == 5
    pipeline.decisions.new_incarnation("ops", "made again")


def test_rows_of_another_incarnation_at_the_same_offsets_stay() -> None:
    """The topic was made again, and its new records are replaced."""
    pipeline = replaced_in_memory()
    pipeline.kafka.create("events", 2, "id-2")
    pipeline.produce(0, 5)
    pipeline.decisions.new_incarnation("ops", "made again")
    pipeline.run("run")
    request = replace(wanted((0, 0, 5)), replaces=True)
    plan = pipeline.planner.backfill(request, RunOrigin("again")).plan
    assert plan is not None
    pipeline.ingest.execute(plan.sequence)
    assert Counter(row[0] for row in pipeline.table.rows) == {"id-1": 5, "id-2": 5}


def replaced_in_memory(*, land: bool = True) -> MemoryPipeline:
    """Plan 1 landed five records, and plan 2 replaces two of them."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    pipeline.run("run-1")
    request = replace(wanted((0, 1, 3)), replaces=True)
    assert pipeline.planner.backfill(request, RunOrigin("replace")).plan is not None
    if land:
        pipeline.ingest.execute(2)
    return pipeline


# -- who gets in between -------------------------------------------------------------------------


def files_of(lake: FileLake, plan: Plan) -> Sequence[DataFile]:
    """A driver's files, not committed yet."""
    lake.table.prepare("events")
    return lake.sink.write(plan, 100)


def test_one_of_two_drivers_lands_a_replacement(lake: FileLake) -> None:
    """The other's commit is skipped, or refused."""
    plan = lake.plan_replacing((0, 4, 12))
    slow = files_of(lake, plan)
    lake.ingest.execute(plan.sequence)
    before = DeltaTable(lake.uri).version()
    lake.table.append(plan, slow)
    assert DeltaTable(lake.uri).version() == before
    assert lake.verified() == [(15, 15), (5, 5)]


def test_a_landing_in_the_middle_of_a_replacement_stays(
    lake: FileLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The live chain adds rows between the look and the commit."""
    plan = lake.plan_replacing((0, 4, 12))
    _meanwhile(monkeypatch, lambda: lake.run(3))
    lake.ingest.execute(plan.sequence)
    assert held(lake) == told(lake)
    assert lake.verified() == [(18, 18), (5, 5)]


def test_rows_removed_in_the_middle_of_a_replacement_are_a_conflict_or_stay_removed(
    lake: FileLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An undo of a plan whose file is rewritten: no row comes back."""
    plan = lake.plan_replacing((0, 4, 12))
    _meanwhile(monkeypatch, lambda: lake.undo.undo(1, "ops", "wrong"))
    with suppress(TransientError):
        lake.ingest.execute(plan.sequence)
    lake.ingest.execute(plan.sequence)
    assert held(lake) == told(lake)
    assert 1 not in held(lake)
    lake.run(0)
    assert lake.verified() == [(15, 15), (5, 5)]


@pytest.mark.parametrize("step", ["compact", "remove_unreferenced"])
def test_maintenance_in_the_middle_of_a_replacement(
    lake: FileLake, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Files are written anew under it, or removed around it: a conflict, and all is there once."""
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
    assert held(lake) == told(lake)
    assert lake.verified() == [(15, 15), (5, 5)]


def _meanwhile(monkeypatch: pytest.MonkeyPatch, event: object) -> None:
    """Have something happen once, after a replacement has loaded the table it starts from."""
    from tidemark.lake import data_table, replacement

    real, waiting = replacement.replace_rows, [event]

    def late(*args: object) -> None:
        if waiting:
            waiting.pop()()  # type: ignore[operator]
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(data_table, "replace_rows", late)


def test_superseded_events_contain_the_remaining_counts_of_each_plan(lake: FileLake) -> None:
    """As rows that a person reads: ranges and records, by the newer plan."""
    plan = lake.land_again((0, 4, 12))
    rows = pa.table(DeltaTable(lake.root / "control").scan()).to_pylist()
    left = Counter(
        (row["plan_sequence"], row["superseded_by"], row["partition"], row["start_offset"])
        for row in rows
        if row["event"] == "superseded"
    )
    assert sorted(left) == [
        (1, plan.sequence, 0, 0),
        (2, plan.sequence, 0, 12),
        (2, plan.sequence, 1, 0),
    ]
