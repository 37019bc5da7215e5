"""Alarms, and errors of status and verification."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Self

from tidemark.core.errors import CaseTexts, PipelineError, TerminalError, TransientError
from tidemark.core.texts import comma_list, counted, format_duration, listed
from tidemark.spec.ref import PipelineRef


class TableDiffers(CaseTexts, TerminalError):
    """A table differs from the records that it should contain."""

    @classmethod
    def from_kafka(cls, pipeline: str, differences: int, first: tuple[str, ...]) -> Self:
        """The data table and Kafka's records disagree."""
        return cls(
            finding=(
                f"The data table of pipeline '{pipeline}' and Kafka differ in "
                f"{counted(differences, 'row')}. First: {comma_list(first)}."
            ),
            advice=(
                "Keep the topic's retention long enough to read the records again. The runbook has "
                "the fix of each kind of difference."
            ),
        )

    @classmethod
    def from_bronze(
        cls, pipeline: str, differences: int, first: tuple[str, ...], unknown_spec: int = 0
    ) -> Self:
        """The typed table and its quarantine disagree with the bronze table, decoded again.

        Args:
            pipeline: The pipeline of the typed table.
            differences: Number of differences.
            first: The first ones.
            unknown_spec: Number of rows among them that may have been decoded with any spec.
        """
        bronze = PipelineRef.parse(pipeline).name
        has = "has" if unknown_spec == 1 else "have"
        causes = (
            f" {counted(unknown_spec, 'row')} {has} an unknown spec: decoded with an earlier spec, "
            "or changed by another program."
        )
        return cls(
            finding=(
                f"The typed table of pipeline '{bronze}' and its bronze table, decoded again, "
                f"differ in {counted(differences, 'row')}. First: {comma_list(first)}."
                f"{causes if unknown_spec else ''}"
            ),
            advice=(
                f"Run `tidemark decode {bronze} --from-scratch --reason TEXT`, which decodes all "
                "rows again."
            ),
        )


@dataclass(kw_only=True, eq=False)
class RunwayTooShort(PipelineError, TerminalError):
    """Kafka will soon delete records that have not landed."""

    runway: timedelta
    limit: timedelta

    problem = "Kafka will delete unread records of pipeline '{pipeline}' in {runway}."
    expected = "at least {limit} (alarms.runway_minutes)"
    actual = "{runway}"
    fix = (
        "Land the records now with `tidemark ingest {pipeline}`, or raise the topic's retention. "
        "`tidemark status {pipeline}` shows the partitions, and an error that must be fixed first."
    )


@dataclass(kw_only=True, eq=False)
class PipelineStalled(PipelineError, TerminalError):
    """The topic has unread records, and no plan lands."""

    lag_time: timedelta | None
    last_landed_at: datetime | None
    limit: timedelta

    problem = "Pipeline '{pipeline}' has unread records and lands no plan."
    expected = "a landing at least every {limit} (alarms.stalled_minutes)"
    actual = "last landing {last_landing}, oldest unread record {record_age}"
    fix = (
        "Check in Airflow that the DAG is not paused, and why its last run failed. "
        "`tidemark status {pipeline}` shows the error that refuses the next run."
    )

    @property
    def last_landing(self) -> str:
        """Time of the last landing, or `never`."""
        return f"{self.last_landed_at:%Y-%m-%d %H:%M} UTC" if self.last_landed_at else "never"

    @property
    def record_age(self) -> str:
        """Age of the oldest unread record, if it is known."""
        if self.lag_time is None:
            return "of unknown age"
        return f"{format_duration(self.lag_time)} old"


@dataclass(kw_only=True, eq=False)
class LagTooLarge(PipelineError, TerminalError):
    """More offsets are unread, or a record has waited longer, than the spec allows."""

    measures: tuple[str, ...]
    limits: tuple[str, ...]

    problem = "Pipeline '{pipeline}' is behind its topic: {measures}."
    expected = "{limits}"
    fix = (
        "Run `tidemark ingest {pipeline}` now. If the pipeline stays behind, schedule it more "
        "often, raise limits.records_per_run, or set limits.catch_up."
    )

    @classmethod
    def exceeding(
        cls,
        pipeline: str,
        *,
        lag: int | None,
        lag_limit: int | None,
        age: timedelta | None,
        age_limit: timedelta | None,
    ) -> Self | None:
        """Return the alarm of the exceeded limits; None if no limit is exceeded.

        Args:
            pipeline: Pipeline name.
            lag: Number of unread offsets, if it is known.
            lag_limit: Its limit.
            age: Age of the oldest unread record, if it is known.
            age_limit: Its limit.
        """
        measures, limits = [], []
        if age is not None and age_limit is not None and age > age_limit:
            measures.append(f"the oldest unread record is {format_duration(age)} old")
            limits.append(f"at most {format_duration(age_limit)} (alarms.lag_minutes)")
        if lag is not None and lag_limit is not None and lag > lag_limit:
            measures.append(f"{lag:,} offsets are unread")
            limits.append(f"at most {lag_limit:,} (alarms.lag_records)")
        if not measures:
            return None
        return cls(pipeline=pipeline, measures=tuple(measures), limits=tuple(limits))


@dataclass(kw_only=True, eq=False)
class PlanStuck(PipelineError, TerminalError):
    """A plan is open, and runs fail to land it."""

    sequence: int
    age: timedelta
    runs: int
    limit: timedelta | None

    problem = (
        "Plan {sequence} of pipeline '{pipeline}' has been open for {age}; {runs:run} did not "
        "land it."
    )
    expected = "{expected_landing}"
    actual = "{runs:run} in {age}"
    fix = (
        "Run `tidemark {landing_command}`, which lands the plan or shows the error of its runs. "
        "Then see that error's section in docs/runbook.md."
    )

    @property
    def expected_landing(self) -> str:
        """The limits that apply to the plan."""
        first_runs = "landed by the first or second run"
        if self.limit is None:
            return first_runs
        return f"{first_runs}, within {format_duration(self.limit)} (alarms.stalled_minutes)"

    @property
    def landing_command(self) -> str:
        """Arguments of `tidemark` that execute the plan."""
        return landing_command(self.pipeline, self.sequence)


def landing_command(pipeline: str, sequence: int) -> str:
    """Return arguments of `tidemark` that execute a plan."""
    return f"ingest {pipeline} --plan {sequence}"


@dataclass(kw_only=True, eq=False)
class TableStalled(PipelineError, TerminalError):
    """A typed table or an upsert table lacks records that landed long ago."""

    table: str
    age: timedelta
    limit: timedelta

    problem = "The {table} table of pipeline '{pipeline}' has been out of date for {age}."
    expected = "at most {limit} (alarms.stalled_minutes)"
    actual = "{age}"
    fix = (
        "Run `tidemark run {pipeline}`, which updates the table or shows the error of its runs. "
        "Then see that error's section in docs/runbook.md."
    )


@dataclass(kw_only=True, eq=False)
class PlansUnchecked(PipelineError, TerminalError):
    """Landed plans have had no check result for too long."""

    plans: tuple[int, ...]
    age: timedelta

    problem = (
        "The published view of pipeline '{pipeline}' lacks the rows of {plans:plan}, because "
        "their check has had no result for {age}."
    )
    fix = (
        "Run `tidemark check {pipeline} --plan {first_plan}`, which checks the plan or shows the "
        "error of its check. Then `tidemark run {pipeline}` checks the other plans."
    )

    @property
    def first_plan(self) -> int:
        """The unchecked plan with the lowest number."""
        return self.plans[0]


@dataclass(kw_only=True, eq=False)
class PlansBlocked(PipelineError, TerminalError):
    """A quality check blocked plans, and no operator has decided about them."""

    plans: tuple[int, ...]

    problem = (
        "The published view of pipeline '{pipeline}' lacks the rows of {plans:plan}, because a "
        "quality check failed."
    )
    fix = (
        "`tidemark publication list {pipeline}` shows the failed checks. Fix the cause and run "
        "`tidemark check {pipeline} --plan {first_plan}`, or decide with "
        "`tidemark publication release {pipeline} --plan {first_plan} --reason TEXT` or "
        "`tidemark publication reject {pipeline} --plan {first_plan} --reason TEXT`.{others}"
    )

    @property
    def first_plan(self) -> int:
        """The blocked plan with the lowest number."""
        return self.plans[0]

    @property
    def others(self) -> str:
        """The other blocked plans, as a sentence; empty without others."""
        return f" Then do the same for {listed('plan', self.plans[1:])}." if self.plans[1:] else ""


@dataclass(kw_only=True, eq=False)
class RowsToWithdraw(PipelineError, TerminalError):
    """A typed table or an upsert table has rows that an undo, a check or an operator withdrew.

    Attributes:
        offsets: Number of such offsets in the typed table and its quarantine.
        merged: Number of offsets whose rows only the upsert table still has.
    """

    offsets: int
    merged: int

    problem = "Tables of pipeline '{pipeline}' still have withdrawn rows: {tables}."
    fix = "Run `tidemark run {pipeline}`, which removes them, or only {commands}."

    @property
    def tables(self) -> str:
        """The tables that have them, with the numbers."""
        withdrawn, merged = counted(self.offsets, "offset"), counted(self.merged, "offset")
        decoded = f"the typed table has {withdrawn} outside the published view"
        removed = f"the upsert table has rows of {merged} that left the typed table"
        found = [(self.offsets, decoded), (self.merged, removed)]
        return ", ".join(text for count, text in found if count)

    @property
    def commands(self) -> str:
        """The commands that remove the rows and read nothing from Kafka."""
        upsert = f"`tidemark upsert {self.pipeline}`"
        decode = f"`tidemark decode {self.pipeline}`"
        return f"{decode} and, for an upsert table, {upsert}" if self.offsets else upsert


@dataclass(kw_only=True, eq=False)
class RecordsUnaccounted(PipelineError, TerminalError):
    """Landed records are neither typed nor in quarantine, or more records are than have landed.

    Attributes:
        finding: The difference, as a clause.
    """

    finding: str

    problem = "Records of pipeline '{pipeline}' do not add up: {finding}."
    fix = (
        "`tidemark verify {pipeline}` finds the difference. RESTORE the table that another program "
        "changed to the version before that change."
    )


@dataclass(kw_only=True, eq=False)
class QuarantineTooLarge(PipelineError, TerminalError):
    """More records are in quarantine than the spec allows."""

    records: int
    limit: int

    problem = "Pipeline '{pipeline}' has {records:,} records in quarantine."
    expected = "at most {limit:,} (alarms.quarantined_records)"
    actual = "{records:,}"
    fix = (
        "`tidemark quarantine list {pipeline}` shows the reasons. Fix the schema or the rule, "
        "then decode the records again with `tidemark quarantine replay {pipeline}`."
    )


class PageTooLarge(CaseTexts, TerminalError):
    """A page would read too much: of a table, or of the plans of a pipeline."""

    @classmethod
    def of_preview(cls, pipeline: str, options: str, ranges: int, limit: int) -> Self:
        """The preview of a replacement would read too many plans for a page of the console."""
        return cls(
            finding=(
                f"The preview of a replacement of pipeline '{pipeline}' is too large for a page, "
                "because it reads every plan."
            ),
            needed=f"at most {limit:,} ranges of plans",
            seen=f"up to {ranges:,}",
            advice=(
                f"Run `tidemark backfill {pipeline} {options} --dry-run`, and then the same "
                "command without `--dry-run`."
            ),
        )

    @classmethod
    def of_records(
        cls,
        *,
        table: str,
        topic_id: str,
        partition: int,
        start: int,
        end: int,
        megabytes: int,
        limit: int,
    ) -> Self:
        """A page of records would read too many bytes of a table."""
        return cls(
            finding=(
                f"A page cannot read offsets {start} to {end} of partition {partition} from the "
                f"{table}: too many bytes."
            ),
            needed=f"at most {limit} MB, by the statistics of files and row groups",
            seen=f"{megabytes:,} MB that may contain these offsets",
            advice=(
                "Select fewer offsets with `--count`, or read the rows with a query engine: "
                f"`WHERE topic_id = '{topic_id}' AND partition = {partition} AND \"offset\" >= "
                f'{start} AND "offset" < {end}`. If the table has many small files, `tidemark '
                "maintain` reduces their number."
            ),
        )


@dataclass(kw_only=True, eq=False)
class PageTimeout(TransientError):
    """A page of the console waited too long for the storage or for Kafka."""

    seconds: int

    problem = "The page was not complete after {seconds} s, or too many other pages still wait."
    fix = (
        "Load the page again. If this happens again, check that Kafka and the storage of the "
        "lakehouse answer: `tidemark status`."
    )
