"""Does the data table's log fit the ledger? The truth about landing is the table's (I5)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tidemark.core.errors import (
    ControlTruncated,
    LedgerBehindTable,
    RepairUnfinished,
    TableBehindLedger,
    TableRestored,
)
from tidemark.core.ledger import Ledger
from tidemark.core.offsets import Span
from tidemark.core.plan import Plan, PlanKind, transaction_app_id

FENCED_VERSION = 2**62
"""A transaction version above every plan's number: a chain that has it can land nothing more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeEstimate:
    """What is to be landed would add to a data table, going by what is in it.

    Attributes:
        files: Number of files, if every task finds a record.
        bytes: Their size; None if the table has nothing to go by.
    """

    files: int
    bytes: int | None

    def explain(self) -> str:
        """The size_estimate in words."""
        size = "" if self.bytes is None else f", about {self.bytes / 1e6:,.1f} MB"
        return f"about {self.files:,} file(s){size}"

    def as_record(self) -> dict[str, int | None]:
        """The size_estimate as plain values, for `--json`."""
        return {"files": self.files, "bytes": self.bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """What the rows of a data table take, by those files that tell it.

    Attributes:
        records: Number of rows in them.
        bytes: Their size.
    """

    records: int
    bytes: int

    def bytes_of(self, records: int) -> int | None:
        """What so many more records would take, if they are like these; None if there are none."""
        return records * self.bytes // self.records if self.records else None

    def records_of(self, most_bytes: int) -> int | None:
        """How many records like these take so much, at least one; None if nobody knows."""
        return max(1, most_bytes * self.records // self.bytes) if self.bytes else None

    def records_within(self, most: int, most_bytes: int) -> int:
        """At most `most` records, and fewer if such records would take more than `most_bytes`."""
        fit = self.records_of(most_bytes)
        return most if fit is None else min(most, fit)

    def size_estimate(self, spans: Iterable[Span], records_per_file: int) -> SizeEstimate:
        """What records at these offsets would add, if there is one at each."""
        sizes = [span.size for span in spans]
        files = sum(-(-size // records_per_file) for size in sizes)
        return SizeEstimate(files=files, bytes=self.bytes_of(sum(sizes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """Version `at` of a table put the content of version `to` back."""

    at: int
    to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """Rows that a data table holds now of one plan and one partition.

    Where rows of another plan lie between them, each run of them is a holding of its own.

    Attributes:
        sequence: The plan.
        topic_id: Incarnation of the topic.
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
    """Rows with the same origin.

    Attributes:
        sequence: The plan.
        topic: Topic name.
        topic_id: Incarnation of the topic.
        partition: Partition number.
        ingested_at: When they were written.
        first: The lowest of their offsets.
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
    """A plan's commit, as the data table's log tells of it.

    Attributes:
        version: Version of the table that it made.
        plan: The plan, without the watermarks it was made from.
    """

    version: int
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """What a data table's log says beside its rows.

    Attributes:
        transactions: Newest version of each application id that was asked for and is there.
        restores: RESTOREs after the version that was asked for.
    """

    transactions: Mapping[str, int]
    restores: tuple[Restore, ...]


def chains(ledger: Ledger) -> Mapping[PlanKind, str]:
    """The application id of each chain of plans."""
    return {kind: transaction_app_id(ledger.pipeline, ledger.epoch, kind) for kind in PlanKind}


def fenced_chains(ledger: Ledger) -> tuple[str, ...]:
    """Application ids that the epoch before fenced off: its mark in the data table."""
    if ledger.epoch == 0:
        return ()
    return tuple(transaction_app_id(ledger.pipeline, ledger.epoch - 1, kind) for kind in PlanKind)


def newest_table_version(ledger: Ledger) -> int:
    """The newest version of the data table that the ledger knows; -1 before the first.

    Versions of an older epoch may be of a table that was removed, and count higher.
    """
    landed = (ledger.chain_head(kind).table_version for kind in PlanKind)
    return max([ledger.epoch_version, *landed])


def check_table(ledger: Ledger, state: TableState) -> None:
    """Refuse to go on with a data table that is not the one the ledger tells of.

    Without this a table that was removed, replaced or restored would get only what is new, and a
    control table from a backup would let a backfill land again what is landed.

    Args:
        ledger: Read whole if there are RESTOREs.
        state: The table's log.

    Raises:
        ControlTruncated: The control table has lost events.
        TableBehindLedger: The table has not seen a plan that is recorded as landed.
        LedgerBehindTable: The table has seen a plan that is not recorded.
        RepairUnfinished: The table is fenced for an epoch that is not recorded.
        TableRestored: A RESTORE took landed plans out of the table, or put rewound ones back.
    """
    if ledger.missing_events:  # fence: lost-control-events-are-missed
        raise ControlTruncated(
            pipeline=ledger.pipeline,
            event_number=ledger.event_number,
            missing=ledger.missing_events,
        )
    for app_id in fenced_chains(ledger):
        newest = state.transactions.get(app_id, 0)
        if newest != FENCED_VERSION:  # fence: table-is-the-fenced-one
            # An older copy of the table, or a new one: nothing in it fences old drivers off.
            raise TableBehindLedger(
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
        if newest == FENCED_VERSION:
            raise RepairUnfinished(pipeline=ledger.pipeline, epoch=ledger.epoch)
        if newest < over:
            raise TableBehindLedger(pipeline=ledger.pipeline, sequence=over, newest=newest)
        if newest > known:
            raise LedgerBehindTable(pipeline=ledger.pipeline, sequence=newest, newest=known)
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
            raise TableRestored(
                pipeline=ledger.pipeline,
                sequence=sequence,
                version=max(state.restores, key=lambda restore: restore.at).to,
            )


def max_rows(ledger: Ledger) -> int:
    """The most rows that a data table can contain: of landed plans, and of plans that may land."""
    doubtful = (
        record.plan.size
        if record.is_open
        else record.landed_originally.records
        if record.landed_originally
        else 0
        for record in ledger.plans.values()
        if record.is_open or record.undoing
    )
    return ledger.records + sum(doubtful)


def check_survives_restores(plan: Plan, version: int, restores: Sequence[Restore]) -> None:
    """Refuse a plan's commit that a RESTORE took out of the table again.

    Args:
        plan: The plan.
        version: Version of the table that its commit made.
        restores: RESTOREs after that version.

    Raises:
        TableRestored
    """
    if not survives_restores(restores, version):  # fence: restore-of-unrecorded-commit
        raise TableRestored(
            pipeline=plan.pipeline,
            sequence=plan.sequence,
            version=max(restores, key=lambda restore: restore.at).to,
        )


def survives_restores(
    restores: Sequence[Restore], version: int, seen_from: float = math.inf
) -> bool:
    """Whether what a version committed is in the content that `seen_from` shows."""
    earlier = [restore for restore in restores if restore.at <= seen_from]
    last = max(earlier, key=lambda restore: restore.at, default=None)
    if last is None or last.at < version:
        return version <= seen_from
    return survives_restores(restores, version, last.to)
