"""Recording that a plan has landed: the one place that moves committed offsets."""

from __future__ import annotations

import logging
from datetime import datetime

from tidemark.core.events import Landed
from tidemark.core.ledger import Ledger
from tidemark.core.plan import Landing, Plan
from tidemark.ports import ControlTable

log = logging.getLogger(__name__)


def record_landing(
    control: ControlTable, ledger: Ledger, plan: Plan, landing: Landing, now: datetime
) -> None:
    """Append `landed` for a plan that the data table's log has.

    Raises:
        ControlConflict: Somebody else wrote first; read the ledger again and look.
    """
    landed = Landed(plan=plan, landing=landing, committed=ledger.committed_after(plan))
    control.append(ledger, [landed], now)
    log.info(
        "landed pipeline=%s plan=%d records=%d table_version=%d",
        plan.pipeline,
        plan.sequence,
        landing.records,
        landing.table_version,
    )
