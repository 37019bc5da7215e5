"""How far each pipeline is behind its topic: lag without a consumer group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidemark.core import planning
from tidemark.core.ledger import Ledger
from tidemark.core.marks import Marks, TopicMarks
from tidemark.core.offsets import Span
from tidemark.core.plan import PlannedRange
from tidemark.core.spec import PipelineSpec, StartPolicy
from tidemark.errors import NoStartOffset, TidemarkError, UndoUnfinished
from tidemark.ports import ControlReader, DataLog, LogReader, MarkReader
from tidemark.services.positions import check_positions
from tidemark.services.recording import checked_ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One partition: the readable log `[low, end)` and how far of it has landed.

    Attributes:
        partition: Partition number.
        low: Low-water mark.
        end: End of the readable log at the pipeline's isolation level.
        committed: Committed offset; None if the pipeline has not begun here.
        lag: Unread offsets, an upper bound on unread records; None if not begun.
    """

    partition: int
    low: int
    end: int
    committed: int | None
    lag: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """One pipeline at one moment.

    Attributes:
        pipeline: Pipeline name.
        topic: Topic name.
        partitions: Sorted by number.
        last_landed: Newest landed plan; None before the first.
        open_plans: Plans recorded and not landed.
        records: Records landed by all plans.
        problem: What a run would be refused for now; None if it would go ahead.
    """

    pipeline: str
    topic: str
    partitions: tuple[PartitionStatus, ...]
    last_landed: int | None
    open_plans: tuple[int, ...]
    records: int
    problem: TidemarkError | None

    @property
    def begun(self) -> bool:
        """Whether the pipeline has a position in its topic."""
        return any(here.committed is not None for here in self.partitions)

    @property
    def lag(self) -> int | None:
        """Unread offsets over all partitions; None if the pipeline has not begun in any."""
        known = [here.lag for here in self.partitions if here.lag is not None]
        return sum(known) if known else None

    def as_record(self) -> dict[str, Any]:
        """The status as plain values, for `--json`."""
        return {
            "pipeline": self.pipeline,
            "topic": self.topic,
            "lag": self.lag,
            "records": self.records,
            "last_landed_plan": self.last_landed,
            "open_plans": list(self.open_plans),
            "problem": self.problem.as_record() if self.problem else None,
            "partitions": [
                {
                    "partition": here.partition,
                    "low_water_mark": here.low,
                    "end": here.end,
                    "committed_offset": here.committed,
                    "lag": here.lag,
                }
                for here in self.partitions
            ],
        }


def pipeline_status(
    spec: PipelineSpec,
    control: ControlReader,
    data_log: DataLog,
    open_marks: Callable[[], MarkReader],
    open_log: Callable[[], LogReader],
) -> PipelineStatus:
    """Compare a pipeline's ledger with its topic. Reads only; what goes wrong is a `problem`.

    Args:
        spec: The pipeline.
        control: The control table.
        data_log: The data table's log.
        open_marks: Opens its connection for marks, which may be refused as well.
        open_log: Opens its connection for records.
    """
    problem: TidemarkError | None = None
    try:
        ledger = checked_ledger(control, spec.name, data_log)
    except TidemarkError as refused:
        ledger, problem = control.summary(spec.name), refused
    here: Mapping[int, Marks] = {}
    try:
        marks = open_marks()
        topic = marks.topic_marks(spec.topic, spec.isolation_level)
        here = topic.partitions
        if not spec.is_copy:
            ranges = _next_ranges(spec, ledger, topic)
            check_positions(ledger, topic, ranges, marks, open_log())
    except TidemarkError as refused:
        problem = problem or refused
    for record in ledger.plans.values():
        if record.undoing:
            problem = problem or UndoUnfinished(pipeline=spec.name, sequence=record.plan.sequence)
    return PipelineStatus(
        pipeline=spec.name,
        topic=spec.topic,
        partitions=tuple(
            _partition_status(None if spec.is_copy else ledger, number, mark)
            for number, mark in sorted(here.items())
        ),
        last_landed=ledger.last_landed,
        open_plans=tuple(record.plan.sequence for record in ledger.open_plans()),
        records=ledger.records,
        problem=problem,
    )


def _partition_status(ledger: Ledger | None, partition: int, mark: Marks) -> PartitionStatus:
    committed = lag = None
    if ledger and partition in ledger.starts:
        committed, lag = ledger.committed_offset(partition), 0
        if committed < mark.end:
            lag = ledger.covered(partition).missing_from(Span(committed, mark.end)).size
    return PartitionStatus(
        partition=partition, low=mark.low, end=mark.end, committed=committed, lag=lag
    )


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
