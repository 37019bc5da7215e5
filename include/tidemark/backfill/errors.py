"""Errors of backfill requests."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.core.errors import TerminalError, TransientError, listed


@dataclass(kw_only=True, eq=False)
class BackfillAhead(TransientError):
    """One of several backfills that were asked for together has to wait for another."""

    pipeline: str
    sequence: int
    requested_by: str

    def what(self) -> str:
        return f"another backfill of pipeline {self.pipeline!r} has to land first"

    def expected(self) -> str:
        return "one backfill of a pipeline at a time"

    def found(self) -> str:
        return f"plan {self.sequence}, asked for by {self.requested_by}, not landed yet"

    def remedy(self) -> str:
        return (
            "try again when it has landed; `airflow backfill create --max-active-runs 1` lets "
            "its runs wait for each other"
        )


@dataclass(kw_only=True, eq=False)
class BackfillTooLarge(TerminalError):
    """More offsets than may be landed without somebody's word."""

    pipeline: str
    offsets: int
    limit: int

    def what(self) -> str:
        return f"the backfill of pipeline {self.pipeline!r} is large and nobody has approved it"

    def expected(self) -> str:
        return f"at most {self.limit:,} offsets (limits.records_per_backfill of the spec)"

    def found(self) -> str:
        return f"{self.offsets:,} offsets to land"

    def remedy(self) -> str:
        return (
            "look at the preview (--dry-run), then ask again with --yes, or with the form's "
            "box ticked"
        )


@dataclass(kw_only=True, eq=False)
class TooManyChunks(TerminalError):
    """A backfill in more parts than one run of a DAG can have."""

    pipeline: str
    offsets: int
    chunk_offsets: int
    chunks: int
    most: int

    def what(self) -> str:
        return f"the backfill of pipeline {self.pipeline!r} has too many chunks"

    def expected(self) -> str:
        return f"at most {self.most:,} chunks"

    def found(self) -> str:
        return (
            f"{self.chunks:,} chunks of {self.chunk_offsets:,} offsets for {self.offsets:,} offsets"
        )

    def remedy(self) -> str:
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

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} has no such backfill, or no such chunk of it"

    def expected(self) -> str:
        return f"who asked for it, as they were recorded, and one of its {self.chunks} chunk(s)"

    def found(self) -> str:
        return f"{self.requested_by}, chunk {self.chunk}"

    def remedy(self) -> str:
        return "ask for the offsets anew: what has landed of them is left out"


@dataclass(kw_only=True, eq=False)
class BackfillUnfinished(TerminalError):
    """A backfill has come to its end and not all of it is in the table."""

    pipeline: str
    requested_by: str
    chunks: tuple[int, ...]

    def what(self) -> str:
        return f"a backfill of pipeline {self.pipeline!r} is not finished"

    def expected(self) -> str:
        return "all its chunks in the table"

    def found(self) -> str:
        return f"not whole: chunk(s) {listed(self.chunks)}"

    def remedy(self) -> str:
        return (
            f"go on with `tidemark backfill {self.pipeline} --resume {self.requested_by}`, or "
            "clear the whole run; if Kafka has deleted some of it, ask anew with --readable-only "
            "(what replaces rows then replaces all of them again)"
        )
