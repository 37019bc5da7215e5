"""Rows of tables with maps of structs, to which a later schema may have added fields.

delta-rs fills missing fields of structs and of lists with nulls, but it cannot convert a map. Spark
can, and so can PyArrow's cast. So this module reads the Parquet files of such tables with PyArrow.
It uses no PyArrow dataset: see docs/adr/0003-no-pyarrow-datasets-over-delta-rs.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.schema import ArrayType, MapType, StructType

from tidemark.delta.deletion_vectors import may_have_deletion_vectors
from tidemark.delta.live_files import table_filesystem

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMN_MAPPING = "delta.columnMapping.mode"


def has_widened_maps(table: DeltaTable, columns: Sequence[str] | None = None) -> bool:
    """Return whether columns of a table may have maps that delta-rs cannot read.

    Args:
        table: The table.
        columns: The columns that are read; None for all.
    """
    return any(
        _has_map_of_structs(field.type)
        for field in table.schema().fields
        if columns is None or field.name in columns
    )


def _has_map_of_structs(kind: Any, *, in_map: bool = False) -> bool:
    match kind:
        case StructType():
            return in_map or any(_has_map_of_structs(each.type) for each in kind.fields)
        case ArrayType():
            return _has_map_of_structs(kind.element_type, in_map=in_map)
        case MapType():
            return _has_map_of_structs(kind.value_type, in_map=True)
        case _:
            return False


def widened_schema(table: DeltaTable, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the Arrow schema of `widened_batches`."""
    import pyarrow as pa

    schema = pa.schema(table.schema().to_arrow())
    return schema if columns is None else pa.schema([schema.field(name) for name in columns])


def widened_batches(
    table: DeltaTable, columns: Sequence[str] | None = None, pruned_by: str | None = None
) -> Iterator[pa.RecordBatch] | None:
    """Return rows with the columns of the table; fields that a file lacks are null.

    Args:
        table: The table.
        columns: Names of the columns; None for all.
        pruned_by: A condition in SQL. The function skips files whose statistics exclude it, and
            does not filter the rows of other files.

    Returns:
        None if the files have partitions or another mapping of names, which need delta-rs.
    """
    metadata = table.metadata()
    if metadata.partition_columns or _COLUMN_MAPPING in metadata.configuration:
        return None
    paths = [unquote(path) for path in table.get_add_actions().column("path").to_pylist()]
    if pruned_by is not None:
        wanted = {_path(table, uri) for uri in table.file_uris(file_pruning_predicate=pruned_by)}
        paths = [path for path in paths if path in wanted]
    return _batches(table, paths, columns)


def _batches(
    table: DeltaTable, paths: Sequence[str], columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema, storage = widened_schema(table, columns), table_filesystem(table.table_uri)
    kept_rows = _kept_rows(table)
    for path in paths:
        kept = kept_rows.get(path)
        first = 0
        with (
            storage.open_input_file(path) as source,
            pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as rows,
        ):
            names = [name for name in schema.names if name in rows.schema_arrow.names]
            for batch in rows.iter_batches(columns=names):
                arrays = [
                    batch.column(field.name).cast(field.type)
                    if field.name in names
                    else pa.nulls(batch.num_rows, field.type)
                    for field in schema
                ]
                made = pa.RecordBatch.from_arrays(arrays, schema=schema)
                if kept is not None:
                    # The vector ends after the last row that it removes.
                    own = kept[first : first + batch.num_rows]
                    made = made.filter(pa.array(own + [True] * (batch.num_rows - len(own))))
                first += batch.num_rows
                yield made


def _kept_rows(table: DeltaTable) -> Mapping[str, list[bool]]:
    """Return for each row of a file with a deletion vector whether it remains, by path."""
    if not may_have_deletion_vectors(table):
        return {}
    import pyarrow as pa

    return {
        _path(table, uri): kept
        for batch in map(pa.record_batch, table.deletion_vectors())
        for uri, kept in zip(
            batch.column("filepath").to_pylist(),
            batch.column("selection_vector").to_pylist(),
            strict=True,
        )
    }


def _path(table: DeltaTable, uri: str) -> str:
    """Return the path of a file relative to its table."""
    root, whole = (unquote(each).removeprefix("file://") for each in (table.table_uri, uri))
    return whole.removeprefix(root)
