"""Recording that a plan has landed: the one place that moves committed offsets."""

from __future__ import annotations

import logging
from datetime import datetime

from tidemark.core import planning
from tidemark.core.events import Landed
from tidemark.core.ledger import Ledger
from tidemark.core.marks import TopicMarks
from tidemark.core.plan import Landing, Plan
from tidemark.core.table import chains, check_table, newest_table_version
from tidemark.ports import ControlTable, DataLog

log = logging.getLogger(__name__)


def record_landing(
    control: ControlTable,
    ledger: Ledger,
    plan: Plan,
    landing: Landing,
    marks: TopicMarks,
    now: datetime,
) -> None:
    """Append `landed` for a plan that the data table's log has.

    Args:
        control: The control table.
        ledger: As it is now; the plan is open in it.
        plan: The plan.
        landing: Its commit.
        marks: The topic now, read after the plan's records were.
        now: The present.

    Raises:
        TopicRecreated, TopicChanged, ClusterChanged, PartitionsShrunk: The topic is not the
            planned one any more, so nobody can tell whose records were read.
        ControlConflict: Somebody else wrote first; read the ledger again and look.
    """
    planning.check_same_topic(plan, marks)
    landed = Landed(plan=plan, landing=landing, committed=ledger.committed_after(plan))
    control.append(ledger, [landed], now)
    log.info(
        "landed pipeline=%s plan=%d records=%d table_version=%d",
        plan.pipeline,
        plan.sequence,
        landing.records,
        landing.table_version,
    )


def check_ledger(ledger: Ledger, data_log: DataLog) -> None:
    """Refuse to go on where the ledger and the data table are not of one history.

    Raises:
        TableBehindLedger, LedgerBehindTable, TableRestored
    """
    app_ids = chains(ledger).values()
    check_table(ledger, data_log.state(app_ids, since=newest_table_version(ledger)))
