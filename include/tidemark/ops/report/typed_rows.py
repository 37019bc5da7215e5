"""Compares typed rows and records in quarantine with bronze rows, decoded again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tidemark.core.offsets import Span, SpanSet
from tidemark.core.table_state import TableSize
from tidemark.ops.report.typed_verification import TypedDifference, TypedDifferenceKind
from tidemark.ops.report.verification import MAX_LISTED
from tidemark.silver.typed.differing_values import Unjudged, differing_columns
from tidemark.silver.typed.expected_values import (
    expected_value,
    has_schema_id_header,
    schema_id_of,
)
from tidemark.silver.typed.formats.column import column_of
from tidemark.silver.typed.json_values import NotJudged
from tidemark.silver.typed.payload_values import MalformedPayload
from tidemark.silver.typed.registry_answers import leading_schema_ids
from tidemark.silver.typed.schemas import SchemaStore
from tidemark.silver.typed.state import DecodeProgress
from tidemark.spec.decode import DecodeSpec, Part, RegisteredSchema
from tidemark.spec.fields import FieldType, Struct
from tidemark.spec.flattening import TOMBSTONE, column_name, field_name

if TYPE_CHECKING:
    from tidemark.delta.data_table import DeltaDataTable

_COPIED = ("headers", "topic", "timestamp", "timestamp_out_of_range_ms", "timestamp_type")
_FROM_BRONZE = (*_COPIED, "plan_sequence", "ingested_at")
"""Columns that a typed row takes from its bronze row."""


class Bronze(Protocol):
    """A table with the rows to decode."""

    def size(self) -> TableSize:
        """Return the number and the size of rows."""

    def values_at(self, topic_id: str, partition: int, span: Span) -> list[dict[str, Any]]:
        """Return the rows of a span with all columns, in offset order."""


class Chunk(NamedTuple):
    """Offsets of one partition of an incarnation, which are compared at once."""

    topic_id: str
    partition: int
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The state of the tables to compare.

    Attributes:
        progress: Which offsets the typed table should have.
        columns: The columns of the typed table.
        schemas: Schemas by id; None for an id that is not stored.
        schema_columns: Columns of flattened values of each schema, by its id.
    """

    progress: DecodeProgress
    columns: Mapping[str, FieldType]
    schemas: dict[int, RegisteredSchema | None] = field(default_factory=dict)
    schema_columns: dict[int, frozenset[str]] = field(default_factory=dict)

    def plan_at(self, topic_id: str, difference: TypedDifference) -> int | None:
        """Return the plan that decoded the offset of a difference."""
        return self.progress.plan_at(topic_id, difference.partition, difference.offset)


def columns_of_value(kind: FieldType | None) -> frozenset[str]:
    """Return the columns of flattened values of a type."""
    names = (name for name, _ in kind.fields) if isinstance(kind, Struct) else ()
    return frozenset(map(column_name, names))


class Strange(NamedTuple):
    """Values in a column that the schemas of their records lack.

    Attributes:
        rows: Their number.
        first: The first rows: topic id, partition, offset and plan.
    """

    rows: int
    first: Sequence[tuple[str, int, int, int | None]]


@dataclass(slots=True, kw_only=True)
class ChunkComparison:
    """The comparison of one chunk.

    Attributes:
        decode: How records are decoded.
        schemas: The stored schemas.
        bronze: The bronze table.
        typed: The typed table.
        entries: The quarantine.
        topic: Topic name.
        look: The state of the tables.
        chunk: The offsets.
        known_columns: Columns of flattened values that a schema has. The comparison adds to them.
        counts: Counts of `TypedComparison`.
        unjudged: As in `TypedVerification`.
        differences: The differences.
        strange: Values outside the schemas of their records, by column.
    """

    decode: DecodeSpec
    schemas: SchemaStore
    bronze: Bronze
    typed: DeltaDataTable
    entries: DeltaDataTable
    topic: str
    look: Look
    chunk: Chunk
    known_columns: set[str]
    counts: Counter[str] = field(default_factory=Counter)
    unjudged: Counter[str] = field(default_factory=Counter)
    differences: list[TypedDifference] = field(default_factory=list)
    strange: dict[str, Strange] = field(default_factory=dict)

    def run(self) -> ChunkComparison:
        """Compare the rows, and return this object."""
        typed: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in self.typed.values_at(*self.chunk):
            typed[row["offset"]].append(row)
        entries = Counter(self.entries.offsets_at(*self.chunk))
        # The comparison with Kafka reports several bronze rows of one offset.
        bronze = {row["offset"]: row for row in self.bronze.values_at(*self.chunk)}
        self._read_schemas(bronze[offset] for offset in bronze.keys() & typed.keys())
        for offset, row in bronze.items():
            self._compare(offset, row, typed.pop(offset, []), entries.pop(offset, 0))
        landed = self._spans(self.look.progress.landed)
        self.counts["deleted"] += sum(len(rows) for at, rows in typed.items() if at in landed)
        self.counts["deleted"] += sum(count for at, count in entries.items() if at in landed)
        return self

    def _spans(self, offsets: Mapping[str, Mapping[int, SpanSet]]) -> SpanSet:
        return offsets.get(self.chunk.topic_id, {}).get(self.chunk.partition, SpanSet())

    def _compare(
        self, offset: int, row: Mapping[str, Any], typed: list[dict[str, Any]], entries: int
    ) -> None:
        """Compare a bronze row with its typed rows and the number of its entries in quarantine."""
        kinds = TypedDifferenceKind
        self.counts["rows"] += 1
        if len(typed) > 1 or entries > 1:
            self._differs(kinds.DUPLICATE, offset, typed)
        if typed and entries:
            self._differs(kinds.IN_BOTH, offset, typed)
        if offset in self._spans(self.look.progress.hidden):
            self.counts["withdrawn"] += len(typed) + entries
        if typed:
            self.counts["typed"] += 1
        elif entries:
            self.counts["quarantined"] += 1
        else:
            self._count_absent(offset)
        for each in typed:
            try:
                kind, columns = kinds.ALTERED, tuple(self._differing(offset, row, each))
            except MalformedPayload as wrong:
                kind, columns = kinds.UNDECODABLE, wrong.args
            if columns:
                is_replaced = each["plan_sequence"] != row["plan_sequence"]
                self._count_differing(kind, offset, each, columns, is_replaced=is_replaced)

    def _count_absent(self, offset: int) -> None:
        """Count a bronze row that is in neither table."""
        progress = self.look.progress
        if offset in self._spans(progress.hidden):
            self.counts["hidden"] += 1
        elif offset in self._spans(progress.decoded) and offset not in self._spans(progress.stale):
            self._differs(TypedDifferenceKind.MISSING, offset, ())
        else:
            self.counts["undecoded"] += 1

    def _count_differing(
        self,
        kind: TypedDifferenceKind,
        offset: int,
        typed: Mapping[str, Any],
        columns: tuple[str, ...],
        *,
        is_replaced: bool,
    ) -> None:
        """Count a typed row whose columns differ.

        Args:
            kind: The kind of the difference.
            offset: The offset of the row.
            typed: The row.
            columns: The columns.
            is_replaced: Whether the bronze row has another plan.
        """
        progress = self.look.progress
        if is_replaced and offset in self._spans(progress.stale):
            self.counts["stale"] += 1
            return
        plan, is_copied = typed["plan_sequence"], not set(columns).isdisjoint(_FROM_BRONZE)
        # Each spec copies these columns.
        if not is_copied and plan not in progress.by_spec:
            if plan not in progress.unknown_spec:
                self.counts["earlier_rules"] += 1
                return
            self.counts["unknown_spec"] += 1
        self._differs(kind, offset, [typed], columns)

    def _differs(
        self,
        kind: TypedDifferenceKind,
        offset: int,
        typed: Sequence[Mapping[str, Any]],
        columns: tuple[str, ...] = (),
    ) -> None:
        self.differences.append(
            TypedDifference(
                difference=kind,
                topic=self.topic,
                partition=self.chunk.partition,
                offset=offset,
                columns=columns,
                plan=typed[0]["plan_sequence"] if typed else None,
            )
        )

    # -- values ------------------------------------------------------------------------------------

    def _differing(
        self, offset: int, row: Mapping[str, Any], typed: Mapping[str, Any]
    ) -> Iterator[str]:
        """Yield the columns of a typed row that differ from its bronze row, decoded again.

        Raises:
            MalformedPayload: A key or a value cannot be decoded. Its argument is the column.
        """
        for name in _FROM_BRONZE:
            if row[name] != typed[name]:
                yield name
        for part in Part:
            try:
                for each in self._differing_part(part, offset, row, typed):
                    if isinstance(each, Unjudged):
                        self.unjudged[f"{each.path}: {each.reason}"] += 1
                    else:
                        yield each
            except MalformedPayload:
                raise MalformedPayload(part.value) from None
            except NotJudged as why:
                self.unjudged[f"{part}: {why}"] += 1
            except RecursionError:
                self.unjudged[f"{part}: JSON nested deeper than Python compares"] += 1

    def _differing_part(
        self, part: Part, offset: int, row: Mapping[str, Any], typed: Mapping[str, Any]
    ) -> Iterator[str | Unjudged]:
        decode, payload = self.decode, row[part]
        spec, schema = decode.parts[part], None
        if spec.format.has_schema_ids:
            if payload is not None and has_schema_id_header(row["headers"], part):
                raise MalformedPayload
            schema_id = schema_id_of(payload)
            if typed.get(part.schema_id) != schema_id:
                yield part.schema_id
            if schema_id is not None:
                schema = self.look.schemas.get(schema_id)
                if schema is None:
                    raise NotJudged(f"schema {schema_id} is not stored")
        expected = expected_value(payload, spec, schema)
        if part is Part.VALUE and decode.flattens:
            yield from self._differing_fields(expected, schema, offset, typed)
        elif part in self.look.columns:
            yield from differing_columns(expected, typed[part], self.look.columns[part], part)
        elif expected is not None:
            yield part.value

    def _differing_fields(
        self,
        expected: Mapping[str, Any] | None,
        schema: RegisteredSchema | None,
        offset: int,
        typed: Mapping[str, Any],
    ) -> Iterator[str | Unjudged]:
        """Yield the columns of a flattened value that differ."""
        columns = self.look.columns
        if typed.get(TOMBSTONE) != (expected is None):
            yield TOMBSTONE
        named = {column_name(name): each for name, each in (expected or {}).items()}
        if schema is not None:
            self.known_columns |= self._columns_of(schema)
        for name, each in named.items():
            if name in columns:
                yield from differing_columns(each, typed[name], columns[name], name)
            elif each is not None:
                yield name
        for name in columns.keys() - named.keys():
            if field_name(name) is None or typed[name] is None:
                continue
            if name in self.known_columns:
                yield name
            else:
                rows, first = self.strange.get(name, Strange(0, ()))
                place = (self.chunk.topic_id, self.chunk.partition, offset, typed["plan_sequence"])
                self.strange[name] = Strange(rows + 1, [*first, place][:MAX_LISTED])

    def _columns_of(self, schema: RegisteredSchema) -> frozenset[str]:
        """Return the columns of flattened values of a schema."""
        known = self.look.schema_columns
        if schema.id not in known:
            kind = column_of(self.decode.value.format, schema.text)
            known[schema.id] = columns_of_value(kind)
        return known[schema.id]

    def _read_schemas(self, rows: Iterator[Mapping[str, Any]]) -> None:
        """Read the schemas of bronze rows that were not read before."""
        known, parts = self.look.schemas, self.decode.framed_parts
        ids = {
            each for row in rows for part in parts for each in leading_schema_ids(row[part] or b"")
        }
        if ids := ids - known.keys():
            stored = self.schemas.stored(ids)
            known.update((each, stored.get(each)) for each in ids)
