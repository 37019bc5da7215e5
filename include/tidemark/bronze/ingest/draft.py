"""Start offsets and ranges of the next plan, for planning, previews and the status."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.bronze.ingest.log_comparison import LogComparison
from tidemark.bronze.ingest.ports import Ports
from tidemark.bronze.ingest.start_rules import policy_offsets
from tidemark.core import plan_rules
from tidemark.core.errors import TidemarkError
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import SpanSet
from tidemark.core.origins import PlanOrigin
from tidemark.core.plan import Plan, PlanKind, PlannedRange
from tidemark.core.plan_rules import ClassifiedOffsets, ComparedTopic
from tidemark.core.watermarks import TopicWatermarks
from tidemark.spec.model import PipelineSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedOffsets:
    """Offsets of a backfill plan.

    Attributes:
        spans: The offsets, by partition.
        topic_id: Incarnation of the topic; None for the current one.
        readable_only: Skip offsets that Kafka has deleted, instead of raising an error.
        replaces: Land landed offsets again, in place of their rows.
    """

    spans: Mapping[int, SpanSet]
    topic_id: str | None = None
    readable_only: bool = False
    replaces: bool = False

    def is_planned(self, ledger: Ledger) -> bool:
        """Return whether all offsets have landed or are in an open plan."""
        return not any(
            spans.difference(ledger.covered_or_planned(p)) for p, spans in self.spans.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Ranges that a plan may contain: Kafka has them, and its log before them was not truncated.

    Attributes:
        topic: The ledger and the watermarks that the ranges follow from.
        kind: The chain of the plan.
        starts: Start offsets to record before the plan, by partition.
        ranges: The ranges; none if there is nothing to read.
        requested: The requested offsets by their state; none for a live plan.
    """

    topic: ComparedTopic
    kind: PlanKind
    starts: Mapping[int, int]
    ranges: tuple[PlannedRange, ...]
    requested: ClassifiedOffsets = field(default_factory=ClassifiedOffsets)

    def plan(self, origin: PlanOrigin) -> Plan | None:
        """Return the plan of the ranges; None without ranges."""
        if not self.ranges:
            return None
        return plan_rules.build_plan(self.topic, self.kind, origin, self.ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """Finds the offsets that a pipeline would read next. Writes nothing."""

    spec: PipelineSpec
    ports: Ports

    def live(self, topic: ComparedTopic, limit: int | None) -> Draft:
        """Return what the next live plan would read.

        Args:
            topic: The topic, compared in all partitions.
            limit: Maximum number of offsets; None for no limit.

        Raises:
            NoStartOffset: The spec has `start: none`, and the pipeline has no start offsets.
            LostRange, EndBehindCommitted: The log lacks unread or committed offsets.
            LogTruncated, TopicRecreated and so on: See `LogComparison.check_leaders`.
        """
        starts = self.starts(topic.ledger, topic.watermarks)
        ranges = plan_rules.live_ranges(
            topic, starts, limit, lambda: self._expiring(topic.watermarks)
        )
        return self._checked(Draft(topic=topic, kind=PlanKind.LIVE, starts=starts, ranges=ranges))

    def backfill(self, topic: ComparedTopic, wanted: RequestedOffsets) -> Draft:
        """Return the ranges of a backfill plan for requested offsets.

        Args:
            topic: The topic, compared in the partitions of `wanted`.
            wanted: The requested offsets.

        Raises:
            InvalidSelection: The offsets belong to a topic that was recreated since.
            NoStartOffset: The spec has `start: none`, and the pipeline has no start offsets.
            InvalidSelection: The offsets are not inside the readable log.
            LogTruncated, TopicRecreated and so on: See `LogComparison.check_leaders`.
        """
        if wanted.topic_id:
            plan_rules.check_incarnation(self.spec.name, wanted.topic_id, topic.watermarks)
        starts = self.starts(topic.ledger, topic.watermarks)
        found = plan_rules.classify_offsets(
            topic, wanted.spans, readable_only=wanted.readable_only, replaces=wanted.replaces
        )
        return self._checked(
            Draft(
                topic=topic,
                kind=PlanKind.BACKFILL,
                starts=starts,
                ranges=plan_rules.planned_ranges(topic.watermarks, found.missing),
                requested=found,
            )
        )

    def _checked(self, draft: Draft) -> Draft:
        LogComparison(ports=self.ports).check_leaders(draft.topic, draft.ranges)
        return draft

    def starts(self, ledger: Ledger, watermarks: TopicWatermarks) -> Mapping[int, int]:
        """Return the start offsets of partitions that the pipeline has not started.

        Raises:
            NoStartOffset: The spec has `start: none`, and the pipeline has no start offsets.
        """
        if ledger.starts:
            return plan_rules.new_partitions(ledger, watermarks)
        return policy_offsets(self.spec, watermarks, self.ports.watermarks.offsets_at)

    def _expiring(self, watermarks: TopicWatermarks) -> Mapping[int, int]:
        """Return the end of the offsets that Kafka will delete within `alarms.runway`."""
        runway = self.spec.alarms.runway
        if runway is None:
            return {}
        try:
            retention = self.ports.watermarks.retention_time(watermarks.topic)
            if retention is None:
                return {}
            moment = self.ports.now() - retention + runway
            return self.ports.watermarks.offsets_at(
                watermarks.topic, sorted(watermarks.partitions), moment
            )
        except TidemarkError as error:
            # The result decides only which offsets are read first.
            log.warning(
                "expiring offsets unknown pipeline=%s error=%s message=%s",
                *(self.spec.name, type(error).__name__, error),
            )
            return {}
