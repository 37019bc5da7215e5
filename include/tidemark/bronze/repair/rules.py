"""Differences between a ledger and its data table, and the events that remove them (I5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from tidemark.bronze.repair.errors import UnexplainedRows
from tidemark.core.accounting import Landing
from tidemark.core.events import (
    Abandoned,
    ControlEvent,
    Landed,
    NewEpoch,
    Planned,
    RecreationAccepted,
    Started,
    Undone,
)
from tidemark.core.ledger import Ledger, PlanRecord
from tidemark.core.offsets import Span, SpanSet, spans_by_partition, union_by_partition
from tidemark.core.origins import RunOrigin
from tidemark.core.plan import Plan, PlanKind, PlannedRange, transaction_app_id
from tidemark.core.table_state import (
    FENCED_VERSION,
    Fence,
    PlanCommit,
    Restore,
    RowRange,
    survives_restores,
)
from tidemark.core.watermarks import IsolationLevel, TopicWatermarks


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Differences between a data table and a ledger.

    Attributes:
        unknown: Plans with rows in the table that the ledger lacks, oldest first.
        unrecorded: Plans with rows in the table that are open or abandoned in the ledger.
        gone: Landed plans of the ledger whose rows a RESTORE or an undo removed. Also landed plans
            with gaps only, where a RESTORE has restored rows of another plan.
        open: Open plans of the ledger without rows in the table.
        recounted: Landed plans whose remaining offsets may differ from the ledger. They may overlap
            with replacing plans, or the table does not have their recorded landing.
        by_rows: Unknown plans that only rows show, because the log lacks their commits.
        discarded: Table version of the undo, by plan, for undone plans in `gone`.
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
        """Plans whose landing the ledger lacks, oldest first."""
        return tuple(sorted((*self.unknown, *self.unrecorded), key=lambda plan: plan.sequence))

    @property
    def to_land(self) -> tuple[Plan, ...]:
        """Plans whose landings a repair records again, oldest first."""
        return tuple(sorted((*self.to_record, *self.recounted), key=lambda plan: plan.sequence))

    @property
    def any(self) -> bool:
        """Whether landed plans differ; open plans do not count."""
        return bool(self.to_record or self.gone)


def newest_plans(commits: Sequence[PlanCommit]) -> Mapping[int, Plan]:
    """Return committed plans by number; the newer of two plans with the same number."""
    return {commit.plan.sequence: commit.plan for commit in reversed(commits)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLog:
    """The log of a data table, as far as a repair needs it.

    Attributes:
        commits: Commits of plans, newest first.
        restores: Every RESTORE.
        removals: Table versions that removed a plan's rows, by plan.
        transactions: Newest version of each transaction.
        fences: Fences of repairs, by application id.
        start: The oldest version whose commit the log has.
    """

    commits: Sequence[PlanCommit]
    restores: Sequence[Restore]
    removals: Mapping[int, Sequence[int]]
    transactions: Mapping[str, int]
    fences: Mapping[str, Fence]
    start: int

    def has_kept(self, version: int) -> bool:
        """Return whether no RESTORE has reverted the commit of a version."""
        return survives_restores(self.restores, version)

    def has_kept_landing(self, record: PlanRecord) -> bool:
        """Return whether the table has the recorded landing of a plan.

        False after a RESTORE to an earlier version, and for a copy of the table from before the
        repair that recorded the landing.
        """
        plan, landing, epoch = record.plan, record.landed_originally, record.landed_in
        if landing is None or not self.has_kept(landing.table_version):
            return False
        # fence: other-table-lacks-plan
        if self._before_fence(plan.app_id) < plan.sequence:
            return False
        if epoch is None or landing.table_version < epoch.table_version:
            # A repair records a landing that it keeps unchanged with its original version.
            return True
        fenced = transaction_app_id(plan.pipeline, epoch.epoch - 1, PlanKind.LIVE)
        if epoch.table_version < self.start:
            # Maintenance has removed the commit of the fence; its transaction stays.
            return self._before_fence(fenced) == FENCED_VERSION
        # fence: landing-of-another-copy-is-noticed
        return self.fences.get(fenced) == Fence(epoch.table_version, epoch.requested_by)

    def _before_fence(self, app_id: str) -> int:
        """Return the newest version of a transaction before a repair fenced it.

        Without the commit of the fence, this is the fence's version.
        """
        fence = self.fences.get(app_id)
        return fence.before if fence else self.transactions.get(app_id, 0)

    def has_kept_commit(self, plan: Plan) -> bool:
        """Return whether the table has the plan's own commit, and no undo removed rows since."""
        landed_at = [
            commit.version
            for commit in self.commits
            if commit.plan.sequence == plan.sequence
            and commit.plan.fingerprint == plan.fingerprint
            and self.has_kept(commit.version)
        ]
        removed_at = filter(self.has_kept, self.removals.get(plan.sequence, ()))
        return bool(landed_at) and max(landed_at) > max(removed_at, default=-1)

    def with_landed_epochs(self, plan: Plan, record: PlanRecord | None) -> Plan:
        """Return a plan with the leader epochs of its landing.

        They are in its commit. Without the commit, they are in the recorded landing.
        """
        for commit in self.commits:
            if commit.plan.fingerprint == plan.fingerprint:
                return plan.with_leader_epochs(commit.plan.leader_epochs)
        if record and record.landed_originally:
            return plan.with_leader_epochs(record.landed_originally.leader_epochs)
        return plan

    def discarded_at(self, sequence: int, landing: Landing) -> int | None:
        """Return the newest version that removed rows of a plan after its landing, or None.

        The ledger has the plan as landed, so it has lost the undo.
        """
        later = (each for each in self.removals.get(sequence, ()) if each > landing.table_version)
        return max(filter(self.has_kept, later), default=None)

    def is_unread_again(self, record: PlanRecord, committed_plan: Plan | None) -> bool:
        """Return whether the offsets of a landed plan without rows are unread.

        They are unread if a RESTORE removed the rows, or if the rows landed in another table. They
        are not if another program deleted the rows.

        Args:
            record: The plan.
            committed_plan: The plan of its number in `newest_plans`; None without one.
        """
        landing = record.landed_originally
        if landing is None or record.held_now is None:
            return False
        # fence: removed-commit-proves-nothing
        if committed_plan is None and landing.table_version < self.start:
            # Maintenance has removed the commit, so its absence does not prove another table.
            return not self.has_kept_landing(record)
        if committed_plan is None:
            return record.held_now.records > 0
        here = committed_plan.fingerprint == record.plan.fingerprint
        return landing.records > 0 and not (here and self.has_kept_landing(record))


Coverage: TypeAlias = Mapping[tuple[str, int], SpanSet]
"""Landed offsets, by topic id and partition."""


def compare(
    ledger: Ledger, row_ranges: Sequence[RowRange], log: TableLog, fallback: Plan
) -> Differences:
    """Find the differences between a data table and a ledger.

    Args:
        ledger: State of the control table.
        row_ranges: Contents of the data table.
        log: Log of the data table.
        fallback: Values for the fields that rows do not contain, for plans without a commit.

    Raises:
        UnexplainedRows: A landed plan has more rows than were recorded.
    """
    committed_plans = newest_plans(log.commits)
    rows = _by_plan(row_ranges)
    unknown = tuple(
        committed_plans.get(sequence) or _from_rows(fallback, sequence, rows[sequence])
        for sequence in sorted(rows)
        if not _are_of_ledger_plan(ledger, sequence, rows[sequence], committed_plans.get(sequence))
    )
    others = {plan.sequence for plan in unknown}
    everyone = (*(c.plan for c in log.commits), *(r.plan for r in ledger.plans.values()))
    replacers = [plan for plan in everyone if plan.replaces]
    unrecorded, gone, opened, recounted = [], [], [], []
    discarded: dict[int, int] = {}
    for sequence, record in ledger.plans.items():
        held = sum(held_range.rows for held_range in rows.get(sequence, ()))
        removed_at = log.discarded_at(sequence, record.held_now) if record.held_now else None
        # fence: older-contents-are-counted-again
        is_changed = bool(held) and (removed_at is not None or not log.has_kept_landing(record))
        if sequence in others:
            continue
        if record.held_now is None:
            if held:
                unrecorded.append(record.plan)
            elif record.is_open:
                opened.append(record.plan)
        # fence: forgotten-undo-is-found
        elif not held and removed_at is not None:
            gone.append(record.plan)
            discarded[sequence] = removed_at
        elif not held and log.is_unread_again(record, committed_plans.get(sequence)):
            gone.append(record.plan)
        elif is_changed or any(
            _overlap(record, plan) for plan in replacers if plan.sequence > sequence
        ):
            recounted.append(record.plan)
        elif held > record.held_now.records:
            raise UnexplainedRows(
                pipeline=ledger.pipeline,
                sequence=sequence,
                needed=f"at most {record.held_now.records} rows, as recorded",
                seen=f"{held} rows",
            )
    returned = [*unknown, *unrecorded]
    gone += [
        record.plan
        for record in _of_gaps_only(ledger)
        if record.plan not in (*recounted, *gone)
        and record.plan.sequence not in others
        and any(_overlap(record, plan) for plan in returned)
    ]
    return Differences(
        unknown=unknown,
        unrecorded=tuple(unrecorded),
        gone=tuple(gone),
        open=tuple(opened),
        recounted=tuple(recounted),
        by_rows=tuple(plan for plan in unknown if plan.sequence not in committed_plans),
        discarded=discarded,
    )


def with_recounts(
    ledger: Ledger, found: Differences, landings: Mapping[int, Landing]
) -> Differences:
    """Return the differences with those recounted plans alone whose landed offsets change.

    Args:
        ledger: The ledger before the repair.
        found: Result of `compare`.
        landings: Landing of every plan to record, by number.
    """
    changed = [
        plan
        for plan in found.recounted
        if (held := ledger.plans[plan.sequence].held_now)
        and held.spans() != landings[plan.sequence].spans()
    ]
    return replace(found, recounted=tuple(changed))


def _by_plan(row_ranges: Sequence[RowRange]) -> Mapping[int, list[RowRange]]:
    rows: dict[int, list[RowRange]] = {}
    for each in row_ranges:
        rows.setdefault(each.sequence, []).append(each)
    return rows


def _of_gaps_only(ledger: Ledger) -> list[PlanRecord]:
    records = ledger.plans.values()
    return [each for each in records if each.held_now and each.held_now.records == 0]


def _overlap(record: PlanRecord, other: Plan) -> bool:
    """Return whether two plans share offsets, landed or not."""
    if record.plan.topic_id != other.topic_id:
        return False
    there = other.spans()
    return any(
        there.get(planned.partition, SpanSet()).overlap_size(planned.span)
        for planned in record.plan.ranges
    )


def _are_of_ledger_plan(
    ledger: Ledger, sequence: int, row_ranges: Sequence[RowRange], committed_plan: Plan | None
) -> bool:
    """Return whether rows belong to the ledger's plan with their number.

    A ledger restored from a backup may have assigned the number again. If the first plan with this
    number lands later, its rows belong to a plan that the ledger lacks.
    """
    record = ledger.plans.get(sequence)
    if record is None:
        return False
    if committed_plan is not None:
        return committed_plan.fingerprint == record.plan.fingerprint
    if record.held_now is not None:
        return True
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
    """Return a plan made from its rows: each run of rows from its first to its last offset."""
    topic_id = row_ranges[0].topic_id
    runs = spans_by_partition(
        (held.partition, Span(held.first, held.last + 1))
        for held in row_ranges
        if held.topic_id == topic_id
    )
    named = replace(fallback, sequence=sequence, topic_id=topic_id)
    return named.with_ranges((p, span) for p, spans in sorted(runs.items()) for span in spans)


def replacing_plans(ledger: Ledger, log: TableLog) -> tuple[Plan, ...]:
    """Return the plans that replaced rows in the current table version, even if undone since."""
    committed = [
        commit.plan
        for commit in log.commits
        if commit.plan.replaces and log.has_kept(commit.version)
    ]
    # For plans whose commits the log no longer has, use the ledger. If the log reaches back to the
    # landing and lacks the commit, the plan landed in another table, as the original of a copy.
    known = [
        record.plan
        for record in ledger.plans.values()
        if record.plan.replaces
        and (landing := record.landed_originally)
        and landing.table_version < log.start
        and log.has_kept_landing(record)
        and record.plan not in committed
    ]
    return (*committed, *known)


def remaining_plan(
    plan: Plan, spans: Mapping[int, SpanSet], replacers: Sequence[Plan], covered: Coverage
) -> Plan | None:
    """Return a plan with only the offsets that no newer plan has replaced or landed.

    Args:
        plan: The plan; the table has its commit.
        spans: Some or all of its offsets.
        replacers: Result of `replacing_plans`.
        covered: Offsets of newer plans.

    Returns:
        The plan; None if no offset is left.
    """
    newer = union_by_partition(
        other.spans()
        for other in replacers
        if other.sequence > plan.sequence and other.topic_id == plan.topic_id
    )
    left = [
        (partition, span)
        for partition, own in sorted(spans.items())
        for span in own.difference(newer.get(partition, SpanSet())).difference(
            covered.get((plan.topic_id, partition), SpanSet())
        )
    ]
    return plan.with_ranges(left) if left else None


def fallback_plan(
    pipeline: str, watermarks: TopicWatermarks, isolation_level: IsolationLevel, requested_by: str
) -> Plan:
    """Return the `fallback` of `compare`: a plan of the current topic and cluster."""
    return Plan(
        pipeline=pipeline,
        sequence=0,
        kind=PlanKind.LIVE,
        epoch=0,
        cluster_id=watermarks.cluster_id,
        topic=watermarks.topic,
        topic_id=watermarks.topic_id,
        isolation_level=isolation_level,
        origin=RunOrigin(requested_by),
        ranges=(PlannedRange.without_watermarks(0, Span(0, 1)),),
    )


def start_events(
    ledger: Ledger,
    found: Differences,
    commits: Sequence[PlanCommit],
    watermarks: TopicWatermarks,
    requested_by: str,
    reason: str,
) -> tuple[ControlEvent, ...]:
    """Return the event with the start offsets that the ledger lacks for the newest incarnation.

    A partition starts at the first offset that the live chain landed. A partition without landed
    offsets starts at the current low watermark, so no record that Kafka still has is skipped.
    """
    landed = _landed_after(ledger, found)
    if not landed:
        return ()
    topic = _incarnation(ledger, found, landed[-1], watermarks)
    plans = [plan for plan in landed if plan.topic_id == topic]
    # Include plans without remaining rows, which were replaced or undone.
    started = [*plans, *(c.plan for c in commits if c.plan.topic_id == topic)]
    known = ledger.starts if topic == ledger.topic_id else {}
    starts: dict[int, int] = {}
    for plan in started:
        # Backfills do not show where the live chain started.
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
    return (RecreationAccepted(**identity, reason=reason),)


def _landed_after(ledger: Ledger, found: Differences) -> list[Plan]:
    """Return the plans with rows in the table, oldest first."""
    gone = {plan.sequence for plan in found.gone}
    kept = [
        record.plan
        for record in ledger.plans.values()
        if record.held_now and record.plan.sequence not in gone
    ]
    return sorted((*kept, *found.to_record), key=lambda plan: plan.sequence)


def _incarnation(
    ledger: Ledger, found: Differences, newest: Plan, watermarks: TopicWatermarks
) -> str | None:
    """Return the newest incarnation: the ledger's, unless its plans have a newer one.

    A ledger that lost the event of a recreated topic has an older topic id than its plans.
    """
    if ledger.topic_id is None:
        return newest.topic_id
    if ledger.topic_id == watermarks.topic_id:
        return ledger.topic_id
    if newest.topic_id == watermarks.topic_id or newest in found.unknown:
        return newest.topic_id
    return ledger.topic_id


def repair_events(
    ledger: Ledger,
    found: Differences,
    landings: Mapping[int, Landing],
    covered: Coverage,
    epoch: NewEpoch,
) -> tuple[ControlEvent, ...]:
    """Return the events after which the ledger agrees with the table.

    Args:
        ledger: State of the control table, after the events of `start_events`.
        found: Differences from the table.
        landings: Landing of every plan to record, by number.
        covered: Offsets that are landed after these events.
        epoch: The new epoch without offsets; its reason becomes the reason of all events.
    """
    committed = {
        partition: covered.get((str(ledger.topic_id), partition), SpanSet())
        .union(ledger.accepted_losses.get(partition, SpanSet()))
        .contiguous_end(start)
        for partition, start in ledger.starts.items()
    }
    decision = {"requested_by": epoch.requested_by, "reason": epoch.reason}
    return (
        *(Planned(plan=plan) for plan in found.unknown),
        *(_landed_event(plan, landings[plan.sequence], committed) for plan in found.to_land),
        *(
            Undone(
                sequence=plan.sequence, table_version=found.discarded.get(plan.sequence), **decision
            )
            for plan in found.gone
        ),
        *(Abandoned(sequence=plan.sequence, **decision) for plan in found.open),
        replace(epoch, committed=committed),
    )


def _landed_event(plan: Plan, landing: Landing, committed: Mapping[int, int]) -> Landed:
    """Return the event of an earlier landing, with the committed offsets of all landings."""
    positions = {
        partition: committed.get(partition, max(span.end for span in spans))
        for partition, spans in landing.spans().items()
    }
    return Landed(plan=plan, landing=landing, committed=positions)


def add_coverage(covered: dict[tuple[str, int], SpanSet], plan: Plan, landing: Landing) -> None:
    """Add the landed offsets of a plan; raise `UnexplainedRows` if another plan landed one."""
    for partition, spans in landing.spans().items():
        before = covered.get((plan.topic_id, partition), SpanSet())
        twice = [span for span in spans if before.overlap_size(span)]
        if twice:
            raise UnexplainedRows(
                pipeline=plan.pipeline,
                sequence=plan.sequence,
                needed="offsets that no other plan landed",
                seen=f"partition {partition}, {twice[0]} landed twice",
            )
        covered[plan.topic_id, partition] = before.union(spans)
