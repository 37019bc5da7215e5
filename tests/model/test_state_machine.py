"""Random histories of one pipeline: I1-I7 hold after every step, and each can be settled."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.actors import Done
from tests.model.history import History
from tests.model.invariants import InvariantViolated, check_end
from tests.model.planted import NoCompareAndSet, NoTransactions, planted
from tests.model.tally import CountRecorder
from tests.model.world import World
from tidemark.bronze.ingest.executor import ExecutionResult
from tidemark.core.errors import OverfullRange

pytestmark = pytest.mark.slow

_SETTINGS = settings(
    deadline=None,
    database=None,
    print_blob=True,
    report_multiple_bugs=False,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)


def check(
    options: settings, change: Callable[[World], World], seed_number: int | None
) -> Counter[str]:
    """Run histories over changed worlds; count them and Tidemark's steps in them."""
    counts: Counter[str] = Counter()

    class CountedHistory(History):
        def __init__(self) -> None:
            super().__init__()
            self.world = change(self.world)

        def teardown(self) -> None:
            super().teardown()
            counts.update(histories=1, steps=self.steps)

    if seed_number is not None:
        seed(seed_number)(CountedHistory)
    run_state_machine_as_test(CountedHistory, settings=options)
    return counts


def unchanged(world: World) -> World:
    return world


def test_invariants_hold_in_fixed_random_histories(recorder: CountRecorder) -> None:
    options = settings(_SETTINGS, max_examples=40, derandomize=True)
    counts = check(options, unchanged, None)
    recorder.histories(counts["histories"], counts["steps"])
    assert counts["histories"] >= 30
    assert counts["steps"] >= 200


@pytest.mark.faults
def test_invariants_hold_in_many_random_histories(recorder: CountRecorder) -> None:
    """Each run uses another seed and prints it."""
    seed_number = random.SystemRandom().randrange(2**32)
    print(f"seed {seed_number}")
    options = settings(_SETTINGS, max_examples=2_000, stateful_step_count=60)
    counts = check(options, unchanged, seed_number)
    recorder.histories(counts["histories"], counts["steps"])
    assert counts["steps"] >= 20_000


def test_a_landing_may_be_undone_before_it_is_reported() -> None:
    """A second driver reads that the plan has landed, and ends after an undo has completed."""
    history = History()
    for kind, which in (("plan", 0), ("ingest", 0)):
        history.start(kind=kind, requester=0, which=which)
        history.resume(which=0, calls=None)
    history.start(kind="ingest", requester=1, which=0)
    history.resume(which=0, calls=1)
    second = history.paused[0]
    history.start(kind="undo", requester=2, which=0)
    history.resume(which=1, calls=None)
    history.resume(which=0, calls=None)
    assert isinstance(second.at, Done)
    assert isinstance(second.at.result, ExecutionResult)
    with pytest.raises(InvariantViolated, match="was reported landed: undone"):
        check_end(history.world, second.at, (), began=history.world.control.newest["events"])


def test_a_history_finds_missing_transactions() -> None:
    history = History()
    history.world = planted(history.world, NoTransactions)
    history.start(kind="plan", requester=0, which=0)
    history.resume(which=0, calls=None)
    history.pause_before_the_commit()
    history.run_undisturbed(requester=1)
    with pytest.raises(InvariantViolated, match=r"^I1"):
        history.resume(which=0, calls=None)


@pytest.mark.faults
@pytest.mark.parametrize("bug", [NoTransactions, NoCompareAndSet])
def test_random_histories_find_a_missing_rule(
    bug: type[NoTransactions] | type[NoCompareAndSet],
) -> None:
    """This takes about a thousand histories, and other ones after other tests.

    The product may detect more rows than offsets before the invariants do.
    """
    options = settings(
        _SETTINGS, max_examples=20_000, derandomize=True, phases=[Phase.generate], print_blob=False
    )
    with pytest.raises((InvariantViolated, OverfullRange)):
        check(options, lambda world: planted(world, bug), None)
