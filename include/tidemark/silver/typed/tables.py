"""The Delta tables of one pipeline's decoded records: the typed table and its quarantine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.delta.data_table import DeltaDataTable
from tidemark.silver.typed.columns import INDEX_SCHEMA, decoded_parts, typed_table
from tidemark.silver.typed.quarantine_index import QuarantineIndex
from tidemark.spec.decode import DecodeSpec, Part
from tidemark.spec.fields import FieldType


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedTables:
    """Opens the typed table of one pipeline and its quarantine, without Spark.

    Attributes:
        typed_uri: Location of the typed table.
        quarantine_uri: Location of the quarantine.
        decode: How records are decoded.
        pipeline: The pipeline of the typed table.
    """

    typed_uri: str
    quarantine_uri: str
    decode: DecodeSpec
    pipeline: str

    def typed(self, columns: Mapping[Part, FieldType] | None = None) -> DeltaDataTable:
        """Return the typed table. See `typed_table`."""
        return typed_table(self.typed_uri, self.decode, columns)

    def entries(self) -> DeltaDataTable:
        """Return the table of the quarantine."""
        return DeltaDataTable(self.quarantine_uri, INDEX_SCHEMA, reads_only=True)

    def columns(self) -> Mapping[Part, FieldType]:
        """Return the types of keys and values; a part without a column is left out."""
        return decoded_parts(self.typed().columns(), flattens=self.decode.flattens)

    def check(self) -> None:
        """Check the tables that exist as `prepare` does. Writes nothing.

        Raises:
            ForeignTable, TableAltered: As in `DataTable.prepare`.
        """
        self.typed().state(self.pipeline, ())
        QuarantineIndex(self.quarantine_uri).check(self.pipeline)

    def check_removals(self) -> None:
        """Raise `TableAltered` if one of the tables is for appends only."""
        self.typed().check_removals()
        self.entries().check_removals()

    def prepare(self, columns: Mapping[Part, FieldType]) -> None:
        """Create missing tables, and add columns to the typed table.

        Raises:
            ForeignTable, TableAltered: As in `DataTable.prepare`.
            EngineFailed: The change may have been committed. Repeating the call is safe.
        """
        self.typed(columns).prepare(self.pipeline)
        QuarantineIndex(self.quarantine_uri).prepare(self.pipeline)
