"""Tests of backfills: previews, requests, chunks and resumption."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.memory import MemoryKafka
from tests.support.plans import (
    UNCOMPARED,
    MemoryPipeline,
    land_and_delete_before_watermarks,
    make_spec,
)
from tidemark.bronze.backfill.errors import BackfillAhead, BackfillTooLarge, BackfillUnfinished
from tidemark.bronze.backfill.selection import Selection, TimeWindow, select
from tidemark.bronze.backfill.service import BackfillPreview, check_finished, recorded_request
from tidemark.bronze.ingest.errors import LogTruncated, NoStartOffset, PlanStillOpen, RecordsMissed
from tidemark.bronze.ingest.planner import PlanOutcome
from tidemark.core.errors import (
    InvalidSelection,
    TopicChanged,
    TopicRecreated,
)
from tidemark.core.offsets import Span, SpanSet, spans_by_partition
from tidemark.spec.model import StartPolicy

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def started_pipeline(records: int = 10) -> MemoryPipeline:
    """Return a started pipeline with `records` in partition 0 and half as many in partition 1."""
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST))
    pipeline.produce(0, records)
    pipeline.produce(1, records // 2)
    pipeline.planner.plan("begin")
    return pipeline


def preview(
    pipeline: MemoryPipeline,
    selection: Selection,
    chunk: int | None = None,
    *,
    readable_only: bool = False,
    replaces: bool = False,
) -> BackfillPreview:
    return pipeline.backfills.preview(
        selection, chunk, readable_only=readable_only, replaces=replaces
    )


def request(
    pipeline: MemoryPipeline, selection: Selection, chunk: int, requested_by: str = "ops"
) -> int:
    """Record a backfill and return the number of its chunks."""
    result = preview(pipeline, selection, chunk)
    return pipeline.backfills.request(result, requested_by, approved=False)


def land(pipeline: MemoryPipeline, number: int, requested_by: str = "ops") -> None:
    plan = pipeline.backfills.plan_chunk(requested_by, number).plan
    assert plan is not None
    pipeline.ingest.execute(plan.sequence)


def missing_offsets(result: BackfillPreview) -> dict[int, list[tuple[int, int]]]:
    """Return the offsets that the backfill would land, by partition."""
    return {p: [(s.start, s.end) for s in some] for p, some in result.found.missing.items()}


# -- selections and previews -----------------------------------------------------------------------


def test_a_preview_lists_offsets_by_their_state() -> None:
    pipeline = started_pipeline(20)
    request(pipeline, select(offsets=["0:4-6"]), 10, "landed")
    land(pipeline, 1, "landed")
    pipeline.produce(0, 5)
    pipeline.planner.plan("live")
    pipeline.kafka.delete_records("events", 0, 3)
    result = preview(pipeline, select(offsets=["0:0-25", "1:2-4"]), readable_only=True)
    assert result.as_record() == {
        "pipeline": "events",
        "topic": "events",
        "topic_id": "id-1",
        "offsets": 17,
        "chunks": 1,
        "files": 3,
        "bytes": 17,
        "ranges": [[0, 3, 4], [0, 6, 20], [1, 2, 4]],
        "landed_or_lost": [[0, 4, 6]],
        "planned": [[0, 20, 25]],
        "deleted": [[0, 0, 3]],
        "replaces": False,
        "replaced": [],
        "files_rewritten": 0,
        "plans_replaced": {},
        "notes": [],
    }
    assert result.explain().splitlines()[1:-1] == [
        "partition  to land  landed or lost  in an open plan  deleted in Kafka  chunks"
        "  ranges to land",
        "        0       15               2                5                 3       1"
        "  [3, 4), [6, 20)",
        "        1        2               0                0                 0       1  [2, 4)",
    ]
    assert preview(started_pipeline(), select(offsets=["0:0-5"])).size_estimate.bytes is None


def test_offsets_that_a_run_lands_during_a_preview_have_landed() -> None:
    """With the ledger from before the run, Kafka would have deleted requested offsets."""
    pipeline = started_pipeline(0)
    pipeline.produce(0, 5)
    land_and_delete_before_watermarks(pipeline)
    found = preview(pipeline, select(offsets=["0:0-5"])).found
    assert (found.missing, found.covered) == ({}, {0: SpanSet.of([Span(0, 5)])})


def test_the_lines_of_a_preview_have_three_ranges_and_all_chunks_of_a_partition() -> None:
    ranges = [f"0:{start}-{start + 1}" for start in (0, 2, 4, 6, 8)]
    result = preview(started_pipeline(20), select(offsets=ranges), 2)
    assert result.explain().splitlines()[1:-1] == [
        "partition  to land  landed or lost  deleted in Kafka  chunks  ranges to land",
        "        0        5               0                 0       3"
        "  [0, 1), [2, 3), [4, 5) and 2 more",
    ]


def test_a_preview_notes_an_unfinished_request_of_the_same_offsets() -> None:
    pipeline = started_pipeline()
    request(pipeline, select(offsets=["0:0-6"]), 3, "ann's run")
    land(pipeline, 1, "ann's run")
    again = select(offsets=["0:2-8", "1:0-2"])
    (note,) = preview(pipeline, again).notes
    assert "an unfinished backfill of ann's run has 3 of these offsets" in note
    assert shlex.join(["tidemark", "backfill", "events", "--resume", "ann's run"]) in note
    assert preview(pipeline, select(offsets=["0:6-8"])).notes == ()
    land(pipeline, 2, "ann's run")
    assert preview(pipeline, again).notes == ()


def test_a_time_window_is_resolved_in_each_partition() -> None:
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST))
    for hour in range(5):
        pipeline.kafka.produce("events", 0, 3, timestamp_ms=hour * 3_600_000)
    pipeline.kafka.produce("events", 1, 4, timestamp_ms=3_600_000)

    def window(first: int, last: int, *partitions: int) -> Selection:
        hours = (EPOCH + timedelta(hours=hour) for hour in (first, last))
        return TimeWindow(**dict(zip(("start", "end"), hours, strict=True)), partitions=partitions)

    assert missing_offsets(preview(pipeline, window(1, 3))) == {0: [(3, 9)], 1: [(0, 4)]}
    assert missing_offsets(preview(pipeline, window(2, 9))) == {0: [(6, 15)]}
    assert missing_offsets(preview(pipeline, window(1, 3, 1))) == {1: [(0, 4)]}
    assert missing_offsets(preview(pipeline, window(7, 9))) == {}
    with pytest.raises(InvalidSelection, match="no partition 7"):
        preview(pipeline, window(1, 3, 7))


def test_the_retained_log_selects_all_offsets_in_kafka() -> None:
    pipeline = started_pipeline()
    pipeline.kafka.delete_records("events", 0, 4)
    assert missing_offsets(preview(pipeline, select(retained=True))) == {0: [(4, 10)], 1: [(0, 5)]}
    assert missing_offsets(preview(pipeline, select(retained=True, partitions=[1]))) == {
        1: [(0, 5)]
    }


def test_ranges_of_an_abandoned_plan_can_be_selected_by_its_number() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 10)
    plan = pipeline.plan("run")
    pipeline.abandon.abandon(plan.sequence, "ops", "too much")
    assert missing_offsets(preview(pipeline, select(plan=plan.sequence))) == {0: [(0, 10)]}
    with pytest.raises(InvalidSelection, match="no plan 9"):
        preview(pipeline, select(plan=9))


def test_offsets_outside_the_log_are_refused_and_deleted_ones_skipped_on_request() -> None:
    pipeline = started_pipeline()
    pipeline.kafka.delete_records("events", 0, 4)
    events = len(pipeline.control.rows)
    for offsets, problem in (
        ("0:5-11", r"Invalid range \[5, 11\)"),
        ("0:2-6", r"Invalid range \[2, "),
        ("2:0-1", "no partition 2"),
    ):
        with pytest.raises(InvalidSelection, match=problem):
            preview(pipeline, select(offsets=[offsets]))
    assert missing_offsets(preview(pipeline, select(offsets=["0:2-6"]), readable_only=True)) == {
        0: [(4, 6)]
    }
    assert len(pipeline.control.rows) == events


def test_deleted_offsets_that_have_landed_are_accepted() -> None:
    pipeline = started_pipeline()
    request(pipeline, select(offsets=["0:0-4"]), 10, "first")
    land(pipeline, 1, "first")
    pipeline.kafka.delete_records("events", 0, 4)
    assert missing_offsets(preview(pipeline, select(offsets=["0:0-6"]))) == {0: [(4, 6)]}


# -- chunks ----------------------------------------------------------------------------------------


def test_chunks_land_in_order_and_contain_all_requested_offsets() -> None:
    """I1, I2, I3."""
    pipeline = started_pipeline()
    assert request(pipeline, select(retained=True), 4) == 4
    for number in range(1, 5):
        assert [each.done for each in pipeline.backfills.progress("ops")] == [
            chunk < number for chunk in range(1, 5)
        ]
        land(pipeline, number)
    assert pipeline.landed_identities() == pipeline.visible_identities()
    progress = pipeline.backfills.progress("ops")
    assert [(each.offsets, each.plan) for each in progress] == [(4, 1), (4, 2), (4, 3), (3, 4)]
    assert pipeline.committed() == {0: 10, 1: 5}


def test_a_recorded_request_does_not_change_with_the_log() -> None:
    pipeline = started_pipeline()
    chunks = request(pipeline, select(retained=True), 4)
    pipeline.produce(0, 50)
    recorded = recorded_request(pipeline.control, "events", "ops")
    assert recorded is not None
    assert len(recorded.chunks) == chunks
    assert sum(each.offsets for each in pipeline.backfills.progress("ops")) == 15
    # A repeated request does not change the recorded one.
    result = preview(pipeline, select(retained=True), 1)
    assert pipeline.backfills.request(result, "ops", approved=False) == chunks
    assert recorded_request(pipeline.control, "events", "unknown") is None


def test_a_request_of_a_window_records_the_offsets_of_its_preview() -> None:
    pipeline = started_pipeline()
    window = TimeWindow(start=EPOCH, end=EPOCH + timedelta(hours=1))
    result = preview(pipeline, window, 6)
    pipeline.produce(0, 7)
    pipeline.produce(1, 7)
    assert missing_offsets(preview(pipeline, window)) == {0: [(0, 17)], 1: [(0, 12)]}
    assert pipeline.backfills.request(result, "ops", approved=False) == 3
    rows = [row for row in pipeline.control.rows if row["event"] == "backfill_requested"]
    recorded = spans_by_partition(
        (row["partition"], Span(row["start_offset"], row["end_offset"])) for row in rows
    )
    assert recorded == result.found.missing
    for number, chunk in enumerate(result.chunks, start=1):
        plan = pipeline.backfills.plan_chunk("ops", number).plan
        assert plan is not None
        assert plan.spans() == chunk
        pipeline.ingest.execute(plan.sequence)
    assert pipeline.landed_identities() == [
        ("id-1", partition, offset) for partition, end in ((0, 10), (1, 5)) for offset in range(end)
    ]
    assert missing_offsets(preview(pipeline, window)) == {0: [(10, 17)], 1: [(5, 12)]}


def test_a_request_without_offsets_records_nothing() -> None:
    """An event without rows would count as a missing event."""
    pipeline = started_pipeline()
    assert request(pipeline, select(offsets=["0:0-4"]), 4, "first") == 1
    land(pipeline, 1, "first")
    before = pipeline.ledger.event_number
    assert request(pipeline, select(offsets=["0:0-4"]), 4, "second") == 0
    assert (pipeline.ledger.event_number, pipeline.ledger.missing_events) == (before, 0)


def test_an_interrupted_chunk_continues_with_its_plan() -> None:
    """I4. The next chunk and other backfills wait for the open plan."""
    pipeline = started_pipeline()
    request(pipeline, select(retained=True), 4)
    open_plan = pipeline.backfills.plan_chunk("ops", 1).plan
    with pytest.raises(BackfillAhead):
        pipeline.backfills.plan_chunk("ops", 2)
    with pytest.raises(PlanStillOpen, match="is still open"):
        preview(pipeline, select(offsets=["0:0-1"]))
    again = pipeline.backfills.plan_chunk("ops", 1)
    assert (again.outcome, again.plan) == (PlanOutcome.KEPT, open_plan)
    land(pipeline, 1)
    land(pipeline, 2)


def test_a_chunk_landed_by_other_plans_needs_no_plan() -> None:
    pipeline = started_pipeline()
    request(pipeline, select(offsets=["0:0-4"]), 2)
    request(pipeline, select(offsets=["0:0-2"]), 2, "other")
    land(pipeline, 1, "other")
    assert pipeline.backfills.plan_chunk("ops", 1).outcome is PlanOutcome.NOTHING
    assert [each.done for each in pipeline.backfills.progress("ops")] == [True, False]


def test_an_abandoned_chunk_is_planned_again() -> None:
    pipeline = started_pipeline()
    request(pipeline, select(offsets=["0:0-4"]), 2)
    plan = pipeline.backfills.plan_chunk("ops", 1).plan
    assert plan is not None
    pipeline.abandon.abandon(plan.sequence, "ops", "a test")
    land(pipeline, 1)
    assert pipeline.backfills.progress("ops")[0].done


def test_a_chunk_of_a_recreated_topic_is_refused() -> None:
    """The chunk is refused before and after the recreated topic is accepted."""
    pipeline = started_pipeline()
    request(pipeline, select(retained=True), 4)
    pipeline.kafka.create("events", 2, "id-2")
    pipeline.produce(0, 30)
    with pytest.raises(TopicRecreated):
        pipeline.backfills.plan_chunk("ops", 1)
    pipeline.decisions.accept_recreation("ops", "moved")
    with pytest.raises(InvalidSelection, match="belong to an earlier topic"):
        pipeline.backfills.plan_chunk("ops", 1)
    assert not any(each.done for each in pipeline.backfills.progress("ops"))


def test_ranges_of_a_plan_of_a_deleted_topic_are_refused() -> None:
    """S5."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    pipeline.run("live")
    pipeline.kafka.create("events", 2, "id-2")
    pipeline.produce(0, 20)
    with pytest.raises(TopicRecreated):
        preview(pipeline, select(plan=1))
    pipeline.decisions.accept_recreation("ops", "moved")
    before = list(pipeline.control.rows)
    with pytest.raises(InvalidSelection, match="belong to an earlier topic") as refused:
        preview(pipeline, select(plan=1), readable_only=True)
    assert (refused.value.needed, refused.value.seen) == ("topic id id-1", "topic id id-2")
    with pytest.raises(InvalidSelection, match="belong to an earlier topic"):
        pipeline.backfills.plan_whole(select(plan=1), "run")
    assert pipeline.control.rows == before
    assert missing_offsets(preview(pipeline, select(retained=True))) == {0: [(0, 20)]}


def test_i7_ranges_of_a_plan_of_another_topic_are_refused() -> None:
    pipeline = started_pipeline()
    request(pipeline, select(retained=True), 4)
    pipeline.kafka.create("other", 2, "id-2")
    pipeline.kafka.produce("other", 0, 10)
    pipeline.spec = replace(pipeline.spec, topic="other")
    before = list(pipeline.control.rows)
    for selection in (
        select(offsets=["0:0-4"]),
        select(retained=True),
        TimeWindow(start=EPOCH, end=EPOCH + timedelta(hours=1)),
    ):
        with pytest.raises(TopicChanged):
            preview(pipeline, selection, readable_only=True)
        with pytest.raises(TopicChanged):
            pipeline.backfills.plan_whole(selection, "run")
    with pytest.raises(TopicChanged):
        pipeline.backfills.plan_chunk("ops", 1)
    assert pipeline.control.rows == before


def test_concurrent_window_runs_wait_for_the_open_plan() -> None:
    pipeline = started_pipeline()
    hours = [EPOCH + timedelta(hours=hour) for hour in range(3)]
    first, second = TimeWindow(start=EPOCH, end=hours[1]), TimeWindow(start=hours[1], end=hours[2])
    plan = pipeline.backfills.plan_whole(first, "one").plan
    assert plan is not None
    assert plan.size == 15
    with pytest.raises(BackfillAhead):
        pipeline.backfills.plan_whole(first, "two")
    assert pipeline.backfills.plan_whole(first, "one").plan == plan
    pipeline.ingest.execute(plan.sequence)
    assert pipeline.backfills.plan_whole(first, "two").outcome is PlanOutcome.NOTHING
    assert pipeline.backfills.plan_whole(second, "three").outcome is PlanOutcome.NOTHING


def test_missed_records_of_a_chunk_are_planned_again() -> None:
    """I1. No other plan would read them."""
    pipeline = started_pipeline()
    request(pipeline, select(offsets=["0:0-6"]), 3)
    plan = pipeline.backfills.plan_chunk("ops", 1).plan
    assert plan is not None
    pipeline.table.append(
        plan, [f for f in pipeline.table.write(plan, 1) if f.first != 1], UNCOMPARED
    )
    with pytest.raises(RecordsMissed):
        pipeline.ingest.execute(plan.sequence)
    assert [each.done for each in pipeline.backfills.progress("ops")] == [False, False]
    again = pipeline.backfills.plan_chunk("ops", 1)
    assert again.outcome is PlanOutcome.NEW
    assert again.plan is not None
    assert [(r.start, r.end) for r in again.plan.ranges] == [(1, 2)]
    assert pipeline.backfills.plan_chunk("ops", 1).plan == again.plan
    pipeline.ingest.execute(again.plan.sequence)
    assert pipeline.backfills.plan_chunk("ops", 1).plan == again.plan
    land(pipeline, 2)
    assert [each.done for each in pipeline.backfills.progress("ops")] == [True, True]
    assert pipeline.landed_identities() == [("id-1", 0, offset) for offset in range(6)]


def test_a_window_is_planned_beside_the_live_plan_of_the_same_requester() -> None:
    """A backfill by dates takes over a failed scheduled run, whose plan may be open."""
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST))
    pipeline.produce(0, 5)
    pipeline.planner.plan("begin")
    pipeline.produce(0, 3)
    live = pipeline.planner.plan("the run").plan
    window = TimeWindow(start=EPOCH, end=EPOCH + timedelta(days=1))
    plan = pipeline.backfills.plan_whole(window, "the run").plan
    assert live is not None
    assert plan is not None
    assert [(r.partition, r.start, r.end) for r in plan.ranges] == [(0, 0, 5)]
    assert pipeline.backfills.plan_whole(window, "the run").plan == plan


def recreated(pipeline: MemoryPipeline) -> None:
    """Recreate the topic."""
    pipeline.kafka.create("events", 2, "id-2")


def truncated(pipeline: MemoryPipeline) -> None:
    """Restore the broker's log of partition 0 to its first four offsets."""
    pipeline.kafka.restore_log("events", 0, 4)


@pytest.mark.parametrize("lose", [recreated, truncated])
def test_a_backfill_of_readable_offsets_is_not_done_after_a_recreation_or_truncation(
    lose: Callable[[MemoryPipeline], None],
) -> None:
    """It leaves out only offsets that Kafka has deleted."""
    pipeline = started_pipeline()
    seen = preview(pipeline, select(offsets=["0:0-10"]), 5, readable_only=True)
    pipeline.backfills.request(seen, "ops", approved=False)
    lose(pipeline)
    assert [each.done for each in pipeline.backfills.progress("ops")] == [False, False]


def test_a_chunk_whose_offsets_kafka_has_deleted_has_nothing_left_to_land() -> None:
    pipeline = started_pipeline()
    seen = preview(pipeline, select(offsets=["0:0-10"]), 5, readable_only=True)
    pipeline.backfills.request(seen, "ops", approved=False)
    pipeline.kafka.delete_records("events", 0, 5)
    first, second = pipeline.backfills.progress("ops")
    assert (first.state, second.state) == ("nothing left to land", "not landed")


def test_missed_records_of_a_window_are_planned_again() -> None:
    """I1. They are before the start of the pipeline, so no other plan would read them."""
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST))
    pipeline.produce(0, 6)
    pipeline.planner.plan("begin")
    window = TimeWindow(start=EPOCH, end=EPOCH + timedelta(days=1))
    plan = pipeline.backfills.plan_whole(window, "by date").plan
    assert plan is not None
    pipeline.table.append(
        plan, [f for f in pipeline.table.write(plan, 1) if f.first != 1], UNCOMPARED
    )
    with pytest.raises(RecordsMissed):
        pipeline.ingest.execute(plan.sequence)
    rest = pipeline.backfills.plan_rest(plan, "by date").plan
    assert rest is not None
    assert [(r.partition, r.start, r.end) for r in rest.ranges] == [(0, 1, 2)]
    pipeline.ingest.execute(rest.sequence)
    assert pipeline.backfills.plan_rest(rest, "by date").outcome is PlanOutcome.KEPT
    assert pipeline.landed_identities() == [("id-1", 0, offset) for offset in range(6)]
    assert [each.plan for each in pipeline.control.plans_of("events", plan.origin)] == [plan, rest]


def test_offsets_deleted_before_planning_are_refused_or_skipped_as_requested() -> None:
    pipeline = started_pipeline()
    request(pipeline, select(offsets=["0:0-3"]), 2, "strict")
    lenient = preview(pipeline, select(offsets=["0:0-6"]), 4, readable_only=True)
    pipeline.backfills.request(lenient, "lenient", approved=False)
    pipeline.kafka.delete_records("events", 0, 1)
    with pytest.raises(InvalidSelection, match="low watermark is 1"):
        pipeline.backfills.plan_chunk("strict", 1)
    land(pipeline, 2, "strict")
    land(pipeline, 1, "lenient")
    land(pipeline, 2, "lenient")
    assert [each.done for each in pipeline.backfills.progress("lenient")] == [True, True]
    assert [each.done for each in pipeline.backfills.progress("strict")] == [False, True]
    with pytest.raises(BackfillUnfinished, match=r"Not completely landed: chunk 1") as unfinished:
        check_finished("events", "the run", pipeline.backfills.progress("strict"))
    assert "--resume 'the run'`" in unfinished.value.rendered("fix")
    assert pipeline.landed_identities() == [("id-1", 0, offset) for offset in range(1, 6)]


def test_a_window_notes_partitions_that_may_lack_records() -> None:
    """Kafka's time index covers retained offsets only."""
    pipeline = started_pipeline()
    window = TimeWindow(start=EPOCH, end=EPOCH + timedelta(hours=1))
    assert preview(pipeline, window).notes == ()
    pipeline.kafka.delete_records("events", 1, 2)
    (note,) = preview(pipeline, window).notes
    assert "Kafka has deleted earlier offsets" in note
    assert note.endswith("in partition 1")


def test_a_landed_backfill_without_a_record_does_not_block_the_next() -> None:
    pipeline = started_pipeline()
    request(pipeline, select(offsets=["0:0-4"]), 10, "dead")
    plan = pipeline.backfills.plan_chunk("dead", 1).plan
    assert plan is not None
    pipeline.land(plan)
    result = preview(pipeline, select(offsets=["0:2-6"]))
    assert (missing_offsets(result), result.found.covered) == (
        {0: [(4, 6)]},
        {0: SpanSet((Span(2, 4),))},
    )
    assert missing_offsets(preview(pipeline, select(offsets=["0:2-6"]), replaces=True)) == {
        0: [(2, 6)]
    }
    pipeline.backfills.request(result, "next", approved=False)
    land(pipeline, 1, "next")
    assert pipeline.landed_identities() == [("id-1", 0, offset) for offset in range(6)]


def test_a_landed_replacement_without_a_record_does_not_block_the_next() -> None:
    """The next replacement also replaces the rows of the unrecorded one."""
    pipeline = started_pipeline()
    request(pipeline, select(offsets=["0:0-4"]), 10, "first")
    land(pipeline, 1, "first")
    for name in ("dead", "next"):
        result = preview(pipeline, select(offsets=["0:0-4"]), replaces=True)
        assert (result.offsets, result.found.planned) == (4, {})
        pipeline.backfills.request(result, name, approved=False, reason="rows were changed")
        plan = pipeline.backfills.plan_chunk(name, 1).plan
        assert plan is not None
        assert plan.replaces
        pipeline.land(plan)
    pipeline.ingest.execute(pipeline.ledger.last_sequence)
    assert pipeline.landed_identities() == [("id-1", 0, offset) for offset in range(4)]


def test_a_request_that_the_planner_refuses_is_not_recorded() -> None:
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.NONE))
    pipeline.produce(0, 5)
    with pytest.raises(NoStartOffset):
        preview(pipeline, select(retained=True))
    pipeline = MemoryPipeline()
    pipeline.produce(0, 10)
    pipeline.run("live")
    pipeline.kafka.elect("events", 0, 5)
    pipeline.produce(0, 10)
    before = pipeline.ledger.event_number
    with pytest.raises(LogTruncated):
        request(pipeline, select(offsets=["0:10-15"]), 10)
    assert pipeline.ledger.event_number == before


def test_a_backfill_above_the_limit_needs_approval() -> None:
    pipeline = started_pipeline()
    pipeline.spec = make_spec(start=StartPolicy.LATEST, records_per_backfill=14)
    result = preview(pipeline, select(retained=True))
    with pytest.raises(BackfillTooLarge, match="15 offsets"):
        pipeline.backfills.request(result, "ops", approved=False)
    assert recorded_request(pipeline.control, "events", "ops") is None
    assert pipeline.backfills.request(result, "ops", approved=True) == 1


class KafkaDeletingAfterLookup(MemoryKafka):
    """Kafka that deletes records after each lookup of the offsets of a time."""

    def offsets_at(
        self, topic: str, partitions: Sequence[int], moment: datetime
    ) -> Mapping[int, int]:
        found = super().offsets_at(topic, partitions, moment)
        self.delete_records(topic, 0, 3)
        return found


def test_a_window_skips_offsets_deleted_during_planning() -> None:
    pipeline = MemoryPipeline(
        spec=make_spec(start=StartPolicy.LATEST), kafka=KafkaDeletingAfterLookup()
    )
    pipeline.produce(0, 10)
    pipeline.planner.plan("begin")
    window = TimeWindow(start=EPOCH, end=EPOCH + timedelta(days=1))
    plan = pipeline.backfills.plan_whole(window, "by date").plan
    assert plan is not None
    assert [(r.partition, r.start, r.end) for r in plan.ranges] == [(0, 3, 10)]


def test_an_unknown_chunk_or_backfill_is_refused() -> None:
    pipeline = started_pipeline()
    request(pipeline, select(offsets=["0:0-4"]), 2)
    with pytest.raises(InvalidSelection, match=r"recorded chunks: 2"):
        pipeline.backfills.plan_chunk("ops", 3)
    with pytest.raises(InvalidSelection, match="no chunk 1 of a backfill requested by unknown"):
        pipeline.backfills.progress("unknown")


def test_a_backfill_records_the_start_offsets_of_a_new_pipeline() -> None:
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST))
    pipeline.produce(0, 10)
    request(pipeline, select(retained=True), 100)
    pipeline.produce(0, 5)
    land(pipeline, 1)
    pipeline.run("live")
    assert pipeline.landed_identities() == pipeline.visible_identities()
    undecided = MemoryPipeline(spec=make_spec(start=StartPolicy.NONE))
    undecided.produce(0, 10)
    with pytest.raises(NoStartOffset):
        request(undecided, select(retained=True), 100)
