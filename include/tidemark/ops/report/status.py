"""Status of a pipeline: lag behind its topic, without a consumer group, and alarms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from tidemark.bronze.ingest.draft import Drafter
from tidemark.bronze.ingest.errors import LogTruncated
from tidemark.bronze.ingest.ledgers import check_current, missing_rows, read_checked_ledger
from tidemark.bronze.ingest.limits import run_limit
from tidemark.bronze.ingest.log_comparison import LogComparison
from tidemark.bronze.ingest.ports import Ports
from tidemark.bronze.ingest.protocols import TopicLogReader, TopicReader
from tidemark.bronze.repair.errors import UndoUnfinished
from tidemark.core import plan_rules
from tidemark.core.errors import TidemarkError, TopicDiffers
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plain import plain, record_of
from tidemark.core.plan import PlanKind
from tidemark.core.record import LogRecord
from tidemark.core.texts import counted
from tidemark.core.throughput import Backlog, Forecast, Run, Throughput, forecast, runway
from tidemark.core.watermarks import IsolationLevel, TopicWatermarks, Watermarks
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.delta.errors import ControlConflict
from tidemark.delta.opened_tables import tables_opened_once
from tidemark.ops.report.errors import (
    LagTooLarge,
    PipelineStalled,
    RecordsUnaccounted,
    RunwayTooShort,
)
from tidemark.ops.report.typed_account import TypedAccount
from tidemark.ops.report.unfinished_work import (
    StatusLine,
    UnfinishedWork,
    UnfinishedWorkReader,
)
from tidemark.spec.model import AlarmRules, PipelineSpec, StartPolicy

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """Status of one partition, whose readable log is `[low_watermark, end)`.

    Attributes:
        partition: Partition number.
        low_watermark: Low watermark; None if the topic could not be read, or was replaced.
        end: End of the readable log at the pipeline's isolation level; None like `low_watermark`.
        committed_offset: Committed offset; None if the pipeline has not started in the partition.
        lag: Unread offsets, an upper bound on unread records; None if not started or unknown.
        held_back: Offsets from `end` to the high watermark, which become readable when an open
            transaction ends; None if unknown.
        lag_time: Age of the oldest unread record; None without an unread record of known age.
        runway: Shortest time until Kafka deletes unread records; None without unread records, or
            without retention.
        arrival_rate: New offsets per second since the oldest unread record; None if unknown.
    """

    partition: int
    low_watermark: int | None = None
    end: int | None = None
    committed_offset: int | None
    lag: int | None = None
    held_back: int | None = None
    lag_time: timedelta | None = None
    runway: timedelta | None = None
    arrival_rate: float | None = None

    def as_record(self) -> dict[str, Any]:
        """Return the status as plain values; times in seconds."""
        return record_of(
            self,
            without=["lag_time", "runway", "arrival_rate"],
            lag_seconds=self.lag_time,
            runway_seconds=self.runway,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """Status of one pipeline at one time.

    Attributes:
        pipeline: Pipeline name.
        checked_at: The time of the status.
        topic: Topic name.
        partitions: Status of each partition, sorted by number. If the topic could not be read, or
            was replaced, those with a committed offset, and nothing else of them is known.
        last_run: The newest landed live plan; None before the first.
        last_run_bytes: Bytes of its files; None if they have rows of other plans, too.
        stored_bytes: Bytes of the data table's files; None without a table.
        missing_rows: Landed rows that another program removed from the data table; None if unknown.
        open_plans: Numbers of plans that are recorded and have not landed.
        unfinished: Plans and records that wait for a retry or a decision.
        records: Records landed by all plans.
        forecast: Whether and when the lag will be 0.
        caught_up_at: The time of the forecast `LATER`; None for other forecasts.
        problem: The error that the planning of a run would now end with; None without one.
        table_error: The difference between the data table and the control table, or the error that
            prevented the comparison; None without either.
        kafka_error: The error that prevented the read of watermarks; None if they were read.
        rules: The limits that raise alarms.
    """

    pipeline: str
    checked_at: datetime
    topic: str
    partitions: tuple[PartitionStatus, ...]
    last_run: Run | None
    last_run_bytes: int | None
    stored_bytes: int | None
    missing_rows: int | None
    open_plans: tuple[int, ...]
    unfinished: UnfinishedWork
    records: int
    forecast: Forecast
    caught_up_at: datetime | None
    problem: TidemarkError | None
    table_error: TidemarkError | None = None
    kafka_error: TidemarkError | None = None
    rules: AlarmRules

    @property
    def run_error(self) -> TidemarkError | None:
        """The first error that a run would now end with; None if it would continue."""
        return self.problem or self.unfinished.problem

    @property
    def last_landed(self) -> int | None:
        """Number of the newest landed live plan; None before the first."""
        return self.last_run.sequence if self.last_run else None

    @property
    def last_landed_at(self) -> datetime | None:
        """Time of its landing."""
        return self.last_run.landed_at if self.last_run else None

    @property
    def last_check(self) -> str | None:
        """Publication status of the newest plan, with its number if it is of a backfill."""
        check, plan = self.unfinished.last_check, self.unfinished.newest_plan
        return check if plan in (None, self.last_landed) else f"{check} (plan {plan})"

    @property
    def typed_account(self) -> TypedAccount | None:
        """The landed records in the typed table and the quarantine; see `TypedAccount.of`."""
        typed = self.unfinished.typed
        return TypedAccount.of(self.pipeline, self.records, self.missing_rows, typed)

    @property
    def has_started(self) -> bool:
        """Whether there is a committed offset in the topic."""
        return any(each.committed_offset is not None for each in self.partitions)

    @property
    def lag(self) -> int | None:
        """Unread offsets in all partitions; None if not started, or unknown in a partition."""
        return _total(each.lag for each in self.partitions)

    @property
    def held_back(self) -> int | None:
        """Offsets that become readable when an open transaction ends; None if one is unknown."""
        return _total(each.held_back for each in self.partitions)

    @property
    def lag_time(self) -> timedelta | None:
        """Age of the oldest unread record; None without an unread record of known age."""
        return max((p.lag_time for p in self.partitions if p.lag_time is not None), default=None)

    @property
    def runway(self) -> timedelta | None:
        """The shortest runway of a partition; None without one."""
        return min((p.runway for p in self.partitions if p.runway is not None), default=None)

    @property
    def arrival_rate(self) -> float | None:
        """New offsets per second in all partitions; None if unknown in a partition."""
        return _total(each.arrival_rate for each in self.partitions)

    def alarms(self) -> Iterator[TidemarkError]:
        """Yield the problem that would refuse a run, and an error for each exceeded limit.

        A problem hides the alarms whose only fix is a run.
        """
        if self.problem:
            yield self.problem
        if self.kafka_error and self.kafka_error is not self.problem:
            yield self.kafka_error
        for alarm in self._exceeded_limits():
            if self.problem is None or not isinstance(alarm, LagTooLarge):
                yield alarm
        yield from self.unfinished.alarms(self.pipeline, self.rules, self.checked_at)
        account = self.typed_account
        if account and (finding := account.problem()):
            yield RecordsUnaccounted(pipeline=self.pipeline, finding=finding)

    def _exceeded_limits(self) -> Iterator[TidemarkError]:
        rules, lag, lag_time, name = self.rules, self.lag, self.lag_time, self.pipeline
        if rules.runway is not None and self.runway is not None and self.runway < rules.runway:
            yield RunwayTooShort(pipeline=name, runway=self.runway, limit=rules.runway)
        if rules.stalled is not None and self._has_stalled(rules.stalled):
            yield PipelineStalled(
                pipeline=name,
                lag_time=lag_time,
                last_landed_at=self.last_landed_at,
                limit=rules.stalled,
            )
        exceeded = LagTooLarge.exceeding(
            name, lag=lag, lag_limit=rules.lag_records, age=lag_time, age_limit=rules.lag_time
        )
        if exceeded:
            yield exceeded

    @property
    def state(self) -> str:
        """The names of alarms, else the states of unfinished work, else `ok` or `not started`."""
        states = [type(alarm).__name__ for alarm in self.alarms()] or [*self.unfinished.states()]
        return ", ".join(states) or ("ok" if self.has_started else "not started")

    def explain(self, now: datetime) -> Iterator[StatusLine]:
        """Yield a line for people about missing records, and each kind of unfinished work."""
        if self.missing_rows:
            rows = counted(self.missing_rows, "landed row")
            text = (
                f"the data table lacks {rows}, which another program removed. "
                "`tidemark verify` finds those that Kafka still has"
            )
            yield StatusLine(pipeline=self.pipeline, parts=[text])
        account = self.typed_account
        if account and (problem := account.problem()):
            yield StatusLine(pipeline=self.pipeline, parts=[f"{problem}: {account.remedy}"])
        yield from self.unfinished.explain(self.pipeline, now)

    def _has_stalled(self, limit: timedelta) -> bool:
        """Whether a record has waited longer than `limit` without a landing.

        If the age of the unread records is unknown, only the time of the last landing counts.
        """
        last = self.last_landed_at
        nothing_landed = last is None or self.checked_at - last > limit
        if self.lag_time is not None:
            return nothing_landed and self.lag_time > limit
        return nothing_landed and last is not None and bool(self.lag)

    def as_record(self) -> dict[str, Any]:
        """Return the status as plain values, for `--json`; durations in seconds."""
        lists = {
            "open_plans": self.open_plans,
            "unchecked_plans": [plan.sequence for plan in self.unfinished.unchecked_plans],
            "blocked_plans": self.unfinished.blocked,
            "problem": self.run_error,
            "alarms": list(self.alarms()),
            "partitions": self.partitions,
        }
        record: dict[str, Any] = plain({**self.as_row(), **lists})
        return record

    def as_row(self) -> dict[str, Any]:
        """Return the row of the pipeline in the status table."""
        problem = self.run_error
        return {
            "pipeline": self.pipeline,
            "checked_at": self.checked_at,
            "topic": self.topic,
            "lag_checked_at": None if self.kafka_error else self.checked_at,
            "lag": self.lag,
            "held_back": self.held_back,
            "lag_seconds": _seconds(self.lag_time),
            "runway_seconds": _seconds(self.runway),
            "new_offsets_per_second": self.arrival_rate,
            "records": self.records,
            "last_landed_plan": self.last_landed,
            "last_landed_at": self.last_landed_at,
            "last_landed_records": self.last_run.records if self.last_run else None,
            "last_landed_bytes": self.last_run_bytes,
            "last_landed_seconds": _seconds(self.last_run.time if self.last_run else None),
            "stored_bytes": self.stored_bytes,
            "missing_rows": self.missing_rows,
            "open_plans": len(self.open_plans),
            **self.unfinished.as_row(),
            "state": self.state,
            "forecast": self.forecast.value,
            "caught_up_at": self.caught_up_at,
            "problem": type(problem).__name__ if problem else None,
            "alarms": ", ".join(type(alarm).__name__ for alarm in self.alarms()) or None,
        }


def status_row(
    pipeline: str, status: PipelineStatus | TidemarkError, now: datetime
) -> dict[str, Any]:
    """Return a row of the status table, from a status or from the error that prevented it."""
    if isinstance(status, PipelineStatus):
        return status.as_row()
    name = type(status).__name__
    return {
        "pipeline": pipeline,
        "checked_at": now,
        "problem": name,
        "alarms": name,
        "state": name,
    }


def _seconds(time: timedelta | None) -> float | None:
    return None if time is None else time.total_seconds()


_Number = TypeVar("_Number", int, float)


def _total(values: Iterable[_Number | None]) -> _Number | None:
    """Return the sum of values; None without values, or if one is None."""
    known: list[_Number] = []
    for value in values:
        if value is None:
            return None
        known.append(value)
    return sum(known) if known else None


def pipeline_status(
    spec: PipelineSpec, ports: Ports, unfinished: UnfinishedWorkReader
) -> PipelineStatus:
    """Compare a pipeline's ledger with its topic. Only reads; an error becomes the `problem`.

    Kafka is read after the ledger. So an error may come from offsets that a concurrent run has
    landed since, and then everything is read again.

    Args:
        spec: The pipeline.
        ports: The ports of its table. An error of the connection becomes the `problem`.
        unfinished: Finds plans and records that wait for a retry or a decision.

    Raises:
        ControlConflict: Other processes changed the pipeline during each of several attempts.
    """
    reader = _StatusReader(spec=spec, ports=ports, unfinished=unfinished, now=ports.now())
    return retry_on_conflict(reader.read)


class _TopicState(NamedTuple):
    """State of the partitions, the error that the next run would end with, and Kafka's error."""

    partitions: tuple[PartitionStatus, ...]
    problem: TidemarkError | None
    kafka_error: TidemarkError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _StatusReader:
    """Reads one status. The attributes are the arguments of `pipeline_status`."""

    spec: PipelineSpec
    ports: Ports
    unfinished: UnfinishedWorkReader
    now: datetime

    @tables_opened_once()
    def read(self) -> PipelineStatus:
        """Return the status.

        Raises:
            ControlConflict: The pipeline has changed since its ledger was read.
        """
        spec, control, data_log = self.spec, self.ports.control, self.ports.table
        ledger: Ledger
        table_error: TidemarkError | None = None
        try:
            ledger = read_checked_ledger(control, spec.name, data_log, rows=True)
        except TidemarkError as error:
            ledger, table_error = control.summary(spec.name), error
        problem = table_error or self._control_error() or UndoUnfinished.first_of(ledger)
        throughput = control.throughput(spec.name)
        last_run = throughput.runs[-1] if throughput.runs else None
        work, last_run_bytes, stored_bytes, missing = UnfinishedWork(), None, None, None
        try:
            if problem is None:
                missing = missing_rows(control, ledger, data_log)
            work = self.unfinished.read(ledger)
            account = TypedAccount.of(spec.name, ledger.records, missing, work.typed)
            if account and (account.unaccounted or account.backlog.surplus):
                # Since the ledger was read, a plan may have landed and been decoded.
                check_current(control, ledger)
            last_run_bytes = data_log.stored_bytes(last_run.sequence) if last_run else None
            stored_bytes = data_log.stored_bytes()
        except ControlConflict:
            raise
        except TidemarkError as error:
            problem = problem or error
        topic = self._topic_state(ledger, throughput)
        status = PipelineStatus(
            pipeline=spec.name,
            checked_at=self.now,
            topic=spec.topic,
            partitions=topic.partitions,
            last_run=last_run,
            last_run_bytes=last_run_bytes,
            stored_bytes=stored_bytes,
            missing_rows=missing,
            open_plans=tuple(record.plan.sequence for record in ledger.open_plans()),
            unfinished=work,
            records=ledger.records,
            forecast=Forecast.UNKNOWN,
            caught_up_at=None,
            problem=problem or topic.problem,
            table_error=table_error,
            kafka_error=topic.kafka_error,
            rules=spec.alarms,
        )
        if status.problem is not None:
            # No run lands anything before an operator solves the problem.
            return status
        limit = run_limit(spec, data_log, lambda: throughput)
        open_plan = ledger.open_plan(PlanKind.LIVE)
        expected, at = forecast(
            status.lag,
            status.held_back or 0,
            limit,
            status.arrival_rate or 0.0,
            throughput.seconds_between_runs,
            self.now,
            open_plan.plan.size if open_plan else 0,
        )
        return replace(status, forecast=expected, caught_up_at=at)

    def _control_error(self) -> TidemarkError | None:
        """Return the error with which a run could not record its plan."""
        try:
            self.ports.control.check_appends()
        except TidemarkError as error:
            return error
        return None

    def _topic_state(self, ledger: Ledger, throughput: Throughput) -> _TopicState:
        spec = self.spec
        topic: TopicWatermarks | None = None
        view: _Partitions | None = None
        problem: TidemarkError | None = None
        try:
            topic = self.ports.watermarks_of(spec)
            plan_rules.check_identity(ledger, topic)
            view = _Partitions(
                spec=spec,
                ledger=ledger,
                throughput=throughput,
                now=self.now,
                watermarks=topic.partitions,
            )
            view = _with_retention(view, self.ports.watermarks)
            view = replace(view, oldest=_oldest_timestamps(spec, self.ports.log_reader, view))
            self._check_next_run(ledger, topic)
        except TidemarkError as error:
            problem = error
            if topic:
                check_current(self.ports.control, ledger)
            if isinstance(error, TopicDiffers):
                # The offsets of another topic cannot be compared.
                view = None
            elif view and isinstance(error, LogTruncated):
                view = replace(view, truncated=error.partition)
        return _TopicState(
            partitions=view.statuses() if view else _committed_alone(ledger),
            problem=problem,
            kafka_error=None if topic else problem,
        )

    def _check_next_run(self, ledger: Ledger, watermarks: TopicWatermarks) -> None:
        """Raise the error with which the comparison or the draft of the next run would end."""
        comparison = LogComparison(ports=self.ports)
        drafter = Drafter(spec=self.spec, ports=self.ports)
        topic = comparison.compare(ledger, watermarks, watermarks.partitions)
        for record in ledger.open_plans():
            plan_rules.check_readable(record.plan, watermarks)
        # The limit of a run decides how much it reads of each partition, not of which partitions.
        drafter.live(topic, limit=None)
        # Also for partitions without unread records: a truncated log may have its old end.
        comparison.check_records(topic, watermarks.partitions)


def _committed_alone(ledger: Ledger) -> tuple[PartitionStatus, ...]:
    """Return the partitions of the ledger with their committed offsets, without the topic."""
    return tuple(
        PartitionStatus(partition=each, committed_offset=ledger.committed_offset(each))
        for each in sorted(ledger.starts)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partitions:
    """Values from which the status of each partition is computed.

    Attributes:
        spec: The pipeline.
        ledger: The ledger of the pipeline.
        throughput: The newest runs of the pipeline.
        now: Current time.
        watermarks: The topic's watermarks at the pipeline's isolation level, by partition.
        high_watermarks: High watermarks, by partition; without one, the end in `watermarks`.
        retention: The topic's retention time; None if unlimited or unknown.
        oldest: Timestamp of the oldest unread record, by partition.
        truncated: A partition whose log lost landed records and has grown again; None if unknown.
    """

    spec: PipelineSpec
    ledger: Ledger
    throughput: Throughput
    now: datetime
    watermarks: Mapping[int, Watermarks]
    high_watermarks: Mapping[int, int] = field(default_factory=dict)
    retention: timedelta | None = None
    oldest: Mapping[int, datetime] = field(default_factory=dict)
    truncated: int | None = None

    def statuses(self) -> tuple[PartitionStatus, ...]:
        """Return the status of every partition, sorted by number."""
        return tuple(
            self._status(number, watermarks)
            for number, watermarks in sorted(self.watermarks.items())
        )

    def unread(self, partition: int) -> SpanSet:
        """Return readable offsets that have not landed, from the start of the next run on."""
        start, end = self._next_start(partition), self.watermarks[partition].end
        if start is None or start >= end:
            return SpanSet()
        return self.ledger.covered(partition).missing_from(Span(start, end))

    def held_back(self, partition: int) -> SpanSet:
        """Return offsets from the end of the readable log to the high watermark."""
        end = self.watermarks[partition].end
        high = self.high_watermarks.get(partition, end)
        is_read = self._next_start(partition) is not None and end < high
        return SpanSet((Span(end, high),)) if is_read else SpanSet()

    def _next_start(self, partition: int) -> int | None:
        """Return the first offset of the next run; None if it is not known yet."""
        if partition in self.ledger.starts:
            return self.ledger.committed_offset(partition)
        if self.ledger.starts:
            # The same rule as in `plan_rules.new_partitions`.
            return 0
        is_earliest = self.spec.start is StartPolicy.EARLIEST
        return self.watermarks[partition].low if is_earliest else None

    def _is_comparable(self, partition: int) -> bool:
        """Whether the log still contains the landed records, so that offsets can be compared."""
        landed = self.ledger.landed.get(partition)
        ends = [self._next_start(partition) or 0, landed.spans[-1].end if landed else 0]
        return max(ends) <= self.watermarks[partition].end and partition != self.truncated

    def _status(self, number: int, watermarks: Watermarks) -> PartitionStatus:
        start = self._next_start(number)
        unread, held_back = self.unread(number).size, self.held_back(number).size
        backlog = Backlog(
            low=watermarks.low,
            committed=watermarks.low if start is None else start,
            size=unread + held_back,
            oldest=self.oldest.get(number),
        )
        # Before its first plan, a pipeline has no committed offsets and no lag.
        has_started = bool(self.ledger.starts)
        status = PartitionStatus(
            partition=number,
            low_watermark=watermarks.low,
            end=watermarks.end,
            committed_offset=start if has_started else None,
        )
        if not self._is_comparable(number):
            return status
        return replace(
            status,
            lag=unread if has_started else None,
            held_back=held_back,
            lag_time=backlog.age(self.now),
            runway=runway(backlog, self.now, self.retention, self._earlier_low_watermark(number)),
            arrival_rate=backlog.arrival_rate(self.now),
        )

    def _earlier_low_watermark(self, partition: int) -> tuple[datetime, int] | None:
        low = self.throughput.lows.get(partition)
        return None if low is None else (self.throughput.runs[0].planned_at, low)


def _with_retention(view: _Partitions, watermarks: TopicReader) -> _Partitions:
    """Return the view with the high watermarks and the retention time."""
    topic = view.spec.topic
    uncommitted = watermarks.topic_watermarks(topic, IsolationLevel.READ_UNCOMMITTED)
    return replace(
        view,
        high_watermarks={p: each.end for p, each in uncommitted.partitions.items()},
        retention=watermarks.retention_time(topic),
    )


def _oldest_timestamps(
    spec: PipelineSpec, log_reader: TopicLogReader, view: _Partitions
) -> Mapping[int, datetime]:
    """Return the timestamp of the oldest unread or held-back record, by partition, if valid."""
    unread = {p: each.readable(view.unread(p)) for p, each in view.watermarks.items()}
    held_back = {p: view.held_back(p) for p in view.watermarks if not unread[p]}
    records = [
        *log_reader.first_records(spec.topic, spec.isolation_level, unread),
        *log_reader.first_records(spec.topic, IsolationLevel.READ_UNCOMMITTED, held_back),
    ]
    return {record.partition: at for record in records if (at := _timestamp_of(record))}


def _timestamp_of(record: LogRecord) -> datetime | None:
    """Return the timestamp of a record; None without one, or if Python cannot represent it."""
    if record.timestamp_ms < 0:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=record.timestamp_ms)
    except OverflowError:
        return None
