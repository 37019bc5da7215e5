"""The registry's schemas of records, and the columns of the typed table for them.

A schema never changes under its id, so the resolver stores the schemas of a registry. Each run
requests them nevertheless: a rebuilt registry assigns old ids to other schemas, and records would
decode to wrong values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, Self

from tidemark.bronze.ingest.protocols import DataLog
from tidemark.core.following import BatchOffsets
from tidemark.core.offsets import SpanSet, union_by_partition
from tidemark.silver.typed.errors import (
    RegistryFailure,
    RegistryUnavailable,
    SchemaConflict,
    SchemaReplaced,
)
from tidemark.silver.typed.formats.column import column_of
from tidemark.spec.decode import DecodeSpec, Format, Part, RegisteredSchema
from tidemark.spec.fields import (
    FieldType,
    Struct,
    UnsupportedSchema,
    merged_type,
    path_prefix,
    type_conflicts,
    widened_type,
)
from tidemark.spec.ref import PipelineRef
from tidemark.spec.schema_limits import SchemaTooLarge, check_size

if TYPE_CHECKING:
    from tidemark.silver.typed.tables import TypedTables


class FramedLog(DataLog, Protocol):
    """A data table whose keys or values begin with schema ids."""

    def schema_ids(
        self, topic_id: str, spans: Mapping[int, SpanSet], part: Part
    ) -> Mapping[tuple[int, int], int]:
        """Return the schema ids of keys or values at some offsets of one incarnation.

        Returns:
            The first offset by partition and id. Records that do not begin with an id, or have a
            header with a schema id, are left out.
        """
        ...


class SchemaRegistry(Protocol):
    """Returns schemas by their ids."""

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """Return a schema with the schemas that it refers to; None if the id is unknown.

        Raises:
            RegistryFailure: The registry returned no answer, or an error.
        """
        ...


class SchemaStore(Protocol):
    """Stores the schemas of a registry by their ids."""

    def stored(self, ids: Collection[int]) -> Mapping[int, RegisteredSchema]:
        """Return the stored schemas with some ids."""
        ...

    def store(self, schemas: Sequence[RegisteredSchema]) -> None:
        """Store further schemas."""
        ...


@dataclass(frozen=True, slots=True)
class DraftSchemas:
    """A schema store whose new schemas stay in memory, for previews.

    Attributes:
        kept: The store, which is only read.
        new: The new schemas by id.
    """

    kept: SchemaStore
    new: dict[int, RegisteredSchema] = field(default_factory=dict)

    def stored(self, ids: Collection[int]) -> Mapping[int, RegisteredSchema]:
        """See `SchemaStore.stored`."""
        return {
            **self.kept.stored(ids),
            **{each: self.new[each] for each in self.new.keys() & set(ids)},
        }

    def store(self, schemas: Sequence[RegisteredSchema]) -> None:
        """See `SchemaStore.store`."""
        self.new.update((each.id, each) for each in schemas)


log = logging.getLogger(__name__)

_REQUESTS_AT_ONCE = 8
"""Maximum number of concurrent requests to the registry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSchemas:
    """The schemas of records at some offsets.

    Attributes:
        ids: Ids of the schemas, ascending, by part of a record.
        columns: The types of the typed table's columns that store all their records.
        conflict: A record of a schema that does not fit the columns. With a conflict, the other
            attributes are empty.
        oversized: Ids of schemas that exceed a limit, as `ids`.
    """

    ids: Mapping[Part, tuple[int, ...]] = field(default_factory=dict)
    columns: Mapping[Part, FieldType] = field(default_factory=dict)
    conflict: SchemaConflict | None = None
    oversized: Mapping[Part, tuple[int, ...]] = field(default_factory=dict)

    def joined(self, later: Self) -> Self:
        """Return the schemas of both. The columns of `later` contain those of this value."""
        return replace(
            later,
            ids=_joined_ids(self.ids, later.ids),
            columns={**self.columns, **later.columns},
            oversized=_joined_ids(self.oversized, later.oversized),
        )


def _joined_ids(
    some: Mapping[Part, tuple[int, ...]], others: Mapping[Part, tuple[int, ...]]
) -> Mapping[Part, tuple[int, ...]]:
    return {
        part: tuple(sorted({*some.get(part, ()), *others.get(part, ())}))
        for part in {**some, **others}
    }


def _by_topic(offsets: BatchOffsets) -> Iterator[tuple[str, Mapping[int, SpanSet]]]:
    """Yield the offsets of each incarnation of the topic."""
    for topic_id in sorted({batch.topic_id for batch in offsets}):
        own = (spans for batch, spans in offsets.items() if batch.topic_id == topic_id)
        yield topic_id, union_by_partition(own)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaResolver:
    """Resolves the schema ids of records, and derives the columns for them.

    Attributes:
        decode: How records are decoded.
        pipeline: The pipeline of the typed table.
        open_registry: Connects to the registry, before the first request.
        store: The schemas that the registry returned before.
        bronze: The bronze table.
        table: The typed table.
        unknown_ids: Ids that the registry has reported as unknown.
    """

    decode: DecodeSpec
    pipeline: str
    open_registry: Callable[[], SchemaRegistry]
    store: SchemaStore
    bronze: FramedLog
    table: TypedTables
    unknown_ids: set[int] = field(default_factory=set)

    def resolve(
        self,
        topic_id: str,
        spans: Mapping[int, SpanSet],
        columns: Mapping[Part, FieldType] | None = None,
    ) -> ResolvedSchemas:
        """Return the schemas of records at some offsets of one incarnation; store new schemas.

        Args:
            topic_id: Incarnation of the topic.
            spans: The offsets by partition.
            columns: Columns that the typed table will have; None for its present columns.

        Raises:
            RegistryFailure: The registry rejected a request; or it is unavailable, and not all
                schemas are stored.
            SchemaReplaced: The registry returned a schema that differs from the stored one.
        """
        if not self.decode.framed_parts:
            return ResolvedSchemas()
        fitting_ids, wanted, oversized = {}, {}, {}
        present = self.table.columns() if columns is None else columns
        for part in self.decode.framed_parts:
            first: dict[int, dict[int, int]] = {}
            for (partition, schema_id), offset in self.bronze.schema_ids(
                topic_id, spans, part
            ).items():
                first.setdefault(schema_id, {})[partition] = offset
            known = self._known(first.keys() - set(self.decode.refused_schemas))
            fitting, column, excess = [], present.get(part), []
            # In the order of the log: of two incompatible schemas, the earlier one wins.
            for schema_id in sorted(known, key=lambda each: (min(first[each].values()), each)):
                try:
                    made, differences = self._widened_column(part, column, known[schema_id])
                except SchemaTooLarge as large:
                    log.warning(
                        "quarantining the records of a schema pipeline=%s part=%s schema_id=%d "
                        "message=%s",
                        *(self.pipeline, part, schema_id, large),
                    )
                    excess.append(schema_id)
                    continue
                if made is None:
                    partition, offset = min(first[schema_id].items())
                    conflict = SchemaConflict(
                        pipeline=PipelineRef.parse(self.pipeline).name,
                        part=str(part),
                        schema_id=schema_id,
                        partition=partition,
                        offset=offset,
                        differences=differences,
                    )
                    return ResolvedSchemas(conflict=conflict)
                fitting.append(schema_id)
                column = made
            if fitting:
                fitting_ids[part] = tuple(sorted(fitting))
            if excess:
                oversized[part] = tuple(sorted(excess))
            if column is not None:
                wanted[part] = column
        return ResolvedSchemas(ids=fitting_ids, columns=wanted, oversized=oversized)

    def resolve_plans(
        self, offsets: BatchOffsets
    ) -> tuple[ResolvedSchemas, Mapping[int, SchemaConflict]]:
        """Return the schemas of records of whole plans; store new schemas.

        Without a conflict, the records are read together. Otherwise, each plan is read alone, from
        the oldest on, and a plan with a conflict adds no columns.

        Returns:
            The schemas of the plans without a conflict, and a conflict of each other plan.

        Raises:
            RegistryFailure, SchemaReplaced: As for `resolve`.
        """
        together = self._resolve_batches(offsets, ResolvedSchemas())
        if together.conflict is None:
            return together, {}
        fitting, waiting = ResolvedSchemas(), dict[int, SchemaConflict]()
        for batch, spans in sorted(offsets.items(), key=lambda each: each[0]):
            found = self._resolve_batches({batch: spans}, fitting)
            if found.conflict is not None:
                waiting.setdefault(batch.sequence, found.conflict)
            else:
                fitting = found
        return fitting, waiting

    def fetch(self, offsets: BatchOffsets) -> None:
        """Store the schemas of records that are not stored yet, also those that do not fit.

        Raises:
            RegistryFailure, SchemaReplaced: As for `resolve`.
        """
        for topic_id, spans in _by_topic(offsets):
            for part in self.decode.framed_parts:
                found = {number for _, number in self.bronze.schema_ids(topic_id, spans, part)}
                self._known(found - set(self.decode.refused_schemas))

    def _resolve_batches(self, offsets: BatchOffsets, before: ResolvedSchemas) -> ResolvedSchemas:
        """Return the schemas of some batches, joined with earlier ones; or a conflict."""
        found = before
        for topic_id, spans in _by_topic(offsets):
            new = self.resolve(topic_id, spans, found.columns or None)
            if new.conflict is not None:
                return new
            found = found.joined(new)
        return found

    def _widened_column(
        self, part: Part, column: FieldType | None, schema: RegisteredSchema
    ) -> tuple[FieldType | None, tuple[str, ...]]:
        """Return the type of a column that also stores a schema's records.

        Returns:
            The type and no differences; or None and the differences that prevent it.

        Raises:
            SchemaTooLarge: The schema, or the column with its fields, exceeds a limit.
        """
        expected = self.decode.parts[part].format
        if schema.kind != expected.kind:
            return None, (f"the schema is {schema.kind}, not {expected.kind}",)
        try:
            with path_prefix(str(part)):
                if schema.excess:
                    raise SchemaTooLarge(schema.excess)
                wanted = column_of(expected, schema.text)
        except UnsupportedSchema as unusable:
            # fence: large-schema-stops-no-partition
            if isinstance(unusable, SchemaTooLarge):
                raise
            return None, (str(unusable),)
        if part is Part.VALUE and self.decode.flattens and not isinstance(wanted, Struct):
            return None, ("the schema has no fields, so decode.flatten has no columns for it",)
        if self.decode.widens:
            wanted = widened_type(wanted)
        if column is None:
            return wanted, ()
        has_unions = expected is Format.AVRO
        differences = tuple(type_conflicts(column, wanted, str(part), has_unions=has_unions))
        if differences:  # fence: unfit-schema-stops-partition
            return None, differences
        merged = merged_type(column, wanted)
        check_size(merged, f"the {part} of the typed table, with the fields of the schema,")
        return merged, ()

    def _known(self, ids: Collection[int]) -> Mapping[int, RegisteredSchema]:
        """Return the schemas of some ids; unknown ids are left out."""
        stored = self.store.stored(ids)
        answered: dict[int, RegisteredSchema] = {}
        unavailable: RegistryUnavailable | None = None
        try:
            self._request(set(ids) - self.unknown_ids, answered)
        except RegistryUnavailable as failure:
            unavailable = failure
        for schema_id, schema in stored.items():
            # fence: replaced-schema-is-refused
            if not answered.get(schema_id, schema).is_same(schema):
                raise SchemaReplaced(connection=self.decode.registry, schema_id=schema_id)
        new = [each for each in answered.values() if each.id not in stored and each.is_final]
        if new:
            # Also the answers before a failed request: the next run needs fewer requests.
            self.store.store(new)
        known = {**stored, **answered}
        if unavailable is not None:
            if not set(ids) <= known.keys() | self.unknown_ids:
                raise unavailable
            log.warning(
                "registry unavailable, decoding with stored schemas registry=%s message=%s",
                self.decode.registry,
                unavailable.rendered("problem"),
            )
        return known

    def _request(self, ids: Collection[int], answered: dict[int, RegisteredSchema]) -> None:
        """Add the registry's answers to `answered`, and unknown ids to `unknown_ids`.

        Several requests run at the same time, and none starts after a failure.

        Raises:
            RegistryFailure: The failure of the lowest id; the answers of other requests have been
                added.
        """
        if not ids:
            return
        registry = self.open_registry()
        answers: dict[int, RegisteredSchema | None] = {}
        failures: dict[int, RegistryFailure] = {}

        def request(schema_id: int) -> None:
            if not failures:
                try:
                    answers[schema_id] = registry.schema(schema_id)
                except RegistryFailure as failure:
                    failures[schema_id] = failure

        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
            list(pool.map(request, sorted(ids)))
        answered |= {each: schema for each, schema in sorted(answers.items()) if schema is not None}
        self.unknown_ids.update(answers.keys() - answered.keys())
        if failures:
            raise failures[min(failures)]
