"""The status table: one row for each pipeline, from its newest status check."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from arro3.core import DataType, Field, Schema
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from tidemark.lake.delta_errors import translate_delta_errors
from tidemark.lake.table_io import TIMESTAMP, arrow_table, open_if_exists
from tidemark.lake.table_properties import KEEP_OLD_COMMITS

log = logging.getLogger(__name__)

COLUMNS = Schema(
    [
        Field("pipeline", DataType.utf8(), nullable=False),
        Field("checked_at", TIMESTAMP, nullable=False),
        Field("topic", DataType.utf8(), nullable=True),
        Field("lag", DataType.int64(), nullable=True),
        Field("held_back", DataType.int64(), nullable=True),
        Field("lag_seconds", DataType.float64(), nullable=True),
        Field("runway_seconds", DataType.float64(), nullable=True),
        Field("new_offsets_per_second", DataType.float64(), nullable=True),
        Field("records", DataType.int64(), nullable=True),
        Field("last_landed_plan", DataType.int64(), nullable=True),
        Field("last_landed_at", TIMESTAMP, nullable=True),
        Field("open_plans", DataType.int64(), nullable=True),
        Field("open_since", TIMESTAMP, nullable=True),
        Field("open_plan_runs", DataType.int64(), nullable=True),
        Field("undecoded", DataType.int64(), nullable=True),
        Field("unchecked", DataType.int64(), nullable=True),
        Field("quarantined", DataType.int64(), nullable=True),
        Field("blocked_plans", DataType.int64(), nullable=True),
        Field("last_check", DataType.utf8(), nullable=True),
        Field("state", DataType.utf8(), nullable=True),
        Field("forecast", DataType.utf8(), nullable=True),
        Field("caught_up_at", TIMESTAMP, nullable=True),
        Field("problem", DataType.utf8(), nullable=True),
        Field("alarms", DataType.utf8(), nullable=True),
    ]
)
"""The status table's columns; docs/how-to/operations.md explains each."""


def write_status(uri: str, rows: Sequence[Mapping[str, Any]], *, of_all: bool = False) -> None:
    """Replace the rows of these pipelines in one commit.

    If Delta refuses the commit because a concurrent process was first, writes nothing and logs a
    warning. The table then has the previous rows of these pipelines, or those of that process.

    Args:
        uri: The table; created if it does not exist.
        rows: At least one, each with a different `pipeline`.
        of_all: Whether to remove rows of all other pipelines.

    Raises:
        StorageFailure, EngineFailed: The table was not written.
    """
    with translate_delta_errors(uri, "writing the status table"):
        _replace(uri, rows, of_all=of_all)


def _replace(uri: str, rows: Sequence[Mapping[str, Any]], *, of_all: bool) -> None:
    if open_if_exists(uri) is None:
        DeltaTable.create(uri, schema=COLUMNS, mode="ignore", configuration=dict(KEEP_OLD_COMMITS))
    names = ", ".join(f"'{row['pipeline']}'" for row in rows)
    try:
        write_deltalake(
            uri,
            arrow_table(rows, COLUMNS),
            mode="overwrite",
            predicate=None if of_all else f"pipeline IN ({names})",
            # Adds columns that an older table lacks.
            schema_mode="merge",
        )
    except CommitFailedError as refused:
        log.warning(
            "status not written, because a concurrent process wrote first uri=%s message=%s",
            uri,
            refused,
        )
