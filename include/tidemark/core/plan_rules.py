"""Rules of planning: pure functions that return ranges, or raise, from a ledger and watermarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace

from tidemark.core.errors import (
    EndBehindCommitted,
    InvalidSelection,
    LostRange,
    TopicChanged,
    TopicRecreated,
)
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.origins import PlanOrigin
from tidemark.core.plan import Plan, PlanKind, PlannedRange
from tidemark.core.watermarks import Position, TopicWatermarks


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTopic:
    """A topic that a ledger's offsets belong to, and whose log contains the landed ones.

    `ingest.log_comparison` creates it; ranges are planned only for such a topic.

    Attributes:
        ledger: State of the pipeline.
        watermarks: Watermarks of the topic.
    """

    ledger: Ledger
    watermarks: TopicWatermarks


def check_identity(ledger: Ledger, watermarks: TopicWatermarks) -> None:
    """Raise if the committed offsets do not belong to this topic.

    Raises:
        TopicRecreated: The connection leads to another cluster, or the topic has another id.
        TopicChanged: The spec names another topic, or the topic lacks known partitions.
    """
    if ledger.cluster_id is None or ledger.topic_id is None or ledger.topic is None:
        return
    if ledger.cluster_id != watermarks.cluster_id:  # fence: same-cluster
        raise TopicRecreated.of_cluster(
            pipeline=ledger.pipeline,
            known_cluster_id=ledger.cluster_id,
            current_cluster_id=watermarks.cluster_id,
        )
    if ledger.topic != watermarks.topic:
        raise TopicChanged.of_name(
            pipeline=ledger.pipeline, known_topic=ledger.topic, topic=watermarks.topic
        )
    if ledger.topic_id != watermarks.topic_id:  # fence: same-topic-when-planning
        raise TopicRecreated.of_topic(
            pipeline=ledger.pipeline,
            topic=watermarks.topic,
            known_topic_id=ledger.topic_id,
            current_topic_id=watermarks.topic_id,
        )
    missing = tuple(sorted(set(ledger.starts) - set(watermarks.partitions)))
    if missing:
        raise TopicChanged.of_partitions(
            pipeline=ledger.pipeline, topic=watermarks.topic, missing=missing
        )


def check_incarnation(pipeline: str, topic_id: str, watermarks: TopicWatermarks) -> None:
    """Raise if requested offsets belong to another incarnation of the topic.

    Raises:
        InvalidSelection
    """
    if topic_id != watermarks.topic_id:
        raise InvalidSelection.of_earlier_topic(
            pipeline=pipeline,
            topic=watermarks.topic,
            topic_id=topic_id,
            current=watermarks.topic_id,
        )


def check_partitions(watermarks: TopicWatermarks, partitions: Iterable[int]) -> None:
    """Raise if the topic lacks one of the partitions.

    Raises:
        InvalidSelection
    """
    for partition in sorted(set(partitions) - set(watermarks.partitions)):
        raise InvalidSelection.of_partition(
            topic=watermarks.topic, partition=partition, partitions=len(watermarks.partitions)
        )


def check_readable(plan: Plan, watermarks: TopicWatermarks) -> None:
    """Raise unless the topic contains all offsets of a plan.

    Otherwise Spark's reader would return other records or fewer records, or stall
    (docs/explanation/design.md, hazards).

    Raises:
        TopicRecreated, TopicChanged: As in `check_identity`.
        LostRange: Kafka deleted the beginning of a range.
        EndBehindCommitted: The log ends before a range does.
    """
    check_identity(_known_to(plan), watermarks)  # fence: same-topic-before-reading
    lost = tuple(
        (planned.partition, planned.start, min(planned.end, low))
        for planned in plan.ranges
        if planned.start < (low := watermarks.partitions[planned.partition].low)
    )
    if lost:  # fence: low-watermark-before-reading
        raise LostRange(
            pipeline=plan.pipeline, topic=watermarks.topic, lost=lost, plan=plan.sequence
        )
    for planned in plan.ranges:
        check_end(plan.pipeline, watermarks, planned.partition, planned.end, plan.sequence)


def check_same_topic(plan: Plan, watermarks: TopicWatermarks) -> None:
    """Raise if the topic of a landed plan was recreated since it was planned.

    Spark may have read the records of either topic, and the rows do not show which.

    Raises:
        TopicRecreated, TopicChanged: As in `check_identity`.
    """
    check_identity(_known_to(plan), watermarks)


def _known_to(plan: Plan) -> Ledger:
    return Ledger(
        pipeline=plan.pipeline,
        cluster_id=plan.cluster_id,
        topic=plan.topic,
        topic_id=plan.topic_id,
        starts={planned.partition: planned.start for planned in plan.ranges},
    )


def check_end(
    pipeline: str, watermarks: TopicWatermarks, partition: int, offset: int, plan: int | None = None
) -> None:
    """Raise if the log ends before an offset.

    Raises:
        EndBehindCommitted
    """
    end = watermarks.partitions[partition].end
    if offset > end:  # fence: end-of-log-behind-plan
        raise EndBehindCommitted(
            pipeline=pipeline,
            topic=watermarks.topic,
            partition=partition,
            offset=offset,
            end=end,
            plan=plan,
        )


def lost_ranges(
    ledger: Ledger, starts: Mapping[int, int], watermarks: TopicWatermarks
) -> Mapping[int, SpanSet]:
    """Return the unread offsets that Kafka has deleted, without empty partitions.

    Args:
        ledger: State of the pipeline.
        starts: First offset to read in partitions that are not in `ledger.starts`.
        watermarks: Current watermarks of the topic.
    """
    lost = {}
    for partition, here in sorted(watermarks.partitions.items()):
        start = ledger.starts.get(partition, starts.get(partition, here.low))
        if start < here.low:  # fence: low-watermark-when-planning
            unread = ledger.covered_or_planned(partition).missing_from(Span(start, here.low))
            if unread:
                lost[partition] = unread
    return lost


def new_partitions(ledger: Ledger, watermarks: TopicWatermarks) -> Mapping[int, int]:
    """Return the first offset to read in partitions that were added to the topic (S10).

    It is always 0, with any start policy: `latest` would skip records that were written
    between the creation of the partition and this call.
    """
    return (
        {} if not ledger.starts else {p: 0 for p in watermarks.partitions if p not in ledger.starts}
    )


def live_ranges(
    topic: ComparedTopic,
    starts: Mapping[int, int],
    limit: int | None,
    expiring: Callable[[], Mapping[int, int]] = dict,
) -> tuple[PlannedRange, ...]:
    """Return the unread ranges of all partitions, up to a limit; expiring offsets come first.

    Args:
        topic: The ledger and the topic.
        starts: First offset to read in partitions that are not in `ledger.starts`.
        limit: Maximum number of offsets over all partitions; None for no limit.
        expiring: Returns, by partition, the end of the offsets that Kafka will delete soon. It is
            called only if there are more unread offsets than the limit.

    Raises:
        LostRange: Kafka deleted unread offsets.
        EndBehindCommitted: The log ends before a committed offset.
    """
    ledger, watermarks = topic.ledger, topic.watermarks
    lost = lost_ranges(ledger, starts, watermarks)
    if lost:
        ranges = tuple((p, span.start, span.end) for p, spans in lost.items() for span in spans)
        raise LostRange(pipeline=ledger.pipeline, topic=watermarks.topic, lost=ranges)
    unread = {}
    for partition, here in sorted(watermarks.partitions.items()):
        known = partition in ledger.starts
        committed = ledger.committed_offset(partition) if known else starts[partition]
        check_end(ledger.pipeline, watermarks, partition, committed)
        if committed < here.end:
            gaps = ledger.covered_or_planned(partition).missing_from(Span(committed, here.end))
            if gaps:
                unread[partition] = gaps
    allotted = _allotted(unread, limit, expiring)
    planned: list[PlannedRange] = []
    for partition, gaps in unread.items():
        taken = gaps.first(allotted[partition])
        for span in taken:
            # Offsets after the last range may have landed, so the end of the log does not show it.
            left_over = gaps.size - taken.size if span == taken.spans[-1] else 0
            planned.append(replace(_planned(watermarks, partition, span), left_over=left_over))
    return tuple(planned)


def _allotted(
    unread: Mapping[int, SpanSet],
    limit: int | None,
    expiring: Callable[[], Mapping[int, int]],
) -> Mapping[int, int]:
    """Return the number of unread offsets to plan, by partition."""
    sizes = {partition: gaps.size for partition, gaps in unread.items()}
    if limit is None or sum(sizes.values()) <= limit:
        return sizes
    ends = expiring()
    soon = {
        partition: gaps.within(Span(0, end)).size
        for partition, gaps in unread.items()
        if (end := ends.get(partition, 0))
    }
    first = fair_shares({partition: size for partition, size in soon.items() if size}, limit)
    left = limit - sum(first.values())
    if first and left <= 0:
        # One offset of each other partition too, because the plan's ranges record the lag.
        return {partition: first.get(partition, 1) for partition in unread}
    rest = fair_shares({p: size - first.get(p, 0) for p, size in sizes.items()}, left)
    return {partition: first.get(partition, 0) + more for partition, more in rest.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifiedOffsets:
    """Requested offsets by their state, without empty partitions.

    Attributes:
        missing: Offsets to land.
        replaced: Offsets of `missing` that have landed, and whose rows will be replaced.
        covered: Offsets that have landed, or whose loss was accepted.
        planned: Offsets in an open plan.
        deleted: Offsets that are not covered or planned, and that Kafka has deleted.
    """

    missing: Mapping[int, SpanSet] = field(default_factory=dict)
    replaced: Mapping[int, SpanSet] = field(default_factory=dict)
    covered: Mapping[int, SpanSet] = field(default_factory=dict)
    planned: Mapping[int, SpanSet] = field(default_factory=dict)
    deleted: Mapping[int, SpanSet] = field(default_factory=dict)


def classify_offsets(
    topic: ComparedTopic,
    wanted: Mapping[int, SpanSet],
    *,
    readable_only: bool,
    replaces: bool = False,
) -> ClassifiedOffsets:
    """Classify requested offsets by their state.

    Args:
        topic: The ledger and the topic.
        wanted: Requested offsets, by partition.
        readable_only: Whether to leave out offsets that Kafka has deleted, instead of raising.
        replaces: Whether landed offsets are landed again.

    Raises:
        InvalidSelection: The topic lacks a partition, the readable log ends before a requested
            offset, or Kafka has deleted unread offsets.
    """
    ledger, watermarks = topic.ledger, topic.watermarks
    states: dict[str, dict[int, SpanSet]] = {each.name: {} for each in fields(ClassifiedOffsets)}
    check_partitions(watermarks, wanted)
    for partition, requested in sorted(wanted.items()):
        here = watermarks.partitions[partition]
        for span in requested:
            if span.end > here.end:
                rule = f"the readable log ends at {here.end}"
                raise _invalid(topic, partition, span, rule)
        covered, unread = (
            ledger.covered(partition),
            requested.difference(ledger.covered_or_planned(partition)),
        )
        again = ledger.replaceable(partition).intersection(requested) if replaces else SpanSet()
        kept = here.readable(unread.union(again))
        classified = {
            "missing": kept,
            "replaced": kept.intersection(again),
            "covered": requested.intersection(covered).difference(again),
            "planned": requested.difference(covered).difference(unread),
            "deleted": unread.union(again).difference(kept),
        }
        for name, spans in classified.items():
            if spans:
                states[name][partition] = spans
    found = ClassifiedOffsets(**states)
    if not readable_only:
        _check_not_deleted(topic, found)
    return found


def planned_ranges(
    watermarks: TopicWatermarks, spans: Mapping[int, SpanSet]
) -> tuple[PlannedRange, ...]:
    """Return offsets as ranges of a plan, with the current watermarks."""
    return tuple(
        _planned(watermarks, partition, span) for partition, some in spans.items() for span in some
    )


def _check_not_deleted(topic: ComparedTopic, found: ClassifiedOffsets) -> None:
    for partition, spans in found.deleted.items():
        rule = f"the low watermark is {topic.watermarks.partitions[partition].low}"
        raise _invalid(topic, partition, next(iter(spans)), rule)


def _invalid(topic: ComparedTopic, partition: int, span: Span, rule: str) -> InvalidSelection:
    return InvalidSelection.of_range(
        pipeline=topic.ledger.pipeline,
        topic=topic.watermarks.topic,
        partition=partition,
        start=span.start,
        end=span.end,
        rule=rule,
    )


def _planned(watermarks: TopicWatermarks, partition: int, span: Span) -> PlannedRange:
    here = watermarks.partitions[partition]
    return PlannedRange(
        partition=partition,
        start=span.start,
        end=span.end,
        low_watermark=here.low,
        log_end_offset=here.end,
        leader_epoch=here.leader_epoch,
    )


def positions_under_other_leaders(
    known: Mapping[int, Position], watermarks: TopicWatermarks, ranges: Iterable[PlannedRange]
) -> Mapping[int, Position]:
    """Return the positions of planned partitions whose leader epoch has changed.

    An unclean election may have truncated the log. If the log has grown again since, its
    watermarks look normal, and only Kafka's history of leader epochs shows the truncation
    (KIP-320).

    Args:
        known: Positions of the chain, by partition.
        watermarks: Current watermarks of the topic.
        ranges: Ranges that the planner is about to record.

    Returns:
        The positions of `known` to compare with Kafka's history.
    """
    found = {}
    for partition in sorted({planned.partition for planned in ranges} & set(known)):
        there, here = known[partition], watermarks.partitions[partition]
        changed = there.leader_epoch not in (None, here.leader_epoch)
        if changed and here.low <= there.offset < here.end:
            found[partition] = there
    return found


def fair_shares(backlogs: Mapping[int, int], limit: int | None) -> Mapping[int, int]:
    """Divide `limit` offsets among partitions by max-min fairness.

    Every partition gets an equal share. Partitions with a larger backlog divide what a smaller one
    does not need; the largest backlog gets the remainder. The result is deterministic.

    Args:
        backlogs: Number of unread offsets, by partition.
        limit: Maximum number of offsets; None for no limit. A limit below the number of
            partitions counts as one offset for each, so that no partition starves.

    Returns:
        Number of offsets by partition. Their sum is the limit, or the sum of all backlogs.
    """
    if limit is None or sum(backlogs.values()) <= limit:
        return dict(backlogs)
    granted: dict[int, int] = {}
    left = max(limit, len(backlogs))
    by_size = sorted(backlogs, key=lambda partition: (backlogs[partition], -partition))
    for waiting, partition in zip(range(len(by_size), 0, -1), by_size, strict=True):
        granted[partition] = min(backlogs[partition], left // waiting)
        left -= granted[partition]
    return granted


def build_plan(
    topic: ComparedTopic,
    kind: PlanKind,
    origin: PlanOrigin,
    ranges: tuple[PlannedRange, ...],
) -> Plan:
    """Build the next plan of a pipeline. It replaces rows if offsets of `ranges` have landed."""
    ledger, watermarks = topic.ledger, topic.watermarks
    return Plan(
        pipeline=ledger.pipeline,
        sequence=ledger.next_sequence,
        kind=kind,
        epoch=ledger.epoch,
        cluster_id=watermarks.cluster_id,
        topic=watermarks.topic,
        topic_id=watermarks.topic_id,
        isolation_level=watermarks.isolation_level,
        origin=origin,
        ranges=ranges,
        replaces=any(
            ledger.landed.get(planned.partition, SpanSet()).overlap_size(planned.span)
            for planned in ranges
        ),
    )
