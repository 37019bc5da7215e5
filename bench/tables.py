"""Is it all there? And what did it cost in bytes and files? Asked of the Delta log by delta-rs."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

_OFFSET_BITS = 40


def verified(path: str, records: int) -> dict[str, float]:
    """Check that a table holds every record once; say how many bytes and files it takes.

    Raises:
        RuntimeError: Records are missing or doubled: a fast side that is wrong has no result.
    """
    table = DeltaTable(path)
    rows = pa.table(table.scan(columns=["partition", "offset"]))
    identity = pc.add(
        pc.shift_left(rows["partition"].cast(pa.int64()), pa.scalar(_OFFSET_BITS, pa.int64())),
        rows["offset"],
    )
    distinct = pc.count_distinct(identity).as_py()
    if (rows.num_rows, distinct) != (records, records):
        raise RuntimeError(
            f"{path} holds {rows.num_rows} rows, {distinct} of them distinct, for {records} records"
        )
    files = pa.table(table.get_add_actions())
    return {
        "records": rows.num_rows,
        "distinct_records": distinct,
        "bytes": pc.sum(files["size_bytes"]).as_py(),
        "files": files.num_rows,
    }
