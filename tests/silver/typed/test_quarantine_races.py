"""Repairs, undos and drivers between the commits of a typed table and its quarantine."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from tests.support.file_lake import put_back, remove_old_commits
from tests.support.plans import UNCOMPARED
from tests.support.services import with_ports
from tests.support.typed_lake import TypedLake
from tests.support.zombies import Killed, PortWithStep, kill
from tidemark.bronze.ingest.errors import PlanCancelled, PlanStillOpen
from tidemark.bronze.repair.errors import NothingToDo, UnexplainedRows
from tidemark.bronze.repair.rewind import Repair
from tidemark.core.errors import (
    LedgerBehindTable,
    PlanCannotLand,
    RepairUnfinished,
    TableBehindLedger,
)
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import Plan
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.errors import RemovalFenced, TableReplaced, TransactionConflict
from tidemark.silver.typed.errors import QuarantineRestored
from tidemark.silver.typed.quarantine import DeltaQuarantine, TypedTablePair

pytestmark = pytest.mark.slow

FIRST_PLAN = 1
"""Version of the typed table after its first plan."""


@pytest.fixture
def lake(tmp_path: Path) -> TypedLake:
    """Two plans of four records have landed; the record at offset 1 is in quarantine."""
    lake = TypedLake(root=tmp_path)
    lake.land_and_run(4, 1)
    lake.land_and_run(4, 1, 5)
    lake.check()
    return lake


def after(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, act: Callable[[], object]
) -> None:
    """Act once, after the next call of a method."""
    method = getattr(owner, name)

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        result = method(self, *arguments, **named)
        monkeypatch.undo()
        act()
        return result

    monkeypatch.setattr(owner, name, call)


def restore_typed(lake: TypedLake, version: int) -> None:
    """Restore the typed table."""
    DeltaTable(lake.typed_uri).restore(version)


def decode_plan(lake: TypedLake, records: int) -> Plan:
    """Land records, and plan their decode. Some offsets cannot be decoded."""
    lake.bronze.run(records)
    lake.broken = {1, 5, 9}
    plan = lake.decoding.plan().plan
    assert plan is not None
    return plan


def replay_plan(lake: TypedLake) -> Plan:
    """Plan a replay of the quarantined record, which can be decoded now."""
    lake.broken = ()
    plan = lake.decoding.replay("id-1", {0: SpanSet.of([Span(1, 2)])}).plan
    assert plan is not None
    return plan


@pytest.mark.parametrize("restores", [True, False])
def test_i1_an_undo_keeps_the_quarantine_of_a_plan_that_a_repair_has_recorded(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch, restores: bool
) -> None:
    """The repair begins after the undo has removed the typed rows."""
    version = DeltaTable(lake.typed_uri).version()

    def repair() -> None:
        if restores:
            restore_typed(lake, version)
            lake.repair.rewind("other", "the rows are right")
        else:
            lake.repair.rebuild("other", "the control table is older")

    after(monkeypatch, DeltaDataTable, "remove_rows", repair)
    with pytest.raises(RemovalFenced):
        lake.undo.undo(2, "test", "wrong")
    lake.run()
    lake.check_rows()


def test_i1_a_killed_rewind_keeps_the_quarantine_until_it_has_recorded(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator then restores the table again, because the first RESTORE was a mistake."""
    newest = DeltaTable(lake.typed_uri).version()
    restore_typed(lake, FIRST_PLAN)
    after(monkeypatch, TypedTablePair, "fence_chains", kill)
    with pytest.raises(Killed):
        lake.repair.rewind("test", "a mistake")
    restore_typed(lake, newest)
    lake.repair.rewind("test", "the RESTORE was a mistake")
    lake.run()
    lake.check_rows()
    assert lake.quarantined() == [(0, 1), (0, 5)]


def test_i1_a_stale_rewind_keeps_the_quarantine_of_a_plan_that_a_newer_one_has_recorded(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer one follows a second RESTORE, before the first removes records of the plan."""
    newest = DeltaTable(lake.typed_uri).version()
    restore_typed(lake, FIRST_PLAN)
    withdraw = DeltaQuarantine.withdraw

    def repair_before(*arguments: Any) -> None:
        monkeypatch.undo()
        restore_typed(lake, newest)
        lake.repair.rewind("other", "the RESTORE was a mistake")
        withdraw(*arguments)

    monkeypatch.setattr(DeltaQuarantine, "withdraw", repair_before)
    with pytest.raises(NothingToDo):
        lake.repair.rewind("test", "a mistake")
    lake.run()
    lake.check_rows()
    assert lake.quarantined() == [(0, 1), (0, 5)]


def test_a_repeated_rewind_removes_the_quarantined_records_that_a_killed_one_left(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed one has recorded the plan as unread, so the second has nothing else to do."""
    restore_typed(lake, FIRST_PLAN)
    monkeypatch.setattr(Repair, "_remove_leftovers", lambda *_: kill())
    with pytest.raises(Killed):
        lake.repair.rewind("test", "a mistake")
    monkeypatch.undo()
    assert lake.in_quarantine_table() == [(0, 1), (0, 5)]
    with pytest.raises(NothingToDo):
        lake.repair.rewind("test", "again")
    assert lake.in_quarantine_table() == [(0, 1)]
    lake.run()
    lake.check_rows()


def test_a_driver_whose_plan_is_abandoned_before_its_first_commit_reports_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records are not in the quarantine, and this is no difference between two drivers."""
    lake = TypedLake(root=tmp_path)
    lake.bronze.run(4)
    lake.broken = {1}
    plan = lake.decoding.plan().plan
    assert plan is not None
    has_transaction = DeltaDataTable.has_transaction

    def abandon_after(table: DeltaDataTable, of: Plan) -> bool:
        found = has_transaction(table, of)
        monkeypatch.undo()
        lake.abandon.abandon(plan.sequence, "test", "not wanted")
        return found

    monkeypatch.setattr(DeltaDataTable, "has_transaction", abandon_after)
    with pytest.raises(PlanCancelled):
        lake.ingest.execute(plan.sequence)


def test_i1_a_driver_lands_nothing_between_the_two_fences_of_a_repair(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repair fences the quarantine first."""
    plan = replay_plan(lake)
    files = lake.sink.write(plan, 1)
    restore_typed(lake, FIRST_PLAN)

    def fence_the_quarantine() -> None:
        after(monkeypatch, DeltaDataTable, "fence_chains", kill)
        with pytest.raises(Killed):
            lake.repair.rewind("ops:1", "a mistake")

    after(monkeypatch, DeltaQuarantine, "erase_closed", fence_the_quarantine)
    with pytest.raises(TransactionConflict):
        lake.table.append(plan, files, UNCOMPARED)
    lake.repair.rewind("ops:2", "a mistake")
    lake.run()
    lake.check_rows()


def test_i1_a_rewind_completes_a_fence_of_the_quarantine_only(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the operator has restored the typed table, and nothing else is to do."""
    newest = DeltaTable(lake.typed_uri).version()
    restore_typed(lake, FIRST_PLAN)
    after(monkeypatch, DeltaDataTable, "fence_chains", kill)
    with pytest.raises(Killed):
        lake.repair.rewind("test", "a mistake")
    restore_typed(lake, newest)
    with pytest.raises(RepairUnfinished):
        lake.run()
    lake.repair.rewind("test", "the RESTORE was a mistake")
    lake.broken = {9}
    lake.land_and_run(3, 9)
    lake.broken = ()
    lake.replay(Span(1, 2))
    lake.check_rows()
    assert lake.quarantined() == [(0, 5), (0, 9)]


@pytest.mark.parametrize("is_replay", [True, False])
def test_a_rewind_withdraws_an_open_plan_from_the_quarantine(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch, is_replay: bool
) -> None:
    """Its driver was killed between its two commits. Otherwise the status would count wrongly."""
    plan = replay_plan(lake) if is_replay else decode_plan(lake, 3)
    after(monkeypatch, DeltaQuarantine, "append", kill)
    with pytest.raises(Killed):
        lake.ingest.execute(plan.sequence)
    restore_typed(lake, FIRST_PLAN)
    lake.repair.rewind("test", "a mistake")
    lake.broken = {5} if is_replay else ()
    lake.run()
    lake.check_rows()
    assert lake.quarantine.count_open() == len(lake.quarantined())


@pytest.mark.parametrize("corrected", [True, False])
def test_i1_a_restore_of_the_quarantine_during_a_landing_doubles_no_record(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch, corrected: bool
) -> None:
    """The fix of the error restores the record; it must not be decoded again."""
    uri = lake.quarantine_uri
    version = DeltaTable(uri).version()
    plan = decode_plan(lake, 4)
    after(monkeypatch, DeltaQuarantine, "check_same", lambda: DeltaTable(uri).restore(version))
    with pytest.raises(QuarantineRestored) as refused:
        lake.ingest.execute(plan.sequence)
    DeltaTable(uri).restore(refused.value.complete_version)
    lake.broken = {1, 5} if corrected else {1, 5, 9}
    lake.run()
    lake.check_rows()


@pytest.mark.parametrize("is_replay", [True, False])
def test_a_rewind_repairs_a_restored_quarantine_if_the_typed_table_is_restored_too(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch, is_replay: bool
) -> None:
    """The driver was killed before it recorded the plan. Files of the complete version are gone."""
    before = [DeltaTable(uri).version() for uri in (lake.quarantine_uri, lake.typed_uri)]
    plan = replay_plan(lake) if is_replay else decode_plan(lake, 4)
    after(monkeypatch, TypedTablePair, "append", kill)
    with pytest.raises(Killed):
        lake.ingest.execute(plan.sequence)
    DeltaTable(lake.quarantine_uri).restore(before[0])
    with pytest.raises(QuarantineRestored) as refused:
        lake.run()
    assert refused.value.sequence == plan.sequence
    # Only a recorded plan can be undone.
    with pytest.raises(PlanStillOpen, match="has not landed"):
        lake.undo.undo(plan.sequence, "ops", "its quarantine was restored")
    restore_typed(lake, before[1])
    lake.repair.rewind("ops", "both tables were restored")
    lake.run()
    lake.check()


@pytest.mark.parametrize("undone", [False, True])
def test_a_rewind_decodes_the_records_that_an_older_copy_of_the_quarantine_lacks(
    lake: TypedLake, tmp_path: Path, undone: bool
) -> None:
    """I3. The typed table is the newer one."""
    before = DeltaTable(lake.quarantine_uri).version()
    if undone:
        lake.undo.undo(2, "ops", "wrong")
    copy = shutil.copytree(lake.quarantine_uri, tmp_path / "copy")
    if undone:
        restore_typed(lake, 2)
        DeltaTable(lake.quarantine_uri).restore(before)
        lake.repair.rewind("ops:1", "it was right")
    else:
        lake.land_and_run(3, 9)
    put_back(copy, lake.quarantine_uri)
    lake.repair.rewind("ops:2", "from a backup")
    lake.land_and_run(1)
    lake.check()


def test_a_quarantine_from_before_an_undo_is_noticed_and_repaired(tmp_path: Path) -> None:
    """I1. Otherwise the quarantine has the records of the undone plan twice."""
    lake = TypedLake(tmp_path, broken={1, 4})
    for _ in range(2):
        lake.land_and_run(3)
    copy = shutil.copytree(lake.quarantine_uri, tmp_path / "copy")
    lake.undo.undo(2, "ops", "wrong")
    put_back(copy, lake.quarantine_uri)
    with pytest.raises(TableBehindLedger, match="lacks the undo"):
        lake.run()
    lake.repair.rewind("ops", "a backup")
    lake.run()
    lake.check()


def run_with_broken(lake: TypedLake) -> None:
    """Decode four records, one of which cannot be decoded."""
    lake.broken = {1, 5, 9}
    lake.run()


def replay_one(lake: TypedLake) -> None:
    """Decode the record at offset 1 again; its content is erased."""
    lake.replay(Span(1, 2))


def replay_without_log(lake: TypedLake) -> None:
    """Replay the record, and remove the old commits of the quarantine."""
    replay_one(lake)
    remove_old_commits(lake.quarantine_uri)


def undo_newest(lake: TypedLake) -> None:
    """Undo plan 2."""
    lake.undo.undo(2, "ops", "wrong")


def undo_and_run(lake: TypedLake) -> None:
    """Undo plan 2, and decode its records again."""
    undo_newest(lake)
    lake.run()


def restore_and_rewind(lake: TypedLake) -> None:
    """A rewind withdraws plan 2 from the quarantine."""
    restore_typed(lake, FIRST_PLAN)
    lake.repair.rewind("ops:0", "a mistake")


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
@pytest.mark.parametrize(
    "change",
    [
        run_with_broken,
        replay_one,
        replay_without_log,
        undo_newest,
        undo_and_run,
        restore_and_rewind,
    ],
)
def test_i3_a_quarantine_that_is_newer_than_its_typed_table_is_noticed_and_repaired(
    lake: TypedLake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[TypedLake], None],
    killed: bool,
) -> None:
    """It has erased or removed records that the other tables rely on."""
    lake.bronze.run(4)
    restored = [Path(lake.bronze.control_uri), lake.typed_uri]
    copies = [shutil.copytree(each, tmp_path / each.name) for each in restored]
    change(lake)
    for copy, each in zip(copies, restored, strict=True):
        put_back(copy, each)
    with pytest.raises((LedgerBehindTable, RepairUnfinished)):
        lake.run()
    if killed:
        after(monkeypatch, TypedTablePair, "fence_chains", kill)
        with pytest.raises(Killed):
            lake.repair.rebuild("ops:1", "a backup")
    lake.repair.rebuild("ops:2", "a backup")
    lake.land_and_run(1, *lake.broken)
    lake.check_rows()
    lake.verifier.verify().check()


def test_i1_a_restore_of_the_quarantine_to_before_an_undo_is_noticed(lake: TypedLake) -> None:
    """Otherwise records of the undone plan are in the quarantine twice, or in both tables."""
    version = DeltaTable(lake.quarantine_uri).version()
    lake.undo.undo(2, "ops", "wrong")
    DeltaTable(lake.quarantine_uri).restore(version)
    with pytest.raises(QuarantineRestored) as refused:
        lake.run()
    DeltaTable(lake.quarantine_uri).restore(refused.value.complete_version)
    lake.run()
    lake.check()


def test_i3_a_driver_erases_no_record_that_a_repair_has_reopened(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has read which plans have landed. It erases between two steps of a rewind."""
    version = DeltaTable(lake.typed_uri).version()
    plan = replay_plan(lake)
    update, remove_leftovers = DeltaTable.update, TypedTablePair.remove_leftovers

    def rewind_before(table: DeltaTable, *arguments: Any, **named: Any) -> None:
        def erase_before(*leftovers: Any) -> None:
            monkeypatch.undo()
            with pytest.raises(CommitFailedError):
                update(table, *arguments, **named)
            remove_leftovers(*leftovers)

        restore_typed(lake, version)
        monkeypatch.setattr(DeltaTable, "update", update)
        monkeypatch.setattr(TypedTablePair, "remove_leftovers", erase_before)
        lake.repair.rewind("ops", "a mistake")
        kill()

    monkeypatch.setattr(DeltaTable, "update", rewind_before)
    with pytest.raises(Killed):
        lake.ingest.execute(plan.sequence)
    lake.broken = {1, 5}
    lake.run()
    lake.check()


def test_a_run_after_a_half_fenced_abandon_raises_plan_fenced(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The abandon was killed after it had fenced the typed table only."""
    lake.bronze.run(4)
    plan = lake.decoding.plan().plan
    assert plan is not None
    after(monkeypatch, DeltaDataTable, "fence", kill)
    with pytest.raises(Killed):
        lake.abandon.abandon(plan.sequence, "ops", "hung")
    with pytest.raises(PlanCannotLand, match="fenced its transaction"):
        lake.run()
    lake.abandon.abandon(plan.sequence, "ops", "hung")
    lake.run()
    lake.check()


def test_a_quarantine_that_is_replaced_during_a_decode_gets_no_records(tmp_path: Path) -> None:
    """I3. Otherwise the records of a plan that the older copy lacks are lost."""
    lake = TypedLake(tmp_path, broken={1, 4})
    lake.land_and_run(3)
    copy = shutil.copytree(lake.quarantine_uri, tmp_path / "copy")
    lake.land_and_run(3)
    lake.bronze.run(3)
    plan = lake.decoding.plan().plan
    assert plan is not None
    sink = PortWithStep(
        lake.ingest.sink, "write", after=lambda: put_back(copy, lake.quarantine_uri)
    )
    with pytest.raises(TableReplaced):
        with_ports(lake.ingest, sink=sink).execute(plan.sequence)
    with pytest.raises(TableBehindLedger):
        lake.run()


def test_a_rewind_decodes_the_records_that_an_interrupted_undo_removed(
    lake: TypedLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3. The control table is from before the undo, which removed the typed rows only."""
    control = Path(lake.bronze.control_uri)
    copy = shutil.copytree(control, tmp_path / "copy")
    after(monkeypatch, DeltaDataTable, "remove_rows", kill)
    with pytest.raises(Killed):
        lake.undo.undo(2, "ops", "wrong")
    put_back(copy, control)
    with pytest.raises(LedgerBehindTable):
        lake.land_and_run(1)
    lake.repair.rewind("ops:1", "from a backup")
    lake.land_and_run(1)
    lake.check()


@pytest.mark.parametrize("cleaned", [[], ["quarantine"], ["quarantine", "typed"]])
def test_deleted_typed_rows_are_not_decoded_again_after_a_cleanup_of_the_logs(
    lake: TypedLake, cleaned: list[str]
) -> None:
    """An earlier repair has begun the epoch in which the rows landed."""
    before = DeltaTable(lake.typed_uri).version()
    lake.land_and_run(2)
    restore_typed(lake, before)
    lake.repair.rewind("ops:1", "a mistake")
    lake.run()
    lake.land_and_run(3)
    DeltaTable(lake.typed_uri).delete("offset >= 10")
    for name in cleaned:
        remove_old_commits(lake.quarantine_uri if name == "quarantine" else lake.typed_uri)
    before = DeltaTable(lake.typed_uri).version()
    lake.land_and_run(1)
    restore_typed(lake, before)
    lake.repair.rewind("ops:2", "a second mistake")
    lake.run()
    assert [offset for _, offset, _ in lake.decoded()] == [0, 2, 3, 4, 6, 7, 8, 9, 13]


def test_a_quarantine_from_before_a_replay_is_repaired_by_the_statement_of_the_runbook(
    tmp_path: Path,
) -> None:
    """The copy has the replayed record open again, and the typed table has its row."""
    lake = TypedLake(tmp_path / "lake")
    lake.land_and_run(4, 1)
    copy = shutil.copytree(lake.quarantine_uri, tmp_path / "copy")
    lake.broken = set()
    lake.replay(Span(1, 2))
    put_back(copy, lake.quarantine_uri)
    with pytest.raises(TableBehindLedger):
        lake.run()
    with pytest.raises(UnexplainedRows):
        lake.repair.rewind("ops", "a backup")
    (
        DeltaTable(lake.quarantine_uri)
        .merge(
            pa.table(DeltaTable(lake.typed_uri).scan()).select(["topic_id", "partition", "offset"]),
            "q.topic_id = t.topic_id AND q.partition = t.partition AND q.offset = t.offset",
            source_alias="t",
            target_alias="q",
        )
        .when_matched_delete("q.closed_by IS NULL")
        .execute()
    )
    lake.repair.rewind("ops", "a backup")
    lake.run()
    lake.check()


def test_a_quarantine_that_no_statement_repairs_can_be_moved_away(tmp_path: Path) -> None:
    """In the copy, a record is open whose replay was undone. The typed table lacks its row."""
    lake = TypedLake(tmp_path / "lake")
    lake.land_and_run(4, 1)
    copy = shutil.copytree(lake.quarantine_uri, tmp_path / "copy")
    lake.broken = set()
    replayed = lake.replay(Span(1, 2))
    lake.undo.undo(replayed.sequence, "ops", "wrong")
    put_back(copy, lake.quarantine_uri)
    with pytest.raises(UnexplainedRows):
        lake.repair.rewind("ops:1", "a backup")
    shutil.move(lake.quarantine_uri, tmp_path / "away")
    lake.repair.rewind("ops:2", "a backup")
    lake.run()
    lake.check()
