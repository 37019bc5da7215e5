"""The landed rows of a bronze table as a log, which a typed table is decoded from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tidemark.bronze.ingest.errors import NothingLanded
from tidemark.bronze.ingest.ledgers import check_ledger
from tidemark.bronze.ingest.protocols import BronzeLog, ControlReader
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import SpanSet
from tidemark.core.record import LogRecord
from tidemark.core.watermarks import IsolationLevel, TopicWatermarks, Watermarks
from tidemark.delta.conflicts import retry_on_conflict


class _Incarnation(NamedTuple):
    cluster_id: str | None
    topic_id: str | None
    starts: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedLog:
    """The landed records of one pipeline, for the pipeline of its typed table.

    For a recreated topic, the log contains the incarnation of the typed pipeline's open plan.

    Attributes:
        pipeline: The bronze pipeline.
        typed: The pipeline of its typed table.
        control: The control table.
        data_log: The bronze table.
    """

    pipeline: str
    typed: str
    control: ControlReader
    data_log: BronzeLog

    def topic_watermarks(self, topic: str, isolation_level: IsolationLevel) -> TopicWatermarks:
        """Return the first landed offset and the end of the last, by partition.

        Offsets between them may be missing.

        Raises:
            NothingLanded
            HistoriesDiverge: The bronze table and the control table have different histories.
        """
        landed, incarnation = retry_on_conflict(self._landed_incarnation)
        if incarnation.cluster_id is None or incarnation.topic_id is None:
            raise NothingLanded(pipeline=self.pipeline, topic=topic)
        return TopicWatermarks(
            cluster_id=incarnation.cluster_id,
            topic=topic,
            topic_id=incarnation.topic_id,
            isolation_level=isolation_level,
            partitions=_watermarks(incarnation.starts, landed.landed_of(incarnation.topic_id)),
        )

    def read(
        self,
        topic: str,  # noqa: ARG002  the bronze table has one topic
        isolation_level: IsolationLevel,  # noqa: ARG002  applied when the rows landed
        spans: Mapping[int, SpanSet],
    ) -> Iterator[LogRecord]:
        """Implement `LogReader.read`; the records have no key and value."""
        _, incarnation = retry_on_conflict(self._landed_incarnation)
        for partition, some in sorted(spans.items()):
            for span in some:
                rows = self.data_log.rows_of(incarnation.topic_id or "", partition, span)
                for _, record in rows:
                    yield record.without_payload()

    def _landed_incarnation(self) -> tuple[Ledger, _Incarnation]:
        """Return the bronze ledger and the incarnation of the topic to decode.

        Raises:
            HistoriesDiverge: The bronze table and the control table have different histories.
            ControlConflict: The ledger is not current; read it again.
        """
        # Rows that a RESTORE removed for a while are neither missing records nor gaps.
        # fence: restored-bronze-rows-are-no-gaps
        landed = check_ledger(self.control, self.control.summary(self.pipeline), self.data_log)
        typed = self.control.summary(self.typed)
        plan = next((record.plan for record in typed.open_plans()), None)
        if plan is not None and plan.topic_id != landed.topic_id:
            starts = {planned.partition: planned.start for planned in reversed(plan.ranges)}
            return landed, _Incarnation(plan.cluster_id, plan.topic_id, starts)
        return landed, _Incarnation(landed.cluster_id, landed.topic_id, landed.starts)


def _watermarks(
    starts: Mapping[int, int], landed: Mapping[int, SpanSet]
) -> Mapping[int, Watermarks]:
    """Return watermarks of all started partitions, including those without landed offsets."""
    found = {}
    for partition in sorted({*starts, *landed}):
        spans = landed.get(partition)
        first = spans.spans[0].start if spans else starts[partition]
        last = spans.spans[-1].end if spans else first
        found[partition] = Watermarks(low=first, end=last)
    return found
