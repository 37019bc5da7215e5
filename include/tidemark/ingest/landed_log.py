"""What a pipeline has landed, as a log of its own: what its typed table is made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tidemark.core.ledger import Ledger
from tidemark.core.offsets import SpanSet
from tidemark.core.record import LogRecord
from tidemark.core.watermarks import IsolationLevel, TopicWatermarks, Watermarks
from tidemark.ingest.errors import NothingLanded
from tidemark.ingest.protocols import ControlReader, DataLog
from tidemark.ingest.recorder import checked_ledger


class _Incarnation(NamedTuple):
    cluster_id: str | None
    topic_id: str | None
    starts: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedLog:
    """The landed records of one pipeline, for the pipeline of its typed table.

    Of a topic that was made again it is the incarnation of the plan that is open.

    Attributes:
        pipeline: The pipeline whose records they are.
        typed: The pipeline of its typed table.
        control: What has landed.
        data_log: The landed rows.
    """

    pipeline: str
    typed: str
    control: ControlReader
    data_log: DataLog

    def topic_watermarks(self, topic: str, isolation_level: IsolationLevel) -> TopicWatermarks:
        """The bounds of what has landed, by partition; not all between them need have.

        Raises:
            NothingLanded
            TableBehindLedger, LedgerBehindTable, TableRestored: The data table that is decoded and
                the control table are not of one history.
        """
        landed, incarnation = self._known()
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
        topic: str,  # noqa: ARG002  the table has one
        isolation_level: IsolationLevel,  # noqa: ARG002  it was read with one
        spans: Mapping[int, SpanSet],
    ) -> Iterator[LogRecord]:
        """As `LogReader.read`, without keys and values, which a typed table does not keep."""
        _, incarnation = self._known()
        for partition, some in sorted(spans.items()):
            for span in some:
                rows = self.data_log.rows_of(incarnation.topic_id or "", partition, span)
                for _, record in rows:
                    yield record.without_payload()

    def _known(self) -> tuple[Ledger, _Incarnation]:
        """What has landed, and which incarnation of the topic is meant."""
        # Rows that a RESTORE has taken out for now are neither missing nor gaps.
        # fence: restored-bronze-rows-are-no-gaps
        landed = checked_ledger(self.control, self.pipeline, self.data_log)
        typed = self.control.summary(self.typed)
        plan = next((record.plan for record in typed.open_plans()), None)
        if plan is not None and plan.topic_id != landed.topic_id:
            starts = {planned.partition: planned.start for planned in reversed(plan.ranges)}
            return landed, _Incarnation(plan.cluster_id, plan.topic_id, starts)
        return landed, _Incarnation(landed.cluster_id, landed.topic_id, landed.starts)


def _watermarks(
    starts: Mapping[int, int], landed: Mapping[int, SpanSet]
) -> Mapping[int, Watermarks]:
    """Also of partitions of which nothing has landed, or nothing is there any more."""
    found = {}
    for partition in sorted({*starts, *landed}):
        spans = landed.get(partition)
        first = spans.spans[0].start if spans else starts[partition]
        last = spans.spans[-1].end if spans else first
        found[partition] = Watermarks(low=first, end=last)
    return found
