"""What actors do, and the operator who comes after them."""

from __future__ import annotations

from dataclasses import replace

from tests.model.actors import Program
from tests.model.world import World
from tests.support.plans import MemoryPipeline, wanted
from tidemark.backfill.selection import RetainedLog
from tidemark.core.errors import (
    ControlTruncated,
    LedgerBehindTable,
    LostRange,
    RepairUnfinished,
    TableBehindLedger,
    TableRestored,
    TidemarkError,
    TopicRecreated,
    TransientError,
    UnknownOutcomeError,
)
from tidemark.core.origins import RunOrigin
from tidemark.ingest.errors import PlanFenced, RecordsMissed
from tidemark.lake.errors import RowsWouldBeLost
from tidemark.repair.errors import (
    NothingToDo,
    PlanLanded,
    PlanStillOpen,
    RowsInDoubt,
)

MAX_ROUNDS = 25
"""Rounds that an operator needs at most; more is a pipeline that never comes to rest."""

# -- programs ------------------------------------------------------------------------------------


def ingest(sequence: int) -> Program:
    """A driver of one plan."""
    return lambda pipeline: pipeline.ingest.execute(sequence)


def plan(requested_by: str) -> Program:
    """A planner of a scheduled run."""
    return lambda pipeline: pipeline.planner.plan(requested_by)


def run(requested_by: str) -> Program:
    """A whole scheduled run."""
    return lambda pipeline: pipeline.run(requested_by)


def backfill(
    requested_by: str, partition: int, start: int, end: int, *, replaces: bool = False
) -> Program:
    """A backfill from request to record; perhaps of what has landed, in place of it."""
    request = replace(wanted((partition, start, end)), replaces=replaces)

    def program(pipeline: MemoryPipeline) -> object:
        made = pipeline.planner.backfill(request, RunOrigin(requested_by)).plan
        return pipeline.ingest.execute(made.sequence) if made else None

    return program


def fill(requested_by: str, chunk: int) -> Program:
    """A backfill of all that Kafka has, chunk by chunk; gone on with if it was asked for before."""

    def program(pipeline: MemoryPipeline) -> object:
        backfills = pipeline.backfills
        chunks = backfills.chunk_count(requested_by)
        if chunks is None:
            seen = backfills.preview(RetainedLog(), chunk, readable_only=True)
            chunks = backfills.request(seen, requested_by, approved=True) if seen.offsets else 0
        for number in range(1, chunks + 1):
            made = backfills.plan_chunk(requested_by, number).plan
            if made:
                pipeline.ingest.execute(made.sequence)
        return chunks

    return program


def abandon(sequence: int, *, discard: bool = False) -> Program:
    """Giving a plan up, and taking its rows out again if nobody knows whose they are."""
    return lambda pipeline: pipeline.abandon.abandon(sequence, "ops", "it hangs", discard=discard)


def undo(sequence: int) -> Program:
    """Taking a landed plan out again."""
    return lambda pipeline: pipeline.undo.undo(sequence, "ops", "it was wrong")


def rewind() -> Program:
    """Having the ledger follow a restored table."""
    return lambda pipeline: pipeline.repair.rewind("ops", "the table was restored")


def rebuild() -> Program:
    """Having a ledger made again from the table."""
    return lambda pipeline: pipeline.repair.rebuild("ops", "the control table was lost")


def accept_loss() -> Program:
    """Accepting what retention took."""
    return lambda pipeline: pipeline.decisions.accept_loss((), "ops", "it is gone")


def new_incarnation() -> Program:
    """Accepting that the topic was made again."""
    return lambda pipeline: pipeline.decisions.new_incarnation("ops", "made again")


# -- the operator --------------------------------------------------------------------------------


def settle(world: World) -> None:
    """Run as the scheduler does, and answer each error as its text and the runbook say.

    Raises:
        AssertionError: It never ends.
    """
    pipeline = world.pipeline
    seen = []
    for number in range(MAX_ROUNDS):
        try:
            opened = pipeline.ledger.open_plans()
            undoing = [r.plan.sequence for r in pipeline.ledger.plans.values() if r.undoing]
            if undoing:
                undo(undoing[0])(pipeline)
            elif opened:
                pipeline.ingest.execute(opened[0].plan.sequence)
            elif pipeline.run(f"settle-{number}") is None:
                return
        except TidemarkError as error:
            seen.append(type(error).__name__)
            _answer(pipeline, error)
    raise AssertionError(f"not at rest after {MAX_ROUNDS} rounds: {', '.join(seen)}")


def _answer(pipeline: MemoryPipeline, error: TidemarkError) -> None:
    """Do what an error asks for; the next round meets whatever that runs into."""
    try:
        match error:
            case (
                PlanFenced(sequence=number)
                | PlanStillOpen(sequence=number)
                | RowsInDoubt(sequence=number)
                | RowsWouldBeLost(sequence=number)
                | LostRange(plan=int(number))
            ):
                _give_up_or_discard(pipeline, number)
            case LostRange():
                accept_loss()(pipeline)
            case TopicRecreated():
                _answer_recreated(pipeline)
            case ControlTruncated() | RepairUnfinished():
                rebuild()(pipeline)
            case TableRestored() | TableBehindLedger() | LedgerBehindTable():
                _answer_restored(pipeline)
            case PlanLanded() | RecordsMissed() | TransientError() | UnknownOutcomeError():
                pass
            case _:
                raise error
    except (PlanLanded, RecordsMissed, TransientError, NothingToDo):
        pass


def _give_up_or_discard(pipeline: MemoryPipeline, number: int) -> None:
    """What landed of a plan is taken out again if nobody knows whose it is."""
    try:
        abandon(number)(pipeline)
    except RowsInDoubt:
        abandon(number, discard=True)(pipeline)


def _answer_recreated(pipeline: MemoryPipeline) -> None:
    for record in pipeline.ledger.open_plans():
        _give_up_or_discard(pipeline, record.plan.sequence)
    new_incarnation()(pipeline)


def _answer_restored(pipeline: MemoryPipeline) -> None:
    try:
        rewind()(pipeline)
    except LedgerBehindTable:
        rebuild()(pipeline)
