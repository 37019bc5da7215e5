"""The position of kafka-delta-ingest, from the transactions of the table that it writes.

kafka-delta-ingest keeps a Delta transaction `<app id>-<partition>` for each partition. The version
of the transaction is the offset of the last message in the table (`build_actions` and
`should_process_offset` in its src/delta_helpers.rs and src/lib.rs).
"""

from __future__ import annotations

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tidemark.ingest.errors import InvalidStart
from tidemark.ingest.start_rules import SourceOffsets
from tidemark.spec.targets import CREDENTIALS, WITHOUT_CREDENTIALS, has_credentials

_BEYOND = 100
"""Partitions looked for after the topic's last: a table that has one is of another topic."""


def ingested_position(uri: str, app_id: str, partitions: int) -> SourceOffsets:
    """Return the position of one kafka-delta-ingest job.

    The table does not contain the topic's name. Partitions that the topic lacks are included, as a
    sign of another topic.

    Args:
        uri: The Delta table.
        app_id: Its option `app_id`, the same for all processes of a job.
        partitions: Number of partitions of the topic.

    Raises:
        InvalidStart: There is no table, this job has not written it, or the URI has credentials.
    """
    if has_credentials(uri):
        # The control table records the source.
        raise InvalidStart(
            source=f"transactions of {app_id!r}", rule=WITHOUT_CREDENTIALS, seen=CREDENTIALS
        )
    source = f"transactions of {app_id!r} in the Delta table {uri}"
    table = _open(uri, source)
    last = {
        partition: version
        for partition in range(partitions + _BEYOND)
        if (version := table.transaction_version(f"{app_id}-{partition}")) is not None
    }
    if not last:
        raise InvalidStart(
            source=source,
            rule=f"transactions {app_id}-0, {app_id}-1 and so on, with the last offset of each "
            "partition",
            seen="none",
        )
    return SourceOffsets(source=source, offsets={p: next_offset(at) for p, at in last.items()})


def _open(uri: str, source: str) -> DeltaTable:
    try:
        return DeltaTable(uri)
    except TableNotFoundError:
        seen = "no table"
    except (DeltaError, OSError) as failed:
        seen = str(failed)[:500]
    raise InvalidStart(source=source, rule="a Delta table", seen=seen)


def next_offset(last: int) -> int:
    """Return the next offset to read after the last offset read."""
    return last + 1
