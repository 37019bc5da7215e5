"""A pipeline's data table: its own log, its creation, every commit. Spark writes the files."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from tidemark.core.accounting import Landing
from tidemark.core.datafile import DataFile
from tidemark.core.errors import TidemarkError
from tidemark.core.offsets import Span, SpanSet
from tidemark.core.plan import Plan
from tidemark.core.record import FIRST_DATED_MS, LAST_DATED_MS, LogRecord
from tidemark.core.table_state import (
    FENCED_VERSION,
    PlanCommit,
    Restore,
    RowOrigin,
    RowRange,
    TableSize,
    TableState,
    check_survives_restores,
    survives_restores,
)
from tidemark.lake import row_queries
from tidemark.lake.columns import BRONZE_SCHEMA, field_type
from tidemark.lake.conditional_writes import missing_storage_proofs, prove_conditional_writes
from tidemark.lake.delta_errors import tidemark_error, translates_delta_errors
from tidemark.lake.errors import (
    ColumnsDiffer,
    EngineFailed,
    ForeignCommit,
    ForeignTable,
    LandingOvertaken,
    TableAltered,
    TransactionConflict,
)
from tidemark.lake.plan_counts import records_by_range
from tidemark.lake.replacement import check_no_rows_lost, replace_rows
from tidemark.lake.table_io import open_if_exists
from tidemark.lake.table_properties import DATA_TABLE_PROPERTIES
from tidemark.lake.unreadable_files import (
    check_readable,
    files_with_plan,
    has_other_files_with_plan,
    remove_whole_files,
)
from tidemark.spec.decode import Part
from tidemark.spec.fields import FieldType, added_fields, type_conflicts
from tidemark.spec.upsert import TableChanges

log = logging.getLogger(__name__)

_RECENT_COMMITS = 50
_OWNER = "tidemark.pipeline"
_FEATURES = {
    *("appendOnly", "invariants", "checkConstraints"),
    *("changeDataFeed", "deletionVectors", "v2Checkpoint"),
}
"""Table features that a commit of new files gets along with."""
_NO_RULES = {"delta.columnMapping.id", "delta.columnMapping.physicalName"}
"""Delta's words on a column that are no rule for its values."""


_NEUTRAL = {
    *("OPTIMIZE", "VACUUM START", "VACUUM END", "COMPUTE STATS", "UPGRADE PROTOCOL"),
    *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPDATE TABLE METADATA", "SET TABLE PROPERTIES"),
    *("ADD COLUMN", "ADD COLUMNS", "CHANGE COLUMN", "ADD FEATURE", "CREATE TABLE"),
}
"""Operations that change no row of a table."""
_NO_ROWS = {"added", "abandoned", "compacted", "fenced"}
"""Keys of commits that change no rows: fields added, transactions raised, files compacted."""

Replace: TypeAlias = Callable[[DeltaTable, Plan, Sequence[DataFile], CommitProperties], None]
"""Commits a plan's files in place of rows that a table has, with some properties."""


@translates_delta_errors
class DeltaDataTable:
    """One pipeline's data table: reads its log, and makes every commit of Tidemark.

    Args:
        uri: The table.
        schema: Its columns; other programs may have added more.
        grows: Whether fields that the table does not have yet are added to its columns.
        has_unions: Whether some of its columns are unions, as `conflicts` takes it.
        reads_only: Whether to accept rules for writers, such as a CHECK constraint.
    """

    def __init__(
        self,
        uri: str,
        schema: Schema = BRONZE_SCHEMA,
        *,
        grows: bool = False,
        has_unions: bool = False,
        reads_only: bool = False,
    ) -> None:
        self._uri = uri
        self._reads_only = reads_only
        self._schema = schema
        self._grows = grows
        self._has_unions = has_unions

    def state(
        self, pipeline: str, app_ids: Collection[str], *, restores_since: int | None = None
    ) -> TableState:
        """The newest transaction of each application id, and RESTOREs after a version.

        Raises:
            ForeignTable: As in `prepare`.
        """
        table = self._present()
        if table is None:
            return TableState(transactions={}, restores=())
        self._check(table, pipeline)  # fence: state-of-own-table-only
        found = {app_id: table.transaction_version(app_id) for app_id in app_ids}
        return TableState(
            transactions={app_id: newest for app_id, newest in found.items() if newest},
            restores=() if restores_since is None else tuple(_restores(table, restores_since)),
        )

    def find_landing(self, plan: Plan) -> Landing | None:
        """The commit that landed `plan`; None if the table has none.

        A transaction version is not enough: a plan that was given up raises it without landing
        anything. The commit must carry the plan's fingerprint. Where the log no longer reaches
        back to it (30 days by default), the rows themselves are looked for.

        Raises:
            ForeignCommit: The plan's transaction is there with another plan's fingerprint.
            OverfullRange: More rows of the plan than it has offsets.
            TableRestored: A RESTORE took the commit out of the table again.
        """
        table = open_if_exists(self._uri)
        if table is None or not _has_transaction(table, plan):
            return None
        for version, metadata in _commits(table):
            if metadata.get("fingerprint") == plan.fingerprint:  # fence: commit-has-the-fingerprint
                check_survives_restores(plan, version, tuple(_restores(table, version)))
                # Counted in the newest version: rows may have been deleted since.
                # fence: rows-are-counted-in-newest-version
                return Landing.of(plan, version, records_by_range(table, plan))
            if _same_transaction(metadata, plan):
                raise ForeignCommit(
                    pipeline=plan.pipeline,
                    sequence=plan.sequence,
                    fingerprint=plan.fingerprint,
                    other_fingerprint=str(metadata["fingerprint"]),
                )
        by_rows = _landing(table, plan)
        return by_rows if by_rows.records else None

    def schema_ids(
        self, topic_id: str, spans: Mapping[int, SpanSet], part: Part
    ) -> Mapping[tuple[int, int], int]:
        """Ids that keys or values begin with, at some offsets, as `FramedLog.schema_ids`."""
        table = open_if_exists(self._uri)
        return {} if table is None else row_queries.schema_ids(table, topic_id, spans, part)

    def current_landing(self, plan: Plan) -> Landing:
        """What the newest version holds of a plan, whoever committed it.

        Raises:
            OverfullRange: More rows of the plan than it has offsets.
        """
        return _landing(DeltaTable(self._uri), plan)

    def offsets_without_rows(self, plan: Plan) -> Mapping[int, SpanSet]:
        """Offsets of a plan that landed, and have no row; partitions without any are left out."""
        return plan.offsets_outside(self.plan_spans(plan.sequence))

    def plan_spans(self, sequence: int) -> Mapping[int, SpanSet]:
        """Offsets that have a row of one plan, by partition."""
        return row_queries.plan_spans(DeltaTable(self._uri), sequence)

    def size(self) -> TableSize:
        """What rows of the newest version take, by what its log says of its files."""
        table = open_if_exists(self._uri)
        return TableSize(records=0, bytes=0) if table is None else row_queries.table_size(table)

    def row_count(self) -> int | None:
        """As `DataLog.row_count`: files with a deletion vector hold fewer rows than the log has."""
        table = open_if_exists(self._uri)
        return 0 if table is None else row_queries.row_count(table)

    def files_with(self, topic_id: str, spans: Mapping[int, SpanSet]) -> int:
        """How many files of the newest version may hold rows at these offsets."""
        table = open_if_exists(self._uri)
        return 0 if table is None else row_queries.files_with(table, topic_id, spans)

    def has_transaction(self, plan: Plan) -> bool:
        """Whether the plan's transaction is in the table: by its own commit, or by a fence."""
        table = open_if_exists(self._uri)
        return table is not None and _has_transaction(table, plan)

    def still_landed_plans(
        self, sequences: Collection[int], landed_sequences: Callable[[], Collection[int]]
    ) -> frozenset[int]:
        """Those of some plans whose commit the newest version is made of.

        Args:
            sequences: The plans.
            landed_sequences: Plans that have landed according to the ledger. They decide where the
                log has no commit: it forgets commits after a month, and a plan may have no rows.
        """
        table = open_if_exists(self._uri)
        if table is None or not sequences:
            return frozenset()
        restores = tuple(_restores(table, -1))
        told = {
            metadata["sequence"]: survives_restores(restores, version)
            for version, metadata in reversed(list(_commits(table)))
        }
        held = {sequence for sequence in sequences if told.get(sequence)}
        unknown = set(sequences) - held
        if unknown:
            of_them = f"plan_sequence IN ({', '.join(map(str, sorted(unknown)))})"
            held |= {of.sequence for of in row_queries.row_ranges(table, of_them)}
        forgotten = set(sequences) - held - told.keys()
        if forgotten:
            held |= forgotten & set(landed_sequences())  # fence: forgotten-plan-landed-per-ledger
        return frozenset(held)

    def row_ranges(self) -> tuple[RowRange, ...]:
        """What the newest version holds, by plan, incarnation and partition."""
        table = open_if_exists(self._uri)
        return () if table is None else row_queries.row_ranges(table)

    def plan_commits(self, requested_by: str) -> tuple[PlanCommit, ...]:
        """Plans' commits, newest first, as far back as the log tells of them."""
        table = open_if_exists(self._uri)
        return tuple(
            PlanCommit(version=version, plan=Plan.from_metadata(metadata, requested_by))
            for version, metadata in (() if table is None else _commits(table))
        )

    def version_and_id(self) -> tuple[int, str]:
        """As `TypedLog.version_and_id`."""
        table = open_if_exists(self._uri)
        return (-1, "") if table is None else (table.version(), str(table.metadata().id))

    def changes_since(self, version: int) -> TableChanges | None:
        """As `TypedLog.changes_since`: by what commits tell of themselves."""
        table = DeltaTable(self._uri)
        missing = table.version() - version
        # It may be a copy from before.
        commits = table.history(missing) if missing > 0 else []
        if missing < 0 or len(commits) < missing:
            return None
        told = dict(commits_with_metadata(commits))
        appended: list[Plan] = []
        replaced: list[Plan] = []
        removed: list[int] = []
        for commit in reversed(commits):
            metadata = told.get(commit["version"], {})
            if "fingerprint" in metadata:
                plan = Plan.from_metadata(metadata, requested_by="")
                (replaced if plan.replaces else appended).append(plan)
            elif "removed_plan" in metadata:
                removed.append(metadata["removed_plan"])
            elif not changes_no_rows(commit, metadata):
                return None
        return TableChanges(appended=appended, replaced=replaced, removed=removed)

    def removal_versions(self) -> Mapping[int, int]:
        """The newest version that took a plan's rows out, by plan, as far back as the log tells."""
        table = open_if_exists(self._uri)
        told = [] if table is None else list(commits_with_metadata(table.history()))
        return {
            metadata["removed_plan"]: version
            for version, metadata in reversed(told)
            if "removed_plan" in metadata
        }

    def rows_of(self, topic_id: str, partition: int, span: Span) -> Iterator[tuple[int, LogRecord]]:
        """Rows of one incarnation's partition at these offsets: the plan and the record."""
        table = open_if_exists(self._uri)
        return iter(()) if table is None else row_queries.rows_of(table, topic_id, partition, span)

    def last_rows(
        self, topic_id: str, spans: Mapping[int, SpanSet], most: int
    ) -> Mapping[int, Sequence[LogRecord]]:
        """The rows with the highest offsets, by partition, as `LandedRows.last_rows`."""
        table = open_if_exists(self._uri)
        return {} if table is None else row_queries.last_rows(table, topic_id, spans, most)

    def row_origins(self, bounds: Span) -> tuple[RowOrigin, ...]:
        """Count the rows at these offsets by their origin, as `RowOriginReader.row_origins`."""
        table = open_if_exists(self._uri)
        return () if table is None else row_queries.row_origins(table, bounds)

    def prepare(self, pipeline: str) -> TableSize:
        """Make the table if it is not there, and refuse one that is not this pipeline's.

        One that grows gets the fields that it does not have yet, in a commit that names them.

        Returns:
            What its rows take, as in `size`.

        Raises:
            ForeignTable: The target is another table, or a folder with other files.
            TableAltered: It is the pipeline's, with other columns or rules.
            EngineFailed: The fields may have been added or not; do it again.
        """
        table = self._own(pipeline)
        added = self._additions(table) if self._grows else []
        if added:
            self._add_fields(table, added)
        return row_queries.table_size(table)

    def columns(self) -> Mapping[str, FieldType]:
        """The types of its columns by name; none of a table that is not there."""
        table = open_if_exists(self._uri)
        return {} if table is None else _columns(table.schema())

    def _additions(self, table: DeltaTable) -> list[str]:
        present = _columns(table.schema())
        added: list[str] = []
        for name, kind in _columns(self._schema).items():
            added += added_fields(present[name], kind, name) if name in present else [name]
        return added

    def _add_fields(self, table: DeltaTable, added: list[str]) -> None:
        import pyarrow as pa

        schema = pa.schema(self._schema.to_arrow())
        metadata = {"userMetadata": json.dumps({"added": added})}
        try:
            write_deltalake(
                table,
                schema.empty_table(),
                mode="append",
                schema_mode="merge",
                commit_properties=CommitProperties(custom_metadata=metadata),
            )
        except (DeltaError, OSError) as failed:
            raise tidemark_error(failed, self._uri, f"adding {', '.join(added)}") from failed
        log.info("columns grew table=%s fields=%s", self._uri, added)

    def _own(self, pipeline: str) -> DeltaTable:
        """The pipeline's table, which is made if it is not there."""
        table = self._present() or self._create(pipeline)
        self._check(table, pipeline)
        return table

    def _present(self) -> DeltaTable | None:
        """The table; None if there is nothing in its place."""
        table = open_if_exists(self._uri)
        if table is None and "://" not in self._uri:
            # A log without a commit is of a table that another driver is just making.
            others = [each for each in Path(self._uri).glob("[!.]*") if each.name != "_delta_log"]
            # It may have made it between the look for it and this one.
            table = open_if_exists(self._uri) if others else None
            if others and table is None:
                self._refuse("a folder with files in it that are no Delta table")
        return table

    def _check(self, table: DeltaTable, pipeline: str) -> None:
        check_owner(table, self._uri, pipeline)
        present = {field.name: field.type for field in table.schema().fields}
        for wanted in self._schema.fields:
            if wanted.name not in present:
                if not self._grows:
                    self._differ(f"it has no column {wanted.name}")
            elif self._grows:
                there, needed = field_type(present[wanted.name]), field_type(wanted.type)
                for difference in type_conflicts(
                    there, needed, wanted.name, has_unions=self._has_unions
                ):
                    self._differ(difference)
            elif _bare(present[wanted.name]) != _bare(wanted.type):
                self._differ(f"its column {wanted.name} is {present[wanted.name]}")
        if not self._reads_only:
            self._refuse_rules(table)

    def append(self, plan: Plan, files: Sequence[DataFile]) -> bool:
        """Add a plan's files in one commit, under the plan's transaction; skip a stale one.

        Returns:
            Whether this call committed them.

        Raises:
            RowsWouldBeLost: A row to be replaced has no successor; nothing was changed.
            TransactionConflict: Another commit of this transaction was first; look again.
            LandingOvertaken: A conflicting commit was first; nothing was changed.
            EngineFailed: The commit failed, or its answer was lost.
        """
        return self.land(plan, files, _replace_all)

    def land(self, plan: Plan, files: Sequence[DataFile], replace: Replace) -> bool:
        """Land a plan's files in one commit; do nothing if its transaction exists.

        Args:
            plan: The plan.
            files: Its rows.
            replace: Makes the commit of a replacing plan.

        Returns:
            Whether this call committed them.

        Raises:
            TransactionConflict, LandingOvertaken, EngineFailed: As in `append`.
        """
        try:
            table = DeltaTable(self._uri)
            if _has_transaction(table, plan):  # fence: taken-transaction-is-not-committed
                return False
            # fence: data-storage-is-tried
            proofs = missing_storage_proofs(table, self._uri)
            # fence: landing-is-a-transaction
            transactions = [Transaction(plan.app_id, plan.sequence), *proofs]
            change = replace if plan.replaces else self._add_files
            change(table, plan, files, _properties(transactions, plan.commit_metadata()))
        except (DeltaError, OSError) as failed:
            if self._others_were_first(plan):
                raise TransactionConflict(
                    pipeline=plan.pipeline, sequence=plan.sequence
                ) from failed
            operation = f"committing plan {plan.sequence} of pipeline {plan.pipeline!r}"
            error = tidemark_error(failed, self._uri, operation)
            if isinstance(failed, CommitFailedError) and isinstance(error, EngineFailed):
                error = LandingOvertaken(
                    pipeline=plan.pipeline, sequence=plan.sequence, reason=error.reason
                )
            raise error from failed
        return True

    def _add_files(
        self,
        table: DeltaTable,
        plan: Plan,
        files: Sequence[DataFile],
        properties: CommitProperties,
    ) -> None:
        """Commit files after the version that was looked at; refused if others were first."""
        _add(table, [_added(plan, file) for file in files], properties)

    def _others_were_first(self, plan: Plan) -> bool:
        try:
            return self.has_transaction(plan)
        except TidemarkError:
            return False

    def fence(self, plan: Plan) -> None:
        """Raise the plan's transaction with an empty commit: whoever lands it later is refused.

        Raises:
            ForeignTable: As in `prepare`.
            TransactionConflict: Another commit of this transaction was first; look again.
        """
        table = self._own(plan.pipeline)
        if _has_transaction(table, plan):
            return
        try:
            transactions = [Transaction(plan.app_id, plan.sequence)]
            _add(table, [], _properties(transactions, json.dumps({"abandoned": plan.sequence})))
        except CommitFailedError as conflict:
            raise TransactionConflict(pipeline=plan.pipeline, sequence=plan.sequence) from conflict

    def check_removable(self, plan: Plan) -> None:
        """As `DataTable.check_removable`: reads files that hold rows of other plans as well."""
        table = open_if_exists(self._uri)
        if table is not None:
            check_readable(self._uri, files_with_plan(table, plan.sequence)[1])

    def remove_rows(self, plan: Plan) -> tuple[int, int]:
        """Remove a plan's rows. Returns their number, and a version that has none of them.

        Removes files with rows of this plan alone without reading them, so an unreadable file can
        be undone.

        Raises:
            UnreadableFile: A file with rows of other plans as well.
            EngineFailed: The rows may be there or not; do it again.
        """
        if open_if_exists(self._uri) is None:
            return 0, 0
        metadata = json.dumps({"removed_plan": plan.sequence})
        try:
            rows = remove_whole_files(self._uri, plan.sequence, metadata)
            table = DeltaTable(self._uri)
            # fence: removed-plan-is-gone-from-every-file
            if not rows or has_other_files_with_plan(table, plan.sequence):
                done = table.delete(
                    f"plan_sequence = {plan.sequence}",
                    commit_properties=CommitProperties(custom_metadata={"userMetadata": metadata}),
                )
                rows += int(done.get("num_deleted_rows") or 0)
        except (DeltaError, OSError) as failed:
            self.check_removable(plan)
            operation = f"removing rows of plan {plan.sequence} of pipeline {plan.pipeline!r}"
            raise tidemark_error(failed, self._uri, operation) from failed
        return rows, table.version()

    def fence_chains(self, pipeline: str, app_ids: Collection[str]) -> int:
        """Raise transactions so far that no plan under them can ever land.

        Returns:
            The version of the table after which that holds.

        Raises:
            ForeignTable: As in `prepare`.
            TransactionConflict: Another commit of such a transaction was first; look again.
        """
        table = self._own(pipeline)
        open_ids = [i for i in app_ids if (table.transaction_version(i) or 0) < FENCED_VERSION]
        if not open_ids:
            return int(table.version())
        # fence: fence-is-a-transaction
        transactions = [Transaction(app_id, FENCED_VERSION) for app_id in open_ids]
        try:
            _add(table, [], _properties(transactions, json.dumps({"fenced": open_ids})))
        except CommitFailedError as conflict:
            raise TransactionConflict(pipeline=pipeline, sequence=FENCED_VERSION) from conflict
        return int(DeltaTable(self._uri).version())

    def _create(self, pipeline: str) -> DeltaTable:
        try:
            DeltaTable.create(
                self._uri,
                schema=self._schema,
                description=f"Tidemark: what pipeline {pipeline} landed",
                configuration={**DATA_TABLE_PROPERTIES, _OWNER: pipeline},
                raise_if_key_not_exists=False,
                # Tried again, a lost race would become a later commit with another table id.
                commit_properties=CommitProperties(
                    max_commit_retries=0, app_transactions=[prove_conditional_writes(self._uri)]
                ),
            )
        except (CommitFailedError, DeltaError):
            if open_if_exists(self._uri) is None:
                raise
            log.info("table made by another driver pipeline=%s uri=%s", pipeline, self._uri)
        return DeltaTable(self._uri)

    def _refuse_rules(self, table: DeltaTable) -> None:
        """Refuse a table that asks its writers for what a commit of files does not do."""
        for name in table.metadata().configuration:
            if name.startswith("delta.constraints."):
                self._altered(f"it has the constraint {name.removeprefix('delta.constraints.')!r}")
        for field in table.schema().fields:
            rules = {name for name in field.metadata if name.startswith("delta.")}
            if not field.nullable or rules - _NO_RULES:
                self._altered(f"its column {field.name} has a rule")
        if unknown := set(table.protocol().writer_features or ()) - _FEATURES:
            self._altered(f"it has the table feature {', '.join(sorted(unknown))}")

    def _refuse(self, difference: str) -> None:
        raise ForeignTable(target=self._uri, difference=difference)

    def _differ(self, difference: str) -> None:
        raise ColumnsDiffer(target=self._uri, difference=difference)

    def _altered(self, difference: str) -> None:
        raise TableAltered(target=self._uri, difference=difference)


def _columns(schema: Schema) -> Mapping[str, FieldType]:
    return {field.name: field_type(field.type) for field in schema.fields}


def _replace_all(
    table: DeltaTable, plan: Plan, files: Sequence[DataFile], properties: CommitProperties
) -> None:
    """Replace rows, each of which must have a successor."""
    check_no_rows_lost(table, plan, files)
    replace_rows(table, plan, files, properties)


def _add(table: DeltaTable, added: list[AddAction], properties: CommitProperties) -> None:
    table.create_write_transaction(added, "append", table.schema(), commit_properties=properties)


def _properties(transactions: list[Transaction], metadata: str) -> CommitProperties:
    return CommitProperties(
        app_transactions=transactions, custom_metadata={"userMetadata": metadata}
    )


def check_owner(table: DeltaTable, uri: str, pipeline: str) -> None:
    """Refuse a table that is not of this pipeline.

    Raises:
        ForeignTable
    """
    owner = table.metadata().configuration.get(_OWNER)
    if owner != pipeline:
        difference = f"the table property {_OWNER} is {owner!r}, not {pipeline!r}"
        raise ForeignTable(target=uri, difference=difference)


def _has_transaction(table: DeltaTable, plan: Plan) -> bool:
    """Whether the plan's transaction is in the table: by its own commit, or by a fence."""
    return (table.transaction_version(plan.app_id) or 0) >= plan.sequence


def _added(plan: Plan, file: DataFile) -> AddAction:
    """A file with the statistics that readers prune by, and that tell its range (landed.py)."""
    shared = {"plan_sequence": plan.sequence}
    if file.partition is not None:
        shared["partition"] = file.partition
    least: dict[str, Any] = {**shared, "offset": file.first}
    greatest: dict[str, Any] = {**shared, "offset": file.last}
    if (
        file.earliest_ms is not None
        and file.latest_ms is not None
        and FIRST_DATED_MS <= file.earliest_ms <= file.latest_ms <= LAST_DATED_MS
    ):
        least["timestamp"] = _instant(file.earliest_ms)
        greatest["timestamp"] = _instant(file.latest_ms)
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values={},
        modification_time=file.modified_ms,
        data_change=True,
        stats=json.dumps(
            {
                "numRecords": file.records,
                "minValues": least,
                "maxValues": greatest,
                "nullCount": dict.fromkeys(least, 0),
            }
        ),
    )


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _instant(ms: int) -> str:
    """As the Delta protocol writes timestamps; Kafka's have no more digits."""
    moment = _EPOCH + timedelta(milliseconds=ms)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _landing(table: DeltaTable, plan: Plan) -> Landing:
    return Landing.of(plan, table.version(), records_by_range(table, plan))


def _bare(kind: Any) -> str:
    """A type without what may be null, on which Spark and delta-rs differ for nested fields."""
    text = kind.to_json() if hasattr(kind, "to_json") else str(kind)
    return text.replace('"containsNull":false', '"containsNull":true').replace(
        '"nullable":false', '"nullable":true'
    )


def _restores(table: DeltaTable, since: int) -> Iterator[Restore]:
    commits = table.version() - since
    if commits <= 0:
        return
    for commit in table.history(commits):
        if commit.get("operation") == "RESTORE":
            to = (commit.get("operationParameters") or {}).get("version")
            # A RESTORE by timestamp does not say the version: everything before it is in doubt.
            yield Restore(at=commit["version"], to=int(to) if to is not None else 0)


def _commits(table: DeltaTable) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Versions with Tidemark's commit metadata, newest first; old ones are read only if asked."""
    recent = table.history(_RECENT_COMMITS)
    yield from _landings(recent)
    if len(recent) == _RECENT_COMMITS:
        yield from _landings(table.history()[_RECENT_COMMITS:])


def _landings(history: list[dict[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    return (told for told in commits_with_metadata(history) if "fingerprint" in told[1])


def commits_with_metadata(history: list[dict[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Versions whose commits tell something in JSON, newest first."""
    for commit in history:
        try:
            metadata = json.loads(commit.get("userMetadata") or "null")
        except json.JSONDecodeError:
            continue
        if isinstance(metadata, dict):
            yield commit["version"], metadata


def changes_no_rows(commit: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """Whether a commit, by what it tells in JSON, has changed no row."""
    return commit.get("operation") in _NEUTRAL or bool(metadata.keys() & _NO_ROWS)


def _same_transaction(metadata: Mapping[str, Any], plan: Plan) -> bool:
    return (
        metadata.get("pipeline") == plan.pipeline
        and metadata.get("sequence") == plan.sequence
        and metadata.get("epoch") == plan.epoch
        and metadata.get("kind") == plan.kind.value
    )
