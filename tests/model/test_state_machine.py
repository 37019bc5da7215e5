"""Random histories of one pipeline: I1-I7 after every step, and every one comes to rest."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.history import History
from tests.model.invariants import InvariantViolated
from tests.model.planted import NoCompareAndSet, NoTransactions, planted
from tests.model.tally import Visited
from tests.model.world import World
from tidemark.core.errors import OverfullRange

_SETTINGS = settings(
    deadline=None,
    database=None,
    print_blob=True,
    report_multiple_bugs=False,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)


def check(wanted: settings, change: Callable[[World], World], chosen: int | None) -> Counter[str]:
    """Run histories over changed worlds; count them and the steps of Tidemark in them."""
    seen: Counter[str] = Counter()

    class Counted(History):
        def __init__(self) -> None:
            super().__init__()
            self.world = change(self.world)

        def teardown(self) -> None:
            super().teardown()
            seen.update(histories=1, steps=self.steps)

    if chosen is not None:
        seed(chosen)(Counted)
    run_state_machine_as_test(Counted, settings=wanted)
    return seen


def as_it_is(world: World) -> World:
    """Without a bug."""
    return world


def test_random_histories(visited: Visited) -> None:
    """The same ones each time."""
    wanted = settings(_SETTINGS, max_examples=75, derandomize=True)
    seen = check(wanted, as_it_is, None)
    visited.histories(seen["histories"], seen["steps"])
    assert seen["histories"] >= 50
    assert seen["steps"] >= 300


@pytest.mark.faults
def test_many_random_histories(visited: Visited) -> None:
    """Other ones each time; the seed is printed, and repeats them."""
    chosen = random.SystemRandom().randrange(2**32)
    print(f"seed {chosen}")
    wanted = settings(_SETTINGS, max_examples=2_000, stateful_step_count=60)
    seen = check(wanted, as_it_is, chosen)
    visited.histories(seen["histories"], seen["steps"])
    assert seen["steps"] >= 20_000


def test_a_history_finds_a_rule_that_is_left_out() -> None:
    """A machine that could not fail would prove nothing: a zombie of a sink without the rule."""
    history = History()
    history.world = planted(history.world, NoTransactions)
    history.start(kind="plan", asked=0, which=0)
    history.wake(which=0, calls=None)
    history.fall_asleep_before_the_commit()
    history.run_undisturbed(asked=1)
    with pytest.raises(InvariantViolated, match=r"^I1"):
        history.wake(which=0, calls=None)


@pytest.mark.faults
@pytest.mark.parametrize("bug", [NoTransactions, NoCompareAndSet])
def test_random_histories_find_a_rule_that_is_left_out(
    bug: type[NoTransactions] | type[NoCompareAndSet],
) -> None:
    """Nobody tells the machine where to look: it takes about a thousand histories.

    Hypothesis chooses others after other tests, so there is no telling which one it is. The product
    may notice before the invariants do that a range has more rows than offsets.
    """
    wanted = settings(
        _SETTINGS, max_examples=20_000, derandomize=True, phases=[Phase.generate], print_blob=False
    )
    with pytest.raises((InvariantViolated, OverfullRange)):
        check(wanted, lambda world: planted(world, bug), None)
