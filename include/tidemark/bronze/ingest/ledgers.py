"""Reads ledgers and plans, and checks that the control table and the data table agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from tidemark.bronze.ingest.errors import DuplicateRows, PlanCancelled
from tidemark.bronze.ingest.protocols import ControlReader, DataLog
from tidemark.core.errors import (
    InvalidSelection,
    LedgerBehindTable,
    RepairUnfinished,
    TidemarkError,
)
from tidemark.core.events import EventKind
from tidemark.core.ledger import CheckedLedger, Ledger, PlanRecord
from tidemark.core.table_state import (
    TableState,
    chains,
    check_table,
    fenced_chains,
    max_rows,
    min_rows,
    newest_table_version,
    removals,
)
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.delta.errors import ControlConflict
from tidemark.delta.opened_tables import reopen_tables

_LOOKS = 5
"""Reads of ledger and row count, until no event was recorded between the two reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPlan:
    """A plan that is recorded and has not landed.

    Attributes:
        pipeline: Name of its pipeline.
        sequence: Plan number.
        planned_at: Time of its recording.
        runs: Number of runs that requested it: the run that planned it, and each run that took it
            over after a failure.
    """

    pipeline: str
    sequence: int
    planned_at: datetime
    runs: int


def check_ledger(control: ControlReader, ledger: Ledger, data_log: DataLog) -> CheckedLedger:
    """Return the ledger if it and the data table have the same history; see `compare_ledger`."""
    return compare_ledger(control, ledger, data_log)[0]


def compare_ledger(
    control: ControlReader, ledger: Ledger, data_log: DataLog
) -> tuple[CheckedLedger, TableState]:
    """Return ledger and state of the data table if both have the same history.

    Args:
        control: The control table, which is read again if the ledger seems to be behind.
        ledger: The state read from the control table.
        data_log: The data table's log.

    Raises:
        ForeignTable: The location contains files, or a table of another pipeline.
        TableAltered: Plans cannot land in the table, for example because of a CHECK constraint.
        HistoriesDiverge: The data table and the control table have different histories.
        ControlConflict: The ledger is not current; read it again.
    """
    app_ids = [*chains(ledger).values(), *fenced_chains(ledger), *removals(ledger)]
    state = data_log.state(ledger.pipeline, app_ids, restores_since=newest_table_version(ledger))
    compared = ledger
    if state.restores:
        # The full ledger has the table version of each plan, which shows the removed plans.
        compared = control.ledger(ledger.pipeline)
        if compared.event_number != ledger.event_number:  # fence: one-ledger-for-one-look
            raise ControlConflict(pipeline=ledger.pipeline, event_number=compared.event_number)
    try:
        check_table(compared, state)  # fence: ledger-and-table-agree
    except (LedgerBehindTable, RepairUnfinished):
        check_current(control, ledger)
        raise
    return CheckedLedger(ledger), state


def check_current(control: ControlReader, ledger: Ledger) -> None:
    """Raise if other processes have recorded events since the ledger was read.

    Raises:
        ControlConflict: The ledger is not current; read it again.
    """
    reopen_tables()
    newest = control.summary(ledger.pipeline).event_number
    if newest != ledger.event_number:
        raise ControlConflict(pipeline=ledger.pipeline, event_number=newest)


@contextmanager
def errors_of_current_ledger(control: ControlReader, ledger: Ledger) -> Iterator[None]:
    """Raise `ControlConflict` instead of the error of a comparison with an older ledger.

    The table or the topic was read after the ledger. Since then, a concurrent run may
    have landed offsets that Kafka has deleted. Compared with the older ledger, they look lost.
    """
    try:
        yield
    except TidemarkError:
        check_current(control, ledger)
        raise


def read_compared_ledger(
    control: ControlReader, pipeline: str, data_log: DataLog, *, full: bool = False
) -> tuple[CheckedLedger, TableState]:
    """Return the ledger after `compare_ledger`, and the table's state at the comparison."""
    read = control.ledger if full else control.summary
    return retry_on_conflict(lambda: compare_ledger(control, read(pipeline), data_log))


def read_checked_ledger(
    control: ControlReader,
    pipeline: str,
    data_log: DataLog,
    *,
    full: bool = False,
    rows: bool = False,
) -> CheckedLedger:
    """Return the pipeline's ledger, after a comparison with its data table.

    Args:
        control: The control table.
        pipeline: Pipeline name.
        data_log: The data table's log.
        full: Return the full ledger instead of a summary.
        rows: Also check that the data table has no more rows than have landed. A plan does not
            need this check; a report or a typed table would contain the rows twice.

    Raises:
        ForeignTable, TableAltered, HistoriesDiverge: See `compare_ledger`.
        DuplicateRows: The data table has more rows than have landed.
    """
    ledger, _ = read_compared_ledger(control, pipeline, data_log, full=full)
    if rows:
        _check_rows(control, ledger, data_log)
    return ledger


def _check_rows(control: ControlReader, ledger: Ledger, data_log: DataLog) -> None:
    for _ in range(_LOOKS):
        rows, most = data_log.row_count(), max_rows(ledger)
        if rows is None or rows <= most:  # fence: duplicate-rows-are-noticed
            return
        reopen_tables()
        newest = control.summary(ledger.pipeline)
        if newest.event_number == ledger.event_number:
            raise DuplicateRows(pipeline=ledger.pipeline, rows=rows, landed=most)
        # A plan may have landed, or was undone, between the two reads.
        ledger = newest


def missing_rows(control: ControlReader, ledger: Ledger, data_log: DataLog) -> int | None:
    """Return the number of landed rows that another program has removed from a bronze table.

    Compares totals only, so it takes the same time for every size of table.

    Args:
        control: The control table.
        ledger: The pipeline's ledger; a summary suffices.
        data_log: The data table's log.

    Returns:
        The number; None if it is unknown, because a plan may be removing rows, or because the
        files lack statistics.
    """
    for _ in range(_LOOKS):
        rows, least = data_log.row_count(), min_rows(ledger)
        if rows is None or least is None:
            return None
        if rows >= least:
            return 0
        reopen_tables()
        newest = control.summary(ledger.pipeline)
        if newest.event_number == ledger.event_number:
            return least - rows
        # An undo may have removed rows between the two reads.
        ledger = newest
    return None


def recorded_plan(control: ControlReader, pipeline: str, sequence: int) -> PlanRecord:
    """Return a plan with its outcome.

    Raises:
        InvalidSelection: The control table has no such plan.
    """
    record = control.plan_record(pipeline, sequence)
    if record is None:
        latest = control.summary(pipeline).last_sequence or None
        raise InvalidSelection.of_plan(pipeline=pipeline, sequence=sequence, latest=latest)
    return record


def open_plans(control: ControlReader, ledger: Ledger) -> tuple[OpenPlan, ...]:
    """Return the open plans of a ledger with the times of their recording."""
    records = ledger.open_plans()
    planned_at = control.recorded_at(ledger.pipeline, EventKind.PLANNED) if records else {}
    return tuple(
        OpenPlan(
            pipeline=ledger.pipeline,
            sequence=record.plan.sequence,
            planned_at=planned_at[record.plan.sequence],
            runs=len(record.requesters),
        )
        for record in records
    )


def refuse_cancelled(record: PlanRecord) -> None:
    """Check that a plan is neither abandoned nor undone.

    Raises:
        PlanCancelled
    """
    if record.cancelled_by is not None:
        plan = record.plan
        raise PlanCancelled.by(plan.pipeline, plan.sequence, record.cancelled_by)
