"""Lag and problems of a pipeline, over in-memory adapters."""

from __future__ import annotations

from tests.support.plans import MemoryPipeline, make_overtaken, make_spec, wanted
from tidemark.core.spec import StartPolicy
from tidemark.errors import (
    EndBehindCommitted,
    LedgerBehindTable,
    LogTruncated,
    NoStartOffset,
    TopicMissing,
)


def test_a_pipeline_that_has_not_begun_has_no_lag() -> None:
    """Not 0: an alert on lag must not take it for caught up."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    assert (pipeline.status().begun, pipeline.status().lag) == (False, None)


def test_lag_is_what_has_not_landed() -> None:
    """Also after a gap: what landed beyond it is not unread."""
    pipeline = MemoryPipeline(spec=make_spec(start=StartPolicy.EARLIEST))
    pipeline.planner.plan("begin")
    pipeline.produce(0, 10)
    plan = pipeline.planner.backfill(wanted((0, 4, 9)), "fill").plan
    assert plan is not None
    pipeline.ingest.execute(plan.sequence)
    shown = pipeline.status()
    assert shown.lag == 5
    assert shown.partitions[0].committed == 0
    pipeline.run("live")
    assert pipeline.status().lag == 0


def test_a_log_that_was_cut_and_has_grown_again_is_a_problem() -> None:
    """The next run would be refused, and says so before it comes."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 10)
    pipeline.run("a")
    pipeline.kafka.elect("events", 0, end=6)
    pipeline.produce(0, 20)
    shown = pipeline.status()
    assert isinstance(shown.problem, LogTruncated)
    assert shown.partitions[0].committed == 10


def test_a_run_at_the_same_time_is_no_problem() -> None:
    """Nothing is wrong; the status is of after it."""
    shown = make_overtaken().status()
    assert (shown.problem, shown.records) == (None, 2)


def test_an_open_plan_that_cannot_land_is_a_problem() -> None:
    """The next run would take it over and be refused."""
    pipeline = MemoryPipeline()
    pipeline.produce(0, 5)
    pipeline.planner.plan("run-1")
    pipeline.kafka.topics["events"][0].end = 3
    assert isinstance(pipeline.status().problem, EndBehindCommitted)


def test_what_a_run_would_be_refused_for_is_shown() -> None:
    """Policy none, a missing topic, a table of another history."""
    fresh = MemoryPipeline(spec=make_spec(start=StartPolicy.NONE))
    assert isinstance(fresh.status().problem, NoStartOffset)
    del fresh.kafka.topic_ids["events"]
    assert isinstance(fresh.status().problem, TopicMissing)
    landed = MemoryPipeline()
    landed.produce(0, 5)
    landed.run("run-1")
    amnesiac = MemoryPipeline(kafka=landed.kafka, table=landed.table)
    assert isinstance(amnesiac.status().problem, LedgerBehindTable)
