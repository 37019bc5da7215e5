"""The status table: one row for each pipeline, from its newest status check."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from arro3.core import DataType, Field, Schema
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from tidemark.delta.checked_commits import is_overtaken
from tidemark.delta.delta_errors import translate_delta_errors
from tidemark.delta.errors import UnreadableFile
from tidemark.delta.table_checks import check_appends, check_removals
from tidemark.delta.table_io import TIMESTAMP, arrow_table, open_if_exists, query_rows
from tidemark.delta.table_properties import LOG_PROPERTIES

log = logging.getLogger(__name__)

COLUMNS = Schema(
    [
        Field("pipeline", DataType.utf8(), nullable=False),
        Field("checked_at", TIMESTAMP, nullable=False),
        Field("topic", DataType.utf8(), nullable=True),
        Field("lag_checked_at", TIMESTAMP, nullable=True),
        Field("lag", DataType.int64(), nullable=True),
        Field("held_back", DataType.int64(), nullable=True),
        Field("lag_seconds", DataType.float64(), nullable=True),
        Field("runway_seconds", DataType.float64(), nullable=True),
        Field("new_offsets_per_second", DataType.float64(), nullable=True),
        Field("records", DataType.int64(), nullable=True),
        Field("last_landed_plan", DataType.int64(), nullable=True),
        Field("last_landed_at", TIMESTAMP, nullable=True),
        Field("last_landed_records", DataType.int64(), nullable=True),
        Field("last_landed_bytes", DataType.int64(), nullable=True),
        Field("last_landed_seconds", DataType.float64(), nullable=True),
        Field("stored_bytes", DataType.int64(), nullable=True),
        Field("missing_rows", DataType.int64(), nullable=True),
        Field("open_plans", DataType.int64(), nullable=True),
        Field("open_since", TIMESTAMP, nullable=True),
        Field("open_plan_runs", DataType.int64(), nullable=True),
        Field("undecoded", DataType.int64(), nullable=True),
        Field("undecoded_since", TIMESTAMP, nullable=True),
        Field("to_withdraw", DataType.int64(), nullable=True),
        Field("unchecked", DataType.int64(), nullable=True),
        Field("unchecked_since", TIMESTAMP, nullable=True),
        Field("unmerged", DataType.utf8(), nullable=True),
        Field("unmerged_since", TIMESTAMP, nullable=True),
        Field("typed_rows", DataType.int64(), nullable=True),
        Field("quarantined", DataType.int64(), nullable=True),
        Field("quarantine_behind", DataType.bool(), nullable=True),
        Field("blocked_plans", DataType.int64(), nullable=True),
        Field("published_plans", DataType.int64(), nullable=True),
        Field("released_plans", DataType.int64(), nullable=True),
        Field("rejected_plans", DataType.int64(), nullable=True),
        Field("last_check", DataType.utf8(), nullable=True),
        Field("state", DataType.utf8(), nullable=True),
        Field("forecast", DataType.utf8(), nullable=True),
        Field("caught_up_at", TIMESTAMP, nullable=True),
        Field("problem", DataType.utf8(), nullable=True),
        Field("alarms", DataType.utf8(), nullable=True),
    ]
)
"""The status table's columns; docs/how-to/alarms.md explains each."""

KAFKA_COLUMNS: Sequence[str] = (
    *("lag_checked_at", "lag", "held_back", "lag_seconds", "runway_seconds"),
    "new_offsets_per_second",
)
"""The columns that come from Kafka. A row keeps their previous values while Kafka is away."""

MOST_ROWS = 1_000
"""Maximum number of rows that `read_status` reads."""


def write_status(uri: str, rows: Sequence[Mapping[str, Any]], *, of_all: bool = False) -> None:
    """Replace the rows of these pipelines in one commit.

    A row without `lag_checked_at` keeps the values of `KAFKA_COLUMNS` of the previous row.

    If Delta refuses the commit because a concurrent process was first, writes nothing and logs a
    warning. The table then has the previous rows of these pipelines, or those of that process.

    Args:
        uri: The table; created if it does not exist.
        rows: At least one, each with a different `pipeline`.
        of_all: Whether to remove rows of all other pipelines. This also replaces a damaged table.

    Raises:
        UnreadableFile: A file of the table cannot be read, and the rows are not those of all
            pipelines.
        TableAltered: Another program gave the table a feature, a rule for writers, or the property
            `delta.appendOnly`; nothing was written.
        StorageFailure, EngineFailed: The table was not written.
    """
    with translate_delta_errors(uri, "writing the status table"):
        _replace(uri, rows, of_all=of_all)


def read_status(uri: str) -> Sequence[Mapping[str, Any]]:
    """Return the newest row of each pipeline, sorted by pipeline; none without a table.

    Reads the newest version, which has one row for each pipeline, and at most `MOST_ROWS` rows. A
    table of an older release lacks some columns.

    Raises:
        StorageFailure, DeltaLogDamaged, EngineFailed: The table was not read.
    """
    with translate_delta_errors(uri, "reading the status table"):
        table = open_if_exists(uri)
        return () if table is None else _newest_rows(table)


def _newest_rows(table: DeltaTable) -> Sequence[Mapping[str, Any]]:
    rows = query_rows(table, f"SELECT * FROM t ORDER BY checked_at DESC LIMIT {MOST_ROWS}")
    newest = {row["pipeline"]: row for row in reversed(rows)}
    return [newest[name] for name in sorted(newest)]


def _with_known_lag(row: Mapping[str, Any], known: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row with the previous values from Kafka if its own are unknown."""
    if row.get("lag_checked_at"):
        return row
    return {**row, **{column: known.get(column) for column in KAFKA_COLUMNS}}


def _replace(uri: str, rows: Sequence[Mapping[str, Any]], *, of_all: bool) -> None:
    if open_if_exists(uri) is None:
        DeltaTable.create(uri, schema=COLUMNS, mode="ignore", configuration=dict(LOG_PROPERTIES))
    names = ", ".join(f"'{row['pipeline']}'" for row in rows)
    # The commit is refused if another process has written a newer lag after this read.
    table = DeltaTable(uri)
    check_appends(table, uri, COLUMNS)
    check_removals(table, uri)
    version = table.version()
    try:
        known = {row["pipeline"]: row for row in _newest_rows(table)}
    except UnreadableFile as unreadable:
        if not of_all:
            raise UnreadableFile.of_statuses(
                table=uri, file=unreadable.file, reason=unreadable.reason
            ) from unreadable
        log.warning("status table rewritten uri=%s reason=%s", uri, unreadable.reason)
        known = {}
    kept = [_with_known_lag(row, known.get(row["pipeline"], {})) for row in rows]
    try:
        write_deltalake(
            table,
            arrow_table(kept, COLUMNS),
            mode="overwrite",
            predicate=None if of_all else f"pipeline IN ({names})",
            # Adds columns that an older table lacks.
            schema_mode="merge",
        )
    except CommitFailedError as refused:
        if not is_overtaken(refused, uri, version):
            raise
        log.warning(
            "status not written, because a concurrent process wrote first uri=%s message=%s",
            uri,
            refused,
        )
