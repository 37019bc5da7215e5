"""Errors of backfill requests."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.bronze.ingest.errors import BackfillOpen
from tidemark.core.errors import TerminalError, TransientError


@dataclass(kw_only=True, eq=False)
class BackfillAhead(TransientError):
    """A requested backfill waits until the open backfill plan of the pipeline has landed."""

    pipeline: str
    sequence: int
    requested_by: str

    problem = BackfillOpen.problem
    fix = (
        "Retry after it has landed. `tidemark airflow backfill create --max-active-runs 1` makes "
        "runs by dates wait for each other."
    )


@dataclass(kw_only=True, eq=False)
class BackfillTooLarge(TerminalError):
    """The backfill has more offsets than the spec allows without approval."""

    pipeline: str
    offsets: int
    limit: int

    problem = "The backfill of pipeline {pipeline!r} needs approval: it is larger than the limit."
    expected = "at most {limit:,} offsets (limits.records_per_backfill of the spec)"
    actual = "{offsets:,} offsets"
    fix = (
        "Check the preview (--dry-run). Then request the backfill with --yes, or with the approval "
        "box of the form ticked."
    )


@dataclass(kw_only=True, eq=False)
class TooManyChunks(TerminalError):
    """The backfill has more chunks than a DAG run can map."""

    pipeline: str
    offsets: int
    chunk_offsets: int
    chunks: int
    most: int

    problem = "The backfill of pipeline {pipeline!r} has too many chunks."
    expected = "at most {most:,} chunks"
    actual = "{chunks:,} chunks of {chunk_offsets:,} offsets, for {offsets:,} offsets"
    fix = "{advice}"

    @property
    def advice(self) -> str:
        """Larger chunks, unless many short ranges are the cause."""
        least = -(-self.offsets // self.most)
        if self.chunk_offsets >= least:
            return "Request fewer and longer ranges, or several backfills."
        return f"Use chunks of at least {least:,} offsets (--chunk {least})."


@dataclass(kw_only=True, eq=False)
class UnknownBackfill(TerminalError):
    """The control table contains no such backfill, or no such chunk of it."""

    pipeline: str
    requested_by: str
    chunk: int
    chunks: int

    problem = (
        "Pipeline {pipeline!r} has no chunk {chunk} of a backfill requested by {requested_by} "
        "(recorded chunks: {chunks})."
    )
    fix = (
        "Request the offsets again, with --replace if the lost request had it; without --replace "
        "offsets that have landed are skipped."
    )


@dataclass(kw_only=True, eq=False)
class BackfillUnfinished(TerminalError):
    """All chunks of a backfill were tried, and some are not completely in the table."""

    pipeline: str
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
