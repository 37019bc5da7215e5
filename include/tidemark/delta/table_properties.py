"""Properties of Delta tables, and of the Parquet files that delta-rs writes."""

from __future__ import annotations

from collections.abc import Mapping

from deltalake import ColumnProperties, Schema, WriterProperties

LOG_PROPERTIES: Mapping[str, str] = {
    # Only maintenance removes old commits, after it has checked the clock. Without this property,
    # each writer removes them by the clock of its machine. A writer whose clock is a month ahead
    # would remove the whole log before the newest checkpoint.
    "delta.enableExpiredLogCleanup": "false",
    # Spark's default: a reader replays the commits since the newest checkpoint.
    "delta.checkpointInterval": "10",
}
"""Properties of every table."""

STATISTICS_COLUMNS = ("partition", "offset", "timestamp", "plan_sequence")
"""The columns with file statistics, for readers, `plan_counts` and `plan_removal`.

They precede every struct, because delta-rs omits the statistics of columns that follow a struct
without statistics.
"""


def data_table_properties(schema: Schema) -> Mapping[str, str]:
    """Return the properties of a data table, which may lack some of `STATISTICS_COLUMNS`."""
    names = {field.name for field in schema.fields}
    measured = [name for name in STATISTICS_COLUMNS if name in names]
    return {**LOG_PROPERTIES, "delta.dataSkippingStatsColumns": ",".join(measured)}


_PAYLOAD = ColumnProperties(dictionary_enabled=False)

WRITER_PROPERTIES = WriterProperties(
    compression="SNAPPY",
    column_properties={"key": _PAYLOAD, "value": _PAYLOAD},
)
"""The settings that Spark writes with: the planner derives the size of a record from file sizes."""
