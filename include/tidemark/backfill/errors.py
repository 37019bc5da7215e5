"""Errors of backfill requests."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import TerminalError, TransientError


@dataclass(kw_only=True, eq=False)
class BackfillAhead(TransientError):
    """One of several backfills that were asked for together has to wait for another."""

    pipeline: str
    sequence: int
    requested_by: str

    problem = "Another backfill of pipeline {pipeline!r} has to land first."
    expected = "one backfill of a pipeline at a time"
    actual = "plan {sequence}, asked for by {requested_by}, not landed yet"
    fix = (
        "Try again when it has landed; `airflow backfill create --max-active-runs 1` lets its runs "
        "wait for each other."
    )


@dataclass(kw_only=True, eq=False)
class BackfillTooLarge(TerminalError):
    """More offsets than may be landed without somebody's word."""

    pipeline: str
    offsets: int
    limit: int

    problem = "The backfill of pipeline {pipeline!r} is large and nobody has approved it."
    expected = "at most {limit:,} offsets (limits.records_per_backfill of the spec)"
    actual = "{offsets:,} offsets to land"
    fix = (
        "Look at the preview (--dry-run), then ask again with --yes, or with the form's box ticked."
    )


@dataclass(kw_only=True, eq=False)
class TooManyChunks(TerminalError):
    """A backfill in more parts than one run of a DAG can have."""

    pipeline: str
    offsets: int
    chunk_offsets: int
    chunks: int
    most: int

    problem = "The backfill of pipeline {pipeline!r} has too many chunks."
    expected = "at most {most:,} chunks"
    actual = "{chunks:,} chunks of {chunk_offsets:,} offsets for {offsets:,} offsets"
    fix = "{_fix}"

    @property
    def _fix(self) -> str:
        least = -(-self.offsets // self.most)
        if self.chunk_offsets >= least:
            return "ask for fewer and longer ranges, or in several backfills"
        return f"ask for chunks of {least:,} offsets or more"


@dataclass(kw_only=True, eq=False)
class UnknownBackfill(TerminalError):
    """A backfill, or a chunk of one, that the control table does not have."""

    pipeline: str
    requested_by: str
    chunk: int
    chunks: int

    problem = "Pipeline {pipeline!r} has no such backfill, or no such chunk of it."
    expected = "who asked for it, as they were recorded, and one of its {chunks} chunk(s)"
    actual = "{requested_by}, chunk {chunk}"
    fix = "Ask for the offsets anew: what has landed of them is left out."


@dataclass(kw_only=True, eq=False)
class BackfillUnfinished(TerminalError):
    """A backfill has come to its end and not all of it is in the table."""

    pipeline: str
    requested_by: str
    chunks: tuple[int, ...]

    problem = "A backfill of pipeline {pipeline!r} is not finished."
    expected = "all its chunks in the table"
    actual = "not whole: chunk(s) {chunks}"
    fix = (
        "Go on with `tidemark backfill {pipeline} --resume {requested_by}`, or clear the whole "
        "run; if Kafka has deleted some of it, ask anew with --readable-only (what replaces rows "
        "then replaces all of them again)."
    )
