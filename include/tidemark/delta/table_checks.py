"""Checks that a table belongs to a pipeline and that plans can land in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from deltalake import DeltaTable, Schema

from tidemark.delta.columns import field_type
from tidemark.delta.delta_errors import translate_delta_errors
from tidemark.delta.errors import (
    ForeignTable,
    TableAltered,
)
from tidemark.delta.table_io import open_if_exists
from tidemark.spec.fields import FieldType, added_fields, type_conflicts
from tidemark.spec.ref import PipelineKind, PipelineRef

OWNER = "tidemark.pipeline"
"""The table property with the name of the pipeline."""

_SUPPORTED_FEATURES = {
    *("appendOnly", "invariants", "checkConstraints"),
    *("changeDataFeed", "deletionVectors", "v2Checkpoint"),
    "generatedColumns",  # `_check_column_rules` refuses such a column.
    "columnMapping",  # Has no effect in mode `none`; `check_names` refuses the other modes.
}
"""Table features that allow a commit of new files."""
_NEWEST_WRITER = 7
_WRITER_OF_IDENTITY_COLUMNS = 6
"""A protocol of this version requires them from its writers, and has no list of features."""
_APPEND_ONLY = "delta.appendOnly"
_NO_RULES = {"delta.columnMapping.id", "delta.columnMapping.physicalName"}
"""Column metadata of Delta that does not restrict the column's values."""


def table_owner(uri: str) -> str | None:
    """Return the pipeline of a table, from its property; None without a table or the property.

    Raises:
        StorageFailure: The table cannot be read.
        DeltaLogDamaged: Its log is damaged, or the folder has data files and no log.
    """
    with translate_delta_errors(uri, "reading the table"):
        table = open_if_exists(uri)
        return None if table is None else table.metadata().configuration.get(OWNER)


def check_owner(table: DeltaTable, uri: str, pipeline: str) -> None:
    """Raise `ForeignTable` for a table of another pipeline."""
    owner = table.metadata().configuration.get(OWNER)
    if owner != pipeline:
        difference = f"the table property {OWNER} is {owner!r}, not {pipeline!r}"
        raise ForeignTable(target=uri, difference=difference)


def check_columns(table: DeltaTable, uri: str, schema: Schema) -> None:
    """Raise `TableAltered` unless a table has all columns of a schema, with their types."""
    present = {field.name: field.type for field in table.schema().fields}
    for wanted in schema.fields:
        if wanted.name not in present:
            raise TableAltered.of_columns(uri, f"it has no column {wanted.name}")
        if _without_nullability(present[wanted.name]) != _without_nullability(wanted.type):
            difference = f"its column {wanted.name} is {present[wanted.name]}"
            raise TableAltered.of_columns(uri, difference)


def check_excluded(table: DeltaTable, uri: str, excluded: Mapping[str, str | None]) -> None:
    """Raise `TableAltered` for a table with an excluded column: its rows have another layout.

    Args:
        table: The table.
        uri: Its location.
        excluded: Names of columns. Each maps to the column beside which the name is allowed, or
            to None if the name is never allowed.
    """
    names = {field.name for field in table.schema().fields}
    for name, beside in excluded.items():
        if name in names and beside not in names:
            without = f" and no column {beside}" if beside else ""
            raise TableAltered.of_columns(uri, f"it has the column {name}{without}")


def check_extensible(table: DeltaTable, uri: str, schema: Schema, *, has_unions: bool) -> None:
    """Raise `TableAltered` unless added fields are enough for the columns of a schema.

    Args:
        table: The table.
        uri: Its location.
        schema: The columns.
        has_unions: Whether some of the columns are unions (see `type_conflicts`).
    """
    present = field_types(table.schema())
    spellings = {name.lower(): name for name in present}
    for name, needed in field_types(schema).items():
        if (other := spellings.get(name.lower(), name)) != name:
            raise TableAltered.of_columns(uri, f"its column {other} is {name} in the schema")
        if name in present:
            for difference in type_conflicts(present[name], needed, name, has_unions=has_unions):
                raise TableAltered.of_columns(uri, difference)


def missing_fields(table: DeltaTable, schema: Schema) -> list[str]:
    """Return the names of columns and nested fields of a schema that a table lacks."""
    present = field_types(table.schema())
    missing: list[str] = []
    for name, kind in field_types(schema).items():
        missing += added_fields(present[name], kind, name) if name in present else [name]
    return missing


def check_names(table: DeltaTable, uri: str) -> None:
    """Raise `TableAltered` for column mapping: files may have other column names than the table.

    Readers would find only nulls in a file with the names of the table.
    """
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        raise TableAltered.of_rule(uri, "it has column mapping")


def check_rules(table: DeltaTable, uri: str) -> None:
    """Raise `TableAltered` for rules for writers that a commit of new files does not check."""
    check_names(table, uri)
    _check_partitions(table, uri)
    _check_constraints(table, uri)
    _check_column_rules(table, uri, required=())
    check_features(table, uri)


def check_appends(table: DeltaTable, uri: str, schema: Any) -> None:
    """Raise `TableAltered` for rules for writers of a table into which no plan lands.

    Args:
        table: The table.
        uri: Its location.
        schema: The columns of a new table. Their rules are allowed.
    """
    check_names(table, uri)
    _check_constraints(table, uri)
    required = [field.name for field in schema if not field.nullable]
    _check_column_rules(table, uri, required)
    check_features(table, uri)


def check_replaceable(table: DeltaTable, uri: str) -> None:
    """Raise `TableAltered` for rules that remain if a commit replaces all rows and columns."""
    check_removals(table, uri)
    check_names(table, uri)
    _check_partitions(table, uri)
    _check_constraints(table, uri)
    check_features(table, uri)


def check_features(table: DeltaTable, uri: str) -> None:
    """Raise `TableAltered` if delta-rs cannot commit to a table, because of its protocol."""
    protocol = table.protocol()
    if protocol.min_writer_version > _NEWEST_WRITER:
        difference = f"it needs a writer of version {protocol.min_writer_version}"
        raise TableAltered.of_protocol(uri, difference)
    features = set(protocol.writer_features or ())
    if protocol.min_writer_version == _WRITER_OF_IDENTITY_COLUMNS:
        features.add("identityColumns")
    if unknown := features - _SUPPORTED_FEATURES:
        owner = table.metadata().configuration.get(OWNER)
        is_data_table = owner is not None and PipelineRef.parse(owner).kind is PipelineKind.LIVE
        raise TableAltered.of_features(uri, tuple(sorted(unknown)), is_data_table=is_data_table)


def _check_partitions(table: DeltaTable, uri: str) -> None:
    if partitions := table.metadata().partition_columns:
        # fence: partitioned-table-is-refused
        raise TableAltered.of_rule(uri, f"it is partitioned by {', '.join(partitions)}")


def _check_constraints(table: DeltaTable, uri: str) -> None:
    for name in table.metadata().configuration:
        if name.startswith("delta.constraints."):
            constraint = name.removeprefix("delta.constraints.")
            raise TableAltered.of_rule(uri, f"it has the constraint {constraint!r}")


def _check_column_rules(table: DeltaTable, uri: str, required: Collection[str]) -> None:
    """Raise `TableAltered` for a column with a rule; the columns `required` may refuse nulls."""
    for field in table.schema().fields:
        rules = {name for name in field.metadata if name.startswith("delta.")}
        refuses_nulls = not field.nullable and field.name not in required
        if refuses_nulls or rules - _NO_RULES:
            raise TableAltered.of_rule(uri, f"its column {field.name} has a rule")


def check_removals(table: DeltaTable, uri: str) -> None:
    """Raise `TableAltered` for a table whose rows no commit may remove or change."""
    configuration = table.metadata().configuration
    if (configuration.get(_APPEND_ONLY) or "").lower() == "true":
        raise TableAltered.append_only(
            uri,
            configuration.get(OWNER) or "",
            f"the table property {_APPEND_ONLY} is set",
        )


def field_types(schema: Schema) -> Mapping[str, FieldType]:
    """Return the field types of a schema by column."""
    return {field.name: field_type(field.type) for field in schema.fields}


def _without_nullability(kind: Any) -> str:
    """Return a type as text; Spark and delta-rs differ on nulls in nested fields."""
    text = kind.to_json() if hasattr(kind, "to_json") else str(kind)
    return text.replace('"containsNull":false', '"containsNull":true').replace(
        '"nullable":false', '"nullable":true'
    )
