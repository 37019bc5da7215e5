"""A Delta table as an Arrow dataset, so that DuckDB reads only the columns that a query uses.

delta-rs itself reads the rows and streams them, which applies deletion vectors. `widened_maps`
reads only maps of structs. This is not the dataset of `DeltaTable.to_pyarrow_dataset`, which aborts
processes at exit: see docs/adr/0003-no-pyarrow-datasets-over-delta-rs.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow.dataset import Dataset, Scanner

from tidemark.delta.copied_tables import with_rows
from tidemark.delta.widened_maps import has_widened_maps, widened_batches, widened_schema


class DeltaDataset(Dataset):  # type: ignore[misc]  # pyarrow ships no types
    """One version of a Delta table. Each scan reads it again, in batches.

    Args:
        table: The table.
        on_failure: Called with the exception of a failed read, before it is raised.
    """

    def __init__(self, table: DeltaTable, on_failure: Callable[[Exception], None]) -> None:
        self._table = table
        self._on_failure = on_failure
        # The types of the scan, not of the table: they decide which filters DuckDB passes on.
        self._schema = self._scan(None).schema

    @property
    def schema(self) -> Any:
        """The Arrow schema of the rows."""
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: Any = None,
        **_: Any,
    ) -> Scanner:
        """Return a scanner of some columns; DuckDB calls this method.

        Args:
            columns: The columns; None for all.
            filter: An expression of pyarrow; None for all rows. It may use further columns.
        """
        names = self._schema.names if columns is None else list(columns)
        # Texts that only look like a column's name add a column to the read, and nothing else.
        text = "" if filter is None else str(filter)
        further = [name for name in self._schema.names if name in text and name not in names]
        schema = pa.schema([self._schema.field(name) for name in names])
        batches = self._batches(names, further, filter)
        return _Scanner(pa.RecordBatchReader.from_batches(schema, batches))

    def _batches(self, names: list[str], further: list[str], rows: Any) -> Iterator[Any]:
        try:
            for batch in self._scan([*names, *further]):
                yield (batch if rows is None else batch.filter(rows)).select(names)
        except Exception as failed:
            self._on_failure(failed)
            raise

    def _scan(self, columns: list[str] | None) -> Any:
        if has_widened_maps(self._table, columns):
            batches = widened_batches(self._table, columns)
            if batches is not None:
                schema = widened_schema(self._table, columns)
                return pa.RecordBatchReader.from_batches(schema, batches)
        return pa.RecordBatchReader.from_stream(with_rows(self._table).scan(columns=columns))


class _Scanner(Scanner):  # type: ignore[misc]  # pyarrow ships no types
    def __init__(self, reader: Any) -> None:
        self._reader = reader

    @property
    def projected_schema(self) -> Any:
        return self._reader.schema

    def to_reader(self) -> Any:
        return self._reader
