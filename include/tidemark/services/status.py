"""How far each pipeline is behind its topic: lag without a consumer group, and alarms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tidemark.core import planning
from tidemark.core.ledger import Ledger
from tidemark.core.marks import Marks, TopicMarks
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.pace import Forecast, Pace, Unread, forecast, runway
from tidemark.core.plan import PlannedRange
from tidemark.core.records import LogRecord
from tidemark.core.spec import AlarmRules, PipelineSpec, StartPolicy
from tidemark.errors import (
    LagTooLarge,
    LagTooLong,
    NoStartOffset,
    PipelineStalled,
    RunwayTooShort,
    TidemarkError,
    UndoUnfinished,
)
from tidemark.ports import ControlReader, DataLog, LogReader, MarkReader
from tidemark.services.limits import run_limit
from tidemark.services.positions import check_positions
from tidemark.services.recording import checked_ledger

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One partition: the readable log `[low, end)` and how far of it has landed.

    Attributes:
        partition: Partition number.
        low: Low-water mark.
        end: End of the readable log at the pipeline's isolation level.
        committed: Committed offset; None if the pipeline has not begun here.
        lag: Unread offsets, an upper bound on unread records; None if not begun.
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
        last_landed: Newest plan that landed what was unread, no backfill; None before the first.
        last_landed_at: When it landed.
        open_plans: Plans recorded and not landed.
        records: Records landed by all plans.
        forecast: When it will have caught up.
        caught_up_at: The moment, if the forecast is `LATER`.
        problem: What a run would be refused for now; None if it would go ahead.
        rules: What is an alarm.
    """

    pipeline: str
    checked_at: datetime
    topic: str
    partitions: tuple[PartitionStatus, ...]
    last_landed: int | None
    last_landed_at: datetime | None
    open_plans: tuple[int, ...]
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
        if waiting is not None and rules.stalled is not None and self._has_stalled(rules.stalled):
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

    def _has_stalled(self, longest: timedelta) -> bool:
        """Whether a record has waited so long, and nothing has landed meanwhile."""
        waiting = self.lag_time is not None and self.lag_time > longest
        last = self.last_landed_at
        return waiting and (last is None or self.checked_at - last > longest)

    def as_record(self) -> dict[str, Any]:
        """The status as plain values, for `--json`; times in seconds."""
        return {
            **self.as_row(),
            "open_plans": list(self.open_plans),
            "problem": self.problem.as_record() if self.problem else None,
            "alarms": [alarm.as_record() for alarm in self.alarms()],
            "partitions": [
                {
                    "partition": here.partition,
                    "low_water_mark": here.low,
                    "end": here.end,
                    "committed_offset": here.committed,
                    "lag": here.lag,
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
            "lag_seconds": _seconds(self.lag_time),
            "runway_seconds": _seconds(self.runway),
            "arriving_per_second": self.arriving,
            "records": self.records,
            "last_landed_plan": self.last_landed,
            "last_landed_at": self.last_landed_at,
            "open_plans": len(self.open_plans),
            "forecast": self.forecast.value,
            "caught_up_at": self.caught_up_at,
            "problem": type(self.problem).__name__ if self.problem else None,
            "alarms": ", ".join(type(alarm).__name__ for alarm in self.alarms()) or None,
        }


def _seconds(time: timedelta | None) -> float | None:
    return None if time is None else time.total_seconds()


def pipeline_status(
    spec: PipelineSpec,
    control: ControlReader,
    data_log: DataLog,
    open_marks: Callable[[], MarkReader],
    open_log: Callable[[], LogReader],
    now: datetime,
) -> PipelineStatus:
    """Compare a pipeline's ledger with its topic. Reads only; what goes wrong is a `problem`.

    Args:
        spec: The pipeline.
        control: The control table.
        data_log: The data table's log.
        open_marks: Opens its connection for marks, which may be refused as well.
        open_log: Opens its connection for records.
        now: The present.
    """
    problem: TidemarkError | None = None
    try:
        ledger = checked_ledger(control, spec.name, data_log)
    except TidemarkError as refused:
        ledger, problem = control.summary(spec.name), refused
    partitions: tuple[PartitionStatus, ...] = ()
    pace = control.pace(spec.name)
    try:
        marks = open_marks()
        topic = marks.topic_marks(spec.topic, spec.isolation_level)
        told = _Told(ledger=None if spec.is_copy else ledger, pace=pace, now=now)
        partitions = told.partitions(topic.partitions)
        if not spec.is_copy:
            ranges = _next_ranges(spec, ledger, topic)
            log_reader = open_log()
            check_positions(ledger, topic, ranges, marks, log_reader)
            unread = {p: told.unread(p, here) for p, here in topic.partitions.items()}
            waiting = log_reader.first_records(spec.topic, spec.isolation_level, unread)
            told = replace(
                told,
                retention=marks.retention_time(spec.topic),
                oldest={r.partition: at for r in waiting if (at := _stamped_at(r))},
            )
            partitions = told.partitions(topic.partitions)
    except TidemarkError as refused:
        problem = problem or refused
    for record in ledger.plans.values():
        if record.undoing:
            problem = problem or UndoUnfinished(pipeline=spec.name, sequence=record.plan.sequence)
    status = PipelineStatus(
        pipeline=spec.name,
        checked_at=now,
        topic=spec.topic,
        partitions=partitions,
        last_landed=pace.runs[-1].sequence if pace.runs else None,
        last_landed_at=pace.last_landed_at,
        open_plans=tuple(record.plan.sequence for record in ledger.open_plans()),
        records=ledger.records,
        forecast=Forecast.UNKNOWN,
        caught_up_at=None,
        problem=problem,
        rules=spec.alarms,
    )
    limit = run_limit(spec, control, data_log)
    expected, at = forecast(status.lag, limit, status.arriving, pace.offsets_per_second, now)
    return replace(status, forecast=expected, caught_up_at=at)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What is known of a pipeline's partitions.

    Attributes:
        ledger: None for a copy, which has no position.
        pace: Its newest runs.
        now: The present.
        retention: The topic's retention time.
        oldest: When the oldest unread record was stamped, by partition.
    """

    ledger: Ledger | None
    pace: Pace
    now: datetime
    retention: timedelta | None = None
    oldest: Mapping[int, datetime] = field(default_factory=dict)

    def partitions(self, marks: Mapping[int, Marks]) -> tuple[PartitionStatus, ...]:
        """Every partition, sorted by number."""
        return tuple(self._partition(number, here) for number, here in sorted(marks.items()))

    def unread(self, partition: int, here: Marks) -> SpanSet:
        """Offsets of the log that have not landed; none where the pipeline has not begun."""
        if not self.ledger or partition not in self.ledger.starts:
            return SpanSet()
        committed = self.ledger.committed_offset(partition)
        if committed >= here.end:
            return SpanSet()
        return self.ledger.covered(partition).missing_from(Span(committed, here.end))

    def _partition(self, number: int, here: Marks) -> PartitionStatus:
        if not self.ledger or number not in self.ledger.starts:
            return PartitionStatus(
                partition=number,
                low=here.low,
                end=here.end,
                committed=None,
                lag=None,
                lag_time=None,
                runway=None,
                arriving=0.0,
            )
        unread = Unread(
            low=here.low,
            committed=self.ledger.committed_offset(number),
            size=self.unread(number, here).size,
            oldest=self.oldest.get(number),
        )
        return PartitionStatus(
            partition=number,
            low=here.low,
            end=here.end,
            committed=unread.committed,
            lag=unread.size,
            lag_time=unread.age(self.now),
            runway=runway(unread, self.now, self.retention, self._low_before(number)),
            arriving=unread.arriving(self.now),
        )

    def _low_before(self, partition: int) -> tuple[datetime, int] | None:
        low = self.pace.lows.get(partition)
        return None if low is None else (self.pace.runs[0].planned_at, low)


def _stamped_at(record: LogRecord) -> datetime | None:
    """When a record was stamped; None if it has no timestamp."""
    if record.timestamp_ms < 0:
        return None
    return _EPOCH + timedelta(milliseconds=record.timestamp_ms)


def _next_ranges(spec: PipelineSpec, ledger: Ledger, topic: TopicMarks) -> tuple[PlannedRange, ...]:
    """What the next run would read; raises what it would be refused with."""
    planning.check_identity(ledger, topic)
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
