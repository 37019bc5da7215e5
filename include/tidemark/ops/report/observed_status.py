"""The newest known status of a pipeline, and its lag since the observation began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from tidemark.core.errors import TidemarkError
from tidemark.delta.status_history import LagSample
from tidemark.ops.report.status import PipelineStatus

SAMPLES = 720
"""Samples of the lag that are kept for each pipeline: an hour, if read every five seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStatus:
    """The newest status of a pipeline that could be read, and the error of a later attempt.

    Attributes:
        status: The newest status with watermarks, or the newest one at all; None before the first.
        error: The error of a later attempt; None if `status` is current.
        read_at: Monotonic time of the newest attempt, in seconds.
        samples: Lags of the newest statuses with watermarks, oldest first.
        is_overdue: Whether the next attempt has not ended for longer than expected.
    """

    status: PipelineStatus | None = None
    error: TidemarkError | None = None
    read_at: float = float("-inf")
    samples: Sequence[LagSample] = ()
    is_overdue: bool = False

    @property
    def is_stale(self) -> bool:
        """Whether `status` may differ from a current one: an attempt failed, or is overdue."""
        return self.error is not None or self.is_overdue

    @property
    def problem(self) -> TidemarkError | None:
        """The newest known error that would refuse a run; None without one."""
        return self.error or (self.status.run_error if self.status else None)

    @property
    def lag_per_minute(self) -> float | None:
        """Change of the lag per minute over the samples; None with fewer than two known lags."""
        known = [(each.checked_at, each.lag) for each in self.samples if each.lag is not None]
        if not known or known[-1][0] <= known[0][0]:
            return None
        (first, before), (last, after) = known[0], known[-1]
        return (after - before) / ((last - first) / timedelta(minutes=1))

    def updated(self, found: PipelineStatus | TidemarkError, read_at: float) -> ObservedStatus:
        """Return the state after another attempt.

        A status without Kafka's watermarks does not replace a status with watermarks. The caller
        ensures that both are of the same topic and cluster.
        """
        if isinstance(found, TidemarkError):
            return replace(self, error=found, read_at=read_at)
        if found.kafka_error:
            known = self.status
            if known and not known.kafka_error:
                # A problem of the tables is more important than Kafka's absence.
                error = found.problem or found.kafka_error
                return replace(self, error=error, read_at=read_at)
            return replace(self, status=found, error=None, read_at=read_at)
        sample = LagSample(
            checked_at=found.checked_at,
            lag=found.lag,
            lag_time=found.lag_time,
            state=found.state,
        )
        samples = (*self.samples, sample)[-SAMPLES:]
        return ObservedStatus(status=found, read_at=read_at, samples=samples)
