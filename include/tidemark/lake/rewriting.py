"""Copies rows of live files to new files, which no version refers to before their commit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

from tidemark.lake.live_files import LiveFile

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow.fs import FileSystem

_ROW_GROUP_BYTES = 32 * 1024 * 1024
"""Rows in memory; a row group on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A written file that is not committed yet.

    Attributes:
        path: Relative to the table.
        size: Bytes.
        records: Number of rows.
        statistics: Statistics of its rows, in the form of the Delta protocol.
    """

    path: str
    size: int
    records: int
    statistics: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """New files with the rows of some live files of one partition.

    Attributes:
        replaced: The live files.
        added: The new files.
    """

    replaced: tuple[LiveFile, ...]
    added: tuple[NewFile, ...]

    @property
    def replaced_paths(self) -> frozenset[str]:
        """As in the log."""
        return frozenset(file.path for file in self.replaced)

    @property
    def added_paths(self) -> frozenset[str]:
        """As in the log."""
        return frozenset(file.path for file in self.added)


def new_path() -> str:
    """A path that no other file has."""
    return f"part-00000-{uuid4()}-c000.snappy.parquet"


def write_rows(
    files: FileSystem,
    like: LiveFile,
    rows: Iterable[pa.RecordBatch],
    bounds: Mapping[str, Any],
) -> NewFile:
    """Write rows to a new file. Leaves no file if that fails.

    Args:
        files: The table's folder.
        like: A file with the same physical schema.
        rows: The rows.
        bounds: Statistics that hold for them.
    """
    import pyarrow.parquet as pq

    path = new_path()
    with open_parquet(files, like) as first:
        schema = plain_schema(first)
        leaves = [first.schema.column(n).path for n in range(len(first.schema.names))]
    records = 0
    with (
        _removed_on_failure(files, [path]),
        files.open_output_stream(path) as sink,
        pq.ParquetWriter(
            sink,
            schema,
            compression="snappy",
            # As Spark writes landed files: the planner derives the size of a record from files.
            use_dictionary=[leaf for leaf in leaves if leaf not in ("key", "value")],
            store_schema=False,
            store_decimal_as_integer=True,
        ) as writer,
    ):
        for group in _row_groups(rows, schema):
            writer.write_table(group, row_group_size=max(group.num_rows, 1))
            records += group.num_rows
    return NewFile(
        path=path,
        size=files.get_file_info(path).size,
        records=records,
        statistics=json.dumps({"numRecords": records, **bounds}),
    )


def all_written(files: FileSystem, written: Iterable[NewFile]) -> list[NewFile]:
    """Write several files. Leaves no file if one of them fails.

    Args:
        files: The table's folder.
        written: Writes the next file at each step.
    """
    paths: list[str] = []
    found = []
    with _removed_on_failure(files, paths):
        for file in written:
            paths.append(file.path)
            found.append(file)
    return found


@contextmanager
def _removed_on_failure(files: FileSystem, paths: Sequence[str]) -> Iterator[None]:
    """Remove files that no version refers to if the block fails: they would keep a disk full.

    Raises:
        OSError: The first error of the block. Closing a file after it raises others.
    """
    try:
        yield
    except BaseException as failed:  # noqa: BLE001  an interrupt leaves no file either
        remove_files(files, paths)
        first = failed
        while isinstance(first, OSError) and isinstance(first.__context__, OSError):
            first = first.__context__
        raise first from None


def remove_files(files: FileSystem, paths: Iterable[str]) -> None:
    """Remove the files that exist; maintenance removes the others after its retention."""
    for path in paths:
        with suppress(Exception):
            files.delete_file(path)


def _row_groups(rows: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    size = 0
    for batch in rows:
        held.append(batch)
        size += batch.nbytes
        if size >= _ROW_GROUP_BYTES:
            yield pa.Table.from_batches(held, schema)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held, schema)


def read_batches(
    files: FileSystem, file: LiveFile, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows of a file in types of `plain_schema`, all columns if none are named.

    Raises:
        pyarrow.ArrowInvalid: The file has values that do not fit their type.
    """
    import pyarrow as pa

    with open_parquet(files, file) as source:
        schema = plain_schema(source)
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        for batch in source.iter_batches(4_096, columns=columns):
            # Fail here, so that text that is not UTF-8 stays in a file that an undo can remove.
            batch.validate(full=True)
            yield batch.replace_schema_metadata(None).cast(schema)


def plain_schema(source: pq.ParquetFile) -> pa.Schema:
    """The columns of a file in Parquet's types, independent of the writer's types in memory.

    delta-rs uses views of texts and bytes, which PyArrow cannot always write or slice.
    """
    import pyarrow as pa

    # Only Spark declares columns without nulls as such. Files of both writers can be merged.
    return pa.schema([_plain_field(field).with_nullable(True) for field in source.schema_arrow])


def _plain_field(field: pa.Field, name: str | None = None) -> pa.Field:
    return field.with_type(_plain(field.type)).with_name(name or field.name)


def _plain(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa
    from pyarrow import types

    if types.is_string_view(kind) or types.is_large_string(kind):
        return pa.string()
    if types.is_binary_view(kind) or types.is_large_binary(kind):
        return pa.binary()
    if types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_list_view(kind):
        return pa.list_(_plain_field(kind.value_field, "element"))
    if types.is_struct(kind):
        return pa.struct([_plain_field(kind.field(n)) for n in range(kind.num_fields)])
    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    return kind


@contextmanager
def open_parquet(files: FileSystem, file: LiveFile) -> Iterator[pq.ParquetFile]:
    """A file of the table."""
    import pyarrow.parquet as pq

    with (
        files.open_input_file(unquote(file.path)) as source,
        pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as rows,
    ):
        yield rows
