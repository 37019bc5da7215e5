"""Pages of records: rows beside Kafka's records, absent rows, and errors of single parts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.support.file_lake import FileLake, Payload
from tests.support.memory import MemoryKafka
from tests.support.plans import MemoryPipeline, make_spec, wanted
from tests.support.services import NOW
from tests.support.typed_lake import TypedLake
from tidemark.bronze.repair.errors import NothingToDo
from tidemark.core.errors import (
    ExitCode,
    InvalidReference,
    InvalidSelection,
    LostRange,
    TableBehindLedger,
    TopicChanged,
    TopicRecreated,
)
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan
from tidemark.core.watermarks import IsolationLevel
from tidemark.delta.errors import ControlConflict, EngineFailed, ForeignTable
from tidemark.kafka.errors import KafkaUnavailable, TopicMissing
from tidemark.ops.report import coverage_rows, records
from tidemark.ops.report.absence import KafkaState
from tidemark.ops.report.coverage import OffsetState, coverage
from tidemark.ops.report.decoded_rows import DecodedTables
from tidemark.ops.report.errors import PageTooLarge
from tidemark.ops.report.record_page import DecodingState, PagePart, RecordPage
from tidemark.ops.report.records import RecordReader
from tidemark.silver.typed.quarantine_index import QuarantineIndex
from tidemark.silver.typed.quarantine_record import QuarantinedRecord
from tidemark.spec.model import StartPolicy


def page(pipeline: MemoryPipeline, count: int = 10, topic_id: str | None = None) -> RecordPage:
    return pipeline.pipeline.report.records.page(0, 0, count, topic_id)


def reasons(found: RecordPage) -> list[str | None]:
    """Return the reason of each offset without a row; None for the others."""
    return [each.absence.state.value if each.absence else None for each in found.entries]


def refuse(error: Exception) -> Callable[..., Any]:
    def raising(*_: object, **__: object) -> Any:
        raise error

    return raising


# -- rows and records ------------------------------------------------------------------------------


def test_a_page_has_the_record_and_the_row_of_each_landed_offset() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 2)
    pipeline.run("a")
    pipeline.produce(0, 1)
    pipeline.run("b")
    found = page(pipeline, 3)
    assert [entry.rows[0].plan for entry in found.entries] == [1, 1, 2]
    assert [entry.record == entry.rows[0].record for entry in found.entries] == [True] * 3
    assert {entry.kafka for entry in found.entries} == {KafkaState.RECORD}
    assert all(entry.differs == () and entry.absence is None for entry in found.entries)
    assert (found.topic_id, found.partition, found.errors) == ("id-1", 0, {})


def test_a_row_that_differs_from_kafkas_record_names_its_fields(tmp_path: Path) -> None:
    lake = FileLake(tmp_path)
    lake.land_payloads([(b"k", b"v"), (b"k", None)], headers=(("h", b"1"), ("h\0x", None)))
    assert [each.differs for each in lake.pipeline.report.records.page(0, 0, 2).entries] == [(), ()]
    lake.payloads[0, 0] = Payload(b"k", b"other", (("h", b"2"),))
    lake.payloads[0, 1] = Payload(None, b"", (("h", b"1"), ("h", None)))
    found = lake.pipeline.report.records.page(0, 0, 2)
    assert [each.differs for each in found.entries] == [("value", "headers"), ("key", "value")]
    assert found.entries[0].rows[0].record.value == b"v"


def test_a_duplicate_row_is_on_the_page() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 1)
    pipeline.run("a")
    pipeline.table.rows.append(("id-1", 0, 0, 1))
    assert [row.plan for row in page(pipeline, 1).entries[0].rows] == [1, 1]


def test_a_row_stays_visible_after_kafka_deleted_its_record() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 3)
    pipeline.run("a")
    pipeline.kafka.delete_records("events", 0, before=2)
    entry, _, last = page(pipeline, 3).entries
    assert (entry.kafka, entry.record, entry.shown) == (
        KafkaState.DELETED,
        None,
        entry.rows[0].record,
    )
    assert last.kafka is KafkaState.RECORD


def test_a_row_stays_visible_after_compaction_removed_its_record() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 2)
    pipeline.run("a")
    del pipeline.kafka.topics["events"][0].records[0]
    entry, _ = page(pipeline, 2).entries
    assert (entry.kafka, len(entry.rows), entry.absence) == (KafkaState.NO_RECORD, 1, None)


def test_records_that_exceed_the_size_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 3)
    monkeypatch.setattr(records, "KAFKA_BYTES", 10)
    states = [each.kafka.value for each in page(pipeline, 4).entries]
    assert states == ["record", "record", "not read", "after the end of the readable log"]


# -- absent rows ----------------------------------------------------------------------------------


def test_the_number_of_rows_distinguishes_gaps_from_missing_rows() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 2)
    pipeline.run("a")
    pipeline.produce(0, 1)
    pipeline.kafka.add_gaps("events", 0, 1)
    pipeline.produce(0, 1)
    pipeline.run("b")
    found = page(pipeline, 5)
    assert reasons(found) == [None, None, None, "gap", None]
    gap = found.entries[3].absence
    assert gap is not None
    assert (gap.plan, "aborted transaction" in gap.detail) == (2, True)
    pipeline.table.rows = [row for row in pipeline.table.rows if row[2] not in (1, 4)]
    assert reasons(page(pipeline, 5)) == [None, "missing", None, "gap or missing", "missing"]


def test_a_missing_row_whose_record_kafka_compacted_later_is_no_gap() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 1)
    pipeline.kafka.add_gaps("events", 0, 1)
    pipeline.produce(0, 1)
    pipeline.run("a")
    pipeline.table.rows = [row for row in pipeline.table.rows if row[2] != 2]
    del pipeline.kafka.topics["events"][0].records[2]
    assert reasons(page(pipeline, 3)) == [None, *["gap or missing"] * 2]


def test_a_gap_stays_a_gap_after_kafka_deleted_its_range() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 1)
    pipeline.kafka.add_gaps("events", 0, 1)
    pipeline.produce(0, 1)
    pipeline.run("a")
    pipeline.kafka.delete_records("events", 0, before=3)
    assert reasons(page(pipeline, 3)) == [None, "gap", None]


def test_a_range_that_is_too_large_to_count_leaves_gaps_unclear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 1)
    pipeline.kafka.add_gaps("events", 0, 1)
    pipeline.produce(0, 1)
    pipeline.run("a")
    assert reasons(page(pipeline, 2)) == [None, "gap"]
    monkeypatch.setattr(coverage_rows, "MOST_BYTES", 0)
    assert reasons(page(pipeline, 2)) == [None, "gap or missing"]
    # The page contains the whole range.
    assert reasons(page(pipeline, 3)) == [None, "gap", None]


def with_aborted_record(*, offset: int = 1, level: IsolationLevel) -> MemoryPipeline:
    """Return a pipeline whose plan did not see an aborted record, which Kafka now returns.

    The spec has another isolation level since.
    """
    pipeline = MemoryPipeline()
    pipeline.produce(0, offset)
    pipeline.kafka.add_gaps("events", 0, 1)
    pipeline.produce(0, 1)
    pipeline.run("a")
    pipeline.kafka.topics["events"][0].records[offset] = 0
    pipeline.spec = replace(pipeline.spec, isolation_level=level)
    return pipeline


@pytest.mark.parametrize("level", IsolationLevel)
def test_a_record_that_kafka_shows_later_does_not_turn_a_proven_gap_into_a_missing_row(
    level: IsolationLevel,
) -> None:
    found = page(with_aborted_record(level=level), 3)
    assert [each.kafka for each in found.entries] == [KafkaState.RECORD] * 3
    assert reasons(found) == [None, "gap", None]
    gap = found.entries[1].absence
    assert gap is not None
    assert ("read_uncommitted" in gap.detail) is (level is IsolationLevel.READ_UNCOMMITTED)
    assert "No reader can see" not in gap.detail


def test_an_aborted_record_does_not_prove_a_missing_row() -> None:
    """A row of the range is missing, so its number of rows does not decide."""
    pipeline = with_aborted_record(level=IsolationLevel.READ_UNCOMMITTED)
    pipeline.table.rows = [row for row in pipeline.table.rows if row[2] != 0]
    assert reasons(page(pipeline, 3)) == ["gap or missing", "gap or missing", None]
    pipeline.spec = replace(pipeline.spec, isolation_level=IsolationLevel.READ_COMMITTED)
    assert reasons(page(pipeline, 3)) == ["missing", "missing", None]


def test_open_unread_and_unwritten_offsets_have_their_reasons() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 1)
    assert reasons(page(pipeline, 2)) == ["unread", "after the end of the readable log"]
    pipeline.run("a")
    pipeline.produce(0, 1)
    plan = pipeline.plan("b")
    pipeline.produce(0, 1)
    found = page(pipeline, 4)
    assert reasons(found) == [
        None,
        "in an open plan",
        "unread",
        "after the end of the readable log",
    ]
    assert found.entries[1].absence is not None
    assert found.entries[1].absence.plan == plan.sequence
    assert found.entries[1].record is not None


def test_an_undone_plan_is_named_until_its_offsets_land_again() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 2)
    pipeline.run("a")
    pipeline.undo.undo(1, "ada", "wrong topic")
    absence = page(pipeline, 1).entries[0].absence
    assert absence is not None
    assert (absence.state, absence.plan) == (OffsetState.UNREAD, 1)
    assert "ada undid plan 1: wrong topic" in absence.detail
    pipeline.run("b")
    assert reasons(page(pipeline, 2)) == [None, None]


def test_a_lost_offset_has_the_operator_who_accepted_the_loss_and_the_reason() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 1)
    pipeline.run("a")
    pipeline.produce(0, 3)
    pipeline.kafka.delete_records("events", 0, before=3)
    assert reasons(page(pipeline, 4)) == [None, "lost", "lost", "unread"]
    pipeline.decisions.accept_loss((), "ada", "broker outage")
    found = page(pipeline, 4)
    assert reasons(found)[:3] == [None, *["lost"] * 2]
    assert found.entries[1].absence is not None
    assert found.entries[1].absence.detail.endswith(
        "ada accepted the loss at 2026-03-01 12:00 UTC: broker outage"
    )


@pytest.mark.parametrize("seed", range(8))
def test_records_and_coverage_have_one_state_of_each_offset(seed: int) -> None:
    """Random runs, undos, backfills, losses and deletions by Kafka."""
    source = Random(seed)
    start = source.choice((StartPolicy.EARLIEST, StartPolicy.LATEST))
    pipeline = MemoryPipeline(spec=make_spec(start=start))
    pipeline.produce(0, 3)
    pipeline.run("start")
    for number in range(12):
        pipeline.produce(0, source.randint(1, 3))
        low, end = pipeline.kafka.topics["events"][0].low, pipeline.kafka.topics["events"][0].end
        match source.choice(("run", "run", "undo", "delete", "accept", "backfill")):
            case "run":
                with suppress(LostRange):
                    pipeline.run(f"run {number}")
            case "undo" if held := [n for n, r in pipeline.ledger.plans.items() if r.held_now]:
                pipeline.undo.undo(source.choice(held), "ada", "wrong", allow_loss=True)
            case "delete":
                pipeline.kafka.delete_records("events", 0, before=source.randint(low, end))
            case "accept":
                with suppress(NothingToDo):
                    pipeline.decisions.accept_loss((), "ada", "outage")
            case "backfill" if low < end:
                with suppress(LostRange):
                    request = wanted((0, low, source.randint(low + 1, end)))
                    plan = pipeline.planner.backfill(request, RunOrigin(f"fill {number}")).plan
                    if plan:
                        pipeline.ingest.execute(plan.sequence)
    topic = pipeline.kafka.topic_watermarks("events", pipeline.spec.isolation_level)
    covered = coverage(pipeline.control.summary("events"), topic)[0].states
    states = {
        offset: state
        for state, some in covered.items()
        for span in some
        for offset in range(span.start, span.end)
    }
    found = page(pipeline, 49)
    for entry in found.entries:
        state = entry.absence.state if entry.absence else OffsetState.LANDED
        if entry.offset not in states:
            assert state is KafkaState.AFTER_END
        else:
            assert state is states[entry.offset], (entry.offset, entry.absence)


def test_an_accepted_loss_is_recognised_without_its_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = MemoryPipeline()
    pipeline.run("a")
    pipeline.produce(0, 2)
    pipeline.run("a")
    pipeline.produce(0, 2)
    pipeline.kafka.delete_records("events", 0, before=3)
    pipeline.decisions.accept_loss((), "ada", "outage")
    failed = EngineFailed(operation="reading", reason="test")
    monkeypatch.setattr(pipeline.control, "accepted_losses", refuse(failed))
    found = page(pipeline, 3)
    assert reasons(found)[2] == "lost"
    assert found.errors == {PagePart.CONTROL: failed}


def test_offsets_before_the_start_are_expired_if_kafka_has_deleted_them() -> None:
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.LATEST))
    pipeline.produce(0, 4)
    pipeline.run("a")
    pipeline.kafka.delete_records("events", 0, before=1)
    plan = pipeline.planner.backfill(wanted((0, 2, 3)), RunOrigin("b")).plan
    assert plan is not None
    pipeline.ingest.execute(plan.sequence)
    expected = ["expired", "before the start", None, "before the start"]
    assert reasons(page(pipeline, 4)) == expected


def test_offsets_of_another_incarnation_have_their_own_page() -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 2)
    pipeline.run("a")
    pipeline.kafka.create("events", 2, "id-2")
    pipeline.produce(0, 1)
    old = page(pipeline, 3)
    assert (old.topic_id, old.watermarks) == ("id-1", None)
    assert {each.kafka for each in old.entries} == {KafkaState.OTHER_TOPIC}
    assert reasons(old) == [None, None, "another incarnation of the topic"]
    assert isinstance(old.errors[PagePart.KAFKA], TopicRecreated)
    new = page(pipeline, 1, "id-2")
    assert reasons(new) == ["another incarnation of the topic"]
    assert new.entries[0].record is not None
    pipeline.decisions.accept_recreation("ada", "intended")
    assert page(pipeline, 1).topic_id == "id-2"
    assert page(pipeline, 1).errors == {}
    assert reasons(page(pipeline, 3, "id-1")) == [None, None, "another incarnation of the topic"]


def test_an_undone_offset_of_a_recreated_topic_cannot_be_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = landed()
    pipeline.undo.undo(1, "ada", "wrong")

    def detail() -> str:
        absence = page(pipeline, 1).entries[0].absence
        assert absence is not None
        assert absence.plan == 1
        return absence.detail

    assert detail().startswith("The offset is unread again.")
    pipeline.kafka.create("events", 2, "id-2")
    assert detail().startswith("No run can read the offset again")
    monkeypatch.setattr(MemoryKafka, "topic_watermarks", refuse(TopicMissing(topic="events")))
    assert detail().startswith("The offset is unread again, unless Kafka has deleted it.")


def test_a_spec_that_names_another_topic_has_the_page_of_the_landed_topic() -> None:
    pipeline = landed()
    pipeline.produce(0, 1)
    pipeline.kafka.create("other", 2, "id-9")
    pipeline.spec = replace(pipeline.spec, topic="other")
    found = page(pipeline, 3)
    assert (found.topic, found.topic_id) == ("events", "id-1")
    assert isinstance(found.errors[PagePart.KAFKA], TopicChanged)
    assert [each.kafka for each in found.entries] == [KafkaState.RECORD] * 3
    assert reasons(found) == [None, None, "unread"]
    other = page(pipeline, 1, "id-9")
    assert other.topic == "other"
    absence = other.entries[0].absence
    assert absence is not None
    assert absence.detail.endswith("The pipeline reads topic events, id id-1.")


def test_another_cluster_does_not_answer_for_the_landed_topic() -> None:
    pipeline = landed()
    pipeline.kafka.cluster_id = "moved"
    found = page(pipeline, 3)
    assert isinstance(found.errors[PagePart.KAFKA], TopicRecreated)
    assert {each.kafka for each in found.entries} == {KafkaState.UNKNOWN}
    assert (found.watermarks, {each.record for each in found.entries}) == (None, {None})
    pipeline.kafka.create("events", 2, "id-2")
    pipeline.produce(0, 1)
    assert page(pipeline, 1, "id-2").entries[0].record is not None


def test_an_offset_is_found_by_time_in_the_incarnation_of_the_page_only() -> None:
    pipeline = landed()
    assert pipeline.pipeline.offsets.at(0, NOW) == 2
    pipeline.kafka.create("events", 2, "id-2")
    with pytest.raises(TopicRecreated):
        pipeline.pipeline.offsets.at(0, NOW)
    with pytest.raises(InvalidSelection, match="belong to an earlier topic"):
        pipeline.pipeline.offsets.at(0, NOW, "id-0")
    assert pipeline.pipeline.offsets.at(0, NOW, "id-2") == 0


def land_during_reads(
    pipeline: MemoryPipeline, monkeypatch: pytest.MonkeyPatch, most: int = 100
) -> list[int]:
    """Let another process land a record during each of the first reads of the rows of a page.

    Returns a list to which each of these reads adds its number of rows.
    """
    rows_of, reads = pipeline.table.rows_of, list[int]()

    def landing(*arguments: Any) -> Any:
        found = list(rows_of(*arguments))
        reads.append(len(found))
        if len(reads) <= most:
            with monkeypatch.context() as patch:
                # A plan reads rows, too.
                patch.setattr(pipeline.table, "rows_of", rows_of)
                pipeline.produce(0, 1)
                pipeline.run(f"run {len(reads)}")
        return iter(found)

    monkeypatch.setattr(pipeline.table, "rows_of", landing)
    return reads


@pytest.mark.parametrize("fails", [False, True])
def test_a_plan_that_lands_during_the_read_leaves_no_missing_row(
    monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """The rows are read again, because the ledger has changed; also if its first read failed."""
    pipeline = landed()
    summary, failures = pipeline.control.summary, [EngineFailed(operation="test", reason="test")]

    def failing_once(name: str) -> Ledger:
        if fails and failures:
            raise failures.pop()
        return summary(name)

    monkeypatch.setattr(pipeline.control, "summary", failing_once)
    reads = land_during_reads(pipeline, monkeypatch, most=1)
    assert reasons(page(pipeline, 3)) == [None] * 3
    assert reads == [2, 3]


def test_rows_that_are_older_than_the_ledger_give_no_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With reasons, landed rows would appear as missing."""
    pipeline = landed()
    reads = land_during_reads(pipeline, monkeypatch)
    found = page(pipeline, 12)
    assert len(reads) > 1
    assert isinstance(found.errors[PagePart.CONTROL], ControlConflict)
    assert reasons(found) == [None] * 12
    assert [row.is_recorded for row in found.entries[0].rows] == [None]


def test_the_sets_of_a_page_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may have many spans and partitions."""
    pipeline = landed()
    pipeline.undo.undo(1, "ada", "wrong")
    pipeline.produce(0, 100)
    calls = []
    for owner, name in ((Plan, "spans"), (Ledger, "landed_of")):
        original = getattr(owner, name)

        def counting(*arguments: Any, original: Callable[..., Any] = original) -> Any:
            calls.append(original)
            return original(*arguments)

        monkeypatch.setattr(owner, name, counting)
    counts = []
    for size in (2, 100):
        calls.clear()
        assert reasons(page(pipeline, size))[:2] == ["unread"] * 2
        counts.append(len(calls))
    assert counts[0] == counts[1]


# -- errors of single parts -----------------------------------------------------------------------


def landed() -> MemoryPipeline:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 2)
    pipeline.run("a")
    return pipeline


def test_without_kafka_a_page_still_has_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = landed()
    failed = KafkaUnavailable(operation="list_offsets of events", reason="no broker")
    monkeypatch.setattr(MemoryKafka, "topic_watermarks", refuse(failed))
    found = page(pipeline, 3)
    assert found.errors == {PagePart.KAFKA: failed}
    assert [len(each.rows) for each in found.entries] == [1, 1, 0]
    assert {each.kafka for each in found.entries} == {KafkaState.UNKNOWN}
    assert reasons(found)[2] == "unknown"


def test_without_kafkas_records_a_page_still_has_the_rows_and_watermarks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = landed()
    failed = KafkaUnavailable(operation="reading events[0]", reason="a corrupt batch")
    monkeypatch.setattr(MemoryKafka, "read_briefly", refuse(failed))
    found = page(pipeline, 2)
    assert found.errors == {PagePart.KAFKA: failed}
    assert [(each.kafka, len(each.rows)) for each in found.entries] == [
        (KafkaState.NOT_READ, 1)
    ] * 2


def test_without_the_table_a_page_still_has_kafkas_records_and_gives_no_reasons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = landed()
    failed = EngineFailed(operation="reading the table", reason="test")
    monkeypatch.setattr(pipeline.table, "rows_of", refuse(failed))
    found = page(pipeline, 2)
    assert found.errors == {PagePart.BRONZE: failed}
    assert [(each.record is not None, each.absence) for each in found.entries] == [(True, None)] * 2


@pytest.mark.parametrize("method", ["bytes_to_scan", "count_offsets"])
def test_an_error_while_the_rows_of_a_range_are_counted_is_an_error_of_the_bronze_table(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    pipeline = MemoryPipeline()
    pipeline.kafka.add_gaps("events", 0, 1)
    pipeline.produce(0, 1)
    pipeline.run("a")
    assert reasons(page(pipeline, 1)) == ["gap"]
    failed = EngineFailed(operation="reading the table", reason="test")
    monkeypatch.setattr(pipeline.table, "bytes_to_read", lambda *_: 0)
    monkeypatch.setattr(pipeline.table, method, refuse(failed))
    found = page(pipeline, 1)
    assert found.errors == {PagePart.BRONZE: failed}
    assert reasons(found) == ["gap or missing"]


def test_undone_rows_that_a_restore_brought_back_are_not_recorded(tmp_path: Path) -> None:
    lake = FileLake(tmp_path)
    lake.run(2)
    lake.run(1)
    version = DeltaTable(lake.uri).version()
    lake.undo.undo(2, "ada", "wrong")
    assert reasons(lake.pipeline.report.records.page(0, 0, 3)) == [None, None, "unread"]
    DeltaTable(lake.uri).restore(version)
    found = lake.pipeline.report.records.page(0, 0, 3)
    assert isinstance(found.errors[PagePart.BRONZE], TableBehindLedger)
    assert [each.rows[0].is_recorded for each in found.entries] == [True, True, False]
    assert [each["rows"][0]["recorded"] for each in found.as_record()["records"]] == [
        True,
        True,
        False,
    ]


def test_rows_of_another_table_are_an_error_of_the_table(tmp_path: Path) -> None:
    lake = FileLake(tmp_path)
    lake.run(1)
    lake.uri.rename(lake.uri.with_name("moved"))
    lake.table.prepare("other")
    assert isinstance(
        lake.pipeline.report.records.page(0, 0, 1).errors[PagePart.BRONZE], ForeignTable
    )


def test_a_committed_row_is_not_recorded_until_its_plan_is(tmp_path: Path) -> None:
    lake = FileLake(tmp_path)
    lake.land(lake.plan(1))
    (entry,) = lake.pipeline.report.records.page(0, 0, 1).entries
    assert [(row.plan, row.is_recorded) for row in entry.rows] == [(1, False)]


def test_without_the_control_table_a_page_still_has_records_and_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = landed()
    failed = EngineFailed(operation="reading the control table", reason="test")
    monkeypatch.setattr(pipeline.control, "summary", refuse(failed))
    found = page(pipeline, 3)
    assert found.errors == {PagePart.CONTROL: failed}
    assert [(each.record is not None, len(each.rows)) for each in found.entries] == [
        (True, 1),
        (True, 1),
        (False, 0),
    ]
    assert found.entries[2].absence is None
    assert found.entries[0].rows[0].is_recorded is None


def test_files_above_the_limit_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = landed()
    monkeypatch.setattr(records, "MAX_FILE_BYTES", 1)
    found = page(pipeline, 2)
    error = found.errors[PagePart.BRONZE]
    assert isinstance(error, PageTooLarge)
    assert error.exit_code is ExitCode.REFUSED
    assert all(each.rows == () and each.record is not None for each in found.entries)


def test_without_a_plan_and_without_kafka_there_is_no_page() -> None:
    pipeline = MemoryPipeline()
    del pipeline.kafka.topic_ids["events"]
    with pytest.raises(TopicMissing):
        page(pipeline)


@pytest.mark.parametrize(("start", "count"), [(-1, 1), (0, 0), (0, 501), (2**63 - 1, 1)])
def test_offsets_and_counts_out_of_bounds_are_refused(start: int, count: int) -> None:
    with pytest.raises(InvalidSelection, match="and 1 to 500 offsets"):
        MemoryPipeline().pipeline.report.records.page(0, start, count)


def test_the_highest_offset_of_kafka_can_be_read() -> None:
    (entry,) = landed().pipeline.report.records.page(0, 2**63 - 2, 1).entries
    assert entry.kafka is KafkaState.AFTER_END


def test_an_unknown_partition_is_a_named_error() -> None:
    pipeline = landed()
    with pytest.raises(InvalidSelection, match="no partition 2"):
        pipeline.pipeline.report.records.page(2, 0)
    with pytest.raises(InvalidSelection, match="no partition 2"):
        pipeline.verify.verify(2)


@pytest.mark.parametrize("topic_id", ["", "id' OR true --", "a b"])
def test_a_topic_id_with_other_characters_is_refused(topic_id: str) -> None:
    with pytest.raises(InvalidReference):
        page(landed(), 1, topic_id)


# -- typed tables ----------------------------------------------------------------------------------


def typed_page(lake: TypedLake, count: int) -> RecordPage:
    bronze = lake.bronze
    tables = DecodedTables(typed=lake.typed, quarantine=lake.quarantine)
    reader = RecordReader(spec=bronze.spec, ports=bronze.planner.ports, decoded=tables)
    return reader.page(0, 0, count)


def test_a_page_has_the_decoded_values_or_the_reason_of_the_quarantine(tmp_path: Path) -> None:
    lake = TypedLake(tmp_path)
    lake.land_values([b"a", b"b"])
    assert [each.decoding and each.decoding.state for each in typed_page(lake, 3).entries] == [
        *[DecodingState.NOT_DECODED] * 2,
        None,
    ]
    lake.broken = {1}
    lake.run()
    good, bad = (each.decoding for each in typed_page(lake, 2).entries)
    assert good is not None
    assert (good.state, good.plan, good.values["value"]) == (DecodingState.DECODED, 1, "a")
    assert "offset" not in good.values
    assert bad is not None
    assert (bad.state, bad.plan, bad.reason) == (DecodingState.QUARANTINED, 1, "malformed, value")
    for table in (lake.typed_uri, lake.quarantine_uri):
        DeltaTable(table).delete()
    assert [each.decoding and each.decoding.state for each in typed_page(lake, 2).entries] == [
        DecodingState.NOT_DECODED
    ] * 2


@pytest.mark.slow
def test_a_record_is_quarantined_until_a_replay_decodes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay ends while the page is read."""
    lake = TypedLake(tmp_path)
    lake.broken = {0}
    lake.land_values([b"a"])
    lake.run()
    lake.broken = ()
    records_at = QuarantineIndex.records_at

    def then_replayed(*arguments: Any) -> list[QuarantinedRecord]:
        found = records_at(*arguments)
        # The page opens each table once in its thread.
        with ThreadPoolExecutor(1) as other:
            other.submit(lake.replay, Span(0, 1)).result()
        return found

    (entry,) = typed_page(lake, 1).entries
    assert entry.decoding is not None
    assert entry.decoding.state is DecodingState.QUARANTINED
    monkeypatch.setattr(QuarantineIndex, "records_at", then_replayed)
    (entry,) = typed_page(lake, 1).entries
    assert entry.decoding is not None
    assert (entry.decoding.state, entry.decoding.plan) == (DecodingState.DECODED, 1)


def test_an_unreadable_typed_table_spoils_its_own_part_only(tmp_path: Path) -> None:
    lake = TypedLake(tmp_path)
    lake.land_values([b"a"])
    lake.run()
    for file in lake.typed_uri.rglob("*.parquet"):
        file.write_bytes(b"PAR1 no table")
    found = typed_page(lake, 1)
    assert set(found.errors) == {PagePart.TYPED}
    (entry,) = found.entries
    assert (len(entry.rows), entry.decoding) == (1, None)


# -- plain values ----------------------------------------------------------------------------------


def test_json_has_text_or_base64_of_each_payload_or_none(tmp_path: Path) -> None:
    lake = FileLake(tmp_path)
    lake.land_payloads([("é".encode(), b"\xff\x00"), (None, b"")], headers=(("h", None),))
    first, second = lake.pipeline.report.records.page(0, 0, 2).as_record()["records"]
    assert first["record"]["key"] == {"encoding": "UTF-8", "text": "é"}
    assert first["rows"][0]["value"] == {"encoding": "base64", "text": "/wA="}
    assert first["record"]["headers"] == [{"name": "h", "value": None}]
    assert (second["record"]["key"], second["record"]["value"]["text"]) == (None, "")
    bare = lake.pipeline.report.records.page(0, 0, 1).as_record(payloads=False)["records"][0]
    assert {"key", "value", "headers"}.isdisjoint(bare["record"] | bare["rows"][0])
    assert bare["record"]["size"] == 5
