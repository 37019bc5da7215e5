"""The position of kafka-delta-ingest, from the transactions of the table that it writes.

kafka-delta-ingest keeps a Delta transaction `<app id>-<partition>` for each partition. Its version
is the offset of the last message in the table; the next message is read next (`build_actions` and
`should_process_offset` in its src/delta_helpers.rs and src/lib.rs).
"""

from __future__ import annotations

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tidemark.ingest.errors import InvalidStart
from tidemark.ingest.start_rules import SourceOffsets

_BEYOND = 100
"""Partitions looked for after the topic's last: a table that has one is of another topic."""


class IngestedTable:
    """Reads the transactions of one kafka-delta-ingest job.

    Args:
        uri: The Delta table.
        app_id: Its option `app_id`, the same for all processes of a job.
    """

    def __init__(self, uri: str, app_id: str) -> None:
        self._uri = uri
        self._app_id = app_id

    def read(self, topic: str, partitions: int) -> SourceOffsets:  # noqa: ARG002  a job has one topic
        """Implement `OffsetSource.read`; the table does not contain the topic's name.

        Raises:
            InvalidStart: There is no table, or this job has not written it.
        """
        source = f"transactions of {self._app_id!r} in the Delta table {self._uri}"
        table = self._open(source)
        last = {
            partition: version
            for partition in range(partitions + _BEYOND)
            if (version := table.transaction_version(f"{self._app_id}-{partition}")) is not None
        }
        if not last:
            raise InvalidStart(
                source=source,
                rule=f"transactions {self._app_id}-0, {self._app_id}-1 and so on, with the last "
                "offset of each partition",
                seen="none",
            )
        return SourceOffsets(source=source, offsets={p: next_offset(at) for p, at in last.items()})

    def _open(self, source: str) -> DeltaTable:
        try:
            return DeltaTable(self._uri)
        except TableNotFoundError:
            seen = "no table"
        except (DeltaError, OSError) as failed:
            seen = str(failed)[:500]
        raise InvalidStart(source=source, rule="a Delta table", seen=seen)


def next_offset(last: int) -> int:
    """Return the next offset to read after the last offset read."""
    return last + 1
