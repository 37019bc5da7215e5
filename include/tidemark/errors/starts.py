"""Beginning at offsets that somebody else has come to, and telling others where we are."""

from __future__ import annotations

from dataclasses import dataclass

from tidemark.errors.base import TerminalError, listed


@dataclass(kw_only=True, eq=False)
class AlreadyBegun(TerminalError):
    """A pipeline is to begin somewhere, and has a beginning."""

    pipeline: str
    wanted: tuple[tuple[int, int], ...]
    known: tuple[tuple[int, int], ...]
    reason: str

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} has begun, so it cannot begin at {_places(self.wanted)}"

    def expected(self) -> str:
        return "a pipeline that has never planned anything"

    def found(self) -> str:
        return f"one that began at {_places(self.known)} ({self.reason})"

    def remedy(self) -> str:
        return (
            "what lies before its beginning can be landed with `tidemark backfill --help`; for "
            "another beginning make a spec with another name and target "
            "(docs/runbook.md, AlreadyBegun)"
        )


@dataclass(kw_only=True, eq=False)
class InvalidStart(TerminalError):
    """Offsets to begin at that are said in no way, in two, or so that nobody can mean them."""

    rule: str
    seen: str

    def what(self) -> str:
        return "what was said of the beginning cannot be meant"

    def expected(self) -> str:
        return self.rule

    def found(self) -> str:
        return self.seen

    def remedy(self) -> str:
        return "see `tidemark start --help` for the ways to say it; nothing was written"


@dataclass(kw_only=True, eq=False)
class UnusableSource(TerminalError):
    """A group, a checkpoint or a table that tells no offsets of the pipeline's topic."""

    source: str
    rule: str
    seen: str

    def what(self) -> str:
        return f"no beginning can be taken from the {self.source}"

    def expected(self) -> str:
        return self.rule

    def found(self) -> str:
        return self.seen

    def remedy(self) -> str:
        return (
            "name another source, or the offsets themselves with --offsets; nothing was written "
            "(docs/runbook.md, UnusableSource)"
        )


@dataclass(kw_only=True, eq=False)
class PartitionsUnsaid(TerminalError):
    """Partitions of the topic of which the source says nothing."""

    pipeline: str
    topic: str
    source: str
    partitions: tuple[int, ...]

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} is not told where to begin in all of {self.topic}"

    def expected(self) -> str:
        return f"an offset of every partition from the {self.source}"

    def found(self) -> str:
        return f"none for partition(s) {listed(self.partitions)}"

    def remedy(self) -> str:
        return (
            "say where those begin: --others earliest, or --others latest, which leaves out what "
            "they hold now (docs/runbook.md, PartitionsUnsaid)"
        )


@dataclass(kw_only=True, eq=False)
class StartBehindEnd(TerminalError):
    """An offset to begin at that the log has not come to."""

    topic: str
    source: str
    partition: int
    offset: int
    end: int

    def what(self) -> str:
        return f"the {self.source} does not fit {self.topic}[{self.partition}]"

    def expected(self) -> str:
        return f"an offset of at most {self.end}, the end of the readable log"

    def found(self) -> str:
        return str(self.offset)

    def remedy(self) -> str:
        return (
            "nothing was written: the offsets are those of another topic, or of this one before "
            "it was made again, or a transaction is still open (docs/runbook.md, StartBehindEnd)"
        )


@dataclass(kw_only=True, eq=False)
class NotBegun(TerminalError):
    """Committed offsets are asked for, and the pipeline has none."""

    pipeline: str

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} has no committed offsets"

    def expected(self) -> str:
        return "a pipeline that has begun"

    def found(self) -> str:
        return "no event that says where"

    def remedy(self) -> str:
        return f"run `tidemark plan {self.pipeline}`, or `tidemark start --help`"


@dataclass(kw_only=True, eq=False)
class GroupActive(TerminalError):
    """A consumer group whose offsets are its members' to commit."""

    group: str
    reason: str

    def what(self) -> str:
        return f"the offsets of consumer group {self.group!r} cannot be set"

    def expected(self) -> str:
        return "a group without members"

    def found(self) -> str:
        return self.reason

    def remedy(self) -> str:
        return (
            "export to a group that no consumer has, or stop its consumers first "
            "(docs/runbook.md, GroupActive)"
        )


def _places(places: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(f"{partition}:{offset}" for partition, offset in places)
