"""Random histories of a pipeline in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from random import Random

from tests.support.plans import MemoryPipeline, around_removal, wanted
from tests.support.services import NOW
from tidemark.core.errors import TidemarkError
from tidemark.core.events import PublicationDecided
from tidemark.core.ledger import CheckedLedger, PlanRecord
from tidemark.core.origins import RunOrigin
from tidemark.core.publication import PublicationStatus
from tidemark.delta.errors import EngineFailed


def pipeline_with_history(seed: int, *, with_repairs: bool = False) -> MemoryPipeline:
    """Return a pipeline after 60 random runs, backfills, corrections, RESTOREs and elections.

    Args:
        seed: Seed of all choices.
        with_repairs: Also kill undos, and rebuild the control table after a loss of events.
    """
    pipeline = MemoryPipeline()
    for _ in random_steps(pipeline, Random(seed), with_repairs=with_repairs):
        pass
    return pipeline


def random_steps(pipeline: MemoryPipeline, chance: Random, *, with_repairs: bool) -> Iterator[None]:
    """Take 60 random steps of a pipeline, and yield after each. See `pipeline_with_history`."""
    steps = {
        "elect": 2,
        "abandon": 2,
        "restore": 1,
        "recreate": 1,
        "backfill": 2,
        "replace": 3,
        "undo": 1,
        "plan": 4,
        "miss": 2,
        "decide": 6,
    }
    if with_repairs:
        steps |= {"kill undo": 1, "rebuild": 1}
    for number in range(60):
        pipeline.kafka.produce("events", chance.randrange(2), chance.randrange(6))
        with suppress(TidemarkError):
            match chance.choices([*steps, "run"], [*steps.values(), 8])[0]:
                case "elect":
                    pipeline.kafka.elect("events", 0)
                case "recreate":
                    pipeline.kafka.create("events", 2, f"id-{number}")
                    pipeline.decisions.accept_recreation("ops", "recreated")
                case "backfill":
                    request = wanted((0, 0, 2))
                    pipeline.planner.backfill(request, RunOrigin(f"backfill-{number}"))
                case "plan":
                    pipeline.planner.plan(f"planned-{number}")
                case "miss":
                    with _broken_reader(pipeline):
                        pipeline.run(f"missing-{number}")
                case "run":
                    pipeline.run(f"run-{number}")
                case step:
                    _correct(step, pipeline, chance)
        yield


def _correct(step: str, pipeline: MemoryPipeline, chance: Random) -> None:
    """Correct the pipeline in one way, or record a publication decision."""
    match step:
        case "abandon":
            _abandon(pipeline)
        case "restore" if pipeline.table.commits:
            pipeline.table.restore(chance.randrange(len(pipeline.table.commits)))
            pipeline.repair.rewind("ops", "the table was restored")
        case "replace":
            start = chance.randrange(20)
            spans = wanted((0, start, start + chance.randrange(1, 9)))
            request = replace(spans, replaces=True)
            plan = pipeline.planner.backfill(request, RunOrigin(f"replace-{chance.random()}")).plan
            if plan and chance.random() < 0.8:
                pipeline.ingest.execute(plan.sequence)
        case "undo" | "kill undo":
            if step == "kill undo":
                around_removal(pipeline, before=_kill)
            _undo(pipeline, chance)
        case "rebuild":
            newest = pipeline.ledger.event_number
            pipeline.control.restore("events", newest - chance.randrange(1, 6))
            pipeline.repair.rebuild("ops", "the control table was restored")
        case "decide":
            held = [record for record in pipeline.ledger.plans.values() if record.held_now]
            if held:
                _decide(pipeline, chance.choice(held), chance)


def _abandon(pipeline: MemoryPipeline) -> None:
    for record in pipeline.ledger.open_plans():
        pipeline.abandon.abandon(record.plan.sequence, "ops", "it hangs")


def _undo(pipeline: MemoryPipeline, chance: Random) -> None:
    landed = [n for n, record in pipeline.ledger.plans.items() if record.held_now]
    pipeline.undo.undo(chance.choice(landed or [1]), "ops", "wrong")


def _kill() -> None:
    raise EngineFailed(operation="removing rows", reason="killed")


def _decide(pipeline: MemoryPipeline, record: PlanRecord, chance: Random) -> None:
    """Record a decision of a check or an operator about a landed plan."""
    assert record.held_now is not None
    status = chance.choice(list(PublicationStatus))
    is_check = status in (PublicationStatus.PUBLISHED, PublicationStatus.BLOCKED)
    decided = PublicationDecided(
        sequence=record.plan.sequence,
        status=status,
        topic_id=record.plan.topic_id,
        spans=record.held_now.spans(),
        decided_by=None if is_check else "ops",
    )
    pipeline.control.append(CheckedLedger(pipeline.ledger), [decided], NOW)


@contextmanager
def _broken_reader(pipeline: MemoryPipeline) -> Iterator[None]:
    """Let the engine miss the last record of each plan."""
    read = pipeline.table.read
    pipeline.table.read = lambda plan: read(plan)[:-1]  # type: ignore[method-assign]
    try:
        yield
    finally:
        del pipeline.table.read
