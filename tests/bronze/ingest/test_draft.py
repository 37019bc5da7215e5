"""Tests that plans, previews and the status report the same next ranges and errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.plans import MemoryPipeline, make_spec
from tidemark.bronze.backfill.selection import OffsetRanges
from tidemark.bronze.ingest.errors import LogTruncated, NoStartOffset
from tidemark.core.errors import (
    EndBehindCommitted,
    LostRange,
    TidemarkError,
    TopicChanged,
    TopicRecreated,
)
from tidemark.core.offsets import Span, SpanSet
from tidemark.spec.model import StartPolicy


def recreate(pipeline: MemoryPipeline) -> None:
    pipeline.kafka.create("events", 2, "id-2")
    pipeline.produce(0, 30)


def shrink(pipeline: MemoryPipeline) -> None:
    del pipeline.kafka.topics["events"][1]


def truncate(pipeline: MemoryPipeline) -> None:
    pipeline.kafka.elect("events", 0, end=6)


def truncate_and_grow(pipeline: MemoryPipeline) -> None:
    """Truncate the log before a landed offset, and write other records there."""
    truncate(pipeline)
    pipeline.produce(0, 30)


def delete(pipeline: MemoryPipeline) -> None:
    pipeline.produce(0, 10)
    pipeline.kafka.delete_records("events", 0, before=15)


def error_of(step: Callable[[], object]) -> type[TidemarkError] | None:
    """Return the type of the error of a step; None without an error."""
    try:
        step()
    except TidemarkError as error:
        return type(error)
    return None


CHANGES: list[tuple[Callable[[MemoryPipeline], None], type[TidemarkError]]] = [
    (recreate, TopicRecreated),
    (shrink, TopicChanged),
    (truncate, EndBehindCommitted),
    (truncate_and_grow, LogTruncated),
    (delete, LostRange),
]


@pytest.mark.parametrize(("change", "error"), CHANGES)
def test_i7_plan_preview_and_status_report_the_same_error(
    change: Callable[[MemoryPipeline], None], error: type[TidemarkError]
) -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 10)
    pipeline.run("a")
    change(pipeline)
    assert error_of(pipeline.planner.preview) is error
    assert type(pipeline.status().problem) is error
    assert error_of(lambda: pipeline.planner.plan("b")) is error


@pytest.mark.parametrize(("change", "error"), CHANGES[:4])
def test_i7_backfill_preview_and_plan_report_the_same_error(
    change: Callable[[MemoryPipeline], None], error: type[TidemarkError]
) -> None:
    pipeline = MemoryPipeline()
    pipeline.produce(0, 10)
    pipeline.run("a")
    change(pipeline)
    selection = OffsetRanges(spans={0: SpanSet((Span(8, 20),))})
    preview = lambda: pipeline.backfills.preview(selection, None, readable_only=False)  # noqa: E731
    assert error_of(preview) is error
    assert error_of(lambda: pipeline.backfills.plan_whole(selection, "ops")) is error


@pytest.mark.parametrize("start", [StartPolicy.NONE, StartPolicy.TIMESTAMP])
def test_status_of_a_pipeline_without_a_start_is_the_error_of_its_first_run(
    start: StartPolicy,
) -> None:
    pipeline = MemoryPipeline(spec=make_spec(start=start))
    pipeline.produce(0, 10)
    assert type(pipeline.status().problem) is NoStartOffset
    assert error_of(lambda: pipeline.planner.plan("a")) is NoStartOffset
