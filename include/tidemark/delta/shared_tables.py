"""Appends to tables that pipelines share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from tenacity import retry, retry_if_exception_type, stop_after_attempt

from tidemark.delta.conditional_writes import missing_storage_proofs, prove_conditional_writes
from tidemark.delta.copied_tables import append_rows
from tidemark.delta.table_checks import check_appends
from tidemark.delta.table_io import open_if_exists
from tidemark.delta.table_properties import LOG_PROPERTIES


@retry(retry=retry_if_exception_type(CommitFailedError), stop=stop_after_attempt(5), reraise=True)
def append_shared(
    uri: str,
    rows: Any,
    schema: Any,
    *,
    partition_by: Sequence[str] = (),
    append_only: bool = True,
) -> None:
    """Append rows in one commit, and create the table if it does not exist.

    A table that was created before a column was added gets the column.

    delta-rs commits an append as the next free version. Only the creation of the table or of a
    column conflicts with other writers, and is tried again.

    Args:
        uri: The table.
        rows: An Arrow table.
        schema: The columns of a new table.
        partition_by: Partition columns of a new table.
        append_only: Whether a new table refuses the removal of rows.

    Raises:
        UnsafeStorage: The storage can lose concurrent commits; nothing was written.
        TableAltered: Another program gave the table a feature or a rule for writers; nothing was
            written.
    """
    table = open_if_exists(uri) or _created(uri, schema, partition_by, append_only)
    check_appends(table, uri, schema)
    properties = CommitProperties(app_transactions=missing_storage_proofs(table, uri))
    append_rows(table, rows, schema_mode="merge", commit_properties=properties)


def _created(uri: str, schema: Any, partition_by: Sequence[str], append_only: bool) -> DeltaTable:
    return DeltaTable.create(
        uri,
        schema=schema,
        mode="ignore",
        partition_by=list(partition_by),
        configuration={**LOG_PROPERTIES, "delta.appendOnly": str(append_only).lower()},
        commit_properties=CommitProperties(app_transactions=[prove_conditional_writes(uri)]),
    )
