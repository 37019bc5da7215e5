"""The data table of a pipeline: its log, and the commits of plans. A `Sink` writes the files."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from tidemark.core.accounting import Landing
from tidemark.core.datafile import DataFile
from tidemark.core.errors import LedgerBehindTable, TidemarkError
from tidemark.core.offsets import SpanSet
from tidemark.core.origins import PlanOrigin
from tidemark.core.plan import Plan
from tidemark.core.table_state import (
    FENCED_VERSION,
    Fence,
    PlanCommit,
    TableSize,
    TableState,
    check_survives_restores,
)
from tidemark.delta import commit_log
from tidemark.delta.checked_commits import refused_commit
from tidemark.delta.columns import BRONZE_SCHEMA
from tidemark.delta.conditional_writes import (
    check_writable,
    missing_storage_proofs,
    prove_conditional_writes,
)
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.delta.copied_tables import for_writing
from tidemark.delta.delta_errors import (
    space_needed,
    tidemark_error,
    translate_delta_errors,
    translates_delta_errors,
)
from tidemark.delta.errors import (
    EngineFailed,
    ForeignTable,
    TableConflict,
    TableReplaced,
    TransactionConflict,
)
from tidemark.delta.landed_files import added_file, lost_file
from tidemark.delta.live_files import files_at
from tidemark.delta.plan_counts import records_by_range
from tidemark.delta.plan_removal import (
    files_with_plan,
    is_removal_complete,
    may_have_plan,
    removal_transactions,
    remove_whole_files,
)
from tidemark.delta.replacement import check_no_rows_lost, replace_rows
from tidemark.delta.row_queries import RowQueries, spans_where, stored_bytes, table_size
from tidemark.delta.table_checks import (
    OWNER,
    check_columns,
    check_excluded,
    check_extensible,
    check_owner,
    check_removals,
    check_rules,
    field_types,
    missing_fields,
)
from tidemark.delta.table_io import newest_if_exists, newest_table, open_if_exists
from tidemark.delta.table_properties import data_table_properties
from tidemark.delta.unreadable_files import check_readable, raise_if_unreadable
from tidemark.spec.fields import FieldType

log = logging.getLogger(__name__)


@translates_delta_errors
class DeltaDataTable(RowQueries):
    """Creates a pipeline's data table, reads its log, and commits landings, fences and removals.

    The modules `compaction` and `deduplication` make the commits of rewritten files.

    Args:
        uri: The table.
        schema: Required columns; the table may have more.
        grows: Whether `prepare` adds missing fields to the table.
        has_unions: Whether some columns are unions (see `type_conflicts`).
        reads_only: Whether to accept rules for writers, such as a CHECK constraint.
        excluded: See `check_excluded`.
    """

    def __init__(
        self,
        uri: str,
        schema: Schema = BRONZE_SCHEMA,
        *,
        grows: bool = False,
        has_unions: bool = False,
        reads_only: bool = False,
        excluded: Mapping[str, str | None] = MappingProxyType({}),
    ) -> None:
        super().__init__(uri)
        self._excluded = excluded
        self._reads_only = reads_only
        self._schema = schema
        self._grows = grows
        self._has_unions = has_unions

    def state(
        self, pipeline: str, app_ids: Collection[str], *, restores_since: int | None = None
    ) -> TableState:
        """Return the newest transaction of each application id, and RESTOREs after a version."""
        table = self._open()
        if table is None:
            return TableState(transactions={}, restores=())
        self._check(table, pipeline)  # fence: state-of-own-table-only
        return TableState(
            transactions=_transactions(table, app_ids),
            version=table.version(),
            restores=()
            if restores_since is None
            else commit_log.restores_since(table, restores_since),
        )

    def find_landing(self, plan: Plan) -> Landing | None:
        """See `DataTableSnapshot.find_landing`; None without a table."""
        snapshot = self.snapshot()
        return None if snapshot is None else snapshot.find_landing(plan)

    def snapshot(self) -> DataTableSnapshot | None:
        """Return the newest version of the table; None without a table."""
        table = open_if_exists(self._uri)
        return None if table is None else DataTableSnapshot(self._uri, table)

    def current_landing(self, plan: Plan) -> Landing:
        """Count a plan's rows in the newest version, added by any commit."""
        return _landing(newest_table(self._uri), plan)

    def offsets_without_rows(self, plan: Plan) -> Mapping[int, SpanSet]:
        """Return the offsets of a landed plan without a row, by partition."""
        return plan.offsets_outside(
            spans_where(newest_table(self._uri), f"plan_sequence = {plan.sequence}")
        )

    def stored_bytes(self, sequence: int | None = None) -> int | None:
        """Return the bytes of the newest version's files; of one plan, of its own files."""
        snapshot = self.snapshot()
        return None if snapshot is None else snapshot.stored_bytes(sequence)

    def plan_commits(self, origin: PlanOrigin) -> tuple[PlanCommit, ...]:
        """Return the commits of plans, newest first, as far as the log reaches back.

        Args:
            origin: Origin of the returned plans; commits do not contain it.
        """
        table = open_if_exists(self._uri)
        return tuple(
            PlanCommit(version=version, plan=Plan.from_metadata(metadata, origin))
            for version, metadata in (() if table is None else commit_log.plan_commits(table))
        )

    def version(self) -> int:
        """Return the newest version; -1 without a table."""
        table = open_if_exists(self._uri)
        return -1 if table is None else table.version()

    def may_have_changed_rows(self, since: int) -> bool:
        """Return whether commits after a version may have changed rows; False without a table."""
        table = open_if_exists(self._uri)
        return table is not None and commit_log.may_have_changed_rows(table, since)

    def removal_versions(self) -> Mapping[int, Sequence[int]]:
        """Return the versions that removed rows of each plan, as far back as the log reaches."""
        table = open_if_exists(self._uri)
        history = [] if table is None else commit_log.history(table)
        versions: dict[int, list[int]] = {}
        for version, metadata in commit_log.commits_with_metadata(history):
            if "removed_plan" in metadata:
                versions.setdefault(metadata["removed_plan"], []).append(version)
        return versions

    def fences(self) -> Mapping[str, Fence]:
        """See `DataLog.fences`."""
        table = open_if_exists(self._uri)
        history = [] if table is None else commit_log.history(table)
        return {
            app_id: Fence(version, metadata["requested_by"], before)
            for version, metadata in commit_log.commits_with_metadata(history)
            for app_id, before in metadata.get("fenced", {}).items()
        }

    def log_start(self) -> int:
        """See `DataLog.log_start`; maintenance removes old commits."""
        table = open_if_exists(self._uri)
        return 0 if table is None else min(each["version"] for each in commit_log.history(table))

    def prepare(self, pipeline: str) -> TableSize:
        """Create the table if it does not exist, check it, and add missing fields if it grows.

        Returns:
            The number and the size of its rows, as in `size`.

        Raises:
            ForeignTable: The target is another table, or a folder with other files.
            TableAltered: The table has other columns, or rules for its writers.
            EngineFailed: The fields may have been added or not; run it again.
        """
        table = self._own(pipeline)
        added = missing_fields(table, self._schema) if self._grows else []
        if added:
            self._add_fields(table, added)
        return table_size(table)

    def columns(self) -> Mapping[str, FieldType]:
        """Return the column types by name; empty without a table."""
        snapshot = self.snapshot()
        return {} if snapshot is None else snapshot.columns()

    def _add_fields(self, table: DeltaTable, added: list[str]) -> None:
        import pyarrow as pa

        schema = pa.schema(self._schema.to_arrow())
        metadata = {"userMetadata": json.dumps({"added": added})}
        try:
            write_deltalake(
                for_writing(table),
                schema.empty_table(),
                mode="append",
                schema_mode="merge",
                commit_properties=CommitProperties(custom_metadata=metadata),
            )
        except (DeltaError, OSError) as failed:
            raise tidemark_error(failed, self._uri, f"adding {', '.join(added)}") from failed
        log.info("fields added uri=%s fields=%s", self._uri, ",".join(added))

    def _own(self, pipeline: str) -> DeltaTable:
        """Open the pipeline's table, or create it."""
        table = self._open() or self._create(pipeline)
        self._check(table, pipeline)
        return table

    def _open(self) -> DeltaTable | None:
        """Open the table; None if its folder is empty or does not exist."""
        table = open_if_exists(self._uri)
        if table is None and "://" not in self._uri:
            # A log without a commit: another process is creating the table.
            others = [each for each in Path(self._uri).glob("[!.]*") if each.name != "_delta_log"]
            # Another process may have created the table since the first look. In a block of
            # `tables_opened_once`, it stays missing.
            if others and newest_if_exists(self._uri) is None:
                difference = "the folder contains files and no Delta table"
                raise ForeignTable(target=self._uri, difference=difference)
            table = open_if_exists(self._uri) if others else None
        return table

    def _check(self, table: DeltaTable, pipeline: str) -> None:
        check_owner(table, self._uri, pipeline)
        if not self._reads_only:
            check_rules(table, self._uri)
        check_excluded(table, self._uri, self._excluded)
        if self._grows:
            check_extensible(table, self._uri, self._schema, has_unions=self._has_unions)
        else:
            check_columns(table, self._uri, self._schema)

    def append(self, plan: Plan, files: Sequence[DataFile], seen: TableState) -> bool:
        """Land a plan's files in one commit; see `DataTable.append`.

        Raises:
            UnreadableFile: A file with rows to replace cannot be read; nothing was changed.
        """
        version = -1
        try:
            # Delta refuses the commit if a later one conflicts with this version.
            table = newest_table(self._uri)
            version = int(table.version())
            self._check(table, plan.pipeline)  # fence: landing-into-an-altered-table-is-refused
            # fence: landing-into-an-older-copy-is-refused
            self._check_not_older(table, plan, seen)
            if commit_log.has_transaction(table, plan):  # fence: taken-transaction-is-not-committed
                return False
            if plan.replaces:
                check_removals(table, self._uri)
            # fence: data-storage-is-tried
            proofs = missing_storage_proofs(table, self._uri)
            if lost := lost_file(self._uri, files):  # fence: landing-has-its-files
                raise TableReplaced.without_files(plan.pipeline, plan.sequence, self._uri, lost)
            # fence: landing-is-a-transaction
            transactions = [Transaction(plan.app_id, plan.sequence), *proofs]
            change = _replace_all if plan.replaces else self._add_files
            change(table, plan, files, _properties(transactions, plan.commit_metadata()))
        except (DeltaError, OSError) as failed:
            if self._committed_by_other(plan):
                raise TransactionConflict(
                    pipeline=plan.pipeline, sequence=plan.sequence
                ) from failed
            if plan.replaces:
                # delta-rs also reads the rows that stay in the files.
                self._raise_if_unreadable(plan, failed)
            operation = f"committing plan {plan.sequence} of pipeline {plan.pipeline!r}"
            raise refused_commit(
                failed,
                self._uri,
                version,
                operation,
                lambda reason: TableConflict.of_landing(plan.pipeline, plan.sequence, reason),
            ) from failed
        return True

    def _raise_if_unreadable(self, plan: Plan, failed: Exception) -> None:
        """Raise `UnreadableFile` if a file with rows at a plan's offsets made a commit fail."""
        if not isinstance(failed, CommitFailedError):
            table = DeltaTable(self._uri)
            raise_if_unreadable(table, failed, files_at(table, plan.spans()))

    def _named_error(
        self, failed: Exception, operation: str, conflict: Callable[[str], TidemarkError]
    ) -> TidemarkError:
        """Return the named error of a failed commit; `conflict` if another commit was first."""
        error = tidemark_error(failed, self._uri, operation)
        if isinstance(failed, CommitFailedError) and isinstance(error, EngineFailed):
            return conflict(error.reason)
        return error

    def _check_not_older(self, table: DeltaTable, plan: Plan, seen: TableState) -> None:
        """Raise if an older copy replaced the table: a commit would hide what the copy lacks."""
        if seen.is_later_than(_transactions(table, seen.transactions)):
            raise TableReplaced.by_copy(plan.pipeline, plan.sequence, self._uri)

    def _add_files(
        self,
        table: DeltaTable,
        plan: Plan,
        files: Sequence[DataFile],
        properties: CommitProperties,
    ) -> None:
        """Commit files; Delta refuses the commit if another one has the plan's transaction."""
        _add(table, [added_file(plan.number, file) for file in files], properties)

    def _committed_by_other(self, plan: Plan) -> bool:
        try:
            with translate_delta_errors(self._uri):
                table = open_if_exists(self._uri)
                return table is not None and commit_log.has_transaction(table, plan)
        except TidemarkError:
            return False

    def fence(self, plan: Plan, seen: TableState) -> None:
        """Raise the plan's transaction with an empty commit, so that the plan cannot land."""
        table = self._own(plan.pipeline)
        self._check_not_older(table, plan, seen)  # fence: fence-in-an-older-copy-is-refused
        if commit_log.has_transaction(table, plan):
            return
        try:
            transactions = [Transaction(plan.app_id, plan.sequence)]
            _add(table, [], _properties(transactions, json.dumps({"abandoned": plan.sequence})))
        except CommitFailedError as refused:
            raise self._fence_error(refused, table, plan.pipeline, plan.sequence) from refused

    def _fence_error(
        self, refused: CommitFailedError, table: DeltaTable, pipeline: str, sequence: int
    ) -> TidemarkError:
        """Return the error of a refused commit that raises transactions."""
        return refused_commit(
            refused,
            self._uri,
            table.version(),
            f"fencing plans of pipeline {pipeline!r}",
            lambda _: TransactionConflict(pipeline=pipeline, sequence=sequence),
        )

    def check_removals(self) -> None:
        """See `DataLog.check_removals`."""
        table = open_if_exists(self._uri)
        if table is not None:
            check_removals(table, self._uri)

    def check_removable(self, plan: Plan) -> None:
        """See `DataTable.check_removable`; reads the files that also have rows of other plans."""
        table = open_if_exists(self._uri)
        if table is None:
            return
        check_removals(table, self._uri)
        check_writable(self._uri)
        check_readable(self._uri, files_with_plan(table, plan.sequence)[1])

    def remove_rows(self, plan: Plan, epoch: int, seen: TableState) -> tuple[int, int]:
        """Remove a plan's rows; see `DataTable.remove_rows`.

        Removes files with rows of this plan only without reading them, so an unreadable file can
        be undone. After `TableAltered`, some rows may be removed.
        """
        if open_if_exists(self._uri) is None:
            return 0, 0

        def transactions(table: DeltaTable, is_last: bool) -> list[Transaction]:
            check_removals(table, self._uri)
            self._check_not_older(table, plan, seen)  # fence: removal-in-an-older-copy-is-refused
            return removal_transactions(table, plan, epoch, is_last=is_last)

        with space_needed(lambda: self._bytes_to_rewrite(plan)):
            return self._remove_rows(plan, epoch, transactions)

    def _bytes_to_rewrite(self, plan: Plan) -> int:
        """Return the size of the files that have rows of a plan and of others."""
        return sum(file.size for file in files_with_plan(newest_table(self._uri), plan.sequence)[1])

    def _remove_rows(
        self,
        plan: Plan,
        epoch: int,
        transactions: Callable[[DeltaTable, bool], list[Transaction]],
    ) -> tuple[int, int]:
        try:
            rows, removed_at = remove_whole_files(
                self._uri, plan.sequence, _removal_metadata(plan), transactions
            )
            others, version = retry_on_conflict(
                lambda: self._remove_other_rows(plan, epoch, transactions, whole_files=removed_at),
                TableConflict,
            )
        except (DeltaError, OSError) as failed:
            self.check_removable(plan)
            operation = f"removing rows of plan {plan.sequence} of pipeline {plan.pipeline!r}"
            raise self._named_error(
                failed,
                operation,
                lambda _: TableConflict.of_rows(plan.pipeline, plan.sequence),
            ) from failed
        return rows + others, version

    def _remove_other_rows(
        self,
        plan: Plan,
        epoch: int,
        transactions_of: Callable[[DeltaTable, bool], list[Transaction]],
        *,
        whole_files: int | None,
    ) -> tuple[int, int]:
        """Remove a plan's rows from files with rows of other plans, or that a RESTORE brought back.

        Args:
            plan: The plan.
            epoch: The epoch of the decision.
            transactions_of: Returns the transactions of the commit; raises to refuse the commit.
            whole_files: The version that removed files with rows of this plan only; None if none
                did.
        """
        table = DeltaTable(self._uri)
        if (
            whole_files is not None
            # fence: removed-plan-is-gone-from-every-file
            and not may_have_plan(table, plan.sequence)
            and is_removal_complete(table, plan, epoch)
        ):
            return 0, whole_files
        transactions = transactions_of(table, True)
        properties = _properties(transactions, _removal_metadata(plan))
        before = table.version()
        try:
            done = table.delete(f"plan_sequence = {plan.sequence}", commit_properties=properties)
            if table.version() == before:
                # delta-rs commits nothing without rows, but the ledger relies on the transaction.
                properties.max_commit_retries = 0
                _add(table, [], properties)
                return 0, before + 1
        except CommitFailedError as conflict:
            raise TableConflict.of_rows(plan.pipeline, plan.sequence) from conflict
        return int(done.get("num_deleted_rows") or 0), table.version()

    def fence_chains(self, pipeline: str, app_ids: Collection[str], requested_by: str) -> int:
        """Raise transaction versions to `FENCED_VERSION`: no commit with one of them follows.

        See `DataTable.fence_chains` for arguments and result.
        """
        table = self._own(pipeline)
        newest = {app_id: table.transaction_version(app_id) or 0 for app_id in app_ids}
        open_ids = {app_id: before for app_id, before in newest.items() if before < FENCED_VERSION}
        if not open_ids:  # fence: concurrent-repairs-have-own-fences
            raise TransactionConflict(pipeline=pipeline, sequence=FENCED_VERSION)
        transactions = [
            Transaction(app_id, FENCED_VERSION)  # fence: fence-is-a-transaction
            for app_id in open_ids
        ]
        metadata = json.dumps({"fenced": open_ids, "requested_by": requested_by})
        try:
            _add(table, [], _properties(transactions, metadata))
        except CommitFailedError as refused:
            raise self._fence_error(refused, table, pipeline, FENCED_VERSION) from refused
        return self.fences()[next(iter(open_ids))].version

    def _create(self, pipeline: str) -> DeltaTable:
        try:
            DeltaTable.create(
                self._uri,
                schema=self._schema,
                description=f"Tidemark: records of pipeline {pipeline}",
                configuration={**data_table_properties(self._schema), OWNER: pipeline},
                raise_if_key_not_exists=False,
                # A retry after a lost race would commit a later version with another table id.
                commit_properties=CommitProperties(
                    max_commit_retries=0, app_transactions=[prove_conditional_writes(self._uri)]
                ),
            )
        except (CommitFailedError, DeltaError):
            if open_if_exists(self._uri) is None:
                raise
            log.info("another process created the table pipeline=%s uri=%s", pipeline, self._uri)
        return newest_table(self._uri)


@translates_delta_errors
class DataTableSnapshot:
    """One version of a data table. All of its methods share one read of the log.

    Args:
        uri: The table.
        table: The table at that version.
    """

    def __init__(self, uri: str, table: DeltaTable) -> None:
        self._uri = uri
        self._table = table
        self._commits = commit_log.CommitHistory(table)

    @property
    def version(self) -> int:
        """The version."""
        return int(self._table.version())

    def columns(self) -> Mapping[str, FieldType]:
        """Return the column types by name."""
        return field_types(self._table.schema())

    def stored_bytes(self, sequence: int | None = None) -> int | None:
        """Return the bytes of all files; of one plan, of its own files."""
        return stored_bytes(self._table, sequence)

    def commits(self, limit: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Return those of the newest commits that have metadata, newest first."""
        return commit_log.commits_with_metadata(self._commits.history(limit))

    def find_landing(self, plan: Plan) -> Landing | None:
        """Find the commit that landed a plan; None without one.

        The transaction version does not prove a landing, because abandoning a plan also raises it.
        The commit must contain the plan's fingerprint. If the log no longer contains the commit (it
        keeps 30 days by default), searches for the plan's rows.
        """
        table, commits = self._table, self._commits
        if not commit_log.has_transaction(table, plan):
            return None
        for version, metadata in commit_log.plan_commits(commits):
            is_own = metadata.get("fingerprint") == plan.fingerprint
            if not is_own and not commit_log.is_of_transaction(metadata, plan):
                continue
            if not is_own:  # fence: commit-has-the-fingerprint
                raise LedgerBehindTable.with_other_plan(
                    pipeline=plan.pipeline,
                    sequence=plan.sequence,
                    fingerprint=plan.fingerprint,
                    other_fingerprint=str(metadata["fingerprint"]),
                )
            check_survives_restores(plan, version, commit_log.restores_since(commits, version))
            # The epochs of planning may be older than those of the read.
            committed = Plan.from_metadata(metadata, plan.origin)
            # Count the newest version: rows may have been deleted since the commit.
            return Landing.of(committed, version, records_by_range(table, plan))
        by_rows = _landing(table, plan)
        return by_rows if by_rows.records else None


def _replace_all(
    table: DeltaTable, plan: Plan, files: Sequence[DataFile], properties: CommitProperties
) -> None:
    """Replace rows; each of them must have a new row."""
    check_no_rows_lost(table, plan, files)
    replace_rows(table, plan, files, properties)


def _add(table: DeltaTable, added: list[AddAction], properties: CommitProperties) -> None:
    table.create_write_transaction(added, "append", table.schema(), commit_properties=properties)


def _removal_metadata(plan: Plan) -> str:
    return json.dumps({"removed_plan": plan.sequence})


def _transactions(table: DeltaTable, app_ids: Iterable[str]) -> Mapping[str, int]:
    """Return the newest transaction of each application id that the table has."""
    found = {app_id: table.transaction_version(app_id) for app_id in app_ids}
    return {app_id: newest for app_id, newest in found.items() if newest}


def _properties(transactions: list[Transaction], metadata: str) -> CommitProperties:
    return CommitProperties(
        app_transactions=transactions, custom_metadata={"userMetadata": metadata}
    )


def _landing(table: DeltaTable, plan: Plan) -> Landing:
    return Landing.of(plan, table.version(), records_by_range(table, plan))
