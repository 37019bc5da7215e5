"""Checks that tables contain every record, and measures their bytes and files, with delta-rs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable


def verified(path: str, records: int) -> dict[str, float]:
    """Check that a table contains every record once; return its size in bytes and files.

    Raises:
        RuntimeError: Records are missing or duplicate. A side with a wrong table has no result.
    """
    table = DeltaTable(path)
    reader = pa.RecordBatchReader.from_stream(table.scan(columns=["partition", "offset"]))
    rows, distinct = _counted(reader)
    if (rows, distinct) != (records, records):
        raise RuntimeError(
            f"{path} has {rows} rows with {distinct} distinct offsets, for {records} records"
        )
    files = pa.table(table.get_add_actions())
    return {
        "records": rows,
        "distinct_records": distinct,
        "bytes": pc.sum(files["size_bytes"]).as_py(),
        "files": files.num_rows,
    }


def decoded(path: str, records: int) -> dict[str, float]:
    """See `verified`, for a table without nulls in the fields of its values.

    Spark's decoders return null for a value that they cannot read, or for each of its fields.

    Raises:
        RuntimeError: Records are missing, duplicate, or not decoded.
    """
    held = verified(path, records)
    batches = pa.RecordBatchReader.from_stream(DeltaTable(path).scan(columns=["value"]))
    nulls = sum(field.null_count for batch in batches for field in batch["value"].flatten())
    if nulls:
        raise RuntimeError(f"{path} has {nulls} nulls in the fields of its values")
    return held


def merged(path: str, bronze: str) -> int:
    """Check that an upsert table contains the newest record of each key; return the key count.

    Args:
        path: The upsert table, with columns `key` and `offset`.
        bronze: The table of all records. Each record has a key; a key is in one partition only.

    Raises:
        RuntimeError: A key is missing, is duplicated, or has an older record.
    """
    records = _columns(bronze).group_by("key").aggregate([("offset", "max")])
    newest = dict(zip(records["key"].to_pylist(), records["offset_max"].to_pylist(), strict=True))
    rows = [(row["key"], row["offset"]) for row in _columns(path).to_pylist()]
    if len(rows) != len(newest) or dict(rows) != newest:
        raise RuntimeError(f"{path} has {len(rows)} rows for {len(newest)} keys of {bronze}")
    return len(rows)


def _columns(path: str) -> pa.Table:
    """Return the columns `key`, as bytes, and `offset` of a table."""
    read = pa.table(DeltaTable(path).scan(columns=["key", "offset"]))
    return read.set_column(0, "key", read["key"].cast(pa.binary()))


def _counted(batches: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    """Return the number of rows, and of distinct offsets; needs one byte for each offset."""
    rows = 0
    seen: dict[int, np.ndarray] = {}
    for batch in batches:
        rows += batch.num_rows
        partitions, offsets = (batch[name].to_numpy() for name in ("partition", "offset"))
        for partition in np.unique(partitions):
            here = offsets[partitions == partition]
            known = seen.get(partition, np.zeros(0, dtype=bool))
            size = here.max() + 1
            if size > known.size:
                known = np.concatenate([known, np.zeros(2 * size - known.size, dtype=bool)])
            known[here] = True
            seen[partition] = known
    return rows, sum(int(known.sum()) for known in seen.values())
