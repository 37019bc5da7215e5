"""Programs of actors, and the operator who works after them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from tests.model.actors import Program
from tests.model.world import World
from tests.support.plans import MemoryPipeline, wanted
from tests.support.quality_reports import REPORT
from tidemark.bronze.backfill.selection import RetainedLog
from tidemark.bronze.backfill.service import recorded_request
from tidemark.bronze.ingest.errors import PlanStillOpen, RecordsMissed
from tidemark.bronze.repair.errors import NothingToDo, RowsInDoubt
from tidemark.core.errors import (
    LedgerBehindTable,
    LostRange,
    PlanCannotLand,
    RepairUnfinished,
    TableBehindLedger,
    TidemarkError,
    TopicRecreated,
    TransientError,
    UnknownOutcomeError,
)
from tidemark.core.events import ControlEvent
from tidemark.core.ledger import CheckedLedger
from tidemark.core.origins import RunOrigin
from tidemark.quality.check_results import BatchRef, QualityReport
from tidemark.quality.service import Quality

MAX_ROUNDS = 25
"""Maximum number of rounds until an operator has settled a pipeline."""

# -- programs ------------------------------------------------------------------------------------


def ingest(sequence: int) -> Program:
    return lambda pipeline: pipeline.ingest.execute(sequence)


def plan(requested_by: str) -> Program:
    return lambda pipeline: pipeline.planner.plan(requested_by)


def run(requested_by: str) -> Program:
    return lambda pipeline: pipeline.run(requested_by)


def backfill(
    requested_by: str, partition: int, start: int, end: int, *, replaces: bool = False
) -> Program:
    """Return a backfill of a range, from request to record."""
    request = replace(wanted((partition, start, end)), replaces=replaces)

    def program(pipeline: MemoryPipeline) -> object:
        plan = pipeline.planner.backfill(request, RunOrigin(requested_by)).plan
        return pipeline.ingest.execute(plan.sequence) if plan else None

    return program


def fill(requested_by: str, chunk: int) -> Program:
    """Return a backfill of all of Kafka's offsets in chunks; it resumes an earlier request."""

    def program(pipeline: MemoryPipeline) -> object:
        backfills = pipeline.backfills
        recorded = recorded_request(pipeline.control, pipeline.spec.name, requested_by)
        if recorded:
            chunks = len(recorded.chunks)
        else:
            preview = backfills.preview(RetainedLog(), chunk, readable_only=True)
            chunks = (
                backfills.request(preview, requested_by, approved=True) if preview.offsets else 0
            )
        for number in range(1, chunks + 1):
            plan = backfills.plan_chunk(requested_by, number).plan
            if plan:
                pipeline.ingest.execute(plan.sequence)
        return chunks

    return program


def abandon(sequence: int, *, discard: bool = False) -> Program:
    """Abandon a plan, and discard its rows if it is unknown which topic they are from."""
    return lambda pipeline: pipeline.abandon.abandon(sequence, "ops", "it hangs", discard=discard)


def undo(sequence: int) -> Program:
    return lambda pipeline: pipeline.undo.undo(sequence, "ops", "it was wrong", allow_loss=True)


def rewind() -> Program:
    return lambda pipeline: pipeline.repair.rewind("ops", "the table was restored")


def rebuild() -> Program:
    return lambda pipeline: pipeline.repair.rebuild("ops", "the control table was lost")


@dataclass(frozen=True, kw_only=True)
class CheckEnd:
    """The end of a check of a plan.

    Attributes:
        sequence: The plan.
        passes: Whether the check passed.
        began: The newest event number at its start.
        recorded: The event number of its decision; None if it recorded none.
    """

    sequence: int
    passes: bool
    began: int
    recorded: int | None


@dataclass
class _Control:
    """A control table, with the numbers of the ledgers of its appends."""

    real: Any
    appends: list[int] = field(default_factory=list)
    done: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def append(
        self, ledger: CheckedLedger, events: Sequence[ControlEvent], recorded_at: datetime
    ) -> None:
        self.appends.append(ledger.event_number)
        self.real.append(ledger, events, recorded_at)
        self.done = True


@dataclass(frozen=True)
class _FixedResult:
    """A checker with a fixed result, which stores nothing."""

    passes: bool

    def check(
        self, ref: BatchRef, expected: object, suite: object, run_at: datetime
    ) -> QualityReport:
        del expected, suite, run_at
        (result,) = REPORT.results
        return replace(
            REPORT,
            pipeline=ref.pipeline,
            plan_sequence=ref.plan_sequence,
            results=(replace(result, passed=self.passes),),
        )

    def record(self, report: QualityReport) -> None:
        """Store nothing."""


def check(sequence: int, *, passes: bool) -> Program:
    """Check a plan with a fixed result."""

    def program(pipeline: MemoryPipeline) -> CheckEnd:
        control = _Control(pipeline.control)
        Quality(
            spec=pipeline.spec,
            data_table="",
            ports=replace(pipeline.pipeline.bronze.ports, control=control),
            checker=_FixedResult(passes),
        ).check(sequence)
        recorded = control.appends[-1] + 1 if control.done else None
        return CheckEnd(
            sequence=sequence, passes=passes, began=control.appends[0], recorded=recorded
        )

    return program


def release(sequence: int) -> Program:
    return lambda pipeline: pipeline.publication.release(sequence, "ops", "it is right")


def reject(sequence: int) -> Program:
    return lambda pipeline: pipeline.publication.reject(sequence, "ops", "it is wrong")


def accept_loss() -> Program:
    return lambda pipeline: pipeline.decisions.accept_loss((), "ops", "deleted by retention")


def accept_recreation() -> Program:
    return lambda pipeline: pipeline.decisions.accept_recreation("ops", "recreated")


# -- the operator --------------------------------------------------------------------------------


def settle(world: World) -> None:
    """Run as the scheduler does, and apply the fix of each error as the runbook does.

    Raises:
        AssertionError: Work is left after the maximum number of rounds.
    """
    pipeline = world.pipeline
    errors = []
    for number in range(MAX_ROUNDS):
        try:
            open_plans = pipeline.ledger.open_plans()
            undoing = [r.plan.sequence for r in pipeline.ledger.plans.values() if r.undoing]
            if undoing:
                undo(undoing[0])(pipeline)
            elif open_plans:
                pipeline.ingest.execute(open_plans[0].plan.sequence)
            elif pipeline.run(f"settle-{number}") is None:
                return
        except TidemarkError as error:
            errors.append(type(error).__name__)
            _fix(pipeline, error)
    raise AssertionError(f"not settled after {MAX_ROUNDS} rounds: {', '.join(errors)}")


def _fix(pipeline: MemoryPipeline, error: TidemarkError) -> None:
    """Apply the fix of an error; the next round meets errors of the fix."""
    try:
        match error:
            case (
                PlanCannotLand(sequence=number)
                | PlanStillOpen(sequence=number)
                | RowsInDoubt(sequence=number)
                | LostRange(plan=int(number))
            ):
                _abandon_or_discard(pipeline, number)
            case LostRange():
                accept_loss()(pipeline)
            case TopicRecreated():
                _fix_recreated_topic(pipeline)
            case LedgerBehindTable() | RepairUnfinished():
                rebuild()(pipeline)
            case TableBehindLedger():
                _fix_restored_table(pipeline)
            case NothingToDo() | RecordsMissed() | TransientError() | UnknownOutcomeError():
                pass
            case _:
                raise error
    except (NothingToDo, RecordsMissed, TransientError):
        pass


def _abandon_or_discard(pipeline: MemoryPipeline, number: int) -> None:
    try:
        abandon(number)(pipeline)
    except RowsInDoubt:
        abandon(number, discard=True)(pipeline)


def _fix_recreated_topic(pipeline: MemoryPipeline) -> None:
    for record in pipeline.ledger.open_plans():
        _abandon_or_discard(pipeline, record.plan.sequence)
    accept_recreation()(pipeline)


def _fix_restored_table(pipeline: MemoryPipeline) -> None:
    try:
        rewind()(pipeline)
    except LedgerBehindTable:
        rebuild()(pipeline)
