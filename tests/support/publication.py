"""Records decisions about the publication of landed plans, without a check."""

from __future__ import annotations

from typing import Any

from tests.support.services import NOW
from tidemark.bronze.ingest.protocols import ControlTable
from tidemark.core.events import PublicationDecided
from tidemark.core.ledger import CheckedLedger
from tidemark.core.publication import PublicationStatus
from tidemark.quality.check_results import QualityReport
from tidemark.quality.service import decision_of


def record_decision(
    control: ControlTable,
    pipeline: str,
    sequence: int,
    status: PublicationStatus = PublicationStatus.PUBLISHED,
    **values: Any,
) -> None:
    """Record a decision about a landed plan, as a check does; with `decided_by`, as an operator."""
    record = control.plan_record(pipeline, sequence)
    assert record is not None
    assert record.held_now is not None
    decided = PublicationDecided(
        sequence=sequence,
        status=status,
        topic_id=record.plan.topic_id,
        spans=record.held_now.spans(),
        **values,
    )
    control.append(CheckedLedger(control.summary(pipeline)), [decided], NOW)


def record_check(control: ControlTable, report: QualityReport) -> None:
    """Record the decision of a check of a landed plan."""
    record = control.plan_record(report.pipeline, report.plan_sequence)
    assert record is not None
    assert record.held_now is not None
    decided = decision_of(report, record.plan, record.held_now)
    control.append(CheckedLedger(control.summary(report.pipeline)), [decided], report.run_at)
