"""Backfills: what was asked for cannot be meant, or is too much at once."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.errors.base import TerminalError, TransientError, listed


@dataclass(kw_only=True, eq=False)
class InvalidSelection(TerminalError):
    """A backfill whose offsets are said in no way, in two, or not so that anybody understands.

    Or whose table would be nowhere.
    """

    rule: str
    seen: str

    def what(self) -> str:
        return "what was asked of the backfill cannot be meant"

    def expected(self) -> str:
        return self.rule

    def found(self) -> str:
        return self.seen

    def remedy(self) -> str:
        return "see `tidemark backfill --help` for the ways to say it"


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


@dataclass(kw_only=True, eq=False)
class OtherIncarnation(TerminalError):
    """Wanted offsets that belong to a topic that was made again since."""

    pipeline: str
    topic: str
    topic_id: str
    current: str

    def what(self) -> str:
        return f"offsets wanted for pipeline {self.pipeline!r} are those of another topic"

    def expected(self) -> str:
        return f"topic {self.topic!r} with id {self.topic_id}"

    def found(self) -> str:
        return f"id {self.current}"

    def remedy(self) -> str:
        return "nothing can read them any more; ask anew for offsets of the topic that there is"


@dataclass(kw_only=True, eq=False)
class RowsChanged(TerminalError):
    """A part of a landed range was to be replaced, whose rows are not those that landed."""

    pipeline: str
    sequence: int
    partition: int
    start: int
    end: int
    recorded: int
    rows: int

    def what(self) -> str:
        return (
            f"a part of what plan {self.sequence} of pipeline {self.pipeline!r} landed cannot be "
            "replaced: what would be left of it cannot be told"
        )

    def expected(self) -> str:
        return (
            f"{self.recorded:,} row(s) at partition {self.partition}, offsets [{self.start}, "
            f"{self.end}), as recorded"
        )

    def found(self) -> str:
        return f"{self.rows:,}"

    def remedy(self) -> str:
        # A typed table follows what is replaced in the one that it is made of.
        pipeline = self.pipeline.removesuffix("@typed")
        return (
            f"replace the whole range in one chunk: `tidemark backfill {pipeline} --offsets "
            f"{self.partition}:{self.start}-{self.end} --chunk {self.end - self.start} --replace "
            "--reason TEXT`; if Kafka has deleted a part of it, that is not possible any more"
        )


@dataclass(kw_only=True, eq=False)
class RowsWouldBeLost(TerminalError):
    """A plan was to replace rows, some of which Kafka cannot give any more."""

    pipeline: str
    sequence: int
    lost: tuple[tuple[int, int, int], ...]

    def what(self) -> str:
        return (
            f"plan {self.sequence} of pipeline {self.pipeline!r} would replace rows by nothing; "
            "the table is as it was"
        )

    def expected(self) -> str:
        return "a record in Kafka for every row that is replaced"

    def found(self) -> str:
        return (
            f"none for {sum(end - start for _, start, end in self.lost):,} row(s), at "
            f"{listed(f'{p}:{start}-{end}' for p, start, end in self.lost)}: compacted or deleted "
            "since, aborted, or from elsewhere"
        )

    def remedy(self) -> str:
        return (
            f"give the plan up with `tidemark abandon {self.pipeline} --plan {self.sequence} "
            "--reason TEXT`, and ask anew for the other offsets; with --resume the chunk would "
            "end here again"
        )


@dataclass(kw_only=True, eq=False)
class NotLive(TerminalError):
    """A copy of a pipeline's table was to follow the log."""

    pipeline: str
    origin: str

    def what(self) -> str:
        return f"{self.pipeline!r} is a copy, which does not follow its topic"

    def expected(self) -> str:
        return f"the pipeline {self.origin!r}, or a backfill"

    def found(self) -> str:
        return "a run of its own"

    def remedy(self) -> str:
        return f"see `tidemark backfill --help`; or run {self.origin!r}"
