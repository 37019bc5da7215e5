"""Creates the owner's report of a pipeline from the tables. Read-only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from tidemark.bronze.ingest.errors import NothingLanded
from tidemark.bronze.ingest.ledgers import check_current, missing_rows, read_checked_ledger
from tidemark.bronze.ingest.protocols import Clock, ControlReader, DataLog
from tidemark.core.events import EventKind
from tidemark.core.following import Batch
from tidemark.core.offsets import Span
from tidemark.core.plan import PlanRef
from tidemark.core.publication import PublicationStatus, PublishRule
from tidemark.delta.conflicts import retry_on_conflict
from tidemark.delta.opened_tables import tables_opened_once
from tidemark.ops.report.certificate import Certificate, certify
from tidemark.ops.report.owner_report import PipelineReport
from tidemark.ops.report.removed_rows import read_removed_rows
from tidemark.ops.report.typed_account import PlanAccount, TypedAccount
from tidemark.quality.check_results_table import DeltaCheckResults
from tidemark.quality.publication_service import Publication
from tidemark.silver.typed.quarantine_index import QuarantineIndex
from tidemark.silver.typed.state import TypedState
from tidemark.silver.typed.unnamed import UnnamedFields
from tidemark.spec.model import PipelineSpec


class TypedReports(Protocol):
    """Reads what a report contains about a typed table."""

    def state(self) -> TypedState:
        """Return the state of the table and of its quarantine."""
        ...

    def rows_by_plan(self, plans: Span) -> Mapping[Batch, int]:
        """Return the number of typed rows of some plans."""
        ...

    def unnamed_fields(self) -> UnnamedFields | None:
        """Return the fields of the newest decoded plans that the schema does not name.

        None if the spec does not keep them.
        """
        ...

    @property
    def quarantine(self) -> QuarantineIndex:
        """The quarantine."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Creates reports of one pipeline.

    Attributes:
        spec: The pipeline.
        control: The control table.
        data_log: The data table's log, which must agree with the control table.
        history: Stored check results.
        publication: Reads the publication status of each plan.
        masked: Columns whose values the report hides, also in older results.
        typed: Reads the typed table; None without one.
        now: The clock.
    """

    spec: PipelineSpec
    control: ControlReader
    data_log: DataLog
    history: DeltaCheckResults
    publication: Publication
    masked: Collection[str]
    typed: TypedReports | None
    now: Clock

    def report(self, since: datetime, until: datetime) -> PipelineReport:
        """Return the report of a period.

        Args:
            since: Start of the period.
            until: End of the period, exclusive.

        Raises:
            NothingLanded: No plan of the pipeline has landed.
            HistoriesDiverge, DuplicateRows: A certificate would be wrong; see
                `read_checked_ledger`.
            ControlConflict: Other processes changed the pipeline during each of several attempts.
        """
        return retry_on_conflict(lambda: self._report(since, until))

    @tables_opened_once()
    def _report(self, since: datetime, until: datetime) -> PipelineReport:
        # Opened before the ledger, which then has the plans of all typed rows.
        state = self.typed.state() if self.typed else None
        ledger = read_checked_ledger(
            self.control, self.spec.name, self.data_log, full=True, rows=True
        )
        if ledger.topic is None:
            raise NothingLanded(pipeline=self.spec.name, topic=self.spec.topic)
        landed_at = self.control.recorded_at(self.spec.name, EventKind.LANDED)
        certificate = certify(ledger, landed_at, since, until)
        removed = read_removed_rows(
            self.control,
            self.spec.name,
            [
                record
                for sequence, record in ledger.plans.items()
                if sequence in landed_at and since <= landed_at[sequence] < until
            ],
        )
        plans = {each.plan for each in certificate.plans}
        plans_by_status: dict[str, list[int]] = {}
        for each in self.publication.plans(ledger):
            if each.plan.sequence in plans:
                status = each.record.publication_status
                plans_by_status.setdefault(status, []).append(each.plan.sequence)
        missing = missing_rows(self.control, ledger, self.data_log)
        report = PipelineReport(
            created_at=self.now(),
            description=self.spec.description,
            certificate=certificate,
            missing_rows=missing,
            checked=[
                replace(plan, results=[result.masked(self.masked) for result in plan.results])
                for plan in self.history.checked(
                    [PlanRef(pipeline=self.spec.name, sequence=each) for each in plans]
                ).values()
            ],
            plans_by_status=plans_by_status,
            removed=[each for _, each in sorted(removed.items(), reverse=True)],
            quarantined=self.typed.quarantine.records() if self.typed else None,
            unnamed_fields=self.typed.unnamed_fields() if self.typed else None,
            typed=TypedAccount.of(self.spec.name, ledger.records, missing, state)
            if state
            else None,
        )
        report = replace(report, typed_plans=self._typed_plans(report))
        if report.unaccounted:
            # Since the ledger was read, a plan may have landed and been decoded.
            check_current(self.control, ledger)
        return report

    def _typed_plans(self, report: PipelineReport) -> Sequence[PlanAccount] | None:
        """Return the accounts of the published plans of a report; None while a decode is due."""
        plans = _published(self.spec, report.certificate, report.plans_by_status)
        if self.typed is None or report.typed is None or not report.typed.is_followed:
            return None
        if not plans:
            return ()
        topic_id = str(report.certificate.topic_id)
        rows = self.typed.rows_by_plan(Span(min(plans), max(plans) + 1))
        quarantined = Counter(
            each.plan for each in report.quarantined or () if each.topic_id == topic_id
        )
        return [
            PlanAccount(
                plan=number,
                records=records,
                typed_rows=rows.get(Batch(number, topic_id), 0),
                quarantined=quarantined[number],
            )
            for number, records in plans.items()
        ]


def _published(
    spec: PipelineSpec, certificate: Certificate, plans_by_status: Mapping[str, Sequence[int]]
) -> Mapping[int, int]:
    """Return the records of the plans of a period that belong in the typed table, by number."""
    plans = {each.plan: each.records for each in certificate.plans}
    if spec.decode is None or spec.decode.publish is PublishRule.ALWAYS:
        return plans
    visible = (each for each in PublicationStatus if each.is_visible)
    numbers = {number for status in visible for number in plans_by_status.get(status, ())}
    return {number: records for number, records in plans.items() if number in numbers}
