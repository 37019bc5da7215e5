"""Facets of a dataset's columns: their types, and the columns that they come from.

Sources: OpenLineage's facets SchemaDatasetFacet and ColumnLineageDatasetFacet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from openlineage.client.facet_v2 import column_lineage_dataset, schema_dataset

from tidemark.airflow.lineage.places import Place
from tidemark.spec.decode import DecodeSpec, Format, Part
from tidemark.spec.fields import FieldType, ListOf, MapOf, Struct, inner_names
from tidemark.spec.flattening import TOMBSTONE, VALUE, field_name, unflattened
from tidemark.spec.upsert import Envelope, UpsertSpec


class SchemaFacet(schema_dataset.SchemaDatasetFacet):
    """The types of columns. The provider searches no names for secrets, which takes seconds."""

    _additional_skip_redact: ClassVar[list[str]] = ["fields"]


class ColumnLineage(column_lineage_dataset.ColumnLineageDatasetFacet):
    """The source columns of each column. The provider does not search them for secrets."""

    _additional_skip_redact: ClassVar[list[str]] = ["fields", "dataset"]


def schema_facet(columns: Mapping[str, FieldType]) -> SchemaFacet:
    """Return the types of columns; fields of structs, lists and maps are nested."""
    return SchemaFacet([_field(*each) for each in columns.items()])


def _field(name: str, kind: FieldType) -> schema_dataset.SchemaDatasetFacetFields:
    nested: Sequence[tuple[str, FieldType]]
    match kind:
        case Struct():
            text, nested = "struct", kind.fields
        case ListOf():
            text, nested = "array", [("_element", kind.element)]
        case MapOf():
            text, nested = "map", [("key", "string"), ("value", kind.value)]
        case _:
            text, nested = str(kind), ()
    fields = [_field(*each) for each in nested]
    return schema_dataset.SchemaDatasetFacetFields(name, text, fields=fields)


Transformation = column_lineage_dataset.Transformation

RECORD_FIELDS = ("key", "value", "headers", "partition", "offset", "timestamp", "timestamp_type")
"""Fields of a Kafka record, by the names of their bronze columns."""

_IDENTITY = Transformation("DIRECT", "IDENTITY")
_FILTER = Transformation("INDIRECT", "FILTER")
_CONDITIONAL = Transformation("INDIRECT", "CONDITIONAL")
_PARTS = tuple(part.value for part in Part)


class _Sources:
    """Column lineage of a table with one source."""

    def __init__(self, source: Place) -> None:
        self._source = source
        self._fields: dict[str, column_lineage_dataset.Fields] = {}
        self._dataset: list[column_lineage_dataset.InputField] = []

    def of(self, column: str, how: Transformation, *sources: str) -> None:
        """Set the columns of the source from which a column comes."""
        self._fields[column] = column_lineage_dataset.Fields(list(self._inputs(how, sources)))

    def of_all(self, how: Transformation, *sources: str) -> None:
        """Add columns of the source that affect all columns."""
        self._dataset += self._inputs(how, sources)

    def facet(self) -> ColumnLineage:
        """Return the facet."""
        return ColumnLineage(fields=self._fields, dataset=self._dataset)

    def _inputs(
        self, how: Transformation, sources: Sequence[str]
    ) -> Iterator[column_lineage_dataset.InputField]:
        for name in sources:
            yield column_lineage_dataset.InputField(*self._source, name, transformations=[how])


def bronze_lineage(topic: Place, columns: Mapping[str, FieldType]) -> ColumnLineage:
    """Return the columns of a topic from which those of a bronze table come."""
    sources = _Sources(topic)
    for name in RECORD_FIELDS:
        if name in columns:
            sources.of(name, _IDENTITY, name)
    converted = Transformation("DIRECT", "TRANSFORMATION", "null unless outside years 1 to 9999")
    sources.of("timestamp_out_of_range_ms", converted, "timestamp")
    return sources.facet()


def typed_lineage(
    bronze: Place, columns: Mapping[str, FieldType], decode: DecodeSpec
) -> ColumnLineage:
    """Return the bronze columns from which those of a typed table come."""
    sources = _decoded_rows(bronze, columns)
    for part, spec in decode.parts.items():
        how = Transformation("DIRECT", "TRANSFORMATION", f"decoded as {spec.format}")
        if part in columns:
            sources.of(part, _IDENTITY if spec.format is Format.BINARY else how, part)
        if part is Part.VALUE and decode.flattens:
            for name in (*_content_columns(columns), TOMBSTONE):
                sources.of(name, how, part)
        if part.schema_id in columns:
            sources.of(part.schema_id, how, part)
    return sources.facet()


def quarantine_lineage(
    bronze: Place, columns: Mapping[str, FieldType], _: DecodeSpec
) -> ColumnLineage:
    """Return the bronze columns from which those of a quarantine table come."""
    sources = _decoded_rows(bronze, columns)
    for name in ("reason", "part", "detail", "schema_id"):
        sources.of(name, _CONDITIONAL, *_PARTS)
    return sources.facet()


def _decoded_rows(bronze: Place, columns: Mapping[str, FieldType]) -> _Sources:
    """Return the lineage of the bronze columns that a typed table or a quarantine has as well."""
    sources = _Sources(bronze)
    for name in _BESIDE_PAYLOAD:
        if name in columns:
            sources.of(name, _IDENTITY, name)
    # Key and value decide whether a record is in the typed table or in the quarantine.
    sources.of_all(_FILTER, *_PARTS)
    return sources


_BESIDE_PAYLOAD = (
    *("headers", "topic", "partition", "offset"),
    *("timestamp", "timestamp_out_of_range_ms", "timestamp_type", "topic_id", "ingested_at"),
)
"""Columns of bronze tables beside key and value. Quarantines have some of them."""


def _content_columns(columns: Mapping[str, FieldType]) -> list[str]:
    """Return the columns with the fields of flattened values."""
    return [name for name in columns if field_name(name) is not None]


def upsert_lineage(
    typed: Place,
    read: Mapping[str, FieldType],
    columns: Mapping[str, FieldType],
    upsert: UpsertSpec,
) -> ColumnLineage:
    """Return the column lineage of an upsert table.

    Args:
        typed: The typed table.
        read: Its columns.
        columns: The columns of the upsert table.
        upsert: The spec of the upsert table.
    """
    sources = _Sources(typed)
    for name in ("key", "topic_id", "partition", "offset", "timestamp", "plan_sequence"):
        sources.of(name, _IDENTITY, name)
    value = read.get(VALUE) if not upsert.flattens else unflattened(read)
    path = [*(upsert.envelope.path_in(inner_names(value)) or ())]
    operation = path[0] if path else upsert.envelope.operation
    path += ["after"] if upsert.envelope is Envelope.DEBEZIUM else []
    what = f"the field {'.'.join(path)}"
    how = Transformation("DIRECT", "TRANSFORMATION", what) if path else _IDENTITY
    if upsert.flattens:
        for name in _content_columns(columns):
            sources.of(name, how, path[0] if path else name)
        sources.of("deleted", _CONDITIONAL, TOMBSTONE, *filter(None, [operation]))
    else:
        sources.of("value", how, "value")
        sources.of("deleted", _CONDITIONAL, "value")
    sources.of_all(Transformation("INDIRECT", "GROUP_BY"), "partition", "key")
    sources.of_all(Transformation("INDIRECT", "SORT"), "topic_id", "offset")
    return sources.facet()
