"""A search that could not fail would prove nothing: each rule left out is found, with a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from tests.model.actors import Program
from tests.model.planted import (
    NoChainFence,
    NoCompareAndSet,
    NoConfirm,
    NoFence,
    NoTransactions,
    NoUndoBegun,
    planted,
    without_evidence,
    without_stable_offset,
    without_topic_id,
)
from tests.model.programs import abandon, ingest, plan, rewind, run, undo
from tests.model.scenarios import (
    GIVEN_UP,
    PASSING,
    REPAIRED,
    Sketch,
    landed,
    landed_under_a_plan,
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
    world: World,
    actors: Mapping[str, Program],
    errors: frozenset[str] = PASSING,
    faults: int = 0,
) -> Violation:
    """The violation that a search finds."""
    sketch = Sketch(
        name="planted", world=lambda: world, actors=dict(actors), errors=errors, floor=0
    )
    with pytest.raises(Violation) as found:
        Search(sketch.with_faults(faults)).run()
    return found.value


def test_a_sink_without_the_transaction_options() -> None:
    """Two drivers of one plan both write."""
    found = search(planted(planned(), NoTransactions), {"one": ingest(1), "two": ingest(1)})
    assert found.broken.startswith("I1")
    commits = [step for step in found.trace if step.endswith("table.finish")]
    assert sorted(commits) == ["one: table.finish", "two: table.finish"]


def test_a_control_table_without_compare_and_set() -> None:
    """Two planners both win."""
    found = search(planted(new(), NoCompareAndSet), {"one": plan("a"), "two": plan("b")})
    assert found.broken.startswith("I4")
    assert sum(step.split(";")[0].endswith("control.append") for step in found.trace) == 2


def test_a_driver_that_does_not_confirm() -> None:
    """A stale transaction that was skipped with success counts as landed."""
    world = planted(planned(), NoConfirm)
    found = search(world, {"driver": ingest(1), "ops": abandon(1)}, GIVEN_UP)
    assert found.broken.startswith(("I1", "I3", "I5"))


def test_an_undo_that_does_not_say_so_first() -> None:
    """Rows that the ledger counts on are gone, and nobody reads them again."""
    found = search(planted(landed(), NoUndoBegun), {"ops": undo(1)})
    assert found.broken.startswith("I1")
    assert found.trace[-1].endswith("table.remove_rows")


def test_giving_up_without_a_fence() -> None:
    """The zombie lands after its offsets were returned."""
    world = planted(planned(), NoFence)
    errors = GIVEN_UP | {"TableBehindLedger"}
    found = search(world, {"driver": ingest(1), "ops": abandon(1)}, errors)
    assert found.broken.startswith("I5")


def test_a_repair_without_a_fence() -> None:
    """A driver of the old epoch lands after the look, or nothing runs any more."""
    world = planted(landed_under_a_plan(), NoChainFence)
    actors = {"zombie": ingest(2), "ops": rewind(), "vandal": restore(0)}
    found = search(world, actors, REPAIRED)
    assert found.broken.startswith(("I1", "I5", "not at rest"))


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
def test_services_without(
    beginning: Callable[[], World], actors: Mapping[str, Program], invariant: str
) -> None:
    """A rule of the services is left out."""
    errors = PASSING | {"TopicRecreated", "EndBehindCommitted", "RecordsMissed"}
    found = search(beginning(), actors, errors)
    assert found.broken.startswith(invariant), found


def test_a_false_alarm_is_found() -> None:
    """An error that the scenario has no reason for is a violation, too."""
    found = search(planned(), {"driver": ingest(1), "ops": abandon(1)}, PASSING)
    assert found.broken.startswith("I7")


def test_an_operator_who_cannot_finish_is_found() -> None:
    """The end state of every schedule is brought to rest, or the search fails."""
    scenario = Sketch(name="planted", world=new, actors={"run": run("run-1")}, floor=0).with_faults(
        1
    )
    with pytest.raises(Violation, match="the operator runs to the end"):
        Search(replace(scenario, operator=lambda _world: None)).run()


def test_a_counterexample_reads_as_a_schedule() -> None:
    """One line for each step: who, which port, which method."""
    found = search(planted(planned(), NoTransactions), {"one": ingest(1), "two": ingest(1)})
    assert str(found).splitlines()[0].startswith("planted, 0 faults: I1: rows that are in the")
    assert str(found).splitlines()[1] == "   1. one: control.plan_record"
