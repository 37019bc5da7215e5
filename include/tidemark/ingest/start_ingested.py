"""How far kafka-delta-ingest has come, by the transactions of the table that it writes.

It keeps a Delta application transaction `<app id>-<partition>` for each partition, whose version is
the offset of the last message that it has written; it goes on with the next one (`build_actions`
and `should_process_offset` in its src/delta_helpers.rs and src/lib.rs).
"""

from __future__ import annotations

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tidemark.ingest.errors import UnusableSource
from tidemark.ingest.start_rules import SourceOffsets

_BEYOND = 100
"""Partitions looked for after the topic's last: who has them has read another topic."""


class IngestedTable:
    """Transactions of one of kafka-delta-ingest's jobs.

    Args:
        uri: The Delta table.
        app_id: Its option `app_id`, the same for all processes of a job.
    """

    def __init__(self, uri: str, app_id: str) -> None:
        self._uri = uri
        self._app_id = app_id

    def read(self, topic: str, partitions: int) -> SourceOffsets:  # noqa: ARG002  a job has one topic
        """As `OffsetSource.read`; the table does not say which topic it was.

        Raises:
            UnusableSource: No table, or none that this job has written.
        """
        source = f"transactions of {self._app_id!r} in the Delta table {self._uri}"
        table = self._open(source)
        last = {
            partition: version
            for partition in range(partitions + _BEYOND)
            if (version := table.transaction_version(f"{self._app_id}-{partition}")) is not None
        }
        if not last:
            raise UnusableSource(
                source=source,
                rule=f"transactions {self._app_id}-0, {self._app_id}-1 and so on, the last offset "
                "that kafka-delta-ingest has written of each partition",
                seen="none of them",
            )
        return SourceOffsets(source=source, offsets={p: next_offset(at) for p, at in last.items()})

    def _open(self, source: str) -> DeltaTable:
        try:
            return DeltaTable(self._uri)
        except TableNotFoundError:
            seen = "none there"
        except (DeltaError, OSError) as failed:
            seen = str(failed)[:500]
        raise UnusableSource(source=source, rule="a Delta table", seen=seen)


def next_offset(last: int) -> int:
    """The end of what was read, from the last offset of it."""
    return last + 1
