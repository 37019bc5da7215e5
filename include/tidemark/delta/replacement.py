"""Replacement of rows: one commit removes a plan's old rows and adds its new rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import gettempdir, mkstemp
from typing import TYPE_CHECKING, TypeAlias

from deltalake import CommitProperties, DeltaTable, write_deltalake

from tidemark.core.datafile import DataFile
from tidemark.core.errors import PlanCannotLand
from tidemark.core.offsets import Span, SpanSet, spans_by_partition
from tidemark.core.plan import Plan
from tidemark.delta.copied_tables import for_writing
from tidemark.delta.local_files import translate_os_errors
from tidemark.delta.row_queries import offsets_condition, spans_where
from tidemark.delta.storage import folder_of
from tidemark.delta.table_properties import WRITER_PROPERTIES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

Store: TypeAlias = "tuple[FileSystem, str]"
"""A file system, and the table's folder in it."""


_BATCH_ROWS = 4_096
"""Rows in memory, in several copies: a value may have megabytes."""


def replace_rows(
    table: DeltaTable, plan: Plan, files: Sequence[DataFile], properties: CommitProperties
) -> None:
    """Commit a plan's rows in place of the rows of its incarnation at its offsets.

    delta-rs cannot add existing files and remove rows in one commit, so it writes the rows again.
    No version refers to the files of the sink then, and maintenance removes them.

    Args:
        table: The loaded table; a later commit that changes these rows causes a conflict.
        plan: The plan.
        files: The sink's files with the plan's rows.
        properties: Properties of the commit.
    """
    import pyarrow as pa

    # The file system of delta-rs cannot be used while delta-rs writes.
    store = folder_of(table.table_uri)
    # The columns of the table: another program may have added some, which are null here.
    schema = pa.schema(table.schema().to_arrow())
    with spooled_reader(table_batches(store, files, schema), schema) as rows:
        write_deltalake(
            for_writing(table),
            rows,
            mode="overwrite",
            predicate=offsets_condition(plan.topic_id, plan.spans()),
            writer_properties=WRITER_PROPERTIES,
            commit_properties=properties,
        )


@contextmanager
def spooled_reader(
    rows: Iterable[pa.RecordBatch], schema: pa.Schema
) -> Iterator[pa.RecordBatchReader]:
    """Write rows to a temporary file, and yield a reader of the file for delta-rs.

    A thread of delta-rs' runtime reads the rows. A reader in Python would make this thread wait
    for Python's global lock. A query of delta-rs in another thread holds the lock while it waits
    for the runtime, so both threads could wait forever.

    The file has no name while it contains rows, so a killed process leaves none of them.

    Raises:
        StorageFailure: The temporary file cannot be written.
    """
    import pyarrow as pa

    writing = partial(translate_os_errors, Path(gettempdir()), "writing temporary rows")
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with writing():
        descriptor, name = mkstemp(prefix="tidemark-", suffix=".arrow")
    os.close(descriptor)
    with pa.OSFile(name, "w") as file, pa.OSFile(name) as source:
        os.unlink(name)
        with writing():
            sink = pa.ipc.new_stream(file, schema, options=options)
        # Outside `writing`: another storage contains the rows.
        for batch in rows:
            with writing():
                sink.write_batch(batch)
        with writing():
            sink.close()
            file.flush()
        yield pa.ipc.open_stream(source)


def check_no_rows_lost(table: DeltaTable, plan: Plan, files: Sequence[DataFile]) -> None:
    """Raise `PlanCannotLand` if a replacement removes a row without a new row at its offset."""
    before = spans_where(table, offsets_condition(plan.topic_id, plan.spans()))
    after = spans_in_files(folder_of(table.table_uri), files)
    lost = [
        (partition, span.start, span.end)
        for partition, spans in sorted(before.items())
        for span in spans.difference(after.get(partition, SpanSet()))
    ]
    if lost:  # fence: no-row-is-replaced-by-nothing
        raise PlanCannotLand.by_lost_rows(plan.pipeline, plan.sequence, tuple(lost))


def spans_in_files(store: Store, files: Iterable[DataFile]) -> Mapping[int, SpanSet]:
    """Return the offsets with a row in some files, by partition."""
    return spans_by_partition(placed for file in files for placed in _spans_of(store, file))


def _spans_of(store: Store, file: DataFile) -> Iterator[tuple[int, Span]]:
    whole = Span(file.first, file.last + 1)
    if file.partition is not None and whole.size == file.records:
        yield file.partition, whole
        return
    import numpy as np
    import pyarrow.parquet as pq

    with _open(store, file) as source:
        places = pq.read_table(source, columns=["partition", "offset"])
    partitions, offsets = places["partition"].to_numpy(), places["offset"].to_numpy()
    for partition in np.unique(partitions):
        here = np.sort(offsets[partitions == partition])
        for run in np.split(here, np.flatnonzero(np.diff(here) > 1) + 1):
            yield int(partition), Span(int(run[0]), int(run[-1]) + 1)


def table_batches(
    store: Store, files: Iterable[DataFile], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Iterate over rows of files with a table's columns; columns that a file lacks are null."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in files:
        with _open(store, file) as source:
            for batch in pq.ParquetFile(source).iter_batches(_BATCH_ROWS):
                columns = [
                    batch[field.name].cast(field.type)
                    if field.name in batch.schema.names
                    else pa.nulls(batch.num_rows, field.type)
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _open(store: Store, file: DataFile) -> pa.NativeFile:
    files, folder = store
    return files.open_input_file(f"{folder}/{file.path}")
