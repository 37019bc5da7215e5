"""Tests of gaps and missing rows in the coverage, over tables in memory and on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake
from deltalake.transaction import AddAction
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.file_lake import FileLake, double
from tests.support.memory import MemoryTable
from tests.support.plans import MemoryPipeline, make_spec, wanted
from tests.support.services import Services
from tidemark.core.errors import InvalidSelection, TidemarkError
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.origins import RunOrigin
from tidemark.core.plain import plain
from tidemark.core.watermarks import TopicWatermarks
from tidemark.delta.compaction import Compaction
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.errors import ControlConflict, ForeignTable
from tidemark.kafka.errors import KafkaUnavailable
from tidemark.ops.report import coverage_rows
from tidemark.ops.report.coverage import OffsetState, PartitionCoverage
from tidemark.spec.model import StartPolicy


def rows_of(services: Services, start: int | None = None, end: int | None = None) -> dict[str, str]:
    """Return the spans of each state of partition 0 as text, after its rows were read."""
    (found,) = services.pipeline.report.coverage.read(0, start, end).partitions
    return {state.value: " ".join(map(str, some)) for state, some in found.states.items()}


def lose(pipeline: MemoryPipeline, *offsets: int) -> None:
    """Remove rows from partition 0 of the table, as another program would."""
    pipeline.table.rows = [row for row in pipeline.table.rows if row[1:3] not in _in_zero(offsets)]


def _in_zero(offsets: tuple[int, ...]) -> set[tuple[int, int]]:
    return {(0, offset) for offset in offsets}


@pytest.fixture
def pipeline() -> MemoryPipeline:
    """Return a pipeline whose first plan has 4 records, and whose second has 2 gaps beside 3."""
    made = MemoryPipeline()
    made.produce(0, 4)
    made.run("a")
    made.produce(0, 2)
    made.kafka.add_gaps("events", 0, 2)
    made.produce(0, 1)
    made.run("b")
    return made


# -- counts --------------------------------------------------------------------------------------


def test_landed_offsets_without_a_row_are_gaps_if_no_row_of_their_range_is_missing(
    pipeline: MemoryPipeline,
) -> None:
    assert rows_of(pipeline) == {"gap": "[6, 8)", "landed": "[0, 6) [8, 9)"}
    without_rows = pipeline.pipeline.report.coverage.read().partitions[0]
    assert without_rows.read is None
    assert without_rows.states == {OffsetState.LANDED: SpanSet((Span(0, 9),))}


def test_an_offset_of_a_range_without_gaps_is_missing(pipeline: MemoryPipeline) -> None:
    lose(pipeline, 1, 3)
    assert rows_of(pipeline) == {
        "missing": "[1, 2) [3, 4)",
        "gap": "[6, 8)",
        "landed": "[0, 1) [2, 3) [4, 6) [8, 9)",
    }


def test_gaps_beside_a_missing_row_of_their_range_are_unclear(pipeline: MemoryPipeline) -> None:
    """The missing row may be outside the window."""
    lose(pipeline, 8)
    assert rows_of(pipeline) == {"gap or missing": "[6, 9)", "landed": "[0, 6)"}
    assert rows_of(pipeline, 5, 7) == {"gap or missing": "[6, 7)", "landed": "[0, 6) [7, 9)"}


def test_a_row_of_another_plan_does_not_count_for_the_range(pipeline: MemoryPipeline) -> None:
    """A program removed a row, and wrote another one at a gap."""
    lose(pipeline, 8)
    pipeline.table.rows.append(("id-1", 0, 6, 1))
    assert rows_of(pipeline)["gap or missing"] == "[7, 9)"


def test_rows_of_another_incarnation_do_not_count(pipeline: MemoryPipeline) -> None:
    lose(pipeline, 1)
    pipeline.table.rows.append(("id-0", 0, 1, 1))
    assert rows_of(pipeline)["missing"] == "[1, 2)"


def test_an_unproven_gap_is_no_gap() -> None:
    """Kafka deleted the offset before a second reader could look."""
    made = MemoryPipeline()
    made.kafka.add_gaps("events", 0, 2)
    made.produce(0, 2)
    made.table.after_commit = lambda _: made.kafka.delete_records("events", 0, before=1)
    made.run("a")
    assert rows_of(made) == {"gap or missing": "[0, 2)", "landed": "[2, 4)"}


def test_replaced_and_undone_rows_are_not_missing(pipeline: MemoryPipeline) -> None:
    request = replace(wanted((0, 2, 7)), replaces=True)
    again = pipeline.planner.backfill(request, RunOrigin("again")).plan
    assert again is not None
    assert rows_of(pipeline) == {
        "in an open plan": "[2, 7)",
        "gap": "[7, 8)",
        "landed": "[0, 2) [8, 9)",
    }
    pipeline.ingest.execute(again.sequence)
    assert rows_of(pipeline) == {"gap": "[6, 8)", "landed": "[0, 6) [8, 9)"}
    assert pipeline.pipeline.report.coverage.read(0).partitions[0].plans == [
        (1, Span(0, 2)),
        (3, Span(2, 7)),
        (2, Span(7, 9)),
    ]
    pipeline.undo.undo(again.sequence, "ops", "wrong")
    assert rows_of(pipeline) == {
        "unread": "[2, 7)",
        "gap": "[7, 8)",
        "landed": "[0, 2) [8, 9)",
    }


def test_without_kafka_a_window_has_its_gaps_missing_rows_and_the_error(
    pipeline: MemoryPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(pipeline, 1)
    failed = KafkaUnavailable(operation="describe", reason="no broker")

    def fail(*_: object) -> TopicWatermarks:
        raise failed

    monkeypatch.setattr(pipeline.kafka, "topic_watermarks", fail)
    read = pipeline.pipeline.report.coverage.read(0)
    assert read.kafka_error is failed
    (found,) = read.partitions
    assert found.read == Span(0, 9)
    assert {state.value: " ".join(map(str, some)) for state, some in found.states.items()} == {
        "missing": "[1, 2)",
        "gap": "[6, 8)",
        "landed": "[0, 1) [2, 6) [8, 9)",
    }
    assert found.plans == [(1, Span(0, 4)), (2, Span(4, 9))]
    absent = pipeline.pipeline.report.coverage.read(7)
    assert (absent.partitions, absent.kafka_error) == ((), failed)


def test_the_plans_of_a_window_include_open_ones(pipeline: MemoryPipeline) -> None:
    pipeline.produce(0, 3)
    pipeline.plan("c")
    (found,) = pipeline.pipeline.report.coverage.read(0, 3, 10).partitions
    assert found.read == Span(3, 10)
    assert found.plans == [(1, Span(0, 4)), (2, Span(4, 9)), (3, Span(9, 12))]
    assert found.plans_in(Span(8, 10)) == [2, 3]
    assert found.as_record()["plans"] == [[1, 0, 4], [2, 4, 9], [3, 9, 12]]
    assert found.as_record()["read"] == [3, 10]


def test_rows_that_an_undo_removes_meanwhile_are_not_missing(
    pipeline: MemoryPipeline,
) -> None:
    class Undoing(MemoryTable):
        def spans_by_plan(
            self, topic_id: str, partition: int, window: Span, most: int
        ) -> Mapping[int, SpanSet] | None:
            if pipeline.ledger.plans[1].held_now:
                pipeline.undo.undo(1, "ops", "wrong")
            return super().spans_by_plan(topic_id, partition, window, most)

    pipeline.table.__class__ = Undoing
    assert rows_of(pipeline) == {"unread": "[0, 4)", "gap": "[6, 8)", "landed": "[4, 6) [8, 9)"}


def test_a_pipeline_that_changes_all_the_time_ends_in_a_conflict(
    pipeline: MemoryPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Adopting(MemoryTable):
        def spans_by_plan(
            self, topic_id: str, partition: int, window: Span, most: int
        ) -> Mapping[int, SpanSet] | None:
            pipeline.produce(1, 1)
            pipeline.run(f"run {len(self.rows)}")
            return super().spans_by_plan(topic_id, partition, window, most)

    monkeypatch.setattr("tidemark.delta.conflicts._PAUSE", lambda _: 0)
    pipeline.table.__class__ = Adopting
    with pytest.raises(ControlConflict):
        pipeline.pipeline.report.coverage.read(0)


# -- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["MOST_BYTES", "MOST_SPANS"])
def test_the_rows_of_a_window_that_is_too_large_are_not_read(
    pipeline: MemoryPipeline, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    lose(pipeline, 1)
    monkeypatch.setattr(coverage_rows, limit, {"MOST_BYTES": 3 * 16, "MOST_SPANS": 2}[limit])
    for window in ((), (0,), (0, 9)):
        (found,) = pipeline.pipeline.report.coverage.read(0, *window).partitions
        assert (found.read, found.states, found.plans) == (
            None,
            {OffsetState.LANDED: SpanSet((Span(0, 9),))},
            (),
        )
    assert rows_of(pipeline, 0, 3)["missing"] == "[1, 2)"
    with pytest.raises(InvalidSelection, match="no partition 2"):
        pipeline.pipeline.report.coverage.read(2)


def test_a_gap_of_a_range_that_is_too_large_to_read_is_unclear(
    pipeline: MemoryPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage_rows, "MOST_BYTES", 2 * 16)
    assert rows_of(pipeline, 5, 8) == {"gap or missing": "[6, 8)", "landed": "[0, 6) [8, 9)"}
    lose(pipeline, 3)
    assert rows_of(pipeline, 2, 4)["missing"] == "[3, 4)"


def test_a_gap_of_a_range_with_too_many_spans_is_a_gap(
    pipeline: MemoryPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of the range are counted; only spans of the window are read."""
    monkeypatch.setattr(coverage_rows, "MOST_SPANS", 1)
    assert rows_of(pipeline, 5, 8) == {"gap": "[6, 8)", "landed": "[0, 6) [8, 9)"}


def test_a_partition_without_a_plan_has_no_rows_to_read() -> None:
    made = MemoryPipeline()
    made.produce(0, 2)
    (found,) = made.pipeline.report.coverage.read(0).partitions
    assert (found.read, [*found.states]) == (Span(0, 2), [OffsetState.UNREAD])


# -- every state, by random histories -------------------------------------------------------------

STEPS: Mapping[str, Callable[[MemoryPipeline, int], object]] = {
    "produce": lambda made, _: made.produce(0, 3),
    "gaps": lambda made, _: made.kafka.add_gaps("events", 0, 2),
    "run": lambda made, number: made.run(f"run {number}"),
    "plan": lambda made, number: made.planner.plan(f"plan {number}"),
    "expire": lambda made, _: made.kafka.delete_records(
        "events", 0, before=(made.kafka.topics["events"][0].low + _end(made) + 1) // 2
    ),
    "accept": lambda made, _: made.decisions.accept_loss((), "ada", "outage"),
    "backfill": lambda made, number: _land_again(made, number, replaces=False),
    "replace": lambda made, number: _land_again(made, number, replaces=True),
    "undo": lambda made, number: made.undo.undo(1 + number % 3, "ada", "wrong"),
    "lose": lambda made, number: lose(made, 2 * number % max(1, _end(made))),
}


def _end(made: MemoryPipeline) -> int:
    return made.kafka.topics["events"][0].end


def _land_again(made: MemoryPipeline, number: int, *, replaces: bool) -> None:
    start = number % 7
    request = replace(wanted((0, start, start + 1 + number % 4)), replaces=replaces)
    plan = made.planner.backfill(request, RunOrigin(f"again {number}")).plan
    if plan and number % 3:
        made.ingest.execute(plan.sequence)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_states_are_disjoint_and_right_after_any_history(data: st.DataObject) -> None:
    """A gap never had a row, a missing offset had one, and both have none."""
    start = data.draw(st.sampled_from([StartPolicy.EARLIEST, StartPolicy.LATEST]))
    made = MemoryPipeline(spec=make_spec(start=start))
    made.produce(0, 4)
    steps = data.draw(st.lists(st.sampled_from([*STEPS, "produce", "run"]), max_size=16))
    for number, step in enumerate(steps):
        with suppress(TidemarkError):
            STEPS[step](made, number)
    first = data.draw(st.integers(0, _end(made)))
    last = data.draw(st.integers(first + 1, _end(made) + 1))
    for read in (
        made.pipeline.report.coverage.read(),
        made.pipeline.report.coverage.read(0, first, last),
    ):
        (found,) = read.partitions[:1]
        spans = [span for some in found.states.values() for span in some]
        assert sum(span.size for span in spans) == _end(made)
        assert SpanSet.of(spans).spans == (Span(0, _end(made)),)
    if found.read is None:
        return
    now = {row[2] for row in made.table.rows if row[1] == 0}
    ever = {row[2] for rows in made.table.contents for row in rows if row[1] == 0}
    places = {state: offsets(found, state) for state in OffsetState}
    assert places[OffsetState.GAP].isdisjoint(ever)
    assert places[OffsetState.MISSING] <= ever - now
    assert places[OffsetState.UNCLEAR].isdisjoint(now)
    assert places[OffsetState.LANDED] <= now


def offsets(found: PartitionCoverage, state: OffsetState) -> set[int]:
    """Return the offsets of a state in the window that was read."""
    assert found.read is not None
    spans = found.states.get(state, SpanSet()).within(found.read)
    return {offset for span in spans for offset in range(span.start, span.end)}


# -- real tables ---------------------------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path) -> FileLake:
    """Return tables with the history of `pipeline`, and a few rows of partition 1."""
    made = FileLake(tmp_path)
    made.run(4)
    made.produce(3, 1)
    made.produce(2, 0)
    made.kafka.add_gaps("events", 0, 2)
    made.run(1)
    return made


@pytest.mark.parametrize("compacted", [False, True])
def test_the_rows_of_a_delta_table_show_gaps_and_missing_rows(
    lake: FileLake, compacted: bool
) -> None:
    if compacted:
        assert Compaction(str(lake.uri)).run()
    assert rows_of(lake) == {"gap": "[6, 8)", "landed": "[0, 6) [8, 9)"}
    DeltaTable(lake.uri).delete("partition = 0 AND offset = 2")
    assert rows_of(lake) == {
        "missing": "[2, 3)",
        "gap": "[6, 8)",
        "landed": "[0, 2) [3, 6) [8, 9)",
    }
    DeltaTable(lake.uri).delete("partition = 0 AND offset = 8")
    assert rows_of(lake, 6, 7)["gap or missing"] == "[6, 7)"
    assert [
        span for _, span in lake.pipeline.report.coverage.read(0, 3, 5).partitions[0].plans
    ] == [
        Span(0, 4),
        Span(4, 9),
    ]


def test_duplicate_rows_do_not_hide_a_missing_row(lake: FileLake) -> None:
    """The range has as many rows as landed, and one offset twice."""
    DeltaTable(lake.uri).delete("partition = 0 AND offset = 5")
    double(lake.uri)
    assert rows_of(lake) == {"gap or missing": "[5, 8)", "landed": "[0, 5) [8, 9)"}


def test_a_missing_table_has_lost_every_row(lake: FileLake) -> None:
    lake.uri.rename(lake.uri.with_name("moved"))
    assert rows_of(lake) == {"missing": "[0, 4)", "gap or missing": "[4, 9)"}


def test_the_table_of_another_pipeline_is_refused(lake: FileLake) -> None:
    lake.uri.rename(lake.uri.with_name("moved"))
    lake.table.prepare("other")
    with pytest.raises(ForeignTable):
        lake.pipeline.report.coverage.read(0)


@pytest.mark.parametrize("limit", [3, 2])
def test_a_query_of_a_delta_table_returns_at_most_some_spans(lake: FileLake, limit: int) -> None:
    DeltaTable(lake.uri).delete("partition = 0 AND offset = 2")
    spans = lake.table.spans_by_plan("id-1", 0, Span(0, 6), limit)
    expected = {1: "[0, 2) [3, 4)", 2: "[4, 6)"}
    if limit < 3:
        assert spans is None
    else:
        assert spans is not None
        assert {plan: " ".join(map(str, some)) for plan, some in spans.items()} == expected
    assert rows_of(lake, 7, 8)["gap"] == "[7, 8)"


def test_the_rows_of_a_range_outside_the_window_are_counted_without_duplicates(
    lake: FileLake,
) -> None:
    DeltaTable(lake.uri).delete("partition = 0 AND offset = 5")
    double(lake.uri)
    assert lake.table.count_offsets("id-1", 0, Span(0, 99), 2) == 2
    assert lake.table.count_offsets("id-1", 0, Span(0, 8), 2) == 1
    assert lake.table.count_offsets("id-2", 0, Span(0, 99), 2) == 0
    assert rows_of(lake, 6, 7)["gap or missing"] == "[6, 7)"


def test_files_of_other_offsets_and_partitions_are_not_read(lake: FileLake) -> None:
    scanned = partial(lake.table.bytes_to_scan, most=10**9)
    assert scanned(0, Span(0, 4)) == 4 * 16
    assert scanned(0, Span(0, 5)) == 7 * 16
    assert scanned(1, Span(0, 2)) == 3 * 16
    assert scanned(0, Span(9, 99)) == scanned(2, Span(0, 99)) == 0


def test_row_groups_of_other_offsets_do_not_count(tmp_path: Path) -> None:
    """A window of a large file has to become small enough at some zoom."""
    rows = pa.table({"partition": [0] * 400, "offset": range(400), "value": ["v"] * 400})
    properties = WriterProperties(max_row_group_size=100)
    write_deltalake(tmp_path, rows, writer_properties=properties)
    table = DeltaDataTable(str(tmp_path))
    assert table.bytes_to_scan(0, Span(5, 6), most=400 * 16) == 400 * 16
    assert table.bytes_to_scan(0, Span(5, 6), most=400 * 16 - 1) == 100 * 16
    assert table.bytes_to_scan(0, Span(99, 101), most=0) == 200 * 16
    assert table.bytes_to_scan(1, Span(5, 6), most=0) == 0


def test_a_file_without_statistics_counts_as_a_whole(lake: FileLake) -> None:
    """Another program wrote the file. Its footer has the statistics of its row groups."""
    table = DeltaTable(lake.uri)
    file = next(lake.uri.rglob("*.parquet"))
    size = file.stat().st_size
    (lake.uri / "copy.parquet").write_bytes(file.read_bytes())
    added = AddAction("copy.parquet", size, {}, 0, data_change=True, stats="{}")
    table.create_write_transaction([added], "append", table.schema())
    assert lake.table.bytes_to_scan(0, Span(0, 4), most=10**9) == 4 * 16 + size
    assert lake.table.bytes_to_scan(2, Span(0, 4), most=10**9) == size
    assert lake.table.bytes_to_scan(2, Span(0, 4), most=0) == 0


def test_coverage_has_the_incarnation_of_its_offsets(pipeline: MemoryPipeline) -> None:
    assert pipeline.pipeline.report.coverage.read().topic_id == "id-1"
    assert plain(pipeline.pipeline.report.coverage.read(0))["topic_id"] == "id-1"
    assert MemoryPipeline().pipeline.report.coverage.read().topic_id == "id-1"
