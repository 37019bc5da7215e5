"""Alarms, and errors of status and verification."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tidemark.core.errors import TerminalError, TransientError, in_words, listed


@dataclass(kw_only=True, eq=False)
class TableDiffers(TerminalError):
    """What Kafka shows is not what the data table holds."""

    pipeline: str
    differences: int
    first: tuple[str, ...]

    def what(self) -> str:
        return f"the data table of {self.pipeline!r} differs from Kafka"

    def expected(self) -> str:
        return "each visible record of every landed range once, with equal content"

    def found(self) -> str:
        return f"{self.differences} difference(s), first: {'; '.join(self.first)}"

    def remedy(self) -> str:
        return (
            "see docs/runbook.md, TableDiffers; keep the topic's retention long until it is mended"
        )


@dataclass(kw_only=True, eq=False)
class NothingToVerify(TerminalError):
    """A verification of offsets of which nothing has landed."""

    pipeline: str
    topic: str

    def what(self) -> str:
        return f"nothing of that has landed for pipeline {self.pipeline!r}"

    def expected(self) -> str:
        return f"landed offsets of {self.topic} in the range asked for"

    def found(self) -> str:
        return "none"

    def remedy(self) -> str:
        return "`tidemark status PIPELINE` shows how far each partition has landed"


@dataclass(kw_only=True, eq=False)
class UndoUnfinished(TransientError):
    """A plan is being undone, or whoever undid it was stopped."""

    pipeline: str
    sequence: int

    def what(self) -> str:
        return f"plan {self.sequence} of pipeline {self.pipeline!r} is half undone"

    def expected(self) -> str:
        return "its rows out of the data table, and that recorded"

    def found(self) -> str:
        return "that it was begun; nobody reads its offsets meanwhile"

    def remedy(self) -> str:
        return (
            f"if nobody is at it, `tidemark undo {self.pipeline} --plan {self.sequence} "
            "--reason TEXT` goes on"
        )


@dataclass(kw_only=True, eq=False)
class RunwayTooShort(TerminalError):
    """Kafka will soon delete records that have not landed."""

    pipeline: str
    runway: timedelta
    least: timedelta

    def what(self) -> str:
        return f"Kafka will soon delete records that pipeline {self.pipeline!r} has not read"

    def expected(self) -> str:
        return f"a retention runway of at least {in_words(self.least)} (alarms.runway_minutes)"

    def found(self) -> str:
        return in_words(self.runway)

    def remedy(self) -> str:
        return (
            f"see `tidemark status {self.pipeline}` for the partitions, land them now with "
            f"`tidemark ingest {self.pipeline}`, or raise the topic's retention meanwhile"
        )


@dataclass(kw_only=True, eq=False)
class PipelineStalled(TerminalError):
    """Records wait, and nothing lands."""

    pipeline: str
    waiting: timedelta | None
    last_landed_at: datetime | None
    longest: timedelta

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} does not land anything, and records wait"

    def expected(self) -> str:
        return f"a landing in every {in_words(self.longest)} (alarms.stalled_minutes)"

    def found(self) -> str:
        last = f"at {self.last_landed_at:%Y-%m-%d %H:%M} UTC" if self.last_landed_at else "never"
        age = "of unknown age" if self.waiting is None else f"{in_words(self.waiting)} old"
        return f"the last landing {last}, the oldest unread record {age}"

    def remedy(self) -> str:
        return (
            "look whether its DAG is switched on and what its last run failed with; "
            f"`tidemark status {self.pipeline}` names what a run would be refused for"
        )


@dataclass(kw_only=True, eq=False)
class LagTooLong(TerminalError):
    """A record has waited longer than is allowed."""

    pipeline: str
    waiting: timedelta
    longest: timedelta

    def what(self) -> str:
        return f"a record of pipeline {self.pipeline!r} has waited too long"

    def expected(self) -> str:
        return f"at most {in_words(self.longest)} (alarms.lag_minutes)"

    def found(self) -> str:
        return f"an unread record that is {in_words(self.waiting)} old"

    def remedy(self) -> str:
        return _faster(self.pipeline)


@dataclass(kw_only=True, eq=False)
class LagTooLarge(TerminalError):
    """More is unread than is allowed."""

    pipeline: str
    lag: int
    most: int

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} is too far behind its topic"

    def expected(self) -> str:
        return f"a lag of at most {self.most:,} offsets (alarms.lag_records)"

    def found(self) -> str:
        return f"{self.lag:,} offsets"

    def remedy(self) -> str:
        return _faster(self.pipeline)


@dataclass(kw_only=True, eq=False)
class PlanStuck(TerminalError):
    """A plan is open, and runs do not land it."""

    pipeline: str
    sequence: int
    age: timedelta
    runs: int
    longest: timedelta | None

    def what(self) -> str:
        return f"plan {self.sequence} of pipeline {self.pipeline!r} has not landed"

    def expected(self) -> str:
        if self.longest is None:
            return "a landing by the first or the second run that requests it"
        within = f"{in_words(self.longest)} (alarms.stalled_minutes)"
        return f"a landing by the first or the second run that requests it, within {within}"

    def found(self) -> str:
        return f"an open plan, recorded {in_words(self.age)} ago, requested by {self.runs} run(s)"

    def remedy(self) -> str:
        pipeline, _, typed = self.pipeline.partition("@")
        lands = f"decode {pipeline}" if typed == "typed" else f"ingest {self.pipeline}"
        plan = "" if typed == "typed" else f" --plan {self.sequence}"
        return (
            f"run `tidemark {lands}{plan}`, which lands it or names the error of its runs, and "
            "continue with that error's section of docs/runbook.md"
        )


@dataclass(kw_only=True, eq=False)
class PlansBlocked(TerminalError):
    """A quality check keeps plans out of the published view, without an operator's decision."""

    pipeline: str
    plans: tuple[int, ...]

    def what(self) -> str:
        return f"a quality check blocked plan(s) {listed(self.plans)} of pipeline {self.pipeline!r}"

    def expected(self) -> str:
        return "a newer check that passes, or a decision to release or to reject them"

    def found(self) -> str:
        return "neither: the published view does not show their rows"

    def remedy(self) -> str:
        plan = f"{self.pipeline} --plan {self.plans[0]}"
        return (
            f"`tidemark verdict list {self.pipeline}` shows the failed check; fix it, check again "
            f"with `tidemark quality {plan}`, or decide with `tidemark verdict release {plan} "
            f"--reason WHY` or `tidemark verdict reject {plan} --reason WHY`"
        )


@dataclass(kw_only=True, eq=False)
class QuarantineTooLarge(TerminalError):
    """More records are in quarantine than the spec allows."""

    pipeline: str
    records: int
    most: int

    def what(self) -> str:
        return f"pipeline {self.pipeline!r} has too many records in quarantine"

    def expected(self) -> str:
        return f"at most {self.most:,} (alarms.quarantined_records)"

    def found(self) -> str:
        return f"{self.records:,}"

    def remedy(self) -> str:
        return (
            f"see `tidemark quarantine list {self.pipeline}` for the reasons; fix the schema or "
            f"the rule, then decode them again with `tidemark quarantine replay {self.pipeline}`"
        )


def _faster(pipeline: str) -> str:
    return (
        f"land more now with `tidemark ingest {pipeline}`; if it does not keep up for long, "
        "schedule it more often, raise limits.records_per_run, or set limits.catch_up"
    )
