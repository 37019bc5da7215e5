"""Compares the landed records of a topic with Kafka's current log (decisions 11 and 24)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tidemark.bronze.ingest.errors import LogTruncated
from tidemark.bronze.ingest.ports import Ports
from tidemark.core import plan_rules
from tidemark.core.accounting import Landing
from tidemark.core.errors import EndBehindCommitted
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import Plan, PlanKind, PlannedRange
from tidemark.core.plan_rules import ComparedTopic
from tidemark.core.record import LogRecord
from tidemark.core.watermarks import IsolationLevel, Position, TopicWatermarks

_MAX_REPORTED_PLANS = 20
"""Maximum number of plans in an error; the next run of the command reports further plans."""
_FALLBACK_ROWS = 50
"""Number of landed rows to compare if Kafka no longer shows the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogComparison:
    """Refuses a log that lost landed records, by a truncation or a restore from a snapshot.

    Each error names the plans to undo, so that the next run lands Kafka's current records.
    """

    ports: Ports

    def compare(
        self, ledger: Ledger, watermarks: TopicWatermarks, partitions: Collection[int]
    ) -> ComparedTopic:
        """Return a ledger and the watermarks of its topic after their comparison.

        Args:
            ledger: State of the pipeline.
            watermarks: The topic's watermarks.
            partitions: The partitions whose log has to contain all landed offsets.

        Raises:
            TopicRecreated, TopicChanged: The ledger's offsets do not belong to this topic.
            EndBehindCommitted: The log ends before the end of a partition's landed offsets.
        """
        plan_rules.check_identity(ledger, watermarks)
        topic = ComparedTopic(ledger=ledger, watermarks=watermarks)
        self._check_ends(topic, partitions)
        return topic

    def check_plan(self, plan: Plan, ledger: Ledger, watermarks: TopicWatermarks) -> None:
        """Refuse a log that lacks a recorded plan's records, or whose records before them differ.

        Compares the identity of the topic with the plan, whose records Spark will read, and not
        with the ledger as `compare` does.

        Raises:
            TopicRecreated, LostRange and so on: See `plan_rules.check_readable`.
            EndBehindCommitted, LogTruncated: See `compare` and `check_records`.
        """
        topic = ComparedTopic(ledger=ledger, watermarks=watermarks)
        partitions = plan.spans()
        # Before the plan's ends: this error names the plans to undo.
        self._check_ends(topic, partitions)
        plan_rules.check_readable(plan, watermarks)
        # The landing gets the epochs of this check, which hide a truncation since planning. Without
        # this comparison, only the records could show it.
        changed = [
            planned
            for planned in plan.ranges
            if planned.leader_epoch != watermarks.partitions[planned.partition].leader_epoch
        ]
        self.check_leaders(topic, changed)  # fence: leaders-since-planning
        # fence: last-landed-record-before-reading
        self.check_records(topic, partitions, plan if plan.replaces else None)

    def _check_ends(self, topic: ComparedTopic, partitions: Collection[int]) -> None:
        watermarks = topic.watermarks
        for partition, spans in _landed_offsets(topic, partitions).items():
            last = spans.spans[-1].end
            end = watermarks.partitions[partition].end
            if last > end:
                pipeline = topic.ledger.pipeline
                raise EndBehindCommitted(
                    pipeline=pipeline,
                    topic=watermarks.topic,
                    partition=partition,
                    offset=last,
                    end=end,
                    undo=self._affected(pipeline, watermarks, partition),
                )

    def check_leaders(self, topic: ComparedTopic, ranges: Sequence[PlannedRange]) -> None:
        """Refuse a log that an unclean election has truncated before the start of some ranges.

        Compares the positions with Kafka's history of leader epochs. Checks only partitions with
        another leader since their last plan, so a restored log with its old epochs passes.

        Args:
            topic: The ledger, with the position of each chain and its leader epoch, and the topic.
            ranges: The ranges to plan.

        Raises:
            LogTruncated: The log was truncated before a chain's position, and has grown beyond it
                again.
            TopicRecreated, TopicChanged: The topic was replaced meanwhile.
            OffsetsDeleted, KafkaUnavailable, KafkaRefused, TopicMissing
        """
        watermarks = topic.watermarks
        for kind in PlanKind:
            known = plan_rules.positions_under_other_leaders(
                topic.ledger.positions(kind), watermarks, ranges
            )
            if not known:
                continue
            partition = self.ports.log_reader.truncated_partition(watermarks.topic, known)
            if partition is not None:  # fence: positions-after-new-leader-epoch
                raise self._truncated(topic, partition, known[partition])

    def check_records(
        self,
        topic: ComparedTopic,
        partitions: Collection[int],
        replacing: Plan | None = None,
    ) -> None:
        """Compare the last landed record of each partition with Kafka's record at its offset.

        A log that was restored from a snapshot has its old leader epochs, so only the records show
        the restore. Leaves out partitions without landed records that Kafka still has.

        Args:
            topic: The ledger and the topic.
            partitions: The partitions to compare.
            replacing: A plan that replaces rows. It may fix changed rows, and later chunks may fix
                rows after it. So the last record before its first offset is compared.

        Raises:
            LogTruncated: Kafka has another record at the offset of a last landed record.
            TopicRecreated and so on, OffsetsDeleted: See `check_leaders`.
        """
        landed = _landed_offsets(topic, partitions)
        if replacing:
            firsts = {p: spans.spans[0].start for p, spans in replacing.spans().items()}
            landed = {
                p: kept for p in landed if (kept := _offsets_before(landed[p], firsts.get(p)))
            }
        differing = self.replaced_partitions(topic.ledger.pipeline, topic.watermarks, landed)
        if differing:
            raise self._truncated(topic, min(differing))

    def replaced_partitions(
        self, pipeline: str, watermarks: TopicWatermarks, landed: Mapping[int, SpanSet]
    ) -> set[int]:
        """Return partitions in which Kafka has another record at the last of some landed offsets.

        Args:
            pipeline: Pipeline name.
            watermarks: The watermarks of the incarnation of the topic that landed.
            landed: Landed offsets, in partitions that the topic has.

        Raises:
            OffsetsDeleted, KafkaUnavailable, KafkaRefused, TopicMissing
        """
        found = self._differing(pipeline, watermarks, landed)
        return {partition for partition, differs in found.items() if differs}

    def _truncated(
        self, topic: ComparedTopic, partition: int, known: Position | None = None
    ) -> LogTruncated:
        ledger, watermarks = topic.ledger, topic.watermarks
        # A topic that was recreated since this read of its watermarks looks like a truncated log.
        newest = self.ports.watermarks.topic_watermarks(
            watermarks.topic, watermarks.isolation_level
        )
        plan_rules.check_identity(ledger, newest)
        return LogTruncated(
            pipeline=ledger.pipeline,
            topic=watermarks.topic,
            partition=partition,
            offset=known.offset if known else ledger.landed[partition].spans[-1].end,
            leader_epoch=known.leader_epoch if known else None,
            undo=self._affected(
                ledger.pipeline, newest, partition, known.offset if known else None
            ),
        )

    def _affected(
        self,
        pipeline: str,
        watermarks: TopicWatermarks,
        partition: int,
        truncated_before: int | None = None,
    ) -> tuple[int, ...]:
        """Return landed plans with records that Kafka no longer has, highest offsets first.

        Searches from the plan with the highest offset back to a plan whose last record Kafka still
        has. A plan without a comparable record is affected if a plan before it is affected.
        Names at most `_MAX_REPORTED_PLANS` plans.

        Args:
            pipeline: Pipeline name.
            watermarks: The topic's watermarks.
            partition: Partition number.
            truncated_before: Position of a chain, if the log was truncated before it; None if only
                records show the truncation. A plan that ends at this position is affected, and
                only a plan that ends before it can end the search.
        """
        found: list[int] = []
        unknown: list[int] = []
        for plan, _, spans in self._landings(pipeline, watermarks.topic_id, partition):
            end = spans.spans[-1].end
            is_gone = end > watermarks.partitions[partition].end or end == truncated_before
            differs = is_gone or self._differing(pipeline, watermarks, {partition: spans}).get(
                partition
            )
            if differs:
                found += [*unknown, plan.sequence]
                unknown = []
            elif differs is None:
                unknown.append(plan.sequence)
            elif truncated_before is None or end < truncated_before:
                break
            if len(found) >= _MAX_REPORTED_PLANS:
                break
        return tuple(found[:_MAX_REPORTED_PLANS])

    def _landings(
        self, pipeline: str, topic_id: str, partition: int
    ) -> Sequence[tuple[Plan, Landing, SpanSet]]:
        landings = [
            (record.plan, record.held_now, spans)
            for record in self.ports.control.ledger(pipeline).plans.values()
            if record.held_now and record.plan.topic_id == topic_id
            if (spans := record.held_now.spans().get(partition))
        ]
        return sorted(landings, key=lambda landed: landed[2].spans[-1].end, reverse=True)

    def _differing(
        self, pipeline: str, watermarks: TopicWatermarks, landed: Mapping[int, SpanSet]
    ) -> Mapping[int, bool]:
        """Whether Kafka has another record at the last row of some landed offsets, by partition.

        Compaction may have removed the record of the last row. Then the method compares the last of
        the `_FALLBACK_ROWS` rows before it whose record Kafka still has. A committed record at a
        landed offset without a row also counts as another record. Leaves out partitions without a
        comparable record.
        """
        found: dict[int, bool] = {}
        pending = {
            partition: kept
            for partition, spans in landed.items()
            if (kept := watermarks.partitions[partition].readable(spans))
        }
        for most in (1, _FALLBACK_ROWS):
            rows = self.ports.table.last_rows(watermarks.topic_id, pending, most) if pending else {}
            seen = self._records_at(
                watermarks,
                {p: pending[p].within(_bounding_span(some)) for p, some in rows.items()},
            )
            for partition, some in rows.items():
                differs = _differs(some, seen[partition])
                if differs is None and self._is_other_log(pipeline, watermarks, seen[partition]):
                    differs = True
                if differs is not None:
                    found[partition] = differs
            pending = {p: pending[p] for p in rows if p not in found}
        return found

    def _is_other_log(
        self, pipeline: str, watermarks: TopicWatermarks, seen: Sequence[LogRecord]
    ) -> bool:
        """Whether these records show that Kafka's log is not the log that landed.

        The records have no rows. They are evidence only if they are committed, and if the table
        still has all rows of a plan at their offsets. Otherwise a user may have deleted the rows.
        """
        if not seen or watermarks.isolation_level is not IsolationLevel.READ_COMMITTED:
            return False
        partition = seen[0].partition
        return any(
            any(spans.overlap_size(Span(record.offset, record.offset + 1)) for record in seen)
            and self._is_whole(plan, landing, partition)
            for plan, landing, spans in self._landings(pipeline, watermarks.topic_id, partition)
        )

    def _is_whole(self, plan: Plan, landing: Landing, partition: int) -> bool:
        """Whether the table has the recorded number of rows of a plan, in one partition."""
        spans = sorted((p, span) for p, some in landing.spans().items() for span in some)
        held = self.ports.table.current_landing(plan.with_ranges(spans)).by_partition()[partition]
        # fence: deleted-row-is-no-evidence
        return held["records"] == landing.by_partition()[partition]["records"]

    def _records_at(
        self, watermarks: TopicWatermarks, spans: Mapping[int, SpanSet]
    ) -> Mapping[int, Sequence[LogRecord]]:
        seen: dict[int, list[LogRecord]] = {partition: [] for partition in spans}
        if spans:
            for record in self.ports.log_reader.read(
                watermarks.topic, watermarks.isolation_level, spans
            ):
                seen[record.partition].append(record)
        return seen


def _landed_offsets(topic: ComparedTopic, partitions: Collection[int]) -> Mapping[int, SpanSet]:
    """Landed offsets of some partitions; none for another incarnation of the topic."""
    ledger, watermarks = topic.ledger, topic.watermarks
    if ledger.topic_id != watermarks.topic_id:
        return {}
    common = set(partitions) & set(watermarks.partitions)
    return {p: ledger.landed[p] for p in sorted(common) if ledger.landed.get(p)}


def _bounding_span(rows: Sequence[LogRecord]) -> Span:
    offsets = [row.offset for row in rows]
    return Span(min(offsets), max(offsets) + 1)


def _offsets_before(spans: SpanSet, start: int | None) -> SpanSet:
    """The offsets before `start`; all if it is None."""
    if start is None:
        return spans
    return spans.within(Span(0, start)) if start else SpanSet()


def _differs(rows: Sequence[LogRecord], seen: Sequence[LogRecord]) -> bool | None:
    """Whether Kafka's record differs at the last row that it still has; None if unknown."""
    landed = {row.offset: row for row in rows}
    for record in reversed(seen):
        row = landed.get(record.offset)
        if row is not None:
            compared = row.without_headers() if record.headers is None else row
            return record.checksum != compared.checksum
    return None
