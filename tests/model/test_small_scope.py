"""Every interleaving of a few actors, with failures and kills at any step: I1-I7 in each state."""

from __future__ import annotations

import pytest

from tests.model.scenarios import (
    DECISIONS,
    HOSTILE_LOGS,
    LONG,
    PAIRS,
    PUBLICATIONS,
    REPAIRS,
    REPLACEMENTS,
    ZOMBIES,
    Sketch,
)
from tests.model.search import Report, Search
from tests.model.tally import CountRecorder

pytestmark = pytest.mark.slow

TWO = PAIRS + ZOMBIES + HOSTILE_LOGS + DECISIONS + PUBLICATIONS + REPLACEMENTS + REPAIRS


def search(sketch: Sketch, faults: int, recorder: CountRecorder) -> Report:
    """Visit every state of a scenario; the number of states must reach the floor."""
    report = Search(sketch.with_faults(faults)).run()
    recorder.search(report)
    assert report.states >= sketch.floor
    assert any(outcome.endswith("returned") for outcome in report.outcomes)
    return report


@pytest.mark.parametrize("sketch", TWO, ids=lambda sketch: sketch.name)
def test_invariants_hold_for_two_actors(sketch: Sketch, recorder: CountRecorder) -> None:
    report = search(sketch, sketch.faults, recorder)
    assert report.ends > 0


@pytest.mark.faults
@pytest.mark.parametrize("sketch", TWO, ids=lambda sketch: sketch.name)
def test_invariants_hold_for_two_actors_and_more_faults(
    sketch: Sketch, recorder: CountRecorder
) -> None:
    search(sketch, sketch.more_faults, recorder)


@pytest.mark.faults
@pytest.mark.parametrize("sketch", LONG, ids=lambda sketch: sketch.name)
def test_invariants_hold_in_long_scenarios(sketch: Sketch, recorder: CountRecorder) -> None:
    search(sketch, sketch.faults, recorder)
