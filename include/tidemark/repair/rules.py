"""The ledger against what a data table holds: what must be recorded so that they agree (I5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from tidemark.core.accounting import Landing
from tidemark.core.events import (
    Abandoned,
    ControlEvent,
    Landed,
    NewEpoch,
    NewIncarnation,
    Planned,
    Started,
    Undone,
)
from tidemark.core.ledger import Ledger, PlanRecord
from tidemark.core.offsets import Span, SpanSet, spans_by_partition, united
from tidemark.core.plan import Plan, PlanKind, PlannedRange
from tidemark.core.table_state import Commit, Restore, RowRange, still_holds
from tidemark.core.watermarks import IsolationLevel, TopicWatermarks
from tidemark.repair.errors import UnexplainedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """What a data table and a ledger do not agree on.

    Attributes:
        unknown: Plans with rows in the table that the ledger does not know, oldest first.
        unrecorded: Plans with rows in the table that the ledger has as open or given up.
        gone: Landed plans of the ledger without rows in the table; and those that found gaps only
            where a RESTORE has brought rows back.
        open: Plans of the ledger that may still land and have not.
        recounted: Landed plans of which plans that replaced rows may have left something else than
            the ledger says.
        by_rows: Those of the unknown ones that rows alone tell of: their commits are gone.
        discarded: Of those that are gone and were undone, the version of the table that did it.
    """

    unknown: tuple[Plan, ...]
    unrecorded: tuple[Plan, ...]
    gone: tuple[Plan, ...]
    open: tuple[Plan, ...]
    recounted: tuple[Plan, ...] = ()
    by_rows: tuple[Plan, ...] = ()
    discarded: Mapping[int, int] = field(default_factory=dict)

    @property
    def to_record(self) -> tuple[Plan, ...]:
        """Plans whose landing the ledger does not have, oldest first."""
        return tuple(sorted((*self.unknown, *self.unrecorded), key=lambda plan: plan.sequence))

    @property
    def to_land(self) -> tuple[Plan, ...]:
        """Plans whose landings are written anew once something differs, oldest first."""
        return tuple(sorted((*self.to_record, *self.recounted), key=lambda plan: plan.sequence))

    @property
    def any(self) -> bool:
        """Whether something landed is told differently; an open plan alone is no difference."""
        return bool(self.to_record or self.gone)


Coverage: TypeAlias = Mapping[tuple[str, int], SpanSet]
"""Offsets that have landed, by topic id and partition."""


def told_by(commits: Sequence[Commit]) -> Mapping[int, Plan]:
    """Plans by number; of two with one number the newer."""
    return {commit.plan.sequence: commit.plan for commit in reversed(commits)}


def compare(
    ledger: Ledger,
    row_ranges: Sequence[RowRange],
    commits: Sequence[Commit],
    restores: Sequence[Restore],
    removal_versions: Mapping[int, int],
    fallback: Plan,
) -> Differences:
    """Find what a data table and a ledger do not agree on.

    Args:
        ledger: What the control table says.
        row_ranges: What the table holds.
        commits: Plans' commits that the table's log still tells of, newest first.
        restores: Every RESTORE that the table's log tells of.
        removal_versions: Versions that took a plan's rows out, by plan.
        fallback: What to take for all that rows do not say of a plan whose commit is gone.

    Raises:
        UnexplainedRows: A landed plan has more rows than were recorded.
    """
    told = told_by(commits)
    rows = _by_plan(row_ranges)
    unknown = tuple(
        told.get(sequence) or _from_rows(fallback, sequence, rows[sequence])
        for sequence in sorted(rows)
        if not _knows(ledger, sequence, rows[sequence], told.get(sequence))
    )
    others = {plan.sequence for plan in unknown}
    everyone = (*(c.plan for c in commits), *(r.plan for r in ledger.plans.values()))
    replacers = [plan for plan in everyone if plan.replaces]
    unrecorded, gone, opened, recounted = [], [], [], []
    discarded: dict[int, int] = {}
    for sequence, record in ledger.plans.items():
        held = sum(holding.rows for holding in rows.get(sequence, ()))
        if record.landing is None:
            if sequence in others:
                continue
            if held:
                unrecorded.append(record.plan)
            elif record.is_open:
                opened.append(record.plan)
        # fence: forgotten-undo-is-found
        elif not held and _is_discarded(record.landing, removal_versions.get(sequence), restores):
            gone.append(record.plan)
            discarded[sequence] = removal_versions[sequence]
        elif not held and _is_restored_away(record, told.get(sequence), restores):
            gone.append(record.plan)
        elif any(_overlap(record, plan) for plan in replacers if plan.sequence > sequence):
            recounted.append(record.plan)
        elif held > record.landing.records:
            raise UnexplainedRows(
                pipeline=ledger.pipeline,
                sequence=sequence,
                needed=f"at most {record.landing.records} rows, as recorded",
                seen=f"{held} rows",
            )
    back = [*unknown, *unrecorded]
    gone += [
        record.plan
        for record in _of_gaps_only(ledger)
        if record.plan not in (*recounted, *gone) and any(_overlap(record, plan) for plan in back)
    ]
    return Differences(
        unknown=unknown,
        unrecorded=tuple(unrecorded),
        gone=tuple(gone),
        open=tuple(opened),
        recounted=tuple(recounted),
        by_rows=tuple(plan for plan in unknown if plan.sequence not in told),
        discarded=discarded,
    )


def _by_plan(row_ranges: Sequence[RowRange]) -> Mapping[int, list[RowRange]]:
    rows: dict[int, list[RowRange]] = {}
    for holding in row_ranges:
        rows.setdefault(holding.sequence, []).append(holding)
    return rows


def _of_gaps_only(ledger: Ledger) -> list[PlanRecord]:
    records = ledger.plans.values()
    return [each for each in records if each.landing and each.landing.records == 0]


def _is_discarded(landing: Landing, version: int | None, restores: Sequence[Restore]) -> bool:
    """Whether a landed plan was undone, of which the ledger has lost every word."""
    return (
        version is not None and version > landing.table_version and still_holds(restores, version)
    )


def _is_restored_away(record: PlanRecord, told: Plan | None, restores: Sequence[Restore]) -> bool:
    """Whether a RESTORE took out what a plan landed, of which no row is left.

    Rows that somebody deleted are not unread; those that a RESTORE took out are, and those of a
    table that is not the one they landed in.
    """
    if record.whole is None or record.landing is None:
        return False
    if told is None:
        return record.landing.records > 0
    here = told.fingerprint == record.plan.fingerprint
    return record.whole.records > 0 and not (
        here and still_holds(restores, record.whole.table_version)
    )


def _overlap(record: PlanRecord, other: Plan) -> bool:
    """Whether another plan names offsets of a plan, landed or not."""
    if record.plan.topic_id != other.topic_id:
        return False
    there = other.spans()
    return any(
        there.get(planned.partition, SpanSet()).overlap(planned.span)
        for planned in record.plan.ranges
    )


def _knows(
    ledger: Ledger, sequence: int, row_ranges: Sequence[RowRange], told: Plan | None
) -> bool:
    """Whether rows are of the plan that the ledger has under their number.

    A ledger from a backup may have given the number out again, and the driver of the plan that had
    it first may have landed since: then the rows are of a plan that the ledger does not know.
    """
    record = ledger.plans.get(sequence)
    if record is None or record.landing is not None:
        return record is not None
    if told is not None:
        return told.fingerprint == record.plan.fingerprint
    bounds = {
        partition: Span(spans.spans[0].start, spans.spans[-1].end)
        for partition, spans in record.plan.spans().items()
    }
    return all(
        held.topic_id == record.plan.topic_id
        and held.partition in bounds
        and bounds[held.partition].start <= held.first
        and held.last < bounds[held.partition].end
        for held in row_ranges
    )


def _from_rows(fallback: Plan, sequence: int, row_ranges: Sequence[RowRange]) -> Plan:
    """A plan as its rows tell of it: each run of them, from its first offset to its last."""
    topic_id = row_ranges[0].topic_id
    runs = spans_by_partition(
        (held.partition, Span(held.first, held.last + 1))
        for held in row_ranges
        if held.topic_id == topic_id
    )
    named = replace(fallback, sequence=sequence, topic_id=topic_id)
    return named.over((p, span) for p, spans in sorted(runs.items()) for span in spans)


def replacing(
    ledger: Ledger, commits: Sequence[Commit], restores: Sequence[Restore]
) -> tuple[Plan, ...]:
    """Plans that replaced rows in the content that a table has now, undone since or not."""
    told = [
        commit.plan
        for commit in commits
        if commit.plan.replaces and still_holds(restores, commit.version)
    ]
    # Of those whose commits the log does not reach back to, the ledger's word.
    known = [
        record.plan
        for record in ledger.plans.values()
        if record.plan.replaces
        and record.whole
        and still_holds(restores, record.whole.table_version)
        and record.plan not in told
    ]
    return (*told, *known)


def not_replaced(
    plan: Plan, spans: Mapping[int, SpanSet], replacers: Sequence[Plan], covered: Coverage
) -> Plan | None:
    """A plan as if it were of those offsets alone that no newer plan has replaced or landed.

    Args:
        plan: The plan, whose commit the table has.
        spans: Its offsets, or less.
        replacers: As `replacing` tells them.
        covered: What newer plans hold.

    Returns:
        None if nothing is left of it.
    """
    newer = united(
        other.spans()
        for other in replacers
        if other.sequence > plan.sequence and other.topic_id == plan.topic_id
    )
    left = [
        (partition, span)
        for partition, own in sorted(spans.items())
        for span in own.minus(newer.get(partition, SpanSet())).minus(
            covered.get((plan.topic_id, partition), SpanSet())
        )
    ]
    return plan.over(left) if left else None


def fallback_plan(
    pipeline: str, watermarks: TopicWatermarks, isolation_level: IsolationLevel, requested_by: str
) -> Plan:
    """What `compare` takes for what rows do not say: the topic and the cluster of today."""
    return Plan(
        pipeline=pipeline,
        sequence=0,
        kind=PlanKind.LIVE,
        epoch=0,
        cluster_id=watermarks.cluster_id,
        topic=watermarks.topic,
        topic_id=watermarks.topic_id,
        isolation_level=isolation_level,
        requested_by=requested_by,
        ranges=(PlannedRange.bare(0, Span(0, 1)),),
    )


def beginning(
    ledger: Ledger,
    found: Differences,
    commits: Sequence[Commit],
    watermarks: TopicWatermarks,
    requested_by: str,
    reason: str,
) -> tuple[ControlEvent, ...]:
    """Where the pipeline begins, as far as the ledger does not say it for the newest incarnation.

    A partition begins with the first offset that the live chain landed; where it landed nothing, at
    the low watermark of today, so that nothing which Kafka still has is left out.
    """
    landed = _landed_after(ledger, found)
    if not landed:
        return ()
    topic = _incarnation(ledger, found, landed[-1], watermarks)
    plans = [plan for plan in landed if plan.topic_id == topic]
    # Also those of which nothing is left: they were replaced, or undone.
    began = [*plans, *(c.plan for c in commits if c.plan.topic_id == topic)]
    known = ledger.starts if topic == ledger.topic_id else {}
    starts: dict[int, int] = {}
    for plan in began:
        # Where somebody filled up says nothing about where the live chain began.
        for planned in plan.ranges if plan.kind is PlanKind.LIVE else ():
            starts[planned.partition] = min(
                planned.start, starts.get(planned.partition, planned.start)
            )
    if not known and topic == watermarks.topic_id:
        starts = {p: starts.get(p, here.low) for p, here in watermarks.partitions.items()}
    starts = {partition: start for partition, start in starts.items() if partition not in known}
    if not starts:
        return ()
    identity: dict[str, Any] = {
        "cluster_id": plans[-1].cluster_id,
        "topic": plans[-1].topic,
        "topic_id": plans[-1].topic_id,
        "requested_by": requested_by,
        "offsets": starts,
    }
    if ledger.topic_id in (None, topic):
        return (Started(**identity),)
    return (NewIncarnation(**identity, reason=reason),)


def _landed_after(ledger: Ledger, found: Differences) -> list[Plan]:
    """Plans whose rows the table holds, oldest first."""
    gone = {plan.sequence for plan in found.gone}
    kept = [
        record.plan
        for record in ledger.plans.values()
        if record.landing and record.plan.sequence not in gone
    ]
    return sorted((*kept, *found.to_record), key=lambda plan: plan.sequence)


def _incarnation(
    ledger: Ledger, found: Differences, newest: Plan, watermarks: TopicWatermarks
) -> str | None:
    """The incarnation whose offsets the pipeline has: what the ledger says, if it says the newest.

    A ledger that lost the event of a new incarnation knows an older topic than its plans are of.
    """
    if ledger.topic_id is None:
        return newest.topic_id
    if ledger.topic_id == watermarks.topic_id:
        return ledger.topic_id
    if newest.topic_id == watermarks.topic_id or newest in found.unknown:
        return newest.topic_id
    return ledger.topic_id


def settled(
    ledger: Ledger,
    found: Differences,
    landings: Mapping[int, Landing],
    covered: Coverage,
    epoch: NewEpoch,
) -> tuple[ControlEvent, ...]:
    """The events after which the ledger tells what the table holds.

    Args:
        ledger: What the control table says, with the beginnings that `beginning` adds.
        found: What differs.
        landings: The landing of every plan that is to be recorded, by number.
        covered: What will have landed.
        epoch: The epoch that begins, still without offsets; its reason is that of all events.
    """
    committed = {
        partition: covered.get((str(ledger.topic_id), partition), SpanSet())
        .union(ledger.accepted.get(partition, SpanSet()))
        .contiguous_end(start)
        for partition, start in ledger.starts.items()
    }
    why = {"requested_by": epoch.requested_by, "reason": epoch.reason}
    return (
        *(Planned(plan=plan) for plan in found.unknown),
        *(_landed(plan, landings[plan.sequence], committed) for plan in found.to_land),
        *(
            Undone(sequence=plan.sequence, table_version=found.discarded.get(plan.sequence), **why)
            for plan in found.gone
        ),
        *(Abandoned(sequence=plan.sequence, **why) for plan in found.open),
        replace(epoch, committed=committed),
    )


def _landed(plan: Plan, landing: Landing, committed: Mapping[int, int]) -> Landed:
    """A landing of the past: where the partition stands is what all of them add up to."""
    here = {
        partition: committed.get(partition, max(span.end for span in spans))
        for partition, spans in landing.spans().items()
    }
    return Landed(plan=plan, landing=landing, committed=here)


def cover(covered: dict[tuple[str, int], SpanSet], plan: Plan, landing: Landing) -> None:
    """Add what a plan landed.

    Raises:
        UnexplainedRows: Another one landed it too.
    """
    for partition, spans in landing.spans().items():
        before = covered.get((plan.topic_id, partition), SpanSet())
        twice = [span for span in spans if before.overlap(span)]
        if twice:
            raise UnexplainedRows(
                pipeline=plan.pipeline,
                sequence=plan.sequence,
                needed="offsets that no other plan landed",
                seen=f"partition {partition}, {twice[0]} landed twice",
            )
        covered[plan.topic_id, partition] = before.union(spans)
