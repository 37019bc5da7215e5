"""Does the data table's log fit the ledger? The truth about landing is the table's (I5)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemark.core.ledger import Ledger
from tidemark.core.plan import PlanKind, transaction_app_id
from tidemark.errors import LedgerBehindTable, TableBehindLedger, TableRestored


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """Version `at` of a table put the content of version `to` back."""

    at: int
    to: int


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


def newest_table_version(ledger: Ledger) -> int:
    """Version of the data table that the newest landing made; -1 before the first."""
    return max(
        (record.landing.table_version for record in ledger.plans.values() if record.landing),
        default=-1,
    )


def check_table(ledger: Ledger, state: TableState) -> None:
    """Refuse to go on with a data table that is not the one the ledger tells of.

    Without this a table that was removed, replaced or restored would get only what is new, and a
    control table from a backup would let a backfill land again what is landed.

    Raises:
        TableBehindLedger: The table has not seen a plan that is recorded as landed.
        LedgerBehindTable: The table has seen a plan that is not recorded.
        TableRestored: A RESTORE took landed plans out of the table.
    """
    for kind, app_id in chains(ledger).items():
        records = [record for record in ledger.plans.values() if record.plan.kind is kind]
        newest = state.transactions.get(app_id, 0)
        settled = max((r.plan.sequence for r in records if not r.is_open), default=0)
        known = max((r.plan.sequence for r in records), default=0)
        if newest < settled:
            raise TableBehindLedger(pipeline=ledger.pipeline, sequence=settled, newest=newest)
        if newest > known:
            raise LedgerBehindTable(pipeline=ledger.pipeline, sequence=newest, newest=known)
    for record in ledger.plans.values():
        landing = record.landing
        if landing and not _still_holds(state.restores, landing.table_version):
            raise TableRestored(
                pipeline=ledger.pipeline,
                sequence=landing.sequence,
                version=max(state.restores, key=lambda restore: restore.at).to,
            )


def _still_holds(restores: Sequence[Restore], version: int, seen_from: float = math.inf) -> bool:
    """Whether what a version committed is in the content that `seen_from` shows."""
    earlier = [restore for restore in restores if restore.at <= seen_from]
    last = max(earlier, key=lambda restore: restore.at, default=None)
    if last is None or last.at < version:
        return version <= seen_from
    return _still_holds(restores, version, last.to)
