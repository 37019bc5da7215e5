"""Tests that a search finds each removed rule and prints a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from tests.model.actors import Program
from tests.model.planted import (
    NoChainFence,
    NoCompareAndSet,
    NoConfirm,
    NoDecisions,
    NoFence,
    NoTransactions,
    NoUndoStarted,
    planted,
    without_evidence,
    without_stable_offset,
    without_topic_id,
)
from tests.model.programs import abandon, check, ingest, plan, rewind, run, undo
from tests.model.scenarios import (
    ABANDONED,
    REPAIRED,
    RETRYABLE,
    Sketch,
    landed,
    landed_with_open_plan,
    new,
    planned,
    recreate,
    restore,
    with_a_lossy_engine,
    with_open_transaction,
)
from tests.model.search import Search, Violation
from tests.model.world import World


def search(
    world: World, actors: Mapping[str, Program], errors: frozenset[str] = RETRYABLE, faults: int = 0
) -> Violation:
    sketch = Sketch(
        name="planted", world=lambda: world, actors=dict(actors), errors=errors, floor=0
    )
    with pytest.raises(Violation) as violation:
        Search(sketch.with_faults(faults)).run()
    return violation.value


def test_a_search_finds_missing_transactions() -> None:
    violation = search(planted(planned(), NoTransactions), {"one": ingest(1), "two": ingest(1)})
    assert violation.broken.startswith("I1")
    commits = [step for step in violation.trace if step.endswith("table.finish")]
    assert sorted(commits) == ["one: table.finish", "two: table.finish"]


def test_a_search_finds_a_missing_compare_and_set() -> None:
    violation = search(planted(new(), NoCompareAndSet), {"one": plan("a"), "two": plan("b")})
    assert violation.broken.startswith("I4")
    assert sum(step.split(";")[0].endswith("control.append") for step in violation.trace) == 2


def test_a_search_finds_a_missing_confirmation() -> None:
    """A skipped commit with a stale transaction counts as landed."""
    world = planted(planned(), NoConfirm)
    violation = search(world, {"driver": ingest(1), "ops": abandon(1)}, ABANDONED)
    assert violation.broken.startswith(("I1", "I3", "I5"))


def test_a_search_finds_an_undo_that_does_not_record_its_start() -> None:
    violation = search(planted(landed(), NoUndoStarted), {"ops": undo(1)})
    assert violation.broken.startswith("I1")
    assert violation.trace[-1].endswith("table.remove_rows")


def test_a_search_finds_a_check_that_overrides_a_concurrent_block() -> None:
    checks = {"one": check(1, passes=True), "two": check(1, passes=False)}
    violation = search(planted(landed(), NoDecisions), checks)
    assert violation.broken.startswith("I7: the pass ")


def test_a_search_finds_an_abandon_without_a_fence() -> None:
    world = planted(planned(), NoFence)
    errors = ABANDONED | {"TableBehindLedger"}
    violation = search(world, {"driver": ingest(1), "ops": abandon(1)}, errors)
    assert violation.broken.startswith("I5")


def test_a_search_finds_a_repair_without_a_fence() -> None:
    world = planted(landed_with_open_plan(), NoChainFence)
    actors = {"zombie": ingest(2), "ops": rewind(), "external": restore(0)}
    violation = search(world, actors, REPAIRED)
    assert violation.broken.startswith(("I1", "I5", "not settled"))


@pytest.mark.parametrize(
    ("beginning", "actors", "invariant"),
    [
        pytest.param(
            planned,
            {"driver": without_topic_id(ingest(1)), "kafka": recreate()},
            "I1",
            id="the check of the topic id",
        ),
        pytest.param(
            with_open_transaction,
            {"run": without_stable_offset(without_evidence(run("a")))},
            "I1",
            id="planning up to the last stable offset",
        ),
        pytest.param(
            with_a_lossy_engine,
            {"driver": without_evidence(ingest(1))},
            "I1",
            id="evidence for gaps",
        ),
    ],
)
def test_a_search_finds_a_missing_rule_of_the_services(
    beginning: Callable[[], World], actors: Mapping[str, Program], invariant: str
) -> None:
    errors = RETRYABLE | {"TopicRecreated", "EndBehindCommitted", "RecordsMissed"}
    violation = search(beginning(), actors, errors)
    assert violation.broken.startswith(invariant), violation


def test_a_search_finds_an_unexpected_error() -> None:
    violation = search(planned(), {"driver": ingest(1), "ops": abandon(1)}, RETRYABLE)
    assert violation.broken.startswith("I7")


def test_a_search_finds_an_operator_that_does_not_finish() -> None:
    scenario = Sketch(name="planted", world=new, actors={"run": run("run-1")}, floor=0).with_faults(
        1
    )
    with pytest.raises(Violation, match="the operator runs to the end"):
        Search(replace(scenario, operator=lambda _world: None)).run()


def test_a_counterexample_has_one_line_for_each_step() -> None:
    violation = search(planted(planned(), NoTransactions), {"one": ingest(1), "two": ingest(1)})
    assert str(violation).splitlines()[0].startswith("planted, 0 faults: I1: rows that are in the")
    assert str(violation).splitlines()[1] == "   1. one: control.plan_record"
