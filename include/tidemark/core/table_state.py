"""Compares a ledger with the data table's log, which alone decides which offsets landed (I5)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tidemark.core.errors import (
    LedgerBehindTable,
    RepairUnfinished,
    TableBehindLedger,
)
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span
from tidemark.core.plan import (
    Plan,
    PlanKind,
    is_removal,
    plan_removal_app_id,
    removal_app_id,
    transaction_app_id,
)
from tidemark.core.texts import counted

FENCED_VERSION = 2**62
"""A transaction version above every plan number. It prevents further landings of its chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeEstimate:
    """Estimated growth of a data table by a plan.

    Attributes:
        files: Number of files, if every task finds a record.
        bytes: Size in bytes; None for a table without rows to estimate from.
    """

    files: int
    bytes: int | None

    def explain(self) -> str:
        """Return the estimate as text."""
        size = "" if self.bytes is None else f", about {self.bytes / 1e6:,.1f} MB"
        return f"about {counted(self.files, 'file')}{size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """Number and size of the rows of a data table, from the files whose statistics have both.

    Attributes:
        records: Number of rows.
        bytes: Size in bytes.
    """

    records: int
    bytes: int

    def bytes_of(self, records: int) -> int | None:
        """Return the estimated size of more records, in bytes; None for a table without rows."""
        return records * self.bytes // self.records if self.records else None

    def records_of(self, most_bytes: int) -> int | None:
        """Return the estimated number of records in `most_bytes`, at least 1; None if unknown."""
        return max(1, most_bytes * self.records // self.bytes) if self.bytes else None

    def records_within(self, most: int, most_bytes: int) -> int:
        """Return `most`, or the estimated number of records in `most_bytes` if it is lower."""
        fit = self.records_of(most_bytes)
        return most if fit is None else min(most, fit)

    def size_estimate(self, spans: Iterable[Span], records_per_file: int) -> SizeEstimate:
        """Estimate the growth of the table, with a record at every offset of `spans`."""
        sizes = [span.size for span in spans]
        files = sum(-(-size // records_per_file) for size in sizes)
        return SizeEstimate(files=files, bytes=self.bytes_of(sum(sizes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """A RESTORE to version `to` of a table, which created version `at`."""

    at: int
    to: int


@dataclass(frozen=True, slots=True)
class Fence:
    """The commit of a repair that fenced an application id.

    Attributes:
        version: Version of the table.
        requested_by: The operator's command, as `cli:<user>:<id>`.
        before: Version of the transaction before the fence; 0 without one.
    """

    version: int
    requested_by: str
    before: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """Current rows of one plan and one partition in a data table.

    Rows of another plan between them split the rows into several ranges.

    Attributes:
        sequence: Plan number.
        topic_id: Kafka's id of the incarnation of the topic.
        partition: Partition number.
        first: Lowest offset.
        last: Highest offset.
        rows: Number of rows.
    """

    sequence: int
    topic_id: str
    partition: int
    first: int
    last: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrigin:
    """Values of the metadata columns that a group of rows shares.

    Attributes:
        sequence: Plan number.
        topic: Topic name.
        topic_id: Kafka's id of the incarnation of the topic.
        partition: Partition number.
        ingested_at: Time at which the rows were written.
        first: Lowest offset.
        rows: Number of rows.
    """

    sequence: int | None
    topic: str | None
    topic_id: str | None
    partition: int
    ingested_at: datetime | None
    first: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCommit:
    """The commit of a plan in the data table's log.

    Attributes:
        version: Version of the table that the commit created.
        plan: The plan, without watermarks.
    """

    version: int
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """Transactions and RESTOREs in the log of a data table.

    Attributes:
        transactions: Newest version of each requested application id.
        restores: RESTOREs after the requested version.
        version: The version of the table; None without a table.
    """

    transactions: Mapping[str, int]
    restores: tuple[Restore, ...]
    version: int | None = None

    def is_later_than(self, transactions: Mapping[str, int]) -> bool:
        """Return whether another state of the table is older than this one.

        Each plan raises the transaction of its chain. A removal may lower the number of its
        transaction, but the transaction stays.

        Args:
            transactions: Transactions of the other state, at least for the same application ids.
        """
        return any(
            transactions.get(app_id, 0) < (1 if is_removal(app_id) else newest)
            for app_id, newest in self.transactions.items()
        )


def chains(ledger: Ledger) -> Mapping[PlanKind, str]:
    """Return the application id of each chain of plans."""
    return {kind: transaction_app_id(ledger.pipeline, ledger.epoch, kind) for kind in PlanKind}


def fenced_chains(ledger: Ledger) -> tuple[str, ...]:
    """Return the application ids that the repair before this epoch fenced in the data table."""
    if ledger.epoch == 0:
        return ()
    return tuple(transaction_app_id(ledger.pipeline, ledger.epoch - 1, kind) for kind in PlanKind)


def removals(ledger: Ledger) -> tuple[str, ...]:
    """Return the application ids of removals in this epoch: of any, and of the newest undo."""
    newest = removal_app_id(ledger.pipeline, ledger.epoch)
    undo = ledger.newest_undo
    if undo is None:
        return (newest,)
    return (newest, plan_removal_app_id(ledger.pipeline, ledger.epoch, undo.sequence))


def newest_table_version(ledger: Ledger) -> int:
    """Return the newest version of the data table in the ledger; -1 before the first.

    Versions of older epochs do not count: they may belong to a removed table, and be higher.
    """
    landed = (ledger.chain_head(kind).table_version for kind in PlanKind)
    return max([ledger.epoch_version, *landed])


def check_table(ledger: Ledger, state: TableState) -> None:
    """Raise if the data table and the ledger have different histories.

    Without this check, a removed, replaced or restored table would get only new records. With a
    control table from a backup, a backfill could land records twice.

    Args:
        ledger: State of the pipeline; a full ledger if there are RESTOREs.
        state: State of the table's log.

    Raises:
        HistoriesDiverge: The subclass that names the difference.
    """
    if ledger.missing_events:  # fence: lost-control-events-are-missed
        raise LedgerBehindTable.without_rows(
            pipeline=ledger.pipeline,
            event_number=ledger.event_number,
            missing=ledger.missing_events,
        )
    for app_id in fenced_chains(ledger):
        newest = state.transactions.get(app_id, 0)
        if newest != FENCED_VERSION:  # fence: table-is-the-fenced-one
            # The table is an older copy or a new one: nothing in it fences old drivers.
            raise TableBehindLedger.without_plan(
                pipeline=ledger.pipeline, sequence=ledger.last_sequence, newest=newest
            )
    for kind, app_id in chains(ledger).items():
        newest = state.transactions.get(app_id, 0)
        over = ledger.chain_head(kind).sequence
        opened = (
            record.plan.sequence
            for record in ledger.open_plans()
            if record.plan.kind is kind and record.plan.epoch == ledger.epoch
        )
        known = max([over, *opened])
        if newest == FENCED_VERSION:  # fence: unfinished-repair-is-noticed
            raise RepairUnfinished(pipeline=ledger.pipeline, epoch=ledger.epoch)
        if newest < over:
            raise TableBehindLedger.without_plan(
                pipeline=ledger.pipeline, sequence=over, newest=newest
            )
        if newest > known:  # fence: newer-table-is-noticed
            raise LedgerBehindTable.without_plan(
                pipeline=ledger.pipeline, sequence=newest, newest=known
            )
    _check_removals(ledger, state)
    known_versions = {
        record.landed_originally.table_version: record.plan.sequence
        for record in ledger.plans.values()
        if record.landed_originally
    }
    known_versions |= {
        record.undone_version: record.plan.sequence
        for record in ledger.plans.values()
        if record.undone_version is not None
    }
    known_versions.setdefault(ledger.epoch_version, ledger.last_sequence)
    for version, sequence in known_versions.items():
        if not survives_restores(state.restores, version):  # fence: restore-of-recorded-landing
            raise TableBehindLedger.after_restore(
                pipeline=ledger.pipeline,
                sequence=sequence,
                version=max(state.restores, key=lambda restore: restore.at).to,
            )


def _check_removals(ledger: Ledger, state: TableState) -> None:
    """Raise if the table or the ledger is a copy from before an undo that the other one has."""
    undo = ledger.newest_undo
    # Versions do not show a copy that later commits have made as long again.
    # fence: copy-from-before-an-undo-is-noticed
    if undo and not state.transactions.keys() >= set(removals(ledger)):
        raise TableBehindLedger.without_undo(
            pipeline=ledger.pipeline,
            sequence=undo.sequence,
            version=undo.table_version or 0,
            newest=state.version or 0,
        )
    removed = state.transactions.get(removal_app_id(ledger.pipeline, ledger.epoch), 0)
    if not removed or removed == FENCED_VERSION:
        return
    record = ledger.plans.get(removed)
    # A summary has no records of plans with all rows.
    is_held = record is None or not (record.is_open or record.cancelled_by)
    if is_held:  # fence: ledger-from-before-an-undo-is-noticed
        raise LedgerBehindTable.without_plan(
            pipeline=ledger.pipeline, sequence=removed, newest=ledger.last_sequence
        )


def max_rows(ledger: Ledger) -> int:
    """Return the maximum number of rows of a data table: of landed plans, and of open ones."""
    open_or_undoing = (
        record.plan.size
        if record.is_open
        else record.landed_originally.records
        if record.landed_originally
        else 0
        for record in ledger.plans.values()
        if record.is_open or record.undoing
    )
    return ledger.records + sum(open_or_undoing)


def min_rows(ledger: Ledger) -> int | None:
    """Return the minimum number of rows of a data table; None while a plan may be removing rows."""
    if any(
        record.undoing or (record.is_open and record.plan.replaces)
        for record in ledger.plans.values()
    ):
        return None
    return ledger.records


def check_survives_restores(plan: Plan, version: int, restores: Sequence[Restore]) -> None:
    """Raise `TableBehindLedger` if a RESTORE has removed the commit of a plan.

    Args:
        plan: The plan.
        version: Version of the table that its commit created.
        restores: RESTOREs after that version.
    """
    if not survives_restores(restores, version):  # fence: restore-of-unrecorded-commit
        raise TableBehindLedger.after_restore(
            pipeline=plan.pipeline,
            sequence=plan.sequence,
            version=max(restores, key=lambda restore: restore.at).to,
        )


def survives_restores(
    restores: Sequence[Restore], version: int, seen_from: float = math.inf
) -> bool:
    """Return whether the table at version `seen_from` contains what `version` committed.

    Args:
        restores: RESTOREs of the table.
        version: Version that committed rows.
        seen_from: Version to read; the newest by default.
    """
    earlier = [restore for restore in restores if restore.at <= seen_from]
    last = max(earlier, key=lambda restore: restore.at, default=None)
    if last is None or last.at < version:
        return version <= seen_from
    return survives_restores(restores, version, last.to)
