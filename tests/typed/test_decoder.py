"""A typed table follows its bronze table, whatever happens to either; on real tables."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable

from tests.support.plans import wanted
from tests.support.typed_lake import DECODE, TypedLake
from tidemark.core.errors import TableBehindLedger, TableRestored
from tidemark.core.offsets import Span, SpanSet, without
from tidemark.core.plan import PlanKind
from tidemark.ingest.errors import PlanAbandoned, RowsChanged
from tidemark.ingest.planner import PlanOutcome
from tidemark.lake.data_table import DeltaDataTable
from tidemark.lake.errors import ColumnsDiffer, EngineFailed
from tidemark.spec.decode import DecodedFrom, Format, PayloadSpec
from tidemark.typed.columns import typed_schema
from tidemark.typed.errors import DecodedDifferently, QuarantineRestored
from tidemark.typed.quarantine import DeltaQuarantine, TypedTables

_LONG_AGO = 1_600_000_000


@pytest.fixture
def lake(tmp_path: Path) -> TypedLake:
    """Nothing has landed."""
    return TypedLake(root=tmp_path)


def test_what_has_landed_is_decoded_once(lake: TypedLake) -> None:
    """By plans of its own; with nothing left there is no plan."""
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
    source = DecodedFrom.parse(record.plan.requested_by)
    assert source == DecodedFrom(
        pipeline="events", epoch=0, version=3, fingerprint=DECODE.fingerprint
    )


def test_what_cannot_be_decoded_is_kept_as_it_is(lake: TypedLake) -> None:
    """With its bytes, its reason and its plan; the others are decoded."""
    lake.bronze.run(4)
    lake.broken = {2}
    lake.run()
    lake.check()
    assert lake.quarantined() == [(0, 2)]
    (row,) = DeltaTable(lake.root / DECODE.quarantine_target).to_pyarrow_table().to_pylist()
    (bronze,) = [each for each in lake.bronze_rows() if each["offset"] == 2]
    assert (row["value"], row["reason"], row["plan_sequence"]) == (bronze["value"], "malformed", 1)
    landing = lake.ingest.execute(1).landing
    assert (landing.records, landing.gaps) == (4, 0)


def test_only_what_is_in_quarantine_is_decoded_again(lake: TypedLake) -> None:
    """Its rows are closed by the plan that did it; what fails again is there anew."""
    lake.bronze.run(4)
    lake.broken = {1, 3}
    lake.run()
    lake.broken = {3}
    spans = {0: SpanSet((Span(1, 2), Span(3, 4)))}
    plan = lake.decoding.replay("id-1", spans).plan
    assert plan is not None
    assert (plan.kind, plan.replaces, plan.spans()) == (PlanKind.BACKFILL, True, spans)
    lake.ingest.execute(plan.sequence)
    lake.check()
    assert lake.quarantined() == [(0, 3)]
    told = [(each.offset, each.plan_sequence, each.closed_by) for each in
            lake.quarantine.records(closed=True)]  # fmt: skip
    assert told == [(1, 1, 2), (3, 1, 2), (3, 2, None)]
    assert lake.run() == []


def test_many_records_are_replayed_in_parts(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part once, also of what fails again."""
    monkeypatch.setattr("tidemark.typed.decoder._MOST_REPLAYED", 2)
    lake.bronze.run(5)
    lake.broken = {0, 2, 4}
    lake.run()
    lake.broken = {2}
    left: Mapping[int, SpanSet] = {0: SpanSet(tuple(Span(n, n + 1) for n in (0, 2, 4)))}
    parts = []
    while (plan := lake.decoding.replay("id-1", left).plan) is not None:
        lake.ingest.execute(plan.sequence)
        parts.append(plan.size)
        left = without(left, plan.spans())
    assert parts == [2, 1]
    lake.check()
    assert lake.quarantined() == [(0, 2)]


def test_what_was_undone_leaves_the_typed_table(lake: TypedLake) -> None:
    """And what was decoded with it, and is still there, is decoded again."""
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


def test_what_was_replaced_is_decoded_again(lake: TypedLake) -> None:
    """Though its offsets are decoded already."""
    lake.bronze.run(4)
    lake.run()
    again = replace(wanted((0, 1, 3)), replaces=True)
    plan = lake.bronze.planner.backfill(again, "test").plan
    assert plan is not None
    lake.bronze.ingest.execute(plan.sequence)
    waiting = lake.decoding.waiting()
    assert (waiting.missing, waiting.stale, waiting.more) == (0, 2, 0)
    assert lake.run() == [2]
    lake.check()
    replayed = lake.control.plan_record("events@typed", 2)
    assert replayed is not None
    assert replayed.plan.spans() == {0: SpanSet((Span(1, 3),))}
    assert lake.run() == []


@pytest.mark.e2e
def test_undone_and_landed_anew_between_two_runs(lake: TypedLake) -> None:
    """The offsets look as before; the rows may not be the same."""
    lake.bronze.run(3)
    lake.run()
    lake.bronze.undo.undo(1, "test", "a mistake")
    lake.bronze.ingest.execute(lake.bronze.planner.plan("again").plan.sequence)  # type: ignore[union-attr]
    assert lake.decoding.waiting().stale == 3
    assert lake.run() == [2]
    lake.check()


def test_a_large_past_is_decoded_in_chunks(lake: TypedLake) -> None:
    """Each of so many offsets as a backfill's."""
    lake.bronze.spec = replace(lake.bronze.spec, records_per_chunk=4)
    lake.bronze.run(7)
    lake.bronze.run(3, partition=1)
    assert lake.run() == [1, 2, 3]
    lake.check()


def test_an_open_plan_is_the_next_one(lake: TypedLake) -> None:
    """Whoever asks; what has landed meanwhile comes after it."""
    lake.bronze.run(3)
    made = lake.decoding.plan()
    lake.bronze.run(2)
    assert made.outcome is PlanOutcome.NEW
    again = lake.decoding.plan()
    assert (again.outcome, again.plan) == (PlanOutcome.KEPT, made.plan)
    assert lake.run() == [1, 2]
    lake.check()


def test_an_open_plan_of_another_decoder_is_given_up(lake: TypedLake) -> None:
    """The spec was edited after it was made: nothing is decoded half one way, half another."""
    lake.bronze.run(3)
    lake.decoding.plan()
    lake.decode = replace(DECODE, rules=(("new", "true"),))
    assert lake.run() == [2]
    lake.check()
    with pytest.raises(PlanAbandoned):
        lake.ingest.execute(1)


def test_an_open_plan_over_what_was_undone_is_given_up(lake: TypedLake) -> None:
    """There is nothing to decode it from."""
    lake.bronze.run(3)
    lake.bronze.run(2, partition=1)
    lake.decoding.plan()
    lake.bronze.undo.undo(1, "test", "a mistake")
    assert lake.run() == [2]
    lake.check()
    assert [place[:2] for place in lake.decoded()] == [(1, 0), (1, 1)]


class Unreachable(DeltaDataTable):
    """A typed table that a driver does not live to commit to."""

    def land(self, *_: Any) -> bool:
        """The quarantine has its commit by now."""
        raise EngineFailed(operation="committing", reason="the machine is gone")


class Dies(TypedLake):
    """A lake whose driver dies between the two commits of a plan."""

    @property
    def table(self) -> TypedTables:
        """The typed table is never reached."""
        typed = Unreachable(str(self.typed_uri), typed_schema(self.decode))
        return TypedTables(typed, self.quarantine, self.grown)


@pytest.fixture
def half_done(lake: TypedLake) -> TypedLake:
    """A lake with an open plan whose commit the quarantine has, and the typed table has not."""
    lake.bronze.run(4)
    lake.broken = {1}
    dying = Dies(root=lake.root, broken=lake.broken)
    dying.bronze = lake.bronze
    plan = lake.decoding.plan().plan
    assert plan is not None
    with pytest.raises(EngineFailed):
        dying.ingest.execute(plan.sequence)
    assert (lake.quarantined(), lake.in_quarantine_table()) == ([], [(0, 1)])
    return lake


def test_dying_between_the_two_commits_loses_and_doubles_nothing(half_done: TypedLake) -> None:
    """The next driver finds its own records in quarantine, and adds the others."""
    assert half_done.run() == [1]
    half_done.check()
    assert half_done.quarantined() == [(0, 1)]


@pytest.mark.parametrize("broken_then", [(), (2,), (1, 2)])
def test_two_drivers_that_decode_differently_are_told(
    half_done: TypedLake, broken_then: tuple[int, ...]
) -> None:
    """No record is in both tables, or in neither; given up, the plan leaves nothing."""
    lake = half_done
    lake.broken = broken_then
    with pytest.raises(DecodedDifferently):
        lake.run()
    assert lake.decoded() == []
    lake.abandon.abandon(1, "test", "a rule over the clock")
    assert lake.in_quarantine_table() == []
    assert lake.run() == [2]
    lake.check()
    assert lake.quarantined() == [(0, n) for n in broken_then]


def test_a_driver_of_a_plan_that_was_given_up_adds_nothing(half_done: TypedLake) -> None:
    """To either table."""
    lake = half_done
    record = lake.control.plan_record("events@typed", 1)
    assert record is not None
    files = lake.sink.write(record.plan, 1)
    lake.abandon.abandon(1, "test", "a mistake")
    lake.table.append(record.plan, files)
    assert (lake.in_quarantine_table(), lake.decoded()) == ([], [])
    lake.run()
    lake.check()


def test_a_replay_that_is_given_up_half_way_leaves_its_records_open(lake: TypedLake) -> None:
    """What it had closed is open again, and can be replayed."""
    lake.bronze.run(4)
    lake.broken = {1, 3}
    lake.run()
    before = content(lake)
    spans = {0: SpanSet((Span(1, 2), Span(3, 4)))}
    plan = lake.decoding.replay("id-1", spans).plan
    assert plan is not None
    lake.broken = {3}
    dying = Dies(root=lake.root, broken=lake.broken)
    dying.bronze = lake.bronze
    with pytest.raises(EngineFailed):
        dying.ingest.execute(plan.sequence)
    # It has not landed: nothing that it did counts.
    assert lake.quarantined() == [(0, 1), (0, 3)]
    lake.abandon.abandon(plan.sequence, "test", "a mistake")
    assert lake.quarantined() == lake.in_quarantine_table() == [(0, 1), (0, 3)]
    assert content(lake) == before
    lake.check()
    lake.replay(Span(1, 2), Span(3, 4))
    lake.check()
    assert lake.quarantined() == [(0, 3)]


def content(lake: TypedLake) -> list[tuple[Any, ...]]:
    """What the open records of the quarantine are, by offset."""
    rows = DeltaTable(lake.root / DECODE.quarantine_target).to_pyarrow_table().to_pylist()
    some = [row for row in rows if row["closed_by"] is None]
    return sorted((row["offset"], row["value"], row["headers"]) for row in some)


def test_a_closed_record_keeps_nothing_of_what_it_was(lake: TypedLake) -> None:
    """Its place and its reason alone: what was replaced or undone may be what nobody may keep."""
    lake.bronze.run(4)
    lake.broken = {1}
    lake.run()
    lake.broken = ()
    plan = lake.replay(Span(1, 2))
    (row,) = DeltaTable(lake.root / DECODE.quarantine_target).to_pyarrow_table().to_pylist()
    assert (row["key"], row["value"], row["headers"]) == (None, None, None)
    assert (row["offset"], row["reason"], row["closed_by"]) == (1, "malformed", plan.sequence)


def test_what_could_not_be_erased_is_erased_before_the_next_plan_lands(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody was in the way: the plan has landed all the same."""
    lake.bronze.run(4)
    lake.broken = {1}
    lake.run()
    lake.broken = ()
    with monkeypatch.context() as hindered:
        failed = EngineFailed(operation="erasing", reason="a conflict")
        hindered.setattr(DeltaQuarantine, "erase_closed", Mock(side_effect=[None, failed]))
        plan = lake.replay(Span(1, 2))
    quarantine = DeltaTable(lake.root / DECODE.quarantine_target)

    def kept() -> list[tuple[int, bytes | None]]:
        quarantine.update_incremental()
        rows = quarantine.to_pyarrow_table().to_pylist()
        return [(row["closed_by"], row["value"]) for row in rows]

    assert kept() == [(plan.sequence, b"1")]
    lake.bronze.run(1)
    lake.run()
    lake.check()
    assert kept() == [(plan.sequence, None)]


def test_a_quarantine_that_was_lost_is_missed(lake: TypedLake) -> None:
    """Before anything else lands: the typed table alone has not every record."""
    lake.bronze.run(4)
    lake.broken = {1}
    lake.run()
    shutil.rmtree(lake.root / DECODE.quarantine_target)
    with pytest.raises(TableBehindLedger):
        lake.decoding.plan()


@pytest.mark.parametrize("replayed", [False, True])
def test_a_restore_of_the_quarantine_is_missed(lake: TypedLake, replayed: bool) -> None:
    """A record would be in neither table, or in both; the error says the way out."""
    lake.bronze.run(4)
    lake.broken = {1}
    lake.run()
    table = DeltaTable(lake.root / DECODE.quarantine_target)
    before = table.version()
    lake.broken = ()
    if replayed:
        lake.replay(Span(1, 2))
    else:
        lake.bronze.run(4)
        lake.broken = {1, 6}
        lake.run()
    lake.check()
    table.update_incremental()
    table.restore(before)
    with pytest.raises(QuarantineRestored) as refused:
        lake.decoding.plan()
    assert (refused.value.sequence, refused.value.at) == (2, table.version())
    with pytest.raises(QuarantineRestored):
        lake.decoding.waiting()
    table.restore(refused.value.at - 1)
    assert lake.run() == []
    lake.check()


def test_a_restore_of_the_quarantine_can_be_answered_by_an_undo(lake: TypedLake) -> None:
    """The bronze table still has what its files had."""
    lake.bronze.run(4)
    lake.run()
    table = DeltaTable(lake.root / DECODE.quarantine_target)
    before = table.version()
    lake.bronze.run(4)
    lake.broken = {6}
    lake.run()
    table.update_incremental()
    table.restore(before)
    lake.undo.undo(2, "test", "its quarantine was restored")
    assert lake.run() == [3]
    lake.check()
    assert lake.quarantined() == [(0, 6)]


def forget(lake: TypedLake) -> None:
    """Let the typed table's log forget its commits, as it does after a month."""
    log = lake.typed_uri / "_delta_log"
    for file in log.glob("0*"):
        os.utime(file, (_LONG_AGO, _LONG_AGO))
    DeltaTable(lake.typed_uri).create_checkpoint()
    DeltaTable(lake.typed_uri).cleanup_metadata()
    assert not (log / f"{0:020}.json").exists()


def test_a_log_that_forgets_a_plan_without_rows_loses_none_of_its_records(lake: TypedLake) -> None:
    """All of a plan's records were quarantined: only the ledger knows then that it landed."""
    lake.bronze.run(2)
    lake.broken = {0, 1}
    lake.run()
    lake.bronze.run(3)
    lake.run()
    forget(lake)
    lake.bronze.run(1)
    lake.run()
    lake.check()
    assert lake.quarantined() == [(0, 0), (0, 1)]
    lake.bronze.land_again((0, 0, 1))
    lake.broken = {1}
    lake.run()
    lake.check()
    assert lake.quarantined() == [(0, 1)]


def test_a_log_that_forgets_a_replay_whose_rows_were_replaced_doubles_none(lake: TypedLake) -> None:
    """What it had closed stays closed."""
    lake.bronze.run(4)
    lake.broken = {1}
    lake.run()
    lake.broken = ()
    lake.replay(Span(1, 2))
    lake.bronze.land_again((0, 1, 2))
    lake.run()
    lake.check()
    forget(lake)
    lake.check()
    assert lake.quarantined() == []


def test_a_typed_row_that_somebody_deleted_comes_back_as_the_error_says(lake: TypedLake) -> None:
    """What would be left of its plan cannot be told, when a part of it is replaced."""
    lake.bronze.run(4)
    lake.run()
    DeltaTable(lake.typed_uri).delete('"offset" = 1')
    lake.bronze.land_again((0, 0, 1), requested_by="to 1")
    with pytest.raises(RowsChanged) as refused:
        lake.run()
    assert "`tidemark backfill events --offsets 0:0-4 --chunk 4" in str(refused.value)
    lake.bronze.land_again((0, 0, 4), requested_by="to 4")
    lake.run()
    lake.check()
    assert len(lake.decoded()) == 4


def test_a_restore_of_the_typed_table_is_followed(lake: TypedLake) -> None:
    """By a rewind: what it took out of the typed table, quarantined or not, is decoded again."""
    lake.bronze.run(4)
    lake.broken = {1}
    lake.run()
    lake.bronze.run(4)
    lake.broken = {1, 6}
    lake.run()
    DeltaTable(lake.typed_uri).restore(1)
    with pytest.raises(TableRestored):
        lake.decoding.plan()
    lake.repair.rewind("test", "a mistake")
    # Nobody would take it away later: what is decoded anew may be undone as a whole.
    assert lake.in_quarantine_table() == [(0, 1)]
    assert lake.run() == [3]
    lake.check()
    assert lake.quarantined() == lake.in_quarantine_table() == [(0, 1), (0, 6)]


def test_a_restore_to_before_a_replay_is_followed(lake: TypedLake) -> None:
    """What the replay had closed, and erased, is decoded anew."""
    lake.bronze.run(4)
    lake.broken = {1, 3}
    lake.run()
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
def test_a_new_target_is_begun_anew(lake: TypedLake) -> None:
    """Another schema is another table: a rewind says that it is empty, and all is decoded."""
    lake.bronze.run(4)
    lake.run()
    lake.decode = replace(DECODE, target="silver/other")
    with pytest.raises(TableBehindLedger):
        lake.decoding.plan()
    lake.repair.rewind("test", "another schema")
    assert lake.run() == [2]
    lake.check()


def test_bronze_rows_that_a_restore_took_out_for_now_are_no_gaps(lake: TypedLake) -> None:
    """A plan over them waits until somebody has put the bronze table right."""
    lake.bronze.run(3)
    lake.bronze.run(2)
    assert lake.decoding.plan().plan is not None
    version = DeltaTable(lake.bronze.uri).version()
    DeltaTable(lake.bronze.uri).restore(version - 1)
    with pytest.raises(TableRestored):
        lake.ingest.execute(1)
    DeltaTable(lake.bronze.uri).restore(version)
    assert lake.run() == [1]
    lake.check()


def test_rows_that_bronze_has_no_more_make_way(lake: TypedLake) -> None:
    """Undone, and landed again without a record that Kafka has compacted away meanwhile."""
    lake.bronze.run(3)
    lake.run()
    lake.bronze.undo.undo(1, "test", "a mistake")
    del lake.bronze.kafka.topics["events"][0].records[1]
    lake.bronze.ingest.execute(lake.bronze.planner.plan("again").plan.sequence)  # type: ignore[union-attr]
    assert lake.run() == [2]
    lake.check()
    assert [place[:2] for place in lake.decoded()] == [(0, 0), (0, 2)]


@pytest.mark.e2e
def test_rows_of_bronze_after_two_rewinds_are_decoded_anew(lake: TypedLake) -> None:
    """Their plan is older than what was decoded, and their landing is told anew."""
    lake.bronze.run(3)
    lake.run()
    lake.bronze.run(2)
    DeltaTable(lake.bronze.uri).restore(1)
    lake.bronze.repair.rewind("test", "a mistake")
    assert lake.run() == []
    before = DeltaTable(lake.bronze.uri).version()
    lake.bronze.land_again((0, 0, 3))
    lake.run()
    DeltaTable(lake.bronze.uri).restore(before)
    lake.bronze.repair.rewind("test", "a mistake")
    assert lake.decoding.waiting().stale == 3
    lake.run()
    lake.check()


def test_a_plan_that_was_undone_leaves_nothing_in_quarantine(lake: TypedLake) -> None:
    """It is decoded again by the next run: an undo by hand is a replay of all."""
    lake.bronze.run(4)
    lake.broken = {1}
    lake.run()
    assert lake.undo.undo(1, "test", "a mistake").rows == 4
    assert (lake.quarantined(), lake.decoded()) == ([], [])
    assert lake.run() == [2]
    lake.check()


def make_again(lake: TypedLake, topic_id: str) -> None:
    """The topic is deleted and made again, and somebody has accepted that."""
    lake.bronze.kafka.create("events", 2, topic_id)
    lake.bronze.decisions.new_incarnation("test", "on purpose")


@pytest.mark.e2e
def test_a_topic_that_was_made_again_is_decoded_with_all_before(lake: TypedLake) -> None:
    """Whichever incarnation it is of, whatever has landed is decoded."""
    lake.bronze.run(3)
    make_again(lake, "id-2")
    lake.bronze.run(2)
    make_again(lake, "id-3")
    lake.bronze.run(1, partition=1)
    assert lake.run() == [1, 2, 3]
    assert len(lake.decoded()) == 6
    assert lake.control.summary("events@typed").topic_id == "id-3"
    lake.bronze.run(1)
    assert lake.run() == [4]
    assert lake.run() == []


@pytest.mark.e2e
def test_an_undo_in_an_older_incarnation_is_followed(lake: TypedLake) -> None:
    """What was decoded with it and is still there is decoded again."""
    lake.bronze.run(3)
    lake.bronze.run(2)
    lake.run()
    make_again(lake, "id-2")
    lake.bronze.run(1)
    lake.run()
    lake.bronze.undo.undo(2, "test", "a mistake")
    assert lake.run() == [3]
    assert len(lake.decoded()) == 4
    assert lake.run() == []


@pytest.mark.e2e
def test_a_partition_that_landed_before_the_topic_was_made_again(lake: TypedLake) -> None:
    """Nobody has told the typed pipeline of it; its records are decoded all the same."""
    lake.bronze.run(3)
    lake.run()
    lake.bronze.run(2, partition=1)
    make_again(lake, "id-2")
    lake.bronze.run(1)
    assert lake.run() == [2, 3]
    assert len(lake.decoded()) == 6


def test_another_schema_is_no_silent_change(lake: TypedLake) -> None:
    """The table has columns of the old one."""
    lake.bronze.run(3)
    lake.run()
    lake.bronze.run(1)
    lake.decode = replace(DECODE, value=PayloadSpec(format=Format.BINARY))
    with pytest.raises(ColumnsDiffer, match="value is string in the table, not binary"):
        lake.decoding.plan()
