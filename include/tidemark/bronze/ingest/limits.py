"""Size limit of a scheduled run."""

from __future__ import annotations

from collections.abc import Callable

from tidemark.bronze.ingest.protocols import DataLog
from tidemark.core.throughput import Throughput
from tidemark.spec.model import PipelineSpec


def run_limit(
    spec: PipelineSpec, data_log: DataLog, throughput: Callable[[], Throughput]
) -> int | None:
    """Return the maximum number of offsets of a live plan; None without a limit.

    The tightest limit of the spec applies. Landed data converts bytes and time into offsets. Until
    data has landed, a limit in bytes has no effect, and a run with a time limit reads as many
    offsets as one task.

    Args:
        spec: The pipeline.
        data_log: The data table's log.
        throughput: Reads the newest runs; called only for a time limit.
    """
    limits = [] if spec.records_per_run is None else [spec.records_per_run]
    if spec.bytes_per_run is not None:
        fit = data_log.size().records_of(spec.bytes_per_run)
        limits += [] if fit is None else [fit]
    if spec.time_per_run is not None:
        fit = throughput().offsets_within(spec.time_per_run)
        # Start-up dominates a short run, so its rate underestimates a long run.
        limits.append(max(fit or 0, spec.records_per_task))
    return min(limits, default=None)
