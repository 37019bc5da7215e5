"""A typed table follows its bronze table through undos, RESTOREs and crashes; on real tables."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable, Field

from tests.support.file_lake import put_back
from tests.support.plans import UNCOMPARED, wanted
from tests.support.services import with_ports
from tests.support.typed_lake import DECODE, TypedLake
from tidemark.bronze.ingest.errors import PlanCancelled, RecordsMissed, RowsChanged
from tidemark.bronze.ingest.planner import PlanOutcome
from tidemark.core.datafile import DataFile
from tidemark.core.errors import PlanCannotLand, TableBehindLedger
from tidemark.core.offsets import Span, SpanSet, difference_by_partition
from tidemark.core.origins import DecodeOrigin, RunOrigin
from tidemark.core.plan import Plan, PlanKind
from tidemark.core.table_state import TableState
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.errors import EngineFailed, TableAltered
from tidemark.silver.typed.columns import typed_schema, typed_table
from tidemark.silver.typed.errors import QuarantineRestored
from tidemark.silver.typed.quarantine import DeltaQuarantine, TypedTablePair
from tidemark.spec.decode import Format, PayloadSpec

pytestmark = pytest.mark.slow

_LONG_AGO = 1_600_000_000


@pytest.fixture
def lake(tmp_path: Path) -> TypedLake:
    """Nothing has landed."""
    return TypedLake(root=tmp_path)


def test_a_table_with_values_may_have_an_own_column_tombstone(lake: TypedLake) -> None:
    """Without the column `value`, the name marks a table with flattened values."""
    lake.land_and_run(1)
    DeltaTable(lake.typed_uri).alter.add_columns(Field("tombstone", "boolean"))
    lake.land_and_run(2)
    assert len(lake.decoded()) == 3
    without_values = typed_table(str(lake.bronze.root / "other"), replace(DECODE, flattens=True))
    without_values.prepare("events")
    with pytest.raises(TableAltered, match="it has the column tombstone and no column value"):
        typed_table(str(lake.bronze.root / "other"), DECODE).prepare("events")


def test_landed_records_are_decoded_once(lake: TypedLake) -> None:
    """Further calls make no plan."""
    assert lake.run() == []
    lake.bronze.run(3)
    lake.bronze.run(2, partition=1)
    assert lake.run() == [1]
    assert lake.run() == []
    assert len(lake.decoded()) == 5
    lake.bronze.run(4)
    assert lake.run() == [2]
    lake.check()
    record = lake.control.plan_record("events@typed", 2)
    assert record is not None
    assert record.plan.origin == DecodeOrigin(
        pipeline="events", epoch=0, version=3, fingerprint=DECODE.fingerprint
    )


def test_undecodable_records_go_to_the_quarantine_with_their_bytes(lake: TypedLake) -> None:
    """Their rows have the reason and the plan. The other records are decoded."""
    lake.land_and_run(4, 2)
    lake.check()
    assert lake.quarantined() == [(0, 2)]
    (row,) = DeltaTable(lake.quarantine_uri).to_pyarrow_table().to_pylist()
    (bronze,) = [each for each in lake.bronze_rows() if each["offset"] == 2]
    assert (row["value"], row["reason"], row["plan_sequence"]) == (bronze["value"], "malformed", 1)
    landing = lake.ingest.execute(1).landing
    assert (landing.records, landing.gaps) == (4, 0)


def test_a_replay_decodes_only_quarantined_records_again(lake: TypedLake) -> None:
    """The plan closes its records, and adds those that fail again."""
    lake.land_and_run(4, 1, 3)
    lake.broken = {3}
    spans = {0: SpanSet((Span(1, 2), Span(3, 4)))}
    plan = lake.decoding.replay("id-1", spans).plan
    assert plan is not None
    assert (plan.kind, plan.replaces, plan.spans()) == (PlanKind.BACKFILL, True, spans)
    lake.ingest.execute(plan.sequence)
    lake.check()
    assert lake.quarantined() == [(0, 3)]
    rows = DeltaTable(lake.quarantine_uri).to_pyarrow_table().to_pylist()
    closed_by = sorted((row["offset"], row["plan_sequence"], row["closed_by"]) for row in rows)
    assert closed_by == [(1, 1, 2), (3, 1, 2), (3, 2, None)]
    assert lake.run() == []


def test_a_large_replay_is_split_into_plans(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each offset is in one plan, even if it fails again."""
    monkeypatch.setattr("tidemark.silver.typed.decoder._MAX_REPLAYED", 2)
    lake.land_and_run(5, 0, 2, 4)
    lake.broken = {2}
    left: Mapping[int, SpanSet] = {0: SpanSet(tuple(Span(n, n + 1) for n in (0, 2, 4)))}
    parts = []
    while (plan := lake.decoding.replay("id-1", left).plan) is not None:
        lake.ingest.execute(plan.sequence)
        parts.append(plan.size)
        left = difference_by_partition(left, plan.spans())
    assert parts == [2, 1]
    lake.check()
    assert lake.quarantined() == [(0, 2)]


def test_undoing_a_bronze_plan_removes_its_typed_rows(lake: TypedLake) -> None:
    """Other records of the undone typed plan are decoded again."""
    lake.bronze.run(3)
    lake.bronze.run(2, partition=1)
    lake.run()
    lake.bronze.undo.undo(2, "test", "a mistake")
    assert [place[:2] for place in lake.decoded()] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert lake.run() == [2]
    lake.check()
    assert [place[:2] for place in lake.decoded()] == [(0, 0), (0, 1), (0, 2)]
    lake.bronze.ingest.execute(lake.bronze.planner.plan("again").plan.sequence)  # type: ignore[union-attr]
    assert lake.run() == [3]
    lake.check()


def test_replaced_bronze_rows_are_decoded_again(lake: TypedLake) -> None:
    """Their offsets were already decoded."""
    lake.land_and_run(4)
    again = replace(wanted((0, 1, 3)), replaces=True)
    plan = lake.bronze.planner.backfill(again, RunOrigin("test")).plan
    assert plan is not None
    lake.bronze.ingest.execute(plan.sequence)
    backlog = lake.decoding.backlog()
    assert (backlog.missing, backlog.stale, backlog.surplus) == (0, 2, 0)
    assert lake.run() == [2]
    lake.check()
    replayed = lake.control.plan_record("events@typed", 2)
    assert replayed is not None
    assert replayed.plan.spans() == {0: SpanSet((Span(1, 3),))}
    assert lake.run() == []


@pytest.mark.e2e
def test_offsets_undone_and_landed_again_between_two_runs_are_decoded_again(
    lake: TypedLake,
) -> None:
    """The offsets are the same, but the rows may differ."""
    lake.land_and_run(3)
    lake.bronze.undo.undo(1, "test", "a mistake")
    lake.bronze.ingest.execute(lake.bronze.planner.plan("again").plan.sequence)  # type: ignore[union-attr]
    assert lake.decoding.backlog().stale == 3
    assert lake.run() == [2]
    lake.check()


def test_a_large_backlog_is_decoded_in_chunks(lake: TypedLake) -> None:
    """Each has the number of offsets of a backfill chunk."""
    lake.bronze.spec = replace(lake.bronze.spec, records_per_chunk=4)
    lake.bronze.run(7)
    lake.bronze.run(3, partition=1)
    assert lake.run() == [1, 2, 3]
    lake.check()


def test_an_open_plan_is_returned_before_new_offsets_are_planned(lake: TypedLake) -> None:
    """Records that landed since have a later plan."""
    lake.bronze.run(3)
    made = lake.decoding.plan()
    lake.bronze.run(2)
    assert made.outcome is PlanOutcome.NEW
    again = lake.decoding.plan()
    assert (again.outcome, again.plan) == (PlanOutcome.KEPT, made.plan)
    assert lake.run() == [1, 2]
    lake.check()


def test_an_open_plan_of_another_decoder_is_abandoned(lake: TypedLake) -> None:
    """The spec was edited after the plan was made."""
    lake.bronze.run(3)
    lake.decoding.plan()
    lake.decode = replace(DECODE, rules=(("new", "true"),))
    assert lake.run() == [2]
    lake.check()
    with pytest.raises(PlanCancelled):
        lake.ingest.execute(1)


def test_an_open_plan_over_undone_bronze_rows_is_abandoned(lake: TypedLake) -> None:
    """Its offsets have no rows to decode."""
    lake.bronze.run(3)
    lake.bronze.run(2, partition=1)
    lake.decoding.plan()
    lake.bronze.undo.undo(1, "test", "a mistake")
    assert lake.run() == [2]
    lake.check()
    assert [place[:2] for place in lake.decoded()] == [(1, 0), (1, 1)]


class FailingTypedTable(DeltaDataTable):
    """A typed table whose commit fails."""

    def land(self, *_: Any) -> bool:
        """Fail; the quarantine has already committed."""
        raise EngineFailed(operation="committing", reason="the machine is gone")


class LakeWithFailingDriver(TypedLake):
    """A lake whose driver fails between the two commits of a plan."""

    @property
    def table(self) -> TypedTablePair:
        """Both tables; the commit of the typed table fails."""
        typed = FailingTypedTable(str(self.typed_uri), typed_schema(self.decode))
        return TypedTablePair(typed, self.quarantine, self.grown)


@pytest.fixture
def half_committed(lake: TypedLake) -> TypedLake:
    """A lake with an open plan that is committed in the quarantine and not in the typed table."""
    lake.bronze.run(4)
    lake.broken = {1}
    failing = LakeWithFailingDriver(root=lake.root, broken=lake.broken)
    failing.bronze = lake.bronze
    plan = lake.decoding.plan().plan
    assert plan is not None
    with pytest.raises(EngineFailed):
        failing.ingest.execute(plan.sequence)
    assert (lake.quarantined(), lake.in_quarantine_table()) == ([], [(0, 1)])
    return lake


def test_a_crash_half_way_through_the_commits_loses_and_duplicates_no_record(
    half_committed: TypedLake,
) -> None:
    """The next driver finds the quarantined records, and adds the others."""
    assert half_committed.run() == [1]
    half_committed.check()
    assert half_committed.quarantined() == [(0, 1)]


@pytest.mark.parametrize("broken_then", [(), (2,), (1, 2)])
def test_two_drivers_that_decode_differently_raise_an_error(
    half_committed: TypedLake, broken_then: tuple[int, ...]
) -> None:
    """No record is in both tables or in neither. Abandoning the plan removes its records."""
    lake = half_committed
    lake.broken = broken_then
    with pytest.raises(PlanCannotLand, match="quarantined different records"):
        lake.run()
    assert lake.decoded() == []
    lake.abandon.abandon(1, "test", "a rule over the clock")
    assert lake.in_quarantine_table() == []
    assert lake.run() == [2]
    lake.check()
    assert lake.quarantined() == [(0, n) for n in broken_then]


def test_a_driver_of_an_abandoned_plan_adds_nothing_half_way(half_committed: TypedLake) -> None:
    """This holds for the typed table and for the quarantine."""
    lake = half_committed
    record = lake.control.plan_record("events@typed", 1)
    assert record is not None
    files = lake.sink.write(record.plan, 1)
    lake.abandon.abandon(1, "test", "a mistake")
    lake.table.append(record.plan, files, UNCOMPARED)
    assert (lake.in_quarantine_table(), lake.decoded()) == ([], [])
    lake.run()
    lake.check()


def test_a_replay_abandoned_half_way_leaves_its_records_open(lake: TypedLake) -> None:
    """The records that the replay closed are open again."""
    lake.land_and_run(4, 1, 3)
    before = content(lake)
    spans = {0: SpanSet((Span(1, 2), Span(3, 4)))}
    plan = lake.decoding.replay("id-1", spans).plan
    assert plan is not None
    lake.broken = {3}
    failing = LakeWithFailingDriver(root=lake.root, broken=lake.broken)
    failing.bronze = lake.bronze
    with pytest.raises(EngineFailed):
        failing.ingest.execute(plan.sequence)
    # The replay has not landed, so it closes no record.
    assert lake.quarantined() == [(0, 1), (0, 3)]
    lake.abandon.abandon(plan.sequence, "test", "a mistake")
    assert lake.quarantined() == lake.in_quarantine_table() == [(0, 1), (0, 3)]
    assert content(lake) == before
    lake.check()
    lake.replay(Span(1, 2), Span(3, 4))
    lake.check()
    assert lake.quarantined() == [(0, 3)]


def content(lake: TypedLake) -> list[tuple[Any, ...]]:
    """Return offset, value and headers of the open records of the quarantine."""
    rows = DeltaTable(lake.quarantine_uri).to_pyarrow_table().to_pylist()
    some = [row for row in rows if row["closed_by"] is None]
    return sorted((row["offset"], row["value"], row["headers"]) for row in some)


def test_a_closed_record_has_no_content(lake: TypedLake) -> None:
    """Only its position and reason stay, because replaced content may have to be deleted by law."""
    lake.land_and_run(4, 1)
    lake.broken = ()
    plan = lake.replay(Span(1, 2))
    (row,) = DeltaTable(lake.quarantine_uri).to_pyarrow_table().to_pylist()
    assert (row["key"], row["value"], row["headers"]) == (None, None, None)
    assert (row["offset"], row["reason"], row["closed_by"]) == (1, "malformed", plan.sequence)


def test_a_failed_erasure_is_repeated_before_the_next_plan_lands(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A concurrent writer prevented the erasure, and the plan landed."""
    lake.land_and_run(4, 1)
    lake.broken = ()
    with monkeypatch.context() as hindered:
        failed = EngineFailed(operation="erasing", reason="a conflict")
        hindered.setattr(DeltaQuarantine, "erase_closed", Mock(side_effect=[None, failed]))
        plan = lake.replay(Span(1, 2))
    quarantine = DeltaTable(lake.quarantine_uri)

    def kept() -> list[tuple[int, bytes | None]]:
        quarantine.update_incremental()
        rows = quarantine.to_pyarrow_table().to_pylist()
        return [(row["closed_by"], row["value"]) for row in rows]

    assert kept() == [(plan.sequence, b"1")]
    lake.land_and_run(1)
    lake.check()
    assert kept() == [(plan.sequence, None)]


def test_a_quarantine_table_that_was_lost_raises_an_error(lake: TypedLake) -> None:
    """No other plan lands, because the typed table lacks the quarantined records."""
    lake.land_and_run(4, 1)
    shutil.rmtree(lake.quarantine_uri)
    with pytest.raises(TableBehindLedger):
        lake.decoding.plan()


@pytest.mark.parametrize("older", ["typed_uri", "quarantine_uri"])
def test_the_error_of_a_lost_undo_fits_a_copy_of_either_table(lake: TypedLake, older: str) -> None:
    for broken in (1, 4):
        lake.land_and_run(3, broken)
    uri = getattr(lake, older)
    copy = shutil.copytree(uri, lake.root / "copy")
    lake.undo.undo(2, "ops", "wrong")
    undone = lake.ledger.newest_undo
    assert undone
    put_back(copy, uri)
    with pytest.raises(TableBehindLedger, match="lacks the undo") as caught:
        lake.decoding.plan()
    newest = DeltaTable(lake.typed_uri).version()
    assert f"created version {undone.table_version} of" in caught.value.needed
    assert caught.value.rendered("problem").startswith(
        "A table of 'events@typed' lacks the undo of plan 2,"
    )
    assert caught.value.rendered("actual").endswith(f"the data table has version {newest}")


@pytest.mark.parametrize("replayed", [False, True])
def test_a_restore_of_the_quarantine_is_detected(lake: TypedLake, replayed: bool) -> None:
    """A record would be in neither table, or in both. The error contains the fix."""
    lake.land_and_run(4, 1)
    table = DeltaTable(lake.quarantine_uri)
    before = table.version()
    lake.broken = ()
    if replayed:
        lake.replay(Span(1, 2))
    else:
        lake.land_and_run(4, 1, 6)
    lake.check()
    table.update_incremental()
    table.restore(before)
    with pytest.raises(QuarantineRestored) as refused:
        lake.decoding.plan()
    assert (refused.value.sequence, refused.value.at) == (2, table.version())
    with pytest.raises(QuarantineRestored):
        lake.decoding.backlog()
    table.restore(refused.value.at - 1)
    assert lake.run() == []
    lake.check()


def test_an_undo_repairs_a_restore_of_the_quarantine(lake: TypedLake) -> None:
    """The bronze table still has the records."""
    lake.land_and_run(4)
    table = DeltaTable(lake.quarantine_uri)
    before = table.version()
    lake.land_and_run(4, 6)
    table.update_incremental()
    table.restore(before)
    lake.undo.undo(2, "test", "its quarantine was restored")
    assert lake.run() == [3]
    lake.check()
    assert lake.quarantined() == [(0, 6)]


def forget(lake: TypedLake) -> None:
    """Remove old commits from the typed table's log, as Delta does after a month."""
    log = lake.typed_uri / "_delta_log"
    for file in log.glob("0*"):
        os.utime(file, (_LONG_AGO, _LONG_AGO))
    DeltaTable(lake.typed_uri).create_checkpoint()
    DeltaTable(lake.typed_uri).cleanup_metadata()
    assert not (log / f"{0:020}.json").exists()


def test_a_log_that_lost_a_plan_without_typed_rows_loses_no_record(lake: TypedLake) -> None:
    """All records of the plan are quarantined, so only the ledger shows that it landed."""
    lake.land_and_run(2, 0, 1)
    lake.land_and_run(3)
    forget(lake)
    lake.land_and_run(1)
    lake.check()
    assert lake.quarantined() == [(0, 0), (0, 1)]
    lake.bronze.land_again((0, 0, 1))
    lake.broken = {1}
    lake.run()
    lake.check()
    assert lake.quarantined() == [(0, 1)]


def test_a_log_that_lost_a_replay_with_replaced_rows_duplicates_no_record(
    lake: TypedLake,
) -> None:
    """The records that the replay closed stay closed."""
    lake.land_and_run(4, 1)
    lake.broken = ()
    lake.replay(Span(1, 2))
    lake.bronze.land_again((0, 1, 2))
    lake.run()
    lake.check()
    forget(lake)
    lake.check()
    assert lake.quarantined() == []


def test_the_fix_of_the_error_restores_a_deleted_typed_row(lake: TypedLake) -> None:
    """If a part of a plan is replaced, its remaining rows are unknown."""
    lake.land_and_run(4)
    DeltaTable(lake.typed_uri).delete('"offset" = 1')
    lake.bronze.land_again((0, 0, 1))
    with pytest.raises(RowsChanged) as refused:
        lake.run()
    assert "`tidemark backfill events --offsets 0:0-4 --chunk 4" in str(refused.value)
    lake.bronze.land_again((0, 0, 4))
    lake.run()
    lake.check()
    assert len(lake.decoded()) == 4


def test_offsets_lost_by_a_restore_of_the_typed_table_are_decoded_again(lake: TypedLake) -> None:
    """This follows a rewind, and includes quarantined offsets."""
    lake.land_and_run(4, 1)
    lake.land_and_run(4, 1, 6)
    DeltaTable(lake.typed_uri).restore(1)
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        lake.decoding.plan()
    lake.repair.rewind("test", "a mistake")
    # Otherwise no later undo would remove the record of the restored plan.
    assert lake.in_quarantine_table() == [(0, 1)]
    assert lake.run() == [3]
    lake.check()
    assert lake.quarantined() == lake.in_quarantine_table() == [(0, 1), (0, 6)]


def test_records_erased_by_a_replay_are_decoded_again_after_a_restore_to_before_it(
    lake: TypedLake,
) -> None:
    """The replay had closed and erased them."""
    lake.land_and_run(4, 1, 3)
    before = DeltaTable(lake.typed_uri).version()
    lake.broken = ()
    lake.replay(Span(1, 2), Span(3, 4))
    lake.check()
    DeltaTable(lake.typed_uri).restore(before)
    lake.repair.rewind("test", "a mistake")
    lake.broken = {1, 3}
    lake.run()
    lake.check()
    assert lake.quarantined() == [(0, 1), (0, 3)]
    assert [row[1] for row in content(lake)] == [b"1", b"3"]
    assert lake.run() == []


@pytest.mark.e2e
def test_a_new_target_gets_all_records_after_a_rewind(lake: TypedLake) -> None:
    """Another schema needs another table."""
    lake.land_and_run(4)
    lake.decode = replace(DECODE, target="silver/other")
    with pytest.raises(TableBehindLedger):
        lake.decoding.plan()
    lake.repair.rewind("test", "another schema")
    assert lake.run() == [2]
    lake.check()


def test_bronze_rows_that_a_restore_removed_temporarily_are_not_gaps(lake: TypedLake) -> None:
    """A plan over them waits until the bronze table is repaired."""
    lake.bronze.run(3)
    lake.bronze.run(2)
    assert lake.decoding.plan().plan is not None
    version = DeltaTable(lake.bronze.uri).version()
    DeltaTable(lake.bronze.uri).restore(version - 1)
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        lake.ingest.execute(1)
    DeltaTable(lake.bronze.uri).restore(version)
    assert lake.run() == [1]
    lake.check()


def test_bronze_rows_that_a_restore_removed_during_a_decode_do_not_count_as_gaps(
    lake: TypedLake,
) -> None:
    """Rows are missing during the read and the recording, but not during the check in between."""
    lake.bronze.run(3)
    lake.bronze.run(2)
    assert lake.decoding.plan().plan is not None
    version = DeltaTable(lake.bronze.uri).version()

    class SinkDuringRestore:
        """Reads while the rows of the second plan are missing."""

        def write(self, plan: Plan, records_per_task: int) -> list[DataFile]:
            DeltaTable(lake.bronze.uri).restore(version - 1)
            files = list(lake.sink.write(plan, records_per_task))
            DeltaTable(lake.bronze.uri).restore(version)
            return files

    class TableBeforeRestore(TypedTablePair):
        """Commits, and then removes the rows of the second plan."""

        def append(self, plan: Plan, files: Sequence[DataFile], seen: TableState) -> bool:
            appended = super().append(plan, files, seen)
            DeltaTable(lake.bronze.uri).restore(version - 1)
            return appended

    table = TableBeforeRestore(lake.typed, lake.quarantine, lake.grown)
    with pytest.raises(TableBehindLedger, match="A RESTORE"):
        with_ports(lake.ingest, sink=SinkDuringRestore(), table=table).execute(1)
    DeltaTable(lake.bronze.uri).restore(version)
    with pytest.raises(RecordsMissed):
        lake.run()
    assert lake.run() == [2]
    lake.check()


def test_typed_rows_without_bronze_rows_are_removed(lake: TypedLake) -> None:
    """The plan was undone and landed again without a record that Kafka had compacted."""
    lake.land_and_run(3)
    lake.bronze.undo.undo(1, "test", "a mistake")
    del lake.bronze.kafka.topics["events"][0].records[1]
    lake.bronze.ingest.execute(lake.bronze.planner.plan("again").plan.sequence)  # type: ignore[union-attr]
    assert lake.run() == [2]
    lake.check()
    assert [place[:2] for place in lake.decoded()] == [(0, 0), (0, 2)]


@pytest.mark.e2e
def test_bronze_rows_landed_before_two_rewinds_are_decoded_again(lake: TypedLake) -> None:
    """Their plan is older than the decoded version, and its landing is recorded again."""
    lake.land_and_run(3)
    lake.bronze.run(2)
    DeltaTable(lake.bronze.uri).restore(1)
    lake.bronze.repair.rewind("test", "a mistake")
    assert lake.run() == []
    before = DeltaTable(lake.bronze.uri).version()
    lake.bronze.land_again((0, 0, 3))
    lake.run()
    DeltaTable(lake.bronze.uri).restore(before)
    lake.bronze.repair.rewind("test", "a mistake")
    assert lake.decoding.backlog().stale == 3
    lake.run()
    lake.check()


def test_a_typed_plan_without_quarantined_records_is_undone_and_decoded_again(
    lake: TypedLake,
) -> None:
    """Only the typed table then has the transaction of the removal."""
    lake.land_and_run(4, 1)
    (plan,) = lake.land_and_run(3)
    assert lake.undo.undo(plan, "ops", "wrong").rows == 3
    lake.run()
    lake.check()


def test_undoing_a_typed_plan_removes_its_quarantined_records(lake: TypedLake) -> None:
    """The next run decodes all its records again."""
    lake.land_and_run(4, 1)
    assert lake.undo.undo(1, "test", "a mistake").rows == 4
    assert (lake.quarantined(), lake.decoded()) == ([], [])
    assert lake.run() == [2]
    lake.check()


def recreate(lake: TypedLake, topic_id: str) -> None:
    """Recreate the topic, and accept the recreation."""
    lake.bronze.kafka.create("events", 2, topic_id)
    lake.bronze.decisions.accept_recreation("test", "on purpose")


@pytest.mark.e2e
def test_records_of_all_incarnations_of_a_recreated_topic_are_decoded(lake: TypedLake) -> None:
    """Typed plans exist for each incarnation."""
    lake.bronze.run(3)
    recreate(lake, "id-2")
    lake.bronze.run(2)
    recreate(lake, "id-3")
    lake.bronze.run(1, partition=1)
    assert lake.run() == [1, 2, 3]
    assert len(lake.decoded()) == 6
    assert lake.control.summary("events@typed").topic_id == "id-3"
    lake.bronze.run(1)
    assert lake.run() == [4]
    assert lake.run() == []


@pytest.mark.e2e
def test_an_undo_in_an_older_incarnation_removes_its_typed_rows(lake: TypedLake) -> None:
    """Other records of the undone typed plan are decoded again."""
    lake.bronze.run(3)
    lake.land_and_run(2)
    recreate(lake, "id-2")
    lake.land_and_run(1)
    lake.bronze.undo.undo(2, "test", "a mistake", allow_loss=True)
    assert lake.run() == [3]
    assert len(lake.decoded()) == 4
    assert lake.run() == []


@pytest.mark.e2e
def test_a_partition_only_of_the_old_incarnation_is_decoded_after_the_topic_is_recreated(
    lake: TypedLake,
) -> None:
    """The typed pipeline has no record of the partition."""
    lake.land_and_run(3)
    lake.bronze.run(2, partition=1)
    recreate(lake, "id-2")
    lake.bronze.run(1)
    assert lake.run() == [2, 3]
    assert len(lake.decoded()) == 6


def test_a_changed_schema_raises_an_error(lake: TypedLake) -> None:
    """The table has the columns of the old schema."""
    lake.land_and_run(3)
    lake.bronze.run(1)
    lake.decode = replace(DECODE, value=PayloadSpec(format=Format.BINARY))
    with pytest.raises(TableAltered, match="value is string in the table, not binary"):
        lake.decoding.plan()
