"""How far each pipeline is behind its topic: lag without a consumer group, and alarms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tidemark.core import plan_rules as planning
from tidemark.core.errors import TidemarkError
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import PlanKind, PlannedRange
from tidemark.core.record import LogRecord
from tidemark.core.throughput import Backlog, Forecast, Throughput, forecast, runway
from tidemark.core.watermarks import IsolationLevel, TopicWatermarks, Watermarks
from tidemark.ingest.errors import NoStartOffset
from tidemark.ingest.limits import run_limit
from tidemark.ingest.log_comparison import LogComparison
from tidemark.ingest.protocols import BronzeLog, ControlReader, TopicLogReader, TopicReader
from tidemark.ingest.recorder import checked_ledger
from tidemark.report.errors import (
    LagTooLarge,
    LagTooLong,
    PipelineStalled,
    RunwayTooShort,
    UndoUnfinished,
)
from tidemark.report.unsettled import Unsettled, Unsettling
from tidemark.spec.model import AlarmRules, PipelineSpec, StartPolicy

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One partition: the readable log `[low, end)` and how far of it has landed.

    Attributes:
        partition: Partition number.
        low: Low watermark.
        end: End of the readable log at the pipeline's isolation level.
        committed: Committed offset; None if the pipeline has not begun here.
        lag: Unread offsets, an upper bound on unread records; None if not begun.
        held_back: Offsets behind `end`, which nobody can read before a transaction has ended.
        lag_time: How long the oldest unread record has waited; None if none is known to wait.
        runway: Time until Kafka deletes what is unread, at the earliest; None if nothing is unread
            or nothing says that it does.
        arriving: New offsets per second since the oldest unread record.
    """

    partition: int
    low: int
    end: int
    committed: int | None
    lag: int | None
    held_back: int
    lag_time: timedelta | None
    runway: timedelta | None
    arriving: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """One pipeline at one moment.

    Attributes:
        pipeline: Pipeline name.
        checked_at: The moment.
        topic: Topic name.
        partitions: Sorted by number.
        last_landed: Newest landed plan that is not a backfill; None before the first.
        last_landed_at: When it landed.
        open_plans: Plans recorded and not landed.
        unsettled: Plans and records that wait for a retry or a decision.
        records: Records landed by all plans.
        forecast: When it will have caught up.
        caught_up_at: The moment, if the forecast is `LATER`.
        problem: The error that a run would end with now; None if it would continue.
        rules: The limits that raise alarms.
    """

    pipeline: str
    checked_at: datetime
    topic: str
    partitions: tuple[PartitionStatus, ...]
    last_landed: int | None
    last_landed_at: datetime | None
    open_plans: tuple[int, ...]
    unsettled: Unsettled
    records: int
    forecast: Forecast
    caught_up_at: datetime | None
    problem: TidemarkError | None
    rules: AlarmRules

    @property
    def begun(self) -> bool:
        """Whether the pipeline has a position in its topic."""
        return any(here.committed is not None for here in self.partitions)

    @property
    def lag(self) -> int | None:
        """Unread offsets over all partitions; None if the pipeline has not begun in any."""
        known = [here.lag for here in self.partitions if here.lag is not None]
        return sum(known) if known else None

    @property
    def held_back(self) -> int:
        """Offsets that nobody can read before a transaction has ended."""
        return sum(here.held_back for here in self.partitions)

    @property
    def lag_time(self) -> timedelta | None:
        """How long the oldest unread record has waited; None if none is known to wait."""
        return max((p.lag_time for p in self.partitions if p.lag_time is not None), default=None)

    @property
    def runway(self) -> timedelta | None:
        """The shortest of the partitions."""
        return min((p.runway for p in self.partitions if p.runway is not None), default=None)

    @property
    def arriving(self) -> float:
        """New offsets per second, lately."""
        return sum(here.arriving for here in self.partitions)

    def alarms(self) -> Iterator[TidemarkError]:
        """What somebody should be told: what a run would be refused for, and broken rules."""
        if self.problem:
            yield self.problem
        rules, lag, waiting, name = self.rules, self.lag, self.lag_time, self.pipeline
        if rules.runway is not None and self.runway is not None and self.runway < rules.runway:
            yield RunwayTooShort(pipeline=name, runway=self.runway, least=rules.runway)
        if rules.stalled is not None and self._has_stalled(rules.stalled):
            yield PipelineStalled(
                pipeline=name,
                waiting=waiting,
                last_landed_at=self.last_landed_at,
                longest=rules.stalled,
            )
        if rules.lag_time is not None and waiting is not None and waiting > rules.lag_time:
            yield LagTooLong(pipeline=name, waiting=waiting, longest=rules.lag_time)
        if rules.lag_records is not None and lag is not None and lag > rules.lag_records:
            yield LagTooLarge(pipeline=name, lag=lag, most=rules.lag_records)
        yield from self.unsettled.alarms(name, rules, self.checked_at)

    @property
    def state(self) -> str:
        """One state or several: alarms, else the unsettled states, else `not begun` or `ok`."""
        words = [type(alarm).__name__ for alarm in self.alarms()] or list(self.unsettled.words())
        return ", ".join(words) or ("ok" if self.begun else "not begun")

    def _has_stalled(self, longest: timedelta) -> bool:
        """Whether a record has waited so long, and nothing has landed meanwhile.

        Of records whose age nobody can tell, the last landing alone tells.
        """
        last = self.last_landed_at
        nothing_landed = last is None or self.checked_at - last > longest
        if self.lag_time is not None:
            return nothing_landed and self.lag_time > longest
        return nothing_landed and last is not None and bool(self.lag)

    def as_record(self) -> dict[str, Any]:
        """The status as plain values, for `--json`; times in seconds."""
        return {
            **self.as_row(),
            "open_plans": list(self.open_plans),
            "blocked_plans": list(self.unsettled.blocked),
            "problem": self.problem.as_record() if self.problem else None,
            "alarms": [alarm.as_record() for alarm in self.alarms()],
            "partitions": [
                {
                    "partition": here.partition,
                    "low_watermark": here.low,
                    "end": here.end,
                    "committed_offset": here.committed,
                    "lag": here.lag,
                    "held_back": here.held_back,
                    "lag_seconds": _seconds(here.lag_time),
                    "runway_seconds": _seconds(here.runway),
                }
                for here in self.partitions
            ],
        }

    def as_row(self) -> dict[str, Any]:
        """A row of the status table."""
        return {
            "pipeline": self.pipeline,
            "checked_at": self.checked_at,
            "topic": self.topic,
            "lag": self.lag,
            "held_back": self.held_back,
            "lag_seconds": _seconds(self.lag_time),
            "runway_seconds": _seconds(self.runway),
            "arriving_per_second": self.arriving,
            "records": self.records,
            "last_landed_plan": self.last_landed,
            "last_landed_at": self.last_landed_at,
            "open_plans": len(self.open_plans),
            **self.unsettled.as_row(),
            "state": self.state,
            "forecast": self.forecast.value,
            "caught_up_at": self.caught_up_at,
            "problem": type(self.problem).__name__ if self.problem else None,
            "alarms": ", ".join(type(alarm).__name__ for alarm in self.alarms()) or None,
        }


def row_of(pipeline: str, seen: PipelineStatus | TidemarkError, now: datetime) -> dict[str, Any]:
    """A row of the status table, also of a pipeline that nobody could look at."""
    if isinstance(seen, PipelineStatus):
        return seen.as_row()
    name = type(seen).__name__
    row = {"pipeline": pipeline, "checked_at": now, "problem": name, "alarms": name}
    return {**row, "state": name}


def _seconds(time: timedelta | None) -> float | None:
    return None if time is None else time.total_seconds()


def pipeline_status(
    spec: PipelineSpec,
    control: ControlReader,
    data_log: BronzeLog,
    open_watermarks: Callable[[], TopicReader],
    open_log: Callable[[], TopicLogReader],
    unsettling: Unsettling,
    now: datetime,
) -> PipelineStatus:
    """Compare a pipeline's ledger with its topic. Only reads; an error becomes a `problem`.

    Args:
        spec: The pipeline.
        control: The control table.
        data_log: The data table's log.
        open_watermarks: Opens its connection for watermarks, which may be refused as well.
        open_log: Opens its connection for records.
        unsettling: Finds plans and records that wait for a retry or a decision.
        now: The present.
    """
    ledger: Ledger
    problem: TidemarkError | None = None
    try:
        ledger = checked_ledger(control, spec.name, data_log, rows=True)
    except TidemarkError as refused:
        ledger, problem = control.summary(spec.name), refused
    for record in ledger.plans.values():
        if record.undoing:
            problem = problem or UndoUnfinished(pipeline=spec.name, sequence=record.plan.sequence)
    unsettled = Unsettled()
    try:
        unsettled = unsettling.look(ledger)
    except TidemarkError as refused:
        problem = problem or refused
    partitions: tuple[PartitionStatus, ...] = ()
    throughput = control.throughput(spec.name)
    try:
        watermarks = open_watermarks()
        topic = watermarks.topic_watermarks(spec.topic, spec.isolation_level)
        told = _Partitions(
            spec=spec, ledger=ledger, throughput=throughput, now=now, watermarks=topic.partitions
        )
        partitions = told.all()
        if spec.is_live:
            log_reader = open_log()
            everything = watermarks.topic_watermarks(
                spec.topic, IsolationLevel.READ_UNCOMMITTED
            ).partitions
            told = replace(
                told,
                high={p: here.end for p, here in everything.items()},
                retention=watermarks.retention_time(spec.topic),
            )
            told = replace(told, oldest=_oldest(spec, log_reader, told))
            partitions = told.all()
            comparison = LogComparison(
                watermarks=watermarks, control=control, landed=data_log, log_reader=log_reader
            )
            planning.check_identity(ledger, topic)
            comparison.check_ends(ledger, topic, topic.partitions)
            comparison.check_leaders(ledger, topic, _next_ranges(spec, ledger, topic))
            # Also for partitions without unread records: a log may end where it did before.
            comparison.check_records(ledger, topic, topic.partitions)
    except TidemarkError as refused:
        problem = problem or refused
    status = PipelineStatus(
        pipeline=spec.name,
        checked_at=now,
        topic=spec.topic,
        partitions=partitions,
        last_landed=throughput.runs[-1].sequence if throughput.runs else None,
        last_landed_at=throughput.last_landed_at,
        open_plans=tuple(record.plan.sequence for record in ledger.open_plans()),
        unsettled=unsettled,
        records=ledger.records,
        forecast=Forecast.UNKNOWN,
        caught_up_at=None,
        problem=problem,
        rules=spec.alarms,
    )
    if problem is not None and status.lag:
        # No run takes anything before somebody has put that right.
        return status
    limit = run_limit(spec, data_log, lambda: throughput)
    opened = ledger.open_plan(PlanKind.LIVE)
    expected, at = forecast(
        status.lag,
        status.held_back,
        limit,
        status.arriving,
        throughput.seconds_between_runs,
        now,
        opened.plan.size if opened else 0,
    )
    return replace(status, forecast=expected, caught_up_at=at)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partitions:
    """What is known of a pipeline's partitions.

    Attributes:
        spec: The pipeline.
        ledger: Its ledger.
        throughput: Its newest runs.
        now: The present.
        watermarks: The topic's watermarks, by partition.
        high: High watermarks, by partition; as `watermarks` where it is not known.
        retention: The topic's retention time.
        oldest: When the oldest unread record was stamped, by partition.
    """

    spec: PipelineSpec
    ledger: Ledger
    throughput: Throughput
    now: datetime
    watermarks: Mapping[int, Watermarks]
    high: Mapping[int, int] = field(default_factory=dict)
    retention: timedelta | None = None
    oldest: Mapping[int, datetime] = field(default_factory=dict)

    def all(self) -> tuple[PartitionStatus, ...]:
        """Every partition, sorted by number."""
        return tuple(
            self._partition(number, here) for number, here in sorted(self.watermarks.items())
        )

    def unread(self, partition: int) -> SpanSet:
        """Offsets that can be read and have not landed, from where the next run reads on."""
        begin, end = self._begin(partition), self.watermarks[partition].end
        if begin is None or begin >= end:
            return SpanSet()
        return self.ledger.covered(partition).missing_from(Span(begin, end))

    def held_back(self, partition: int) -> SpanSet:
        """Offsets behind those that can be read."""
        end = self.watermarks[partition].end
        high = self.high.get(partition, end)
        is_read = self._begin(partition) is not None and end < high
        return SpanSet((Span(end, high),)) if is_read else SpanSet()

    def _begin(self, partition: int) -> int | None:
        """Where the next run reads on, or would begin; None where nobody knows yet."""
        if not self.spec.is_live:
            return None
        if partition in self.ledger.starts:
            return self.ledger.committed_offset(partition)
        if self.ledger.starts:
            # As `planning.new_partitions`.
            return 0
        is_all = self.spec.start is StartPolicy.EARLIEST
        return self.watermarks[partition].low if is_all else None

    def _partition(self, number: int, here: Watermarks) -> PartitionStatus:
        begin = self._begin(number)
        unread, held_back = self.unread(number).size, self.held_back(number).size
        waiting = Backlog(
            low=here.low,
            committed=here.low if begin is None else begin,
            size=unread + held_back,
            oldest=self.oldest.get(number),
        )
        # Of a pipeline that has not begun nobody knows what it will read.
        has_begun = bool(self.ledger.starts) and self.spec.is_live
        return PartitionStatus(
            partition=number,
            low=here.low,
            end=here.end,
            committed=begin if has_begun else None,
            lag=unread if has_begun else None,
            held_back=held_back,
            lag_time=waiting.age(self.now),
            runway=runway(waiting, self.now, self.retention, self._low_before(number)),
            arriving=waiting.arrival_rate(self.now),
        )

    def _low_before(self, partition: int) -> tuple[datetime, int] | None:
        low = self.throughput.lows.get(partition)
        return None if low is None else (self.throughput.runs[0].planned_at, low)


def _oldest(
    spec: PipelineSpec, log_reader: TopicLogReader, told: _Partitions
) -> Mapping[int, datetime]:
    """When the first record that waits was stamped, by partition, as far as it can be told."""
    unread = {p: here.readable(told.unread(p)) for p, here in told.watermarks.items()}
    held_back = {p: told.held_back(p) for p in told.watermarks if not unread[p]}
    waiting = [
        *log_reader.first_records(spec.topic, spec.isolation_level, unread),
        *log_reader.first_records(spec.topic, IsolationLevel.READ_UNCOMMITTED, held_back),
    ]
    return {record.partition: at for record in waiting if (at := _stamped_at(record))}


def _stamped_at(record: LogRecord) -> datetime | None:
    """When a record was stamped; None if it has no timestamp, or none that can be meant."""
    if record.timestamp_ms < 0:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=record.timestamp_ms)
    except OverflowError:
        return None


def _next_ranges(
    spec: PipelineSpec, ledger: Ledger, topic: TopicWatermarks
) -> tuple[PlannedRange, ...]:
    """What the next run would read; raises what it would be refused with."""
    for record in ledger.open_plans():
        planning.check_readable(record.plan, topic)
    if ledger.starts:
        starts = planning.new_partitions(ledger, topic)
        return planning.live_ranges(ledger, starts, topic, limit=None)
    if spec.start is StartPolicy.NONE:
        raise NoStartOffset(
            pipeline=spec.name, topic=spec.topic, partitions=tuple(sorted(topic.partitions))
        )
    return ()
