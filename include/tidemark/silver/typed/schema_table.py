"""The schemas table: the answers of registries, so that records can be decoded again later."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from arro3.core import DataType, Field, Schema
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from tidemark.bronze.ingest.protocols import Clock
from tidemark.delta.delta_errors import translates_delta_errors
from tidemark.delta.table_checks import check_appends
from tidemark.delta.table_io import TIMESTAMP, arrow_table, open_if_exists, query_rows
from tidemark.delta.table_properties import LOG_PROPERTIES
from tidemark.spec.decode import RegisteredSchema

COLUMNS = Schema(
    [
        Field("registry", DataType.utf8(), nullable=False),
        Field("schema_id", DataType.int64(), nullable=False),
        Field("kind", DataType.utf8(), nullable=False),
        Field("schema", DataType.utf8(), nullable=False),
        Field("stored_at", TIMESTAMP, nullable=False),
    ]
)
"""Columns of the table. If two decodes store the same schema, its rows differ in `stored_at`."""


@translates_delta_errors
class DeltaSchemaStore:
    """The stored schemas of one registry.

    Args:
        uri: URI of the table. The first `store` creates it.
        registry: Connection of the registry.
        now: The clock for `stored_at`.
    """

    def __init__(self, uri: str, registry: str, now: Clock) -> None:
        self._uri = uri
        self._registry = registry
        self._now = now

    def stored(self, ids: Collection[int]) -> Mapping[int, RegisteredSchema]:
        """Return the stored schemas among some ids, by id."""
        table = open_if_exists(self._uri) if ids else None
        if table is None:
            return {}
        wanted = ", ".join(map(str, sorted(ids)))
        rows = query_rows(
            table,
            f"""
            SELECT DISTINCT schema_id AS id, kind, "schema" AS text FROM t
            WHERE registry = '{self._registry}' AND schema_id IN ({wanted})
            """,
        )
        return {row["id"]: RegisteredSchema(**row) for row in rows}

    def store(self, schemas: Sequence[RegisteredSchema]) -> None:
        """Store schemas that the table lacks.

        Raises:
            TableAltered: Another program gave the table a feature or a rule for writers; nothing
                was written.
            StorageFailure, EngineFailed: The schemas may be stored. Repeating the call is safe.
        """
        rows = [
            {
                "registry": self._registry,
                "schema_id": each.id,
                "kind": each.kind,
                "schema": each.text,
                "stored_at": self._now(),
            }
            for each in schemas
        ]
        self._prepare()
        write_deltalake(self._uri, arrow_table(rows, COLUMNS), mode="append")

    def _prepare(self) -> None:
        """Check the table, or create it; a concurrent decode may do the same."""
        table = open_if_exists(self._uri)
        if table is not None:
            check_appends(table, self._uri, COLUMNS)
        else:
            with suppress(DeltaError):
                DeltaTable.create(
                    self._uri, schema=COLUMNS, mode="ignore", configuration=dict(LOG_PROPERTIES)
                )
