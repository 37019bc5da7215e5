"""The Delta tables of one pipeline's decoded records: the typed table and its quarantine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.bronze.ingest.protocols import Clock, ControlReader
from tidemark.delta.data_table import DeltaDataTable
from tidemark.silver.typed.columns import typed_table
from tidemark.silver.typed.quarantine import DeltaQuarantine, TypedTablePair
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
        control: The control table.
        now: The clock.
    """

    typed_uri: str
    quarantine_uri: str
    decode: DecodeSpec
    pipeline: str
    control: ControlReader
    now: Clock

    def typed(self, columns: Mapping[Part, FieldType] | None = None) -> DeltaDataTable:
        """Return the typed table without its quarantine. See `typed_table`."""
        return typed_table(self.typed_uri, self.decode, columns)

    def quarantine(self, typed: DeltaDataTable | None = None) -> DeltaQuarantine:
        """Return the quarantine.

        Args:
            typed: The typed table; None for the one of the spec.
        """
        return DeltaQuarantine(
            self.quarantine_uri,
            self.now,
            typed or self.typed(),
            landed_sequences=lambda: self.control.ledger(self.pipeline).landed_sequences(),
            without_rows=lambda: self.control.summary(self.pipeline).sequences_without_rows(),
        )

    def pair(self, typed: DeltaDataTable | None = None) -> TypedTablePair:
        """Return both as one data table. See `quarantine`."""
        typed, flattens = typed or self.typed(), self.decode.flattens
        return TypedTablePair(typed, self.quarantine(typed), self.typed, flattens=flattens)
