"""The quarantine table, and its pair with the typed table.

A plan commits to the quarantine first, then to the typed table, both under the plan's transaction.
The plan has landed once the typed table has its commit. Until then its changes of the quarantine do
not count, and removing the plan from the typed table removes its records from the quarantine. A
second reader examines offsets without a row in either table before they count as gaps. So no record
is lost if a driver stops between the two commits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from deltalake import CommitProperties, DeltaTable, write_deltalake

from tidemark.bronze.ingest.protocols import Clock
from tidemark.core.accounting import Landing
from tidemark.core.datafile import DataFile
from tidemark.core.errors import PlanCannotLand
from tidemark.core.offsets import (
    Span,
    SpanSet,
    size_of,
    union_by_partition,
)
from tidemark.core.origins import PlanOrigin, RunOrigin
from tidemark.core.plan import Plan
from tidemark.core.table_state import (
    FENCED_VERSION,
    Fence,
    PlanCommit,
    RowRange,
    TableChanges,
    TableSize,
    TableState,
    survives_restores,
)
from tidemark.delta import row_queries
from tidemark.delta.copied_tables import for_writing
from tidemark.delta.data_table import DeltaDataTable
from tidemark.delta.delta_errors import translates_delta_errors
from tidemark.delta.errors import TransactionConflict
from tidemark.delta.plan_removal import leftover_transactions
from tidemark.delta.replacement import (
    replace_rows,
    spans_in_files,
    spooled_reader,
    table_batches,
)
from tidemark.delta.storage import folder_of
from tidemark.delta.table_checks import check_removals
from tidemark.delta.table_io import newest_table, open_if_exists, query_rows, query_table
from tidemark.delta.table_properties import WRITER_PROPERTIES
from tidemark.delta.unreadable_files import translate_read_errors
from tidemark.silver.typed.columns import QUARANTINE_SCHEMA, decoded_parts
from tidemark.silver.typed.errors import QuarantineRestored
from tidemark.silver.typed.quarantine_index import read_reasons, read_records, read_spans
from tidemark.silver.typed.quarantine_record import QuarantinedRecord
from tidemark.spec.decode import Part
from tidemark.spec.fields import FieldType

if TYPE_CHECKING:
    import pyarrow as pa

_PAYLOAD = ("key", "value", "headers")
_ERASED = " AND ".join(f"{column} IS NULL" for column in _PAYLOAD)


@translates_delta_errors
class DeltaQuarantine:
    """The quarantine table: records that could not be decoded, with their bytes.

    A record is open until a later plan processes its offset again; that plan closes it. Once that
    plan has landed, the content of the closed record is erased; position and reason stay. If a
    RESTORE removes that plan later, the next run decodes the record from the bronze table.

    Args:
        uri: URI of the table.
        now: The clock for `closed_at`.
        typed: The typed table.
        landed_sequences: Returns the numbers of all typed plans that the ledger records as landed.
        without_rows: Returns the numbers of typed plans that are open, abandoned or undone. Records
            that they added are not open. Records that they closed, but did not erase, are open.
    """

    def __init__(
        self,
        uri: str,
        now: Clock,
        typed: DeltaDataTable,
        landed_sequences: Callable[[], Collection[int]],
        without_rows: Callable[[], Collection[int]],
    ) -> None:
        self._uri = uri
        self._now = now
        self._typed = typed
        self._ever_landed = landed_sequences
        self._without_rows = without_rows
        self.table = DeltaDataTable(uri, QUARANTINE_SCHEMA, grows=True)

    def append(self, plan: Plan, files: Sequence[DataFile], seen: TableState) -> bool:
        """Add a plan's records and close the records at its offsets, in one commit.

        Args:
            plan: The plan.
            files: Files with its records.
            seen: The state that was compared with the ledger.

        Returns:
            Whether this call committed them: false if the plan's transaction exists.

        Raises:
            TableReplaced: The table is older than `seen`; nothing was changed.
            TransactionConflict: Another commit of this transaction was first.
            EngineFailed: The commit failed, or its answer was lost.
        """
        return self.table.land(plan, files, seen, self._replace)

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
        # Read before the write: delta-rs cannot do both at the same time.
        kept = pa.table(query_table(table, f"SELECT * FROM t WHERE {here}")).cast(schema)
        new = table_batches(folder_of(table.table_uri), files, schema)
        with spooled_reader(chain(self._closed(kept, plan).to_batches(), new), schema) as rows:
            write_deltalake(
                for_writing(table),
                rows,
                mode="overwrite",
                predicate=here,
                writer_properties=WRITER_PROPERTIES,
                commit_properties=properties,
            )

    def _closed(self, rows: pa.Table, plan: Plan) -> pa.Table:
        """Return rows in which a plan has closed the open records."""
        import pyarrow as pa
        import pyarrow.compute as pc

        is_open = pc.invert(pc.is_in(rows["closed_by"], pa.array(self._held_plans(), pa.int64())))
        for name, value in (("closed_by", plan.sequence), ("closed_at", self._now())):
            place = rows.schema.get_field_index(name)
            field = rows.schema.field(place)
            column = pc.if_else(is_open, pa.scalar(value, field.type), rows[name])
            rows = rows.set_column(place, field, column)
        return rows

    def erase_closed(self, plan: Plan) -> None:
        """Erase the content of closed records, which may have to be deleted by law.

        Args:
            plan: The plan that lands. A repair that fences its epoch may reopen closed records.

        Raises:
            RemovalFenced: The epoch is fenced.
            TableAltered: Another program has forbidden changes of rows.
            UnreadableFile: A file to rewrite cannot be read.
            EngineFailed: Some content may be erased. Repeating the call is safe.
        """
        table = newest_table(self._uri)
        transactions = leftover_transactions(table, plan, plan.epoch)
        # A separate query: delta-rs accepts no lists, such as headers, in the updated condition.
        kept = _rows(table, f"SELECT DISTINCT closed_by FROM t WHERE NOT ({_ERASED})")
        named = {row["closed_by"] for row in kept} - {None}
        if closers := named and named.intersection(self._held_plans()):
            check_removals(table, self._uri)
            properties = CommitProperties(
                app_transactions=transactions  # fence: erasure-ends-with-its-epoch
            )
            with translate_read_errors(self._uri, "erasing closed records"):
                for_writing(table).update(
                    predicate=f"closed_by IN ({_sql_list(closers)})",
                    updates=dict.fromkeys(_PAYLOAD, "NULL"),
                    commit_properties=properties,
                )

    def check_not_restored(self, pipeline: str) -> None:
        """Check that no RESTORE removed the changes of landed plans.

        Raises:
            QuarantineRestored: A RESTORE did.
        """
        restores = self.table.state(pipeline, (), restores_since=-1).restores
        if not restores:
            return
        removal_versions = [self.table.removal_versions(), self._typed.removal_versions()]
        discarded = {
            sequence
            for sequence, versions in removal_versions[0].items()
            if any(survives_restores(restores, version) for version in versions)
        }
        typed_restores = self._typed.state(pipeline, (), restores_since=-1).restores
        undone = {
            sequence
            for sequence, versions in removal_versions[1].items()
            if any(survives_restores(typed_restores, version) for version in versions)
        }
        out = {
            commit.plan.sequence
            for commit in self.table.plan_commits(RunOrigin(pipeline))
            if not survives_restores(restores, commit.version)
        }
        missed = self._typed.still_landed_plans(
            out - discarded - removal_versions[1].keys(), self._ever_landed
        )
        missed |= undone & removal_versions[0].keys() - discarded
        if missed:
            raise QuarantineRestored(
                pipeline=pipeline,
                sequence=min(missed),
                table=self._uri,
                at=max(restore.at for restore in restores),
            )

    def _query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of an SQL query; none if the table is missing."""
        table = open_if_exists(self._uri)
        return [] if table is None else _rows(table, sql)

    def _held_plans(self) -> list[int]:
        """Return the plans in this table whose rows the typed table has."""
        return sorted(self._typed.still_landed_plans(self._named_plans(), self._ever_landed))

    def _named_plans(self) -> set[int]:
        """Return the plans that added or closed a record of this table."""
        named = self._query(
            "SELECT plan_sequence AS plan FROM t UNION SELECT closed_by AS plan FROM t"
        )
        return {row["plan"] for row in named} - {None}

    def _open_condition(self) -> str:
        """Return the SQL condition of records of landed plans that no landed plan closed."""
        held = _sql_list(self._held_plans())
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

    def check_same(self, plan: Plan, files: Sequence[DataFile]) -> None:
        """Check that this driver's files have the records that were committed for a plan.

        Raises:
            PlanCannotLand: Another driver has quarantined other records of the plan.
        """
        committed = self.table.plan_spans(plan.sequence)
        ours = spans_in_files(folder_of(self._uri), files)
        if committed != ours:
            raise PlanCannotLand.by_other_quarantine(
                plan.pipeline, plan.sequence, size_of(committed), size_of(ours)
            )

    def spans(self, sequence: int) -> Mapping[int, SpanSet]:
        """Return the offsets of a plan's open records by partition."""
        table = open_if_exists(self._uri)
        if table is None:
            return {}
        return row_queries.spans_where(
            table, f"plan_sequence = {sequence} AND {self._open_condition()}"
        )

    def row_ranges(self) -> tuple[RowRange, ...]:
        """Return the offsets of open records by plan, topic id and partition."""
        table = open_if_exists(self._uri)
        return () if table is None else row_queries.row_ranges(table, self._open_condition())

    def open_entries(self) -> OpenEntries:
        """Return the open records of the present state."""
        return OpenEntries(self.table, self._open_condition())

    def count_open(self) -> int:
        """Return the number of open records. Reads two small columns."""
        is_open = self._open_in_ledger()
        found = self._query(f"SELECT count(*) AS records FROM t WHERE {is_open}")
        return sum(row["records"] for row in found)

    def open_spans(
        self,
        topic_id: str,
        most: int,
        within: tuple[int, Span] | None = None,
    ) -> Mapping[int, SpanSet] | None:
        """Return the offsets of open records. See `QuarantineIndex.spans`."""
        return read_spans(self._uri, topic_id, most, within, self._open_in_ledger())

    def withdraw(self, plans: Collection[Plan], epoch: int | None = None) -> None:
        """Remove the records of plans that can no longer land, and reopen those that they closed.

        Closed records without content stay closed: a later plan decodes them from the bronze table.

        Args:
            plans: The plans.
            epoch: As in `DeltaDataTable.remove_rows`.

        Raises:
            RemovalFenced: The epoch is fenced.
            TableAltered, UnreadableFile: The rows cannot be changed.
            EngineFailed: Some changes may be committed. Repeating the call is safe.
        """
        named = self._named_plans() if plans else ()
        for plan in plans:
            if plan.sequence in named:
                # Before the removal, which fails if the epoch is fenced by then.
                self._reopen(plan, epoch)
                self.table.remove_rows(plan, epoch, None)

    def _reopen(self, plan: Plan, epoch: int | None) -> None:
        table = DeltaTable(self._uri)
        transactions = leftover_transactions(table, plan, epoch)
        properties = CommitProperties(app_transactions=transactions)
        closed = row_queries.spans_where(
            table,
            f"topic_id = '{plan.topic_id}' AND closed_by = {plan.sequence} AND NOT ({_ERASED})",
        )
        if closed:
            check_removals(table, self._uri)
            here = row_queries.offsets_condition(plan.topic_id, closed)
            with translate_read_errors(self._uri, "reopening closed records"):
                table.update(
                    predicate=f"closed_by = {plan.sequence} AND {here}",
                    updates={"closed_by": "NULL", "closed_at": "NULL"},
                    commit_properties=properties,
                )

    def records(self, most: int | None = None) -> list[QuarantinedRecord]:
        """Return the open records by topic id, partition and offset.

        Args:
            most: Maximum number of records; None for all.
        """
        return read_records(self._uri, most, condition=self._open_condition())

    def records_at(self, topic_id: str, partition: int, span: Span) -> list[QuarantinedRecord]:
        """Return the open records of a partition at these offsets."""
        place = row_queries.offsets_condition(topic_id, {partition: SpanSet((span,))})
        return read_records(self._uri, where=place, condition=self._open_in_ledger())

    def _open_in_ledger(self) -> str:
        """Return the SQL condition of open records by the ledger, without a look at typed rows."""
        without_rows = self._without_rows()
        if not without_rows:
            return "closed_by IS NULL"
        plans = _sql_list(without_rows)
        # A later plan decodes erased records from the bronze table.
        reopened = f"closed_by IN ({plans}) AND NOT ({_ERASED})"
        return f"plan_sequence NOT IN ({plans}) AND (closed_by IS NULL OR ({reopened}))"

    def reasons(self, most: int) -> Mapping[tuple[str, str | None, str | None], int]:
        """Return the number of open records by reason, part, and field or rule.

        Args:
            most: Maximum number of groups, the largest first.
        """
        return read_reasons(self._uri, most, self._open_condition())


@dataclass(frozen=True, slots=True)
class OpenEntries:
    """The open records of a quarantine.

    Attributes:
        table: The quarantine table.
        condition: SQL condition of its open records.
    """

    table: DeltaDataTable
    condition: str

    def offsets_at(self, topic_id: str, partition: int, span: Span) -> list[int]:
        """Return the offset of each open record in a span of a partition."""
        return self.table.offsets_at(topic_id, partition, span, self.condition)

    def row_ranges(self) -> tuple[RowRange, ...]:
        """Return the ranges of open records, by plan, incarnation and partition."""
        return self.table.row_ranges(self.condition)

    def spans_with_rows(self, topic_id: str, spans: Mapping[int, SpanSet]) -> Mapping[int, SpanSet]:
        """Return the offsets in `spans` with an open record, by partition."""
        return self.table.spans_with_rows(topic_id, spans, self.condition)


def _rows(table: DeltaTable, sql: str) -> list[dict[str, Any]]:
    """Return the rows of an SQL query of a version, which may have no files."""
    return query_rows(table, sql) if table.file_uris() else []


def _fenced(transactions: Mapping[str, int]) -> set[str]:
    return {app_id for app_id, newest in transactions.items() if newest == FENCED_VERSION}


def _sql_list(plans: Collection[int]) -> str:
    """Return plan numbers as a list in SQL, which must not be empty."""
    return ", ".join(map(str, sorted(plans))) or "-1"


@dataclass(frozen=True, slots=True)
class TypedTablePair:
    """A typed table and its quarantine as one data table. Each record is in one of them.

    Attributes:
        typed: The typed table. Its commits decide which plans have landed.
        quarantine: The quarantine table.
        with_columns: Returns the typed table for given types of keys and values.
        flattens: Whether the typed table has flattened values.
    """

    typed: DeltaDataTable
    quarantine: DeltaQuarantine
    with_columns: Callable[[Mapping[Part, FieldType]], DeltaDataTable]
    flattens: bool = False

    def columns(self) -> Mapping[Part, FieldType]:
        """See `TypedTable.columns`."""
        return decoded_parts(self.typed.columns(), flattens=self.flattens)

    def version_and_id(self) -> tuple[int, str]:
        """See `TypedLog.version_and_id`; reads the typed table."""
        return self.typed.version_and_id()

    def commit_digest(self, version: int) -> str | None:
        """See `TypedLog.commit_digest`; reads the typed table."""
        return self.typed.commit_digest(version)

    def changes_since(self, version: int, digest: str | None) -> TableChanges | None:
        """See `TypedLog.changes_since`; reads the typed table."""
        return self.typed.changes_since(version, digest)

    def add_columns(self, pipeline: str, columns: Mapping[Part, FieldType]) -> None:
        """See `TypedTable.add_columns`."""
        self.with_columns(columns).prepare(pipeline)

    def check_not_restored(self, pipeline: str) -> None:
        """See `TypedTable.check_not_restored`."""
        self.quarantine.check_not_restored(pipeline)

    def state(
        self, pipeline: str, app_ids: Collection[str], *, restores_since: int | None = None
    ) -> TableState:
        """See `DataLog.state`; the version is that of the typed table."""
        typed = self.typed.state(pipeline, app_ids, restores_since=restores_since)
        kept = self.quarantine.table.state(pipeline, app_ids).transactions
        shared = {
            app_id: min(
                [
                    newest,
                    kept.get(app_id, 0),  # fence: lost-quarantine-is-missed
                ]
            )
            for app_id, newest in typed.transactions.items()
        }
        return replace(
            typed,
            transactions={app_id: newest for app_id, newest in shared.items() if newest},
            ahead={
                app_id: newest
                for app_id, newest in (*typed.transactions.items(), *kept.items())
                if newest > shared.get(app_id, 0)
            },
        )

    def find_landing(self, plan: Plan) -> Landing | None:
        """See `DataLog.find_landing`; records are in either table."""
        landing = self.typed.find_landing(plan)
        if landing is None:
            return None
        # fence: restored-quarantine-is-not-recorded
        self.quarantine.check_not_restored(plan.pipeline)
        return self._with_quarantined(plan, landing)

    def current_landing(self, plan: Plan) -> Landing:
        """See `DataLog.current_landing`; records are in either table."""
        return self._with_quarantined(plan, self.typed.current_landing(plan))

    def _with_quarantined(self, plan: Plan, landing: Landing) -> Landing:
        quarantined = self.quarantine.spans(plan.sequence)
        if not quarantined:
            return landing
        # A union instead of a sum: after an interrupted driver, an offset may be in both tables.
        either = union_by_partition([quarantined, self.typed.plan_spans(plan.sequence)])
        records = {
            index: either.get(planned.partition, SpanSet()).overlap_size(planned.span)
            for index, planned in enumerate(plan.ranges)
        }
        return Landing.of(plan, landing.table_version, records)

    def offsets_without_rows(self, plan: Plan) -> Mapping[int, SpanSet]:
        """See `DataLog.offsets_without_rows`: offsets without a row in either table."""
        sequence = plan.sequence
        return plan.offsets_outside(
            union_by_partition([self.quarantine.spans(sequence), self.typed.plan_spans(sequence)])
        )

    def row_count(self) -> int | None:
        """See `DataLog.row_count`; reads the typed table: the quarantine has the other records."""
        return self.typed.row_count()

    def size(self) -> TableSize:
        """See `DataLog.size`; reads the typed table."""
        return self.typed.size()

    def files_with(self, topic_id: str, spans: Mapping[int, SpanSet]) -> int:
        """See `DataLog.files_with`; reads the typed table."""
        return self.typed.files_with(topic_id, spans)

    def row_ranges(self) -> tuple[RowRange, ...]:
        """See `DataLog.row_ranges`; covers both tables."""
        return (*self.typed.row_ranges(), *self.quarantine.row_ranges())

    def plan_commits(self, origin: PlanOrigin) -> Sequence[PlanCommit]:
        """See `DataLog.plan_commits`; reads the typed table."""
        return self.typed.plan_commits(origin)

    def quarantined_plans(self, origin: PlanOrigin) -> Sequence[Plan]:
        """See `DataLog.quarantined_plans`."""
        landed = {commit.plan.fingerprint for commit in self.typed.plan_commits(origin)}
        quarantined = [commit.plan for commit in self.quarantine.table.plan_commits(origin)]
        return [plan for plan in quarantined if plan.fingerprint not in landed]

    def quarantine_ahead(self, pipeline: str, app_ids: Collection[str]) -> Mapping[str, int]:
        """See `DataLog.quarantine_ahead`."""
        newest = [each.state(pipeline, app_ids).transactions for each in self._tables]
        fences = [each.fences(pipeline) for each in self._tables]
        found: dict[str, int] = {}
        for app_id in app_ids:
            fence, other = (each.get(app_id) for each in fences)
            typed, kept = (each.get(app_id, 0) for each in newest)
            is_other = fence and other and fence.requested_by != other.requested_by
            if is_other or kept == FENCED_VERSION > typed:
                found[app_id] = FENCED_VERSION
                continue
            typed, kept = (fence.before if fence else typed, other.before if other else kept)
            if kept > typed:
                found[app_id] = kept
        return found

    @property
    def _tables(self) -> tuple[DeltaDataTable, DeltaDataTable]:
        return self.typed, self.quarantine.table

    def fences(self, pipeline: str) -> Mapping[str, Fence]:
        """See `DataLog.fences`; returns the fences that both tables have.

        A commit that maintenance has removed from the quarantine's log counts as well.
        """
        typed, table = self.typed.fences(pipeline), self.quarantine.table
        kept = table.fences(pipeline)
        fenced = _fenced(table.state(pipeline, typed).transactions) if table.log_start() else ()
        return {
            app_id: replace(fence, before=min(fence.before, kept[app_id].before))
            if app_id in kept
            else fence
            for app_id, fence in typed.items()
            if (
                kept[app_id].requested_by == fence.requested_by
                if app_id in kept
                else app_id in fenced
            )
        }

    def removal_versions(self) -> Mapping[int, Sequence[int]]:
        """See `DataLog.removal_versions`; reads the typed table."""
        return self.typed.removal_versions()

    def log_start(self) -> int:
        """See `DataLog.log_start`; reads the typed table."""
        return self.typed.log_start()

    def prepare(self, pipeline: str) -> TableSize:
        """See `DataTable.prepare`; covers both tables. Returns the size of the typed table."""
        self.quarantine.table.prepare(pipeline)
        return self.typed.prepare(pipeline)

    def append(self, plan: Plan, files: Sequence[DataFile], seen: TableState) -> bool:
        """See `DataTable.append`: to the quarantine, then to the typed table.

        Replaced rows may have no successor, because the bronze table may no longer have them. Also
        erases the closed records that an interrupted driver left.

        Raises:
            PlanCannotLand: Another driver has quarantined other records of the plan, or a killed
                command has fenced the plan in the typed table only.
            TransactionConflict: A repair has fenced the plan in the quarantine.
        """
        if self.typed.has_transaction(plan):
            # Another driver has landed the plan, or it was abandoned.
            if not self.quarantine.table.has_transaction(plan):
                raise PlanCannotLand.by_fence(plan.pipeline, plan.sequence)
            return False
        self.quarantine.erase_closed(plan)
        kept = [file for file in files if file.quarantined]
        if not self.quarantine.append(plan, kept, seen):
            if self.typed.has_transaction(plan):
                # The same, since the first look.
                return False
            # fence: fenced-quarantine-stops-a-driver
            self._check_not_fenced(plan)
        self.quarantine.check_same(plan, kept)  # fence: drivers-agree-on-quarantine
        decoded = [file for file in files if not file.quarantined]
        wrote = self.typed.land(plan, decoded, seen, replace_rows)
        if plan.replaces:
            # If this fails, the next plan erases them.
            self.quarantine.erase_closed(plan)
        return wrote

    def _check_not_fenced(self, plan: Plan) -> None:
        found = self.quarantine.table.state(plan.pipeline, [plan.app_id]).transactions
        if _fenced(found):
            raise TransactionConflict(pipeline=plan.pipeline, sequence=plan.sequence)

    def fence(self, plan: Plan, seen: TableState) -> None:
        """See `DataTable.fence`; withdraws a plan that has not landed from the quarantine."""
        self.typed.fence(plan, seen)
        self.quarantine.table.fence(plan, seen)
        if self.typed.find_landing(plan) is None:
            self.quarantine.withdraw([plan])

    def check_removals(self) -> None:
        """See `DataLog.check_removals`; covers both tables."""
        self.quarantine.table.check_removals()
        self.typed.check_removals()

    def check_removable(self, plan: Plan) -> None:
        """See `DataTable.check_removable`; covers both tables."""
        self.quarantine.table.check_removable(plan)
        self.typed.check_removable(plan)

    def remove_rows(self, plan: Plan, epoch: int, seen: TableState) -> tuple[int, int]:
        """See `DataTable.remove_rows`; covers both tables.

        Removes the typed rows first. After a kill in between, a repair still finds the plan's
        records in the quarantine, and records the plan as landed with these.
        """
        rows, version = self.typed.remove_rows(plan, epoch, seen)
        quarantined, _ = self.quarantine.table.remove_rows(
            plan,
            epoch,  # fence: quarantine-removals-are-fenced
            seen,
        )
        return quarantined + rows, version

    def fence_chains(self, pipeline: str, app_ids: Collection[str], requested_by: str) -> int:
        """See `DataTable.fence_chains`; covers both tables."""
        self.quarantine.table.fence_chains(pipeline, app_ids, requested_by)
        return self.typed.fence_chains(pipeline, app_ids, requested_by)

    def remove_leftovers(self, plans: Collection[Plan], epoch: int) -> None:
        """See `DataTable.remove_leftovers`; withdraws the plans from the quarantine."""
        self.quarantine.withdraw(
            plans,
            epoch,  # fence: leftovers-are-removed-in-their-epoch
        )
