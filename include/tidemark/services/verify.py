"""Proving a data table complete: Kafka read again by another reader, and compared."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from tidemark.core import planning
from tidemark.core.ledger import Ledger
from tidemark.core.marks import TopicMarks
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.spec import PipelineSpec
from tidemark.core.table import Holding
from tidemark.errors import InvalidRange, NothingToVerify, TableDiffers
from tidemark.ports import ControlReader, DataLog, LogReader, MarkReader
from tidemark.services.recording import checked_ledger

log = logging.getLogger(__name__)

_CHUNK = 50_000
"""Offsets compared at once: what is held in memory is their checksums."""
_SHOWN = 20
_BEYOND = 2**63 - 1
"""After every offset."""

Kept: TypeAlias = Mapping[int, Sequence[tuple[int, str]]]
"""Plan and checksum of every row, by offset."""


class Difference(StrEnum):
    """How a row and a record can disagree."""

    LOST = "lost"
    """Kafka shows a record and the table has no row."""
    DOUBLED = "doubled"
    """The table has more than one row of one offset."""
    FOREIGN = "foreign"
    """The table has a row where Kafka shows no record, or where nothing has landed."""
    ALTERED = "altered"
    """Key, value, headers or timestamp differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One difference at one offset."""

    difference: Difference
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.difference} partition {self.partition} offset {self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionVerdict:
    """What was compared of one partition.

    Attributes:
        partition: Partition number.
        offsets: Landed offsets that Kafka still has, and that were compared.
        records: Records that Kafka shows there.
        rows: Rows that the table has there.
        compacted: Rows whose records Kafka has removed since, inside its log. A row counts as one
            if its plan has exactly the rows that were recorded when it landed.
        gone: Landed offsets that Kafka has deleted since: only doubled rows can be told there.
    """

    partition: int
    offsets: int
    records: int
    rows: int
    compacted: int
    gone: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """How a data table compares with Kafka.

    Attributes:
        pipeline: Pipeline name.
        topic: Topic name.
        topic_id: Incarnation that was compared.
        partitions: What was compared, by partition number.
        differences: How many there are, by kind.
        first: The first of them, in the order of reading.
    """

    pipeline: str
    topic: str
    topic_id: str
    partitions: tuple[PartitionVerdict, ...]
    differences: Mapping[Difference, int]
    first: tuple[Found, ...]

    def check(self) -> None:
        """Raise if there are differences.

        Raises:
            TableDiffers
        """
        if self.differences:
            raise TableDiffers(
                pipeline=self.pipeline,
                differences=sum(self.differences.values()),
                first=tuple(map(str, self.first)),
            )

    def as_record(self) -> dict[str, Any]:
        """The verification as plain values, for `--json`."""
        return {
            "pipeline": self.pipeline,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "equal": not self.differences,
            "differences": {str(kind): count for kind, count in self.differences.items()},
            "first": [
                {"difference": str(f.difference), "partition": f.partition, "offset": f.offset}
                for f in self.first
            ],
            "partitions": [
                {
                    "partition": each.partition,
                    "offsets": each.offsets,
                    "records": each.records,
                    "rows": each.rows,
                    "compacted": each.compacted,
                    "gone": each.gone,
                }
                for each in self.partitions
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """Compares what landed of one pipeline with what Kafka shows now. Writes nothing."""

    spec: PipelineSpec
    marks: MarkReader
    control: ControlReader
    data_log: DataLog
    log_reader: LogReader

    def verify(
        self,
        partition: int | None = None,
        start: int | None = None,
        end: int | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> Verification:
        """Read landed ranges again and compare them record by record, by checksum.

        Args:
            partition: Only this one; all if None.
            start: Only offsets from here on.
            end: Only offsets before this one.
            say: Told of progress, a line at a time.

        Raises:
            NothingToVerify: Nothing of that landed.
            InvalidRange: The end is not after the start.
            EndBehindCommitted: The log ends before what landed of it.
            TopicRecreated, TopicChanged, ClusterChanged, PartitionsShrunk: Kafka has another topic
                now than the one that landed.
            ControlTruncated, TableBehindLedger, LedgerBehindTable, TableRestored: The tables are
                not of one history.
            OffsetsDeleted, KafkaUnavailable: Try again.
        """
        checked_ledger(self.control, self.spec.name, self.data_log)
        ledger = self.control.ledger(self.spec.name)
        marks = self.marks.topic_marks(self.spec.topic, self.spec.isolation_level)
        planning.check_identity(ledger, marks)
        for number, landed in ledger.landed.items():
            planning.check_end(ledger.pipeline, marks, number, landed.spans[-1].end)
        bounds = self._bounds(partition, start, end)
        wanted = self._wanted(ledger.landed, partition, bounds)
        holdings = [h for h in self.data_log.holdings() if partition in (None, h.partition)]
        whole = _whole(ledger, holdings)
        verdicts: list[PartitionVerdict] = []
        differences: list[Found] = []
        for number, spans in sorted(wanted.items()):
            verdict, found = self._partition(marks, number, spans, whole, say)
            verdicts.append(verdict)
            differences += found
        differences += self._unexplained(marks, holdings, bounds)
        return Verification(
            pipeline=self.spec.name,
            topic=marks.topic,
            topic_id=marks.topic_id,
            partitions=tuple(verdicts),
            differences=Counter(found.difference for found in differences),
            first=tuple(differences[:_SHOWN]),
        )

    def _bounds(self, partition: int | None, start: int | None, end: int | None) -> Span:
        first, beyond = start or 0, _BEYOND if end is None else end
        if not 0 <= first < beyond:
            raise InvalidRange(
                topic=self.spec.topic,
                partition=partition or 0,
                start=first,
                end=beyond,
                rule="0 <= start < end; the end is the next offset after the range",
            )
        return Span(first, beyond)

    def _wanted(
        self, landed: Mapping[int, SpanSet], partition: int | None, bounds: Span
    ) -> Mapping[int, SpanSet]:
        wanted = {
            number: spans.within(bounds)
            for number, spans in landed.items()
            if partition is None or number == partition
        }
        wanted = {number: spans for number, spans in wanted.items() if spans}
        if not wanted:
            raise NothingToVerify(pipeline=self.spec.name, topic=self.spec.topic)
        return wanted

    def _unexplained(
        self, marks: TopicMarks, holdings: Sequence[Holding], bounds: Span
    ) -> Iterator[Found]:
        """Rows where no plan of the ledger has landed, or may be landing."""
        # Read after the holdings: whatever landed them is planned in it.
        ledger = self.control.ledger(self.spec.name)
        incarnations = {record.plan.topic_id for record in ledger.plans.values()}
        for held in holdings:
            run = SpanSet((Span(held.first, held.last + 1),)).within(bounds)
            if held.topic_id == marks.topic_id:
                planned = (ledger.landed, ledger.pending)
                for spans in planned:
                    run = run.minus(spans.get(held.partition, SpanSet()))
            elif held.topic_id in incarnations:
                continue
            for span in run:
                for sequence, row in self.data_log.rows_of(held.topic_id, held.partition, span):
                    if sequence == held.sequence:
                        yield Found(
                            difference=Difference.FOREIGN,
                            partition=row.partition,
                            offset=row.offset,
                        )

    def _partition(
        self,
        marks: TopicMarks,
        partition: int,
        spans: SpanSet,
        whole: frozenset[int],
        say: Callable[[str], None],
    ) -> tuple[PartitionVerdict, list[Found]]:
        readable = marks.partitions[partition].readable(spans)
        gone = spans.minus(readable)
        records = rows = compacted = 0
        differences: list[Found] = []
        for span in _chunks(readable):
            seen = self._seen(marks, partition, span)
            kept = self._kept(marks, partition, span)
            records += len(seen)
            rows += sum(map(len, kept.values()))
            unseen = {
                offset
                for offset, found in kept.items()
                if offset not in seen and found[0][0] in whole
            }
            compacted += len(unseen)
            differences += _differences(partition, seen, kept, unseen)
            say(f"partition {partition}: {span} compared, {len(differences)} difference(s)")
        for span in _chunks(gone):
            differences += _doubled(partition, self._kept(marks, partition, span))
        verdict = PartitionVerdict(
            partition=partition,
            offsets=readable.size,
            records=records,
            rows=rows,
            compacted=compacted,
            gone=gone.size,
        )
        return verdict, differences

    def _seen(self, marks: TopicMarks, partition: int, span: Span) -> Mapping[int, str]:
        read = self.log_reader.read(
            marks.topic, marks.isolation_level, {partition: SpanSet((span,))}
        )
        return {record.offset: record.checksum for record in read}

    def _kept(self, marks: TopicMarks, partition: int, span: Span) -> Kept:
        kept: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for sequence, row in self.data_log.rows_of(marks.topic_id, partition, span):
            kept[row.offset].append((sequence, row.checksum))
        return kept


def _whole(ledger: Ledger, holdings: Iterable[Holding]) -> frozenset[int]:
    """Plans with as many rows as were recorded when they landed."""
    rows = Counter[int]()
    for holding in holdings:
        rows[holding.sequence] += holding.rows
    return frozenset(
        sequence
        for sequence, record in ledger.plans.items()
        if record.landing and record.landing.records == rows[sequence]
    )


def _chunks(spans: Iterable[Span]) -> Iterator[Span]:
    for span in spans:
        for start in range(span.start, span.end, _CHUNK):
            yield Span(start, min(start + _CHUNK, span.end))


def _differences(
    partition: int, seen: Mapping[int, str], kept: Kept, unseen: Collection[int]
) -> list[Found]:
    found = [(offset, Difference.LOST) for offset in seen if offset not in kept]
    for offset, rows in kept.items():
        if offset not in seen:
            if offset not in unseen:
                found.append((offset, Difference.FOREIGN))
        elif {checksum for _, checksum in rows} != {seen[offset]}:
            found.append((offset, Difference.ALTERED))
    differences = [
        Found(difference=kind, partition=partition, offset=offset) for offset, kind in sorted(found)
    ]
    return differences + _doubled(partition, kept)


def _doubled(partition: int, kept: Kept) -> list[Found]:
    return [
        Found(difference=Difference.DOUBLED, partition=partition, offset=offset)
        for offset, rows in sorted(kept.items())
        if len(rows) > 1
    ]
