"""The quarantine table, and the pair that it makes with its typed table.

A plan's commit goes to the quarantine first, then to the typed table, both under the plan's
transaction. It has landed once the typed table has it: until then nothing that it did to the
quarantine counts, and whatever takes it out of the typed table takes its records out of here.
Offsets without a row in either are looked at by a second reader before they are taken for gaps,
so whatever stops a driver between the two commits, no record is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from deltalake import CommitProperties, DeltaTable, write_deltalake

from tidemark.core.accounting import Landing
from tidemark.core.datafile import DataFile
from tidemark.core.offsets import Span, SpanSet, size_of, united
from tidemark.core.plan import Plan
from tidemark.core.record import LogRecord
from tidemark.core.table_state import Commit, RowRange, TableSize, TableState, still_holds
from tidemark.ingest.protocols import Clock
from tidemark.lake import row_queries
from tidemark.lake.data_table import DeltaDataTable
from tidemark.lake.delta_errors import translates_delta_errors
from tidemark.lake.replacement import (
    Store,
    replace_rows,
    spans_in_files,
    spooled_reader,
    table_batches,
)
from tidemark.lake.storage import folder_of
from tidemark.lake.table_io import open_if_exists, query_rows, query_table
from tidemark.lake.table_properties import WRITER_PROPERTIES
from tidemark.spec.decode import Part, Reason
from tidemark.spec.fields import FieldType
from tidemark.spec.upsert import Changes
from tidemark.typed.columns import QUARANTINE_SCHEMA
from tidemark.typed.errors import DecodedDifferently, QuarantineRestored
from tidemark.typed.quarantine_rules import Quarantined

if TYPE_CHECKING:
    import pyarrow as pa

_PAYLOAD = ("key", "value", "headers")
_ERASED = " AND ".join(f"{column} IS NULL" for column in _PAYLOAD)


@translates_delta_errors
class DeltaQuarantine:
    """Records that could not be decoded, as they are. One is open until a later plan has it.

    A record that is closed keeps its place and its reason, and nothing of what it was, once that
    plan has landed. Should a RESTORE take the plan back then, it is none of ours any more: the
    bronze table has it, and it is decoded anew.

    Args:
        uri: The table.
        now: The clock that `closed_at` is read from.
        typed: Its typed table.
        ever_landed: Numbers of the plans of both that have landed, by the ledger's word.
    """

    def __init__(
        self,
        uri: str,
        now: Clock,
        typed: DeltaDataTable,
        ever_landed: Callable[[], Collection[int]],
    ) -> None:
        self._uri = uri
        self._now = now
        self._typed = typed
        self._ever_landed = ever_landed
        self.table = DeltaDataTable(uri, QUARANTINE_SCHEMA, grows=True)

    def append(self, plan: Plan, files: Sequence[DataFile]) -> None:
        """Add a plan's records, and close what it replaces, in one commit; skip a stale one.

        Raises:
            TransactionConflict: Another commit of this transaction was first; look again.
            EngineFailed: The commit failed, or its answer was lost.
        """
        self.table.land(plan, files, self._replace)

    def _replace(
        self,
        table: DeltaTable,
        plan: Plan,
        files: Sequence[DataFile],
        properties: CommitProperties,
    ) -> None:
        import pyarrow as pa

        here = row_queries.offsets_condition(plan.topic_id, plan.spans())
        schema = pa.schema(table.schema().to_arrow())
        # Read first: delta-rs cannot write the table at the same time.
        kept = pa.table(query_table(table, f"SELECT * FROM t WHERE {here}")).cast(schema)
        new = table_batches(folder_of(table.table_uri), files, schema)
        with spooled_reader(chain(self._closed(kept, plan).to_batches(), new), schema) as rows:
            write_deltalake(
                table,
                rows,
                mode="overwrite",
                predicate=here,
                writer_properties=WRITER_PROPERTIES,
                commit_properties=properties,
            )

    def _closed(self, rows: pa.Table, plan: Plan) -> pa.Table:
        """Rows as they are once a plan has closed those that are open."""
        import pyarrow as pa
        import pyarrow.compute as pc

        is_open = pc.invert(pc.is_in(rows["closed_by"], pa.array(self._held(), pa.int64())))
        for name, value in (("closed_by", plan.sequence), ("closed_at", self._now())):
            place = rows.schema.get_field_index(name)
            field = rows.schema.field(place)
            column = pc.if_else(is_open, pa.scalar(value, field.type), rows[name])
            rows = rows.set_column(place, field, column)
        return rows

    def erase_closed(self) -> None:
        """Erase what closed records were: it may be what nobody may keep.

        Raises:
            EngineFailed: Some of it may be done; do it again.
        """
        table = open_if_exists(self._uri)
        if table is None:
            return
        # Apart: delta-rs takes no lists, such as headers, in what it updates by.
        kept = query_rows(table, f"SELECT DISTINCT closed_by FROM t WHERE NOT ({_ERASED})")
        named = {row["closed_by"] for row in kept} - {None}
        closers = sorted(named.intersection(self._held())) if named else []
        if closers:
            _update(table, closers, dict.fromkeys(_PAYLOAD, "NULL"))

    def check_whole(self, pipeline: str) -> None:
        """Refuse a table that a RESTORE took something of plans out of that have landed.

        Raises:
            QuarantineRestored
        """
        restores = self.table.state(pipeline, (), restores_since=-1).restores
        if not restores:
            return
        removal_versions = [self.table.removal_versions(), self._typed.removal_versions()]
        discarded = {
            sequence
            for sequence, version in removal_versions[0].items()
            if still_holds(restores, version)
        }
        out = {
            commit.plan.sequence
            for commit in self.table.plan_commits(pipeline)
            if not still_holds(restores, commit.version)
        }
        missed = self._typed.still_landed_plans(
            out - discarded - removal_versions[1].keys(), self._ever_landed
        )
        if missed:
            raise QuarantineRestored(
                pipeline=pipeline,
                sequence=min(missed),
                table=self._uri,
                at=max(restore.at for restore in restores),
            )

    def forget_taken_out(self) -> None:
        """Remove records of plans that have landed, and that the typed table has no more.

        A RESTORE took them out of it: what they are of is decoded anew, or nobody may keep it.

        Raises:
            EngineFailed: Some of it may be done; do it again.
        """
        table = open_if_exists(self._uri)
        if table is None:
            return
        kept = {
            row["plan"] for row in query_rows(table, "SELECT DISTINCT plan_sequence AS plan FROM t")
        }
        gone = sorted(kept.intersection(self._ever_landed()).difference(self._held()))
        if not gone:
            return
        table.delete(f"plan_sequence IN ({', '.join(map(str, gone))})")

    def _held(self) -> list[int]:
        """Plans that are named here and have landed in the typed table."""
        table = open_if_exists(self._uri)
        if table is None or not table.file_uris():
            return []
        named = query_rows(
            table, "SELECT plan_sequence AS plan FROM t UNION SELECT closed_by AS plan FROM t"
        )
        plans = {row["plan"] for row in named if row["plan"] is not None}
        return sorted(self._typed.still_landed_plans(plans, self._ever_landed))

    def _open(self) -> str:
        """The SQL condition that open records meet: of a plan that has landed, closed by none."""
        held = ", ".join(map(str, self._held())) or "-1"
        closed_for_now = [
            f"closed_by NOT IN ({held})",
            f"NOT ({_ERASED})",  # fence: erased-records-are-decoded-again
        ]
        is_open = " OR ".join(
            [
                "closed_by IS NULL",
                f"({' AND '.join(closed_for_now)})",  # fence: closing-counts-once-landed
            ]
        )
        return f"plan_sequence IN ({held}) AND ({is_open})"

    def committed_spans(self, sequence: int) -> Mapping[int, SpanSet]:
        """Offsets of a plan's records, landed or not, by partition."""
        table = open_if_exists(self._uri)
        return {} if table is None else row_queries.plan_spans(table, sequence)

    def spans(self, sequence: int) -> Mapping[int, SpanSet]:
        """Offsets of a plan's open records, by partition."""
        table = open_if_exists(self._uri)
        if table is None:
            return {}
        return row_queries.spans_where(table, f"plan_sequence = {sequence} AND {self._open()}")

    def row_ranges(self) -> tuple[RowRange, ...]:
        """Open records, by plan, incarnation and partition."""
        table = open_if_exists(self._uri)
        return () if table is None else row_queries.row_ranges(table, self._open())

    def count_open(self, unlanded: Collection[int]) -> int:
        """Return the number of open records. Reads two small columns.

        Args:
            unlanded: Plans of the typed table that have not landed, by the ledger. Records that
                they added are not counted; records that they closed count as open.
        """
        table = open_if_exists(self._uri)
        if table is None or not table.file_uris():
            return 0
        plans = ", ".join(map(str, unlanded)) or "-1"
        (found,) = query_rows(
            table,
            f"SELECT count(*) AS records FROM t WHERE plan_sequence NOT IN ({plans}) "
            f"AND (closed_by IS NULL OR closed_by IN ({plans}))",
        )
        return int(found["records"])

    def rows_of(self, topic_id: str, partition: int, span: Span) -> Iterator[tuple[int, LogRecord]]:
        """Open records of one incarnation's partition at these offsets, with their plans."""
        table = open_if_exists(self._uri)
        if table is None:
            return iter(())
        return row_queries.rows_of(table, topic_id, partition, span, condition=self._open())

    def store(self) -> Store:
        """Where its files are."""
        return folder_of(self._uri)

    def withdraw(self, plan: Plan) -> None:
        """Take back what a plan did that can land no more: its records go, what it closed opens.

        Raises:
            EngineFailed: Some of it may be done; do it again.
        """
        table = open_if_exists(self._uri)
        if table is None:
            return
        _update(table, [plan.sequence], {"closed_by": "NULL", "closed_at": "NULL"})
        self.table.remove_rows(plan)

    def records(self, *, closed: bool = False) -> list[Quarantined]:
        """What is in quarantine, by partition and offset; what has been closed as well, if asked.

        Of a record's content nothing but its length.
        """
        table = open_if_exists(self._uri)
        if table is None:
            return []
        # DataFusion tells no length of bytes: of their hexadecimal digits it does.
        # A table of before has it from the next plan on.
        is_there = "schema_id" in self.table.columns()
        schema_id = "schema_id" if is_there else "CAST(NULL AS BIGINT) AS schema_id"
        found = query_rows(
            table,
            f"""
            SELECT topic_id, partition, "offset", plan_sequence, reason, part, detail, {schema_id},
                   length(encode(value, 'hex')) / 2 AS value_bytes, closed_by, closed_at
            FROM t WHERE {"true" if closed else self._open()}
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


def _update(table: DeltaTable, closed_by: Sequence[int], updates: Mapping[str, str]) -> None:
    """Update the records that plans have closed."""
    closed = f"closed_by IN ({', '.join(map(str, closed_by))})"
    table.update(predicate=closed, updates=dict(updates))


class TypedTables:
    """A typed table and its quarantine as one data table: each record is in one of them.

    Args:
        typed: Decides what has landed.
        quarantine: What could not be decoded.
        growing: The typed table as it is with some columns more.
    """

    def __init__(
        self,
        typed: DeltaDataTable,
        quarantine: DeltaQuarantine,
        growing: Callable[[Mapping[Part, FieldType]], DeltaDataTable],
    ) -> None:
        self._typed = typed
        self._quarantine = quarantine
        self._growing = growing

    def columns(self) -> Mapping[Part, FieldType]:
        """As `GrowingTable.columns`."""
        present = self._typed.columns()
        return {part: present[part] for part in Part if part in present}

    def version_and_id(self) -> tuple[int, str]:
        """As `TypedLog.version_and_id`, of the typed table."""
        return self._typed.version_and_id()

    def changes_since(self, version: int) -> Changes | None:
        """As `TypedLog.changes_since`, of the typed table."""
        return self._typed.changes_since(version)

    def grow(self, pipeline: str, columns: Mapping[Part, FieldType]) -> None:
        """As `GrowingTable.grow`."""
        self._growing(columns).prepare(pipeline)

    def check_whole(self, pipeline: str) -> None:
        """As `GrowingTable.check_whole`."""
        self._quarantine.check_whole(pipeline)

    def state(
        self, pipeline: str, app_ids: Collection[str], *, restores_since: int | None = None
    ) -> TableState:
        """As `DataLog.state`; a transaction is as far as it is in both tables."""
        typed = self._typed.state(pipeline, app_ids, restores_since=restores_since)
        kept = self._quarantine.table.state(pipeline, app_ids).transactions
        both = {app_id: min(n, kept.get(app_id, 0)) for app_id, n in typed.transactions.items()}
        # fence: lost-quarantine-is-missed
        return TableState(transactions=both, restores=typed.restores)

    def find_landing(self, plan: Plan) -> Landing | None:
        """As `DataLog.find_landing`; records are in either table."""
        landing = self._typed.find_landing(plan)
        return landing and self._with_quarantined(plan, landing)

    def current_landing(self, plan: Plan) -> Landing:
        """As `DataLog.current_landing`; records are in either table."""
        return self._with_quarantined(plan, self._typed.current_landing(plan))

    def _with_quarantined(self, plan: Plan, landing: Landing) -> Landing:
        quarantined = self._quarantine.spans(plan.sequence)
        if not quarantined:
            return landing
        # Not added up: whatever a driver left half done, an offset counts once.
        either = united([quarantined, self._typed.plan_spans(plan.sequence)])
        records = {
            index: either.get(planned.partition, SpanSet()).overlap(planned.span)
            for index, planned in enumerate(plan.ranges)
        }
        return Landing.of(plan, landing.table_version, records)

    def offsets_without_rows(self, plan: Plan) -> Mapping[int, SpanSet]:
        """As `DataLog.gaps`: offsets without a row in either table."""
        sequence = plan.sequence
        return plan.offsets_outside(
            united([self._quarantine.spans(sequence), self._typed.plan_spans(sequence)])
        )

    def row_count(self) -> int | None:
        """As `DataLog.row_count`, of the typed table: the quarantine has the other records."""
        return self._typed.row_count()

    def size(self) -> TableSize:
        """As `DataLog.size`, of the typed table."""
        return self._typed.size()

    def files_with(self, topic_id: str, spans: Mapping[int, SpanSet]) -> int:
        """As `DataLog.files_with`, of the typed table."""
        return self._typed.files_with(topic_id, spans)

    def row_ranges(self) -> tuple[RowRange, ...]:
        """As `DataLog.row_ranges`, of both tables."""
        return (*self._typed.row_ranges(), *self._quarantine.row_ranges())

    def plan_commits(self, requested_by: str) -> Sequence[Commit]:
        """As `DataLog.plan_commits`, of the typed table."""
        return self._typed.plan_commits(requested_by)

    def removal_versions(self) -> Mapping[int, int]:
        """As `DataLog.removal_versions`, of the typed table."""
        return self._typed.removal_versions()

    def rows_of(self, topic_id: str, partition: int, span: Span) -> Iterator[tuple[int, LogRecord]]:
        """As `DataLog.rows_of`, of both tables, without keys and values."""
        for table in (self._typed, self._quarantine):
            for sequence, record in table.rows_of(topic_id, partition, span):
                yield sequence, record.without_payload()

    def prepare(self, pipeline: str) -> TableSize:
        """As `DataTable.prepare`, of both tables. Returns what typed rows take.

        What a driver before could not erase any more is erased here.
        """
        self._quarantine.table.prepare(pipeline)
        self._quarantine.erase_closed()
        return self._typed.prepare(pipeline)

    def append(self, plan: Plan, files: Sequence[DataFile]) -> bool:
        """As `DataTable.append`: to the quarantine, then to the typed table.

        What is to be replaced may go without a successor: the bronze table may have it no more.

        Raises:
            DecodedDifferently: Another driver has quarantined other records of the plan.
        """
        if self._typed.has_transaction(plan):
            # Another driver has landed it, or somebody has given it up.
            return False
        kept = [file for file in files if file.quarantined]
        self._quarantine.append(plan, kept)
        self._refuse_others(plan, kept)  # fence: drivers-agree-on-quarantine
        decoded = [file for file in files if not file.quarantined]
        wrote = self._typed.land(plan, decoded, replace_rows)
        if plan.replaces:
            # Should it fail, the next plan does it before it lands.
            self._quarantine.erase_closed()
        return wrote

    def _refuse_others(self, plan: Plan, kept: Sequence[DataFile]) -> None:
        there = self._quarantine.committed_spans(plan.sequence)
        ours = spans_in_files(self._quarantine.store(), kept)
        if there != ours:
            raise DecodedDifferently(
                pipeline=plan.pipeline,
                sequence=plan.sequence,
                quarantined=size_of(there),
                now=size_of(ours),
            )

    def fence(self, plan: Plan) -> None:
        """As `DataTable.fence`; nothing stays of what a plan did that can land no more."""
        self._typed.fence(plan)
        self._quarantine.table.fence(plan)
        if self._typed.find_landing(plan) is None:
            self._quarantine.withdraw(plan)

    def check_removable(self, plan: Plan) -> None:
        """As `DataTable.check_removable`, of both tables."""
        self._quarantine.table.check_removable(plan)
        self._typed.check_removable(plan)

    def remove_rows(self, plan: Plan) -> tuple[int, int]:
        """As `DataTable.remove_rows`, of both tables."""
        quarantined, _ = self._quarantine.table.remove_rows(plan)
        rows, version = self._typed.remove_rows(plan)
        return quarantined + rows, version

    def fence_chains(self, pipeline: str, app_ids: Collection[str]) -> int:
        """As `DataTable.fence_chains`, of both tables; what was taken out leaves the quarantine."""
        self._quarantine.table.fence_chains(pipeline, app_ids)
        version = self._typed.fence_chains(pipeline, app_ids)
        # Nothing can land any more that is not in the typed table by now.
        self._quarantine.forget_taken_out()  # fence: restore-reaches-quarantine
        return version
