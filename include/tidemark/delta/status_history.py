"""The status history: a row for each recorded status of a pipeline, kept for a month.

Maintenance removes whole days, so the table is partitioned by day and no row is rewritten.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from arro3.core import Field, Schema
from deltalake import DeltaTable

from tidemark.delta import status_table
from tidemark.delta.checked_commits import Change, commit_checked
from tidemark.delta.delta_errors import translate_delta_errors
from tidemark.delta.live_files import live_files
from tidemark.delta.shared_tables import append_shared
from tidemark.delta.table_io import DATE, arrow_table, open_if_exists, query_rows

RETENTION = timedelta(days=30)
"""Maintenance removes days that ended longer ago."""

_CHANGING = ("lag", "held_back", "lag_seconds", "runway_seconds", "new_offsets_per_second")

COLUMNS = Schema(
    [
        *(status_table.COLUMNS.field(name) for name in ("pipeline", "checked_at")),
        Field("day", DATE, nullable=False),
        *(status_table.COLUMNS.field(name) for name in (*_CHANGING, "records", "state")),
    ]
)
"""The columns of the status table that change with time, and the day of `checked_at` in UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagSample:
    """The lag of a pipeline at one time.

    Attributes:
        checked_at: The time.
        lag: Unread offsets; None if unknown.
        lag_time: Age of the oldest unread record; None without an unread record of known age.
        state: State of the pipeline, as in the status table.
    """

    checked_at: datetime
    lag: int | None
    lag_time: timedelta | None = None
    state: str | None = None


def append_statuses(uri: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows of the status table to its history. Concurrent processes keep each other's rows.

    Args:
        uri: The table; created if it does not exist.
        rows: At least one.

    Raises:
        StorageFailure, EngineFailed, UnsafeStorage: The rows may not be in the table.
    """
    with translate_delta_errors(uri, "writing the status history"):
        append_shared(
            uri,
            arrow_table([{**row, "day": _day(row["checked_at"])} for row in rows], COLUMNS),
            COLUMNS,
            partition_by=["day"],
            append_only=False,
        )


def read_lags(
    uri: str, since: datetime, step: timedelta, pipeline: str | None = None
) -> Mapping[str, Sequence[LagSample]]:
    """Return the recorded lags of pipelines, oldest first; none without a table.

    Args:
        uri: The table.
        since: Beginning of the period to read.
        step: Length of the intervals, which begin at 1970-01-01 in UTC. Only the samples
            with the highest lag and with the highest age of each interval are returned, and the
            first sample of each state.
        pipeline: Only this pipeline; None for all.

    Raises:
        StorageFailure, DeltaLogDamaged, EngineFailed: The table was not read.
    """
    condition = f"checked_at >= '{since.astimezone(UTC).isoformat()}'"
    if pipeline is not None:
        condition += f" AND pipeline = '{pipeline}'"
    with translate_delta_errors(uri, "reading the status history"):
        table = open_if_exists(uri)
        if table is None:
            return {}
        rows = query_rows(
            table,
            f"""
            SELECT pipeline, checked_at, lag, lag_seconds, state FROM (
                SELECT *,
                    row_number() OVER (
                        PARTITION BY pipeline, step ORDER BY lag DESC NULLS LAST, checked_at DESC
                    ) AS place_of_lag,
                    row_number() OVER (
                        PARTITION BY pipeline, step
                        ORDER BY lag_seconds DESC NULLS LAST,
                            lag DESC NULLS LAST, checked_at DESC
                    ) AS place_of_age,
                    lag(state) OVER (PARTITION BY pipeline ORDER BY checked_at) AS earlier_state
                FROM (
                    SELECT *, date_bin(
                        INTERVAL '{step.total_seconds():.0f} seconds', checked_at
                    ) AS step
                    FROM t WHERE {condition}
                )
            )
            WHERE place_of_lag = 1 OR place_of_age = 1 OR state IS DISTINCT FROM earlier_state
            ORDER BY checked_at
            """,
        )
    lags: dict[str, list[LagSample]] = {}
    for row in rows:
        sample = LagSample(
            checked_at=row["checked_at"],
            lag=row["lag"],
            lag_time=_duration(row["lag_seconds"]),
            state=row["state"],
        )
        lags.setdefault(row["pipeline"], []).append(sample)
    return lags


def remove_old_statuses(uri: str, now: datetime) -> int:
    """Remove the days that ended before `RETENTION`, in one commit. Returns the number of files.

    If another process commits first, the removal chooses its files again from the new version. So
    it also removes the files that a concurrent compaction has written.

    Args:
        uri: The table.
        now: The time by the storage's clock.
    """
    first = _day(now - RETENTION).isoformat()

    def changes(table: DeltaTable) -> Change:
        old = [file for file in live_files(table) if _is_before(file.partition.get("day"), first)]
        now_ms = int(now.timestamp() * 1000)
        return Change(
            actions=[file.removal(now_ms, data_change=True) for file in old],
            metadata=json.dumps({"first_day": first}),
            count=len(old),
        )

    return commit_checked(uri, changes)


def _is_before(day: str | None, first: str) -> bool:
    return day is not None and day < first


def _day(at: datetime) -> date:
    return at.astimezone(UTC).date()


def _duration(seconds: float | None) -> timedelta | None:
    """Return a duration; None for one that has no `timedelta`, such as infinity."""
    try:
        return None if seconds is None else timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        return None
