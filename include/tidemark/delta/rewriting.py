"""Copies rows of live files to new files, which no version refers to before their commit."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote
from uuid import uuid4

from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from tidemark.delta.live_files import LiveFile, subset_statistics, table_filesystem

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow.fs import FileSystem

Actions: TypeAlias = "list[AddAction | RemoveAction]"
"""Actions of a commit."""

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


def committable(
    files: FileSystem, live: Collection[str], rewrites: Iterable[Rewrite]
) -> list[Rewrite]:
    """Return the rewrites that a commit right after a version can contain.

    Args:
        files: The table's folder.
        live: Paths of the live files of the version.
        rewrites: The rewrites.
    """
    return [
        each
        for each in rewrites
        if each.replaced_paths.issubset(live)  # fence: rewrites-replace-live-files
        # Maintenance by another process removes new files that stay uncommitted for too long.
        and _exist(files, each.added_paths)  # fence: committed-rewrites-exist
    ]


def _exist(files: FileSystem, paths: Collection[str]) -> bool:
    return all(each.is_file for each in files.get_file_info(list(paths)))


def rewrite_actions(rewrites: Sequence[Rewrite], *, data_change: bool) -> Actions:
    """Return the actions that replace live files by new files.

    Args:
        rewrites: The rewrites.
        data_change: Whether the new files lack rows of the replaced files.
    """
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    removed = [
        file.removal(now_ms, data_change=data_change) for each in rewrites for file in each.replaced
    ]
    added = [
        AddAction(
            path=new.path,
            size=new.size,
            partition_values=each.replaced[0].partition,
            modification_time=now_ms,
            data_change=data_change,
            stats=new.statistics,
        )
        for each in rewrites
        for new in each.added
    ]
    return [*removed, *added]


@contextmanager
def removed_if_uncommitted(uri: str, rewrites: Sequence[Rewrite]) -> Iterator[None]:
    """Remove new files if their commit in the block fails: they would keep a local disk full.

    Keeps the files if the table has a newer version, which may be this commit. Also keeps files in
    an object store, where a commit can succeed after its error.
    """
    version = DeltaTable(uri).version()
    try:
        yield
    except Exception:
        with suppress(Exception):
            is_local = uri.startswith("file:") or "://" not in uri
            if is_local and DeltaTable(uri).version() == version:
                paths = [new.path for each in rewrites for new in each.added]
                remove_files(table_filesystem(uri), paths)
        raise


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


def write_without(
    files: FileSystem,
    file: LiveFile,
    kept: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
) -> NewFile:
    """Write some rows of a file to a new file, in the same physical schema.

    Args:
        files: The table's folder.
        file: The file.
        kept: Returns the rows to write from all rows of the file.
    """
    return write_rows(files, file, kept(read_batches(files, file)), subset_statistics([file]))


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
