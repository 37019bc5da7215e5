"""Worlds and actors without one rule of the protocol; a search must find each of these bugs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, TypeVar

from tests.model.actors import Program
from tests.model.world import FetchedRecords, ModelTable, StartedFence, World
from tests.support.memory import MemoryControlTable, MemoryKafka
from tests.support.plans import MemoryPipeline
from tidemark.core.accounting import Landing
from tidemark.core.event_rows import encode
from tidemark.core.events import ControlEvent, UndoStarted
from tidemark.core.ledger import CheckedLedger, PlanRecord
from tidemark.core.plan import Plan
from tidemark.core.record import LogRecord
from tidemark.core.watermarks import IsolationLevel, TopicWatermarks

_Adapter = TypeVar("_Adapter")


@dataclass
class NoTransactions(ModelTable):
    """Data table that ignores transactions."""

    def begin(self, plan: Plan) -> int | None:
        del plan
        return len(self.commits)

    def finish(self, plan: Plan, start_version: int, fetched: FetchedRecords) -> None:
        del start_version
        super().finish(plan, len(self.commits), fetched)


@dataclass
class NoCompareAndSet(MemoryControlTable):
    """Control table that appends without a comparison."""

    def append(
        self, ledger: CheckedLedger, events: Sequence[ControlEvent], recorded_at: datetime
    ) -> None:
        number = ledger.event_number + 1
        self.rows += encode(ledger.pipeline, number, recorded_at, events)
        self.newest[ledger.pipeline] = max(number, self.newest.get(ledger.pipeline, 0))


@dataclass
class NoUndoStarted(MemoryControlTable):
    """Control table that does not record the start of an undo."""

    def append(
        self, ledger: CheckedLedger, events: Sequence[ControlEvent], recorded_at: datetime
    ) -> None:
        if recorded := [event for event in events if not isinstance(event, UndoStarted)]:
            super().append(ledger, recorded, recorded_at)


@dataclass
class NoDecisions(MemoryControlTable):
    """Control table whose plans have no decisions, so that no check sees those of others."""

    def plan_record(self, pipeline: str, sequence: int) -> PlanRecord | None:
        record = super().plan_record(pipeline, sequence)
        return record and replace(record, decision=None)


@dataclass
class NoConfirm(ModelTable):
    """Data table that reports each skipped commit as a landing.

    Attributes:
        skipped: Plans whose commit was skipped.
    """

    skipped: list[Plan] = field(default_factory=list)

    def begin(self, plan: Plan) -> int | None:
        start_version = super().begin(plan)
        if start_version is None:
            self.skipped.append(plan)
        return start_version

    def begin_fence(self, plan: Plan) -> int | None:
        return super().begin(plan)

    def find_landing(self, plan: Plan) -> Landing | None:
        if plan in self.skipped:
            return Landing.of(plan, len(self.commits), {})
        return super().find_landing(plan)


@dataclass
class NoFence(ModelTable):
    """Data table in which an abandoned plan can land."""

    def finish_fence(self, plan: Plan, start_version: int) -> None:
        """Write no fence."""


@dataclass
class NoChainFence(ModelTable):
    """Data table that does not fence old epochs in a repair."""

    def finish_fence_chains(self, pipeline: str, started_fence: StartedFence) -> int:
        del pipeline, started_fence
        return len(self.commits)


class _Kafka:
    """Kafka, read by a service that lacks a rule."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self._kafka = kafka

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kafka, name)


class _AnyTopic(_Kafka):
    def topic_watermarks(self, topic: str, isolation_level: IsolationLevel) -> TopicWatermarks:
        return replace(self._kafka.topic_watermarks(topic, isolation_level), topic_id="id-1")


class _HighWatermarks(_Kafka):
    def topic_watermarks(self, topic: str, isolation_level: IsolationLevel) -> TopicWatermarks:
        watermarks = self._kafka.topic_watermarks(topic, IsolationLevel.READ_UNCOMMITTED)
        return replace(watermarks, isolation_level=isolation_level)


class _NoEvidence(_Kafka):
    def read(self, *_: object) -> Iterator[LogRecord]:
        return iter(())


def without_topic_id(program: Program) -> Program:
    """Let the program accept every topic of the planned name."""
    return lambda pipeline: program(_over(pipeline, _AnyTopic(pipeline.kafka)))


def without_stable_offset(program: Program) -> Program:
    """Let the program plan up to the high watermark and read committed records."""
    return lambda pipeline: program(_over(pipeline, _HighWatermarks(pipeline.kafka)))


def without_evidence(program: Program) -> Program:
    """Let the program record every offset without a row as a gap."""
    return lambda pipeline: program(_over(pipeline, _NoEvidence(pipeline.kafka)))


def _over(pipeline: MemoryPipeline, kafka: Any) -> MemoryPipeline:
    return replace(pipeline, kafka=kafka)


def planted(world: World, bug: type[ModelTable] | type[MemoryControlTable]) -> World:
    """Return the world with a data table or control table that has a bug."""
    if issubclass(bug, ModelTable):
        return replace(world, table=_as(world.table, bug))
    return replace(world, control=_as(world.control, bug))


def _as(adapter: Any, bug: type[_Adapter]) -> _Adapter:
    return bug(**{each.name: getattr(adapter, each.name) for each in fields(adapter)})
