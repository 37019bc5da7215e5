"""A typed table follows its bronze table, whatever happens to either; on real tables."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.plans import wanted
from tests.support.typed_lake import DECODE, TypedLake
from tidemark.adapters.delta.columns import typed_schema
from tidemark.adapters.delta.data_table import DeltaDataTable
from tidemark.adapters.delta.quarantine import TypedTables
from tidemark.core.decoding import DecodedFrom, Format, PayloadSpec
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import PlanKind
from tidemark.errors import ColumnsDiffer, EngineFailed, PlanAbandoned, RecordsMissed
from tidemark.services.planner import PlanOutcome


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
    assert (landing.records, landing.holes) == (4, 0)


def test_only_what_is_in_quarantine_is_decoded_again(lake: TypedLake) -> None:
    """Its rows are closed by the plan that did it; what fails again is there anew."""
    lake.bronze.run(4)
    lake.broken = {1, 3}
    lake.run()
    lake.broken = {3}
    spans = {0: SpanSet((Span(1, 2), Span(3, 4)))}
    plan = lake.decoding.replay(spans).plan
    assert plan is not None
    assert (plan.kind, plan.replaces, plan.spans()) == (PlanKind.BACKFILL, True, spans)
    lake.ingest.execute(plan.sequence)
    lake.check()
    assert lake.quarantined() == [(0, 3)]
    told = [(each.offset, each.plan_sequence, each.closed_by) for each in
            lake.quarantine.records(closed=True)]  # fmt: skip
    assert told == [(1, 1, 2), (3, 1, 2), (3, 2, None)]
    assert lake.run() == []


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

    def append_beside(self, *_: Any) -> None:
        """The quarantine has its commit by now."""
        raise EngineFailed(operation="committing", reason="the machine is gone")


class Dies(TypedLake):
    """A lake whose driver dies between the two commits of a plan."""

    @property
    def table(self) -> TypedTables:
        """The typed table is never reached."""
        typed = Unreachable(str(self.typed_uri), typed_schema(self.decode))
        return TypedTables(typed, self.quarantine)


@pytest.mark.parametrize("broken_then", [(), (1,), (1, 2)])
def test_dying_between_the_two_commits_loses_and_doubles_nothing(
    lake: TypedLake, broken_then: tuple[int, ...]
) -> None:
    """Whether the next driver finds the same to be broken, less, or more."""
    lake.bronze.run(4)
    lake.broken = {1}
    dying = Dies(root=lake.root, broken=lake.broken)
    dying.bronze = lake.bronze
    plan = lake.decoding.plan().plan
    assert plan is not None
    with pytest.raises(EngineFailed):
        dying.ingest.execute(plan.sequence)
    assert lake.quarantined() == [(0, 1)]
    lake.broken = broken_then
    with suppress(RecordsMissed):
        # What is in neither table is told, and decoded by the next run.
        lake.run()
    lake.run()
    decoded = {place[:2] for place in lake.decoded()}
    assert decoded | set(lake.quarantined()) == {(0, n) for n in range(4)}
    assert lake.run() == []
    ledger = lake.control.summary("events@typed")
    assert (ledger.records, ledger.landed) == (4, {0: SpanSet((Span(0, 4),))})


def test_a_plan_that_was_given_up_leaves_nothing_in_quarantine(lake: TypedLake) -> None:
    """Nor can a driver that still works on it add to either table."""
    lake.bronze.run(4)
    lake.broken = {1}
    dying = Dies(root=lake.root, broken=lake.broken)
    dying.bronze = lake.bronze
    plan = lake.decoding.plan().plan
    assert plan is not None
    files = None
    with pytest.raises(EngineFailed):
        dying.ingest.execute(plan.sequence)
    files = lake.sink.write(plan, 1)
    lake.abandon.give_up(plan.sequence, "test", "a mistake")
    assert lake.quarantined() == []
    lake.table.append(plan, files)
    assert (lake.quarantined(), lake.decoded()) == ([], [])
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


def test_a_topic_that_was_made_again_is_decoded_after_the_old_one(lake: TypedLake) -> None:
    """All incarnations that have landed, in their order."""
    lake.bronze.run(3)
    lake.bronze.kafka.create("events", 2, "id-2")
    lake.bronze.decisions.new_incarnation("test", "on purpose")
    lake.bronze.run(2)
    lake.bronze.kafka.create("events", 2, "id-3")
    lake.bronze.decisions.new_incarnation("test", "on purpose")
    lake.bronze.run(1, partition=1)
    assert lake.run() == [1, 2, 3]
    assert len(lake.decoded()) == 6
    assert lake.control.summary("events@typed").topic_id == "id-3"
    lake.bronze.run(1)
    assert lake.run() == [4]
    assert lake.run() == []


def test_another_schema_is_no_silent_change(lake: TypedLake) -> None:
    """The table has columns of the old one."""
    lake.bronze.run(3)
    lake.run()
    lake.bronze.run(1)
    lake.decode = replace(DECODE, value=PayloadSpec(format=Format.BINARY))
    with pytest.raises(ColumnsDiffer, match="its column value is"):
        lake.decoding.plan()
