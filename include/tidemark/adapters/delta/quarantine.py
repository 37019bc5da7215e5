"""The quarantine table, and the pair that it makes with its typed table.

A plan's commit goes to the quarantine first, then to the typed table, both under the plan's
transaction: it has landed once the typed table has it. Offsets without a row in either are looked
at by a second reader before they are taken for holes, so whatever stops a driver between the two
commits, no record is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from tidemark.adapters.delta import contents
from tidemark.adapters.delta.columns import AS_LANDED, QUARANTINE
from tidemark.adapters.delta.data_table import DeltaDataTable
from tidemark.adapters.delta.replacing import batches
from tidemark.adapters.delta.rows import query, rows_where
from tidemark.core.datafile import DataFile
from tidemark.core.decoding import Part, Reason
from tidemark.core.landing import Landing
from tidemark.core.offsets import Span, SpanSet, united
from tidemark.core.plan import Plan
from tidemark.core.quarantine import Quarantined
from tidemark.core.records import LogRecord
from tidemark.core.table import Commit, Holding, TableSize, TableState
from tidemark.ports import Clock
from tidemark.storage import folder_of

if TYPE_CHECKING:
    import pyarrow as pa

_OPEN = "closed_by IS NULL"


class DeltaQuarantine:
    """Records that could not be decoded, as they are. One is open until a later plan has it.

    Args:
        uri: The table.
        now: The clock that `closed_at` is read from.
    """

    def __init__(self, uri: str, now: Clock) -> None:
        self._uri = uri
        self._now = now
        self.table = DeltaDataTable(uri, QUARANTINE)

    def append(self, plan: Plan, files: Sequence[DataFile]) -> None:
        """Add a plan's records, and close what it replaces, in one commit; skip a stale one.

        Raises:
            TransactionConflict: Another commit of this transaction was first; look again.
            EngineFailed: The commit failed, or its answer was lost.
        """

        def change(table: DeltaTable, properties: CommitProperties) -> None:
            if plan.replaces:
                self._replace(table, plan, files, properties)
            else:
                self.table.add(table, plan, files, properties)

        self.table.commit(plan, change)

    def _replace(
        self,
        table: DeltaTable,
        plan: Plan,
        files: Sequence[DataFile],
        properties: CommitProperties,
    ) -> None:
        import pyarrow as pa

        here = contents.at_offsets(plan.topic_id, plan.spans())
        schema = pa.schema(table.schema().to_arrow())
        # Read first: delta-rs cannot write the table at the same time.
        kept = pa.table(rows_where(table, here)).cast(schema)
        write_deltalake(
            table,
            pa.RecordBatchReader.from_batches(
                schema,
                (
                    *self._closed(kept, plan).to_batches(),
                    *batches(folder_of(table.table_uri), files, schema),
                ),
            ),
            mode="overwrite",
            predicate=here,
            writer_properties=AS_LANDED,
            commit_properties=properties,
        )

    def _closed(self, rows: pa.Table, plan: Plan) -> pa.Table:
        """Rows as they are once a plan has closed those that are open."""
        import pyarrow as pa
        import pyarrow.compute as pc

        is_open = pc.is_null(rows["closed_by"])
        for name, value in (("closed_by", plan.sequence), ("closed_at", self._now())):
            place = rows.schema.get_field_index(name)
            field = rows.schema.field(place)
            stamped = pc.if_else(is_open, pa.scalar(value, field.type), rows[name])
            rows = rows.set_column(place, field, stamped)
        return rows

    def spans(self, sequence: int) -> Mapping[int, SpanSet]:
        """Offsets of a plan's open records, by partition."""
        return contents.spans_where(
            DeltaTable(self._uri), f"plan_sequence = {sequence} AND {_OPEN}"
        )

    def open_spans(self, topic_id: str) -> Mapping[int, SpanSet]:
        """Offsets of an incarnation's open records, by partition."""
        table = self._present()
        if table is None:
            return {}
        return contents.spans_where(table, f"topic_id = '{topic_id}' AND {_OPEN}")

    def holdings(self) -> tuple[Holding, ...]:
        """Open records, by plan, incarnation and partition."""
        table = self._present()
        return () if table is None else contents.holdings(table, _OPEN)

    def rows_of(self, topic_id: str, partition: int, span: Span) -> Iterator[tuple[int, LogRecord]]:
        """Open records of one incarnation's partition at these offsets, with their plans."""
        table = self._present()
        return (
            iter(())
            if table is None
            else contents.rows_of(table, topic_id, partition, span, condition=_OPEN)
        )

    def records(self, *, closed: bool = False) -> list[Quarantined]:
        """What is in quarantine, by partition and offset; what has been closed as well, if asked.

        Of a record's content nothing but its length.
        """
        table = self._present()
        if table is None:
            return []
        found = query(
            table,
            f"""
            SELECT topic_id, partition, "offset", plan_sequence, reason, part, detail,
                   length(encode(value, 'hex')) / 2 AS value_bytes, closed_by, closed_at
            FROM t WHERE {"true" if closed else _OPEN}
            ORDER BY topic_id, partition, "offset", plan_sequence
            """,
        )
        return [
            Quarantined(
                **{
                    **row,
                    "reason": Reason(row["reason"]),
                    "part": Part(row["part"]) if row["part"] else None,
                }
            )
            for row in found
        ]

    def _present(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._uri)
        except TableNotFoundError:
            return None


class TypedTables:
    """A typed table and its quarantine as one data table: each record is in one of them.

    Args:
        typed: Decides what has landed.
        quarantine: What could not be decoded.
    """

    def __init__(self, typed: DeltaDataTable, quarantine: DeltaQuarantine) -> None:
        self._typed = typed
        self._quarantine = quarantine

    def state(self, pipeline: str, app_ids: Collection[str], since: int) -> TableState:
        """As `DataLog.state`, of the typed table."""
        return self._typed.state(pipeline, app_ids, since)

    def find(self, plan: Plan) -> Landing | None:
        """As `DataLog.find`; records are in either table."""
        landing = self._typed.find(plan)
        return landing and self._with_quarantined(plan, landing)

    def held(self, plan: Plan) -> Landing:
        """As `DataLog.held`; records are in either table."""
        return self._with_quarantined(plan, self._typed.held(plan))

    def _with_quarantined(self, plan: Plan, landing: Landing) -> Landing:
        quarantined = self._quarantine.spans(plan.sequence)
        if not quarantined:
            return landing
        # Not added up: whatever a driver left half done, an offset counts once.
        either = united([quarantined, self._typed.spans(plan.sequence)])
        records = {
            index: either.get(planned.partition, SpanSet()).overlap(planned.span)
            for index, planned in enumerate(plan.ranges)
        }
        return Landing.of(plan, landing.table_version, records)

    def gaps(self, plan: Plan) -> Mapping[int, SpanSet]:
        """As `DataLog.gaps`: offsets without a row in either table."""
        sequence = plan.sequence
        return plan.gaps(united([self._quarantine.spans(sequence), self._typed.spans(sequence)]))

    def size(self) -> TableSize:
        """As `DataLog.size`, of the typed table."""
        return self._typed.size()

    def files_with(self, topic_id: str, spans: Mapping[int, SpanSet]) -> int:
        """As `DataLog.files_with`, of the typed table."""
        return self._typed.files_with(topic_id, spans)

    def holdings(self) -> tuple[Holding, ...]:
        """As `DataLog.holdings`, of both tables."""
        return (*self._typed.holdings(), *self._quarantine.holdings())

    def commits_of_plans(self, requested_by: str) -> Sequence[Commit]:
        """As `DataLog.commits_of_plans`, of the typed table."""
        return self._typed.commits_of_plans(requested_by)

    def discards(self) -> Mapping[int, int]:
        """As `DataLog.discards`, of the typed table."""
        return self._typed.discards()

    def rows_of(self, topic_id: str, partition: int, span: Span) -> Iterator[tuple[int, LogRecord]]:
        """As `DataLog.rows_of`, of both tables, without keys and values."""
        for table in (self._typed, self._quarantine):
            for sequence, record in table.rows_of(topic_id, partition, span):
                yield sequence, record.without_payload()

    def prepare(self, pipeline: str) -> TableSize:
        """As `DataTable.prepare`, of both tables. Returns what typed rows take."""
        self._quarantine.table.prepare(pipeline)
        return self._typed.prepare(pipeline)

    def append(self, plan: Plan, files: Sequence[DataFile]) -> None:
        """As `DataTable.append`: to the quarantine, then to the typed table."""
        self._quarantine.append(plan, [file for file in files if file.quarantined])
        self._typed.append_beside(
            plan,
            [file for file in files if not file.quarantined],
            self._quarantine.spans(plan.sequence),
        )

    def fence(self, plan: Plan) -> None:
        """As `DataTable.fence`; nothing stays in quarantine of a plan that can land no more."""
        self._typed.fence(plan)
        self._quarantine.table.fence(plan)
        if self._typed.find(plan) is None:
            self._quarantine.table.discard(plan)

    def discard(self, plan: Plan) -> tuple[int, int]:
        """As `DataTable.discard`, of both tables."""
        quarantined, _ = self._quarantine.table.discard(plan)
        rows, version = self._typed.discard(plan)
        return quarantined + rows, version

    def fence_chains(self, pipeline: str, app_ids: Collection[str]) -> int:
        """As `DataTable.fence_chains`, of both tables."""
        self._quarantine.table.fence_chains(pipeline, app_ids)
        return self._typed.fence_chains(pipeline, app_ids)
