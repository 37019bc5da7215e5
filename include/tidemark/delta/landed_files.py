"""The actions that add a plan's files to a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from deltalake.transaction import AddAction

from tidemark.core.datafile import DataFile
from tidemark.core.offsets import Span
from tidemark.core.record import FIRST_DATED_MS, LAST_DATED_MS
from tidemark.delta.live_files import table_filesystem

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def added_file(plans: Span, file: DataFile) -> AddAction:
    """Return the action that adds a file, with the statistics of `STATISTICS_COLUMNS`.

    Args:
        plans: A range that contains the plan numbers of the file's rows.
        file: The file.
    """
    shared = {} if file.partition is None else {"partition": file.partition}
    least: dict[str, Any] = {"plan_sequence": plans.start, **shared, "offset": file.first}
    greatest: dict[str, Any] = {"plan_sequence": plans.end - 1, **shared, "offset": file.last}
    if (
        file.earliest_ms is not None
        and file.latest_ms is not None
        and FIRST_DATED_MS <= file.earliest_ms <= file.latest_ms <= LAST_DATED_MS
    ):
        least["timestamp"] = _instant(file.earliest_ms)
        greatest["timestamp"] = _instant(file.latest_ms)
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values={},
        modification_time=file.modified_ms,
        data_change=True,
        stats=json.dumps(
            {
                "numRecords": file.records,
                "minValues": least,
                "maxValues": greatest,
                "nullCount": dict.fromkeys(least, 0),
            }
        ),
    )


def lost_file(uri: str, files: Sequence[DataFile]) -> str | None:
    """Return the path of a file that is not in the table's folder; None if all exist.

    Lists each folder once.
    """
    from pyarrow.fs import FileSelector

    storage, paths = table_filesystem(uri), [file.path for file in files]
    present = {
        info.path
        for folder in {path.rpartition("/")[0] for path in paths}
        for info in storage.get_file_info(FileSelector(folder, allow_not_found=True))
    }
    return next((path for path in paths if path not in present), None)


def _instant(ms: int) -> str:
    """Format a timestamp as the Delta protocol requires, in the milliseconds of Kafka."""
    moment = _EPOCH + timedelta(milliseconds=ms)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
