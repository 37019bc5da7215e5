"""Worlds and actors with one of the protocol's rules left out: a search must find each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, TypeVar

from tests.model.actors import Program
from tests.model.world import FenceBegun, Fetched, ModelTable, World
from tests.support.memory import MemoryControlTable, MemoryKafka
from tests.support.plans import MemoryPipeline
from tidemark.core.accounting import Landing
from tidemark.core.event_rows import encode
from tidemark.core.events import ControlEvent, UndoStarted
from tidemark.core.ledger import CheckedLedger
from tidemark.core.plan import Plan
from tidemark.core.record import LogRecord
from tidemark.core.watermarks import IsolationLevel, TopicWatermarks

_Adapter = TypeVar("_Adapter")


@dataclass
class NoTransactions(ModelTable):
    """A sink that writes without the transaction options."""

    def begin(self, plan: Plan) -> int | None:
        """Nothing is ever stale."""
        del plan
        return len(self.commits)

    def finish(self, plan: Plan, began: int, fetched: Fetched) -> None:
        """Nothing is ever in the way."""
        del began
        super().finish(plan, len(self.commits), fetched)


@dataclass
class NoCompareAndSet(MemoryControlTable):
    """A control table that appends whatever it is given."""

    def append(
        self, ledger: CheckedLedger, events: Sequence[ControlEvent], recorded_at: datetime
    ) -> None:
        """Without a look at who was first."""
        number = ledger.event_number + 1
        self.rows += encode(ledger.pipeline, number, recorded_at, events)
        self.newest[ledger.pipeline] = max(number, self.newest.get(ledger.pipeline, 0))


@dataclass
class NoUndoBegun(MemoryControlTable):
    """A control table that an undo does not tell what it is about to do."""

    def append(
        self, ledger: CheckedLedger, events: Sequence[ControlEvent], recorded_at: datetime
    ) -> None:
        """All but that."""
        if told := [event for event in events if not isinstance(event, UndoStarted)]:
            super().append(ledger, told, recorded_at)


@dataclass
class NoConfirm(ModelTable):
    """A data table that a driver believes to hold its plan because Spark reported success.

    Attributes:
        believed: Plans whose landing was reported as a success.
    """

    believed: list[Plan] = field(default_factory=list)

    def begin(self, plan: Plan) -> int | None:
        """A stale transaction is skipped, with success."""
        began = super().begin(plan)
        if began is None:
            self.believed.append(plan)
        return began

    def begin_fence(self, plan: Plan) -> int | None:
        """As it was."""
        return super().begin(plan)

    def find_landing(self, plan: Plan) -> Landing | None:
        """What the log says, or else what was reported."""
        if plan in self.believed:
            return Landing.of(plan, len(self.commits), {})
        return super().find_landing(plan)


@dataclass
class NoFence(ModelTable):
    """A data table that a plan can land in after it was given up."""

    def finish_fence(self, plan: Plan, began: int) -> None:
        """Nothing."""


@dataclass
class NoChainFence(ModelTable):
    """A data table whose old epochs stay open after a repair."""

    def finish_fence_chains(self, pipeline: str, begun: FenceBegun) -> int:
        """Nothing."""
        del pipeline, begun
        return len(self.commits)


class _Kafka:
    """Kafka as a service with a rule left out sees it."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self._kafka = kafka

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kafka, name)


class _AnyTopic(_Kafka):
    def topic_watermarks(self, topic: str, isolation_level: IsolationLevel) -> TopicWatermarks:
        return replace(self._kafka.topic_watermarks(topic, isolation_level), topic_id="id-1")


class _HighWaterMarks(_Kafka):
    def topic_watermarks(self, topic: str, isolation_level: IsolationLevel) -> TopicWatermarks:
        watermarks = self._kafka.topic_watermarks(topic, IsolationLevel.READ_UNCOMMITTED)
        return replace(watermarks, isolation_level=isolation_level)


class _NoEvidence(_Kafka):
    def read(self, *_: object) -> Iterator[LogRecord]:
        return iter(())


def without_topic_id(program: Program) -> Program:
    """To whom every topic of that name is the planned one."""
    return lambda pipeline: program(_over(pipeline, _AnyTopic(pipeline.kafka)))


def without_stable_offset(program: Program) -> Program:
    """Who plans up to the high watermark, and reads committed records."""
    return lambda pipeline: program(_over(pipeline, _HighWaterMarks(pipeline.kafka)))


def without_evidence(program: Program) -> Program:
    """Who takes every offset without a row for a gap."""
    return lambda pipeline: program(_over(pipeline, _NoEvidence(pipeline.kafka)))


def _over(pipeline: MemoryPipeline, kafka: Any) -> MemoryPipeline:
    return replace(pipeline, kafka=kafka)


def planted(world: World, bug: type[ModelTable] | type[MemoryControlTable]) -> World:
    """The world with its data table or its control table exchanged for one with a bug."""
    if issubclass(bug, ModelTable):
        return replace(world, table=_as(world.table, bug))
    return replace(world, control=_as(world.control, bug))


def _as(adapter: Any, bug: type[_Adapter]) -> _Adapter:
    return bug(**{each.name: getattr(adapter, each.name) for each in fields(adapter)})
