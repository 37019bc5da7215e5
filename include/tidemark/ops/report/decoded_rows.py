"""Rows of a typed table and its quarantine by offset, for a page of records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark.ops.report.record_page import Decoding, DecodingState
from tidemark.silver.typed.quarantine_record import QuarantinedRecord
from tidemark.spec.flattening import TOMBSTONE, VALUE, field_name

if TYPE_CHECKING:
    from tidemark.delta.data_table import DeltaDataTable
    from tidemark.silver.typed.quarantine_index import QuarantineIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedTables:
    """The typed table of a pipeline and its quarantine.

    Attributes:
        typed: The typed table.
        quarantine: The quarantine.
        flattens: Whether the typed table has flattened values.
    """

    typed: DeltaDataTable
    quarantine: QuarantineIndex
    flattens: bool = False


_METADATA = frozenset(
    {
        *("headers", "topic", "topic_id", "partition", "offset"),
        *("timestamp", "timestamp_type", "timestamp_out_of_range_ms"),
        *("plan_sequence", "ingested_at"),
    }
)
"""Columns of a typed table that are not decoded values."""


def _with_value(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the decoded values of a row, with the columns of a flattened value as one value."""
    fields = {field: each for name, each in columns.items() if (field := field_name(name))}
    own = {name: each for name, each in columns.items() if field_name(name) is None}
    has_value = not own.pop(TOMBSTONE, False)
    return {**own, VALUE: fields if has_value else None}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRows:
    """Rows of a typed table and its quarantine.

    Attributes:
        typed: Rows of the typed table by offset.
        quarantined: Records in quarantine by offset.
        is_complete: Whether both tables were read.
        flattens: Whether the typed table has flattened values.
    """

    typed: Mapping[int, Mapping[str, Any]]
    quarantined: Mapping[int, QuarantinedRecord]
    is_complete: bool
    flattens: bool

    def at(self, offset: int, *, has_row: bool) -> Decoding | None:
        """Return the record at an offset; None without one.

        Args:
            offset: Offset.
            has_row: Whether the bronze table has a row, which is to be decoded.
        """
        if (row := self.typed.get(offset)) is not None:
            values = {name: each for name, each in row.items() if name not in _METADATA}
            if self.flattens:
                values = _with_value(values)
            return Decoding(state=DecodingState.DECODED, plan=row["plan_sequence"], values=values)
        if (record := self.quarantined.get(offset)) is not None:
            parts = (record.reason, record.part, record.detail)
            return Decoding(
                state=DecodingState.QUARANTINED,
                plan=record.plan,
                reason=", ".join(part for part in parts if part),
            )
        if not (has_row and self.is_complete):
            return None
        return Decoding(state=DecodingState.NOT_DECODED)
