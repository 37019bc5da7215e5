"""Plans and records that are read from the topic and do not reach the readers.

These are open plans, records that are not decoded or in quarantine, and plans that a check blocked.
The sources are the control table, the quarantine and the publication table, and no data table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tidemark.core.errors import TidemarkError, comma_list, format_duration
from tidemark.core.events import EventKind
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import difference_by_partition, size_of
from tidemark.ingest.protocols import ControlReader
from tidemark.report.errors import PlansBlocked, PlanStuck, QuarantineTooLarge
from tidemark.spec.model import AlarmRules, PipelineSpec

RUNS_THAT_ALARM = 3
"""With so many runs that requested one open plan, at least two have failed to land it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPlan:
    """A plan that is recorded and has not landed.

    Attributes:
        pipeline: Its pipeline, which may be that of the typed table.
        sequence: Plan number.
        planned_at: Time of its recording.
        runs: Number of runs that requested it: the run that planned it, and each run that took it
            over because an earlier run did not land it.
    """

    pipeline: str
    sequence: int
    planned_at: datetime
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsettled:
    """Plans and records of one pipeline that wait for a retry or a decision.

    Attributes:
        opened: Open plans of the pipeline and of its typed table, oldest first.
        undecoded: Landed offsets that the typed table has not decoded.
        quarantined: Open records of the quarantine.
        blocked: Numbers of plans that a check blocked, without an operator's decision.
    """

    opened: tuple[OpenPlan, ...] = ()
    undecoded: int = 0
    quarantined: int = 0
    blocked: tuple[int, ...] = ()

    @property
    def open_since(self) -> datetime | None:
        """When the oldest open plan was recorded."""
        return min((plan.planned_at for plan in self.opened), default=None)

    @property
    def runs(self) -> int:
        """The highest number of runs that requested one open plan."""
        return max((plan.runs for plan in self.opened), default=0)

    def words(self) -> Iterator[str]:
        """The states that are not `ok`; docs/operations.md explains each."""
        if self.opened:
            yield "retrying" if self.runs > 1 else "open"
        if self.undecoded:
            yield "undecoded"
        if self.quarantined:
            yield "quarantined"
        if self.blocked:
            yield "blocked"

    def explain(self, pipeline: str, now: datetime) -> Iterator[str]:
        """Yield a line for people about each thing that is unsettled."""
        for plan in self.opened:
            runs = f"{plan.runs} run{'s' if plan.runs > 1 else ''}"
            age = format_duration(now - plan.planned_at)
            yield f"{plan.pipeline}: plan {plan.sequence} is open for {age} ({runs})"
        if self.undecoded:
            yield f"{pipeline}: {self.undecoded:,} landed offset(s) are not decoded"
        if self.quarantined:
            yield f"{pipeline}: {self.quarantined:,} record(s) are in quarantine"
        if self.blocked:
            yield f"{pipeline}: plan(s) {comma_list(self.blocked)} are blocked by a quality check"

    def alarms(self, pipeline: str, rules: AlarmRules, now: datetime) -> Iterator[TidemarkError]:
        """Yield an error for each broken rule."""
        for plan in self.opened:
            age = now - plan.planned_at
            if plan.runs >= RUNS_THAT_ALARM or (rules.stalled is not None and age > rules.stalled):
                yield PlanStuck(
                    pipeline=plan.pipeline,
                    sequence=plan.sequence,
                    age=max(age, timedelta(0)),
                    runs=plan.runs,
                    longest=rules.stalled,
                )
        if self.blocked:
            yield PlansBlocked(pipeline=pipeline, plans=self.blocked)
        most = rules.quarantined_records
        if most is not None and self.quarantined > most:
            yield QuarantineTooLarge(pipeline=pipeline, records=self.quarantined, most=most)

    def as_row(self) -> dict[str, Any]:
        """Columns of the status table."""
        return {
            "open_since": self.open_since,
            "runs": self.runs,
            "undecoded": self.undecoded,
            "quarantined": self.quarantined,
            "blocked_plans": len(self.blocked),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsettling:
    """Finds the unsettled plans and records of one pipeline.

    Attributes:
        spec: The pipeline.
        control: The control table.
        blocked: Returns the plans whose publication status is `blocked`.
        quarantined: Returns the number of open records of the quarantine, given the typed plans
            that have not landed.
    """

    spec: PipelineSpec
    control: ControlReader
    blocked: Callable[[], Collection[int]]
    quarantined: Callable[[Collection[int]], int]

    def look(self, ledger: Ledger) -> Unsettled:
        """Return the unsettled plans and records.

        Args:
            ledger: The pipeline's ledger; a summary suffices.
        """
        own = self._opened(ledger)
        decode = self.spec.decode
        if decode is None or not self.spec.is_live:
            return Unsettled(opened=own, blocked=self._blocked())
        typed = self.control.summary(self.spec.typed_pipeline().name)
        unlanded = [record.plan.sequence for record in typed.open_plans()]
        return Unsettled(
            opened=tuple(sorted((*own, *self._opened(typed)), key=lambda plan: plan.planned_at)),
            undecoded=_undecoded(ledger, typed),
            quarantined=self.quarantined(unlanded),
            blocked=self._blocked(),
        )

    def _opened(self, ledger: Ledger) -> tuple[OpenPlan, ...]:
        opened = ledger.open_plans()
        if not opened:
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
            for record in opened
        )

    def _blocked(self) -> tuple[int, ...]:
        """Blocked plans that still have rows in the table."""
        blocked = self.blocked()
        if not blocked:
            return ()
        plans = self.control.ledger(self.spec.name).plans
        held = {n for n, record in plans.items() if record.held_now and record.held_now.counts}
        return tuple(sorted(held.intersection(blocked)))


def _undecoded(bronze: Ledger, typed: Ledger) -> int:
    if bronze.topic_id is None:
        return 0
    topic_id = bronze.topic_id
    return size_of(difference_by_partition(bronze.landed_of(topic_id), typed.landed_of(topic_id)))
