"""Deciding what to read: pure functions from a ledger and watermarks to ranges or a named error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields

from tidemark.core.errors import (
    ClusterChanged,
    EndBehindCommitted,
    InvalidRange,
    LostRange,
    OtherIncarnation,
    PartitionsShrunk,
    TopicChanged,
    TopicRecreated,
    UnknownPartition,
)
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import Plan, PlanKind, PlannedRange
from tidemark.core.watermarks import Position, TopicWatermarks


def check_identity(ledger: Ledger, watermarks: TopicWatermarks) -> None:
    """Refuse a topic that is not the one the committed offsets belong to.

    Raises:
        ClusterChanged: The connection leads to another cluster.
        TopicChanged: The spec names another topic.
        TopicRecreated: The topic has another id.
        PartitionsShrunk: Known partitions are gone.
    """
    if ledger.cluster_id is None or ledger.topic_id is None or ledger.topic is None:
        return
    if ledger.cluster_id != watermarks.cluster_id:  # fence: same-cluster
        raise ClusterChanged(
            pipeline=ledger.pipeline,
            known_cluster_id=ledger.cluster_id,
            current_cluster_id=watermarks.cluster_id,
        )
    if ledger.topic != watermarks.topic:
        raise TopicChanged(
            pipeline=ledger.pipeline, known_topic=ledger.topic, topic=watermarks.topic
        )
    if ledger.topic_id != watermarks.topic_id:  # fence: same-topic-when-planning
        raise TopicRecreated(
            pipeline=ledger.pipeline,
            topic=watermarks.topic,
            known_topic_id=ledger.topic_id,
            current_topic_id=watermarks.topic_id,
        )
    missing = tuple(sorted(set(ledger.starts) - set(watermarks.partitions)))
    if missing:
        raise PartitionsShrunk(pipeline=ledger.pipeline, topic=watermarks.topic, missing=missing)


def check_incarnation(pipeline: str, topic_id: str, watermarks: TopicWatermarks) -> None:
    """Refuse wanted offsets that belong to another incarnation of the topic.

    Raises:
        OtherIncarnation
    """
    if topic_id != watermarks.topic_id:
        raise OtherIncarnation(
            pipeline=pipeline,
            topic=watermarks.topic,
            topic_id=topic_id,
            current=watermarks.topic_id,
        )


def check_partitions(watermarks: TopicWatermarks, partitions: Iterable[int]) -> None:
    """Refuse partitions that the topic does not have.

    Raises:
        UnknownPartition
    """
    for partition in sorted(set(partitions) - set(watermarks.partitions)):
        raise UnknownPartition(
            topic=watermarks.topic, partition=partition, partitions=len(watermarks.partitions)
        )


def check_readable(plan: Plan, watermarks: TopicWatermarks) -> None:
    """Refuse to execute a plan whose records the topic cannot give any more, or not yet.

    Spark's reader would return other records, fewer records, or stall (docs/design.md, hazards).

    Raises:
        ClusterChanged, TopicRecreated, PartitionsShrunk: As in `check_identity`.
        LostRange: Retention removed the beginning of a range.
        EndBehindCommitted: The log now ends before a range does.
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
    """Refuse to believe a landing whose topic is not the planned one any more.

    The records may have been read before or after the topic was made again; nobody can tell.

    Raises:
        ClusterChanged, TopicChanged, TopicRecreated, PartitionsShrunk: As in `check_identity`.
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
    """Refuse an offset behind the end of the log: what was read up to it is no more.

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
    """Unread offsets that Kafka has deleted, by partition; partitions without any are left out.

    Args:
        ledger: What is landed, accepted as lost, or planned already.
        starts: First offset to read of every partition that `ledger` knows nothing about.
        watermarks: The topic's watermarks now.
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
    """Where to begin in partitions added to a topic that the pipeline already reads (S10).

    A partition that appeared since the last plan is read from its very start, whatever the start
    policy says about the first plan: `latest` would lose what was written before we looked.
    """
    return (
        {} if not ledger.starts else {p: 0 for p in watermarks.partitions if p not in ledger.starts}
    )


def live_ranges(
    ledger: Ledger,
    starts: Mapping[int, int],
    watermarks: TopicWatermarks,
    limit: int | None,
    expiring: Callable[[], Mapping[int, int]] = dict,
) -> tuple[PlannedRange, ...]:
    """The unread part of every partition, cut to the limit; what Kafka deletes soon comes first.

    Args:
        ledger: What is landed or planned already.
        starts: First offset to read of every partition that `ledger` knows nothing about.
        watermarks: The topic's watermarks now.
        limit: Most offsets over all partitions; None for all there are.
        expiring: Says where the offsets end, by partition, that Kafka will delete soon; called
            only if the limit leaves something.

    Raises:
        LostRange: Retention deleted unread offsets.
        EndBehindCommitted: The log ends before a committed offset.
    """
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
    return tuple(
        _planned(watermarks, partition, span)
        for partition, gaps in unread.items()
        for span in gaps.first(allotted[partition])
    )


def _allotted(
    unread: Mapping[int, SpanSet],
    limit: int | None,
    expiring: Callable[[], Mapping[int, int]],
) -> Mapping[int, int]:
    """How many of the unread offsets are taken, by partition."""
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
        # The others as well: what is left of each is told by its range.
        return {partition: first.get(partition, 1) for partition in unread}
    rest = fair_shares({p: size - first.get(p, 0) for p, size in sizes.items()}, left)
    return {partition: first.get(partition, 0) + more for partition, more in rest.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifiedOffsets:
    """Wanted offsets by what is the matter with them; partitions without any are left out.

    Attributes:
        missing: To be landed.
        replaced: Those of them that have landed: the new rows take the place of the old ones.
        covered: Landed already, or a loss that somebody accepted.
        planned: In a plan that is open.
        deleted: To be landed, if Kafka had not deleted them.
    """

    missing: Mapping[int, SpanSet]
    replaced: Mapping[int, SpanSet]
    covered: Mapping[int, SpanSet]
    planned: Mapping[int, SpanSet]
    deleted: Mapping[int, SpanSet]


def classify_offsets(
    ledger: Ledger,
    watermarks: TopicWatermarks,
    wanted: Mapping[int, SpanSet],
    *,
    replaces: bool = False,
) -> ClassifiedOffsets:
    """What of some offsets is to be landed, and why the rest is not.

    Args:
        ledger: What is landed or planned already.
        watermarks: The topic's watermarks now.
        wanted: The offsets, by partition.
        replaces: Land again what has landed.

    Raises:
        UnknownPartition: The topic has no such partition.
        InvalidRange: The log does not go that far.
    """
    parts: dict[str, dict[int, SpanSet]] = {each.name: {} for each in fields(ClassifiedOffsets)}
    check_partitions(watermarks, wanted)
    for partition, asked in sorted(wanted.items()):
        here = watermarks.partitions[partition]
        for span in asked:
            if span.end > here.end:
                rule = f"an end of at most {here.end}, the end of the readable log"
                raise _invalid(watermarks, partition, span, rule)
        covered, unread = (
            ledger.covered(partition),
            asked.difference(ledger.covered_or_planned(partition)),
        )
        again = ledger.replaceable(partition).intersection(asked) if replaces else SpanSet()
        kept = here.readable(unread.union(again))
        told = {
            "missing": kept,
            "replaced": kept.intersection(again),
            "covered": asked.intersection(covered).difference(again),
            "planned": asked.difference(covered).difference(unread),
            "deleted": unread.union(again).difference(kept),
        }
        for name, spans in told.items():
            if spans:
                parts[name][partition] = spans
    return ClassifiedOffsets(**parts)


def backfill_ranges(
    ledger: Ledger,
    watermarks: TopicWatermarks,
    wanted: Mapping[int, SpanSet],
    *,
    readable_only: bool,
    replaces: bool = False,
) -> tuple[PlannedRange, ...]:
    """The part of wanted offsets that is neither landed nor planned; empty if all of it is.

    Args:
        ledger: What is landed or planned already.
        watermarks: The topic's watermarks now.
        wanted: The offsets, by partition.
        readable_only: Leave out what Kafka has deleted, instead of refusing it.
        replaces: Take what has landed as well.

    Raises:
        UnknownPartition, InvalidRange: As in `classify_offsets`.
        InvalidRange: Kafka has deleted unread offsets of them.
    """
    found = classify_offsets(ledger, watermarks, wanted, replaces=replaces)
    if not readable_only:
        check_not_deleted(watermarks, found)
    return planned_ranges(watermarks, found.missing)


def planned_ranges(
    watermarks: TopicWatermarks, spans: Mapping[int, SpanSet]
) -> tuple[PlannedRange, ...]:
    """Offsets as the ranges of a plan, with the watermarks that it is made from."""
    return tuple(
        _planned(watermarks, partition, span) for partition, some in spans.items() for span in some
    )


def check_not_deleted(watermarks: TopicWatermarks, found: ClassifiedOffsets) -> None:
    """Refuse wanted offsets that nobody can read any more.

    Raises:
        InvalidRange
    """
    for partition, spans in found.deleted.items():
        rule = f"a start of at least {watermarks.partitions[partition].low}, the low watermark"
        raise _invalid(watermarks, partition, next(iter(spans)), rule)


def _invalid(watermarks: TopicWatermarks, partition: int, span: Span, rule: str) -> InvalidRange:
    return InvalidRange(
        topic=watermarks.topic, partition=partition, start=span.start, end=span.end, rule=rule
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
    """Where a chain has come, in partitions about to be read that have another leader since.

    An unclean election may have cut the log behind it. If the log has grown again meanwhile its
    watermarks look as ever; only Kafka's own history of leaders tells (KIP-320).

    Args:
        known: How far the chain has come, by partition, and under which leaders.
        watermarks: The topic's watermarks now.
        ranges: What is about to be planned.

    Returns:
        Those of `known` that only Kafka can say more of.
    """
    found = {}
    for partition in sorted({planned.partition for planned in ranges} & set(known)):
        there, here = known[partition], watermarks.partitions[partition]
        changed = there.leader_epoch not in (None, here.leader_epoch)
        if changed and here.low <= there.offset < here.end:
            found[partition] = there
    return found


def fair_shares(backlogs: Mapping[int, int], limit: int | None) -> Mapping[int, int]:
    """Divide `limit` offsets over partitions, max-min fair: a small backlog waits for no big one.

    Every partition gets an equal part; what a short one does not need goes to the others, and what
    cannot be divided goes to the longest. Deterministic.

    Args:
        backlogs: Unread offsets by partition.
        limit: Most offsets to hand out; None for no limit. A limit below the number of
            partitions counts as one offset for each, so that none of them waits for ever.

    Returns:
        Offsets by partition; they add up to the limit or to all there is.
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
    ledger: Ledger,
    watermarks: TopicWatermarks,
    kind: PlanKind,
    requested_by: str,
    ranges: tuple[PlannedRange, ...],
) -> Plan:
    """The next plan of a pipeline over `ranges`; it replaces rows if some have landed."""
    return Plan(
        pipeline=ledger.pipeline,
        sequence=ledger.next_sequence,
        kind=kind,
        epoch=ledger.epoch,
        cluster_id=watermarks.cluster_id,
        topic=watermarks.topic,
        topic_id=watermarks.topic_id,
        isolation_level=watermarks.isolation_level,
        requested_by=requested_by,
        ranges=ranges,
        replaces=any(
            ledger.landed.get(planned.partition, SpanSet()).overlap_size(planned.span)
            for planned in ranges
        ),
    )
