"""Finds plans and records that wait for a retry or a decision. Readers do not see them yet.

These are open plans, landed offsets that are not decoded, decoded records that are not merged,
records in quarantine, and plans that a check blocked. The sources are the control table, the state
of the typed table, and the next merge into the upsert table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from tidemark.bronze.ingest.ledgers import OpenPlan, open_plans
from tidemark.bronze.ingest.protocols import ControlReader
from tidemark.core.errors import TidemarkError
from tidemark.core.events import EventKind
from tidemark.core.ledger import Ledger
from tidemark.core.parallel import result_or_error
from tidemark.core.plan import PlanKind, PlanRef
from tidemark.core.publication import NOT_CHECKED, PublicationStatus, PublishRule
from tidemark.core.texts import counted, format_duration
from tidemark.ops.report.errors import (
    PlansBlocked,
    PlanStuck,
    PlansUnchecked,
    QuarantineTooLarge,
    RowsToWithdraw,
    TableStalled,
)
from tidemark.silver.typed.state import TypedState
from tidemark.silver.upsert.service import Upserts
from tidemark.spec.model import AlarmRules, PipelineSpec
from tidemark.spec.upsert import MergeScope

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
        pipeline: Name of its pipeline.
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
        pipeline: Name of the pipeline.
        parts: The text, and the references in it.
    """

    pipeline: str
    parts: Sequence[str | Reference]

    def __str__(self) -> str:
        return f"{self.pipeline}: {''.join(map(str, self.parts))}"


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
        open_plans: Open plans of the pipeline, oldest first.
        typed: The state of the typed table; an empty one without such a table. The upsert table has
            its withdrawn rows until the merge after the next decode.
        unmerged_removals: Number of offsets whose rows only the upsert table still has.
        unchecked_plans: The oldest unchecked plans, oldest first. Empty if no decode waits for a
            check and the pipeline has no check result: not all pipelines are checked.
        unmerged: Which records the next merge into the upsert table reads; None if no merge is due.
        upsert_error: The error that prevented the planning of a merge; None if there was none.
        unmerged_since: Time of the oldest change of the typed table that is not merged. None for a
            rebuild without a change since the last merge.
        blocked: Numbers of plans that a check blocked, without an operator's decision.
        published: Number of plans that a check published.
        released: Number of plans that an operator released.
        rejected: Number of plans that an operator rejected.
        last_check: Publication status of the newest landed plan, also of a backfill, or
            `not checked`; None before the first.
        newest_plan: Number of that plan; None before the first.
    """

    open_plans: tuple[OpenPlan, ...] = ()
    typed: TypedState = field(default_factory=TypedState)
    unmerged_removals: int = 0
    unchecked_plans: tuple[UncheckedPlan, ...] = ()
    unmerged: MergeScope | None = None
    unmerged_since: datetime | None = None
    upsert_error: TidemarkError | None = None
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
        return self.typed.error or self.upsert_error

    @property
    def unchecked_since(self) -> datetime | None:
        """Time of the landing of the oldest unchecked plan; None without one."""
        return min((plan.landed_at for plan in self.unchecked_plans), default=None)

    def states(self) -> Iterator[str]:
        """Yield the states that are not `ok`; docs/how-to/operations.md explains each."""
        if self.open_plans:
            yield "retrying" if self.runs > 1 else "open"
        if self.typed.backlog.missing:
            yield "undecoded"
        if self.typed.backlog.unchecked:
            yield "unchecked"
        if self.unmerged:
            yield "unmerged"
        if self.typed.quarantined:
            yield "quarantined"
        if self.typed.backlog.quarantine_behind:
            yield "quarantine behind"

    def explain(self, pipeline: str, now: datetime) -> Iterator[StatusLine]:
        """Yield a line for people about each open plan and about each other state."""

        def line(*parts: str | Reference) -> StatusLine:
            return StatusLine(pipeline=pipeline, parts=parts)

        for plan in self.open_plans:
            age, runs = format_duration(now - plan.planned_at), counted(plan.runs, "run")
            number = Reference(text=f"plan {plan.sequence}", pipeline=pipeline, plan=plan.sequence)
            yield line(number, f" has been open for {age} ({runs})")
        backlog = self.typed.backlog
        if backlog.missing:
            since = _for(self.typed.undecoded_since, now)
            yield line(f"{counted(backlog.missing, 'published offset')} not decoded{since}")
        if backlog.surplus:
            offsets = counted(backlog.surplus, "offset")
            yield line(
                f"the typed table has {offsets} that are no longer published: "
                f"`tidemark decode {pipeline}` removes them"
            )
        if backlog.unchecked:
            offsets = counted(backlog.unchecked, "landed offset")
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
        if self.typed.quarantined:
            records = counted(self.typed.quarantined, "record")
            yield line(Reference(text=f"{records} in quarantine", pipeline=pipeline))
        if backlog.quarantine_behind:
            yield line(
                "the quarantine has not followed the typed table: "
                f"`tidemark decode {pipeline}` completes it"
            )
        if self.blocked:
            yield line("a quality check blocked ", *_references(pipeline, self.blocked))

    def alarms(self, pipeline: str, rules: AlarmRules, now: datetime) -> Iterator[TidemarkError]:
        """Yield an error for each exceeded limit, and for each state that needs no limit."""
        yield from self._waits(pipeline, rules, now)
        if self.typed.error:
            yield self.typed.error
        # Both steps check the owner of the typed table.
        if self.upsert_error and type(self.upsert_error) is not type(self.typed.error):
            yield self.upsert_error
        surplus, quarantined = self.typed.backlog.surplus, self.typed.quarantined
        if surplus or self.unmerged_removals:
            yield RowsToWithdraw(pipeline=pipeline, offsets=surplus, merged=self.unmerged_removals)
        if self.blocked:
            yield PlansBlocked(pipeline=pipeline, plans=self.blocked)
        limit = rules.quarantined_records
        if limit is not None and quarantined is not None and quarantined > limit:
            yield QuarantineTooLarge(pipeline=pipeline, records=quarantined, limit=limit)

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
        waits = {"typed": self.typed.undecoded_since, "upsert": self.unmerged_since}
        for table, since in waits.items():
            if since and rules.stalled is not None and now - since > rules.stalled:
                yield TableStalled(
                    pipeline=pipeline, table=table, age=now - since, limit=rules.stalled
                )

    def as_row(self) -> dict[str, Any]:
        """Return columns of the status table."""
        return {
            "open_since": self.open_since,
            "open_plan_runs": self.runs,
            "undecoded": self.typed.backlog.missing,
            "undecoded_since": self.typed.undecoded_since,
            "to_withdraw": self.typed.backlog.surplus,
            "unchecked": self.typed.backlog.unchecked,
            "unchecked_since": self.unchecked_since,
            "unmerged": self.unmerged,
            "unmerged_since": self.unmerged_since,
            "typed_rows": self.typed.rows,
            "quarantined": self.typed.quarantined,
            "quarantine_behind": self.typed.backlog.quarantine_behind,
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
        typed: Returns the state of the typed table.
        upserts: Plans the merges into the upsert table; None without one.
    """

    spec: PipelineSpec
    control: ControlReader
    typed: Callable[[], TypedState] = TypedState
    upserts: Upserts | None = None

    def read(self, ledger: Ledger) -> UnfinishedWork:
        """Return the unfinished work.

        Args:
            ledger: The pipeline's ledger; a summary suffices.

        Raises:
            ControlConflict: The pipeline has changed since its ledger was read.
        """
        statuses = self.control.publication_statuses(ledger.pipeline)
        newest = ledger.last_landed_sequence
        decided = Counter(statuses.values())
        typed, decode = self.typed(), self.spec.decode
        follows_checks = decode is not None and decode.publish is PublishRule.CHECKED
        is_checked = bool(typed.backlog.unchecked) if follows_checks else _has_checks(statuses)
        opened = open_plans(self.control, ledger)
        work = UnfinishedWork(
            open_plans=tuple(sorted(opened, key=lambda plan: plan.planned_at)),
            typed=typed,
            unchecked_plans=self._unchecked(ledger, statuses) if is_checked else (),
            blocked=self._blocked(ledger, statuses),
            published=decided[PublicationStatus.PUBLISHED],
            released=decided[PublicationStatus.RELEASED],
            rejected=decided[PublicationStatus.REJECTED],
            last_check=str(statuses.get(newest, NOT_CHECKED)) if newest else None,
            newest_plan=newest,
        )
        return self._with_merge(work, self.upserts) if self.upserts else work

    def _with_merge(self, work: UnfinishedWork, upserts: Upserts) -> UnfinishedWork:
        """Return the work with the next merge into the upsert table."""
        # An error of the table must not hide the other unfinished work.
        merge = result_or_error(self.spec.name, lambda _: upserts.next())
        if isinstance(merge, TidemarkError):
            return replace(work, upsert_error=merge)
        if merge is None:
            return work
        return replace(
            work,
            unmerged=merge.scope,
            unmerged_since=upserts.due_since(merge),
            unmerged_removals=merge.withdrawn,
        )

    def _unchecked(
        self, ledger: Ledger, statuses: Mapping[int, PublicationStatus]
    ) -> tuple[UncheckedPlan, ...]:
        """Return the oldest plans with rows and without any decision."""
        landed_at = self.control.recorded_at(ledger.pipeline, EventKind.LANDED)
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
