"""Backfills: decided once, shown before, landed chunk by chunk, gone on with after a stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.memory import MemoryKafka, MemoryTable
from tests.support.plans import MemoryPipeline, make_spec
from tidemark.backfill.errors import (
    BackfillAhead,
    BackfillTooLarge,
    BackfillUnfinished,
    UnknownBackfill,
)
from tidemark.backfill.selection import Selection, TimeWindow, select
from tidemark.backfill.service import BackfillPreview, check_finished
from tidemark.core.errors import (
    InvalidRange,
    OtherIncarnation,
    TopicChanged,
    TopicRecreated,
    UnknownPartition,
)
from tidemark.core.offsets import Span, SpanSet, spans_by_partition
from tidemark.ingest.errors import (
    BackfillOpen,
    LogTruncated,
    NoStartOffset,
    NotLive,
    RecordsMissed,
    UnknownPlan,
)
from tidemark.ingest.planner import PlanOutcome
from tidemark.spec.model import StartPolicy

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def begun(records: int = 10) -> MemoryPipeline:
    """A pipeline that began at the end of two partitions; partition 1 has half as many records."""
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
    """What a backfill would do."""
    return pipeline.backfills.preview(
        selection, chunk, readable_only=readable_only, replaces=replaces
    )


def ask(pipeline: MemoryPipeline, selection: Selection, chunk: int, asked_by: str = "ops") -> int:
    """Record a backfill; the number of its chunks."""
    seen = preview(pipeline, selection, chunk)
    return pipeline.backfills.request(seen, asked_by, approved=False)


def land(pipeline: MemoryPipeline, number: int, asked_by: str = "ops") -> None:
    """Plan and land one chunk."""
    plan = pipeline.backfills.plan_chunk(asked_by, number).plan
    assert plan is not None
    pipeline.ingest.execute(plan.sequence)


def missing(seen: BackfillPreview) -> dict[int, list[tuple[int, int]]]:
    """What would be landed, by partition."""
    return {p: [(s.start, s.end) for s in some] for p, some in seen.found.missing.items()}


# -- which offsets ---------------------------------------------------------------------------------


def test_a_preview_lists_offsets_by_their_state() -> None:
    """Landed, planned, deleted: nobody has to compare numbers by hand."""
    pipeline = begun(20)
    ask(pipeline, select(offsets=["0:4-6"]), 10, "landed")
    land(pipeline, 1, "landed")
    pipeline.produce(0, 5)
    pipeline.planner.plan("live")
    pipeline.kafka.delete_records("events", 0, 3)
    seen = preview(pipeline, select(offsets=["0:0-25", "1:2-4"]), readable_only=True)
    assert seen.as_record() == {
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
    assert preview(begun(), select(offsets=["0:0-5"])).size_estimate.bytes is None


def test_a_preview_notes_an_unfinished_request_of_the_same_offsets() -> None:
    """Whoever asks for the same once more sees who has asked before, until it has landed."""
    pipeline = begun()
    ask(pipeline, select(offsets=["0:0-6"]), 3, "yesterday")
    land(pipeline, 1, "yesterday")
    again = select(offsets=["0:2-8", "1:0-2"])
    (note,) = preview(pipeline, again).notes
    assert "an unfinished backfill of yesterday has 3 of these offsets" in note
    assert "tidemark backfill events --resume yesterday" in note
    assert preview(pipeline, select(offsets=["0:6-8"])).notes == ()
    land(pipeline, 2, "yesterday")
    assert preview(pipeline, again).notes == ()


def test_a_time_window_is_resolved_in_each_partition() -> None:
    """From the first record that is late enough; idle partitions and the future give nothing."""
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST))
    for hour in range(5):
        pipeline.kafka.produce("events", 0, 3, timestamp_ms=hour * 3_600_000)
    pipeline.kafka.produce("events", 1, 4, timestamp_ms=3_600_000)

    def window(first: int, last: int, *partitions: int) -> Selection:
        hours = (EPOCH + timedelta(hours=hour) for hour in (first, last))
        return TimeWindow(**dict(zip(("start", "end"), hours, strict=True)), partitions=partitions)

    assert missing(preview(pipeline, window(1, 3))) == {0: [(3, 9)], 1: [(0, 4)]}
    assert missing(preview(pipeline, window(2, 9))) == {0: [(6, 15)]}
    assert missing(preview(pipeline, window(1, 3, 1))) == {1: [(0, 4)]}
    assert missing(preview(pipeline, window(7, 9))) == {}
    with pytest.raises(UnknownPartition):
        preview(pipeline, window(1, 3, 7))


def test_the_retained_log_is_what_kafka_has() -> None:
    """Of all partitions or of some."""
    pipeline = begun()
    pipeline.kafka.delete_records("events", 0, 4)
    assert missing(preview(pipeline, select(retained=True))) == {0: [(4, 10)], 1: [(0, 5)]}
    assert missing(preview(pipeline, select(retained=True, partitions=[1]))) == {1: [(0, 5)]}


def test_missing_ranges_of_an_earlier_plan_are_landed() -> None:
    """A plan that was given up, by its number."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 10)
    plan = pipeline.plan("run")
    pipeline.abandon.abandon(plan.sequence, "ops", "too much")
    assert missing(preview(pipeline, select(plan=plan.sequence))) == {0: [(0, 10)]}
    with pytest.raises(UnknownPlan):
        preview(pipeline, select(plan=9))


def test_a_copy_has_its_own_plans_and_table() -> None:
    """What a plan landed, once more in another table; nothing of it reaches the first one."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 10)
    pipeline.run("live")
    copy = replace(
        pipeline, spec=pipeline.spec.copied("checked"), table=MemoryTable(kafka=pipeline.kafka)
    )
    assert (copy.spec.name, copy.spec.target) == ("events@checked", "bronze/events@checked")
    assert ask(copy, select(plan=1, plan_of="events"), 5) == 2
    for number in (1, 2):
        land(copy, number)
    # Its own plan 1 is another one.
    assert missing(preview(copy, select(plan=1), replaces=True)) == {0: [(0, 5)]}
    assert missing(preview(copy, select(plan=1, plan_of="events"), replaces=True)) == {0: [(0, 10)]}
    assert copy.landed_identities() == pipeline.landed_identities() != []
    assert (sorted(pipeline.ledger.plans), sorted(copy.ledger.plans)) == ([1], [1, 2])
    assert len(pipeline.table.commits) == 1
    pipeline.produce(0, 5)
    with pytest.raises(NotLive):
        copy.planner.plan("run")
    with pytest.raises(NotLive):
        copy.planner.preview()
    shown = copy.status()
    assert (shown.problem, shown.lag, shown.records) == (None, None, 10)
    assert pipeline.spec.copied("x").target == make_spec(target="bronze/events/").copied("x").target


def test_offsets_outside_the_log_are_refused_before_anything_is_written() -> None:
    """Deleted ones too, unless it is said that what is left will do."""
    pipeline = begun()
    pipeline.kafka.delete_records("events", 0, 4)
    events = len(pipeline.control.rows)
    for offsets, error in (
        ("0:5-11", InvalidRange),
        ("0:2-6", InvalidRange),
        ("2:0-1", UnknownPartition),
    ):
        with pytest.raises(error):
            preview(pipeline, select(offsets=[offsets]))
    assert missing(preview(pipeline, select(offsets=["0:2-6"]), readable_only=True)) == {
        0: [(4, 6)]
    }
    assert len(pipeline.control.rows) == events


def test_deleted_offsets_that_have_landed_are_accepted() -> None:
    """They are in the table; only what is missing has to be in Kafka."""
    pipeline = begun()
    ask(pipeline, select(offsets=["0:0-4"]), 10, "first")
    land(pipeline, 1, "first")
    pipeline.kafka.delete_records("events", 0, 4)
    assert missing(preview(pipeline, select(offsets=["0:0-6"]))) == {0: [(4, 6)]}


# -- chunks ----------------------------------------------------------------------------------------


def test_chunks_land_in_order_and_contain_all_requested_offsets() -> None:
    """I1, I2, I3: each is a plan; the live chain does not move."""
    pipeline = begun()
    assert ask(pipeline, select(retained=True), 4) == 4
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
    """A window that ends in the future does not grow while it lands."""
    pipeline = begun()
    asked = ask(pipeline, select(retained=True), 4)
    pipeline.produce(0, 50)
    assert pipeline.backfills.chunk_count("ops") == asked
    assert sum(each.offsets for each in pipeline.backfills.progress("ops")) == 15
    # Asking again is asking for the same.
    seen = preview(pipeline, select(retained=True), 1)
    assert pipeline.backfills.request(seen, "ops", approved=False) == asked
    assert pipeline.backfills.chunk_count("nobody") is None


def test_a_request_of_a_window_records_the_offsets_of_its_preview() -> None:
    """What arrives inside it between the look and the word is not what somebody approved."""
    pipeline = begun()
    window = TimeWindow(start=EPOCH, end=EPOCH + timedelta(hours=1))
    seen = preview(pipeline, window, 6)
    pipeline.produce(0, 7)
    pipeline.produce(1, 7)
    assert missing(preview(pipeline, window)) == {0: [(0, 17)], 1: [(0, 12)]}
    assert pipeline.backfills.request(seen, "ops", approved=False) == 3
    rows = [row for row in pipeline.control.rows if row["event"] == "backfill_requested"]
    recorded = spans_by_partition(
        (row["partition"], Span(row["start_offset"], row["end_offset"])) for row in rows
    )
    assert recorded == seen.found.missing
    for number, chunk in enumerate(seen.chunks, start=1):
        plan = pipeline.backfills.plan_chunk("ops", number).plan
        assert plan is not None
        assert plan.spans() == chunk
        pipeline.ingest.execute(plan.sequence)
    assert pipeline.landed_identities() == [
        ("id-1", partition, offset) for partition, end in ((0, 10), (1, 5)) for offset in range(end)
    ]
    assert missing(preview(pipeline, window)) == {0: [(10, 17)], 1: [(5, 12)]}


def test_a_request_without_offsets_records_nothing() -> None:
    """An event without rows would be taken for a lost one."""
    pipeline = begun()
    assert ask(pipeline, select(offsets=["0:0-4"]), 4, "first") == 1
    land(pipeline, 1, "first")
    before = pipeline.ledger.event_number
    assert ask(pipeline, select(offsets=["0:0-4"]), 4, "second") == 0
    assert (pipeline.ledger.event_number, pipeline.ledger.missing_events) == (before, 0)


def test_an_interrupted_chunk_continues_with_its_plan() -> None:
    """I4: the plan it has; the next chunk waits for it, and so does another backfill."""
    pipeline = begun()
    ask(pipeline, select(retained=True), 4)
    opened = pipeline.backfills.plan_chunk("ops", 1).plan
    with pytest.raises(BackfillAhead):
        pipeline.backfills.plan_chunk("ops", 2)
    with pytest.raises(BackfillOpen):
        preview(pipeline, select(offsets=["0:0-1"]))
    again = pipeline.backfills.plan_chunk("ops", 1)
    assert (again.outcome, again.plan) == (PlanOutcome.KEPT, opened)
    land(pipeline, 1)
    land(pipeline, 2)


def test_a_chunk_landed_by_other_plans_needs_no_plan() -> None:
    """Somebody else's backfill may have been faster."""
    pipeline = begun()
    ask(pipeline, select(offsets=["0:0-4"]), 2)
    ask(pipeline, select(offsets=["0:0-2"]), 2, "other")
    land(pipeline, 1, "other")
    assert pipeline.backfills.plan_chunk("ops", 1).outcome is PlanOutcome.NOTHING
    assert [each.done for each in pipeline.backfills.progress("ops")] == [True, False]


def test_an_abandoned_chunk_is_planned_again() -> None:
    """Giving up a chunk's plan frees its offsets for the chunk."""
    pipeline = begun()
    ask(pipeline, select(offsets=["0:0-4"]), 2)
    plan = pipeline.backfills.plan_chunk("ops", 1).plan
    assert plan is not None
    pipeline.abandon.abandon(plan.sequence, "ops", "a test")
    land(pipeline, 1)
    assert pipeline.backfills.progress("ops")[0].done


def test_a_chunk_of_a_recreated_topic_is_refused() -> None:
    """Also if somebody has accepted the new one meanwhile."""
    pipeline = begun()
    ask(pipeline, select(retained=True), 4)
    pipeline.kafka.create("events", 2, "id-2")
    pipeline.produce(0, 30)
    with pytest.raises(TopicRecreated):
        pipeline.backfills.plan_chunk("ops", 1)
    pipeline.decisions.new_incarnation("ops", "moved")
    with pytest.raises(OtherIncarnation):
        pipeline.backfills.plan_chunk("ops", 1)
    assert not any(each.done for each in pipeline.backfills.progress("ops"))


def test_ranges_of_a_plan_of_a_deleted_topic_are_refused() -> None:
    """S5: its numbers are other records now. Neither by the pipeline nor by a copy of it."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    pipeline.run("live")
    pipeline.kafka.create("events", 2, "id-2")
    pipeline.produce(0, 20)
    with pytest.raises(TopicRecreated):
        preview(pipeline, select(plan=1))
    pipeline.decisions.new_incarnation("ops", "moved")
    copy = replace(
        pipeline, spec=pipeline.spec.copied("checked"), table=MemoryTable(kafka=pipeline.kafka)
    )
    before = list(pipeline.control.rows)
    for each in (pipeline, copy):
        selection = select(plan=1, plan_of="events")
        with pytest.raises(OtherIncarnation) as refused:
            preview(each, selection, readable_only=True)
        assert (refused.value.topic_id, refused.value.current) == ("id-1", "id-2")
        with pytest.raises(OtherIncarnation):
            each.backfills.plan_whole(selection, "run")
    assert pipeline.control.rows == before
    assert missing(preview(pipeline, select(retained=True))) == {0: [(0, 20)]}


def test_ranges_of_a_plan_of_another_topic_are_refused() -> None:
    """I7: a spec whose topic was changed is refused before anything is written."""
    pipeline = begun()
    ask(pipeline, select(retained=True), 4)
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


def test_a_time_window_can_be_one_plan() -> None:
    """A run by dates is one plan; of several at once, the others wait for the first."""
    pipeline = begun()
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
    """I1: nobody else would ever read them, so the chunk is not over with its first plan."""
    pipeline = begun()
    ask(pipeline, select(offsets=["0:0-6"]), 3)
    plan = pipeline.backfills.plan_chunk("ops", 1).plan
    assert plan is not None
    pipeline.table.append(plan, [f for f in pipeline.table.write(plan, 1) if f.first != 1])
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


def test_offsets_deleted_before_a_chunk_is_planned_are_refused_or_skipped() -> None:
    """As it was asked for; the other chunks land either way."""
    pipeline = begun()
    ask(pipeline, select(offsets=["0:0-3"]), 2, "strict")
    lenient = preview(pipeline, select(offsets=["0:0-6"]), 4, readable_only=True)
    pipeline.backfills.request(lenient, "lenient", approved=False)
    pipeline.kafka.delete_records("events", 0, 1)
    with pytest.raises(InvalidRange, match="low watermark is 1"):
        pipeline.backfills.plan_chunk("strict", 1)
    land(pipeline, 2, "strict")
    land(pipeline, 1, "lenient")
    land(pipeline, 2, "lenient")
    assert [each.done for each in pipeline.backfills.progress("lenient")] == [True, True]
    assert [each.done for each in pipeline.backfills.progress("strict")] == [False, True]
    with pytest.raises(BackfillUnfinished, match=r"chunk\(s\) 1 have not landed"):
        check_finished("events", "strict", pipeline.backfills.progress("strict"))
    assert pipeline.landed_identities() == [("id-1", 0, offset) for offset in range(1, 6)]


def test_a_window_notes_partitions_that_may_lack_records() -> None:
    """Kafka's time index begins where the log does, and ends where it can be read."""
    pipeline = begun()
    window = TimeWindow(start=EPOCH, end=EPOCH + timedelta(hours=1))
    assert preview(pipeline, window).notes == ()
    pipeline.kafka.delete_records("events", 1, 2)
    (note,) = preview(pipeline, window).notes
    assert "Kafka has deleted earlier offsets" in note
    assert note.endswith("partition(s) 1")


def test_a_landed_backfill_without_a_record_does_not_block_the_next() -> None:
    """Its driver died between the commit and the record."""
    pipeline = begun()
    ask(pipeline, select(offsets=["0:0-4"]), 10, "dead")
    plan = pipeline.backfills.plan_chunk("dead", 1).plan
    assert plan is not None
    pipeline.land(plan)
    seen = preview(pipeline, select(offsets=["0:2-6"]))
    assert (missing(seen), seen.found.covered) == ({0: [(4, 6)]}, {0: SpanSet((Span(2, 4),))})
    assert missing(preview(pipeline, select(offsets=["0:2-6"]), replaces=True)) == {0: [(2, 6)]}
    pipeline.backfills.request(seen, "next", approved=False)
    land(pipeline, 1, "next")
    assert pipeline.landed_identities() == [("id-1", 0, offset) for offset in range(6)]


def test_a_landed_replacement_without_a_record_does_not_block_the_next() -> None:
    """All that was asked for is replaced: also what the one before it has just landed."""
    pipeline = begun()
    ask(pipeline, select(offsets=["0:0-4"]), 10, "first")
    land(pipeline, 1, "first")
    for name in ("dead", "next"):
        seen = preview(pipeline, select(offsets=["0:0-4"]), replaces=True)
        assert (seen.offsets, seen.found.planned) == (4, {})
        pipeline.backfills.request(seen, name, approved=False, reason="rows were changed")
        plan = pipeline.backfills.plan_chunk(name, 1).plan
        assert plan is not None
        assert plan.replaces
        pipeline.land(plan)
    pipeline.ingest.execute(pipeline.ledger.last_sequence)
    assert pipeline.landed_identities() == [("id-1", 0, offset) for offset in range(4)]


def test_a_preview_raises_the_errors_of_the_planner() -> None:
    """Before it is recorded: what was asked for stays asked for."""
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
        ask(pipeline, select(offsets=["0:10-15"]), 10)
    assert pipeline.ledger.event_number == before


def test_a_backfill_above_the_limit_needs_approval() -> None:
    """Before anything is written."""
    pipeline = begun()
    pipeline.spec = make_spec(start=StartPolicy.LATEST, records_per_backfill=14)
    seen = preview(pipeline, select(retained=True))
    with pytest.raises(BackfillTooLarge, match="15 offsets"):
        pipeline.backfills.request(seen, "ops", approved=False)
    assert pipeline.backfills.chunk_count("ops") is None
    assert pipeline.backfills.request(seen, "ops", approved=True) == 1


class Forgetful(MemoryKafka):
    """Deletes records right after it was asked for a moment's offsets."""

    def offsets_at(
        self, topic: str, partitions: Sequence[int], moment: datetime
    ) -> Mapping[int, int]:
        found = super().offsets_at(topic, partitions, moment)
        self.delete_records(topic, 0, 3)
        return found


def test_a_time_window_selects_the_retained_part() -> None:
    """Retention works on while a run by date is planned; nobody has named those offsets."""
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST), kafka=Forgetful())
    pipeline.produce(0, 10)
    pipeline.planner.plan("begin")
    window = TimeWindow(start=EPOCH, end=EPOCH + timedelta(days=1))
    plan = pipeline.backfills.plan_whole(window, "by date").plan
    assert plan is not None
    assert [(r.partition, r.start, r.end) for r in plan.ranges] == [(0, 3, 10)]


def test_an_unknown_chunk_or_backfill_is_refused() -> None:
    """With those that are."""
    pipeline = begun()
    ask(pipeline, select(offsets=["0:0-4"]), 2)
    with pytest.raises(UnknownBackfill, match=r"recorded chunks: 2"):
        pipeline.backfills.plan_chunk("ops", 3)
    with pytest.raises(UnknownBackfill, match="no chunk 1 of a backfill requested by nobody"):
        pipeline.backfills.progress("nobody")


def test_a_backfill_can_start_a_pipeline() -> None:
    """Where its live chain begins is recorded with it, or asked for."""
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST))
    pipeline.produce(0, 10)
    ask(pipeline, select(retained=True), 100)
    pipeline.produce(0, 5)
    land(pipeline, 1)
    pipeline.run("live")
    assert pipeline.landed_identities() == pipeline.visible_identities()
    undecided = MemoryPipeline(spec=make_spec(start=StartPolicy.NONE))
    undecided.produce(0, 10)
    with pytest.raises(NoStartOffset):
        ask(undecided, select(retained=True), 100)
