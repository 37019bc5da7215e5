"""The table of latest rows: its columns, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tidemark.adapters.delta.columns import latest_schema
from tidemark.adapters.delta.data_table import DeltaDataTable, check_owner, newest_restore
from tidemark.core.decoding import Part
from tidemark.core.fields import FieldType
from tidemark.core.spec import UPSERT
from tidemark.core.upserts import Envelope
from tidemark.errors import ColumnsDiffer


class DeltaLatest:
    """One pipeline's table of latest rows.

    Args:
        uri: The table.
        envelope: What the content of records is wrapped in.
    """

    def __init__(self, uri: str, envelope: Envelope) -> None:
        self._uri = uri
        self._envelope = envelope

    def progress(self, pipeline: str, typed_table: str) -> tuple[str, int | None]:
        """As `LatestRows.progress`.

        The transactions are of one typed table, and of what no RESTORE has changed since.
        """
        try:
            table = DeltaTable(self._uri)
        except TableNotFoundError:
            return f"tidemark:{pipeline}:{UPSERT}:{typed_table}:-1", None
        check_owner(table, self._uri, f"{pipeline}@{UPSERT}")
        app_id = f"tidemark:{pipeline}:{UPSERT}:{typed_table}:{newest_restore(table)}"
        return app_id, table.transaction_version(app_id)

    def prepare(self, pipeline: str, columns: Mapping[Part, FieldType]) -> None:
        """As `LatestRows.prepare`."""
        try:
            schema = latest_schema(columns, self._envelope)
        except ValueError as missing:
            raise ColumnsDiffer(
                target=self._uri, difference=f"the typed table has not {missing}"
            ) from None
        DeltaDataTable(self._uri, schema, grows=True).prepare(f"{pipeline}@{UPSERT}")
