"""The control table on Delta, written by delta-rs only (docs/design.md, commit protocol)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from tidemark.core.events import ControlEvent, decode, encode
from tidemark.core.ledger import Ledger
from tidemark.errors import ControlConflict

log = logging.getLogger(__name__)

COLUMNS = pa.schema(
    [
        pa.field("pipeline", pa.string(), nullable=False),
        pa.field("event_number", pa.int64(), nullable=False),
        pa.field("event", pa.string(), nullable=False),
        pa.field("recorded_at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("plan_sequence", pa.int64()),
        pa.field("plan_kind", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("start_offset", pa.int64()),
        pa.field("end_offset", pa.int64()),
        pa.field("committed_offset", pa.int64()),
        pa.field("records", pa.int64()),
        pa.field("holes", pa.int64()),
        pa.field("table_version", pa.int64()),
        pa.field("low_water_mark", pa.int64()),
        pa.field("end_mark", pa.int64()),
        pa.field("isolation_level", pa.string()),
        pa.field("cluster_id", pa.string()),
        pa.field("topic_id", pa.string()),
        pa.field("epoch", pa.int64()),
        pa.field("fingerprint", pa.string()),
        pa.field("requested_by", pa.string()),
    ]
)
"""The control table's columns; docs/control-table.md explains each and shows queries."""


class DeltaControlTable:
    """Append-only events, partitioned by pipeline, one compare-and-set per pipeline.

    Every commit carries the pipeline's name and event number as a Delta application transaction.
    delta-rs refuses a commit whose snapshot has not seen a newer transaction of the same name, so
    of several writers that read the same ledger exactly one succeeds.
    """

    def __init__(self, uri: str, storage_options: dict[str, str] | None = None) -> None:
        self._uri = uri
        self._storage_options = storage_options

    def ledger(self, pipeline: str) -> Ledger:
        """The pipeline's state now."""
        table = self._open()
        if table is None:
            return Ledger(pipeline=pipeline)
        # Not to_pyarrow_table: pyarrow's threads over delta-rs abort half of all processes when
        # they exit (docs/adr/0003).
        rows = pa.table(table.scan(predicate=f"pipeline = '{pipeline}'")).to_pylist()
        return Ledger.fold(pipeline, decode(pipeline, rows))

    def append(self, ledger: Ledger, events: Sequence[ControlEvent], recorded_at: datetime) -> None:
        """Record `events` as the one commit after `ledger`, all or nothing.

        Raises:
            ControlConflict: Another writer recorded that event number first; nothing was written.
        """
        number = ledger.event_number + 1
        conflict = ControlConflict(pipeline=ledger.pipeline, event_number=number)
        table = self._open() or self._create()
        # delta-rs compares against its snapshot only: a snapshot that is newer than the ledger
        # would let a second writer of the same number through.
        if (table.transaction_version(ledger.pipeline) or 0) != ledger.event_number:
            raise conflict
        rows = encode(ledger.pipeline, number, recorded_at, events)
        try:
            write_deltalake(
                table,
                pa.Table.from_pylist([_complete(row) for row in rows], schema=COLUMNS),
                mode="append",
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(ledger.pipeline, number)]
                ),
            )
        except CommitFailedError as refused:
            raise conflict from refused

    def _open(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._uri, storage_options=self._storage_options)
        except TableNotFoundError:
            return None

    def _create(self) -> DeltaTable:
        try:
            DeltaTable.create(
                self._uri,
                schema=COLUMNS,
                mode="ignore",
                partition_by=["pipeline"],
                description="Tidemark: what was planned and what became of it, by offset range",
                configuration={"delta.appendOnly": "true"},
                storage_options=self._storage_options,
                # Tried again, a creation that lost its race becomes a later commit with another
                # table id, which every append at that moment conflicts with.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError:
            # Another process made the table between our look and our commit.
            log.debug("created by another process uri=%s", self._uri)
        return DeltaTable(self._uri, storage_options=self._storage_options)


def _complete(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row.get(name) for name in COLUMNS.names}
