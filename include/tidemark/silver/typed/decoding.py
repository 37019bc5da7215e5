"""Decodes the published records of a pipeline until none are left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from tidemark.bronze.ingest.errors import CommitNotFound
from tidemark.bronze.ingest.executor import ExecutionResult
from tidemark.bronze.ingest.planner import PlanResult
from tidemark.core.offsets import SpanSet, difference_by_partition
from tidemark.core.plain import record_of
from tidemark.silver.typed.decoder import DecodePlanner

log = logging.getLogger(__name__)

ReplayedOffsets: TypeAlias = Mapping[str, Mapping[int, SpanSet]]
"""Offsets in quarantine to decode again, by topic id and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeReport:
    """The result of a decode.

    Attributes:
        plans: The plans of the typed table that were executed, in order.
        wrote: Whether one of them landed in this decode. Another process may have been first.
        records: Number of records that were decoded or quarantined.
        quarantined: Number of records in quarantine among them.
        table_version: The version of the typed table that the last plan created; None without one.
    """

    plans: tuple[int, ...] = ()
    wrote: bool = False
    records: int = 0
    quarantined: int = 0
    table_version: int | None = None

    @classmethod
    def total(cls, reports: Iterable[Self]) -> Self:
        """Return the report about several parts of a decode, in order."""
        parts = list(reports)
        return cls(
            plans=tuple(plan for each in parts for plan in each.plans),
            wrote=any(each.wrote for each in parts),
            records=sum(each.records for each in parts),
            quarantined=sum(each.quarantined for each in parts),
            table_version=parts[-1].table_version if parts else None,
        )

    def as_record(self) -> dict[str, Any]:
        """Return the report as plain values, for `--json`."""
        return record_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """Plans and executes until the typed table of one pipeline has all published records.

    Attributes:
        new_planner: Returns a planner, which needs no JVM. A planner keeps the answers of the
            registry, so each plan has a new planner.
        execute: Executes a recorded plan with Spark.
        quarantined: Returns the number of quarantined records of a landed plan.
    """

    new_planner: Callable[[], DecodePlanner]
    execute: Callable[[int], ExecutionResult]
    quarantined: Callable[[int], int]

    def prepare(self, replayed: ReplayedOffsets | None = None) -> bool:
        """Take the steps of a decode that need no Spark; return whether records are left for Spark.

        Args:
            replayed: As for `run`.

        Raises:
            SchemaConflict, RegistryUnavailable and so on: See `DecodePlanner.plan`.
        """
        return self._next(dict(replayed or {})).plan is not None

    def run(self, replayed: ReplayedOffsets | None = None) -> Iterator[DecodeReport]:
        """Decode until no records are left; yield a report about each plan that has landed.

        The open plan of an earlier decode is executed first. After an error, the plans before it
        have landed, and the next decode continues.

        Args:
            replayed: Offsets in quarantine to decode again, before others. None for no replay.

        Raises:
            CommitNotFound: An executed plan is still open. The loop would not end.
            TidemarkError: See `DecodePlanner.plan` and `PlanExecutor.execute`.
        """
        left, executed = dict(replayed or {}), set[int]()
        while plan := self._next(left).plan:
            if plan.sequence in executed:
                raise CommitNotFound(
                    pipeline=plan.pipeline, sequence=plan.sequence, seen="an open plan"
                )
            executed.add(plan.sequence)
            execution = self.execute(plan.sequence)
            report = DecodeReport(
                plans=(plan.sequence,),
                wrote=execution.wrote,
                records=execution.landing.records,
                quarantined=self.quarantined(plan.sequence),
                table_version=execution.landing.table_version,
            )
            log.info(
                "decoded pipeline=%s plan=%d records=%d quarantined=%d",
                *(plan.pipeline, plan.sequence, report.records, report.quarantined),
            )
            yield report

    def _next(self, replayed: dict[str, Mapping[int, SpanSet]]) -> PlanResult:
        """Return the next plan, and take its offsets out of `replayed`."""
        planner = self.new_planner()
        for topic_id, spans in replayed.items():
            result = planner.replay(topic_id, spans)
            if result.plan is None:
                continue
            if result.plan.topic_id == topic_id:
                replayed[topic_id] = difference_by_partition(spans, result.plan.spans())
            return result
        return planner.plan()
