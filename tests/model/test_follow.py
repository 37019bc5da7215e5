"""Interleavings of decoders and other actors over derived tables: F1 to F9 in each world."""

from __future__ import annotations

import random

import pytest

from tests.model.follow_history import FollowHistory
from tests.model.follow_scenarios import DECODERS, LONG, SKETCHES, FollowSketch
from tests.model.search import Report, Search
from tests.model.tally import CountRecorder


def search(sketch: FollowSketch, kills: int, recorder: CountRecorder) -> Report:
    """Visit every state of a scenario; the number of states must reach the floor."""
    report = Search(sketch.scenario(kills)).run()
    recorder.search(report)
    assert report.states >= sketch.floor
    return report


@pytest.mark.parametrize("sketch", DECODERS[:3], ids=lambda sketch: sketch.name)
def test_derived_tables_follow_with_two_decoders(
    sketch: FollowSketch, recorder: CountRecorder
) -> None:
    report = search(sketch, 0, recorder)
    assert any(outcome.endswith("returned") for outcome in report.outcomes)


def test_derived_tables_follow_in_fixed_random_histories(recorder: CountRecorder) -> None:
    steps = sum(FollowHistory(seed).run(30) for seed in range(15))
    recorder.histories(15, steps)
    assert steps >= 300


def test_a_bronze_row_that_a_restore_brings_back_is_in_the_quarantine() -> None:
    """A random history found it: a delete, an undo, a RESTORE, a rewind, and a lost quarantine."""
    assert FollowHistory(4145359916).run(40) >= 40


@pytest.mark.slow
@pytest.mark.parametrize("sketch", SKETCHES, ids=lambda sketch: sketch.name)
def test_derived_tables_follow(sketch: FollowSketch, recorder: CountRecorder) -> None:
    search(sketch, sketch.kills, recorder)


@pytest.mark.faults
@pytest.mark.parametrize("sketch", SKETCHES, ids=lambda sketch: sketch.name)
def test_derived_tables_follow_with_more_kills(
    sketch: FollowSketch, recorder: CountRecorder
) -> None:
    search(sketch, sketch.more_kills, recorder)


@pytest.mark.faults
@pytest.mark.parametrize("sketch", LONG, ids=lambda sketch: sketch.name)
def test_derived_tables_follow_with_four_actors(
    sketch: FollowSketch, recorder: CountRecorder
) -> None:
    search(sketch, sketch.kills, recorder)


@pytest.mark.faults
def test_derived_tables_follow_in_many_random_histories(recorder: CountRecorder) -> None:
    """Each run uses other seeds and prints the first one."""
    count, first = 3_000, random.SystemRandom().randrange(2**32)
    print(f"seeds from {first}")
    steps = sum(FollowHistory(seed).run(40) for seed in range(first, first + count))
    recorder.histories(count, steps)
    assert steps >= 100_000
