"""Errors of backfill requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from tidemark.bronze.ingest.errors import PlanStillOpen
from tidemark.core.errors import CaseTexts, PipelineError, TerminalError, TransientError


@dataclass(kw_only=True, eq=False)
class BackfillAhead(PipelineError, TransientError):
    """A requested backfill waits until the open backfill plan of the pipeline has landed."""

    sequence: int
    state: str

    problem = PlanStillOpen.problem
    fix = (
        "Retry after the plan has landed. `tidemark airflow backfill create --max-active-runs 1` "
        "makes runs by dates wait for each other."
    )


class BackfillTooLarge(CaseTexts, TerminalError):
    """The backfill exceeds a limit: of the spec without approval, or of a DAG run."""

    @classmethod
    def of_offsets(cls, pipeline: str, offsets: int, limit: int) -> Self:
        """The backfill has more offsets than the spec allows without approval."""
        return cls(
            finding=(
                f"The backfill of pipeline {pipeline!r} needs approval: it is larger than the "
                "limit."
            ),
            needed=f"at most {limit:,} offsets (limits.records_per_backfill of the spec)",
            seen=f"{offsets:,} offsets",
            advice=(
                "Check the preview (--dry-run). Then request the backfill with --yes, or with the "
                "approval box of the form ticked."
            ),
        )

    @classmethod
    def of_chunks(
        cls, *, pipeline: str, offsets: int, chunk_offsets: int, chunks: int, most: int
    ) -> Self:
        """The backfill has more chunks than a DAG run can map."""
        least = -(-offsets // most)
        if chunk_offsets >= least:
            # Many short ranges are the cause.
            advice = "Request fewer and longer ranges, or several backfills."
        else:
            advice = f"Use chunks of at least {least:,} offsets (--chunk {least})."
        return cls(
            finding=f"The backfill of pipeline {pipeline!r} has too many chunks.",
            needed=f"at most {most:,} chunks",
            seen=f"{chunks:,} chunks of {chunk_offsets:,} offsets, for {offsets:,} offsets",
            advice=advice,
        )


@dataclass(kw_only=True, eq=False)
class BackfillUnfinished(PipelineError, TerminalError):
    """All chunks of a backfill were tried, and some are not completely in the table."""

    requested_by: str
    chunks: tuple[int, ...]

    problem = (
        "The backfill of pipeline {pipeline!r} requested by {requested_by} is unfinished. "
        "Not completely landed: {chunks:chunk}."
    )
    fix = (
        "Continue with `tidemark backfill {pipeline} --resume {requested_by!q}`, or clear the "
        "whole DAG run. If Kafka has deleted some of the offsets, request the rest with "
        "--readable-only."
    )
