"""Alarms, and errors of status and verification."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tidemark.core.errors import TerminalError, TransientError, in_words
from tidemark.spec.ref import PipelineKind, PipelineRef


@dataclass(kw_only=True, eq=False)
class TableDiffers(TerminalError):
    """What Kafka shows is not what the data table holds."""

    pipeline: str
    differences: int
    first: tuple[str, ...]

    problem = "The data table of {pipeline!r} differs from Kafka."
    expected = "each visible record of every landed range once, with equal content"
    actual = "{_actual}"
    fix = "See docs/runbook.md, TableDiffers; keep the topic's retention long until it is mended."

    @property
    def _actual(self) -> str:
        return f"{self.differences} difference(s), first: {'; '.join(self.first)}"


@dataclass(kw_only=True, eq=False)
class NothingToVerify(TerminalError):
    """A verification of offsets of which nothing has landed."""

    pipeline: str
    topic: str

    problem = "Nothing of that has landed for pipeline {pipeline!r}."
    expected = "landed offsets of {topic} in the range asked for"
    actual = "none"
    fix = "`tidemark status PIPELINE` shows how far each partition has landed."


@dataclass(kw_only=True, eq=False)
class UndoUnfinished(TransientError):
    """A plan is being undone, or whoever undid it was stopped."""

    pipeline: str
    sequence: int

    problem = "Plan {sequence} of pipeline {pipeline!r} is half undone."
    expected = "its rows out of the data table, and that recorded"
    actual = "that it was begun; nobody reads its offsets meanwhile"
    fix = "If nobody is at it, `tidemark undo {pipeline} --plan {sequence} --reason TEXT` goes on."


@dataclass(kw_only=True, eq=False)
class RunwayTooShort(TerminalError):
    """Kafka will soon delete records that have not landed."""

    pipeline: str
    runway: timedelta
    least: timedelta

    problem = "Kafka will soon delete records that pipeline {pipeline!r} has not read."
    expected = "{_expected}"
    actual = "{_actual}"
    fix = (
        "See `tidemark status {pipeline}` for the partitions, land them now with `tidemark ingest "
        "{pipeline}`, or raise the topic's retention meanwhile."
    )

    @property
    def _expected(self) -> str:
        return f"a retention runway of at least {in_words(self.least)} (alarms.runway_minutes)"

    @property
    def _actual(self) -> str:
        return in_words(self.runway)


@dataclass(kw_only=True, eq=False)
class PipelineStalled(TerminalError):
    """Records wait, and nothing lands."""

    pipeline: str
    waiting: timedelta | None
    last_landed_at: datetime | None
    longest: timedelta

    problem = "Pipeline {pipeline!r} does not land anything, and records wait."
    expected = "{_expected}"
    actual = "{_actual}"
    fix = (
        "Look whether its DAG is switched on and what its last run failed with; `tidemark status "
        "{pipeline}` names what a run would be refused for."
    )

    @property
    def _expected(self) -> str:
        return f"a landing in every {in_words(self.longest)} (alarms.stalled_minutes)"

    @property
    def _actual(self) -> str:
        last = f"at {self.last_landed_at:%Y-%m-%d %H:%M} UTC" if self.last_landed_at else "never"
        age = "of unknown age" if self.waiting is None else f"{in_words(self.waiting)} old"
        return f"the last landing {last}, the oldest unread record {age}"


@dataclass(kw_only=True, eq=False)
class LagTooLong(TerminalError):
    """A record has waited longer than is allowed."""

    pipeline: str
    waiting: timedelta
    longest: timedelta

    problem = "A record of pipeline {pipeline!r} has waited too long."
    expected = "{_expected}"
    actual = "{_actual}"
    fix = "{_fix}"

    @property
    def _expected(self) -> str:
        return f"at most {in_words(self.longest)} (alarms.lag_minutes)"

    @property
    def _actual(self) -> str:
        return f"an unread record that is {in_words(self.waiting)} old"

    @property
    def _fix(self) -> str:
        return _faster(self.pipeline)


@dataclass(kw_only=True, eq=False)
class LagTooLarge(TerminalError):
    """More is unread than is allowed."""

    pipeline: str
    lag: int
    most: int

    problem = "Pipeline {pipeline!r} is too far behind its topic."
    expected = "a lag of at most {most:,} offsets (alarms.lag_records)"
    actual = "{lag:,} offsets"
    fix = "{_fix}"

    @property
    def _fix(self) -> str:
        return _faster(self.pipeline)


@dataclass(kw_only=True, eq=False)
class PlanStuck(TerminalError):
    """A plan is open, and runs do not land it."""

    pipeline: str
    sequence: int
    age: timedelta
    runs: int
    longest: timedelta | None

    problem = "Plan {sequence} of pipeline {pipeline!r} has not landed."
    expected = "{_expected}"
    actual = "{_actual}"
    fix = "{_fix}"

    @property
    def _expected(self) -> str:
        if self.longest is None:
            return "a landing by the first or the second run that requests it"
        within = f"{in_words(self.longest)} (alarms.stalled_minutes)"
        return f"a landing by the first or the second run that requests it, within {within}"

    @property
    def _actual(self) -> str:
        return f"an open plan, recorded {in_words(self.age)} ago, requested by {self.runs} run(s)"

    @property
    def _fix(self) -> str:
        ref = PipelineRef.parse(self.pipeline)
        if ref.kind is PipelineKind.TYPED:
            lands, plan = f"decode {ref.name}", ""
        else:
            lands, plan = f"ingest {ref}", f" --plan {self.sequence}"
        return (
            f"run `tidemark {lands}{plan}`, which lands it or names the error of its runs, and "
            "continue with that error's section of docs/runbook.md"
        )


@dataclass(kw_only=True, eq=False)
class PlansBlocked(TerminalError):
    """A quality check keeps plans out of the published view, without an operator's decision."""

    pipeline: str
    plans: tuple[int, ...]

    problem = "A quality check blocked plan(s) {plans} of pipeline {pipeline!r}."
    expected = "a newer check that passes, or a decision to release or to reject them"
    actual = "neither: the published view does not show their rows"
    fix = "{_fix}"

    @property
    def _fix(self) -> str:
        plan = f"{self.pipeline} --plan {self.plans[0]}"
        return (
            f"`tidemark publication list {self.pipeline}` shows the failed check; fix it, check "
            f"again with `tidemark quality {plan}`, or decide with "
            f"`tidemark publication release {plan} --reason WHY` or "
            f"`tidemark publication reject {plan} --reason WHY`"
        )


@dataclass(kw_only=True, eq=False)
class QuarantineTooLarge(TerminalError):
    """More records are in quarantine than the spec allows."""

    pipeline: str
    records: int
    most: int

    problem = "Pipeline {pipeline!r} has too many records in quarantine."
    expected = "at most {most:,} (alarms.quarantined_records)"
    actual = "{records:,}"
    fix = (
        "See `tidemark quarantine list {pipeline}` for the reasons; fix the schema or the rule, "
        "then decode them again with `tidemark quarantine replay {pipeline}`."
    )


def _faster(pipeline: str) -> str:
    return (
        f"land more now with `tidemark ingest {pipeline}`; if it does not keep up for long, "
        "schedule it more often, raise limits.records_per_run, or set limits.catch_up"
    )
