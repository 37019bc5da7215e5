"""What records are written with: schemas of a registry, and the columns that they make together.

A schema never changes under its id, so what a registry has said once is kept. It is asked all the
same: one that was made anew gives old ids to other schemas, and records would decode to nonsense.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from tidemark.core.offsets import SpanSet
from tidemark.ingest.protocols import DataLog, DataTable
from tidemark.spec.decode import DecodeSpec, Format, Part, RegisteredSchema
from tidemark.spec.fields import FieldType, NoColumn, conflicts, merged, widened, within
from tidemark.typed.errors import (
    RegistryRefused,
    RegistryUnavailable,
    SchemaConflict,
    SchemaReplaced,
)
from tidemark.typed.formats import avro, json_schema, protobuf


class FramedLog(DataLog, Protocol):
    """A data table whose keys or values begin with the id of a schema."""

    def schema_ids(
        self, topic_id: str, spans: Mapping[int, SpanSet], part: Part
    ) -> Mapping[tuple[int, int], int]:
        """Schema ids at the beginning of keys or values of one incarnation, at some offsets.

        Returns:
            By partition and id the first offset, without records that do not begin with an id or
            that have a header with a schema id.
        """
        ...


class GrowingTable(DataTable, Protocol):
    """A typed table: its keys and values have the columns that their schemas make."""

    def columns(self) -> Mapping[Part, FieldType]:
        """The types of keys and values, as far as the table has columns for them."""
        ...

    def check_whole(self, pipeline: str) -> None:
        """Refuse a quarantine that a RESTORE has taken something out of.

        Raises:
            QuarantineRestored
        """
        ...

    def grow(self, pipeline: str, columns: Mapping[Part, FieldType]) -> None:
        """Make the table if it is not there, and add what its columns do not have.

        Raises:
            ForeignTable, TableAltered: As in `prepare`.
            EngineFailed: It may be done or not; do it again.
        """
        ...


class SchemaRegistry(Protocol):
    """Says what is behind the id of a schema."""

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """A schema with all that it refers to; None if there is none of this id.

        Raises:
            RegistryUnavailable, RegistryRefused
        """
        ...


class SchemaStore(Protocol):
    """Keeps what a registry has said."""

    def kept(self, ids: Collection[int]) -> Mapping[int, RegisteredSchema]:
        """Those of some schemas that are here, by id."""
        ...

    def keep(self, schemas: Sequence[RegisteredSchema]) -> None:
        """Keep schemas that are not here.

        Raises:
            EngineFailed: They may be here or not; do it again.
        """
        ...


log = logging.getLogger(__name__)

_REQUESTS_AT_ONCE = 8
"""Requests to the registry at the same time."""

_COLUMN_OF: Mapping[Format, Callable[[str], FieldType]] = {
    Format.AVRO: avro.column_of,
    Format.JSON_SCHEMA: json_schema.column_of,
    Format.PROTOBUF: protobuf.column_of,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How records at some offsets can be decoded.

    Attributes:
        schemas: Ids that can be read, ascending, by half of a record.
        columns: What the typed table's columns have to be for them.
        stops: By partition the first record of a schema that does not fit; then all else is empty.
    """

    schemas: Mapping[Part, tuple[int, ...]]
    columns: Mapping[Part, FieldType]
    stops: Mapping[int, SchemaConflict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schemas:
    """Schemas by the ids that records begin with.

    Attributes:
        decode: How records are decoded.
        pipeline: The pipeline of the typed table.
        open_registry: Connects to what says what is behind an id; called when one has to be asked.
        store: What it has said before.
        bronze: The records.
        table: The typed table.
        nobodys: Ids that the registry did not know when it was asked.
    """

    decode: DecodeSpec
    pipeline: str
    open_registry: Callable[[], SchemaRegistry]
    store: SchemaStore
    bronze: FramedLog
    table: GrowingTable
    nobodys: set[int] = field(default_factory=set)

    def fit(self, topic_id: str, spans: Mapping[int, SpanSet]) -> Fit:
        """What records of one incarnation at these offsets are written with. Keeps the schemas.

        Raises:
            RegistryUnavailable: And not all the schemas are kept.
            RegistryRefused, SchemaReplaced
        """
        if not self.decode.framed:
            return Fit(schemas={}, columns={}, stops={})
        schemas, columns = {}, {}
        present = self.table.columns()
        for part in self.decode.framed:
            seen = self.bronze.schema_ids(topic_id, spans, part)
            ids = {schema_id for _, schema_id in seen} - set(self.decode.refused_schemas)
            known = self._known(ids)
            fitting, column = [], present.get(part)
            # As they come in the log: of two that do not agree the earlier one is taken.
            for schema_id in sorted(known, key=lambda each: (_first_of(seen, each), each)):
                made, differences = self._fitted(part, column, known[schema_id])
                if made is None:
                    # What comes behind may be cut off with it, so it decides about nothing.
                    stops = {
                        partition: SchemaConflict(
                            pipeline=self.pipeline,
                            part=str(part),
                            schema_id=schema_id,
                            partition=partition,
                            offset=first,
                            differences=differences,
                        )
                        for partition, first in _places(seen, schema_id)
                    }
                    return Fit(schemas={}, columns={}, stops=stops)
                fitting.append(schema_id)
                column = made
            if fitting:
                schemas[part] = tuple(sorted(fitting))
            if column is not None:
                columns[part] = column
        return Fit(schemas=schemas, columns=columns, stops={})

    def _fitted(
        self, part: Part, column: FieldType | None, schema: RegisteredSchema
    ) -> tuple[FieldType | None, tuple[str, ...]]:
        """The column that takes a schema's records as well; None with why if there is none."""
        expected = self.decode.parts[part].format
        if schema.kind != expected.kind:
            return None, (f"it is {schema.kind}, not {expected.kind}",)
        try:
            with within(str(part)):
                wanted = _COLUMN_OF[expected](schema.text)
        except NoColumn as unusable:
            return None, (str(unusable),)
        if self.decode.widens:
            wanted = widened(wanted)
        if column is None:
            return wanted, ()
        has_unions = expected is Format.AVRO
        differences = tuple(conflicts(column, wanted, str(part), has_unions=has_unions))
        # fence: unfit-schema-stops-partition
        return (None, differences) if differences else (merged(column, wanted), ())

    def _known(self, ids: Collection[int]) -> Mapping[int, RegisteredSchema]:
        """The schemas of some ids; of those that are nobody's, none."""
        kept = self.store.kept(ids)
        asked: dict[int, RegisteredSchema] = {}
        away: RegistryUnavailable | None = None
        try:
            self._ask(set(ids) - self.nobodys, asked)
        except RegistryUnavailable as failure:
            away = failure
        for schema_id, schema in kept.items():
            # fence: replaced-schema-is-refused
            if not asked.get(schema_id, schema).is_same(schema):
                raise SchemaReplaced(connection=self.decode.registry, schema_id=schema_id)
        new = [each for each in asked.values() if each.id not in kept and each.is_settled]
        if new:
            # Also of those that were answered before one was not: the next run goes on there.
            self.store.keep(new)
        known = {**kept, **asked}
        if away is not None:
            if not set(ids) <= known.keys() | self.nobodys:
                raise away
            log.warning("all schemas are kept, so it is not waited for: %s", away)
        return known

    def are_kept(self, ids: Collection[int]) -> bool:
        """Whether some schemas are known without asking anybody."""
        return set(ids) <= self.store.kept(ids).keys()

    def _ask(self, ids: Collection[int], asked: dict[int, RegisteredSchema]) -> None:
        """Add the registry's answers to `asked`, and unknown ids to `nobodys`.

        Several requests run at the same time, and none starts after a failure.

        Raises:
            RegistryUnavailable, RegistryRefused: The failure of the lowest id; the answers of other
                requests have been added.
        """
        if not ids:
            return
        registry = self.open_registry()
        answers: dict[int, RegisteredSchema | None] = {}
        failures: dict[int, RegistryUnavailable | RegistryRefused] = {}

        def request(schema_id: int) -> None:
            if not failures:
                try:
                    answers[schema_id] = registry.schema(schema_id)
                except (RegistryUnavailable, RegistryRefused) as failure:
                    failures[schema_id] = failure

        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
            list(pool.map(request, sorted(ids)))
        asked |= {each: schema for each, schema in sorted(answers.items()) if schema is not None}
        self.nobodys.update(answers.keys() - asked.keys())
        if failures:
            raise failures[min(failures)]


def _places(seen: Mapping[tuple[int, int], int], schema_id: int) -> Iterator[tuple[int, int]]:
    """Partitions with records of a schema, and the offset of the first."""
    return ((partition, first) for (partition, each), first in seen.items() if each == schema_id)


def _first_of(seen: Mapping[tuple[int, int], int], schema_id: int) -> int:
    return min(first for _, first in _places(seen, schema_id))
