"""Finds plans and records that wait for a retry or a decision. Readers do not see them yet.

These are open plans, landed offsets that are not decoded, decoded records that are not merged,
records in quarantine, and plans that a check blocked. The sources are the control table, the
quarantine, and the logs of the typed table and the upsert table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from tidemark.bronze.ingest.protocols import ControlReader
from tidemark.core.errors import TidemarkError
from tidemark.core.events import EventKind
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet, difference_by_partition, size_of
from tidemark.core.parallel import result_or_error
from tidemark.core.plan import PlanKind, PlanRef
from tidemark.core.publication import NOT_CHECKED, PublicationStatus, PublishRule
from tidemark.core.texts import counted, format_duration
from tidemark.delta.errors import ControlConflict
from tidemark.ops.report.errors import (
    PlansBlocked,
    PlanStuck,
    PlansUnchecked,
    QuarantineTooLarge,
    RowsToWithdraw,
    TableStalled,
)
from tidemark.silver.typed.decoder import HiddenOffsets, offsets_to_withdraw
from tidemark.spec.model import AlarmRules, PipelineSpec
from tidemark.spec.ref import plan_text
from tidemark.spec.upsert import MergePlan, MergeScope

STUCK_AFTER_RUNS = 3
"""Number of runs of an open plan that raises an alarm: at least two of them failed to land it."""
_LATER_RUNS = 2
"""Number of later runs that land plans before an unchecked plan raises an alarm. Each of these runs
should have checked it."""
_MOST_UNCHECKED = 20
"""Maximum number of unchecked plans in a status. The oldest are the first that need a decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A plan or a quarantine in a line of a status.

    Attributes:
        text: Its text in the line.
        pipeline: Name of its pipeline, which may be the pipeline of the typed table.
        plan: Plan number; None for the quarantine.
    """

    text: str
    pipeline: str
    plan: int | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusLine:
    """A line for people in a status.

    Attributes:
        pipeline: Name of the pipeline, which may be the pipeline of the typed table.
        parts: The text, and the references in it.
    """

    pipeline: str
    parts: Sequence[str | Reference]

    def __str__(self) -> str:
        return f"{self.pipeline}: {''.join(map(str, self.parts))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPlan:
    """A plan that is recorded and has not landed.

    Attributes:
        pipeline: Name of its pipeline, which may be the pipeline of the typed table.
        sequence: Plan number.
        planned_at: Time of its recording.
        runs: Number of runs that requested it: the run that planned it, and each run that took it
            over after a failure.
    """

    pipeline: str
    sequence: int
    planned_at: datetime
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UncheckedPlan:
    """A landed plan without a check result and without a decision of an operator.

    Attributes:
        sequence: Plan number.
        landed_at: Time of its landing.
        later_runs: Number of later runs that have landed a plan, among the newest plans; 0 for the
            plan of a backfill.
    """

    sequence: int
    landed_at: datetime
    later_runs: int

    def is_late(self, limit: timedelta | None, now: datetime) -> bool:
        """Whether several later runs have landed, or the plan has waited longer than `limit`."""
        is_old = limit is not None and now - self.landed_at > limit
        return is_old or self.later_runs >= _LATER_RUNS


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedWork:
    """Plans and records of one pipeline that wait for a retry or a decision.

    Attributes:
        open_plans: Open plans of the pipeline and of its typed table, oldest first.
        undecoded: Number of published offsets that the typed table does not have. With
            `decode.publish: always` all landed offsets count.
        undecoded_since: Time from which on undecoded offsets could have been decoded; None without
            any, or while a plan of the typed table is open.
        to_withdraw: Number of decoded offsets that left the data table or its published view. The
            typed table has them until the next decode, the upsert table until the merge after it.
        unmerged_removals: Number of typed plans whose rows only the upsert table still has.
        decode_error: The error of the registry's connection, the typed table or its quarantine that
            would refuse the next decode; None without one.
        unchecked: Number of landed offsets that are not decoded because they have no check result
            and no decision of an operator.
        unchecked_plans: The oldest unchecked plans, oldest first. Empty if no decode waits for a
            check and the pipeline has no check result: not all pipelines are checked.
        unmerged: Which records the next merge into the upsert table reads; None if no merge is due.
        upsert_error: The error that prevented the planning of a merge; None if there was none.
        unmerged_since: Time of the oldest change of the typed table that is not merged. None for a
            rebuild without a change since the last merge.
        quarantined: Number of open records in the quarantine; None without a typed table.
        blocked: Numbers of plans that a check blocked, without an operator's decision.
        published: Number of plans that a check published.
        released: Number of plans that an operator released.
        rejected: Number of plans that an operator rejected.
        last_check: Publication status of the newest landed plan, also of a backfill, or
            `not checked`; None before the first.
        newest_plan: Number of that plan; None before the first.
    """

    open_plans: tuple[OpenPlan, ...] = ()
    undecoded: int = 0
    undecoded_since: datetime | None = None
    to_withdraw: int = 0
    unmerged_removals: int = 0
    decode_error: TidemarkError | None = None
    unchecked: int = 0
    unchecked_plans: tuple[UncheckedPlan, ...] = ()
    unmerged: MergeScope | None = None
    unmerged_since: datetime | None = None
    upsert_error: TidemarkError | None = None
    quarantined: int | None = None
    blocked: tuple[int, ...] = ()
    published: int = 0
    released: int = 0
    rejected: int = 0
    last_check: str | None = None
    newest_plan: int | None = None

    @property
    def open_since(self) -> datetime | None:
        """Time of the recording of the oldest open plan; None without an open plan."""
        return min((plan.planned_at for plan in self.open_plans), default=None)

    @property
    def runs(self) -> int:
        """The highest number of runs that requested one open plan; 0 without an open plan."""
        return max((plan.runs for plan in self.open_plans), default=0)

    @property
    def problem(self) -> TidemarkError | None:
        """The error with which the step `decode` or `upsert` of the next run would end."""
        return self.decode_error or self.upsert_error

    @property
    def unchecked_since(self) -> datetime | None:
        """Time of the landing of the oldest unchecked plan; None without one."""
        return min((plan.landed_at for plan in self.unchecked_plans), default=None)

    def states(self) -> Iterator[str]:
        """Yield the states that are not `ok`; docs/how-to/operations.md explains each."""
        if self.open_plans:
            yield "retrying" if self.runs > 1 else "open"
        if self.undecoded:
            yield "undecoded"
        if self.unchecked:
            yield "unchecked"
        if self.unmerged:
            yield "unmerged"
        if self.quarantined:
            yield "quarantined"

    def explain(self, pipeline: str, now: datetime) -> Iterator[StatusLine]:
        """Yield a line for people about each open plan and about each other state."""

        def line(*parts: str | Reference, of: str = pipeline) -> StatusLine:
            return StatusLine(pipeline=of, parts=parts)

        for plan in self.open_plans:
            age, runs = format_duration(now - plan.planned_at), counted(plan.runs, "run")
            text = plan_text(plan.pipeline, plan.sequence)
            number = Reference(text=text, pipeline=plan.pipeline, plan=plan.sequence)
            yield line(number, f" has been open for {age} ({runs})", of=plan.pipeline)
        if self.undecoded:
            since = _for(self.undecoded_since, now)
            yield line(f"{counted(self.undecoded, 'published offset')} not decoded{since}")
        if self.to_withdraw:
            offsets = counted(self.to_withdraw, "offset")
            yield line(
                f"the typed table has {offsets} that are no longer published: "
                f"`tidemark decode {pipeline}` removes them"
            )
        if self.unchecked:
            offsets = counted(self.unchecked, "landed offset")
            plans = [plan.sequence for plan in self.unchecked_plans]
            be = "are" if plans[1:] else "is"
            # Without such a plan, a RESTORE has brought back offsets of a checked plan.
            why = (
                [*_references(pipeline, plans), f" {be} not checked"] if plans else ["not checked"]
            )
            yield line(
                f"{offsets} not decoded, because ",
                *why,
                f"{_for(self.unchecked_since, now)}: `tidemark run {pipeline}` checks and decodes",
            )
        if self.unmerged:
            yield line(
                f"upsert table out of date{_for(self.unmerged_since, now)}: "
                f"`tidemark upsert {pipeline}` merges {self.unmerged}"
            )
        if self.quarantined:
            records = counted(self.quarantined, "record")
            yield line(Reference(text=f"{records} in quarantine", pipeline=pipeline))
        if self.blocked:
            yield line("a quality check blocked ", *_references(pipeline, self.blocked))

    def alarms(self, pipeline: str, rules: AlarmRules, now: datetime) -> Iterator[TidemarkError]:
        """Yield an error for each exceeded limit, and for each state that needs no limit."""
        yield from self._waits(pipeline, rules, now)
        if self.decode_error:
            yield self.decode_error
        # Both steps compare the typed table with its ledger.
        if self.upsert_error and type(self.upsert_error) is not type(self.decode_error):
            yield self.upsert_error
        if self.to_withdraw or self.unmerged_removals:
            yield RowsToWithdraw(
                pipeline=pipeline, offsets=self.to_withdraw, plans=self.unmerged_removals
            )
        if self.blocked:
            yield PlansBlocked(pipeline=pipeline, plans=self.blocked)
        limit = rules.quarantined_records
        if limit is not None and self.quarantined is not None and self.quarantined > limit:
            yield QuarantineTooLarge(pipeline=pipeline, records=self.quarantined, limit=limit)

    def _waits(self, pipeline: str, rules: AlarmRules, now: datetime) -> Iterator[TidemarkError]:
        """Yield an error for each step that waits for too long."""
        for plan in self.open_plans:
            age = now - plan.planned_at
            if plan.runs >= STUCK_AFTER_RUNS or (rules.stalled is not None and age > rules.stalled):
                yield PlanStuck(
                    pipeline=plan.pipeline,
                    sequence=plan.sequence,
                    age=max(age, timedelta(0)),
                    runs=plan.runs,
                    limit=rules.stalled,
                )
        late = [plan.sequence for plan in self.unchecked_plans if plan.is_late(rules.stalled, now)]
        if late and self.unchecked_since:
            yield PlansUnchecked(
                pipeline=pipeline, plans=tuple(late), age=now - self.unchecked_since
            )
        for table, since in (("typed", self.undecoded_since), ("upsert", self.unmerged_since)):
            if since and rules.stalled is not None and now - since > rules.stalled:
                yield TableStalled(
                    pipeline=pipeline, table=table, age=now - since, limit=rules.stalled
                )

    def as_row(self) -> dict[str, Any]:
        """Return columns of the status table."""
        return {
            "open_since": self.open_since,
            "open_plan_runs": self.runs,
            "undecoded": self.undecoded,
            "undecoded_since": self.undecoded_since,
            "to_withdraw": self.to_withdraw,
            "unchecked": self.unchecked,
            "unchecked_since": self.unchecked_since,
            "unmerged": self.unmerged,
            "unmerged_since": self.unmerged_since,
            "quarantined": self.quarantined,
            "blocked_plans": len(self.blocked),
            "published_plans": self.published,
            "released_plans": self.released,
            "rejected_plans": self.rejected,
            "last_check": self.last_check,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedWorkReader:
    """Finds the unfinished work of one pipeline.

    Attributes:
        spec: The pipeline.
        control: The control table.
        quarantined: Returns the number of open records in the quarantine, given the typed plans
            that have not landed.
        hidden: Returns the landed offsets that are not decoded.
        check_typed: Raises the error with which the next decode would be refused.
        next_merge: Returns the next merge into the upsert table; None if no merge is due.
    """

    spec: PipelineSpec
    control: ControlReader
    quarantined: Callable[[Collection[int]], int] = lambda _: 0
    hidden: Callable[[], HiddenOffsets] = HiddenOffsets
    check_typed: Callable[[], None] = lambda: None
    next_merge: Callable[[], MergePlan | None] = lambda: None

    def read(self, ledger: Ledger) -> UnfinishedWork:
        """Return the unfinished work.

        Args:
            ledger: The pipeline's ledger; a summary suffices.

        Raises:
            ControlConflict: The pipeline has changed since its ledger was read.
        """
        open_plans = self._open_plans(ledger)
        statuses = self.control.publication_statuses(ledger.pipeline)
        newest = ledger.last_landed_sequence
        decided = Counter(statuses.values())
        work = UnfinishedWork(
            open_plans=open_plans,
            blocked=self._blocked(ledger, statuses),
            published=decided[PublicationStatus.PUBLISHED],
            released=decided[PublicationStatus.RELEASED],
            rejected=decided[PublicationStatus.REJECTED],
            last_check=str(statuses.get(newest, NOT_CHECKED)) if newest else None,
            newest_plan=newest,
        )
        landed_at = cache(lambda: self.control.recorded_at(ledger.pipeline, EventKind.LANDED))
        if self.spec.decode is None:
            is_checked = _has_checks(statuses)
            unchecked = self._unchecked(ledger, statuses, landed_at()) if is_checked else ()
            return replace(work, unchecked_plans=unchecked)
        typed = self.control.summary(self.spec.typed_spec().name)
        open_plans = (*open_plans, *self._open_plans(typed))
        hidden = self.hidden()
        open_typed_plans = [record.plan.sequence for record in typed.open_plans()]
        undecoded = _undecoded(ledger, typed, hidden)
        waits = undecoded and not open_typed_plans
        always = self.spec.decode.publish is PublishRule.ALWAYS
        is_checked = _has_checks(statuses) if always else bool(hidden.unchecked)
        # An error of a table must not hide the other unfinished work.
        refused = result_or_error(self.spec.name, lambda _: self.check_typed())
        if isinstance(refused, ControlConflict):
            raise refused
        found = result_or_error(self.spec.name, lambda _: self.next_merge())
        merge, upsert_error = (None, found) if isinstance(found, TidemarkError) else (found, None)
        return replace(
            work,
            open_plans=tuple(sorted(open_plans, key=lambda plan: plan.planned_at)),
            undecoded=size_of(undecoded),
            to_withdraw=self._to_withdraw(ledger, hidden, typed),
            unmerged_removals=len(merge.changes.removed) if merge else 0,
            undecoded_since=(
                self._undecoded_since(ledger, typed, undecoded, landed_at()) if waits else None
            ),
            decode_error=refused,
            upsert_error=upsert_error,
            unmerged=merge.scope if merge else None,
            unmerged_since=self._first_change(typed.pipeline, merge) if merge else None,
            unchecked=sum(map(size_of, hidden.unchecked.values())),
            unchecked_plans=self._unchecked(ledger, statuses, landed_at()) if is_checked else (),
            quarantined=self.quarantined(open_typed_plans),
        )

    def _to_withdraw(self, ledger: Ledger, hidden: HiddenOffsets, typed: Ledger) -> int:
        """Return the number of decoded offsets that the next decode removes.

        Raises:
            ControlConflict: The typed ledger is newer than the pipeline's. Offsets that have landed
                and were decoded meanwhile would seem to have left the data table.
        """
        offsets = offsets_to_withdraw(ledger, hidden, typed)
        newest = self.control.summary(ledger.pipeline).event_number if offsets else 0
        if offsets and newest != ledger.event_number:
            raise ControlConflict(pipeline=ledger.pipeline, event_number=newest)
        return offsets

    def _open_plans(self, ledger: Ledger) -> tuple[OpenPlan, ...]:
        records = ledger.open_plans()
        if not records:
            return ()
        planned_at: Mapping[int, datetime] = self.control.recorded_at(
            ledger.pipeline, EventKind.PLANNED
        )
        return tuple(
            OpenPlan(
                pipeline=ledger.pipeline,
                sequence=record.plan.sequence,
                planned_at=planned_at[record.plan.sequence],
                runs=len(record.requesters),
            )
            for record in records
        )

    def _undecoded_since(
        self,
        ledger: Ledger,
        typed: Ledger,
        undecoded: Mapping[int, SpanSet],
        landed_at: Mapping[int, datetime],
    ) -> datetime | None:
        """Return the time from which on the undecoded offsets could have been decoded.

        The plan that holds the first of them has landed and is published, and the newest undo in
        the typed table has ended. The partition with most of the offsets stands for the others, so
        that a status needs few reads.
        """
        partition, spans = max(undecoded.items(), key=lambda each: each[1].size)
        first = spans.spans[0].start
        plans = self._plans_at(ledger, partition, first)
        undone_at = self.control.recorded_at(typed.pipeline, EventKind.UNDONE).values()
        times = [at for plan in plans for at in (landed_at.get(plan), self._decided_at(plan)) if at]
        return max([*times, *undone_at]) if times else None

    def _decided_at(self, plan: int) -> datetime | None:
        """Return the time of the effective decision about a plan; None without one."""
        record = self.control.plan_record(self.spec.name, plan)
        return record.decision.decided_at if record and record.decision else None

    def _plans_at(self, ledger: Ledger, partition: int, offset: int) -> Collection[int]:
        """Return the plans that hold an offset of the current incarnation now: one, or none."""
        topic_id = str(ledger.topic_id)
        window = Span(offset, offset + 1)
        settled = self.control.settled_counts(ledger.pipeline, topic_id, partition, window)
        return {
            *settled,
            *(
                number
                for number, record in ledger.plans.items()
                if record.held_now
                and record.plan.topic_id == topic_id
                and any(
                    each.partition == partition and each.start <= offset < each.end
                    for each in record.held_now.counts
                )
            ),
        }

    def _first_change(self, typed: str, merge: MergePlan) -> datetime | None:
        """Return the time of the oldest change of the typed table that no merge has read.

        None for a rebuild without a change since the last merge, or if the last merge is unknown.
        The control table does not record when a spec was changed or a table restored.
        """
        landed = self.control.recorded_at(typed, EventKind.LANDED)
        undone = self.control.recorded_at(typed, EventKind.UNDONE)
        changes = merge.changes
        plans = {plan.sequence for plan in (*changes.appended, *changes.replaced)}
        removed = {*changes.removed}
        if merge.since is None and merge.last_read is not None:
            # A rebuild lists no changes, so read the full ledger, which takes longer.
            for number, record in self.control.ledger(typed).plans.items():
                landing, undone_version = record.held_now, record.undone_version
                if landing and landing.table_version > merge.last_read:
                    plans.add(number)
                # Before the first merge, a removal may be of an earlier typed table.
                if undone_version is not None and undone_version > merge.last_read >= 0:
                    removed.add(number)
        times = [at for number, at in landed.items() if number in plans or merge.is_first]
        times += [at for number, at in undone.items() if number in removed]
        return min(times, default=None)

    def _unchecked(
        self,
        ledger: Ledger,
        statuses: Mapping[int, PublicationStatus],
        landed_at: Mapping[int, datetime],
    ) -> tuple[UncheckedPlan, ...]:
        """Return the oldest plans with rows and without any decision."""
        # A summary has the plans that were taken back.
        rowless = {number for number, each in ledger.plans.items() if not each.has_rows}
        oldest = [
            PlanRef(pipeline=ledger.pipeline, sequence=number)
            for number in sorted(landed_at.keys() - statuses.keys() - rowless)
        ][:_MOST_UNCHECKED]
        newest = [
            PlanRef(pipeline=ledger.pipeline, sequence=number)
            for number in sorted(landed_at)[-_MOST_UNCHECKED:]
        ]
        records = self.control.plan_records({*oldest, *newest})

        def is_live(plan: PlanRef) -> bool:
            return plan in records and records[plan].plan.kind is PlanKind.LIVE

        runs = [plan.sequence for plan in newest if is_live(plan)]
        return tuple(
            UncheckedPlan(
                sequence=plan.sequence,
                landed_at=landed_at[plan.sequence],
                later_runs=sum(run > plan.sequence for run in runs) if is_live(plan) else 0,
            )
            for plan in oldest
            if plan in records and records[plan].has_rows
        )

    def _blocked(
        self, ledger: Ledger, statuses: Mapping[int, PublicationStatus]
    ) -> tuple[int, ...]:
        """Return blocked plans that still have rows in the table."""
        blocked = (n for n, status in statuses.items() if status is PublicationStatus.BLOCKED)
        return tuple(number for number in sorted(blocked) if self._has_rows(ledger, number))

    def _has_rows(self, ledger: Ledger, sequence: int) -> bool:
        """Whether a plan holds rows. Reads only this plan, because a full ledger takes seconds."""
        record = ledger.plans.get(sequence) or self.control.plan_record(self.spec.name, sequence)
        return record is not None and record.has_rows


def _has_checks(statuses: Mapping[int, PublicationStatus]) -> bool:
    """Return whether a check decided about a plan. An operator also decides without checks."""
    of_checks = (PublicationStatus.PUBLISHED, PublicationStatus.BLOCKED)
    return any(status in of_checks for status in statuses.values())


def _references(pipeline: str, plans: Sequence[int]) -> list[str | Reference]:
    """Return the parts of a line that name plans: `plan 3`, `plans 3, 4`."""
    first, *others = (
        Reference(text=str(number), pipeline=pipeline, plan=number) for number in plans
    )
    more = [part for each in others for part in (", ", each)]
    return [f"plan{'s' if more else ''} ", first, *more]


def _for(since: datetime | None, now: datetime) -> str:
    """Return the time since `since` as the end of a clause, ` for 2 h`; empty if unknown."""
    return f" for {format_duration(now - since)}" if since else ""


def _undecoded(bronze: Ledger, typed: Ledger, hidden: HiddenOffsets) -> Mapping[int, SpanSet]:
    if bronze.topic_id is None:
        return {}
    return difference_by_partition(
        hidden.published(bronze, bronze.topic_id), typed.landed_of(bronze.topic_id)
    )
