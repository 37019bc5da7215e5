"""Tests of starting a pipeline at the offsets of another reader."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.support.memory import MemoryGroups
from tests.support.plans import MemoryPipeline, make_spec
from tidemark.bronze.ingest.errors import (
    AlreadyStarted,
    InvalidStart,
    NothingLanded,
)
from tidemark.bronze.ingest.start import StartOutcome, group_position
from tidemark.bronze.ingest.start_rules import OtherPartitions, SourceOffsets, given_offsets
from tidemark.bronze.repair.exports import Exports
from tidemark.core.errors import EndBehindCommitted, InvalidSelection, LostRange, TopicRecreated
from tidemark.core.ledger import Ledger
from tidemark.core.plain import plain
from tidemark.kafka.errors import GroupActive, TopicMissing
from tidemark.spec.model import StartPolicy

REQUESTED_BY = "cli:ann:1"


@pytest.fixture
def pipeline() -> MemoryPipeline:
    """Return a pipeline with policy `none` and ten records in each of two partitions."""
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.NONE))
    for partition in (0, 1):
        pipeline.produce(partition, 10)
    return pipeline


def given_source(offsets: Mapping[int, int]) -> SourceOffsets:
    return SourceOffsets(source="offsets given by hand", offsets=offsets)


def of_group(offsets: Mapping[int, int]) -> SourceOffsets:
    groups = MemoryGroups({"old": {"events": dict(offsets)}})
    return group_position(groups, "old", "events", (0, 1))


# -- start offsets -------------------------------------------------------------------------------


def test_a_pipeline_starts_at_the_committed_offsets_of_a_group(pipeline: MemoryPipeline) -> None:
    """I3. The control table has user and reason."""
    done = pipeline.starts.start(of_group({0: 4, 1: 10}), REQUESTED_BY, "moved")
    assert done.outcome is StartOutcome.RECORDED
    assert [(p.partition, p.offset, p.named_by_source, p.lost) for p in done.partitions] == [
        (0, 4, True, 0),
        (1, 10, True, 0),
    ]
    columns = ("event", "partition", "committed_offset", "requested_by", "reason")
    reason = "started at the offsets of consumer group 'old'; moved"
    assert [[row[name] for name in columns] for row in pipeline.control.rows] == [
        ["started", 0, 4, REQUESTED_BY, reason],
        ["started", 1, 10, REQUESTED_BY, reason],
    ]
    plan = pipeline.run("first")
    assert plan is not None
    assert [(r.partition, r.start, r.end) for r in plan.ranges] == [(0, 4, 10)]
    assert pipeline.committed() == {0: 10, 1: 10}


def test_starting_at_offsets_of_a_group_with_members_adds_a_note(pipeline: MemoryPipeline) -> None:
    groups = MemoryGroups({"old": {"events": {0: 4, 1: 4}}})
    found = group_position(groups, "old", "events", (0, 1))
    assert pipeline.starts.start(found, REQUESTED_BY, dry_run=True).notes == ()
    groups.active.add("old")
    found = group_position(groups, "old", "events", (0, 1))
    (note,) = pipeline.starts.start(found, REQUESTED_BY, dry_run=True).notes
    assert note.startswith("consumer group 'old' has members")


def test_the_leader_epoch_of_the_start_offset_is_recorded(pipeline: MemoryPipeline) -> None:
    """A truncation before the first landing is detected by it."""
    pipeline.kafka.elect("events", 0)
    pipeline.starts.start(given_source({0: 4, 1: 4}), REQUESTED_BY)
    assert pipeline.ledger.start_epochs == {0: 1, 1: 0}


def test_a_dry_run_of_a_start_shows_partitions_and_writes_nothing(pipeline: MemoryPipeline) -> None:
    pipeline.kafka.delete_records("events", 0, 6)
    draft = pipeline.starts.start(given_source({0: 4, 1: 3}), REQUESTED_BY, dry_run=True)
    assert draft.outcome is StartOutcome.DRAFT
    assert [(p.offset, p.low_watermark, p.end, p.lost) for p in draft.partitions] == [
        (4, 6, 10, 2),
        (3, 0, 10, 0),
    ]
    assert [each["to_read"] for each in plain(draft)["partitions"]] == [4, 7]
    assert pipeline.control.rows == []


def test_s7_a_deleted_start_offset_is_a_lost_range_until_accepted(pipeline: MemoryPipeline) -> None:
    pipeline.kafka.delete_records("events", 0, 6)
    pipeline.starts.start(given_source({0: 4, 1: 10}), REQUESTED_BY)
    with pytest.raises(LostRange) as refused:
        pipeline.planner.plan("first")
    assert refused.value.lost == ((0, 4, 6),)
    pipeline.decisions.accept_loss((), REQUESTED_BY, "the old consumer stood still for too long")
    pipeline.run("first")
    assert pipeline.committed() == {0: 10, 1: 10}


def test_repeating_a_start_changes_nothing_even_after_runs(pipeline: MemoryPipeline) -> None:
    """The answer to the first call may have been lost."""
    first = pipeline.starts.start(
        of_group({0: 4}), REQUESTED_BY, "moved", others=OtherPartitions.LATEST
    )
    pipeline.produce(1, 5)
    pipeline.run("first")
    before = list(pipeline.control.rows)
    again = pipeline.starts.start(
        of_group({0: 4}), "cli:ann:2", "moved", others=OtherPartitions.LATEST
    )
    assert again.outcome is StartOutcome.NOTHING
    assert [p.offset for p in again.partitions] == [p.offset for p in first.partitions] == [4, 10]
    assert pipeline.control.rows == before


@pytest.mark.parametrize(
    ("found", "reason", "others"),
    [
        (of_group({0: 5, 1: 4}), None, None),
        (of_group({0: 4, 1: 4}), "another", None),
        (of_group({0: 4, 1: 4}), None, OtherPartitions.LATEST),
        (given_source({0: 4, 1: 4}), None, None),
    ],
)
def test_a_started_pipeline_cannot_start_at_other_offsets(
    pipeline: MemoryPipeline,
    found: SourceOffsets,
    reason: str | None,
    others: OtherPartitions | None,
) -> None:
    """I4. Equal offsets of another source are refused too."""
    pipeline.starts.start(of_group({0: 4, 1: 4}), REQUESTED_BY)
    before = list(pipeline.control.rows)
    for dry_run in (True, False):
        with pytest.raises(AlreadyStarted) as refused:
            pipeline.starts.start(found, REQUESTED_BY, reason, others=others, dry_run=dry_run)
        assert refused.value.known == ("0:4", "1:4")
        assert "consumer group 'old'" in str(refused.value)
    assert pipeline.control.rows == before


def test_a_pipeline_started_by_its_policy_cannot_start_again(pipeline: MemoryPipeline) -> None:
    """The offsets are equal, but their source is the policy."""
    pipeline.spec = make_spec(start=StartPolicy.EARLIEST)
    pipeline.run("first")
    with pytest.raises(AlreadyStarted, match="start policy"):
        pipeline.starts.start(given_source({0: 0, 1: 0}), REQUESTED_BY)


def test_recorded_start_offsets_override_the_start_policy(pipeline: MemoryPipeline) -> None:
    pipeline.starts.start(given_source({0: 7, 1: 7}), REQUESTED_BY)
    pipeline.spec = make_spec(start=StartPolicy.EARLIEST)
    plan = pipeline.run("first")
    assert plan is not None
    assert [(r.partition, r.start) for r in plan.ranges] == [(0, 7), (1, 7)]


def test_repeating_a_start_after_the_topic_was_recreated_is_refused(
    pipeline: MemoryPipeline,
) -> None:
    pipeline.starts.start(given_source({0: 0, 1: 0}), REQUESTED_BY)
    pipeline.kafka.create("events", 2, "id-2")
    with pytest.raises(AlreadyStarted):
        pipeline.starts.start(given_source({0: 0, 1: 0}), REQUESTED_BY)


def test_the_loser_of_two_concurrent_starts_is_refused(pipeline: MemoryPipeline) -> None:
    rival = MemoryPipeline(
        spec=pipeline.spec, kafka=pipeline.kafka, control=pipeline.control, table=pipeline.table
    )

    def overtake(_ledger: Ledger) -> None:
        pipeline.control.before_append = lambda _ledger: None
        rival.starts.start(given_source({0: 1, 1: 1}), "cli:bob:1")

    pipeline.control.before_append = overtake
    with pytest.raises(AlreadyStarted) as refused:
        pipeline.starts.start(given_source({0: 4, 1: 4}), REQUESTED_BY)
    assert refused.value.known == ("0:1", "1:1")
    assert pipeline.committed() == {0: 1, 1: 1}


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "error"),
    [
        ({0: 4, 1: 4, 2: 4}, InvalidSelection),
        ({0: 4, 1: 11}, InvalidStart),
        ({0: 4, 1: -1}, InvalidStart),
        ({0: 4}, InvalidStart),
        ({}, InvalidStart),
    ],
)
def test_i7_incomplete_or_unavailable_start_offsets_are_refused(
    pipeline: MemoryPipeline, offsets: Mapping[int, int], error: type[Exception]
) -> None:
    for dry_run in (True, False):
        with pytest.raises(error):
            pipeline.starts.start(given_source(offsets), REQUESTED_BY, dry_run=dry_run)
    assert pipeline.control.rows == []


@pytest.mark.parametrize(
    ("others", "begins"), [(OtherPartitions.EARLIEST, 3), (OtherPartitions.LATEST, 10)]
)
def test_the_option_others_sets_the_start_of_partitions_that_the_source_lacks(
    pipeline: MemoryPipeline, others: OtherPartitions, begins: int
) -> None:
    """Without the option, the partitions are refused and listed."""
    pipeline.kafka.delete_records("events", 1, 3)
    with pytest.raises(InvalidStart) as refused:
        pipeline.starts.start(of_group({0: 4}), REQUESTED_BY)
    assert refused.value.seen == "none for partition 1"
    done = pipeline.starts.start(of_group({0: 4}), REQUESTED_BY, others=others)
    assert [(p.offset, p.named_by_source) for p in done.partitions] == [(4, True), (begins, False)]
    assert pipeline.committed() == {0: 4, 1: begins}


def test_a_group_without_offsets_of_the_topic_is_refused() -> None:
    groups = MemoryGroups({"old": {"prices": {0: 4}}})
    for group in ("mistyped", "old"):
        with pytest.raises(InvalidStart, match="'events'"):
            group_position(groups, group, "events", (0, 1))


def test_starting_with_a_missing_topic_is_refused(pipeline: MemoryPipeline) -> None:
    pipeline.spec = make_spec(topic="nosuch")
    with pytest.raises(TopicMissing):
        pipeline.starts.start(given_source({0: 0}), REQUESTED_BY)


@pytest.mark.parametrize("text", ["", "0", "0:", "0:-1", "0:1,", "0:1;1:2", "a:1", "0:1,0:2"])
def test_given_offsets_with_invalid_or_repeated_partitions_are_refused(text: str) -> None:
    with pytest.raises(InvalidStart):
        given_offsets(text)


def test_given_offsets_are_parsed() -> None:
    assert given_offsets("1:17, 0:5").offsets == {0: 5, 1: 17}


# -- export --------------------------------------------------------------------------------------


def exports(pipeline: MemoryPipeline, groups: MemoryGroups) -> Exports:
    return Exports(spec=pipeline.spec, ports=pipeline.planner.ports, groups=groups)


def test_export_writes_the_committed_offsets_to_the_group(pipeline: MemoryPipeline) -> None:
    """Other topics of the group and the control table do not change."""
    pipeline.starts.start(given_source({0: 4, 1: 9}), REQUESTED_BY)
    pipeline.run("first")
    groups = MemoryGroups({"lag": {"events": {0: 2}, "prices": {0: 1}}})
    preview = exports(pipeline, groups).export("lag", dry_run=True)
    assert [(p.partition, p.before, p.committed_offset, p.end) for p in preview] == [
        (0, 2, 10, 10),
        (1, None, 10, 10),
    ]
    assert groups.offsets == {"lag": {"events": {0: 2}, "prices": {0: 1}}}
    before = list(pipeline.control.rows)
    assert exports(pipeline, groups).export("lag") == preview
    assert groups.offsets == {"lag": {"events": {0: 10, 1: 10}, "prices": {0: 1}}}
    assert pipeline.control.rows == before


def test_i6_export_to_an_active_group_is_refused(
    pipeline: MemoryPipeline,
) -> None:
    groups = MemoryGroups(active={"busy"})
    with pytest.raises(NothingLanded):
        exports(pipeline, groups).export("lag")
    pipeline.starts.start(given_source({0: 4, 1: 9}), REQUESTED_BY)
    for dry_run in (True, False):
        with pytest.raises(GroupActive, match="busy"):
            exports(pipeline, groups).export("busy", dry_run=dry_run)
    assert groups.offsets == {}


def test_i6_offsets_that_do_not_fit_the_topic_are_not_exported(pipeline: MemoryPipeline) -> None:
    """Covers a truncated log and a recreated topic."""
    groups = MemoryGroups()
    pipeline.starts.start(given_source({0: 4, 1: 9}), REQUESTED_BY)
    pipeline.kafka.elect("events", 1, end=6)
    with pytest.raises(EndBehindCommitted):
        exports(pipeline, groups).export("lag")
    pipeline.kafka.create("events", 2, "id-2")
    with pytest.raises(TopicRecreated):
        exports(pipeline, groups).export("lag")
    assert groups.offsets == {}
