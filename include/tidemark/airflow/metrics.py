"""Counters and timers of tasks, through Airflow's own metrics.

docs/reference/metrics.md lists them. Airflow sends them to StatsD or OpenTelemetry if its settings
`[metrics]` define one, and otherwise drops them. Tags have few values: pipelines with a spec, jobs,
and names of error classes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.observability import stats

from tidemark.app.pipelines import Outcomes
from tidemark.core.errors import TidemarkError
from tidemark.spec.ref import PipelineKind, PipelineRef

COUNTERS = {"records": "tidemark.landed.records", "quarantined": "tidemark.quarantined.records"}
"""Counters of landed records, by the value of a result."""
ERRORS = "tidemark.errors"
JOB_DURATION = "tidemark.job.duration"


def count_landed(outcomes: Outcomes) -> None:
    """Count the records that this task has landed or decoded, not those that landed before."""
    for record in outcomes.records:
        is_decode = "quarantined" in record
        if record.get("wrote") or is_decode:
            kind = PipelineKind.TYPED if is_decode else PipelineKind.LIVE
            table = str(PipelineRef(record["pipeline"]).of_kind(kind))
            for value, name in COUNTERS.items():
                if value in record:
                    stats.incr(name, record[value], tags={"pipeline": table})


def count_errors(outcomes: Outcomes) -> None:
    """Count the named errors of pipelines, again at each attempt."""
    for record in outcomes.records:
        if "error" in record:
            tags = {"pipeline": record["pipeline"], "error": record["error"]}
            stats.incr(ERRORS, tags=tags)


def count_error(error: TidemarkError) -> None:
    """Count an error of the whole task."""
    stats.incr(ERRORS, tags={"error": type(error).__name__})


@contextmanager
def timed(job: str) -> Iterator[None]:
    """Time a job, also one that fails."""
    begun = time.monotonic()
    try:
        yield
    finally:
        stats.timing(JOB_DURATION, (time.monotonic() - begun) * 1000, tags={"job": job})
