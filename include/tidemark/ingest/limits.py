"""How much one scheduled run may take."""

from __future__ import annotations

from collections.abc import Callable

from tidemark.core.throughput import Pace
from tidemark.ingest.protocols import DataLog
from tidemark.spec.model import PipelineSpec


def run_limit(spec: PipelineSpec, data_log: DataLog, pace: Callable[[], Pace]) -> int | None:
    """Most offsets of a live plan, by whichever limit of the spec is the tightest; None for all.

    Bytes and time are told from what has landed. As long as nothing has, a run that is limited by
    time takes as much as one task.

    Args:
        spec: The pipeline.
        data_log: The data table's log.
        pace: Reads its newest runs; called only for a limit by time.
    """
    limits = [] if spec.records_per_run is None else [spec.records_per_run]
    if spec.bytes_per_run is not None:
        fit = data_log.size().records_of(spec.bytes_per_run)
        limits += [] if fit is None else [fit]
    if spec.time_per_run is not None:
        fit = pace().offsets_within(spec.time_per_run)
        # A short run is mostly its start, and says little of how fast a long one is.
        limits.append(max(fit or 0, spec.records_per_task))
    return min(limits, default=None)
