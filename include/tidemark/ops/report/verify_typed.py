"""Verifies a typed table: decodes bronze rows again without Spark, and compares every column."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tidemark.core.offsets import Span, SpanSet
from tidemark.core.texts import counted
from tidemark.delta.opened_tables import reopen_tables, tables_opened_once
from tidemark.ops.report.typed_rows import (
    Bronze,
    Chunk,
    ChunkComparison,
    Look,
    Strange,
    columns_of_value,
)
from tidemark.ops.report.typed_verification import (
    TypedComparison,
    TypedDifference,
    TypedDifferenceKind,
    TypedVerification,
)
from tidemark.ops.report.verification import MAX_LISTED
from tidemark.ops.report.verify import chunks, range_of, within
from tidemark.silver.typed.schemas import SchemaStore
from tidemark.silver.typed.state import DecodeProgress
from tidemark.spec.decode import DecodeSpec, Format
from tidemark.spec.flattening import OWN_COLUMNS
from tidemark.spec.model import PipelineSpec

if TYPE_CHECKING:
    from tidemark.delta.data_table import DeltaDataTable

_CHUNK_OFFSETS = 10_000
_CHUNK_BYTES = 16 * 2**20
"""Offsets, and bytes in the bronze table's files, whose rows are in memory at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedVerifier:
    """Compares the typed table of a pipeline and its quarantine with the bronze table.

    Writes nothing, and needs neither Spark, Kafka nor the schema registry.

    Attributes:
        spec: The pipeline of the typed table.
        decode: How records are decoded.
        bronze: The bronze table.
        typed: The typed table.
        entries: The quarantine.
        progress: Returns which offsets the typed table should have.
        schemas: The stored schemas.
    """

    spec: PipelineSpec
    decode: DecodeSpec
    bronze: Bronze
    typed: DeltaDataTable
    entries: DeltaDataTable
    progress: Callable[[], DecodeProgress]
    schemas: SchemaStore

    @tables_opened_once()
    def verify(
        self,
        partition: int | None = None,
        start: int | None = None,
        end: int | None = None,
        print_line: Callable[[str], None] = lambda _: None,
        show_done: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> TypedVerification:
        """Decode landed rows again, and compare them offset by offset.

        A concurrent decode or repair can look like a difference. So the method compares chunks
        with differences a second time, with the newest tables.

        Args:
            partition: Only this partition; all if None.
            start: Only offsets from this one on.
            end: Only offsets before this one.
            print_line: Called with each line of progress.
            show_done: Called with the number of compared chunks of offsets, and the number of all.

        Raises:
            InvalidSelection: The end is not after the start.
            ForeignTable: The typed table belongs to another pipeline.
            HistoriesDiverge: The bronze table and the control table have different histories.
            UnreadableFile: A file of a table cannot be read.
        """
        bounds = range_of(self.spec, partition, start, end)
        look, again = self._look(), list[Chunk]()
        found = _Found(known_columns={*columns_of_value(self.decode.value.column)})
        todo = list(self._chunks(look, partition, bounds))
        for done, chunk in enumerate(todo):
            show_done(done, len(todo))
            compared = self._compare(look, chunk, found)
            print_line(_line(compared, "compared"))
            if compared.differences:
                again.append(chunk)
            else:
                found.add(compared)
        if again:
            reopen_tables()
            look = self._look()
        for chunk in again:
            compared = self._compare(look, chunk, found)
            print_line(_line(compared, "compared again"))
            found.add(compared)
        self._add_unexpected(look, partition, bounds, found)
        found.resolve_strange(self.spec.topic)
        return TypedVerification(
            pipeline=self.spec.name,
            partitions=tuple(
                replace(TypedComparison(partition=number), **counts)
                for number, counts in sorted(found.counts.items())
            ),
            unjudged=dict(sorted(found.unjudged.items())),
            other_columns=tuple(sorted(self._other_columns(look, found))),
            differences=dict(found.differences),
            first=tuple(
                each if each.plan else replace(each, plan=look.plan_at(topic_id, each))
                for topic_id, each in found.first
            ),
            shares_reader=any(
                each.format is Format.PROTOBUF for each in self.decode.parts.values()
            ),
        )

    def _look(self) -> Look:
        # The progress comes first: a decode that ends later has covered more offsets.
        return Look(progress=self.progress(), columns=self.typed.columns())

    def _compare(self, look: Look, chunk: Chunk, found: _Found) -> ChunkComparison:
        return ChunkComparison(
            decode=self.decode,
            schemas=self.schemas,
            bronze=self.bronze,
            typed=self.typed,
            entries=self.entries,
            topic=self.spec.topic,
            look=look,
            chunk=chunk,
            known_columns=found.known_columns,
        ).run()

    def _chunks(self, look: Look, partition: int | None, bounds: Span) -> Iterator[Chunk]:
        size = self.bronze.size().records_within(_CHUNK_OFFSETS, _CHUNK_BYTES)
        for topic_id, landed in sorted(look.progress.landed.items()):
            for number, spans in sorted(within(landed, partition, bounds).items()):
                for span in chunks(spans, size):
                    yield Chunk(topic_id, number, span)

    def _add_unexpected(
        self, look: Look, partition: int | None, bounds: Span, found: _Found
    ) -> None:
        """Add typed rows and quarantined records at offsets that have not landed."""
        tables: Sequence[DeltaDataTable] = (self.typed, self.entries)
        for table in tables:
            for held in table.row_ranges():
                place = SpanSet((Span(held.first, held.last + 1),)).within(bounds)
                landed = look.progress.landed.get(held.topic_id, {}).get(held.partition, SpanSet())
                outside = place.difference(landed)
                if not outside or partition not in (None, held.partition):
                    continue
                rows = table.spans_with_rows(held.topic_id, {held.partition: outside})
                spans = unknown = rows.get(held.partition, SpanSet())
                for some in (look.progress.decoded, look.progress.stale):
                    there = some.get(held.topic_id, {}).get(held.partition, SpanSet())
                    unknown = unknown.difference(there)
                withdrawn = spans.size - unknown.size
                found.counts[held.partition]["withdrawn"] += withdrawn
                for span in unknown:
                    found.add_difference(
                        held.topic_id,
                        TypedDifference(
                            difference=TypedDifferenceKind.UNEXPECTED,
                            topic=self.spec.topic,
                            partition=held.partition,
                            offset=span.start,
                            rows=span.size,
                        ),
                    )

    def _other_columns(self, look: Look, found: _Found) -> Iterator[str]:
        for name in look.columns:
            is_own = name.lower() in OWN_COLUMNS
            if not is_own and (not self.decode.flattens or name in found.strange):
                yield name


def _line(compared: ChunkComparison, done: str) -> str:
    number = counted(len(compared.differences), "difference")
    chunk = compared.chunk
    return f"typed rows of partition {chunk.partition}: {chunk.span} {done}, {number}"


@dataclass(slots=True)
class _Found:
    """The result of all chunks so far.

    Attributes:
        counts: Counts of `TypedComparison` by partition.
        unjudged: As in `TypedVerification`.
        differences: Number of differences by kind.
        first: The first differences, with their topic ids.
        known_columns: Columns of flattened values that a schema has.
        strange: Values outside the schemas of their records, by column.
    """

    counts: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    unjudged: Counter[str] = field(default_factory=Counter)
    differences: Counter[TypedDifferenceKind] = field(default_factory=Counter)
    first: list[tuple[str, TypedDifference]] = field(default_factory=list)
    known_columns: set[str] = field(default_factory=set)
    strange: dict[str, Strange] = field(default_factory=dict)

    def add(self, compared: ChunkComparison) -> None:
        self.counts[compared.chunk.partition] += compared.counts
        self.unjudged += compared.unjudged
        for each in compared.differences:
            self.add_difference(compared.chunk.topic_id, each)
        for column, more in compared.strange.items():
            before = self.strange.get(column, Strange(0, ()))
            first = [*before.first, *more.first][:MAX_LISTED]
            self.strange[column] = Strange(before.rows + more.rows, first)

    def add_difference(self, topic_id: str, difference: TypedDifference) -> None:
        self.differences[difference.difference] += difference.rows
        if len(self.first) < MAX_LISTED:
            self.first.append((topic_id, difference))

    def resolve_strange(self, topic: str) -> None:
        """Count strange values as differences if another record's schema has the column."""
        for column in sorted(self.strange.keys() & self.known_columns):
            rows, first = self.strange.pop(column)
            self.differences[TypedDifferenceKind.ALTERED] += rows
            for topic_id, partition, offset, plan in first:
                altered = TypedDifference(
                    difference=TypedDifferenceKind.ALTERED,
                    topic=topic,
                    partition=partition,
                    offset=offset,
                    columns=(column,),
                    plan=plan,
                )
                if len(self.first) < MAX_LISTED:
                    self.first.append((topic_id, altered))
